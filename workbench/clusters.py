"""Samples that are not independent of each other: the cluster is the unit. Pure.

Ten questions about one document are not ten independent samples: what garbles the document costs
all ten. A suite names the field that says which samples belong together (`cluster`), and then every
figure here is made of whole clusters; a sample without one is a cluster of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.stats import Interval, graded_interval, pair_variance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Clusters = Sequence[str | None]


@dataclass(frozen=True)
class Grouping:
    """How the samples of a suite are grouped, before any is asked.

    What is said of it takes the unkind case, in which a cluster changes as one: how much its
    samples have in common is not known yet.

    Attributes:
        sizes: samples of each cluster; a sample that belongs to none is one of size 1.
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, clusters: Clusters) -> Grouping | None:
        """Of the samples' clusters; None where no two samples are of one."""
        named = Counter(c for c in clusters if c is not None)
        if not named or max(named.values()) == 1:
            return None
        return cls((*sorted(named.values(), reverse=True), *[1] * list(clusters).count(None)))

    @property
    def mean(self) -> float:
        """Samples of a cluster, on average."""
        return sum(self.sizes) / len(self.sizes)

    @property
    def scale(self) -> float:
        """What the mean of units is multiplied by, as `clustered` does: the largest over `mean`."""
        return max(self.sizes) / self.mean

    @property
    def effective(self) -> float:
        """Independent samples that would know as much (Kish's effective size)."""
        return sum(self.sizes) ** 2 / sum(size * size for size in self.sizes)

    def variance(self, share: float, n: float) -> float:
        """Variance of one sample's difference, two pseudo-pairs of clusters added, as `clustered`.

        Args:
            share: of answers that turn right or wrong, without any loss.
            n: samples, in clusters of such sizes.
        """
        most, clusters = max(self.sizes), n / self.mean
        return most * most / self.mean * (self.unit(share) * clusters + 2) / (clusters + 2)

    def unit(self, share: float) -> float:
        """Variance of one cluster's net loss over the size of the largest, no pseudo-pairs added.

        Args:
            share: of answers that turn right or wrong, without any loss.
        """
        most = max(self.sizes)
        return share * sum(size * size for size in self.sizes) / (len(self.sizes) * most * most)


def units(columns: Floats, clusters: Clusters | None = None) -> Floats:
    """Sums of each column within each cluster, sorted, so that the order of samples is forgotten.

    Args:
        columns: one row a sample, shape (n, columns).
        clusters: of each sample; None, or None for all: every sample is a unit.

    Returns:
        One row a unit, in the order of their values.

    Raises:
        ValueError: not one cluster a sample.
    """
    import numpy as np

    if clusters is not None:
        if len(clusters) != len(columns):
            raise ValueError(f"{len(clusters)} clusters of {len(columns)} samples")
        # By number: an array of names would give each the room of the longest.
        numbers: dict[str, int] = {}
        labels = np.array(
            [
                -1 - i if name is None else numbers.setdefault(name, len(numbers))
                for i, name in enumerate(clusters)
            ],
            dtype=np.int64,
        )
        # Sorted within each cluster too: a sum of floats depends on its order.
        order = np.lexsort((*columns.T[::-1], labels))
        labels = labels[order]
        starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]]) if len(labels) else labels
        columns = np.add.reduceat(columns[order], starts, axis=0) if len(labels) else columns
    return columns[np.lexsort(columns.T[::-1])]


def clustered(
    loss: Interval, differences: Sequence[float], clusters: Clusters
) -> tuple[Interval, float]:
    """The interval of a mean loss and the variance of one sample, clusters taken in.

    A unit is a cluster's net loss over the size of the largest cluster, so that it lies between -1
    and 1 and singletons are what they were; their mean is bounded as any graded loss
    (`stats.graded_interval`) and scaled back. The limits are the wider of these and those given.
    Sizes are part of what varies, so a few large clusters make it wide: with five documents whose
    questions all agreed, a sixth may still go wrong as a whole, and the limit says so.

    Args:
        loss: the interval with every sample a unit; its confidence is kept.
        differences: baseline minus variant of each sample, each -1 to 1.
        clusters: of each sample.

    Raises:
        ValueError: not one cluster a sample.
    """
    import numpy as np

    each = np.array(differences, dtype=np.float64)
    found = units(np.column_stack((each, np.ones(len(each)))), clusters)
    n, most = len(each), float(found[:, 1].max())
    if most == 1:
        return loss, pair_variance(differences)
    # Bounded by their size, but for the last bits of a sum.
    net = np.clip(found[:, 0] / most, -1, 1).tolist()
    scale = most * len(net) / n
    wide = graded_interval(net, loss.confidence)
    return (
        Interval(
            loss.estimate,
            max(-1.0, min(loss.low, scale * wide.low)),
            min(1.0, max(loss.high, scale * wide.high)),
            loss.confidence,
            f"{loss.method}; clusters as units",
        ),
        # Of one sample, so that over n it is the mean's: what `items_needed` counts are samples.
        max(pair_variance(differences), scale * scale * pair_variance(net) * n / len(net)),
    )
