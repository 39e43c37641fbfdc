"""From a produced checkpoint to a running server: manifests, the twin, and who holds the server.

A run starts one server per variant and holds it while its notebooks measure; a notebook run by hand
finds none and starts its own. On the emulated lane the server gets the checkpoint's dequantized
twin, made once, and every record that comes of it says so.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.base import BASELINE
from workbench.checkpoint import weigh
from workbench.context import Context
from workbench.digest import content_id
from workbench.drafts import served_drafts
from workbench.errors import StoreError
from workbench.events import Events
from workbench.plan import STEP_VERSIONS, most_at_a_time, serving_dtype, variant_lane
from workbench.quantizers.twin import dequantize
from workbench.questions import fake_answers
from workbench.records import Lane, Manifest
from workbench.servers import Endpoint, attach, serve
from workbench.store import (
    RECORD,
    locked,
    write_atomic,
    write_marked,
    write_record,
)
from workbench.sweep_spec import ServingOptions


def digest_cache(context: Context) -> Path:
    """The results folder's cache of digests."""
    return context.run.results.root / ".cache" / "digests.json"


def baseline_manifest(context: Context) -> Manifest:
    """The unquantized checkpoint, as a variant like any other."""
    checkpoint = context.facts.checkpoint
    record = Manifest(
        id=content_id({"baseline": checkpoint.weights_digest, "files": checkpoint.files}),
        variant=BASELINE,
        method="none",
        options={},
        inputs={"checkpoint": checkpoint.weights_digest},
        path=str(context.model_path),
        weight_bytes=checkpoint.weight_bytes,
        weights_digest=checkpoint.weights_digest,
        files=checkpoint.files,
        environment="workbench",
        packages={},
        seconds=0.0,
    )
    write_marked(context.run.published("quantize", BASELINE), record)
    return record


def manifest(context: Context, variant: str) -> Manifest:
    """The manifest of a variant that was made before.

    Raises:
        StoreError: it was not.
    """
    if variant == BASELINE:
        return baseline_manifest(context)
    step = context.spec(f"quantize:{variant}")
    record = context.run.results.complete("quantize", step.id, Manifest)
    if record is None:
        raise StoreError(
            f"variant '{variant}' was not quantized yet",
            where=str(context.run.path),
            fix="run the quantize step first (notebooks/02_quantize.ipynb)",
        )
    record = record.model_copy(update={"variant": variant})
    write_marked(context.run.published("quantize", variant), record)
    return record


def _twin(context: Context, made: Manifest, events: Events) -> Manifest:
    """The dequantized twin of a produced checkpoint, made once."""
    environment = context.environment("quantize", events)
    spec = {
        "kind": "twin",
        "version": STEP_VERSIONS["twin"],
        "of": made.weights_digest,
        "environment": environment.lock_digest,
    }
    results = context.run.results
    id_ = content_id(spec)
    record = results.complete("twin", id_, Manifest)
    if record is not None:
        return record
    folder = results.artifact("twin", id_)
    what = f"the twin of {made.variant}"
    with locked(folder / ".lock", what, waiting=events.progress):
        record = results.complete("twin", id_, Manifest)  # made while we waited
        if record is not None:
            return record
        out = folder / "checkpoint"
        shutil.rmtree(out, ignore_errors=True)
        outcome = dequantize(
            results.root / made.path,
            out,
            python=environment.python,
            folder=folder,
            log=context.run.logs / f"twin-{made.variant}.log",
            progress=events.progress,
        )
        events.tool(f"twin {made.variant}", outcome.seconds)
        found = weigh(out, cache=digest_cache(context))
        record = made.model_copy(
            update={
                "id": id_,
                "method": f"{made.method} (dequantized twin)",
                "inputs": {"checkpoint": made.weights_digest},
                "path": out.relative_to(results.root).as_posix(),
                "weight_bytes": found.weight_bytes,
                "weights_digest": found.weights_digest,
                "files": found.files,
                "environment": environment.lock_digest,
                "packages": outcome.packages,
                "choices": outcome.choices,
                "seconds": outcome.seconds,
                "peak_memory_bytes": outcome.peak_memory_bytes,
                "peak_gpu_bytes": outcome.peak_gpu_bytes,
                "artifact": None,  # the checkpoint's, not the twin's
            }
        )
        write_record(folder / RECORD, record)
    return record


