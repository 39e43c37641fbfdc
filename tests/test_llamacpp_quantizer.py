"""What is known before llama.cpp starts, and what is read from its words. No real tool here."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from raw_safetensors import write_raw

from workbench.errors import RecipeError
from workbench.progress import silent
from workbench.quantizers import Task, notes, quantizer
from workbench.quantizers.llamacpp import FALLBACKS, LlamaCpp
from workbench.records import Checkpoint, Gpu, Hardware
from workbench.spec import CalibrationSpec
from workbench.variants import GGUF_PLAIN, FakeSpec, GgufSpec

INSIDE = Path(__file__).parents[1] / "workbench" / "inside"
CPU = Hardware(cpu="c", isa=("avx2",), cores=2, memory_bytes=24 << 30)
SMOL = Checkpoint(
    path="smol",
    architecture="LlamaForCausalLM",
    parameters=134_515_008,
    weight_bytes=269_030_016,
    dtype="BF16",
    hidden_size=576,
    layers=30,
    max_position_embeddings=8192,
    linear_input_widths=(576, 1536),
    tied_embeddings=True,
    weights_digest="w",
    tokenizer_digest="t",
    template_digest="c",
    files={},
)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a module of `inside` that needs the standard library only."""
    monkeypatch.syspath_prepend(str(INSIDE))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        del sys.modules[name]


# --------------------------------------------------------------------------- before it starts


def test_environments_of_each_type() -> None:
    def needs(**options: Any) -> tuple[str, ...]:
        return LlamaCpp().environments(GgufSpec(name="g", **options))

    assert needs(type="source", imatrix=False) == ("quantize",)
    assert needs(type="Q8_0") == ("gguf",)
    assert needs(type="Q4_K_M", imatrix=False) == ("gguf",)
    assert needs(type="Q4_K_M") == ("quantize", "gguf")


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"quantization": "gptq"}, "already quantized (gptq)", "base_model"),
        (
            {"architecture": "LlamaForCausalLm"},
            "does not know the architecture LlamaForCausalLm",
            "did you mean 'LlamaForCausalLM'?",
        ),
        ({"dtype": "F8_E4M3"}, "are F8_E4M3", "F32, F16, BF16"),
    ],
)
def test_refusals(changes: dict[str, Any], what: str, fix: str) -> None:
    variant = GgufSpec(name="g")
    LlamaCpp().check(variant, SMOL, CPU)
    with pytest.raises(RecipeError) as error:
        LlamaCpp().check(variant, SMOL.model_copy(update=changes), CPU)
    assert what in error.value.what
    assert fix in error.value.fix
    assert error.value.where


def test_a_quantized_type_needs_the_converted_file(tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "converted").mkdir()
    for converted in (None, tmp_path / "converted"):
        task = Task(
            GgufSpec(name="g", type="Q8_0"),
            SMOL.model_copy(update={"path": str(tiny)}),
            tmp_path / "out",
            folder=tmp_path / "job",
            log=tmp_path / "log",
            progress=silent,
            converted=converted,
        )
        with pytest.raises(RecipeError, match="made from the unquantized GGUF") as error:
            quantizer("gguf").quantize(task)
        assert "baseline-gguf" in error.value.fix


