"""The whole spine on the shipped fakes: real notebooks, kernels, processes and files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from projects import ROOT, edit_recipe

from workbench import __version__
from workbench.context import new_run
from workbench.gate import timings_aside
from workbench.records import Gate
from workbench.store import read_record

Call = Callable[..., subprocess.CompletedProcess[str]]


def decisive(path: Path) -> dict[str, Any]:
    """A gate record without what depends on the clock."""
    return timings_aside(read_record(path, Gate))


def offspring(project: Path) -> list[str]:
    """Command lines of live processes that work on this project."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(project) in line and process.pid != os.getpid():
            found.append(line)
    return found


def test_a_repeated_variant_shows_its_spread(workbench: Call, project: Path) -> None:
    edit_recipe(
        project,
        lambda r: r.update(
            variants=[{"name": "good", "method": "fake", "repeat": {"seeds": 3}}],
            evaluate={"suites": ["sentiment"], "noise_floor": False},
            policy="policy.yaml",
        ),
    )
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: one\nquality: [{suite: sentiment, margin: 0.1}]\n"
    )
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    run = project / "results" / "smoke"
    gate = Gate.model_validate_json((run / "gate.json").read_text())
    assert [v.variant for v in gate.variants] == ["good"], "a replica has no verdict of its own"
    (spread,) = gate.sensitivity
    assert list(spread.scores) == ["good", "good-seed8", "good-seed9"]
    assert not spread.missing and set(spread.statuses.values()) == {"PASS"}
    seals = {
        json.loads((run / path / "calibration.json").read_text())["seal"]
        for path in (".", "variants/good-seed8", "variants/good-seed9")
    }
    assert len(seals) == 3
    assert not (run / "variants" / "good-seed8" / "profile.json").exists()
    assert "How much does the calibration sample decide?" in (run / "report.html").read_text()


def test_records_say_which_version_made_them(workbench: Call, project: Path) -> None:
    assert workbench("run", "recipe.yaml", "--only", "calibrate").returncode == 0
    run = project / "results" / "smoke"
    assert json.loads((run / "plan.json").read_text())["workbench"] == __version__
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [
        e.get("workbench") for e in events if (e["step"], e["event"]) == ("calibrate", "start")
    ] == [None, __version__]  # what runs the step says so, not what asked for it


