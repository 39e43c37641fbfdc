import json
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.calibration import seal
from workbench.checkpoint import COMPANIONS, inspect
from workbench.envs import ENVIRONMENTS
from workbench.errors import CheckpointError, JobFailure, RecipeError
from workbench.progress import silent
from workbench.quantizers import QUANTIZERS, Task, quantizer
from workbench.quantizers.llmcompressor import LlmCompressor, ignores_head
from workbench.quantizers.twin import dequantize
from workbench.records import Calibration, Checkpoint, Hardware
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer
from workbench.variants import VARIANTS, FakeSpec, Fp8Spec, GptqSpec

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


@pytest.mark.parametrize("spec", [GptqSpec(name="q", group_size=64), Fp8Spec(name="q")])
def test_quantized_source_is_refused(spec: GptqSpec | Fp8Spec) -> None:
    done = SMOL.model_copy(update={"quantization": "gptq"})
    with pytest.raises(RecipeError, match=r"already quantized \(gptq\)") as error:
        LlmCompressor().check(spec, done, CPU)
    assert "base_model" in error.value.fix


def test_tied_head_must_be_ignored() -> None:
    spec = Fp8Spec(name="q", ignore=("model.layers.0.mlp.up_proj",))
    with pytest.raises(RecipeError, match="shares its weights") as error:
        LlmCompressor().check(spec, SMOL, CPU)
    assert "lm_head" in error.value.fix
    LlmCompressor().check(spec, SMOL.model_copy(update={"tied_embeddings": False}), CPU)


@pytest.mark.parametrize(
    ("ignore", "covered"),
    [
        (("lm_head",), True),
        (("re:.*lm_head",), True),
        (("re:lm_.*",), True),
        (("re:model.*",), False),
        ((), False),
        (("lm_headache",), False),
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


def test_twin_only_of_compressed_tensors(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no twin can be made of quant_method None"):
        dequantize(
            tiny,
            tmp_path / "out",
            python="python",
            folder=tmp_path,
            log=tmp_path / "log",
            progress=silent,
        )


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
            FakeSpec(name="f", seconds=1.5),
            inspect(tiny),
            tmp_path / "out",
            folder=tmp_path / "job",
            log=tmp_path / "log",
            progress=lambda *state: told.append(state),
        )
    )
    assert time.monotonic() - began > 1.5
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
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fake(tiny, tmp_path, seconds=60)
    timer.join()
    assert time.monotonic() - began < 20
    assert not (tmp_path / "out" / "config.json").exists()
