"""What llm-compressor cannot do with a checkpoint, said before anything is loaded.

The tables of architectures are llm-compressor's own registries of layer mappings, copied so that a
recipe is checked without its environment; a test compares them with the installed ones. For an
architecture it does not know llm-compressor takes the mappings of Llama and says so in its log
only: where they fit nothing, nothing is smoothed. Here that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.checkpoint import read_config
from workbench.errors import RecipeError, did_you_mean
from workbench.quantizers.awq_mappings import AWQ_ARCHITECTURES, without_match
from workbench.quantizers.gguf_architectures import ARCHITECTURES
from workbench.records import Checkpoint, Hardware
from workbench.safetensors_header import read_header
from workbench.variants import (
    AutoAwqSpec,
    AutoGptqSpec,
    AwqSpec,
    Fp8Spec,
    GptqModelSpec,
    GptqSpec,
    Int8Spec,
)

GroupedSpec = GptqSpec | AwqSpec | GptqModelSpec | AutoGptqSpec | AutoAwqSpec

#: vLLM 0.32 on a CPU: values of a head that share a step of its FP8 attention.
CPU_FP8_HEAD = 32
#: What an unquantized checkpoint's weights can be.
DTYPES = ("F32", "F16", "BF16")
#: Group sizes that engines have kernels for, the usual one first.
USUAL_GROUP_SIZES = (128, 64, 32)
#: Fewest grid points of AWQ that search anything.
SMALLEST_GRID = 3
#: FP8 block quantization: rows and columns of one block (DeepSeek-V3's, the only size in vLLM).
BLOCK = 128

# fmt: off
#: Architectures SmoothQuant has layer mappings for (llmcompressor 0.14.0.1, MAPPINGS_REGISTRY and
#: SMOOTHQUANT_DYNAMIC_MAPPING_REGISTRY).
SMOOTHQUANT_ARCHITECTURES = (
    "AfmoeForCausalLM", "BloomForCausalLM", "ChatGLMForConditionalGeneration",
    "Cohere2ForCausalLM", "Cohere2MoeForCausalLM", "Cohere2VisionForConditionalGeneration",
    "CohereForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
    "Ernie4_5_MoeForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM", "GraniteForCausalLM", "Llama4ForConditionalGeneration",
    "LlamaForCausalLM", "Mistral3ForConditionalGeneration", "MistralForCausalLM",
    "MixtralForCausalLM", "NanbeigeForCausalLM", "Phi3ForCausalLM", "Phi3VForCausalLM",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen2_5OmniModel",
    "Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration", "SeedOssForCausalLM", "WhisperForConditionalGeneration",
)
# fmt: on
#: vLLM multiplies these in one product; the rows of all but the last have to fill whole blocks.
_MERGED = re.compile(r"\.(q_proj|k_proj|gate_proj)\.weight$")


def check_source(checkpoint: Checkpoint) -> None:
    """Refuse a source that is quantized already, in a dtype of no model, or without linear layers.

    Raises:
        RecipeError: with what to name instead.
    """
    if checkpoint.quantization is not None:
        raise RecipeError(
            f"the source checkpoint is already quantized ({checkpoint.quantization})",
            where=checkpoint.path,
            fix="quantize the original: its model card usually names it as 'base_model'",
        )
    if checkpoint.dtype not in DTYPES:
        raise RecipeError(
            f"most of the checkpoint's weights are {checkpoint.dtype}",
            where=checkpoint.path,
            fix=f"save it in {', '.join(DTYPES)}: the tools and engines here compute in these",
        )
    if not checkpoint.linear_input_widths:
        raise RecipeError(
            "the checkpoint has no linear layer that could be quantized",
            where=checkpoint.path,
            fix=f"architecture {checkpoint.architecture} is not one this method fits",
        )


def unknown(name: str, checkpoint: Checkpoint) -> list[str]:
    """A sentence about an architecture that none of the tables here has."""
    found = checkpoint.architecture
    tables = (AWQ_ARCHITECTURES, SMOOTHQUANT_ARCHITECTURES, ARCHITECTURES)
    if any(found in table for table in tables):
        return []
    return [
        f"{name}: no table of llm-compressor or llama.cpp has the architecture {found}; where "
        "transformers has no code of its own for it, this fails: code of a checkpoint is never run"
    ]


def check_kv_cache(name: str, checkpoint: Checkpoint, hardware: Hardware) -> None:
    """Refuse an FP8 KV cache that vLLM's attention on a CPU has no room for (its `cpu_attn.py`).

    Raises:
        RecipeError: with the size of a head.
    """
    config = read_config(Path(checkpoint.path))
    config = {**config, **(config.get("text_config") or {})}
    heads = config.get("num_attention_heads")
    size = config.get("head_dim") or (checkpoint.hidden_size // heads if heads else None)
    if not hardware.gpus and isinstance(size, int) and size % CPU_FP8_HEAD:
        raise RecipeError(
            f"heads of {size} do not fit an FP8 KV cache on a CPU: vLLM takes multiples of "
            f"{CPU_FP8_HEAD}",
            where=f"variants: {name}: kv_cache",
            fix="leave 'kv_cache' out, or run on a GPU",
        )


def check_head(name: str, ignore: tuple[str, ...], checkpoint: Checkpoint) -> None:
    """Refuse to quantize an output layer that shares its weights with the embeddings.

    Raises:
        RecipeError: with what to add to `ignore`.
    """
    if checkpoint.tied_embeddings and not ignores_head(ignore):
        raise RecipeError(
            "the output layer shares its weights with the embeddings, and 'ignore' leaves it "
            "to be quantized",
            where=f"variants: {name}: ignore",
            fix="add 'lm_head' to 'ignore'",
        )


def ignores_head(ignore: tuple[str, ...]) -> bool:
    """Whether the ignore list covers ``lm_head``: by its name, or by a ``re:`` pattern."""
    return any(
        re.match(entry.removeprefix("re:"), "lm_head")
        if entry.startswith("re:")
        else entry == "lm_head"
        for entry in ignore
    )


def check_group(variant: GroupedSpec, checkpoint: Checkpoint) -> None:
    """Refuse a group size that does not divide every layer's input width.

    llm-compressor refuses it too, but after it has loaded the model.

    Raises:
        RecipeError: with the widths and a group size that works.
    """
    size = variant.group_size
    widths = checkpoint.linear_input_widths
    bad = [width for width in widths if size != -1 and width % size]
    if not bad:
        return
    works = [s for s in USUAL_GROUP_SIZES if all(width % s == 0 for width in widths)]
    known = ", ".join(map(str, widths))
    raise RecipeError(
        f"group_size {size} does not divide the layer width{'s' if len(bad) > 1 else ''} "
        f"{', '.join(map(str, bad))} (input widths of the model: {known})",
        where=f"variants: {variant.name}: group_size",
        fix=f"use {works[0]}" if works else "use -1, one scale per output channel",
    )


def check_gptq(variant: GptqSpec, checkpoint: Checkpoint) -> None:
    """Refuse an activation order that llm-compressor no longer has, and bad groups.

    Raises:
        RecipeError: with the option that works.
    """
    if variant.act_order == "group":
        raise RecipeError(
            "activation order 'group' is no longer in llm-compressor "
            "(compressed-tensors 0.19 removed it)",
            where=f"variants: {variant.name}: act_order",
            fix="use 'static': the same order during calibration, at no cost when serving",
        )
    check_group(variant, checkpoint)


def check_awq(variant: AwqSpec, checkpoint: Checkpoint) -> None:
    """Refuse layer mappings that do not fit, a grid that searches nothing, and bad groups.

    The grid is the unscaled layer and `grid_size - 1` ratios from 0 to 1: of 1 only the former is
    left, and 2 divides by zero in llmcompressor 0.14.0.1 (`_get_grid_search_params`).

    Raises:
        RecipeError: with the architectures there are mappings for, the layers borrowed ones miss,
            or a grid that works.
    """
    if variant.grid_size < SMALLEST_GRID:
        raise RecipeError(
            f"a grid_size of {variant.grid_size} leaves AWQ no scales to choose from",
            where=f"variants: {variant.name}: grid_size",
            fix=f"use at least {SMALLEST_GRID}; 20 is usual",
        )
    wanted = variant.mappings or checkpoint.architecture
    if wanted not in AWQ_ARCHITECTURES:
        raise RecipeError(
            f"AWQ has no layer mappings for the architecture '{wanted}'",
            where=f"variants: {variant.name}: mappings"
            if variant.mappings
            else f"{checkpoint.path}/config.json: architectures",
            fix=f"{did_you_mean(wanted, AWQ_ARCHITECTURES)}name an architecture with the same "
            f"layers as 'mappings', or use 'gptq', which needs none. Known are "
            f"{', '.join(AWQ_ARCHITECTURES)}",
        )
    names = _shapes(checkpoint) if wanted != checkpoint.architecture else {}
    if names and (missing := without_match(wanted, names)):
        raise RecipeError(
            f"AWQ's layer mappings of {wanted} do not fit the model: no layer of it matches "
            f"{', '.join(repr(pattern) for pattern in missing)}",
            where=f"variants: {variant.name}: mappings",
            fix="name an architecture with the same layers, or use 'gptq', which needs none",
        )
    check_group(variant, checkpoint)


def check_int8(variant: Int8Spec, checkpoint: Checkpoint) -> None:
    """Refuse SmoothQuant for an architecture it has no layer mappings for.

    Raises:
        RecipeError: with the architectures there are mappings for.
    """
    if variant.smoothing and checkpoint.architecture not in SMOOTHQUANT_ARCHITECTURES:
        raise RecipeError(
            f"SmoothQuant has no layer mappings for the architecture '{checkpoint.architecture}'",
            where=f"variants: {variant.name}: smoothing",
            fix="set 'smoothing: 0', which leaves it out. Known are "
            f"{', '.join(SMOOTHQUANT_ARCHITECTURES)}",
        )


def check_fp8(variant: Fp8Spec, checkpoint: Checkpoint) -> None:
    """Refuse blocks of 128 x 128 for a model whose layers vLLM could not load in them.

    Raises:
        RecipeError: with the widths and the scheme that works.
    """
    if variant.scheme != "block":
        return
    if bad := block_misfit(checkpoint.linear_input_widths, _shapes(checkpoint)):
        raise RecipeError(
            bad,
            where=f"variants: {variant.name}: scheme",
            fix="use 'dynamic', which is data-free too, or 'static'",
        )


def _shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Shapes of a checkpoint's tensors, by name."""
    return {
        name: tensor.shape
        for shard in sorted(Path(checkpoint.path).glob("*.safetensors"))
        for name, tensor in read_header(shard).items()
    }


def block_misfit(widths: Sequence[int], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why FP8 in blocks of 128 x 128 cannot work for a model, or None.

    llm-compressor pads the last block and only logs a warning. vLLM scales activations in whole
    groups of 128 (`per_token_group_quant_fp8` asserts it) and refuses at loading merged layers (q,
    k, v; gate, up) whose parts before the last do not fill whole blocks
    (`validate_fp8_block_shape`).

    Args:
        widths: input widths of its linear layers.
        shapes: of its tensors, by name.
    """
    if bad := [width for width in widths if width % BLOCK]:
        return (
            f"blocks of {BLOCK} x {BLOCK} do not fit the layer width{'s' * (len(bad) > 1)} "
            f"{', '.join(map(str, bad))} (input widths of the model: "
            f"{', '.join(map(str, widths))}): llm-compressor would pad the last block, and vLLM "
            f"scales activations in whole groups of {BLOCK}"
        )
    for name, shape in shapes.items():
        if _MERGED.search(name) and shape[0] % BLOCK:
            return (
                f"blocks of {BLOCK} x {BLOCK} do not fit the {shape[0]} rows of '{name}': vLLM "
                "merges it with its neighbours and refuses to load it"
            )
    return None
