"""Every figure of a variant's loss on one suite: limits, p, recovery. Pure.

What decides is the interval of the paired loss alone. The rest stands beside it: a reader who is
used to recovery, to McNemar's test or to a bootstrap finds them on the same pairs. The loss is that
of the mean score, or of a metric of the whole suite (`workbench.pooled`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench import stats
from workbench.clusters import Clusters, clustered
from workbench.paired import Paired
from workbench.paired_bootstrap import Bootstrap, bca
from workbench.permutation import SignFlip, sign_flip
from workbench.pooled import MICRO_F1, POOLED, Pooled, micro_f1, pooled
from workbench.recovery import Recovery, recovery


@dataclass(frozen=True)
class QualityFigures:
    """One suite on one variant.

    Attributes:
        loss: of the mean score or the pooled metric, with its limits; clusters are taken in.
        variance: of one sample's difference, for the number of samples it takes.
        changed: what became of each sample.
        test: p of "nothing changed" and of "worse": exact McNemar of right/wrong scores, a
            permutation of signs of graded ones, of clusters and of pooled counts.
        recovery: variant's mean over the baseline's.
        graded: some score is neither 0 nor 1.
        clusters: of each sample; None where the suite has none.
        shown: the score of the baseline and of the variant, as the scorer gave it.
        counts: of a suite whose metric is pooled, unit by unit; None: it is the mean score.
        resampled: the bootstrap of a pooled metric, which its limits hold.
    """

    loss: stats.Interval
    variance: float
    changed: stats.Churn
    test: SignFlip
    recovery: Recovery
    graded: bool
    clusters: Clusters | None
    shown: tuple[float, float]
    counts: tuple[Pooled, ...] = ()
    resampled: Bootstrap | None = None

    @property
    def what(self) -> str:
        """What fell or rose, for a sentence."""
        return POOLED[MICRO_F1] if self.counts else "the mean score"

    def relative(self, part: float) -> tuple[float, stats.Interval]:
        """Of a pooled metric: the margin that is a part of its score, and the limits under it."""
        margin, loss = part * self.shown[0], self.loss
        ends = [counts.limits(loss.confidence, part) for counts in self.counts]
        return margin, replace(
            loss,
            low=min(loss.low, *(margin + low for low, _ in ends)),
            high=max(loss.high, *(margin + high for _, high in ends)),
        )


def quality_figures(paired: Paired, confidence: float) -> QualityFigures:
    """All of them but the bootstrap of a mean score, which takes longest.

    Args:
        paired: the same samples on both sides, every one with a score.
        confidence: of each one-sided limit.
    """
    import numpy as np

    before, after = paired.scores
    both = np.array([before, after])
    graded = not bool(((both == 0) | (both == 1)).all())
    clusters = paired.clusters if paired.cluster_count is not None else None
    changed = stats.churn(before, after, *paired.outputs)
    if (counts := pooled(paired)) is not None:
        return _of_counts(counts, clusters, changed, confidence)
    differences = (both[0] - both[1]).tolist()
    loss = stats.paired_interval(before, after, confidence)
    variance = stats.pair_variance(differences)
    if clusters is not None:
        loss, variance = clustered(loss, differences, clusters)
    if graded or clusters is not None:
        test = sign_flip(differences, clusters)
    else:
        test = SignFlip(
            *stats.mcnemar(changed.right_to_wrong, changed.wrong_to_right), "exact McNemar"
        )
    baseline, score = (sum(scores) / changed.n for scores in paired.raw_scores)
    return QualityFigures(
        loss,
        variance,
        changed,
        test,
        recovery(before, after, confidence, clusters),
        graded,
        clusters,
        (baseline, score),
    )


def _of_counts(
    counts: Pooled, clusters: Clusters | None, changed: stats.Churn, confidence: float
) -> QualityFigures:
    """The same of the micro-F1; with clusters, the wider of samples and clusters as units."""
    drawn = bca(counts.baseline, counts.variant, micro_f1, clusters=clusters, confidence=confidence)
    of = (counts,) if clusters is None else (counts, counts.by(clusters))
    ends = [one.limits(confidence) for one in of]
    if drawn.low is not None and drawn.high is not None:
        ends.append((drawn.low, drawn.high))
    loss = stats.Interval(
        counts.loss,
        max(-1.0, min(low for low, _ in ends)),
        min(1.0, max(high for _, high in ends)),
        confidence,
        "BCa bootstrap, widened to keep its level" + ("; clusters as units" if clusters else ""),
    )
    whole = of[-1]
    before, after = whole.linear
    return QualityFigures(
        loss,
        # Of one sample, so that over n it is the metric's.
        max(one.variance * changed.n / len(one.baseline) for one in of),
        changed,
        sign_flip(counts.exchanged, clusters),
        recovery(before, after, confidence),
        True,
        clusters,
        counts.scores,
        of,
        drawn,
    )


def bootstrap(paired: Paired, figures: QualityFigures) -> Bootstrap:
    """The BCa bootstrap of the loss, at the limits' own confidence.

    Args:
        paired: the same samples the figures are of.
        figures: of them.
    """
    import numpy as np

    if figures.resampled is not None:
        return figures.resampled
    before, after = (np.column_stack((side, np.ones(len(side)))) for side in paired.scores)
    return bca(before, after, clusters=figures.clusters, confidence=figures.loss.confidence)
