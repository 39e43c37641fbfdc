import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.scorers import check_target, grade, normalize
from workbench.spec import Sample, SuiteSpec
from workbench.suites import Suite


def spec(scorer: str) -> SuiteSpec:
    return SuiteSpec.model_validate(
        {
            "schema": "workbench.suite/1",
            "name": "s",
            "description": "d",
            "ask": "rank_choices" if scorer == "choice" else "generate",
            "prompt": "{text}",
            "chat_template": False,
            "scorer": scorer,
        }
    )


def suite(scorer: str) -> Suite:
    return Suite(spec(scorer), (), "", Path())


def sample(target: Any, **fields: Any) -> Sample:
    return Sample.model_validate({"id": "a", "target": target, **fields})


def scored(scorer: str, target: Any, output: str) -> float:
    return grade(suite(scorer), sample(target), output).score


SCORERS = ("choice", "contains", "exact", "normalized", "json_fields")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(max_size=8), json_values, min_size=1, max_size=5)


@given(st.sampled_from(("contains", "exact", "normalized")), st.text())
def test_a_text_scorer_gives_0_or_1_whatever_is_said(scorer: str, output: str) -> None:
    assert scored(scorer, ["Paris", "Lutetia"], output) in (0.0, 1.0)


@given(json_objects, st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_json_fields_takes_any_output(target: dict[str, Any], output: str) -> None:
    assert 0.0 <= scored("json_fields", target, output) <= 1.0


@given(json_objects)
def test_json_fields_of_the_target_itself_is_1(target: dict[str, Any]) -> None:
    assert scored("json_fields", target, json.dumps(target)) == 1.0
    assert scored("json_fields", target, f"\n  {json.dumps(target, indent=3)}\n") == 1.0


@given(json_objects, st.data())
def test_json_fields_loses_exactly_the_fields_that_are_missing(
    target: dict[str, Any], data: st.DataObject
) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(target))))
    output = json.dumps({name: value for name, value in target.items() if name in kept})
    assert scored("json_fields", target, output) == len(kept) / len(target)


@pytest.mark.parametrize(
    ("wanted", "said", "right"),
    [
        (1, "1", True),
        (1, "1.0", True),
        (1, "true", False),
        (True, "1", False),
        (True, "true", True),
        (False, "0", False),
        (12, '"12"', False),
        ("Leeds", '"leeds."', True),
        ("Leeds", '"Leeds, UK"', False),
        (None, "null", True),
        (None, '""', False),
        ([1, "a"], '[1, "A"]', True),
        ([1, 2], "[2, 1]", False),
        ([1, 2], "[1, 2, 3]", False),
        ({"a": 1}, '{"a": 1}', True),
        ({"a": 1}, '{"a": 1, "b": 2}', False),
        (3, "NaN", False),
        (3, "1e999", False),
    ],
)
def test_how_one_field_is_compared(wanted: Any, said: str, right: bool) -> None:
    assert scored("json_fields", {"f": wanted}, f'{{"f": {said}}}') == float(right)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "null",
        "[]",
        '"f"',
        "{",
        '{"f": 1} and more',
        '```json\n{"f": 1}\n```',
        "[" * 200_000,
        f'{{"f": {"1" * 6000}}}',
        '{"f": 1, "g": NaN}',
    ],
)
def test_what_is_not_a_json_object_scores_0(output: str) -> None:
    assert scored("json_fields", {"f": 1}, output) == 0.0


def test_two_of_four_fields_are_a_half() -> None:
    target = {"product": "lamps", "quantity": 3, "city": "Leeds", "urgent": True}
    output = '{"product": "Lamps", "quantity": 4, "city": "Leeds", "urgent": false}'
    assert scored("json_fields", target, output) == 0.5


@given(st.text())
def test_normalize_twice_is_normalize_once(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=60))
def test_normalize_folds_case(text: str) -> None:
    assert normalize(text.upper()) == normalize(text.lower())


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("  The  Sun! ", "sun"),
        ("Zürich", "zurich"),
        ("\uff11\uff12", "12"),
        ("1,000 grams", "1000 grams"),
        ("1,2 and 3", "1 2 and 3"),
        ("3.14.", "3.14"),
        ("-5 degrees", "-5 degrees"),
        ("2-5", "2 5"),
        ("twenty-four", "twenty four"),
        ("H₂O", "h2o"),
        ("?!", ""),
        ("an", ""),
        ("\x1b[31mred\x1b[0m", "31mred 0m"),
    ],
)
def test_normalize(text: str, folded: str) -> None:
    assert normalize(text) == folded


