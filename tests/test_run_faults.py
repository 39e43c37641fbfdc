"""The spine when something below it fails: what the user sees, and that nothing is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import edit_recipe

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def small(project: Path) -> Path:
    """The smoke recipe cut to one suite, one variant and no profile."""
    policy = project / "policy.yaml"
    policy.write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: sentiment, margin: 0.2, min_n: 20}]\n"
    )

    def cut(recipe: dict[str, object]) -> None:
        recipe["evaluate"] = {"suites": ["sentiment"], "limit": 40, "noise_floor": False}
        recipe["variants"] = [{"name": "good", "method": "fake"}]
        recipe["profile"] = None
        recipe["policy"] = "policy.yaml"

    edit_recipe(project, cut)
    return project


def fail(done: subprocess.CompletedProcess[str], code: int = 3) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert "workbench/cli.py" not in done.stderr, "a traceback of ours"
    assert "fix:" in done.stderr
    return done.stderr


def run_with(faults: dict[str, object], project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1", "WORKBENCH_FAKE_FAULTS": json.dumps(faults)},
    )


def test_port_in_use(workbench: Call, small: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        edit_recipe(small, lambda r: r["serve"].update(port=port))
        message = fail(workbench("run", "recipe.yaml"))
        assert str(port) in message and "in use" in message
    assert workbench("run", "recipe.yaml").returncode == 0


def test_health_and_then_500(workbench: Call, small: Path) -> None:
    message = fail(run_with({"fail_after_health": True}, small))
    assert "answers /health but not its first completion" in message and "500" in message
    # Nothing is kept of it, and the same command goes on once the server is well.
    assert workbench("run", "recipe.yaml").returncode == 0


def test_server_that_dies_keeps_what_it_answered(workbench: Call, small: Path) -> None:
    message = fail(run_with({"die_after": 60}, small))
    assert "died" in message or "gone" in message or "answers" in message
    (rows,) = (small / "results" / "artifacts").glob("evaluate-*/sentiment.jsonl")
    kept = rows.read_text().splitlines()
    assert 0 < len(kept) < 40
    plan = workbench("plan", "recipe.yaml").stdout
    assert "an attempt was cut short" in plan
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    before = {json.loads(line)["id"]: json.loads(line) for line in kept}
    after = {json.loads(line)["id"]: json.loads(line) for line in rows.read_text().splitlines()}
    assert len(after) == 40
    assert all(after[i] == row for i, row in before.items() if row["error"] is None)


def test_corrupt_kernel_is_caught_by_the_canary(small: Path) -> None:
    assert "canary" in fail(run_with({"nan_logprobs": True}, small))


@pytest.mark.parametrize(
    ("kind", "says"),
    [("signal", "sigkill"), ("oom", "memory"), ("no_result", "result"), ("error", "fake")],
)
def test_quantizer_that_fails(workbench: Call, small: Path, kind: str, says: str) -> None:
    edit_recipe(small, lambda r: r["variants"][0].update(fail=kind))
    message = fail(workbench("run", "recipe.yaml"))
    assert says in message.lower(), message
    assert not list((small / "results" / "artifacts").glob("quantize-*/record.json"))


def test_full_disk(small: Path) -> None:
    """A real cut-off: no file of the run may grow beyond 20 kB, which the checkpoint needs."""

    def limit() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [sys.executable, "-B", "-m", "workbench", "run", "recipe.yaml"],
        cwd=small,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert "error: " in done.stderr and done.returncode in (1, 3)
    for record in (small / "results").rglob("*.json"):
        json.loads(record.read_text())
    assert not (small / "results" / "smoke" / "gate.json").exists()
    again = subprocess.run(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=small,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stdout + again.stderr


def test_two_at_once(small: Path, workbench: Call) -> None:
    """The second run of the same name is told who holds it."""
    edit_recipe(small, lambda r: r["variants"][0].update(seconds=30))
    first = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=small,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    with first:
        for line in first.stdout:
            if "started" in line:
                break
        message = fail(workbench("run", "recipe.yaml"), 2)
        assert str(first.pid) in message and "in use" in message
        first.send_signal(signal.SIGINT)
        first.communicate()
    assert first.returncode == 130
