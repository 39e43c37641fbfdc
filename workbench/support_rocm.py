"""What vLLM runs on AMD GPUs under ROCm. Pure; rows of `workbench.support`'s table.

None of it was run by this project. vLLM's documentation and its sources disagree on 4-bit weights:
the table of supported hardware says no, the ROCm platform lists kernels. Until somebody measures
it, the answer is the cautious one, and says so.
"""

from __future__ import annotations

from workbench.support_rows import GGUF_ROWS, Row

_DOCS = "vLLM documentation, supported hardware: AMD GPU"
_WEIGHT_ONLY = (
    "vLLM's table of supported hardware says no for AMD GPUs; its ROCm platform lists a Triton "
    "W4A16 kernel (TritonW4A16LinearKernel) that nobody tried here"
)


def _no(method: str, reason: str) -> Row:
    return Row(method, "rocm", "emulated", reason, f"{_DOCS}; vLLM 0.32 sources")


ROCM_ROWS: tuple[Row, ...] = (
    Row("none", "rocm", "native", "an unquantized checkpoint needs no special kernel", _DOCS),
    Row(
        "fp8",
        "rocm",
        "native",
        "CDNA 3 multiplies FP8 by FP8; vLLM rewrites E4M3 weights to the E4M3 FNUZ it takes",
        f"{_DOCS}; vLLM 0.32 sources: RocmPlatform.supports_fp8, is_fp8_fnuz",
    ),
    _no(
        "int8",
        "vLLM's table of supported hardware says no for AMD GPUs; its sources list a Triton INT8 "
        "kernel (TritonInt8ScaledMMLinearKernel) that nobody tried here",
    ),
    *(_no(m, _WEIGHT_ONLY) for m in ("gptq", "awq", "gptqmodel", "auto-gptq", "autoawq")),
    _no("nf4", "bitsandbytes is not among the methods of vLLM's ROCm platform"),
    *GGUF_ROWS,
)
