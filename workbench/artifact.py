"""Is a produced checkpoint what it claims to be? Examined as files, before anything loads it.

Loading a checkpoint tells little: a framework fills in what is missing and an engine may serve a
broken kernel's output. So after each quantization the folder is compared with the source and with
what the recipe asked for: the files, every tensor, the numbers, the quantization config as the
engine will read it, and the size. Each check is PASS, WARN or FAIL with a sentence; the gate turns
any FAIL into NO-GO. Reads headers, and of the values only what is not packed, so it takes well
under a second for a small model and about as long as reading the file once for a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench import artifact_files as files
from workbench import artifact_layers as layers
from workbench.artifact_records import Artifact, ArtifactCheck
from workbench.checkpoint import read_config, read_tensors
from workbench.errors import WorkbenchError
from workbench.quantconfig import Parsed, asked, differences, parse
from workbench.records import Calibration, Checkpoint
from workbench.variants import AutoAwqSpec, AwqSpec, GgufSpec, Int8Spec, VariantSpec

#: What reading a damaged file may raise.
UNREADABLE = (WorkbenchError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError)


def examine(
    source: Checkpoint,
    variant: VariantSpec,
    folder: Path,
    made: Mapping[str, str],
    calibration: Calibration | None,
) -> Artifact:
    """Examine a produced checkpoint. Never raises for what is wrong with it: that is a FAIL.

    Args:
        source: the unquantized checkpoint it was made from.
        variant: what the recipe asked for.
        folder: where it is.
        made: its files, relative path -> sha256.
        calibration: the sealed set its tool was given; None where it was given none.
    """
    checks = [
        guarded("companions", lambda: files.companions(source.files, made)),
        guarded("harmless", lambda: files.harmless(folder, source.files, made)),
        guarded("model config", lambda: files.model_config(folder, source)),
        guarded("calibration", lambda: files.calibration(folder, calibration)),
    ]
    if isinstance(variant, GgufSpec):
        from workbench.artifact_gguf import examine_gguf

        return examine_gguf(source, variant, folder, made, calibration, checks)
    return _safetensors(source, variant, folder, made, checks)


def guarded(name: str, look: Callable[[], ArtifactCheck]) -> ArtifactCheck:
    """A check, or a FAIL that says why it could not be made."""
    try:
        return look()
    except UNREADABLE as error:
        text = error.what if isinstance(error, WorkbenchError) else str(error) or repr(error)
        return files.check(name, [f"it could not be checked: {text}"], "")


def _safetensors(
    source: Checkpoint,
    variant: VariantSpec,
    folder: Path,
    made: Mapping[str, str],
    checks: list[ArtifactCheck],
) -> Artifact:
    config, parsed = _quantization(folder, variant)
    checks.append(config)
    weights = {n: d for n, d in made.items() if n.endswith(".safetensors")}
    try:
        before = read_tensors(Path(source.path))
        after = read_tensors(folder)
        found = layers.account(
            before,
            after,
            parsed,
            getattr(variant, "ignore", ()),
            tied=source.tied_embeddings,
            quantizes=asked(variant) is not None,
        )
    except UNREADABLE as error:
        return broken(source, parsed.method, weights, checks, error)
    smoothed = isinstance(variant, AwqSpec | AutoAwqSpec) or (
        isinstance(variant, Int8Spec) and variant.smoothing > 0
    )
    measured = layers.sizes(found, source.weight_bytes, sum(t.bytes for t in after.values()))
    wanted = asked(variant) is not None
    checks += [
        guarded("shards", lambda: layers.index(folder, after)),
        layers.complete(found, len(before)),
        layers.declared(found),
        guarded("kept weights", lambda: layers.unchanged(found, smoothed)),
        guarded("finite", lambda: layers.finite(found, after)),
        guarded("scales", lambda: layers.scales(found, after)),
        layers.size(found, measured, wanted),
    ]
    if getattr(variant, "kv_cache", "auto") == "fp8":
        checks.append(
            guarded("kv cache", lambda: layers.kv_cache(found, after, parsed, source.layers))
        )
    elif found.kv_scales:
        stray = [f"{len(found.kv_scales)} scales of a KV cache nobody asked for"]
        checks.append(files.check("kv cache", stray, "", "WARN"))
    return Artifact(
        format=parsed.method,
        parameters=measured.parameters,
        quantized_parameters=measured.quantized,
        bits_per_weight=measured.bits,
        quantized_bits_per_weight=measured.quantized_bits,
        declared_bits_per_weight=measured.declared_bits,
        size_ratio=measured.ratio,
        declared_size_ratio=measured.declared_ratio,
        layers=layers.groups(found),
        checks=tuple(checks),
        files=weights,
    )


def broken(
    source: Checkpoint,
    form: str,
    weights: dict[str, str],
    checks: list[ArtifactCheck],
    error: Exception,
) -> Artifact:
    """The record of an artifact whose tensors cannot be read at all."""
    text = error.what if isinstance(error, WorkbenchError) else str(error) or repr(error)
    lost = files.check("tensors", [f"the weights cannot be read: {text}"], "")
    return Artifact(
        format=form,
        parameters=source.parameters,
        quantized_parameters=0,
        bits_per_weight=0.0,
        quantized_bits_per_weight=None,
        declared_bits_per_weight=None,
        size_ratio=0.0,
        layers=(),
        checks=(*checks, lost),
        files=weights,
    )


def _quantization(folder: Path, variant: VariantSpec) -> tuple[ArtifactCheck, Parsed]:
    """The quantization config, parsed as the engine will, against what the recipe asked."""
    name = "quantization config"
    wanted = asked(variant)
    nothing = Parsed("none")
    try:
        config = read_config(folder)
        raw: Any = config.get("quantization_config")
        if raw is None:
            raw = config.get("compression_config")
        expects = wanted is not None or getattr(variant, "kv_cache", "auto") == "fp8"
        if raw is None:
            problems = ["config.json has no quantization_config: an engine would read the codes as "
                        "weights"] * expects  # fmt: skip
            return files.check(name, problems, "none, and none is needed"), nothing
        parsed = parse(raw)
    except UNREADABLE as error:
        text = error.what if isinstance(error, WorkbenchError) else str(error) or repr(error)
        return files.check(name, [f"the engine cannot read it: {text}"], ""), nothing
    problems = []
    if wanted is None and parsed.schemes:
        problems.append("it names quantized weights, and the recipe asks for none")
    if wanted is not None:
        if not parsed.schemes:
            problems.append("it names no quantized layer")
        for _, scheme in parsed.schemes:
            problems += differences(wanted, scheme)
    says = ", ".join(scheme.name for _, scheme in parsed.schemes) or parsed.method
    if problems:
        return files.check(name, problems, ""), parsed
    activations = {s.activations for _, s in parsed.schemes if s.activations}
    good = f"{parsed.method}: {says}" + "".join(f", activations {a}" for a in sorted(activations))
    if parsed.notes:
        good += f" ({'; '.join(parsed.notes)})"
    fallback = [n for n in parsed.notes if "fall back" in n]
    return files.check(name, fallback, good, "WARN"), parsed
