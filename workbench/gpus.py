"""Machines one does not sit at: named GPUs with what decides their kernels. Pure, a literal table.

Compute capability from NVIDIA's list (https://developer.nvidia.com/cuda-gpus); for AMD the number
vLLM's ROCm platform gives an architecture (gfx942 is 9.4). Memory is that of one device as its
driver reports the total (nvidia-smi, rocm-smi), error correction on where it is by default: less
than what is sold, and what an engine takes its share of. Bandwidth is the published peak by
public tables; it was not compared with the vendors' own sheets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.errors import RecipeError, did_you_mean
from workbench.records import Gpu, Hardware


@dataclass(frozen=True)
class Named:
    """One entry of the table.

    Attributes:
        name: as the driver spells it.
        generation: architecture, and the column of vLLM's table it belongs to.
        capability: compute capability.
        mebibytes: memory of one device, as its driver reports the total.
        bandwidth: of that memory at its peak, GB/s (10^9 bytes).
        source: where the memory comes from.
        platform: ``cuda`` or ``rocm``.
    """

    name: str
    generation: str
    capability: str
    mebibytes: int
    bandwidth: int
    source: str = "nvidia-smi, memory.total"
    platform: Literal["cuda", "rocm"] = "cuda"


#: What `--gpu` takes.
GPUS: dict[str, Named] = {
    "t4": Named("Tesla T4", "Turing", "7.5", 15360, 320),
    "a10": Named("NVIDIA A10", "Ampere", "8.6", 23028, 600),
    "a100": Named("NVIDIA A100-SXM4-80GB", "Ampere", "8.0", 81920, 2039),
    "l4": Named("NVIDIA L4", "Ada", "8.9", 23034, 300),
    "l40s": Named("NVIDIA L40S", "Ada", "8.9", 46068, 864),
    "rtx4090": Named("NVIDIA GeForce RTX 4090", "Ada", "8.9", 24564, 1008),
    "h100": Named("NVIDIA H100 80GB HBM3", "Hopper", "9.0", 81559, 3350),
    "h200": Named("NVIDIA H200", "Hopper", "9.0", 143771, 4800),
    "b200": Named("NVIDIA B200", "Blackwell", "10.0", 183359, 8000),
    "mi300x": Named(
        *("AMD Instinct MI300X", "CDNA 3", "9.4", 196592, 5325),
        "rocm-smi, VRAM total",
        platform="rocm",
    ),
}


def entry_of(name: str) -> Named | None:
    """The entry of a GPU by its driver's name; None: not in the table."""
    return next((one for one in GPUS.values() if one.name == name), None)


def named(name: str) -> Hardware:
    """A machine with one GPU of that name; what its processor is does not matter then.

    Raises:
        RecipeError: the name is not in the table.
    """
    key = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if key not in GPUS:
        raise RecipeError(
            f"there is no GPU '{name}' in the table",
            where="--gpu",
            fix=f"{did_you_mean(key, GPUS)}GPUs: {', '.join(GPUS)}",
        )
    entry = GPUS[key]
    gpu = Gpu(
        name=entry.name,
        compute_capability=entry.capability,
        memory_bytes=entry.mebibytes << 20,
        driver="",
        platform=entry.platform,
    )
    return Hardware(cpu=f"host of {entry.name}", isa=(), cores=1, memory_bytes=0, gpus=(gpu,))
