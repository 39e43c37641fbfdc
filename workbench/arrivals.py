"""When requests are due: in a closed loop, or at the times of an arrival process. Pure.

    {arrivals: closed, concurrency: 8}         so many at a time, each worker its next when done
    {arrivals: poisson, rate: 12}              requests/s, gaps exponential: independent users
    {arrivals: constant, rate: 12}             the same gap always
    {arrivals: burst, size: 20, gap: 5}        20 at once, every 5 seconds
    {arrivals: trace, speed: 2}                the times of a recorded trace, here twice as fast

A closed loop slows down with the server and so hides a queue; only an open one can show that the
server cannot keep up. The gaps of a Poisson process with one seed are the same numbers at every
rate, only scaled, so that two rates differ in nothing else. A profile gives every repeat and every
rate of a workload one seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from workbench.base import Spec
from workbench.digest import sha256_text

T = TypeVar("T")

_Rate = Annotated[float, Field(gt=0, le=1e6, description="requests/s, on average")]


class ClosedLoop(Spec):
    """So many workers, each sending its next request when its last has ended."""

    arrivals: Literal["closed"] = "closed"
    concurrency: int = Field(ge=1, le=100_000)


class PoissonArrivals(Spec):
    """Independent arrivals: exponential gaps."""

    arrivals: Literal["poisson"] = "poisson"
    rate: _Rate


class ConstantArrivals(Spec):
    """Equal gaps of 1 / rate, the first request at once."""

    arrivals: Literal["constant"] = "constant"
    rate: _Rate


class BurstArrivals(Spec):
    """`size` requests at the same moment, then nothing for `gap` seconds."""

    arrivals: Literal["burst"] = "burst"
    size: int = Field(ge=1, le=100_000)
    gap: float = Field(gt=0, le=1e6, description="seconds from one burst to the next")


class TraceArrivals(Spec):
    """The times a trace holds, divided by `speed`."""

    arrivals: Literal["trace"] = "trace"
    speed: float = Field(1.0, gt=0, le=1e6)


Arrivals = Annotated[
    ClosedLoop | PoissonArrivals | ConstantArrivals | BurstArrivals | TraceArrivals,
    Field(discriminator="arrivals"),
]
AnyArrivals = ClosedLoop | PoissonArrivals | ConstantArrivals | BurstArrivals | TraceArrivals


def load_name(arrivals: AnyArrivals) -> str:
    """A load in a few characters: ``x8``, ``poisson 2.5/s``, ``burst 20 every 5 s``, ``replay``."""
    if isinstance(arrivals, ClosedLoop):
        return f"x{arrivals.concurrency}"
    if isinstance(arrivals, TraceArrivals):
        speed = _number(arrivals.speed)
        return "replay" if arrivals.speed == 1 else f"replay {speed} times as fast"
    if arrivals.arrivals == "burst":
        return f"burst {arrivals.size} every {_number(arrivals.gap)} s"
    kind = "poisson" if isinstance(arrivals, PoissonArrivals) else "constant"
    return f"{kind} {_number(arrivals.rate)}/s"


def _number(value: float) -> str:
    """All of its digits: two loads never share a name, which is a file's too."""
    return repr(value).removesuffix(".0")


def due_times(
    arrivals: AnyArrivals, count: int, seed: str, trace: Sequence[float] | None = None
) -> list[float | None]:
    """When each of the first `count` requests is due: seconds from the load's begin.

    Args:
        arrivals: the process.
        count: how many.
        seed: of the random gaps; the first times are the same whatever `count` is.
        trace: recorded times, needed for `TraceArrivals` and used by no other.

    Returns:
        In order, never falling; None for each request of a closed loop.

    Raises:
        ValueError: a trace is to be replayed and there are not as many times.
    """
    if isinstance(arrivals, ClosedLoop):
        return [None] * count
    if isinstance(arrivals, TraceArrivals):
        if trace is None or len(trace) < count:
            raise ValueError(f"{count} requests of a trace of {len(trace or ())}")
        return [at / arrivals.speed for at in trace[:count]]
    if isinstance(arrivals, BurstArrivals):
        return [i // arrivals.size * arrivals.gap for i in range(count)]
    if isinstance(arrivals, ConstantArrivals):
        # Not a sum of gaps: that would drift by rounding.
        return [i / arrivals.rate for i in range(count)]
    dice = random.Random(sha256_text(f"{seed}/arrivals"))
    at, times = 0.0, []
    for _ in range(count):
        at += dice.expovariate(1.0)
        times.append(at / arrivals.rate)
    return list(times)


def at_level(arrivals: AnyArrivals, level: float, trace_rate: float | None = None) -> AnyArrivals:
    """The same process at another load: the step of a sweep, or of a search for the highest rate.

    Args:
        arrivals: the process as it is.
        level: workers of a closed loop, else requests/s on average. A burst keeps its size and
            comes more often; a trace is replayed faster.
        trace_rate: requests/s of the trace as it was recorded, needed for `TraceArrivals` alone.

    Raises:
        ValueError: the level is not above 0, half a worker, or the trace's own rate is not known.
    """
    if not level > 0:
        raise ValueError(f"a load of {level:g}")
    if isinstance(arrivals, ClosedLoop):
        if level != int(level):
            raise ValueError(f"a closed loop of {level:g} workers")
        return ClosedLoop(concurrency=int(level))
    if isinstance(arrivals, BurstArrivals):
        return BurstArrivals(size=arrivals.size, gap=arrivals.size / level)
    if isinstance(arrivals, TraceArrivals):
        if trace_rate is None or not trace_rate > 0:
            raise ValueError("the rate of the trace itself is not known")
        return TraceArrivals(speed=level / trace_rate)
    return type(arrivals)(rate=level)


def alternated(variants: Sequence[T], repeats: int) -> list[tuple[int, T]]:
    """(repeat, variant) in the order to measure: every second repeat runs backwards.

    What drifts steadily (heat, memory) then adds the same to each variant over two repeats.
    """
    return [
        (repeat, variant)
        for repeat in range(repeats)
        for variant in (variants if repeat % 2 == 0 else list(reversed(variants)))
    ]
