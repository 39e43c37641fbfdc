"""The weights of GPTQ and AWQ checkpoints as plain float32: unpacked here, without the tools.

Both pack codes of 4 (GPTQ also 8) bits into words of 32. A weight is ``(code - zero) * scale``.

- *gptq*: ``qweight`` [inputs / n, outputs] with n codes of consecutive inputs in a word, lowest
  bits first; ``qzeros`` [groups, outputs / n]; ``scales`` [groups, outputs]; ``g_idx`` [inputs] is
  the group of each input. ``checkpoint_format`` "gptq" stores zero points minus one, "gptq_v2" as
  they are (GPTQModel, utils/model.py: convert_gptq_v1_to_v2_format_module).
- *awq*, version "gemm": ``qweight`` [inputs, outputs / 8] with the codes of outputs
  0 2 4 6 1 3 5 7 in a word, lowest bits first; ``qzeros`` [groups, outputs / 8] the same way, as
  they are; ``scales`` [groups, outputs]; consecutive inputs share a group (AutoAWQ,
  modules/linear/gemm.py: WQLinear_GEMM.from_linear).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from _job import fail

#: Where the outputs 0 to 7 of an AWQ word are in it, counted in codes from the lowest bits.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_AGAIN = "quantize the variant again"


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes in int32 words along a new last dimension, lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


def gptq_weight(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor,
    bits: int,
    minus_one: bool,
) -> torch.Tensor:
    """A GPTQ layer's weight, [outputs, inputs] float32.

    Args:
        qweight: int32 [inputs / n, outputs], n = 32 / bits.
        qzeros: int32 [groups, outputs / n].
        scales: [groups, outputs].
        g_idx: group of each input, [inputs].
        bits: 4 or 8.
        minus_one: zero points are stored minus one. The one is added to the whole word: where a
            zero point of 0 has borrowed from its neighbour, the carry gives it back.
    """
    codes = unpack(qweight, bits).permute(0, 2, 1).reshape(-1, qweight.shape[1])
    if minus_one:
        ones = sum(1 << shift for shift in range(0, 32, bits))
        qzeros = (qzeros.to(torch.int64) + ones).to(torch.int32)
    zeros = unpack(qzeros, bits).reshape(qzeros.shape[0], -1)
    group = g_idx.long()
    return ((codes - zeros[group]).float() * scales.float()[group]).T.contiguous()


def awq_weight(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A 4-bit AWQ layer's weight, [outputs, inputs] float32.

    Args:
        qweight: int32 [inputs, outputs / 8].
        qzeros: int32 [groups, outputs / 8].
        scales: [groups, outputs].
    """
    places = torch.tensor(_AWQ_PLACES)
    codes = unpack(qweight, 4)[..., places].reshape(qweight.shape[0], -1)
    zeros = unpack(qzeros, 4)[..., places].reshape(qzeros.shape[0], -1)
    group = torch.arange(qweight.shape[0]) // (qweight.shape[0] // scales.shape[0])
    return ((codes - zeros[group]).float() * scales.float()[group]).T.contiguous()


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Config of the quantization, every tensor, and the names of the quantized layers."""
    from safetensors import safe_open

    config = json.loads((source / "config.json").read_text("utf-8"))["quantization_config"]
    every: dict[str, Any] = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as shard:
            every.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118
    layers = sorted(name.removesuffix(".qweight") for name in every if name.endswith(".qweight"))
    return config, every, layers


def _take(every: dict[str, Any], layer: str, source: Path) -> dict[str, Any]:
    """Take a layer's packed parts out of the tensors; `g_idx` may be missing."""
    parts = {part: every.pop(f"{layer}.{part}", None) for part in _PARTS}
    missing = [part for part in _PARTS[:3] if parts[part] is None]
    if missing:
        fail(f"layer '{layer}' has no {' and no '.join(missing)}", str(source), _AGAIN)
    if any(parts[part].dtype != torch.int32 for part in _PARTS[:2]):
        fail(f"layer '{layer}' is packed in other words than int32", str(source), _AGAIN)
    return parts


def gptq(source: Path) -> tuple[dict[str, Any], int]:
    """The tensors of a GPTQ checkpoint with its layers dequantized, and how many those are."""
    config, every, layers = _read(source)
    bits = int(config["bits"])
    layout = config.get("checkpoint_format") or "gptq"
    if bits not in (4, 8) or layout not in ("gptq", "gptq_v2"):
        fail(
            f"GPTQ codes of {bits} bits in the layout '{layout}' are not read",
            str(source / "config.json"),
            "4 and 8 bits in the layouts gptq and gptq_v2 are",
        )
    for layer in layers:
        parts = _take(every, layer, source)
        inputs = parts["qweight"].shape[0] * 32 // bits
        groups = parts["scales"].shape[0]
        g_idx = parts["g_idx"]
        if g_idx is None:
            g_idx = torch.arange(inputs) // (inputs // groups)
        if g_idx.shape[0] != inputs or not 0 <= int(g_idx.min()) <= int(g_idx.max()) < groups:
            fail(f"layer '{layer}' has inputs of no group", str(source), _AGAIN)
        every[f"{layer}.weight"] = gptq_weight(
            parts["qweight"], parts["qzeros"], parts["scales"], g_idx, bits, layout == "gptq"
        )
    return every, len(layers)


def awq(source: Path) -> tuple[dict[str, Any], int]:
    """The tensors of an AWQ checkpoint with its layers dequantized, and how many those are."""
    config, every, layers = _read(source)
    bits, version = int(config["bits"]), str(config.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        fail(
            f"AWQ codes of {bits} bits in the layout '{version}' are not read",
            str(source / "config.json"),
            "4 bits in the layout gemm are",
        )
    for layer in layers:
        parts = _take(every, layer, source)
        every[f"{layer}.weight"] = awq_weight(parts["qweight"], parts["qzeros"], parts["scales"])
    return every, len(layers)
