"""The five steps. Each notebook calls one of them; each returns the record it left on disk.

A step looks first whether its record is there under the id that follows from its inputs, and
returns it. Otherwise it does the work in its artifact folder, where a cut-short attempt is picked
up, writes the record last, and publishes a copy into the run's folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from workbench import calibration as calibration_module
from workbench.base import BASELINE, BASELINE_GGUF
from workbench.checkpoint import weigh
from workbench.collect import collect, decided, write_report
from workbench.context import Context
from workbench.display import in_notebook
from workbench.errors import StoreError, WorkbenchError
from workbench.evaluate import run_suite
from workbench.integrity import flaw
from workbench.plan import RECORDS, StepSpec, calibrate_step
from workbench.profile import run_profile
from workbench.quantizers import Task, quantizer
from workbench.records import (
    Calibration,
    Evaluation,
    Gate,
    Manifest,
    PlanStep,
    Profile,
    Record,
    SuiteResult,
)
from workbench.serving import baseline_manifest, digest_cache, manifest, served
from workbench.store import (
    RECORD,
    SPEC,
    dump_record,
    locked,
    write_atomic,
    write_if_new,
    write_record,
)

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
                    events.emit("start")
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


@contextlib.contextmanager
def _work(context: Context, step: StepSpec) -> Iterator[Path]:
    """The step's artifact folder, locked against a second run doing the same work."""
    folder = context.run.results.artifact(step.kind, step.id)
    with locked(folder / ".lock", f"step {step.name}"):
        write_atomic(folder / SPEC, json.dumps(step.spec, indent=1, sort_keys=True).encode())
        yield folder


def _reusable(context: Context, step: StepSpec, cls: type[R]) -> R | None:
    """The step's record if it is there and what it rests on is untouched; else none of it is."""
    results = context.run.results
    record = results.complete(step.kind, step.id, cls)
    if record is not None and flaw(results, step.kind, step.id, record):
        results.clear(step.kind, step.id)
        return None
    return record


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
    write_if_new(context.run.published(step.kind, step.variant), dump_record(record))
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
    """
    recipe = context.loaded.recipe
    step = context.spec(calibrate_step(recipe, variant))
    record = context.run.results.complete("calibrate", step.id, Calibration)
    if record is None:
        spec, source = recipe.calibration_of(variant), context.loaded.calibration_source
        assert spec is not None and source is not None
        with _work(context, step) as folder:
            record = calibration_module.seal(spec, source, context.tokenizer, step.id, folder)
            write_record(folder / RECORD, record)
    return _publish(context, step, record)


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
    results = context.run.results
    record = _reusable(context, step, Manifest)
    if record is None:
        events = context.events.of(step.name)
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
        with _work(context, step) as folder:
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
            record = Manifest(
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
            )
            write_record(folder / RECORD, record)
    return _publish(context, step, record)


@_step("evaluate")
def evaluate(context: Context, variant: str = "") -> Evaluation:
    """Ask every suite of one variant; the baseline is asked twice where the recipe wants it.

    Raises:
        ServingFailure: the server died; what it had answered is kept for the next attempt.
    """
    chosen = context.variant(variant)
    step = context.spec(f"evaluate:{chosen.name}")
    events = context.events.of(step.name)
    results = context.run.results
    made = manifest(context, chosen.name)
    record = _reusable(context, step, Evaluation)
    if record is not None and record.inputs["weights"] != made.weights_digest:
        results.clear("evaluate", step.id)
        record = None
    if record is None:
        spec = context.loaded.recipe.evaluate
        begun = time.monotonic()
        with _work(context, step) as folder, served(context, chosen.name, events) as endpoint:
            conditions = {
                "engine": endpoint.serving.engine,
                "engine_version": endpoint.serving.engine_version,
                "dtype": endpoint.serving.dtype.value,
                "max_model_len": endpoint.serving.max_model_len,
                "hardware": endpoint.serving.hardware,
                "concurrency": spec.concurrency,
            }

            def ask(name: str, rows: Path) -> SuiteResult:
                asked = time.monotonic()
                result = run_suite(
                    endpoint,
                    context.suites[name],
                    context.tokenizer,
                    rows=rows,
                    conditions=conditions,
                    concurrency=spec.concurrency,
                    limit=spec.limit,
                    request_seconds=spec.request_seconds,
                    progress=events.progress,
                )
                events.tool(f"ask {name}", time.monotonic() - asked)
                return result

            suites = [ask(name, folder / f"{name}.jsonl") for name in spec.suites]
            repeat: list[SuiteResult] = []
            if step.spec["evaluate"]["noise_floor"]:
                repeat = [ask(name, folder / f"{name}.repeat.jsonl") for name in spec.suites]
            record = Evaluation(
                id=step.id,
                variant=chosen.name,
                inputs={"weights": made.weights_digest, "served": endpoint.serving.served_digest},
                serving=endpoint.serving,
                suites=tuple(suites),
                repeat=tuple(repeat),
                seconds=time.monotonic() - begun,
                finished=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            write_record(folder / RECORD, record)
    return _publish(context, step, record)


@_step("profile")
def profile(context: Context, variant: str = "") -> Profile:
    """Measure latency, throughput and memory of one variant.

    Raises:
        ServingFailure: the server died.
    """
    chosen = context.variant(variant)
    step = context.spec(f"profile:{chosen.name}")
    events = context.events.of(step.name)
    results = context.run.results
    made = manifest(context, chosen.name)
    record = results.complete("profile", step.id, Profile)
    if record is not None and record.inputs["weights"] != made.weights_digest:
        results.clear("profile", step.id)
        record = None
    if record is None:
        spec = context.loaded.recipe.profile
        assert spec is not None
        with _work(context, step) as folder, served(context, chosen.name, events) as endpoint:
            begun = time.monotonic()
            points, peak, peak_gpu = run_profile(
                endpoint, spec, context.tokenizer, progress=events.progress
            )
            seconds = time.monotonic() - begun
            events.tool(f"profile {chosen.name}", seconds)
            record = Profile(
                id=step.id,
                variant=chosen.name,
                inputs={"weights": made.weights_digest, "served": endpoint.serving.served_digest},
                serving=endpoint.serving,
                points=points,
                peak_memory_bytes=peak,
                peak_gpu_bytes=peak_gpu,
                seconds=seconds,
            )
            write_record(folder / RECORD, record)
    return _publish(context, step, record)


@_step("gate")
def gate(context: Context) -> Gate:
    """Decide from the records alone, and write `gate.json` and `report.html`.

    Raises:
        StoreError: a record is damaged or from another version.
    """
    evidence = collect(context)
    record = decided(context, evidence)
    write_if_new(context.run.gate, dump_record(record))
    write_report(context, record, evidence)
    return record
