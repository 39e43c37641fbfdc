"""Where results live, and how they are written so that a crash at any moment leaves them whole.

    results/<run>/recipe.lock.yaml, plan.json, events.jsonl, executed/, logs/
                  calibration.json
                  variants/<name>/manifest.json, eval/<suite>.jsonl, evaluation.json, profile.json
                  gate.json, report.html
    results/artifacts/<kind>-<id>/record.json + what the step made

A step works inside its artifact folder, which any run may share, and writes `record.json` last, by
rename: a folder with a record is complete, one without is a step that was cut short. The run's own
folder then receives the records. Nothing is ever half-written under its final name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from workbench.digest import sha256_bytes, sha256_file
from workbench.errors import Busy, DiskFull, StoreError, did_you_mean
from workbench.progress import Progress

R = TypeVar("R", bound=BaseModel)

RECORD = "record.json"
#: Folders of the results folder that are no runs.
RESERVED = ("artifacts", "checkpoints")
#: Beside the record: what went into the id, so that a later plan can say what changed.
SPEC = "spec.json"
#: The record each kind of step leaves in the run's folder (``{}``: in the variant's).
PUBLISHED = {
    "calibrate": "calibration.json",
    "quantize": "variants/{}/manifest.json",
    "evaluate": "variants/{}/evaluation.json",
    "profile": "variants/{}/profile.json",
    "gate": "gate.json",
}


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn 'no space left' into `DiskFull`, naming the path and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"no space left on the disk while writing {path.name}",
                where=str(path),
                fix="free some space (old folders in results/artifacts/ are safe to delete), then "
                "run the same command again: it goes on where it stopped",
            ) from error
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write bytes under a temporary name, flush to disk, rename: old content or new, never half.

    Raises:
        DiskFull: no space is left; the old file is untouched and the temporary one removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with disk_errors(path):
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def dump_record(record: BaseModel) -> bytes:
    """The bytes a record is stored as: indented JSON in field order, one newline at the end."""
    text = json.dumps(record.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def write_record(path: Path, record: BaseModel) -> None:
    """Write one record, atomically."""
    write_atomic(path, dump_record(record))


def write_if_new(path: Path, data: bytes) -> None:
    """Write bytes, atomically, unless the file holds them already."""
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)


def _mark(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def write_marked(path: Path, record: BaseModel) -> None:
    """Write a record, atomically, with its digest in a hidden file beside it; see `read_marked`."""
    data, mark = dump_record(record), _mark(path)
    digest = sha256_bytes(data).encode()
    if mark.is_file() and mark.read_bytes() != digest:
        mark.unlink()  # first, so that a crash leaves no mark of another record
    write_if_new(path, data)
    write_if_new(mark, digest)


def read_marked(path: Path, cls: type[R]) -> R:
    """Read a record back and compare it with the digest it was written with, where there is one.

    This finds an edit by hand; whoever forges the digest, too, is not found.

    Raises:
        StoreError: see `read_record`; or the file was edited since.
    """
    record = read_record(path, cls)
    mark = _mark(path)
    if mark.is_file() and mark.read_text("ascii", "replace") != sha256_file(path):
        raise StoreError(
            "a record was edited since it was written",
            where=str(path),
            fix="workbench run, with the run's recipe, puts the recorded one back",
        )
    return record


def is_marked(path: Path) -> bool:
    """Whether a record has the digest that `read_marked` compares it with."""
    return _mark(path).is_file()


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def read_record(path: Path, cls: type[R]) -> R:
    """Read one record back, checking its schema version.

    Raises:
        StoreError: the file is missing, is not JSON, or was written by another schema version.
    """
    try:
        data = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise StoreError(
            "a record is missing",
            where=str(path),
            fix="workbench run, with the run's recipe, writes it",
        ) from None
    except IsADirectoryError:
        raise StoreError(
            "a folder stands where a record should be", where=str(path), fix="move it away"
        ) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"a record is not JSON: {error}",
            where=str(path),
            fix="delete it and run the step again",
        ) from error
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        field = cls.model_fields.get("schema_")
        wanted = field.default if field else None
        found = data.get("schema") if isinstance(data, dict) else None
        if wanted and found != wanted:
            raise StoreError(
                f"a record has schema {found!r}, this workbench reads {wanted!r}",
                where=str(path),
                fix="run the step again, or read it with the version that wrote it",
            ) from error
        first = error.errors()[0]
        raise StoreError(
            f"a record is damaged: {first['msg']} at {'.'.join(map(str, first['loc']))}",
            where=str(path),
            fix="delete it and run the step again",
        ) from error


#: How often a lock that is waited for is tried.
_WAIT_SECONDS = 0.5


@contextlib.contextmanager
def locked(path: Path, what: str, waiting: Progress | None = None) -> Iterator[None]:
    """Hold an exclusive lock file for the block; the kernel drops it if the process dies.

    Args:
        path: the lock file.
        what: it protects, for messages.
        waiting: wait for another holder, and tell this for how many seconds already; None refuses.

    Raises:
        Busy: another process holds it, and nobody wants to wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        waited = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                if waiting is None:
                    raise Busy(
                        f"{what} is in use by another process (pid {owner})",
                        where=str(path),
                        fix="wait for it, or stop it; a process that died holds no lock",
                    ) from None
            waiting(round(waited), 0, f"waiting for process {owner}, which makes {what}")
            time.sleep(_WAIT_SECONDS)
            waited += _WAIT_SECONDS
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class Results:
    """The results folder: runs by name, artifacts by id.

    Args:
        root: usually `results/` of the project.
    """

    def __init__(self, root: Path) -> None:
        # Notebooks run in another folder than the command that starts them.
        self.root = root.resolve()

    def run(self, name: str) -> Run:
        """The run of that name, existing or not.

        Raises:
            StoreError: the name is no plain folder name, or one the results folder uses itself.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or name in RESERVED:
            raise StoreError(
                f"'{name}' cannot be the name of a run",
                where="--run",
                fix="use letters, digits, '.', '_' and '-', starting with a letter or a digit; "
                f"not {' or '.join(RESERVED)}",
            )
        return Run(self, name)

    def runs(self) -> list[Run]:
        """All runs, the one touched last at the end."""
        found = [p.parent for p in self.root.glob("*/recipe.lock.yaml")]
        return [
            Run(self, p.name)
            for p in sorted(found, key=lambda p: (p / "recipe.lock.yaml").stat().st_mtime)
        ]

    def existing_run(self, name: str = "") -> Run:
        """A run that is there: by name, or the last one where the name is empty.

        Raises:
            StoreError: no such run.
        """
        runs = self.runs()
        if not name:
            if not runs:
                raise StoreError(
                    "there is no run yet",
                    where=str(self.root),
                    fix="start with: workbench run notebooks/recipes/quickstart.yaml",
                )
            return runs[-1]
        for run in runs:
            if run.name == name:
                return run
        known = [r.name for r in runs]
        raise StoreError(
            f"there is no run '{name}'",
            where=str(self.root),
            fix=did_you_mean(name, known)
            + (f"runs: {', '.join(known)}" if known else "there are none yet"),
        )

    def artifact(self, kind: str, id_: str) -> Path:
        """Folder of the artifact with that content id. Not created."""
        return self.root / "artifacts" / f"{kind}-{id_[:16]}"

    def complete(self, kind: str, id_: str, cls: type[R]) -> R | None:
        """The record of a complete artifact, or None where it was never finished."""
        try:
            record = read_marked(self.artifact(kind, id_) / RECORD, cls)
        except StoreError:
            return None  # missing, or damaged: then the step is done again
        return record if getattr(record, "id", None) == id_ else None

    def spec_of(self, record: Path | None) -> dict[str, Any] | None:
        """What went into the id of a published record; None where it or its artifact is gone."""
        try:
            id_ = json.loads(record.read_text("utf-8"))["id"] if record else ""
            found = sorted((self.root / "artifacts").glob(f"*-{id_[:16]}/{SPEC}")) if id_ else []
            spec: dict[str, Any] = json.loads(found[0].read_text("utf-8")) if found else {}
        except (OSError, ValueError, KeyError):
            return None
        return spec or None

    def clear(self, kind: str, id_: str) -> None:
        """Remove an artifact, its record first, so that a crash in between leaves it incomplete."""
        folder = self.artifact(kind, id_)
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


class Run:
    """Paths of one run's folder."""

    def __init__(self, results: Results, name: str) -> None:
        self.results = results
        self.name = name
        self.path = results.root / name

    @property
    def recipe_lock(self) -> Path:
        """The recipe as it was resolved for this run."""
        return self.path / "recipe.lock.yaml"

    @property
    def plan(self) -> Path:
        """`plan.json`."""
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        """`events.jsonl`: what happened when, for the live table and for later."""
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        """Logs of jobs and servers."""
        return self.path / "logs"

    @property
    def executed(self) -> Path:
        """Executed copies of the notebooks."""
        return self.path / "executed"

    @property
    def checkpoint(self) -> Path:
        """`checkpoint.json`: the unquantized checkpoint, so that a gate needs no weights."""
        return self.path / "checkpoint.json"

    @property
    def calibration(self) -> Path:
        """`calibration.json`."""
        return self.path / "calibration.json"

    @property
    def gate(self) -> Path:
        """`gate.json`."""
        return self.path / "gate.json"

    @property
    def report(self) -> Path:
        """`report.html`."""
        return self.path / "report.html"

    def withdraw(self) -> None:
        """Take the verdict and its report away: one that no longer holds must not lie there."""
        self.gate.unlink(missing_ok=True)
        self.report.unlink(missing_ok=True)

    def variant(self, name: str) -> Path:
        """Folder of a variant's records."""
        return self.path / "variants" / name

    def published(self, kind: str, variant: str | None) -> Path:
        """Where a step's record stands in this run's folder."""
        if kind == "calibrate" and variant:
            return self.variant(variant) / PUBLISHED[kind]  # a replica has a set of its own
        return self.path / PUBLISHED[kind].format(variant)

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the run for this process."""
        return locked(self.path / ".lock", f"run '{self.name}'")
