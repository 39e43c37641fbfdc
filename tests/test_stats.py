"""Statistics against published numbers, exact enumeration and properties."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest

from workbench import stats
from workbench.stats import Interval, binary_interval, graded_interval, paired_interval, tango

# ------------------------------------------------------------------------------ published


def test_tango_on_the_airway_example() -> None:
    """Bentur et al. 2009 in Fagerland, Lydersen and Laake (2014), Statistics in Medicine 33."""
    found = tango(1, 7, 21, 0.975)
    assert (round(found.low, 3), round(found.high, 3)) == (-0.517, -0.026)
    assert found.estimate == pytest.approx(-6 / 21)


def yang_sun_hardin(lost: int, gained: int, n: int, z: float) -> tuple[float, float]:
    """Tango's limits without iteration, as roots of a quartic.

    Yang, Sun and Hardin (2013), A non-iterative implementation of Tango's score confidence interval
    for a paired difference of proportions, Statistics in Medicine 32.
    """
    g, d, s = z * z, lost - gained, lost + gained
    quartic = [
        n**2 * (n / g + 1) ** 2,
        -n * d * (n / g + 1) * (4 * n / g + 1),
        2 * n * d**2 * (3 * n / g + 2) / g - n**2 * (s / g + 1),
        n * d * (2 * s / g + 1) - d**3 * (4 * n / g + 1) / g,
        d**2 * (d**2 / g - s) / g,
    ]
    # Squaring adds roots: the limits are the real ones that solve the equation itself.
    roots = [r.real for r in np.roots(quartic) if abs(r.imag) < 1e-7 and -1 <= r.real <= 1]
    solved = [r for r in roots if abs(abs(stats._tango_statistic(lost, gained, n, r)) - z) < 1e-5]
    return min(solved), max(solved)


@pytest.mark.parametrize(
    ("lost", "gained", "n"),
    [(16, 9, 100), (12, 2, 50), (6, 16, 161), (40, 20, 160), (150, 86, 1600), (3, 11, 40)],
)
def test_tango_equals_the_closed_form(lost: int, gained: int, n: int) -> None:
    low, high = yang_sun_hardin(lost, gained, n, NormalDist().inv_cdf(0.975))
    found = tango(lost, gained, n, 0.975)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


@pytest.mark.parametrize(("lost", "n"), [(0, 80), (3, 80), (20, 64)])
def test_tango_is_wilson_when_nothing_is_gained(lost: int, n: int) -> None:
    z = NormalDist().inv_cdf(0.95)
    p = lost / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    wilson = (p + z * z / (2 * n) + half) / (1 + z * z / n)
    assert tango(lost, 0, n, 0.95).high == pytest.approx(wilson, abs=1e-12)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for lost, gained in [(10, 2), (2, 10), (5, 5), (1, 0), (30, 17)]:
        worse, different = stats.mcnemar(lost, gained)
        n = lost + gained
        assert worse == pytest.approx(binomtest(lost, n, alternative="greater").pvalue)
        assert different == pytest.approx(binomtest(lost, n).pvalue)
    assert stats.mcnemar(0, 0) == (1.0, 1.0)


def test_the_exact_limit_is_clopper_and_pearson() -> None:
    assert stats._net_upper(3, 80, 0.95) == pytest.approx(beta.ppf(0.95, 4, 77))
    assert stats._net_upper(0, 80, 0.95) == pytest.approx(1 - 0.05 ** (1 / 80))
    assert stats._net_upper(-3, 80, 0.95) == pytest.approx(-beta.ppf(0.05, 3, 78))
    assert stats._net_upper(80, 80, 0.95) == 1


# ------------------------------------------------------------------------------ it keeps its level


@cache
def _limits(lost: int, gained: int, n: int, plain: bool) -> tuple[float, float]:
    found = (tango if plain else binary_interval)(lost, gained, n)
    return found.low, found.high


def errors(n: int, loss: float, gain: float, plain: bool = False) -> tuple[float, float]:
    """Exact chance of a false PASS and of a false FAIL when the true loss is the margin."""
    p12, p21 = loss + gain, gain
    p = p12 + p21
    most = int(min(n, n * p + 7 * math.sqrt(n * p + 1) + 7))
    passes = fails = 0.0
    weights = binom.pmf(np.arange(most + 1), n, p)
    for discordant in range(most + 1):
        if weights[discordant] < 1e-9:
            continue
        split = binom.pmf(np.arange(discordant + 1), discordant, p12 / p)
        for lost in range(discordant + 1):
            low, high = _limits(lost, discordant - lost, n, plain)
            chance = weights[discordant] * split[lost]
            passes += chance * (high < loss)
            fails += chance * (low > loss)
    return passes, fails


def worst(n: int, plain: bool) -> tuple[float, float]:
    # The error rate jumps where a margin passes an attainable limit: those are the margins to try.
    limits = [_limits(b, c, n, plain) for b in range(9) for c in range(3)]
    margins = sorted({high + 1e-9 for _, high in limits} | {low - 1e-9 for low, _ in limits})
    found = [
        errors(n, margin, gain, plain)
        for margin in margins
        if 0.005 <= margin <= 0.2
        for gain in (0.0, 0.002, 0.01, 0.05, 0.2)
    ]
    return max(p for p, _ in found), max(f for _, f in found)


@pytest.mark.parametrize("n", [20, 40, 80])
def test_false_pass_and_false_fail_stay_at_five_percent(n: int) -> None:
    false_pass, false_fail = worst(n, plain=False)
    assert false_pass <= 0.0505
    assert false_fail <= 0.0505


def test_above_half_of_the_scale_the_level_is_not_kept() -> None:
    """The reason why a policy with such a margin is warned of."""
    assert 0.07 < errors(20, 0.89, 0.05)[0] < 0.085


def test_plain_tango_would_not() -> None:
    """The reason for widening it; if this fails, the module's text is wrong."""
    assert 0.07 < worst(40, plain=True)[0] < 0.08


