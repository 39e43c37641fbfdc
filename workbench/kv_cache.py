"""How large a model's KV cache is, from its config alone: what each layer keeps of a token.

    full attention   2 x layers x KV heads x head size x bytes a token (MHA, GQA, MQA)
    sliding window   the same, until the window is full; then it no longer grows
    MLA              layers x (kv_lora_rank + qk_rope_head_dim) x bytes: one latent for all heads

(Multi-head latent attention: DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1.)

Which layer is windowed is read as transformers reads it: `layer_types`, or `sliding_window` with
`sliding_window_pattern` (every n-th layer is a full one), or with `use_sliding_window` and
`max_window_layers`. What keeps a state of another kind is refused or named, never guessed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import CheckpointError
from workbench.gguf_header import Long

#: Bytes of one element.
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
#: vLLM's int8 cache (`int8_per_token_head`) has a float32 scale for each token and head.
_INT8_SCALE_BYTES = 4
#: Larger numbers in a config are damage, not a model.
_LARGEST = 1 << 24
#: What transformers' configuration classes fill in where a published config.json says nothing.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        **{"sliding_window": 4096, "sliding_window_pattern": 2},
    },
    "gemma3_text": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        **{"sliding_window": 4096, "sliding_window_pattern": 6},
    },
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
}
_FULL = ("full_attention", "attention", "global_attention", "global")
_WINDOWED = ("sliding_attention", "local_attention", "local", "sliding_window_attention")
#: Layers with a state of fixed size, whatever the length of the sequence.
_STATE = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")
#: Keys of models whose layers are not all attention; without `layer_types` nothing tells which.
_MIXED = (
    *("hybrid_override_pattern", "layers_block_type", "attn_layer_period", "attn_type_list"),
    *("ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "linear_attn_config"),
    *("block_types", "conv_L_cache"),
)


@dataclass(frozen=True)
class Layers:
    """Layers that keep the same of a token.

    Attributes:
        count: how many.
        heads: KV heads of one; 1 under MLA.
        width: elements of one head and token, key and value together.
        window: tokens it keeps; None: all.
        latent: MLA: every tensor-parallel rank keeps it whole.
    """

    count: int
    heads: int
    width: int
    window: int | None = None
    latent: bool = False


@dataclass(frozen=True)
class KvLayout:
    """What a model keeps of a sequence.

    Attributes:
        kind: MHA, GQA, MQA or MLA, and whether there are windows.
        layers: groups of equal layers.
        attention_heads: query heads, which tensor parallelism divides.
        context: longest sequence the config allows; None: it does not say.
        notes: what is left out or taken for granted.
    """

    kind: str
    layers: tuple[Layers, ...]
    attention_heads: int
    context: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def kv_heads(self) -> int:
        """Most KV heads of a layer."""
        return max(group.heads for group in self.layers)

    def token_bytes(self, dtype: str, tp: int = 1) -> int:
        """Bytes one more token takes on each GPU while no window is full.

        Args:
            dtype: of keys and values: a key of `ELEMENT_BYTES`.
            tp: tensor-parallel size. More ranks than KV heads keep copies of them.
        """
        return sum(group.count * _layer_bytes(group, dtype, tp) for group in self.layers)

    def sequence_bytes(self, tokens: int, dtype: str, tp: int = 1, block: int = 16) -> int:
        """Bytes a sequence takes on each GPU, in whole blocks.

        A full window needs one block more than its tokens: it begins inside a block.
        """
        total = 0
        for group in self.layers:
            blocks = -(-tokens // block)
            if group.window is not None:
                blocks = min(blocks, -(-group.window // block) + 1)
            total += group.count * blocks * block * _layer_bytes(group, dtype, tp)
        return total

    def longest(self, pool: int, dtype: str, tp: int = 1, block: int = 16) -> int:
        """Most tokens of one sequence that fit in `pool` bytes, and in the model's own limit."""
        low, high = 0, self.context or _LARGEST
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.sequence_bytes(middle, dtype, tp, block) <= pool
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def indivisible(self, tp: int) -> str:
        """Why attention cannot be split over so many GPUs; empty where it can."""
        if self.attention_heads % tp:
            return f"{self.attention_heads} attention heads do not divide by {tp}"
        for heads in sorted({g.heads for g in self.layers if not g.latent}):
            if heads % tp and tp % heads:
                return f"{heads} KV heads neither divide by {tp} nor divide it"
        return ""


