from typing import Any

import pytest

from workbench.json_schema import complaint, validator

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
        ({"$dynamicRef": "#"}, "cannot be used"),
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
    assert validator(schema).is_valid(right)
    assert not validator(schema).is_valid(wrong)
