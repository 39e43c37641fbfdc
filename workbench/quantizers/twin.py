"""The dequantized twin of a quantized checkpoint: plain float32, the quantized weights.

Served where the engine has no kernel for the format (the emulated lane). It has the quantized
weights' quality and nothing else of theirs: no speed, no size, no quantized activations and no
quantized KV cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.checkpoint import copy_companions, read_config
from workbench.errors import CheckpointError
from workbench.jobs import run_job
from workbench.progress import Progress
from workbench.quantizers import QuantizeOutcome
from workbench.quantizers.cores import available_cores, threads
from workbench.records import Choice
from workbench.store import disk_errors

#: `quant_method` of the configs `inside/dequantize_twin.py` reads.
READABLE = ("compressed-tensors", "bitsandbytes", "gptq", "awq")
_SCRIPT = Path(__file__).parents[1] / "inside" / "dequantize_twin.py"
TIMEOUT_SECONDS = 4 * 3600.0


def dequantize(
    source: Path, out: Path, *, python: str, folder: Path, log: Path, progress: Progress
) -> QuantizeOutcome:
    """Write the twin of the quantized checkpoint `source` into `out`.

    Args:
        source: folder of a compressed-tensors, bitsandbytes, GPTQ or AWQ checkpoint.
        out: folder of the twin; made here, and only complete when this returns.
        python: interpreter of the `quantize` environment.
        folder: scratch space of the job.
        log: where its output goes.
        progress: told how far it is.

    Raises:
        CheckpointError: the source is in another format.
        JobFailure: the job failed, or the dequantized weights are not finite.
    """
    quantization = read_config(source).get("quantization_config") or {}
    if quantization.get("quant_method") not in READABLE:
        raise CheckpointError(
            f"no twin can be made of quant_method {quantization.get('quant_method')!r}",
            where=str(source),
            fix=f"only checkpoints of {', '.join(READABLE)} have one",
        )
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    cores = available_cores()
    request = {
        "source": str(source.resolve()),
        "out": str(out.resolve()),
        "threads": cores,
    }
    job = run_job(
        python,
        _SCRIPT,
        request,
        folder=folder,
        log=log,
        timeout=TIMEOUT_SECONDS,
        progress=progress,
        name=f"dequantize {source.name}",
        env=threads(cores)[1],
    )
    with disk_errors(out):
        copy_companions(source, out)
        if (source / "calibration.json").is_file():
            shutil.copyfile(source / "calibration.json", out / "calibration.json")
    choices = {
        "twin": Choice(
            value=f"float32, {job.value['dequantized']} of {job.value['tensors']} tensors "
            "dequantized",
            reason="; ".join(
                ["plain float32 adds no rounding to the quantized weights", *missing(quantization)]
            ),
        )
    }
    return QuantizeOutcome(
        choices=choices,
        packages=job.value["packages"],
        seconds=job.seconds,
        peak_memory_bytes=job.peak_memory_bytes,
        peak_gpu_bytes=job.peak_gpu_bytes,
    )


def missing(quantization: Mapping[str, Any]) -> list[str]:
    """What a quantization config asks for that its twin does not show, a clause each."""
    clauses = []
    groups = (quantization.get("config_groups") or {}).values()
    if any(group.get("input_activations") for group in groups):
        clauses.append("the activations, which this format quantizes too, are not quantized in it")
    if quantization.get("kv_cache_scheme"):
        clauses.append("its KV cache is not in FP8, so the calibrated scales are not measured")
    return clauses
