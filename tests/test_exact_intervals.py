"""Order statistics against their tables, and that they keep their level."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, quantile_test

from workbench.bootstrap import percentile
from workbench.exact_intervals import (
    clustered_quantile_interval,
    fewest_values,
    quantile_interval,
)


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


@pytest.mark.parametrize(("q", "n"), [(50, 6), (90, 36), (95, 72), (99, 368)])
def test_the_fewest_values_are_enough_and_one_less_is_not(q: float, n: int) -> None:
    assert fewest_values(q) == n
    assert quantile_interval([1.0] * n, q) and quantile_interval([1.0] * (n - 1), q) is None


def test_values_alike_within_a_group_count_as_fewer() -> None:
    dice = np.random.default_rng(5)
    one_each = dice.exponential(1, 90)
    alone = quantile_interval(one_each.tolist(), 50)
    copies = clustered_quantile_interval([[v] * 9 for v in one_each], 50)
    assert alone is not None and copies is not None
    # Nine copies of each tell no more than one.
    assert copies[0] <= alone[0] and copies[1] >= alone[1]
    assert copies[1] - copies[0] < 1.3 * (alone[1] - alone[0])
    mixed = clustered_quantile_interval(dice.exponential(1, (90, 9)).tolist(), 50)
    assert mixed is not None and mixed[1] - mixed[0] < 0.5 * (copies[1] - copies[0])
    assert clustered_quantile_interval([[1.0] * 500], 50) is None
    assert clustered_quantile_interval([[v] * 50 for v in (1.0, 2.0, 3.0)], 50) is None
