"""JSON schemas that a suite writes: whether one is a schema, and a validator that stays at home.

A schema comes from a file somebody wrote. It is not asked to load another over the network, to
refer to what is not there or to itself for ever, nor to work without end: its patterns are RE2's
(`workbench.patterns`), and what it does with one value is counted. All of that is said when the
suite is loaded, and not by a crash in the middle of a run. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote

from workbench.digest import canonical_json
from workbench.patterns import Refused, compiled, whole_characters
from workbench.words import shortened, shown

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

#: Keys whose schemas judge the very value the schema around them judges.
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
#: Keys whose values are compared with, and are no schemas.
_VALUES = ("const", "enum", "default", "examples")
#: Schemas that may judge one and the same value, each time it is referred to counted.
MOST_SCHEMAS = 10_000
#: Keywords that may be looked at for one value, about 10 us each.
MOST_STEPS = 200_000
_MOST_SAID = 300
#: What `true` and `false` are as mappings: nothing in them refers to anything.
_ANY: dict[str, Any] = {}
_LEFT: ContextVar[list[int]] = ContextVar("left")


class _Endless(ValueError):
    """A value needs more steps than a check may take."""


class Validator:
    """Checks values against a schema that `complaint` has nothing against; it fetches nothing."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import referencing

        self._validator = _bounded()(_without_dialect(schema), registry=referencing.Registry())

    def is_valid(self, value: object) -> bool:
        """True where the value fits.

        Raises:
            Exception: whatever a library has against a schema that is none, or too much work.
        """
        _LEFT.set([MOST_STEPS])
        return bool(self._validator.is_valid(value))

    def first_error(self, value: object) -> str | None:
        """The first thing in which a value breaks the schema, or None.

        What the validator cannot get through (nested too deep, a number out of its range, a
        reference to elsewhere, more than `MOST_STEPS`) counts as broken.
        """
        import referencing.exceptions

        _LEFT.set([MOST_STEPS])
        try:
            bad = next(self._validator.iter_errors(value), None)
            said = None if bad is None else f"{shortened(bad.message)} at {bad.json_path}"
        except referencing.exceptions.Unresolvable as unknown:
            said = f"the schema refers to {unknown.ref}, which is not in it"
        except _Endless as bad:
            said = str(bad)
        except (RecursionError, ArithmeticError, ValueError, TypeError) as bad:
            said = f"it cannot be checked against the schema: {type(bad).__name__}"
        return None if said is None else shortened(said, _MOST_SAID)


def complaint(schema: object) -> str | None:
    """Why a value is no usable JSON schema (draft 2020-12), or None."""
    import jsonschema

    if not isinstance(schema, dict):
        return "it is no mapping"
    try:
        canonical_json(schema)
        odd = next((key for node in _nodes(schema) for key in node if not isinstance(key, str)), "")
        if odd != "":
            return f"the key {shown(odd)} is no text: put it in quotes"
        _check_schema(canonical_json(schema).decode("utf-8", "surrogatepass"))
    except jsonschema.SchemaError as bad:
        return f"{shortened(bad.message)} at {shortened(bad.json_path)}"
    except (TypeError, ValueError, ArithmeticError, RecursionError) as bad:
        return shortened(str(bad))
    bad_pattern = next(_pattern_problems(schema), None)
    return bad_pattern or _References(schema).complaint() or _unusable(schema)


def _unusable(schema: dict[str, Any]) -> str | None:
    probes: tuple[Any, ...] = ({}, [], "", 0)
    try:
        for probe in probes:
            Validator(schema).is_valid(probe)
    except _Endless as bad:
        return str(bad)
    except Exception as bad:  # whatever a library has against it, an answer would meet it too
        return f"it cannot be used: {shown(bad)}"
    return None


@lru_cache(maxsize=256)
def _check_schema(text: str) -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def _nodes(value: object, skipped: tuple[str, ...] = ()) -> Iterator[dict[Any, Any]]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += [inner for key, inner in found.items() if key not in skipped]
        elif isinstance(found, list):
            waiting += found


# --------------------------------------------------------------------------- patterns and steps


def _pattern_problems(schema: dict[str, Any]) -> Iterator[str]:
    for node in _nodes(schema, _VALUES):
        several = node.get("patternProperties")
        found = list(several) if isinstance(several, dict) else []
        if found and "unevaluatedProperties" in node:
            yield (
                "'patternProperties' beside 'unevaluatedProperties' is not supported: say "
                "'additionalProperties' instead"
            )
        if isinstance(node.get("pattern"), str):
            found.append(node["pattern"])
        for pattern in found:
            try:
                compiled(pattern)
            except Refused as bad:
                what, fix = bad.args
                yield f"the pattern {shown(pattern)} cannot be used: {shortened(what)} ({fix})"


