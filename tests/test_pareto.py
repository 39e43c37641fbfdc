"""The Pareto front, by its definition."""

import math

from hypothesis import given
from hypothesis import strategies as st

from workbench.pareto import dominates, front

# Few values, so that points are equal and dominate one another often.
FINITE = st.tuples(*[st.integers(0, 4).map(float)] * 3)
POINTS = st.lists(st.tuples(*[st.none() | st.integers(0, 4).map(float)] * 3), max_size=12)


def test_the_front_of_known_points() -> None:
    points = [(1.0, 5.0), (2.0, 2.0), (2.0, 3.0), (5.0, 1.0), (2.0, 2.0), (6.0, 6.0)]
    assert front(points) == [True, True, False, True, True, False]
    assert front([]) == []


def test_what_is_not_known_is_on_no_front_and_pushes_nobody_off() -> None:
    assert front([(None, 0.0), (1.0, 1.0), (math.nan, 0.0)]) == [False, True, False]
    assert not dominates((None, 0.0), (1.0, 1.0))


@given(POINTS)
def test_no_point_of_the_front_is_dominated_and_every_other_one_is_by_one_of_it(
    points: list[tuple[float | None, ...]],
) -> None:
    on = front(points)
    best = [point for point, is_on in zip(points, on, strict=True) if is_on]
    for point, is_on in zip(points, on, strict=True):
        if None in point:
            assert not is_on
        elif is_on:
            assert not any(dominates(other, point) for other in points)
        else:
            assert any(dominates(other, point) for other in best)


@given(FINITE, FINITE)
def test_domination_is_no_worse_anywhere_and_better_somewhere(
    one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    no_worse = all(a <= b for a, b in zip(one, other, strict=True))
    assert dominates(one, other) == (no_worse and one != other)
    assert not (dominates(one, other) and dominates(other, one))
