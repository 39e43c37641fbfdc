"""Capacity: fits, lanes, cards and cost, worked out by hand; nonsense and foreign speed refused."""

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from builders import point, profile, serving
from hypothesis import given
from hypothesis import strategies as st
from test_memory import GIB, LLAMA_8B, LLAMA_70B, SMOLLM2, model, tensors

from workbench.capacity import Answer, plan
from workbench.capacity_floor import token_bytes
from workbench.capacity_formats import _GGUF, AS_IT_IS, FORMATS
from workbench.capacity_rows import Load, Row
from workbench.capacity_speed import Speed, speed
from workbench.capacity_view import capacity
from workbench.errors import RecipeError
from workbench.gpus import GPUS, Named, named
from workbench.memory import workspace
from workbench.quantconfig import Scheme
from workbench.records import Choice, Lane, Profile
from workbench.safetensors_header import Tensor
from workbench.store import dump_record
from workbench.weights import scheme_bytes

Call = Callable[..., subprocess.CompletedProcess[str]]
LOAD = Load(p95_in=2000, p95_out=400)


def ask(config: dict[str, Any] = LLAMA_8B, gpu: str = "h100", **changes: Any) -> Answer:
    measured = changes.pop("measured", None)
    return plan(model(config), named(gpu), replace(LOAD, **changes), measured)


def one(answer: Answer, kv: str = "auto") -> Row:
    (row,) = [row for row in answer.rows if row.kv == kv]
    return row


# --------------------------------------------------------------------------- what fits


def test_a_known_model_on_a_known_gpu() -> None:
    row = one(ask(formats=("bf16",)))
    assert row.fits and row.estimate is not None
    room = workspace(LLAMA_8B, 1, 8192, 1024).bytes
    pool = int(0.9 * (81559 << 20)) - 16_060_522_496 - room
    assert row.estimate.pool_bytes == pool
    tokens = pool // (16 * (128 << 10)) * 16
    assert row.estimate.kv_tokens == tokens
    assert int(row.estimate.max_concurrency) == tokens // 2400
    assert row.planned == int(0.75 * tokens / 2400)
    assert row.estimate.context == 131072
    # About what vLLM's logs say of this model there: 14.99 GiB of weights, 53 to 55 GiB of cache.
    assert 52 * GIB < pool < 55 * GIB


def test_an_fp8_cache_holds_twice_as_much_and_the_format_frees_the_rest() -> None:
    rows = {(r.format, r.kv): r.estimate for r in ask().rows if r.estimate}
    assert {name for name, _ in rows} == {
        *("bf16", "fp8", "int8", "gptq w4 g128", "awq w4 g128", "q8_0", "q4_k_m")
    }
    half, full = rows["bf16", "fp8"], rows["bf16", "auto"]
    assert half.kv_tokens == pytest.approx(2 * full.kv_tokens, abs=32)
    freed = rows["gptq w4 g128", "auto"].kv_tokens - full.kv_tokens
    assert freed == pytest.approx((full.weight_bytes - rows["gptq w4 g128", "auto"].weight_bytes)
                                  / (128 << 10), abs=16)  # fmt: skip
    assert ("q8_0", "fp8") not in rows


def test_groups_are_as_large_as_the_layers_allow_and_floats_load_in_16_bits() -> None:
    row = one(ask(SMOLLM2, formats=("gptq",), kv=("auto",)))
    scheme = Scheme("compressed-tensors", "int", 4, "group", 64)
    expected = scheme_bytes(tensors(SMOLLM2), scheme, tied=True)
    assert row.estimate is not None
    assert (row.format, row.estimate.weight_bytes) == ("gptq w4 g64", expected)
    (wide, _) = plan(model(LLAMA_8B, "F32"), named("h100"), replace(LOAD, formats=("bf16",))).rows
    assert wide.estimate is not None and wide.estimate.weight_bytes == 16_060_522_496


