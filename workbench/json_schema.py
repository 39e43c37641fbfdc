"""JSON schemas that a suite writes: whether one is a schema, and a validator that stays at home.

A schema comes from a file somebody wrote. It is not asked to load another over the network, to
refer to what is not there, or to refer to itself for ever; all of that is said when the suite is
loaded, and not by a crash in the middle of a run. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote

from workbench.digest import canonical_json

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_DYNAMIC = "$dynamicAnchor"
#: Keys whose schemas judge the very value the schema around them judges.
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """A validator of a schema that `complaint` has nothing against; it fetches nothing."""
    import jsonschema
    import referencing

    return jsonschema.Draft202012Validator(schema, registry=referencing.Registry())


def complaint(schema: object) -> str | None:
    """Why a value is no usable JSON schema (draft 2020-12), or None."""
    import jsonschema

    if not isinstance(schema, dict):
        return "it is no mapping"
    try:
        canonical_json(schema)
        odd = next((key for key in _keys(schema) if not isinstance(key, str)), None)
        if odd is not None:
            return f"the key {odd!r} is no text: put it in quotes"
        _check_schema(canonical_json(schema).decode("utf-8", "surrogatepass"))
    except jsonschema.SchemaError as bad:
        return f"{bad.message} at {bad.json_path}"
    except (TypeError, ValueError, RecursionError) as bad:
        return str(bad)
    for reference in _references(schema):
        if _target(reference, schema) is None:
            return f"'$ref: {reference}' leads nowhere inside it"
        if _is_endless(reference, schema, ()):
            return f"'$ref: {reference}' refers to itself for ever"
    probes: tuple[Any, ...] = ({}, [], "", 0)
    try:
        for probe in probes:
            validator(schema).is_valid(probe)
    except Exception as bad:  # whatever a library has against it, an answer would meet it too
        return f"it cannot be used: {bad!r}"
    return None


@lru_cache(maxsize=256)
def _check_schema(text: str) -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def _nodes(value: object) -> Iterator[dict[Any, Any]]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _keys(schema: object) -> Iterator[object]:
    return (key for node in _nodes(schema) for key in node)


def _references(schema: dict[str, Any]) -> Iterator[str]:
    for node in _nodes(schema):
        for key in ("$ref", "$dynamicRef"):
            if isinstance(node.get(key), str):
                yield node[key]


def _target(reference: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """What a reference points at, as a mapping; None where it points at nothing in the schema."""
    if not reference.startswith("#"):
        return None
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        anchored = (n for n in _nodes(schema) if pointer in (n.get("$anchor"), n.get(_DYNAMIC)))
        return next(anchored, None)
    here: Any = schema
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
    if isinstance(here, bool):
        return {}
    return here if isinstance(here, dict) else None


def _is_endless(reference: str, schema: dict[str, Any], before: tuple[str, ...]) -> bool:
    """True where a reference comes back to itself without going into the value it judges."""
    if reference in before:
        return True
    here = [_target(reference, schema) or {}]
    while here:
        node = here.pop()
        follow = node.get("$ref")
        if isinstance(follow, str) and _is_endless(follow, schema, (*before, reference)):
            return True
        for key in _SAME_VALUE:
            inner = node.get(key)
            here += [n for n in (inner if isinstance(inner, list) else [inner]) if _is_dict(n)]
    return False


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
