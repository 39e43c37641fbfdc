"""The AWQ format with AutoAWQ (https://github.com/casper-hansen/AutoAWQ), which is deprecated.

For teams whose history is in its checkpoints; `awq` (llm-compressor) is its successor. Prepares
and checks in the light kernel; the work is `inside/quantize_autoawq.py`.
"""

from __future__ import annotations

from pathlib import Path

from workbench.errors import RecipeError
from workbench.quantizers import QuantizeOutcome, Task, originals
from workbench.records import Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.variants import AutoAwqSpec

#: It searches its clipping for 64 output columns at a time.
_COLUMNS = 64
#: Model types of its table (AutoAWQ 0.2.9, AWQ_CAUSAL_LM_MODEL_MAP) that are language models.
# fmt: off
MODEL_TYPES = (
    "aquila", "baichuan", "bloom", "cohere", "deepseek_v2", "deepseek_v3", "exaone", "falcon",
    "gemma", "gemma2", "gpt_bigcode", "gpt_neox", "gptj", "internlm2", "llama", "minicpm",
    "minicpm3", "mistral", "mixtral", "mpt", "opt", "phi3", "qwen", "qwen2", "qwen3", "qwen3_moe",
    "stablelm", "starcoder2", "Yi",
)
# fmt: on
# 26 minutes for 30 layers with 32 samples of ~150 tokens.
_SECONDS = 300.0
_SECONDS_PER_TOKEN = 1260.0 / (32 * 150)


class AutoAwq:
    """AutoAWQ in its own environment."""

    def environments(self, variant: AutoAwqSpec) -> tuple[str, ...]:
        """Its own."""
        return ("autoawq",)

    def check(self, variant: AutoAwqSpec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse models, groups and codes that AutoAWQ fails on after it has loaded the model.

        Raises:
            RecipeError: with an option that works.
        """
        where = f"variants: {variant.name}"
        if variant.group_size == -1:
            raise RecipeError(
                "AutoAWQ has no scales per channel: it divides every row into groups",
                where=f"{where}: group_size",
                fix="use 128, 64 or 32",
            )
        if not variant.zero_point:
            raise RecipeError(
                "AutoAWQ cannot save symmetric codes: its GEMM layout wants zero points",
                where=f"{where}: zero_point",
                fix="leave zero_point true, or use 'awq' (llm-compressor)",
            )
        originals.check_model_type(variant, checkpoint, MODEL_TYPES)
        originals.check(variant, checkpoint, _COLUMNS)

    def estimate(
        self,
        variant: AutoAwqSpec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """In proportion to a measured run; see the constants."""
        return originals.proportion(
            checkpoint,
            calibration,
            hardware,
            seconds=_SECONDS,
            seconds_per_token=_SECONDS_PER_TOKEN,
        )

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Run the job on the sealed rows.

        Raises:
            JobFailure: the job died, or the tool calibrated with other tokens.
            RecipeError: there is no sealed calibration set.
        """
        original, scratch = Path(task.checkpoint.path), task.folder / "source"
        limit = task.checkpoint.max_position_embeddings
        with originals.older_source(original, scratch) as source:
            job = originals.run(task, "autoawq", source, longest=limit)
        value = job.value
        lost = value["tokens"] - value["blocks"] * value["length"]
        assert task.calibration is not None
        choices = {
            "calibration": Choice(
                value=f"{value['rows']} samples strung together and cut into {value['blocks']} "
                f"blocks of {value['length']} tokens; {lost} of {value['tokens']} tokens left over",
                reason=f"sealed set {task.calibration.seal[:16]} in its own order; AutoAWQ does "
                "not keep rows apart, so a block begins in one row and ends in another",
            ),
            "clipping": Choice(value="searched", reason="the tool's own default"),
            "dtype": Choice(
                value=value["dtype"],
                reason="the only one the tool was made for; what is not quantized is cast to it",
            ),
        }
        if value["at_once"]:
            choices["blocks_at_once"] = Choice(
                value=str(value["at_once"]), reason="all blocks at once would not fit in memory"
            )
        return originals.outcome(task, job, choices)
