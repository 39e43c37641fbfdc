"""The layers that AWQ's mappings name, by architecture (llmcompressor 0.14.0.1). Pure: literals.

Copied from llm-compressor's AWQ_MAPPING_REGISTRY and, of what AWQ_DYNAMIC_MAPPING_REGISTRY builds
from a loaded model, the layers every such model has; a test compares them with the installed ones.
Borrowed mappings whose layers a model lacks are known to be wrong only when it is loaded:
llm-compressor ends with an incomplete set, or smooths nothing where a whole mapping is foreign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def _layers(*names: str) -> tuple[str, ...]:
    return tuple(f"re:.*{name}$" for name in names)


_QKV = ("q_proj", "k_proj", "v_proj")
_ATTENTION = tuple(f"self_attn.{name}" for name in _QKV)
_MLP = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")

_LLAMA = _layers(*_NORMS, *_QKV, "o_proj", *_MLP)
_EXPERTS = ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj")
_MOE = _layers(*_NORMS, *_QKV, "o_proj", "mlp.gate", *_EXPERTS, "up_proj", "down_proj")
_LLAMA4 = _layers(
    *(*_NORMS, *_QKV, "o_proj", "up_proj", "down_proj", "feed_forward.router"),
    *("feed_forward.*.gate_proj", "feed_forward.*.up_proj"),
)
_PHI = _layers(*_NORMS, "qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_GEMMA2 = _layers("input_layernorm", *_QKV, "o_proj", "pre_feedforward_layernorm", *_MLP)
_GEMMA3 = _layers("v_proj", "o_proj", "pre_feedforward_layernorm", *_MLP)
_COHERE = _layers(
    *("input_layernorm", *_ATTENTION, "mlp.gate_proj", "mlp.up_proj"),
    *("v_proj", "o_proj", "up_proj", "down_proj"),
)
_COHERE2_MOE = _layers("input_layernorm", *_ATTENTION, *_MLP, "v_proj", "o_proj")
_MLA = _layers(
    *(*_NORMS, "(q|q_a)_proj", "kv_a_proj_with_mqa", "q_a_layernorm", "q_b_proj"),
    *("kv_a_layernorm", "kv_b_proj", *_MLP),
)
_BLOOM = _layers(*_NORMS, "query_key_value", "dense_h_to_4h", "gelu_impl", "dense_4h_to_h")
_EXAONE4 = _layers("v_proj", "o_proj", "up_proj", "down_proj")
_AFMOE = _layers(
    *("input_layernorm", *_ATTENTION, "self_attn.gate_proj", "v_proj", "o_proj"),
    *("pre_mlp_layernorm", "mlp.router", "mlp.*gate_proj", "mlp.*up_proj", "up_proj", "down_proj"),
)
_GLIMMER = _layers(
    *(
        rf"language_model.layers.\d+.{name}"
        for name in (
            *("input_layernorm", *_ATTENTION, "self_attn.gate_proj", "self_attn.o_proj"),
            *("pre_feedforward_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        )
    )
)
_QWEN2_5_VL = _layers(
    *("input_layernorm", *_QKV, "o_proj"),
    *(
        rf"language_model\.layers\.\d+\.{name}"
        for name in ("post_attention_layernorm", *(rf"mlp\.{part}" for part in _MLP))
    ),
)
#: Built from the model: full attention in some layers, linear attention in the others.
_HYBRID = _layers(*_NORMS, *_ATTENTION, "linear_attn.in_proj_.*", "up_proj", "down_proj")
_STEP3P5 = _layers(*_NORMS, *_ATTENTION, "self_attn.g_proj", "self_attn.o_proj")

#: Architecture -> patterns of module names, as llm-compressor writes them.
AWQ_LAYERS: Mapping[str, tuple[str, ...]] = {
    "AfmoeForCausalLM": _AFMOE,
    "BloomForCausalLM": _BLOOM,
    "Cohere2ForCausalLM": _COHERE,
    "Cohere2MoeForCausalLM": _COHERE2_MOE,
    "Cohere2VisionForConditionalGeneration": _COHERE,
    "CohereForCausalLM": _COHERE,
    "DeepseekV2ForCausalLM": _MLA,
    "DeepseekV3ForCausalLM": (*_MLA, *_layers("mlp.gate")),
    "Ernie4_5_MoeForCausalLM": _LLAMA,
    "Exaone4ForCausalLM": _EXAONE4,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Glm4MoeForCausalLM": _MOE,
    "Glm4MoeLiteForCausalLM": _MLA,
    "GlmMoeDsaForCausalLM": _MLA,
    "GraniteForCausalLM": _LLAMA,
    "Llama4ForConditionalGeneration": _LLAMA4,
    "LlamaForCausalLM": _LLAMA,
    "Mistral3ForConditionalGeneration": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MuseGlimmerForConditionalGeneration": _GLIMMER,
    "NanbeigeForCausalLM": _LLAMA,
    "Olmo3ForCausalLM": _EXAONE4,
    "OlmoForCausalLM": _EXAONE4,
    "Phi3ForCausalLM": _PHI,
    "Phi3VForCausalLM": _PHI,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen2MoeForCausalLM": _MOE,
    "Qwen2_5OmniModel": _LLAMA,
    "Qwen2_5OmniThinkerForConditionalGeneration": _LLAMA,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2_5_VL,
    "Qwen3ForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _MOE,
    "Qwen3NextForCausalLM": _HYBRID,
    "Qwen3_5ForCausalLM": _HYBRID,
    "Qwen3_5ForConditionalGeneration": _HYBRID,
    "Qwen3_5MoeForCausalLM": _HYBRID,
    "Qwen3_5MoeForConditionalGeneration": _HYBRID,
    "SeedOssForCausalLM": _LLAMA,
    "Step3p5ForCausalLM": _STEP3P5,
}
AWQ_ARCHITECTURES = tuple(AWQ_LAYERS)

#: A module without a tensor, and layers that models of the architecture itself may lack.
_NOT_ASKED = _layers("gelu_impl", "q_a_layernorm", "q_b_proj")


def without_match(architecture: str, tensors: Iterable[str]) -> list[str]:
    """Patterns of an architecture's mappings that match no module of a model.

    Where a file stores experts as one tensor, or names the language model of a multimodal one
    otherwise than it is loaded, its names say nothing about the pattern: that part is left open.

    Args:
        architecture: of `AWQ_LAYERS`.
        tensors: names of the model's tensors; a module is a name without its last part.
    """
    modules = {name.rpartition(".")[0] for name in tensors}
    experts = any(".experts" in name for name in modules)
    missing = []
    for pattern in AWQ_LAYERS[architecture]:
        if pattern in _NOT_ASKED or (experts and "experts" in pattern):
            continue
        loose = re.compile(re.sub(r"language_model\\?\.", "", pattern.removeprefix("re:")))
        if not any(loose.match(name) for name in modules):
            missing.append(pattern)
    return missing
