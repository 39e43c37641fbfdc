"""What pydantic complains about as a person wants to read it: what, which line, and what to do."""

from __future__ import annotations

import re
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from workbench.base import Unfit
from workbench.errors import did_you_mean
from workbench.variants import GGUF_INTERNAL, METHODS
from workbench.words import MOST_SHOWN, shortened, shown


def problem(
    detail: ErrorDetails, cls: type[BaseModel], node: yaml.Node | None
) -> tuple[str, int, str]:
    """One pydantic complaint as (what, line, fix).

    Args:
        detail: as pydantic lists it.
        cls: the spec that was validated.
        node: the YAML tree of the file.
    """
    # Union tags in angle brackets stand in no file.
    loc = tuple(part for part in detail["loc"] if not str(part).startswith("<"))
    keys, line = locate(loc, node)
    key = shortened(".".join(keys))
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = sorted(_known_keys(cls, loc))
        return (
            f"unknown key '{key}'",
            line,
            did_you_mean(keys[-1][:MOST_SHOWN], known) + f"known: {', '.join(known)}",
        )
    if kind == "missing":
        return f"key '{key}' is missing", line, _add(keys[-1], cls, loc)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        what, fix = _untagged(key, context, cls, loc)
        return what, line, fix
    message = detail["msg"].removeprefix("Value error, ").replace("Tuple should", "List should")
    if kind == "literal_error":
        expected = str(context.get("expected", "")).replace(" or ", ", ").split(", ")
        if keys[-1:] == ["type"]:
            expected = [option for option in expected if option != repr(GGUF_INTERNAL)]
        message = f"{shown(detail['input'])} is not one of {', '.join(expected)}"
        options = [option.strip("'") for option in expected]
        hint = did_you_mean(str(detail["input"])[:MOST_SHOWN], options) or "choose one of them"
        if len(options) == 1:
            hint = f"write {options[0]}"
        if str(detail["input"])[:MOST_SHOWN] in options:
            hint = "write it without quotes"
        return (f"'{key}': {message}" if key else message), line, hint.strip()
    if kind.endswith("_type"):
        given = list(detail["input"]) if isinstance(detail["input"], tuple) else detail["input"]
        message = message.replace("valid tuple", "list").replace("valid dictionary", "mapping")
        message = re.sub(r" or (instance of \w+|object to extract fields from)", "", message)
        message += f", not {shown(given)}"
    if not loc:
        line = _line_of(message, node) or line
    fix = _short_form(detail, cls, loc) or _of_another_kind(kind, detail["input"])
    fix = fix or _fix(kind, context) + _percent(kind, context, keys, detail["input"])
    return (f"'{key}': {message}" if key else message), line, fix


def _untagged(
    key: str, context: dict[str, Any], cls: type[BaseModel], loc: tuple[int | str, ...]
) -> tuple[str, str]:
    """What no branch of a tagged union takes, as (what, fix): its tag is unknown, or not there."""
    tag = shortened(str(context.get("tag", "")))
    field = str(context.get("discriminator", "")).strip("'")
    tags = [t for t in map(_tag, _models_at(cls, loc)) if t]
    if field == "method":
        tags = tags or [*METHODS]
        what = f"unknown method '{tag}'" if tag else f"'{key}' has no 'method'"
        return what, did_you_mean(tag, tags) + f"methods: {', '.join(tags)}"
    if not tag:
        return f"'{key}' has no '{field}'", f"known: {', '.join(tags)}"
    listing = ", ".join(repr(t) for t in tags)
    near = did_you_mean(tag, tags).strip()
    return f"'{key}': {tag!r} is not one of {listing}", near or "choose one of them"


