"""Jobs with real processes: every way one can die is a typed error that quotes the log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import guardian, jobs
from workbench.errors import DiskFull, JobFailure
from workbench.jobs import JobResult, job_environment, last_lines, redact, run_job
from workbench.progress import silent

ROOT = Path(__file__).resolve().parent.parent

#: Beginning of a script as `workbench/inside/_job.py` has it, small enough to read here.
HEAD = """
import json, os, pathlib, signal, sys, time
request = json.loads(pathlib.Path(sys.argv[1]).read_text())
def leave(value):
    pathlib.Path(sys.argv[2]).write_text(json.dumps(value))
def progress(done, total, what):
    part = pathlib.Path(sys.argv[2]).with_name("part")
    part.write_text(json.dumps({"done": done, "total": total, "what": what}))
    part.replace(part.with_name("progress.json"))
"""

Job = Callable[..., JobResult]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    def run(source: str, request: dict[str, Any] | None = None, **more: Any) -> JobResult:
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(source))
        options: dict[str, Any] = {"timeout": 60, "progress": silent, "name": "quantize x"} | more
        return run_job(
            sys.executable,
            script,
            request or {},
            folder=tmp_path / "job",
            log=tmp_path / "logs" / "job.log",
            **options,
        )

    return run


def failure(job: Job, source: str, **more: Any) -> JobFailure:
    with pytest.raises(JobFailure) as caught:
        job(source, **more)
    assert caught.value.what.startswith("quantize x: ")
    assert caught.value.fix
    return caught.value


def test_request_in_result_out_and_the_log(job: Job, tmp_path: Path) -> None:
    result = job("print('hello'); leave({'twice': request['n'] * 2})", {"n": 21})
    assert result.value == {"twice": 42}
    assert 0 < result.seconds < 60
    assert (tmp_path / "logs" / "job.log").read_text() == "hello\n"


#: The job goes on when what it told was passed on; see `Heard`.
HEARD = """
def progress_and_wait(done, total, what):
    progress(done, total, what)
    while not pathlib.Path(sys.argv[2]).with_name(f"heard {done}").exists():
        time.sleep(0.01)
"""


class Heard:
    """What a job told, and a file for each so that it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[tuple[float, float, str]] = []

    def __call__(self, done: float, total: float, what: str) -> None:
        self.told.append((done, total, what))
        (self.folder / "job" / f"heard {done:g}").touch()


