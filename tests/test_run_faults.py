"""The spine when something below it fails: what the user sees, and that nothing is lost."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ports import unasked_port
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
    # A kernel that is shut down while it gets no processor may die in libzmq, which says so.
    said = re.sub(r"^Assertion failed: .*\(src/\w+\.cpp:\d+\)\n", "", done.stderr, flags=re.M)
    assert said.startswith("error: "), done.stderr
    assert "workbench/cli.py" not in done.stderr, "a traceback of ours"
    assert "fix:" in done.stderr
    return done.stderr


def run_with(
    faults: dict[str, object], project: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml", *options],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_COLOR": "1", "WORKBENCH_FAKE_FAULTS": json.dumps(faults)},
    )


def test_port_in_use(workbench: Call, small: Path) -> None:
    # It is let go below, and wanted seconds later, again and again.
    port = unasked_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        edit_recipe(small, lambda r: r["serve"].update(port=port))
        message = fail(workbench("run", "recipe.yaml"))
        assert str(port) in message and "in use" in message
    assert workbench("run", "recipe.yaml").returncode == 0


def test_health_and_then_500(workbench: Call, small: Path) -> None:
    message = fail(run_with({"fail_after_health": True}, small))
    assert "answers /health but not its first completion" in message and "500" in message
    # Nothing is kept of it, and the same command goes on once the server is well.
    assert workbench("run", "recipe.yaml").returncode == 0


def rows_of(project: Path) -> list[dict[str, object]]:
    (rows,) = (project / "results" / "artifacts").glob("evaluate-*/sentiment.jsonl")
    return [json.loads(line) for line in rows.read_text().splitlines()]


def evaluation(project: Path, variant: str) -> dict[str, object]:
    path = project / "results" / "smoke" / "variants" / variant / "evaluation.json"
    found: dict[str, object] = json.loads(path.read_text())
    return found


def timings_aside(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k not in ("started", "seconds")} for row in rows]


def published(project: Path, variant: str) -> list[dict[str, object]]:
    path = project / "results" / "smoke" / "variants" / variant / "eval" / "sentiment.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_server_that_dies_once_is_started_again(workbench: Call, small: Path) -> None:
    """Each variant's server dies in the middle of its suite; nothing else is different."""
    edit_recipe(
        small,
        lambda r: r.update(
            profile={
                "workloads": [{"name": "short", "prompt_tokens": 8, "output_tokens": 4}],
                "concurrency": [2],
                "requests": 4,
            }
        ),
    )
    done = run_with({"die_after": 30, "die_times": 1}, small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the server died and is started again" in done.stdout
    disturbed = {}
    for variant in ("baseline", "good"):
        assert evaluation(small, variant)["restarts"] == 1
        folder = small / "results" / "smoke" / "variants" / variant
        assert (folder / "server" / "deaths").read_text() == "."
        assert (folder / "server" / "died.server.log").is_file()
        assert not (folder / "server" / "server.json").exists()
        assert json.loads((folder / "profile.json").read_text())["points"][0]["completed"] == 4
        disturbed[variant] = timings_aside(published(small, variant))
        assert len(disturbed[variant]) == 40
        assert all(row["error"] is None for row in disturbed[variant])
    again = workbench("run", "recipe.yaml", "--force", "evaluate")
    assert again.returncode == 0, again.stdout + again.stderr
    for variant, rows in disturbed.items():
        assert evaluation(small, variant)["restarts"] == 0
        assert timings_aside(published(small, variant)) == rows


def test_a_server_that_dies_twice_keeps_what_it_answered(workbench: Call, small: Path) -> None:
    faults: dict[str, object] = {"die_after": 36, "die_times": 2}
    message = fail(run_with(faults, small))
    assert "died a second time" in message and "is gone" in message
    before = {row["id"]: row for row in rows_of(small)}
    assert 10 < len(before) < 40 and all(row["error"] is None for row in before.values())
    plan = workbench("plan", "recipe.yaml").stdout
    assert "the last attempt failed" in plan and "cut short" not in plan
    # The third server lives, and would not if it were asked more than what is missing.
    faults = {"die_after": 2 + 2 * (40 - len(before)) + 1}
    done = run_with(faults, small, "--only", "evaluate:baseline")
    assert done.returncode == 0, done.stdout + done.stderr
    after = {row["id"]: row for row in rows_of(small)}
    assert len(after) == 40
    # Grades came when all were there; of what was asked and answered nothing changed.
    graded = ("score", "grade", "flags")
    assert all(after[i][k] == row[k] for i, row in before.items() for k in row if k not in graded)
    assert workbench("run", "recipe.yaml").returncode == 0


def test_by_hand_the_step_starts_its_own_second_server(workbench: Call, small: Path) -> None:
    for kind in ("calibrate", "quantize"):
        assert workbench("run", "recipe.yaml", "--only", kind).returncode == 0
    code = (
        "import workbench; from workbench import steps; "
        "record = steps.evaluate(workbench.open_run('smoke'), 'good'); "
        "print(record.restarts, record.suites[0].n, record.suites[0].failed)"
    )
    faults = json.dumps({"die_after": 30, "die_times": 1})
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=small,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "WORKBENCH_FAKE_FAULTS": faults},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 40 0"


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
        # Nor of what it starts: modules compiled and cut off would lie there for every other test.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
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
        message = fail(workbench("run", "recipe.yaml"), 3)
        assert str(first.pid) in message and "in use" in message
        first.send_signal(signal.SIGINT)
        first.communicate()
    assert first.returncode == 130
