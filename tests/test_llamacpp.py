"""The llama.cpp engine without llama.cpp: its command, what its log tells, and its dialect."""

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.completion import RequestFailed
from workbench.dialect import Ask, LlamaCppDialect, OpenAiDialect, dialect
from workbench.errors import CheckpointError, RecipeError
from workbench.records import Environment, Gpu, Hardware
from workbench.servers.engine import ENGINES, Command, Launch
from workbench.servers.llamacpp import LlamaCppEngine
from workbench.spec import ServeSpec

GIB = 1 << 30
CPU = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=24 * GIB)
CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
}
#: Keys and values, 30 layers, 3 heads of 64, 2 bytes each.
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2


def command(folder: Path, *, files: int = 1, python: str = "/env/bin/python", **of: Any) -> Command:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for number in range(files):
        (folder / f"model-{number}.gguf").write_bytes(b"GGUF")
    spec = ServeSpec(**of.pop("spec", {}))
    values = {"hardware": CPU, "concurrency": 8} | of
    return LlamaCppEngine().command(
        Launch(
            spec=spec,
            checkpoint=folder,
            model_name="q4",
            dtype="llama.cpp's own",
            port=4711,
            python=python,
            **values,
        )
    )


def value(made: Command, option: str) -> str:
    return made.words[made.words.index(option) + 1]


def test_the_command_names_everything_that_decides_numbers(tmp_path: Path) -> None:
    made = command(tmp_path, spec={"max_model_len": 2048})
    assert made.words[0] == "/env/bin/python"
    assert Path(made.words[1]).is_file()
    assert value(made, "--gguf") == str(tmp_path / "model-0.gguf")
    assert (value(made, "--port"), value(made, "--model")) == ("4711", "q4")
    assert (value(made, "--slots"), value(made, "--context")) == ("8", "2048")
    assert value(made, "--threads") == made.env["OMP_NUM_THREADS"] == "2"
    assert made.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert all(choice.reason for choice in made.choices.values())
    assert "args" not in made.choices and "device" not in made.choices
    assert not any("KEY" in word for word in (*made.words, *made.env))


def test_every_slot_holds_the_longest_request(tmp_path: Path) -> None:
    for longest, context in ((64, 256), (256, 256), (257, 512), (2000, 2048)):
        assert value(command(tmp_path, spec={"max_model_len": longest}), "--context") == str(
            context
        )


@pytest.mark.parametrize(
    ("spec", "memory", "slots", "reason"),
    [
        ({}, 24 * GIB, 64, "the recipe asks 64 at a time"),
        ({}, 4 * 10 * 2048 * TOKEN_BYTES, 10, "a quarter of the memory"),
        ({"kv_cache_gib": 3 * 2048 * TOKEN_BYTES / GIB}, 24 * GIB, 3, "serve.kv_cache_gib"),
        ({}, 1000, 1, "a quarter of the memory"),
    ],
)
def test_slots_end_where_memory_does(
    tmp_path: Path, spec: dict[str, Any], memory: int, slots: int, reason: str
) -> None:
    machine = CPU.model_copy(update={"memory_bytes": memory})
    made = command(tmp_path, spec=spec, hardware=machine, concurrency=64)
    assert value(made, "--slots") == str(slots)
    assert reason in made.choices["slots"].reason


def test_threads_sleep_only_where_cores_are_few(tmp_path: Path) -> None:
    many = command(tmp_path, hardware=CPU.model_copy(update={"cores": 32}))
    assert value(many, "--threads") == many.env["OMP_NUM_THREADS"] == "32"
    assert "OMP_WAIT_POLICY" not in many.env


def test_what_is_for_vllm_does_not_reach_llama_cpp(tmp_path: Path) -> None:
    made = command(tmp_path, spec={"args": ("--enforce-eager",)})
    assert "--enforce-eager" not in made.words
    assert made.choices["args"].value == "(none)"


def test_a_gpu_is_not_used_and_the_record_says_so(tmp_path: Path) -> None:
    gpu = Gpu(name="A", compute_capability="9.0", memory_bytes=80 * GIB, driver="1")
    made = command(tmp_path, hardware=CPU.model_copy(update={"gpus": (gpu,)}))
    assert made.choices["device"].value == "cpu"


@pytest.mark.parametrize("files", [0, 2])
def test_exactly_one_file_is_served(tmp_path: Path, files: int) -> None:
    with pytest.raises(CheckpointError, match=f"{files} GGUF files"):
        command(tmp_path, files=files)


def test_it_needs_its_environment(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="environment of its own"):
        command(tmp_path, python="")


