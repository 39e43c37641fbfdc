"""Lengths: known quantiles, limits that cut off, and what a recipe may not say."""

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from workbench.errors import RecipeError
from workbench.lengths import (
    AnyLength,
    EmpiricalLength,
    FixedLength,
    Length,
    LognormalLength,
    UniformLength,
)
from workbench.recipe import load_spec
from workbench.workloads import Workload

_READ: TypeAdapter[AnyLength] = TypeAdapter(Length)


def draws(length: AnyLength, count: int = 20_000) -> list[int]:
    dice = random.Random(0)
    return [length.quantile(dice.random()) for _ in range(count)]


def test_a_whole_number_is_a_fixed_length() -> None:
    assert _READ.validate_python(64) == FixedLength(tokens=64)
    assert {FixedLength(tokens=64).quantile(share) for share in (0, 0.5, 1)} == {64}


def test_uniform_gives_every_number_equally_often() -> None:
    length = UniformLength(min=3, max=6)
    assert [length.quantile(q) for q in (0, 0.25, 0.26, 0.5, 0.75, 0.76, 1)] == [
        3, 3, 4, 4, 5, 6, 6,
    ]  # fmt: skip
    found = draws(length)
    for value in (3, 4, 5, 6):
        assert found.count(value) / len(found) == pytest.approx(0.25, abs=0.02)


def test_lognormal_has_its_median_and_p95() -> None:
    length = LognormalLength(median=300, p95=1200, max=100_000)
    assert (length.quantile(0.5), length.quantile(0.95)) == (300, 1200)
    # exp(ln 300 - 1.6449 sigma): as far below the median, in proportion, as the P95 is above.
    assert length.quantile(0.05) == 75


def test_limits_cut_off_and_do_not_pile_up() -> None:
    found = draws(LognormalLength(median=300, p95=1200, min=200, max=400))
    assert min(found) == 200
    assert max(found) == 400
    # 200 longs draws for each of 201 lengths: clamping would put two thirds on the two ends.
    assert max(found.count(edge) for edge in (200, 400)) < 400


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 0.1, 1e300, 1e308])
def test_weights_may_be_as_large_and_small_as_a_number(weight: float) -> None:
    found = EmpiricalLength(values=(5, 6), weights=(weight, weight))
    assert [found.quantile(share) for share in (0, 0.3, 0.5, 0.7, 1)] == [5, 5, 5, 6, 6]


def test_empirical_keeps_proportions_and_weights() -> None:
    length = EmpiricalLength(values=(10, 80, 80, 410))
    assert [length.quantile(q) for q in (0, 0.25, 0.26, 0.75, 0.76, 1)] == [
        10,
        10,
        80,
        80,
        410,
        410,
    ]
    weighted = EmpiricalLength(values=(1, 2, 9), weights=(1.0, 3.0, 100.0), max=2)
    assert [weighted.quantile(q) for q in (0.25, 0.26, 1)] == [1, 2, 2]


@given(
    low=st.integers(1, 500),
    span=st.integers(0, 4000),
    one=st.floats(0, 1),
    other=st.floats(0, 1),
    median=st.floats(1, 2000),
    tail=st.floats(1.01, 50),
)
def test_quantiles_never_fall_and_stay_within_the_limits(
    low: int, span: int, one: float, other: float, median: float, tail: float
) -> None:
    lengths: list[AnyLength] = [UniformLength(min=low, max=low + span)]
    with contextlib.suppress(ValueError):  # nothing of it lies between the limits
        lengths.append(LognormalLength(median=median, p95=median * tail, min=low, max=low + span))
    for length in lengths:
        first, second = length.quantile(min(one, other)), length.quantile(max(one, other))
        assert low <= first <= second <= low + span


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("0", "a length of 0 tokens"),
        ("-3", "a length of -3 tokens"),
        ("99999999", "a length of 99999999 tokens"),
        ("true", "mapping"),
        ("1.5", "mapping"),
        ("{distribution: gauss}", "'gauss' is not one of"),
        ("{min: 1, max: 2}", "has no 'distribution'"),
        ("{distribution: uniform, min: 9, max: 2}", "min 9 is above max 2"),
        ("{distribution: uniform, min: 1, max: 2, mean: 1}", "unknown key"),
        ("{distribution: lognormal, median: 100, p95: 100, max: 9}", "not below"),
        ("{distribution: lognormal, median: 100, p95: 200}", "max' is missing"),
        ("{distribution: lognormal, median: .nan, p95: 200, max: 9}", "finite"),
        ("{distribution: lognormal, median: 10, p95: 11, min: 5000, max: 6000}", "nothing of this"),
        ("{distribution: empirical, values: []}", "at least 1"),
        ("{distribution: empirical, values: [0]}", "1"),
        ("{distribution: empirical, values: [4], max: 3}", "no value"),
        ("{distribution: empirical, values: [4, 5], weights: [1]}", "2 values have 1 weights"),
        ("{distribution: empirical, values: [4], weights: [0]}", "no value"),
    ],
)
def test_a_length_that_is_none_is_refused_with_its_line(
    tmp_path: Path, written: str, said: str
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"name: w\noutput_tokens: 4\nprompt_tokens: {written}\n")
    with pytest.raises(RecipeError) as error:
        load_spec(path, Workload)
    assert said in str(error.value)
    assert error.value.where == f"{path}:3"
    assert error.value.fix or "finite" in said


def test_what_is_written_back_reads_the_same() -> None:
    for value in (
        7,
        {"distribution": "empirical", "values": [3, 4]},
        {"distribution": "lognormal", "median": 3, "p95": 9, "max": 20},
    ):
        length = _READ.validate_python(value)
        dumped: Any = yaml.safe_load(yaml.safe_dump(length.model_dump(mode="json")))
        assert _READ.validate_python(dumped) == length
