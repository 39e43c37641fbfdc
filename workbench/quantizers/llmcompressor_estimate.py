"""How long llm-compressor takes and how much memory it needs: measured once, then in proportion.

Timings: SmolLM2-135M (30 layers) on 2 cores without a GPU; see `workbench plan`.
"""

from __future__ import annotations

from workbench.records import Checkpoint, Hardware
from workbench.spec import CalibrationSpec
from workbench.variants import AwqSpec, Fp8Spec, GptqSpec, Int8Spec, NoneSpec

AnySpec = NoneSpec | Fp8Spec | GptqSpec | AwqSpec | Int8Spec

#: Imports and loading.
_START_SECONDS = 12.0
_REFERENCE_PARAMETERS = 135e6
_REFERENCE_CORES = 2
#: More cores than this do not make the work faster; a guess, not measured.
_USEFUL_CORES = 16
#: A GPU against two CPU cores; only an order of magnitude.
_GPU_SPEEDUP = 30.0
_PYTHON_BYTES = 900 << 20

#: FP8's scales and saving: 3 s.
_CAST_SECONDS = 3.0
#: One pass over a calibration token with hooks, and one without.
_PASS_SECONDS_PER_TOKEN = 0.006
# GPTQ: 51 s with 8 samples of 128 tokens and 99 s with 32 of ~150.
_GPTQ_SECONDS = 36.0
_GPTQ_SECONDS_PER_TOKEN = 48.0 / (32 * 150 - 8 * 128)
# AWQ: 52 s with 8 samples of 128 tokens and 5 grid points, 564 s with 32 of ~150 and 20. Each grid
# point quantizes every layer once and runs the samples through it.
_AWQ_SECONDS = 20.0
_AWQ_SECONDS_PER_POINT = 1.0
_AWQ_SECONDS_PER_POINT_TOKEN = 0.0055


def estimate(
    variant: AnySpec,
    checkpoint: Checkpoint,
    calibration: CalibrationSpec | None,
    hardware: Hardware,
) -> tuple[float, int]:
    """Seconds and bytes, in proportion to parameters, calibration tokens, grid and cores."""
    cores = max(1, min(hardware.cores, _USEFUL_CORES))
    scale = checkpoint.parameters / _REFERENCE_PARAMETERS
    scale *= 1 / _GPU_SPEEDUP if hardware.gpus else _REFERENCE_CORES / cores
    # The bf16 weights, and once more while they are saved.
    memory = _PYTHON_BYTES + 2 * checkpoint.weight_bytes
    tokens = 0
    if calibration and variant.calibrates:
        tokens = calibration.samples * calibration.max_tokens
    # One layer's hidden states for every token, in and out, float32.
    memory += 2 * 4 * tokens * checkpoint.hidden_size
    work = _CAST_SECONDS + _PASS_SECONDS_PER_TOKEN * tokens
    widest = max(checkpoint.linear_input_widths, default=checkpoint.hidden_size)
    if isinstance(variant, GptqSpec | Int8Spec):
        work = _GPTQ_SECONDS + _GPTQ_SECONDS_PER_TOKEN * tokens
        # The Hessians of one layer, at most seven of the widest input.
        memory += 7 * 4 * widest * widest
    elif isinstance(variant, AwqSpec):
        per_point = _AWQ_SECONDS_PER_POINT + _AWQ_SECONDS_PER_POINT_TOKEN * tokens
        work = _AWQ_SECONDS + variant.grid_size * per_point
        # What goes into a layer and comes out of it unquantized is kept beside the hidden states.
        memory += 3 * 2 * tokens * widest
    return _START_SECONDS + work * scale, memory
