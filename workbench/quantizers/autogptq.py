"""The GPTQ format with AutoGPTQ (https://github.com/AutoGPTQ/AutoGPTQ), which ended in 2024.

For teams whose history is in its checkpoints; GPTQModel is its successor. It quantizes on CUDA
devices only. Prepares and checks in the light kernel; the work is `inside/quantize_autogptq.py`,
which was not yet run on a GPU.
"""

from __future__ import annotations

from pathlib import Path

from workbench.errors import RecipeError
from workbench.quantizers import QuantizeOutcome, Task, originals
from workbench.records import Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.variants import AutoGptqSpec

#: Output columns are packed into words of 32 bits.
_COLUMNS = 32
#: Model types of AutoGPTQ 0.7.1 (SUPPORTED_MODELS) under transformers 4.38.
# fmt: off
MODEL_TYPES = (
    "baichuan", "bloom", "codegen", "deci", "falcon", "gemma", "gpt2", "gpt_bigcode", "gpt_neox",
    "gptj", "internlm", "llama", "longllama", "mistral", "mixtral", "moss", "opt", "qwen", "qwen2",
    "RefinedWeb", "RefinedWebModel", "stablelm_epoch", "xverse", "Yi",
)
# fmt: on


class AutoGptq:
    """AutoGPTQ in its own environment, on a CUDA device."""

    def environments(self, variant: AutoGptqSpec) -> tuple[str, ...]:
        """Its own."""
        return ("autogptq",)

    def check(self, variant: AutoGptqSpec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse a machine without CUDA, and what AutoGPTQ would write wrongly.

        Raises:
            RecipeError: with the method to use instead.
        """
        where = f"variants: {variant.name}"
        if not hardware.gpus:
            raise RecipeError(
                "AutoGPTQ needs a CUDA device, and this machine has none",
                where=f"{where}: method",
                fix="use 'gptqmodel', which writes the same format on a CPU too, or 'gptq' "
                "(llm-compressor)",
            )
        if not variant.symmetric:
            raise RecipeError(
                "AutoGPTQ 0.7.1 stores a zero point minus one without a sign: a zero point of 0, "
                "which asymmetric codes have, overwrites its neighbours",
                where=f"{where}: symmetric",
                fix="leave symmetric true, or use 'gptqmodel'",
            )
        originals.check_model_type(variant, checkpoint, MODEL_TYPES)
        originals.check(variant, checkpoint, _COLUMNS)

    def estimate(
        self,
        variant: AutoGptqSpec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """GPTQ's cost by llm-compressor on two cores, in proportion: its own was not measured."""
        return originals.proportion(
            checkpoint, calibration, hardware, seconds=40.0, seconds_per_token=0.013
        )

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Run the job on the sealed rows.

        Raises:
            JobFailure: the job died, or a layer's Hessian had no inverse.
            RecipeError: there is no sealed calibration set.
        """
        original, scratch = Path(task.checkpoint.path), task.folder / "source"
        with originals.older_source(original, scratch) as source:
            job = originals.run(task, "autogptq", source)
        choices = {
            "calibration": originals.sealed_choice(task),
            "dtype": Choice(value=job.value["dtype"], reason="the tool's own"),
        }
        return originals.outcome(task, job, choices)
