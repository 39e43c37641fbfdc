import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring import complaint, graded, suite_of

from workbench.scorers.number import numbers


def read(text: str) -> list[float]:
    return [number.value for number in numbers(text, {})]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It is 42.", [42]),
        ("1,234,567.5 people", [1234567.5]),
        ("12,34", [12, 34]),
        ("[1,2,3]", [1, 2, 3]),
        ("1\u202f000\u00a0000 and 2", [1_000_000, 2]),
        ("-5, \u22125, \uff0d5", [-5, -5, -5]),
        ("\u7b54\u6848\u662f-5", [-5]),
        ("from 2-5", [2, 5]),
        ("COVID-19 has 3", [19, 3]),
        ("B12, H2O and v2", []),
        (".5 or 0.5", [0.5, 0.5]),
        ("1.5e3, 2E-2", [1500, 0.02]),
        ("1e5000 is no number to compare", []),
        ("3\uff0e14\uff05", [3.14]),
        ("\uff11\uff12\uff13", [123]),
        ("\u0663\u0664", [34]),
        ("50 %", [50]),
        ("$1,000.", [1000]),
        ("3.5 million", [3_500_000]),
        ("2 Billion", [2e9]),
        ("12\u4e07\u4eba", [120_000]),
        ("3\u4ebf", [3e8]),
        ("- 5 apples", [5]),
        ("x\u00b2 + m\u00b2", []),
        ("\u8d1f12\u5ea6", [-12]),
        ("\u4e09\u767e\u4e8c\u5341", [320]),
        ("\u5341\u4e8c", [12]),
        ("\u4e24\u5343\u96f6\u4e94", [2005]),
        ("\u4e00\u4ebf\u4e8c\u5343\u4e07", [120_000_000]),
        ("\u4e8c\u3007\u4e8c\u516d", [2026]),
        ("\u4e24\u4e07\u4ebf", [2e12]),
        ("\u4e09\u70b9\u4e00\u56db", [3.14]),
        ("\u8d1f\u4e94", [-5]),
        ("\u7b54\u6848\u662f5\uff0c\u8fd9\u662f\u4e00\u4e2a\u6570", [5]),
        ("none at all", []),
    ],
)
def test_what_is_read_as_a_number(text: str, values: list[float]) -> None:
    assert read(text) == pytest.approx(values)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(("{}", "{:e}", "{:,}")))
def test_a_number_that_was_written_is_read(value: float, form: str) -> None:
    written = form.format(value)
    expected = float(written.replace(",", ""))
    assert read(f"The answer is {written}.") == [expected]
    assert graded(suite_of("numeric"), expected, f"so {written}").score == 1.0


@pytest.mark.parametrize(
    ("options", "target", "output", "right"),
    [
        ({}, 42, "41 + 1 = 42", True),
        ({"which": "first"}, 42, "42, as 41 + 1", True),
        ({"which": "first"}, 42, "41 + 1 = 42", False),
        ({}, 0.3, "0.30000000000000004", True),
        ({}, 100, "100.0001", False),
        ({"absolute": 0.5}, 100, "100.5", True),
        ({"absolute": 0.5}, 100, "100.6", False),
        ({"relative": 0.01}, -200, "-202", True),
        ({"relative": 0.01}, -200, "-203", False),
        ({"units": {"kg": 1, "g": 0.001}}, "3.5 kg", "3500 g", True),
        ({"units": {"kg": 1, "g": 0.001}}, "3.5 kg", "3,500g.", True),
        ({"units": {"kg": 1, "g": 0.001}}, "3.5 kg", "3.5", True),
        ({"units": {"kg": 1, "g": 0.001}}, "3500 g", "3500", True),
        ({"units": {"kg": 1, "g": 0.001}}, "3.5 kg", "3500", False),
        ({"units": {"kg": 1, "g": 0.001}}, "3.5 kg", "3.5 KG", True),
        ({"units": {"kg": 1, "g": 0.001}}, "3.5 kg", "3.5-kg", True),
        ({"units": {"m": 1, "min": 60}}, "2 min", "2 min", True),
        ({"units": {"m": 1}}, 3, "3 metres", True),
        ({"units": {"MB": 1e6, "Mb": 1.25e5}}, "8 Mb", "1 MB", True),
        ({"units": {"MB": 1e6, "Mb": 1.25e5}}, "8 Mb", "8 mb", True),
        ({"units": {"公里": 1000, "米": 1}}, "2公里", "共有 2000 米。", True),
        ({"units": {"公里": 1000}}, "三万公里", "3万公里", True),
        ({"units": {"%": 0.01}}, 0.5, "50%", True),
        ({}, "50%", "50", False),
        ({"units": {"kg": 1, "g": 0.001}, "absolute": 100}, "3500 g", "3.6 kg", True),
        ({"units": {"kg": 1, "g": 0.001}, "absolute": 100}, "3500 g", "3.7 kg", False),
    ],
)  # fmt: skip
def test_tolerance_and_units(
    options: dict[str, Any], target: Any, output: str, right: bool
) -> None:
    suite = suite_of({"name": "numeric", **options})
    if target != "50%":
        assert complaint(suite, target) == ""
        assert graded(suite, target, output).score == float(right)
    else:
        assert "more than a number and a unit" in complaint(suite, target)


def test_no_number_is_unreadable() -> None:
    found = graded(suite_of("numeric"), 3, "I do not know.")
    assert (found.score, found.flags) == (0.0, ("unreadable",))
    assert graded(suite_of("numeric"), 3, "4").flags == ()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (None, "not null"),
        (True, "not true or false"),
        (math.inf, "too large"),
        (10**400, "too large"),
        ("x", "has 0"),
        ("3 or 4", "has 2"),
        ("3 stones", "more than a number and a unit of the scorer (kg)"),
    ],
)
def test_check_of_a_target(target: Any, said: str) -> None:
    assert said in complaint(suite_of({"name": "numeric", "units": {"kg": 1}}), target)


def test_check_of_units() -> None:
    assert "factor above 0" in complaint(suite_of({"name": "numeric", "units": {"kg": 0}}), 3)
