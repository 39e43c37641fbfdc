"""FP8, GPTQ, AWQ and INT8 with llm-compressor (https://github.com/vllm-project/llm-compressor).

And the scales of an FP8 KV cache, for any of them or for the weights as they are. Prepares and
checks in the light kernel; the work is `inside/quantize_llmcompressor.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.checkpoint import copy_companions
from workbench.jobs import run_job
from workbench.quantizers import QuantizeOutcome, Task
from workbench.quantizers.cores import available_cores, threads
from workbench.quantizers.llmcompressor_checks import (
    check_awq,
    check_fp8,
    check_gptq,
    check_head,
    check_int8,
    check_kv_cache,
    check_source,
    unknown,
)
from workbench.quantizers.llmcompressor_estimate import AnySpec, estimate
from workbench.records import Calibration, Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.store import disk_errors, write_record
from workbench.variants import AwqSpec, Fp8Spec, GptqSpec, Int8Spec, NoneSpec

_SCRIPT = Path(__file__).parents[1] / "inside" / "quantize_llmcompressor.py"
#: A job is ended after this long, whatever it says: a day for the largest model on a CPU.
TIMEOUT_SECONDS = 24 * 3600.0


class LlmCompressor:
    """llm-compressor in its own environment."""

    def environments(self, variant: AnySpec) -> tuple[str, ...]:
        """Its own."""
        return ("quantize",)

    def check(self, variant: AnySpec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse what `llmcompressor_checks` knows to fail.

        Raises:
            RecipeError: with the layer widths, or the architectures, and an option that works.
        """
        check_source(checkpoint)
        if variant.kv_cache == "fp8":
            check_kv_cache(variant.name, checkpoint, hardware)
        if not isinstance(variant, NoneSpec):
            check_head(variant.name, variant.ignore, checkpoint)
        if isinstance(variant, GptqSpec):
            check_gptq(variant, checkpoint)
        elif isinstance(variant, AwqSpec):
            check_awq(variant, checkpoint)
        elif isinstance(variant, Int8Spec):
            check_int8(variant, checkpoint)
        elif isinstance(variant, Fp8Spec):
            check_fp8(variant, checkpoint)

    def notes(self, variant: AnySpec, checkpoint: Checkpoint) -> list[str]:
        """An architecture nobody here knows."""
        return unknown(variant.name, checkpoint)

    def estimate(
        self,
        variant: AnySpec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """Scale measured times; see `llmcompressor_estimate`."""
        return estimate(variant, checkpoint, calibration, hardware)

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Run the job, then complete its output with the source's own files and the seal.

        Raises:
            JobFailure: the job died, ran out of memory or time, left no result, or could not
                calibrate the scales of a KV cache.
            RecipeError: a calibrated method was given no calibration set.
        """
        variant, out = task.variant, task.out
        calibration = task.calibration if variant.calibrates else None
        source = Path(task.checkpoint.path)
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        cores = available_cores()
        bound, environment = threads(cores)
        request: dict[str, Any] = {
            "source": str(source.resolve()),
            "out": str(out.resolve()),
            "method": variant.method,
            "options": variant.model_dump(
                mode="json", exclude={"name", "method", "serve_as", "repeat"}
            ),
            "tokens": None,
            "max_tokens": 0,
            "threads": cores,
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
            env=environment,
        )
        with disk_errors(out):
            copy_companions(source, out)
            for shard in out.glob("*.safetensors"):
                shard.chmod(0o644)  # the saver makes them private; a server may be another user
        if calibration is not None:
            write_record(out / "calibration.json", calibration)
        return QuantizeOutcome(
            choices=_choices(variant, job.value, calibration, task.checkpoint) | {"threads": bound},
            packages=job.value["packages"],
            seconds=job.seconds,
            peak_memory_bytes=job.peak_memory_bytes,
            peak_gpu_bytes=job.peak_gpu_bytes,
        )


def _choices(
    variant: AnySpec, value: dict[str, Any], calibration: Calibration | None, source: Checkpoint
) -> dict[str, Choice]:
    """What the job decided or met on its way, with reasons."""
    kept, quantized = value["kept"], value["quantized"]
    on_gpu = value["device"].startswith("cuda")
    choices = {
        "layers": Choice(
            value=f"{quantized} of {quantized + len(kept)}",
            reason="method 'none' leaves the weights as they are"
            if isinstance(variant, NoneSpec)
            else f"'ignore' keeps {', '.join(kept)}"
            if kept
            else "every linear layer",
        ),
        "device": Choice(
            value=value["device"],
            reason="a CUDA device is there" if on_gpu else "no CUDA device",
        ),
    }
    if calibration is not None:
        longest = max(row.tokens for row in calibration.rows)
        choices["calibration"] = Choice(
            value=f"{len(calibration.rows)} samples, up to {longest} tokens",
            reason=f"sealed set {calibration.seal[:16]} in its own order",
        )
    if isinstance(variant, AwqSpec):
        skipped = value["skipped_mappings"]
        choices["mappings"] = Choice(
            value=variant.mappings or source.architecture,
            reason=("the recipe says so" if variant.mappings else "the checkpoint's architecture")
            + f"; {value['smoothed']} smoothed"
            + (
                f", {skipped} skipped because their shapes do not match (with grouped-query "
                "attention v_proj is narrower than what o_proj reads)"
                if skipped
                else ""
            ),
        )
    if isinstance(variant, Int8Spec) and variant.smoothing:
        choices["smoothing"] = Choice(
            value=f"{value['smoothed']} layers at strength {variant.smoothing:g}",
            reason=f"SmoothQuant's mappings of {source.architecture}",
        )
    if scales := value.get("kv_scales"):
        choices["kv_cache"] = Choice(
            value=f"fp8, {scales['count']} scales from {scales['lowest']:.3g} to "
            f"{scales['highest']:.3g}",
            reason=f"calibrated for the keys and values of {scales['count'] // 2} layers; "
            f"{scales['ones']} of them 1.0",
        )
    if fallback := value["fallback"]:
        choices["fallback"] = Choice(
            value=f"{fallback} layers rounded to nearest instead of GPTQ",
            reason="their Hessian had no inverse: more samples or a larger 'dampening' help",
        )
    if value["workarounds"]:
        choices["workarounds"] = Choice(
            value=", ".join(value["workarounds"]), reason="see inside/_awq_pin_memory.py"
        )
    return choices