def _drafts(context: Context, variant: str, options: ServingOptions | None) -> dict[str, str]:
    """Digests of the draft models a server of a variant loads."""
    engine = context.loaded.recipe.engine(context.variant(variant))
    known, cache = context.facts.drafts, digest_cache(context)
    return served_drafts(context.loaded, engine, options, known=known, cache=cache)


@contextlib.contextmanager
def served(context: Context, variant: str, events: Events) -> Iterator[Endpoint]:
    """A server for a variant: the one a run already holds, or one of our own for the block.

    Raises:
        ServingFailure: it does not start, or fails its canary.
        UserError: a draft model is not there, or is another one by now.
    """
    made = manifest(context, variant)
    lane = variant_lane(context.loaded, context.variant(variant), context.facts)
    drafts = _drafts(context, variant, None)
    loaded = _twin(context, made, events) if lane.name == "emulated" else made
    folder = context.run.variant(variant) / "server"
    held = attach(folder)
    same = held and (held.serving.served_digest, held.serving.drafts)
    if held is not None and same == (loaded.weights_digest, drafts):
        yield held
        return
    begun = time.monotonic()
    with _started(context, made, loaded, lane, folder, events, drafts) as endpoint:
        events.tool(f"start server {variant}", time.monotonic() - begun)
        yield endpoint
        begun = time.monotonic()
    events.tool(f"stop server {variant}", time.monotonic() - begun)


def served_with(
    context: Context, variant: str, events: Events, options: ServingOptions, folder: Path
) -> contextlib.AbstractContextManager[Endpoint]:
    """A server of its own for a variant that is not emulated, with other serving options.

    Args:
        context: the run.
        variant: its name.
        events: of the step.
        options: on top of the recipe's own.
        folder: for its log.

    Raises:
        ServingFailure: it does not start, or fails its canary.
        UserError: a draft model is not there, or is another one by now.
    """
    made = manifest(context, variant)
    lane = variant_lane(context.loaded, context.variant(variant), context.facts)
    drafts = _drafts(context, variant, options)
    return _started(context, made, made, lane, folder, events, drafts, options)


@contextlib.contextmanager
def _started(
    context: Context,
    made: Manifest,
    loaded: Manifest,
    lane: Lane,
    folder: Path,
    events: Events,
    drafts: dict[str, str],
    options: ServingOptions | None = None,
) -> Iterator[Endpoint]:
    """A server for the block: of the variant `made`, with the weights of `loaded`."""
    variant = made.variant
    chosen = context.variant(variant)
    found = weigh(context.run.results.root / loaded.path, cache=digest_cache(context))
    if found.weights_digest != loaded.weights_digest:
        raise StoreError(
            f"the weights of variant '{variant}' are not those its manifest speaks of",
            where=str(context.run.results.root / loaded.path),
            fix=f"{context.command} --force quantize:{variant}",
        )
    divergence = context.loaded.recipe.evaluate.divergence
    spec, engine = context.loaded.recipe.serve, context.loaded.recipe.engine(chosen)
    environment = context.environment(engine, events) if engine != "fake" else None
    extra: dict[str, str] = {}
    if engine == "fake":
        answers = folder / "answers.json"
        known: dict[str, Any] = {}
        for suite in context.suites.values():
            known.update(fake_answers(suite, context.tokenizer))
        for suite in context.load_suites.values():
            known.update(fake_answers(suite, context.tokenizer, as_ids=True))
        write_atomic(answers, json.dumps(known).encode())
        extra["WORKBENCH_FAKE_ANSWERS"] = str(answers)
    with serve(
        spec,
        engine_name=engine,
        checkpoint=context.run.results.root / loaded.path,
        model_name=variant,
        lane=lane,
        dtype=serving_dtype(context.loaded, context.facts, engine),
        served_digest=loaded.weights_digest,
        twin_of=made.weights_digest if loaded is not made else None,
        drafts=drafts,
        environment=environment,
        hardware=context.facts.hardware,
        folder=folder,
        kv_cache=getattr(chosen, "kv_cache", "auto"),
        concurrency=most_at_a_time(context.loaded.recipe),
        tools=any(suite.spec.ask == "call_tools" for suite in context.suites.values()),
        top_logprobs=divergence.top_k if divergence else 0,
        options=options,
        extra_env=extra,
        progress=events.progress,
        remark=lambda said: events.emit("remark", what=said),
    ) as endpoint:
        yield endpoint
