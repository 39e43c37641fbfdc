"""Results on disk: whole or absent, whatever happens."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import DiskFull, StoreError
from workbench.records import Choice, Gate, Plan
from workbench.store import (
    RECORD,
    SPEC,
    Results,
    dump_record,
    locked,
    read_record,
    write_atomic,
    write_record,
)

PLAN = Plan(run="r", recipe_digest="d", steps=())


def test_record_reads_back_equal(tmp_path: Path) -> None:
    write_record(tmp_path / "plan.json", PLAN)
    assert read_record(tmp_path / "plan.json", Plan) == PLAN
    assert dump_record(PLAN).endswith(b"\n")
    assert json.loads(dump_record(PLAN))["schema"] == "workbench.plan/1"


def test_lone_surrogates_of_a_model_do_not_stop_a_record(tmp_path: Path) -> None:
    write_record(tmp_path / "c.json", Choice(value="\ud800", reason="x"))
    assert "\\ud800" in (tmp_path / "c.json").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ('{"schema": "workbench.plan/1", "run"', "is not JSON"),
        (
            '{"schema": "workbench.plan/9", "run": "r", "recipe_digest": "d", "steps": []}',
            "workbench.plan/9",
        ),
        ('{"schema": "workbench.plan/1", "run": "r", "recipe_digest": "d", "steps": 3}', "steps"),
        ('{"schema": "workbench.plan/1", "run": "r"}', "recipe_digest"),
        ("[]", "None"),
    ],
)
def test_damaged_record_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=says.replace("[", r"\[")) as caught:
        read_record(path, Plan)
    assert str(path) in caught.value.where
    assert caught.value.fix


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        read_record(tmp_path / "gate.json", Gate)


def test_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A real ENOSPC, from /dev/full, and a real cut-off write under a file-size limit."""
    target = tmp_path / "record.json"
    write_atomic(target, b"old")
    partial = tmp_path / f".record.json.{os.getpid()}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(DiskFull) as caught:
        write_atomic(target, b"new" * 10)
    assert "free some space" in caught.value.fix
    assert target.read_bytes() == b"old"
    assert not partial.is_symlink()


def test_cut_off_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    write_atomic(target, b"old")
    code = (
        "import sys, pathlib; from workbench.store import write_atomic;"
        "write_atomic(pathlib.Path(sys.argv[1]), b'x' * 100_000)"
    )

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(target)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_lock_is_exclusive_and_dies_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    code = (
        "import sys, time, pathlib; from workbench.store import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), 'x'): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=str(holder.pid)), locked(path, "run 'q'"):
            pass
        told: list[str] = []

        def waiting(_done: float, _total: float, what: str) -> None:
            told.append(what)
            holder.send_signal(signal.SIGKILL)

        with locked(path, "step x", waiting=waiting):
            assert told and str(holder.pid) in told[0] and "step x" in told[0]
        holder.wait()
    with locked(path, "run 'q'"):
        pass


def test_artifact_is_complete_only_with_a_record_of_its_id(tmp_path: Path) -> None:
    results = Results(tmp_path)
    folder = results.artifact("gate", "a" * 64)
    folder.mkdir(parents=True)
    assert results.complete("gate", "a" * 64, Gate) is None
    gate = Gate(
        id="a" * 64,
        run="r",
        recipe="r",
        recipe_digest="",
        policy="p",
        policy_digest="",
        inputs={},
        variants=(),
    )
    write_record(folder / RECORD, gate)
    assert results.complete("gate", "a" * 64, Gate) == gate
    # Sixteen equal digits name the same folder, and are still another id.
    assert results.complete("gate", "a" * 16 + "b" * 48, Gate) is None
    results.clear("gate", "a" * 64)
    assert not folder.exists()


def test_gate_without_variants_is_inconclusive() -> None:
    gate = Gate(
        id="",
        run="r",
        recipe="r",
        recipe_digest="",
        policy="p",
        policy_digest="",
        inputs={},
        variants=(),
    )
    assert gate.verdict == "INCONCLUSIVE"


def test_runs_by_name_and_by_age(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with pytest.raises(StoreError, match="no run yet"):
        results.existing_run()
    for age, name in enumerate(["old", "quickstart"]):
        write_atomic(results.run(name).recipe_lock, b"x")
        os.utime(results.run(name).recipe_lock, (1000 + age, 1000 + age))
    assert results.existing_run().name == "quickstart"
    assert results.existing_run("old").name == "old"
    with pytest.raises(StoreError, match="no run 'quikstart'") as caught:
        results.existing_run("quikstart")
    assert "did you mean 'quickstart'" in caught.value.fix


def test_spec_of_a_published_record(tmp_path: Path) -> None:
    results = Results(tmp_path)
    record = tmp_path / "r" / "gate.json"
    assert results.spec_of(record) is None
    write_atomic(record, b'{"id": "' + b"c" * 64 + b'"}')
    assert results.spec_of(record) is None
    write_atomic(results.artifact("gate", "c" * 64) / SPEC, b'{"kind": "gate"}')
    assert results.spec_of(record) == {"kind": "gate"}