def quantizer_of(project: Path) -> psutil.Process:
    """The fake quantizer's process that works in this project."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if len(words) > 2 and words[1].endswith("fake_quantize.py") and str(project) in words[2]:
            return process
    raise AssertionError("no quantizer works there")


def _one_suite(project: Path, seconds: int) -> None:
    """A recipe of one suite and one variant that takes so long to make."""
    edit_recipe(
        project,
        lambda r: r.update(
            variants=[{"name": "good", "method": "fake", "seconds": seconds}],
            evaluate={"suites": ["sentiment"], "noise_floor": False},
            policy="policy.yaml",
            profile=None,
        ),
    )
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: one\nquality: [{suite: sentiment, margin: 0.1}]\n"
    )


def test_two_runs_that_need_the_same_work_do_it_once(workbench: Call, project: Path) -> None:
    _one_suite(project, seconds=6)
    command = [sys.executable, "-m", "workbench", "run", "recipe.yaml", "--run"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    both = [subprocess.Popen([*command, name], cwd=project, **pipes) for name in ("one", "two")]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    events = [
        line
        for name in ("one", "two")
        for line in (project / "results" / name / "events.jsonl").read_text().splitlines()
    ]
    assert any("waiting for process" in line for line in events)
    jobs = [line for line in events if '"quantize good"' in line and '"tool"' in line]
    assert len(jobs) == 1


def test_what_another_run_finishes_meanwhile_is_this_runs_too(
    workbench: Call, project: Path
) -> None:
    _one_suite(project, seconds=8)
    events = project / "results" / "slow" / "events.jsonl"
    slow = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml", "--run", "slow"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with slow:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            if events.exists() and '"progress", "step": "quantize:good"' in events.read_text():
                break
            time.sleep(0.1)
        # The slow one waits for the quick one, however slow this machine makes that.
        job = quantizer_of(project)
        job.suspend()
        try:
            only = ("--only", "evaluate:baseline")
            quick = workbench("run", "recipe.yaml", "--run", "quick", *only)
            assert "evaluate:baseline: done" in quick.stdout, quick.stdout + quick.stderr
            assert '"done", "step": "quantize:good"' not in events.read_text(), "not meanwhile"
        finally:
            job.resume()
        said = slow.communicate(timeout=120)[0]
    assert slow.returncode == 0, said
    assert (events.parent / "variants" / "baseline" / "evaluation.json").is_file()


def test_smoke_run_to_a_verdict_and_again(workbench: Call, project: Path) -> None:
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr
    run = project / "results" / "smoke"
    gate = Gate.model_validate_json((run / "gate.json").read_text())
    verdicts = {v.variant: v.verdict for v in gate.variants}
    assert verdicts == {"good": "GO", "damaged": "NO-GO"}
    assert "NO-GO" in done.stdout and str(run / "report.html") in done.stdout
    assert "the workbench itself took" in done.stdout
    said = " ".join(done.stdout.split())
    assert "(fake engine: says nothing about a model)" in said
    assert "artifact of good: " in said and "artifact of damaged" not in said
    shipped = said.split("artifact of good: ")[1].split(" ")[0]
    assert (Path(shipped) / "config.json").is_file()
    assert "second pass" in (run / "events.jsonl").read_text()
    assert "<script" not in (run / "report.html").read_text()
    copies = sorted(p.name for p in (run / "executed").iterdir())
    assert copies == sorted(
        ["01_calibrate.ipynb", "05_gate.ipynb"]
        + [f"02_quantize.{v}.ipynb" for v in ("good", "damaged")]
        + [
            f"0{n}.{v}.ipynb"
            for n in ("3_evaluate", "4_profile")
            for v in ("baseline", "good", "damaged")
        ]
    )
    for name in ("baseline", "good", "damaged"):
        rows = (run / "variants" / name / "eval" / "sentiment.jsonl").read_text().splitlines()
        assert len(rows) >= 60
        assert (run / "variants" / name / "server" / "metrics.txt").stat().st_size
    assert (run / "variants" / "baseline" / "eval" / "sentiment.repeat.jsonl").is_file()
    assert not offspring(project)

    # Again: no server, no notebook, and it says why.
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file()}
    again = workbench("run", "recipe.yaml")
    assert again.returncode == 10
    assert again.stdout.count("cached - same inputs and tools") == 9
    assert "the workbench itself took" not in again.stdout
    changed = {p.name for p, at in before.items() if p.stat().st_mtime_ns != at}
    assert changed <= {"recipe.lock.yaml", "checkpoint.json", "plan.json", ".lock", "answers.json"}

    # A second run by another name shares the work and only gates.
    other = workbench("run", "recipe.yaml", "--run", "other")
    assert other.returncode == 10
    assert sorted(p.name for p in (project / "results/other/executed").iterdir()) == [
        "05_gate.ipynb"
    ]
    first, second = (decisive(project / "results" / n / "gate.json") for n in ("smoke", "other"))
    assert {**first, "run": ""} == {**second, "run": ""}

    # The README's what-if is what the program prints.
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = re.findall(r"^\$ workbench (gate smoke --what-if .*)\n((?:.+\n)+?)```", readme, re.M)
    assert len(shown) == 1
    for command, printed in shown:
        asked = workbench(*command.split())
        assert [line.rstrip() for line in asked.stdout.splitlines()] == printed.splitlines()

    # The gate works on records alone: the checkpoints may be gone.
    lock = run / "recipe.lock.yaml"
    lines = lock.read_text().splitlines()
    gone = ["model_path: /gone" if x.startswith("model_path:") else x for x in lines]
    assert gone != lines
    lock.write_text("\n".join(gone))
    (project / "results" / "artifacts").rename(project / "elsewhere")
    regated = workbench("gate", "smoke")
    assert regated.returncode == 10, regated.stderr
    assert f"artifact of good: {shipped} (it is gone" in " ".join(regated.stdout.split())
    assert decisive(run / "gate.json") == first
    report = workbench("report", "smoke")
    assert report.returncode == 0 and report.stdout.strip() == str(run / "report.html")


def test_a_change_invalidates_what_depends_on_it(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["evaluate"].update(suites=["sentiment"], limit=40))
    policy = project / "policy.yaml"
    policy.write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: sentiment, margin: 0.3, min_n: 20}]\n"
    )
    edit_recipe(project, lambda r: r.update(policy="policy.yaml", profile=None))
    assert workbench("run", "recipe.yaml").returncode == 10
    # The policy alone: only the gate runs.
    policy.write_text(policy.read_text().replace("0.3", "0.31"))
    plan = workbench("plan", "recipe.yaml").stdout
    assert plan.count("cached") == 6 and plan.count("to do") == 1
    assert "the policy changed since the verdict" in " ".join(plan.split())
    # Fewer samples: what was measured is asked again, what was made stays.
    edit_recipe(project, lambda r: r["evaluate"].update(limit=30))
    plan = workbench("plan", "recipe.yaml").stdout
    assert plan.count("cached") == 3 and plan.count("to do") == 4
    assert "changed since the last record: evaluate (limit)" in " ".join(plan.split())
    # --only stops before the verdict; --force does a finished step again.
    only = workbench("run", "recipe.yaml", "--only", "evaluate:good")
    assert only.returncode == 0 and "verdict of" not in only.stdout
    said = " ".join(only.stdout.split())
    assert "evaluate:good: started - changed since the last record: evaluate (limit)" in said
    assert "warn still to do: evaluate:baseline (changed since the last record" in said
    # The verdict of before does not stay for whoever reads the files.
    assert not (project / "results/smoke/gate.json").exists()
    assert not (project / "results/smoke/report.html").exists()
    assert workbench("plan", "recipe.yaml").stdout.count("cached") == 4
    forced = workbench("run", "recipe.yaml", "--force", "quantize:good")
    assert "quantize:good: done" in forced.stdout
    # One more suite: the one that did not change is not asked again, to the last timing.
    kept = project / "results/smoke/variants/baseline/eval/sentiment.jsonl"
    before = kept.read_bytes()
    edit_recipe(project, lambda r: r["evaluate"]["suites"].append("json_extract"))
    assert workbench("run", "recipe.yaml").returncode == 10
    assert kept.read_bytes() == before and (kept.parent / "json_extract.jsonl").is_file()
    assert workbench("run", "recipe.yaml", "--force", "evaluate:baseline").returncode == 10
    assert kept.read_bytes() != before
    assert "quantize:good: started - forced" in forced.stdout
    assert "quantize:good: cached" not in forced.stdout
    # What is thrown away is done again.
    files = sorted((project / "results/smoke").rglob("*"))
    undone = workbench("run", "recipe.yaml", "--only", "gate", "--force", "evaluate:good")
    assert (
        undone.returncode == 2
        and "--force would throw away the record of evaluate:good" in undone.stderr
    )
    assert sorted((project / "results/smoke").rglob("*")) == files
    unknown = workbench("run", "recipe.yaml", "--only", "evaluate:god")
    assert unknown.returncode == 2 and "did you mean 'evaluate:good'" in unknown.stderr
    assert not unknown.stdout


def _start(project: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _gone(project: Path, seconds: float = 30) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := offspring(project)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.mark.timeout(1800)
def test_kill_at_any_moment_and_resume(workbench: Call, project: Path) -> None:
    """Ten kills spread over the run; every process goes with it, and the verdict is the same."""
    begun = time.monotonic()
    assert workbench("run", "recipe.yaml").returncode == 10
    whole = time.monotonic() - begun
    expected = decisive(project / "results" / "smoke" / "gate.json")
    for kill in range(10):
        root = project.parent / f"killed{kill}"
        root.mkdir()
        for name in ("eval_suites", "calib_data", "notebooks"):
            (root / name).symlink_to(ROOT / name)
        (root / "recipe.yaml").write_bytes((project / "recipe.yaml").read_bytes())
        victim = _start(root)
        with victim:
            try:
                victim.wait(timeout=whole * (kill + 0.5) / 10)
            except subprocess.TimeoutExpired:
                victim.send_signal(signal.SIGKILL)
        assert not _gone(root)
        done = subprocess.run(
            [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 10, f"kill {kill}: {done.stdout}{done.stderr}"
        assert decisive(root / "results" / "smoke" / "gate.json") == expected, f"kill {kill}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_everything(project: Path, number: signal.Signals) -> None:
    edit_recipe(project, lambda r: r["variants"][0].update(seconds=60))
    run = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    events = project / "results" / "smoke" / "events.jsonl"
    with run:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if events.exists() and '"progress", "step": "quantize:good"' in events.read_text():
                break
            time.sleep(0.1)
        begun = time.monotonic()
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, out + err
    assert "goes on where it stopped" in err
    assert "Traceback" not in err, err
    assert time.monotonic() - begun < 50
    assert not _gone(project)
    for record in (project / "results").rglob("*.json"):
        json.loads(record.read_text())


def test_what_to_type_next_says_the_name_of_the_run(workbench: Call, project: Path) -> None:
    recipe = project / "recipe.yaml"
    own = new_run(recipe)
    assert own.command == new_run(recipe, own.loaded.recipe.name).command
    assert own.command == f"workbench run {recipe.resolve()}"
    assert new_run(recipe, "other").command == f"{own.command} --run other"
    elsewhere = project / "my results"
    assert new_run(recipe, "", elsewhere).command == f"{own.command} --results '{elsewhere}'"
    only = workbench("run", "recipe.yaml", "--run", "other", "--only", "calibrate")
    assert only.returncode == 0, only.stderr
    assert f"; {own.command} --run other does them" in " ".join(only.stdout.split())