def _layer_bytes(group: Layers, dtype: str, tp: int) -> int:
    heads = -(-group.heads // tp)
    scales = 0
    if dtype == "int8":
        scales = _INT8_SCALE_BYTES * (1 if group.latent else 2)
    return heads * (group.width * ELEMENT_BYTES[dtype] + scales)


def from_config(config: Mapping[str, Any], where: str = "config.json") -> KvLayout:
    """Read a config.json.

    Args:
        config: its content; the text part of a multimodal one is found.
        where: the file, for messages.

    Raises:
        CheckpointError: it does not tell, contradicts itself, or keeps something else than keys
            and values.
    """
    reader = _Reader(_flat(config), where)
    if reader.config.get("is_encoder_decoder"):
        raise _unknown(where, "it is an encoder-decoder model, whose cache depends on both sides")
    count = reader.number("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = reader.number("num_attention_heads", "n_head", "n_heads", "num_heads")
    notes: list[str] = []
    context = _context(reader, notes)
    if reader.optional("kv_lora_rank") is not None:
        width = reader.number("kv_lora_rank") + reader.number("qk_rope_head_dim")
        if reader.optional("index_head_dim") is not None:
            notes.append("the index of sparse attention is not counted (index_head_dim)")
        _windows(reader, count, notes)  # refuses what is not attention
        return KvLayout("MLA", (Layers(count, 1, width, None, True),), heads, context, tuple(notes))
    kv_heads = _kv_heads(reader, heads)
    key = reader.optional("head_dim", "kv_channels")
    if key is None:
        key = _divided(reader, reader.number("hidden_size", "n_embd", "d_model"), heads)
    width = key + (reader.optional("v_head_dim") or key)
    shared = reader.optional("num_kv_shared_layers") or 0
    if shared >= count:
        raise _unknown(where, f"num_kv_shared_layers {shared} of {count} layers")
    windows = _windows(reader, count, notes)[: count - shared]
    if shared:
        notes.append(f"{shared} layers use the cache of others and are not counted")
    return _layout([kv_heads] * len(windows), windows, width, heads, context, notes)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's own keys, over those beside it, over its class's defaults."""
    merged = dict(config)
    for part in ("text_config", "language_config", "llm_config"):
        inner = config.get(part)
        merged |= inner if isinstance(inner, dict) else {}
    return {**_DEFAULTS.get(str(merged.get("model_type")), {}), **merged}


@dataclass(frozen=True)
class _Reader:
    config: Mapping[str, Any]
    where: str

    def optional(self, *keys: str) -> int | None:
        """The first of the keys that is there, a whole number of a model's size."""
        for key in keys:
            value = self.config.get(key)
            if value is None or value == 0:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
                raise _unknown(self.where, f"'{key}' is {str(value)[:40]}")
            return value
        return None

    def number(self, *keys: str) -> int:
        value = self.optional(*keys)
        if value is None:
            raise _unknown(self.where, f"'{keys[0]}' is missing")
        return value


def _unknown(where: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"the size of the KV cache cannot be told from the config: {why}",
        where=where,
        fix="use the config.json of the original model; for an architecture that keeps something "
        "else than keys and values, start its server and read the KV-cache tokens in its log",
    )


def _divided(reader: _Reader, hidden: int, heads: int) -> int:
    """The size of a head where the config does not say it."""
    if hidden < heads:
        raise _unknown(reader.where, f"its hidden size {hidden} is less than its {heads} heads")
    return hidden // heads


def _context(reader: _Reader, notes: list[str]) -> int | None:
    """The longest sequence, with scaled rotary positions as vLLM counts it.

    vLLM (`_get_and_verify_max_len`) multiplies by the factor, for YaRN from the length before the
    scaling; a config's own limit is the scaled one already for Gemma 3, Llama 3 and LongRoPE.
    """
    context = reader.optional(
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"
    )
    scaling = reader.config.get("rope_scaling") or reader.config.get("rope_parameters")
    if not isinstance(scaling, dict) or "gemma3" in str(reader.config.get("model_type")):
        return context
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor")
    if kind in ("su", "longrope", "llama3") or not isinstance(factor, int | float):
        return context
    if kind == "yarn":
        inner = _Reader(scaling, reader.where)
        context = inner.optional("original_max_position_embeddings") or context
    if context is None or not 1 < factor <= _LARGEST:
        return context
    notes.append(f"the context is {context:,} tokens x {factor:g} (rope scaling, as vLLM does)")
    return int(context * factor)


def _kv_heads(reader: _Reader, heads: int) -> int:
    config = reader.config
    # Falcon's first generation has one KV head whatever num_kv_heads says (FalconAttention).
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    if config.get("multi_query_attention") is True:
        return reader.number("multi_query_group_num")
    attention = config.get("attn_config")
    if isinstance(attention, dict) and attention.get("kv_n_heads"):
        return _Reader(attention, reader.where).number("kv_n_heads")
    return reader.optional("num_key_value_heads", "num_kv_heads", "n_head_kv") or heads


def _windows(reader: _Reader, count: int, notes: list[str]) -> list[int | None]:
    """For each layer that keeps keys and values: its window, or None."""
    config = reader.config
    window = reader.optional("sliding_window")
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != count:
            raise _unknown(reader.where, f"'layer_types' does not name {count} layers")
        return _typed(reader, types, window, notes)
    mixed = [key for key in _MIXED if config.get(key) is not None]
    if mixed:
        raise _unknown(reader.where, f"not every layer is attention ('{mixed[0]}')")
    if config.get("attention_chunk_size"):
        notes.append("layers of chunked attention are counted as full ones")
    # The configuration classes of Qwen2 and Qwen3 have no window where the key is missing.
    qwen = str(config.get("model_type")).startswith(("qwen2", "qwen3"))
    if window is None or config.get("use_sliding_window", not qwen) is False:
        return [None] * count
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return [window if pattern[i % len(pattern)] == "L" else None for i in range(count)]
    if pattern is not None:
        every = _Reader({"sliding_window_pattern": pattern}, reader.where)
        n = every.number("sliding_window_pattern")
        return [window if (i + 1) % n else None for i in range(count)]
    if config.get("use_sliding_window") and config.get("max_window_layers") is not None:
        full = reader.optional("max_window_layers") or 0
        return [window if i >= full else None for i in range(count)]
    return [window] * count


def _typed(
    reader: _Reader, types: Sequence[Any], window: int | None, notes: list[str]
) -> list[int | None]:
    found: list[int | None] = []
    for kind in types:
        if kind in _FULL or kind == "chunked_attention":
            found.append(None)
        elif kind in _WINDOWED:
            if window is None:
                raise _unknown(reader.where, f"layers are '{kind}' and 'sliding_window' is missing")
            found.append(window)
        elif kind not in _STATE:
            raise _unknown(reader.where, f"a layer is of the kind {str(kind)[:40]!r}")
    if "chunked_attention" in types:
        notes.append("layers of chunked attention are counted as full ones")
    state = len(types) - len(found)
    if not found:
        raise _unknown(reader.where, "no layer is attention")
    if state:
        notes.append(f"{state} layers keep a state of fixed size for each request: not counted")
    return found


def _layout(
    kv_heads: Sequence[int],
    windows: Sequence[int | None],
    width: int,
    heads: int,
    context: int | None,
    notes: Sequence[str],
) -> KvLayout:
    if heads % max(kv_heads):
        notes = [*notes, f"{heads} attention heads are no multiple of {max(kv_heads)} KV heads"]
    counts = Counter(zip(kv_heads, windows, strict=True))
    layers = tuple(Layers(n, h, width, window) for (h, window), n in counts.items())
    most = max(kv_heads)
    kind = "MHA" if most == heads else "MQA" if most == 1 else "GQA"
    windowed = sum(group.count for group in layers if group.window is not None)
    if windowed:
        kind += f", {windowed} of {len(windows)} layers with a sliding window"
    return KvLayout(kind, layers, heads, context, tuple(notes))


#: Every n-th layer is a full one in llama.cpp's own code, for files that do not say so.
_GGUF_PATTERNS = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2}


def from_gguf(metadata: Mapping[str, Any], where: str) -> KvLayout:
    """Read a GGUF file's metadata (keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    Raises:
        CheckpointError: it does not tell.
    """
    architecture = str(metadata.get("general.architecture"))
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): v for key, v in metadata.items() if key.startswith(prefix)}
    reader = _Reader(own, where)
    if any(key.startswith(("ssm.", "wkv.", "shortconv.")) for key in own):
        raise _unknown(where, "not every layer is attention")
    count = reader.number("block_count")
    per_layer = own.get("attention.head_count_kv")
    queries = own.get("attention.head_count")
    if isinstance(queries, list) or isinstance(per_layer, Long):
        raise _unknown(where, "its layers have different numbers of heads")
    heads = reader.number("attention.head_count")
    context = reader.optional("context_length")
    if reader.optional("attention.key_length_mla") is not None:
        width = reader.number("attention.kv_lora_rank") + reader.number("rope.dimension_count")
        return KvLayout("MLA", (Layers(count, 1, width, None, True),), heads, context)
    if isinstance(per_layer, list):
        kv_heads = [_Reader({"head_count_kv": n}, where).number("head_count_kv") for n in per_layer]
    else:
        kv_heads = [reader.optional("attention.head_count_kv") or heads] * count
    if len(kv_heads) != count:
        raise _unknown(where, f"'attention.head_count_kv' does not name {count} layers")
    key = reader.optional("attention.key_length")
    key = key or _divided(reader, reader.number("embedding_length"), heads)
    width = key + (reader.optional("attention.value_length") or key)
    window = reader.optional("attention.sliding_window")
    pattern = _GGUF_PATTERNS.get(architecture)
    notes = []
    if window is not None and pattern is None:
        notes.append("which layers have a sliding window is not in the file: counted as full ones")
    windows = [window if pattern and (i + 1) % pattern else None for i in range(count)]
    return _layout(kv_heads, windows, width, heads, context, notes)


def kv_bytes_per_token(checkpoint: Path, dtype: str) -> int | None:
    """Bytes one token takes, from the `config.json` of a folder; None where it is silent."""
    try:
        config = json.loads((checkpoint / "config.json").read_text("utf-8"))
        return from_config(config).token_bytes(dtype)
    except (OSError, ValueError, AttributeError, TypeError, CheckpointError):
        return None
