"""Score a finished run again, with the suites as they are now, without asking a model.

A target was wrong, or a scorer too strict: the answers are still what the model said, only the
scores change. But a suite's digest is in the id of the step, so `workbench run` would ask
everything again. `rescore` computes the id the step has *now* and, if nothing but the judging of
the answers differs, writes a complete artifact under it: the same outputs and serving, new scores,
and `rescored_from` among its inputs. The old artifact stays what it was; a run after this finds the
new one and starts no server.

Everything is checked and graded before anything is written; one that is stopped while it writes is
finished by the next `workbench run` or `rescore`, so that nothing is asked again. Refused is what
would need asking: any part of the step's inputs beside the suites, a prompt, a sample that came or
went, the way a suite is asked. A judge is not asked again, and lm-eval's scores are lm-eval's own:
these stay, and it is said. An answer the user's own scorer fails at is kept without a score, as the
evaluation keeps it, and counted.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import steps
from workbench.asked import ASKING, asking_digest
from workbench.context import Context
from workbench.errors import StoreError, UserError
from workbench.evaluate import summarize
from workbench.evaluation_records import NOT_SCORED
from workbench.grading import scored
from workbench.integrity import flaw
from workbench.paired import first_difference
from workbench.plan import StepSpec
from workbench.questions import prepare
from workbench.records import Evaluation, Gate, Manifest, SampleRow, SuiteResult
from workbench.rows import read_rows, reopened, staged, take_place, write_rows
from workbench.store import (
    RECORD,
    SPEC,
    locked,
    read_record,
    write_atomic,
    write_marked,
    write_record,
)
from workbench.suite_spec import Sample
from workbench.suites import Suite, cluster_of

_ASK_AGAIN = "{} asks it again"


@dataclass(frozen=True)
class SuiteRescore:
    """What scoring again did to one suite of one variant.

    Attributes:
        variant: whose answers.
        suite: name of the suite.
        again: True of a reference's second pass.
        n: rows.
        changed: rows with another score.
        before: mean score as it was recorded.
        after: mean score now.
        kept: why the scores were not computed again; empty where they were.
        samples: ids of the samples with another score, in the suite's order.
        failed: rows the suite's own scorer failed at; they have no score now.
        failure: the first of these errors; empty where there is none.
    """

    variant: str
    suite: str
    again: bool
    n: int
    changed: int
    before: float | None
    after: float | None
    kept: str = ""
    samples: tuple[str, ...] = ()
    failed: int = 0
    failure: str = ""


@dataclass(frozen=True)
class _Graded:
    """One evaluation, graded and not yet written."""

    step: StepSpec
    old: Evaluation
    new: Evaluation
    rows: dict[str, tuple[SampleRow, ...]]  # of each file
    suites: tuple[SuiteRescore, ...]

    @property
    def moved(self) -> bool:
        """True where there is something to write."""
        before, after = (
            [r.rows_digest for r in (*one.suites, *one.repeat)] for one in (self.old, self.new)
        )
        return self.step.id != self.old.id or before != after


def rescore(context: Context) -> tuple[tuple[SuiteRescore, ...], Gate]:
    """Grade every answer of a run again, publish the result and decide again.

    Returns:
        What became of each suite, and the verdict that follows.

    Raises:
        StoreError: something must be asked again, or rows are not those that were recorded.
            Nothing was written.
    """
    with context.run.lock():
        graded = _score_again(context)
        plan = context.plan()
        write_record(context.run.plan, plan)
        for planned in plan.steps:
            if planned.kind == "evaluate":
                steps.publish(context, planned)
        gate = steps.gate(context)
        write_record(context.run.plan, context.plan())
    return tuple(s for one in graded for s in one.suites), gate


def finish(context: Context) -> None:
    """Do the rest of a `rescore` of this run that was stopped while it wrote; else nothing.

    For whoever is going to ask what is not there, and holds the run. What cannot be scored any more
    is left for them to ask.
    """
    mark = _mark(context)
    if mark.exists():
        with contextlib.suppress(UserError):
            _score_again(context)
        mark.unlink(missing_ok=True)


def _score_again(context: Context) -> list[_Graded]:
    """Grade all, and then write all: until the mark is gone, something may be left to write."""
    graded = [_grade(context, s) for s in context.specs.values() if s.kind == "evaluate"]
    moved = [one for one in graded if one.moved]
    if moved:
        write_atomic(_mark(context), b"")
    for one in moved:
        _keep(context, one)
        context.events.of(one.step.name).emit(
            "rescore", id=one.step.id, rescored_from=one.old.id, suites=one.new.rescored
        )
    _mark(context).unlink(missing_ok=True)
    return graded


def _mark(context: Context) -> Path:
    return context.run.path / ".rescore"


# --------------------------------------------------------------------------- grading


def _grade(context: Context, step: StepSpec) -> _Graded:
    """Grade one evaluation in memory.

    Raises:
        StoreError: it cannot be scored without asking.
    """
    results = context.run.results
    published = context.run.published("evaluate", step.variant)
    id_ = read_record(published, Evaluation).id
    # The copy in the run's folder only says which artifact to read.
    old, before = results.complete("evaluate", id_, Evaluation), results.spec_of(published)
    folder = results.artifact("evaluate", id_)
    if old is None or before is None:
        raise StoreError(
            f"the answers of step {step.name} are gone",
            where=str(folder),
            fix=_ASK_AGAIN.format(context.command),
        )
    if why := flaw(results, "evaluate", old.id, old):
        raise StoreError(
            f"step {step.name} cannot be scored again: {why}",
            where=str(folder),
            fix=_ASK_AGAIN.format(context.command),
        )
    if difference := _more_than_suites(before, step.spec):
        raise StoreError(
            f"step {step.name} must be asked again, not only scored: {difference}",
            where=f"run '{context.run.name}'",
            fix=_ASK_AGAIN.format(context.command),
        )
    _same_weights(context, step, old)
    rows: dict[str, tuple[SampleRow, ...]] = {}
    said: list[SuiteRescore] = []
    first: dict[str, tuple[float | None, float | None]] = dict(old.rescored)
    passes: list[list[SuiteResult]] = [[], []]
    for again, found in enumerate((old.suites, old.repeat)):
        for result in found:
            asked = read_rows(folder / result.rows_file)
            suite = None if result.source == "lm-eval" else context.suites[result.suite]
            rescored, why = _rows(context, suite, result, asked, old.serving.max_model_len)
            new = result
            if suite is not None:
                new = summarize(
                    suite,
                    rescored,
                    conditions={**result.conditions, "suite_digest": suite.digest},
                    rows_file=result.rows_file,
                    lane=result.lane,
                )
            rows[result.rows_file] = rescored
            passes[again].append(new)
            was = {row.key: row for row in asked}
            both = [(was[row.key], row) for row in rescored]
            failures = [r.error for r in rescored if (r.error or "").startswith(NOT_SCORED)]
            if not again and (result.suite in first or _judged_otherwise(result, new, both)):
                # What was said when it was asked, however often it is scored again.
                score = first.get(result.suite, (result.score, None))[0]
                first[result.suite] = (score, new.score)
            said.append(
                SuiteRescore(
                    variant=step.variant or "",
                    suite=result.suite,
                    again=bool(again),
                    n=len(asked),
                    changed=sum(b.score != a.score for b, a in both),
                    samples=tuple(dict.fromkeys(a.id for b, a in both if b.score != a.score)),
                    before=result.score,
                    after=new.score,
                    kept=why,
                    failed=len(failures),
                    failure=(failures or [""])[0] or "",
                )
            )
    made = old.model_copy(
        update={
            "id": step.id,
            "inputs": {**old.inputs, "rescored_from": old.id},
            "suites": tuple(passes[0]),
            "repeat": tuple(passes[1]),
            "rescored": first,
        }
    )
    return _Graded(step, old, made, rows, tuple(said))


def _judged_otherwise(
    old: SuiteResult, new: SuiteResult, rows: Sequence[tuple[SampleRow, SampleRow]]
) -> bool:
    """True where a reader would get other scores, or scores of other targets, than as asked."""
    if (old.metric, old.higher_is_better) != (new.metric, new.higher_is_better):
        return True
    return any(
        (b.score, b.target_digest, {*b.flags}) != (a.score, a.target_digest, {*a.flags})
        for b, a in rows
    )


def _more_than_suites(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first input of the step that changed beside what its suites hold, or an empty text."""
    old, new = dict(before), dict(now)
    for spec in (old, new):  # which suites, but not what they hold
        spec["suites"] = sorted(spec.get("suites", {}))
    for key in sorted({*old, *new}):
        one, other = old.get(key), new.get(key)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            return f"{key}: {first_difference(one, other)}"
        return f"{key} is {one!r} and {other!r}"
    return ""


