"""The dequantized twin of a compressed-tensors checkpoint: plain float32, the quantized weights.

Served where the engine has no kernel for the format (the emulated lane). It has the quantized
weights' quality and nothing else of theirs: no speed, no size, and no quantized activations.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from workbench.checkpoint import copy_companions, read_config
from workbench.errors import CheckpointError
from workbench.jobs import run_job
from workbench.progress import Progress
from workbench.quantizers import QuantizeOutcome
from workbench.quantizers.llmcompressor import available_cores
from workbench.records import Choice
from workbench.store import disk_errors

_SCRIPT = Path(__file__).parents[1] / "inside" / "dequantize_twin.py"
TIMEOUT_SECONDS = 4 * 3600.0


def dequantize(
    source: Path, out: Path, *, python: str, folder: Path, log: Path, progress: Progress
) -> QuantizeOutcome:
    """Write the twin of the quantized checkpoint `source` into `out`.

    Args:
        source: folder of a compressed-tensors checkpoint.
        out: folder of the twin; made here, and only complete when this returns.
        python: interpreter of the `quantize` environment.
        folder: scratch space of the job.
        log: where its output goes.
        progress: told how far it is.

    Raises:
        CheckpointError: the source is not in the compressed-tensors format.
        JobFailure: the job failed, or the dequantized weights are not finite.
    """
    quantization = read_config(source).get("quantization_config") or {}
    if quantization.get("quant_method") != "compressed-tensors":
        raise CheckpointError(
            f"no twin can be made of quant_method {quantization.get('quant_method')!r}",
            where=str(source),
            fix="only compressed-tensors checkpoints (fp8, gptq) have one",
        )
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    request = {
        "source": str(source.resolve()),
        "out": str(out.resolve()),
        "threads": available_cores(),
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
    )
    with disk_errors(out):
        copy_companions(source, out)
        if (source / "calibration.json").is_file():
            shutil.copyfile(source / "calibration.json", out / "calibration.json")
    groups = quantization.get("config_groups", {}).values()
    activations = any(group.get("input_activations") for group in groups)
    choices = {
        "twin": Choice(
            value=f"float32, {job.value['dequantized']} of {job.value['tensors']} tensors "
            "dequantized",
            reason="plain float32 adds no rounding to the quantized weights"
            + (
                "; the activations, which this format quantizes too, are not quantized in it"
                if activations
                else ""
            ),
        )
    }
    return QuantizeOutcome(
        choices=choices,
        packages=job.value["packages"],
        seconds=job.seconds,
        peak_memory_bytes=job.peak_memory_bytes,
    )