def _found(pattern: str, text: str) -> bool:
    return compiled(pattern).search(whole_characters(text)) is not None


@cache
def _bounded() -> type[Draft202012Validator]:
    """The validator of draft 2020-12, with RE2 for `re` and its keywords counted."""
    from jsonschema import Draft202012Validator, ValidationError, validators

    def pattern(v: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
        if v.is_type(value, "string") and not _found(pattern, value):
            yield ValidationError(f"{shown(value)} does not match {pattern!r}")

    def pattern_properties(v: Any, inner: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not v.is_type(value, "object"):
            return
        for pattern, judged in inner.items():
            for key, item in value.items():
                if _found(pattern, key):
                    yield from v.descend(item, judged, path=key, schema_path=pattern)

    def additional_properties(v: Any, inner: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not v.is_type(value, "object"):
            return
        patterns = schema.get("patternProperties", {})
        for key, item in value.items():
            if key in schema.get("properties", {}) or any(_found(p, key) for p in patterns):
                continue
            if v.is_type(inner, "object"):
                yield from v.descend(item, inner, path=key)
            elif not inner:
                yield ValidationError(
                    f"Additional properties are not allowed ({shown(key)} was unexpected)"
                )

    own = {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    return validators.extend(Draft202012Validator, counted)  # type: ignore[no-any-return, no-untyped-call]


def _counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def step(v: Any, said: Any, value: Any, schema: Any) -> Any:
        left = _LEFT.get()
        left[0] -= 1
        if left[0] < 0:
            raise _Endless(
                f"checking one value takes more than {MOST_STEPS:,} steps: the schema refers to "
                "its parts too often, or the value is too large"
            )
        return keyword(v, said, value, schema)

    return step


def _without_dialect(value: Any) -> Any:
    """A schema without `$schema`, by which the library would take another validator for a part."""
    if isinstance(value, Mapping):
        return {
            key: inner if key in _VALUES else _without_dialect(inner)
            for key, inner in value.items()
            if not (key == "$schema" and isinstance(inner, str))
        }
    return [_without_dialect(inner) for inner in value] if isinstance(value, list) else value


# --------------------------------------------------------------------------- references


class _References:
    """Where the references of a schema lead, and how much work that makes of one value."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._anchors: dict[str, dict[str, Any]] = {}
        for node in _nodes(schema):
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(key), str):
                    self._anchors.setdefault(node[key], node)
        #: id of a node -> schemas that judge a value it judges.
        self._weights: dict[int, int] = {}

    def complaint(self) -> str | None:
        for node in _nodes(self._schema):
            for reference in _referred(node):
                target = self._target(reference)
                if target is None:
                    return f"'$ref: {shortened(reference)}' leads nowhere inside it"
                if not self._ends(target):
                    return f"'$ref: {shortened(reference)}' refers to itself for ever"
                if self._weights[id(target)] > MOST_SCHEMAS:
                    return (
                        f"'$ref: {shortened(reference)}' makes more than {MOST_SCHEMAS:,} schemas "
                        "judge one value: refer to a definition once, not twice on each level"
                    )
        return None

    def _target(self, reference: str) -> dict[str, Any] | None:
        """What a reference points at, as a mapping; None where it is nothing in the schema."""
        if not reference.startswith("#"):
            return None
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer)
        here: Any = self._schema
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and key in here:
                here = here[key]
            elif isinstance(here, list) and key.isdecimal() and int(key[:9]) < len(here):
                here = here[int(key[:9])]
            else:
                return None
        if isinstance(here, bool):
            return _ANY
        return here if isinstance(here, dict) else None

    def _ends(self, root: dict[str, Any]) -> bool:
        """Weigh a schema and those it hands its value to; False where that comes back to one."""
        open_: set[int] = set()
        waiting = [(root, False)]
        while waiting:
            node, done = waiting.pop()
            if done:
                open_.discard(id(node))
                below = sum(self._weights.get(id(inner), 1) for inner in self._inner(node))
                self._weights[id(node)] = min(1 + below, MOST_SCHEMAS + 1)
            elif id(node) in open_:
                return False
            elif id(node) not in self._weights:
                open_.add(id(node))
                waiting.append((node, True))
                waiting += [(inner, False) for inner in self._inner(node)]
        return True

    def _inner(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """The schemas that judge what a schema judges."""
        found: list[Any] = [self._target(reference) for reference in _referred(node)]
        for key in _SAME_VALUE:
            inner = node.get(key)
            found += inner if isinstance(inner, list) else [inner]
        depending = node.get("dependentSchemas")
        found += depending.values() if isinstance(depending, dict) else []
        return [inner for inner in found if _is_dict(inner)]


def _referred(node: dict[str, Any]) -> list[str]:
    return [node[key] for key in ("$ref", "$dynamicRef") if isinstance(node.get(key), str)]


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
