"""A produced checkpoint is examined: every faultless layout passes, every fault is named once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import (
    LAYERS,
    Raw,
    bf16,
    edit_json,
    edit_tensors,
    look,
    make_artifact,
    make_gguf,
    make_source,
    seal,
    statuses,
)

from workbench.artifact_records import Artifact
from workbench.variants import (
    AutoAwqSpec,
    AutoGptqSpec,
    AwqSpec,
    FakeSpec,
    Fp8Spec,
    GgufSpec,
    GptqModelSpec,
    GptqSpec,
    Int8Spec,
    Nf4Spec,
    NoneSpec,
    VariantSpec,
)

W4 = GptqSpec(name="w4", group_size=64)
FP8 = Fp8Spec(name="fp8")
Q4 = GgufSpec(name="q4", type="Q4_K_M", imatrix=False)
LAYER = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("made") / "source")


def sentence(found: Artifact, name: str) -> str:
    return next(c.sentence for c in found.checks if c.name == name)


# --------------------------------------------------------------------------- faultless


@pytest.mark.parametrize(
    ("variant", "form", "bits"),
    [
        (FP8, "float8_e4m3 per channel", 8.11),
        (Fp8Spec(name="v", scheme="static"), "float8_e4m3 per tensor", 8.0),
        (Fp8Spec(name="v", scheme="block"), "float8_e4m3 per block", 8.0),
        (Fp8Spec(name="v", kv_cache="fp8"), "float8_e4m3 per channel", 8.11),
        (W4, "int4 g64 sym", 4.25),
        (GptqSpec(name="v", group_size=32, symmetric=False), "int4 g32 asym", 4.625),
        (GptqSpec(name="v", bits=8, group_size=-1), "int8 per channel sym", 8.11),
        (GptqSpec(name="v", group_size=64, act_order="none"), "int4 g64 sym", 4.25),
        (AwqSpec(name="v", group_size=64), "int4 g64 asym", 4.3125),
        (Int8Spec(name="v"), "int8 per channel sym", 8.11),
        (Nf4Spec(name="v"), "nf4 b64 dq", 4.127),
        (Nf4Spec(name="v", double_quant=False), "nf4 b64", 4.5),
        (GptqModelSpec(name="v", group_size=32, act_order=True), "int4 g32 sym", 4.625),
        (AutoGptqSpec(name="v", bits=8, group_size=64), "int8 g64 sym", 8.375),
        (AutoAwqSpec(name="v", group_size=64), "int4 g64 asym", 4.3125),
    ],
)
def test_a_faultless_artifact_passes(
    source: Path, tmp_path: Path, variant: VariantSpec, form: str, bits: float
) -> None:
    sealed = seal() if variant.calibrates else None
    found = look(source, make_artifact(source, tmp_path / "a", variant, sealed), variant, sealed)
    assert statuses(found) == {}
    assert [g.format for g in found.layers if g.why == "quantized"] == [form]
    assert found.declared_bits_per_weight == pytest.approx(bits, rel=0.01)
    measured = found.quantized_bits_per_weight
    assert measured is not None and measured == pytest.approx(bits, rel=0.25)
    assert 0.2 < found.size_ratio < 0.8
    assert sum(g.share for g in found.layers) == pytest.approx(1)
    assert sum(g.layers for g in found.layers) == 1 + LAYERS * 9 + 1
    assert list(found.files) == ["model.safetensors"]


def test_what_is_not_quantized_passes_too(source: Path, tmp_path: Path) -> None:
    fake = FakeSpec(name="fake")
    folder = make_artifact(source, tmp_path / "a", fake)
    edit_json(
        folder / "config.json", lambda c: c.update(quantization_config={"quant_method": "fake"})
    )
    found = look(source, folder, fake)
    assert statuses(found) == {} and found.quantized_bits_per_weight is None
    cached = NoneSpec(name="kv", kv_cache="fp8")
    sealed = seal()
    found = look(source, make_artifact(source, tmp_path / "b", cached, sealed), cached, sealed)
    assert statuses(found) == {} and found.size_ratio == pytest.approx(1, abs=0.001)


def test_an_untied_output_layer_is_said_to_be_ignored(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", tied=False)
    found = look(source, make_artifact(source, tmp_path / "a", FP8), FP8)
    assert statuses(found) == {}
    kept = next(g for g in found.layers if "lm_head.weight" in g.examples)
    assert (kept.why, kept.declared) == ("the recipe ignores it", True)
    tool = GptqModelSpec(name="v", group_size=64)
    sealed = seal()
    found = look(source, make_artifact(source, tmp_path / "b", tool, sealed), tool, sealed)
    assert statuses(found) == {"declared": "WARN"}
    assert "'lm_head' is kept by the tool's own rule" in sentence(found, "declared")


# --------------------------------------------------------------------------- files


def damage_text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def link(folder: Path) -> None:
    (folder / "LICENSE").rename(folder.parent / "elsewhere")
    (folder / "LICENSE").symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "expected", "says"),
    [
        (damage_text("tokenizer.json", "{ }"), {"companions": "FAIL"}, "tokenizer.json differs"),
        (damage_text("chat_template.jinja", "x"), {"companions": "FAIL"}, "chat_template.jinja"),
        (lambda f: (f / "LICENSE").unlink(), {"companions": "FAIL"}, "LICENSE of the source"),
        (lambda f: (f / "generation_config.json").unlink(), {"companions": "FAIL"}, "generation"),
        (damage_text("added_tokens.json", "{}"), {"companions": "FAIL"}, "not in the source"),
        (damage_text("pytorch_model.bin", ""), {"harmless": "FAIL"}, "pytorch_model.bin"),
        (damage_text("modeling_x.py", "1"), {"harmless": "FAIL"}, "code the source does not have"),
        (lambda f: (f / "x").write_bytes(b"\x80\x04\x95"), {"harmless": "FAIL"}, "like a pickle"),
        (link, {"harmless": "FAIL"}, "LICENSE is a link"),
        (damage_text("notes.txt", "x"), {"harmless": "WARN"}, "notes.txt is not expected"),
        (damage_text("calibration.json", "{}"), {"calibration": "WARN"}, "nothing was calibrated"),
    ],
)
def test_files_that_are_not_what_they_should_be(
    source: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    expected: dict[str, str],
    says: str,
) -> None:
    folder = make_artifact(source, tmp_path / "a", FP8)
    damage(folder)
    found = look(source, folder, FP8)
    assert statuses(found) == expected
    assert says in sentence(found, next(iter(expected)))


def test_code_of_the_source_is_allowed(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    (source / "modeling_x.py").write_text("1")
    folder = make_artifact(source, tmp_path / "a", FP8)
    (folder / "modeling_x.py").write_text("1")
    assert statuses(look(source, folder, FP8)) == {}
    (folder / "modeling_x.py").write_text("2")
    assert statuses(look(source, folder, FP8)) == {"harmless": "FAIL"}


# --------------------------------------------------------------------------- config


def group(c: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = c["quantization_config"]["config_groups"]["group_0"]["weights"]
    return found


@pytest.mark.parametrize(
    ("edit", "names", "says"),
    [
        (lambda c: group(c).update(group_size=128), {"quantization config", "tensors"}, "group is"),
        (lambda c: group(c).update(num_bits=8), {"quantization config", "tensors", "size"}, "bits"),
        (lambda c: group(c).update(actorder=None), {"quantization config"}, "order is None"),
        (lambda c: group(c).update(symmetric=False), {"quantization config", "tensors"}, "symm"),
        (lambda c: group(c).pop("strategy"), {"quantization config", "tensors"}, "no usable"),
        (lambda c: c.pop("quantization_config"), {"quantization config", "tensors"}, "no quant"),
        (
            lambda c: c["quantization_config"].update(quant_method="magic"),
            {"quantization config", "tensors"},
            "'magic'",
        ),
        (
            lambda c: c["quantization_config"].update(ignore=["lm_head", LAYER]),
            {"declared"},
            "the config leaves it out",
        ),
        (lambda c: c.update(vocab_size=511), {"model config"}, "vocab_size is 511"),
        (lambda c: c.pop("rope_theta"), set(), "rope_theta of the source is missing"),
        (lambda c: c.update(auto_map={"x": "y.Z"}), {"model config"}, "other code"),
    ],
)
def test_a_config_that_was_edited(
    source: Path,
    tmp_path: Path,
    edit: Callable[[dict[str, Any]], object],
    names: set[str],
    says: str,
) -> None:
    sealed = seal()
    folder = make_artifact(source, tmp_path / "a", W4, sealed)
    edit_json(folder / "config.json", edit)
    found = look(source, folder, W4, sealed)
    failed = {c.name for c in found.having("FAIL")}
    assert names <= failed and failed - names <= {"size"}
    assert any(says in c.sentence for c in found.checks if c.status != "PASS")


def test_rotary_settings_may_move(source: Path, tmp_path: Path) -> None:
    folder = make_artifact(source, tmp_path / "a", FP8)

    def move(config: dict[str, Any]) -> None:
        config["rope_parameters"] = {"rope_theta": config.pop("rope_theta")}

    edit_json(folder / "config.json", move)
    assert statuses(look(source, folder, FP8)) == {}


def test_a_recipe_that_asked_for_something_else(source: Path, tmp_path: Path) -> None:
    sealed = seal()
    folder = make_artifact(source, tmp_path / "a", W4, sealed)
    found = look(source, folder, GptqSpec(name="v", group_size=128), sealed)
    assert statuses(found) == {"quantization config": "FAIL"}
    assert "group is 64 instead of 128" in sentence(found, "quantization config")


def test_the_default_type_of_bitsandbytes_is_refused(source: Path, tmp_path: Path) -> None:
    nf4 = Nf4Spec(name="v")
    folder = make_artifact(source, tmp_path / "a", nf4)
    edit_json(folder / "config.json", lambda c: c["quantization_config"].pop("bnb_4bit_quant_type"))
    found = look(source, folder, nf4)
    assert "the default is fp4" in sentence(found, "quantization config")


def test_nan_that_a_tool_made_a_number_of(source: Path, tmp_path: Path) -> None:
    """bitsandbytes leaves no trace of it: without NaN the variant would beat its own baseline."""
    nf4 = Nf4Spec(name="v")
    folder = make_artifact(source, tmp_path / "a", nf4)
    assert statuses(look(source, folder, nf4)) == {}
    edit_tensors(source, poison("model.layers.1.mlp.up_proj.weight", 0x7FC0))
    found = look(source, folder, nf4)
    assert "1 values of 'model.layers.1.mlp.up_proj.weight' of the source" in sentence(
        found, "finite"
    )
    assert statuses(found) == {"finite": "FAIL"}


def test_a_hidden_fallback_is_shown(source: Path, tmp_path: Path) -> None:
    variant, sealed = GptqModelSpec(name="v", group_size=64), seal()
    folder = make_artifact(source, tmp_path / "a", variant, sealed)
    edit_json(
        folder / "config.json",
        lambda c: c["quantization_config"].update(fallback={"strategy": "rtn"}),
    )
    found = look(source, folder, variant, sealed)
    assert statuses(found) == {"quantization config": "WARN"}
    assert "rtn" in sentence(found, "quantization config")


# --------------------------------------------------------------------------- tensors


def fill(name: str, code: int) -> Callable[[Raw], object]:
    def edit(tensors: Raw) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, code.to_bytes(2, "little") * (len(data) // 2))

    return edit


def poison(name: str, code: int) -> Callable[[Raw], object]:
    """Replace the first 16 bits of a tensor."""

    def edit(tensors: Raw) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, code.to_bytes(2, "little") + data[2:])

    return edit


def reshape(name: str, *shape: int) -> Callable[[Raw], object]:
    rng = np.random.default_rng(5)
    return lambda tensors: tensors.update({name: bf16(rng, *shape, low=0.1)})


SCALE, NORM = f"{LAYER}.weight_scale", "model.norm.weight"


@pytest.mark.parametrize(
    ("edit", "expected", "says"),
    [
        (lambda t: t.pop(SCALE), {"tensors"}, f"'{SCALE}' is missing"),
        (lambda t: t.pop(NORM), {"tensors"}, f"'{NORM}' [128] is gone"),
        (lambda t: t.pop(f"{LAYER}.weight_packed"), {"tensors"}, f"'{LAYER}.weight' [128, 256]"),
        (reshape(SCALE, 128, 2), {"tensors"}, "[128, 2] where [128, 4] fits"),
        (reshape(NORM, 64), {"tensors"}, "'model.norm.weight' is [64], [128] in the source"),
        (reshape("extra.weight", 4), {"tensors"}, "'extra.weight' belongs to no weight"),
        (poison(f"{LAYER}.weight_shape", 7), {"tensors"}, "weight_shape' says [7, 256]"),
        (poison(SCALE, 0x7FC0), {"finite"}, f"1 values of '{SCALE}' are NaN or infinite"),
        (poison(SCALE, 0x7F80), {"finite"}, f"1 values of '{SCALE}' are NaN or infinite"),
        (poison(NORM, 0xFF80), {"finite", "kept weights"}, f"1 values of '{NORM}' are NaN"),
        (poison(NORM, 0x3F80), {"kept weights"}, f"'{NORM}' has other values"),
        (fill(SCALE, 0), {"scales"}, f"every value of '{SCALE}' is 0"),
        (fill(f"{LAYER}.weight_packed", 0x1111), {"scales"}, "is one value"),
        (
            reshape(f"{LAYER}.weight", 128, 256),
            {"tensors", "declared", "kept weights"},
            "was to be",
        ),
    ],
)
def test_tensors_that_are_wrong(
    source: Path,
    tmp_path: Path,
    edit: Callable[[Raw], object],
    expected: set[str],
    says: str,
) -> None:
    sealed = seal()
    folder = make_artifact(source, tmp_path / "a", W4, sealed)
    edit_tensors(folder, edit)
    found = look(source, folder, W4, sealed)
    assert {c.name for c in found.having("FAIL")} == expected
    assert any(says in p for c in found.checks for p in c.details.get("problems", ()))


def test_scales_that_are_all_alike_are_suspicious(source: Path, tmp_path: Path) -> None:
    sealed = seal()
    folder = make_artifact(source, tmp_path / "a", W4, sealed)
    edit_tensors(folder, fill(SCALE, 0x3F00))
    assert statuses(look(source, folder, W4, sealed)) == {"scales": "WARN"}

    def ones(tensors: Raw) -> None:
        for name in [n for n in tensors if n.endswith("_scale")]:
            fill(name, 0x3F80)(tensors)

    edit_tensors(folder, ones)
    found = look(source, folder, W4, sealed)
    assert statuses(found) == {"scales": "FAIL"}
    assert "as before calibration" in sentence(found, "scales")


@pytest.mark.parametrize(
    "awq", [AwqSpec(name="v", group_size=64), AutoAwqSpec(name="v", group_size=64)]
)
def test_smoothing_may_change_norms_but_no_embeddings(
    source: Path, tmp_path: Path, awq: VariantSpec
) -> None:
    sealed = seal()
    folder = make_artifact(source, tmp_path / "a", awq, sealed)
    edit_tensors(folder, poison(NORM, 0x3F80))
    assert statuses(look(source, folder, awq, sealed)) == {}
    edit_tensors(folder, poison("model.embed_tokens.weight", 0x3F80))
    assert statuses(look(source, folder, awq, sealed)) == {"kept weights": "FAIL"}


def test_a_layer_quantized_though_the_recipe_ignores_it(source: Path, tmp_path: Path) -> None:
    variant, sealed = GptqSpec(name="v", group_size=64, ignore=("lm_head", f"re:.*{LAYER}")), seal()
    folder = make_artifact(source, tmp_path / "a", W4, sealed)
    found = look(source, folder, variant, sealed)
    assert statuses(found) == {"declared": "FAIL"}
    assert "the recipe ignores it" in sentence(found, "declared")


def test_shards_and_index(source: Path, tmp_path: Path) -> None:
    folder = make_artifact(source, tmp_path / "a", FP8)
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    from raw_safetensors import read_raw, write_raw

    tensors = read_raw(folder / "one.safetensors")
    index = {
        "metadata": {"total_size": sum(len(t[2]) for t in tensors.values())},
        "weight_map": dict.fromkeys(tensors, "one.safetensors"),
    }
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    assert statuses(look(source, folder, FP8)) == {}
    write_raw(folder / "stale.safetensors", {"x": tensors[NORM]})
    found = look(source, folder, FP8)
    assert statuses(found) == {"shards": "FAIL"}
    assert "stale.safetensors is in no index" in sentence(found, "shards")
    (folder / "stale.safetensors").unlink()
    edit_json(path, lambda c: c["metadata"].update(total_size=3))
    assert "the index says 3 bytes" in sentence(look(source, folder, FP8), "shards")
    edit_json(path, lambda c: c["weight_map"].update(ghost="one.safetensors"))
    found = look(source, folder, FP8)
    assert statuses(found) == {"tensors": "FAIL"} and "'ghost'" in sentence(found, "tensors")


def test_a_truncated_file_is_a_fail_and_no_crash(source: Path, tmp_path: Path) -> None:
    folder = make_artifact(source, tmp_path / "a", FP8)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    found = look(source, folder, FP8)
    assert statuses(found) == {"tensors": "FAIL"} and "truncated" in sentence(found, "tensors")


# --------------------------------------------------------------------------- seal, KV cache


def test_the_seal(source: Path, tmp_path: Path) -> None:
    folder = make_artifact(source, tmp_path / "a", W4, seal())
    other = seal().model_copy(update={"seal": "6" * 64})
    assert statuses(look(source, folder, W4, other)) == {"calibration": "FAIL"}
    edit_json(folder / "calibration.json", lambda c: c.update(seed=8))
    assert "is not what its seal" in sentence(look(source, folder, W4, seal()), "calibration")
    (folder / "calibration.json").write_text("{}")
    assert statuses(look(source, folder, W4, seal())) == {"calibration": "FAIL"}
    (folder / "calibration.json").unlink()
    assert statuses(look(source, folder, W4, seal())) == {"calibration": "FAIL"}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t.pop("model.layers.1.self_attn.v_scale"), "3 scales of keys and values"),
        (
            lambda t: [fill(n, 0x3F80)(t) for n in t if n.endswith(("k_scale", "v_scale"))],
            "never calibrated",
        ),
        (fill("model.layers.1.self_attn.v_scale", 0), "v_scale' is 0"),
        (fill("model.layers.1.self_attn.v_scale", 0x7FC0), "v_scale' is 0"),
    ],
)
def test_scales_of_the_kv_cache(
    source: Path, tmp_path: Path, edit: Callable[[Raw], object], says: str
) -> None:
    cached, sealed = Fp8Spec(name="v", kv_cache="fp8"), seal()
    folder = make_artifact(source, tmp_path / "a", cached, sealed)
    edit_tensors(folder, edit)
    found = look(source, folder, cached, sealed)
    assert statuses(found)["kv cache"] == "FAIL" and says in sentence(found, "kv cache")


def test_kv_scales_nobody_announced_or_asked_for(source: Path, tmp_path: Path) -> None:
    cached, sealed = Fp8Spec(name="v", kv_cache="fp8"), seal()
    folder = make_artifact(source, tmp_path / "a", cached, sealed)
    (folder / "calibration.json").unlink()
    assert statuses(look(source, folder, FP8)) == {"kv cache": "WARN"}
    edit_json(folder / "config.json", lambda c: c["quantization_config"].pop("kv_cache_scheme"))
    assert statuses(look(source, folder, cached)) == {"kv cache": "FAIL"}


# --------------------------------------------------------------------------- GGUF


@pytest.mark.parametrize("kind", ["Q8_0", "source", "F16"])
def test_a_faultless_gguf_passes(source: Path, tmp_path: Path, kind: Any) -> None:
    variant = GgufSpec(name="v", type=kind)
    found = look(source, make_gguf(source, tmp_path / "a", variant), variant)
    assert statuses(found) == {}
    assert sum(g.layers for g in found.layers) == 1 + LAYERS * 9 + 1
    assert list(found.files) == ["model.gguf"]


def test_widths_that_do_not_suit_a_k_quant_fall_back(source: Path, tmp_path: Path) -> None:
    found = look(source, make_gguf(source, tmp_path / "a", Q4), Q4)
    assert statuses(found) == {"fallback": "WARN"}
    # Everything of width 128: the embedding and six of seven layers.
    assert "13 of 15 matrices have a width that is no multiple of 256" in sentence(
        found, "fallback"
    )
    rows = {(g.format, g.why): g for g in found.layers}
    assert rows["Q4_K", "quantized"].layers == LAYERS
    assert not rows["Q5_0", "fell back: width 128"].declared


def test_a_calibrated_gguf_carries_seal_and_matrix(source: Path, tmp_path: Path) -> None:
    variant, sealed = GgufSpec(name="v", type="Q4_K_M"), seal()
    folder = make_gguf(source, tmp_path / "a", variant, sealed)
    assert statuses(look(source, folder, variant, sealed)) == {"fallback": "WARN"}
    other = sealed.model_copy(update={"seal": "6" * 64})
    found = look(source, folder, variant, other)
    assert {c.name for c in found.having("FAIL")} == {"seal", "calibration"}
    plain = make_gguf(source, tmp_path / "b", Q4, sealed)
    found = look(source, plain, variant, sealed)
    assert "quantize.imatrix" in sentence(found, "metadata")


@pytest.mark.parametrize(
    ("changes", "name", "says"),
    [
        ({"metadata": {"general.file_type": 7}}, "metadata", "file_type is 7 instead of 15"),
        ({"metadata": {"llama.block_count": 3}}, "metadata", "block_count is 3 instead of 2"),
        ({"metadata": {"tokenizer.ggml.eos_token_id": 1}}, "metadata", "eos_token_id is 1"),
        ({"metadata": {"tokenizer.chat_template": "x"}}, "metadata", "not the source's"),
        ({"drop": "blk.1.ffn_up.weight"}, "tensors", "'model.layers.1.mlp.up_proj.weight'"),
        ({"types": lambda name, width: "Q2_K" if width == 256 else "Q5_0"}, "types", "below Q4_K"),
    ],
)
def test_a_gguf_that_is_wrong(
    source: Path, tmp_path: Path, changes: dict[str, Any], name: str, says: str
) -> None:
    found = look(source, make_gguf(source, tmp_path / "a", Q4, **changes), Q4)
    assert {c.name for c in found.having("FAIL")} == {name}
    assert says in sentence(found, name)


def test_nan_in_a_block_scale(source: Path, tmp_path: Path) -> None:
    from workbench.gguf_header import read_gguf

    folder = make_gguf(source, tmp_path / "a", Q4)
    path = folder / "model.gguf"
    tensor = read_gguf(path).tensors["blk.0.ffn_down.weight"]
    data = bytearray(path.read_bytes())
    data[tensor.offset : tensor.offset + 2] = b"\x00\x7e"
    path.write_bytes(data)
    found = look(source, folder, Q4)
    assert {c.name for c in found.having("FAIL")} == {"finite"}
    assert "1 scales or values of 'blk.0.ffn_down.weight'" in sentence(found, "finite")


@pytest.mark.parametrize("size", [3, 40, 2000, -10])
def test_a_gguf_cut_short(source: Path, tmp_path: Path, size: int) -> None:
    folder = make_gguf(source, tmp_path / "a", Q4)
    path = folder / "model.gguf"
    path.write_bytes(path.read_bytes()[:size])
    found = look(source, folder, Q4)
    assert {c.name for c in found.having("FAIL")} == {"tensors"}
    assert "cannot be read" in sentence(found, "tensors")


def test_a_second_gguf_file(source: Path, tmp_path: Path) -> None:
    folder = make_gguf(source, tmp_path / "a", Q4)
    shutil.copy(folder / "model.gguf", folder / "other.gguf")
    found = look(source, folder, Q4)
    assert {c.name for c in found.having("FAIL")} == {"one file"}
