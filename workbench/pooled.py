"""A metric of the whole suite that is no mean of its samples' scores: micro-F1. Pure.

The micro-F1 of field extraction is `2 right / (found + wanted)`, with all three counted over every
field of every answer. An invoice of forty fields weighs ten times one of four, where the mean of
the samples' own F1 gives both the same weight; a variant that garbles long documents alone loses
much of the one and little of the other. So the mean says nothing about it, and is not asked.

A suite declares it as its `metric`; then each row keeps its three counts, and the metric is made of
their sums. A unit is a sample, or a whole cluster. The limits of the loss are the widest of four:

- the paired BCa bootstrap of whole units, on both sides at once (`workbench.paired_bootstrap`);
- Student's t on the linearised metric: unit i stands for
  `F + n (2 right_i - F size_i) / sum(size)` with `size = found + wanted`, whose mean is F and whose
  variance is that of the ratio estimate (Cochran 1977, Sampling Techniques, chapter 6);
- the same after two pseudo-units are added, one lost and one gained, with Johnson's correction, as
  `workbench.stats` does it for graded scores;
- the exact binomial limit on the net loss, of as many units as count (Kish's effective number,
  `sum(size)^2 / sum(size^2)`).

A bootstrap of few or rare differences is too narrow: where one document in seven is long and one in
ten of those is lost, its limit of 60 documents holds in 60 % of cases, as no draw has what the
sample has not. A pseudo-unit weighs what one weighs in the quadratic mean, so that one of the long
ones may be the next to go. `tests/test_pooled.py` has both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench import stats
from workbench.clusters import Clusters, units
from workbench.evaluation_records import COUNTS, SampleRow
from workbench.paired import Paired, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Name of the metric, as a suite writes it.
MICRO_F1 = "micro_f1"
#: What a sentence calls each metric that is pooled.
POOLED = {MICRO_F1: "the micro-F1"}


def micro_f1(sums: Floats) -> Floats:
    """F1 over pooled counts: columns are fields right, found and wanted."""
    found: Floats = 2 * sums[..., 0] / (sums[..., 1] + sums[..., 2])
    return found


@dataclass(frozen=True)
class Pooled:
    """The counts of the same units on both sides, one row each: right, found, wanted."""

    baseline: Floats
    variant: Floats

    def by(self, clusters: Clusters) -> Pooled:
        """With whole clusters as units."""
        import numpy as np

        found = units(np.hstack((self.baseline, self.variant)), clusters)
        return Pooled(found[:, :3], found[:, 3:])

    @property
    def scores(self) -> tuple[float, float]:
        """The metric of the baseline and of the variant, 0 to 1."""
        before, after = (float(micro_f1(s.sum(axis=0))) for s in (self.baseline, self.variant))
        return before, after

    @property
    def loss(self) -> float:
        """Baseline minus variant."""
        before, after = self.scores
        return before - after

    @property
    def linear(self) -> tuple[Floats, Floats]:
        """Per unit, values whose means are the metric of either side (the module's text)."""
        before, after = (
            score + _residuals(side, score) * len(side) / float(side[:, 1:].sum())
            for side, score in zip((self.baseline, self.variant), self.scores, strict=True)
        )
        return before, after

    @property
    def weight(self) -> float:
        """Size of a unit in the quadratic mean over that in the mean; 1 where all are alike."""
        sizes = [side[:, 1:].sum(axis=1) for side in (self.baseline, self.variant)]
        return max(math.sqrt(float((s * s).mean())) / float(s.mean()) for s in sizes)

    @property
    def exchanged(self) -> Floats:
        """Per unit, what changes its sign where the two answers change sides.

        The F it is taken against is that of all answers together, which no such exchange moves; so
        the signs are those of a permutation test of "both sides are alike".
        """
        together = float(micro_f1((self.baseline + self.variant).sum(axis=0)))
        found: Floats = _residuals(self.baseline, together) - _residuals(self.variant, together)
        return found

    @property
    def variance(self) -> float:
        """Of one unit's difference, two pseudo-units added."""
        before, after = self.linear
        return _padded(before - after, self.weight)[1]

    def limits(self, confidence: float, part: float = 0.0) -> tuple[float, float]:
        """One-sided limits of the loss, or of loss minus a part of the baseline's score.

        Those of the bootstrap are not among them.

        Args:
            confidence: of each.
            part: of the baseline's score, 0 or more.
        """
        before, after = self.linear
        values, scale = (before - after - part * before) / (1 + part), 1 + part
        low = -scale * _upper(-values, self.weight, confidence)
        return low, scale * _upper(values, self.weight, confidence)

    def beyond(self, margin: float) -> float:
        """One-sided p of "the loss is beyond the margin": 1 - the confidence that just says so.

        Returns:
            1 where the loss itself is not beyond it.
        """
        before, after = self.linear
        gains = after - before
        if self.loss <= margin:
            return 1.0
        low, high = 0.5, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            if -_upper(gains, self.weight, middle) > margin:
                low = middle
            else:
                high = middle
        return 1 - low


def _padded(values: Floats, weight: float) -> tuple[float, float, float]:
    """Mean, variance and third moment over it with two pseudo-units added."""
    n = len(values) + 2
    mean = math.fsum(values) / n
    variance = (math.fsum(values * values) + 2 * weight * weight) / n - mean * mean
    third = math.fsum((values - mean) ** 3) + (weight - mean) ** 3 + (-weight - mean) ** 3
    return mean, variance, third / n / variance


def _upper(values: Floats, weight: float, confidence: float) -> float:
    n = len(values)
    mean = math.fsum(values) / n
    count = n / (weight * weight)
    limits = [mean, stats._net_upper(mean * count, count, confidence)]
    if n > 1:
        spread = math.fsum((values - mean) ** 2) / (n - 1)
        limits.append(mean + stats._student(confidence, n - 1) * math.sqrt(spread / n))
    middle, variance, skew = _padded(values, weight)
    t = stats._student(confidence, n + 1)
    skewed = max(0.0, skew) * (1 + 2 * t * t) / (6 * (n + 2))
    limits.append(middle + t * math.sqrt(variance / (n + 1)) + skewed)
    return max(limits)


def pooled(paired: Paired) -> Pooled | None:
    """The counts of a suite whose metric is pooled; None of any other suite."""
    before, after = _counts(paired.baseline), _counts(paired.variant)
    return None if before is None or after is None else Pooled(before, after)


def pooled_score(rows: Iterable[SampleRow]) -> float:
    """The metric over rows that all have counts.

    Raises:
        ValueError: there is no row.
    """
    import numpy as np

    counts = np.array([row.grade[COUNTS] for row in rows], dtype=np.float64)
    if not len(counts):
        raise ValueError("no row has counts")
    return float(micro_f1(counts.sum(axis=0)))


def uncounted(metric: str, rows: Sequence[SampleRow]) -> str:
    """What is wrong where the metric is pooled and answers have no counts for it; else nothing."""
    if metric not in POOLED:
        return ""
    bare = sorted(row.key for row in rows if not _is_count(row.grade.get(COUNTS)))
    if not bare:
        return ""
    return (
        f"{len(bare)} of {len(rows)} answers have no count of fields, of which {metric} is made, "
        f"{bare[0]!r} first: workbench rescore counts them"
    )


def _is_count(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 3:
        return False
    if not all(type(one) is int for one in value):
        return False
    right, found, wanted = value
    return bool(0 <= right <= min(found, wanted) and wanted > 0)


def _counts(side: Side) -> Floats | None:
    import numpy as np

    # A scorer of the user's own may write what it likes under that name.
    if not len(side) or not side.pooled or not side.columns.counted:
        return None
    # A sample that was asked several times is one, with all its answers counted.
    return np.array(
        [
            [sum(each) for each in zip(*(row.grade[COUNTS] for row in one.rows), strict=True)]
            for one in side
        ],
        dtype=np.float64,
    )


def _residuals(counts: Floats, score: float) -> Floats:
    found: Floats = 2 * counts[:, 0] - score * counts[:, 1:].sum(axis=1)
    return found
