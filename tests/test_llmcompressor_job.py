"""The parts of llm-compressor's job that need no torch: following it, and judging KV scales."""

import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

INSIDE = Path(__file__).parents[1] / "workbench" / "inside"
LAYERS = ["model.layers.0.self_attn", "model.layers.1.self_attn"]


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(INSIDE))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def scales(**changed: list[float] | None) -> dict[str, list[float]]:
    found = {f"{name}.{leaf}": [0.02] for name in LAYERS for leaf in ("k_scale", "v_scale")}
    for leaf, value in changed.items():
        name = f"{LAYERS[1]}.{leaf}"
        if value is None:
            del found[name]
        else:
            found[name] = value
    return found


def test_calibrated_scales_are_accepted_and_described(inside: Any) -> None:
    judge = inside("_kv_scales").judge
    found = judge(scales(k_scale=[1.0], v_scale=[0.5]), LAYERS, "out")
    assert found == {"count": 4, "lowest": 0.02, "highest": 1.0, "ones": 1}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"v_scale": None}, "1 scales of the FP8 KV cache are missing, 'model.layers.1.self_attn."),
        ({"k_scale": []}, "missing"),
        ({"k_scale": [0.0]}, "which is no scale"),
        ({"k_scale": [-1.0]}, "which is no scale"),
        ({"v_scale": [math.nan]}, "which is no scale"),
        ({"v_scale": [math.inf]}, "which is no scale"),
    ],
)
def test_a_scale_nobody_calibrated_is_a_failure(
    inside: Any, changed: dict[str, Any], message: str
) -> None:
    failed = inside("_job").Failed
    with pytest.raises(failed, match=message) as error:
        inside("_kv_scales").judge(scales(**changed), LAYERS, "out")
    assert error.value.where == "out"
    assert "leave" in error.value.fix and "kv_cache out" in error.value.fix


def test_all_ones_is_a_failure(inside: Any) -> None:
    ones = {name: [1.0] for name in scales()}
    with pytest.raises(inside("_job").Failed, match=r"every scale .* is 1.0"):
        inside("_kv_scales").judge(ones, LAYERS, "out")


class Follow:
    """A follower of a job whose every word is kept."""

    def __init__(self, inside: Any, folder: Path, method: str) -> None:
        job = inside("_job").Job({}, folder)
        self.told: list[tuple[float, float, str]] = []
        job.progress = lambda *state: self.told.append(state)
        self.follower = inside("_follow").Follower(job, method, 14, 2)


def test_awq_is_followed_through_its_search(inside: Any, tmp_path: Path) -> None:
    follow = Follow(inside, tmp_path, "awq")
    draw = follow.follower.draw
    for layer in (1, 2, 3):
        for done in (0, 4, 8):
            draw(f"({layer}/3): Calibrating", done, 8)
        for mapping, name in enumerate(("input_layernorm", "up_proj")):
            draw("Smoothing", mapping, 2)
            for point in (0, 3, 5):
                draw(f"Grid search for model.layers.{layer - 1}.{name}", point, 5)
        draw("Smoothing", 2, 2)
        for done in (0, 8):
            draw(f"({layer}/3): Propagating", done, 8)
    draw("Preparing cache", 1, 8)
    done = [state[0] for state in follow.told]
    assert done == sorted(done) and done[0] == 0 and done[-1] == 3
    assert {state[1] for state in follow.told} == {3}
    words = [state[2] for state in follow.told]
    assert "layer 1/2: calibrating 4/8" in words
    assert "layer 2/2: grid search for up_proj 3/5" in words
    assert "layer 1/2: smoothing 1/2" in words
    # The part after the last layer is still the last layer's to a reader.
    assert words[-1] == "layer 2/2: propagating 8/8"
    assert len(follow.follower.smoothed) == 6


def test_gptq_is_followed_by_its_modules(inside: Any, tmp_path: Path) -> None:
    follow = Follow(inside, tmp_path, "int8")
    read = follow.follower.read
    read("Smoothing with model.layers.0.input_layernorm")
    follow.follower.draw("(1/3): Calibrating", 1, 8)
    read("Quantizing 3 module(s): ['model.layers.0.q_proj', 'model.layers.0.k_proj', 'x']")
    read("Quantizing 1 module(s): ['model.layers.1.mlp.down_proj']")
    read("Hessian inversion failed for 2/14 modules (14.3%). These modules were")
    assert follow.told == [(0, 14, "layer 1/2"), (3, 14, "layer 2/2")]
    assert follow.follower.fallback == 2
    assert follow.follower.smoothed == {"model.layers.0.input_layernorm"}


def test_what_awq_left_out_is_counted(inside: Any, tmp_path: Path) -> None:
    follower = Follow(inside, tmp_path, "awq").follower
    follower.read("30 mappings were skipped due to incompatible shapes. Set logging to DEBUG")
    follower.read("Skipping smooth_layer model.layers.3.input_layernorm, NaN or inf outputs found")
    follower.read("Something else was skipped")
    assert follower.skipped == 31


def test_progress_of_a_follower_is_written(inside: Any, tmp_path: Path) -> None:
    job = inside("_job").Job({}, tmp_path)
    inside("_follow").Follower(job, "fp8", 14, 2).draw("(2/3): Propagating", 4, 8)
    told = json.loads((tmp_path / "progress.json").read_text())
    assert told == {"done": 1.75, "total": 3, "what": "layer 2/2: propagating 4/8"}
