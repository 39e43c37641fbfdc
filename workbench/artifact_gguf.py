"""A GGUF artifact: its tensors against the source's, its types against the one asked for.

Names are matched by the `gguf` package's own table for the architecture. K-quants come in blocks of
256 along the input axis; on another width llama.cpp takes a type with blocks of 32 instead
(`tensor_type_fallback` in llama-quant.cpp), larger and of another quality: counted and shown. A
file type is a mixture by design (Q4_K_M holds Q6_K too), so its bits are compared with those of
llama.cpp's own table with a wide tolerance, and only a type *below* the one asked for is a fault.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.artifact_files import check
from workbench.artifact_records import Artifact, ArtifactCheck, LayerGroup
from workbench.checkpoint import read_config, read_template, read_tensors
from workbench.gguf_fallback import BLOCK, EXPERT, FALLBACK, counted, matrices
from workbench.gguf_header import Gguf, GgufTensor, Long, read_gguf
from workbench.records import Calibration, Checkpoint
from workbench.variants import GgufSpec

#: Key of the calibration set's seal in the file's metadata.
SEAL = "workbench.calibration.seal"
#: File type asked for -> (base type of a weight, bits a weight of a whole Llama-3-8B, from the
#: sizes llama.cpp's `quantize` prints: GiB x 8 / 8.03e9; IQ4_XS is printed in bits).
TYPES = {
    "F32": ("F32", 32.0),
    "F16": ("F16", 16.0),
    "BF16": ("BF16", 16.0),
    "Q8_0": ("Q8_0", 8.5),
    "Q6_K": ("Q6_K", 6.57),
    "Q5_K_M": ("Q5_K", 5.70),
    "Q4_K_M": ("Q4_K", 4.90),
    "Q4_K_S": ("Q4_K", 4.67),
    "Q3_K_M": ("Q3_K", 4.00),
    "Q2_K": ("Q2_K", 3.17),
    "IQ4_XS": ("IQ4_XS", 4.25),
}
#: What llama.cpp mixes into a K-quant file by its own rules.
_MIXED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS")
_TOLERANCE, _MIXTURE_TOLERANCE = 0.02, 0.15
_FLOATS = {"F32": ("<u4", 0x7F80_0000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
#: Type -> where in a block its 16-bit scales and minimums are (ggml-common.h).
_SCALES = {
    **{"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)},
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,)},
}
#: Tensors a converter adds that are no weights of the source.
_ADDED = re.compile(r"^rope_freqs|^rope_factors")


def base_type(variant: GgufSpec, source_dtype: str) -> str:
    """GGML type most weights must have."""
    return source_dtype if variant.type == "source" else TYPES[variant.type][0]


def examine_gguf(
    source: Checkpoint,
    variant: GgufSpec,
    folder: Path,
    made: Mapping[str, str],
    calibration: Calibration | None,
    checks: list[ArtifactCheck],
) -> Artifact:
    """Complete the examination of a folder that should hold one GGUF file.

    Args:
        source: the unquantized checkpoint.
        variant: what the recipe asked for.
        folder: where it is.
        made: its files, relative path -> sha256.
        calibration: the sealed set its tool was given.
        checks: those of its files, made already.
    """
    from workbench.artifact import UNREADABLE, broken, guarded

    weights = {n: d for n, d in made.items() if n.endswith(".gguf")}
    extra = sorted(n for n in made if n.endswith(".safetensors"))
    problems = [f"{len(weights)} GGUF files where one is expected"] * (len(weights) != 1)
    problems += [f"{name} does not belong beside a GGUF file" for name in extra]
    checks.append(check("one file", problems, "one GGUF file"))
    try:
        file = read_gguf(folder / min(weights)) if weights else None
        if file is None:
            raise FileNotFoundError("there is no GGUF file")
        before = {name: t.shape for name, t in read_tensors(Path(source.path)).items()}
        accounted, groups, fell = _account(before, file, variant, source)
    except UNREADABLE as error:
        return broken(source, "gguf", weights, checks, error)
    path = folder / min(weights)
    size = _size(file, path, variant, source, fell)
    checks += [
        *accounted,
        guarded("finite", lambda: _finite(path, file)),
        guarded("metadata", lambda: _metadata(file, variant, source)),
        guarded("seal", lambda: _seal(file, calibration)),
        size,
    ]
    total = sum(t.elements for t in file.tensors.values()) or 1
    quantized = [t for t in file.tensors.values() if t.type not in _FLOATS]
    count = sum(t.elements for t in quantized)
    bytes_ = path.stat().st_size
    declared = TYPES.get(variant.type, (None, None))[1]
    return Artifact(
        format="gguf",
        parameters=total,
        quantized_parameters=count,
        bits_per_weight=8 * sum(t.bytes for t in file.tensors.values()) / total,
        quantized_bits_per_weight=8 * sum(t.bytes for t in quantized) / count if count else None,
        declared_bits_per_weight=declared if count else None,
        size_ratio=bytes_ / source.weight_bytes if source.weight_bytes else 0.0,
        declared_size_ratio=declared * total / 8 / source.weight_bytes if declared else None,
        layers=groups,
        checks=tuple(checks),
        files=weights,
    )


def _account(
    before: Mapping[str, tuple[int, ...]], file: Gguf, variant: GgufSpec, source: Checkpoint
) -> tuple[list[ArtifactCheck], tuple[LayerGroup, ...], dict[str, str]]:
    """Every tensor of the source under its GGUF name, with the type it got and why."""
    names = _names(file, source)
    wanted: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for name, shape in before.items():
        found = names.get_name(EXPERT.sub(".experts.", name), try_suffixes=(".weight", ".bias"))
        tied = source.tied_embeddings and name == "lm_head.weight" and found not in file.tensors
        if tied:
            continue
        if found is None or found not in file.tensors:
            problems.append(f"'{name}' {list(shape)} is not in the file")
            continue
        wanted[found] = wanted.get(found, 0) + int(np.prod(shape))
        shapes[found] = shape
    for name, tensor in file.tensors.items():
        if name in wanted:
            fits = tensor.elements == wanted[name]
            fits &= len(tensor.shape) != 2 or tensor.shape == shapes[name]
            if not fits:
                problems.append(f"'{name}' is {list(tensor.shape)}, not {list(shapes[name])}")
        elif name == "output.weight" and source.tied_embeddings:
            pass  # some converters write the shared matrix a second time
        elif not _ADDED.search(name):
            problems.append(f"'{name}' is no tensor of the source")
    good = f"{len(before)} tensors of the source are accounted for"
    base = base_type(variant, source.dtype)
    groups, low, fell = _types(file, base)
    return (
        [
            check("tensors", problems, good),
            check("types", low, f"no weight has fewer bits than {base}"),
            check("fallback", _told(fell, file), f"every width suits {base}", "WARN"),
        ],
        groups,
        fell,
    )


def _names(file: Gguf, source: Checkpoint) -> Any:
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    name = file.metadata.get("general.architecture")
    found = [arch for arch, known in MODEL_ARCH_NAMES.items() if known == name]
    if not found:
        raise ValueError(f"general.architecture is {name!r}, which nobody knows")
    return get_tensor_name_map(found[0], source.layers)


def _types(file: Gguf, base: str) -> tuple[tuple[LayerGroup, ...], list[str], dict[str, str]]:
    """Tensors by type; those with fewer bits than asked; those that fell back, with their type."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    def bits(kind: str) -> float:
        block = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        return 8 * block[1] / block[0]

    low: list[str] = []
    fell: dict[str, str] = {}
    rows: dict[tuple[str, str, bool], list[tuple[str, GgufTensor]]] = {}
    for name, tensor in file.tensors.items():
        why, declared = "quantized" if tensor.type not in _FLOATS else "as converted", True
        if len(tensor.shape) < 2:
            why = "norms and biases"
        elif base in FALLBACK and tensor.shape[-1] % BLOCK:
            why, declared = f"fell back: width {tensor.shape[-1]}", False
            fell[name] = tensor.type
        elif tensor.type in _MIXED:
            why = f"part of the mixture of {base}" if tensor.type != base else why
        elif tensor.type != base:
            why, declared = f"no part of the mixture of {base}", False
        if len(tensor.shape) >= 2 and bits(tensor.type) < bits(base):
            low.append(f"'{name}' is {tensor.type}, below {base}")
            why, declared = "fewer bits than asked", False
        rows.setdefault((tensor.type, why, declared), []).append((name, tensor))
    total = sum(t.elements for t in file.tensors.values()) or 1
    groups = []
    for (kind, why, declared), members in rows.items():
        count = sum(t.elements for _, t in members)
        groups.append(
            LayerGroup(
                format=kind,
                why=why,
                declared=declared,
                layers=len(members),
                parameters=count,
                share=count / total,
                bits_per_weight=bits(kind),
                examples=tuple(name for name, _ in members[:3]),
            )
        )
    if base not in _FLOATS and not fell and not any(t.type == base for t in file.tensors.values()):
        low.append(f"no tensor is {base}")
    return tuple(sorted(groups, key=lambda g: (-g.parameters, g.format))), low, fell


