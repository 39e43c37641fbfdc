"""Measures the load client itself: how wrong its times are, and what it costs.

The shipped timing server records the true time of every write; the client's times of the same
requests are laid beside them. Errors are reported - true:

- TTFT error: for each request, the client's TTFT (sent to first token read) less the server's
  (request read to first token written). It holds the way there and back, which on one machine is
  the system's work and the waiting of both processes for a core.
- ITL p99 error: the 99th percentile of all gaps as the client saw them, less that of the gaps as
  they were written: how wrong the figure is that a report prints.
- ITL gap error: the 99th percentile of the difference, gap by gap: the harder one.

Requests/s stand beside the ideal, concurrency / (TTFT + (tokens - 1) ITL). CPU is processor time of
the client's process during the load, for 1,000 requests; start-up is from the call to the load's
begin.

Where the client waited for a processor more than 2 % of a load, its errors are largely the
machine's, and the point says that they are not to be believed, as a profile does (`quiet`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from workbench import load_request
from workbench.load import Load, Target, run_load
from workbench.progress import Progress, silent
from workbench.quiet import Limits, quietness
from workbench.timing_server import Settings, TimingServer, Truth
from workbench.traffic import Ask

if TYPE_CHECKING:
    from rich.table import Table

LEVELS = (16, 64, 256)
#: TTFT and ITL, ms: as fast as a client must be able to read, and what a server on a GPU gives.
SETTINGS = ((1.0, 1.0), (50.0, 10.0))
TOKENS = 128
#: At least so many requests a point, and four rounds of its concurrency.
LEAST_REQUESTS = 256
_ROUNDS = 4
_LIMITS = load_request.Limits(first_byte=30, between=30, request=120, load=300)


#: Field of a point -> what it is. Times in ms, processor time in s; errors are reported - true.
MEANING = {
    "ttft_ms": "the server's nominal time to first token",
    "itl_ms": "the server's nominal time between tokens",
    "concurrency": "requests open at a time",
    "requests": "sent",
    "completed": "of them",
    "ttft_error_p50": "median of the errors of each request's TTFT",
    "ttft_error_p99": "99th percentile of the errors of each request's TTFT",
    "itl_error_p99": "difference of two p99: of all gaps as read, less of all gaps as written",
    "itl_gap_error_p99": "99th percentile of the errors of each gap, whatever their sign",
    "requests_per_s": "completed over the load's seconds",
    "ideal_per_s": "what the nominal times allow: concurrency / (TTFT + (tokens - 1) ITL)",
    "cpu_per_1000": "processor time of the client, s for 1,000 requests",
    "cpu_share": "processor time of the client over the load's seconds; near 1 it is the limit",
    "client_wait": "share of the load's seconds in which the client could have run and had no "
    "processor; null: the system does not tell. That part of an error is the machine's",
    "load_average": "of the machine, last minute, at the load's end; client and server are in it",
    "cores": "processors the client may use",
    "doubt": "why the errors are not to be believed as the client's; empty: no reason is known",
    "startup_s": "from the call to the load's begin",
}


@dataclass(frozen=True, slots=True)
class BenchPoint:
    """One measured point; `MEANING` says what each field is."""

    ttft_ms: float
    itl_ms: float
    concurrency: int
    requests: int
    completed: int
    ttft_error_p50: float
    ttft_error_p99: float
    itl_error_p99: float
    itl_gap_error_p99: float
    requests_per_s: float
    ideal_per_s: float
    cpu_per_1000: float
    cpu_share: float
    client_wait: float | None
    load_average: float
    cores: int
    doubt: str
    startup_s: float


def run_bench(
    levels: Sequence[int] = LEVELS,
    settings: Sequence[tuple[float, float]] = SETTINGS,
    *,
    tokens: int = TOKENS,
    least: int = LEAST_REQUESTS,
    progress: Progress = silent,
) -> list[BenchPoint]:
    """Measure every level under every setting of the server.

    Raises:
        ServingFailure: the server or the client did not start, or nothing was completed.
    """
    points: list[BenchPoint] = []
    count = len(levels) * len(settings)
    for ttft, itl in settings:
        with TimingServer(Settings(ttft_ms=ttft, itl_ms=itl, role_first=True)) as server:
            for level in levels:
                progress(len(points), count, f"{ttft:g}/{itl:g} ms at concurrency {level}")
                asks = [Ask(i, (i, 1, 2, 3), tokens) for i in range(max(least, _ROUNDS * level))]
                called = time.perf_counter()
                load = run_load(
                    Target(server.url, "bench", "timing"), asks, concurrency=level, limits=_LIMITS
                )
                points.append(
                    compare(
                        load,
                        server.truth(),
                        ttft,
                        itl,
                        tokens,
                        level,
                        called,
                        load_average=os.getloadavg()[0],
                    )
                )
    progress(count, count, "measured")
    return points


def compare(
    load: Load,
    truth: Iterable[Truth],
    ttft: float,
    itl: float,
    tokens: int,
    level: int,
    called: float,
    *,
    load_average: float,
) -> BenchPoint:
    """Lay what the client saw beside what the server did.

    Args:
        load: as the client tells it; requests are matched by the first token of their prompt.
        truth: as the server recorded it.
        ttft: nominal, ms.
        itl: nominal, ms.
        tokens: of an answer.
        level: requests open at a time.
        called: when the load was asked for, by the clock of `Load.began`.
        load_average: of the machine, at the load's end.
    """
    import numpy as np

    done = {record.number: record for record in truth}
    first, seen, written, gaps = [], [], [], []
    for outcome in load.completed:
        record = done[outcome.number]
        assert outcome.ttft is not None
        first.append(outcome.ttft - record.ttft)
        mine, true = np.diff(outcome.token_times), np.diff(record.writes)
        seen.append(mine)
        written.append(true)
        gaps.append(np.abs(mine - true))

    def p(values: Any, q: float) -> float:
        return float(1000 * np.percentile(values, q)) if len(values) else float("nan")

    def all_of(parts: list[Any]) -> Any:
        return np.concatenate(parts) if parts else []

    completed = len(load.completed)
    wait = None if load.cpu_wait_seconds is None else load.cpu_wait_seconds / load.seconds
    return BenchPoint(
        ttft_ms=ttft,
        itl_ms=itl,
        concurrency=level,
        requests=len(load.outcomes),
        completed=completed,
        ttft_error_p50=p(first, 50),
        ttft_error_p99=p(first, 99),
        itl_error_p99=p(all_of(seen), 99) - p(all_of(written), 99),
        itl_gap_error_p99=p(all_of(gaps), 99),
        requests_per_s=completed / load.seconds,
        ideal_per_s=level / (ttft + (tokens - 1) * itl) * 1000,
        cpu_per_1000=1000 * load.cpu_seconds / max(1, completed),
        cpu_share=load.cpu_seconds / load.seconds,
        client_wait=wait,
        load_average=load_average,
        cores=len(os.sched_getaffinity(0)),
        doubt="; ".join(quietness(client_wait=wait).reasons),
        startup_s=load.began - called,
    )


def as_table(points: Sequence[BenchPoint]) -> Table:
    """The points for a terminal of 80 characters."""
    from rich.table import Table

    slowest = max((point.startup_s for point in points), default=0.0)
    cores = max((point.cores for point in points), default=0)
    caption = [
        "TTFT p50, p99: median and 99th percentile of the errors of each request, ms.",
        "ITL p99: difference of the two p99, of all gaps as read and as written, ms;",
        "  in brackets the 99th percentile of the errors of each gap.",
        "CPU: the client's seconds for 1,000 requests (share of one core).",
        "wait: of the load's time, in which the client had no processor to run on.",
        f"load: load average of the machine, {cores} cores; client and server are in it.",
        f"Errors are reported - true. Start-up: {slowest:.2f} s.",
    ]
    if any(point.doubt for point in points):
        caption.append(
            f"* NOT TO BE BELIEVED: the client waited over {Limits().client_wait:.0%}; these "
            "errors are\n  the machine's. Measure again where nothing else runs."
        )
    table = Table(
        title="The load client against known token times",
        caption="\n".join(caption),
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    columns = (
        *("TTFT\n/ITL", "conc.", "done", "TTFT\np50", "TTFT\np99", "ITL p99\n(gaps)"),
        *("requests/s\n(ideal)", "CPU", "wait", "load"),
    )
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for point in points:
        lost = f"/{point.requests}" if point.completed < point.requests else ""
        table.add_row(
            f"{point.ttft_ms:g}/{point.itl_ms:g}",
            str(point.concurrency),
            f"{point.completed}{lost}",
            f"{point.ttft_error_p50:.2f}",
            f"{point.ttft_error_p99:.2f}",
            f"{point.itl_error_p99:.2f} ({point.itl_gap_error_p99:.2f})",
            f"{point.requests_per_s:.4g} ({point.ideal_per_s:.0f})",
            f"{point.cpu_per_1000:.2f} ({point.cpu_share:.0%})",
            "-"
            if point.client_wait is None
            else f"{point.client_wait:.1%}{'*' * bool(point.doubt)}",
            f"{point.load_average:.1f}",
        )
    return table


def as_json(points: Sequence[BenchPoint]) -> dict[str, Any]:
    """The points as plain values, and beside them what each figure is."""
    return {"figures": MEANING, "points": [asdict(point) for point in points]}
