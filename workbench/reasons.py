"""Why a step is to do: what changed since it was done last, in the recipe's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import StoreError
from workbench.recipe import Loaded
from workbench.records import Gate
from workbench.store import Run, read_record


def why_not(kind: str, variant: str | None, id_: str, spec: Mapping[str, Any], run: Run) -> str:
    """Why a step has no record: cut short, changed since the run's last record, or never done.

    Args:
        kind: of the step.
        variant: it belongs to, if any.
        id_: of the step now.
        spec: what the id is of.
        run: whose last record it is compared with.
    """
    if run.results.artifact(kind, id_).is_dir():
        return "an attempt was cut short; it goes on from what is kept"
    before = run.results.spec_of(run.published(kind, variant))
    if before is None:
        return "not done yet"
    return f"changed since the last record: {', '.join(changes(before, spec)) or 'it is gone'}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, with the keys that differ inside them where both have some."""
    found = []
    for key in _differing(before, now):
        one, other = before.get(key), now.get(key)
        inside = _differing(one, other) if _both_hold_keys(one, other) else []
        found.append(f"{key} ({', '.join(inside)})" if inside else key)
    return found


def _both_hold_keys(one: object, other: object) -> bool:
    return isinstance(one, Mapping) and isinstance(other, Mapping)


def _differing(one: Any, other: Any) -> list[str]:
    return sorted(k for k in {*one, *other} if k not in one or k not in other or one[k] != other[k])


def why_decide(loaded: Loaded, run: Run) -> str:
    """Why the gate is to do: no verdict, another policy or recipe, or a record that is new."""
    if not run.gate.is_file():
        return "no verdict yet"
    try:
        before = read_record(run.gate, Gate)
    except StoreError:
        return "the verdict that is there cannot be read"
    if before.policy_digest != loaded.policy_digest:
        return "the policy changed since the verdict"
    if before.recipe_digest != loaded.digest:
        return "the recipe changed since the verdict"
    return "a record it rests on is new"
