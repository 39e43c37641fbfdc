"""Whole clusters as units: what becomes of sums, limits and the number of samples."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from workbench import stats
from workbench.clusters import Clusters, Grouping, clustered, units
from workbench.margin_test import beyond_margin


def limits(
    before: list[float], after: list[float], clusters: Clusters, confidence: float = 0.95
) -> tuple[stats.Interval, float]:
    loss = stats.paired_interval(before, after, confidence)
    return clustered(loss, [b - a for b, a in zip(before, after, strict=True)], clusters)


def test_sums_of_clusters_and_of_samples_alone() -> None:
    columns = np.array([[1.0, 1], [0, 1], [1, 1], [0.5, 1], [0.25, 1]])
    found = units(columns, ["b", "a", "b", None, None])
    assert found.tolist() == [[0, 1], [0.25, 1], [0.5, 1], [2, 2]]
    assert units(columns).tolist() == sorted(columns.tolist())
    assert units(columns[:0], []).tolist() == []
    # A sum of floats depends on its order; that of a cluster does not.
    tenths = np.array([[0.1], [0.2], [0.3]])
    assert units(tenths, ["a"] * 3).tolist() == units(tenths[::-1], ["a"] * 3).tolist()
    with pytest.raises(ValueError, match="2 clusters of 5"):
        units(columns, ["a", "b"])


def test_long_names_of_clusters_take_no_room() -> None:
    names = [f"{i % 500:020000d}" for i in range(1000)]
    columns = np.ones((1000, 2))
    tracemalloc.start()
    found = units(columns, names)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tolist() == [[2, 2]] * 500
    assert peak < 2_000_000, "of 20 MB of names"


def test_clusters_of_one_are_samples() -> None:
    before, after = [1.0] * 60 + [0.0] * 20, [0.0] * 5 + [1.0] * 55 + [0.0] * 20
    loss, variance = limits(before, after, [str(i) for i in range(80)])
    assert loss == stats.paired_interval(before, after)
    assert variance == stats.pair_variance([b - a for b, a in zip(before, after, strict=True)])


def test_by_hand() -> None:
    # Three documents of 4, 2 and 2; net losses 2, 0, 1: units 2/4, 0/4, 1/4, scale 4 * 3 / 8.
    before = [1.0] * 8
    after = [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    loss, variance = limits(before, after, ["a"] * 4 + ["b"] * 2 + ["c"] * 2)
    wide = stats.graded_interval([0.5, 0, 0.25])
    assert loss.estimate == pytest.approx(3 / 8)
    assert loss.high == min(1, 1.5 * wide.high)
    assert loss.low == pytest.approx(max(-1, 1.5 * wide.low))
    # Of one sample, so that over eight it is the mean's.
    assert variance / 8 == pytest.approx(1.5**2 * stats.pair_variance([0.5, 0, 0.25]) / 3)
    assert loss.method.endswith("clusters as units")


def test_the_limits_cover_where_clusters_are_lost_whole() -> None:
    """Exact chances: 30 documents of 8 questions, each document lost with 10 %, or 5, or 20."""
    names = [str(i // 8) for i in range(240)]

    def high(lost: int) -> tuple[float, float]:
        after = [0.0] * 8 * lost + [1.0] * (240 - 8 * lost)
        plain = stats.paired_interval([1.0] * 240, after).high
        return limits([1.0] * 240, after, names)[0].high, plain

    found = [high(lost) for lost in range(31)]
    for chance in (0.05, 0.1, 0.2):
        weights = binom.pmf(range(31), 30, chance)
        whole, alone = (
            sum(w for w, ends in zip(weights, found, strict=True) if ends[k] >= chance)
            for k in (0, 1)
        )
        assert whole >= 0.95
        assert alone < 0.93


def test_few_clusters_know_little() -> None:
    one = limits([1.0] * 200, [1.0] * 200, ["the only document"] * 200)[0]
    assert one.high > 0.9
    five = limits([1.0] * 200, [1.0] * 200, [str(i // 40) for i in range(200)])[0]
    assert 0.4 < five.high < one.high


tables = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from(["a", "b", "c", None]),
    ),
    min_size=1,
    max_size=60,
)


@given(tables, st.integers(0, 1000))
def test_order_does_not_matter_and_sides_swapped_mirror(
    rows: list[tuple[float, float, str | None]], seed: int
) -> None:
    before, after, names = map(list, zip(*rows, strict=True))
    loss, variance = limits(before, after, names)
    mixed = random.Random(seed).sample(rows, len(rows))
    again = limits(*map(list, zip(*mixed, strict=True)))  # type: ignore[arg-type]
    assert again == (loss, variance)
    mirrored, same = limits(after, before, names)
    assert (mirrored.low, mirrored.high) == pytest.approx((-loss.high, -loss.low), abs=1e-9)
    assert same == pytest.approx(variance, rel=1e-9)
    plain = stats.paired_interval(before, after)
    assert loss.low <= plain.low <= plain.high <= loss.high


@given(
    tables,
    st.sampled_from([0.02, 0.1, 0.3]),
    st.integers(1, 200),
    st.sampled_from(["a", "new", None]),
    st.booleans(),
)
def test_adding_agreeing_pairs_never_turns_a_pass_into_a_fail(
    rows: list[tuple[float, float, str | None]],
    margin: float,
    more: int,
    name: str | None,
    grouped: bool,
) -> None:
    def judged(rows: list[tuple[float, float, str | None]]) -> tuple[stats.Interval, float]:
        before, after, names = map(list, zip(*rows, strict=True))
        clusters = names if grouped else [None] * len(rows)
        loss, _ = limits(before, after, clusters)
        return loss, beyond_margin(before, after, margin, clusters)

    fewer, p_fewer = judged(rows)
    agreeing: list[tuple[float, float, str | None]] = [(1.0, 1.0, name)] * more
    many, p_many = judged([*rows, *agreeing])
    assert abs(many.estimate) <= abs(fewer.estimate)
    if fewer.high <= margin:
        assert many.low <= margin
    assert not (p_fewer > 0.5 and p_many < 0.05)


def test_how_samples_are_grouped_is_known_before_any_is_asked() -> None:
    found = Grouping.of(["a", "b", "a", None, "a", "b"])
    assert found == Grouping((3, 2, 1))
    assert found.mean == 2 and found.scale == 1.5
    assert found.effective == pytest.approx(36 / 14)
    assert Grouping.of(["a", None, "b"]) is None
    assert Grouping.of([]) is None


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (4, 2, 2), (3, 1, 1, 1)])
def test_the_variance_said_beforehand_is_the_gates_where_clusters_change_as_one(
    sizes: tuple[int, ...],
) -> None:
    """Half of all samples lost, half gained, so that there is no loss: the share is 1."""
    changes = [d for i, size in enumerate(sizes) for d in [(-1.0) ** (i > 0)] * size]
    if len(sizes) == 4 and sizes[0] == 4:
        changes = [1.0] * 8 + [-1.0] * 8
    assert sum(changes) == 0
    names = [str(i) for i, size in enumerate(sizes) for _ in range(size)]
    loss = stats.paired_interval([float(d > 0) for d in changes], [float(d < 0) for d in changes])
    _, variance = clustered(loss, changes, names)
    assert Grouping(sizes).variance(1.0, len(names)) == pytest.approx(variance)
