"""The scorer of a JSON object: F1 over its fields, and whether it breaks the suite's schema. Pure.

A code fence around the object is no JSON: the program that reads the answer would choke on it, and
a model that is decoded under its schema writes none. So it scores 0 with `invalid_json`, and the
details say that a fence was the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.evaluation_records import COUNTS, Flag
from workbench.json_schema import Validator
from workbench.pooled import POOLED
from workbench.scorers.base import Grade, f1, kind, parse_json, same, shown, shown_names
from workbench.suite_spec import JsonFieldsScorer, Sample

if TYPE_CHECKING:
    from workbench.suites import Suite


def json_fields(suite: Suite, sample: Sample, output: str) -> Grade:
    """F1 over fields: precision is the share of those found, recall of the target's, that is right.

    How two values are compared is `workbench.scorers.base.same`. What is no JSON object scores 0
    with `invalid_json`. An object that breaks the suite's `response_schema` has `schema_violation`
    and keeps its score, unless the scorer is `strict`.

    Where the suite's metric is pooled, the details have the fields right, found and wanted. In an
    answer that scores 0 for its form nothing was found.
    """
    options = suite.spec.scorer
    assert isinstance(options, JsonFieldsScorer)
    target: Mapping[str, Any] = sample.target

    def counted(right: int, found: int) -> dict[str, Any]:
        return {COUNTS: [right, found, len(target)]} if suite.spec.metric in POOLED else {}

    found = parse_object(output)
    if found is None:
        return Grade(0.0, ("invalid_json",), {"why": _why(output), **counted(0, 0)})
    right = [name for name, value in target.items() if name in found and same(value, found[name])]
    score = f1(len(right), len(found), len(target))
    details: dict[str, Any] = {
        "precision": len(right) / len(found) if found else 0.0,
        "recall": len(right) / len(target),
        "wrong": shown_names((target.keys() | found.keys()) - set(right)),
        **counted(len(right), len(found)),
    }
    flags: tuple[Flag, ...] = ()
    schema = suite.spec.response_schema
    complaint = None if schema is None else violation(schema, found)
    if complaint is not None:
        flags, details["schema"] = ("schema_violation",), complaint
        if options.strict:
            score, details = 0.0, {**details, **counted(0, 0)}
    return Grade(score, flags, details)


def check_object(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target of `json_fields`, or None."""
    if not isinstance(sample.target, dict) or not sample.target:
        return f"'target' must be an object with fields, not {kind(sample.target)}"
    return None


def parse_object(output: str) -> dict[str, Any] | None:
    """The JSON object an output is, or None: not JSON, not an object, NaN, nested too deep."""
    try:
        value = parse_json(output)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def violation(schema: Mapping[str, Any], value: Any) -> str | None:
    """The first thing in which a value breaks a JSON schema (draft 2020-12), or None.

    See `workbench.json_schema.Validator.first_error`.
    """
    return Validator(schema).first_error(value)


def _why(output: str) -> str:
    if output.lstrip().startswith("```"):
        return "in a code fence"
    try:
        value = parse_json(output)
    except ValueError as bad:
        return shown(str(bad))
    return f"{kind(value)}, not an object"
