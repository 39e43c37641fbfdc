"""The real vLLM killed in the middle of a suite, once and twice, by a real signal.

What the fakes cannot show: that a second real server takes over from a dead one (its engine process
gone, its memory and port free), and that the answers are those of a server nobody killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from projects import edit_recipe
from test_servers import gone

Call = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

SAMPLES = 60
STEP = "evaluate:baseline"


@pytest.fixture
def small(project: Path, demo: Path) -> Path:
    """The real checkpoint, one suite of free answers, nothing else."""
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: short_question, margin: 0.5, min_n: 20}]\n"
    )
    edit_recipe(
        project,
        lambda r: r.update(
            name="killed",
            model={"path": str(demo)},
            variants=[{"name": "fp8", "method": "fp8"}],
            serve={"engine": "vllm", "max_model_len": 1024},
            evaluate={
                "suites": ["short_question"],
                "limit": SAMPLES,
                "noise_floor": False,
                "concurrency": 2,
            },
            profile=None,
            policy="policy.yaml",
        ),
    )
    return project


def answers(project: Path) -> dict[str, tuple[object, object]]:
    """Id -> output and error of what is stored of the step, unfinished or not."""
    found = [
        json.loads(line)
        for file in (project / "results" / "artifacts").glob("evaluate-*/short_question.jsonl")
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")  # the last one may be half written
    ]
    return {row["id"]: (row["output"], row["error"]) for row in found}


def run_and_kill(project: Path, kills: int) -> tuple[int, str, list[list[psutil.Process]]]:
    """Run the step and kill its server so many times, each time twelve answers later."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml", "--only", STEP],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    record = project / "results" / "killed" / "variants" / "baseline" / "server" / "server.json"
    dead: list[list[psutil.Process]] = []
    before = len(answers(project))
    ends = time.monotonic() + 900
    with process:
        while len(dead) < kills and process.poll() is None and time.monotonic() < ends:
            if len(answers(project)) >= before + 12 * (len(dead) + 1) and record.exists():
                server = psutil.Process(json.loads(record.read_text())["pid"])
                if not dead or server != dead[-1][0]:
                    dead.append([server, *server.children(recursive=True)])
                    server.send_signal(signal.SIGKILL)
            time.sleep(0.1)
        said, _ = process.communicate(timeout=900)
    assert len(dead) == kills, said
    return process.returncode, said, dead


def test_killed_twice_then_once(small: Path, workbench: Call) -> None:
    code, said, dead = run_and_kill(small, 2)
    assert code == 3, said
    assert "died a second time" in said and "what was answered is kept" in said
    assert all(gone(p.pid) for tree in dead for p in tree)
    kept = answers(small)
    assert 24 <= len(kept) < SAMPLES and all(error is None for _, error in kept.values())

    # The next run asks only what is missing; its server dies once, and it goes on.
    code, said, dead = run_and_kill(small, 1)
    assert code == 0, said
    assert "the server died and is started again" in said
    assert all(gone(p.pid) for tree in dead for p in tree)
    disturbed = answers(small)
    assert len(disturbed) == SAMPLES and kept.items() <= disturbed.items()
    record = small / "results" / "killed" / "variants" / "baseline" / "evaluation.json"
    assert json.loads(record.read_text())["restarts"] == 1

    done = workbench("run", "recipe.yaml", "--only", STEP, "--force", STEP, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(record.read_text())["restarts"] == 0
    assert answers(small) == disturbed
