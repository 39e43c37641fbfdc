"""The helper that job scripts share, and the rule for their names."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

INSIDE = Path(__file__).parents[1] / "workbench" / "inside"


def run(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(INSIDE)!r})\n"
        f"from _job import Failed, fail, main, versions\n{body}"
    )
    (tmp_path / "request.json").write_text(json.dumps({"n": 3}))
    command = [sys.executable, str(script), "request.json", "result.json"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


def test_result_and_progress(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "def work(job):\n"
        "    for i in range(1000):\n"
        "        job.progress(i, 1000, f'layer {i}')\n"
        "    job.progress(1000, 1000, 'over')\n"
        "    return {'n': job.request['n'] + 1}\n"
        "main(work)\n",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == {"n": 4}
    last = {"done": 1000, "total": 1000, "what": "over"}
    assert json.loads((tmp_path / "progress.json").read_text()) == last
    names = {"request.json", "result.json", "progress.json", "script.py"}
    assert {p.name for p in tmp_path.iterdir()} == names


def test_peak_of_device_memory(tmp_path: Path) -> None:
    """With a torch that has two devices; no GPU was used to write or test this."""
    done = run(
        tmp_path,
        "import types\n"
        "cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2,\n"
        "                             max_memory_reserved=lambda i: 100 + i)\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)\n"
        "main(lambda job: {'n': 1})\n",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == {"n": 1, "peak_gpu_bytes": 201}


def test_reported_failure(tmp_path: Path) -> None:
    done = run(tmp_path, "main(lambda job: fail('broke', 'layer 3', 'mend it'))\n")
    assert done.returncode == 1
    error = {"what": "broke", "where": "layer 3", "fix": "mend it"}
    assert json.loads((tmp_path / "result.json").read_text()) == {"error": error}
    assert "Traceback" not in done.stderr


def test_other_failure_keeps_its_traceback_and_leaves_no_result(tmp_path: Path) -> None:
    done = run(tmp_path, "main(lambda job: 1 / 0)\n")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert not (tmp_path / "result.json").exists()


def test_result_that_is_no_json_leaves_none(tmp_path: Path) -> None:
    done = run(tmp_path, "main(lambda job: {'x': object()})\n")
    assert done.returncode == 1
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("path", sorted(INSIDE.glob("*.py")), ids=lambda path: path.stem)
def test_no_script_hides_a_package(path: Path) -> None:
    # The folder is the first entry of sys.path of every job.
    taken = set(sys.stdlib_module_names) | set(metadata.packages_distributions())
    taken |= {"torch", "transformers", "llmcompressor", "gguf", "vllm", "datasets", "xllamacpp"}
    assert path.stem not in taken
