"""The loop: from a recipe to a verdict. Read this file first.

    plan -> next step that is not done -> its notebook under papermill -> plan again

A step is done when a record with its content id is on disk, so the loop has no memory of its own:
stop it at any moment, start it again, and it goes on. Steps that need a server share one per
variant; this process holds it while the notebooks of that variant measure. A profile with a sweep
of serving options starts its servers itself, one after another.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench import errors, rescore, steps
from workbench.base import BASELINE_GGUF
from workbench.collect import collect
from workbench.collect import decided as decided_now
from workbench.context import Context
from workbench.errors import RecipeError, WorkbenchError, did_you_mean
from workbench.events import EventReader
from workbench.notebooks import NotebookFailure, execute
from workbench.questions import TOO_LONG
from workbench.recipe import dump_lock
from workbench.records import Evaluation, Gate, Plan, PlanStep
from workbench.rows import read_rows
from workbench.servers import Endpoint
from workbench.serving import served
from workbench.store import RECORD, read_record, write_atomic, write_marked, write_record

#: Why a step that has a record is done again.
FORCED, FAILED = "forced", "samples failed in the last attempt"


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        plan: the plan as it was at the start: which steps were cached and why.
        executed: names of the steps that ran now.
        gate: the verdict; None where `--only` left it undecided.
        seconds: wall time of the loop.
        tool_seconds: of these, spent in environments, quantizers and servers.
        open_: steps that are still to do, which `--only` left out.
    """

    plan: Plan
    executed: tuple[str, ...]
    gate: Gate | None
    seconds: float
    tool_seconds: float
    open_: tuple[PlanStep, ...] = ()


def _unseen(plan: Plan) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def run(
    context: Context,
    *,
    only: str = "",
    force: Sequence[str] = (),
    shown: Callable[[Plan], contextlib.AbstractContextManager[None]] = _unseen,
) -> Outcome:
    """Run what is not done yet.

    Args:
        context: from `workbench.context.new_run`.
        only: name or kind of the steps to run; empty means all.
        force: names or kinds of steps whose records are thrown away first.
        shown: entered with the plan when it is settled what will run, left when all of it has.

    Raises:
        WorkbenchError: a step failed. Everything finished before is kept.
    """
    begun = time.monotonic()
    folder = context.run
    with folder.lock():
        rescore.finish(context)
        plan = context.plan()
        wanted = {s.name for s in plan.steps if not only or s.name in _named(plan, only)}
        again = [s for s in plan.steps if any(s.name in _named(plan, name) for name in force)]
        forced = {s.name for s in again}
        if undone := sorted(forced - wanted):
            raise RecipeError(
                f"--force would throw away the record of {', '.join(undone)}, and --only leaves it "
                "undone",
                where="--only, --force",
                fix=f"leave out --only, or force what it does ({', '.join(sorted(wanted))})",
            )
        reopened = _with_failed_samples(context, plan)
        # Nothing is written before the command is known to mean something.
        _refuse_gaps(plan, wanted, dict.fromkeys(reopened, FAILED) | dict.fromkeys(forced, FORCED))
        _forget(context, again)
        for record in reopened.values():
            record.unlink(missing_ok=True)
        write_record(folder.plan, context.plan())
        write_atomic(folder.recipe_lock, dump_lock(context.loaded))
        write_marked(folder.checkpoint, context.facts.checkpoint)
        publish_cached(context, context.plan())
        first = plan = context.plan()
        write_record(folder.plan, plan)
        why = {
            s.name: FORCED if s.name in forced else s.reason for s in first.steps if not s.cached
        }
        if not plan.steps[-1].cached:
            # This run may fail, or be told to stop before it decides again.
            folder.withdraw()
        events = EventReader(folder.events)
        executed: list[str] = []
        profile = context.loaded.recipe.profile
        # The servers of a sweep need the machine for themselves.
        shared = ("evaluate",) if profile and profile.sweep else ("evaluate", "profile")
        with shown(plan), contextlib.ExitStack() as server:
            held: Endpoint | None = None
            while step := _next(plan, wanted, executed):
                needs = step.variant if step.kind in shared else None
                # A server that died under a step that went on without it is replaced.
                if held and (held.model != needs or not held.alive()):
                    server.close()
                    held = None
                step_events = context.events.of(step.name)
                step_events.emit("start", why=why.get(step.name, step.reason))
                if needs and not held:
                    held = server.enter_context(served(context, needs, step_events))
                _execute(context, step)
                executed.append(step.name)
                before, plan = plan, context.plan()
                _publish_others(context, before, plan, executed)
                write_record(folder.plan, plan)
        tools = sum(e["seconds"] for e in events.new() if e["event"] == "tool")
        decided = {s.kind: s for s in plan.steps}["gate"]
        known = decided.cached and "gate" in wanted
        gate = read_record(folder.gate, Gate) if known else None
        if gate and "gate" not in executed and gate != decided_now(context, collect(context)):
            gate = steps.gate(context)  # the file was edited; the records decide
    left = tuple(s for s in plan.steps if not s.cached)
    return Outcome(first, tuple(executed), gate, time.monotonic() - begun, tools, left)


