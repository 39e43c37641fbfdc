import json
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from artifacts import make_source
from raw_safetensors import write_raw

from workbench.calibration import seal
from workbench.checkpoint import COMPANIONS, inspect
from workbench.envs import ENVIRONMENTS
from workbench.errors import CheckpointError, JobFailure, RecipeError
from workbench.progress import silent
from workbench.quantizers import QUANTIZERS, Task, notes, quantizer
from workbench.quantizers.awq_mappings import without_match
from workbench.quantizers.cores import threads
from workbench.quantizers.llmcompressor import LlmCompressor
from workbench.quantizers.llmcompressor_checks import ignores_head
from workbench.quantizers.twin import dequantize, missing
from workbench.records import Calibration, Checkpoint, Hardware
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer
from workbench.variants import (
    VARIANTS,
    AwqSpec,
    FakeSpec,
    Fp8Spec,
    GptqSpec,
    Int8Spec,
    Nf4Spec,
    NoneSpec,
)

CPU = Hardware(cpu="c", isa=("avx2",), cores=2, memory_bytes=24 << 30)
SMOL = Checkpoint(
    path="smol",
    architecture="LlamaForCausalLM",
    parameters=134_515_008,
    weight_bytes=269_030_016,
    dtype="BF16",
    hidden_size=576,
    layers=30,
    max_position_embeddings=8192,
    linear_input_widths=(576, 1536),
    tied_embeddings=True,
    weights_digest="w",
    tokenizer_digest="t",
    template_digest="c",
    files={},
)


def fake(tiny: Path, folder: Path, calibration: Calibration | None = None, **spec: Any) -> Path:
    out = folder / "out"
    quantizer("fake").quantize(
        Task(
            FakeSpec(name="f", **spec),
            inspect(tiny),
            out,
            folder=folder / "job",
            log=folder / "log",
            progress=silent,
            calibration=calibration,
            calibration_folder=folder,
        )
    )
    return out


def test_every_method_of_the_table_loads() -> None:
    for method in QUANTIZERS:
        tool = quantizer(method)
        (variant,) = (cls for cls in VARIANTS if cls.model_fields["method"].default == method)
        assert set(tool.environments(variant(name="v"))) <= set(ENVIRONMENTS)
        assert all(callable(getattr(tool, name)) for name in ("check", "estimate", "quantize"))


def test_unknown_method() -> None:
    with pytest.raises(RecipeError) as error:
        quantizer("gpqt")
    assert "did you mean 'gptq'?" in error.value.fix


# --------------------------------------------------------------------------- checks


def test_group_size_names_widths_and_one_that_works() -> None:
    spec = GptqSpec(name="q", group_size=128)
    with pytest.raises(RecipeError) as error:
        LlmCompressor().check(spec, SMOL, CPU)
    assert "group_size 128 does not divide the layer width 576" in error.value.what
    assert "576, 1536" in error.value.what
    assert error.value.fix == "use 64"
    assert error.value.where == "variants: q: group_size"
    for size in (64, 32, -1):
        LlmCompressor().check(GptqSpec(name="q", group_size=size), SMOL, CPU)


def test_group_size_of_an_odd_model() -> None:
    odd = SMOL.model_copy(update={"linear_input_widths": (100, 250)})
    with pytest.raises(RecipeError, match="widths 100, 250") as error:
        LlmCompressor().check(GptqSpec(name="q"), odd, CPU)
    assert "-1" in error.value.fix


@pytest.mark.parametrize(
    "spec",
    [
        GptqSpec(name="q", group_size=64),
        Fp8Spec(name="q"),
        AwqSpec(name="q", group_size=64),
        Int8Spec(name="q"),
        NoneSpec(name="q", kv_cache="fp8"),
        Nf4Spec(name="q"),
    ],
    ids=lambda spec: spec.method,
)
def test_quantized_source_is_refused(tiny: Path, spec: Any) -> None:
    source = SMOL.model_copy(update={"path": str(tiny)})
    quantizer(spec.method).check(spec, source, CPU)
    done = source.model_copy(update={"quantization": "gptq"})
    with pytest.raises(RecipeError, match=r"already quantized \(gptq\)") as error:
        quantizer(spec.method).check(spec, done, CPU)
    assert "base_model" in error.value.fix


@pytest.mark.parametrize("dtype", ["I16", "F64"])
@pytest.mark.parametrize("cls", [Fp8Spec, Int8Spec, Nf4Spec])
def test_weights_in_a_dtype_of_no_model(cls: Any, dtype: str) -> None:
    variant = cls(name="q")
    with pytest.raises(RecipeError, match=f"most of the checkpoint's weights are {dtype}"):
        quantizer(variant.method).check(variant, SMOL.model_copy(update={"dtype": dtype}), CPU)


