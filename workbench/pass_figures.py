"""From passes to the figures of a load: what was asked, what came of it, how quiet it was.

A pass does not hold its prompts; they are made again of the recipe's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.arrivals import AnyArrivals, load_name
from workbench.load_inputs import Inputs
from workbench.load_records import LoadSummary
from workbench.load_stats import Repeat, summarize
from workbench.passes import LOADS, Pass, conditions, pass_file, read_pass
from workbench.profile_spec import ProfileSpec
from workbench.quiet import alike, quietness
from workbench.records import Serving
from workbench.traffic import Ask
from workbench.workload_spec import Workload


def kept_loads(
    spec: ProfileSpec, inputs: Inputs, serving: Serving, *, folder: Path, under: str = ""
) -> tuple[LoadSummary, ...]:
    """The loads that were measured whole before a server died, in the recipe's order.

    Args:
        spec: as `run_profile` was given it; rates that were searched are left out.
        inputs: the same.
        serving: of that server; passes of another one are none of its.
        folder: of the step.
        under: folder in its `loads/`.
    """
    loads, served = [], conditions(serving)
    for workload in spec.workloads:
        for load in spec.loads(workload):
            passes = []
            for repeat in range(spec.repeats):
                path = pass_file(folder / LOADS / under, workload.name, load, repeat)
                done = read_pass(path, served)
                asks = asks_of(spec, inputs, workload, load, repeat)
                if done is not None and len(done.outcomes) == len(asks):
                    passes.append((repeat_of(inputs, workload, asks, done), done))
            if len(passes) == spec.repeats:
                loads.append(summary_of(spec, workload, load, passes))
    return tuple(loads)


def asks_of(
    spec: ProfileSpec, inputs: Inputs, workload: Workload, load: AnyArrivals, repeat: int
) -> Sequence[Ask]:
    """The requests of one pass."""
    seed = f"{spec.seed}/{workload.name}"
    texts = f"{seed}/{load_name(load)}/{repeat}"
    return inputs.asks(workload, load, spec.count(workload), seed=seed, texts=texts)


def repeat_of(inputs: Inputs, workload: Workload, asks: Sequence[Ask], done: Pass) -> Repeat:
    """A pass as the sums take it: requests, outcomes, and which answers were right."""
    outcomes = done.results()
    return Repeat(asks, outcomes, inputs.graded(workload, asks, outcomes))


def summary_of(
    spec: ProfileSpec,
    workload: Workload,
    load: AnyArrivals,
    passes: Sequence[tuple[Repeat, Pass]],
) -> LoadSummary:
    """The figures of a load over its repeats, with what server, client and machine did."""
    summary = summarize(
        [repeat for repeat, _ in passes],
        workload=workload.name,
        arrivals=load,
        targets=spec.targets,
    )
    usage = tuple(done.usage for _, done in passes)
    machines = [used.machine for used in usage]
    waits = [(done.client_wait_seconds, done.seconds) for _, done in passes]
    shares = [wait / took for wait, took in waits if wait is not None and took > 0]
    computed = [done.client_cpu_seconds / done.seconds for _, done in passes if done.seconds > 0]
    steals = [m.steal for m in machines if m.steal is not None]
    throttled: dict[str, float] = {}
    for gpu in (gpu for machine in machines for gpu in machine.gpus):
        for reason, share in (gpu.throttled or {}).items():
            throttled[reason] = max(share, throttled.get(reason, 0.0))
    told = any(g.throttled is not None for m in machines for g in m.gpus)
    others = [o for m in machines for o in m.others or ()]
    quiet = quietness(
        baseline=alike(summary) if len(passes) > 1 and workload.suite is None else None,
        steal=max(steals, default=None),
        throttled=throttled if told else None,
        others=None if any(m.others is None for m in machines) else others,
        queued_ms=summary.queued_ms.p99.value,
        client_wait=max(shares, default=None) if len(shares) == len(passes) else None,
        client_cpu=max(computed, default=None),
    )
    return summary.model_copy(
        update={
            "quiet": quiet,
            "usage": usage,
            "seen_before": sum(done.seen_before for _, done in passes),
            "client_cpu_seconds": sum(done.client_cpu_seconds for _, done in passes),
            "client_wait_seconds": None
            if any(wait is None for wait, _ in waits)
            else sum(wait or 0.0 for wait, _ in waits),
        }
    )