def test_graded_limits_cover() -> None:
    """Rare partial losses at n = 60: the case that fools a plain t or a bootstrap."""
    random = np.random.default_rng(20260101)
    for p_lost, p_gained, step in [(0.02, 0.0, 1.0), (0.05, 0.02, 0.5), (0.3, 0.2, 0.25)]:
        true = step * (p_lost - p_gained)
        draws = random.choice(
            [step, -step, 0.0], (2000, 60), p=[p_lost, p_gained, 1 - p_lost - p_gained]
        )
        limits = [graded_interval(list(map(float, row))) for row in draws]
        assert np.mean([i.high >= true for i in limits]) >= 0.945
        assert np.mean([i.low <= true for i in limits]) >= 0.945


# ------------------------------------------------------------------------------ properties


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 400))
    lost = draw(st.integers(0, n))
    return lost, draw(st.integers(0, n - lost)), n


confidences = st.sampled_from([0.6, 0.8, 0.9, 0.95, 0.99])


def _sound(found: Interval) -> None:
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    assert found.low < found.high


@given(tables(), confidences)
@settings(max_examples=300)
def test_binary_limits(table: tuple[int, int, int], confidence: float) -> None:
    lost, gained, n = table
    found = binary_interval(lost, gained, n, confidence)
    _sound(found)
    _sound(tango(lost, gained, n, confidence))
    assert found.low <= tango(lost, gained, n, confidence).low + 1e-12
    assert found.high >= tango(lost, gained, n, confidence).high - 1e-12
    mirrored = binary_interval(gained, lost, n, confidence)
    assert (mirrored.low, mirrored.high) == (-found.high, -found.low)


@given(tables())
@settings(max_examples=100)
def test_more_confidence_is_wider_and_more_loss_is_higher(table: tuple[int, int, int]) -> None:
    lost, gained, n = table
    narrow, wide = (binary_interval(lost, gained, n, c) for c in (0.9, 0.99))
    assert wide.low <= narrow.low and narrow.high <= wide.high
    if lost + gained < n:
        worse = binary_interval(lost + 1, gained, n)
        same = binary_interval(lost, gained, n)
        assert worse.high >= same.high - 1e-12 and worse.low >= same.low - 1e-12


@given(st.integers(1, 3000), confidences)
@settings(max_examples=60)
def test_zero_discordant_pairs_have_a_width_that_shrinks(n: int, confidence: float) -> None:
    found = binary_interval(0, 0, n, confidence)
    assert 0 < found.high == -found.low
    assert binary_interval(0, 0, n + 1, confidence).high < found.high


scores = st.lists(
    st.tuples(st.sampled_from([0, 0.25, 1 / 3, 0.5, 0.9, 1]), st.sampled_from([0, 0.1, 0.5, 1])),
    min_size=1,
    max_size=80,
)


@given(scores, confidences)
@settings(max_examples=200)
def test_graded_limits(pairs: list[tuple[float, float]], confidence: float) -> None:
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    found = paired_interval(before, after, confidence)
    _sound(found)
    mirrored = paired_interval(after, before, confidence)
    assert mirrored.low == pytest.approx(-found.high, abs=1e-9)
    assert mirrored.high == pytest.approx(-found.low, abs=1e-9)


def test_equal_graded_scores_have_a_width() -> None:
    for value in (0.0, 0.5, 1.0):
        found = graded_interval([value] * 80)
        assert found.high - found.low > 0.02
    assert graded_interval([0.0] * 80).high >= binary_interval(0, 0, 80).high * 0.8


def test_zeros_and_ones_are_binary_and_anything_else_is_graded() -> None:
    before, after = [1.0, 1.0, 0.0, 1.0] * 20, [1.0, 0.0, 0.0, 1.0] * 20
    assert paired_interval(before, after) == binary_interval(20, 0, 80)
    assert "Student" in paired_interval([*before, 0.5], [*after, 0.5]).method