def _same_weights(context: Context, step: StepSpec, old: Evaluation) -> None:
    path = context.run.published("quantize", step.variant)
    if old.inputs.get("weights") != read_record(path, Manifest).weights_digest:
        raise StoreError(
            f"step {step.name} was asked of other weights than the run's",
            where=str(path),
            fix=_ASK_AGAIN.format(context.command),
        )


def _rows(
    context: Context,
    suite: Suite | None,
    result: SuiteResult,
    rows: tuple[SampleRow, ...],
    longest: int,
) -> tuple[tuple[SampleRow, ...], str]:
    """One suite's rows with present scores, in the suite's order; and why they were kept, if so."""
    if suite is None:
        return rows, "lm-eval's own scores"
    same = suite.digest == result.suite_digest
    if suite.spec.scorer.name == "judge":
        if not same:
            raise _changed(context, suite, "its answers are judged by a model, and it changed")
        return rows, "a judge's scores, and no judge is asked"
    samples = {s.id: s for s in suite.samples[: context.loaded.recipe.evaluate.limit]}
    odd = sorted({row.id for row in rows} ^ samples.keys())
    if odd:
        raise _changed(context, suite, f"{len(odd)} samples came or went, {odd[0]!r} first")
    order = {id_: place for place, id_ in enumerate(samples)}
    ordered = sorted(rows, key=lambda row: (order[row.id], row.repeat))
    if same:
        return tuple(_regraded(suite, samples[r.id], r) for r in ordered), ""
    prepared = {i: prepare(suite, s, context.tokenizer, longest) for i, s in samples.items()}
    other = [i for i in dict.fromkeys(r.id for r in ordered) if _asks(prepared[i], ordered, i)]
    if other:
        what = f"the prompts of {len(other)} samples changed, {other[0]!r} first"
        raise _changed(context, suite, what)
    if result.conditions.get(ASKING) != asking_digest(suite.spec):
        raise _changed(context, suite, "how it is asked changed (length, sampling, schema, tools)")
    moved = (
        row.model_copy(
            update={
                "target_digest": prepared[row.id].target_digest,
                "cluster": cluster_of(suite.spec, samples[row.id]),
            }
        )
        for row in ordered
    )
    return tuple(_regraded(suite, samples[r.id], r) for r in moved), ""