def _told(fell: Mapping[str, str], file: Gguf) -> list[str]:
    if not fell:
        return []
    all_ = matrices({n: t.shape for n, t in file.tensors.items()}, tied=False)
    kinds = Counter(fell.values())
    into = ", ".join(f"{count} to {kind}" for kind, count in kinds.most_common())
    return [
        f"{counted({n: all_[n] for n in fell}, all_)} have a width that is no multiple of {BLOCK} "
        f"and fell back: {into}"
    ]


def _size(
    file: Gguf, path: Path, variant: GgufSpec, source: Checkpoint, fell: Mapping[str, str]
) -> ArtifactCheck:
    total = sum(t.elements for t in file.tensors.values()) or 1
    bits = 8 * sum(t.bytes for t in file.tensors.values()) / total
    ratio = path.stat().st_size / source.weight_bytes if source.weight_bytes else 0.0
    kind = source.dtype if variant.type == "source" else variant.type
    text = f"{bits:.2f} bits a weight in all, the file takes {ratio:.3f} of the source's bytes"
    if kind not in TYPES:
        return check("size", [], text)
    base, nominal = TYPES[kind]
    mixture = base.endswith("_K") or base == "IQ4_XS"
    slack = nominal * (_MIXTURE_TOLERANCE if mixture else _TOLERANCE)
    text += f"; {kind} takes {nominal:.2f} (accepted: within {slack:.2f})"
    if abs(bits - nominal) <= slack:
        return check("size", [], text)
    if fell:
        text += f", {len(fell)} matrices fell back to larger types"
    return check("size", [text], "", "WARN" if mixture else "FAIL")


