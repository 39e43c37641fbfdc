"""Limits of one proportion, and of a ratio of two means. Pure.

Beside `workbench.stats`, which is about differences of paired scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from workbench.clusters import clustered
from workbench.stats import Interval, graded_interval

#: Ratios between which an upper limit is looked for.
_LEAST_RATIO, _MOST_RATIO = 0.01, 1000.0


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
    baseline: Sequence[float],
    variant: Sequence[float],
    most: float,
    confidence: float = 0.95,
    clusters: Sequence[str | None] | None = None,
) -> tuple[float, float, float | None] | None:
    """Mean of variant over mean of baseline, of pairs, with one-sided limits at `confidence`.

    A ratio r is surely not exceeded where the mean of variant - r x baseline is surely not above 0,
    and so for the other side (Fieller, E. C. (1954), Some problems in interval estimation, JRSS B
    16, 175-185). That mean is bounded as a loss of graded scores is, in units of what a value can
    be at most (`workbench.stats.graded_interval`): values that all agree do not make its limits
    meet, for the next sample may be an answer that never ends.

    Args:
        baseline: of each sample, 0 to `most`.
        variant: likewise.
        most: what a value can be; where one is larger, that one counts.
        confidence: of each limit.
        clusters: of each sample, where the suite has some: whole ones are then the units.

    Returns:
        Ratio, lower and upper limit, None for an upper one that these samples do not show; None in
        all where the baseline's mean is 0 or there are fewer than two pairs.

    Raises:
        ValueError: not as many values on both sides.
    """
    pairs = list(zip(baseline, variant, strict=True))
    n = len(pairs)
    if n < 2 or sum(baseline) <= 0:
        return None
    ratio = math.fsum(variant) / math.fsum(baseline)
    unit = max(most, *baseline, *variant)

    def excess(r: float) -> Interval:
        scale = unit * max(1.0, r)
        each = [min(1.0, max(-1.0, (v - r * b) / scale)) for b, v in pairs]
        found = graded_interval(each, confidence)
        return found if clusters is None else clustered(found, each, clusters)[0]

    def settle(near: float, far: float, beyond: Callable[[float], bool]) -> float:
        """The place between from which on `beyond` holds, on its side of it."""
        while abs(far - near) > 1e-4 * max(ratio, _LEAST_RATIO):
            middle = (near + far) / 2
            near, far = (near, middle) if beyond(middle) else (middle, far)
        return far

    def over(r: float) -> bool:
        return excess(r).high <= 0

    far = max(ratio, _LEAST_RATIO) * 1.1
    while not over(far) and far < _MOST_RATIO:
        far *= 2
    high = settle(ratio, far, over) if over(far) else None
    low = settle(ratio, 0.0, lambda r: excess(r).low >= 0) if excess(0.0).low >= 0 else 0.0
    return ratio, low, high
