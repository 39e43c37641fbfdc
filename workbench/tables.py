"""Read records out of JSONL, CSV and parquet files, each with where it stands. No meaning yet.

Parquet is read by duckdb, an optional dependency (extra ``parquet``): of what was tried,
fastparquet 2026.9.0 returns a column of messages as nulls without a word, arro3 0.9.1 panics on a
damaged file, and pyarrow is more than twice the size (171 MB installed, duckdb 70).
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import CalibrationError

_BOM = b"\xef\xbb\xbf"
#: Rows fetched at once from a parquet file.
_BATCH = 1024
#: Characters of one cell of a CSV file; Python's own limit of 131,072 is less than a long document.
MOST_CHARACTERS = 1 << 27

#: Rows that cannot be used are told together, up to so many.
MOST_TOLD = 10

#: Given the names of a table's columns, those that are needed; raises where one is missing.
Choose = Callable[[tuple[str, ...]], Sequence[str]]


@dataclass(frozen=True)
class RawRow:
    """One record of a file.

    Attributes:
        id: ``line-<number>`` of a JSONL file, ``row-<number>`` of a table, counted from 1.
        where: file and line, or file and row.
        value: its fields; None of a blank line.
        fault: what is wrong with it alone; the rows after it can still be read.
    """

    id: str
    where: str
    value: dict[str, Any] | None
    fault: CalibrationError | None = None


class Faults:
    """What is wrong with the rows of a file, gathered to be told together.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[CalibrationError] = []

    def add(self, fault: CalibrationError) -> None:
        """Keep one.

        Raises:
            CalibrationError: there are `MOST_TOLD` now; the rest of the file is not looked at.
        """
        self._found.append(fault)
        if len(self._found) == MOST_TOLD:
            self.tell("the first ")

    def tell(self, which: str = "") -> None:
        """End with what was found, if anything was.

        Args:
            which: said before the number.

        Raises:
            CalibrationError: the fault itself where there is one, else a list of all.
        """
        if len(self._found) == 1:
            raise self._found[0]
        if not self._found:
            return
        fixes = {fault.fix for fault in self._found}
        listing = "".join(
            f"\n  {fault.where.replace(str(self._path), self._path.name)}: {fault.what}"
            + (f" ({fault.fix})" if fault.fix and len(fixes) > 1 else "")
            for fault in self._found
        )
        raise CalibrationError(
            f"{which}{len(self._found)} rows that cannot be used:{listing}",
            where=str(self._path),
            fix=fixes.pop() if len(fixes) == 1 else "mend each row named, or remove it",
        )


def is_table(path: Path) -> bool:
    """Whether a file has columns: the end of its name decides."""
    return path.suffix.lower() in (".csv", ".parquet")


def read_file(path: Path, choose: Choose) -> Iterator[RawRow]:
    """Records of a file in its order.

    Args:
        path: ``*.csv`` and ``*.parquet`` are tables, anything else is JSONL.
        choose: asked once, for a table alone.

    Raises:
        CalibrationError: the file is damaged, so that no row after the place can be told from the
            next; says where and how to mend it. What is wrong with one row alone is its `fault`.
    """
    kind = path.suffix.lower()
    if kind == ".csv":
        return _csv(path, choose)
    return _parquet(path, choose) if kind == ".parquet" else _jsonl(path)


def _jsonl(path: Path) -> Iterator[RawRow]:
    data = _bytes(path)
    offset = len(data)
    data = data.removeprefix(_BOM)
    offset -= len(data)
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()  # the newline at the end of the file begins no line
    for number, raw in enumerate(lines, 1):
        where = f"{path}:{number}"
        value, fault = None, None
        try:
            value = _object(raw.removesuffix(b"\r"), offset, where)
        except CalibrationError as error:
            fault = error
        offset += len(raw) + 1
        yield RawRow(f"line-{number}", where, value, fault)


def _object(raw: bytes, offset: int, where: str) -> dict[str, Any] | None:
    """The JSON object of a line; None of a blank one."""
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(offset + error.start, where) from error
    if not line.strip():
        return None
    try:
        value = whole_json(line)
    except (ValueError, RecursionError) as error:
        raise CalibrationError(
            f"a line is not JSON: {error}", where=where, fix="one JSON object a line"
        ) from error
    if not isinstance(value, dict):
        raise CalibrationError("a line is not a JSON object", where=where, fix='{"text": "..."}')
    return value


