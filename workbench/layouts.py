"""Which tensors a quantized layer is made of, and whether they fit the source's weight.

One function a layout, from the format's own definition:

- compressed-tensors: ``weight`` (FP8, INT8) or ``weight_packed`` (dense 32-bit words along the
  inputs), ``weight_scale``, ``weight_zero_point``, ``weight_shape``, ``weight_g_idx``
  (compressed_tensors.compressors of 0.19);
- bitsandbytes: ``weight`` of two codes a byte, ``weight.absmax``, ``weight.quant_map``, and
  ``weight.quant_state.bitsandbytes__nf4``, JSON in bytes (QuantState.as_dict of 0.50);
- GPTQ: ``qweight`` [inputs x bits / 32, outputs], ``qzeros``, ``scales`` [groups, outputs],
  ``g_idx``; AWQ: ``qweight`` [inputs, outputs x bits / 32] and the same others.

Shapes come from headers. Only what is small and must be known is read: shapes, states.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench import tensors
from workbench.quantconfig import NF4_BLOCK, NF4_NESTED_BLOCK, Scheme
from workbench.safetensors_header import Tensor

Shape = tuple[int, ...]


@dataclass
class Layer:
    """A quantized linear layer as it is stored.

    Attributes:
        name: of the module.
        scheme: as its tensors show, where they can, and as the config says otherwise.
        parts: names of the tensors it is made of.
        scales: those of them that are scales.
        codes: those that hold the weights.
        problems: what does not fit.
    """

    name: str
    scheme: Scheme
    inputs: int
    outputs: int
    parts: list[str] = field(default_factory=list)
    scales: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        """Weights it stands for."""
        return self.inputs * self.outputs

    def expect(
        self,
        made: Mapping[str, Tensor],
        part: str,
        shapes: list[Shape],
        dtypes: tuple[str, ...],
        role: str = "",
    ) -> Tensor | None:
        """Take a tensor into the layer; note it as a problem where it is missing or does not fit.

        Args:
            made: every tensor of the artifact.
            part: name below the module's.
            shapes: any of these fits.
            dtypes: any of these fits.
            role: ``scale``, ``code`` or neither.
        """
        name = f"{self.name}.{part}"
        tensor = made.get(name)
        if tensor is None:
            self.problems.append(f"'{name}' is missing")
            return None
        self.parts.append(name)
        if role:
            (self.scales if role == "scale" else self.codes).append(name)
        if tensor.shape not in shapes:
            fits = " or ".join(str(list(s)) for s in shapes)
            self.problems.append(f"'{name}' is {list(tensor.shape)} where {fits} fits")
        elif tensor.dtype not in dtypes:
            self.problems.append(f"'{name}' is {tensor.dtype} where {', '.join(dtypes)} fits")
        return tensor

    def optional(self, made: Mapping[str, Tensor], part: str, role: str = "") -> None:
        """Take a tensor into the layer where it is there."""
        name = f"{self.name}.{part}"
        if name in made:
            self.parts.append(name)
            if role:
                self.scales.append(name)


_REAL = ("BF16", "F16", "F32")


def is_quantized(module: str, made: Mapping[str, Tensor]) -> bool:
    """Whether a module's weight is stored in a quantized layout."""
    weight = made.get(f"{module}.weight")
    if weight is not None:
        return weight.dtype not in (*_REAL, "F64")
    return f"{module}.weight_packed" in made or f"{module}.qweight" in made


def read_layer(module: str, shape: Shape, made: Mapping[str, Tensor], scheme: Scheme) -> Layer:
    """Collect and check the tensors of one quantized layer.

    Args:
        module: its name.
        shape: of the source's weight, [outputs, inputs].
        made: every tensor of the artifact.
        scheme: what the config says about it.
    """
    outputs, inputs = shape
    layer = Layer(module, scheme, inputs, outputs)
    if scheme.tool == "bitsandbytes":
        _nf4(layer, made)
    elif scheme.tool in ("gptq", "awq"):
        _original(layer, made)
    else:
        _compressed(layer, made)
    return layer