def _asks(question: Any, rows: Sequence[SampleRow], id_: str) -> bool:
    """True where a sample is asked in other words than its rows were."""
    return any(row.prompt_digest != question.prompt_digest for row in rows if row.id == id_)


def _changed(context: Context, suite: Suite, what: str) -> StoreError:
    return StoreError(
        f"suite '{suite.spec.name}' must be asked again, not only scored: {what}",
        where=str(suite.path),
        fix=_ASK_AGAIN.format(context.command) + ", or take the change back",
    )


def _regraded(suite: Suite, sample: Sample, row: SampleRow) -> SampleRow:
    row = reopened(row)
    return row if row.error is not None else scored(suite, sample, row)  # or it has no answer


# --------------------------------------------------------------------------- keeping


def _keep(context: Context, graded: _Graded) -> None:
    """Write the artifact so that it is the old one or the new one at every moment.

    Rows are staged, the record is replaced, and then the rows take their places; from the record on
    whoever reads it moves those that are left (`rows.altered`). That matters where the id stays: a
    scorer of the user's own that no digest covers.
    """
    results, step = context.run.results, graded.step
    source, folder = (results.artifact("evaluate", i) for i in (graded.old.id, step.id))
    progress = context.events.of(step.name).progress
    with locked(folder / ".lock", f"step {step.name}", waiting=progress):
        found = results.complete("evaluate", step.id, Evaluation)
        if found is not None and step.id != graded.old.id:
            same = found.inputs.get("weights") == graded.new.inputs.get("weights")
            if same and not flaw(results, "evaluate", step.id, found):
                return  # asked or scored under this id before, by this run or another
        write_atomic(folder / SPEC, json.dumps(step.spec, indent=1, sort_keys=True).encode())
        if source != folder:
            _copy_others(source, folder, {*graded.rows, RECORD, SPEC, ".lock"})
        for name, rows in graded.rows.items():
            write_rows(staged(folder / name), rows)
        write_marked(folder / RECORD, graded.new)
        for name in graded.rows:
            take_place(folder / name)


def _copy_others(source: Path, folder: Path, without: set[str]) -> None:
    """What else the step left: traces of log-probabilities, results of lm-eval."""
    for path in sorted(source.iterdir()):
        if path.name in without or path.suffix in (".partial", ".staged"):
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
        else:
            shutil.copy2(path, folder / path.name)
