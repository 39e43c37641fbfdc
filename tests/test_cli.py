"""Arguments, output and exit codes of the command line."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]


def test_version_and_help(workbench: Call) -> None:
    assert workbench("--version").stdout.strip() == "0.1.0"
    text = workbench("--help").stdout
    for command in ("validate", "plan", "run", "gate", "report", "doctor", "demo", "env"):
        assert command in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "run"),
        (["run"], "RECIPE"),
        (["run", "recipe.yaml", "--onyl", "x"], "--only"),
        (["run", "nope.yaml"], "no file nope.yaml"),
        (["gate"], "no run yet"),
        (["report", "nope"], "no run"),
        (["run", "recipe.yaml", "--run", "../up"], "name"),
        (["env", "create", "vlm"], "vllm"),
        (["run", "recipe.yaml", "--run", ""], "where: after --run"),
        (["run", "recipe.yaml", "--results="], "where: --results="),
        (["gate", ""], "an argument is empty"),
    ],
)
def test_usage_errors_are_code_2(workbench: Call, arguments: list[str], says: str) -> None:
    done = workbench(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_and_environments(workbench: Call) -> None:
    text = workbench("doctor").stdout
    for word in ("python", "cpu", "memory", "gpu", "disk", "environment vllm"):
        assert word in text
    listing = workbench("env", "list").stdout
    assert "quantize" in listing and "vllm" in listing


def test_demo_tiny(workbench: Call, project: Path) -> None:
    assert workbench("demo", "--tiny").returncode == 0
    assert (project / "results" / "checkpoints" / "tiny" / "model.safetensors").is_file()


def test_plan_writes_nothing(workbench: Call, project: Path) -> None:
    done = workbench("plan", "recipe.yaml")
    assert done.returncode == 0
    assert "quantize:good" in done.stdout and "not done yet" in done.stdout
    assert "what the gated suites can show" in done.stdout and "assumed" in done.stdout
    assert not (project / "results" / "smoke").exists()


def test_outside_a_project(tmp_path: Path, tiny: Path) -> None:
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "workbench", "gate"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "not inside a workbench project" in done.stderr
