"""Collect a run's records for the gate and the report: no weights, no server, no environment."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from workbench.asked import may_score_again
from workbench.base import BASELINE
from workbench.columns import StoredRows
from workbench.context import Context
from workbench.digest import content_id
from workbench.errors import StoreError, SuiteError
from workbench.evidence import Evidence, VariantEvidence
from workbench.gate import decide
from workbench.integrity import flaw
from workbench.plan import RECORDS, gate_spec
from workbench.prompts import question_text
from workbench.recipe import digest_of
from workbench.records import (
    Calibration,
    Checkpoint,
    Divergence,
    Evaluation,
    Gate,
    Manifest,
    Plan,
    Profile,
    Record,
    SuiteResult,
)
from workbench.report.html import render
from workbench.row_files import stored_rows
from workbench.spec import Policy
from workbench.store import dump_record, is_marked, read_marked, read_record, write_atomic
from workbench.suite_spec import Sample
from workbench.suites import Suite, find_suite, load_suite
from workbench.variants import AnyVariant

R = TypeVar("R", bound=Record)
#: Says what the baseline is. It is a manifest like any other, and no step writes it.
_GIVEN = f"quantize:{BASELINE}"


def collect(context: Context) -> Evidence:
    """Read from the run's folder what a verdict rests on. What is missing stays missing.

    Raises:
        StoreError: a record is damaged, or rows or recipe are not those the records speak of.
    """
    plan = read_record(context.run.plan, Plan)
    if plan.recipe_digest != context.loaded.digest:
        # An older workbench gave the same recipe another digest: its records have older schemas.
        for step in plan.steps:
            if (path := context.run.published(step.kind, step.variant)).is_file():
                read_record(path, RECORDS[step.kind])
        raise StoreError(
            "the records were planned for another recipe or policy than the run's lock holds",
            where=str(context.run.path),
            fix=f"{context.command} brings them together",
        )
    ids = {step.name: step.id for step in plan.steps}
    todo = dict.fromkeys(step.name for step in plan.steps if step.kind != "gate")

    def read(path: Path, cls: type[R], step: str) -> R | None:
        # A record from before the recipe, a suite or the weights changed is no evidence, and none
        # is one of a step that the recipe no longer asks for. The baseline is made by no step.
        record = read_marked(path, cls) if path.is_file() else None
        if record is None or step == _GIVEN:
            return record
        if getattr(record, "id", None) != ids.get(step):
            return None
        todo.pop(step, None)
        return record

    recipe = context.loaded.recipe
    doubts: list[str] = []
    unmarked: list[str] = []

    waiting: list[tuple[dict[str, StoredRows], SuiteResult, Path]] = []

    def rows_of(variant: str, results: Sequence[SuiteResult]) -> dict[str, StoredRows]:
        rows: dict[str, StoredRows] = {}  # filled at the end, when all files are read
        for result in results:
            path = context.run.variant(variant) / "eval" / result.rows_file
            if not path.is_file():
                raise StoreError(
                    "the rows this record speaks of are gone",
                    where=str(path),
                    fix=f"{context.command} puts them back",
                )
            waiting.append((rows, result, path))
        return rows

    def divergence_of(variant: str, evaluation: Evaluation | None) -> Divergence | None:
        path = context.run.variant(variant) / "divergence.json"
        trace = evaluation.divergence if evaluation else None
        if trace is None or not path.is_file():
            return None
        found = read_record(path, Divergence)
        # One of a trace that was taken again since says nothing about this one.
        return found if found.inputs.get("variant") == trace.digest else None

    def of(variant: AnyVariant) -> VariantEvidence:
        name = variant.name
        folder = context.run.variant(name)
        evaluation = read(folder / "evaluation.json", Evaluation, f"evaluate:{name}")
        made = read(folder / "manifest.json", Manifest, f"quantize:{name}")
        profile = read(folder / "profile.json", Profile, f"profile:{name}")
        found = {"quantize": made, "evaluate": evaluation, "profile": profile}
        there = {kind: context.run.published(kind, name).is_file() for kind in found}
        unmarked.extend(
            f"{name}/{context.run.published(kind, name).name}"
            for kind, record in found.items()
            if record is not None and not is_marked(context.run.published(kind, name))
        )
        if made:
            _same_weights(context, made)
        return VariantEvidence(
            variant=name,
            method=variant.method,
            manifest=made,
            evaluation=evaluation,
            rows=rows_of(name, evaluation.suites) if evaluation else {},
            profile=profile,
            reference=recipe.reference(variant),
            repeat_rows=rows_of(name, evaluation.repeat) if evaluation else {},
            divergence=divergence_of(name, evaluation),
            stale=tuple(
                kind
                for kind, record in found.items()
                if there[kind] and record is None and f"{kind}:{name}" in ids
            ),
        )

    baseline, *references = map(of, recipe.references)
    again = recipe.replicas.values()
    replicas = {
        v.name: tuple(of(r.variant) for r in again if r.of == v.name)
        for v in recipe.variants
        if v.repeat
    }
    variants = tuple(map(of, recipe.variants))
    for step in plan.steps:
        if step.kind == "calibrate":
            read(context.run.published(step.kind, step.variant), Calibration, step.name)
    files = [(path, result) for _, result, path in waiting]
    read_back = stored_rows(files, f"{context.command} puts the recorded ones back")
    for (rows, result, _), stored in zip(waiting, read_back, strict=True):
        rows[result.suite] = stored
    if unmarked:
        doubts.append(
            f"an edit of {', '.join(unmarked[:3])}"
            + (f" and {len(unmarked) - 3} more records" if len(unmarked) > 3 else "")
            + " would not be noticed: no digest lies beside it (an older workbench wrote it, or "
            "somebody took it away)"
        )
    return Evidence(
        run=context.run.name,
        recipe=recipe.name,
        recipe_digest=context.loaded.digest,
        checkpoint=read_marked(context.run.checkpoint, Checkpoint),
        baseline=baseline,
        variants=variants,
        repeat_rows=baseline.repeat_rows,
        replicas=replicas,
        references=tuple(references),
        doubts=tuple(doubts),
        unfinished=tuple(todo),
    )


def _same_weights(context: Context, made: Manifest) -> None:
    """Look whether the judged weights are those that lie there; a run outlives its artifacts.

    Raises:
        StoreError: they are there and are others.
    """
    results = context.run.results
    if not (results.root / made.path).is_dir():
        return
    if why := flaw(results, "quantize", made.id, made):
        raise StoreError(
            f"the weights of '{made.variant}' are not those that were judged: {why}",
            where=str(results.root / made.path),
            fix=f"{context.command} makes them again",
        )


def decided(
    context: Context,
    evidence: Evidence,
    on: datetime.date | None = None,
    *,
    policy: Policy | None = None,
    what_if: Sequence[str] = (),
) -> Gate:
    """The verdict that follows from the evidence. Cheap and pure, so never taken from a file.

    Args:
        context: the run.
        evidence: its records.
        on: the day by which waivers expire; default is the context's.
        policy: another one than the run's own.
        what_if: how it differs; a verdict with another policy must say it.
    """
    on = on or context.today
    other = policy or context.loaded.policy
    plan = read_record(context.run.plan, Plan)
    ids = {s.name: s.id for s in plan.steps if s.kind != "gate"}
    id_ = gate_spec(context.loaded, context.run, ids, on).id
    if what_if:
        id_ = content_id(
            {
                "what_if": list(what_if),
                "of": id_,
                "policy": digest_of(other),
                "date": on.isoformat() if other.waivers else "",
            }
        )
    return decide(other, evidence, policy_digest=digest_of(other), id_=id_, on=on, what_if=what_if)


def changed_suites(context: Context) -> dict[str, bool]:
    """The suites that are no longer what the run's answers were asked of.

    Returns:
        Name of each, and whether it may be enough to score the answers again.
    """
    asked: dict[str, list[SuiteResult]] = {}
    for variant in context.loaded.recipe.all_variants:
        path = context.run.variant(variant.name) / "evaluation.json"
        if path.is_file():
            for result in read_record(path, Evaluation).suites:
                asked.setdefault(result.suite, []).append(result)
    folder = context.loaded.project / "eval_suites"
    found: dict[str, bool] = {}
    for name in (n for n in asked if n in context.loaded.recipe.evaluate.suites):
        try:
            suite = load_suite(find_suite(name, folder))
        except SuiteError:
            found[name] = False  # gone or broken: not what was asked
            continue
        if any(result.suite_digest != suite.digest for result in asked[name]):
            found[name] = all(may_score_again(suite.spec, r.conditions) for r in asked[name])
    return found


def report(context: Context) -> Gate:
    """Write `report.html` again for the verdict that is there.

    Raises:
        StoreError: there is no verdict yet, a record is damaged, or `gate.json` is not what the
            records say.
    """
    if not context.run.gate.is_file():
        raise StoreError(
            f"run '{context.run.name}' has no verdict (none yet, or `gate` took it away because "
            "a record could not be believed), and a report is about one",
            where=str(context.run.path),
            fix=f"{context.command} goes on to it",
        )
    evidence = collect(context)
    there = read_record(context.run.gate, Gate)
    record = decided(context, evidence, _day(there.date))
    if there != record:
        raise StoreError(
            "gate.json is not what the records say",
            where=str(context.run.gate),
            fix=f"workbench gate {context.run.name} decides again",
        )
    write_report(context, record, evidence)
    return record


def _day(text: str) -> datetime.date | None:
    """The day of a verdict; None where it has none, or one that somebody edited."""
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def write_aside(context: Context, record: Gate, evidence: Evidence, folder: Path) -> None:
    """Write `gate.json` and `report.html` of a what-if into a folder that is no run's.

    Raises:
        StoreError: it is in the results folder, or holds a verdict that is no what-if.
    """
    refuse_folder(context, folder)
    page, gate = folder / "report.html", folder / "gate.json"
    page.unlink(missing_ok=True)  # of the verdict before
    write_atomic(gate, dump_record(record))
    try:
        write_report(context, record, evidence, page)
    except BaseException:
        gate.unlink(missing_ok=True)  # a verdict has its report
        raise


def refuse_folder(context: Context, folder: Path) -> None:
    """Refuse a folder where a what-if or a comparison could be taken for a run's own verdict.

    Raises:
        StoreError: it is in the results folder, or holds such a verdict.
    """
    root, gate = context.run.results.root, folder / "gate.json"
    if folder == Path():
        raise StoreError(
            "this is the working folder, or an empty name (a variable of the shell may not be set)",
            where=f"--output {folder}",
            fix="name a folder of its own",
        )
    if folder.resolve().is_relative_to(root):
        raise StoreError(
            "the results folder holds the verdicts of runs, and this is none",
            where=f"--output {folder}",
            fix=f"name a folder outside {root}",
        )
    if folder.exists() and not folder.is_dir():
        raise StoreError("this is a file", where=f"--output {folder}", fix="name a folder")
    there = read_record(gate, Gate) if gate.exists() else None
    if there is None and (folder / "report.html").exists():
        raise StoreError(
            "the folder holds a report.html, and no verdict that it could be of",
            where=f"--output {folder}",
            fix="name another folder",
        )
    if there and not there.what_if and not there.compared_with:
        raise StoreError(
            f"the folder holds the verdict of run '{there.run}'",
            where=f"--output {folder}",
            fix="name another folder",
        )


def write_report(
    context: Context, record: Gate, evidence: Evidence, path: Path | None = None
) -> None:
    """Render `report.html`, the run's own unless a path is given."""
    page = render(
        record,
        evidence,
        calibration=_calibration(context),
        questions=questions(context, evidence),
    )
    write_atomic(path or context.run.report, page.encode("utf-8", "backslashreplace"))


def _calibration(context: Context) -> Calibration | None:
    """The set the recipe asks for; None where it asks for none, or for another than is there."""
    sealed = context.run.calibration
    wanted = [s.id for s in read_record(context.run.plan, Plan).steps if s.name == "calibrate"]
    record = read_marked(sealed, Calibration) if sealed.is_file() and wanted else None
    return record if record and [record.id] == wanted else None


def questions(context: Context, evidence: Evidence) -> dict[str, dict[str, tuple[str, str]]]:
    """What each sample asked and expected, where the suite is still the one that was asked."""
    try:
        suites = context.suites
    except SuiteError:
        return {}  # then ids and answers alone are shown
    found: dict[str, dict[str, tuple[str, str]]] = {}
    asked = (r for side in evidence.unquantized if side.evaluation for r in side.evaluation.suites)
    for result in asked:
        suite = suites.get(result.suite)
        if suite is not None and suite.digest == result.suite_digest:
            found[result.suite] = {s.id: _question(suite, s) for s in suite.samples}
    return found


def _question(suite: Suite, sample: Sample) -> tuple[str, str]:
    target = sample.target
    expected = target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)
    return question_text(suite.spec, sample), expected
