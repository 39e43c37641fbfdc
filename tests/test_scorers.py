"""The table, and the scorers of texts, choices and JSON objects."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring import HOSTILE, complaint, graded, sample, suite_of

from workbench.scorers import _SCORERS, check_scorer, grade, normalize
from workbench.suite_spec import AnyScorer


def scored(scorer: str, target: Any, output: str) -> float:
    return graded(suite_of(scorer), target, output).score


#: A suite of each scorer that asks no model, and a target it can compare with.
ALL: dict[str, tuple[Any, Any]] = {
    "exact": (suite_of("exact"), "needle"),
    "normalized": (suite_of("normalized"), ["needle", "pin"]),
    "contains": (suite_of({"name": "contains", "all": True}), ["needle", "pin"]),
    "choice": (suite_of("choice"), "needle"),
    "regex": (suite_of({"name": "regex", "pattern": r"(\w+)+\s*=\s*(.*?)*$"}), "needle"),
    "numeric": (suite_of({"name": "numeric", "units": {"kg": 1, "g": 0.001}}), "3.5 kg"),
    "json_fields": (
        suite_of("json_fields", response_schema={"properties": {"a": {"type": "integer"}}}),
        {"a": 1},
    ),
    "tool_call": (
        suite_of("tool_call", tools=({"function": {"name": "t", "parameters": {}}},)),
        [{"name": "t", "arguments": {"a": 1}}],
    ),
    "sql_result": (
        suite_of("sql_result", resources={"database.sql": "CREATE TABLE t(a); "}),
        "SELECT count(*) FROM t",
    ),
    "rouge": (suite_of("rouge"), "the needle and the pin"),
    "similarity": (suite_of("similarity"), "the needle and the pin"),
    "refusal": (suite_of("refusal"), "answer"),
    "python": (
        suite_of(
            {"name": "python", "function": "own.py:score"},
            resources={"own.py": "def score(sample, output):\n    return len(output) % 2\n"},
        ),
        None,
    ),
}


def test_every_scorer_a_suite_may_name_is_in_the_table() -> None:
    named = {kind.model_fields["name"].default for kind in AnyScorer.__origin__.__args__}  # type: ignore[attr-defined]
    assert named == _SCORERS.keys() == ALL.keys() | {"judge"}


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_output_makes_a_scorer_raise(name: str) -> None:
    suite, target = ALL[name]
    if name != "choice":
        assert complaint(suite, target) == ""
    for output in HOSTILE:
        graded(suite, target, output)


@given(st.sampled_from(sorted(ALL)), st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_a_score_is_from_0_to_1_whatever_is_said(name: str, output: str) -> None:
    suite, target = ALL[name]
    graded(suite, target, output)


def test_a_judge_is_not_asked_here() -> None:
    suite = suite_of({"name": "judge", "rubric": "be right"})
    assert complaint(suite, "x") == ""
    assert "must be a text" in complaint(suite, 3)
    with pytest.raises(ValueError, match="judge_rows"):
        grade(suite, sample("x"), "x")


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


@given(json_objects)
def test_json_fields_of_the_target_itself_is_1(target: dict[str, Any]) -> None:
    assert scored("json_fields", target, json.dumps(target)) == 1.0
    assert scored("json_fields", target, f"\n  {json.dumps(target, indent=3)}\n") == 1.0


@given(json_objects, st.data())
def test_json_fields_is_f1_over_the_fields(target: dict[str, Any], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(target))))
    more = data.draw(st.dictionaries(st.text(max_size=8), st.integers(), max_size=3))
    extra = {name: value for name, value in more.items() if name not in target}
    said = {name: value for name, value in target.items() if name in kept} | extra
    found = graded(suite_of("json_fields"), target, json.dumps(said))
    assert found.details["recall"] == len(kept) / len(target)
    assert found.details["precision"] == (len(kept) / len(said) if said else 0.0)
    assert found.score == 2 * len(kept) / (len(said) + len(target))


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
    found = graded(suite_of("json_fields"), {"f": 1}, output)
    assert (found.score, found.flags) == (0.0, ("invalid_json",))
    assert found.details["why"]


def test_the_reason_a_fence_is_no_json() -> None:
    found = graded(suite_of("json_fields"), {"f": 1}, '```json\n{"f": 1}\n```')
    assert found.details == {"why": "in a code fence"}


SCHEMA = {
    "type": "object",
    "properties": {"f": {"type": "integer"}, "g": {"type": "string"}},
    "required": ["f"],
    "additionalProperties": False,
}


def test_what_breaks_the_schema_is_flagged_and_scores_0_where_strict() -> None:
    target = {"f": 1, "g": "x"}
    lax = suite_of("json_fields", response_schema=SCHEMA)
    strict = suite_of({"name": "json_fields", "strict": True}, response_schema=SCHEMA)
    good = graded(strict, target, '{"f": 2, "g": "X"}')
    assert (good.score, good.flags, good.details["wrong"]) == (0.5, (), ["f"])
    for said in ('{"f": 1, "g": 7}', '{"f": "1", "g": "x"}'):
        found = graded(lax, target, said)
        assert (found.score, found.flags) == (0.5, ("schema_violation",))
        assert "is not of type" in found.details["schema"]
        assert graded(strict, target, said).score == 0.0
    assert graded(lax, target, '{"f": 1, "g": "x", "h": 0}').flags == ("schema_violation",)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/never-fetched.json"},
        {"$ref": "#/nowhere"},
        {"properties": {"f": {"pattern": "("}}},
        {"properties": {"f": {"multipleOf": 0.1}}},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_cannot_be_gone_through_is_a_violation_not_a_crash(
    schema: dict[str, Any],
) -> None:
    suite = suite_of("json_fields", response_schema=schema)
    for said in ('{"f": "x"}', '{"f": 1e300}', f'{{"f": {"[" * 500}1{"]" * 500}}}'):
        graded(suite, {"f": "x"}, said)
    assert suite.spec.response_schema == schema


def test_a_schema_elsewhere_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"type": "integer"}')
    suite = suite_of("json_fields", response_schema={"$ref": f"file://{tmp_path}/other.json"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it fetches it warns, which would stop it here
        found = graded(suite, {"f": 1}, '{"f": 1}')
    assert found.flags == ("schema_violation",) and "refers to" in found.details["schema"]


def test_details_hold_no_half_characters_and_few_names() -> None:
    names = {f"{i}\ud800": i for i in range(100)}
    found = graded(suite_of("json_fields"), {"f": 1}, json.dumps(names))
    assert len(found.details["wrong"]) == 20 and "\\ud800" in found.details["wrong"][0]


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


def test_contains_all() -> None:
    suite = suite_of({"name": "contains", "all": True})
    assert graded(suite, ["seven", "days"], "There are seven days.").score == 1.0
    assert graded(suite, ["seven", "weeks"], "There are seven days.").score == 0.0


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
    assert said in complaint(suite_of(scorer), target)


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
    assert said in complaint(suite_of("choice"), target, choices=choices)


def test_check_target_accepts_what_can_be_scored() -> None:
    assert complaint(suite_of("choice"), "a", choices=["a", "b"]) == ""
    assert complaint(suite_of("contains"), ["a1", "b"]) == ""
    assert complaint(suite_of("exact"), "!") == ""
    assert complaint(suite_of("json_fields"), {"a": None}) == ""
    assert check_scorer(suite_of("exact")) is None
