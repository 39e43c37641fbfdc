"""The profile step: from a run to what its workloads are made of, and to the record.

Traces and suites that a workload names are read here; the load itself is `workbench.profile`'s, and
other serving options are `workbench.sweeping`'s.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from workbench.alternating import BESIDE, run_alternated
from workbench.context import Context
from workbench.errors import ServingFailure, StoreError, UserError
from workbench.events import Events
from workbench.memory import stated
from workbench.plan import StepSpec, configurations_of, variant_lane
from workbench.profile import Inputs, Measured, SuiteLoad, run_profile
from workbench.prompts import render_prompt
from workbench.records import Manifest, Profile
from workbench.scorers import grade
from workbench.servers import Endpoint
from workbench.serving import manifest, served, served_with
from workbench.store import read_marked, write_marked
from workbench.suite_spec import Sample
from workbench.suites import Suite
from workbench.sweep_spec import ServingOptions
from workbench.sweeping import run_sweep
from workbench.weights import read_model

#: The recipe's own configuration, kept in the step's folder while its sweep is not done.
OWN = "own.json"


def profile_variant(
    context: Context, variant: str, step: StepSpec, made: Manifest, folder: Path
) -> Profile:
    """Put every load of the recipe on a variant's server, then the sweep's on servers of its own.

    What the recipe's own configuration came to is kept while its sweep is not done.

    Args:
        context: the run.
        variant: its name.
        step: whose record it is.
        made: the variant's manifest.
        folder: of the step; passes that are in it are not measured again.

    Raises:
        ServingFailure: the server died, or answered nothing.
        UserError: a trace or a suite cannot be read or asked.
    """
    spec = context.loaded.recipe.profile
    assert spec is not None
    if spec.sweep is None:
        return _own(context, variant, step, made, folder)
    record = _kept(folder / OWN, step, made)
    if record is None:
        record = _own(context, variant, step, made, folder)
        write_marked(folder / OWN, record)
    chosen = configurations_of(context.loaded, context.facts, variant)
    if isinstance(chosen, str):
        return record.model_copy(update={"not_swept": chosen})
    events = context.events.of(step.name)
    begun = time.monotonic()

    def start(options: ServingOptions, at: Path) -> AbstractContextManager[Endpoint]:
        return served_with(context, variant, events, options, at)

    swept = run_sweep(
        start,
        chosen,
        spec.swept,
        load_inputs(context),
        folder=folder,
        weights=made.weights_digest,
        progress=events.progress,
    )
    events.tool(f"sweep {variant}", time.monotonic() - begun)
    return record.model_copy(update={"sweep": swept})


def _kept(path: Path, step: StepSpec, made: Manifest) -> Profile | None:
    """The recipe's own configuration as an attempt measured it whose sweep was not done."""
    try:
        record = read_marked(path, Profile)
    except StoreError:
        return None
    same = record.id == step.id and record.inputs.get("weights") == made.weights_digest
    return record if same else None


def _own(context: Context, variant: str, step: StepSpec, made: Manifest, folder: Path) -> Profile:
    spec = context.loaded.recipe.profile
    assert spec is not None
    events = context.events.of(step.name)
    inputs = load_inputs(context)
    chosen = context.variant(variant)
    lane = variant_lane(context.loaded, chosen, context.facts)
    reference = context.loaded.recipe.in_turn_with(chosen, lane.name)
    beside: Endpoint | None = None
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(served(context, variant, events))
        if reference:
            beside = stack.enter_context(_started_beside(context, variant, reference, events))
        begun = time.monotonic()
        if beside is None:
            found = run_profile(endpoint, spec, inputs, folder=folder, progress=events.progress)
        else:
            found, other = run_alternated(
                endpoint, beside, spec, inputs, folder=folder, progress=events.progress
            )
        seconds = time.monotonic() - begun
        events.tool(f"profile {variant}", seconds)
    record = _record(step, variant, made, endpoint, found, seconds)
    if beside is not None:
        original = manifest(context, reference)
        in_turn = _record(step, reference, original, beside, other, seconds)
        record = record.model_copy(update={"beside": in_turn})
    try:
        model = read_model(context.run.results.root / endpoint.serving.served_path)
        memory = stated(record, model, context.facts.hardware, longest(context))
    except UserError as error:  # an architecture whose cache nobody can tell is served all the same
        return record.model_copy(update={"memory_unknown": error.what})
    return record.model_copy(update={"memory": memory})


def _record(
    step: StepSpec,
    variant: str,
    made: Manifest,
    endpoint: Endpoint,
    found: Measured,
    seconds: float,
) -> Profile:
    return Profile(
        id=step.id,
        variant=variant,
        inputs={"weights": made.weights_digest, "served": endpoint.serving.served_digest},
        serving=endpoint.serving,
        points=found.points,
        loads=found.loads,
        highest_rates=found.highest,
        peak_memory_bytes=found.peak_rss,
        peak_gpu_bytes=found.peak_gpu,
        resumed=found.resumed,
        began=found.began.isoformat(timespec="seconds"),
        finished=found.finished.isoformat(timespec="seconds"),
        seconds=seconds,
    )


@contextlib.contextmanager
def _started_beside(
    context: Context, variant: str, reference: str, events: Events
) -> Iterator[Endpoint]:
    """The reference's server, beside the variant's, in a folder of the variant's.

    Raises:
        ServingFailure: it does not start; two servers may not fit.
    """
    folder = context.run.variant(variant) / "server" / BESIDE
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(
                served_with(context, reference, events, ServingOptions(), folder)
            )
        except ServingFailure as error:
            error.fix = (
                f"two servers are up for 'profile.alternate'; where they do not fit, remove it. "
                f"{error.fix}"
            )
            raise
        events.tool(f"start server {reference} beside {variant}", time.monotonic() - begun)
        yield endpoint
        begun = time.monotonic()
    events.tool(f"stop server {reference} beside {variant}", time.monotonic() - begun)


def longest(context: Context) -> int:
    """Tokens of a long request of the recipe: the largest P95 of its workloads' lengths."""
    spec = context.loaded.recipe.profile
    assert spec is not None
    found = [tokens for w in spec.workloads if (tokens := w.tokens_at(0.95)) is not None]
    return max(found, default=context.loaded.recipe.serve.max_model_len)


def load_inputs(context: Context) -> Inputs:
    """What the recipe's workloads are made of.

    Raises:
        UserError: a trace or a suite is missing or broken.
    """
    return Inputs(
        context.tokenizer,
        context.traces,
        {name: _suite_load(context, suite) for name, suite in context.load_suites.items()},
    )


def _suite_load(context: Context, suite: Suite) -> SuiteLoad:
    tokenizer = context.tokenizer

    def prompt_of(sample: Sample) -> list[int]:
        return tokenizer.encode(render_prompt(suite.spec, sample, tokenizer), False)

    def right(sample: Sample, answer: str) -> bool:
        return grade(suite, sample, answer).score == 1

    return SuiteLoad(suite, prompt_of, right)
