"""Statistics of paired scores: how much was lost, how sure one can be, how many items it takes.

Every function takes the baseline's and the variant's score of the same samples, in the same order.
A *difference* is baseline minus variant, so a positive one is damage. Pure: no disk, no clock, no
random numbers; the same data give the same bytes anywhere.

Why not just Tango's interval. Tango's (1998) score interval is the usual best choice for a paired
difference of proportions, and it has a width where no pair is discordant. But it is asymptotic:
enumerating every table of n = 40 pairs shows its one-sided 95 % limit letting a damage equal to the
margin through in up to 7.3 % of releases (6.1 % at n = 80), worst where nothing is gained back. A
gate that promises 5 % must keep it, so `binary_interval` takes the widest of three limits: Tango's
with Student's quantile for the normal one, the same after one pair is added to each discordant
cell, and the exact binomial limit on the net loss. The same enumeration then stays at 5.0 %, false
FAILs included, for n from 20 to 300, margins up to 0.2, gains up to 0.2 and up to 0.7 of the pairs
discordant. It is no promise beyond: with margins above 0.5 up to 8.5 % and more pass. The price is
an eighth of the width at n = 80 with four discordant pairs, a hundredth with forty.
`tests/test_stats.py` repeats the enumeration.

Graded scores (parts of an answer right) have no such theory. There the limit is the widest of:
Student's t on the differences, the same after two pseudo-pairs at +1 and -1 are added (Bonett and
Price's 2012 adjustment, carried from counts to scores: without it, equal scores would give zero
width), this one wider by the correction of Johnson (1978, Modified t tests and confidence intervals
for asymmetrical populations, JASA 73, 536-544) where the differences lean the dangerous way, and
the exact binomial limit on the net loss. A bootstrap of few or rare differences is too narrow, and
has zero width where nothing differed. The level is then kept but not to the last tenth: of many
small gains and few great losses 5.7 % pass at the margin, and 7.7 % of 50 samples made for it.

It does not decide anything: that is `workbench.gate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

_STEPS = 100  # bisections of an interval of length 2: far below the spacing of floats
_NEVER = 1_000_000  # more items than this is not an answer anyone can act on


@dataclass(frozen=True)
class Interval:
    """A paired difference of means with its two one-sided limits.

    Attributes:
        estimate: mean of baseline minus variant, -1 to 1.
        low: one-sided lower limit at `confidence`.
        high: one-sided upper limit at `confidence`. Both together are a two-sided interval at
            2 x confidence - 1.
        confidence: of each side, for instance 0.95.
        method: how it was computed, for the report.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True)
class Churn:
    """What became of each sample: a mean that stays put can hide many answers that did not.

    For graded scores "right to wrong" reads "lower score" and "wrong to right" "higher score".
    """

    n: int
    same: int
    right_to_wrong: int
    wrong_to_right: int
    wrong_to_different_wrong: int

    @property
    def share(self) -> float:
        """Share of samples whose score or wrong answer changed, 0 to 1."""
        return (self.n - self.same) / self.n if self.n else 0.0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


def churn(
    baseline: Sequence[float],
    variant: Sequence[float],
    baseline_outputs: Sequence[object],
    variant_outputs: Sequence[object],
) -> Churn:
    """Count what changed, sample by sample.

    Raises:
        ValueError: the four sequences are not equally long.
    """
    lost = gained = other = 0
    rows = zip(baseline, variant, baseline_outputs, variant_outputs, strict=True)
    for before, after, said, says in rows:
        if after < before:
            lost += 1
        elif after > before:
            gained += 1
        elif after < 1 and said != says:
            other += 1
    n = len(baseline)
    return Churn(n, n - lost - gained - other, lost, gained, other)


# --------------------------------------------------------------------------- intervals


def _quantile(confidence: float) -> float:
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence is between 0.5 and 1, for instance 0.95, not {confidence}")
    return NormalDist().inv_cdf(confidence)


def _tango_statistic(lost: float, gained: float, n: float, delta: float) -> float:
    """Tango's score statistic of H0: damage = delta. Falls as delta grows."""
    a = 2 * n
    b = -lost - gained + (2 * n - lost + gained) * delta
    c = -gained * delta * (1 - delta)
    # The restricted maximum-likelihood estimate of P(wrong -> right) under H0.
    p21 = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    excess = lost - gained - n * delta
    variance = n * (2 * p21 + delta * (1 - delta))
    if variance <= 0:
        return 0.0 if excess == 0 else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def _tango_upper(lost: float, gained: float, n: float, z: float) -> float:
    low, high = (lost - gained) / n, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _tango_statistic(lost, gained, n, middle) > -z:
            low = middle
        else:
            high = middle
    return high


