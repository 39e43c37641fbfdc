"""The support matrix: every format under every engine on one machine, from `support.lane`. Pure.

It answers with the same function `validate` uses, so it cannot say something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from workbench.errors import RecipeError, did_you_mean
from workbench.gpus import GPUS, named
from workbench.records import Hardware, Lane
from workbench.support import TABLE, lane

_ORIGINAL_GPTQ = {"bits": 4, "group_size": 128, "symmetric": True, "act_order": False}
#: (label, method, options that decide the lane)
FORMATS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("unquantized", "none", {}),
    ("FP8 KV cache alone", "none", {"kv_cache": "fp8"}),
    ("FP8 W8A8 dynamic", "fp8", {"scheme": "dynamic"}),
    ("FP8 W8A8 static", "fp8", {"scheme": "static"}),
    ("FP8 W8A8 block", "fp8", {"scheme": "block"}),
    ("INT8 W8A8", "int8", {}),
    ("GPTQ W4A16", "gptq", {"bits": 4, "symmetric": True, "act_order": "static"}),
    ("GPTQ W8A16", "gptq", {"bits": 8, "symmetric": True, "act_order": "static"}),
    ("AWQ W4A16", "awq", {"bits": 4, "zero_point": True}),
    ("NF4", "nf4", {"double_quant": True}),
    ("GGUF Q4_K_M", "gguf", {"type": "Q4_K_M"}),
    ("GPTQ of GPTQModel", "gptqmodel", _ORIGINAL_GPTQ),
    ("GPTQ of AutoGPTQ", "auto-gptq", _ORIGINAL_GPTQ),
    ("AWQ of AutoAWQ", "autoawq", {"bits": 4, "group_size": 128, "zero_point": True}),
)
_NO_COLUMN = "; vLLM publishes no Blackwell column: so say its sources' lowest capabilities"


@dataclass(frozen=True)
class Cell:
    """One answer.

    Attributes:
        format: label of the format.
        method: as a recipe spells it.
        engine: who runs it.
        lane: native, weight-only fallback, emulated or unsupported.
        reason: one sentence.
        source: where the statement comes from.
        device: what computes, ``gpu`` or ``cpu``: the pinned llama.cpp leaves a GPU alone.
    """

    format: str
    method: str
    engine: str
    lane: str
    reason: str
    source: str
    device: str


def engines(method: str) -> list[str]:
    """Engines that say anything about a method; the one it is meant for where none does."""
    found = [
        engine
        for engine, rows in TABLE.items()
        if engine != "fake" and any(row.method == method for row in rows)
    ]
    return found or ["llamacpp" if method == "gguf" and "llamacpp" in TABLE else "vllm"]


def matrix(hardware: Hardware, compute_dtype: str | None = None) -> list[Cell]:
    """Every format under every engine that knows it, on one machine.

    Args:
        hardware: of this machine, or one of `gpus.named`.
        compute_dtype: of the activations; None: what a run would choose by itself.
    """
    cells = []
    if compute_dtype is None and hardware.gpus:
        lowest = min(float(gpu.compute_capability) for gpu in hardware.gpus)
        compute_dtype = "bfloat16" if lowest >= 8.0 else "float16"
    for label, method, options in FORMATS:
        for engine in engines(method):
            found = lane(method, options, engine, hardware, compute_dtype)
            reason = found.reason + _note(hardware, engine, found)
            device = "gpu" if hardware.gpus and engine != "llamacpp" else "cpu"
            cells.append(Cell(label, method, engine, found.name, reason, found.source, device))
    return cells


def _note(hardware: Hardware, engine: str, found: Lane) -> str:
    new = any(g.platform == "cuda" and float(g.compute_capability) >= 10 for g in hardware.gpus)
    return _NO_COLUMN if new and engine == "vllm" and found.name != "unsupported" else ""


def machines(names: Iterable[str]) -> dict[str, Hardware]:
    """Named GPUs; ``all`` is every one of the table.

    Raises:
        RecipeError: a name is not in the table.
    """
    wanted = list(names)
    if "all" in wanted:
        wanted = list(GPUS)
    return {name.lower(): named(name) for name in wanted}


def check_dtype(name: str) -> str | None:
    """A compute dtype by name; empty: the default.

    Raises:
        RecipeError: there is no such dtype.
    """
    known = ("float32", "bfloat16", "float16")
    if name and name not in known:
        raise RecipeError(
            f"there is no compute dtype '{name}'",
            where="--dtype",
            fix=f"{did_you_mean(name, known)}dtypes: {', '.join(known)}",
        )
    return name or None


def as_json(hardware: Hardware, cells: list[Cell]) -> dict[str, Any]:
    """One machine's matrix as plain data."""
    return {
        "hardware": hardware.model_dump(mode="json"),
        "formats": [asdict(cell) for cell in cells],
    }
