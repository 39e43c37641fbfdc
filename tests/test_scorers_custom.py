"""A scorer of the user's own, from a file of the suite and from a module."""

from pathlib import Path
from typing import Any

import pytest
from scoring import complaint, graded, sample, suite_of
from suite_folders import GENERATE, SAMPLE, write

from workbench.errors import SuiteError
from workbench.scorers import grade
from workbench.scorers.custom import module_source
from workbench.suites import load_suite

SOURCE = """\
from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Seen:
    text: str


def score(sample, output):
    seen = Seen(output)
    if seen.text == "boom":
        raise KeyError("no such thing")
    if seen.text == "exit":
        raise SystemExit(3)
    if seen.text == "deep":
        return deep(output)
    return {"nan": float("nan"), "two": 2, "none": None, "text": "1", "yes": True}.get(
        seen.text, float(sample["target"] in seen.text and sample["more"])
    )


def deep(output):
    return 1 / 0


NOT_CALLABLE = 3
"""


def suite(function: str = "own.py:score", source: str = SOURCE) -> Any:
    return suite_of(
        {"name": "python", "function": function}, resources={"own.py": source, "sub/x.py": source}
    )


def test_it_is_called_with_the_sample_and_the_output() -> None:
    assert complaint(suite(), "x") == ""
    assert grade(suite(), sample("x", more=True), "an x").score == 1.0
    assert grade(suite(), sample("x", more=False), "an x").score == 0.0
    assert grade(suite("sub/x.py:score"), sample("x", more=True), "y").score == 0.0
    assert graded(suite(), "x", "yes").score == 1.0


@pytest.mark.parametrize(
    ("output", "what", "line"),
    [
        ("boom", "raised KeyError: 'no such thing'", 14),
        ("exit", "raised SystemExit: 3", 16),
        ("deep", "raised ZeroDivisionError", 25),
        ("nan", "gave nan", 11),
        ("two", "gave 2", 11),
        ("none", "gave null", 11),
        ("text", "gave a text", 11),
    ],
)
def test_what_it_does_wrong_names_its_line_and_the_sample(
    output: str, what: str, line: int
) -> None:
    with pytest.raises(SuiteError) as caught:
        grade(suite(), sample("x", more=True), output)
    assert what in caught.value.what and "sample 'a'" in caught.value.what
    assert caught.value.where == str(Path("suites/s/own.py")) + f":{line}"


@pytest.mark.parametrize(
    ("function", "source", "said"),
    [
        ("none.py:score", SOURCE, "there is no none.py beside suite.yaml"),
        ("own.py:missing", SOURCE, "own.py has no function 'missing'"),
        ("own.py:NOT_CALLABLE", SOURCE, "own.py has no function"),
        ("own.py:score", "def score(:\n", "not Python"),
        ("own.py:score", "x = 1\nraise ValueError('at import')\n", "own.py:2"),
        ("own.py:score", "raise ValueError('one\\ntwo')\n", "ValueError: one two\nmend"),
        ("own.py:score", "\x00", "own.py:1"),
        ("no_such_module_at_all:f", "", "cannot be imported: ModuleNotFoundError"),
        ("math:no_such", "", "math has no function 'no_such'"),
        ("a/b:f", "", "neither a module nor a file"),
    ],
)
def test_check_before_it_is_called(function: str, source: str, said: str) -> None:
    assert said in complaint(suite(function, source), "x")


@pytest.mark.parametrize(
    "takes",
    ["sample, output, /", "s, o, more=1", "*both", "sample: Missing, output: 1 / 0"],
)
def test_a_function_that_can_be_called_is_taken(takes: str) -> None:
    source = f"from __future__ import annotations\n\n\ndef score({takes}):\n    return 1\n"
    assert complaint(suite(source=source), "x") == ""


@pytest.mark.parametrize("takes", ["", "output", "sample, output, target", "*, sample, output"])
def test_a_function_that_cannot_be_called_is_refused_with_what_it_must_be(
    takes: str, tmp_path: Path
) -> None:
    scorer = {"name": "python", "function": "own.py:score"}
    folder = write(tmp_path / "mine", GENERATE | {"scorer": scorer}, SAMPLE)
    (folder / "own.py").write_text(f"import math\n\n\ndef score({takes}):\n    return 1\n")
    with pytest.raises(SuiteError, match=r"cannot be called with \(sample, output\): ") as caught:
        load_suite(folder)
    assert caught.value.where == f"{folder / 'own.py'}:4"
    assert "def score(sample: dict, output: str) -> float" in caught.value.fix


@pytest.mark.parametrize(
    ("source", "line"), [("x = 1\nraise ValueError('at import')\n", 2), ("\n\ndef score(:\n", 3)]
)
def test_what_is_wrong_in_the_file_is_told_at_its_line(
    source: str, line: int, tmp_path: Path
) -> None:
    scorer = {"name": "python", "function": "own.py:score"}
    folder = write(tmp_path / "mine", GENERATE | {"scorer": scorer}, SAMPLE)
    (folder / "own.py").write_text(source)
    with pytest.raises(SuiteError) as caught:
        load_suite(folder)
    assert caught.value.where == f"{folder / 'own.py'}:{line}"
    assert caught.value.fix == "mend that line"
    (folder / "own.py").write_text("def other(sample, output): return 1\n")
    with pytest.raises(SuiteError, match="no function 'score'") as caught:
        load_suite(folder)
    assert "suite.yaml:" in caught.value.where


def test_a_function_of_a_module() -> None:
    assert complaint(suite("operator:contains"), "x") == ""
    found = grade(suite("operator:contains"), sample("x"), "target")
    assert found.score == 1.0  # the sample, a dict, has that key
    with pytest.raises(SuiteError, match="raised TypeError"):
        grade(suite("math:sqrt"), sample("x"), "")


def test_its_own_future_is_not_ours() -> None:
    source = "def score(sample, output: 2 - 1):\n    return score.__annotations__['output']\n"
    assert graded(suite(source=source), "x", "").score == 1.0


def test_the_text_counts_and_not_the_file() -> None:
    first = suite(source="def score(sample, output): return 0.25\n")
    second = suite(source="def score(sample, output): return 0.75\n")
    assert [graded(s, "x", "").score for s in (first, second, first)] == [0.25, 0.75, 0.25]


def test_a_number_of_numpy_is_one_and_an_endless_one_is_not() -> None:
    source = "import numpy\ndef score(sample, output):\n    return numpy.float32(0.5)\n"
    assert grade(suite(source=source), sample("x"), "x").score == 0.5
    endless = "def score(sample, output):\n    return 10 ** 5000\n"
    with pytest.raises(SuiteError, match="gave inf"):
        grade(suite(source=endless), sample("x"), "x")


def test_the_source_of_a_module_counts() -> None:
    (text,) = module_source(suite("workbench.digest:sha256_text")).values()
    assert "def sha256_text" in text
    assert module_source(suite()) == {}