def publish_cached(context: Context, plan: Plan) -> None:
    """Put the records of cached steps into this run's folder; another run may have made them."""
    for step in plan.steps:
        if step.cached and step.kind != "gate":
            steps.publish(context, step)


def _publish_others(context: Context, before: Plan, now: Plan, executed: list[str]) -> None:
    """Publish what another run finished meanwhile: such a step is cached and not executed here."""
    todo = {s.name for s in before.steps if not s.cached} - set(executed)
    for step in now.steps:
        if step.cached and step.name in todo and step.kind != "gate":
            steps.publish(context, step)


def _named(plan: Plan, name: str) -> list[str]:
    """The step of that name, or all steps of that kind.

    Raises:
        RecipeError: the plan has neither.
    """
    found = [s.name for s in plan.steps if name in (s.name, s.kind)]
    if not found:
        known = [s.name for s in plan.steps]
        raise RecipeError(
            f"there is no step '{name}'",
            where=f"run '{plan.run}'",
            fix=did_you_mean(name, known) + f"steps: {', '.join(known)}",
        )
    return found


def _refuse_gaps(plan: Plan, wanted: set[str], opened: Mapping[str, str]) -> None:
    """With `--only`: what a step reads must be there.

    Args:
        plan: as it is.
        wanted: names of the steps to run.
        opened: names of steps whose records are about to go, and why.

    Raises:
        RecipeError: a step before it is not done and not asked for.
    """
    done = {s.name for s in plan.steps if s.cached} - opened.keys()
    if opened:
        done -= {s.name for s in plan.steps if s.kind == "gate"}  # it rests on all of them
    for step in plan.steps:
        if step.name not in wanted or step.name in done:
            continue
        for before in plan.steps:
            if before.name == step.name:
                break
            if before.name in done or before.name in wanted:
                continue
            # The GGUF of the baseline is what the other GGUF files are made from.
            same = before.variant in (None, step.variant, BASELINE_GGUF)
            if step.kind == "gate" or (same and before.kind in ("calibrate", "quantize")):
                why = opened.get(before.name, before.reason)
                raise RecipeError(
                    f"step {step.name} needs {before.name}, which is not done: {why}",
                    where="--only",
                    fix=f"run it first (--only {before.name}), or run without --only",
                )


def _forget(context: Context, again: Sequence[PlanStep]) -> None:
    """Throw records away, the published copies and the verdict that rests on them included."""
    for step in again:
        context.run.results.clear(step.kind, step.id)
        published = context.run.published(step.kind, step.variant)
        published.unlink(missing_ok=True)
        if step.kind == "evaluate":
            for rows in (published.parent / "eval").glob("*.jsonl"):
                rows.unlink()
        context.run.withdraw()


def _with_failed_samples(context: Context, plan: Plan) -> dict[str, Path]:
    """The records of evaluations with failed samples, by step: without them it is asked again.

    An error may have been a passing one. Their other rows are kept. A sample that is longer than
    the context stays so and is not asked.
    """
    results = context.run.results
    found: dict[str, Path] = {}
    for step in plan.steps:
        if step.kind != "evaluate" or not step.cached:
            continue
        folder = results.artifact(step.kind, step.id)
        record = results.complete(step.kind, step.id, Evaluation)
        for result in (*record.suites, *record.repeat) if record else ():
            errors_ = [row.error for row in read_rows(folder / result.rows_file) if row.error]
            if any(not error.startswith(TOO_LONG) for error in errors_):
                found[step.name] = folder / RECORD
    return found


def _next(plan: Plan, wanted: set[str], executed: list[str]) -> PlanStep | None:
    """The first step that is wanted and not done.

    Raises:
        WorkbenchError: a step ran and left no record under its id: a bug, not a reason to loop.
    """
    for step in plan.steps:
        if step.name in wanted and not step.cached:
            if step.name in executed:
                raise WorkbenchError(
                    f"step {step.name} ran and its record is still not there: {step.reason}",
                    where=f"id {step.id}",
                    fix="this is a bug; please report it with the run's events.jsonl",
                )
            return step
    return None


def _execute(context: Context, step: PlanStep) -> None:
    """Run one step's notebook; an error of ours inside it is raised here as itself."""
    name = Path(step.notebook)
    copy = f"{name.stem}.{step.variant}.ipynb" if step.variant else name.name
    parameters = {"run_name": str(context.run.path)}
    if step.variant:
        parameters["variant"] = step.variant
    if step.kind == "gate":
        parameters["date"] = context.today.isoformat()
    seen = EventReader(context.run.events)
    try:
        execute(
            context.loaded.project / "notebooks" / step.notebook,
            context.run.executed / copy,
            parameters,
            cwd=context.loaded.project,
            stamp={"step": step.name, "id": step.id},
        )
    except NotebookFailure as failure:
        for event in reversed(seen.new()):
            if event["event"] == "error" and event["step"] == step.name:
                cls = getattr(errors, event["type"], WorkbenchError)
                raise cls(event["what"], where=event["where"], fix=event["fix"]) from failure
        outside_a_step = getattr(errors, failure.raised, None)
        if outside_a_step is not None:
            raise outside_a_step(failure.message) from failure
        raise