def _counts(lost: int, gained: int, n: int) -> None:
    if n < 1 or lost < 0 or gained < 0 or lost + gained > n:
        raise ValueError(f"{lost} lost and {gained} gained of {n} pairs is not a table")


def tango(lost: int, gained: int, n: int, confidence: float = 0.95) -> Interval:
    """Tango's score interval of the difference of two paired proportions.

    Tango, T. (1998). Equivalence test and confidence interval for the difference in proportions for
    the paired-sample design. Statistics in Medicine 17, 891-908.

    Args:
        lost: pairs right in the baseline and wrong in the variant.
        gained: pairs wrong in the baseline and right in the variant.
        n: all pairs.
        confidence: of each one-sided limit; 0.975 gives the usual two-sided 95 % interval.

    Raises:
        ValueError: the counts are not those of a table, or the confidence is not in (0.5, 1).
    """
    _counts(lost, gained, n)
    z = _quantile(confidence)
    return Interval(
        (lost - gained) / n,
        -_tango_upper(gained, lost, n, z),
        _tango_upper(lost, gained, n, z),
        confidence,
        "Tango 1998 score",
    )


def _net_upper(net: float, n: float, confidence: float) -> float:
    """Exact upper limit of the loss, had `net` of n pairs moved one way and the rest not at all.

    Clopper and Pearson's limits of a proportion: the upper one of a net loss, or minus the lower
    one of a net gain.
    """
    from scipy.special import betaincinv

    if net >= n:
        return 1.0
    if net >= 0:
        return float(betaincinv(net + 1, n - net, confidence))
    return -float(betaincinv(-net, n + net + 1, 1 - confidence))


def _student(confidence: float, degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(max(degrees, 1), confidence))


def _binary_upper(lost: int, gained: int, n: int, confidence: float) -> float:
    t = _student(confidence, n - 1)
    return min(
        1.0,
        max(
            _tango_upper(lost, gained, n, t),
            _tango_upper(lost + 1, gained + 1, n + 2, t),
            _net_upper(lost - gained, n, confidence),
        ),
    )


def binary_interval(lost: int, gained: int, n: int, confidence: float = 0.95) -> Interval:
    """Paired difference of proportions: Tango's limits, widened as the module's text says.

    Args:
        lost: pairs right in the baseline and wrong in the variant.
        gained: pairs wrong in the baseline and right in the variant.
        n: all pairs.
        confidence: of each one-sided limit.

    Raises:
        ValueError: the counts are not those of a table, or the confidence is not in (0.5, 1).
    """
    _counts(lost, gained, n)
    _quantile(confidence)
    return Interval(
        (lost - gained) / n,
        -_binary_upper(gained, lost, n, confidence),
        _binary_upper(lost, gained, n, confidence),
        confidence,
        "Tango score, widened to keep its level",
    )


def pair_variance(differences: Sequence[float]) -> float:
    """Variance of one pair's difference, with two pseudo-pairs at +1 and -1 added.

    Never zero, so that a suite on which nothing changed still has a cost in items. Bonett, D. G.
    and Price, R. M. (2012), Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data, Journal of Educational and Behavioral Statistics 37, 479-488.

    Raises:
        ValueError: there is no pair.
    """
    if not differences:
        raise ValueError("no pairs")
    n = len(differences) + 2
    mean = math.fsum(differences) / n
    return (math.fsum(d * d for d in differences) + 2) / n - mean * mean


def pair_skew(differences: Sequence[float]) -> float:
    """Third central moment over the variance, of the same pairs as `pair_variance` takes."""
    n = len(differences) + 2
    mean = math.fsum(differences) / n
    third = math.fsum((d - mean) ** 3 for d in differences)
    third += (1 - mean) ** 3 + (-1 - mean) ** 3
    return third / n / pair_variance(differences)


def _graded_upper(differences: Sequence[float], confidence: float) -> float:
    n = len(differences)
    total = math.fsum(differences)
    mean = total / n
    # Rounded up to whole pairs, but not by the last bits of a sum of decimal fractions.
    limits = [mean, _net_upper(math.ceil(total - 1e-9), n, confidence)]
    if n > 1:
        spread = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
        limits.append(mean + _student(confidence, n - 1) * math.sqrt(spread / n))
    # Variance with divisor (n + 2) - 1 as Student's t wants it.
    padded = pair_variance(differences) * (n + 2) / (n + 1)
    t = _student(confidence, n + 1)
    skewed = max(0.0, pair_skew(differences)) * (1 + 2 * t * t) / (6 * (n + 2))
    limits.append(total / (n + 2) + t * math.sqrt(padded / (n + 2)) + skewed)
    return min(1.0, max(limits))


