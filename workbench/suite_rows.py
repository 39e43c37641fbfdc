"""Rows of a CSV or JSONL file, to make a suite of. Every complaint names file and line.

CSV is read by the csv module: UTF-8 with or without a byte order mark, quoted line ends, a header.
A `.tsv` file is split at tabs, a header with semicolons and no comma at those. Values stay texts.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import SuiteError, did_you_mean
from workbench.suite_files import lines, parse_object
from workbench.tables import MOST_CHARACTERS, long_cells
from workbench.words import shortened

_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")


class Row(NamedTuple):
    """One row.

    Attributes:
        line: where it begins, counted from 1.
        fields: by column.
    """

    line: int
    fields: dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Every row of a file.

    Raises:
        SuiteError: the file is missing or empty, or a line is broken.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise SuiteError(
            f"'{path.name}' is neither CSV nor JSONL by its name",
            where="--from",
            fix=f"name a file that ends with {', '.join(_SUFFIXES)}",
        )
    if not path.is_file():
        near = [p.name for p in path.parent.glob("*.*")] if path.parent.is_dir() else []
        raise SuiteError(
            f"there is no file {path.name}",
            where=str(path),
            fix=did_you_mean(path.name, near) or "check the path",
        )
    read = _csv if path.suffix.lower() in (".csv", ".tsv") else _jsonl
    rows = list(read(path))
    if not rows:
        raise SuiteError("the file has no row", where=str(path), fix="write one row a sample")
    return rows


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in lines(path):
        try:
            yield Row(number, parse_object(line))
        except ValueError as bad:
            raise SuiteError(str(bad), where=f"{path}:{number}", fix="mend that line") from None


def _csv(path: Path) -> Iterator[Row]:
    # Decoded as lines are, so that a byte that is no UTF-8 is named the same way.
    list(lines(path))
    text = path.read_bytes().decode("utf-8-sig")
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=_delimiter(path, text), strict=True
    )
    header: list[str] | None = None
    before = 0
    try:
        while True:
            with long_cells():
                cells = next(reader, None)
            if cells is None:
                return
            line, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(path, line, cells)
                continue
            if len(cells) != len(header):
                raise SuiteError(
                    f"{len(cells)} values for {len(header)} columns",
                    where=f"{path}:{line}",
                    fix="put a value that holds the separator or a line end in double quotes",
                )
            yield Row(line, dict(zip(header, cells, strict=True)))
    except csv.Error as bad:
        what = f"not CSV: {bad}"
        if "field limit" in what:
            what = f"a value is longer than {MOST_CHARACTERS:,} characters"
        raise SuiteError(
            what,
            where=f"{path}:{max(reader.line_num, 1)}",
            fix="mend the quotes there, or save the file as JSONL",
        ) from None


def _delimiter(path: Path, text: str) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = text.lstrip().partition("\n")[0]
    return ";" if ";" in header and "," not in header else ","


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    empty = next((i for i, name in enumerate(names, 1) if not name), None)
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if empty is not None or twice is not None:
        what = (
            f"column {empty} has no name"
            if empty is not None
            else f"two columns '{shortened(str(twice))}'"
        )
        raise SuiteError(what, where=f"{path}:{line}", fix="name each column once, in line one")
    return names
