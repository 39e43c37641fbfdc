"""Asks the machine what it is: CPU and the instructions that choose kernels, cores, memory, GPUs.

Reads `/proc`, the control groups this process is in (a container's limits are the machine, as far
as we are concerned) and NVML. A machine without an NVIDIA driver simply has no GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from workbench.records import Gpu, Hardware

#: Flags of /proc/cpuinfo that decide which kernel of an engine can run, in our spelling. x86 above,
#: Arm below (`asimd` is what the rest of the world calls NEON).
_ISA = {
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "avx_vnni": "avx_vnni",
    "amx_tile": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "neon": "neon",
    "asimd": "neon",
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
#: Arm kernels print part numbers, not names (Arm Ltd.'s implementer code is 0x41).
_ARM_PARTS = {
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
    "0xd84": "Neoverse-V3",
    "0xd8e": "Neoverse-N3",
}
#: Control groups write "no limit" as a number near 2**63.
_NO_LIMIT = 1 << 60


def detect(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Hardware:
    """Describe this machine.

    Args:
        proc: where the proc filesystem is mounted.
        cgroup: where the control groups are mounted.
    """
    cpu, isa = read_cpuinfo((proc / "cpuinfo").read_text("utf-8", "replace"))
    groups = (proc / "self/cgroup").read_text() if (proc / "self/cgroup").is_file() else ""
    quota, limit = cgroup_limits(cgroup, groups)
    cores = len(os.sched_getaffinity(0))
    if quota is not None:
        cores = max(1, min(cores, int(quota)))
    memory = read_memory((proc / "meminfo").read_text())
    if limit is not None:
        memory = min(memory, limit)
    return Hardware(cpu=cpu, isa=isa, cores=cores, memory_bytes=memory, gpus=gpus(os.environ))


def read_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """Name of the CPU and its kernel-choosing extensions, sorted, from the text of cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    flags = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()
    isa = tuple(sorted({_ISA[flag] for flag in flags if flag in _ISA}))
    name = fields.get("model name") or fields.get("Model") or fields.get("Hardware")
    if not name and "CPU part" in fields:
        part = fields["CPU part"].lower()
        arm = fields.get("CPU implementer", "").lower() == "0x41"
        name = (
            _ARM_PARTS.get(part) if arm else None
        ) or f"CPU {fields.get('CPU implementer', '?')}/{part}"
    return name or "unknown CPU", isa


def read_memory(text: str) -> int:
    """Bytes of physical memory, from the text of meminfo.

    Raises:
        ValueError: it has no MemTotal line.
    """
    for line in text.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise ValueError("meminfo has no MemTotal line")


def cgroup_limits(root: Path, groups: str) -> tuple[float | None, int | None]:
    """The tightest CPU quota (in cores) and memory limit (in bytes) a process is under.

    Both versions of control groups are read, and every level above the process's own group: any
    of them may hold the limit. Inside a container the group's path is often not visible; then the
    root of the mount is the container's own group.

    Args:
        root: where the control groups are mounted.
        groups: text of the process's ``/proc/PID/cgroup``.
    """
    quotas: list[float] = []
    limits: list[int] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",") if controllers else [""]
        for name in names:
            if name not in ("", "cpu", "memory"):
                continue
            mount = (
                root / name
                if name
                else (root if (root / "cgroup.controllers").exists() else root / "unified")
            )
            folder = mount / path.lstrip("/")
            levels = [folder, *folder.parents]
            for level in levels[: levels.index(mount) + 1] if mount in levels else [mount]:
                quotas += _quota(level)
                limits += _limit(level)
    return min(quotas, default=None), min(limits, default=None)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _quota(folder: Path) -> list[float]:
    second = _words(folder / "cpu.max")
    if len(second) == 2 and second[0] != "max":
        return [int(second[0]) / int(second[1])]
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    if quota and period and int(quota[0]) > 0:
        return [int(quota[0]) / int(period[0])]
    return []


def _limit(folder: Path) -> list[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        word = _words(folder / name)
        if word and word[0] != "max" and int(word[0]) < _NO_LIMIT:
            return [int(word[0])]
    return []


def gpus(env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """CUDA devices NVML knows, those hidden by ``CUDA_VISIBLE_DEVICES`` left out.

    Numbers in that variable are taken in NVML's order, which is CUDA's own only under
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; it matters where one machine has different GPUs.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found: list[tuple[str, Gpu]] = []
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(device)
            try:
                memory = int(pynvml.nvmlDeviceGetMemoryInfo(device).total)
            except pynvml.NVMLError_NotSupported:
                memory = 0  # a device that shares the host's memory has none of its own
            gpu = Gpu(
                name=str(pynvml.nvmlDeviceGetName(device)),
                compute_capability=f"{major}.{minor}",
                memory_bytes=memory,
                driver=driver,
            )
            found.append((str(pynvml.nvmlDeviceGetUUID(device)), gpu))
        order = visible([uuid for uuid, _ in found], env.get("CUDA_VISIBLE_DEVICES"))
        return tuple(found[i][1] for i in order)
    finally:
        pynvml.nvmlShutdown()


def visible(uuids: list[str], setting: str | None) -> list[int]:
    """Indices of the devices a ``CUDA_VISIBLE_DEVICES`` setting leaves, in its order.

    As CUDA reads it: unset shows all, a number or a UUID's beginning names one, and the first entry
    that names none hides itself and all after it.
    """
    if setting is None:
        return list(range(len(uuids)))
    shown: list[int] = []
    for word in (w.strip() for w in setting.split(",")):
        if word.isdecimal():
            matches = [int(word)] if int(word) < len(uuids) else []
        else:
            matches = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        if len(matches) != 1 or matches[0] in shown:
            break
        shown += matches
    return shown
