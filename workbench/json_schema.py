"""JSON schemas that a suite writes: whether one is a schema, and a validator that stays at home.

A schema comes from a file somebody wrote. It is not asked to load another over the network, to
refer to what is not there, or to refer to itself for ever; all of that is said when the suite is
loaded, and not by a crash in the middle of a run. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from workbench.digest import canonical_json

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


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
    probes: tuple[Any, ...] = ({}, [], "", 0)
    for reference in _references(schema):
        if not _leads_somewhere(reference, schema):
            return f"'$ref: {reference}' leads nowhere inside it"
    try:
        for probe in probes:
            validator(schema).is_valid(probe)
    except RecursionError:
        return "it refers to itself for ever"
    except Exception as bad:  # whatever a library has against it, an answer would meet it too
        return str(bad)
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


def _leads_somewhere(reference: str, schema: dict[str, Any]) -> bool:
    if not reference.startswith("#"):
        return False
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        return any(pointer in (n.get("$anchor"), n.get("$dynamicAnchor")) for n in _nodes(schema))
    here: Any = schema
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdigit() and int(key) < len(here):
            here = here[int(key)]
        else:
            return False
    return isinstance(here, dict | bool)
