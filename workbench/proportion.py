"""Limits of one proportion, and of a ratio of two means. Pure.

Beside `workbench.stats`, which is about differences of paired scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def proportion(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact one-sided limits of a proportion, each at `confidence`.

    Clopper, C. J. and Pearson, E. S. (1934), The use of confidence or fiducial limits illustrated
    in the case of the binomial, Biometrika 26, 404-413. Both together are a two-sided interval at
    2 x confidence - 1.

    Raises:
        ValueError: the count is not between 0 and n, or n is 0.
    """
    from scipy.special import betaincinv

    if n < 1 or not 0 <= count <= n:
        raise ValueError(f"{count} of {n} is no proportion")
    low = float(betaincinv(count, n - count + 1, 1 - confidence)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, confidence)) if count < n else 1.0
    return low, high


def ratio_of_means(
    baseline: Sequence[float], variant: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float] | None:
    """Mean of variant over mean of baseline, of pairs, with one-sided limits at `confidence`.

    Fieller, E. C. (1954), Some problems in interval estimation, JRSS B 16, 175-185, with Student's
    quantile.

    Returns:
        Ratio, lower and upper limit; None of fewer than two pairs, or where the baseline's mean is
        not surely above 0, so that the ratio has no bound.
    """
    from scipy.special import stdtrit

    n = len(baseline)
    if n < 2:
        return None
    below, above = fmean(baseline), fmean(variant)
    pairs = list(zip(baseline, variant, strict=True))
    t2 = float(stdtrit(n - 1, confidence)) ** 2 / (n * (n - 1))
    var_below = t2 * math.fsum((b - below) ** 2 for b, _ in pairs)
    var_above = t2 * math.fsum((a - above) ** 2 for _, a in pairs)
    both = t2 * math.fsum((b - below) * (a - above) for b, a in pairs)
    a, b, c = below * below - var_below, below * above - both, above * above - var_above
    if below <= 0 or a <= 0:
        return None
    root = math.sqrt(max(b * b - a * c, 0.0))
    return above / below, (b - root) / a, (b + root) / a
