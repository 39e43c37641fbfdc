"""The row files of a run, each read once; where they are very large, half of them beside this one.

A line costs a few microseconds and most runs have a few thousand: a second process takes longer to
start than it saves until there are some hundred thousand.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.columns import Columns, StoredRows, read_columns
from workbench.errors import StoreError
from workbench.records import SuiteResult
from workbench.rows import recorded

#: Bytes of rows from which on a second process helps, about 300,000 rows.
LARGE = 200 << 20


def stored_rows(files: Sequence[tuple[Path, SuiteResult]], fix: str) -> list[StoredRows]:
    """The rows of each file, held against what was recorded of them.

    Args:
        files: each with the record that speaks of it.
        fix: what to do where they are others.

    Raises:
        StoreError: a file is missing or damaged, or its rows are not those that were recorded.
    """
    found = []
    read = read_files([path for path, _ in files])
    for (path, result), columns in zip(files, read, strict=True):
        if not recorded(result, columns.digest, columns.told_tokens):
            raise StoreError(
                "these rows are not those that were recorded", where=str(path), fix=fix
            )
        found.append(StoredRows(path, columns))
    return found


def read_files(paths: Sequence[Path], large: int = LARGE) -> list[Columns]:
    """The columns of each file.

    Args:
        paths: of finished files.
        large: bytes from which on a second process reads some of them.

    Raises:
        StoreError: as of `workbench.rows.read_rows`, of the first file it is raised of.
    """
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    found: dict[Path, Columns] = {}
    if len(sizes) > 1 and sum(sizes.values()) >= large and len(os.sched_getaffinity(0)) > 1:
        ours, theirs = _halves(sizes)
        # Whatever goes wrong beside this process goes wrong once more in it, and is said there.
        with _beside(theirs) as process:
            with contextlib.suppress(StoreError):
                for path in ours:
                    found[path] = read_columns(path)
            assert process.stdout is not None
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                found |= pickle.load(process.stdout)
    return [found.get(path) or read_columns(path) for path in paths]


def _halves(sizes: dict[Path, int]) -> tuple[list[Path], list[Path]]:
    """Files in two parts of about one size, the largest first."""
    parts: tuple[list[Path], list[Path]] = ([], [])
    total = [0, 0]
    for path in sorted(sizes, key=sizes.__getitem__, reverse=True):
        lighter = total.index(min(total))
        parts[lighter].append(path)
        total[lighter] += sizes[path]
    return parts


def _beside(paths: Sequence[Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, paths)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # The same package as this one, wherever this one was found.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def _main(paths: Sequence[str]) -> None:
    found = {}
    with contextlib.suppress(StoreError):
        for path in map(Path, paths):
            found[path] = read_columns(path)
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    _main(sys.argv[1:])
