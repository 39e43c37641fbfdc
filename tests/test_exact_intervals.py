"""Order statistics and Clopper-Pearson against their tables, and that they keep their level."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, quantile_test

from workbench.bootstrap import percentile
from workbench.exact_intervals import quantile_interval, share_interval


@pytest.mark.parametrize(("n", "ranks"), [(10, (2, 9)), (20, (6, 15)), (100, (40, 61))])
def test_the_ranks_of_the_median_are_those_of_the_tables(n: int, ranks: tuple[int, int]) -> None:
    """Two-sided 95 %: Conover, table A3; Hahn and Meeker, Statistical Intervals, table 5."""
    assert quantile_interval(range(1, n + 1), 50) == ranks


def test_a_high_percentile_is_scipys() -> None:
    values = np.random.default_rng(3).lognormal(size=400)
    for q in (90, 95, 99):
        wanted = quantile_test(values, p=q / 100).confidence_interval(0.95)
        assert quantile_interval(values.tolist(), q) == pytest.approx(tuple(wanted))


def test_too_few_values_have_no_interval() -> None:
    # 1 - 0.99^n reaches 0.975 at n = 368; a median needs six values.
    assert quantile_interval([1.0] * 367, 99) is None
    assert quantile_interval([1.0] * 368, 99) == (1, 1)
    assert quantile_interval(range(5), 50) is None
    assert quantile_interval(range(6), 50) == (0, 5)
    assert quantile_interval([], 50) is None
    with pytest.raises(ValueError, match="percentile"):
        quantile_interval([1.0], 100)


@given(st.integers(1, 300), st.sampled_from([50.0, 90.0, 95.0]), st.sampled_from([0.8, 0.95]))
def test_it_covers_any_distribution_and_no_inner_pair_would(
    n: int, q: float, confidence: float
) -> None:
    found = quantile_interval(range(1, n + 1), q, confidence)
    if found is None:
        return
    low, high = int(found[0]), int(found[1])
    tail = (1 - confidence) / 2 + 1e-12
    # Missed below where fewer than `low` values lie below the quantile, above where `high` do.
    assert binom.cdf(low - 1, n, q / 100) <= tail < binom.cdf(low, n, q / 100)
    assert binom.sf(high - 1, n, q / 100) <= tail < binom.sf(high - 2, n, q / 100)


@given(st.lists(st.floats(0, 100), min_size=6, max_size=80), st.integers(0, 1000))
def test_order_does_not_matter_and_the_value_lies_within(values: list[float], seed: int) -> None:
    found = quantile_interval(values, 50)
    mixed = random.Random(seed).sample(values, len(values))
    assert quantile_interval(mixed, 50) == found
    value = percentile(values, 50)
    assert found is not None and value is not None and found[0] <= value <= found[1]


@pytest.mark.parametrize(("count", "n"), [(0, 16), (16, 16), (3, 20), (63, 64)])
def test_a_share_is_clopper_and_pearsons(count: int, n: int) -> None:
    wanted = binomtest(count, n).proportion_ci(0.95, "exact")
    assert share_interval(count, n) == pytest.approx((wanted.low, wanted.high))
    other = share_interval(n - count, n)
    assert share_interval(count, n) == pytest.approx((1 - other[1], 1 - other[0]))
    for wrong in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match="no share"):
            share_interval(*wrong)
