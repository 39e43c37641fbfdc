"""What can be known to be wrong with a recipe's loads before a server starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from workbench.arrivals import ClosedLoop
from workbench.errors import RecipeError
from workbench.estimates import said_span
from workbench.plan import configurations_of, variant_lane
from workbench.profile_spec import ProfileSpec
from workbench.reach import RIGHT_OR_WRONG
from workbench.recipe import spot
from workbench.records import Hardware
from workbench.saturation import LEAST
from workbench.spec import ServeSpec
from workbench.sweep_grid import own_options, refused
from workbench.traces import prompt_ids
from workbench.workload_spec import Workload
from workbench.workloads import suite_asks

#: Nobody waits for a profile longer than this without having meant it.
_LONG_SECONDS = 3600.0
#: Two servers together leave this much of a GPU to the driver and the engines' own graphs.
_MOST_SHARE = 0.9

if TYPE_CHECKING:
    from workbench.context import Context
    from workbench.validate import Finding


def load_findings(context: Context) -> list[Finding]:
    """Check the profile against the context, its traces and suites.

    Raises:
        RecipeError: a trace or a suite cannot be asked, or a request is longer than the context.
    """
    from workbench.validate import Finding

    profile = context.loaded.recipe.profile
    for workload in profile.workloads if profile else ():
        if workload.trace is not None:
            _trace(context, workload)
        if workload.suite is not None:
            _suite(context, workload)
    if profile is None:
        return []
    spans = {name: rows[-1].at for name, rows in context.traces.items()}
    return [
        *(Finding("warn", said) for said in _long(profile, spans)),
        *(Finding("warn", said) for said in _surprises(profile)),
        *(
            Finding("warn", said)
            for said in _uncached(profile, context.loaded.recipe.serve, context.facts.hardware)
        ),
        *(Finding("ok" if well else "warn", said) for well, said in _alternate(context, profile)),
        *(Finding("ok" if well else "warn", said) for well, said in _sweep(context, profile)),
    ]


def _alternate(context: Context, profile: ProfileSpec) -> Iterator[tuple[bool, str]]:
    """Which variants are measured in turn with their reference, and whether both servers fit.

    Raises:
        RecipeError: they cannot share the GPU.
    """
    if not profile.alternate:
        return
    loaded, facts = context.loaded, context.facts
    share = loaded.recipe.serve.gpu_memory_utilization
    if facts.hardware.gpus and loaded.recipe.serve.engine == "vllm" and share > _MOST_SHARE / 2:
        raise RecipeError(
            f"'profile.alternate' has two servers up, and serve.gpu_memory_utilization {share:g} "
            "for each leaves too little of the GPU free",
            where=spot(loaded.source, "serve.gpu_memory_utilization"),
            fix=f"set it to at most {_MOST_SHARE / 2:g}, or leave 'profile.alternate' out",
        )
    variants = loaded.recipe.variants
    lanes = {v.name: variant_lane(loaded, v, facts).name for v in variants}
    in_turn = [v for v in variants if loaded.recipe.in_turn_with(v, lanes[v.name])]
    if in_turn:
        said = ", ".join(f"{v.name} with {loaded.recipe.reference(v)}" for v in in_turn)
        yield True, f"measured in turn, two servers up: {said}"
    if left := [v.name for v in variants if v not in in_turn]:
        yield bool(in_turn), f"measured alone, as a twin's speed decides nothing: {', '.join(left)}"


def _sweep(context: Context, profile: ProfileSpec) -> Iterator[tuple[bool, str]]:
    """What a sweep of serving options will do, and which variants it leaves out."""
    if profile.sweep is None:
        return
    loaded, facts = context.loaded, context.facts
    problem = refused(profile.sweep, loaded.recipe.serve, facts.hardware)
    if problem is not None:
        key, what, fix = problem
        raise RecipeError(what, where=spot(loaded.source, key), fix=fix)
    swept = [v.name for v in loaded.recipe.all_variants if v.name not in loaded.recipe.replicas]
    starts, options = 0, set[str]()
    for name in swept:
        found = configurations_of(loaded, facts, name)
        if isinstance(found, str):
            yield False, f"{name}: {found}"
        else:
            starts += len(found)
            options |= {name for one in found for name in one.given}
    loads = profile.swept.load_count
    yield True, f"sweep: {starts} more server starts, {starts * loads} points more"
    if "kv_cache_dtype" in options:
        yield (
            False,
            "sweep: answers depend on kv_cache_dtype, and suites are asked under the recipe's own "
            "alone: no quality is told of the others",
        )


def _trace(context: Context, workload: Workload) -> None:
    most = context.loaded.recipe.serve.max_model_len
    for row in context.traces[workload.name]:
        given = row.input_tokens or 0
        if row.prompt is not None:
            given = len(prompt_ids(row, lambda text: context.tokenizer.encode(text, False)))
        needs = given + row.output_tokens
        if needs > most:
            raise RecipeError(
                f"a request of trace '{workload.trace}' needs {needs} tokens, "
                f"serve.max_model_len is {most}",
                where=row.where,
                fix="leave the line out, or raise serve.max_model_len",
            )


def _suite(context: Context, workload: Workload) -> None:
    suite = context.load_suites[workload.name]
    where = spot(context.loaded.source, "profile.workloads")
    if suite.spec.scorer.name not in RIGHT_OR_WRONG or suite.spec.repeats > 1:
        raise RecipeError(
            f"workload '{workload.name}': quality goodput counts right answers, and suite "
            f"'{suite.spec.name}' gives grades ({suite.spec.scorer.name})",
            where=where,
            fix=f"choose a suite scored by one of {', '.join(sorted(RIGHT_OR_WRONG))}",
        )
    suite_asks(
        suite.spec, suite.samples, lambda sample: (), ClosedLoop(concurrency=1), count=1, seed=""
    )


def _uncached(profile: ProfileSpec, serve: ServeSpec, hardware: Hardware) -> Iterator[str]:
    """Workloads of shared prefixes that no configuration keeps in a cache."""
    own = own_options(serve.engine, serve, "auto", hardware)
    if own.get("prefix_caching", True):  # not known: another engine, or `serve.args` say
        return
    sweep = profile.sweep
    cached = profile.swept.workloads if sweep and True in sweep.prefix_caching else ()
    for workload in profile.workloads:
        if workload.shared_prefix and workload not in cached:
            yield (
                f"workload '{workload.name}' shares {workload.shared_prefix:.0%} of its prompts, "
                "and prefix caching is off unless the recipe asks for it: ordinary prefills are "
                "measured; write 'serve: {args: [--enable-prefix-caching]}', or compare both with "
                "'sweep: {prefix_caching: [true, null]}' under 'profile'"
            )


def _long(profile: ProfileSpec, traces: Mapping[str, float]) -> Iterator[str]:
    """Loads whose requests are so rare that they take longer than anybody meant."""
    waits = profile.open_seconds(traces)
    if waits > _LONG_SECONDS:
        yield (
            f"the open loops alone take {said_span(waits)} for each variant: their requests are so "
            "rare"
        )
    rates = profile.highest_rate
    if rates is not None and profile.search_seconds > _LONG_SECONDS:
        yield (
            f"the search for the highest rate may take {said_span(profile.search_seconds)} for "
            f"each variant: it begins at 'low', {rates.low:g} requests/s; raise 'highest_rate.low'"
        )


def _surprises(profile: ProfileSpec) -> Iterator[str]:
    rates = profile.highest_rate
    for workload in profile.workloads if rates else ():
        most = profile.count(workload) * (1 - rates.share) if rates else 0.0
        if workload.trace is None and most < 1:
            yield (
                f"workload '{workload.name}': of {profile.count(workload)} requests "
                f"{rates.share if rates else 0:.0%} in time means all of them, so one late request "
                "decides the highest rate; raise 'requests'"
            )
        count = profile.count(workload)
        if workload.trace is None and count < LEAST:
            yield (
                f"workload '{workload.name}': {count} requests at a rate do not show whether the "
                f"queue grows ({LEAST} are the least), so the highest rate may be one that the "
                "server cannot keep up with for long; raise 'requests'"
            )
    for workload in profile.workloads:
        count = profile.count(workload)
        levels = [ld.concurrency for ld in profile.loads(workload) if isinstance(ld, ClosedLoop)]
        most = max(levels, default=0)
        if most > count:
            yield (
                f"workload '{workload.name}': {count} requests are never {most} at a time; raise "
                "'requests', or lower the concurrency"
            )
        elif 2 * most > count:
            yield (
                f"workload '{workload.name}': {count} requests at concurrency {most} are all begin "
                f"and end of a load; {2 * most} or more show its steady state"
            )
