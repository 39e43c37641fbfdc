"""What a file of somebody else says is shown without control codes, and not at any length."""

import pytest

from workbench.errors import UserError
from workbench.words import MOST_SAID, listed, plain, shortened, shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain", "plain"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\rb\x9b", r"a\rb\x9b"),
        ("\u202eabc\ud800", r"\u202eabc\ud800"),
        ("價格\u3000\u00a0é😀", "價格\u3000\u00a0é😀"),
    ],
)
def test_control_codes_are_written_out(text: str, said: str) -> None:
    assert plain(text) == said


def test_long_texts_keep_both_ends_and_say_what_is_left_out() -> None:
    assert shortened("x" * 200) == "x" * 200
    said = shortened("a" * 500 + "b" * 500)
    assert said.startswith("aaa") and said.endswith("bbb") and "(800 more characters)" in said
    assert len(said) < 250 and len(shown(["x" * 500] * 9)) < 250
    assert shown("\n" * 500).startswith(r"'\n\n")


def test_long_lists_of_names_are_counted() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(10**5))).endswith("18, 19 and 99,980 more")


def test_an_error_shows_no_control_code_and_has_an_end() -> None:
    error = UserError("id '\x1b[2J'\nnext", where="a\x07", fix="\x1b]0;x")
    said = str(error)
    assert "\x1b" not in said and "\x07" not in said and "'\nnext\n" in said
    assert len(str(UserError("x" * 10**6))) < MOST_SAID + 100