def _add(key: str, cls: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """What to add where a key is missing, with its value where there is little choice."""
    fields = [f for c in _models_at(cls, loc[:-1]) for n, f in _fields(c) if n == key]
    annotation = fields[0].annotation if fields else None
    if key == "chat_template":
        return "add 'chat_template: true' (or false where the model has no chat template)"
    if annotation is bool:
        return f"add '{key}: true', or false"
    if get_origin(annotation) is Literal:
        first, *others = map(str, get_args(annotation))
        return f"add '{key}: {first}'" + (f" (or {', '.join(others)})" if others else "")
    return f"add '{key}:'"


def _short_form(detail: ErrorDetails, cls: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """A name where a mapping is wanted that needs nothing but a name; empty where it is not so."""
    given = detail["input"]
    if detail["type"] not in ("model_type", "model_attributes_type") or not isinstance(given, str):
        return ""
    needed = [n for c in _models_at(cls, loc) for n, field in _fields(c) if field.is_required()]
    plain = re.fullmatch(r"[A-Za-z][\w.-]*", given)
    return f"write {{{needed[0]}: {given}}}" if len(needed) == 1 and plain else ""


def _fields(cls: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Fields by the name they have in a file."""
    return [(field.alias or name, field) for name, field in cls.model_fields.items()]


#: pydantic's kind of complaint -> what to write instead.
_FIXES = {
    "int_type": "write a whole number, without quotes or a decimal point",
    "float_type": "write a number, without quotes",
    "string_type": "put it in quotes",
    "bool_type": "write true or false",
    "tuple_type": "write a list: [a, b]",
    "dict_type": "write a mapping: {{key: value}}",
    "model_attributes_type": "write a mapping: {{key: value}}",
    "model_type": "write a mapping: {{key: value}}",
    "greater_than": "use more than {gt}",
    "greater_than_equal": "use {ge} or more",
    "less_than": "use less than {lt}",
    "less_than_equal": "use {le} or less",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "string_too_short": "write something between the quotes, or remove it",
    "string_pattern_mismatch": "use letters, digits, '.', '_' and '-', at most 64, no '.' first",
}


def _of_another_kind(kind: str, given: Any) -> str:
    """Where quotes are not what is the matter."""
    if kind == "string_type" and isinstance(given, list | tuple | dict):
        return "write one text"
    if kind == "string_type" and given is None:
        return "write a text behind it"
    if kind in ("float_type", "int_type") and isinstance(given, str):
        # YAML 1.1 reads 1e-2 as a text: it wants the point.
        return "write a number as 0.01, 10 or 1.0e-2, without quotes or a unit"
    return ""


def _fix(kind: str, context: dict[str, Any]) -> str:
    unfit = context.get("error")
    return unfit.fix if isinstance(unfit, Unfit) else _FIXES.get(kind, "").format_map(context)


def _percent(kind: str, context: dict[str, Any], keys: list[str], given: Any) -> str:
    """What a percentage is as the share that was meant."""
    limit = context.get("lt", context.get("le"))
    if not kind.startswith("less_than") or limit != 1 or not 1 < given <= 100:
        return ""
    what = "points" if keys[-1:] == ["margin"] else "percent"
    return f": write {given / 100:g}, which is {given:g} {what}"


def _line_of(message: str, node: yaml.Node | None) -> int | None:
    """Line of the first name the message quotes that stands in the file as a key or a value."""
    scalars: dict[str, int] = {}
    waiting = [node] if node else []
    while waiting:
        found = waiting.pop()
        if isinstance(found, yaml.ScalarNode):
            line = found.start_mark.line + 1
            scalars[found.value] = min(line, scalars.get(found.value, line))
        elif isinstance(found, yaml.SequenceNode):
            waiting += found.value
        elif isinstance(found, yaml.MappingNode):
            waiting += [part for pair in found.value for part in pair]
    return next((scalars[q] for q in re.findall(r"'([^']+)'", message) if q in scalars), None)


def locate(loc: tuple[int | str, ...], node: yaml.Node | None) -> tuple[list[str], int]:
    """Follow a location, such as pydantic's, through the YAML nodes: keys that exist, and the line.

    Union tags appear in the location but not in the file; they are left out.
    """
    keys: list[str] = []
    line = node.start_mark.line + 1 if node else 1
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == str(part):
                    keys.append(str(part))
                    line, node = key_node.start_mark.line + 1, value_node
                    break
            else:
                if last:
                    keys.append(str(part))
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
            line = node.start_mark.line + 1
            keys.append(str(part))
        elif last:
            keys.append(str(part))
    return keys, line


def line_of_key(key: str, node: yaml.Node | None) -> int | None:
    """Line of a key as messages write it, or of as much of it as is there; None where nothing is.

    Args:
        key: such as ``serve.max_model_len``, or ``variants: w4: group_size``: an item of a list is
            found by its name, or by its number.
        node: the YAML tree of the file.
    """
    line = None
    for part in key.split(" (")[0].split(": "):
        for name in [part] if _inside(node, part) else part.split("."):
            found = _inside(node, name)
            if found is None:
                return line
            line, node = found
    return line


def _inside(node: yaml.Node | None, name: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == name:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            called = _inside(item, "name")
            if name in (str(number), item.value, called and called[1].value):
                return item.start_mark.line + 1, item
    return None


def _known_keys(cls: type[BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    """The keys allowed beside the last one of `loc`."""
    return {name for c in _models_at(cls, loc[:-1]) for name, _ in _fields(c)}


def _models_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models allowed where `loc` points, following nested ones, tuples and tagged unions."""
    here: list[type[BaseModel]] = [cls]
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = [c for c in here if _tag(c) == part]
        if tagged:
            here = tagged
            continue
        nested: list[type[BaseModel]] = []
        for c in here:
            for name, field in c.model_fields.items():
                if part in (name, field.alias):
                    nested += _models_in(field.annotation)
        here = nested or here
    return here


def _tag(cls: type[BaseModel]) -> str | None:
    """What tells a model from the others of its union, such as a variant's method."""
    for key in ("method", "name", "distribution", "arrivals"):
        field = cls.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is Literal:
            return str(get_args(field.annotation)[0])
    return None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Union or get_args(annotation):
        return [m for part in get_args(annotation) for m in _models_in(part)]
    return []
