"""Every tensor of the source, and what became of it in safetensors: quantized, kept, or lost.

Nothing is loaded: shapes come from headers, and of the values only scales, norms and what was not
quantized are read, in pieces (`workbench.tensors`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench import tensors
from workbench.artifact_files import check, listed
from workbench.artifact_records import ArtifactCheck, LayerGroup
from workbench.checkpoint import INDEX, json_object
from workbench.layouts import Layer, is_quantized, read_layer
from workbench.quantconfig import Parsed, named
from workbench.safetensors_header import Tensor

_EMBEDDING = re.compile(r"embed|\bwte\b|\bwpe\b", re.IGNORECASE)
_NORM = re.compile(r"norm|\bln_", re.IGNORECASE)
_KV_SCALE = re.compile(r"\.(self_attn|attn|attention)\.([kv])_scale$")
#: Extra tensors that belong to no weight and are not the model's.
_HARMLESS = re.compile(r"\.(q_scale|k_zero_point|v_zero_point|q_zero_point|prob_scale)$")
#: Slack of measured against nominal bits: relative, and bytes a layer for shapes, tables, states.
TOLERANCE = 0.05
_FIXED_BYTES = 2048


@dataclass
class Entry:
    """One tensor of the source, as it ended.

    Attributes:
        name: in the source.
        format: of what it became.
        why: in words.
        declared: whether recipe or format say so.
        parameters: its elements.
        bytes: what it takes now.
    """

    name: str
    format: str
    why: str
    declared: bool
    parameters: int
    bytes: int


@dataclass
class Account:
    """Where every tensor went.

    Attributes:
        entries: each tensor of the source that was found again.
        layers: those of them that are quantized.
        kept: name -> (source, artifact) of those that are not.
        missing: names, or what does not fit.
        unexpected: tensors that belong to nothing.
        undeclared: linear layers that were left alone without anybody saying so, or quantized
            although the recipe ignores them.
        left: linear layers the tool's own config leaves out, and the recipe does not speak of.
        kv_scales: names of the scales of the KV cache.
        hidden: name -> tensor of the source, where NaN leaves no trace in the scales: bitsandbytes
            makes a number of it.
    """

    entries: list[Entry] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    kept: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    undeclared: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    kv_scales: list[str] = field(default_factory=list)
    hidden: dict[str, Tensor] = field(default_factory=dict)


def account(
    source: Mapping[str, Tensor],
    made: Mapping[str, Tensor],
    parsed: Parsed,
    ignore: tuple[str, ...],
    *,
    tied: bool,
    quantizes: bool,
) -> Account:
    """Follow every tensor of the source into the artifact.

    Args:
        source: tensors of the source by name.
        made: tensors of the artifact.
        parsed: the artifact's quantization config.
        ignore: what the recipe leaves alone.
        tied: whether the output layer shares the embeddings.
        quantizes: whether the recipe asks for quantized weights at all.
    """
    found = Account()
    used: set[str] = set()
    for name, tensor in source.items():
        module, _, last = name.rpartition(".")
        same = made.get(name)
        quantized = last == "weight" and is_quantized(module, made)
        if quantized and len(tensor.shape) == 2:
            _quantized(found, used, name, module, tensor, made, parsed, ignore)
        elif same is not None:
            used.add(name)
            found.kept[name] = (tensor, same)
            if same.shape != tensor.shape:
                shapes = f"{list(same.shape)}, {list(tensor.shape)} in the source"
                found.missing.append(f"'{name}' is {shapes}")
            why, declared = _reason(name, module, tensor, parsed, ignore, quantizes, found)
            size = same.bytes
            found.entries.append(Entry(name, same.dtype, why, declared, tensor.elements, size))
        elif tied and module == "lm_head":
            found.entries.append(Entry(name, "-", "tied to the embeddings", True, 0, 0))
        else:
            found.missing.append(f"'{name}' {list(tensor.shape)} is gone")
    for name in made.keys() - used:
        if _KV_SCALE.search(name):
            found.kv_scales.append(name)
        elif tied and name == "lm_head.weight":
            found.left.append("'lm_head.weight' was written beside the embeddings it shares")
        elif not _HARMLESS.search(name):
            found.unexpected.append(f"'{name}' belongs to no weight of the source")
    found.unexpected.sort()
    return found


def _quantized(
    found: Account,
    used: set[str],
    name: str,
    module: str,
    tensor: Tensor,
    made: Mapping[str, Tensor],
    parsed: Parsed,
    ignore: tuple[str, ...],
) -> None:
    scheme = parsed.of(module)
    if scheme is None and parsed.schemes:
        found.undeclared.append(f"'{module}' is quantized, and the config leaves it out")
        scheme = parsed.schemes[0][1]  # so that its tensors are known
    if named(module, ignore):
        found.undeclared.append(f"'{module}' is quantized, and the recipe ignores it")
    if scheme is None:
        found.missing.append(f"'{module}' is quantized in a way the config does not name")
        return
    outputs, inputs = tensor.shape
    layer = read_layer(module, (outputs, inputs), made, scheme)
    used.update(layer.parts)
    found.layers.append(layer)
    if scheme.kind == "nf":
        found.hidden[name] = tensor
    found.missing += layer.problems
    size = sum(made[p].bytes for p in layer.parts)
    found.entries.append(Entry(name, scheme.name, "quantized", True, tensor.elements, size))


def _reason(
    name: str,
    module: str,
    tensor: Tensor,
    parsed: Parsed,
    ignore: tuple[str, ...],
    quantizes: bool,
    found: Account,
) -> tuple[str, bool]:
    """Why a tensor was kept, and whether that was declared."""
    if _EMBEDDING.search(name):
        return "embeddings", True
    if _NORM.search(name) or len(tensor.shape) == 1:
        return "norms and biases", True
    if len(tensor.shape) != 2:
        return "no linear layer", True
    if not quantizes:
        return "the recipe leaves the weights alone", True
    if named(module, ignore):
        if parsed.of(module) is not None:
            found.undeclared.append(f"'{module}' is kept, and the config says it is quantized")
        return "the recipe ignores it", True
    if parsed.of(module) is None:
        found.left.append(f"'{module}' is kept by the tool's own rule")
        return "the tool leaves it out", False
    found.undeclared.append(f"'{module}' was to be quantized and is not")
    return "nobody said so", False


# --------------------------------------------------------------------------- checks


def complete(found: Account, total: int) -> ArtifactCheck:
    """Every tensor is there, in a shape that fits, and nothing else is."""
    quantized = len(found.layers)
    good = f"{total} tensors of the source are accounted for, {quantized} layers of them quantized"
    return check("tensors", found.missing + found.unexpected, good)


def declared(found: Account) -> ArtifactCheck:
    """What was not quantized was left alone on purpose."""
    if found.undeclared:
        return check("declared", found.undeclared, "")
    return check("declared", found.left, "whatever was not quantized was declared", "WARN")


def unchanged(found: Account, smoothed: bool) -> ArtifactCheck:
    """What was not quantized has the source's values, where the method does not change them.

    Args:
        found: where every tensor went.
        smoothed: AWQ and SmoothQuant move scales between layers: norms, biases and layers they
            feed change on purpose, embeddings do not.
    """
    problems, moved, cast = [], 0, set()
    for name, (before, after) in found.kept.items():
        if before.shape != after.shape:
            continue  # said already
        if before.dtype != after.dtype:
            cast.add(f"{before.dtype} to {after.dtype}")
        elif not tensors.equal(before, after):
            if smoothed and not _EMBEDDING.search(name):
                moved += 1
            else:
                problems.append(f"'{name}' has other values than the source's")
    good = f"{len(found.kept)} tensors that were not quantized have the source's values"
    if moved:
        good += f", but for {moved} the method rescales"
    if problems:
        return check("kept weights", problems, "")
    if cast:
        text = f"{listed(sorted(cast))}: what was not quantized changed its dtype"
        return check("kept weights", [text], "", "WARN")
    return check("kept weights", [], good)


def finite(found: Account, made: Mapping[str, Tensor]) -> ArtifactCheck:
    """No NaN, no infinity: in scales, zero points, norms, and what was not quantized."""
    names = [name for name in found.kept if name in made]
    names += [part for layer in found.layers for part in layer.parts]
    names += found.kv_scales
    problems = []
    for name in names:
        if count := tensors.not_finite(made[name]):
            problems.append(f"{count} values of '{name}' are NaN or infinite")
    for name, tensor in found.hidden.items():
        if count := tensors.not_finite(tensor):
            problems.append(f"{count} values of '{name}' of the source are NaN or infinite")
    return check("finite", problems, f"no NaN or infinity in {len(names)} tensors")


def scales(found: Account, made: Mapping[str, Tensor]) -> ArtifactCheck:
    """Scales differ from each other and from 0, and codes hold more than one value."""
    lost, odd = [], []
    ones = 0
    names = [s for layer in found.layers for s in layer.scales if s in made]
    for name in names:
        seen = tensors.scan(made[name])
        if seen.n and seen.zeros == seen.n:
            lost.append(f"every value of '{name}' is 0")
        elif seen.zeros:
            odd.append(f"{seen.zeros} of {seen.n} values of '{name}' are 0")
        elif seen.constant:
            odd.append(f"all {seen.n} values of '{name}' are {seen.low:.6g}")
        if seen.low < 0:
            odd.append(f"'{name}' has values below 0")
        ones += seen.low == seen.high == 1.0
    if names and ones == len(names):
        lost.append("every scale is 1.0, as before calibration")
    for layer in found.layers:
        for name in layer.codes:
            if name in made and made[name].elements and tensors.one_code(made[name]):
                lost.append(f"all of '{name}' is one value")
    if lost:
        return check("scales", lost, "")
    good = f"{len(names)} scale tensors are neither 0 nor all alike" if names else "there are none"
    return check("scales", odd, good, "WARN")


def kv_cache(
    found: Account, made: Mapping[str, Tensor], parsed: Parsed, layers: int
) -> ArtifactCheck:
    """Scales of an FP8 KV cache: two for each layer, calibrated, and announced in the config."""
    problems = []
    if parsed.kv_cache != "fp8":
        problems.append("the quantization config has no kv_cache_scheme")
    if len(found.kv_scales) != 2 * layers:
        problems.append(f"{len(found.kv_scales)} scales of keys and values for {layers} layers")
    seen = {name: tensors.scan(made[name]) for name in found.kv_scales}
    problems += [f"'{n}' is {s.low:.6g}" for n, s in seen.items() if s.low <= 0 or s.not_finite]
    if seen and all(s.low == s.high == 1.0 for s in seen.values()):
        problems.append("every scale is 1.0: they were never calibrated")
    good = f"{2 * layers} scales of keys and values, from "
    if seen:
        good += (
            f"{min(s.low for s in seen.values()):.4g} to {max(s.high for s in seen.values()):.4g}"
        )
    return check("kv cache", problems, good)


def index(folder: Path, made: Mapping[str, Tensor]) -> ArtifactCheck:
    """Shards and index speak of the same tensors."""
    files = sorted(p.name for p in folder.glob("*.safetensors"))
    path = folder / INDEX
    if not path.is_file():
        problems = [f"{len(files)} shards without {INDEX}"] * (len(files) > 1)
        return check("shards", problems, f"one file, {len(made)} tensors")
    content = json_object(path)
    listing = content.get("weight_map") or {}
    problems = [f"{name} is in no index" for name in files if name not in set(listing.values())]
    wrong = [n for n, t in made.items() if listing.get(n) != t.file.name]
    if wrong:
        problems.append(f"{len(wrong)} tensors are not where the index says, '{wrong[0]}' first")
    total = (content.get("metadata") or {}).get("total_size")
    size = sum(t.bytes for t in made.values())
    if total is not None and total != size:
        problems.append(f"the index says {total} bytes, the tensors take {size}")
    return check("shards", problems, f"{len(files)} shards and their index agree")


def groups(found: Account) -> tuple[LayerGroup, ...]:
    """The account as a table, the largest share first."""
    total = sum(e.parameters for e in found.entries) or 1
    gathered: dict[tuple[str, str, bool], list[Entry]] = {}
    for entry in found.entries:
        gathered.setdefault((entry.format, entry.why, entry.declared), []).append(entry)
    rows = []
    for (form, why, said), entries in gathered.items():
        parameters = sum(e.parameters for e in entries)
        rows.append(
            LayerGroup(
                format=form,
                why=why,
                declared=said,
                layers=len(entries),
                parameters=parameters,
                share=parameters / total,
                bits_per_weight=8 * sum(e.bytes for e in entries) / parameters if parameters else 0,
                examples=tuple(e.name for e in entries[:3]),
            )
        )
    return tuple(sorted(rows, key=lambda r: (-r.parameters, r.format, r.why)))


@dataclass(frozen=True)
class Sizes:
    """Bits and bytes, measured and declared."""

    parameters: int
    quantized: int
    bits: float
    quantized_bits: float | None
    declared_bits: float | None
    ratio: float
    declared_ratio: float | None


def sizes(found: Account, source_bytes: int, made_bytes: int) -> Sizes:
    """Bits per weight and the ratio of bytes, as measured and as the format promises."""
    total = sum(e.parameters for e in found.entries) or 1
    quantized = sum(layer.parameters for layer in found.layers)
    stored = sum(e.bytes for e in found.entries if e.why == "quantized")
    promised = sum(
        layer.scheme.bits_per_weight(layer.inputs, layer.outputs) * layer.parameters / 8
        for layer in found.layers
    )
    kept = sum(e.bytes for e in found.entries if e.why != "quantized")
    return Sizes(
        parameters=total,
        quantized=quantized,
        bits=8 * made_bytes / total,
        quantized_bits=8 * stored / quantized if quantized else None,
        declared_bits=8 * promised / quantized if quantized else None,
        ratio=made_bytes / source_bytes if source_bytes else 0.0,
        declared_ratio=(kept + promised) / source_bytes if source_bytes else None,
    )


def size(found: Account, measured: Sizes, wanted: bool) -> ArtifactCheck:
    """Bits per weight are what the format promises."""
    ratio = f"the weights take {measured.ratio:.3f} of the source's bytes"
    if measured.quantized_bits is None or measured.declared_bits is None:
        if wanted:
            return check("size", ["no layer is quantized"], "")
        return check("size", [], f"{ratio}, {measured.bits:.2f} bits a weight")
    slack = TOLERANCE * measured.declared_bits
    slack += 8 * _FIXED_BYTES * len(found.layers) / measured.quantized
    text = (
        f"quantized layers take {measured.quantized_bits:.3f} bits a weight, "
        f"{measured.declared_bits:.3f} by the format's definition (accepted: within {slack:.3f}); "
        f"{ratio}, {measured.bits:.2f} bits a weight in all"
    )
    off = abs(measured.quantized_bits - measured.declared_bits) > slack
    return check("size", [text] if off else [], text)
