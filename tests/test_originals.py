"""GPTQModel, AutoAWQ and AutoGPTQ: what is refused, and what is prepared and finished for them."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from builders import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from projects import edit_recipe
from raw_safetensors import write_raw

from workbench.errors import RecipeError
from workbench.hardware import detect
from workbench.quantizers import quantizer
from workbench.quantizers.autogptq import AutoGptq
from workbench.quantizers.originals import finished_config, older_config, older_source
from workbench.records import Checkpoint, Gpu, Hardware
from workbench.variants import AutoAwqSpec, AutoGptqSpec, GptqModelSpec

INSIDE = Path(__file__).parents[1] / "workbench" / "inside"
CPU = Hardware(cpu="c", isa=("avx2",), cores=2, memory_bytes=24 << 30)
H100 = Gpu(name="H100", compute_capability="9.0", memory_bytes=80 << 30, driver="1")
CUDA = CPU.model_copy(update={"gpus": (H100,)})
V5 = {
    "model_type": "llama",
    "auto_map": {"AutoModel": "code.Model"},
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
}


def source(folder: Path, rows: int = 64, **config: Any) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**V5, **config}))
    name = "model.layers.0.mlp.up_proj.weight"
    write_raw(folder / "model.safetensors", {name: ("BF16", [rows, 64], bytes(rows * 128))})
    return checkpoint().model_copy(update={"path": str(folder), "linear_input_widths": (64, 128)})


# --------------------------------------------------------------------------- what is refused


def test_autogptq_without_cuda_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    spec = AutoGptqSpec(name="old", group_size=64)
    with pytest.raises(
        RecipeError, match="needs a CUDA device, and this machine has none"
    ) as error:
        quantizer("auto-gptq").check(spec, source(tmp_path), CPU)
    assert error.value.where == "variants: old: method"
    assert "'gptqmodel'" in error.value.fix and "'gptq'" in error.value.fix
    quantizer("auto-gptq").check(spec, source(tmp_path), CUDA)


@pytest.mark.skipif(bool(detect().gpus), reason="this machine has a CUDA device")
def test_validate_refuses_it_in_words(workbench: Any, project: Path) -> None:
    variant = {"name": "old", "method": "auto-gptq", "group_size": 64}
    edit_recipe(project, lambda r: r.update(variants=[variant]))
    for command in ("validate", "plan", "run"):
        done = workbench(command, "recipe.yaml")
        assert done.returncode == 2, done.stdout + done.stderr
        assert "needs a CUDA device" in done.stderr and "gptqmodel" in done.stderr
        assert "Traceback" not in done.stderr


SPECS = [
    (GptqModelSpec(name="v", group_size=64), CPU),
    (AutoGptqSpec(name="v", group_size=64), CUDA),
    (AutoAwqSpec(name="v", group_size=64), CPU),
]


@pytest.mark.parametrize(("spec", "machine"), SPECS)
def test_what_all_three_refuse(spec: Any, machine: Hardware, tmp_path: Path) -> None:
    tool, fine = quantizer(spec.method), source(tmp_path)
    tool.check(spec, fine, machine)
    with pytest.raises(RecipeError, match="already quantized"):
        tool.check(spec, fine.model_copy(update={"quantization": "awq"}), machine)
    with pytest.raises(RecipeError, match="group_size 128 does not divide the layer width 64"):
        tool.check(spec.model_copy(update={"group_size": 128}), fine, machine)
    with pytest.raises(RecipeError, match="cannot calibrate the scales of an FP8 KV cache"):
        tool.check(spec.model_copy(update={"kv_cache": "fp8"}), fine, machine)
    with pytest.raises(RecipeError, match="has 40 outputs"):
        tool.check(spec, source(tmp_path, rows=40), machine)


@pytest.mark.parametrize(("spec", "machine"), SPECS[1:])
def test_a_model_the_old_tools_do_not_know(spec: Any, machine: Hardware, tmp_path: Path) -> None:
    tool = quantizer(spec.method)
    with pytest.raises(RecipeError, match="does not know the model type 'qwen9'") as error:
        tool.check(spec, source(tmp_path, model_type="qwen9"), machine)
    assert "instead. Known are" in error.value.fix
    by_layer = {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}
    with pytest.raises(RecipeError, match="differs from layer to layer"):
        tool.check(spec, source(tmp_path, rope_parameters=by_layer), machine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": -1}, "no scales per channel"),
        ({"zero_point": False}, "cannot save symmetric codes"),
    ],
)
def test_what_autoawq_cannot_write(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    spec = AutoAwqSpec(name="v", **{"group_size": 64, **options})
    with pytest.raises(RecipeError, match=message):
        quantizer("autoawq").check(spec, source(tmp_path), CPU)


def test_asymmetric_autogptq_would_damage_zero_points(tmp_path: Path) -> None:
    spec = AutoGptqSpec(name="v", group_size=64, symmetric=False)
    with pytest.raises(RecipeError, match="overwrites its neighbours"):
        AutoGptq().check(spec, source(tmp_path), CUDA)


@pytest.mark.parametrize(("spec", "machine"), SPECS)
def test_estimates_grow_with_the_set_and_shrink_with_a_gpu(spec: Any, machine: Hardware) -> None:
    from workbench.spec import CalibrationSpec

    tool, small = quantizer(spec.method), checkpoint()
    few, many = (CalibrationSpec(source="s", samples=n, max_tokens=128, seed=1) for n in (8, 64))
    assert tool.estimate(spec, small, few, CPU)[0] < tool.estimate(spec, small, many, CPU)[0]
    assert tool.estimate(spec, small, many, CUDA)[0] < tool.estimate(spec, small, many, CPU)[0]


# --------------------------------------------------------------------------- configs


def test_a_config_in_the_words_of_transformers_4() -> None:
    assert older_config(V5) == {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "rope_theta": 100000.0,
    }
    scaled = {"rope_theta": 5.0, "rope_type": "llama3", "factor": 8.0, "partial_rotary_factor": 0.5}
    assert older_config({"rope_parameters": scaled}) == {
        "rope_theta": 5.0,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    }
    old = {"rope_theta": 5.0, "torch_dtype": "float16"}
    assert older_config(old) == old


def test_the_older_source_holds_weights_and_config_only(tmp_path: Path) -> None:
    made = source(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "model" / "code.py").write_text("raise SystemExit")
    scratch = tmp_path / "job" / "source"
    scratch.mkdir(parents=True)
    (scratch / "old").write_text("of an attempt that was cut short")
    with older_source(Path(made.path), scratch) as folder:
        assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors"}
        weights = folder / "model.safetensors"
        assert weights.resolve() == (tmp_path / "model" / "model.safetensors").resolve()
        assert "auto_map" not in json.loads((folder / "config.json").read_text())
    assert not scratch.exists() and (tmp_path / "model" / "model.safetensors").is_file()


def test_the_output_has_the_sources_config_and_what_changed() -> None:
    made = {"torch_dtype": "float16", "rope_theta": 1.0, "quantization_config": {"bits": 4}}
    changed = {"dtype": "float16", "quantization_config": {"bits": 4}}
    assert finished_config(V5, made) == {**V5, **changed}
    assert finished_config({"torch_dtype": "bfloat16"}, made)["torch_dtype"] == "float16"


# --------------------------------------------------------------------------- AutoAWQ's blocks


@pytest.fixture(scope="module")
def block_length() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(INSIDE))
        return importlib.import_module("_tokens").block_length


def test_blocks_lose_as_few_tokens_as_possible(block_length: Any) -> None:
    assert block_length([[0] * 6, [0] * 4, [0] * 2], 100) == 6
    assert block_length([[0] * 5, [0] * 4, [0] * 3], 100) == 6
    assert block_length([[0] * 5, [0] * 4, [0] * 4], 5) == 5  # the model has no more positions


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 200))
def test_a_block_holds_the_longest_row(block_length: Any, lengths: list[int], limit: int) -> None:
    length = block_length([[0] * n for n in lengths], limit)
    assert max(lengths) <= length <= max(limit, *lengths)
    # A shorter remainder is never found where blocks are exactly as long as the longest row.
    assert sum(lengths) % length <= sum(lengths) % max(lengths)
