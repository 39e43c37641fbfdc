"""Bootstrap intervals: by hand, against numpy on the same draws, and at their stated level."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bootstrap import Draws, Estimate, estimates, percentile

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


def test_percentiles_are_interpolated() -> None:
    assert percentile([], 50) is None
    assert percentile([4], 99) == 4
    # Place (n - 1) q: 0.9 x 3 = 2.7 of [1, 2, 3, 7].
    assert percentile([7, 1, 3, 2], 90) == pytest.approx(3 + 0.7 * 4)


def test_the_figures_are_of_all_values_together() -> None:
    mean, median, p90, most = estimates([[1, 2], [10]], [50, 90, 100], Draws())
    assert mean.value == pytest.approx(13 / 3)
    assert median.value == 2
    assert p90.value == pytest.approx(2 + 0.8 * 8)
    assert most.value == 10


def test_the_interval_of_two_units_is_that_of_their_three_draws() -> None:
    """Both one, one and one, both other: 1/4, 1/2, 1/4 of the draws."""
    mean, median = estimates([[0], [10]], [50], Draws(resamples=2000))
    assert (mean.low, mean.high) == (0, 10)
    assert (median.value, median.low, median.high) == (5, 0, 10)
    # Half of the draws lie at the middle, so an interval of 40 % is the middle itself.
    mean, _ = estimates([[0], [10]], [50], Draws(resamples=2000, confidence=0.4))
    assert (mean.low, mean.high) == (5, 5)


def test_a_unit_is_drawn_whole() -> None:
    """Equal repeats of very different requests leave nothing to be unsure of between repeats."""
    (mean, _) = estimates([[0, 10]] * 3, [50], Draws())
    assert (mean.low, mean.value, mean.high) == (5, 5, 5)
    requests = estimates([[0], [10]] * 3, [50], Draws())[0]
    assert requests.low is not None and requests.low < 5


@pytest.mark.parametrize("units", [3, 5, 30])
def test_intervals_are_numpys_on_the_repeated_values(units: int) -> None:
    dice = np.random.default_rng(3)
    groups = sorted(sorted(dice.exponential(1, 4).tolist()) for _ in range(units))
    draws = Draws(resamples=200, confidence=0.9, seed=8)
    found = estimates(groups, [50, 99], draws)
    again = np.random.default_rng(8)
    rows = []
    for _ in range(200):
        times = again.multinomial(units, np.full(units, 1 / units))
        values = [v for g, n in zip(groups, times, strict=True) for v in g * int(n)]
        rows.append([np.mean(values), *np.percentile(values, [50, 99])])
    low, high = np.percentile(rows, [5, 95], axis=0)
    assert [e.low for e in found] == pytest.approx(low)
    assert [e.high for e in found] == pytest.approx(high)


def test_no_interval_where_nothing_can_be_drawn_again() -> None:
    assert estimates([], [50], Draws()) == [Estimate(None)] * 2
    assert estimates([[], []], [50], Draws()) == [Estimate(None)] * 2
    assert estimates([[1, 3]], [50], Draws()) == [Estimate(2), Estimate(2)]
    # A repeat in which nothing was completed is no second unit.
    assert estimates([[1, 3], []], [50], Draws()) == [Estimate(2), Estimate(2)]


@given(units=st.lists(VALUES, min_size=1, max_size=5), seed=st.integers(0, 3))
def test_percentiles_never_fall_and_limits_lie_around(units: list[list[float]], seed: int) -> None:
    found = estimates(units, [50, 90, 95, 99, 100], Draws(resamples=50, seed=seed))
    for one, other in itertools.pairwise(found[1:]):
        assert one.value is not None and other.value is not None
        assert one.value <= other.value
        if one.low is not None and other.low is not None:
            assert one.low <= other.low
            assert (one.high or 0) <= (other.high or 0)
    values = [v for unit in units for v in unit]
    for estimate in found:
        if estimate.low is not None and estimate.high is not None:
            slack = 1e-9 * max(values)
            assert min(values) - slack <= estimate.low <= estimate.high <= max(values) + slack


@given(units=st.lists(VALUES, min_size=2, max_size=4), data=st.data())
def test_the_order_of_units_and_values_does_not_matter(
    units: list[list[float]], data: st.DataObject
) -> None:
    draws = Draws(resamples=20)
    moved = [data.draw(st.permutations(unit)) for unit in data.draw(st.permutations(units))]
    assert estimates(moved, [50, 99], draws) == estimates(units, [50, 99], draws)


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    units = [[float(i * i % 17)] for i in range(20)]
    draws = Draws(resamples=50)
    assert estimates(units, [50], draws) == estimates(units, [50], draws)
    assert estimates(units, [50], draws) != estimates(units, [50], Draws(resamples=50, seed=1))


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says() -> None:
    """Thirty units, 200 samples of them: 0.93 is what the percentile method has at this size."""
    dice = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        units = [[v] for v in dice.exponential(1, 30).tolist()]
        (mean, _) = estimates(units, [50], Draws(resamples=200))
        assert mean.low is not None and mean.high is not None
        held += mean.low <= 1 <= mean.high
    assert 0.87 <= held / 200 <= 0.98


@pytest.mark.parametrize("given", [{"resamples": 0}, {"confidence": 1.0}, {"confidence": math.nan}])
def test_draws_that_are_none_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="resamples at confidence"):
        Draws(**given)  # type: ignore[arg-type]