def graded_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of paired differences of scores between 0 and 1; see the module's text.

    Args:
        differences: baseline minus variant, each -1 to 1.
        confidence: of each one-sided limit.

    Raises:
        ValueError: there is no pair, a difference is outside -1 to 1, or the confidence is not in
            (0.5, 1).
    """
    _quantile(confidence)
    if not differences:
        raise ValueError("no pairs")
    if not all(-1 <= d <= 1 for d in differences):
        raise ValueError("a difference of scores is between -1 and 1")
    return Interval(
        math.fsum(differences) / len(differences),
        -_graded_upper([-d for d in differences], confidence),
        _graded_upper(differences, confidence),
        confidence,
        "Student t, widened to keep its level",
    )


def paired_interval(
    baseline: Sequence[float], variant: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Loss of the mean score from baseline to variant: `binary_interval` or `graded_interval`.

    Raises:
        ValueError: not equally long, empty, a score outside 0 to 1 (NaN included), or the
            confidence is not in (0.5, 1).
    """
    if len(baseline) != len(variant):
        raise ValueError(f"{len(baseline)} scores cannot be paired with {len(variant)}")
    scores = [*baseline, *variant]
    if not all(0 <= s <= 1 for s in scores):
        raise ValueError("a score is between 0 and 1")
    if not all(s in (0, 1) for s in scores):
        differences = [b - v for b, v in zip(baseline, variant, strict=True)]
        return graded_interval(differences, confidence)
    lost = sum(b > v for b, v in zip(baseline, variant, strict=True))
    gained = sum(b < v for b, v in zip(baseline, variant, strict=True))
    return binary_interval(lost, gained, len(baseline), confidence)


# --------------------------------------------------------------------------- test, power


def mcnemar(lost: int, gained: int) -> tuple[float, float]:
    """Exact McNemar test of "nothing changed": p of "the variant is worse", and two-sided p.

    McNemar, Q. (1947), Psychometrika 12, 153-157, with the binomial distribution of the discordant
    pairs in place of the chi-square one. No discordant pair is no evidence: both are 1.

    Raises:
        ValueError: a count is negative.
    """
    if lost < 0 or gained < 0:
        raise ValueError("counts are not negative")
    if lost + gained == 0:
        return 1.0, 1.0
    from scipy.special import bdtr

    def at_most(k: int) -> float:
        return float(bdtr(k, lost + gained, 0.5))

    return at_most(gained), min(1.0, 2 * at_most(min(lost, gained)))


def items_needed(
    estimate: float, variance: float, margin: float, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """Paired items that would settle it, were the true loss and variance those given.

    The usual normal sample size, for a PASS where the estimate is inside the margin and for a FAIL
    where it is beyond: the least n with ``n (margin - estimate)^2 >= (z_confidence + z_power)^2 v``
    for the variance v with the two pseudo-pairs of `pair_variance`, ``(n variance + 2) / (n + 2)``.
    That is a quadratic in n with one root above 0, and holds from there on.

    Args:
        estimate: loss.
        variance: of one pair's difference, without pseudo-pairs.
        margin: accepted loss.
        confidence: of the one-sided limit.
        power: wanted chance that so many items do settle it.

    Returns:
        The number, or None where the loss sits on the margin and a million items would not do.
    """
    reach = (_quantile(confidence) + _quantile(power)) ** 2
    distance = (margin - estimate) ** 2

    def settled(n: int) -> bool:
        return n * (n + 2) * distance >= reach * (n * variance + 2)

    if not settled(_NEVER):
        return None
    half = distance - reach * variance / 2
    n = max(1, math.ceil((math.sqrt(half * half + 2 * reach * distance) - half) / distance))
    # By the last bits of a root.
    while n > 1 and settled(n - 1):
        n -= 1
    while not settled(n):
        n += 1
    return n


def detectable_loss(n: int, variance: float, confidence: float = 0.95, power: float = 0.8) -> float:
    """How far from the margin a true loss must be for n items to settle it with that power.

    Read the other way round, it is the smallest margin at which an undamaged variant passes.

    Raises:
        ValueError: n is below 1.
    """
    if n < 1:
        raise ValueError("no pairs")
    return (_quantile(confidence) + _quantile(power)) * math.sqrt(variance / n)