@pytest.mark.parametrize(
    ("target", "output", "right"),
    [
        ("Paris", "The capital of France is Paris.", True),
        ("Au", "Australia has gold.", False),
        ("Au", "Its symbol is Au!", True),
        ("0", "It boils at 100 degrees.", False),
        ("0", "It freezes at 0°C.", True),
        ("0", "At 0 °C.", True),
        ("5", "It is 3.5 metres.", False),
        ("5", "It is -5 degrees.", False),
        ("carbon dioxide", "They take in Carbon\nDioxide gas.", True),
        ("carbon dioxide", "They take in carbon and dioxide.", False),
        (["seven", "7"], "There are 7 days.", True),
        (["seven", "7"], "There are 70 days.", False),
        ("北京", "中国的首都是北京。", True),
        ("北京", "中国的首都是南京。", False),
        ("au", "au-pair", True),
        ("ana", "banana ana", True),
    ],
)
def test_contains_looks_for_whole_words(target: Any, output: str, right: bool) -> None:
    assert scored("contains", target, output) == float(right)


@given(st.text(alphabet="abc ä1", max_size=12), st.text(max_size=20), st.text(max_size=20))
def test_contains_finds_a_target_between_spaces(target: str, before: str, after: str) -> None:
    if normalize(target):
        # Combining marks at the start of `after` would join the space, not the target.
        assert scored("contains", target, f"{before} | {target} | {after}") == 1.0


@given(st.text(max_size=30).filter(str.strip))
def test_right_under_exact_is_right_under_normalized_and_contains(text: str) -> None:
    assert scored("exact", text, f" {text}\n") == 1.0
    if normalize(text):
        assert scored("normalized", text, text) == 1.0
        assert scored("contains", text, text) == 1.0


def test_exact_minds_case_and_normalized_does_not() -> None:
    assert scored("exact", "Paris", "paris") == 0.0
    assert scored("normalized", "Paris", "paris!") == 1.0
    assert scored("normalized", "Paris", "It is Paris") == 0.0


def test_choice_is_literal() -> None:
    assert scored("choice", " yes", " yes") == 1.0
    assert scored("choice", " yes", "yes") == 0.0


@pytest.mark.parametrize("scorer", ["contains", "exact", "normalized", "json_fields"])
def test_a_megabyte_of_output_is_scored_in_time(scorer: str) -> None:
    target: Any = {"a": 1} if scorer == "json_fields" else "needle"
    assert scored(scorer, target, "needles and\x00 \ud800 \x1b[2J " * 40_000) == 0.0


@pytest.mark.parametrize(
    ("scorer", "target", "said"),
    [
        ("contains", 3, "must be a text or a list of texts, not a number"),
        ("contains", ["a b", 3], "must be a text or a list of texts, not a list"),
        ("contains", [], "not an empty list"),
        ("exact", None, "not null"),
        ("exact", " ", "nothing to compare with in ' '"),
        ("contains", ["Paris", "?!"], "nothing to compare with in '?!'"),
        ("normalized", "the", "nothing to compare with in 'the'"),
        ("json_fields", "x", "must be an object with fields, not a text"),
        ("json_fields", {}, "not an empty object"),
        ("json_fields", [1], "not a list"),
        ("json_fields", True, "not true or false"),
    ],
)
def test_check_target_says_what_is_wrong(scorer: str, target: Any, said: str) -> None:
    assert said in (check_target(suite(scorer), sample(target)) or "")


@pytest.mark.parametrize(
    ("target", "choices", "said"),
    [
        ("a", None, "at least two"),
        ("a", [], "at least two"),
        ("a", ["a"], "at least two"),
        ("a", ["a", ""], "empty text"),
        ("a", ["a", "b", "a"], "lists 'a' twice"),
        ("c", ["a", "b"], "'target' 'c' is not one of"),
        (1, ["a", "b"], "'target' 1 is not one of"),
    ],
)
def test_check_target_of_choices(target: Any, choices: list[str] | None, said: str) -> None:
    assert said in (check_target(suite("choice"), sample(target, choices=choices)) or "")


def test_check_target_accepts_what_can_be_scored() -> None:
    assert check_target(suite("choice"), sample("a", choices=["a", "b"])) is None
    assert check_target(suite("contains"), sample(["a1", "b"])) is None
    assert check_target(suite("exact"), sample("!")) is None
    assert check_target(suite("json_fields"), sample({"a": None})) is None
