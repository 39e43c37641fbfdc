"""The GPTQ format with GPTQModel, its maintained producer (https://github.com/ModelCloud/GPTQModel).

Prepares and checks in the light kernel; the work is `inside/quantize_gptqmodel.py`.
"""

from __future__ import annotations

from pathlib import Path

from workbench.quantizers import QuantizeOutcome, Task, originals
from workbench.records import Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.variants import GptqModelSpec

#: Output columns in one packed word of zero points, and its packing's own block.
_COLUMNS = 32
# 410 s for 30 layers with 32 samples of ~150 tokens.
_SECONDS = 100.0
_SECONDS_PER_TOKEN = 310.0 / (32 * 150)


class GptqModel:
    """GPTQModel in its own environment."""

    def environments(self, variant: GptqModelSpec) -> tuple[str, ...]:
        """Its own."""
        return ("gptqmodel",)

    def check(self, variant: GptqModelSpec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse a quantized source and widths that do not fit.

        Raises:
            RecipeError: with an option that works.
        """
        originals.check(variant, checkpoint, _COLUMNS)

    def estimate(
        self,
        variant: GptqModelSpec,
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
            JobFailure: the job died, or the tool calibrated with other rows.
            RecipeError: there is no sealed calibration set.
        """
        job = originals.run(task, "gptqmodel", Path(task.checkpoint.path).resolve())
        value, symmetric = job.value, task.variant.symmetric
        choices = {
            "calibration": originals.sealed_choice(task),
            "fallback": Choice(
                value=f"{value['fallback']} of {value['quantized']} layers rounded to nearest "
                "instead of GPTQ",
                reason=f"the tool's own rule is '{value['fallback_rule']}' of the samples reaching "
                "a layer",
            ),
            "column_order": Choice(
                value="activation order"
                if task.variant.act_order
                else "group-aware"
                if value["group_aware"]
                else "as they are",
                reason="the recipe says so"
                if task.variant.act_order
                else "the tool's own default: columns are reordered within what groups allow, at "
                "no cost when serving",
            ),
            "checkpoint_format": Choice(
                value=value["format"],
                reason="the layout every reader of GPTQ knows"
                if symmetric
                else "asymmetric zero points of 0 are damaged in the older layout, which stores "
                "them minus one",
            ),
            "dtype": Choice(value=value["dtype"], reason="the tool's own for this device"),
        }
        if value["raised"]:
            choices["dampening"] = Choice(
                value=f"raised for {value['raised']} layers",
                reason="their Hessian had no inverse at the recipe's dampening",
            )
        return originals.outcome(task, job, choices)
