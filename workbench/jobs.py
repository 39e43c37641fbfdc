"""Runs one request in one isolated environment: JSON file in, JSON file out, log to a file.

A job is a script run by an environment's own interpreter under a guard (`workbench.guard`), so its
memory is given back when it ends and a crash of it is a typed error here, never a crash of ours.
Nothing of a job survives its end, a time limit, Ctrl-C, or our own death.

Whether a death was **out of memory** is an inference, made in this order: the job ended by SIGKILL
that nobody here sent (on Linux that is nearly always the kernel's out-of-memory killer), or the
last lines of its log hold an allocator's own words (`MemoryError`, `std::bad_alloc`, `CUDA out of
memory`, `can't allocate memory`). The error says which of the two it rests on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.errors import DiskFull, JobFailure, MachineError
from workbench.guard import Guarded
from workbench.progress import Progress
from workbench.store import write_atomic

#: How often memory is sampled and progress read.
POLL_SECONDS = 0.2
#: What a job gets between SIGTERM and SIGKILL when it is ended early.
GRACE_SECONDS = 5.0
QUOTED_LINES = 15

_TAIL_BYTES = 1 << 16
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\x00-\x08\x0b-\x1f\x7f]"
)
_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"\bMemoryError\b|std::bad_alloc|CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
    r"|can't allocate memory|Cannot allocate memory|\bOut of memory\b"
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_NO_ENV: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class JobResult:
    """What a job left.

    Attributes:
        value: the object it wrote.
        seconds: wall-clock time from start to the end of its last process.
        peak_memory_bytes: highest resident memory seen: the sum over its processes, sampled, or its
            own process's exact peak where that is higher; None where neither was seen.
    """

    value: dict[str, Any]
    seconds: float
    peak_memory_bytes: int | None

    @property
    def peak_gpu_bytes(self) -> int | None:
        """Most device memory the job's torch held; None where it used no GPU."""
        found = self.value.get("peak_gpu_bytes")
        return found if isinstance(found, int) else None


def job_environment(
    extra: Mapping[str, str] = _NO_ENV, *, python: Path | str | None = None
) -> dict[str, str]:
    """The process environment of a job or a server: ours, without what leads it out of its own.

    ``PYTHONPATH`` and its like would mix this interpreter's packages into the other's. Telemetry is
    off. ``extra`` wins over everything.

    Args:
        extra: variables to add or to replace.
        python: interpreter whose folder comes first on ``PATH``, as if its environment was active.
    """
    env = {k: v for k, v in os.environ.items() if k not in _LEADS_ASTRAY} | _QUIET
    if python is not None:
        env["PATH"] = os.pathsep.join((str(Path(python).parent), env.get("PATH", os.defpath)))
    return env | dict(extra)


