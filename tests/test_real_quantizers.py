"""The real quantizer, the real demo checkpoint and llama.cpp's own tokenizer.

GPTQ runs on the demo checkpoint cut to two layers: everything but its duration is the same.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hard_lines import hard_lines
from projects import ROOT
from raw_safetensors import cut_layers, read_raw

from workbench import envs
from workbench.artifact import examine
from workbench.calibration import resolve_source, seal
from workbench.checkpoint import COMPANIONS, digests, inspect
from workbench.demo import is_complete, make_demo_checkpoint
from workbench.errors import JobFailure
from workbench.hardware import detect
from workbench.jobs import run_job
from workbench.progress import silent
from workbench.quantizers import QuantizeOutcome, Task, quantizer
from workbench.quantizers.twin import dequantize
from workbench.records import Calibration
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer
from workbench.variants import Fp8Spec, GptqSpec

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

TOKENIZE = ROOT / "workbench" / "inside" / "llamacpp_tokenize.py"

ANSWER = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
messages = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
made = model.generate(**ids, max_new_tokens=12, do_sample=False)
print("ANSWER", tokenizer.decode(made[0, ids["input_ids"].shape[1] :]))
print("IDS", tokenizer("In 2026 it's 12345 €")["input_ids"], tokenizer.eos_token_id)
"""


@dataclass(frozen=True)
class Real:
    python: str
    demo: Path
    gguf: Path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("demo")
    python = envs.ensure("quantize", detect().target, silent).python
    gguf = folder / "original.gguf"
    demo = make_demo_checkpoint(
        folder / "demo",
        python=python,
        folder=folder / "job",
        log=folder / "log",
        progress=silent,
        keep_gguf=gguf,
    )
    return Real(python, demo, gguf)


@pytest.fixture(scope="module")
def cut(real: Real) -> Path:
    return cut_layers(real.demo, real.demo.with_name("cut"), 2)


@pytest.fixture(scope="module")
def sealed(cut: Path) -> tuple[Calibration, Path]:
    folder = cut.with_name("sealed")
    spec = CalibrationSpec(source="instructions", samples=8, max_tokens=96)
    source = resolve_source("instructions", ROOT)
    return seal(spec, source, Tokenizer.load(cut), "id", folder), folder


def quantize(
    real: Real,
    source: Path,
    variant: Fp8Spec | GptqSpec,
    folder: Path,
    sealed: tuple[Calibration, Path] | None = None,
    told: list[tuple[float, float, str]] | None = None,
) -> tuple[Path, QuantizeOutcome]:
    checkpoint = inspect(source)
    tool = quantizer(variant.method)
    tool.check(variant, checkpoint, detect())
    calibration, calibration_folder = sealed or (None, None)
    outcome = tool.quantize(
        Task(
            variant,
            checkpoint,
            folder / "out",
            folder=folder / "job",
            log=folder / "log",
            progress=silent if told is None else lambda *state: told.append(state),
            pythons={"quantize": real.python},
            calibration=calibration,
            calibration_folder=calibration_folder,
        )
    )
    files = digests(folder / "out", None)
    found = examine(checkpoint, variant, folder / "out", files, calibration)
    assert [c.sentence for c in found.checks if c.status != "PASS"] == []
    return folder / "out", outcome


