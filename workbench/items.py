"""How many samples settle a quality check: one answer for `plan`, `validate` and the gate. Pure.

The limits count two pseudo-pairs, one lost and one gained, among the samples, as in
`stats.pair_variance`. They weigh less the more samples there are, so the number is of the variance
without them.
"""

from __future__ import annotations

import math

from workbench import stats
from workbench.clusters import Grouping


def bound(
    n: int, confidence: float, graded: bool = False, grouping: Grouping | None = None
) -> float:
    """Upper limit of the loss, 0 to 1, when none of n paired answers changed.

    Args:
        n: paired samples.
        confidence: of the one-sided limit.
        graded: scores may lie between 0 and 1, which bounds it a little closer.
        grouping: clusters of the suite; the n samples are then in clusters of such sizes.
    """
    limit = stats.binary_interval(0, 0, n, confidence).high
    limit = min(limit, _graded(n, confidence)) if graded else limit
    if grouping is None:
        return limit
    clusters = max(1, math.floor(n / grouping.mean + 1e-9))
    return min(1.0, max(limit, grouping.scale * _graded(clusters, confidence)))


def _graded(n: int, confidence: float) -> float:
    return stats.graded_interval([0.0] * n, confidence).high


def fewest(
    margin: float, confidence: float, graded: bool = False, grouping: Grouping | None = None
) -> int:
    """The fewest samples whose loss can be bounded within a margin: where no answer changes."""
    enough = 1
    while bound(enough, confidence, graded, grouping) > margin:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if bound(middle, confidence, graded, grouping) > margin:
            too_few = middle
        else:
            enough = middle
    return enough


def unpadded(variance: float, n: int) -> float:
    """A variance of `stats.pair_variance` without its two pseudo-pairs."""
    return max(0.0, (variance * (n + 2) - 2) / n)


def needed(
    estimate: float,
    variance: float,
    margin: float,
    confidence: float,
    grouping: Grouping | None = None,
) -> int | None:
    """Samples that would settle it four times in five, were the true loss the estimate.

    Args:
        estimate: observed loss; 0: what an undamaged variant takes.
        variance: of one pair's difference, without pseudo-pairs.
        margin: accepted loss.
        confidence: of the one-sided limit.
        grouping: clusters that change as one; they are then counted, and the pseudo-pairs are two
            clusters.

    Returns:
        Never fewer than a margin takes of answers of which none changes; None: over a million.
    """
    if grouping is None:
        found = stats.items_needed(estimate, variance, margin, confidence)
    else:
        ends = (estimate / grouping.scale, grouping.unit(variance), margin / grouping.scale)
        clusters = stats.items_needed(*ends, confidence)
        found = None if clusters is None else math.ceil(clusters * grouping.mean)
    if found is None or not 0 <= estimate < margin:
        return found
    return max(found, fewest(margin, confidence, grouping=grouping))


def said(needed: int, n: int) -> str:
    """A number of items in words: more than n, rounded up to two digits, which is all it is worth.

    Args:
        needed: from `needed`, a normal approximation: it may name fewer items than were just not
            enough.
        n: items there were.
    """
    least = max(needed, n + 1)
    unit = 10 ** max(0, len(str(least)) - 2)
    return f"{-(-least // unit) * unit:,}"