def test_the_fewest_cards_that_hold_one_request() -> None:
    sizes = {r.format: r.estimate.tp for r in ask(LLAMA_70B, kv=("auto",)).rows if r.estimate}
    # 141 GB of bfloat16 on cards of 72 GiB at 90 %; 71 GB in 8 bits; 40 GB in 4.
    assert (sizes["bf16"], sizes["gptq w4 g128"]) == (2, 1)
    row = one(ask(LLAMA_70B, gpu="l4", formats=("bf16",), kv=("auto",)))
    assert row.fits and row.estimate is not None and row.estimate.tp == 8
    forced = one(ask(LLAMA_70B, formats=("bf16",), kv=("auto",), tp=1))
    assert not forced.fits and "weights and workspace alone" in forced.reason
    assert "one card holds" in forced.reason
    half = one(ask(LLAMA_70B, gpu="t4", formats=("bf16",), kv=("auto",)))
    assert not half.fits and "8 cards hold" in half.reason


def test_cards_that_do_not_divide_the_heads() -> None:
    row = one(ask(SMOLLM2, formats=("bf16",), kv=("auto",), tp=2))
    assert not row.fits and "9 attention heads do not divide by 2" in row.reason
    wide = {**LLAMA_8B, "intermediate_size": 14400, "hidden_size": 4096}
    four = one(ask(wide, formats=("gptq",), kv=("auto",), tp=4))
    # 14400 is 225 groups of 64: four cards would cut one.
    assert "intermediate_size 14400 does not divide by 4 in groups of 64" in four.reason
    assert one(ask(wide, formats=("bf16",), kv=("auto",), tp=4)).fits


def test_one_request_may_be_too_long_where_the_weights_fit() -> None:
    row = one(ask(gpu="l4", formats=("bf16",), kv=("auto",), p95_in=100_000, tp=1))
    assert not row.fits and "one request of that length is more than one card" in row.reason


def test_groups_that_no_card_number_helps() -> None:
    odd = {**LLAMA_8B, "intermediate_size": 14340}
    row = next(r for r in ask(odd).rows if r.format == "gptq")
    assert (row.lane, row.fits) == ("unsupported", False)
    assert "no group of 128, 64, 32 weights divides every layer" in row.reason


@pytest.mark.parametrize(
    ("gpu", "format_", "kv", "lane"),
    [
        ("a100", "fp8", "auto", "weight-only fallback"),
        ("a100", "bf16", "fp8", "unsupported"),
        ("a100", "fp8", "fp8", "emulated"),
        ("b200", "int8", "auto", "emulated"),
        ("h100", "nf4", "auto", "emulated"),
        ("mi300x", "fp8", "auto", "native"),
    ],
)
def test_what_a_gpu_does_not_run_has_no_figures(
    gpu: str, format_: str, kv: str, lane: str
) -> None:  # fmt: skip
    row = one(ask(gpu=gpu, formats=(format_,), kv=(kv,)), kv)
    assert row.lane == lane and row.reason
    runs = lane in ("native", "weight-only fallback")
    assert (row.estimate is not None, row.fits) == (runs, runs)


def test_llama_cpp_keeps_no_fp8_cache() -> None:
    (row,) = ask(formats=("q4_k_m",), kv=("fp8",)).rows
    assert (row.engine, row.lane) == ("llamacpp", "unsupported") and "FP8" in row.reason
    two = one(ask(formats=("q4_k_m",), kv=("auto",), tp=2))
    assert not two.fits and "llama.cpp splits by layers" in two.reason


def test_a_quantized_checkpoint_is_answered_as_it_is() -> None:
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    made = replace(model(LLAMA_8B), quantization=config)
    (row, _) = plan(made, named("h100"), LOAD).rows
    assert (row.format, row.lane, row.fits) == ("as it is (fp8)", "native", True)
    unknown = replace(made, quantization={"quant_method": "mxfp9"})
    assert {r.lane for r in plan(unknown, named("h100"), LOAD).rows} == {"unsupported"}
    with pytest.raises(RecipeError, match="quantized already"):
        plan(made, named("h100"), replace(LOAD, formats=("fp8",)))
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    group = {"targets": ["Linear"], "weights": {**weights, "symmetric": True}}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    w4 = replace(made, quantization={**packed, "config_groups": {"group_0": group}})
    assert plan(w4, named("t4"), LOAD).rows[0].lane == "native"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "awq", "bits": 4}, "no usable bits and group_size (4, None)"),
        ({}, "it names no 'quant_method'"),
    ],
)
def test_a_quantization_nobody_can_read_is_said_in_its_own_words(
    config: dict[str, Any], says: str
) -> None:
    (row, _) = plan(replace(model(LLAMA_8B), quantization=config), named("h100"), LOAD).rows
    assert row.lane == "unsupported" or row.estimate is None
    assert "quantization_config cannot be read" in row.reason and says in row.reason
    assert "None)" not in row.format


