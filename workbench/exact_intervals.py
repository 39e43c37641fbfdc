"""Intervals that the binomial distribution gives, whatever is measured is distributed like. Pure.

A quantile lies between two order statistics: Conover, W. J. (1999), Practical Nonparametric
Statistics, section 3.2. A share has Clopper and Pearson's (1934) limits, which have a width where
all or none succeeded. Both keep their confidence for any distribution, take no draws, and say
nothing where there is too little: nobody knows the p99 of sixteen requests, and the bootstrap of it
ends at the largest of the sixteen.
"""

from __future__ import annotations

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
    from scipy.special import bdtr

    if not 0 < percentile < 100:
        raise ValueError(f"{percentile} is no percentile with values on both sides")
    ordered, n, tail = np.sort(np.asarray(values, dtype=float)), len(values), (1 - confidence) / 2
    # Chance that at most k of the n values lie below the quantile.
    below = bdtr(np.arange(n), n, percentile / 100)
    lower = int((below <= tail).sum()) - 1
    upper = int((below < 1 - tail).sum())
    return (float(ordered[lower]), float(ordered[upper])) if lower >= 0 and upper < n else None


def share_interval(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's two-sided limits of a share.

    Args:
        count: successes.
        n: trials, one or more.
        confidence: of both limits together.

    Raises:
        ValueError: the counts are not those of a share.
    """
    from scipy.special import betaincinv

    if not 0 <= count <= n or n < 1:
        raise ValueError(f"{count} of {n} is no share")
    tail = (1 - confidence) / 2
    low = float(betaincinv(count, n - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return low, high
