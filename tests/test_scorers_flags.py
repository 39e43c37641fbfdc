# ruff: noqa: RUF001

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring import HOSTILE

from workbench.scorers import flags_of
from workbench.scorers.flags import _z, is_repetitive

CIRCLES = (
    "!" * 200,
    "the the the the the the the the the the the the the the",
    "It is good. " * 12,
    "Paris is the capital. " + "I am a model. " * 8 + "I am a mo",
    "答案是北京。" * 10,
    "我不知道我不知道我不知道我不知道我不知道我不知道",
    "哈" * 40,
    "A B\nC D\n" * 20,
    "First a thing. " + ("A long paragraph with many words, " * 5 + "end.\n\n") * 4,
    "\n" * 3 + "x" + "\n" * 100,
    "0" * 100,
    "".join(f"{i}. This sentence comes again and again\n" for i in range(10)),
    '{"a": [' + "1, " * 100,
    "<|im_end|>" * 30,
)
NO_CIRCLES = (
    "",
    "42",
    "no no no no",
    "Ha ha ha ha ha!",
    "yes, yes, yes, yes, yes",
    "\u54c8\u54c8\u54c8\u54c8",
    "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n21\n22\n23\n24",
    json.dumps({"zeros": [0] * 60}),
    json.dumps([{"id": i, "active": True, "name": f"n{i}"} for i in range(40)], indent=1),
    "| a | b |\n|---|---|\n" + "\n".join(f"| {i} | {i * i} |" for i in range(30)),
    "- apples\n- pears\n- plums\n- figs\n- dates\n- limes\n- kiwis\n- grapes\n",
    "SELECT a, b FROM t WHERE a = 1 OR a = 2 OR a = 3 OR a = 4 OR a = 5 OR a = 6",
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
    "一、苹果\n二、梨\n三、桃\n四、李\n五、杏\n六、枣\n七、柿子\n八、葡萄\n九、香蕉",
    "".join(
        f"The next item is ready.\nItem {i}: {'xyzw'[i % 4] * 9} {i**9} of {i**7}\n"
        for i in range(6)
    ),
    "Title\n" + "=" * 20 + "\nText that follows the rule.\n" + "-" * 40,
    "The quick brown fox jumps over the lazy dog. Then it sleeps. Then it eats. Then it runs.",
)


@pytest.mark.parametrize("text", CIRCLES)
def test_circles(text: str) -> None:
    assert is_repetitive(text)


@pytest.mark.parametrize("text", NO_CIRCLES)
def test_no_circles(text: str) -> None:
    assert not is_repetitive(text)


@given(st.text(min_size=1, max_size=40), st.text(max_size=200))
def test_a_piece_often_enough_at_the_end_is_found(piece: str, before: str) -> None:
    assert is_repetitive(before + piece * max(4, 48 // len(piece) + 1))


@given(st.text(max_size=23))
def test_a_short_answer_is_never_repetitive(text: str) -> None:
    assert not is_repetitive(text)


@given(st.text("ab", max_size=30))
def test_z_function(text: str) -> None:
    for i, found in enumerate(_z(text)[1:], 1):
        agrees = [text[k] == text[i + k] for k in range(len(text) - i)]
        assert found == (agrees.index(False) if False in agrees else len(agrees))


def test_flags() -> None:
    assert flags_of(" \n", "stop") == ("empty",)
    assert flags_of("", "length") == ("empty", "truncated")
    assert flags_of("an answer", "length") == ("truncated",)
    assert flags_of("an answer", "stop") == flags_of("an answer", None) == ()
    assert flags_of("so " * 100, "length") == ("truncated", "repetitive")


@pytest.mark.parametrize("output", HOSTILE)
def test_no_output_stops_it(output: str) -> None:
    assert flags_of(output, None) == flags_of(output, None)
