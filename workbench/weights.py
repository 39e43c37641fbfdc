"""A checkpoint's weights in any format, from its headers alone: no weight is read or hashed.

The same bytes are told by `workbench support --checkpoint` and `workbench capacity`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.artifact_gguf import TYPES
from workbench.checkpoint import INDEX, is_linear, read_config, read_tensors
from workbench.checkpoint_shapes import check_layers
from workbench.errors import CheckpointError
from workbench.gguf_fallback import BLOCK, FALLBACK, SMALL_BLOCK
from workbench.gguf_header import Long, read_gguf
from workbench.kv_cache import ELEMENT_BYTES, KvLayout, from_config, from_gguf
from workbench.quantconfig import Scheme
from workbench.safetensors_header import DTYPE_BITS, Tensor

_SHARD = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")
_FLOATS = ("F64", "F32", "F16", "BF16")
_SELF_ATTENTION = re.compile(r"(?:^|\.)layers\.\d+\.self_attn\.([kv])_proj\.weight$")


@dataclass(frozen=True)
class Model:
    """A checkpoint, read from its headers alone.

    Attributes:
        path: folder or GGUF file.
        layout: of its KV cache.
        config: config.json with the text model's keys on top; of a GGUF file its sizes.
        tensors: by name; empty of a GGUF file.
        stored_bytes: of all tensors, as they are stored.
        dtype: of most weight bytes, safetensors or GGML spelling.
        quantization: ``quantization_config`` of config.json, or None.
        gguf: whether it is a GGUF file.
    """

    path: Path
    layout: KvLayout
    config: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, Tensor] = field(repr=False)
    stored_bytes: int
    dtype: str
    quantization: Mapping[str, Any] | None = None
    gguf: bool = False

    @property
    def tied(self) -> bool:
        """Whether the output layer shares the embeddings."""
        lacks_head = not any("lm_head" in name for name in self.tensors)
        return bool(self.config.get("tie_word_embeddings", lacks_head))

    def loaded_bytes(self, dtype: str) -> int:
        """Bytes of the weights once an engine has loaded them to compute in a dtype."""
        if not self.tensors:
            return self.stored_bytes
        return sum(
            t.elements * ELEMENT_BYTES[dtype] if t.dtype in _FLOATS else t.bytes
            for name, t in self.tensors.items()
            if not (self.tied and name == "lm_head.weight")
        )


def read_model(path: Path) -> Model:
    """Read config and headers of a checkpoint folder or a GGUF file; no weight is read or hashed.

    Raises:
        CheckpointError: it cannot be read, or its KV cache cannot be told.
    """
    if path.is_dir() and not any(path.glob("*.safetensors")):
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) > 1:
            raise CheckpointError(
                f"there are {len(ggufs)} GGUF files in the folder",
                where=str(path),
                fix=f"name one of them, such as {ggufs[0]}",
            )
        path = ggufs[0] if ggufs else path
    if path.suffix == ".gguf" and path.is_file():
        file = read_gguf(path)
        sizes: dict[str, int] = {}
        for part in file.tensors.values():
            sizes[part.type] = sizes.get(part.type, 0) + part.bytes
        layout = from_gguf(file.metadata, str(path))
        most = max(sizes, key=lambda kind: sizes[kind], default="none")
        own = f"{file.metadata['general.architecture']}."
        vocabulary = file.metadata.get("tokenizer.ggml.tokens")
        config = {
            "hidden_size": file.metadata.get(f"{own}embedding_length"),
            "intermediate_size": file.metadata.get(f"{own}feed_forward_length"),
            "vocab_size": vocabulary.count if isinstance(vocabulary, Long) else 0,
            "num_experts": file.metadata.get(f"{own}expert_count"),
            "num_experts_per_tok": file.metadata.get(f"{own}expert_used_count"),
        }
        return Model(path, layout, config, {}, sum(sizes.values()), most, gguf=True)
    if not path.is_dir():
        raise CheckpointError(
            "there is no checkpoint here",
            where=str(path),
            fix="name a folder with config.json and *.safetensors, or a GGUF file (for the demo "
            "checkpoint: workbench demo)",
        )
    config = read_config(path)
    _whole(path)
    tensors = read_tensors(path)
    text = config.get("text_config")
    merged = {**config, **(text if isinstance(text, dict) else {})}
    layout = from_config(config, str(path / "config.json"))
    quantization = config.get("quantization_config", config.get("compression_config"))
    check_layers(path, merged, tensors)
    if not quantization:
        _agrees(path, layout, tensors)
    by_dtype: dict[str, int] = {}
    for tensor in tensors.values():
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.bytes
    return Model(
        path,
        layout,
        merged,
        tensors,
        sum(by_dtype.values()),
        max(by_dtype, key=lambda name: by_dtype[name]),
        quantization if isinstance(quantization, dict) else None,
    )


def _whole(path: Path) -> None:
    """No shard is missing by the names of those that are there; an index is checked elsewhere."""
    if (path / INDEX).is_file():
        return
    found = [m for file in path.glob("*.safetensors") if (m := _SHARD.search(file.name))]
    for total in {int(match[2]) for match in found}:
        there = {int(match[1]) for match in found if int(match[2]) == total}
        if len(there) < total:
            raise CheckpointError(
                f"{total - len(there)} of {total} shards are missing, by the names of the others",
                where=str(path),
                fix=f"fetch the missing files, and {INDEX}, which names every tensor's",
            )


def _agrees(path: Path, layout: KvLayout, tensors: Mapping[str, Tensor]) -> None:
    """The rows of the key and value matrices are what the config makes of them."""
    told = {group.heads * group.width for group in layout.layers if not group.latent}
    rows: dict[str, int] = {}
    for name, tensor in tensors.items():
        if (match := _SELF_ATTENTION.search(name)) and len(tensor.shape) == 2:
            prefix = name[: match.start(1)]
            rows[prefix] = rows.get(prefix, 0) + tensor.shape[0]
    for prefix, found in rows.items():
        # One matrix alone is a model whose values are its keys.
        both = f"{prefix}k_proj.weight" in tensors and f"{prefix}v_proj.weight" in tensors
        if told and both and found not in told:
            raise CheckpointError(
                f"keys and values of '{prefix}*' have {found} rows, and config.json makes "
                f"{' or '.join(map(str, sorted(told)))} of its heads",
                where=str(path / "config.json"),
                fix="use the config.json that belongs to these weights",
            )


def scheme_bytes(
    tensors: Mapping[str, Tensor], scheme: Scheme | None, *, tied: bool, half: bool = False
) -> int:
    """Bytes of the weights with every linear layer in a scheme.

    Embeddings, norms and the output layer stay as they are stored.

    Args:
        tensors: of the unquantized checkpoint.
        scheme: of its linear layers; None: as they are.
        tied: the output layer shares the embeddings: a second copy counts once.
        half: what stays is counted with 16 bits, as an engine loads it that computes in 16.
    """
    bits = 0.0
    for name, tensor in tensors.items():
        if tied and name == "lm_head.weight":
            continue
        if scheme is not None and is_linear(name, tensor.shape):
            rows, width = tensor.shape
            bits += scheme.bits_per_weight(width, rows) * tensor.elements
        elif half and tensor.dtype in _FLOATS:
            bits += 16 * tensor.elements
        else:
            bits += DTYPE_BITS[tensor.dtype] * tensor.elements
    return round(bits / 8)


def gguf_bytes(tensors: Mapping[str, Tensor], kind: str, *, tied: bool) -> int:
    """Bytes of the weights as a GGUF file of a type, such as ``Q4_K_M``.

    Matrices take the type's nominal bits, the output's at least those of Q6_K, as llama.cpp mixes
    them; those of a width a type cannot hold take its fallback's; the rest is float32. Within 15 %
    of a mixture's real size (`workbench.artifact_gguf`).
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    def own(base: str) -> float:
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[base]]
        return 8 * size / elements

    base, nominal = TYPES[kind]
    bits = 0.0
    for name, tensor in tensors.items():
        if tied and name == "lm_head.weight":
            continue
        per = 32.0
        if len(tensor.shape) >= 2:
            output = "embed" in name if tied else "lm_head" in name
            types = (base, "Q6_K") if output and base in FALLBACK else (base,)
            per = nominal
            for one in types:
                misfit = one in FALLBACK and tensor.shape[-1] % BLOCK
                per = max(per, own(FALLBACK[one] if misfit else one))
            if base not in _FLOATS and tensor.shape[-1] % SMALL_BLOCK:
                per = 16.0
        bits += per * tensor.elements
    return round(bits / 8)
