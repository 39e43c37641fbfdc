"""KV caches of published models: bytes known from their papers and cards, worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import CheckpointError
from workbench.gguf_header import Long
from workbench.kv_cache import (
    ELEMENT_BYTES,
    KvLayout,
    Layers,
    from_config,
    from_gguf,
    kv_bytes_per_token,
)

#: What the models' own config.json say, as far as it matters here.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        **{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32},
        **{"num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    },
    "Llama-2-7b": {
        **{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32},
        **{"num_hidden_layers": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096},
    },
    "Mistral-7B-v0.1": {
        **{"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32},
        **{"num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096},
        "max_position_embeddings": 32768,
    },
    "Mistral-7B-v0.3": {
        **{"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32},
        **{"num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": None},
        "max_position_embeddings": 32768,
    },
    "DeepSeek-V3": {
        **{"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128},
        **{"num_hidden_layers": 61, "num_key_value_heads": 128, "v_head_dim": 128},
        **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
        "max_position_embeddings": 163840,
    },
    "DeepSeek-V2": {
        **{"model_type": "deepseek_v2", "hidden_size": 5120, "num_attention_heads": 128},
        **{"num_hidden_layers": 60, "num_key_value_heads": 128, "v_head_dim": 128},
        **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    },
    "falcon-7b": {
        **{"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71},
        **{"num_hidden_layers": 32, "num_kv_heads": 71, "multi_query": True},
        "new_decoder_architecture": False,
    },
    "falcon-40b": {
        **{"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128},
        **{"num_hidden_layers": 60, "num_kv_heads": 8, "multi_query": True},
        "new_decoder_architecture": True,
    },
    "starcoder": {
        **{"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40},
        **{"n_positions": 8192, "multi_query": True},
    },
    "gemma-2-9b": {
        **{"model_type": "gemma2", "hidden_size": 3584, "num_attention_heads": 16},
        **{"num_hidden_layers": 42, "num_key_value_heads": 8, "head_dim": 256},
        **{"sliding_window": 4096, "max_position_embeddings": 8192},
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            **{"model_type": "gemma3_text", "hidden_size": 5376, "num_attention_heads": 32},
            **{"num_hidden_layers": 62, "num_key_value_heads": 16, "head_dim": 128},
            "sliding_window": 1024,
        },
    },
    # Its config.json leaves heads and head size to the class.
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": {
            **{"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
            "sliding_window": 1024,
        },
    },
    "Qwen2.5-7B": {
        **{"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28},
        **{"num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072},
        **{"use_sliding_window": False, "max_window_layers": 28},
    },
    "gpt-oss-20b": {
        **{"model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64},
        **{"num_hidden_layers": 24, "num_key_value_heads": 8, "head_dim": 64},
        **{"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12},
    },
    "Qwen3-Next-80B-A3B": {
        **{"model_type": "qwen3_next", "hidden_size": 2048, "num_attention_heads": 16},
        **{"num_hidden_layers": 48, "num_key_value_heads": 2, "head_dim": 256},
        "layer_types": ([*["linear_attention"] * 3, "full_attention"]) * 12,
    },
}
#: Model -> bytes a token in bfloat16, layers with a window, their window, kind.
KNOWN = {
    "Llama-3.1-8B": (128 << 10, 0, None, "GQA"),
    "Llama-2-7b": (512 << 10, 0, None, "MHA"),
    "Mistral-7B-v0.1": (128 << 10, 32, 4096, "GQA"),
    "Mistral-7B-v0.3": (128 << 10, 0, None, "GQA"),
    "DeepSeek-V3": (61 * 576 * 2, 0, None, "MLA"),
    "DeepSeek-V2": (60 * 576 * 2, 0, None, "MLA"),
    "falcon-7b": (8 << 10, 0, None, "MQA"),
    "falcon-40b": (120 << 10, 0, None, "GQA"),
    "starcoder": (20 << 10, 0, None, "MQA"),
    "gemma-2-9b": (336 << 10, 21, 4096, "GQA"),
    "gemma-3-27b": (496 << 10, 52, 1024, "GQA"),
    "gemma-3-4b": (136 << 10, 29, 1024, "GQA"),
    "Qwen2.5-7B": (56 << 10, 0, None, "GQA"),
    "gpt-oss-20b": (48 << 10, 12, 128, "GQA"),
    "Qwen3-Next-80B-A3B": (24 << 10, 0, None, "GQA"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name: str) -> None:
    layout = from_config(PUBLISHED[name])
    each, windowed, window, kind = KNOWN[name]
    assert layout.token_bytes("bfloat16") == each
    assert layout.token_bytes("fp8") == each // 2
    assert {g.window for g in layout.layers if g.window} == ({window} if window else set())
    assert sum(g.count for g in layout.layers if g.window) == windowed
    assert layout.kind.split(",")[0] == kind


def test_int8_has_scales() -> None:
    # 32 layers x 8 heads x (2 x 128 + 2 x 4)
    layout = from_config(PUBLISHED["Llama-3.1-8B"])
    assert layout.token_bytes("int8") == 32 * 8 * (256 + 8)


def test_a_full_window_stops_growing() -> None:
    layout = from_config(PUBLISHED["Mistral-7B-v0.1"])
    # 256 blocks and the one the window begins in.
    full = 257 * 16 * (128 << 10)
    assert layout.sequence_bytes(4096, "bfloat16") == 4096 * (128 << 10)
    assert layout.sequence_bytes(5000, "bfloat16") == full
    assert layout.sequence_bytes(32768, "bfloat16") == full


def test_a_hybrid_grows_in_its_full_layers_alone() -> None:
    layout = from_config(PUBLISHED["gemma-3-27b"])
    layer = 2 * 16 * 128 * 2
    assert layout.sequence_bytes(8192, "bfloat16") == (10 * 8192 + 52 * 1040) * layer
    assert layout.sequence_bytes(8208, "bfloat16") - layout.sequence_bytes(8192, "bfloat16") == (
        10 * 16 * layer
    )


def test_blocks_are_whole() -> None:
    layout = from_config(PUBLISHED["Llama-3.1-8B"])
    assert layout.sequence_bytes(1, "bfloat16") == 16 * (128 << 10)
    assert layout.sequence_bytes(129, "bfloat16", block=128) == 256 * (128 << 10)


def test_tensor_parallelism_divides_heads_and_copies_what_is_left() -> None:
    llama = from_config(PUBLISHED["Llama-3.1-8B"])
    assert [llama.token_bytes("bfloat16", tp) >> 10 for tp in (1, 2, 8, 16, 32)] == [
        *(128, 64, 16, 16, 16)
    ]
    assert [llama.indivisible(tp) for tp in (1, 2, 4, 8, 16, 32)] == [""] * 6
    assert llama.indivisible(3) == "32 attention heads do not divide by 3"
    deepseek = from_config(PUBLISHED["DeepSeek-V3"])
    assert deepseek.token_bytes("bfloat16", 8) == deepseek.token_bytes("bfloat16")
    assert not deepseek.indivisible(8)
    assert "71 attention heads" in from_config(PUBLISHED["falcon-7b"]).indivisible(2)
    odd = KvLayout("GQA", (Layers(1, 6, 128),), 12)
    assert odd.indivisible(4) == "6 KV heads neither divide by 4 nor divide it"


def test_keys_and_values_may_differ_in_size() -> None:
    wider = {**PUBLISHED["Llama-3.1-8B"], "head_dim": 192, "v_head_dim": 128}
    assert from_config(wider).token_bytes("bfloat16") == 32 * 8 * (192 + 128) * 2


def test_a_request_may_take_the_whole_pool() -> None:
    layout = from_config(PUBLISHED["Llama-3.1-8B"])
    assert layout.longest(160 * (128 << 10), "bfloat16") == 160
    assert layout.longest(160 * (128 << 10) - 1, "bfloat16") == 144


def test_later_layers_may_share_and_patterns_may_be_words() -> None:
    base = PUBLISHED["Llama-3.1-8B"]
    shared = from_config({**base, "num_kv_shared_layers": 12})
    assert shared.token_bytes("bfloat16") == 20 * 4096
    assert "12 layers use the cache of others" in shared.notes[0]
    exaone = from_config({**base, "sliding_window": 4096, "sliding_window_pattern": "LLLG"})
    assert sum(g.count for g in exaone.layers if g.window) == 24
    upper = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}
    assert sum(g.count for g in from_config({**base, **upper}).layers if g.window) == 4


def test_what_is_not_counted_is_said() -> None:
    assert "36 layers keep a state" in from_config(PUBLISHED["Qwen3-Next-80B-A3B"]).notes[0]
    sparse = from_config({**PUBLISHED["DeepSeek-V3"], "index_head_dim": 128})
    assert "index of sparse attention" in sparse.notes[0]
    chunked = from_config({**PUBLISHED["Llama-3.1-8B"], "attention_chunk_size": 8192})
    assert "counted as full" in chunked.notes[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
        ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1"),
        ({"num_hidden_layers": 10**30}, "'num_hidden_layers' is 1000"),
        ({"num_attention_heads": True}, "'num_attention_heads' is True"),
        ({"num_key_value_heads": "8"}, "'num_key_value_heads' is 8"),
        ({"head_dim": 128.5}, "'head_dim' is 128.5"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"attn_layer_period": 8}, "not every layer is attention ('attn_layer_period')"),
        ({"layer_types": ["full_attention"]}, "'layer_types' does not name 32 layers"),
        ({"layer_types": ["full_attention"] * 31 + ["rwkv"]}, "of the kind 'rwkv'"),
        ({"layer_types": ["sliding_attention"] * 32}, "'sliding_window' is missing"),
        ({"layer_types": ["mamba"] * 32}, "no layer is attention"),
        ({"kv_lora_rank": 512}, "'qk_rope_head_dim' is missing"),
        ({"num_kv_shared_layers": 32}, "num_kv_shared_layers 32"),
        ({"sliding_window": 9, "sliding_window_pattern": 0}, "'sliding_window_pattern' is missing"),
    ],
)
def test_what_cannot_be_told_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError) as error:
        from_config({**PUBLISHED["Llama-3.1-8B"], **changes}, "config.json")
    assert says in error.value.what and error.value.fix and error.value.where


def test_a_qwen_that_does_not_say_so_has_no_window() -> None:
    config = {k: v for k, v in PUBLISHED["Qwen2.5-7B"].items() if k != "use_sliding_window"}
    config |= {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 0}
    assert all(group.window is None for group in from_config(config).layers)
    used = from_config({**config, "use_sliding_window": True})
    assert all(group.window == 4096 for group in used.layers)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "yarn", "factor": 4.0}, 524288),
        ({"rope_type": "linear", "factor": 2}, 262144),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        ({"type": "longrope", "factor": 32}, 131072),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 131072),
        (None, 131072),
    ],
)
def test_scaled_positions_make_the_context_vllm_allows(scaling: Any, context: int) -> None:
    config = {**PUBLISHED["Llama-3.1-8B"], "max_position_embeddings": 131072}
    layout = from_config({**config, "rope_scaling": scaling})
    assert layout.context == context
    scaled = context != 131072 or (scaling or {}).get("rope_type") == "yarn"
    assert ("rope scaling" in " ".join(layout.notes)) == scaled


def test_fewer_elements_than_heads_are_refused() -> None:
    config = {k: v for k, v in PUBLISHED["Llama-3.1-8B"].items() if k != "head_dim"}
    with pytest.raises(CheckpointError, match="hidden size 16 is less than its 32 heads"):
        from_config({**config, "hidden_size": 16})


GGUF: dict[str, Any] = {
    **{"general.architecture": "llama", "llama.block_count": 32, "llama.embedding_length": 4096},
    **{"llama.attention.head_count": 32, "llama.attention.head_count_kv": 8},
    "llama.context_length": 131072,
}


def _gguf(architecture: str, **own: Any) -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{k.replace('__', '.')}": v for k, v in own.items()},
    }


def test_gguf_files() -> None:
    layout = from_gguf(GGUF, "model.gguf")
    assert layout == from_config(PUBLISHED["Llama-3.1-8B"])
    gemma = _gguf(
        "gemma2",
        **{"block_count": 42, "embedding_length": 3584, "context_length": 8192},
        **{"attention__head_count": 16, "attention__head_count_kv": 8},
        **{"attention__key_length": 256, "attention__value_length": 256},
        **{"attention__sliding_window": 4096},
    )
    assert from_gguf(gemma, "g") == from_config(PUBLISHED["gemma-2-9b"])
    deepseek = _gguf(
        "deepseek2",
        **{"block_count": 61, "embedding_length": 7168, "context_length": 163840},
        **{"attention__head_count": 128, "attention__head_count_kv": 1},
        **{"attention__kv_lora_rank": 512, "attention__key_length_mla": 192},
        **{"rope__dimension_count": 64},
    )
    assert from_gguf(deepseek, "g") == from_config(PUBLISHED["DeepSeek-V3"])
    unknown = from_gguf({**GGUF, "llama.attention.sliding_window": 4096}, "g")
    assert unknown.layers == layout.layers and "counted as full" in unknown.notes[0]
    varied = from_gguf({**GGUF, "llama.attention.head_count_kv": [8] * 31 + [4]}, "g")
    assert varied.token_bytes("float16") == (31 * 8 + 4) * 256 * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"llama.block_count": None},
        {"llama.ssm.state_size": 16},
        {"llama.attention.head_count_kv": [8]},
        {"llama.attention.head_count_kv": Long(80)},
        {"general.architecture": "other"},
    ],
)
def test_gguf_files_that_do_not_tell(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        from_gguf({**GGUF, **changes}, "model.gguf")


def test_a_folder_that_is_silent_is_none(tmp_path: Path) -> None:
    assert kv_bytes_per_token(tmp_path, "float16") is None
    for text in ("[]", "{}", "no", '{"text_config": 1}'):
        (tmp_path / "config.json").write_text(text)
        assert kv_bytes_per_token(tmp_path, "float16") is None
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["Llama-3.1-8B"]))
    assert kv_bytes_per_token(tmp_path, "float16") == 128 << 10


layouts = st.sampled_from([from_config(config) for config in PUBLISHED.values()])
dtypes = st.sampled_from(sorted(ELEMENT_BYTES))


@given(layouts, dtypes, st.integers(0, 200_000), st.integers(0, 5000), st.sampled_from((16, 128)))
def test_more_tokens_never_take_less(
    layout: KvLayout, dtype: str, tokens: int, more: int, block: int
) -> None:
    least = layout.sequence_bytes(tokens, dtype, block=block)
    assert least <= layout.sequence_bytes(tokens + more, dtype, block=block)
    assert least <= (tokens + block - 1) * layout.token_bytes(dtype)


@given(layouts, st.integers(1, 200_000), st.integers(0, 4))
def test_more_cards_and_fewer_bits_never_take_more(
    layout: KvLayout, tokens: int, power: int
) -> None:
    def each(dtype: str, tp: int) -> int:
        return layout.sequence_bytes(tokens, dtype, tp)

    tp = 2**power
    assert each("bfloat16", 2 * tp) <= each("bfloat16", tp) <= 2 * each("bfloat16", 2 * tp)
    assert each("fp8", tp) <= each("int8", tp) <= each("bfloat16", tp) <= each("float32", tp)


@given(layouts, dtypes, st.integers(0, 1 << 36))
def test_the_longest_request_is_the_longest(layout: KvLayout, dtype: str, pool: int) -> None:
    longest = layout.longest(pool, dtype)
    assert layout.sequence_bytes(longest, dtype) <= pool
    at_limit = longest >= (layout.context or 1 << 24)
    assert at_limit or layout.sequence_bytes(longest + 1, dtype) > pool
