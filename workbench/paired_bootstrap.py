"""Paired BCa bootstrap of any metric that is made of sums over samples. Pure, seeded.

Efron, B. (1987), Better bootstrap confidence intervals, Journal of the American Statistical
Association 82, 171-185; DiCiccio and Efron (1996), Statistical Science 11, 189-228. What is drawn
again is the sample on both sides at once, or the whole cluster.

A metric is a function of sums: a mean is sum over count, a corpus F1 is `2 hits / (found + wanted)`
with all three summed over the corpus, which is no mean of anything per sample. So one draw costs a
weight for each *distinct* row, however many samples share it.

No verdict rests on it: of few or rare differences a bootstrap is too narrow, and it has no width
where nothing differs. It is a second opinion beside `workbench.stats`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from workbench.clusters import Clusters, units

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Weights drawn at most, draws times distinct rows: a fifth of a second. With more rows than that
#: allows, the limits of `workbench.stats` are as good.
_DRAWN = 2_000_000
_AT_ONCE = 1_000_000
#: Values this close are equal: they are sums of floats.
_TIE = 1e-12


@dataclass(frozen=True)
class Bootstrap:
    """A difference of a metric, baseline minus variant, with BCa limits.

    Attributes:
        estimate: baseline minus variant.
        low: one-sided lower limit; None: there is none.
        high: one-sided upper limit.
        why: why there are no limits, or how they were made.
    """

    estimate: float
    low: float | None
    high: float | None
    why: str

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def mean(sums: Floats) -> Floats:
    """The mean as a metric: columns are the sum and the number of samples."""
    found: Floats = sums[..., 0] / sums[..., 1]
    return found


def bca(
    baseline: Floats,
    variant: Floats,
    metric: Callable[[Floats], Floats] = mean,
    *,
    clusters: Clusters | None = None,
    confidence: float = 0.95,
    draws: int = 2_000,
    seed: int = 0,
) -> Bootstrap:
    """Difference of a metric with its BCa limits.

    Args:
        baseline: what is summed, one row a sample, shape (n, columns).
        variant: of the same samples.
        metric: from sums, shape (..., columns), to values, shape (...).
        clusters: of each sample; whole clusters are then drawn.
        confidence: of each one-sided limit.
        draws: how often.
        seed: of the draws.

    Returns:
        Neither depends on the order of the samples, and sides swapped give the mirrored interval.

    Raises:
        ValueError: the sides are not of one shape, or empty.
    """
    import numpy as np

    if baseline.shape != variant.shape or not len(baseline):
        raise ValueError(f"shapes {baseline.shape} and {variant.shape} are no pairs")
    ours = units(np.hstack((baseline, variant)), clusters)
    theirs = units(np.hstack((variant, baseline)), clusters)
    # The draws are made on one of the two orientations, whichever side was called the baseline.
    apart = np.flatnonzero((ours != theirs).ravel())
    if apart.size and ours.ravel()[apart[0]] < theirs.ravel()[apart[0]]:
        return _mirrored(_bca(theirs, metric, confidence, draws, seed))
    found = _bca(ours, metric, confidence, draws, seed)
    if apart.size or found.low is None or found.high is None:
        return found
    half = max(-found.low, found.high)
    return replace(found, low=-half, high=half)


def _mirrored(found: Bootstrap) -> Bootstrap:
    low, high = (None if end is None else -end for end in (found.high, found.low))
    return Bootstrap(-found.estimate, low, high, found.why)


def _bca(
    rows: Floats,
    metric: Callable[[Floats], Floats],
    confidence: float,
    draws: int,
    seed: int,
) -> Bootstrap:
    import numpy as np

    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    n, width = len(rows), rows.shape[1] // 2

    def difference(sums: Floats) -> Floats:
        found: Floats = metric(sums[..., :width]) - metric(sums[..., width:])
        return found

    total = (distinct * counts[:, None]).sum(axis=0)
    estimate = float(difference(total))
    if len(distinct) < 2:
        return Bootstrap(estimate, None, None, "every unit is alike: a draw changes nothing")
    if len(distinct) * draws > _DRAWN:
        many = f"{len(distinct)} different units are too many to draw {draws} times"
        return Bootstrap(estimate, None, None, many)
    dice, at_once = np.random.default_rng(seed), max(1, _AT_ONCE // len(distinct))
    parts = []
    for start in range(0, draws, at_once):
        times = dice.multinomial(n, counts / n, size=min(at_once, draws - start))
        # Not a dot product: BLAS adds in an order that depends on the number of threads.
        parts.append(difference(np.einsum("dk,kc->dc", times.astype(float), distinct)))
    drawn = np.sort(np.concatenate(parts))
    if not drawn[-1] - drawn[0] > _TIE:
        return Bootstrap(estimate, None, None, "no draw differs from another")
    normal = NormalDist()
    below = (drawn < estimate - _TIE).sum() + 0.5 * (np.abs(drawn - estimate) <= _TIE).sum()
    bias = normal.inv_cdf(float(np.clip(below / draws, 0.5 / draws, 1 - 0.5 / draws)))
    without = difference(total - distinct)
    off = (without * counts).sum() / n - without
    spread = float((off * off * counts).sum())
    acceleration = float((off**3 * counts).sum()) / (6 * spread**1.5) if spread > 0 else 0.0

    def limit(z: float) -> float:
        moved = bias + z
        stretch = 1 - acceleration * moved
        share = normal.cdf(bias + moved / stretch) if stretch > 0 else float(moved > 0)
        return float(np.quantile(drawn, share))

    z = normal.inv_cdf(confidence)
    low, high = limit(-z), limit(z)
    return Bootstrap(estimate, low, high, f"BCa, {draws} draws of {n} units, seed {seed}")
