"""What the wrappers of the original tools share: checks, an older source, and the finished folder.

GPTQModel, AutoAWQ and AutoGPTQ write the GPTQ and AWQ formats under their own names: for teams
whose history is in those formats. Each runs in an environment of its own, of its own time.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.checkpoint import INDEX, copy_companions, read_config
from workbench.errors import RecipeError
from workbench.jobs import JobResult, run_job
from workbench.quantizers import QuantizeOutcome, Task
from workbench.quantizers.cores import available_cores, threads
from workbench.quantizers.llmcompressor_checks import check_group, check_source
from workbench.records import Checkpoint, Choice, Hardware
from workbench.safetensors_header import read_header
from workbench.spec import CalibrationSpec
from workbench.store import disk_errors, write_record
from workbench.variants import AutoAwqSpec, AutoGptqSpec, GptqModelSpec

OriginalSpec = GptqModelSpec | AutoGptqSpec | AutoAwqSpec

_INSIDE = Path(__file__).parents[1] / "inside"
TIMEOUT_SECONDS = 24 * 3600.0
#: Keys of `rope_parameters` (transformers 5) that transformers 4 has at the top of a config.
_ROPE_TOP = ("rope_theta", "partial_rotary_factor")


def check(variant: OriginalSpec, checkpoint: Checkpoint, columns: int) -> None:
    """Refuse a quantized source, an FP8 KV cache, and widths that groups or packing do not fit.

    Args:
        variant: the variant.
        checkpoint: the unquantized source.
        columns: the tool packs its output columns in multiples of this.

    Raises:
        RecipeError: with the widths and an option that works.
    """
    check_source(checkpoint)
    if variant.kv_cache == "fp8":
        raise RecipeError(
            f"{variant.method} cannot calibrate the scales of an FP8 KV cache",
            where=f"variants: {variant.name}: kv_cache",
            fix="leave kv_cache out, or use 'gptq' or 'awq' (llm-compressor)",
        )
    check_group(variant, checkpoint)
    for shard in sorted(Path(checkpoint.path).glob("*.safetensors")):
        for name, tensor in read_header(shard).items():
            linear = ".layers." in name and name.endswith("_proj.weight")
            if linear and len(tensor.shape) == 2 and tensor.shape[0] % columns:
                raise RecipeError(
                    f"'{name}' has {tensor.shape[0]} outputs, and {variant.method} packs them in "
                    f"multiples of {columns}",
                    where=f"variants: {variant.name}: method",
                    fix="use 'gptq' or 'awq' (llm-compressor), which pack any number",
                )


def check_model_type(variant: OriginalSpec, checkpoint: Checkpoint, known: tuple[str, ...]) -> None:
    """Refuse a model the tool has no table of layers for, or that transformers 4 cannot describe.

    Raises:
        RecipeError: with the model types the tool knows, and what to use instead.
    """
    config = read_config(Path(checkpoint.path))
    found = config.get("model_type")
    if found not in known:
        raise RecipeError(
            f"{variant.method} does not know the model type '{found}'",
            where=f"{checkpoint.path}/config.json: model_type",
            fix=f"use {instead(variant)} instead. Known are {', '.join(known)}",
        )
    rope = config.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise RecipeError(
            "its rotary embedding differs from layer to layer, which the transformers 4 of "
            f"{variant.method} cannot read",
            where=f"{checkpoint.path}/config.json: rope_parameters",
            fix=f"use {instead(variant)} instead",
        )


def instead(variant: OriginalSpec) -> str:
    """The maintained methods for the same kind of weights."""
    return "'awq'" if isinstance(variant, AutoAwqSpec) else "'gptqmodel' or 'gptq'"


def older_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of transformers 5 in the words of transformers 4, without code of its own.

    `rope_parameters` become `rope_theta` and `rope_scaling`, `dtype` becomes `torch_dtype`, and
    `auto_map`, which names Python files to run, is left out.
    """
    older = {key: value for key, value in config.items() if key != "auto_map"}
    rope = dict(older.pop("rope_parameters", None) or {})
    for key in _ROPE_TOP:
        if key in rope:
            older[key] = rope.pop(key)
    if rope.get("rope_type", "default") != "default":
        older["rope_scaling"] = rope
    if "dtype" in older:
        older["torch_dtype"] = older.pop("dtype")
    return older