# ------------------------------------------------------------------------------ churn, power


def test_churn_by_direction() -> None:
    found = stats.churn(
        [1, 1, 0, 0, 0, 0.5], [1, 0, 1, 0, 0, 0.5], ["a"] * 6, ["b", "b", "b", "b", "a", "b"]
    )
    assert found.as_dict() == {
        "n": 6,
        "same": 2,  # right with other words, and wrong with the same ones
        "right_to_wrong": 1,
        "wrong_to_right": 1,
        "wrong_to_different_wrong": 2,
    }
    assert found.share == pytest.approx(4 / 6)
    assert stats.churn([], [], [], []).share == 0
    with pytest.raises(ValueError):
        stats.churn([1.0], [], [], [])


def test_items_needed_do_settle_it() -> None:
    """So many items, simulated at the assumed loss and discordance, pass four times out of five."""
    random = np.random.default_rng(7)
    p_lost, p_gained, margin = 0.06, 0.04, 0.06
    variance = p_lost + p_gained - (p_lost - p_gained) ** 2
    n = stats.items_needed(p_lost - p_gained, variance, margin)
    assert n is not None
    draws = random.multinomial(n, [p_lost, p_gained, 1 - p_lost - p_gained], 1500)
    passed = np.mean([binary_interval(int(b), int(c), n).high <= margin for b, c, _ in draws])
    assert 0.76 < passed < 0.86


def test_items_needed_counts() -> None:
    variance = stats.pair_variance([1.0] * 4 + [-1.0] * 2 + [0.0] * 74)
    assert variance == pytest.approx(8 / 82 - (2 / 82) ** 2)
    assert stats.items_needed(0.05, variance, 0.05) is None
    assert stats.items_needed(0.05, variance, 0.0500001) is None
    near, far = (stats.items_needed(e, variance, 0.1) for e in (0.08, 0.02))
    assert near is not None and far is not None and near > far
    # As far beyond the margin is as easy to fail as to pass.
    assert stats.items_needed(0.18, variance, 0.1) == far
    assert stats.items_needed(0.02, variance, 0.1, power=0.9) > far  # type: ignore[operator]


@given(
    st.floats(-0.2, 0.2),
    st.one_of(st.just(0.0), st.floats(0, 1.5)),
    st.floats(0.005, 0.5),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_items_needed_are_the_least_that_settle_it(
    estimate: float, variance: float, margin: float, confidence: float
) -> None:
    def off(n: int) -> float:
        """How far from the margin n items tell apart, over how far the estimate is."""
        padded = (n * variance + 2) / (n + 2)
        return stats.detectable_loss(n, padded, confidence) / abs(margin - estimate)

    assume(abs(margin - estimate) > 1e-6)
    n = stats.items_needed(estimate, variance, margin, confidence)
    if n is None:
        assert off(1_000_000) > 1 - 1e-9
        return
    assert off(n) <= 1 + 1e-9
    assert n == 1 or off(n - 1) > 1 - 1e-9


def test_detectable_loss_mirrors_items_needed() -> None:
    loss = stats.detectable_loss(500, 0.1)
    alone = (0.1 * 502 - 2) / 500  # 0.1 has the two pseudo-pairs
    assert stats.items_needed(0.0, alone, loss) in (500, 501)
    assert stats.detectable_loss(2000, 0.1) == pytest.approx(loss / 2)


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "call",
    [
        lambda: tango(1, 1, 1),
        lambda: tango(-1, 1, 5),
        lambda: binary_interval(0, 0, 0),
        lambda: binary_interval(1, 0, 5, 95),
        lambda: binary_interval(1, 0, 5, 0.5),
        lambda: graded_interval([]),
        lambda: graded_interval([1.5]),
        lambda: graded_interval([float("nan")]),
        lambda: paired_interval([1.0], [1.0, 0.0]),
        lambda: paired_interval([1.0, 2.0], [1.0, 0.0]),
        lambda: paired_interval([1.0, float("nan")], [1.0, 0.0]),
        lambda: paired_interval([], []),
        lambda: stats.mcnemar(-1, 0),
        lambda: stats.pair_variance([]),
        lambda: stats.detectable_loss(0, 0.1),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize(("lost", "gain", "n"), [(0.04, 0.02, 500), (0.1, 0.05, 1000)])
def test_few_great_losses_among_small_gains_do_not_slip_through(
    lost: float, gain: float, n: int
) -> None:
    """Every outcome weighed: `lost` of the answers lose all, every other one gains a little."""
    truth = lost - gain * (1 - lost)
    passed = sum(
        binom.pmf(k, n, lost)
        for k in range(int(n * lost * 2))
        if graded_interval([1.0] * k + [-gain] * (n - k)).high < truth
    )
    assert 0.02 < passed <= 0.05