def _compressed(layer: Layer, made: Mapping[str, Tensor]) -> None:
    scheme, outputs, inputs = layer.scheme, layer.outputs, layer.inputs
    groups = {
        "group": math.ceil(inputs / (scheme.group or inputs)),
        "block": math.ceil(inputs / 128),
    }.get(scheme.strategy, 1)
    rows = {"tensor": 1, "block": math.ceil(outputs / 128)}.get(scheme.strategy, outputs)
    scale_shapes: list[Shape] = [(rows, groups)]
    if scheme.strategy == "tensor":
        scale_shapes += [(1,), ()]
    if scheme.strategy == "channel":
        scale_shapes.append((outputs,))
    packed = f"{layer.name}.weight_packed" in made
    if packed:
        words = math.ceil(inputs * scheme.bits / 32)
        layer.expect(made, "weight_packed", [(outputs, words)], ("I32",), "code")
        stored = layer.expect(made, "weight_shape", [(2,)], ("I64", "I32"))
        if stored is not None and stored.shape == (2,):
            says = [int(v) for v in tensors.stored(stored)]
            if says != [outputs, inputs]:
                layer.problems.append(
                    f"'{layer.name}.weight_shape' says {says}, the source is {[outputs, inputs]}"
                )
    else:
        kinds = ("F8_E4M3",) if scheme.kind == "float" else ("I8",)
        layer.expect(made, "weight", [(outputs, inputs)], kinds, "code")
    layer.expect(made, "weight_scale", scale_shapes, _REAL, "scale")
    zero = f"{layer.name}.weight_zero_point"
    if not scheme.symmetric:
        rows = math.ceil(outputs * scheme.bits / 32) if packed else outputs
        layer.expect(made, "weight_zero_point", [(rows, groups)], ("I32",) if packed else ("I8",))
    elif zero in made:
        layer.parts.append(zero)  # symmetric ones are zero and harmless
    if scheme.order == "group":
        layer.expect(made, "weight_g_idx", [(inputs,)], ("I32",))
    if scheme.activations and scheme.activations.endswith("static"):
        layer.expect(made, "input_scale", [(1,), (), (1, 1)], _REAL, "scale")
    else:
        layer.optional(made, "input_scale", "scale")
    for part in ("input_zero_point", "output_scale", "output_zero_point"):
        layer.optional(made, part)


def _nf4(layer: Layer, made: Mapping[str, Tensor]) -> None:
    count = layer.parameters
    layer.expect(made, "weight", [(math.ceil(count / 2), 1)], ("U8",), "code")
    blocks = math.ceil(count / NF4_BLOCK)
    double = layer.scheme.double
    # Quantized scales are codes; what scales those is `nested_absmax`.
    absmax = ("U8",) if double else ("F32",)
    layer.expect(made, "weight.absmax", [(blocks,)], absmax, "" if double else "scale")
    layer.expect(made, "weight.quant_map", [(16,)], ("F32",))
    if double:
        nested: list[Shape] = [(math.ceil(blocks / NF4_NESTED_BLOCK),)]
        layer.expect(made, "weight.nested_absmax", nested, ("F32",), "scale")
        layer.expect(made, "weight.nested_quant_map", [(256,)], ("F32",))
    name = f"{layer.name}.weight.quant_state.bitsandbytes__nf4"
    state = made.get(name)
    if state is None:
        layer.problems.append(f"'{name}' is missing: the type of the codes is not nf4")
        return
    layer.parts.append(name)
    says = json.loads(tensors.stored(state).tobytes())
    have = (says.get("quant_type"), says.get("blocksize"), list(says.get("shape") or ()))
    want = ("nf4", NF4_BLOCK, [layer.outputs, layer.inputs])
    if have != want:
        layer.problems.append(f"'{name}' says {have}, the source and the format {want}")
    if bool(says.get("nested_blocksize")) != double:
        layer.problems.append(f"'{name}' says otherwise than the config about double quantization")


def _original(layer: Layer, made: Mapping[str, Tensor]) -> None:
    scheme, inputs, outputs = layer.scheme, layer.inputs, layer.outputs
    per_word = 32 / scheme.bits
    groups = math.ceil(inputs / (scheme.group or inputs))
    packed_outputs = math.ceil(outputs / per_word)
    weight = (
        (math.ceil(inputs / per_word), outputs)
        if scheme.tool == "gptq"
        else (inputs, packed_outputs)
    )
    layer.expect(made, "qweight", [weight], ("I32",), "code")
    layer.expect(made, "scales", [(groups, outputs)], _REAL, "scale")
    layer.expect(made, "qzeros", [(groups, packed_outputs)], ("I32",))
    if scheme.tool == "gptq":
        layer.expect(made, "g_idx", [(inputs,)], ("I32",))
