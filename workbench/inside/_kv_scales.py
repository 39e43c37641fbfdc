"""The scales of an FP8 KV cache: which layers must have them, and whether they were calibrated.

A scale that is missing is read as 1.0 by vLLM, which says so in its log and goes on; so does one
that calibration never reached. Both are failures here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _job import fail

#: As the checkpoint names them, beside an attention layer's projections.
LEAVES = ("k_scale", "v_scale")


def attention_layers(model: Any, ignore: list[str]) -> list[str]:
    """Names of the attention layers whose keys and values are cached.

    Fails where there are none, and where `ignore` names one: llm-compressor would then declare the
    cache quantized and never calibrate that layer's scales.
    """
    from compressed_tensors.quantization.utils import KV_CACHE_TARGETS
    from compressed_tensors.utils import match_named_modules

    every = [name for name, _ in match_named_modules(model, KV_CACHE_TARGETS, [])]
    reached = {name for name, _ in match_named_modules(model, KV_CACHE_TARGETS, ignore)}
    if not every:
        fail(
            "the model has no attention layer whose KV cache llm-compressor could calibrate",
            "kv_cache: fp8",
            f"it looks for modules that match {', '.join(KV_CACHE_TARGETS)}: leave kv_cache out",
        )
    if lost := [name for name in every if name not in reached]:
        fail(
            f"'ignore' matches {len(lost)} attention layers, '{lost[0]}' first: the scales of "
            "their KV cache would not be calibrated",
            f"ignore: {ignore}",
            "name the linear layers in it, such as 're:.*layers[.]0[.].*_proj'",
        )
    return every


def read(folder: Path) -> dict[str, list[float]]:
    """Every scale of a KV cache in the shards of a checkpoint, by tensor name."""
    from safetensors import safe_open

    found: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - no mapping, it has no iterator
                if re.search(r"\.[kv]_scale$", name):
                    values = shard.get_tensor(name).float().flatten().tolist()
                    found[name] = [float(value) for value in values]
    return found


def judge(scales: Mapping[str, list[float]], layers: list[str], where: str) -> dict[str, Any]:
    """Fail unless every layer has two usable scales and calibration has moved them.

    Returns how many there are, the lowest, the highest, and how many are exactly 1.0.
    """
    missing = [f"{n}.{leaf}" for n in layers for leaf in LEAVES if not scales.get(f"{n}.{leaf}")]
    if missing:
        fail(
            f"{len(missing)} scales of the FP8 KV cache are missing, '{missing[0]}' first",
            where,
            "leave kv_cache out: an engine would take 1.0 for them",
        )
    for name, values in scales.items():
        if any(not math.isfinite(value) or value <= 0 for value in values):
            fail(
                f"scale '{name}' of the FP8 KV cache is {values[0]}, which is no scale",
                where,
                "the calibration set did not reach this layer: use more samples, or leave "
                "kv_cache out",
            )
    flat = [value for values in scales.values() for value in values]
    if all(value == 1.0 for value in flat):
        fail(
            "every scale of the FP8 KV cache is 1.0: none was calibrated",
            where,
            "calibrate on more samples, or leave kv_cache out",
        )
    return {
        "count": len(flat),
        "lowest": min(flat),
        "highest": max(flat),
        "ones": sum(value == 1.0 for value in flat),
    }
