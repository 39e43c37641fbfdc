"""FP8 and GPTQ with llm-compressor (https://github.com/vllm-project/llm-compressor).

Prepares and checks in the light kernel; the work is `inside/quantize_llmcompressor.py`.
"""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path
from typing import Any

from workbench.checkpoint import copy_companions
from workbench.errors import RecipeError
from workbench.jobs import run_job
from workbench.quantizers import QuantizeOutcome, Task
from workbench.records import Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.store import disk_errors, write_record
from workbench.variants import Fp8Spec, GptqSpec

_SCRIPT = Path(__file__).parents[1] / "inside" / "quantize_llmcompressor.py"

#: Group sizes that engines have kernels for, the usual one first.
USUAL_GROUP_SIZES = (128, 64, 32)
#: A job is ended after this long, whatever it says: a day for the largest model on a CPU.
TIMEOUT_SECONDS = 24 * 3600.0

# Estimates, from timings of a 135 M parameter model on 2 cores without a GPU: FP8 3 s beside 10 s
# of imports and loading; GPTQ 51 s with 8 samples of 128 tokens and 99 s with 32 of ~150.
_START_SECONDS = 12.0
_REFERENCE_PARAMETERS = 135e6
_REFERENCE_CORES = 2
#: More cores than this do not make the work faster; a guess, not measured.
_USEFUL_CORES = 16
_FP8_SECONDS = 3.0
_GPTQ_SECONDS = 36.0
_GPTQ_SECONDS_PER_TOKEN = 48.0 / (32 * 150 - 8 * 128)
#: A GPU against two CPU cores; only an order of magnitude.
_GPU_SPEEDUP = 30.0
_PYTHON_BYTES = 900 << 20


