"""Lanes of what GPTQModel, AutoGPTQ and AutoAWQ write: as vLLM 0.32 reads those formats."""

import itertools
from typing import Any

import pytest

from workbench.records import Gpu, Hardware
from workbench.support import ORIGINALS, lane
from workbench.support_original import ORIGINAL_ROWS
from workbench.variants import AutoAwqSpec, AutoGptqSpec, GptqModelSpec

AVX2 = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=24 << 30)
AVX512 = AVX2.model_copy(update={"isa": ("avx2", "avx512f")})
ARM = AVX2.model_copy(update={"cpu": "Neoverse-V2", "isa": ("neon", "sve")})


def cuda(capability: str) -> Hardware:
    gpu = Gpu(name="GPU", compute_capability=capability, memory_bytes=80 << 30, driver="1")
    return AVX512.model_copy(update={"gpus": (gpu,)})


GPTQ: dict[str, Any] = {"bits": 4, "group_size": 64, "symmetric": True, "act_order": False}
AWQ: dict[str, Any] = {"bits": 4, "group_size": 64, "zero_point": True}


@pytest.mark.parametrize(
    ("changed", "hardware", "compute", "expected"),
    [
        ({}, cuda("9.0"), None, "native"),
        ({}, cuda("7.5"), "float16", "native"),
        ({}, cuda("7.0"), None, "unsupported"),
        ({}, cuda("8.0"), "float32", "emulated"),
        ({"bits": 8}, cuda("8.0"), None, "native"),
        ({"group_size": -1}, cuda("8.0"), None, "native"),
        ({"group_size": 16}, cuda("8.0"), None, "emulated"),
        ({"symmetric": False}, cuda("9.0"), None, "emulated"),
        ({"act_order": True}, cuda("9.0"), None, "emulated"),
        ({"act_order": True, "group_size": -1}, cuda("9.0"), None, "native"),
        ({"act_order": True, "symmetric": False, "group_size": -1}, cuda("9.0"), None, "emulated"),
        ({}, AVX512, "bfloat16", "native"),
        ({}, AVX512, None, "emulated"),
        ({"bits": 8}, AVX512, "bfloat16", "emulated"),
        ({}, AVX2, "bfloat16", "emulated"),
        ({}, ARM, "bfloat16", "emulated"),
    ],
)
@pytest.mark.parametrize("method", ["gptqmodel", "auto-gptq"])
def test_gptq_lanes(
    method: str, changed: dict[str, Any], hardware: Hardware, compute: str | None, expected: str
) -> None:
    found = lane(method, GPTQ | changed, "vllm", hardware, compute)
    assert found.name == expected, found.reason


@pytest.mark.parametrize(
    ("changed", "hardware", "compute", "expected"),
    [
        ({}, cuda("9.0"), None, "native"),
        ({}, cuda("8.0"), "float32", "emulated"),
        ({"group_size": 16}, cuda("8.0"), None, "emulated"),
        ({}, AVX512, "float16", "native"),
        ({}, AVX512, None, "emulated"),
        ({}, AVX2, "bfloat16", "emulated"),
        ({}, ARM, None, "emulated"),
    ],
)
def test_awq_lanes(
    changed: dict[str, Any], hardware: Hardware, compute: str | None, expected: str
) -> None:
    found = lane("autoawq", AWQ | changed, "vllm", hardware, compute)
    assert found.name == expected, found.reason


def test_every_row_is_reached() -> None:
    values = {
        "bits": (4, 8),
        "group_size": (-1, 16, 32, 64, 128),
        "symmetric": (True, False),
        "act_order": (True, False),
    }
    machines = (AVX2, AVX512, ARM, cuda("7.0"), cuda("9.0"))
    computes = ("float32", "bfloat16")
    reached = set()
    for *options, machine, compute, method in itertools.product(
        *values.values(), machines, computes, ORIGINALS
    ):
        found = lane(method, dict(zip(values, options, strict=True)), "vllm", machine, compute)
        reached.add((method, found.reason))
    # AWQ has no 8-bit codes, but a table that was asked about them would still say so.
    assert {(row.method, row.reason) for row in ORIGINAL_ROWS} <= reached


def test_the_rows_ask_for_options_the_specs_have() -> None:
    for spec in (GptqModelSpec(name="a"), AutoGptqSpec(name="a"), AutoAwqSpec(name="a")):
        options = spec.model_dump(exclude={"name", "method", "serve_as"})
        asked = {k for row in ORIGINAL_ROWS if row.method == spec.method for k, _ in row.options}
        assert asked and asked <= set(options)
        assert lane(spec.method, options, "fake", AVX2).name == "native"
