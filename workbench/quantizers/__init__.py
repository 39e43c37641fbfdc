"""Quantizers, one module a tool. A literal table, loaded only when a method is asked for.

A quantizer runs in the light kernel and only prepares: the heavy work is a job in the environment
it names (`workbench.jobs`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from workbench.errors import RecipeError, did_you_mean
from workbench.progress import Progress
from workbench.records import Calibration, Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec

#: method -> "module:class". Adding a tool is a module and a line.
QUANTIZERS = {
    "fp8": "workbench.quantizers.llmcompressor:LlmCompressor",
    "gptq": "workbench.quantizers.llmcompressor:LlmCompressor",
    "fake": "workbench.quantizers.fake:FakeQuantizer",
}


@dataclass(frozen=True)
class QuantizeOutcome:
    """What a quantizer reports beside the files it wrote.

    Attributes:
        choices: automatic decisions, with their reasons.
        packages: distribution -> version of the tools that did it.
        seconds: wall time of the job.
        peak_memory_bytes: largest resident size of the job's processes; None where not measured.
    """

    choices: dict[str, Choice] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_bytes: int | None = None


class Quantizer(Protocol):
    """One tool that turns a checkpoint into a quantized one."""

    @property
    def environment(self) -> str | None:
        """Name of the environment it needs; None runs in the light kernel's own Python."""

    def check(self, variant: Any, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse what cannot work, before any model is loaded.

        Raises:
            RecipeError: the options do not fit the checkpoint, or the tool.
        """

    def estimate(
        self,
        variant: Any,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """Roughly how long it takes (seconds) and how much memory it needs (bytes)."""

    def quantize(
        self,
        variant: Any,
        checkpoint: Checkpoint,
        calibration: Calibration | None,
        calibration_folder: Path | None,
        out: Path,
        *,
        python: str | None,
        folder: Path,
        log: Path,
        progress: Progress,
    ) -> QuantizeOutcome:
        """Write the complete quantized checkpoint into `out`.

        Args:
            variant: the variant's spec.
            checkpoint: the unquantized source.
            calibration: the sealed set; None for a data-free method.
            calibration_folder: where the set's token ids are.
            out: folder of the result; made here, and only complete when this returns.
            python: interpreter of the environment; None for the light kernel's own.
            folder: scratch space of the job.
            log: where its output goes.
            progress: told how far it is.

        Raises:
            JobFailure: the job died, ran out of memory or time, or left no result.
        """


def quantizer(method: str) -> Quantizer:
    """The quantizer of a method.

    Raises:
        RecipeError: there is none.
    """
    if method not in QUANTIZERS:
        raise RecipeError(
            f"there is no quantizer for the method '{method}'",
            where="variants: method",
            fix=f"{did_you_mean(method, QUANTIZERS)}methods: {', '.join(QUANTIZERS)}",
        )
    module, _, name = QUANTIZERS[method].partition(":")
    made: Quantizer = getattr(importlib.import_module(module), name)()
    return made
