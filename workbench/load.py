"""Puts a load on a server and says what came of every request.

The client is a process of its own: what else the workbench does meanwhile (sampling `/metrics`,
showing progress) would otherwise hold the interpreter while tokens arrive, and their times would be
late. It is one asyncio loop on uvloop; `workbench.load_sender` sends and `workbench.load_stream`
reads. `workbench bench-client` measures its error.

A load never asks twice: 429 and 503 are refusals. What is not completed has a status and a reason
that is equal for equal causes, and counts in no latency.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ServingFailure, UserError, WorkbenchError
from workbench.load_request import Limits, Target
from workbench.load_sender import Sender
from workbench.traffic import Ask, Outcome

__all__ = ["Limits", "Load", "Target", "run_load"]

#: What the client's process may take for its start and to hand over, beside the load's own limit.
_SPARE_SECONDS = 60.0
_TOLD_SECONDS = 2.0
_WAIT_SECONDS = 3600.0
_CHILD = "from workbench.load import child; child()"


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load.

    Attributes:
        outcomes: one for each request, in the order of the asks.
        began: when it began, by the machine's monotonic clock (`time.perf_counter`), seconds; the
            outcomes' times count from there.
        seconds: from its begin to its end.
        cpu_seconds: processor time of the client meanwhile; near `seconds` it cannot keep up.
        cpu_wait_seconds: what the client waited for a processor meanwhile; times are late by it.
            None: the system does not tell.
        connections: opened.
        most_open: the most requests that were open at a time.
        waited: requests of an open loop that found the limit of open connections reached; how long
            each waited is in its `queued`.
        silent: why the load was ended because its first requests got nothing; else empty.
    """

    outcomes: tuple[Outcome, ...]
    began: float
    seconds: float
    cpu_seconds: float
    cpu_wait_seconds: float | None
    connections: int
    most_open: int
    waited: int
    silent: str = ""

    @property
    def completed(self) -> tuple[Outcome, ...]:
        """The only ones that count in latencies."""
        return tuple(o for o in self.outcomes if o.status == "completed")

    @property
    def statuses(self) -> dict[str, int]:
        """Status -> requests."""
        return dict(Counter(o.status for o in self.outcomes))

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> requests that were not completed, the commonest first."""
        found = Counter(o.reason for o in self.outcomes if o.status != "completed")
        return dict(found.most_common())

    @property
    def without_usage(self) -> int:
        """Completed requests whose tokens are known by chunks alone."""
        return sum(o.output_tokens is None for o in self.completed)

    @property
    def uncounted(self) -> int:
        """Tokens by usage less chunks with content, over completed requests that told usage."""
        return sum(o.uncounted or 0 for o in self.completed)


def run_load(
    target: Target,
    asks: Sequence[Ask],
    *,
    concurrency: int | None,
    limits: Limits | None = None,
    seconds: float | None = None,
    keep_text: bool = False,
    waiting: Callable[[float], None] | None = None,
) -> Load:
    """Send every request and wait for its end.

    Args:
        target: who is asked.
        asks: in a closed loop without `at`, sent in this order; in an open loop each with its `at`.
        concurrency: requests open at a time (closed loop); None: each is sent at its `at`.
        limits: of every wait.
        seconds: none is sent later than this, and what was not sent has no outcome; None: all are.
        keep_text: keep the answers' texts.
        waiting: called every few seconds meanwhile, with the seconds since the start.

    Raises:
        UserError: asks that do not fit the kind of loop, or times that are not sorted.
        ServingFailure: the server's name is not known, or the client's process died.
    """
    limits = limits or Limits()
    _check(asks, concurrency, seconds)
    order = pickle.dumps((target, tuple(asks), limits, concurrency, seconds, keep_text))
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            answer = _answer(process, order, limits.load + _SPARE_SECONDS, waiting)
        except subprocess.TimeoutExpired:
            raise ServingFailure(
                f"the load's own process did not end within {limits.load:g} s (load) and "
                f"{_SPARE_SECONDS:g} s more",
                where=target.base_url,
                fix="this is a fault of the workbench; the server may be well",
            ) from None
        finally:
            process.kill()
    if process.returncode or not answer:
        raise ServingFailure(
            f"the load's own process ended with {process.returncode} and no result",
            where=target.base_url,
            fix="its last words are above; it may have been out of memory",
        )
    found: Load | WorkbenchError = pickle.loads(answer)
    if isinstance(found, WorkbenchError):
        raise found
    return found


def _answer(
    process: subprocess.Popen[bytes],
    order: bytes,
    limit: float,
    waiting: Callable[[float], None] | None,
) -> bytes:
    """What the client's process writes, however long it takes; its user is told that it runs."""
    begun = time.monotonic()
    given: bytes | None = order
    while True:
        left = limit - (time.monotonic() - begun)
        try:
            # No system waits for years at once, and a limit may be any number.
            answer, _ = process.communicate(
                given, min(_TOLD_SECONDS if waiting else _WAIT_SECONDS, left)
            )
        except subprocess.TimeoutExpired:
            given = None  # it has the order: the call goes on where it was
            passed = time.monotonic() - begun
            if passed >= limit:
                raise
            if waiting is not None:
                waiting(passed)
        else:
            return answer


