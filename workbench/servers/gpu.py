"""Reads NVIDIA device memory through NVML: what a server uses, and whether it was given back.

Not yet run on a GPU: written against NVML's documented behaviour. Containers often hide which
process uses how much; then what the devices use beyond what they used before stands in for it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Self

from workbench.errors import ServingFailure
from workbench.guardian import descendants

#: A driver keeps some memory for itself after the last context is gone.
_SLACK_BYTES = 512 << 20
_RETURN_SECONDS = 30.0


class GpuWatch:
    """Memory of the devices this process may see.

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
        tree = {pid, *descendants(pid)}
        own = 0
        for handle in self._handles:
            with contextlib.suppress(self._nvml.NVMLError):
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    # usedGpuMemory is None where the driver cannot tell processes apart.
                    if process.pid in tree and process.usedGpuMemory:
                        own += int(process.usedGpuMemory)
        return own or max(0, self.total() - self.before)

    def check_returned(self) -> None:
        """Wait until the memory is back.

        Raises:
            ServingFailure: it is not, half a minute after the server ended.
        """
        ends = time.monotonic() + _RETURN_SECONDS
        while (kept := self.total() - self.before) > _SLACK_BYTES:
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
