"""Watches a server and its machine while something is measured: threads that sample.

One thread looks at the server's processes, the CPUs and the GPUs; another asks the server for its
`/metrics`, so that a server too busy to answer delays no look at the machine. What is asked about
an interval is made of the samples that lie in it; what counts up (CPU time, tokens) is taken from
the last sample before it to the first one after it, so `Watch.look` just before a load keeps what
came earlier out. Times are those of `time.perf_counter`.

Nothing here raises, or waits longer than it says: what cannot be read is None.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import psutil

from workbench.engine_metrics import engine_use, level
from workbench.guardian import descendants, resident
from workbench.load_records import Clock, GpuUse, MachineUse, Usage
from workbench.metrics_link import MetricsLink
from workbench.servers.endpoint import Endpoint
from workbench.servers.gpu import GpuReading

#: `/metrics` costs the server's own time: unless `look` says so it is not asked more often.
_ENGINE_SECONDS = 1.0
#: How long one look may be waited for: one answer that is under way may come first, if not both.
_LOOK_SECONDS = 3.0
#: Listing a tree of processes reads all of /proc.
_TREE_SECONDS = 2.0
#: A sample further from the interval than this says nothing about it: another load may lie between.
_NEAR_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@dataclass
class Peak:
    """Highest memory seen while something ran.

    Attributes:
        rss: resident bytes of the server's process tree; None: never seen.
        gpu: used device bytes; None: no GPU.
        samples: how often it was looked at.
    """

    rss: int | None = None
    gpu: int | None = None
    samples: int = 0

    def saw(self, rss: int | None, gpu: int | None) -> None:
        """Count one look."""
        self.samples += 1
        if rss is not None:
            self.rss = max(self.rss or 0, rss)
        if gpu is not None:
            self.gpu = max(self.gpu or 0, gpu)


class Watch:
    """Samples a server while the block runs.

    Attributes:
        peak: highest memory seen since the block was entered.

    Args:
        endpoint: the server.
        every: seconds between two looks at the machine; `/metrics` is asked every second, or as
            seldom as this.
        partner: a server that is idle meanwhile, and no stranger on the GPU.
        aside: bytes of device memory it took, where it was started after this one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        every: float = 0.5,
        partner: Endpoint | None = None,
        aside: int = 0,
    ) -> None:
        machine = _Machine(endpoint, partner, aside)
        engine = MetricsLink(endpoint.base_url, endpoint.key)
        self.peak = machine.peak
        self._machine = _Sampler("watch-machine", machine.look, every)
        self._engine = _Sampler(
            "watch-engine", engine.ask, max(every, _ENGINE_SECONDS), engine.close
        )

    def __enter__(self) -> Self:
        now = time.perf_counter()
        self._machine.start()
        self._engine.start()
        self._machine.wait_for(now)
        self._engine.wait_for(now)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._machine.look()
        for sampler in (self._machine, self._engine):
            sampler.stop()
        for sampler in (self._machine, self._engine):
            sampler.join(_LOOK_SECONDS)

    def look(self) -> None:
        """Take a sample of everything now: milliseconds, or `_LOOK_SECONDS` for a silent server."""
        self._machine.look()
        self._engine.look()

    def between(self, begin: float, end: float) -> Usage:
        """What happened between two times.

        A sample is taken first where none was since `end`. Without one near the interval on either
        side, what counts up is taken between the first and the last that lie in it.
        """
        for sampler in (self._machine, self._engine):
            if not sampler.began_since(end):
                sampler.look()
        looks, around = _window(self._machine.samples, begin, end)
        told, readings = _window(self._engine.samples, begin, end)
        return Usage(
            seconds=end - begin,
            engine=engine_use([s.value for s in told], [s.value for s in readings]),
            machine=_machine_use([s.value for s in looks], around),
        )


# --------------------------------------------------------------------------- sampling


@dataclass(frozen=True, slots=True)
class _Sample(Generic[_T_co]):
    """A value, and between which times it was read."""

    begun: float
    ended: float
    value: _T_co


