"""Reads NVIDIA devices through NVML: what a server uses, and whether it was given back.

Not yet run on a GPU: written against NVML's documented behaviour, and tested with a scripted NVML.
Containers often hide which process uses how much; then what the devices use beyond what they used
before stands in for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from workbench.errors import ServingFailure
from workbench.guardian import descendants

#: A driver keeps some memory for itself after the last context is gone.
_SLACK_BYTES = 512 << 20
_RETURN_SECONDS = 30.0
#: Bits of NVML's "clocks event reasons" (once "throttle reasons"), named as NVML names them. Those
#: without a name here are of no known driver and are told by their number.
_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
_T = TypeVar("_T")


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a device.

    Attributes:
        pid: its number; in a container it may be that of the host.
        memory_bytes: what it uses there; None where the driver cannot tell processes apart.
    """

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuReading:
    """One device now. Each is None where NVML does not tell.

    Attributes:
        memory_bytes: used, by whomever.
        utilization: share of NVML's last sample period in which a kernel ran, 0 to 1.
        power_w: drawn, in watts.
        clock_mhz: of the SMs.
        reasons: why the clock is what it is, by NVML's names in lower case; empty: nothing holds
            it down.
        processes: that compute on it.
    """

    memory_bytes: int | None
    utilization: float | None
    power_w: float | None
    clock_mhz: float | None
    reasons: tuple[str, ...] | None
    processes: tuple[GpuProcess, ...] | None


class GpuWatch:
    """The devices this process may see.

    Args:
        nvml: the `pynvml` module, initialized.
        handles: NVML handles of the devices.
    """

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self.before = self.total()

    @classmethod
    def open(cls, count: int | None) -> Self | None:
        """Watch the first `count` devices (None: all); None where NVML does not answer."""
        import pynvml

        try:
            pynvml.nvmlInit()
            found = pynvml.nvmlDeviceGetCount()
            indexes = range(found if count is None else min(count, found))
            return cls(pynvml, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in indexes])
        except pynvml.NVMLError:
            return None

    def total(self) -> int:
        """Used bytes of all devices, whoever uses them."""
        return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(h).used) for h in self._handles)

    def used(self, pid: int) -> int:
        """Bytes used by a process and its descendants, or by all beyond what was used before."""
        listed = [self._ask(self._processes, handle) for handle in self._handles]
        return self._share({pid, *descendants(pid)}, listed) or max(0, self.total() - self.before)

    def grown(self) -> int:
        """Bytes used beyond what was used before, whoever uses them; 0 where NVML refuses."""
        return max(0, (self._ask(self.total) or 0) - self.before)

    def used_by(self, tree: Set[int], readings: Iterable[GpuReading], aside: int = 0) -> int | None:
        """The same, of processes already listed and devices already read; None where untold.

        Args:
            tree: the server's processes.
            readings: of every device.
            aside: bytes of a server that was started later, where no process's own are told.
        """
        found = list(readings)
        if own := self._share(tree, [reading.processes for reading in found]):
            return own
        memory = [r.memory_bytes for r in found if r.memory_bytes is not None]
        if not memory or len(memory) < len(found):
            return None
        return max(0, sum(memory) - self.before - aside)

    def readings(self) -> tuple[GpuReading, ...]:
        """Every device, read once. Never raises: what NVML does not tell is None."""
        return tuple(self._read(handle) for handle in self._handles)

    def _read(self, handle: Any) -> GpuReading:
        nvml, ask = self._nvml, self._ask
        return GpuReading(
            memory_bytes=ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            utilization=ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            power_w=ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),  # told in mW
            clock_mhz=ask(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            reasons=ask(self._reasons, handle),
            processes=ask(self._processes, handle),
        )

    def _reasons(self, handle: Any) -> tuple[str, ...]:
        bits = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if bits is None:  # the older name, of drivers before R535
            bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        single = (1 << i for i in range(int(bits).bit_length()))
        return tuple(_REASONS.get(bit, f"{bit:#x}") for bit in single if int(bits) & bit)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        return tuple(
            GpuProcess(int(p.pid), int(p.usedGpuMemory) if p.usedGpuMemory else None)
            for p in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        )

    def _ask(self, call: Callable[..., _T], *arguments: Any) -> _T | None:
        """What it returns; None where NVML refuses: not supported, not permitted, device lost."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    @staticmethod
    def _share(tree: Set[int], listed: Iterable[tuple[GpuProcess, ...] | None]) -> int:
        return sum(p.memory_bytes or 0 for found in listed for p in found or () if p.pid in tree)

    def check_returned(self) -> str:
        """Wait until the memory is back.

        Returns:
            Why it cannot be told, where NVML was lost meanwhile; else empty. What was measured is
            no worse for it.

        Raises:
            ServingFailure: it is not, half a minute after the server ended.
        """
        ends = time.monotonic() + _RETURN_SECONDS
        while True:
            used = self._ask(self.total)
            if used is None:
                return (
                    "NVML no longer answers: whether the server gave its device memory back cannot "
                    "be told; see nvidia-smi"
                )
            kept = used - self.before
            if kept <= _SLACK_BYTES:
                return ""
            if time.monotonic() > ends:
                raise ServingFailure(
                    f"{kept / 2**30:.1f} GiB of device memory are still used "
                    f"{_RETURN_SECONDS:g} s after the server ended",
                    fix="another program started meanwhile, or a process hangs: see nvidia-smi",
                )
            time.sleep(0.5)

    def close(self) -> None:
        """Let go of NVML."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
