"""The regex scorer, and the matcher under it compared with `re`."""

import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scoring import complaint, graded, suite_of

from workbench.scorers.linear import Pattern, _parser

ITEMS = (
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\s",
    "^",
    "$",
    r"\b",
    "(?:a|ab)",
    "(b|)",
    "c",
)
REPEATS = ("", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?")


@st.composite
def patterns(draw: st.DrawFn, depth: int = 1) -> str:
    """Not deeper, and texts not longer: `re`, which judges, would take for ever on some."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        if depth and draw(st.booleans()):
            item = draw(st.sampled_from(("({})", "(?:{})", "(?i:{})"))).format(
                draw(patterns(depth - 1))
            )
        else:
            item = draw(st.sampled_from(ITEMS))
        # What can match nothing is not repeated: there the two may differ, as `linear` says.
        least = _parser.parse(item).getwidth()[0]
        parts.append(item + draw(st.sampled_from(REPEATS)) if least else item)
    last = draw(st.sampled_from(("", *ITEMS)))
    return "".join(parts) + (f"|{last}" if last else "")


@settings(max_examples=400, deadline=None)
@given(patterns(), st.text("abBc1 \n", max_size=8), st.sampled_from((0, re.I, re.M, re.S)))
def test_it_finds_what_re_finds(pattern: str, text: str, flags: int) -> None:
    wanted = [match.span() for match in re.finditer(pattern, text, flags)]
    # After an empty match `re` may find one that is not empty at the same place; a scorer reads
    # neither the one nor the other there.
    assume(all(end > start for start, end in wanted))
    found = list(Pattern(pattern, re.RegexFlag(flags)).matches(text))
    assert [(match.start, match.end) for match in found] == wanted


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from((r"(a+?)(b*)", r"x?(a|ab)(c|bcd)?", r"=\s*(.*?)\s*$", r"(\d+)[a-c]*(\d)?")),
    st.text("ab cd=12", max_size=14),
)
def test_it_reads_the_group_re_reads(pattern: str, text: str) -> None:
    said = [match.group(1) for match in re.finditer(pattern, text)]
    wanted = [text for text in said if text and text.strip()]
    assert Pattern(pattern, re.NOFLAG).last(text) == (wanted[-1] if wanted else None)


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


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20).filter(str.strip))
def test_a_target_is_right(target: str) -> None:
    assert graded(suite_of("regex"), re.escape(target), target).score == 1.0
    suite = suite_of({"name": "regex", "pattern": r"(?s)\A(.*)\Z"})
    assert graded(suite, target, target).score == 1.0


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "missing )"),
        (r"(a)\1", "'groupref' is not supported"),
        ("a(?=b)", "'assert' is not supported"),
        ("(?<!a)b", "'assert not' is not supported"),
        ("a*+b", "'possessive repeat' is not supported"),
        ("(?:(?:a{1,100}){1,100}){1,100}", "too large"),
        ("a{99999999999}", ""),
    ],
)
def test_check_of_a_pattern(pattern: str, said: str) -> None:
    found = complaint(suite_of({"name": "regex", "pattern": pattern}), "x")
    assert "'scorer.pattern' cannot be used" in found and said in found
    assert "'target' cannot be used" in complaint(suite_of("regex"), pattern)


def test_check_of_a_target() -> None:
    assert "nothing to compare" in complaint(suite_of("regex"), " ")
    assert "not a number" in complaint(suite_of("regex"), 3)
    assert complaint(suite_of({"name": "regex", "pattern": "x"}), "(") == ""
