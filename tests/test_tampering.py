"""No false GO out of files that changed behind the workbench's back."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import edit_recipe

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(project: Path, workbench: Call) -> Path:
    """A finished run whose one variant, 'bad', is NO-GO."""
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: sentiment, margin: 0.2, min_n: 20}]\n"
    )
    edit_recipe(
        project,
        lambda r: r.update(
            variants=[{"name": "bad", "method": "fake", "damage": 0.9}],
            evaluate={"suites": ["sentiment"], "limit": 40, "noise_floor": False},
            profile=None,
            calibration=None,
            policy="policy.yaml",
        ),
    )
    assert workbench("run", "recipe.yaml").returncode == 10
    return project / "results" / "smoke"


def test_rows_of_the_run(workbench: Call, run: Path) -> None:
    good = (run / "variants/baseline/eval/sentiment.jsonl").read_bytes()
    (run / "variants/bad/eval/sentiment.jsonl").write_bytes(good)
    refused = workbench("gate")
    assert refused.returncode == 2 and "not those that were recorded" in refused.stderr
    assert workbench("run", "recipe.yaml").returncode == 10
    assert (run / "variants/bad/eval/sentiment.jsonl").read_bytes() != good


@pytest.mark.parametrize("of", ["run", "artifact"])
def test_lengths_of_answers(workbench: Call, run: Path, of: str) -> None:
    """They are in no digest of the rows, and `output_length` rests on them."""
    evaluation = json.loads((run / "variants/bad/evaluation.json").read_text())
    artifact = run.parent / "artifacts" / f"evaluate-{evaluation['id'][:16]}"
    path = (run / "variants/bad/eval" if of == "run" else artifact) / "sentiment.jsonl"
    good = path.read_text()
    path.write_text(good.replace('"output_tokens":', '"output_tokens":1'))
    if of == "run":
        refused = workbench("gate")
        assert refused.returncode == 2 and "not those that were recorded" in refused.stderr
    assert workbench("run", "recipe.yaml").returncode == 10
    assert path.read_text() == good


@pytest.mark.parametrize("how", ["edited", "torn", "lost"])
def test_rows_of_the_artifact(workbench: Call, run: Path, how: str) -> None:
    evaluation = json.loads((run / "variants/bad/evaluation.json").read_text())
    rows = run.parent / "artifacts" / f"evaluate-{evaluation['id'][:16]}" / "sentiment.jsonl"
    if how == "edited":
        rows.write_text(rows.read_text().replace('"score":0.0', '"score":1.0'))
    elif how == "torn":
        rows.write_bytes(rows.read_bytes()[:3000])
    else:
        rows.unlink()
    plan = workbench("plan", "recipe.yaml").stdout
    assert "is not used" in plan, plan
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr
    assert len(rows.read_text().splitlines()) == 40


def test_a_score_that_is_infinite_is_a_damaged_row(workbench: Call, run: Path) -> None:
    evaluation = json.loads((run / "variants/bad/evaluation.json").read_text())
    rows = run.parent / "artifacts" / f"evaluate-{evaluation['id'][:16]}" / "sentiment.jsonl"
    for path in (rows, run / "variants/bad/eval/sentiment.jsonl"):
        path.write_text(path.read_text().replace('"score":0.0', '"score":1e999', 1))
    refused = workbench("gate")
    assert refused.returncode == 2 and "a number is infinite" in refused.stderr
    assert "is not used" in workbench("plan", "recipe.yaml").stdout
    assert workbench("run", "recipe.yaml").returncode == 10
    assert "1e999" not in rows.read_text()


def test_verdict_edited_by_hand(workbench: Call, run: Path) -> None:
    gate = run / "gate.json"
    true = gate.read_bytes()
    gate.write_bytes(true.replace(b'"NO-GO"', b'"GO"'))
    assert workbench("report").returncode == 2
    assert workbench("run", "recipe.yaml").returncode == 10
    assert gate.read_bytes() == true
    gate.write_bytes(true[:100])
    assert workbench("gate").returncode == 10
    assert gate.read_bytes() == true


def test_weights_changed_after_quantizing(workbench: Call, run: Path) -> None:
    (weights,) = (run.parent / "artifacts").glob("quantize-*/checkpoint/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 255
    weights.unlink()  # it may be a hard link to the source
    weights.write_bytes(data)
    plan = workbench("plan", "recipe.yaml").stdout
    assert "was altered" in " ".join(plan.split()), plan
    assert workbench("run", "recipe.yaml").returncode == 10
    assert weights.read_bytes() != bytes(data)


def test_records_of_another_recipe(workbench: Call, run: Path, project: Path) -> None:
    """A verdict may not carry one recipe's name and rest on another one's records."""
    edit_recipe(project, lambda r: r["variants"][0].update(damage=0.0))
    assert workbench("run", "recipe.yaml").returncode == 0
    edit_recipe(project, lambda r: r["variants"][0].update(damage=0.9))
    assert workbench("run", "recipe.yaml", "--force", "evalute").returncode == 2
    gate = workbench("gate")
    assert gate.returncode == 0 and "policy changed since" in " ".join(gate.stdout.split())
    lock = run / "recipe.lock.yaml"
    lock.write_text(lock.read_text().replace("damage: 0.0", "damage: 0.9"))
    mixed = workbench("gate")
    assert mixed.returncode == 2 and "planned for another recipe" in mixed.stderr


def test_records_of_an_older_schema_are_said_to_be_that(workbench: Call, run: Path) -> None:
    """The workbench that wrote them digested the recipe otherwise, which is not what is wrong."""
    plan, record = run / "plan.json", run / "variants" / "bad" / "evaluation.json"
    planned = json.loads(plan.read_text())
    plan.write_text(json.dumps({**planned, "recipe_digest": "older"}))
    assert "planned for another recipe" in workbench("gate").stderr
    text = record.read_text().replace("workbench.evaluation/2", "workbench.evaluation/1")
    record.write_text(text)
    older = workbench("gate")
    said = " ".join(older.stderr.split())
    assert older.returncode == 2 and "has schema 'workbench.evaluation/1', this workbench" in said
    assert "bad/evaluation.json" in said.replace(" ", "") and "another recipe" not in said


def test_a_refused_command_changes_nothing(workbench: Call, run: Path, project: Path) -> None:
    """A verdict in the folder of a run is still the one of the recipe that lies beside it."""

    def files() -> dict[str, bytes]:
        found = (p for p in run.parent.rglob("*") if p.is_file() and p.name != ".lock")
        return {str(p): p.read_bytes() for p in found if ".cache" not in p.parts}

    before = files()
    forced = workbench("run", "recipe.yaml", "--only", "gate", "--force", "evaluate:baseline")
    said = " ".join(forced.stderr.split())
    assert forced.returncode == 2
    assert "--force would throw away the record of evaluate:baseline" in said
    assert files() == before
    edit_recipe(project, lambda r: r["evaluate"].update(limit=30))
    refused = workbench("run", "recipe.yaml", "--only", "gate")
    assert refused.returncode == 2
    assert "step gate needs evaluate:baseline" in " ".join(refused.stderr.split())
    assert files() == before
    assert workbench("gate").returncode == 10


def test_gate_says_that_a_suite_is_no_longer_what_was_asked(
    workbench: Call, run: Path, project: Path
) -> None:
    def said() -> str:
        done = workbench("gate")
        assert done.returncode == 10, done.stderr
        return " ".join(done.stdout.split())

    assert "changed since" not in said()
    suites = (project / "eval_suites").resolve()
    (project / "eval_suites").unlink()
    shutil.copytree(suites, project / "eval_suites")
    assert "changed since" not in said()
    samples = project / "eval_suites" / "sentiment" / "samples.jsonl"
    samples.write_text(samples.read_text().replace("kettle", "toaster", 1))
    applies = "decided as the run was started: workbench run"
    assert f"suite 'sentiment' changed since; {applies}" in said()
    samples.write_text("broken")
    assert "suite 'sentiment' changed since" in said()


def test_forced_step_that_fails_leaves_no_old_evidence(
    workbench: Call, run: Path, project: Path
) -> None:
    edit_recipe(project, lambda r: r["variants"][0].update(damage=0.0))
    assert workbench("run", "recipe.yaml").returncode == 0
    failed = subprocess.run(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml", "--force", "evaluate"],
        cwd=project,
        capture_output=True,
        env={**os.environ, "WORKBENCH_FAKE_FAULTS": '{"fail_after_health": true}'},
    )
    assert failed.returncode == 3
    assert workbench("gate").returncode != 0


def test_evidence_of_an_older_recipe_is_said_to_be_that(
    workbench: Call, run: Path, project: Path
) -> None:
    edit_recipe(project, lambda r: r["evaluate"].update(limit=41))
    assert workbench("run", "recipe.yaml", "--only", "evaluate:bad").returncode == 0
    gate = workbench("gate")
    said = " ".join(gate.stdout.replace("│", " ").split())
    assert gate.returncode == 11
    assert "the evaluation of baseline is of an older recipe, suite or checkpoint" in said


def test_failed_samples_are_asked_again(workbench: Call, run: Path, project: Path) -> None:
    edit_recipe(project, lambda r: r["variants"][0].update(damage=0.0))
    faulty = subprocess.run(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, "WORKBENCH_FAKE_FAULTS": '{"error_every": 9}'},
    )
    assert faulty.returncode == 11, faulty.stdout + faulty.stderr
    again = workbench("run", "recipe.yaml")
    assert again.returncode == 0, again.stdout + again.stderr


def test_damaged_record_of_an_artifact_is_made_again(workbench: Call, run: Path) -> None:
    for record in (run.parent / "artifacts").glob("*/record.json"):
        record.write_bytes(record.read_bytes()[:50])
    assert workbench("run", "recipe.yaml").returncode == 10


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling_llama.py", "sub/extra.pkl"])
def test_a_file_laid_beside_the_weights(workbench: Call, run: Path, name: str) -> None:
    (folder,) = (run.parent / "artifacts").glob("quantize-*/checkpoint")
    extra = folder / name
    extra.parent.mkdir(exist_ok=True)
    extra.write_bytes(b"\x80")
    plan = " ".join(workbench("plan", "recipe.yaml").stdout.replace("│", " ").split())
    assert "was laid beside its files" in plan, plan
    done = workbench("run", "recipe.yaml", "--only", "quantize")
    assert done.returncode == 0, done.stderr
    assert not extra.exists() and (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b'{"weight_bytes": NaN}', None])
def test_a_record_that_is_none_is_code_2(workbench: Call, run: Path, content: bytes | None) -> None:
    (artifact,) = (run.parent / "artifacts").glob("quantize-*/record.json")
    for record in (run / "variants/bad/manifest.json", artifact):
        record.unlink()
        if content is None:
            record.mkdir()
        else:
            record.write_bytes(content)
    gate = workbench("gate")
    assert gate.returncode == (11 if content is None else 2), gate.stdout + gate.stderr
    plan = workbench("plan", "recipe.yaml")
    assert plan.returncode == 0 and "to do" in plan.stdout, plan.stderr


@pytest.mark.parametrize(
    "name",
    ["variants/bad/manifest.json", "variants/bad/evaluation.json", "checkpoint.json"],
)
def test_a_record_of_the_run_edited_by_hand(workbench: Call, run: Path, name: str) -> None:
    true = (run / name).read_bytes()
    edited = json.loads(true)
    key = {"manifest.json": "seconds", "checkpoint.json": "weight_bytes"}.get(Path(name).name)
    edited |= {key: 12345} if key else {"suites": edited["suites"], "id": edited["id"]}
    if not key:
        edited["suites"][0]["score"] = 1.0
    (run / name).write_text(json.dumps(edited))
    for command in ("report", "gate"):
        refused = workbench(command)
        assert refused.returncode == 2, refused.stdout
        assert "edited since it was written" in refused.stderr and name in refused.stderr
    assert workbench("run", "recipe.yaml").returncode == 10
    assert (run / name).read_bytes() == true
    assert workbench("gate").returncode == 10


def test_the_record_of_an_artifact_edited_by_hand(workbench: Call, run: Path) -> None:
    (record,) = (run.parent / "artifacts").glob("quantize-*/record.json")
    edited = json.loads(record.read_text())
    edited["artifact"]["checks"][0]["status"] = "FAIL"
    record.write_text(json.dumps(edited))
    assert workbench("run", "recipe.yaml").returncode == 10
    statuses = {c["status"] for c in json.loads(record.read_text())["artifact"]["checks"]}
    assert "FAIL" not in statuses


def test_gate_wants_the_recorded_rows_and_weights(workbench: Call, run: Path) -> None:
    """What was judged is there and unaltered, or the gate says so, and no verdict is left of it."""
    rows = run / "variants/bad/eval/sentiment.jsonl"
    kept = rows.read_bytes()
    rows.unlink()
    refused = workbench("gate")
    assert refused.returncode == 2 and "are gone" in refused.stderr and str(rows) in refused.stderr
    rows.write_bytes(kept)
    assert not (run / "gate.json").exists()
    assert workbench("gate").returncode == 10

    (weights,) = (run.parent / "artifacts").glob("quantize-*/checkpoint/model.safetensors")
    whole = weights.read_bytes()
    weights.unlink()  # it may be a hard link to the source
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 255]))
    for command in ("report", "gate"):
        refused = workbench(command)
        assert refused.returncode == 2 and "not those that were judged" in refused.stderr
    assert not (run / "gate.json").exists()

    shutil.rmtree(weights.parent)  # a run outlives its artifacts
    assert workbench("gate").returncode == 10


def test_a_record_without_its_digest_is_named(workbench: Call, run: Path) -> None:
    assert "would not be noticed" not in workbench("gate").stdout
    (run / "variants" / "bad" / ".evaluation.json.sha256").unlink()
    said = " ".join(workbench("gate").stdout.split())
    assert "an edit of bad/evaluation.json would not be noticed" in said
    assert "would not be noticed" in (run / "report.html").read_text()