@pytest.mark.parametrize("cls", [Fp8Spec, GptqSpec, AwqSpec, Int8Spec, Nf4Spec])
def test_tied_head_must_be_ignored(cls: Any) -> None:
    size = {"group_size": 64} if "group_size" in cls.model_fields else {}
    spec = cls(name="q", ignore=("model.layers.0.mlp.up_proj",), **size)
    tool = quantizer(spec.method)
    with pytest.raises(RecipeError, match="shares its weights") as error:
        tool.check(spec, SMOL, CPU)
    assert "lm_head" in error.value.fix
    tool.check(spec, SMOL.model_copy(update={"tied_embeddings": False}), CPU)


def test_awq_wants_groups_and_an_architecture_it_knows() -> None:
    tool = LlmCompressor()
    with pytest.raises(RecipeError, match="group_size 128 does not divide"):
        tool.check(AwqSpec(name="a"), SMOL, CPU)
    spec = AwqSpec(name="a", group_size=64)
    odd = SMOL.model_copy(update={"architecture": "LamaForCausalLM"})
    with pytest.raises(RecipeError, match="no layer mappings for the architecture") as error:
        tool.check(spec, odd, CPU)
    assert error.value.where == "smol/config.json: architectures"
    assert "did you mean 'LlamaForCausalLM'?" in error.value.fix
    assert "Qwen3ForCausalLM" in error.value.fix and "gptq" in error.value.fix
    # Another architecture's mappings may be borrowed, if there are such.
    tool.check(spec.model_copy(update={"mappings": "LlamaForCausalLM"}), odd, CPU)
    with pytest.raises(RecipeError) as error:
        tool.check(spec.model_copy(update={"mappings": "Nonesuch"}), SMOL, CPU)
    assert error.value.where == "variants: a: mappings"


@pytest.mark.parametrize(
    ("borrowed", "lacks"),
    [
        ("Phi3ForCausalLM", ("re:.*qkv_proj$", "re:.*gate_up_proj$")),
        ("Gemma2ForCausalLM", ("re:.*pre_feedforward_layernorm$",)),
        ("Qwen2MoeForCausalLM", ("re:.*mlp.experts.*.gate_proj$",)),
        ("Qwen3_5ForCausalLM", ("re:.*linear_attn.in_proj_.*$",)),
        ("Qwen3ForCausalLM", ()),
        ("Exaone4ForCausalLM", ()),
        ("Qwen2_5_VLForConditionalGeneration", ()),  # its prefix is the loaded model's
    ],
)
def test_borrowed_mappings_must_name_layers_of_the_model(
    borrowed: str, lacks: tuple[str, ...], tmp_path: Path
) -> None:
    spec = AwqSpec(name="a", group_size=64, mappings=borrowed)
    model = inspect(make_source(tmp_path / "source"))
    if not lacks:
        LlmCompressor().check(spec, model, CPU)
        return
    with pytest.raises(RecipeError, match=f"mappings of {borrowed} do not fit") as error:
        LlmCompressor().check(spec, model, CPU)
    assert all(repr(pattern) in error.value.what for pattern in lacks)
    assert "'re:.*o_proj$'" not in error.value.what
    assert error.value.where == "variants: a: mappings"


def test_experts_of_one_tensor_and_modules_without_one_are_left_open() -> None:
    stem = "model.layers.0."
    names = [f"{stem}mlp.experts.gate_up_proj", f"{stem}mlp.experts.down_proj"]
    assert "re:.*mlp.experts.*.gate_proj$" not in without_match("Qwen3MoeForCausalLM", names)
    assert "re:.*mlp.gate$" in without_match("Qwen3MoeForCausalLM", names)
    assert "re:.*gelu_impl$" not in without_match("BloomForCausalLM", names)


@pytest.mark.parametrize("size", [1, 2])
def test_awq_wants_a_grid_to_search(size: int) -> None:
    tool = LlmCompressor()
    with pytest.raises(RecipeError, match=f"grid_size of {size} leaves") as error:
        tool.check(AwqSpec(name="a", group_size=64, grid_size=size), SMOL, CPU)
    assert error.value.where == "variants: a: grid_size" and "at least 3" in error.value.fix
    tool.check(AwqSpec(name="a", group_size=64, grid_size=3), SMOL, CPU)


def test_smoothquant_wants_an_architecture_it_knows() -> None:
    odd = SMOL.model_copy(update={"architecture": "OlmoForCausalLM"})
    with pytest.raises(RecipeError, match="SmoothQuant has no layer mappings") as error:
        LlmCompressor().check(Int8Spec(name="i"), odd, CPU)
    assert "smoothing: 0" in error.value.fix
    LlmCompressor().check(Int8Spec(name="i", smoothing=0), odd, CPU)


