"""Measures a profile's loads under other serving options, each on a server of its own.

One server after another: the next one starts when the last has ended and its memory is back. What a
configuration came to is kept in its folder under the step's `loads/`, beside its passes and its
server's log, and is not started again; a pass that was measured before a crash is not repeated. A
server that does not come up, or dies, is a result: its reason is kept, and the sweep goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from workbench.errors import ServingFailure, StoreError
from workbench.load_inputs import Inputs
from workbench.load_records import LoadSummary
from workbench.pass_figures import kept_loads
from workbench.passes import LOADS
from workbench.profile import Measured, run_profile
from workbench.profile_spec import ProfileSpec
from workbench.progress import Progress, silent
from workbench.records import Configuration, Serving
from workbench.servers import Endpoint
from workbench.store import read_marked, write_marked
from workbench.sweep_spec import ServingOptions
from workbench.words import shortened

#: What a configuration came to, in its folder.
KEPT = "configuration.json"
#: Characters of a failure's reason; the server's log has all of it.
_MOST = 2000

#: Starts a server with these options for a block, its log in this folder.
Start = Callable[[ServingOptions, Path], AbstractContextManager[Endpoint]]


def run_sweep(
    start: Start,
    configurations: Sequence[ServingOptions],
    spec: ProfileSpec,
    inputs: Inputs,
    *,
    folder: Path,
    weights: str,
    progress: Progress = silent,
) -> tuple[Configuration, ...]:
    """Measure every configuration that is not measured yet.

    Args:
        start: one server.
        configurations: in the order they are measured.
        spec: the loads under each: `ProfileSpec.swept`.
        inputs: what the workloads are made of.
        folder: of the step.
        weights: digest of the variant's; what was kept of others is measured again.
        progress: called with passes done, all of one server, and which configuration it is.

    Raises:
        ServingFailure: the memory of a server that had ended did not come back.
        RecipeError: a trace or a suite cannot be asked, or an engine not be given an option.
    """
    found = []
    for number, options in enumerate(configurations, 1):
        own = folder / LOADS / options.digest
        record = _kept(own / KEPT, options, weights)
        if record is None:
            label = f"{options.label} ({number} of {len(configurations)})"
            record = _measure(
                start, options, spec, inputs, folder, weights, _labelled(progress, label)
            )
            write_marked(own / KEPT, record)
        found.append(record)
    return tuple(found)


def _kept(path: Path, options: ServingOptions, weights: str) -> Configuration | None:
    try:
        record = read_marked(path, Configuration)
    except StoreError:
        return None  # missing, or damaged: then it is made again, of the passes that are there
    if record.options == options.given and record.weights == weights:
        return record
    shutil.rmtree(path.parent)  # passes of other weights are no passes of these
    return None


def _measure(
    start: Start,
    options: ServingOptions,
    spec: ProfileSpec,
    inputs: Inputs,
    folder: Path,
    weights: str,
    progress: Progress,
) -> Configuration:
    under, begun, error = options.digest, time.monotonic(), ""
    serving: Serving | None = None
    measured: Measured | None = None
    progress(0, 0, "its server starts")
    try:
        with start(options, folder / LOADS / under / "server") as endpoint:
            serving = endpoint.serving
            measured = run_profile(
                endpoint, spec, inputs, folder=folder, under=under, progress=progress
            )
    except ServingFailure as failure:
        if measured is not None:
            raise  # it did not end as it should: the next server would suffer for it
        error = shortened(failure.what, _MOST)
    loads: tuple[LoadSummary, ...] = ()
    if measured is not None:
        loads = measured.loads
    elif serving is not None:
        loads = kept_loads(spec, inputs, serving, folder=folder, under=under)
    return Configuration(
        options=options.given,
        status="measured" if measured else "failed",
        error=error,
        weights=weights,
        serving=serving,
        loads=loads,
        peak_memory_bytes=measured.peak_rss if measured else None,
        peak_gpu_bytes=measured.peak_gpu if measured else None,
        seconds=time.monotonic() - begun,
    )


def _labelled(progress: Progress, label: str) -> Progress:
    def told(done: float, total: float, what: str) -> None:
        progress(done, total, f"{label}: {what}")

    return told
