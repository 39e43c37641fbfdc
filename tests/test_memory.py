"""Memory: estimates against an engine's own log and published sizes, and the three side by side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from artifacts import edit_json, make_gguf, make_source
from builders import NATIVE, profile, serving
from hypothesis import given
from hypothesis import strategies as st
from test_kv_cache import PUBLISHED

from workbench.errors import CheckpointError
from workbench.gpus import named
from workbench.kv_cache import from_config
from workbench.memory import (
    CPU_BLOCK,
    Estimate,
    MemoryStatement,
    batch_defaults,
    estimate,
    freed,
    option_of,
    state,
    stated,
    workspace,
)
from workbench.quantconfig import Scheme
from workbench.records import Choice, Hardware, Lane
from workbench.safetensors_header import Tensor
from workbench.servers.vllm import VllmEngine
from workbench.weights import Model, gguf_bytes, read_model, scheme_bytes

DATA = Path(__file__).parent / "data"
GIB = 1 << 30
SMOLLM2 = {
    **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152},
    **{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    **{"head_dim": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True},
}
LLAMA_8B = {
    **PUBLISHED["Llama-3.1-8B"],
    **{"intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False},
}
LLAMA_70B = {
    **{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672},
    **{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False},
}


def tensors(config: Mapping[str, Any], dtype: str = "BF16") -> dict[str, Tensor]:
    """The tensors of a Llama of that config."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    keys = config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, rows, width in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            shapes[f"{at}.{name}.weight"] = (rows, width)
        shapes[f"{at}.input_layernorm.weight"] = (hidden,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
    size = {"BF16": 2, "F32": 4}[dtype]
    found = {name: Tensor(dtype, shape, 0) for name, shape in shapes.items()}
    return {n: Tensor(t.dtype, t.shape, t.elements * size) for n, t in found.items()}


def model(config: Mapping[str, Any], dtype: str = "BF16") -> Model:
    of = tensors(config, dtype)
    stored = sum(t.bytes for t in of.values())
    return Model(Path("model"), from_config(config), config, of, stored, dtype)


# --------------------------------------------------------------------------- weights


def test_weights_of_a_published_model() -> None:
    of = tensors(LLAMA_8B)
    # 8,030,261,248 parameters, as its index says: total_size 16060522496.
    assert scheme_bytes(of, None, tied=False) == 16_060_522_496
    fp8 = scheme_bytes(of, Scheme("compressed-tensors", "float", 8, "channel"), tied=False)
    linear, rows = 6_979_321_856, 32 * (4096 + 1024 + 1024 + 4096 + 2 * 14336 + 4096)
    assert fp8 == linear + 2 * rows + 2 * (8_030_261_248 - linear)
    # Half a byte a weight, and 16 bits for each 128 of them.
    w4 = scheme_bytes(of, Scheme("compressed-tensors", "int", 4, "group", 128), tied=False)
    assert w4 == linear // 2 + linear // 64 + 2 * (8_030_261_248 - linear)
    # What llama.cpp's files of it weigh: 8.54 and 4.92 GB.
    assert gguf_bytes(of, "Q8_0", tied=False) == pytest.approx(8.54e9, rel=0.01)
    assert gguf_bytes(of, "Q4_K_M", tied=False) == pytest.approx(4.92e9, rel=0.03)


def test_gguf_types_that_fall_back_are_counted_larger() -> None:
    # facts of the demo model: 6.17 bits a weight, 99 MiB, of which 180 tensors fell back
    of = tensors(SMOLLM2)
    assert gguf_bytes(of, "Q4_K_M", tied=True) == pytest.approx(99 << 20, rel=0.05)
    narrow = {"a.weight": Tensor("BF16", (8, 40), 640)}
    assert gguf_bytes(narrow, "Q8_0", tied=False) == 8 * 40 * 2


def test_an_engine_in_16_bits_loads_float32_as_16() -> None:
    of = tensors(LLAMA_8B, "F32")
    assert scheme_bytes(of, None, tied=False) == 2 * 16_060_522_496
    assert scheme_bytes(of, None, tied=False, half=True) == 16_060_522_496


def test_a_second_copy_of_tied_embeddings_counts_once() -> None:
    of = tensors(SMOLLM2)
    head = {"lm_head.weight": of["model.embed_tokens.weight"]}
    assert scheme_bytes({**of, **head}, None, tied=True) == scheme_bytes(of, None, tied=True)
    assert scheme_bytes({**of, **head}, None, tied=False) > scheme_bytes(of, None, tied=True)


@given(st.sampled_from([4, 8]), st.sampled_from([32, 64, 128]), st.booleans())
def test_fewer_bits_are_fewer_bytes(bits: int, group: int, symmetric: bool) -> None:
    of = tensors(SMOLLM2)
    scheme = Scheme("compressed-tensors", "int", bits, "group", group, symmetric)
    wider = Scheme("compressed-tensors", "int", bits, "group", 2 * group, symmetric)
    here = scheme_bytes(of, scheme, tied=True)
    assert scheme_bytes(of, wider, tied=True) < here < scheme_bytes(of, None, tied=True)
    assert bits == 4 or here > scheme_bytes(of, Scheme("gptq", "int", 4, "group", 32), tied=True)


# --------------------------------------------------------------------------- reading


def test_a_folder_is_read_from_its_headers(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    found = read_model(source)
    assert (found.dtype, found.tied, found.gguf) == ("BF16", True, False)
    assert found.layout.token_bytes("bfloat16") == found.layout.layers[0].count * 64 * 2 * 2
    assert found.stored_bytes < (source / "model.safetensors").stat().st_size


def test_heads_that_the_tensors_do_not_have_are_refused(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    edit_json(source / "config.json", lambda c: c.update({"num_key_value_heads": 2}))
    with pytest.raises(CheckpointError, match="have 128 rows"):
        read_model(source)


def test_weights_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    """Half a checkpoint fits anything."""
    source = make_source(tmp_path / "source")
    edit_json(source / "config.json", lambda c: c.update({"num_hidden_layers": 32}))
    with pytest.raises(CheckpointError, match=r"layer \d+ has no tensor \(\d+ of 32 layers"):
        read_model(source)
    packed = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    edit_json(source / "config.json", lambda c: c.update({"quantization_config": packed}))
    with pytest.raises(CheckpointError, match="of 32 layers are missing"):
        read_model(source)
    lone = make_source(tmp_path / "lone")
    (lone / "model.safetensors").rename(lone / "model-00001-of-00004.safetensors")
    with pytest.raises(CheckpointError, match="3 of 4 shards are missing"):
        read_model(lone)


def test_a_gguf_file_is_read_too(tmp_path: Path) -> None:
    from workbench.variants import GgufSpec

    source = make_source(tmp_path / "source")
    heads = {"llama.attention.head_count": 2, "llama.attention.head_count_kv": 1}
    metadata = {**heads, "llama.feed_forward_length": 256, "llama.context_length": 512}
    spec = GgufSpec(name="g", type="Q8_0")
    folder = make_gguf(source, tmp_path / "gguf", spec, metadata=metadata)
    for path in (folder, folder / "model.gguf"):
        found = read_model(path)
        assert found.gguf and found.dtype == "Q8_0" and found.config["intermediate_size"] == 256
        assert found.layout.layers == read_model(source).layout.layers
        assert found.stored_bytes == pytest.approx(
            gguf_bytes(read_model(source).tensors, "Q8_0", tied=True), rel=0.001
        )
    (folder / "second.gguf").write_bytes((folder / "model.gguf").read_bytes())
    with pytest.raises(CheckpointError, match="2 GGUF files"):
        read_model(folder)
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        read_model(tmp_path / "nothing")


# --------------------------------------------------------------------------- the estimate


def small(**changes: Any) -> Estimate:
    values: dict[str, Any] = {
        **{"weight_bytes": 538 << 20, "memory_bytes": 24 * GIB, "length": 2048},
        **{"kv_dtype": "float32", "block": CPU_BLOCK, "pool_bytes": GIB},
    }
    return estimate(from_config(SMOLLM2), **(values | changes))


def test_the_estimate_is_what_vllm_said() -> None:
    log = VllmEngine().read_log((DATA / "vllm-cpu-baseline.log").read_text())
    found = small()
    assert found.kv_tokens == log.kv_cache_tokens == 23296
    assert round(found.max_concurrency, 2) == log.max_concurrency == 11.38


def test_the_pool_is_what_weights_and_workspace_leave() -> None:
    found = estimate(
        from_config(LLAMA_8B),
        weight_bytes=16 * GIB,
        memory_bytes=80 * GIB,
        length=2400,
        utilization=0.9,
        workspace_bytes=4 * GIB,
    )
    assert found.pool_bytes == 52 * GIB
    assert found.kv_tokens == 52 * GIB // (128 << 10)
    assert found.max_concurrency == found.kv_tokens / 2400
    assert found.context == 131072
    two = estimate(
        from_config(LLAMA_8B), weight_bytes=16 * GIB, memory_bytes=80 * GIB, length=2400, tp=2
    )
    assert (two.weight_bytes, two.pool_bytes, two.token_bytes) == (8 * GIB, 64 * GIB, 64 << 10)


def test_what_does_not_fit_holds_nothing() -> None:
    found = estimate(
        from_config(LLAMA_8B), weight_bytes=16 * GIB, memory_bytes=16 * GIB, length=100
    )
    assert found.pool_bytes < 0
    assert (found.kv_tokens, found.max_concurrency, found.context) == (0, 0, 0)


def test_a_windowed_cache_holds_more_tokens_than_it_has_room_for() -> None:
    layout = from_config(PUBLISHED["gemma-3-27b"])
    found = estimate(layout, weight_bytes=0, memory_bytes=GIB, length=16384, utilization=1.0)
    assert found.max_concurrency == found.usable_bytes / layout.sequence_bytes(16384, "bfloat16")
    assert found.kv_tokens == int(found.max_concurrency * 16384) > GIB // found.token_bytes


@given(
    memory=st.integers(20, 200),
    more=st.integers(0, 50),
    share=st.floats(0.5, 1.0),
    length=st.integers(1, 100_000),
)
def test_more_memory_never_holds_less(memory: int, more: int, share: float, length: int) -> None:
    def held(gib: int, tokens: int) -> float:
        return estimate(
            from_config(LLAMA_8B),
            weight_bytes=16 * GIB,
            memory_bytes=gib * GIB,
            length=tokens,
            utilization=share,
        ).max_concurrency

    assert held(memory, length) <= held(memory + more, length)
    assert held(memory, length + 1) <= held(memory, length)


def test_the_workspace_is_its_rule() -> None:
    found = workspace(LLAMA_8B, 2, 2048, 256)
    assert found.bytes == GIB + 2 * 2048 * (4 * 4096 + 14336) + 8 * 256 * 128256
    assert "not a measurement" in found.rule and "2,048 tokens" in found.rule
    experts = {"hidden_size": 1, "moe_intermediate_size": 10, "num_experts_per_tok": 8}
    assert workspace(experts, 1, 1, 1).bytes == GIB + 2 * (4 + 2 * 80)
    assert workspace({"intermediate_size": [3, 9], "hidden_size": 1}, 1, 1, 1).bytes == GIB + 44
    assert workspace({}, 1, 2048, 256).bytes == GIB


def test_the_engines_batch_defaults() -> None:
    assert batch_defaults("NVIDIA H100 80GB HBM3", 81559 << 20) == (8192, 1024)
    assert batch_defaults("NVIDIA A100-SXM4-80GB", 81920 << 20) == (2048, 256)
    assert batch_defaults("NVIDIA L4", 23034 << 20) == (2048, 256)


# --------------------------------------------------------------------------- side by side


def told(
    name: str, lane: Lane = NATIVE, tokens: int | None = 23296, **changes: Any
) -> MemoryStatement:
    ran = serving(name, lane, kv_cache_tokens=tokens, max_concurrency=tokens and 11.375)
    return state(name, from_config(SMOLLM2), small(**changes), ran, None, 2 * GIB)


def test_estimate_engine_and_measurement_side_by_side() -> None:
    found = told("baseline")
    assert [(d.name, d.by, d.relative) for d in found.differences] == [
        ("KV-cache tokens", "engine", 0.0),
        ("concurrency at 2048 tokens", "engine", 0.0),
        ("resident memory", "measurement", pytest.approx(2 * GIB / (GIB + (538 << 20)) - 1)),
    ]
    assert MemoryStatement.model_validate(found.model_dump(by_alias=True)) == found
    ran = serving("fp8", max_concurrency=None)
    gpu = state("fp8", from_config(SMOLLM2), small(tp=2), ran, 3 * GIB, GIB)
    (only,) = gpu.differences
    assert (only.name, only.estimated) == ("device memory", 2 * ((269 << 20) + GIB))
    assert (only.found, only.by) == (3 * GIB, "measurement")
    nothing = only.model_copy(update={"estimated": 0.0})
    assert nothing.relative is None


def test_a_profile_has_all_a_statement_needs() -> None:
    """The quickstart's own baseline: what vLLM 0.32 said on two cores, to the token."""
    ran = serving(
        "w",
        max_model_len=1024,
        kv_cache_tokens=23296,
        max_concurrency=22.75,
        choices={"kv_cache_bytes": Choice(value="1073741824", reason="1.0 GiB")},
    )
    told = profile("baseline", "w", serving=ran, peak_memory_bytes=4_557_484_032)
    host = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=24 * GIB)
    found = stated(told, model(SMOLLM2), host, 800)
    assert found is not None and found.estimate.block == CPU_BLOCK
    assert [d.relative for d in found.differences[:2]] == [0.0, 0.0]
    # The demo model's 134,515,008 parameters in float32.
    assert found.estimate.weight_bytes == 4 * 134_515_008
    assert found.differences[2].estimated == 4 * 134_515_008 + GIB
    other = told.model_copy(update={"serving": serving("w", engine="llamacpp")})
    assert stated(other, model(SMOLLM2), host, 1024) is None


def test_a_profile_of_gpus_says_its_share_and_its_cards() -> None:
    command = ("vllm", "--gpu-memory-utilization", "0.8", "--tensor-parallel-size=2")
    choices = {"kv_cache_dtype": Choice(value="fp8", reason="asked")}
    dtype = Choice(value="bfloat16", reason="its own")
    ran = serving("w", command=command, choices=choices, dtype=dtype)
    told = profile("fp8", "w", serving=ran, peak_gpu_bytes=130 * GIB)
    found = stated(told, model(LLAMA_8B), named("h100"), 2400)
    assert found is not None
    e = found.estimate
    assert (e.tp, e.utilization, e.kv_dtype, e.block) == (2, 0.8, "fp8", 16)
    assert e.weight_bytes == 16_060_522_496 // 2 and e.token_bytes == 32 << 10
    assert e.pool_bytes == (
        int(0.8 * (81559 << 20)) - e.weight_bytes - workspace(LLAMA_8B, 2, 8192, 1024).bytes
    )
    (memory,) = found.differences
    assert memory.estimated == pytest.approx(2 * 0.8 * (81559 << 20))


def test_options_of_a_command() -> None:
    words = ("x", "--tensor_parallel_size", "4", "--other=1", "-tp=2", "--last")
    assert option_of(words, "--tensor-parallel-size") == "4"
    assert option_of(words, "-tp") == "2"
    assert option_of(("--empty=", "next"), "--empty") == ""
    assert option_of(words, "--last") == option_of(words, "--none") == ""


def test_what_a_variant_frees_is_tokens_and_requests() -> None:
    base, fp8 = told("baseline", length=2000), told("fp8", tokens=29440, length=2000)
    found = freed(base, fp8)
    assert (found.source, found.kv_tokens) == ("engine", 6144)
    assert found.concurrency == (23296 / 2048, 29440 / 2048)
    assert "fp8 has +6,144 KV-cache tokens" in found.sentence
    assert "11 -> 14 requests of 2,000 tokens" in found.sentence


def test_logs_and_estimates_are_not_mixed() -> None:
    silent = told("fp8", tokens=None, pool_bytes=2 * GIB)
    found = freed(told("baseline"), silent)
    assert (found.source, found.kv_tokens) == ("estimate", 46592 - 23296)
    assert found.concurrency == (23296 / 2048, 46592 / 2048)
    assert freed(told("baseline", tokens=None), told("fp8")).source == "estimate"
    with pytest.raises(ValueError, match="2048 and 1024 tokens"):
        freed(told("baseline"), told("fp8", length=1024))


def test_a_twin_frees_nothing() -> None:
    twin = told("gptq", Lane(name="emulated", reason="no kernel", source="measured"))
    found = freed(told("baseline"), twin)
    assert (found.source, found.kv_tokens, found.concurrency) == ("none", None, None)
    assert "twin" in found.sentence
