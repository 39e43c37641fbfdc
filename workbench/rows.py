"""The file of rows of one suite on one variant: append, read back, go on after a crash.

One JSON object a line. Lines are appended while answers come, so a crash can tear the last one;
nothing else about the file is ever half done. It does not ask, score or compare.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import orjson
from pydantic import ValidationError

from workbench.digest import canonical_json
from workbench.errors import StoreError
from workbench.evaluation_records import COUNTS, NOT_JUDGED, NOT_SCORED
from workbench.records import Evaluation, SampleRow, SuiteResult
from workbench.store import disk_errors, write_atomic

#: The fix of a rows file that is not as it was written.
AGAIN = "workbench run with the run's recipe puts the recorded rows back, or asks for them again"

#: Longest time a row is in the file but perhaps not yet on the disk, seconds.
SYNC_SECONDS = 1.0
#: What a row says of the question it answers, beside its id and repeat.
IDENTITY = (
    *("prompt_digest", "target_digest", "sampling_digest"),
    *("template_digest", "tokenizer_digest", "cluster"),
)


_SAID_OF = attrgetter("id", "repeat", *IDENTITY, "tokens_digest", "output", "score")
#: Counts from here on are none: no answer has so many fields.
_MANY = 1 << 32
#: What is digested of a row: the above, whether it has no error, its flags, and the counts that a
#: pooled metric is made of where it has some.
Said = tuple[Any, ...]


class RowsDigest:
    """Digest of what was asked, answered and scored, in sample order; timings are left out.

    It is the `workbench.digest.content_id` of a list with one list a row, made as rows come.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"[")
        self._between = b""

    def update(self, rows: Sequence[Said], scores: Iterable[float | None]) -> None:
        """Add rows, whose scores they are."""
        # The same bytes, several times as fast, but for numbers with an exponent, NaN and half
        # characters.
        data = b""
        if all(s is None or s == 0 or 1e-4 <= s <= 1 for s in {*scores}):
            with contextlib.suppress(orjson.JSONEncodeError):
                data = orjson.dumps(rows)[1:-1]
        data = data or b",".join(map(canonical_json, rows))
        if data:
            self._hash.update(self._between + data)
            self._between = b","

    def hexdigest(self) -> str:
        """The digest of all rows added so far."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()


def rows_digest(rows: Iterable[SampleRow]) -> str:
    """The `RowsDigest` of rows."""
    digest = RowsDigest()
    for row in rows:
        said = (*_SAID_OF(row), row.error is None, row.flags, *counts_said(row.grade))
        digest.update([said], (row.score,))
    return digest.hexdigest()


def counts_said(grade: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The counts of an answer as they are digested; empty where it has none."""
    if not grade or COUNTS not in grade:
        return ()
    counts = grade[COUNTS]
    if isinstance(counts, list) and all(type(one) is int and 0 <= one < _MANY for one in counts):
        return (counts,)
    return (None,)  # no metric is made of it


def altered(folder: Path, record: Evaluation) -> dict[str, str]:
    """What is wrong with the rows an evaluation speaks of: name of the file -> a sentence.

    Rows that wait beside theirs under the name of `staged` take their place where they are the ones
    that the record means: whoever wrote both was stopped between record and rows.
    """
    found = {}
    for result in (*record.suites, *record.repeat):
        path = folder / result.rows_file
        rows = _rows_at(path)
        if rows is not None and meant(result, rows):
            continue
        waiting = _rows_at(staged(path))
        if waiting is not None and meant(result, waiting):
            take_place(path)
        elif rows is None:
            found[path.name] = f"its rows {path.name} are lost or damaged"
        else:
            found[path.name] = f"its rows {path.name} are not those that were recorded"
    return found


def staged(path: Path) -> Path:
    """Where rows wait until the record that means them is written."""
    return path.with_name(f".{path.name}.staged")


def take_place(path: Path) -> None:
    """Put the staged rows there; another process may have seen the record and done it already."""
    with contextlib.suppress(FileNotFoundError):
        staged(path).replace(path)


def recorded(result: SuiteResult, digest: str, output_tokens: float) -> bool:
    """Whether a record speaks of the rows that have this digest and so many tokens in all.

    Tokens are in no digest, and a check on the length of answers rests on their sum.
    """
    # Nobody counts them for lm-eval.
    counted = result.source != "suite" or output_tokens == result.output_tokens
    return digest == result.rows_digest and counted


def meant(result: SuiteResult, rows: Sequence[SampleRow]) -> bool:
    """Whether a record speaks of these rows."""
    return recorded(result, rows_digest(rows), sum(row.output_tokens or 0 for row in rows))


def _rows_at(path: Path) -> tuple[SampleRow, ...] | None:
    try:
        return read_rows(path)
    except (StoreError, OSError):
        return None