def _finite(path: Path, file: Gguf) -> ArtifactCheck:
    """No NaN or infinity among the scales of blocks and the values of plain tensors."""
    raw = np.memmap(path, dtype="u1", mode="r")
    problems, unread, dead = [], Counter[str](), []
    for name, tensor in file.tensors.items():
        data = raw[tensor.offset : tensor.offset + tensor.bytes]
        bad = 0
        if tensor.type in _FLOATS:
            kind, mask = _FLOATS[tensor.type]
            values = data.view(kind)
            exponent = values.dtype.type(mask)
            bad = int(np.count_nonzero((values & exponent) == exponent))
        elif tensor.type in _SCALES:
            blocks = data.reshape(-1, tensor.block[1])
            zero = True
            for at in _SCALES[tensor.type]:
                scale = np.ascontiguousarray(blocks[:, at : at + 2]).view("<u2")
                bad += int(np.count_nonzero((scale & 0x7C00) == 0x7C00))
                zero &= not bool((scale & 0x7FFF).any())
            if zero:
                dead.append(f"every scale of '{name}' is 0")
        else:
            unread[tensor.type] += 1
        if bad:
            problems.append(f"{bad} scales or values of '{name}' are NaN or infinite")
    if problems or dead:
        return check("finite", problems + dead, "")
    left = [f"{count} tensors of type {kind} were not read" for kind, count in unread.items()]
    return check("finite", left, f"no NaN or infinity in {len(file.tensors)} tensors", "WARN")


def _metadata(file: Gguf, variant: GgufSpec, source: Checkpoint) -> ArtifactCheck:
    """Architecture, dimensions, file type, tokenizer and template are what they must be."""
    from gguf.constants import LlamaFileType

    meta = file.metadata
    arch = str(meta.get("general.architecture"))
    config = read_config(Path(source.path))
    kind = source.dtype if variant.type == "source" else variant.type
    code = LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"]
    expected: dict[str, Any] = {
        "general.file_type": int(code),
        f"{arch}.block_count": source.layers,
        f"{arch}.embedding_length": source.hidden_size,
    }
    problems = [
        f"{key} is {meta.get(key)!r} instead of {value!r}"
        for key, value in expected.items()
        if meta.get(key) != value
    ]
    tokens = meta.get("tokenizer.ggml.tokens")
    count = tokens.count if isinstance(tokens, Long) else len(tokens or ())
    vocabulary = config.get("vocab_size")
    if not meta.get("tokenizer.ggml.model") or not count:
        problems.append("it has no tokenizer")
    elif isinstance(vocabulary, int) and count != vocabulary:
        problems.append(f"its tokenizer has {count} tokens, the source's model {vocabulary}")
    eos, source_eos = meta.get("tokenizer.ggml.eos_token_id"), config.get("eos_token_id")
    accepted = source_eos if isinstance(source_eos, list) else [source_eos]
    if source_eos is not None and eos not in accepted:
        problems.append(
            f"tokenizer.ggml.eos_token_id is {eos}, the source's config says {accepted}"
        )
    template = read_template(Path(source.path))
    if meta.get("tokenizer.chat_template") != template:
        problems.append("tokenizer.chat_template is not the source's")
    if variant.calibrates and not any(key.startswith("quantize.imatrix") for key in meta):
        problems.append("no quantize.imatrix key says that an importance matrix was used")
    good = f"{arch}, file type {code.name}, {count} tokens, the source's template and end of text"
    return check("metadata", problems, good)


def _seal(file: Gguf, calibration: Calibration | None) -> ArtifactCheck:
    found = file.metadata.get(SEAL)
    if calibration is None:
        stray = [f"{SEAL} is there, and nothing was calibrated"] * (found is not None)
        return check("seal", stray, "nothing was calibrated", "WARN")
    wrong = [f"{SEAL} is {found!r} instead of {calibration.seal}"] * (found != calibration.seal)
    return check("seal", wrong, f"{SEAL} holds the seal {calibration.seal[:16]}")
