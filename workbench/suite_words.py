"""Words of a suite's JSON schemas that YAML takes for something else. Pure: it reads a node tree.

YAML 1.1 makes truth values of `on`, `off`, `yes` and `no`. In `tools` and `response_schema`, which
are JSON that is sent to the model, `enum: [low, off, high]` would become `["low", false, "high"]`
and a key `on` would be no text at all. Once loaded, nothing tells them from what was meant; the
nodes still hold the words as they were written, and their lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import yaml

_JSON_KEYS = ("tools", "response_schema")
#: Keys of a JSON schema whose values are compared with what a model writes.
_COMPARED = ("enum", "const", "default")
_TAG = "tag:yaml.org,2002:"
_KEYS = (f"{_TAG}str", f"{_TAG}merge", f"{_TAG}value")
_KINDS = {"bool": "true or false", "int": "a number", "float": "a number", "null": "null"}
FIX = "put it in quotes"


class Word(NamedTuple):
    """A word that is no text.

    Attributes:
        line: counted from 1.
        what: says which it is, where, and what it is taken for.
        fix: what to write.
    """

    line: int
    what: str
    fix: str


def misread(root: yaml.Node | None) -> Iterator[Word]:
    """Words in `tools` and `response_schema` of a `suite.yaml` that were surely meant as texts.

    These are keys that are none, truth values among the texts of an `enum`, and of the values of
    `enum`, `const` or `default` the words `on`, `off`, `yes` and `no` where the schema's type is
    not `boolean`, and of the last two `true` and `false` where it says another type.

    Args:
        root: the YAML tree of the file; None for an empty one.
    """
    if not isinstance(root, yaml.MappingNode):
        return
    seen: set[int] = set()  # an alias may lead back to where it stands
    for key, value in root.value:
        if key.value in _JSON_KEYS:
            yield from _inside(value, str(key.value), seen)


def _inside(top: yaml.Node, name: str, seen: set[int]) -> Iterator[Word]:
    waiting = deque([(top, name)])
    while waiting:
        node, path = waiting.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, f"{path}.{i}") for i, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            kinds = _kinds(node)
            for key, value in node.value:
                told = bool(kinds) and key.value != "enum"
                if key.tag not in _KEYS:
                    taken = _KINDS.get(key.tag.removeprefix(_TAG), "no text")
                    what = f"key '{key.value}' in '{path}' is read as {taken}, and a key is a text"
                    yield Word(key.start_mark.line + 1, what, f'{FIX}: "{key.value}":')
                elif key.value in _COMPARED and "boolean" not in kinds:
                    yield from _of_values(value, f"{path}.{key.value}", told)
                waiting.append((value, f"{path}.{key.value}"))


def _kinds(node: yaml.MappingNode) -> list[str]:
    """What a schema says its values are; empty where it does not say."""
    said = [value for key, value in node.value if key.value == "type"]
    return [
        one.value
        for value in said
        for one in (value.value if isinstance(value, yaml.SequenceNode) else [value])
        if isinstance(one, yaml.ScalarNode)
    ]


def _of_values(node: yaml.Node, path: str, other: bool) -> Iterator[Word]:
    """The values that are truth values; `other`: the schema says they are something else."""
    values = node.value if isinstance(node, yaml.SequenceNode) else [node]
    surely = other or any(value.tag == f"{_TAG}str" for value in values)
    for value in values:
        if value.tag == f"{_TAG}bool" and (surely or value.value.lower() not in ("true", "false")):
            what = f"'{value.value}' in '{path}' is read as true or false"
            yield Word(value.start_mark.line + 1, what, f'{FIX}: "{value.value}"')