def test_experts_in_one_tensor_are_said_to_be_counted_as_they_are() -> None:
    plain = model(LLAMA_8B)
    at = "model.layers.0.mlp.experts.gate_up_proj"
    fused = replace(plain, tensors={**plain.tensors, at: Tensor("BF16", (32, 2880, 5760), GIB)})
    said = [line for line in plan(fused, named("h100"), LOAD).assumptions if "experts" in line]
    assert len(said) == 1 and "1 tensors of fused experts (1.00 GiB" in said[0]
    alone = plan(fused, named("h100"), replace(LOAD, formats=("bf16",))).assumptions
    for lines in (alone, plan(plain, named("h100"), LOAD).assumptions):
        assert not [line for line in lines if "fused experts" in line]


# --------------------------------------------------------------------------- cards and cost


def test_without_a_speed_nothing_is_made_up() -> None:
    answer = ask(qps=12.0, price=2.5)
    assert all(row.cards is None and row.cost_output is None for row in answer.rows)
    assert "cards and cost: not known without a speed: give --profile, or --latency" in (
        answer.assumptions
    )


def test_cards_by_littles_law() -> None:
    row = one(ask(qps=100.0, latency=10.0, price=2.0, formats=("bf16",), kv=("auto",)))
    servers = math.ceil(1000 / row.planned)
    assert servers > 1 and row.cards == servers
    # So many cards at 2 an hour serve 360,000 requests in it.
    assert row.cost_output == pytest.approx(1e6 * 2.0 * servers / (100 * 3600 * 400))
    assert row.cost_total == pytest.approx(1e6 * 2.0 * servers / (100 * 3600 * 2400))


def test_cost_is_by_the_mean_lengths_where_they_are_given() -> None:
    given: dict[str, Any] = {"qps": 100.0, "price": 2.0, "formats": ("bf16",), "kv": ("auto",)}
    usual: dict[str, Any] = {"mean_in": 1000, "mean_out": 200}
    by_p95, by_mean = (ask(latency=10.0, **given, **more) for more in ({}, usual))
    before, after = one(by_p95), one(by_mean)
    # The same cards make half the tokens.
    assert (after.cards, after.planned) == (before.cards, before.planned)
    assert before.cost_output and after.cost_output == pytest.approx(2 * before.cost_output)
    assert before.cost_total and after.cost_total == pytest.approx(2 * before.cost_total)
    said = "\n".join(by_p95.assumptions)
    assert "--mean-in and --mean-out not given" in said and "cost twice as much" in said
    assert "by the mean lengths, 1000 + 200 tokens" in "\n".join(by_mean.assumptions)
    seen = speed(measured(), named("h100"))
    more = {**given, "qps": 1000.0, "measured": seen}
    most, half = one(ask(**more)), one(ask(**more, mean_out=200))
    assert most.cards and half.cards == math.ceil(most.cards / 2)
    assert "needs half the cards" in "\n".join(ask(**more).assumptions)


def test_a_server_has_as_many_cards_as_make_the_load_need_fewest() -> None:
    asked = {"qps": 12.0, "latency": 10.0, "formats": ("fp8",), "kv": ("fp8",)}

    def cards(tp: int | None) -> tuple[int, int]:
        row = one(ask(LLAMA_70B, tp=tp, **asked), "fp8")
        assert row.cards is not None and row.estimate is not None
        assert row.cards == row.estimate.tp * math.ceil(120 / row.planned)
        return row.cards, row.estimate.tp

    each = [cards(tp) for tp in (1, 2, 4, 8)]
    # One card holds the weights and a single request; of all 120 it would take 120 of them.
    assert each[0] == (120, 1) and cards(None) == min(each)
    answer = ask(LLAMA_70B, **asked)
    assert any("serve the load with the fewest cards" in line for line in answer.assumptions)
    alone = ask(LLAMA_70B, formats=("fp8",), kv=("fp8",))
    assert one(alone, "fp8").planned == 1
    assert any("fewest that hold one request" in line for line in alone.assumptions)