def reopened(row: SampleRow) -> SampleRow:
    """A row whose answer only was not graded, as one that waits for its grade; else as it is."""
    if (row.error or "").startswith((NOT_JUDGED, NOT_SCORED)):
        return row.model_copy(update={"error": None})
    return row


def read_rows(path: Path) -> tuple[SampleRow, ...]:
    """Every row of a finished file, in its order.

    Raises:
        StoreError: the file is missing, a line is not a row, or a sample is there twice.
    """
    rows: list[SampleRow] = []
    lines: dict[str, int] = {}
    fields: set[str] = set()
    for number, line in enumerate(_read(path, missing_ok=False), 1):
        try:
            row = parse(line)
        except ValueError as bad:
            raise StoreError(
                f"a line is not a row: {bad}",
                where=f"{path}:{number}",
                fix=AGAIN,
            ) from None
        first = lines.setdefault(row.key, number)
        if first != number:
            raise StoreError(
                f"sample '{row.key}' has two rows, the first in line {first}",
                where=f"{path}:{number}",
                fix=AGAIN,
            )
        # Two thirds of a row's memory are the names of its fields, which a file's rows share.
        if row.model_fields_set == fields:
            object.__setattr__(row, "__pydantic_fields_set__", fields)
        fields = row.model_fields_set
        rows.append(row)
    return tuple(rows)


def keep_rows(path: Path, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, SampleRow]:
    """What an unfinished file holds that need not be asked again.

    Args:
        path: may be missing; a torn or damaged line is as if it were not there.
        asked: key of a row -> the fields of `IDENTITY`, as they are now.

    Returns:
        Rows by key: answered without error, of a sample that is still asked in these words, drawn
        in this way and scored against this target. An answer that only was not graded is kept, as
        one that waits for its grade.
    """
    kept: dict[str, SampleRow] = {}
    for line in _read(path, missing_ok=True):
        try:
            row = reopened(parse(line))
        except ValueError:
            continue
        now = asked.get(row.key)
        same = now is not None and all(getattr(row, name) == now[name] for name in IDENTITY)
        if row.error is None and same:
            kept[row.key] = row
    return kept


def write_rows(path: Path, rows: Iterable[SampleRow]) -> None:
    """Write a whole file of rows, atomically."""
    write_atomic(path, b"".join(map(_dump, rows)))


class RowFile:
    """Appends rows. A row is with the operating system at once, and on disk within a second.

    Args:
        path: the file; what it holds stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._dirty = False
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: one write a row, so that only the last line can be torn.
            self._file = path.open("ab", buffering=0)

    def append(self, row: SampleRow) -> None:
        """Add one row.

        Raises:
            DiskFull: no space is left.
        """
        data = memoryview(_dump(row))
        with disk_errors(self._path):
            while data:
                data = data[self._file.write(data) :]
        self._dirty = True

    def sync(self) -> None:
        """Wait until what was appended is on disk."""
        if self._dirty:
            self._dirty = False
            with disk_errors(self._path):
                os.fsync(self._file.fileno())

    @contextlib.asynccontextmanager
    async def syncing(self) -> AsyncIterator[None]:
        """Sync every second while the block runs, and close the file after it."""

        async def forever() -> None:
            while True:
                await asyncio.sleep(SYNC_SECONDS)
                # Off the loop: a busy disk must not be taken for a slow server.
                await asyncio.to_thread(self.sync)

        task = asyncio.create_task(forever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self.close()

    def close(self) -> None:
        """Sync and close."""
        try:
            self.sync()
        finally:
            self._file.close()


def clean_text(text: str) -> str:
    """A text that UTF-8 can hold: half characters (lone surrogates) become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _dump(row: SampleRow) -> bytes:
    data = row.model_dump(mode="json")
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _read(path: Path, *, missing_ok: bool) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if missing_ok:
            return []
        raise StoreError("the rows of a suite are missing", where=str(path), fix=AGAIN) from None
    lines = data.split(b"\n")
    # A whole file ends with a line end; what stands after the last one was cut short.
    return lines[:-1] if not lines[-1] else lines


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of a row")


def parse(line: bytes) -> SampleRow:
    """The row of one line.

    Raises:
        ValueError: it is none, and in which way.
    """
    # Twice as fast. It takes NaN for a number and 400 digits for an infinite one, and its words for
    # what is wrong are others.
    if b"NaN" not in line and b"Infinity" not in line:
        with contextlib.suppress(ValidationError):
            row = SampleRow.model_validate_json(line)
            if math.isfinite((row.score or 0.0) + row.started + row.seconds):
                return row
    try:
        value: Any = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    try:
        row = SampleRow.model_validate(value)
    except ValidationError as bad:
        first = bad.errors()[0]
        raise ValueError(f"{first['msg']} at {'.'.join(map(str, first['loc']))}") from None
    if not math.isfinite((row.score or 0.0) + row.started + row.seconds):
        raise ValueError("a number is infinite, and no score or time is")  # 1e999
    return row