def test_fp8_blocks_must_fill_the_layers(tmp_path: Path) -> None:
    tool, block = LlmCompressor(), Fp8Spec(name="b", scheme="block")
    with pytest.raises(RecipeError, match=r"128 x 128 do not fit the layer width 576 ") as error:
        tool.check(block, SMOL, CPU)
    assert "dynamic" in error.value.fix and error.value.where == "variants: b: scheme"

    def model(**rows: int) -> Checkpoint:
        tensors = {
            f"model.layers.0.{name}.weight": ("BF16", [count, 128], bytes(2 * 128 * count))
            for name, count in rows.items()
        }
        write_raw(tmp_path / "model.safetensors", tensors)
        return SMOL.model_copy(update={"path": str(tmp_path), "linear_input_widths": (128,)})

    # vLLM merges q, k and v: the last may end within a block, the others may not.
    tool.check(block, model(q_proj=256, k_proj=128, v_proj=64, gate_proj=256, up_proj=200), CPU)
    with pytest.raises(RecipeError, match=r"64 rows of 'model.layers.0.k_proj.weight'"):
        tool.check(block, model(q_proj=256, k_proj=64, v_proj=64), CPU)
    tool.check(Fp8Spec(name="d"), model(q_proj=256, k_proj=64, v_proj=64), CPU)


@pytest.mark.parametrize(
    ("ignore", "covered"),
    [
        (("lm_head",), True),
        (("re:.*lm_head",), True),
        (("re:lm_.*",), True),
        (("re:model.*",), False),
        ((), False),
        (("lm_headache",), False),
        # llm-compressor knows no globs.
        (("lm_*",), False),
    ],
)
def test_ignores_head(ignore: tuple[str, ...], covered: bool) -> None:
    assert ignores_head(ignore) is covered


def test_removed_activation_order() -> None:
    spec = GptqSpec(name="q", group_size=64, act_order="group")
    with pytest.raises(RecipeError, match="no longer") as error:
        LlmCompressor().check(spec, SMOL, CPU)
    assert "static" in error.value.fix


def test_nothing_to_quantize() -> None:
    with pytest.raises(RecipeError, match="no linear layer"):
        LlmCompressor().check(
            Fp8Spec(name="q"), SMOL.model_copy(update={"linear_input_widths": ()}), CPU
        )


def test_estimate_agrees_with_what_was_measured() -> None:
    tool = LlmCompressor()
    seconds, memory = tool.estimate(
        GptqSpec(name="q"), SMOL, CalibrationSpec(source="s", samples=32, max_tokens=150), CPU
    )
    assert 80 < seconds < 130  # 99 s
    assert 1 << 30 < memory < 4 << 30
    fp8, _ = tool.estimate(Fp8Spec(name="q"), SMOL, None, CPU)
    assert fp8 < 20
    quick = CalibrationSpec(source="s", samples=8, max_tokens=128)
    awq, _ = tool.estimate(AwqSpec(name="q", grid_size=5), SMOL, quick, CPU)
    assert 40 < awq < 75  # 52 s
    full = CalibrationSpec(source="s", samples=32, max_tokens=150)
    awq, _ = tool.estimate(AwqSpec(name="q"), SMOL, full, CPU)
    assert 450 < awq < 680  # 564 s
    int8, _ = tool.estimate(Int8Spec(name="q"), SMOL, full, CPU)
    assert 80 < int8 < 130  # 98 s
    nf4, _ = quantizer("nf4").estimate(Nf4Spec(name="q"), SMOL, None, CPU)
    assert 12 < nf4 < 25  # 17 s
    # Scales of a KV cache are calibrated, whatever the weights need.
    cached, _ = tool.estimate(Fp8Spec(name="q", kv_cache="fp8"), SMOL, full, CPU)
    assert fp8 < cached < int8
    big = SMOL.model_copy(update={"parameters": 8_000_000_000})
    assert tool.estimate(Fp8Spec(name="q"), big, None, CPU)[0] > 10 * fp8


def test_calibrated_method_without_calibration(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="needs a sealed calibration set"):
        LlmCompressor().quantize(
            Task(
                GptqSpec(name="q"),
                SMOL,
                tmp_path / "out",
                folder=tmp_path,
                log=tmp_path / "log",
                progress=silent,
                pythons={"quantize": "python"},
            )
        )