@contextlib.contextmanager
def older_source(source: Path, folder: Path) -> Iterator[Path]:
    """A folder with the source's weights (linked) and a config that transformers 4 reads.

    The tokenizer is not in it: the tools get token ids. It is gone when the block ends.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was cut short
    with disk_errors(folder):
        folder.mkdir(parents=True)
        for path in [*source.glob("*.safetensors"), *source.glob(INDEX)]:
            (folder / path.name).symlink_to(path.resolve())
        text = json.dumps(older_config(read_config(source)), indent=2)
        (folder / "config.json").write_text(text + "\n", "utf-8")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(task: Task, environment: str, source: Path, **more: Any) -> JobResult:
    """Run the tool's job on the sealed rows, then complete its output.

    The output's config is the source's own with the tool's `quantization_config` and dtype: the
    tools write it in the words of the transformers of their time. Tokenizer, template and the other
    companions are the source's files; the seal lies beside them.

    Args:
        task: what is to be made.
        environment: of the tool; its script is `inside/quantize_<environment>.py`.
        source: folder the tool reads.
        more: further keys of the request.

    Raises:
        JobFailure: the job died, ran out of memory or time, or left no result.
        RecipeError: there is no sealed calibration set.
    """
    variant, out, original = task.variant, task.out, Path(task.checkpoint.path)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    cores = available_cores()
    job = run_job(
        task.pythons[environment],
        _INSIDE / f"quantize_{environment}.py",
        {
            "source": str(source.absolute()),
            "out": str(out.resolve()),
            "options": variant.model_dump(
                mode="json", exclude={"name", "method", "serve_as", "repeat"}
            ),
            "tokens": str(task.tokens),
            "threads": cores,
            **more,
        },
        folder=task.folder,
        log=task.log,
        timeout=TIMEOUT_SECONDS,
        progress=task.progress,
        name=f"quantize {variant.name} ({variant.method})",
        env=threads(cores)[1],
    )
    with disk_errors(out):
        copy_companions(original, out)
        for shard in out.glob("*.safetensors"):
            shard.chmod(0o644)  # a saver makes them private; a server may be another user
        config = finished_config(read_config(original), read_config(out))
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    if task.calibration is not None:
        write_record(out / "calibration.json", task.calibration)
    return job


def finished_config(original: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The source's config with what quantizing changed in it: the method and the dtype."""
    config = dict(original)
    dtype = made.get("dtype") or made.get("torch_dtype")
    if dtype:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    config["quantization_config"] = made["quantization_config"]
    return config


def outcome(task: Task, job: JobResult, choices: Mapping[str, Choice]) -> QuantizeOutcome:
    """The outcome of a job, with what every one of the three tools decides."""
    kept, quantized = job.value["kept"], job.value["quantized"]
    on_gpu = str(job.value["device"]).startswith("cuda")
    common = {
        "layers": Choice(
            value=f"{quantized} of {quantized + len(kept)}",
            reason=f"the tool quantizes the decoder's layers; it keeps {', '.join(kept)}"
            if kept
            else "every linear layer",
        ),
        "device": Choice(
            value=str(job.value["device"]),
            reason="a CUDA device is there" if on_gpu else "no CUDA device",
        ),
        "threads": threads(available_cores())[0],
    }
    return QuantizeOutcome(
        choices={**common, **choices},
        packages=job.value["packages"],
        seconds=job.seconds,
        peak_memory_bytes=job.peak_memory_bytes,
        peak_gpu_bytes=job.peak_gpu_bytes,
    )


def sealed_choice(task: Task) -> Choice:
    """What the layers saw, where the tool takes the sealed rows as they are."""
    assert task.calibration is not None
    rows = task.calibration.rows
    return Choice(
        value=f"{len(rows)} samples, up to {max(row.tokens for row in rows)} tokens",
        reason=f"sealed set {task.calibration.seal[:16]} in its own order, one row at a time",
    )


def proportion(
    checkpoint: Checkpoint,
    calibration: CalibrationSpec | None,
    hardware: Hardware,
    *,
    seconds: float,
    seconds_per_token: float,
) -> tuple[float, int]:
    """Seconds and bytes in proportion to what a 135 M parameter model took on 2 cores.

    Args:
        checkpoint: the source.
        calibration: the recipe's; its largest size counts.
        hardware: of this machine.
        seconds: of the reference without any calibration token, loading left out.
        seconds_per_token: of the reference.
    """
    tokens = calibration.samples * calibration.max_tokens if calibration else 0
    scale = checkpoint.parameters / 135e6
    # A GPU against two cores, only an order of magnitude; more than 16 cores do not help: a guess.
    scale *= 1 / 30 if hardware.gpus else 2 / max(1, min(hardware.cores, 16))
    widest = max(checkpoint.linear_input_widths, default=checkpoint.hidden_size)
    memory = (1 << 30) + 4 * checkpoint.weight_bytes
    memory += 2 * 4 * tokens * checkpoint.hidden_size + 7 * 4 * widest * widest
    return 15.0 + scale * (seconds + seconds_per_token * tokens), memory
