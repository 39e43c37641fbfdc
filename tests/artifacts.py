"""Small checkpoints in every layout, written byte by byte from the formats' definitions.

The values are random; what counts is which tensors there are, in which dtype and shape.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from raw_safetensors import read_raw, write_raw

from workbench.artifact import examine
from workbench.artifact_records import Artifact
from workbench.calibration_records import Lengths, seal_of
from workbench.checkpoint import copy_companions, digests, inspect
from workbench.quantconfig import Scheme, asked
from workbench.records import Calibration, CalibrationRow
from workbench.store import write_record
from workbench.variants import GgufSpec, VariantSpec

HIDDEN, INTER, VOCAB, LAYERS = 128, 256, 512, 2
LINEAR = {
    **{f"self_attn.{n}_proj": (HIDDEN, HIDDEN) for n in "qo"},
    **{f"self_attn.{n}_proj": (64, HIDDEN) for n in "kv"},
    **{f"mlp.{n}_proj": (INTER, HIDDEN) for n in ("gate", "up")},
    "mlp.down_proj": (HIDDEN, INTER),
}
Raw = dict[str, tuple[str, list[int], bytes]]


def bf16(rng: np.random.Generator, *shape: int, low: float = -1.0) -> tuple[str, list[int], bytes]:
    values = rng.uniform(low, 1.0, shape).astype(np.float32)
    return "BF16", list(shape), (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def make_source(folder: Path, *, tied: bool = True, hidden: int = HIDDEN) -> Path:
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    tensors: Raw = {"model.embed_tokens.weight": bf16(rng, VOCAB, hidden)}
    if not tied:
        tensors["lm_head.weight"] = bf16(rng, VOCAB, hidden)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, (rows, width) in LINEAR.items():
            tensors[f"{at}.{name}.weight"] = bf16(rng, rows, width)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = bf16(rng, hidden)
    tensors["model.norm.weight"] = bf16(rng, hidden)
    write_raw(folder / "model.safetensors", tensors)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "vocab_size": VOCAB,
        "eos_token_id": 2,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in {
        "tokenizer.json": "{}",
        "tokenizer_config.json": "{}",
        "special_tokens_map.json": "{}",
        "generation_config.json": '{"eos_token_id": 2}',
        "chat_template.jinja": "{{ messages }}",
        "LICENSE": "free",
    }.items():
        (folder / name).write_text(text)
    return folder


def args(scheme: Scheme) -> dict[str, Any]:
    return {
        "num_bits": scheme.bits,
        "type": scheme.kind,
        "strategy": scheme.strategy,
        "group_size": scheme.group,
        "symmetric": scheme.symmetric,
        "actorder": scheme.order,
        "dynamic": False,
    }


def config_of(variant: VariantSpec, scheme: Scheme | None) -> dict[str, Any]:
    if scheme is None:
        return {"quant_method": "compressed-tensors", "config_groups": {}, "ignore": []}
    if scheme.tool == "bitsandbytes":
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": scheme.double,
            "bnb_4bit_compute_dtype": "bfloat16",
            "llm_int8_skip_modules": ["lm_head"],
        }
    if scheme.tool == "gptq":
        return {
            "quant_method": "gptq",
            "bits": scheme.bits,
            "group_size": scheme.group or -1,
            "sym": scheme.symmetric,
            "desc_act": scheme.order is not None,
            "checkpoint_format": "gptq",
        }
    if scheme.tool == "awq":
        return {
            "quant_method": "awq",
            "bits": scheme.bits,
            "group_size": scheme.group or -1,
            "zero_point": not scheme.symmetric,
            "version": "gemm",
        }
    group: dict[str, Any] = {"targets": ["Linear"], "weights": args(scheme)}
    if scheme.activations:
        kind, strategy, how = scheme.activations.split()
        group["input_activations"] = {
            "num_bits": 8,
            "type": kind.rstrip("8"),
            "strategy": strategy,
            "dynamic": how == "dynamic",
            "symmetric": True,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": list(getattr(variant, "ignore", ())),
    }


def i32(rng: np.random.Generator, *shape: int) -> tuple[str, list[int], bytes]:
    return "I32", list(shape), rng.integers(0, 2**31, shape, dtype="<i4").tobytes()


def f32(rng: np.random.Generator, *shape: int) -> tuple[str, list[int], bytes]:
    return "F32", list(shape), rng.uniform(0.1, 1, shape).astype("<f4").tobytes()


def quantized(rng: np.random.Generator, name: str, rows: int, width: int, s: Scheme) -> Raw:
    """The tensors of one layer."""
    groups = math.ceil(width / s.group) if s.strategy == "group" else 1
    if s.tool == "bitsandbytes":
        blocks = math.ceil(rows * width / 64)
        state = {
            "quant_type": "nf4",
            "blocksize": 64,
            "dtype": "bfloat16",
            "shape": [rows, width],
        } | ({"nested_blocksize": 256, "nested_offset": 0.1} if s.double else {})
        text = json.dumps(state).encode()
        codes = rng.integers(0, 256, (rows * width // 2, 1), dtype="u1")
        out: Raw = {
            "weight": ("U8", list(codes.shape), codes.tobytes()),
            "weight.quant_map": f32(rng, 16),
            "weight.quant_state.bitsandbytes__nf4": ("U8", [len(text)], text),
        }
        if s.double:
            scales = rng.integers(1, 256, blocks, dtype="u1")
            out["weight.absmax"] = ("U8", [blocks], scales.tobytes())
            out["weight.nested_absmax"] = f32(rng, math.ceil(blocks / 256))
            out["weight.nested_quant_map"] = f32(rng, 256)
        else:
            out["weight.absmax"] = f32(rng, blocks)
    elif s.tool in ("gptq", "awq"):
        shape = (width * s.bits // 32, rows) if s.tool == "gptq" else (width, rows * s.bits // 32)
        out = {
            "qweight": i32(rng, *shape),
            "qzeros": i32(rng, groups, rows * s.bits // 32),
            "scales": bf16(rng, groups, rows, low=0.1),
        }
        if s.tool == "gptq":
            index = np.arange(width, dtype="<i4") // (s.group or width)
            out["g_idx"] = ("I32", [width], index.tobytes())
    elif s.kind == "int" and s.activations is None:
        shape_ = np.array([rows, width], dtype="<i8")
        out = {
            "weight_packed": i32(rng, rows, math.ceil(width * s.bits / 32)),
            "weight_scale": bf16(rng, rows, groups, low=0.1),
            "weight_shape": ("I64", [2], shape_.tobytes()),
        }
        if not s.symmetric:
            out["weight_zero_point"] = i32(rng, math.ceil(rows * s.bits / 32), groups)
    else:
        codes = rng.integers(0, 0x7F, (rows, width), dtype="u1")
        kind = "F8_E4M3" if s.kind == "float" else "I8"
        scale = {
            "tensor": [1],
            "channel": [rows, 1],
            "block": [math.ceil(rows / 128), math.ceil(width / 128)],
        }[s.strategy]
        out = {
            "weight": (kind, [rows, width], codes.tobytes()),
            "weight_scale": bf16(rng, *scale, low=0.1),
        }
        if s.activations and s.activations.endswith("static"):
            out["input_scale"] = bf16(rng, 1, low=0.1)
    return {f"{name}.{part}": tensor for part, tensor in out.items()}


def make_artifact(
    source: Path, folder: Path, variant: VariantSpec, sealed: Calibration | None = None
) -> Path:
    """A faultless artifact of a variant, in its own layout (not GGUF)."""
    rng = np.random.default_rng(2)
    folder.mkdir(parents=True)
    scheme = asked(variant)
    tensors: Raw = {}
    for name, tensor in read_raw(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if scheme and module.endswith("_proj"):
            rows, width = tensor[1]
            tensors |= quantized(rng, module, rows, width, scheme)
        else:
            tensors[name] = tensor
    cached = getattr(variant, "kv_cache", "auto") == "fp8"
    for layer in range(LAYERS if cached else 0):
        for side in "kv":
            tensors[f"model.layers.{layer}.self_attn.{side}_scale"] = bf16(rng, 1, low=0.1)
    write_raw(folder / "model.safetensors", tensors)
    config = json.loads((source / "config.json").read_text())
    if scheme or cached:
        config["quantization_config"] = config_of(variant, scheme)
    if cached:
        config["quantization_config"]["kv_cache_scheme"] = {
            "num_bits": 8,
            "type": "float",
            "strategy": "tensor",
            "dynamic": False,
        }
    (folder / "config.json").write_text(json.dumps(config))
    copy_companions(source, folder)
    if sealed:
        write_record(folder / "calibration.json", sealed)
    return folder


def seal() -> Calibration:
    record = Calibration(
        id="id",
        source="instructions",
        source_digest="1" * 64,
        source_rows=1,
        tokenizer_digest="2" * 64,
        template_digest=None,
        seed=7,
        max_tokens=64,
        min_tokens=8,
        rows=(
            CalibrationRow(
                row="1", text_digest="3" * 64, token_digest="4" * 64, tokens=9, truncated=False
            ),
        ),
        packing="truncate",
        strata=None,
        lengths=Lengths(rendered=(1,) + (0,) * 10, sealed=(1,) + (0,) * 10),
        dropped={},
        seal="",
        tokens_file="tokens.jsonl",
    )
    return record.model_copy(update={"seal": seal_of(record)})


def look(
    source: Path, folder: Path, variant: VariantSpec, sealed: Calibration | None = None
) -> Artifact:
    return examine(inspect(source), variant, folder, digests(folder, None), sealed)


def statuses(found: Artifact, but: str = "PASS") -> dict[str, str]:
    """Name -> status of the checks that are not as they should be."""
    return {c.name: c.status for c in found.checks if c.status != but}


def edit_tensors(folder: Path, edit: Callable[[Raw], object]) -> None:
    path = folder / "model.safetensors"
    tensors = read_raw(path)
    edit(tensors)
    write_raw(path, tensors)


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


# --------------------------------------------------------------------------- GGUF

FILE_TYPES = {"Q8_0": 7, "Q4_K_M": 15, "F16": 1, "BF16": 32}


def make_gguf(
    source: Path,
    folder: Path,
    variant: GgufSpec,
    sealed: Calibration | None = None,
    *,
    types: Callable[[str, int], str] | None = None,
    metadata: dict[str, Any] | None = None,
    drop: str = "",
) -> Path:
    """A GGUF artifact; blocks are random bytes with scales that are 1/64 of a random number.

    Args:
        types: (GGUF name, width) -> type; default: what llama.cpp would take.
        metadata: integers or texts that replace or add a key.
        drop: name of a tensor to leave out.
    """
    import gguf

    from workbench.artifact_gguf import _SCALES, base_type

    rng = np.random.default_rng(3)
    folder.mkdir(parents=True)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    base = base_type(variant, "BF16")
    fallback = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}

    def usual(name: str, width: int) -> str:
        return base if width % 256 == 0 or base not in fallback else fallback[base]

    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    kind = "BF16" if variant.type == "source" else variant.type
    keys: dict[str, Any] = {
        "general.file_type": FILE_TYPES[kind],
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
        **({"quantize.imatrix.entries_count": 9} if variant.calibrates else {}),
        **({"workbench.calibration.seal": sealed.seal} if sealed else {}),
        **(metadata or {}),
    }
    for key, value in keys.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key, value)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    for name, (_, shape, data) in read_raw(source / "model.safetensors").items():
        renamed = names.get_name(name, try_suffixes=(".weight",))
        assert renamed is not None
        if renamed == drop:
            continue
        if len(shape) == 1:
            values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
            writer.add_tensor(renamed, values.copy())
            continue
        chosen = gguf.GGMLQuantizationType[(types or usual)(renamed, shape[1])]
        weights, size = gguf.GGML_QUANT_SIZES[chosen]
        raw = rng.integers(0, 0x30, (shape[0], shape[1] // weights * size), dtype="u1")
        blocks = raw.reshape(-1, size)
        for at in _SCALES.get(chosen.name, ()):
            scales = rng.uniform(0.01, 0.02, len(blocks)).astype("<f2")
            blocks[:, at : at + 2] = scales.view("u1").reshape(-1, 2)
        writer.add_tensor(renamed, raw, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    copy_companions(source, folder)
    shutil.copy(source / "config.json", folder)
    if sealed:
        write_record(folder / "calibration.json", sealed)
    return folder
