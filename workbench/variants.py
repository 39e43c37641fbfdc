"""What a variant can be: one class a method, each with the options that method has. Pure.

`method` tells them apart. A class says what its method needs from the rest of a recipe:
`calibrates` is true where it reads the sealed calibration set.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from workbench.base import Name, Spec, Unfit

# fmt: off
GgufType = Literal[
    "source", "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q3_K_M", "Q2_K",
    "IQ4_XS",
]
# fmt: on
#: The type of `baseline-gguf`, which no recipe names.
GGUF_INTERNAL = "source"
#: GGUF types that keep 8 bits or more: an importance matrix changes nothing worth having in them.
GGUF_PLAIN = ("source", "F32", "F16", "BF16", "Q8_0")


#: Names of classes every linear layer has, which llm-compressor takes in `ignore`, too.
_CLASSES = ("Linear", "Module")


def _group_size(value: int) -> int:
    if value != -1 and value < 8:
        raise Unfit("group_size is -1 (per channel) or at least 8", "32, 64 and 128 are usual")
    return value


def _layer_names(value: tuple[str, ...]) -> tuple[str, ...]:
    for entry in value:
        if entry in _CLASSES:
            raise Unfit(
                f"'{entry}' is a class of layers, and llm-compressor would leave all of them alone",
                "name single layers, such as lm_head or 're:.*down_proj'",
            )
        if not entry.removeprefix("re:"):
            raise Unfit(
                "an entry is the name of a layer, or 're:' and a pattern",
                "such as lm_head, or 're:.*down_proj'",
            )
        try:
            re.compile(entry.removeprefix("re:") if entry.startswith("re:") else "")
        except (re.error, OverflowError, RecursionError) as error:
            raise Unfit(
                f"'{entry}' is no regular expression: {error}", "such as 're:.*down_proj'"
            ) from None
    return value


Ignore = Annotated[tuple[str, ...], AfterValidator(_layer_names)]


class RepeatSpec(Spec):
    """Make a variant again with other calibration seeds, to see how much the sample decides."""

    seeds: int = Field(3, ge=2, le=10, description="how many seeds in all, the recipe's own first")


class VariantSpec(Spec):
    """What every variant has, whatever its method."""

    name: Name
    serve_as: Literal["auto", "twin"] = Field(
        "auto",
        description="'twin' forces the dequantized twin (emulated lane) even where a kernel exists",
    )

    repeat: RepeatSpec | None = None

    @property
    def calibrates(self) -> bool:
        """Whether making it reads the calibration set."""
        return False

    @property
    def may_calibrate(self) -> bool:
        """Whether it reads a calibration set where the recipe has one."""
        return self.calibrates

    @model_validator(mode="after")
    def _repeats_what_is_calibrated(self) -> Self:
        if self.repeat and not self.may_calibrate:
            raise Unfit(
                f"'repeat' makes variant '{self.name}' again with other calibration seeds, and it "
                "does not read the calibration set",
                "remove 'repeat'",
            )
        return self


class KvCacheSpec(VariantSpec):
    """A variant whose tool can also calibrate the scales of an 8-bit KV cache."""

    kv_cache: Literal["auto", "fp8"] = Field(
        "auto", description="'fp8': calibrate scales for an FP8 KV cache, and serve with it"
    )

    @property
    def calibrates(self) -> bool:
        """FP8 scales of a KV cache come from the calibration set."""
        return self.kv_cache == "fp8"


class NoneSpec(KvCacheSpec):
    """The weights as they are: the baseline, or a variant with an FP8 KV cache alone."""

    method: Literal["none"] = "none"


class Fp8Spec(KvCacheSpec):
    """FP8 W8A8 (E4M3).

    ``dynamic``: per-channel weights, activations scaled per token as they come (data-free);
    ``static``: one scale per tensor for weights and activations, calibrated;
    ``block``: weights in blocks of 128 x 128, activations in groups of 128 (data-free).
    """

    method: Literal["fp8"] = "fp8"
    scheme: Literal["dynamic", "static", "block"] = "dynamic"
    ignore: Ignore = ("lm_head",)

    @property
    def calibrates(self) -> bool:
        """Only static scales of activations are calibrated."""
        return self.scheme == "static" or self.kv_cache == "fp8"


class CalibratedSpec(KvCacheSpec):
    """A method that never works without data."""

    @property
    def calibrates(self) -> bool:
        """Always."""
        return True


class GptqSpec(CalibratedSpec):
    """GPTQ weight-only quantization (W4A16 or W8A16), by llm-compressor."""

    method: Literal["gptq"] = "gptq"
    bits: Literal[4, 8] = 4
    group_size: int = Field(128, ge=-1, description="-1 is one scale per output channel")
    symmetric: bool = True
    act_order: Literal["none", "static", "group"] = "static"
    dampening: float = Field(0.01, gt=0, lt=1)
    ignore: Ignore = ("lm_head",)

    _groups = field_validator("group_size")(_group_size)


class AwqSpec(CalibratedSpec):
    """AWQ weight-only quantization (W4A16 or W8A16), by llm-compressor."""

    method: Literal["awq"] = "awq"
    bits: Literal[4, 8] = 4
    group_size: int = Field(128, ge=-1, description="-1 is one scale per output channel")
    zero_point: bool = Field(True, description="asymmetric, as AWQ was published")
    grid_size: int = Field(20, ge=1, le=100, description="scales tried for each layer")
    mappings: str | None = Field(
        None, description="architecture whose layer mappings to use; default: the checkpoint's own"
    )
    ignore: Ignore = ("lm_head",)

    _groups = field_validator("group_size")(_group_size)


class Int8Spec(CalibratedSpec):
    """INT8 W8A8: GPTQ weights per channel, activations per token as they come, SmoothQuant."""

    method: Literal["int8"] = "int8"
    smoothing: float = Field(
        0.8, ge=0, lt=1, description="SmoothQuant's migration strength; 0 leaves it out"
    )
    dampening: float = Field(0.01, gt=0, lt=1)
    ignore: Ignore = ("lm_head",)


class Nf4Spec(VariantSpec):
    """NF4 weight-only (bitsandbytes): 4-bit NormalFloat in blocks of 64 (data-free)."""

    method: Literal["nf4"] = "nf4"
    double_quant: bool = Field(True, description="quantize the blocks' scales too")
    compute_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    ignore: Ignore = ("lm_head",)


class GgufSpec(VariantSpec):
    """A GGUF file, made by llama.cpp and served by it."""

    method: Literal["gguf"] = "gguf"
    type: GgufType = Field("Q4_K_M", description="'source' keeps the checkpoint's own dtype")
    imatrix: bool = Field(
        True, description="weigh errors by an importance matrix of the calibration set"
    )
    serve_as: Literal["auto"] = Field("auto", description="llama.cpp runs every GGUF as it is")

    @property
    def calibrates(self) -> bool:
        """An importance matrix is made of the calibration set."""
        return self.imatrix and self.type not in GGUF_PLAIN


class GptqModelSpec(CalibratedSpec):
    """The GPTQ format, by GPTQModel, its maintained producer."""

    method: Literal["gptqmodel"] = "gptqmodel"
    bits: Literal[4, 8] = 4
    group_size: int = Field(128, ge=-1)
    symmetric: bool = True
    act_order: bool = False
    dampening: float = Field(0.05, gt=0, lt=1)

    _groups = field_validator("group_size")(_group_size)


class AutoGptqSpec(CalibratedSpec):
    """The GPTQ format, by AutoGPTQ (ended in 2024; needs CUDA): for teams with a history in it."""

    method: Literal["auto-gptq"] = "auto-gptq"
    bits: Literal[4, 8] = 4
    group_size: int = Field(128, ge=-1)
    symmetric: bool = True
    act_order: bool = False
    dampening: float = Field(0.01, gt=0, lt=1)

    _groups = field_validator("group_size")(_group_size)


class AutoAwqSpec(CalibratedSpec):
    """The AWQ format, by AutoAWQ (deprecated): for teams with a history in it."""

    method: Literal["autoawq"] = "autoawq"
    bits: Literal[4] = 4
    group_size: int = Field(128, ge=-1)
    zero_point: bool = True

    _groups = field_validator("group_size")(_group_size)


class FakeSpec(VariantSpec):
    """A quantizer that only copies: the whole workbench in seconds, without torch."""

    method: Literal["fake"] = "fake"
    damage: float = Field(
        0.0, ge=0, le=1, description="share of samples answered wrongly on purpose"
    )
    seconds: float = Field(0.0, ge=0, le=600, description="how long the fake pretends to work")
    fail: Literal["", "signal", "oom", "no_result", "error"] = ""

    @property
    def may_calibrate(self) -> bool:
        """It pretends to, in a recipe that has a calibration section."""
        return True


AnyVariant = Annotated[
    NoneSpec
    | Fp8Spec
    | GptqSpec
    | AwqSpec
    | Int8Spec
    | Nf4Spec
    | GgufSpec
    | GptqModelSpec
    | AutoGptqSpec
    | AutoAwqSpec
    | FakeSpec,
    Field(discriminator="method"),
]

#: Every class, and every method, for messages and tests.
VARIANTS: tuple[type[VariantSpec], ...] = get_args(get_args(AnyVariant)[0])
METHODS = tuple(str(cls.model_fields["method"].default) for cls in VARIANTS)
