"""Limits of a proportion, and of a ratio of means: against published numbers and definitions."""

import math
from statistics import fmean, stdev

import pytest
from scipy.stats import binom, t

from workbench.proportion import proportion, ratio_of_means


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


def test_fieller_limits_are_where_the_contrast_is_just_not_different_from_0() -> None:
    before = [12.0, 30.0, 25.0, 8.0, 19.0, 40.0, 22.0, 17.0]
    after = [14.0, 28.0, 27.0, 9.0, 25.0, 41.0, 20.0, 21.0]
    found = ratio_of_means(before, after, 0.95)
    assert found is not None
    value, low, high = found
    assert value == fmean(after) / fmean(before)
    assert low < value < high
    quantile = float(t.ppf(0.95, len(before) - 1))
    for limit, sign in ((low, 1), (high, -1)):
        contrast = [a - limit * b for b, a in zip(before, after, strict=True)]
        error = stdev(contrast) / math.sqrt(len(contrast))
        assert fmean(contrast) == pytest.approx(sign * quantile * error)


def test_a_ratio_without_a_bound_is_none() -> None:
    assert ratio_of_means([3.0], [3.0]) is None
    assert ratio_of_means([0.0, 0.0], [1.0, 2.0]) is None
    assert ratio_of_means([0.0, 100.0], [1.0, 2.0]) is None  # its mean may be 0
    assert ratio_of_means([4.0, 4.0], [5.0, 5.0]) == (1.25, 1.25, 1.25)
