"""The regex scorer, and what RE2 makes of a pattern beside what `re` makes of it."""

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring import complaint, graded, sample, suite_of
from suite_folders import GENERATE, write

from workbench.errors import SuiteError
from workbench.scorers import grade
from workbench.scorers.pattern import _compiled
from workbench.suites import load_suite

#: Each takes a character. A repeat of what may take none means one thing to RE2 and another to
#: `re`, whose answer differs between its own versions; RE2's is what counts.
ITEMS = ("a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "(?:a|ab)", "(b|1)", "c")
PLACES = ("^", r"\b", r"\A")
REPEATS = ("", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?")


@st.composite
def patterns(draw: st.DrawFn, depth: int = 2) -> str:
    parts = [draw(st.sampled_from(ITEMS))]
    for _ in range(draw(st.integers(0, 3))):
        if depth and draw(st.booleans()):
            kind = draw(st.sampled_from(("({})", "(?:{})", "(?i:{})")))
            parts.append(kind.format(draw(patterns(depth - 1))))
        elif draw(st.integers(0, 4)):
            parts.append(draw(st.sampled_from(ITEMS)) + draw(st.sampled_from(REPEATS)))
        else:
            parts.append(draw(st.sampled_from(PLACES)))
    last = draw(st.sampled_from(("", *ITEMS)))
    return "".join(parts) + (f"|{last}" if last else "")


@settings(max_examples=600)
@given(patterns(), st.text("abBc1 \n", max_size=12), st.booleans())
def test_it_finds_what_re_finds(pattern: str, text: str, ignore_case: bool) -> None:
    flags = re.ASCII | (re.IGNORECASE if ignore_case else re.NOFLAG)
    said = [match.group(1 if match.re.groups else 0) for match in re.finditer(pattern, text, flags)]
    wanted = [text for text in said if text and text.strip()]
    found = _compiled(pattern, ignore_case)
    assert found.last(text) == (wanted[-1] if wanted else None)
    assert found.found_in(text) == bool(said)


@pytest.mark.parametrize(
    ("pattern", "output"),
    [
        ("(a+)+b", "a" * 10_000),
        ("(a|a)*b", "a" * 10_000),
        ("(.*)*x", "ab" * 5_000),
        (".*.*.*.*=.*", " " * 10_000),
        (r"answer:?\s*(.*?)\s*$", "answer" + " \n" * 5_000),
        ("(?:a?){500}a{500}", "a" * 499),
        (r"(\w+\s?)*!", "word " * 2_000),
    ],
)
def test_a_pattern_that_would_hang_re_does_not(pattern: str, output: str) -> None:
    found = graded(suite_of({"name": "regex", "pattern": pattern}), "x", output)
    assert found.score == 0.0 and found.flags == ("unreadable",)


def test_a_search_that_begins_again_too_often_is_given_up() -> None:
    # Each search is linear, and its automaton too large to be kept; there would be 5,000.
    pattern = r"[xab]*a[xab]{600}c|(x)"
    output = "".join(f"x{random.Random(n).choice('ab')}" for n in range(5_000))
    begun = time.process_time()
    found = grade(suite_of({"name": "regex", "pattern": pattern}), sample("x"), output)
    assert found.flags == ("unreadable",) and "too many steps" in found.details["why"]
    assert time.process_time() - begun < 60
    # A short pattern may begin again at every character.
    assert graded(suite_of({"name": "regex", "pattern": r"\d"}), "7", "17" * 5_000).score == 1.0


@pytest.mark.parametrize(
    ("pattern", "target", "output", "score"),
    [
        (r"answer:\s*(.+)", "Paris", "Answer: Rome\nno, answer: Paris.", 1.0),
        (r"answer:\s*(.+)", "Rome", "Answer: Rome\nno, answer: Paris.", 0.0),
        (r"\d+", ["7", "8"], "first 6, then 8", 1.0),
        (r"\[([A-D])\]", "b", "[A] or [B]", 1.0),
        (r"(x)?\d", "x", "x1 then 2", 1.0),
        (r"\d*", "12", "12 and no more", 1.0),
        (r"[+*/]", "+", "1 + 1", 1.0),
        (r"答案[是为:]*\s*(\d+)", "12", "所以答案是 12。", 1.0),
        (None, "colou?r", "The COLOR", 1.0),
        (None, "^colou?r$", "The color", 0.0),
        (None, ["x", r"\bred\b"], "it is red", 1.0),
        # What differs from `re`: words and digits are ASCII's, the text's end is its end.
        (None, r"\bred\b", "它是red。", 1.0),
        (r"\d+", "7", "7 或 \uff11\uff12", 1.0),
        (r"\p{Nd}+", "12", "7 或 \uff11\uff12", 1.0),
        (r"\p{Han}+", "北京", "(北京)", 1.0),
        (r"(?m)^(\w+)$", "one", "one\ntwo three", 1.0),
        (r"^(\w+)$", "one", " one \n", 1.0),
        ("(?i)straße", "STRASSE", "STRAßE", 1.0),
        ("a.b", "a\N{REPLACEMENT CHARACTER}b", "a\ud800b", 1.0),
    ],
)
def test_what_is_read_and_compared(
    pattern: str | None, target: Any, output: str, score: float
) -> None:
    suite = suite_of({"name": "regex", "pattern": pattern})
    assert complaint(suite, target) == ""
    found = graded(suite, target, output)
    assert (found.score, found.flags) == (score, ())


def test_what_no_pattern_finds_is_unreadable_but_no_target_found_is_wrong() -> None:
    assert graded(suite_of({"name": "regex", "pattern": r"\d"}), "1", "none").flags == (
        "unreadable",
    )
    assert graded(suite_of("regex"), "1", "none").flags == ()


def test_case_counts_where_it_should() -> None:
    suite = suite_of({"name": "regex", "pattern": "a=(.)", "ignore_case": False})
    assert graded(suite, "x", "A=x").flags == ("unreadable",)


@given(st.text(min_size=1, max_size=20).filter(str.strip))
def test_a_target_is_right(target: str) -> None:
    assert graded(suite_of("regex"), re.escape(target.strip()), target).score == 1.0
    suite = suite_of({"name": "regex", "pattern": r"(?s)\A(.*)\z"})
    assert graded(suite, target, target).score == 1.0


@pytest.mark.parametrize(
    ("pattern", "said", "fix"),
    [
        ("(", "missing )", "wiki/Syntax"),
        (r"(a)\1", "a back reference", "write out what may stand there"),
        (r"(?P<n>a)(?P=n)", "a back reference", "write out what may stand there"),
        ("a(?=b)", "look-around", "match what stands around it"),
        ("(?<!a)b", "look-around", "match what stands around it"),
        ("(?>a)b", "an atomic group", "write '(?:...)'"),
        ("a*+b", "a repeat of a repeat", "one is enough"),
        (r"a\Z", r"'\Z'", r"write '$' or '\z'"),
        (r"\u4e00", "a character by code", r"\x{4e00}"),
        ("(?:(?:a{1,100}){1,100}){1,100}", "more than 1000", "repeat less often"),
        # RE2 takes these two, as they stand and not as a count.
        ("a{99999999999}", "not as a count", "repeat less often"),
        ("a{,3}", "'{,3}' as these characters", "write {0,3}"),
        ("\ud800", "half a character", "write the whole character"),
    ],
)
def test_check_of_a_pattern(pattern: str, said: str, fix: str) -> None:
    found = complaint(suite_of({"name": "regex", "pattern": pattern}), "x")
    assert "'scorer.pattern' cannot be used" in found.partition("\n")[0]
    assert said in found.partition("\n")[0] and fix in found.partition("\n")[2]
    assert "'target' cannot be used" in complaint(suite_of("regex"), pattern)


def test_a_count_that_is_escaped_is_text() -> None:
    assert graded(suite_of("regex"), r"a\{,3\}", "a{,3}").score == 1.0
    assert "not as a count" in complaint(suite_of("regex"), r"a\\{,3}")


def test_a_pattern_that_is_refused_is_told_once_with_its_line(tmp_path: Path) -> None:
    samples = [{"id": str(i), "question": "x", "target": "x"} for i in range(12)]
    scorer = {"name": "regex", "pattern": r"(?<=answer: )\w+"}
    folder = write(tmp_path / "mine", GENERATE | {"scorer": scorer}, *samples)
    with pytest.raises(SuiteError) as caught:
        load_suite(folder)
    error = caught.value
    assert "look-around" in error.what and "problems" not in error.what
    assert Path(error.where.rpartition(":")[0]).name == "suite.yaml"
    line = int(error.where.rpartition(":")[2])
    assert "pattern" in Path(error.where.rpartition(":")[0]).read_text().splitlines()[line - 1]
    assert "put what counts into a group" in error.fix


def test_a_target_that_is_refused_is_told_with_its_line(tmp_path: Path) -> None:
    samples = [
        {"id": "1", "question": "x", "target": "x"},
        {"id": "2", "question": "x", "target": "(?=x)"},
    ]
    folder = write(tmp_path / "mine", GENERATE | {"scorer": "regex"}, *samples)
    with pytest.raises(SuiteError) as caught:
        load_suite(folder)
    error = caught.value
    assert error.where.endswith("samples.jsonl:2") and "match what stands around" in error.fix


def test_check_of_a_target() -> None:
    assert "nothing to compare" in complaint(suite_of("regex"), " ")
    assert "not a number" in complaint(suite_of("regex"), 3)
    assert complaint(suite_of({"name": "regex", "pattern": "x"}), "(") == ""
