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
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workbench.errors import DiskFull, StoreError, did_you_mean

R = TypeVar("R", bound=BaseModel)

RECORD = "record.json"


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
                fix="free some space (old folders in results/artifacts/ are safe to delete), then run the "
                "same command again: it goes on where it stopped",
            ) from error
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write bytes under a temporary name, flush them to disk, rename. Old content or new, never half.

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


def read_record(path: Path, cls: type[R]) -> R:
    """Read one record back, checking its schema version.

    Raises:
        StoreError: the file is missing, is not JSON, or was written by another schema version.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise StoreError(
            "a record is missing", where=str(path), fix="run the step that makes it"
        ) from None
    except ValueError as error:
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
                fix="run the step again with this version, or read it with the version that wrote it",
            ) from error
        first = error.errors()[0]
        raise StoreError(
            f"a record is damaged: {first['msg']} at {'.'.join(map(str, first['loc']))}",
            where=str(path),
            fix="delete it and run the step again",
        ) from error


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock file for the block; the kernel drops it if the process dies.

    Raises:
        StoreError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise StoreError(
                f"{what} is in use by another process (pid {owner})",
                where=str(path),
                fix="wait for it, or stop it; a process that died holds no lock",
            ) from None
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
        self.root = root

    def run(self, name: str) -> Run:
        """The run of that name, existing or not."""
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
        path = self.artifact(kind, id_) / RECORD
        if not path.is_file():
            return None
        record = read_record(path, cls)
        return record if getattr(record, "id", None) == id_ else None

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

    def variant(self, name: str) -> Path:
        """Folder of a variant's records."""
        return self.path / "variants" / name

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the run for this process."""
        return locked(self.path / ".lock", f"run '{self.name}'")
