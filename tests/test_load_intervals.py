"""Intervals of a load's figures: how often a limit at the true value is passed, by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from workbench.bootstrap import Draws, Estimate
from workbench.exact_intervals import quantile_interval
from workbench.load_intervals import rate, share, share_limits, spread
from workbench.repeat_interval import repeat_share_interval

#: One draw: no percentile, mean or rate of three repeats is the bootstrap's.
ONE = Draws(resamples=1)
TRIALS = 500
#: 2.5 % on each side, and three standard errors of that many trials.
MOST = 0.025 + 3 * math.sqrt(0.025 * 0.975 / TRIALS)


def told(found: Estimate) -> tuple[float, float]:
    assert found.low is not None and found.high is not None
    return found.low, found.high


@pytest.mark.parametrize(
    ("requests", "between", "q"),
    [(8, 0.0, 50), (24, 0.0, 95), (64, 0.0, 95), (200, 0.05, 95), (200, 0.05, 50), (130, 0.05, 99)],
)
def test_of_three_repeats_a_target_at_the_true_percentile_seldom_passes_or_fails(
    requests: int, between: float, q: float
) -> None:
    """Latencies spread by 30 % within a repeat; all of a repeat shift together by `between`."""
    dice = np.random.default_rng(11)
    truth = np.exp(np.hypot(0.3, between) * dice.standard_normal(1_000_000))
    true = float(np.percentile(truth, q))
    passed = failed = 0
    for _ in range(TRIALS):
        shift = between * dice.standard_normal((3, 1))
        loads = np.exp(0.3 * dice.standard_normal((3, requests)) + shift)
        low, high = told(spread([[[v] for v in load] for load in loads.tolist()], [q], ONE)[1])
        passed += high <= true
        failed += low > true
    assert passed / TRIALS <= MOST and failed / TRIALS <= MOST


@pytest.mark.parametrize("repeats", [1, 3])
def test_gaps_of_an_answer_are_alike_and_do_not_count_as_so_many_requests(repeats: int) -> None:
    """16 answers of 32 gaps, whole answers faster or slower by a fifth."""
    dice = np.random.default_rng(4)
    answers = np.exp(0.2 * dice.standard_normal((40_000, 32)) + 0.2 * dice.normal(size=(40_000, 1)))
    for q, needed in ((50, TRIALS), (95, 1)):
        true = float(np.percentile(answers, q))
        passed = failed = known = 0
        for _ in range(TRIALS):
            drawn = answers[dice.integers(0, len(answers), repeats * 16)].tolist()
            loads = [drawn[i * 16 : (i + 1) * 16] for i in range(repeats)]
            found = spread(loads, [q], ONE)[1]
            if found.low is None or found.high is None:
                continue
            known += 1
            passed += found.high <= true
            failed += found.low > true
        assert known >= needed
        assert passed / TRIALS <= MOST and failed / TRIALS <= MOST


def test_the_wider_side_of_both_intervals_counts() -> None:
    dice = np.random.default_rng(2)
    alike = dice.exponential(1, (3, 100))
    pooled = quantile_interval(alike.ravel().tolist(), 50)
    assert pooled is not None
    (_, found, _) = spread([[[v] for v in load] for load in alike.tolist()], [50], ONE)
    assert told(found)[0] <= pooled[0] and told(found)[1] >= pooled[1]
    # Each repeat a constant: order statistics know nothing of how they differ.
    apart = [[[v]] * 100 for v in (90.0, 100.0, 111.0)]
    low, high = told(spread(apart, [50], ONE)[1])
    reach = float(t.ppf(0.975, 2)) * np.log([90.0, 100.0, 111.0]).std(ddof=1) / math.sqrt(3)
    assert (low, high) == pytest.approx((100 * math.exp(-reach), 100 * math.exp(reach)))


def test_too_few_requests_in_all_repeats_have_no_percentile() -> None:
    for each, known in ((23, False), (24, True)):
        loads = [[[float(i)] for i in range(1, each + 1)]] * 3
        (_, _, p95, _) = spread(loads, [50, 95], ONE)
        assert p95.value is not None and (p95.high is not None) == known
    # A repeat of which nothing came says that repeats differ, and not by how much.
    (mean, p50, _) = spread([[[1.0]] * 50, [[1.0]] * 50, []], [50], ONE)
    assert p50 == Estimate(1) and mean == Estimate(1)
    assert spread([[], [], []], [50], ONE) == [Estimate(None)] * 3


def test_a_rate_is_of_sums_and_has_the_interval_of_its_repeats() -> None:
    assert rate([(100, 1), (100, 3)]) == Estimate(50)
    assert rate([]) == rate([(0, 0)]) == rate([(1.0, 1e-310)]) == Estimate(None)
    three = rate([(90, 1), (100, 1), (111, 1)])
    reach = float(t.ppf(0.975, 2)) * np.log([90.0, 100.0, 111.0]).std(ddof=1) / math.sqrt(3)
    assert three.value == pytest.approx(301 / 3)
    assert told(three)[1] == pytest.approx(301 / 3 * math.exp(reach))
    # A repeat of next to no time has no rate.
    assert rate([(1.0, 1e-310), (1.0, 0.02), (1.0, 0.1)]).high is None


@pytest.mark.parametrize(("true", "between"), [(0.9, 0.3), (0.5, 0.2), (0.9, 0.0)])
def test_goodput_at_the_true_share_seldom_passes_or_fails(true: float, between: float) -> None:
    """The log-odds of being in time differ from repeat to repeat, by `between`."""
    dice = np.random.default_rng(7)

    def shares(n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        odds = math.log(true / (1 - true)) + between * dice.standard_normal(n)
        return np.asarray(1 / (1 + np.exp(-odds)))

    truth, passed, failed, trials = float(shares(1_000_000).mean()), 0, 0, 1000
    for _ in range(trials):
        parts = [(int(k), 200) for k in dice.binomial(200, shares(3))]
        low, high = share_limits(parts, 0.95)
        passed += low >= truth
        failed += high < truth
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert passed / trials <= most and failed / trials <= most


def test_a_share_has_exact_limits_and_its_repeats_where_those_are_wider() -> None:
    exact = share([(180, 200), (180, 200)])
    alike = share([(120, 133), (120, 133), (120, 134)])
    assert (exact.value, alike.value) == (0.9, 0.9)
    assert told(alike) == pytest.approx(told(exact))
    parts = [(100, 100), (95, 100), (75, 100)]
    apart = repeat_share_interval(parts, 0.975)
    assert told(share(parts)) == pytest.approx(apart)
    odds = np.log([100.5 / 0.5, 95.5 / 5.5, 75.5 / 25.5])
    reach = float(t.ppf(0.975, 2)) * odds.std(ddof=1) / math.sqrt(3)
    assert math.log(apart[1] / (1 - apart[1])) == pytest.approx(math.log(270.5 / 30.5) + reach)
    assert told(share([(0, 20)] * 3))[0] == 0 and told(share([(20, 20)] * 3))[1] == 1