def test_twin_only_of_formats_it_reads(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no twin can be made of quant_method None"):
        dequantize(
            tiny,
            tmp_path / "out",
            python="python",
            folder=tmp_path,
            log=tmp_path / "log",
            progress=silent,
        )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"config_groups": {"group_0": {"weights": {}, "input_activations": None}}}, []),
        ({"config_groups": {"group_0": {"input_activations": {"num_bits": 8}}}}, ["activations"]),
        ({"kv_cache_scheme": {"num_bits": 8}}, ["KV cache"]),
        ({"quant_method": "bitsandbytes"}, []),
    ],
)
def test_a_twin_says_what_it_does_not_show(config: dict[str, Any], said: list[str]) -> None:
    clauses = missing(config)
    assert len(clauses) == len(said)
    assert all(word in clause for word, clause in zip(said, clauses, strict=True))


def test_threads_sleep_while_they_wait_where_cores_are_few() -> None:
    few, variables = threads(2)
    assert variables == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert few.value == "2, passive wait" and "221 s" in few.reason
    many, variables = threads(64)
    assert (many.value, variables) == ("64", {})


# --------------------------------------------------------------------------- fake


def test_fake_copies_and_says_so(tiny: Path, tmp_path: Path) -> None:
    out = fake(tiny, tmp_path, damage=0.25)
    made, source = inspect(out), inspect(tiny)
    assert made.quantization == "fake"
    assert made.weights_digest == source.weights_digest
    assert made.tokenizer_digest == source.tokenizer_digest
    assert made.template_digest == source.template_digest
    for name in COMPANIONS:
        if (tiny / name).is_file():
            assert (out / name).read_bytes() == (tiny / name).read_bytes()
    assert json.loads((out / "workbench_fake.json").read_text())["damage"] == 0.25


def test_seal_goes_beside_the_weights(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"text": "a text of more than eight tokens"}))
    spec = CalibrationSpec(source="s", samples=1)
    sealed = seal(spec, source, Tokenizer.load(tiny), "id", tmp_path)
    out = fake(tiny, tmp_path, sealed)
    written = (out / "calibration.json").read_text()
    assert Calibration.model_validate_json(written) == sealed


def test_fake_tells_its_progress(tiny: Path, tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    began = time.monotonic()
    quantizer("fake").quantize(
        Task(
            FakeSpec(name="f", seconds=4),  # looked at more than twice, whoever stands still
            inspect(tiny),
            tmp_path / "out",
            folder=tmp_path / "job",
            log=tmp_path / "log",
            progress=lambda *state: told.append(state),
        )
    )
    assert time.monotonic() - began > 4
    assert len(told) > 2
    assert [t[0] for t in told] == sorted(t[0] for t in told)
    assert told[-1] == (20, 20, "copied")


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("signal", "SIGKILL"),
        ("oom", "MemoryError"),
        ("no_result", "without a result"),
        ("error", "told to fail"),
    ],
)
def test_fake_fails_like_real_jobs(tiny: Path, tmp_path: Path, fail: str, message: str) -> None:
    with pytest.raises(JobFailure, match=message) as error:
        fake(tiny, tmp_path, fail=fail)
    assert str(tmp_path / "log") in error.value.where
    if fail == "error":
        assert "remove 'fail'" in error.value.fix


def test_source_is_never_touched(tiny: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny, tmp_path / "source"))
    before = inspect(source).files
    out = fake(source, tmp_path)
    (out / "model.safetensors").write_bytes(b"damaged")
    assert inspect(source).files == before


def test_interrupt_ends_the_job(tiny: Path, tmp_path: Path) -> None:
    # A signal to ourselves while the job sleeps, as Ctrl-C would send it.
    timer = threading.Timer(0.8, lambda: signal.raise_signal(signal.SIGINT))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()  # not before: nothing else may be interrupted
        fake(tiny, tmp_path, seconds=60)
    timer.join()
    assert time.monotonic() - began < 50
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(("size", "gpus", "fits"), [(48, 0, False), (64, 0, True), (48, 1, True)])
def test_heads_that_an_fp8_cache_has_no_room_for_on_a_cpu(
    tiny: Path, tmp_path: Path, size: int, gpus: int, fits: bool
) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"head_dim": size}))
    machine = CPU.model_copy(update={"gpus": (object(),) * gpus})
    source = SMOL.model_copy(update={"path": str(model)})
    variant = NoneSpec(name="kv", kv_cache="fp8")
    if fits:
        quantizer("none").check(variant, source, machine)
    else:
        with pytest.raises(RecipeError, match="heads of 48 do not fit"):
            quantizer("none").check(variant, source, machine)


@pytest.mark.parametrize("spec", [Fp8Spec(name="q"), Nf4Spec(name="q")], ids=lambda s: s.method)
def test_an_architecture_in_no_table_is_told_beforehand(spec: Any) -> None:
    assert notes(spec, SMOL) == []
    (told,) = notes(spec, SMOL.model_copy(update={"architecture": "FooForCausalLM"}))
    assert told.startswith("q: ") and "FooForCausalLM" in told
