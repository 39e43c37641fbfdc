"""Machines one does not sit at: named GPUs with what decides their kernels. Pure, a literal table.

Compute capability from NVIDIA's list (https://developer.nvidia.com/cuda-gpus); for AMD the number
vLLM's ROCm platform gives an architecture (gfx942 is 9.4). Memory is that of one device, as its
data sheet says, in GiB as drivers count it or GB as it is sold: good for "does it fit", no more.
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
        gigabytes: memory of one device.
        source: where memory and capability come from.
        platform: ``cuda`` or ``rocm``.
    """

    name: str
    generation: str
    capability: str
    gigabytes: int
    source: str
    platform: Literal["cuda", "rocm"] = "cuda"


_SHEET = "NVIDIA data sheet"
_MIG = "NVIDIA MIG user guide, supported GPUs"
#: What `--gpu` takes.
GPUS: dict[str, Named] = {
    "t4": Named("Tesla T4", "Turing", "7.5", 16, _SHEET),
    "a10": Named("NVIDIA A10", "Ampere", "8.6", 24, _SHEET),
    "a100": Named("NVIDIA A100-SXM4-80GB", "Ampere", "8.0", 80, _MIG),
    "l4": Named("NVIDIA L4", "Ada", "8.9", 24, _SHEET),
    "l40s": Named("NVIDIA L40S", "Ada", "8.9", 48, _SHEET),
    "rtx4090": Named("NVIDIA GeForce RTX 4090", "Ada", "8.9", 24, _SHEET),
    "h100": Named("NVIDIA H100 80GB HBM3", "Hopper", "9.0", 80, _MIG),
    "h200": Named("NVIDIA H200", "Hopper", "9.0", 141, _MIG),
    "b200": Named("NVIDIA B200", "Blackwell", "10.0", 180, _MIG),
    "mi300x": Named(
        "AMD Instinct MI300X", "CDNA 3", "9.4", 192, "AMD data sheet; gfx942", platform="rocm"
    ),
}


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
            fix=f"{did_you_mean(key, GPUS)}GPUs: {', '.join(GPUS)}; or 'all'",
        )
    entry = GPUS[key]
    gpu = Gpu(
        name=entry.name,
        compute_capability=entry.capability,
        memory_bytes=entry.gigabytes * 10**9,
        driver="",
        platform=entry.platform,
    )
    return Hardware(cpu=f"host of {entry.name}", isa=(), cores=1, memory_bytes=0, gpus=(gpu,))