def test_progress_is_passed_on_and_the_last_state_is_not_lost(job: Job, tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    source = """
progress_and_wait(1, 30, "layer 1/30")
progress(30, 30, "layer 30/30"); leave({})
"""
    job(HEARD + source, progress=heard)
    told = heard.told
    assert told == [(1, 30, "layer 1/30"), (30, 30, "layer 30/30")]


def test_peak_memory_counts_a_child_and_a_short_spike(job: Job, tmp_path: Path) -> None:
    spike = job("x = bytearray(150_000_000); del x; leave({})").peak_memory_bytes
    assert spike is not None and 150_000_000 < spike < 250_000_000
    # Both hold theirs until they were looked at: memory is, before progress is read.
    source = """
import subprocess
hold = "x = bytearray(100_000_000); print(flush=True); input()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
child = subprocess.Popen([sys.executable, "-c", hold], **pipes)
x = bytearray(100_000_000)
child.stdout.readline()
for look in (1, 2):
    progress_and_wait(look, 2, "held")
child.communicate(b"\\n"); leave({})
"""
    together = job(HEARD + source, progress=Heard(tmp_path)).peak_memory_bytes
    assert together is not None and 200_000_000 < together < 350_000_000


def test_a_result_of_an_earlier_attempt_is_never_taken(job: Job) -> None:
    assert job("leave({'n': 1})").value == {"n": 1}
    error = failure(job, "pass")
    assert "without a result although its exit code is 0" in error.what


def test_an_error_the_job_reports_keeps_its_three_parts(job: Job, tmp_path: Path) -> None:
    error = failure(
        job,
        """
        error = {"what": "width 576 is not divisible", "where": "layer 3", "fix": "use 64"}
        leave({"error": error})
        sys.exit(1)
        """,
    )
    assert error.what == "quantize x: width 576 is not divisible"
    assert error.where == f"layer 3 (log: {tmp_path / 'logs' / 'job.log'})"
    assert error.fix == "use 64"


def test_an_exit_code_quotes_the_traceback(job: Job, tmp_path: Path) -> None:
    error = failure(job, "raise ValueError('no such layer')")
    assert "ended with exit code 1" in error.what
    assert "ValueError: no such layer" in error.what
    assert error.where == str(tmp_path / "logs" / "job.log")


def test_a_result_does_not_excuse_an_exit_code(job: Job) -> None:
    assert "exit code 3" in failure(job, "leave({'n': 1}); sys.exit(3)").what


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_a_result_that_is_no_object(job: Job, text: str) -> None:
    error = failure(job, f"pathlib.Path(sys.argv[2]).write_text({text!r})")
    assert "its result is" in error.what


def test_a_signal_is_named(job: Job) -> None:
    error = failure(job, "print('last words', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")
    assert "was ended by SIGSEGV" in error.what
    assert "last words" in error.what
    assert "memory" not in error.what


def test_sigkill_is_said_to_be_out_of_memory_most_likely(job: Job) -> None:
    error = failure(job, "os.kill(os.getpid(), signal.SIGKILL)")
    assert "ran out of memory, most likely" in error.what and "SIGKILL" in error.what


@pytest.mark.parametrize(
    "source",
    [
        "x = bytearray(1 << 62)",
        "print('terminate called after throwing std::bad_alloc', flush=True); os.abort()",
        "sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB')",
    ],
)
def test_out_of_memory_by_its_own_words(job: Job, source: str) -> None:
    error = failure(job, source)
    assert "ran out of memory (its log says" in error.what


def test_memory_words_long_before_the_end_are_not_the_cause(job: Job) -> None:
    error = failure(job, "print('MemoryError, caught'); print('ok\\n' * 200); sys.exit(4)")
    assert "exit code 4" in error.what and "ran out of memory" not in error.what


def test_a_full_disk_is_a_full_disk(job: Job) -> None:
    with pytest.raises(DiskFull) as caught:
        job("open('/dev/full', 'w').write('x' * 100000)")
    assert "no space was left" in caught.value.what


def test_the_time_limit_ends_everything_even_what_ignores_sigterm(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "GRACE_SECONDS", 1.0)
    begun = time.monotonic()
    error = failure(
        job,
        f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
        print("working", flush=True)
        time.sleep(600)
        """,
        timeout=5,  # it has begun to work by then
    )
    assert "longer than its limit of 5 s" in error.what and "working" in error.what
    assert time.monotonic() - begun < 60
    assert int((tmp_path / "pid").read_text()) not in guardian.parents()


def test_a_listener_that_raises_ends_the_job(job: Job, tmp_path: Path) -> None:
    def refuse(done: float, total: float, what: str) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        job(
            f"""
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
            progress(1, 2, "half"); time.sleep(600)
            """,
            progress=refuse,
        )
    assert int((tmp_path / "pid").read_text()) not in guardian.parents()


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobFailure) as caught:
        run_job(
            tmp_path / "python",
            tmp_path / "script.py",
            {},
            folder=tmp_path,
            log=tmp_path / "log",
            timeout=5,
            progress=silent,
            name="quantize x",
        )
    assert "quantize x: cannot start python: No such file" in caught.value.what


OWNER = """
import pathlib, sys
sys.path.insert(0, {root!r})
from workbench.jobs import run_job
from workbench.progress import silent
folder = pathlib.Path({folder!r})
try:
    run_job(sys.executable, folder / "script.py", {{}}, folder=folder / "job",
            log=folder / "log.txt", timeout=600, progress=silent, name="quantize x")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""

GRANDCHILD = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
part = pathlib.Path(sys.argv[2]).with_name("pids.part")
part.write_text(f"{os.getpid()} {child.pid}")
part.replace(part.with_name("pids"))
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_kill_9_leave_nothing(number: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HEAD + GRANDCHILD)
    source = OWNER.format(root=str(ROOT), folder=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True
    ) as owner:
        pids = tmp_path / "job" / "pids"
        ends = time.monotonic() + 20
        while not pids.is_file() and time.monotonic() < ends:
            time.sleep(0.02)
        tree = [*map(int, pids.read_text().split())]
        assert all(pid in guardian.parents() for pid in tree)
        owner.send_signal(number)
        out, _ = owner.communicate(timeout=20)
        begun = time.monotonic()
        while any(pid in guardian.parents() for pid in tree):
            assert time.monotonic() - begun < 20
            time.sleep(0.02)
    if number == signal.SIGINT:
        assert (owner.returncode, out) == (130, "interrupted\n")


# --------------------------------------------------------------------------- environment, quoting


def test_the_job_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    monkeypatch.setenv("KEPT", "yes")
    env = job_environment({"EXTRA": "1", "TOKENIZERS_PARALLELISM": "true"}, python="/e/bin/python")
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & set(env)
    assert (env["KEPT"], env["EXTRA"], env["TOKENIZERS_PARALLELISM"]) == ("yes", "1", "true")
    assert env["PYTHONNOUSERSITE"] == env["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert env["PATH"].split(os.pathsep)[0] == "/e/bin"


def test_a_job_sees_its_environment(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    value = job("leave(dict(os.environ) | {'path': sys.path})", env={"MINE": "x"}).value
    assert value["MINE"] == "x" and value["PYTHONUNBUFFERED"] == "1"
    assert "/elsewhere" not in value["path"]


def test_a_secret_is_never_quoted(job: Job) -> None:
    source = "print('key is', os.environ['VLLM_API_KEY']); sys.exit(1)"
    error = failure(job, source, env={"VLLM_API_KEY": "s3cret-value-0"})
    assert "key is ***" in error.what
    reported = "leave({'error': {'what': os.environ['VLLM_API_KEY'], 'fix': 'x'}})"
    assert "s3cret" not in str(failure(job, reported, env={"VLLM_API_KEY": "s3cret-value-0"}))


def test_redact_takes_the_longest_first_and_leaves_short_and_unnamed_values() -> None:
    env = {
        "A_TOKEN": "abcdefgh",
        "B_SECRET": "abcdefgh-ijkl",
        "PIN_KEY": "1234567",
        "NAME": "harmless",
    }
    assert redact("abcdefgh-ijkl abcdefgh 1234567 harmless", env) == "*** *** 1234567 harmless"


def test_last_lines_are_what_a_person_saw(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b"first\n\x1b[32mgreen\x1b[0m text\n\n"
        b" 10%|#   |\r 90%|### |\r100%|####|\r\nbroken \xff byte\n"
    )
    assert last_lines(log) == "first\ngreen text\n100%|####|\nbroken \ufffd byte"
    assert last_lines(log, 1) == "broken \ufffd byte"
    assert last_lines(tmp_path / "none") == ""


def test_last_lines_of_a_huge_log_reads_only_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 33)  # 8 GiB, sparse
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    begun = time.monotonic()
    assert last_lines(log, 1) == "the end"
    assert time.monotonic() - begun < 5  # reading it all takes longer on any disk


@given(st.binary(max_size=400), st.integers(1, 20))
def test_last_lines_never_fails_and_holds_no_control_codes(data: bytes, count: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.write_bytes(data)
        quoted = last_lines(log, count, {})
    assert len(quoted.split("\n")) <= count
    assert not any(ord(c) < 32 and c not in "\t\n" for c in quoted)
    json.dumps(quoted)
