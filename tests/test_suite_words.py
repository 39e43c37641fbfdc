"""Words YAML takes for true and false, where JSON is meant."""

from pathlib import Path

import pytest
import yaml
from suite_folders import CALLS, JSON, SAMPLE, write

from workbench.errors import SuiteError
from workbench.suite_words import misread
from workbench.suites import load_suite

TOOL = """tools:
- type: function
  function:
    name: fan
    parameters:
      type: object
      properties:
        speed: {{type: string, enum: [{enum}]}}
        {key}: {{type: boolean, default: off, enum: [on, off]}}
      additionalProperties: no
"""


def said(text: str) -> list[tuple[int, str, str]]:
    return [tuple(word) for word in misread(yaml.compose(text))]


def test_a_truth_value_among_texts_is_named_with_its_line() -> None:
    ((line, what, fix),) = said(TOOL.format(enum="low, off, high", key="lamp"))
    assert line == 8 and "'off' in 'tools.0.function.parameters.properties.speed.enum'" in what
    assert fix == 'put it in quotes: "off"'


@pytest.mark.parametrize("enum", ["yes, no", "low, true", "On", "a, FALSE"])
def test_words_of_an_enum_that_are_misread(enum: str) -> None:
    assert {line for line, *_ in said(TOOL.format(enum=enum, key="lamp"))} == {8}


@pytest.mark.parametrize("key", ["on", "No", "1", "null", "2.5", "true", "2024-01-01"])
def test_a_key_that_is_no_text_is_named(key: str) -> None:
    ((line, what, fix),) = said(TOOL.format(enum="low", key=key))
    assert line == 9 and f"key '{key}'" in what and fix == f'put it in quotes: "{key}":'


@pytest.mark.parametrize("enum", ["'off', low", "low, high", "1, 2", "true, false", "null, low"])
def test_what_is_meant_as_it_is_read_is_let_alone(enum: str) -> None:
    assert said(TOOL.format(enum=enum, key='"on"')) == []


def test_only_schemas_are_looked_at_and_circles_end() -> None:
    assert said("sampling: {on: 1}\n") == said("") == said("- a") == []
    assert len(said("response_schema: &a {on: *a, properties: *a}\n")) == 1
    assert said("response_schema: {x: &a {enum: [b]}, y: {<<: *a}}\n") == []


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        (CALLS, "city:", "on:"),
        (JSON, "n:", "off:"),
        (JSON, "type: integer", "enum: [low, off, high]"),
        (JSON, "type: object", "yes: object"),
    ],
)
def test_a_suite_with_one_is_refused_at_its_line(
    tmp_path: Path, spec: dict[str, object], old: str, new: str
) -> None:
    text = yaml.safe_dump(spec, sort_keys=False)
    line = next(i for i, found in enumerate(text.split("\n"), 1) if f" {old}" in found)
    folder = write(tmp_path / "mine", text.replace(f" {old}", f" {new}"), SAMPLE)
    if "tools" in spec:
        line = 1 + [" city:" in found for found in text.split("\n")].index(True)
    with pytest.raises(SuiteError) as caught:
        load_suite(folder)
    assert caught.value.where == f"{folder / 'suite.yaml'}:{line}"
    assert caught.value.fix.startswith("put it in quotes")


@pytest.mark.parametrize(
    ("schema", "n"),
    [
        ("{type: string, const: true}", 1),
        ("{const: false, type: [string, 'null']}", 1),
        ("{type: integer, default: TRUE}", 1),
        ("{const: off}", 1),
        ("{const: true}", 0),
        ("{type: boolean, const: true}", 0),
        ("{type: [boolean, 'null'], default: off}", 0),
        ("{type: string, const: 'true'}", 0),
    ],
)
def test_a_single_truth_value_where_another_type_is_said(schema: str, n: int) -> None:
    text = TOOL.format(enum="low", key="lamp").replace("{type: string, enum: [low]}", schema)
    assert [line for line, *_ in said(text)] == [8] * n