def model(folder: Path, hidden: int, intermediate: int, layers: int = 2) -> Checkpoint:
    """A checkpoint folder whose headers alone matter."""
    shapes = {"model.embed_tokens.weight": [100, hidden], "lm_head.weight": [100, hidden]}
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        shapes |= {
            f"{stem}.input_layernorm.weight": [hidden],
            f"{stem}.self_attn.q_proj.weight": [hidden, hidden],
            f"{stem}.mlp.up_proj.weight": [intermediate, hidden],
            f"{stem}.mlp.down_proj.weight": [hidden, intermediate],
        }
    tensors = {}
    for name, shape in shapes.items():
        elements = shape[0] * (shape[1] if len(shape) == 2 else 1)
        tensors[name] = ("BF16", shape, bytes(2 * elements))
    write_raw(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text("{}")
    return SMOL.model_copy(update={"path": str(folder)})


def test_notes_count_the_tensors_that_will_fall_back(tmp_path: Path) -> None:
    checkpoint = model(tmp_path, hidden=96, intermediate=256)
    (note,) = notes(GgufSpec(name="q4", type="Q4_K_M"), checkpoint)
    assert "q4: 5 of 7 matrices have rows of 96, which 256 does not divide" in note
    assert "Q5_0 and Q8_0 instead of Q4_K_M" in note
    assert notes(GgufSpec(name="q8", type="Q8_0"), checkpoint) == []
    assert notes(FakeSpec(name="f"), checkpoint) == []


def test_notes_know_rows_that_no_block_divides(tmp_path: Path) -> None:
    checkpoint = model(tmp_path, hidden=40, intermediate=96)
    (note,) = notes(GgufSpec(name="g", type="Q6_K"), checkpoint)
    assert "7 of 7 matrices have rows of 40, 96" in note
    assert "makes them Q8_0 and F16 instead of Q6_K" in note
    (note,) = notes(GgufSpec(name="g", type="Q8_0"), checkpoint)
    assert "5 of 7 matrices have rows of 40, which 32 does not divide" in note
    assert "makes them F16 instead of Q8_0" in note
    assert notes(GgufSpec(name="g", type="F16"), checkpoint) == []


def test_notes_say_what_a_gguf_leaves_out(tmp_path: Path) -> None:
    checkpoint = model(tmp_path, hidden=256, intermediate=256)
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    (note,) = notes(GgufSpec(name="g"), checkpoint)
    assert "language model alone; what vision_config in config.json" in note


def test_no_notes_where_nothing_surprises(tmp_path: Path) -> None:
    checkpoint = model(tmp_path, hidden=256, intermediate=512)
    for kind in FALLBACKS:
        assert notes(GgufSpec(name="g", type=kind), checkpoint) == []
    (note,) = notes(GgufSpec(name="g", type="Q2_K", imatrix=False), checkpoint)
    assert "Q2_K without an importance matrix" in note
    assert notes(GgufSpec(name="g", type="Q6_K", imatrix=False), checkpoint) == []


def test_every_type_is_plain_or_has_a_block_of_256() -> None:
    kinds = GgufSpec.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    assert set(kinds) == {*GGUF_PLAIN, *FALLBACKS}


def test_estimates_grow_with_what_is_to_be_done() -> None:
    tool = LlamaCpp()
    few = CalibrationSpec(source="s", samples=8, max_tokens=128)
    many = CalibrationSpec(source="s", samples=512, max_tokens=2048)
    plain, weighed = GgufSpec(name="g", imatrix=False), GgufSpec(name="g")
    big = SMOL.model_copy(update={"parameters": 8_000_000_000, "weight_bytes": 16_000_000_000})

    def seconds(variant: GgufSpec, checkpoint: Checkpoint, of: CalibrationSpec | None) -> float:
        return tool.estimate(variant, checkpoint, of, CPU)[0]

    assert seconds(plain, SMOL, None) < seconds(weighed, SMOL, few) < seconds(weighed, SMOL, many)
    assert seconds(plain, SMOL, None) < seconds(plain, big, None)
    assert tool.estimate(weighed, big, few, CPU)[1] > 4 * 8_000_000_000
    gpu = Gpu(name="g", compute_capability="8.9", memory_bytes=1, driver="d")
    with_gpu = CPU.model_copy(update={"gpus": (gpu,)})
    assert tool.estimate(weighed, big, many, with_gpu)[0] < seconds(weighed, big, many)


# --------------------------------------------------------------------------- its log

RECORDED = """\
llama_model_loader: - type bf16:  211 tensors
warning: blk.0.attn_k.weight                  - ncols    576 not divisible by 256 (required for \
type    q4_K) -> falling back to    q5_0
warning: blk.0.attn_v.weight                  - ncols    576 not divisible by 256 (required for \
type    q6_K) -> falling back to    q8_0
warning: blk.0.odd.weight                     - ncols     30 not divisible by 256 (required for \
type    q4_K) (WARNING: must use F16 due to unusual shape) -> falling back to     f16
[   1/   4] output_norm.weight                   - [   576,      1,      1,      1], type =    \
f32, size =    0.002 MiB
[   2/   4] token_embd.weight                    - [   576,  49152,      1,      1], type =   \
bf16, 
====== llama_model_quantize_impl: did not find weights for token_embd.weight
converting to q8_0 .. size =    54.00 MiB ->    28.69 MiB
[   3/   4] blk.0.attn_k.weight                  - [   576,    192,      1,      1], type =   \
bf16, converting to q5_0 .. size =     0.21 MiB ->     0.07 MiB
[   4/   4] blk.0.ffn_down.weight                - [  1536,    576,      1,      1], type =   \
bf16, converting to q6_K .. size =     1.69 MiB ->     0.69 MiB
llama_model_quantize_impl: model size  =   256.63 MiB (16.00 BPW)
llama_model_quantize_impl: quant size  =    98.87 MiB (6.17 BPW)
llama_model_quantize_impl: WARNING: 3 of 4 tensor(s) required fallback quantization
"""


@pytest.mark.parametrize("size", [1, 7, 80, 10_000])
def test_log_says_the_same_however_it_is_cut(inside: Any, size: int) -> None:
    told: list[tuple[int, int, str]] = []
    log = inside("quantizer_log").QuantizerLog(lambda *state: told.append(state))
    for start in range(0, len(RECORDED), size):
        log.write(RECORDED[start : start + size])
    assert log.types == {
        "output_norm.weight": "F32",
        "token_embd.weight": "Q8_0",
        "blk.0.attn_k.weight": "Q5_0",
        "blk.0.ffn_down.weight": "Q6_K",
    }
    assert log.fallbacks == {
        "blk.0.attn_k.weight": (576, "Q4_K", "Q5_0"),
        "blk.0.attn_v.weight": (576, "Q6_K", "Q8_0"),
        "blk.0.odd.weight": (30, "Q4_K", "F16"),
    }
    assert log.no_entry == ["token_embd.weight"]
    assert log.bits_per_weight == 6.17
    assert log.error == ""
    assert told == [
        (1, 4, "output_norm.weight"),
        (2, 4, "token_embd.weight"),
        (3, 4, "blk.0.attn_k.weight"),
        (4, 4, "blk.0.ffn_down.weight"),
    ]


def test_log_tells_a_tensor_while_it_is_worked_on(inside: Any) -> None:
    told: list[str] = []
    log = inside("quantizer_log").QuantizerLog(lambda done, of, name: told.append(name))
    log.write("[   1/   2] a.weight - [ 32, 32, 1, 1], type =   bf16, converting to q4_K .. ")
    assert told == ["a.weight"]


def test_log_keeps_the_reason_of_a_failure(inside: Any) -> None:
    log = inside("quantizer_log").QuantizerLog()
    log.write("llama_model_quantize: failed to quantize: requantizing from type q4_1 is disabled\n")
    assert log.error == "requantizing from type q4_1 is disabled"


# --------------------------------------------------------------------------- its tokenizer

BYTE_LEVEL = {
    "model": {"type": "BPE"},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}],
    },
    "decoder": {"type": "ByteLevel"},
}
WRITTEN = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<a>", "<b>", "<eos>"],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{{ messages }}",
}


