"""How many samples settle a quality check: one answer for `plan`, `validate` and the gate. Pure.

The limits count two pseudo-pairs, one lost and one gained, among the samples, as in
`stats.pair_variance`. They weigh less the more samples there are, so the number is of the variance
without them.
"""

from __future__ import annotations

from workbench import stats


def bound(n: int, confidence: float, graded: bool = False) -> float:
    """Upper limit of the loss, 0 to 1, when none of n paired answers changed.

    Args:
        n: paired samples.
        confidence: of the one-sided limit.
        graded: scores may lie between 0 and 1, which bounds it a little closer.
    """
    limit = stats.binary_interval(0, 0, n, confidence).high
    return min(limit, stats.graded_interval([0.0] * n, confidence).high) if graded else limit


def fewest(margin: float, confidence: float, graded: bool = False) -> int:
    """The fewest samples whose loss can be bounded within a margin: where no answer changes."""
    enough = 1
    while bound(enough, confidence, graded) > margin:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if bound(middle, confidence, graded) > margin:
            too_few = middle
        else:
            enough = middle
    return enough


def unpadded(variance: float, n: int) -> float:
    """A variance of `stats.pair_variance` without its two pseudo-pairs."""
    return max(0.0, (variance * (n + 2) - 2) / n)


def needed(estimate: float, variance: float, margin: float, confidence: float) -> int | None:
    """Samples that would settle it four times in five, were the true loss the estimate.

    Args:
        estimate: observed loss; 0: what an undamaged variant takes.
        variance: of one pair's difference, without pseudo-pairs.
        margin: accepted loss.
        confidence: of the one-sided limit.

    Returns:
        Never fewer than a margin takes of answers of which none changes; None: over a million.
    """
    found = stats.items_needed(estimate, variance, margin, confidence)
    if found is None or not 0 <= estimate < margin:
        return found
    return max(found, fewest(margin, confidence))