async def send_load(
    target: Target,
    asks: Sequence[Ask],
    *,
    concurrency: int | None,
    limits: Limits | None = None,
    seconds: float | None = None,
    keep_text: bool = False,
) -> Load:
    """`run_load` in this process and on the running loop: for tests and small probes.

    Raises:
        UserError, ServingFailure: as `run_load`.
    """
    _check(asks, concurrency, seconds)
    sender = Sender(
        target,
        asks,
        limits or Limits(),
        concurrency=concurrency,
        seconds=seconds,
        keep_text=keep_text,
    )
    await sender.resolve()
    cpu, waited = time.process_time(), _waited_for_cpu()
    outcomes = await sender.run()
    return Load(
        outcomes=tuple(outcomes),
        began=sender.began,
        seconds=sender.now(),
        cpu_seconds=time.process_time() - cpu,
        cpu_wait_seconds=None if waited is None else (_waited_for_cpu() or waited) - waited,
        connections=sender.opened,
        most_open=sender.most_open,
        waited=sender.waited,
        silent=sender.silent,
    )


def _waited_for_cpu() -> float | None:
    """What this thread could have run but had no processor, seconds since its start."""
    try:
        # https://docs.kernel.org/scheduler/sched-stats.html: the second is time on a run queue, ns.
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None  # not on every kernel


def child() -> None:
    """The client's process: an order on standard input, what came of it on standard output."""
    import asyncio

    import uvloop

    target, asks, limits, concurrency, seconds, keep_text = pickle.load(sys.stdin.buffer)
    _end_with_parent(os.getppid())
    # One connection is one open file.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (concurrency or limits.connections) + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    # Collecting garbage stops the reading; what the requests leave behind refers to nothing.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    found: Load | WorkbenchError
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(
                send_load(
                    target,
                    asks,
                    concurrency=concurrency,
                    limits=limits,
                    seconds=seconds,
                    keep_text=keep_text,
                )
            )
    except WorkbenchError as error:
        found = error
    except KeyboardInterrupt:
        return
    # Not `sys.stdout.buffer`: under PYTHONUNBUFFERED that writes a part of it and says nothing.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        pickle.dump(found, out)


def _end_with_parent(parent: int) -> None:
    """End when the process that gave the order is gone: nobody waits for the result."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _check(asks: Sequence[Ask], concurrency: int | None, seconds: float | None) -> None:
    if concurrency is not None and concurrency < 1:
        raise UserError(f"a concurrency of {concurrency} sends nothing", fix="give 1 or more")
    if seconds is not None and not seconds > 0:
        raise UserError(f"a load of {seconds:g} s sends nothing", fix="give more than 0")
    last = 0.0
    for ask in asks:
        if concurrency is not None:
            if ask.at is not None:
                raise UserError(
                    f"request {ask.number} has a time, but a closed loop sends when one is free",
                    fix="leave `at` out, or give no concurrency",
                )
        elif ask.at is None:
            raise UserError(
                f"request {ask.number} has no time, and an open loop sends each at its own",
                fix="give each its `at`, or give a concurrency",
            )
        elif not last <= ask.at < float("inf"):
            raise UserError(
                f"request {ask.number} is due at {ask.at:g} s, which is not after the one before "
                f"({last:g} s)",
                fix="sort the requests by their times; none is below 0",
            )
        else:
            last = ask.at