_LEADS_ASTRAY = frozenset(
    {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
)
_QUIET = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONNOUSERSITE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def redact(text: str, env: Mapping[str, str]) -> str:
    """Replace by ``***`` the value of every variable that is named like a secret (8 letters up)."""
    values = {v for k, v in env.items() if _SECRET_NAME.search(k) and len(v) >= 8}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def last_lines(log: Path, count: int = QUOTED_LINES, env: Mapping[str, str] | None = None) -> str:
    """The last lines of a log, fit to be quoted: no control codes, no empty lines, no secrets.

    Of a progress bar that redraws its line only the last state is kept. A log that cannot be read
    gives an empty text.

    Args:
        log: the file.
        count: how many lines at most.
        env: where secrets are looked up; default is this process's environment.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            raw = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = []
    for line in raw.split("\n"):
        shown = [s for s in (_CONTROL.sub("", part).rstrip() for part in line.split("\r")) if s]
        if shown:
            lines.append(shown[-1][:500])
    return redact("\n".join(lines[-count:]), os.environ if env is None else env)


def run_job(
    python: Path | str,
    script: Path,
    request: Mapping[str, Any],
    *,
    folder: Path,
    log: Path,
    timeout: float,
    progress: Progress,
    name: str,
    env: Mapping[str, str] = _NO_ENV,
) -> JobResult:
    """Run ``python script request.json result.json`` and return what it wrote.

    Args:
        python: interpreter of the environment.
        script: a file written with `workbench/inside/_job.py`.
        request: a JSON object.
        folder: scratch of this job: request, result and progress lie there.
        log: receives everything the job prints.
        timeout: limit in seconds.
        progress: told whatever the job tells.
        name: what the job is, for messages, e.g. ``"quantize gptq-w4"``.
        env: variables on top of `job_environment`.

    Raises:
        JobFailure: the job ended by a signal, out of memory, over its time, with an exit code, with
            an error of its own or without a result. The last lines of its log are quoted.
        DiskFull: the log says no space was left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {word: folder / f"{word}.json" for word in ("request", "result", "progress")}
    for stale in ("result", "progress"):
        paths[stale].unlink(missing_ok=True)
    write_atomic(paths["request"], json.dumps(request, indent=1, ensure_ascii=False).encode())
    command = [str(python), str(script), str(paths["request"]), str(paths["result"])]
    complete = job_environment(env, python=python)
    failure = _Failure(name, log, complete)
    begun = time.monotonic()
    try:
        job = Guarded.start(command, env=complete, log=log)
    except MachineError as error:
        raise JobFailure(f"{name}: {error.what}", where=error.where, fix=error.fix) from error
    peak = 0
    told = ""
    try:
        while (code := job.wait(POLL_SECONDS)) is None:
            peak = max(peak, job.rss())
            told = _tell(paths["progress"], told, progress)
            if time.monotonic() - begun > timeout:
                raise failure(
                    f"took longer than its limit of {timeout:g} s and was ended",
                    "give it more time or less work; the log shows how far it came",
                )
    finally:
        _end(job, name)
    _tell(paths["progress"], told, progress)
    value = _result(paths["result"], code, failure)
    return JobResult(value, time.monotonic() - begun, max(peak, job.max_rss) or None)


def _end(job: Guarded, name: str) -> None:
    try:
        job.stop(GRACE_SECONDS)
    except MachineError as error:
        raise JobFailure(f"{name}: {error.what}", where=error.where, fix=error.fix) from error


def _tell(path: Path, told: str, progress: Progress) -> str:
    """Pass on a new state of the progress file. Returns what was told last."""
    with contextlib.suppress(OSError):
        text = path.read_text("utf-8")
        if text != told:
            # A script of someone else's may write it in place: half a line is read again later.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                state = json.loads(text)
                progress(float(state["done"]), float(state["total"]), str(state["what"]))
                return text
    return told


class _Failure:
    """Makes this job's errors: name in front, log named, its last lines quoted."""

    def __init__(self, name: str, log: Path, env: Mapping[str, str]) -> None:
        self.name, self.log, self.env = name, log, env

    def __call__(self, what: str, fix: str, kind: type[MachineError] = JobFailure) -> MachineError:
        quoted = last_lines(self.log, env=self.env)
        text = f"{self.name}: {what}"
        if quoted:
            text += "\n  its last lines:\n" + "\n".join(f"    {q}" for q in quoted.splitlines())
        return kind(text, where=str(self.log), fix=fix)


def _result(path: Path, code: int, failure: _Failure) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        value = None
    except ValueError as error:
        raise failure(f"its result is not JSON ({error})", "run it again") from error
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        reported = value["error"]
        where = str(reported.get("where") or "")
        raise JobFailure(
            redact(f"{failure.name}: {reported.get('what', 'failed')}", failure.env),
            where=f"{where} (log: {failure.log})" if where else str(failure.log),
            fix=redact(str(reported.get("fix") or ""), failure.env),
        )
    if code != 0:
        raise _died(code, failure)
    if value is None:
        raise failure(
            "ended without a result although its exit code is 0",
            "something ended the script early (a call of sys.exit?); the log shows where",
        )
    if not isinstance(value, dict):
        raise failure(f"its result is a {type(value).__name__}, not an object", "run it again")
    return value


def _died(code: int, failure: _Failure) -> MachineError:
    tail = last_lines(failure.log, 60, {})
    less = "use a machine with more memory, or give the job less: fewer or shorter samples"
    if _NO_SPACE.search(tail):
        return failure("no space was left on the disk", "free some space, run it again", DiskFull)
    if word := _OUT_OF_MEMORY.search(tail):
        return failure(f"ran out of memory (its log says '{word.group()}')", less)
    if code == -signal.SIGKILL:
        return failure(
            "ran out of memory, most likely: it was ended by SIGKILL, which on Linux is the "
            "out-of-memory killer unless somebody sent it by hand (`dmesg` tells)",
            less,
        )
    if code < 0:
        return failure(
            f"was ended by {_signal_name(-code)}",
            "SIGSEGV, SIGILL or SIGBUS is a fault in a native library (SIGILL: built for another "
            "CPU); SIGTERM was sent by somebody",
        )
    return failure(f"ended with exit code {code}", "read the log; its last lines are above")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
