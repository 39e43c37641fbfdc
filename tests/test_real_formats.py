"""Every format of llm-compressor and bitsandbytes, really made, on a checkpoint of two layers.

Each artifact's config is read, its twin is compared with the original within the format's error,
and what a method folds into other tensors (AWQ, SmoothQuant) is unfolded for the comparison.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from projects import ROOT
from raw_safetensors import cut_layers, read_raw, write_raw

from workbench import envs
from workbench.artifact import examine
from workbench.calibration import resolve_source, seal
from workbench.checkpoint import COMPANIONS, digests, inspect
from workbench.errors import JobFailure
from workbench.hardware import detect
from workbench.progress import silent
from workbench.quantizers import QuantizeOutcome, Task, quantizer
from workbench.quantizers.awq_mappings import AWQ_ARCHITECTURES, AWQ_LAYERS
from workbench.quantizers.llmcompressor_checks import SMOOTHQUANT_ARCHITECTURES
from workbench.quantizers.twin import dequantize
from workbench.records import Calibration
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer
from workbench.variants import AwqSpec, Fp8Spec, GptqSpec, Int8Spec, Nf4Spec, NoneSpec

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

INSIDE = ROOT / "workbench" / "inside"
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Bench:
    python: str
    cut: Path
    sealed: Calibration
    sealed_folder: Path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Bench:
    folder = tmp_path_factory.mktemp("formats")
    python = envs.ensure("quantize", detect().target, silent).python
    cut = cut_layers(demo, folder / "cut", 2)
    spec = CalibrationSpec(source="instructions", samples=8, max_tokens=96)
    source = resolve_source("instructions", ROOT)
    sealed = seal(spec, source, Tokenizer.load(cut), "id", folder / "sealed")
    return Bench(python, cut, sealed, folder / "sealed")


def make(
    bench: Bench,
    variant: Any,
    folder: Path,
    source: Path | None = None,
    told: list[tuple[float, float, str]] | None = None,
) -> tuple[Path, QuantizeOutcome]:
    checkpoint = inspect(source or bench.cut)
    tool = quantizer(variant.method)
    tool.check(variant, checkpoint, detect())
    outcome = tool.quantize(
        Task(
            variant,
            checkpoint,
            folder / "out",
            folder=folder / "job",
            log=folder / "log",
            progress=silent if told is None else lambda *state: told.append(state),
            pythons={"quantize": bench.python},
            calibration=bench.sealed if variant.calibrates else None,
            calibration_folder=bench.sealed_folder if variant.calibrates else None,
        )
    )
    files = digests(folder / "out", None)
    found = examine(
        checkpoint, variant, folder / "out", files, bench.sealed if variant.calibrates else None
    )
    assert [c.sentence for c in found.checks if c.status != "PASS"] == []
    return folder / "out", outcome


def twin_of(bench: Bench, made: Path, folder: Path) -> tuple[Arrays, QuantizeOutcome]:
    out = folder / "twin"
    outcome = dequantize(
        made,
        out,
        python=bench.python,
        folder=folder / "twin-job",
        log=folder / "twin-log",
        progress=silent,
    )
    assert inspect(out).quantization is None
    for name in COMPANIONS:
        if (made / name).is_file():
            assert (out / name).read_bytes() == (made / name).read_bytes()
    return arrays(out), outcome


def arrays(folder: Path) -> Arrays:
    """Every tensor as float32."""
    found = {}
    for name, (dtype, shape, data) in read_raw(folder / "model.safetensors").items():
        if dtype == "BF16":
            values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            assert dtype == "F32", (name, dtype)
            values = np.frombuffer(data, "<f4")
        found[name] = values.reshape(shape)
    return found


def products(tensors: Arrays) -> Arrays:
    """What AWQ and SmoothQuant leave as it is: each linear layer with the scaling before it.

    A norm's weight times the columns it feeds, and down_proj times up_proj (one scales the rows of
    the other).
    """
    found = {}
    for layer in range(2):
        stem = f"model.layers.{layer}"
        attention = tensors[f"{stem}.input_layernorm.weight"]
        mlp = tensors[f"{stem}.post_attention_layernorm.weight"]
        for name, norm in (
            *((f"self_attn.{p}_proj", attention) for p in "qkv"),
            *((f"mlp.{p}_proj", mlp) for p in ("gate", "up")),
        ):
            # up_proj's rows are scaled by the mapping to down_proj: only the product is kept.
            if name != "mlp.up_proj":
                found[name + str(layer)] = tensors[f"{stem}.{name}.weight"] * norm
        up = tensors[f"{stem}.mlp.up_proj.weight"] * mlp
        found[f"down_up{layer}"] = tensors[f"{stem}.mlp.down_proj.weight"] @ up
        # Without a mapping of its own where keys are shared between heads (grouped queries).
        found[f"o_proj{layer}"] = tensors[f"{stem}.self_attn.o_proj.weight"]
    return found


def worst(one: Arrays, other: Arrays) -> float:
    """Largest relative distance (Frobenius norm) of two tensors of the same name."""
    assert one.keys() == other.keys()
    return max(float(np.linalg.norm(one[n] - other[n]) / np.linalg.norm(other[n])) for n in one)


# name -> variant, what its config must say of weights and activations, and the format's error
FORMATS: dict[str, tuple[Any, dict[str, Any], dict[str, Any] | None, float]] = {
    "fp8-static": (
        Fp8Spec(name="v", scheme="static"),
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
        {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
        0.05,
    ),
    "gptq-w8-asym": (
        GptqSpec(
            name="v", bits=8, group_size=-1, symmetric=False, act_order="none", dampening=0.05
        ),
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
        None,
        0.02,
    ),
    "gptq-w4-asym": (
        GptqSpec(name="v", group_size=32, symmetric=False),
        {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False},
        None,
        0.2,
    ),
    "awq-w4": (
        AwqSpec(name="v", group_size=64, grid_size=4),
        {"num_bits": 4, "type": "int", "group_size": 64, "symmetric": False},
        None,
        0.2,
    ),
    "awq-w8-sym": (
        AwqSpec(name="v", bits=8, group_size=-1, zero_point=False, grid_size=3),
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        None,
        0.03,
    ),
    "int8": (
        Int8Spec(name="v", smoothing=0.7),
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        0.03,
    ),
    "int8-unsmoothed": (
        Int8Spec(name="v", smoothing=0),
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        0.02,
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_format_and_its_twin(bench: Bench, name: str, tmp_path: Path) -> None:
    variant, weights, activations, error = FORMATS[name]
    told: list[tuple[float, float, str]] = []
    out, outcome = make(bench, variant, tmp_path, told=told)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["ignore"] == ["lm_head"] and not config.get("kv_cache_scheme")
    group = config["config_groups"]["group_0"]
    assert {key: group["weights"][key] for key in weights} == weights
    if activations is None:
        assert group["input_activations"] is None
    else:
        assert {key: group["input_activations"][key] for key in activations} == activations
    assert outcome.choices["layers"].value == "14 of 15"
    assert inspect(out).parameters == inspect(bench.cut).parameters
    assert Calibration.model_validate_json((out / "calibration.json").read_text()) == bench.sealed
    if variant.method != "fp8":  # which passes two layers faster than progress is read
        assert any(what.startswith("layer 2/2") for _, _, what in told)
    for file in COMPANIONS:
        if (bench.cut / file).is_file():
            assert (out / file).read_bytes() == (bench.cut / file).read_bytes()

    twin, made = twin_of(bench, out, tmp_path)
    original = arrays(bench.cut)
    assert {n: a.shape for n, a in twin.items()} == {n: a.shape for n, a in original.items()}
    assert 0 < worst(products(twin), products(original)) < error
    embedding = "model.embed_tokens.weight"
    assert np.array_equal(twin[embedding], original[embedding])
    assert ("activations" in made.choices["twin"].reason) is (activations is not None)
    # Smoothing is in the norms of the twin, and in no other format's.
    smooths = isinstance(variant, AwqSpec) or getattr(variant, "smoothing", 0) > 0
    norm = "model.layers.1.input_layernorm.weight"
    assert np.array_equal(twin[norm], original[norm]) is not smooths
    if isinstance(variant, AwqSpec):
        # Two layers of three mappings; v_proj to o_proj does not fit grouped queries.
        assert outcome.choices["mappings"].value == "LlamaForCausalLM"
        assert "6 smoothed, 2 skipped" in outcome.choices["mappings"].reason
        assert any("grid search for" in what for _, _, what in told)
        done = [at / of for at, of, _ in told if of]
        assert done == sorted(done)
    if variant.method == "int8":
        assert ("smoothing" in outcome.choices) is smooths


@pytest.mark.parametrize(
    ("variant", "kept", "error"),
    [
        (Nf4Spec(name="v"), 1, 0.11),
        (
            Nf4Spec(
                name="v",
                double_quant=False,
                compute_dtype="float32",
                ignore=("lm_head", "re:.*down_proj"),
            ),
            3,
            0.11,
        ),
    ],
    ids=["double", "single-ignore"],
)
def test_nf4_and_its_twin(
    bench: Bench, variant: Nf4Spec, kept: int, error: float, tmp_path: Path
) -> None:
    out, outcome = make(bench, variant, tmp_path)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "bitsandbytes" and config["load_in_4bit"] is True
    assert config["bnb_4bit_quant_type"] == "nf4"
    assert config["bnb_4bit_use_double_quant"] is variant.double_quant
    assert config["bnb_4bit_compute_dtype"] == variant.compute_dtype
    assert outcome.choices["layers"].value == f"{15 - kept} of 15"
    assert inspect(out).parameters == inspect(bench.cut).parameters
    assert outcome.choices["type"].value.startswith("nf4")
    raw = read_raw(out / "model.safetensors")
    states = [name for name in raw if name.endswith("quant_state.bitsandbytes__nf4")]
    assert len(states) == 15 - kept
    nested = [name for name in raw if name.endswith("nested_absmax")]
    assert len(nested) == (len(states) if variant.double_quant else 0)
    assert outcome.packages["bitsandbytes"] == "0.50.2"

    twin, made = twin_of(bench, out, tmp_path)
    original = arrays(bench.cut)
    assert {n: a.shape for n, a in twin.items()} == {n: a.shape for n, a in original.items()}
    changed = {n for n in twin if not np.array_equal(twin[n], original[n])}
    assert changed == {name.partition(".weight.")[0] + ".weight" for name in states}
    assert 0.03 < worst({n: twin[n] for n in changed}, {n: original[n] for n in changed}) < error
    assert made.choices["twin"].value.startswith(f"float32, {15 - kept} of ")


def test_fp8_kv_cache_of_untouched_weights(bench: Bench, tmp_path: Path) -> None:
    out, outcome = make(bench, NoneSpec(name="v", kv_cache="fp8"), tmp_path)
    raw, source = (read_raw(p / "model.safetensors") for p in (out, bench.cut))
    scales = {name for name in raw if name.endswith(("k_scale", "v_scale"))}
    assert len(scales) == 4
    assert {n: t for n, t in raw.items() if n not in scales} == source
    scheme = json.loads((out / "config.json").read_text())["quantization_config"]
    asked = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    assert {key: scheme["kv_cache_scheme"][key] for key in asked} == asked
    assert outcome.choices["kv_cache"].value.startswith("fp8, 4 scales from ")
    assert "0 of them 1.0" in outcome.choices["kv_cache"].reason
    assert (out / "calibration.json").is_file()


@pytest.mark.parametrize(
    "variant",
    [
        Fp8Spec(name="v", kv_cache="fp8"),
        GptqSpec(name="v", group_size=64, kv_cache="fp8"),
        AwqSpec(name="v", group_size=64, grid_size=3, kv_cache="fp8"),
    ],
    ids=lambda variant: variant.method,
)
def test_fp8_kv_cache_beside_quantized_weights(bench: Bench, variant: Any, tmp_path: Path) -> None:
    out, outcome = make(bench, variant, tmp_path)
    assert outcome.choices["layers"].value == "14 of 15"
    assert outcome.choices["kv_cache"].value.startswith("fp8, 4 scales from ")
    twin, made = twin_of(bench, out, tmp_path)
    assert {n: a.shape for n, a in twin.items()} == {
        n: a.shape for n, a in arrays(bench.cut).items()
    }
    assert "KV cache is not in FP8" in made.choices["twin"].reason


def test_an_ignored_attention_layer_has_no_kv_scales(bench: Bench, tmp_path: Path) -> None:
    variant = Fp8Spec(name="v", kv_cache="fp8", ignore=("lm_head", r"re:.*layers[.]1[.].*"))
    with pytest.raises(JobFailure, match="matches 1 attention layers") as error:
        make(bench, variant, tmp_path)
    assert "name the linear layers" in error.value.fix


def test_fp8_blocks(bench: Bench, tmp_path: Path) -> None:
    source = small_model(bench.cut, tmp_path / "small")
    out, _ = make(bench, Fp8Spec(name="v", scheme="block"), tmp_path, source)
    group = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    assert group["group_0"]["weights"]["block_structure"] == [128, 128]
    assert group["group_0"]["input_activations"]["group_size"] == 128
    name = "model.layers.0.mlp.down_proj.weight_scale"
    assert read_raw(out / "model.safetensors")[name][1] == [2, 3]
    twin, _ = twin_of(bench, out, tmp_path)
    original = arrays(source)
    assert {n: a.shape for n, a in twin.items()} == {n: a.shape for n, a in original.items()}
    assert 0 < worst(twin, original) < 0.05


def small_model(like: Path, out: Path) -> Path:
    """A Llama of random weights whose widths are multiples of 128."""
    out.mkdir()
    for path in like.iterdir():
        if path.suffix != ".safetensors":
            (out / path.name).write_bytes(path.read_bytes())
    config = json.loads((out / "config.json").read_text())
    config |= {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    (out / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (config["vocab_size"], 256), "model.norm": (256,)}
    for name, rows, columns in (
        *(("self_attn.q_proj", 256, 256), ("self_attn.k_proj", 128, 256)),
        *(("self_attn.v_proj", 128, 256), ("self_attn.o_proj", 256, 256)),
        *(("mlp.gate_proj", 384, 256), ("mlp.up_proj", 384, 256), ("mlp.down_proj", 256, 384)),
    ):
        shapes[f"model.layers.0.{name}"] = (rows, columns)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"model.layers.0.{norm}"] = (256,)
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes.items():
        values = random.normal(0, 0.02, shape).astype("<f4")
        values = values if len(shape) == 2 else np.ones(shape, "<f4")
        half = (values.view("<u4") >> 16).astype("<u2")
        tensors[f"{name}.weight"] = ("BF16", list(shape), half.tobytes())
    write_raw(out / "model.safetensors", tensors)
    return out


# --------------------------------------------------------------------------- twins, computed

LOGITS = """
import sys, torch
from transformers import AutoModelForCausalLM
ids = torch.arange(100, 164).unsqueeze(0)
logits = []
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits.append(model(ids).logits.float())
original, quantized, twin = logits
print("FOUND", *(((a - quantized).norm() / quantized.norm()).item() for a in (original, twin)))
"""


@pytest.mark.parametrize(
    "variant",
    [
        Nf4Spec(name="v", compute_dtype="float32"),
        AwqSpec(name="v", group_size=64, grid_size=3),
        GptqSpec(name="v", group_size=64),
    ],
    ids=lambda variant: variant.method,
)
def test_a_twin_computes_what_its_checkpoint_computes(
    bench: Bench, variant: Any, tmp_path: Path
) -> None:
    out, _ = make(bench, variant, tmp_path)
    twin_of(bench, out, tmp_path)
    folders = (bench.cut, out, tmp_path / "twin")
    original, twin = map(float, found(bench, LOGITS, *map(str, folders)).split())
    assert original > 0.02, "quantizing changed nothing"
    assert twin < original / 20


# --------------------------------------------------------------------------- the tool itself

REGISTRIES = """
import json
from llmcompressor.modifiers.transform import awq
from llmcompressor.modifiers.transform.smoothquant import dynamic_mappings, utils
smooth = {*utils.MAPPINGS_REGISTRY, *dynamic_mappings.SMOOTHQUANT_DYNAMIC_MAPPING_REGISTRY}
found = {*awq.AWQ_MAPPING_REGISTRY, *awq.AWQ_DYNAMIC_MAPPING_REGISTRY}
layers = {
    name: sorted({p for m in mappings for p in (m.smooth_layer, *m.balance_layers)})
    for name, mappings in awq.AWQ_MAPPING_REGISTRY.items()
}
print("FOUND", json.dumps([sorted(found), sorted(smooth), layers]))
"""

PIN = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import _awq_pin_memory
from llmcompressor.pipelines.cache import IntermediatesCache
ours = IntermediatesCache.pin_memory
if sys.argv[2] == "fixed":
    def ours(self, batch_index, input_names=None):
        if torch.accelerator.is_available():
            raise NotImplementedError
    IntermediatesCache.pin_memory = ours
applied = _awq_pin_memory.apply()
cache = IntermediatesCache(None, None)
cache.append({"x": torch.ones(2)})
cache.pin_memory(0)
left = IntermediatesCache.pin_memory is ours
print("FOUND", applied, left, _awq_pin_memory.apply(), cache.fetch(0)["x"].tolist())
"""


def found(bench: Bench, script: str, *arguments: str) -> str:
    command = [bench.python, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return line.removeprefix("FOUND ")


def test_the_tables_of_architectures_are_the_tools_own(bench: Bench) -> None:
    awq, smooth, layers = json.loads(found(bench, REGISTRIES))
    assert tuple(awq) == AWQ_ARCHITECTURES
    assert tuple(smooth) == SMOOTHQUANT_ARCHITECTURES
    assert {name: sorted({*AWQ_LAYERS[name]}) for name in layers} == layers


@pytest.mark.skipif(bool(detect().gpus), reason="memory can be pinned where a GPU is")
def test_the_awq_workaround_applies_where_it_is_needed_only(bench: Bench) -> None:
    # Needed by the pinned version: applied once, and then no longer needed.
    assert found(bench, PIN, str(INSIDE), "pinned") == "True False False [1.0, 1.0]"
    # A version that looks for an accelerator itself is left alone.
    assert found(bench, PIN, str(INSIDE), "fixed") == "False True False [1.0, 1.0]"