def measured(**changes: Any) -> Profile:
    """A profile of an H100: 2,400 output tokens/s at concurrency 16, and more beyond."""
    ran = {
        "hardware": named("h100").key,
        "command": ("python", "--tensor-parallel-size", "1"),
        **changes.pop("serving", {}),
    }
    points = (
        point(concurrency=16, output_tokens_per_s=2400.0),
        point(concurrency=8, output_tokens_per_s=1500.0),
        point(concurrency=32, output_tokens_per_s=9000.0, failed=1),
        point(concurrency=4096, output_tokens_per_s=99_000.0),
    )
    return profile("fp8", "w", serving=serving("w", **ran), points=points, **changes)


def test_cards_from_a_measured_profile() -> None:
    told = speed(measured(), named("h100"))
    answer = ask(qps=12.0, price=2.5, formats=("fp8",), measured=told)
    row = one(answer)
    # 12 x 400 = 4,800 tokens/s against 2,400: the point with a failure, and the one that memory
    # does not allow at this length, do not count.
    assert row.cards == 2
    assert row.cost_output == pytest.approx(1e6 * 2 * 2.5 / (12 * 3600 * 400))
    assert one(answer, "fp8").cards is None
    text = "\n".join(answer.assumptions)
    assert "2,400 output tokens/s that 'short' had at concurrency 16" in text
    assert "variant 'fp8', served from checkpoint, with a KV cache in 'auto'" in text


def test_the_profiles_own_cards_and_cache() -> None:
    kv = {"kv_cache_dtype": Choice(value="fp8", reason="asked")}
    ran = {"command": ("vllm", "--tensor_parallel_size=4"), "choices": kv}
    told = speed(measured(serving=ran), named("h100"))
    assert (told.cards, told.kv) == (4, "fp8")
    answer = ask(qps=12.0, formats=("bf16",), measured=told)
    assert (one(answer, "fp8").cards, one(answer).cards) == (8, None)
    with pytest.raises(RecipeError, match="measured on 4 cards"):
        ask(qps=12.0, formats=("bf16",), measured=told, tp=2)


def test_a_profile_without_a_point_that_fits_says_so() -> None:
    told = Speed((point(concurrency=100_000),), 1, "auto", "variant 'x'")
    answer = ask(qps=12.0, formats=("bf16",), measured=told)
    assert one(answer).cards is None
    assert any("not known: no point of the profile" in line for line in answer.assumptions)


EMULATED = Lane(name="emulated", reason="no kernel", source="measured")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"serving": {"hardware": "AMD EPYC x2 [avx2]"}}, "says nothing about the speed"),
        ({"serving": {"hardware": named("a100").key}}, "says nothing about the speed"),
        ({"serving": {"lane": EMULATED}}, "the lane emulated"),
        ({"serving": {"engine": "fake"}}, "the engine fake"),
        ({"serving": {"engine": "llamacpp"}}, "the engine llamacpp"),
    ],
)
def test_speed_measured_elsewhere_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        speed(measured(**changes), named("h100"))


def test_a_profile_of_several_workloads_needs_one_named() -> None:
    both = measured().model_copy(update={"points": (point("short"), point("long"))})
    with pytest.raises(RecipeError, match="several workloads: long, short"):
        speed(both, named("h100"))
    assert [p.workload for p in speed(both, named("h100"), "long").points] == ["long"]
    with pytest.raises(RecipeError, match="no workload 'lang'") as error:
        speed(both, named("h100"), "lang")
    assert "did you mean 'long'" in error.value.fix
    bad = measured().model_copy(update={"points": (point(failed=1),)})
    with pytest.raises(RecipeError, match="every load point has failed"):
        speed(bad, named("h100"))


def test_a_profile_is_of_one_format_and_needs_no_latency() -> None:
    told = speed(measured(), named("h100"))
    with pytest.raises(RecipeError, match="does not say which"):
        ask(qps=12.0, measured=told)
    with pytest.raises(RecipeError, match="a profile answers for a load"):
        ask(formats=("fp8",), measured=told)
    with pytest.raises(RecipeError, match="both a measured profile and a latency"):
        ask(qps=12.0, latency=1.0, formats=("fp8",), measured=told)


@given(st.floats(0.01, 1e4), st.floats(0.5, 1e3), st.floats(1.0, 10.0))
def test_more_load_never_needs_fewer_cards(qps: float, latency: float, factor: float) -> None:
    def cards(rate: float) -> int:
        row = one(ask(SMOLLM2, gpu="t4", formats=("bf16",), kv=("auto",), qps=rate,
                      latency=latency))  # fmt: skip
        assert row.cards is not None and row.cards >= 1
        return row.cards

    assert cards(qps) <= cards(qps * factor)


