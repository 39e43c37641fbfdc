"""Limits of a proportion, and of a ratio of means: against published numbers and definitions."""

import math
import random
from statistics import fmean, stdev

import pytest
from scipy.stats import binom, t

from workbench.proportion import proportion, ratio_of_means
from workbench.stats import graded_interval


def test_clopper_and_pearson_as_published() -> None:
    low, high = proportion(5, 50, 0.975)
    assert (round(low, 4), round(high, 4)) == (0.0333, 0.2181)
    low, high = proportion(0, 100, 0.95)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.05 ** (1 / 100))
    assert proportion(10, 10, 0.95) == (pytest.approx(0.05 ** (1 / 10)), 1.0)


@pytest.mark.parametrize(("count", "n"), [(1, 20), (7, 64), (499, 500)])
def test_a_share_at_the_limit_is_as_likely_as_promised(count: int, n: int) -> None:
    low, high = proportion(count, n, 0.95)
    assert float(binom.cdf(count, n, high)) == pytest.approx(0.05)
    assert float(binom.sf(count - 1, n, low)) == pytest.approx(0.05)


@pytest.mark.parametrize(("count", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_what_is_no_proportion_is_refused(count: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no proportion"):
        proportion(count, n)


def test_the_limits_of_a_ratio_are_where_the_contrast_is_just_not_sure() -> None:
    before = [12.0, 30.0, 25.0, 8.0, 19.0, 40.0, 22.0, 17.0] * 4
    after = [14.0, 28.0, 27.0, 9.0, 25.0, 41.0, 20.0, 21.0] * 4
    found = ratio_of_means(before, after, 64)
    assert found is not None
    value, low, high = found
    assert value == fmean(after) / fmean(before)
    assert high is not None and low < value < high
    quantile = float(t.ppf(0.95, len(before) - 1))
    for limit, sign in ((low, 1), (high, -1)):
        contrast = [a - limit * b for b, a in zip(before, after, strict=True)]
        bounded = graded_interval([c / (64 * max(1.0, limit)) for c in contrast])
        assert (bounded.low if sign > 0 else bounded.high) == pytest.approx(0, abs=2e-4)
        # Wider than Fieller's, who takes what was seen for all there is.
        assert sign * fmean(contrast) > quantile * stdev(contrast) / math.sqrt(len(contrast))


def test_lengths_that_agree_do_not_make_the_limits_meet() -> None:
    """The next answer may be one that never ends, and it is as long as a hundred others."""
    found = ratio_of_means([50.0] * 100, [50.0] * 100, 1000)
    assert found is not None and found[0] == 1.0
    # Nothing seen in 100: 3 % of answers (0.05 = .97^100) may be 950 tokens longer than the 50.
    assert found[2] is not None and found[2] > 1 + 0.03 * 950 / 50 * 0.9
    short = ratio_of_means([50.0] * 100, [50.0] * 100, 64)
    assert short is not None and short[2] is not None and short[2] < 1.05


@pytest.mark.parametrize(("n", "most"), [(30, 200), (100, 1000), (300, 1000), (600, 1000)])
def test_rare_answers_that_never_end_are_not_passed_by_chance(n: int, most: int) -> None:
    """A true ratio of 1.1, all of it in few answers: surely within 1.1 in 5 % at most."""
    dice, trials, passed = random.Random(f"{n}/{most}"), 400, 0
    share = 0.1 * 50 / (most - 50)
    limits: dict[int, bool] = {}  # only how many there are matters
    for _ in range(trials):
        endless = sum(dice.random() < share for _ in range(n))
        if endless not in limits:
            after = [float(most)] * endless + [50.0] * (n - endless)
            found = ratio_of_means([50.0] * n, after, most)
            assert found is not None
            limits[endless] = found[2] is not None and found[2] <= 1.1
        passed += limits[endless]
    assert passed / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_whole_clusters_are_the_units_of_a_ratio() -> None:
    before, after = [50.0] * 300, [50.0] * 290 + [60.0] * 10
    alone = ratio_of_means(before, after, 100)
    documents = ratio_of_means(before, after, 100, 0.95, [f"d{k // 10}" for k in range(300)])
    each = ratio_of_means(before, after, 100, 0.95, [f"d{k}" for k in range(300)])
    assert alone is not None and documents is not None and each == alone
    assert documents[0] == alone[0] and documents[2] is not None and alone[2] is not None
    assert documents[2] - 1 > 3 * (alone[2] - 1)


def test_a_ratio_without_a_bound_has_none() -> None:
    assert ratio_of_means([3.0], [3.0], 8) is None
    assert ratio_of_means([0.0, 0.0], [1.0, 2.0], 8) is None
    few = ratio_of_means([0.0, 100.0], [1.0, 2.0], 100)
    assert few is not None and few[1:] == (0.0, None)
    nothing = ratio_of_means([4.0] * 90, [0.0] * 90, 4)
    assert nothing is not None and nothing[:2] == (0.0, 0.0) and nothing[2] is not None