class _Sampler(threading.Thread, Generic[_T]):
    """Takes a sample at its start, then every so many seconds, and when it is asked to."""

    def __init__(
        self,
        name: str,
        take: Callable[[], _T],
        every: float,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.samples: list[_Sample[_T]] = []
        self._take, self._every, self._close = take, every, close
        self._over = False
        self._wake = threading.Event()
        self._taken = threading.Condition()

    def run(self) -> None:
        """Sample until stopped."""
        try:
            while not self._over:
                self._wake.clear()
                begun = time.perf_counter()
                value = self._take()
                ended = time.perf_counter()
                with self._taken:
                    self.samples.append(_Sample(begun, ended, value))
                    self._taken.notify_all()
                if not self._over:  # said before the event was cleared
                    self._wake.wait(max(0.0, begun + self._every - ended))
        finally:
            self.stop()
            self._close()

    def look(self) -> None:
        """Take a sample now and wait for it."""
        now = time.perf_counter()
        self._wake.set()
        self.wait_for(now)

    def wait_for(self, then: float) -> None:
        """Wait for a sample that is begun from that time on; not for one that takes too long."""
        with self._taken:
            self._taken.wait_for(lambda: self._over or self.began_since(then), _LOOK_SECONDS)

    def began_since(self, then: float) -> bool:
        """Whether a sample was begun since that time, and is taken."""
        return bool(self.samples) and self.samples[-1].begun >= then

    def stop(self) -> None:
        """No more samples; whoever waits for one is let go."""
        with self._taken:
            self._over = True
            self._wake.set()
            self._taken.notify_all()


def _window(
    samples: Sequence[_Sample[_T | None]], begin: float, end: float
) -> tuple[list[_Sample[_T]], list[_Sample[_T]]]:
    """Samples within the times, and these with their neighbours; those that failed left out."""
    near = [
        cast(_Sample[_T], s)
        for s in list(samples)
        if s.value is not None
        and s.ended >= begin - _NEAR_SECONDS
        and s.begun <= end + _NEAR_SECONDS
    ]
    inside = [s for s in near if s.begun >= begin and s.ended <= end]
    first = max((i for i, s in enumerate(near) if s.ended <= begin), default=0)
    last = min((i for i, s in enumerate(near) if s.begun >= end), default=len(near))
    return inside, near[first : last + 1]


# --------------------------------------------------------------------------- the machine


@dataclass(frozen=True, slots=True)
class _Look:
    """The machine at one time.

    Attributes:
        rss: resident bytes of the server's processes; None: none is there.
        cpu: seconds of CPU they and their ended children have used; None: none is there.
        stolen: seconds stolen from all CPUs since the machine started; None: not told.
        total: seconds of all CPUs since then, the idle ones included.
        gpus: the devices.
        others: strangers on them; None: cannot be told.
    """

    rss: int | None
    cpu: float | None
    stolen: float | None
    total: float
    gpus: tuple[GpuReading, ...]
    others: frozenset[str] | None


class _Machine:
    """Looks at a server's processes, the CPUs and the GPUs."""

    def __init__(self, endpoint: Endpoint, partner: Endpoint | None = None, aside: int = 0) -> None:
        self.peak = Peak()
        self._aside = aside
        self._pid, self._gpu = endpoint.pid, endpoint.gpu
        self._partner = partner.pid if partner else None
        self._idle: frozenset[int] = frozenset()
        self._listed = -_TREE_SECONDS
        self._tree: list[int] = []
        self._named: dict[int, str] = {}

    def look(self) -> _Look:
        """Look once."""
        if time.monotonic() - self._listed >= _TREE_SECONDS:
            self._list()
        rss = resident(self._tree) or None
        cpu = [seconds for pid in self._tree if (seconds := _cpu_seconds(pid)) is not None]
        times = psutil.cpu_times()._asdict()
        # A guest's time is in `user` and `nice` already.
        total = sum(v for k, v in times.items() if k not in ("guest", "guest_nice"))
        gpus = self._gpu.readings() if self._gpu else ()
        others = self._others(gpus)
        taken = self._gpu.used_by(set(self._tree), gpus, self._aside) if self._gpu else None
        self.peak.saw(rss, taken)
        return _Look(rss, sum(cpu) if cpu else None, times.get("steal"), total, gpus, others)

    def _list(self) -> None:
        self._tree = [self._pid, *descendants(self._pid)]
        if self._partner is not None:
            self._idle = frozenset((self._partner, *descendants(self._partner)))
        self._listed = time.monotonic()

    def _others(self, gpus: Sequence[GpuReading]) -> frozenset[str] | None:
        pids = {p.pid for gpu in gpus for p in gpu.processes or ()}
        new = pids.difference(self._tree, self._named, self._idle)
        if new:
            self._list()  # the server may have started it since
            self._named |= {pid: _name(pid) for pid in new.difference(self._tree, self._idle)}
        pids = pids.difference(self._idle)
        strange = {pid: self._named.get(pid, "") for pid in pids.difference(self._tree)}
        # Where not even the server is among them, a number that no process here has may be the
        # server's own, as the host of a container counts.
        sure = not pids.isdisjoint(self._tree)
        words = {f"pid {p} {name}".rstrip() for p, name in strange.items() if name or sure}
        told = bool(gpus) and all(gpu.processes is not None for gpu in gpus)
        return frozenset(words) if words or (told and (sure or not strange)) else None


def _cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and of its children that ended; None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - see `guardian.parents`
            # utime, stime, cutime, cstime (proc(5)); the name may hold spaces and parentheses.
            return sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / _TICKS
    except (OSError, ValueError):
        return None


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def _machine_use(looks: Sequence[_Look], around: Sequence[_Sample[_Look]]) -> MachineUse:
    cpu = [(s.begun, s.value.cpu) for s in around if s.value.cpu is not None]
    passed = cpu[-1][0] - cpu[0][0] if cpu else 0.0
    told = [(s.value.total, s.value.stolen) for s in around if s.value.stolen is not None]
    total = told[-1][0] - told[0][0] if told else 0.0
    others = [look.others for look in looks if look.others is not None]
    return MachineUse(
        samples=len(looks),
        rss_bytes=level([look.rss for look in looks]),
        # A child that ended and was not waited for takes its time with it.
        cpu_cores=max(0.0, cpu[-1][1] - cpu[0][1]) / passed if passed > 0 else None,
        steal=max(0.0, told[-1][1] - told[0][1]) / total if total > 0 else None,
        gpus=tuple(map(_gpu_use, zip(*(look.gpus for look in looks), strict=True))),
        others=tuple(sorted(frozenset().union(*others))) if others else None,
    )


def _gpu_use(readings: Sequence[GpuReading]) -> GpuUse:
    memory = [r.memory_bytes for r in readings if r.memory_bytes is not None]
    clocks = [r.clock_mhz for r in readings if r.clock_mhz is not None]
    clock = level(clocks)
    reasons = [r.reasons for r in readings if r.reasons is not None]
    counts = {
        name: sum(name in found for found in reasons) for name in sorted(set().union(*reasons))
    }
    return GpuUse(
        memory_bytes=max(memory, default=None),
        utilization=level([r.utilization for r in readings]),
        power_w=level([r.power_w for r in readings]),
        clock_mhz=Clock(min=min(clocks), mean=clock.mean, max=clock.max) if clock else None,
        throttled={name: n / len(reasons) for name, n in counts.items()} if reasons else None,
    )
