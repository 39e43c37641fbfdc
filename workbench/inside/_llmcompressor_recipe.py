"""The llm-compressor modifiers of each method: what a variant's options mean to the tool."""

from __future__ import annotations

from typing import Any

_FP8_SCHEMES = {"dynamic": "FP8_DYNAMIC", "static": "FP8", "block": "FP8_BLOCK"}


def modifiers(method: str, options: dict[str, Any], model: Any) -> list[Any]:
    """The modifiers of a variant, in the order they run.

    Args:
        method: ``none``, ``fp8``, ``gptq``, ``awq`` or ``int8``.
        options: of the variant.
        model: it is for; AWQ's mappings may depend on it.
    """
    from llmcompressor.modifiers.quantization import QuantizationModifier

    common: dict[str, Any] = {"ignore": list(options.get("ignore", ()))}
    if options["kv_cache"] == "fp8":
        common["kv_cache_scheme"] = kv_scheme()
    if method == "none":
        return [QuantizationModifier(**common)]
    if method == "fp8":
        scheme = _FP8_SCHEMES[options["scheme"]]
        return [QuantizationModifier(targets=["Linear"], scheme=scheme, **common)]
    if method == "awq":
        from llmcompressor.modifiers.transform.awq import AWQModifier

        awq = AWQModifier(
            mappings=awq_mappings(options["mappings"] or type(model).__name__, model),
            n_grid=options["grid_size"],
        )
        groups = weight_only(options, symmetric=not options["zero_point"])
        return [awq, QuantizationModifier(config_groups=groups, **common)]
    return [*smoothing(method, options), gptq(method, options, common)]


def smoothing(method: str, options: dict[str, Any]) -> list[Any]:
    """SmoothQuant, where INT8 asks for it."""
    if method != "int8" or not options["smoothing"]:
        return []
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    return [SmoothQuantModifier(smoothing_strength=options["smoothing"])]


def gptq(method: str, options: dict[str, Any], common: dict[str, Any]) -> Any:
    """GPTQ of the weights alone, or of INT8's weights per output channel."""
    from llmcompressor.modifiers.gptq import GPTQModifier

    if method == "int8":
        # The order of columns during calibration; per channel it leaves no trace in the weights.
        return GPTQModifier(
            targets=["Linear"],
            scheme="W8A8",
            actorder="static",
            dampening_frac=options["dampening"],
            **common,
        )
    return GPTQModifier(
        config_groups=weight_only(options, symmetric=options["symmetric"]),
        actorder=None if options["act_order"] == "none" else options["act_order"],
        dampening_frac=options["dampening"],
        **common,
    )


def weight_only(options: dict[str, Any], *, symmetric: bool) -> dict[str, Any]:
    """Integer weights in groups of input columns, or per output channel; 16-bit activations."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    per_channel = options["group_size"] == -1
    weights = QuantizationArgs(
        num_bits=options["bits"],
        type="int",
        symmetric=symmetric,
        strategy="channel" if per_channel else "group",
        group_size=None if per_channel else options["group_size"],
    )
    return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}


def kv_scheme() -> Any:
    """FP8 (E4M3) keys and values, one static scale per layer: what vLLM reads."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(
        num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False
    )


def awq_mappings(architecture: str, model: Any) -> Any:
    """llm-compressor's layer mappings of an architecture; some are built from the model.

    Raises:
        KeyError: it has none. The recipe was checked against the same registry.
    """
    from llmcompressor.modifiers.transform.awq import (
        AWQ_DYNAMIC_MAPPING_REGISTRY,
        AWQ_MAPPING_REGISTRY,
    )

    if build := AWQ_DYNAMIC_MAPPING_REGISTRY.get(architecture):
        built = build(model)
        if built is not None:
            return built
    return AWQ_MAPPING_REGISTRY[architecture]
