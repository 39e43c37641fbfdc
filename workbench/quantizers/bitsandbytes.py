"""NF4 with bitsandbytes, through transformers, as users of both save it. Data-free.

https://github.com/bitsandbytes-foundation/bitsandbytes. This prepares and checks in the light
kernel; the work is `inside/quantize_bitsandbytes.py`.
"""

from __future__ import annotations

from pathlib import Path

from workbench.checkpoint import copy_companions
from workbench.jobs import run_job
from workbench.quantizers import QuantizeOutcome, Task
from workbench.quantizers.cores import available_cores, threads
from workbench.quantizers.llmcompressor_checks import check_head, check_source, unknown
from workbench.records import Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.store import disk_errors
from workbench.variants import Nf4Spec

_SCRIPT = Path(__file__).parents[1] / "inside" / "quantize_bitsandbytes.py"
TIMEOUT_SECONDS = 12 * 3600.0

# Estimates, from a 135 M parameter model on 2 cores without a GPU: 17 s, of which most is imports.
_START_SECONDS = 12.0
_SECONDS_PER_PARAMETER = 5.0 / 135e6
_REFERENCE_CORES = 2
_PYTHON_BYTES = 700 << 20


class BitsAndBytes:
    """bitsandbytes, in the environment of llm-compressor: they agree on torch."""

    def environments(self, variant: Nf4Spec) -> tuple[str, ...]:
        """The one that holds both."""
        return ("quantize",)

    def check(self, variant: Nf4Spec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse a quantized source, and a tied output layer that is not ignored.

        Raises:
            RecipeError: with what to change.
        """
        check_source(checkpoint)
        check_head(variant.name, variant.ignore, checkpoint)

    def notes(self, variant: Nf4Spec, checkpoint: Checkpoint) -> list[str]:
        """An architecture nobody here knows."""
        return unknown(variant.name, checkpoint)

    def estimate(
        self,
        variant: Nf4Spec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """In proportion to the parameters; the source and its half-size copy are in memory."""
        work = _SECONDS_PER_PARAMETER * checkpoint.parameters * _REFERENCE_CORES
        seconds = _START_SECONDS + work / max(1, hardware.cores)
        return seconds, _PYTHON_BYTES + 2 * checkpoint.weight_bytes

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Run the job, then complete its output with the source's own files.

        Raises:
            JobFailure: the job died, ran out of memory or time, or left no result.
        """
        variant, out = task.variant, task.out
        source = Path(task.checkpoint.path)
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        cores = available_cores()
        bound, environment = threads(cores)
        request = {
            "source": str(source.resolve()),
            "out": str(out.resolve()),
            "options": variant.model_dump(
                mode="json", exclude={"name", "method", "serve_as", "repeat"}
            ),
            "threads": cores,
        }
        job = run_job(
            task.pythons["quantize"],
            _SCRIPT,
            request,
            folder=task.folder,
            log=task.log,
            timeout=TIMEOUT_SECONDS,
            progress=task.progress,
            name=f"quantize {variant.name} (nf4)",
            env=environment,
        )
        with disk_errors(out):
            copy_companions(source, out)
            for shard in out.glob("*.safetensors"):
                shard.chmod(0o644)  # the saver makes them private; a server may be another user
        kept = job.value["kept"]
        quantized = job.value["quantized"]
        twice = "blocks of 64, their scales in 8 bits" if variant.double_quant else "blocks of 64"
        choices = {
            "layers": Choice(
                value=f"{quantized} of {quantized + len(kept)}",
                reason=f"'ignore' keeps {', '.join(kept)}" if kept else "every linear layer",
            ),
            "type": Choice(
                value=f"nf4, {twice}",
                reason="said in the config: where it is missing, bitsandbytes reads fp4",
            ),
            "device": Choice(
                value=job.value["device"],
                reason="a CUDA device is there"
                if job.value["device"].startswith("cuda")
                else "no CUDA device",
            ),
            "threads": bound,
        }
        return QuantizeOutcome(
            choices=choices,
            packages=job.value["packages"],
            seconds=job.seconds,
            peak_memory_bytes=job.peak_memory_bytes,
            peak_gpu_bytes=job.peak_gpu_bytes,
        )
