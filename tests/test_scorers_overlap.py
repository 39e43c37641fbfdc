"""ROUGE and chrF: known answers are those of rouge-score 0.1.2 and sacreBLEU 2.6.0."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring import complaint, graded, suite_of

from workbench.scorers.overlap import chrf, lcs_length, rouge_l, rouge_n, words

CAT = ("The cat sat on the mat.", "The cat is on the mat.")
POLICE = ("police kill the gunman", "police killed the gunman")


@pytest.mark.parametrize(
    ("said", "wanted", "one", "two", "longest"),
    [
        (*CAT, 0.8333333333333334, 0.6, 0.8333333333333334),
        (*POLICE, 0.75, 0.3333333333333333, 0.75),
        ("the gunman kill police", POLICE[1], 0.75, 1 / 3, 0.5),  # Lin 2004, section 3.1
        ("", "a b", 0.0, 0.0, 0.0),
        ("don't under_score", "don t under score", 1.0, 1.0, 1.0),
        ("猫坐在垫子上", "猫在垫子上", 10 / 11, 6 / 9, 10 / 11),
    ],
)  # fmt: skip
def test_rouge(said: str, wanted: str, one: float, two: float, longest: float) -> None:
    a, b = words(said), words(wanted)
    found = (rouge_n(a, b, 1).f, rouge_n(a, b, 2).f, rouge_l(a, b).f)
    assert found == pytest.approx((one, two, longest), abs=1e-12)
    for variant, f in zip(("rouge1", "rouge2", "rougeL"), found, strict=True):
        suite = suite_of({"name": "rouge", "variant": variant})
        assert graded(suite, ["zebra", wanted], said).score == f


@pytest.mark.parametrize(
    ("said", "wanted", "percent"),
    [
        (*CAT, 67.17273492330233),
        (*POLICE, 76.24037649780017),
        ("abc", "abd", 38.888888888888886),
        ("猫坐在垫子上。", "那只猫在垫子上。", 42.589553303839025),
        ("a b c", "abc", 100.0),
        ("", "abc", 0.0),
    ],
)  # fmt: skip
def test_chrf(said: str, wanted: str, percent: float) -> None:
    assert 100 * chrf(said, wanted).f == pytest.approx(percent, abs=1e-9)
    assert graded(suite_of("similarity"), ["zzz", wanted], said).score == chrf(said, wanted).f


def test_words_of_scripts_without_spaces() -> None:
    assert words("GPT-4\u5f88\u597d! \u3042\u308a\u304c\u3068 caf\u00e9 x_y 3.5") == [
        *("gpt", "4", "\u5f88", "\u597d", "\u3042", "\u308a", "\u304c", "\u3068"),
        *("caf\u00e9", "x", "y", "3", "5"),
    ]


@given(st.text(max_size=60), st.text(min_size=1, max_size=60))
def test_overlap_properties(said: str, wanted: str) -> None:
    a, b = words(said), words(wanted)
    for found, back in (
        *((rouge_n(a, b, n), rouge_n(b, a, n)) for n in (1, 2)),
        (rouge_l(a, b), rouge_l(b, a)),
        (chrf(said, wanted), chrf(wanted, said)),
    ):
        assert 0 <= found.f <= 1 and 0 <= found.precision <= 1 and 0 <= found.recall <= 1
        assert (found.precision, found.recall) == pytest.approx((back.recall, back.precision))
    assert rouge_l(a, b).f <= rouge_n(a, b, 1).f + 1e-12


@given(st.text(min_size=1, max_size=60))
def test_the_target_itself_is_right(text: str) -> None:
    if text.split():
        assert graded(suite_of("similarity"), text, text).score == pytest.approx(1.0)
    if words(text):
        assert graded(suite_of("rouge"), text, text).score == 1.0


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_lcs_is_the_longest_by_trying_all(a: list[str], b: list[str]) -> None:
    kept = {c for n in range(len(b) + 1) for c in combinations(b, n)}
    wanted = max(n for n in range(len(a) + 1) for c in combinations(a, n) if c in kept)
    assert lcs_length(a, b) == wanted


def test_check_of_a_target() -> None:
    two = suite_of({"name": "rouge", "variant": "rouge2"})
    assert "nothing to compare" in complaint(two, "one")
    assert complaint(two, "two words") == ""
    assert "nothing to compare" in complaint(suite_of("rouge"), ["a", "?!"])
    assert complaint(suite_of("similarity"), "?!") == ""
    assert "not a number" in complaint(suite_of("similarity"), 3)
    assert "an empty list" in complaint(suite_of("similarity"), [])
