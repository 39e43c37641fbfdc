"""Why a step is to do: what changed since it was done last, in the recipe's own words."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.asked import HINT, may_score_again
from workbench.errors import StoreError
from workbench.events import EventReader
from workbench.recipe import Loaded
from workbench.records import Evaluation, Gate
from workbench.store import Run, read_record
from workbench.suite_spec import SuiteSpec
from workbench.words import plain, shortened

if TYPE_CHECKING:
    from workbench.plan import StepSpec

#: Characters of the reason of an attempt that failed; the events have it whole.
_MOST = 300


def why_not(step: StepSpec, suites: Mapping[str, SuiteSpec], run: Run) -> str:
    """Why a step has no record: failed or cut short, changed since the last record, or never done.

    Args:
        step: as it is now.
        suites: suite name -> its `suite.yaml` now.
        run: whose last record it is compared with.
    """
    if run.results.artifact(step.kind, step.id).is_dir():
        said = last_attempt(EventReader(run.events, from_end=False).new(), step.name)
        return f"{said}; it goes on from what is kept"
    record = run.published(step.kind, step.variant)
    before = run.results.spec_of(record)
    if before is None:
        return "not done yet"
    what = ", ".join(changes(before, step.spec)) or "it is gone"
    hint = f"; {HINT.format(run.name)}" if _judging(before, step.spec, suites, record) else ""
    return f"changed since the last record: {what}{hint}"


def last_attempt(events: Sequence[Mapping[str, Any]], step: str) -> str:
    """How the last attempt at a step ended that left no record; without its end it was cut short.

    Args:
        events: of the run, oldest first.
        step: name of the step.
    """
    ended = False
    for event in reversed([e for e in events if e.get("step") == step]):
        if event["event"] == "error":
            return f"the last attempt failed: {_told(event)}"
        if event["event"] == "not scored":
            return f"the last attempt left answers without a score: {_told(event)}"
        if ended and event["event"] == "start":
            return "samples failed in the last attempt"
        if event["event"] in ("start", "interrupted"):
            break
        ended = ended or event["event"] == "done"
    return "an attempt was cut short"


def _told(event: Mapping[str, Any]) -> str:
    return shortened(plain(str(event.get("what", ""))), _MOST)


def _judging(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    suites: Mapping[str, SuiteSpec],
    record: Path,
) -> bool:
    """True where only what suites hold has changed, and perhaps only how answers are judged."""
    old, new = before.get("suites"), now.get("suites")
    if _differing(before, now) != ["suites"] or not _both_hold_keys(old, new):
        return False
    assert isinstance(old, Mapping) and isinstance(new, Mapping)
    if old.keys() != new.keys():
        return False
    try:
        asked = {r.suite: r.conditions for r in read_record(record, Evaluation).suites}
    except StoreError:
        return False
    return all(
        name in suites and name in asked and may_score_again(suites[name], asked[name])
        for name in _differing(old, new)
    )


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


def decided_id(run: Run) -> str | None:
    """Id of the verdict that is there; None where there is none that can be read."""
    try:
        return read_record(run.gate, Gate).id
    except StoreError:
        return None


def why_decide(loaded: Loaded, run: Run, on: datetime.date) -> str:
    """Why the gate is to do: no verdict, another policy, recipe or day, or a record that is new."""
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
    if loaded.policy.waivers and before.date != on.isoformat():
        return "the policy has waivers, and they may have expired since the verdict"
    return "a record it rests on is new"
