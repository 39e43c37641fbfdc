"""A checkpoint in each format: how large it is then, and how the support matrix calls it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.artifact_gguf import TYPES
from workbench.checkpoint import is_linear
from workbench.errors import RecipeError, did_you_mean
from workbench.quantconfig import Scheme, parse
from workbench.weights import Model, gguf_bytes, scheme_bytes

#: The name of what is quantized already.
AS_IT_IS = "as it is"
_CT = "compressed-tensors"
_W4 = Scheme(_CT, "int", 4, "group", 128)
#: --format -> method, options that decide the lane, scheme of the linear layers
FORMATS: Mapping[str, tuple[str, dict[str, Any], Scheme | None]] = {
    "bf16": ("none", {}, None),
    "fp8": ("fp8", {"scheme": "dynamic"}, Scheme(_CT, "float", 8, "channel")),
    "int8": ("int8", {}, Scheme(_CT, "int", 8, "channel")),
    "gptq": ("gptq", {"bits": 4, "symmetric": True, "act_order": "static"}, _W4),
    "awq": ("awq", {"bits": 4, "zero_point": True}, replace(_W4, symmetric=False)),
    "nf4": (
        "nf4",
        {"double_quant": True},
        Scheme("bitsandbytes", "nf", 4, "group", 64, double=True),
    ),
}
#: GGUF types that are shown where none is asked for; every type of `TYPES` can be.
_GGUF = ("q8_0", "q4_k_m")
_GROUPS = (128, 64, 32)


@dataclass(frozen=True)
class Form:
    """A checkpoint in one format.

    Attributes:
        label: for tables.
        method: as a recipe spells it.
        options: those that decide the lane.
        weight_bytes: as an engine loads it, all GPUs together.
        group: weights along a row that share a scale; 1: no groups.
        engine: who runs it.
        doubt: why its ``quantization_config`` cannot be read; empty: it can.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    weight_bytes: int
    group: int = 1
    doubt: str = ""

    @property
    def engine(self) -> str:
        """llama.cpp runs GGUF files and nothing else."""
        return "llamacpp" if self.method == "gguf" else "vllm"


def asked(model: Model, formats: Sequence[str]) -> tuple[str, ...]:
    """Names of the formats to answer for.

    Args:
        model: the checkpoint.
        formats: as the user named them; none: the usual ones.

    Raises:
        RecipeError: a name is unknown, or the checkpoint is quantized already.
    """
    known = list(dict.fromkeys([*FORMATS, *(kind.lower() for kind in TYPES)]))
    for name in formats:
        if name not in known:
            raise RecipeError(
                f"there is no format '{name}'",
                where="--format",
                fix=f"{did_you_mean(name, known)}formats: {', '.join(known)}",
            )
    if model.gguf or model.quantization is not None:
        if formats:
            raise RecipeError(
                "the checkpoint is quantized already, so it has no other format",
                where="--format",
                fix="leave it out, or name the original checkpoint",
            )
        return (AS_IT_IS,)
    return tuple(dict.fromkeys(formats)) or (*FORMATS, *_GGUF)


def form(model: Model, name: str) -> Form | str:
    """The checkpoint in a format of `asked`, or why it cannot have it."""
    if name == AS_IT_IS:
        if model.gguf:
            return Form(f"as it is ({model.dtype})", "gguf", {}, model.stored_bytes)
        method, options, doubt = _own(model.quantization or {})
        label = f"as it is ({method[:20]})"
        return Form(label, method, options, model.stored_bytes, doubt=doubt)
    if name not in FORMATS:
        return Form(name, "gguf", {}, gguf_bytes(model.tensors, name.upper(), tied=model.tied))
    method, options, scheme = FORMATS[name]
    label, group = name, 1
    if scheme is not None and scheme.strategy == "group" and scheme.kind == "int":
        widths = {t.shape[1] for n, t in model.tensors.items() if is_linear(n, t.shape)}
        fit = [size for size in _GROUPS if all(width % size == 0 for width in widths)]
        if not fit:
            return f"no group of {', '.join(map(str, _GROUPS))} weights divides every layer"
        group = fit[0]
        scheme, label = replace(scheme, group=group), f"{name} w4 g{group}"
    size = scheme_bytes(model.tensors, scheme, tied=model.tied, half=True)
    return Form(label, method, options, size, group)


def _own(quantization: Mapping[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Method and options of a checkpoint that is quantized already, as the matrix knows them.

    The third is why its config cannot be read; empty where it can.
    """
    try:
        schemes = parse(quantization).schemes
    except ValueError as error:
        # DeepSeek's 'fp8' is a name the matrix has, others are not.
        return str(quantization.get("quant_method", "unnamed")), {}, str(error)
    return (*_known(schemes[0][1]), "") if schemes else ("none", {}, "")


def _known(scheme: Scheme) -> tuple[str, dict[str, Any]]:
    """Method and options of a scheme, as the matrix knows them."""
    grouped = {"bits": scheme.bits, "group_size": scheme.group or -1}
    if scheme.tool != _CT:
        return {"bitsandbytes": "nf4", "gptq": "gptqmodel", "awq": "autoawq"}[scheme.tool], grouped
    if (scheme.kind, scheme.bits) == ("float", 8):
        return "fp8", {"scheme": "dynamic"}
    if scheme.kind != "int":
        return f"{scheme.kind}{scheme.bits}", {}
    return ("int8", {}) if scheme.activations else ("gptq", grouped)
