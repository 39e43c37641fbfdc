"""The five steps. Each notebook calls one of them; each returns the record it left on disk.

A step looks first whether its record is there under the id that follows from its inputs, and
returns it. Otherwise it does the work in its artifact folder, where a cut-short attempt is picked
up, writes the record last, and publishes a copy into the run's folder.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from workbench import __version__
from workbench import calibration as calibration_module
from workbench.artifact import examine
from workbench.base import BASELINE, BASELINE_GGUF
from workbench.calibrated import compared, source_file
from workbench.checkpoint import weigh
from workbench.collect import collect, decided, write_report
from workbench.contamination import refuse
from workbench.context import Context
from workbench.display import in_notebook
from workbench.divergence_step import publish as publish_divergence
from workbench.errors import CalibrationError, StoreError, UserError, WorkbenchError, name_file
from workbench.evaluating import evaluate_variant, throw_away
from workbench.integrity import flaw
from workbench.plan import RECORDS, StepSpec, calibrate_step
from workbench.profile_remarks import profile_remarks
from workbench.profiling import profile_variant
from workbench.quantizers import Task, quantizer
from workbench.records import (
    Calibration,
    Evaluation,
    Gate,
    Manifest,
    PlanStep,
    Profile,
    Record,
)
from workbench.serving import baseline_manifest, digest_cache, manifest
from workbench.store import (
    RECORD,
    SPEC,
    dump_record,
    locked,
    write_atomic,
    write_if_new,
    write_marked,
    write_record,
)
from workbench.variants import AnyVariant
from workbench.what_if import a_day

P = ParamSpec("P")
R = TypeVar("R", bound=Record)


def _step(
    kind: str,
) -> Callable[[Callable[Concatenate[Context, P], R]], Callable[Concatenate[Context, P], R]]:
    """Write start, end and failure of a step to the run's events."""

    def wrap(
        function: Callable[Concatenate[Context, P], R],
    ) -> Callable[Concatenate[Context, P], R]:
        @functools.wraps(function)
        def inner(context: Context, *args: P.args, **kwargs: P.kwargs) -> R:
            variant = str(args[0]) if args else str(kwargs.get("variant", ""))
            if kind in ("quantize", "evaluate", "profile"):
                variant = context.variant(variant).name
            events = context.events.of(f"{kind}:{variant}" if variant else kind)
            try:
                with in_notebook(events.step, context.run.events):
                    events.emit("start", workbench=__version__)
                    record = function(context, *args, **kwargs)
                    events.emit("done")
            except WorkbenchError as error:
                events.emit(
                    "error",
                    type=type(error).__name__,
                    what=error.what,
                    where=error.where,
                    fix=error.fix,
                )
                raise
            except KeyboardInterrupt:
                events.emit("interrupted")
                raise
            if kind != "gate":
                write_record(context.run.plan, context.plan())
            return record

        return cast("Callable[Concatenate[Context, P], R]", inner)

    return wrap


def _once(
    context: Context,
    step: StepSpec,
    cls: type[R],
    make: Callable[[Path], R],
    of: Manifest | None = None,
) -> R:
    """The step's record: the one that is there, or what `make` leaves in the artifact folder.

    A record whose files were altered, or that was measured on other weights than those `of` a
    manifest, is thrown away; of an evaluation only what was altered goes with it. Two runs that
    need the same work do it once: the second one waits.
    """
    results = context.run.results
    record = before = results.complete(step.kind, step.id, cls)
    if record is not None:
        other = of is not None and getattr(record, "inputs", {}).get("weights") != of.weights_digest
        why = flaw(results, step.kind, step.id, record)
        if why and isinstance(record, Evaluation) and not other:
            context.events.of(step.name).emit("reopened", what=f"{why}; the rest of it is kept")
            throw_away(results.artifact(step.kind, step.id), record)
            record = None
        elif why or other:
            results.clear(step.kind, step.id)
            record = before = None
    if record is None:
        folder = results.artifact(step.kind, step.id)
        progress = context.events.of(step.name).progress
        with locked(folder / ".lock", f"step {step.name}", waiting=progress):
            record = results.complete(step.kind, step.id, cls)  # made while we waited
            if record is None:
                write_atomic(
                    folder / SPEC, json.dumps(step.spec, indent=1, sort_keys=True).encode()
                )
                record = make(folder)
                if isinstance(record, Evaluation) and isinstance(before, Evaluation):
                    # The rows that were kept have the scores they were given later.
                    made = record.model_copy(update={"rescored": before.rescored})
                    record = cast("R", made)
                write_marked(folder / RECORD, record)
    return _publish(context, step, record)


