"""Creates an isolated environment from its lock, verifies it, and says whether it is complete.

An environment is built under its final path, because a virtual environment cannot be moved, and
`complete.json` is written last, by rename. A folder without it is a creation that was cut short: it
is removed and made again. A lock file beside the folder is held by us *and* by every process
pip starts, so a second creation never meets the remains of a first one that still writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from workbench.envs.install import (
    EnvironmentSpec,
    cpu_torch_hint,
    interpreter,
    need_compilers,
    pip_install,
    python_version,
)
from workbench.envs.locks import differences
from workbench.errors import DiskFull, EnvironmentFailure, JobFailure, StoreError
from workbench.guard import Guarded
from workbench.jobs import job_environment, last_lines, run_job
from workbench.progress import Progress, silent
from workbench.records import Environment
from workbench.store import disk_errors, read_record, write_record

State = Literal["ready", "half-made", "absent"]

COMPLETE = "complete.json"
IMPORT_SECONDS = 900.0
_POLL_SECONDS = 0.3


def installed(folder: Path) -> dict[str, str]:
    """Canonical name -> version of every distribution in a virtual environment."""
    site = folder / "lib" / f"python{python_version()}" / "site-packages"
    return {
        canonicalize_name(d.name): d.version
        for d in distributions(path=[str(site)])
        if d.name and d.version
    }


def state(spec: EnvironmentSpec, root: Path) -> State:
    """Whether the environment is there, without starting anything."""
    folder = spec.folder(root)
    if complete(spec, root) is not None:
        return "ready"
    return "half-made" if folder.exists() else "absent"


def complete(spec: EnvironmentSpec, root: Path) -> Environment | None:
    """The record of a finished environment whose interpreter is still there, else None."""
    folder = spec.folder(root)
    if not (folder / COMPLETE).is_file() or not interpreter(folder).exists():
        return None
    try:
        record = read_record(folder / COMPLETE, Environment)
    except StoreError:
        return None
    return record if record.lock_digest == spec.lock().digest else None


def ensure(spec: EnvironmentSpec, root: Path, progress: Progress = silent) -> Environment:
    """The environment, created and verified first where it is not there.

    Raises:
        EnvironmentFailure: it could not be made, does not do what it is for, or was changed since.
        DiskFull: there is no room for it.
    """
    record = complete(spec, root)
    if record is None:
        try:
            with (
                disk_errors(spec.folder(root)),
                _sole_creator(spec.folder(root), progress) as held,
            ):
                record = complete(spec, root)  # another process may just have made it
                if record is None:
                    record = _create(spec, root, progress, held)
                    return record
        except OSError as error:
            raise EnvironmentFailure(
                f"environment '{spec.name}' cannot be made here: {error.strerror or error}",
                where=str(error.filename or spec.folder(root)),
                fix="remove what lies in its place, or set WORKBENCH_ENVS to a folder that can be "
                "written",
            ) from error
    _unchanged(spec, root, record)
    return record


def _unchanged(spec: EnvironmentSpec, root: Path, record: Environment) -> None:
    now = installed(spec.folder(root))
    changed = [
        f"{name} {record.packages.get(name, '(not there)')} -> {now.get(name, '(gone)')}"
        for name in sorted(record.packages.keys() | now.keys())
        if record.packages.get(name) != now.get(name)
    ]
    if changed:
        raise EnvironmentFailure(
            f"environment '{spec.name}' was changed after it was made: {_some(changed)}",
            where=str(spec.folder(root)),
            fix=_again(spec, root),
        )


def verify(spec: EnvironmentSpec, root: Path, progress: Progress = silent) -> Environment:
    """Import what a finished environment is for and compare every version with its lock.

    Raises:
        EnvironmentFailure: it is not there, or something is missing, changed or does not import.
    """
    record = complete(spec, root)
    if record is None:
        raise EnvironmentFailure(
            f"environment '{spec.name}' ({spec.target}) is {state(spec, root)}",
            where=str(spec.folder(root)),
            fix=f"create it: workbench env create {spec.name}",
        )
    _check(spec, root, progress)
    _unchanged(spec, root, record)
    return record


def _some(items: list[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _again(spec: EnvironmentSpec, root: Path) -> str:
    return f"make it again: rm -r {spec.folder(root)} && workbench env create {spec.name}"


# --------------------------------------------------------------------------- creation


@contextlib.contextmanager
def _sole_creator(folder: Path, progress: Progress) -> Iterator[int]:
    """Be the only one to create it; wait, telling so, while another does. Gives the descriptor."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                owner = file.read().strip() or "another"
                progress(0, 0, f"waiting for process {owner}, which is creating this environment")
                time.sleep(_POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _create(spec: EnvironmentSpec, root: Path, progress: Progress, held: int) -> Environment:
    folder = spec.folder(root)
    begun = time.monotonic()
    need_compilers(spec)
    if folder.exists():
        progress(0, 0, f"removing a half-made {spec.name} environment")
        (folder / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder)
    free = shutil.disk_usage(root).free
    if free < spec.approximate_bytes:
        raise DiskFull(
            f"environment '{spec.name}' needs about {spec.approximate_bytes / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free",
            where=str(root),
            fix="free some space, or set WORKBENCH_ENVS to a folder on a larger disk",
        )
    with disk_errors(folder):
        _venv(spec, folder, progress, held)
        pip_install(spec, folder, progress, held)
        told = _check(spec, root, progress)
        record = Environment(
            name=spec.name,
            target=spec.target,
            lock_digest=spec.lock().digest,
            python=str(interpreter(folder)),
            python_version=told,
            packages=dict(sorted(installed(folder).items())),
            created_seconds=round(time.monotonic() - begun, 1),
        )
        write_record(folder / COMPLETE, record)
    return record


def _venv(spec: EnvironmentSpec, folder: Path, progress: Progress, held: int) -> None:
    total = 2 * len(spec.lock().pins)
    log = folder.parent / f".{folder.name}.venv.log"
    command = [sys.executable, "-m", "venv", str(folder)]
    with Guarded.start(command, env=job_environment(), log=log, keep_open=[held]) as process:
        while (code := process.wait(_POLL_SECONDS)) is None:
            progress(0, total, f"creating a virtual environment for {spec.name}")
    if code != 0:
        raise EnvironmentFailure(
            f"python -m venv failed with exit code {code}: {last_lines(log, 5)}",
            where=str(folder),
            fix="check that this Python has venv and ensurepip (on Debian and Ubuntu: the package "
            "python3-venv) and that the folder can be written",
        )
    log.unlink(missing_ok=True)


# --------------------------------------------------------------------------- verification


def _check(spec: EnvironmentSpec, root: Path, progress: Progress) -> str:
    """Compare versions, then import. Returns the environment's Python version."""
    folder = spec.folder(root)
    lock = spec.lock()
    wrong = differences(lock, installed(folder))
    if wrong:
        raise EnvironmentFailure(
            f"environment '{spec.name}' is not what its lock says: {_some(wrong)}",
            where=str(folder),
            fix=_again(spec, root),
        )
    last = [""]

    def tell(done: float, total: float, what: str) -> None:
        last[0] = what
        progress(2 * len(lock.pins), 2 * len(lock.pins), f"{spec.name}: {what}")

    try:
        result = run_job(
            interpreter(folder),
            Path(__file__).with_name("probe.py"),
            {"imports": list(spec.imports)},
            folder=folder / "verify",
            log=folder / "verify" / "log.txt",
            timeout=IMPORT_SECONDS,
            progress=tell,
            name=f"verify {spec.name}",
        )
    except JobFailure as error:
        raise EnvironmentFailure(
            f"environment '{spec.name}' fails while {last[0] or 'starting'}: {error.what}",
            where=error.where,
            fix=error.fix or _again(spec, root),
        ) from error
    failed: dict[str, str] = result.value["failed"]
    cuda = result.value["torch_cuda"]
    if failed:
        name, message = next(iter(failed.items()))
        raise EnvironmentFailure(
            f"environment '{spec.name}' cannot import {name}: {message}",
            where=str(folder),
            fix=_again(spec, root) + (cpu_torch_hint(spec) if name == "torch" else ""),
        )
    if cuda and spec.target == "cpu":
        tell(
            1,
            1,
            f"note: its torch is a CUDA {cuda} build; a CPU build is smaller{cpu_torch_hint(spec)}",
        )
    return str(result.value["python"])