def tokenizer_folder(folder: Path, tokenizer: dict[str, Any], **config: Any) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", **config}))
    return folder


def test_a_tokenizer_that_came_through_is_accepted(inside: Any, tmp_path: Path) -> None:
    check = inside("tokenizer_check").check_tokenizer
    source = tokenizer_folder(tmp_path, BYTE_LEVEL, chat_template="{{ messages }}")
    check(source, WRITTEN)
    tokenizer_folder(tmp_path, BYTE_LEVEL, eos_token={"content": "<eos>", "special": True})
    check(source, WRITTEN)
    # A SentencePiece vocabulary has no pre-tokenizer, and needs none.
    spm = {"model": {"type": "BPE"}, "pre_tokenizer": None, "decoder": {"type": "Sequence"}}
    tokenizer_folder(tmp_path, spm)
    check(source, {**WRITTEN, "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"})


@pytest.mark.parametrize(
    ("changes", "config", "says"),
    [
        ({"tokenizer.ggml.model": "llama"}, {}, "byte-level BPE and the converter took it for"),
        ({"tokenizer.ggml.pre": "default"}, {}, "pre-tokenizer 'default'"),
        ({"tokenizer.ggml.pre": None}, {}, "pre-tokenizer None"),
        ({"tokenizer.ggml.eos_token_id": 1}, {}, "end-of-text token is '<eos>' .* says id 1"),
        ({"tokenizer.ggml.eos_token_id": 77}, {}, "says id 77"),
        ({"tokenizer.ggml.eos_token_id": None}, {}, "says id None"),
        ({}, {"chat_template": "{{ other }}"}, "chat template did not come through"),
    ],
)
def test_a_tokenizer_that_did_not_is_refused(
    inside: Any, tmp_path: Path, changes: dict[str, Any], config: dict[str, Any], says: str
) -> None:
    failed = inside("_job").Failed
    source = tokenizer_folder(tmp_path, BYTE_LEVEL, **config)
    with pytest.raises(failed, match=says):
        inside("tokenizer_check").check_tokenizer(source, {**WRITTEN, **changes})
