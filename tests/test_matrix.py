"""The support matrix: vLLM's published table cell by cell, and machines one does not sit at."""

import json
from pathlib import Path

import pytest
from artifacts import make_artifact, make_source
from rich.console import Console
from test_support import ARM, AVX2, AVX512

from workbench.checkpoint import inspect, read_tensors
from workbench.errors import RecipeError
from workbench.fit import notes
from workbench.gpus import GPUS, named
from workbench.matrix import FORMATS, check_dtype, engines, machines, matrix
from workbench.matrix_view import show
from workbench.quantizers.llmcompressor_checks import check_fp8
from workbench.support import dtype, lane
from workbench.variants import METHODS, Fp8Spec

#: vLLM's documentation, supported hardware; W: weight-only fallback (a note below that table), "-":
#: no kernel, which here is a dequantized twin or nothing. No Blackwell column is published.
PUBLISHED = {
    # method: Turing, Ampere, Ada, Hopper, AMD GPU
    "awq": "yyyy-",
    "gptq": "yyyy-",
    "int8": "yyyy-",
    "fp8": "WWyyy",
    # The table says yes for bitsandbytes; vLLM 0.32 moved it to a plugin that is not pinned here.
    "nf4": "-----",
}
COLUMNS = {
    **{"t4": 0, "a10": 1, "a100": 1, "l4": 2, "l40s": 2, "rtx4090": 2},
    **{"h100": 3, "h200": 3, "mi300x": 4},
}


@pytest.mark.parametrize("gpu", COLUMNS)
@pytest.mark.parametrize("method", PUBLISHED)
def test_the_published_table(method: str, gpu: str) -> None:
    # vLLM falls back below 8.9 on Turing as well, by get_min_capability of its sources.
    expected = {"y": "native", "W": "weight-only fallback", "-": "emulated"}
    found = next(c for c in matrix(named(gpu)) if c.method == method and c.engine == "vllm")
    assert found.lane == expected[PUBLISHED[method][COLUMNS[gpu]]]
    assert found.reason and found.source


def test_the_table_answers_as_validate_does() -> None:
    for hardware in (AVX2, AVX512, ARM, named("l4"), named("mi300x")):
        for cell in matrix(hardware, "bfloat16"):
            options = next(o for label, _, o in FORMATS if label == cell.format)
            found = lane(cell.method, options, cell.engine, hardware, "bfloat16")
            assert (cell.lane, cell.source) == (found.name, found.source)


def test_every_method_has_a_line() -> None:
    assert {method for _, method, _ in FORMATS} == {*METHODS} - {"fake"}
    assert all("fake" not in engines(method) for method in METHODS)


def test_a_gpu_without_bfloat16_is_asked_about_float16() -> None:
    assert all("float32" not in cell.reason for cell in matrix(named("t4")))
    gptq = {c.format: c.lane for c in matrix(named("t4"), "float32")}["GPTQ W4A16"]
    assert gptq == "emulated"


def test_blackwell_says_that_nobody_published_it() -> None:
    said = [c for c in matrix(named("b200")) if c.lane == "native" and c.engine == "vllm"]
    assert said and all("no Blackwell column" in c.reason for c in said)
    assert not any("Blackwell" in c.reason for c in matrix(named("h200")))


@pytest.mark.parametrize("gpu", ["t4", "h200", "b200", "mi300x"])
def test_a_gguf_file_is_not_for_vllm_and_not_on_the_gpu(gpu: str, tmp_path: Path) -> None:
    cells = {c.engine: c for c in matrix(named(gpu)) if c.method == "gguf"}
    assert {name: (c.lane, c.device) for name, c in cells.items()} == {
        "vllm": ("unsupported", "gpu"),
        "llamacpp": ("native", "cpu"),
    }
    assert "llama.cpp serves it" in cells["vllm"].reason
    assert "llamacpp, CPU" in shown(tmp_path, None, [gpu], False)
    assert "GGUF Q4_K_M (llamacpp, CPU)" in shown(tmp_path, None, [gpu, "l4"], False)
    assert "llamacpp, CPU" not in shown(tmp_path, None, [], False)  # no GPU here to be left alone


def test_named_gpus() -> None:
    assert set(GPUS) == {
        *("t4", "a10", "a100", "l4", "l40s", "rtx4090", "h100", "h200", "b200", "mi300x"),
    }
    # https://developer.nvidia.com/cuda-gpus
    known = {"t4": 7.5, "a100": 8.0, "a10": 8.6, "rtx4090": 8.9, "h200": 9.0, "b200": 10.0}
    for name, capability in known.items():
        (gpu,) = named(name).gpus
        assert (float(gpu.compute_capability), gpu.platform) == (capability, "cuda")
    assert named("RTX-4090") == named("rtx4090")
    # What nvidia-smi prints for it, less than the 80 GiB of its name.
    assert named("h100").gpus[0].memory_bytes == 81559 << 20
    assert list(machines(["all"])) == list(GPUS)
    with pytest.raises(RecipeError, match="no GPU 'h1000'") as error:
        named("h1000")
    assert "did you mean 'h100'" in error.value.fix
    with pytest.raises(RecipeError, match="no compute dtype"):
        check_dtype("bfloat")
    assert check_dtype("") is None