# --------------------------------------------------------------------------- impossible


def test_a_latency_that_memory_cannot_keep_up_with_is_not_priced() -> None:
    asked = {"qps": 1.0, "price": 0.7, "gpu": "l4", "formats": ("bf16",), "kv": ("auto",)}
    # A token reads all but the input embeddings, at 300 GB/s.
    token = (16_060_522_496 - 2 * 128_256 * 4096) / 300e9
    row = one(ask(latency=0.1, **asked))
    assert row.fits and row.impossible and (row.cards, row.cost_output) == (None, None)
    # The most cards of one machine are the fastest, and eight are not fast enough.
    assert row.estimate is not None and row.estimate.tp == 8
    assert row.least == pytest.approx(400 * token / 8)
    alone = one(ask(latency=0.999 * 400 * token, tp=1, **asked))
    assert alone.impossible and alone.cards is None
    slower = one(ask(latency=1.001 * 400 * token, tp=1, **asked))
    assert not slower.impossible and slower.cards is not None and slower.cost_output
    # One card is too slow for this, two are not.
    both = one(ask(latency=0.6 * 400 * token, **asked))
    assert both.estimate is not None and both.estimate.tp == 2 and both.cards
    text = "\n".join(ask(latency=0.1, **asked).assumptions)
    assert "300 GB/s x TP), its published peak; one token a pass" in text


def test_a_profile_faster_than_memory_is_not_priced() -> None:
    # 2,400 output tokens/s of 16 at a time: 6.7 ms a token. 40,000: 0.4 ms, of 7.6 GB at 3.35 TB/s.
    told = replace(speed(measured(), named("h100")),
                   points=(point(concurrency=16, output_tokens_per_s=40_000.0),))  # fmt: skip
    row = one(ask(qps=12.0, formats=("fp8",), measured=told))
    assert row.impossible and row.cards is None
    drafted = replace(told, speculative=True)
    assert one(ask(qps=12.0, formats=("fp8",), measured=drafted)).cards == 1
    ran = {"command": ("vllm", "--speculative-config", "{}")}
    assert speed(measured(serving=ran), named("h100")).speculative
    assert not speed(measured(), named("h100")).speculative


def test_what_a_token_does_not_read_is_left_out_of_the_bound() -> None:
    whole = model(LLAMA_8B)
    tower = {**whole.tensors, "vision_tower.a.weight": Tensor("BF16", (9999, 4096), 9999 * 8192)}
    assert token_bytes(replace(whole, tensors=tower), "bf16") == token_bytes(whole, "bf16")
    # Two experts of eight: at least a quarter of the weights.
    sparse = {**LLAMA_8B, "num_local_experts": 8, "num_experts_per_tok": 2}
    assert token_bytes(replace(whole, config=sparse), "bf16") == token_bytes(whole, "bf16") // 4
    tied = model(SMOLLM2)
    assert token_bytes(tied, "bf16") == scheme_bytes(tied.tensors, None, tied=True)
    file = replace(whole, gguf=True, tensors={}, stored_bytes=5_000_000_000)
    assert token_bytes(file, AS_IT_IS) == 5_000_000_000 - 2 * 128_256 * 4096


@pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))
def test_every_gpu_has_a_bandwidth(gpu: Named) -> None:
    assert 300 <= gpu.bandwidth <= 8000


# --------------------------------------------------------------------------- rows and footnotes


def test_no_row_says_bfloat16_where_the_gpu_has_none() -> None:
    assert one(ask(SMOLLM2, gpu="t4", formats=("bf16",), kv=("auto",))).format == "bf16 as fp16"
    assert one(ask(SMOLLM2, gpu="a10", formats=("bf16",), kv=("auto",))).format == "bf16"


@pytest.mark.parametrize(("gpu", "most"), [("h200", 1024), ("l4", 256)])
def test_no_more_requests_are_planned_than_the_workspace_is_for(gpu: str, most: int) -> None:
    answer = ask(SMOLLM2, gpu=gpu)
    assert max(row.planned for row in answer.rows) == most
    text = "\n".join(answer.assumptions)
    assert f"at most the {most:,} at a time" in text and f"logits of {most:,} requests" in text