class LlmCompressor:
    """llm-compressor in its own environment."""

    def environments(self, variant: Fp8Spec | GptqSpec) -> tuple[str, ...]:
        """Its own."""
        return ("quantize",)

    def check(
        self, variant: Fp8Spec | GptqSpec, checkpoint: Checkpoint, hardware: Hardware
    ) -> None:
        """Refuse an already quantized source, an ignored tied head that is not, and bad groups.

        Raises:
            RecipeError: with the layer widths and a group size that works.
        """
        where = f"variants: {variant.name}"
        if checkpoint.quantization is not None:
            raise RecipeError(
                f"the source checkpoint is already quantized ({checkpoint.quantization})",
                where=checkpoint.path,
                fix="quantize the original: its model card usually names it as 'base_model'",
            )
        if not checkpoint.linear_input_widths:
            raise RecipeError(
                "the checkpoint has no linear layer that could be quantized",
                where=checkpoint.path,
                fix=f"architecture {checkpoint.architecture} is not one this method fits",
            )
        if checkpoint.tied_embeddings and not ignores_head(variant.ignore):
            raise RecipeError(
                "the output layer shares its weights with the embeddings, and 'ignore' leaves it "
                "to be quantized",
                where=f"{where}: ignore",
                fix="add 'lm_head' to 'ignore'",
            )
        if isinstance(variant, GptqSpec):
            _check_gptq(variant, checkpoint, where)

    def estimate(
        self,
        variant: Fp8Spec | GptqSpec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """Scale measured times by parameters, calibration tokens and cores; see the constants."""
        cores = max(1, min(hardware.cores, _USEFUL_CORES))
        scale = checkpoint.parameters / _REFERENCE_PARAMETERS
        scale *= 1 / _GPU_SPEEDUP if hardware.gpus else _REFERENCE_CORES / cores
        work = _FP8_SECONDS
        # The bf16 weights, and once more while they are saved.
        memory = _PYTHON_BYTES + 2 * checkpoint.weight_bytes
        if isinstance(variant, GptqSpec):
            tokens = calibration.samples * calibration.max_tokens if calibration else 0
            work = _GPTQ_SECONDS + _GPTQ_SECONDS_PER_TOKEN * tokens
            # One layer's hidden states for every token, in and out, float32; and the Hessians of
            # one layer, at most seven of the widest input.
            widest = max(checkpoint.linear_input_widths, default=checkpoint.hidden_size)
            memory += 2 * 4 * tokens * checkpoint.hidden_size + 7 * 4 * widest * widest
        return _START_SECONDS + work * scale, memory

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Run the job, then complete its output with the source's own files and the seal.

        Raises:
            JobFailure: the job died, ran out of memory or time, or left no result.
            RecipeError: a calibrated method was given no calibration set.
        """
        variant, out, calibration = task.variant, task.out, task.calibration
        source = Path(task.checkpoint.path)
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        request: dict[str, Any] = {
            "source": str(source.resolve()),
            "out": str(out.resolve()),
            "method": variant.method,
            "options": variant.model_dump(mode="json", exclude={"name", "method", "serve_as"}),
            "tokens": None,
            "max_tokens": 0,
            "threads": available_cores(),
        }
        if variant.calibrates:
            request["tokens"] = str(task.tokens)
            request["max_tokens"] = calibration.max_tokens if calibration else 0
        job = run_job(
            task.pythons["quantize"],
            _SCRIPT,
            request,
            folder=task.folder,
            log=task.log,
            timeout=TIMEOUT_SECONDS,
            progress=task.progress,
            name=f"quantize {variant.name} ({variant.method})",
        )
        with disk_errors(out):
            copy_companions(source, out)
            for shard in out.glob("*.safetensors"):
                shard.chmod(0o644)  # the saver makes them private; a server may be another user
        if calibration is not None:
            write_record(out / "calibration.json", calibration)
        kept = job.value["kept"]
        choices = {
            "layers": Choice(
                value=f"{job.value['quantized']} of {job.value['quantized'] + len(kept)}",
                reason=f"'ignore' keeps {', '.join(kept)}" if kept else "every linear layer",
            ),
            "device": Choice(
                value=job.value["device"],
                reason="a CUDA device is there"
                if job.value["device"].startswith("cuda")
                else "no CUDA device",
            ),
        }
        if calibration is not None:
            longest = max(row.tokens for row in calibration.rows)
            choices["calibration"] = Choice(
                value=f"{len(calibration.rows)} samples, up to {longest} tokens",
                reason=f"sealed set {calibration.seal[:16]} in its own order",
            )
        if fallback := job.value["fallback"]:
            choices["fallback"] = Choice(
                value=f"{fallback} layers rounded to nearest instead of GPTQ",
                reason="their Hessian had no inverse: more samples or a larger 'dampening' help",
            )
        return QuantizeOutcome(
            choices=choices,
            packages=job.value["packages"],
            seconds=job.seconds,
            peak_memory_bytes=job.peak_memory_bytes,
        )


def available_cores() -> int:
    """Cores this process may use, as the scheduler sees it."""
    return len(os.sched_getaffinity(0))


def ignores_head(ignore: tuple[str, ...]) -> bool:
    """Whether the ignore list covers ``lm_head``: by name, by ``re:`` pattern or by glob."""
    for entry in ignore:
        if entry.startswith("re:"):
            if re.match(entry.removeprefix("re:"), "lm_head"):
                return True
        elif fnmatch.fnmatch("lm_head", entry):
            return True
    return False


def _check_gptq(variant: GptqSpec, checkpoint: Checkpoint, where: str) -> None:
    if variant.act_order == "group":
        raise RecipeError(
            "activation order 'group' is no longer in llm-compressor "
            "(compressed-tensors 0.19 removed it)",
            where=f"{where}: act_order",
            fix="use 'static': the same order during calibration, at no cost when serving",
        )
    size = variant.group_size
    if size == -1:
        return
    widths = checkpoint.linear_input_widths
    bad = [width for width in widths if width % size]
    if bad:
        works = [s for s in USUAL_GROUP_SIZES if all(width % s == 0 for width in widths)]
        fix = f"use {works[0]}" if works else "use -1, one scale per output channel"
        known = ", ".join(map(str, widths))
        raise RecipeError(
            f"group_size {size} does not divide the layer width{'s' if len(bad) > 1 else ''} "
            f"{', '.join(map(str, bad))} (input widths of the model: {known})",
            where=f"{where}: group_size",
            fix=fix,
        )