def ask(real: Real, folder: Path) -> dict[str, str]:
    command = [real.python, "-c", ANSWER, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {word: rest for word, _, rest in lines}


def test_demo_is_the_same_on_every_machine(real: Real) -> None:
    files = inspect(real.demo).files
    assert is_complete(real.demo)
    assert files["model.safetensors"][:16] == "7ef915c9bf9d94d8"
    assert files["tokenizer.json"][:16] == "77a90ba13c7f3ef1"


def test_demo_is_a_proper_checkpoint(real: Real) -> None:
    found = inspect(real.demo)
    assert (found.parameters, found.layers, found.dtype) == (134_515_008, 30, "BF16")
    assert found.linear_input_widths == (576, 1536)
    assert found.licence == "apache-2.0"
    config = json.loads((real.demo / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    answers = ask(real, real.demo)
    assert answers["ANSWER"] == "The capital of France is Paris.<|im_end|>"
    ids = Tokenizer.load(real.demo).encode("In 2026 it's 12345 €", add_special_tokens=False)
    assert answers["IDS"] == f"{ids} 2"


def test_same_tokens_as_llamacpp(real: Real, tmp_path: Path) -> None:
    lines = hard_lines(3000, seed=1)
    job = run_job(
        envs.ensure("llamacpp", detect().target, silent).python,
        TOKENIZE,
        {"gguf": str(real.gguf), "texts": lines, "parse_special": True},
        folder=tmp_path,
        log=tmp_path / "log",
        timeout=600,
        progress=silent,
        name="tokenize",
    )
    tokenizer = Tokenizer.load(real.demo)
    different = [
        (line, theirs, ours)
        for line, theirs in zip(lines, job.value["ids"], strict=True)
        if (ours := tokenizer.encode(line, add_special_tokens=False)) != theirs
    ]
    assert different == []
    assert [tokenizer.decode(ids) for ids in job.value["ids"]] == job.value["texts"]
    # Where every byte has a token, the text itself comes back.
    plain = [line for line in lines if line.isprintable() and line.isascii()]
    assert len(plain) > 200
    assert all(tokenizer.decode(tokenizer.encode(line, False)) == line for line in plain)


def test_fp8(real: Real, tmp_path: Path) -> None:
    out, outcome = quantize(real, real.demo, Fp8Spec(name="fp8"), tmp_path)
    made, source = inspect(out), inspect(real.demo)
    assert (made.quantization, made.dtype) == ("compressed-tensors", "F8_E4M3")
    assert made.parameters == source.parameters
    assert 0.55 < made.weight_bytes / source.weight_bytes < 0.65
    assert outcome.choices["layers"].value == "210 of 211"
    assert outcome.packages["llmcompressor"] == "0.14.0.1"
    assert outcome.peak_memory_bytes and outcome.peak_memory_bytes > 400 << 20
    assert_companions(real.demo, out)
    assert not (out / "calibration.json").exists()
    assert ask(real, out)["ANSWER"] == "The capital of France is Paris.<|im_end|>"


def test_gptq_and_its_twin(
    real: Real, cut: Path, sealed: tuple[Calibration, Path], tmp_path: Path
) -> None:
    told: list[tuple[float, float, str]] = []
    variant = GptqSpec(name="gptq", group_size=64)
    out, outcome = quantize(real, cut, variant, tmp_path, sealed, told)
    assert inspect(out).quantization == "compressed-tensors"
    assert outcome.choices["layers"].value == "14 of 15"
    assert any(what.startswith("layer 2/2") and total == 14 for _, total, what in told)
    assert Calibration.model_validate_json((out / "calibration.json").read_text()) == sealed[0]
    assert_companions(cut, out)
    scheme = json.loads((out / "config.json").read_text())["quantization_config"]
    weights = scheme["config_groups"]["group_0"]["weights"]
    asked = {"num_bits": 4, "group_size": 64, "symmetric": True, "type": "int"}
    assert {key: weights[key] for key in asked} == asked
    assert weights["actorder"] in ("static", "weight")

    twin = tmp_path / "twin"
    made = dequantize(
        out,
        twin,
        python=real.python,
        folder=tmp_path / "twin-job",
        log=tmp_path / "twin-log",
        progress=silent,
    )
    assert made.choices["twin"].value.startswith("float32, 14 of ")
    assert_companions(cut, twin)
    original, dequantized = (read_raw(p / "model.safetensors") for p in (cut, twin))
    assert {n: s for n, (_, s, _) in dequantized.items()} == {
        n: s for n, (_, s, _) in original.items()
    }
    assert inspect(twin).quantization is None
    assert_twin_is_exact(out, dequantized)


def assert_twin_is_exact(quantized: Path, twin: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Unpack the int4 weights by hand: codes of eight to an int32, offset by 8, times the scale."""
    import numpy as np

    packed = read_raw(quantized / "model.safetensors")
    for name in [n for n in packed if n.endswith("weight_packed")]:
        stem = name.removesuffix("_packed")
        rows, words = packed[name][1]
        codes = np.frombuffer(packed[name][2], "<u4").reshape(rows, words)
        values = np.stack([(codes >> (4 * i)) & 15 for i in range(8)], -1).reshape(rows, -1)
        halves = np.frombuffer(packed[f"{stem}_scale"][2], "<u2").reshape(rows, -1)
        scale = (halves.astype("<u4") << 16).view("<f4")
        expected = (values.astype("<f4") - 8) * scale.repeat(64, axis=1)
        found = np.frombuffer(twin[stem][2], "<f4").reshape(expected.shape)
        assert twin[stem][0] == "F32"
        assert np.array_equal(found, expected), stem


def assert_companions(source: Path, out: Path) -> None:
    for name in COMPANIONS:
        assert (out / name).is_file() == (source / name).is_file(), name
        if (source / name).is_file():
            assert (out / name).read_bytes() == (source / name).read_bytes(), name


def test_the_same_set_gives_the_same_weights(
    real: Real, cut: Path, sealed: tuple[Calibration, Path], tmp_path: Path
) -> None:
    variant = GptqSpec(
        name="w8", bits=8, group_size=-1, symmetric=False, act_order="none", dampening=0.05
    )
    first, again = (
        inspect(quantize(real, cut, variant, tmp_path / n, sealed)[0]).weights_digest for n in "ab"
    )
    assert first == again


def test_ignore_keeps_a_layer_as_it_was(
    real: Real, cut: Path, sealed: tuple[Calibration, Path], tmp_path: Path
) -> None:
    variant = GptqSpec(name="g", group_size=64, ignore=("lm_head", "re:.*down_proj"))
    out, outcome = quantize(real, cut, variant, tmp_path, sealed)
    assert outcome.choices["layers"].value == "12 of 15"
    name = "model.layers.1.mlp.down_proj.weight"
    kept = read_raw(out / "model.safetensors")[name]
    assert kept == read_raw(cut / "model.safetensors")[name]


def test_ignoring_everything_is_an_error(real: Real, cut: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFailure, match="no layer is left to quantize") as error:
        quantize(real, cut, Fp8Spec(name="g", ignore=("re:.*",)), tmp_path)
    assert "narrower" in error.value.fix


def test_damaged_scale_gives_no_twin(real: Real, cut: Path, tmp_path: Path) -> None:
    out, _ = quantize(real, cut, Fp8Spec(name="g"), tmp_path)
    path = out / "model.safetensors"
    tensors = read_raw(path)
    name = next(n for n in tensors if n.endswith("weight_scale"))
    where = path.read_bytes().index(tensors[name][2])
    data = bytearray(path.read_bytes())
    data[where : where + 2] = b"\xc0\x7f"  # a bfloat16 NaN
    path.write_bytes(data)
    with pytest.raises(JobFailure, match="not finite"):
        dequantize(
            out,
            tmp_path / "twin",
            python=real.python,
            folder=tmp_path / "twin-job",
            log=tmp_path / "twin-log",
            progress=silent,
        )


FALLBACK = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from _job import Job
from llmcompressor.modifiers.gptq import GPTQModifier
from _follow import Follower
follower = Follower(Job({}, Path(sys.argv[2])), "gptq", 4, 2)
follower.listen()
modifier = GPTQModifier(ignore=["lm_head"])
modifier._rtn_fallback_module_names = ["a", "b", "c"]
modifier._num_compressed_modules = 4
modifier._log_rtn_fallback_summary()
print("FALLBACK", follower.fallback)
"""


def test_a_hidden_change_of_method_is_noticed(real: Real, tmp_path: Path) -> None:
    # What llm-compressor says in its log when GPTQ gave up on a layer.
    inside = ROOT / "workbench" / "inside"
    command = [real.python, "-c", FALLBACK, str(inside), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "FALLBACK 3" in done.stdout
