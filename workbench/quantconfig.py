"""What a checkpoint's quantization config says, in one form for every tool, and what was asked.

`parse` reads the config as the serving engine will: the keys vLLM 0.32's `CompressedTensorsConfig`,
`AutoGPTQConfig` and `AutoAWQConfig` and transformers' `BitsAndBytesConfig` take. `asked` says what
a variant's spec must have led to; the difference of the two is a fault. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from workbench.variants import (
    AutoAwqSpec,
    AutoGptqSpec,
    AwqSpec,
    Fp8Spec,
    GptqModelSpec,
    GptqSpec,
    Int8Spec,
    Nf4Spec,
    VariantSpec,
)

#: bitsandbytes' block of weights that share a scale, and the block of scales under double
#: quantization (bitsandbytes.functional.quantize_4bit, quantize_blockwise).
NF4_BLOCK, NF4_NESTED_BLOCK = 64, 256


@dataclass(frozen=True)
class Scheme:
    """How a linear layer's weights, and its activations, are quantized.

    Attributes:
        tool: family of the layout: ``compressed-tensors``, ``bitsandbytes``, ``gptq``, ``awq``.
        kind: ``int``, ``float`` (E4M3) or ``nf``.
        bits: of one weight.
        strategy: what shares a scale: ``tensor``, ``channel``, ``group`` or ``block``.
        group: weights that share a scale along the input axis; None where they are no group.
        symmetric: no zero point.
        order: activation ordering: ``static``, ``group``, or None.
        activations: such as ``float8 token dynamic``; None: 16 bits.
        double: bitsandbytes: the scales are quantized too.
    """

    tool: str
    kind: str
    bits: int
    strategy: str
    group: int | None = None
    symmetric: bool = True
    order: str | None = None
    activations: str | None = None
    double: bool = False

    @property
    def name(self) -> str:
        """Short text for tables, such as ``int4 g64 sym``."""
        if self.kind == "nf":
            return f"nf{self.bits} b{self.group}{' dq' if self.double else ''}"
        kind = "float8_e4m3" if self.kind == "float" else f"int{self.bits}"
        shared = f"g{self.group}" if self.strategy == "group" else f"per {self.strategy}"
        sign = "" if self.kind == "float" else " sym" if self.symmetric else " asym"
        return f"{kind} {shared}{sign}"

    def bits_per_weight(self, inputs: int, outputs: int) -> float:
        """Nominal bits a weight takes with its scales (16 bits each) and zero points.

        Args:
            inputs: width of the layer.
            outputs: rows of the layer.
        """
        if self.kind == "nf":
            scale = 8 + 32 / NF4_NESTED_BLOCK if self.double else 32
            return self.bits + scale / (self.group or NF4_BLOCK)
        shared = {"tensor": inputs * outputs, "channel": inputs, "block": 128 * 128}.get(
            self.strategy, self.group or inputs
        )
        # The original GPTQ and AWQ layouts store zero points always, compressed-tensors where there
        # are any.
        zero = 0 if self.symmetric and self.tool == "compressed-tensors" else self.bits
        return self.bits + (16 + zero) / shared


@dataclass(frozen=True)
class Parsed:
    """A quantization config.

    Attributes:
        method: its ``quant_method``.
        schemes: (targets, scheme) of each group, in order.
        ignore: names and ``re:`` patterns of layers it leaves out.
        kv_cache: ``fp8`` where it describes one, else None.
        notes: what a reader should know, such as a hidden fallback.
    """

    method: str
    schemes: tuple[tuple[tuple[str, ...], Scheme], ...] = ()
    ignore: tuple[str, ...] = ()
    kv_cache: str | None = None
    notes: tuple[str, ...] = ()

    def of(self, layer: str) -> Scheme | None:
        """The scheme of a linear layer by its name; None where the config leaves it out."""
        if named(layer, self.ignore):
            return None
        for targets, scheme in self.schemes:
            if "Linear" in targets or named(layer, targets):
                return scheme
        return None


def named(layer: str, patterns: Iterable[str]) -> bool:
    """Whether a list of names and ``re:`` patterns covers a layer, as compressed-tensors reads it.

    bitsandbytes' and AWQ's lists hold parts of names instead; `parse` makes patterns of them.
    """
    return any(
        re.match(p.removeprefix("re:"), layer) is not None if p.startswith("re:") else p == layer
        for p in patterns
    )


def _part(names: Any) -> tuple[str, ...]:
    """Names that cover every layer below them, as patterns."""
    return tuple(rf"re:(.*\.)?{re.escape(str(n))}(\.|$)" for n in names or ())


def parse(config: Mapping[str, Any]) -> Parsed:
    """Read ``quantization_config`` of a config.json.

    Raises:
        ValueError: the engine would refuse it, or read something else out of it than a scheme.
    """
    method = config.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    if method == "bitsandbytes":
        return _bitsandbytes(config)
    if method in ("gptq", "awq"):
        return _original(config, str(method))
    if method == "fake":
        return Parsed("fake")
    if method is None:
        raise ValueError("it names no 'quant_method'")
    raise ValueError(f"quant_method is {method!r}, which no engine here reads")


def _need(mapping: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = mapping.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} has no usable '{key}' ({value!r})")
    return value


def _compressed_tensors(config: Mapping[str, Any]) -> Parsed:
    groups = config.get("config_groups")
    if not isinstance(groups, dict):
        raise ValueError("it has no 'config_groups'")
    schemes = []
    for name, group in groups.items():
        targets = tuple(map(str, _need(group, "targets", list, name)))
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue  # the KV cache's; vLLM reads kv_cache_scheme instead
        weights = _need(group, "weights", dict, name)
        where = f"{name}.weights"
        schemes.append(
            (
                targets,
                Scheme(
                    tool="compressed-tensors",
                    kind=_need(weights, "type", str, where),
                    bits=_need(weights, "num_bits", int, where),
                    strategy=_need(weights, "strategy", str, where),
                    group=weights.get("group_size") if weights["strategy"] == "group" else None,
                    symmetric=_need(weights, "symmetric", bool, where),
                    order=weights.get("actorder"),
                    activations=_activations(group.get("input_activations")),
                ),
            )
        )
    cache = config.get("kv_cache_scheme")
    kv_cache = None
    if cache:
        if (cache.get("num_bits"), cache.get("type"), cache.get("dynamic")) != (8, "float", False):
            raise ValueError(f"kv_cache_scheme is not a static FP8 one ({cache})")
        kv_cache = "fp8"
    if schemes and not isinstance(config.get("format"), str):
        raise ValueError("it has no 'format'")
    ignore = tuple(map(str, config.get("ignore") or ()))
    return Parsed("compressed-tensors", tuple(schemes), ignore, kv_cache)


def _activations(args: Any) -> str | None:
    if not args:
        return None
    how = "dynamic" if args.get("dynamic") else "static"
    return f"{args.get('type')}{args.get('num_bits')} {args.get('strategy')} {how}"


def _bitsandbytes(config: Mapping[str, Any]) -> Parsed:
    if config.get("load_in_4bit") is not True:
        raise ValueError("load_in_4bit is not true: this is not a 4-bit checkpoint")
    kind = config.get("bnb_4bit_quant_type")
    if kind != "nf4":
        raise ValueError(f"bnb_4bit_quant_type is {kind!r} and must say nf4 (the default is fp4)")
    scheme = Scheme(
        tool="bitsandbytes",
        kind="nf",
        bits=4,
        strategy="group",
        group=NF4_BLOCK,
        double=_need(config, "bnb_4bit_use_double_quant", bool, "it"),
    )
    notes = (f"computes in {config.get('bnb_4bit_compute_dtype')}",)
    skipped = _part(config.get("llm_int8_skip_modules"))
    return Parsed("bitsandbytes", ((("Linear",), scheme),), skipped, notes=notes)


def _original(config: Mapping[str, Any], method: str) -> Parsed:
    """The layouts of AutoGPTQ and AutoAWQ. Neither quantizes the output layer unless told to."""
    bits = config.get("bits", config.get("w_bit"))
    group = config.get("group_size", config.get("q_group_size"))
    if not isinstance(bits, int) or not isinstance(group, int):
        raise ValueError(f"it has no usable bits and group_size ({bits!r}, {group!r})")
    strategy = "channel" if group == -1 else "group"
    notes: list[str] = []
    if method == "gptq":
        symmetric = _need(config, "sym", bool, "it")
        order = "group" if _need(config, "desc_act", bool, "it") else None
        fallback = config.get("fallback") or (config.get("meta") or {}).get("fallback")
        if fallback:
            notes.append(f"layers with too few samples fall back: {fallback}")
        if config.get("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
            raise ValueError(f"checkpoint_format is {config['checkpoint_format']!r}")
    else:
        symmetric, order = not _need(config, "zero_point", bool, "it"), None
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise ValueError(f"version is {version!r}; vLLM reads 'gemm'")
    scheme = Scheme(method, "int", bits, strategy, None if group == -1 else group, symmetric, order)
    ignore = _part(config.get("modules_to_not_convert"))
    if not config.get("lm_head"):
        ignore += ("lm_head",)
    return Parsed(method, ((("Linear",), scheme),), ignore, notes=tuple(notes))


# --------------------------------------------------------------------------- what was asked


def asked(variant: VariantSpec) -> Scheme | None:
    """The scheme a variant's spec must have led to; None where it leaves the weights alone."""
    tool = "compressed-tensors"
    if isinstance(variant, GptqSpec):
        order = None if variant.act_order == "none" else variant.act_order
        return _grouped(tool, variant.bits, variant.group_size, variant.symmetric, order)
    if isinstance(variant, AwqSpec):
        return _grouped(tool, variant.bits, variant.group_size, not variant.zero_point, None)
    if isinstance(variant, Fp8Spec):
        return {
            "dynamic": Scheme(tool, "float", 8, "channel", activations="float8 token dynamic"),
            "static": Scheme(tool, "float", 8, "tensor", activations="float8 tensor static"),
            "block": Scheme(tool, "float", 8, "block", activations="float8 group dynamic"),
        }[variant.scheme]
    if isinstance(variant, Int8Spec):
        return Scheme(tool, "int", 8, "channel", activations="int8 token dynamic")
    if isinstance(variant, Nf4Spec):
        return Scheme("bitsandbytes", "nf", 4, "group", NF4_BLOCK, double=variant.double_quant)
    if isinstance(variant, GptqModelSpec | AutoGptqSpec):
        order = "group" if variant.act_order else None
        return _grouped("gptq", variant.bits, variant.group_size, variant.symmetric, order)
    if isinstance(variant, AutoAwqSpec):
        return _grouped("awq", variant.bits, variant.group_size, not variant.zero_point, None)
    return None


def _grouped(tool: str, bits: int, size: int, symmetric: bool, order: str | None) -> Scheme:
    if size == -1:
        return Scheme(tool, "int", bits, "channel", None, symmetric)
    return Scheme(tool, "int", bits, "group", size, symmetric, order)


def differences(wanted: Scheme, found: Scheme) -> list[str]:
    """Each field two schemes differ in, in words. Ordering counts for groups only."""
    return [
        f"{f.name} is {getattr(found, f.name)!r} instead of {getattr(wanted, f.name)!r}"
        for f in fields(Scheme)
        if getattr(wanted, f.name) != getattr(found, f.name)
        and (f.name != "order" or wanted.strategy == "group")
    ]
