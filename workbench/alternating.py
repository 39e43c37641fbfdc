"""Measures two servers in turn: a variant's, and beside it that of its unquantized reference.

Variants that are measured one after another differ by whatever the machine did meanwhile as well:
it grew hotter, or something else began to run. Here both servers are up, one idle while the other
is measured, and every load is put on both in turn: reference, variant, variant, reference. What
drifts slowly then adds the same to each, and a ratio of the two is of the weights.

Both need room: an idle server keeps its weights and its KV cache in memory, and on a GPU each has
its own share (`serve.gpu_memory_utilization`). Rates are searched for the variant alone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from workbench.load_inputs import Inputs
from workbench.passes import LOADS
from workbench.profile import Measured, Profiler
from workbench.profile_spec import ProfileSpec
from workbench.progress import Progress, silent
from workbench.servers import Endpoint
from workbench.watch import Watch

#: Folder of the reference's passes, in `loads/`.
BESIDE = "beside"


def run_alternated(
    endpoint: Endpoint,
    beside: Endpoint,
    spec: ProfileSpec,
    inputs: Inputs,
    *,
    folder: Path,
    progress: Progress = silent,
) -> tuple[Measured, Measured]:
    """Measure every workload under every load on both servers, in turn.

    Which one is first changes from load to load, and of one load from repeat to repeat. Both get
    the same prompts. A pass of an attempt that was cut short is kept with its partner only.

    Args:
        endpoint: the variant's server.
        beside: its reference's.
        spec: workloads, loads, requests, repeats and seed.
        inputs: what the workloads are made of.
        folder: of the step; the passes are kept in its `loads/`, the reference's in a folder there.
        progress: called with passes done, all, and which one runs on which server.

    Returns:
        What was found of the variant, and of the reference.

    Raises:
        ServingFailure: a server died, or not one request to it was completed.
        RecipeError: a trace or a suite cannot be asked.
    """
    both: list[Profiler] = []

    def of(name: str) -> Progress:
        def said(_: float, __: float, label: str) -> None:
            done, whole = sum(one.done for one in both), sum(one.whole for one in both)
            progress(done, whole, f"{name}: {label}")

        return said

    with contextlib.ExitStack() as stack:
        for one in (endpoint, beside):
            one.give_way()
        # It was started while the variant's server was up: what it added is its own.
        added = beside.gpu.grown() if beside.gpu else 0
        watches = [
            stack.enter_context(Watch(endpoint, partner=beside, aside=added)),
            stack.enter_context(Watch(beside, partner=endpoint)),
        ]
        alone = spec.model_copy(update={"highest_rate": None})
        at, said = folder / LOADS, (of(endpoint.model), of(beside.model))
        ours = Profiler(endpoint, spec, inputs, at, watches[0], said[0])
        theirs = Profiler(beside, alone, inputs, at / BESIDE, watches[1], said[1])
        both += [ours, theirs]
        for turn, (repeat, workload, load) in enumerate(ours.order):
            kept = [one.kept(workload, load, repeat) for one in both]
            if None in kept:  # measured now beside one of before would be no pair
                for path in kept:
                    if path is not None:
                        path.unlink()
            for profiler in (theirs, ours) if turn % 2 == 0 else (ours, theirs):
                profiler.measure(workload, load, repeat)
        return ours.found(), theirs.found()
