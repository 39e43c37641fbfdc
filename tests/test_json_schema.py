from typing import Any

import pytest

from workbench.json_schema import Validator, complaint

ENDLESS = "refers to itself for ever"
NOWHERE = "leads nowhere inside it"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("x", "no mapping"),
        ([], "no mapping"),
        ({"type": "intger"}, "'intger'"),
        ({"properties": [1]}, "$.properties"),
        ({"properties": {"a": {"pattern": "("}}}, "'(' is not a 'regex'"),
        ({"properties": {1: {}}}, "the key 1 is no text"),
        ({"default": float("nan")}, "Out of range float"),
        ({"$ref": "https://example.org/schema.json"}, NOWHERE),
        ({"$ref": "file:///etc/passwd"}, NOWHERE),
        ({"items": {"$ref": "#/$defs/a"}}, NOWHERE),
        ({"items": {"$ref": "#here"}}, NOWHERE),
        ({"$ref": "#"}, ENDLESS),
        ({"$dynamicRef": "#"}, ENDLESS),
        ({"allOf": [{"$ref": "#"}]}, ENDLESS),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, ENDLESS),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
          "items": {"$ref": "#/$defs/a"}}, ENDLESS),
    ],
)  # fmt: skip
def test_what_is_no_usable_schema_is_said(schema: Any, said: str) -> None:
    assert said in (complaint(schema) or "")


def test_yaml_anchors_that_hold_themselves() -> None:
    schema: dict[str, Any] = {"properties": {}}
    schema["properties"]["a"] = schema
    assert "Circular" in (complaint(schema) or "")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "object", "required": ["a"]}, {"a": 1}, {}),
        ({"type": ["array", "string"], "items": {"$ref": "#"}}, [["x"]], [[1]]),
        ({"$defs": {"a/b": {"type": "integer"}}, "$ref": "#/$defs/a~1b"}, 1, "1"),
        ({"$defs": {"a": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, None, 1),
        ({"$id": "https://example.org/s", "$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"},
         None, 1),
    ],
)  # fmt: skip
def test_a_schema_that_is_one(schema: dict[str, Any], right: Any, wrong: Any) -> None:
    assert complaint(schema) is None
    assert Validator(schema).is_valid(right)
    assert not Validator(schema).is_valid(wrong)


def test_a_pattern_that_backtracks_is_checked_in_linear_time() -> None:
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert complaint(schema) is None
    checked = Validator(schema)
    assert "does not match" in (checked.first_error({"a": "a" * 5000 + "!"}) or "")
    assert "b!' was unexpected" in (checked.first_error({"b" * 100 + "!": 1}) or "")
    assert checked.first_error({"a": "aa", "bb": 1}) is None
    assert "at $.bb" in (checked.first_error({"bb": "x"}) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "(?=a)b"}}},
        {"items": {"patternProperties": {"(?=a)b": {}}}},
    ],
)
def test_a_pattern_re2_does_not_take_is_refused_with_what_to_do(schema: dict[str, Any]) -> None:
    said = complaint(schema) or ""
    assert "'(?=a)b'" in said and "RE2 does not take look-around" in said and "group" in said


def test_what_is_compared_with_is_no_pattern() -> None:
    assert complaint({"const": {"pattern": "(?=a)"}, "properties": {"pattern": {}}}) is None


def test_patterns_beside_what_is_not_evaluated_are_refused() -> None:
    schema = {"patternProperties": {"a": {}}, "unevaluatedProperties": False}
    assert "additionalProperties" in (complaint(schema) or "")


def test_another_dialect_does_not_bring_another_matcher() -> None:
    draft = "http://json-schema.org/draft-07/schema#"
    inner = {"$schema": draft, "pattern": "^(a+)+$"}
    schema = {"$schema": draft, "properties": {"a": {"$schema": draft, "allOf": [inner]}}}
    assert "does not match" in (Validator(schema).first_error({"a": "a" * 5000 + "!"}) or "")


def lattice(key: str, n: int = 60) -> dict[str, Any]:
    """Each definition refers twice to the next one."""
    both = {i: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}] for i in range(n)}
    return {"$defs": {f"d{i}": {key: both[i]} for i in range(n)} | {f"d{n}": {}}}


@pytest.mark.parametrize("key", ["allOf", "anyOf"])
@pytest.mark.parametrize("where", ["properties", "top"])
def test_a_lattice_of_references_is_refused(key: str, where: str) -> None:
    first = {"$ref": "#/$defs/d0"}
    schema = lattice(key) | ({"properties": {"a": first}} if where == "properties" else first)
    assert "10,000 schemas judge one value" in (complaint(schema) or "")


def test_a_chain_of_references_is_no_lattice() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    assert (
        complaint({"$defs": chain | {"d3000": {}}, "properties": {"a": {"type": "string"}}}) is None
    )


def test_a_schema_that_judges_a_part_twice_on_each_level_stops() -> None:
    twice = {"properties": {"a": {"$ref": "#"}}, "patternProperties": {"^a$": {"$ref": "#"}}}
    value: dict[str, Any] = {}
    for _ in range(40):
        value = {"a": value}
    assert complaint(twice) is None
    assert "more than 200,000 steps" in (Validator(twice).first_error(value) or "")
    assert Validator(twice).first_error({"a": {"a": {}}}) is None


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(Validator({"type": "integer"}).first_error("x" * 10**6) or "") < 400