def test_rocm_is_not_cuda(tmp_path: Path) -> None:
    amd = named("mi300x")
    assert lane("fp8", {}, "vllm", amd).source.startswith("vLLM documentation")
    assert lane("fake", {}, "fake", amd).name == "native"
    checkpoint = inspect(make_source(tmp_path / "source"))
    assert dtype("auto", checkpoint, "vllm", amd).value == "bfloat16"


# --------------------------------------------------------------------------- one checkpoint


def test_what_a_format_does_to_a_checkpoint(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    found = {n.format: n for n in notes(inspect(source), read_tensors(source))}
    # Widths are 128 and 256, and the key and value matrices have 64 rows.
    assert [found[f"group_size {n}"].level for n in (128, 64, 32)] == ["ok", "ok", "ok"]
    # The same words as `validate`, which refuses it.
    assert found["FP8 W8A8 block"].level == "no"
    with pytest.raises(RecipeError) as error:
        check_fp8(Fp8Spec(name="b", scheme="block"), inspect(source))
    assert error.value.what == found["FP8 W8A8 block"].text
    assert "the 64 rows of 'model.layers.0.self_attn.k_proj.weight'" in error.value.what
    assert "13 of 15 matrices" in found["GGUF Q4_K_M"].text
    assert "become Q5_0" in found["GGUF Q4_K_M"].text
    assert "shares the embeddings" in found["checkpoint"].text
    fp8 = make_artifact(source, tmp_path / "fp8", Fp8Spec(name="v"))
    real = (fp8 / "model.safetensors").stat().st_size / 1e6
    assert float(found["FP8 W8A8"].text.split()[1]) == pytest.approx(real, abs=0.6)


def test_an_architecture_nothing_fits_is_told_as_validate_does(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    tensors, known = read_tensors(source), inspect(source)
    bert = notes(known.model_copy(update={"architecture": "BertForMaskedLM"}), tensors)
    assert [(n.format, n.level) for n in bert] == [("checkpoint", "no")]
    assert "BertForMaskedLM does not write text" in bert[0].text
    foo = notes(known.model_copy(update={"architecture": "FooForCausalLM"}), tensors)
    gguf = [n for n in foo if n.format.startswith("GGUF")]
    assert [n.level for n in gguf] == ["no"] and "does not know the architecture" in gguf[0].text


def test_sizes_are_held_against_the_gpu(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    size = inspect(source).weight_bytes
    found = {n.format: n for n in notes(inspect(source), read_tensors(source), size - 1)}
    assert (found["unquantized"].level, found["FP8 W8A8"].level) == ("no", "ok")


def test_groups_that_do_not_divide(tmp_path: Path) -> None:
    from artifacts import bf16, edit_tensors
    from numpy.random import default_rng

    source = make_source(tmp_path / "source")
    edit_tensors(source, lambda t: t.update({"model.extra.weight": bf16(default_rng(1), 8, 576)}))
    found = {n.format: n for n in notes(inspect(source), read_tensors(source))}
    assert found["group_size 128"].level == "no" and "576" in found["group_size 128"].text
    assert found["group_size 64"].level == "ok"


# --------------------------------------------------------------------------- shown


def shown(tmp_path: Path, checkpoint: Path | None, gpus: list[str], as_data: bool) -> str:
    path = tmp_path / "out"
    with path.open("w") as file:
        show(Console(file=file, width=110), checkpoint, gpus, "", as_data)
    return path.read_text()


def test_as_text(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    text = shown(tmp_path, source, ["a10"], False)
    assert "NVIDIA A10, compute capability 8.6, 22.5 GiB" in text
    assert "weight-only fallback" in text and "group_size 128" in text
    every = shown(tmp_path, None, ["all"], False)
    assert all(name in every for name in GPUS) and "w-only" in every
    assert "\N{HORIZONTAL ELLIPSIS}" not in every
    assert "this machine" in shown(tmp_path, None, [], False)


def test_as_json(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source")
    data = json.loads(shown(tmp_path, source, ["h100", "mi300x"], True))
    assert list(data["machines"]) == ["h100", "mi300x"]
    cells = {c["format"]: c for c in data["machines"]["h100"]["formats"]}
    assert cells["FP8 W8A8 dynamic"]["lane"] == "native"
    assert data["notes"] and data["checkpoint"] == str(source)
