"""Intervals that the binomial distribution gives, whatever is measured is distributed like. Pure.

A quantile lies between two order statistics: Conover, W. J. (1999), Practical Nonparametric
Statistics, section 3.2. The limits keep their confidence for any distribution, take no draws, and
say nothing where there is too little: nobody knows the p99 of sixteen requests, and the bootstrap
of it ends at the largest of the sixteen. Those of a share: `workbench.proportion`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile_interval(
    values: Sequence[float], percentile: float, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Two-sided limits of a percentile: the innermost order statistics that hold it surely enough.

    Args:
        values: independent of each other, in any order.
        percentile: 0 to 100, ends excluded.
        confidence: of both limits together; each is missed with half the rest at most.

    Returns:
        None where there are too few values for one of them.

    Raises:
        ValueError: the percentile has no values on both sides.
    """
    import numpy as np

    ordered = np.sort(np.asarray(values, dtype=float))
    ranks = _ranks(len(values), percentile, confidence)
    return (float(ordered[ranks[0]]), float(ordered[ranks[1]])) if ranks else None


def fewest_values(percentile: float, confidence: float = 0.95) -> int:
    """The fewest values of which a percentile has both limits: 72 of a p95, 368 of a p99."""
    n = 1
    while _ranks(n, percentile, confidence) is None:
        n += 1
    return n


def clustered_quantile_interval(
    groups: Sequence[Sequence[float]], percentile: float, confidence: float = 0.95
) -> tuple[float, float] | None:
    """The same of values that are alike within a group, as the gaps of one answer are.

    The values count as so many independent ones as would leave the share below the percentile as
    unsure as the groups do: Korn, E. L. and Graubard, B. I. (1998), Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data, Survey
    Methodology 24, 193-201; from shares to quantiles as in Woodruff, R. S. (1952), JASA 47,
    635-646.

    Args:
        groups: values by group, none of them empty.
        percentile: 0 to 100, ends excluded.
        confidence: of both limits together.

    Returns:
        None where there are too few groups or values, or the values are too alike.
    """
    import numpy as np
    from scipy.special import stdtrit

    n, count = sum(map(len, groups)), len(groups)
    if count < 2:
        return None
    ordered = np.sort(np.concatenate([np.asarray(one, dtype=float) for one in groups]))
    value = np.percentile(ordered, percentile)
    below = np.array([int((np.asarray(one) <= value).sum()) for one in groups])
    share = int(below.sum()) / n
    off = below - share * np.array([len(one) for one in groups])
    variance = count / (count - 1) * math.fsum((off * off).tolist()) / n**2
    t = stdtrit(np.array([n - 1, count - 1]), (1 + confidence) / 2)
    alone = share * (1 - share) / variance if variance > 0 else n
    alone = min(n, int(min(n, alone) * float(t[0] / t[1]) ** 2))
    ranks = _ranks(alone, percentile, confidence)
    if ranks is None:
        return None
    # Each of them stands for n / alone values: the first of these below, the last above.
    last = math.ceil((ranks[1] + 1) * n / alone) - 1
    return float(ordered[ranks[0] * n // alone]), float(ordered[last])


def _ranks(n: int, percentile: float, confidence: float) -> tuple[int, int] | None:
    """Places, from 0, of the order statistics around a percentile; None where n is too small."""
    import numpy as np
    from scipy.special import bdtr

    if not 0 < percentile < 100:
        raise ValueError(f"{percentile} is no percentile with values on both sides")
    tail = (1 - confidence) / 2
    # Chance that at most k of the n values lie below the quantile.
    below = bdtr(np.arange(n), n, percentile / 100)
    lower = int((below <= tail).sum()) - 1
    upper = int((below < 1 - tail).sum())
    return (lower, upper) if lower >= 0 and upper < n else None
