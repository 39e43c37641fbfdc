"""Arrival processes: known times, and rates that are what they say."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.arrivals import (
    AnyArrivals,
    BurstArrivals,
    ClosedLoop,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
    alternated,
    at_level,
    due_times,
)


def times(arrivals: AnyArrivals, count: int, seed: str = "0", trace: Any = None) -> list[float]:
    return [at for at in due_times(arrivals, count, seed, trace) if at is not None]


def test_known_times() -> None:
    assert due_times(ClosedLoop(concurrency=3), 2, "0") == [None, None]
    assert times(ConstantArrivals(rate=4), 4) == [0, 0.25, 0.5, 0.75]
    assert times(BurstArrivals(size=2, gap=5), 5) == [0, 0, 5, 5, 10]
    assert times(TraceArrivals(speed=2), 2, trace=[1.0, 3.0, 9.0]) == [0.5, 1.5]


def test_a_trace_must_hold_as_many_times_as_are_asked() -> None:
    with pytest.raises(ValueError, match="3 requests of a trace of 2"):
        due_times(TraceArrivals(), 3, "0", [0.0, 1.0])
    with pytest.raises(ValueError, match="a trace of 0"):
        due_times(TraceArrivals(), 1, "0")


def test_poisson_gaps_are_exponential() -> None:
    gaps = [b - a for a, b in pairwise([0.0, *times(PoissonArrivals(rate=5), 20_000)])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.03)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(0.2, rel=0.05)
    # P(gap > mean) = 1/e, and what came before says nothing about what comes next.
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.015)
    both = sum(a > 0.2 and b > 0.2 for a, b in pairwise(gaps)) / len(gaps)
    assert both == pytest.approx(0.368**2, abs=0.015)


@given(
    count=st.integers(1, 60), more=st.integers(0, 60), rate=st.floats(0.01, 1000), seed=st.text()
)
def test_times_never_fall_and_more_requests_change_none(
    count: int, more: int, rate: float, seed: str
) -> None:
    processes: list[AnyArrivals] = [
        PoissonArrivals(rate=rate),
        ConstantArrivals(rate=rate),
        BurstArrivals(size=3, gap=rate),
    ]
    for arrivals in processes:
        found = times(arrivals, count, seed)
        assert len(found) == count
        assert found[0] >= 0
        assert all(a <= b for a, b in pairwise(found))
        assert times(arrivals, count + more, seed)[:count] == found


def test_another_rate_scales_the_same_gaps_and_another_seed_draws_others() -> None:
    slow, fast = (times(PoissonArrivals(rate=rate), 50) for rate in (1, 4))
    assert [at / 4 for at in slow] == pytest.approx(fast)
    assert times(PoissonArrivals(rate=1), 50, "1") != slow


def test_another_level_is_the_same_process() -> None:
    assert at_level(ClosedLoop(concurrency=1), 8) == ClosedLoop(concurrency=8)
    assert at_level(PoissonArrivals(rate=1), 2.5) == PoissonArrivals(rate=2.5)
    assert at_level(ConstantArrivals(rate=1), 2.5) == ConstantArrivals(rate=2.5)
    # 10 every 2.5 s are 4 a second.
    assert at_level(BurstArrivals(size=10, gap=1), 4) == BurstArrivals(size=10, gap=2.5)
    # A trace of 2 requests/s comes three times as fast.
    assert at_level(TraceArrivals(), 6, trace_rate=2) == TraceArrivals(speed=3)


@pytest.mark.parametrize(
    ("arrivals", "level"),
    [
        (ClosedLoop(concurrency=1), 2.5),
        (ClosedLoop(concurrency=1), 0),
        (PoissonArrivals(rate=1), -1),
        (PoissonArrivals(rate=1), float("nan")),
        (TraceArrivals(), 2),
    ],
)
def test_a_level_that_is_none_is_refused(arrivals: AnyArrivals, level: float) -> None:
    with pytest.raises(ValueError, match=r"load of|closed loop of|not known"):
        at_level(arrivals, level)


def test_every_second_repeat_runs_backwards() -> None:
    assert alternated(["a", "b"], 3) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    # What drifts by one a step adds the same to each variant over two repeats.
    position: dict[str, int] = {"a": 0, "b": 0, "c": 0}
    for step, (_, variant) in enumerate(alternated("abc", 2)):
        position[variant] += step
    assert len(set(position.values())) == 1
