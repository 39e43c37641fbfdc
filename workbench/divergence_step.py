"""A run's view of divergence: its corpus, one variant's trace, and the comparison of two.

The trace is part of a variant's evaluation, taken while its server is up. The comparison is in the
run's own folder alone, `variants/<name>/divergence.json`: it is made when both traces are there,
whichever came last, and again only where one of them is new. It changes no verdict.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from workbench.calibrated import source_file
from workbench.calibration import draw
from workbench.context import Context
from workbench.divergence import TAIL, compare
from workbench.divergence_ask import trace
from workbench.divergence_corpus import Corpus, HeldOut, build
from workbench.divergence_trace import read_trace
from workbench.errors import StoreError
from workbench.paired import first_difference
from workbench.plan import calibrate_step
from workbench.progress import Progress
from workbench.records import Calibration, Divergence, DivergenceTrace, Evaluation
from workbench.servers import Endpoint
from workbench.sources import read_source
from workbench.store import dump_record, read_record, write_if_new

TRACE_FILE = "divergence.trace"
RECORD_FILE = "divergence.json"


def corpus_of(context: Context) -> Corpus | None:
    """The corpus of a run, the same for each of its variants; None where the recipe wants none.

    Raises:
        CalibrationError: the calibration source cannot be read.
    """
    recipe = context.loaded.recipe
    wanted = recipe.evaluate.divergence
    if wanted is None:
        return None
    held_out = None
    if recipe.calibration and wanted.held_out:
        source = source_file(context.loaded, recipe.calibration)
        rows = read_source(recipe.calibration, source).rows
        held_out = HeldOut(recipe.calibration, rows, _drawn(context, source))
    return build(wanted, context.suites, held_out, context.tokenizer, recipe.serve.max_model_len)


def _drawn(context: Context, source: Path) -> frozenset[str]:
    """Ids of the rows in any of the recipe's sets: a replica has drawn others."""
    recipe = context.loaded.recipe
    found: dict[str, frozenset[str]] = {}
    for variant in recipe.all_variants:
        name = calibrate_step(recipe, variant.name)
        spec = recipe.calibration_of(variant.name)
        if name in found or spec is None or not recipe.calibrates(variant):
            continue
        sealed = context.run.results.complete("calibrate", context.spec(name).id, Calibration)
        # Not sealed yet, where the baseline is evaluated by hand first: drawing is deterministic.
        record = sealed or draw(spec, source, context.tokenizer)[0]
        found[name] = record.row_ids
    return frozenset().union(*found.values())


def traced(
    context: Context, endpoint: Endpoint, folder: Path, progress: Progress
) -> DivergenceTrace | None:
    """Lead a served variant through the corpus; None where the recipe wants no divergence.

    Raises:
        ServingFailure: the server is gone; what was answered is kept for the next attempt.
    """
    corpus = corpus_of(context)
    if corpus is None:
        return None
    spec = context.loaded.recipe.evaluate
    assert spec.divergence is not None
    return trace(
        endpoint,
        corpus,
        top_k=spec.divergence.top_k,
        file=folder / TRACE_FILE,
        request_seconds=spec.request_seconds,
        progress=progress,
    )


def publish(context: Context, evaluated: str) -> None:
    """Write the comparisons that an evaluation makes possible.

    Args:
        context: the run.
        evaluated: a variant, or the reference of some.
    """
    recipe = context.loaded.recipe
    if recipe.evaluate.divergence is None:
        return
    references = {variant.name for variant in recipe.references}
    for variant in recipe.all_variants:
        reference = recipe.reference(variant)
        if variant.name in references or evaluated not in (variant.name, reference):
            continue
        sides = [_evaluation(context, name) for name in (reference, variant.name)]
        path = context.run.variant(variant.name) / RECORD_FILE
        if None in sides:
            continue
        before, after = (side for side in sides if side is not None)
        if not _is_current(path, before, after):
            made = compared(context, reference, variant.name, before, after)
            write_if_new(path, dump_record(made))


def published(context: Context, variant: str = "") -> Divergence:
    """A variant's comparison for a notebook; where there is none, its `unavailable` says why.

    Args:
        context: the run.
        variant: its name; empty: the first one of the recipe.
    """
    recipe, chosen = context.loaded.recipe, context.variant(variant)
    path = context.run.variant(chosen.name) / RECORD_FILE
    if recipe.evaluate.divergence is None:
        why = "the recipe asks for none (evaluate.divergence)"
    elif chosen in recipe.references:
        why = "the others are compared with it"
    elif not path.is_file():
        why = f"{recipe.reference(chosen)} was not evaluated yet"
    else:
        return read_record(path, Divergence)
    return Divergence(variant=chosen.name, reference=recipe.reference(chosen), unavailable=why)


def compared(
    context: Context, reference: str, variant: str, before: Evaluation, after: Evaluation
) -> Divergence:
    """Compare a variant's trace with its reference's, or say why that cannot be done."""
    mine, theirs = before.divergence, after.divergence
    record = Divergence(
        variant=variant,
        reference=reference,
        tail=TAIL,
        inputs=_inputs(before, after),
        corpus_digest=theirs.corpus_digest if theirs else "",
        top_k=theirs.top_k if theirs else 0,
    )

    def without(why: str) -> Divergence:
        return record.model_copy(update={"unavailable": why})

    for name, side in ((reference, mine), (variant, theirs)):
        if side is None or side.unavailable:
            return without(f"{name}: {side.unavailable if side else 'no trace was taken'}")
    assert mine is not None and theirs is not None
    difference = first_difference(_conditions(before, mine), _conditions(after, theirs))
    if difference:
        return without(f"NOT COMPARABLE: {difference}")
    results = context.run.results
    paths = [
        results.artifact("evaluate", e.id) / t.file for e, t in ((before, mine), (after, theirs))
    ]
    try:
        found = compare(read_trace(paths[0]), read_trace(paths[1]))
    except (ValueError, StoreError) as error:
        return without(f"NOT COMPARABLE: {error}")
    return record.model_copy(
        update={
            "overall": found.overall,
            "by_source": found.by_source,
            "by_position": found.by_position,
        }
    )


def _evaluation(context: Context, name: str) -> Evaluation | None:
    step = context.spec(f"evaluate:{name}")
    return context.run.results.complete("evaluate", step.id, Evaluation)


def _inputs(before: Evaluation, after: Evaluation) -> dict[str, str]:
    return {
        side: evaluation.divergence.digest if evaluation.divergence else ""
        for side, evaluation in (("reference", before), ("variant", after))
    }


def _is_current(path: Path, before: Evaluation, after: Evaluation) -> bool:
    """Whether the comparison that is there is of these two traces."""
    with contextlib.suppress(StoreError):
        found = read_record(path, Divergence)
        return found.overall is not None and found.inputs == _inputs(before, after)
    return False


def _conditions(evaluation: Evaluation, trace: DivergenceTrace) -> dict[str, Any]:
    """What must be equal for two traces to be compared."""
    serving = evaluation.serving
    return {
        "corpus": trace.corpus_digest,
        "top_k": trace.top_k,
        "engine": serving.engine,
        "engine_version": serving.engine_version,
        "environment": serving.environment,
        "dtype": serving.dtype.value,
        "hardware": serving.hardware,
    }