def test_gguf_on_a_gpu_is_of_another_build_than_the_pinned_one() -> None:
    row = one(ask(gpu="h200", formats=("q8_0",), kv=("auto",)))
    assert row.fits and row.lane == "another build" and "on the processor" in row.reason


# --------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**30])
@pytest.mark.parametrize(
    "name",
    ["p95_in", "p95_out", "mean_in", "mean_out", "qps", "latency", "price", "utilization"],
)
def test_numbers_that_mean_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError) as error:
        ask(**{name: value})
    assert error.value.where == f"--{name.replace('_', '-')}" and "at most" in error.value.fix


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"--utilization is 1\.5"):
        ask(utilization=1.5)
    with pytest.raises(RecipeError, match="--tp is 65"):
        ask(tp=65)
    with pytest.raises(RecipeError, match="longer than the model's context of 8,192"):
        ask(SMOLLM2, p95_in=8000)
    with pytest.raises(RecipeError, match="no format 'ftp8'") as error:
        ask(formats=("ftp8",))
    assert "did you mean 'fp8'" in error.value.fix
    with pytest.raises(RecipeError, match="no KV type 'int8'"):
        ask(kv=("int8",))


def test_an_unknown_gpu_is_offered_only_what_is_accepted() -> None:
    with pytest.raises(RecipeError, match="no GPU 'all' in the table") as error:
        named("all")
    assert all(named(word) for word in error.value.fix.split(": ")[-1].split(", "))


# --------------------------------------------------------------------------- said


@pytest.mark.parametrize("gpu", GPUS)
def test_every_assumption_is_said(gpu: str) -> None:
    answer = ask(gpu=gpu)
    text = "\n".join(answer.assumptions)
    assert f"{named(gpu).gpus[0].memory_bytes / GIB:.1f} GiB of {GPUS[gpu].name}" in text
    assert GPUS[gpu].source in text and "90%" in text
    for word in ("weights", "131,072 bytes a token", "workspace", "75%", "GGUF", "--qps"):
        assert word in text
    assert ("no bfloat16" in text) == (gpu == "t4")


def test_the_command_on_the_tiny_checkpoint(workbench: Call, project: Path, tiny: Path) -> None:
    words = ("--gpu", "l4", "--p95-in", "200", "--p95-out", "50", "--qps", "12")
    done = workbench("capacity", str(tiny), *words, "--latency", "2", "--price", "0.7")
    assert done.returncode == 0, done.stderr
    assert "NVIDIA L4" in done.stdout and "assumed:" in done.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    assert "24 in flight (Little's law)" in done.stdout
    assert "cost by your --latency and memory alone" in done.stdout
    wild = workbench("capacity", str(tiny), *words, "--latency", "1e-6", "--price", "0.7")
    assert "bf16; bf16, FP8 KV: impossible: 1.8e-05 s at least on 2 cards" in wild.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in wild.stdout
    asked = workbench("capacity", str(tiny), *words, "--format", "bf16", "--kv", "auto", "--json")
    (row,) = json.loads(asked.stdout)["rows"]
    # 2 layers x 1 head x 2 x 32 x 2 bytes
    assert row["estimate"]["token_bytes"] == 256 and row["fits"]
    path = project / "profile.json"
    path.write_bytes(dump_record(measured()))
    foreign = workbench("capacity", str(tiny), *words, "--format", "fp8", "--profile", str(path))
    assert foreign.returncode == 2 and "says nothing about the speed" in foreign.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--qps", "nan"], "--qps is nan"),
        (["--gpu", "h1000"], "did you mean 'h100'"),
        (["--profile", "nope.json"], "a record is missing"),
        (["--format", "exl2"], "there is no format"),
    ],
)
def test_mistakes_are_code_2(workbench: Call, tiny: Path, changes: list[str], says: str) -> None:
    words = ("--gpu", "l4", "--p95-in", "200", "--p95-out", "50")
    done = workbench("capacity", str(tiny), *words, *changes)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_help_says_which_formats_are_shown_by_default() -> None:
    (option,) = get_type_hints(capacity, include_extras=True)["format_"].__metadata__
    named, default = option.help.split("; default: ")
    assert {*FORMATS} <= {*named.replace(",", "").split()}
    assert default.startswith("those six") and len(FORMATS) == 6
    assert all(name in default for name in _GGUF)