def test_the_log_of_a_real_server() -> None:
    text = (Path(__file__).parent / "data/llamacpp-cpu-q4_1.log").read_text()
    facts = LlamaCppEngine().read_log(text)
    assert facts.kernels == (
        "CPU: SSE3 SSSE3 AVX AVX2 F16C FMA BMI2 LLAMAFILE OPENMP REPACK",
        "flash attention enabled",
        "61 tensors f32",
        "210 tensors q4_1",
        "1 tensors q8_0",
    )
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (8 * 1024, 8.0)


def test_a_device_beside_the_cpu_is_named() -> None:
    log = "0.00 I cmn  common_param:   - CUDA0   : NVIDIA H200 (143771 MiB, 140000 MiB free)\n"
    assert LlamaCppEngine().read_log(log).kernels == ("CUDA0: NVIDIA H200",)


def test_the_version_is_the_packages() -> None:
    made = Environment(
        name="llamacpp",
        target="cpu",
        lock_digest="d",
        python="p",
        python_version="3.11",
        packages={"xllamacpp": "2026.10.11549"},
        created_seconds=1.0,
    )
    assert LlamaCppEngine().version(made) == "2026.10.11549"
    assert LlamaCppEngine().version(None) == "unknown"


# --------------------------------------------------------------------------- dialect


def test_every_engine_has_a_dialect() -> None:
    for name in ENGINES:
        assert dialect(name).path.startswith("/")
    assert isinstance(dialect("fake"), OpenAiDialect)


def test_a_request_to_llama_cpp() -> None:
    schema = {"type": "object"}
    asked = Ask((1, 2), 5, stop=("\n",), response_schema=schema, ignore_eos=True, stream=True)
    assert LlamaCppDialect().body("m", asked) == {
        "model": "m",
        "prompt": [1, 2],
        "n_predict": 5,
        "temperature": 0.0,
        "seed": 0,
        "samplers": ["temperature"],
        "cache_prompt": False,
        "return_tokens": True,
        "stop": ["\n"],
        "ignore_eos": True,
        "json_schema": schema,
        "stream": True,
    }
    assert LlamaCppDialect().body("m", Ask((1,), 1, logprobs=0))["n_probs"] == 1


@pytest.mark.parametrize("asked", [Ask((1,), 1, echo=True), Ask("text", 1)])
def test_what_llama_cpp_cannot_do_is_refused(asked: Ask) -> None:
    with pytest.raises(ValueError, match=r"llama\.cpp"):
        LlamaCppDialect().body("m", asked)


def said(**more: Any) -> dict[str, Any]:
    plain = {
        "content": "Paris.",
        "stop": True,
        "stop_type": "eos",
        "tokens_evaluated": 5,
        "tokens_predicted": 3,
    }
    return plain | more


@pytest.mark.parametrize(
    ("kind", "reason"), [("eos", "stop"), ("word", "stop"), ("limit", "length")]
)
def test_an_answer_of_llama_cpp(kind: str, reason: str) -> None:
    probs = [
        {"id": 7, "token": "Pa", "logprob": -0.5},
        {"id": 8, "token": "ris", "logprob": -3.4e38},
    ]
    found = LlamaCppDialect().read(said(stop_type=kind, completion_probabilities=probs))
    assert (found.text, found.finish_reason) == ("Paris.", reason)
    assert (found.prompt_tokens, found.output_tokens) == (5, 3)
    assert [(t.id, t.offset, t.logprob) for t in found.tokens] == [
        (7, 0, -0.5),
        (8, 2, -float("inf")),
    ]


def test_a_stream_counts_tokens_that_are_not_text_yet() -> None:
    stream = LlamaCppDialect().stream()
    stream.take(json.dumps({"content": "a", "stop": False, "tokens_predicted": 1}), 1.0)
    # Two parts of a character were held back until the third made it whole.
    stream.take(json.dumps({"content": "\U0001f600", "stop": False, "tokens_predicted": 4}), 2.0)
    assert not stream.done
    stream.take(json.dumps(said(content="", tokens_predicted=5)), 3.0)
    assert stream.done and stream.finish_reason == "stop"
    assert stream.times == [1.0, 2.0, 2.0, 2.0, 3.0]
    assert "".join(stream.text) == "a\U0001f600"
    assert stream.usage == {"prompt_tokens": 5, "completion_tokens": 5}


def test_an_error_in_a_stream_is_a_failure() -> None:
    with pytest.raises(RequestFailed, match="the server said"):
        LlamaCppDialect().stream().take('{"error": {"code": 500}}', 1.0)
