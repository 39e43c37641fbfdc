"""Quantizers, one module a tool. A literal table, loaded only when a method is asked for.

A quantizer runs in the light kernel and only prepares: the heavy work is a job in the environment
it names (`workbench.jobs`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from workbench.errors import RecipeError, did_you_mean
from workbench.progress import Progress
from workbench.records import Calibration, Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec

#: method -> "module:class". Adding a tool is a module and a line.
QUANTIZERS = {
    "none": "workbench.quantizers.llmcompressor:LlmCompressor",
    "fp8": "workbench.quantizers.llmcompressor:LlmCompressor",
    "gptq": "workbench.quantizers.llmcompressor:LlmCompressor",
    "awq": "workbench.quantizers.llmcompressor:LlmCompressor",
    "int8": "workbench.quantizers.llmcompressor:LlmCompressor",
    "nf4": "workbench.quantizers.bitsandbytes:BitsAndBytes",
    "gguf": "workbench.quantizers.llamacpp:LlamaCpp",
    "gptqmodel": "workbench.quantizers.gptqmodel:GptqModel",
    "auto-gptq": "workbench.quantizers.autogptq:AutoGptq",
    "autoawq": "workbench.quantizers.autoawq:AutoAwq",
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
        peak_gpu_bytes: most device memory its torch held; None where it used no GPU.
    """

    choices: dict[str, Choice] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_bytes: int | None = None
    peak_gpu_bytes: int | None = None


@dataclass(frozen=True)
class Task:
    """One checkpoint to be made.

    Attributes:
        variant: the variant's spec.
        checkpoint: the unquantized source.
        out: folder of the result; made by the quantizer, and only complete when it returns.
        folder: scratch space of the job.
        log: where its output goes.
        progress: told how far it is.
        pythons: interpreter of each environment the quantizer names.
        calibration: the sealed set; None for a data-free method.
        calibration_folder: where the set's token ids are.
        converted: folder with the unquantized GGUF file, for a GGUF variant that is made from it.
    """

    variant: Any
    checkpoint: Checkpoint
    out: Path
    folder: Path
    log: Path
    progress: Progress
    pythons: Mapping[str, str] = field(default_factory=dict)
    calibration: Calibration | None = None
    calibration_folder: Path | None = None
    converted: Path | None = None

    @property
    def tokens(self) -> Path:
        """File of the sealed token ids, one JSON list a line.

        Raises:
            RecipeError: the method is calibrated and there is no set.
        """
        if self.calibration is None or self.calibration_folder is None:
            raise RecipeError(
                f"variant '{self.variant.name}' needs a sealed calibration set",
                where=f"variants: {self.variant.name}",
                fix="add a 'calibration' section to the recipe and run the calibrate step",
            )
        return (self.calibration_folder / self.calibration.tokens_file).resolve()


class Quantizer(Protocol):
    """One tool that turns a checkpoint into a quantized one."""

    def environments(self, variant: Any) -> tuple[str, ...]:
        """Names of the environments it needs for a variant; none: the light kernel's own Python."""

    def check(self, variant: Any, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse what cannot work, before any model is loaded.

        Raises:
            RecipeError: the options do not fit the checkpoint, the tool or the machine.
        """

    def estimate(
        self,
        variant: Any,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """Roughly how long it takes (seconds) and how much memory it needs (bytes)."""

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Write the complete quantized checkpoint into the task's `out`.

        Raises:
            JobFailure: the job died, ran out of memory or time, or left no result.
            RecipeError: a calibrated method was given no calibration set.
        """


def notes(variant: Any, checkpoint: Checkpoint) -> list[str]:
    """What a tool knows beforehand that will work but may surprise; a tool need not have any.

    It is the method ``notes(variant, checkpoint)`` of a quantizer, one sentence an entry, the
    variant's name in front.
    """
    told = getattr(quantizer(variant.method), "notes", None)
    return list(told(variant, checkpoint)) if told else []


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
