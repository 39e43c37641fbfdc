"""Every figure of a variant's loss on one suite: limits, p, recovery. Pure.

What decides is the interval of the paired loss alone. The rest stands beside it: a reader who is
used to recovery, to McNemar's test or to a bootstrap finds them on the same pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench import stats
from workbench.clusters import Clusters, clustered
from workbench.paired import Paired
from workbench.paired_bootstrap import Bootstrap, bca
from workbench.permutation import SignFlip, sign_flip
from workbench.recovery import Recovery, recovery


@dataclass(frozen=True)
class QualityFigures:
    """One suite on one variant.

    Attributes:
        loss: of the mean score, with its limits; clusters are taken in.
        variance: of one sample's difference, for the number of samples it takes.
        changed: what became of each sample.
        test: p of "nothing changed" and of "worse": exact McNemar of right/wrong scores, a
            permutation of signs of graded ones and of clusters.
        recovery: variant's mean over the baseline's.
        graded: some score is neither 0 nor 1.
        clusters: of each sample; None where the suite has none.
    """

    loss: stats.Interval
    variance: float
    changed: stats.Churn
    test: SignFlip
    recovery: Recovery
    graded: bool
    clusters: Clusters | None


def quality_figures(paired: Paired, confidence: float) -> QualityFigures:
    """All of them but the bootstrap, which takes longest.

    Args:
        paired: the same samples on both sides, every one with a score.
        confidence: of each one-sided limit.
    """
    import numpy as np

    before, after = paired.scores
    both = np.array([before, after])
    graded = not bool(((both == 0) | (both == 1)).all())
    differences = (both[0] - both[1]).tolist()
    clusters = paired.clusters if paired.cluster_count is not None else None
    loss = stats.paired_interval(before, after, confidence)
    variance = stats.pair_variance(differences)
    if clusters is not None:
        loss, variance = clustered(loss, differences, clusters)
    changed = stats.churn(before, after, *paired.outputs)
    if graded or clusters is not None:
        test = sign_flip(differences, clusters)
    else:
        test = SignFlip(
            *stats.mcnemar(changed.right_to_wrong, changed.wrong_to_right), "exact McNemar"
        )
    return QualityFigures(
        loss,
        variance,
        changed,
        test,
        recovery(before, after, confidence, clusters),
        graded,
        clusters,
    )


def bootstrap(paired: Paired, figures: QualityFigures) -> Bootstrap:
    """The BCa bootstrap of the loss of the mean score, at the limits' own confidence.

    Args:
        paired: the same samples the figures are of.
        figures: of them.
    """
    import numpy as np

    before, after = (np.column_stack((side, np.ones(len(side)))) for side in paired.scores)
    return bca(before, after, clusters=figures.clusters, confidence=figures.loss.confidence)