def whole_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, an object has a key twice, or an escape in it names half a
            character.
        RecursionError: it is nested too deep.
    """
    value = json.loads(text, object_pairs_hook=_unique)
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a \\u escape names half a character (a lone surrogate)") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return value


def _csv(path: Path, choose: Choose) -> Iterator[RawRow]:
    data = _bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # 'utf-8-sig' counts from behind a byte-order mark.
        at = error.start + (len(_BOM) if data.startswith(_BOM) else 0)
        line = data.count(b"\n", 0, at) + 1
        raise _not_utf8(at, f"{path}:{line}") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    number, line = 0, 1
    while True:
        begun = line
        try:
            with long_cells():
                cells = next(reader, None)
        except csv.Error as error:
            fault = CalibrationError(
                f"a row cannot be read: {error}",
                where=f"{path}:{begun}",
                fix="close every quote, and double a quote inside a quoted cell",
            )
            yield RawRow(f"row-{number + 1}", f"{path}:{begun}", None, fault)
            return  # where the next row begins is not known
        if cells is None:
            break
        line = reader.line_num + 1
        if header is None:
            header = _header(cells, path)
            choose(tuple(header))
            continue
        number += 1
        if cells and len(cells) != len(header):
            fault = CalibrationError(
                f"a row has {len(cells)} cells, the header has {len(header)}",
                where=f"{path}:{begun} (row {number})",
                fix="quote cells that hold commas or line ends",
            )
            yield RawRow(f"row-{number}", f"{path}:{begun}", None, fault)
            continue
        value = dict(zip(header, cells, strict=True)) if cells else None
        yield RawRow(f"row-{number}", f"{path}:{begun}", value)
    if header is None:
        raise CalibrationError(
            "the file is empty", where=str(path), fix="write a header with the columns' names"
        )


def _header(cells: list[str], path: Path) -> list[str]:
    if not any(cell.strip() for cell in cells):
        raise CalibrationError(
            "the first line is blank", where=f"{path}:1", fix="begin with the columns' names"
        )
    twice = sorted(name for name, n in Counter(cells).items() if n > 1)
    if twice or "" in cells:
        what = f"two columns are called '{twice[0]}'" if twice else "a column has no name"
        raise CalibrationError(what, where=f"{path}:1", fix="give each column a name of its own")
    if len(cells) == 1:
        for mark, name in ((";", "semicolons"), ("\t", "tabs")):
            if mark in cells[0]:
                raise CalibrationError(
                    f"the columns are separated by {name}",
                    where=f"{path}:1",
                    fix="save the file with commas",
                )
    return cells


@contextmanager
def long_cells() -> Iterator[None]:
    """Python keeps the limit for the whole process: raise it for as long as one row takes."""
    before = csv.field_size_limit(MOST_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path, choose: Choose) -> Iterator[RawRow]:
    try:
        import duckdb
    except ImportError as error:
        raise CalibrationError(
            "reading parquet needs duckdb, which is not installed here",
            where=str(path),
            fix="pip install 'quantization-workbench[parquet]', or save the rows as JSONL",
        ) from error
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    # A link of a plain name: duckdb takes '*' and '[' in a path for a pattern, and 'key=value'
    # folders for columns.
    with tempfile.TemporaryDirectory() as folder, duckdb.connect(config=settings) as base:
        link = Path(folder) / "source.parquet"
        link.symlink_to(path.resolve())
        try:
            about = base.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(link)]).fetchall()
            names = list(choose(tuple(str(column[0]) for column in about)))
            quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            base.execute(f"SELECT {quoted} FROM read_parquet(?)", [str(link)])
            number = 0
            while rows := base.fetchmany(_BATCH):
                for row in rows:
                    number += 1
                    value = dict(zip(names, row, strict=True))
                    yield RawRow(f"row-{number}", f"{path}: row {number}", value)
        except duckdb.Error as error:
            said = str(error).split("\n")[0].replace(str(link), path.name)
            raise CalibrationError(
                f"the parquet file cannot be read: {said}",
                where=str(path),
                fix="fetch or write the file again",
            ) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CalibrationError(
            f"the file cannot be read: {error.strerror}", where=str(path), fix="check the path"
        ) from error


def _not_utf8(at: int, where: str) -> CalibrationError:
    return CalibrationError(
        f"invalid UTF-8 at byte {at} of the file", where=where, fix="save the file as UTF-8"
    )
