"""Sign-flip permutation test of paired scores: does it matter which side an answer is from? Pure.

Where baseline and variant are alike, each difference is as likely to have the other sign. Fisher,
R. A. (1935), The Design of Experiments, section 21. All signs are gone through where that is few;
otherwise they are drawn, and the observed ones count as a draw of their own, so that no p is 0
(Phipson and Smyth 2010, Permutation p-values should never be zero). Differences of one size share a
count of flipped signs, so right/wrong scores give the exact McNemar test whatever their number.
Clusters are flipped whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from workbench.clusters import Clusters, units

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Different sums of signed differences that are gone through.
_EXACT = 1 << 20
#: Random signs, times different sizes, that are drawn; with more sizes a normal sum is as good.
_DRAWN = 4_000_000
_FEWEST = 999
#: Sums this close, relative to all differences together, are equal: it is a sum of floats.
_TIE = 1e-10


@dataclass(frozen=True)
class SignFlip:
    """A paired test of "nothing changed".

    Attributes:
        worse: one-sided p of "the variant is worse".
        different: two-sided p.
        method: how they were computed, for the report.
    """

    worse: float
    different: float
    method: str


def sign_flip(
    differences: Sequence[float] | Floats,
    clusters: Clusters | None = None,
    *,
    draws: int = 9_999,
    seed: int = 0,
) -> SignFlip:
    """Test the sum of paired differences against all their signs.

    Args:
        differences: baseline minus variant of each sample.
        clusters: of each sample; a cluster's sum is flipped as one.
        draws: of signs, where they are too many to go through.
        seed: of the draws.

    Returns:
        Both p are 1 where nothing differs. Neither depends on the order of the samples.

    Raises:
        ValueError: a difference is not finite, or not one cluster a sample.
    """
    import numpy as np

    each = np.array(differences, dtype=np.float64)[:, None]
    if not np.isfinite(each).all():
        raise ValueError("a difference is not a number")
    sums = units(each, clusters)[:, 0]
    rounded: Floats = np.round(np.abs(sums), 12).astype(np.float64)
    sizes, counts = np.unique(rounded, return_counts=True)
    sizes, counts = sizes[sizes > 0], counts[sizes > 0]
    of = " of clusters" if clusters is not None and any(c is not None for c in clusters) else ""
    if not len(sizes):
        return SignFlip(1.0, 1.0, f"sign-flip permutation{of}, exact")
    observed, tie = math.fsum(sums), _TIE * float((sizes * counts).sum())
    if math.fsum(np.log2(counts + 1)) <= math.log2(_EXACT):
        found, weight = _all(sizes, counts)
        worse = float(weight[found >= observed - tie].sum())
        different = float(weight[np.abs(found) >= abs(observed) - tie].sum())
        return SignFlip(min(1.0, worse), min(1.0, different), f"sign-flip permutation{of}, exact")
    if len(sizes) * _FEWEST > _DRAWN:
        z = observed / math.sqrt(float((sizes * sizes * counts).sum()))
        tail = NormalDist().cdf
        return SignFlip(tail(-z), 2 * tail(-abs(z)), f"sign-flip permutation{of}, normal limit")
    draws = max(_FEWEST, min(draws, _DRAWN // len(sizes)))
    dice, at_once = np.random.default_rng(seed), max(1, _EXACT // len(sizes))
    beyond = apart = 0
    for start in range(0, draws, at_once):
        shape = (min(at_once, draws - start), len(sizes))
        found = ((2 * dice.binomial(counts, 0.5, size=shape) - counts) * sizes).sum(axis=1)
        beyond += int((found >= observed - tie).sum())
        apart += int((np.abs(found) >= abs(observed) - tie).sum())
    method = f"sign-flip permutation{of}, {draws} draws, seed {seed}"
    return SignFlip((1 + beyond) / (1 + draws), (1 + apart) / (1 + draws), method)


def _all(sizes: Floats, counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Every sum the signs can give, and its chance: of k alike, so many are turned as a coin."""
    import numpy as np

    sums, weight = np.zeros(1), np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        logs = np.r_[0.0, np.cumsum(np.log(np.arange(1, count + 1)))]
        turned = np.arange(count + 1)
        chance = np.exp(logs[count] - logs[turned] - logs[count - turned] - count * math.log(2))
        sums = np.add.outer(sums, (2 * turned - count) * size).ravel()
        weight = np.multiply.outer(weight, chance).ravel()
    return sums, weight