def _publish(context: Context, step: StepSpec, record: R) -> R:
    """Copy a record, and the rows it speaks of, into the run's folder."""
    if step.variant and "variant" in type(record).model_fields:
        record = record.model_copy(update={"variant": step.variant})
    if isinstance(record, Evaluation) and step.variant:
        folder = context.run.results.artifact(step.kind, step.id)
        target = context.run.variant(step.variant) / "eval"
        for result in (*record.suites, *record.repeat):
            write_if_new(target / result.rows_file, (folder / result.rows_file).read_bytes())
        baseline_manifest(context)
    if isinstance(record, Calibration):
        spec = context.loaded.recipe.calibration_of(step.variant or "")
        assert spec is not None
        published = context.run.published(step.kind, step.variant)
        record = cast("R", compared(context, spec, record, published))
    write_marked(context.run.published(step.kind, step.variant), record)
    if isinstance(record, Evaluation) and step.variant:
        publish_divergence(context, step.variant)
    if isinstance(record, Calibration) and record.contamination:
        refuse(record.contamination, f"{context.loaded.source}: calibration")
    return record


def publish(context: Context, step: PlanStep) -> None:
    """Put the record of a cached step into the run's folder; another run may have made it.

    Raises:
        StoreError: the record went away since it was planned.
    """
    record = context.run.results.complete(step.kind, step.id, RECORDS[step.kind])
    if record is None:
        raise StoreError(
            f"the record of step {step.name} is gone",
            where=str(context.run.results.artifact(step.kind, step.id)),
            fix="run the same command again",
        )
    _publish(context, context.spec(step.name), record)


@_step("calibrate")
def calibrate(context: Context, variant: str = "") -> Calibration:
    """Sample and seal the calibration set: the recipe's, or a replica's with a seed of its own.

    Raises:
        CalibrationError: the source is broken or too small.
        ContaminationError: it holds more of a suite than the recipe accepts; the set is kept.
    """
    recipe = context.loaded.recipe
    step = context.spec(calibrate_step(recipe, variant))
    spec = recipe.calibration_of(variant)
    assert spec is not None

    def make(folder: Path) -> Calibration:
        source, planned = source_file(context.loaded, spec), context.facts.source_digest
        sealed = calibration_module.seal(spec, source, context.tokenizer, step.id, folder)
        # The step's id stands for the source as it was when the run was opened.
        if isinstance(spec.source, str) and planned not in (None, sealed.source_digest):
            raise CalibrationError(
                "the calibration source changed since the run was opened",
                where=str(source),
                fix="run the same command again",
            )
        return sealed

    return _once(context, step, Calibration, make)


@_step("quantize")
def quantize(context: Context, variant: str = "") -> Manifest:
    """Make one variant's checkpoint.

    Raises:
        JobFailure: the quantizer died, ran out of memory, or left no result.
    """
    chosen = context.variant(variant)
    if chosen.name == BASELINE:
        return baseline_manifest(context)
    step = context.spec(f"quantize:{chosen.name}")
    return _once(context, step, Manifest, lambda folder: _quantize(context, chosen, step, folder))


