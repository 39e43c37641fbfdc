"""Do the tensors of a checkpoint fit its config.json? Known before a tool loads it.

A tool that loads weights of another model into this config fails late and unreadably, or fills in
random values and goes on. Only what every architecture means by these keys is checked; the sizes
inside attention and MLP only for architectures whose layers are all alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench import tensors as values
from workbench.errors import CheckpointError
from workbench.safetensors_header import Tensor

#: Tensors of the text model's own stack: not of a vision tower beside it.
_STACK = re.compile(
    r"^(?:(?:model|language_model|transformer|text_model|gpt_neox)\.)*(?:layers|h)\.(\d+)\.(.+)$"
)
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in)\.weight$")
_NORM = re.compile(r"^(?:[a-z_]+\.)*norm\.weight$")  # of no layer: those have numbers
#: Architectures whose layers are all alike and follow config.json to the letter.
_PLAIN = ("llama", "mistral", "qwen2", "qwen3")
#: Layers beyond `num_hidden_layers` that some models have for predicting several tokens.
_EXTRA_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")


def check_shapes(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Compare tensors with the config of an unquantized checkpoint.

    Args:
        path: its folder, for the message.
        config: config.json, the text part merged in.
        tensors: name -> tensor.

    Raises:
        CheckpointError: a tensor has another shape than the config says, a layer is missing, or
            the output layer is.
    """
    for name, tensor in tensors.items():
        if name.startswith(("vision", "visual", "audio", "model.vision", "model.visual")):
            continue
        if _EMBEDDING.search(name) or name == "lm_head.weight":
            width = config.get("word_embed_proj_dim") or config.get("hidden_size")
            _compare(path, name, tensor, (config.get("vocab_size"), width))
    check_layers(path, config, tensors)
    if config.get("model_type") in _PLAIN:
        _plain(path, config, tensors)
    _head(path, config, tensors)


def _compare(path: Path, name: str, tensor: Tensor, expected: tuple[Any, ...]) -> None:
    same = len(tensor.shape) == len(expected) and all(
        want is None or have == want for have, want in zip(tensor.shape, expected, strict=True)
    )
    if not same:
        raise CheckpointError(
            f"tensor '{name}' is {list(tensor.shape)}, and by config.json it must be "
            f"{list(expected)}",
            where=str(tensor.file),
            fix="weights and config.json are of different models or revisions: fetch both again, "
            "from the same revision",
        )


def check_layers(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Every layer from 0 on is there, and none beyond the last.

    Args:
        path: the checkpoint's folder, for the message.
        config: config.json, the text part merged in.
        tensors: name -> tensor; of a quantized checkpoint too.

    Raises:
        CheckpointError: one is missing, or is none of the config's.
    """
    found = {int(m[1]) for name in tensors if (m := _STACK.match(name))}
    count = config.get("num_hidden_layers")
    if not found or not isinstance(count, int):
        return
    extra = sum(int(config.get(key) or 0) for key in _EXTRA_LAYERS)
    missing = count - sum(number < count for number in found)
    if missing > 0:
        # Never a list of all layers: a damaged number may say a thousand million.
        first = next(number for number in range(count) if number not in found)
        raise CheckpointError(
            f"layer {first} has no tensor ({missing} of {count} layers are missing)",
            where=str(path),
            fix="a shard is missing, or num_hidden_layers of config.json is another model's: fetch "
            "the checkpoint again",
        )
    beyond = max(found)
    if beyond >= count + extra:
        raise CheckpointError(
            f"there are tensors of layer {beyond}, and config.json says {count} layers (0 to "
            f"{count - 1})",
            where=str(path),
            fix="use the config.json that belongs to these weights",
        )


def _plain(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Attention and MLP of a Llama-like layer."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int):
        return
    dim = config.get("head_dim")
    if dim is None:
        dim = hidden // heads
    elif not isinstance(dim, int) or dim < 1:
        raise CheckpointError(
            f"head_dim is {dim!r}",
            where=f"{path / 'config.json'}: head_dim",
            fix="use the config.json that belongs to these weights",
        )
    queries, keys = heads * dim, (config.get("num_key_value_heads") or heads) * dim
    inner = config.get("intermediate_size")
    shapes: dict[str, tuple[Any, ...]] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, tensor in tensors.items():
        if (match := _STACK.match(name)) and match[2] in shapes:
            _compare(path, name, tensor, shapes[match[2]])
    stack = {(int(m[1]), m[2]) for name in tensors if (m := _STACK.match(name))}
    for layer in sorted({number for number, _ in stack}):
        for part in shapes:
            if (layer, part) not in stack:
                raise CheckpointError(
                    f"tensor '{part}' of layer {layer} is missing",
                    where=str(path),
                    fix="fetch the weights again, every shard from the same revision",
                )


def _head(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """An output layer of its own is there, and a shared one is not contradicted."""
    tied, head = config.get("tie_word_embeddings"), tensors.get("lm_head.weight")
    embedding = next((t for n, t in tensors.items() if _EMBEDDING.search(n)), None)
    writes = any("CausalLM" in str(name) for name in config.get("architectures") or ())
    if config.get("model_type") in _PLAIN and writes:
        for what, found in (("embeddings", _EMBEDDING), ("final norm", _NORM)):
            if not any(found.search(name) for name in tensors):
                raise CheckpointError(
                    f"there is no tensor of the {what}",
                    where=str(path),
                    fix="fetch the weights again, every shard from the same revision; without it a "
                    "tool would make random ones",
                )
    # Where the key is missing, these architectures have an output layer of their own.
    if config.get("model_type") in _PLAIN and writes and not tied and head is None:
        raise CheckpointError(
            "by config.json the output layer has weights of its own (tie_word_embeddings is "
            f"{'missing' if tied is None else 'false'}), and there is no 'lm_head.weight'",
            where=str(path),
            fix="fetch the missing shard, or set tie_word_embeddings to true if the model shares "
            "them; without it a tool would make random ones",
        )
    alike = head is not None and embedding is not None and head.shape == embedding.shape
    if tied is True and alike and head is not None and embedding is not None:
        if head.dtype == embedding.dtype and values.equal(head, embedding):
            return
        raise CheckpointError(
            "config.json says the output layer shares the embeddings (tie_word_embeddings true), "
            "and 'lm_head.weight' holds other values, which every tool would drop",
            where=f"{path / 'config.json'}: tie_word_embeddings",
            fix="set it to false if the output layer was trained on its own, or remove "
            "'lm_head.weight' from the shards",
        )
