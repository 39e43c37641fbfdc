"""Which lane each format gets: every row of the table, and nothing native by default."""

import ast
from pathlib import Path

import pytest
from builders import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from workbench import support
from workbench.records import Gpu, Hardware
from workbench.support import TABLE, dtype, lane
from workbench.variants import Fp8Spec, GptqSpec, NoneSpec

GIB = 1 << 30
AVX2 = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=24 * GIB)
AVX512 = AVX2.model_copy(update={"isa": ("avx2", "avx512_vnni", "avx512f")})
ARM = AVX2.model_copy(update={"cpu": "Neoverse-V2", "isa": ("neon", "sve")})
OTHER = AVX2.model_copy(update={"cpu": "POWER9", "isa": ()})


def cuda(*capabilities: str) -> Hardware:
    gpus = tuple(
        Gpu(name="GPU", compute_capability=c, memory_bytes=80 * GIB, driver="1")
        for c in capabilities
    )
    return AVX512.model_copy(update={"gpus": gpus})


W4, W8 = {"bits": 4, "act_order": "static"}, {"bits": 8, "act_order": "static"}


@pytest.mark.parametrize(
    ("method", "options", "hardware", "compute", "expected"),
    [
        ("none", {}, AVX2, None, "native"),
        ("none", {}, ARM, None, "native"),
        ("none", {}, cuda("7.0"), None, "native"),
        ("fp8", {}, AVX2, None, "native"),
        ("fp8", {}, AVX512, "bfloat16", "native"),
        ("fp8", {}, ARM, None, "emulated"),
        ("fp8", {}, cuda("9.0"), None, "native"),
        ("fp8", {}, cuda("8.9"), None, "native"),
        ("fp8", {}, cuda("10.0"), None, "native"),
        ("fp8", {}, cuda("8.6"), None, "weight-only fallback"),
        ("fp8", {}, cuda("8.0"), None, "weight-only fallback"),
        ("fp8", {}, cuda("7.5"), None, "weight-only fallback"),
        ("fp8", {}, cuda("7.0"), None, "unsupported"),
        # The weakest of several devices decides.
        ("fp8", {}, cuda("9.0", "8.0"), None, "weight-only fallback"),
        ("gptq", W4, AVX2, None, "emulated"),
        ("gptq", W4, AVX2, "bfloat16", "emulated"),
        ("gptq", W4, AVX512, None, "emulated"),
        ("gptq", W4, AVX512, "float32", "emulated"),
        ("gptq", W4, AVX512, "bfloat16", "native"),
        ("gptq", W8, AVX512, "bfloat16", "emulated"),
        ("gptq", W4, ARM, "bfloat16", "emulated"),
        ("gptq", W4, cuda("8.0"), None, "native"),
        ("gptq", W8, cuda("7.5"), "float16", "native"),
        ("gptq", W4, cuda("9.0"), "float32", "emulated"),
        ("gptq", W4, cuda("7.0"), None, "unsupported"),
        ("gptq", W4 | {"act_order": "group"}, cuda("9.0"), None, "emulated"),
        ("gptq", W4 | {"act_order": "group"}, AVX512, "bfloat16", "emulated"),
        ("none", {}, OTHER, None, "unsupported"),
        ("awq", {}, cuda("9.0"), None, "unsupported"),
        ("fake", {}, AVX2, None, "unsupported"),
    ],
)
def test_vllm_lanes(
    method: str, options: dict[str, object], hardware: Hardware, compute: str | None, expected: str
) -> None:
    found = lane(method, options, "vllm", hardware, compute)
    assert found.name == expected
    assert found.reason and found.source


@pytest.mark.parametrize("method", ["none", "fake", "fp8", "gptq"])
@pytest.mark.parametrize("hardware", [AVX2, ARM, OTHER, cuda("9.0")])
def test_the_fake_engine_runs_everything_everywhere(method: str, hardware: Hardware) -> None:
    assert lane(method, {}, "fake", hardware).name == "native"


def test_the_options_of_the_specs_are_the_ones_the_table_asks_for() -> None:
    # A renamed field would make every row that names it fall through.
    for spec in (NoneSpec(name="a"), Fp8Spec(name="a"), GptqSpec(name="a")):
        options = spec.model_dump(exclude={"name", "method", "serve_as"})
        rows = [row for row in TABLE["vllm"] if row.method == spec.method]
        assert rows
        assert {key for row in rows for key, _ in row.options} <= set(options)
        assert lane(spec.method, options, "vllm", AVX512).name != "unsupported"


def test_an_unknown_engine_or_method_says_what_is_near() -> None:
    assert "vllm" in lane("fp8", {}, "vlm", AVX2).reason
    assert "did you mean 'gptq'" in lane("gptqq", {}, "vllm", AVX2).reason


@given(
    method=st.text(max_size=8),
    engine=st.text(max_size=8),
    isa=st.lists(st.sampled_from(["avx2", "avx512f", "neon", "xyz"]), max_size=3),
    capability=st.one_of(st.none(), st.integers(10, 150)),
    bits=st.integers(0, 16),
)
def test_nothing_is_native_that_no_row_names(
    method: str, engine: str, isa: list[str], capability: int | None, bits: int
) -> None:
    hardware = AVX2.model_copy(update={"isa": tuple(isa)})
    if capability is not None:
        hardware = cuda(f"{capability / 10}")
    found = lane(method, {"bits": bits}, engine, hardware)
    assert found.reason and found.source
    named = engine in TABLE and any(row.method == method for row in TABLE[engine])
    assert named or found.name == "unsupported"


def test_every_row_of_the_table_is_reached() -> None:
    reached = set()
    for hardware in (AVX2, AVX512, ARM, *(cuda(c) for c in ("7.0", "7.5", "8.0", "9.0"))):
        for method in ("none", "fp8", "gptq"):
            for bits in (4, 8):
                for order in ("static", "group"):
                    for compute in ("float32", "bfloat16"):
                        options = {"bits": bits, "act_order": order}
                        reached.add(lane(method, options, "vllm", hardware, compute).reason)
    assert {row.reason for row in TABLE["vllm"]} <= reached


def test_cpus_compute_in_float32_and_say_why() -> None:
    found = dtype("auto", checkpoint(), "vllm", AVX512)
    assert found.value == "float32"
    assert "ties" in found.reason


@pytest.mark.parametrize(
    ("stored", "capability", "expected"),
    [
        ("BF16", "9.0", "bfloat16"),
        ("BF16", "7.5", "float16"),
        ("F16", "9.0", "float16"),
        ("F32", "9.0", "bfloat16"),
        ("F32", "7.5", "float16"),
        ("F8_E4M3", "9.0", "bfloat16"),
        ("F8_E4M3", "7.5", "float16"),
    ],
)
def test_gpus_compute_in_the_checkpoints_own_dtype(
    stored: str, capability: str, expected: str
) -> None:
    made = checkpoint().model_copy(update={"dtype": stored})
    found = dtype("auto", made, "vllm", cuda(capability))
    assert (found.value, bool(found.reason)) == (expected, True)


def test_a_requested_dtype_is_kept() -> None:
    found = dtype("float16", checkpoint(), "vllm", AVX2)
    assert (found.value, found.reason) == ("float16", "the recipe says so")


def test_support_is_pure() -> None:
    tree = ast.parse(Path(support.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names]
        )
    }
    assert imported <= {"__future__", "collections", "dataclasses", "typing", "workbench"}
