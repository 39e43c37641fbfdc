"""The files of a suite's folder: lines of samples, and the files a scorer needs.

A byte order mark, CRLF line ends, blank lines and the order of keys are taken as they come. A file
a suite names is read here once, as text, so that what is scored later is what was hashed; its path
stays inside the folder, through symbolic links too. It judges no sample against its suite.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from pydantic import ValidationError

from workbench.digest import canonical_json
from workbench.errors import SuiteError, did_you_mean
from workbench.suite_spec import PythonScorer, Sample, SqlScorer, SuiteSpec
from workbench.words import shortened, shown

SPEC_FILE = "suite.yaml"
SAMPLES_FILE = "samples.jsonl"
#: A database or a scorer larger than this is not a text beside a suite, bytes.
LARGEST = 64 * 2**20
#: Levels of lists and objects in a line; what writes them out again goes no deeper than 255.
MOST_DEPTH = 100


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers.

    Raises:
        SuiteError: the file is missing, or not UTF-8.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise SuiteError(
            f"there is no {path.name}", where=str(path), fix="write one JSON object a line"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        at = data.count(b"\n", 0, bad.start) + 1
        raise SuiteError(
            f"not UTF-8: byte {bad.start} (0x{data[bad.start]:02x}) cannot be decoded",
            where=f"{path}:{at}",
            fix="save the file as UTF-8",
        ) from None
    # Not splitlines: a sample may hold U+2028 and other characters it takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def parse_object(line: str) -> dict[str, Any]:
    """One line as an object.

    Raises:
        ValueError: says what is wrong with the line.
    """
    try:
        value = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as bad:
        raise ValueError(f"not JSON: {bad.msg} at column {bad.colno}") from None
    except RecursionError:
        raise ValueError(f"not usable: nested too deep, more than {MOST_DEPTH} levels") from None
    except ValueError as bad:
        if "integer string conversion" in str(bad):
            raise ValueError("not usable: a number of more than 4,300 digits") from None
        raise
    if not isinstance(value, dict):
        raise ValueError("the line is not a JSON object")
    if _is_deep(value):
        raise ValueError(f"not usable: nested too deep, more than {MOST_DEPTH} levels")
    try:
        canonical_json(value).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("a \\u escape names half a character (a lone surrogate)") from None
    return value


def parse_sample(line: str) -> Sample:
    """One sample.

    Raises:
        ValueError: says what is wrong with the line.
    """
    value = parse_object(line)
    try:
        return Sample.model_validate(value)
    except ValidationError as bad:
        detail = bad.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        if detail["type"] == "missing":
            near = did_you_mean(key, value).strip()
            raise ValueError(f"'{key}' is missing" + (f": {near}" if near else "")) from None
        raise ValueError(f"'{key}': {detail['msg']}, not {shown(detail['input'])}") from None


def resource_names(spec: SuiteSpec) -> tuple[tuple[str, str], ...]:
    """The files a scorer needs beside `suite.yaml`: (key of the scorer, path)."""
    if isinstance(spec.scorer, SqlScorer):
        return (("database", spec.scorer.database),)
    if isinstance(spec.scorer, PythonScorer):
        place = spec.scorer.function.partition(":")[0]
        return (("function", place),) if place.endswith(".py") else ()
    return ()


def read_resource(folder: Path, name: str) -> str:
    """Text of a file in a suite's folder.

    Raises:
        ValueError: says what is wrong: it leads out of the folder, is not there, no text, too big.
    """
    inside = PurePosixPath(name)
    if not name or inside.is_absolute() or ".." in inside.parts or "\\" in name:
        raise ValueError(f"'{name}' leads out of the suite's folder: name a file in it")
    try:
        found = (folder / inside).resolve()
        if not found.is_relative_to(folder.resolve()):
            raise ValueError(f"'{name}' leads out of the suite's folder: put the file itself there")
        if not found.is_file():
            near = [p.name for p in folder.iterdir() if p.is_file()]
            hint = did_you_mean(inside.name, near).strip()
            raise ValueError(f"there is no file '{name}' in the suite's folder. {hint}".strip())
        if found.stat().st_size > LARGEST:
            raise ValueError(f"'{name}' is larger than {LARGEST >> 20} MiB")
        return found.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        raise ValueError(f"'{name}' is not UTF-8: byte {bad.start} cannot be decoded") from None
    except (OSError, RuntimeError) as bad:  # RuntimeError: a loop of symbolic links
        raise ValueError(f"'{name}' cannot be read: {bad}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise ValueError(f"key '{shortened(twice)}' is given twice")
    return found


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [w for v in inner for w in (v.values() if isinstance(v, dict) else v)]
    return bool(level)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