def _quantize(context: Context, chosen: AnyVariant, step: StepSpec, folder: Path) -> Manifest:
    events, results = context.events.of(step.name), context.run.results
    tool = quantizer(chosen.method)
    needed = tool.environments(chosen)
    environments = {name: context.environment(name, events) for name in needed}
    sealed, sealed_folder = None, None
    if context.loaded.recipe.calibrates(chosen):
        before = context.spec(calibrate_step(context.loaded.recipe, chosen.name))
        sealed = results.complete("calibrate", before.id, Calibration)
        sealed_folder = results.artifact("calibrate", before.id)
        if sealed is None:
            raise StoreError(
                f"variant '{chosen.name}' needs the calibration set, which is not sealed yet",
                where=str(sealed_folder),
                fix="run the calibrate step first (notebooks/01_calibrate.ipynb)",
            )
    converted = None
    if step.spec["converted"]:
        converted = results.root / manifest(context, BASELINE_GGUF).path
    out = folder / "checkpoint"
    shutil.rmtree(out, ignore_errors=True)  # half a checkpoint is worth nothing
    outcome = tool.quantize(
        Task(
            variant=chosen,
            checkpoint=context.facts.checkpoint,
            out=out,
            folder=folder,
            log=context.run.logs / f"quantize-{chosen.name}.log",
            progress=events.progress,
            pythons={name: found.python for name, found in environments.items()},
            calibration=sealed,
            calibration_folder=sealed_folder,
            converted=converted,
        )
    )
    events.tool(f"quantize {chosen.name}", outcome.seconds)
    made = weigh(out, cache=digest_cache(context))
    inputs = {"checkpoint": context.facts.checkpoint.weights_digest}
    if sealed:
        inputs["calibration"] = sealed.seal
    return Manifest(
        id=step.id,
        variant=chosen.name,
        method=chosen.method,
        options=step.spec["options"],
        inputs=inputs,
        path=out.relative_to(results.root).as_posix(),
        weight_bytes=made.weight_bytes,
        weights_digest=made.weights_digest,
        files=made.files,
        environment=" ".join(e.lock_digest for e in environments.values()) or "workbench",
        packages=outcome.packages,
        choices=outcome.choices,
        seconds=outcome.seconds,
        peak_memory_bytes=outcome.peak_memory_bytes,
        peak_gpu_bytes=outcome.peak_gpu_bytes,
        artifact=examine(context.facts.checkpoint, chosen, out, made.files, sealed),
    )


@_step("evaluate")
def evaluate(context: Context, variant: str = "") -> Evaluation:
    """Ask every suite of one variant; the baseline is asked twice where the recipe wants it.

    Raises:
        ServingFailure: the server died twice; what it had answered is kept for the next attempt.
    """
    chosen = context.variant(variant)
    step = context.spec(f"evaluate:{chosen.name}")
    made = manifest(context, chosen.name)

    def make(folder: Path) -> Evaluation:
        return evaluate_variant(context, chosen.name, step, made, folder)

    return _once(context, step, Evaluation, make, of=made)


@_step("profile")
def profile(context: Context, variant: str = "") -> Profile:
    """Measure latency, throughput and memory of one variant.

    Raises:
        ServingFailure: the server died; the loads measured before are kept for the next attempt.
    """
    chosen = context.variant(variant)
    step = context.spec(f"profile:{chosen.name}")
    made = manifest(context, chosen.name)

    def make(folder: Path) -> Profile:
        record = profile_variant(context, chosen.name, step, made, folder)
        for said in profile_remarks(record):
            context.events.of(step.name).emit("remark", what=said)
        return record

    return _once(context, step, Profile, make, of=made)


@_step("gate")
def gate(context: Context, *, date: str = "") -> Gate:
    """Decide from the records alone, and write `gate.json` and `report.html`.

    A former verdict goes as soon as it is known not to hold: where the records are refused, and
    before another one is written. The report comes first, so that a verdict has its own.

    Args:
        context: the run.
        date: the day by which waivers expire, as 2026-12-31; empty: today, UTC.

    Raises:
        StoreError: a record is damaged or from another version.
        RecipeError: `date` is no day.
    """
    day = a_day(date) if date else None
    try:
        evidence = collect(context)
        record = decided(context, evidence, day)
    except (UserError, OSError) as error:
        context.run.withdraw()
        name_file(error, context.run.path)
        raise
    data, there = dump_record(record), context.run.gate
    if there.is_file() and there.read_bytes() != data:
        context.run.withdraw()
    write_report(context, record, evidence)
    write_if_new(there, data)
    return record
