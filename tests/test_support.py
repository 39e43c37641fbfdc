"""Which lane each format gets: every row of the table, and nothing native by default."""

import ast
import itertools
from pathlib import Path

import pytest
from builders import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from workbench import support
from workbench.records import Gpu, Hardware
from workbench.support import TABLE, dtype, lane
from workbench.support_rows import KV_ROWS
from workbench.variants import AwqSpec, Fp8Spec, GptqSpec, Int8Spec, Nf4Spec, NoneSpec

GIB = 1 << 30
AVX2 = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=24 * GIB)
AVX512 = AVX2.model_copy(update={"isa": ("avx2", "avx512_vnni", "avx512f")})
AMX = AVX2.model_copy(update={"isa": ("amx_bf16", "amx_tile", "avx2", "avx512f")})
ARM = AVX2.model_copy(update={"cpu": "Neoverse-V2", "isa": ("neon", "sve")})
OTHER = AVX2.model_copy(update={"cpu": "POWER9", "isa": ()})


def cuda(*capabilities: str) -> Hardware:
    gpus = tuple(
        Gpu(name="GPU", compute_capability=c, memory_bytes=80 * GIB, driver="1")
        for c in capabilities
    )
    return AVX512.model_copy(update={"gpus": gpus})


W4, W8 = {"bits": 4, "act_order": "static"}, {"bits": 8, "act_order": "static"}
A4, A8 = {"bits": 4, "zero_point": True}, {"bits": 8, "zero_point": True}
KV = {"kv_cache": "fp8"}


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
        ("fp8", {"scheme": "static"}, AVX512, None, "emulated"),
        ("fp8", {"scheme": "static"}, AVX2, None, "emulated"),
        ("fp8", {"scheme": "static"}, cuda("9.0"), None, "native"),
        ("fp8", {"scheme": "static"}, AMX, None, "emulated"),
        ("fp8", {"scheme": "block"}, AVX512, None, "emulated"),
        ("fp8", {"scheme": "block"}, AMX, None, "weight-only fallback"),
        ("fp8", {"scheme": "block"}, cuda("9.0"), None, "native"),
        ("fp8", {"scheme": "dynamic"}, AMX, None, "native"),
        ("awq", A4, AVX2, None, "emulated"),
        ("awq", A4, AVX2, "bfloat16", "emulated"),
        ("awq", A4, AVX512, None, "emulated"),
        ("awq", A4, AVX512, "bfloat16", "native"),
        ("awq", A8, AVX512, "bfloat16", "emulated"),
        ("awq", A4, ARM, None, "emulated"),
        ("awq", A4, cuda("7.5"), "float16", "native"),
        ("awq", A4, cuda("8.0"), "float32", "emulated"),
        ("awq", A4, cuda("7.0"), None, "unsupported"),
        ("awq", A8, cuda("8.0"), None, "native"),
        ("awq", A8, cuda("7.0"), None, "unsupported"),
        ("awq", A8 | {"zero_point": False}, cuda("8.0"), None, "native"),
        ("int8", {}, AVX2, None, "native"),
        ("int8", {}, AVX512, "bfloat16", "native"),
        ("int8", {}, ARM, None, "native"),
        ("int8", {}, cuda("7.5"), None, "native"),
        ("int8", {}, cuda("9.0"), None, "native"),
        ("int8", {}, cuda("10.0"), None, "emulated"),
        ("int8", {}, cuda("7.0"), None, "unsupported"),
        ("nf4", {}, AVX512, None, "emulated"),
        ("nf4", {}, ARM, None, "emulated"),
        ("nf4", {}, cuda("9.0"), None, "emulated"),
        ("nf4", {}, OTHER, None, "unsupported"),
        # An FP8 KV cache: what has nothing else is not measured on a twin of nothing.
        ("none", KV, AVX2, None, "unsupported"),
        ("none", KV, ARM, None, "unsupported"),
        ("none", KV, cuda("8.9"), None, "native"),
        ("none", KV, cuda("8.0"), None, "unsupported"),
        ("fp8", KV, AVX2, None, "emulated"),
        ("fp8", KV, cuda("9.0"), None, "native"),
        ("fp8", KV, cuda("8.0"), None, "emulated"),
        ("fp8", KV, cuda("7.0"), None, "unsupported"),
        ("int8", KV, ARM, None, "emulated"),
        ("gptq", W4 | KV, cuda("9.0"), None, "native"),
        ("gptq", W4 | KV, AVX2, "bfloat16", "emulated"),
        ("fp8", {"kv_cache": "auto"}, AVX2, None, "native"),
        ("fake", {}, AVX2, None, "unsupported"),
    ],
)
def test_vllm_lanes(
    method: str, options: dict[str, object], hardware: Hardware, compute: str | None, expected: str
) -> None:
    found = lane(method, options, "vllm", hardware, compute)
    assert found.name == expected
    assert found.reason and found.source


@pytest.mark.parametrize("method", ["none", "fake", "fp8", "gptq", "awq", "int8", "nf4"])
@pytest.mark.parametrize("hardware", [AVX2, ARM, OTHER, cuda("9.0")])
def test_the_fake_engine_runs_everything_everywhere(method: str, hardware: Hardware) -> None:
    assert lane(method, {}, "fake", hardware).name == "native"


def test_the_options_of_the_specs_are_the_ones_the_table_asks_for() -> None:
    # A renamed field would make every row that names it fall through.
    classes = (NoneSpec, Fp8Spec, GptqSpec, AwqSpec, Int8Spec, Nf4Spec)
    for spec in (cls(name="a") for cls in classes):
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
    gpus = (cuda(c) for c in ("7.0", "7.5", "8.0", "9.0", "10.0"))
    hardware = (AVX2, AVX512, AMX, ARM, *gpus)
    methods = ("none", "fp8", "gptq", "awq", "int8", "nf4")
    values = {
        "bits": (4, 8),
        "act_order": ("static", "group"),
        "scheme": ("dynamic", "static", "block"),
        "zero_point": (True, False),
    }
    reached, cached = set(), set()
    for *options, machine, method, compute in itertools.product(
        *values.values(), hardware, methods, ("float32", "bfloat16")
    ):
        named = dict(zip(values, options, strict=True))
        reached.add(lane(method, named, "vllm", machine, compute).reason)
        cached.add(lane(method, named | KV, "vllm", machine, compute).reason)
    assert {row.reason for row in TABLE["vllm"] if row.method in methods} <= reached
    refused = {row.reason for row in KV_ROWS if row.lane != "native"}
    assert refused <= cached
    assert not any(reason in known for reason in refused for known in reached)


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
