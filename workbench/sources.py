"""Where calibration texts come from, and what a row of them means.

A row is one of ``{"messages": [...]}``, ``{"prompt": ..., "response": ...}`` or ``{"text": ...}``,
under these names or under those the recipe gives (`columns`). With the chat template, prompt and
response become a user's and an assistant's turn, and a text one user's turn; without it, the parts
are joined by an empty line.

A row's id is its ``id`` field; where there is none, ``line-<number>`` of a JSONL file and
``row-<number>`` of a table. What cannot be understood is an error with file and line or row; blank
lines, rows of a table whose cell is null, and conversations in which the assistant calls tools are
passed over, and returned to be counted. Of a row with fields of several kinds, `messages` count
before prompt and response, and these before `text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.calibration_spec import CalibrationSpec, ColumnsSpec, HubSource
from workbench.errors import CalibrationError, did_you_mean
from workbench.tables import Faults, RawRow, is_table, read_file, whole_json
from workbench.words import MOST_SHOWN, listed, shortened, shown

SAMPLES_FILE = "samples.jsonl"

_ROLES = ("system", "user", "assistant", "tool")
_FIELDS = ("messages", "prompt", "response", "text")
_TURNS = (("user", "prompt"), ("assistant", "response"))

#: Fetches one file of a dataset: (dataset id, commit, file) -> path on this disk.
Download = Callable[[str, str, str], Path]


@dataclass(frozen=True)
class SourceRow:
    """One row of a source.

    Attributes:
        id: unique in the source; decides with the seed which rows are sampled.
        where: file and line, or file and row.
        messages: the conversation it stands for.
        stratum: its value of the field the set is stratified by; None where it has none.
    """

    id: str
    where: str
    messages: tuple[dict[str, str], ...]
    stratum: str | None = None

    @property
    def text(self) -> str:
        """The contents, joined by an empty line: the row without a template."""
        return "\n\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class SourceRows:
    """What a source holds.

    Attributes:
        rows: in file order; ids are unique.
        skipped: reason -> ids of rows that hold nothing to read.
    """

    rows: list[SourceRow]
    skipped: dict[str, list[str]]


def resolve_source(name: str, root: Path, beside: Path | None = None) -> Path:
    """Find a calibration source: a folder of ``calib_data/``, or a JSONL, CSV or parquet file.

    Args:
        name: as the recipe says it.
        root: the project's folder, which holds ``calib_data/``.
        beside: folder of the recipe; its files are looked at for a name that was meant.

    Raises:
        CalibrationError: there is no such source.
    """
    shipped = root / "calib_data"
    for path in (shipped / name / SAMPLES_FILE, root / name, Path(name)):
        if path.is_file():
            return path.resolve()
    known = sorted(p.parent.name for p in shipped.glob(f"*/{SAMPLES_FILE}"))
    meant = did_you_mean(name, known) or did_you_mean(Path(name).name, _near(name, beside or root))
    raise CalibrationError(
        f"there is no calibration source '{name}'",
        where="calibration: source",
        fix=f"{meant}name a folder of calib_data/ "
        f"({', '.join(known) or 'it has none'}) or a JSONL, CSV or parquet file",
    )


def _near(name: str, folder: Path) -> list[str]:
    """Names of the files where a path leads, which leads to none of them."""
    try:
        return sorted(p.name for p in (folder / name).parent.iterdir() if p.is_file())
    except (OSError, ValueError):
        return []


def hub_download(dataset: str, revision: str, file: str) -> Path:
    """Fetch one file of a dataset at a commit into the hub's own cache.

    Not yet run against a hub: no machine this was built on reaches one.
    """
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(dataset, file, revision=revision, repo_type="dataset"))


def hub_cached(source: HubSource) -> Path | None:
    """The file where the hub's cache on this disk holds it; None where it must be fetched first."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        source.hub, source.file, revision=source.revision, repo_type="dataset"
    )
    return Path(found) if isinstance(found, str) else None


def fetch(source: HubSource, download: Download = hub_download) -> Path:
    """The file of a hub dataset, fetched at its commit.

    Args:
        source: dataset, commit and file.
        download: what fetches; it may answer from a cache.

    Raises:
        CalibrationError: it could not be fetched.
    """
    assert source.revision is not None
    try:
        return download(source.hub, source.revision, source.file)
    except Exception as error:  # the hub's client raises dozens of unrelated classes
        raise CalibrationError(
            f"{source.file} of the dataset {source.hub} at {source.revision[:12]} could not be "
            f"fetched: {error}",
            where="calibration: source",
            fix="check dataset, commit, file and your hub token, or name a file on this disk",
        ) from error


def read_source(spec: CalibrationSpec, path: Path) -> SourceRows:
    """Rows of a recipe's source; see `read_rows`."""
    return read_rows(path, spec.fields, spec.strata.by if spec.strata else None)


def read_rows(path: Path, columns: ColumnsSpec | None = None, by: str | None = None) -> SourceRows:
    """Rows of a file in its order.

    A byte-order mark and CRLF line ends are taken as they come.

    Args:
        path: ``*.csv`` and ``*.parquet`` are tables, anything else is JSONL.
        columns: which fields hold what; default are the usual names.
        by: field whose value becomes a row's stratum.

    Raises:
        CalibrationError: invalid UTF-8 (with its position), a line that is not JSON, a ragged or
            unclosed row, a damaged parquet file, a missing or wrong field, an unknown role, a
            duplicate id, no row with the stratum's field; each with file and line or row, up to
            ten rows together.
    """
    table = is_table(path)
    rows: list[SourceRow] = []
    skipped: dict[str, list[str]] = {}
    fields: dict[str, None] = {}
    seen: dict[str, str] = {}

    def choose(names: tuple[str, ...]) -> list[str]:
        fields.update(dict.fromkeys(names))
        return _needed(names, columns, by, path)

    def take(raw: RawRow) -> None:
        if raw.fault is not None:
            raise raw.fault
        if raw.value is None:
            skipped.setdefault("blank line", []).append(raw.id)
            return
        fields.update(dict.fromkeys(raw.value))
        row_id = _id(raw, columns, table)
        if row_id in seen:
            raise CalibrationError(
                f"two rows have the id '{shortened(row_id)}'",
                where=f"{raw.where} and {seen[row_id]}",
                fix="ids must differ: they decide which rows are sampled",
            )
        seen[row_id] = raw.where
        try:
            messages = _messages(raw.value, raw.where, columns)
        except _Null as null:
            if not table:
                raise _wrong(f"the field '{null}' is null", raw.where) from None
            skipped.setdefault("null", []).append(row_id)
            return
        except _ToolCalls:
            skipped.setdefault("with tool calls", []).append(row_id)
            return
        stratum = None if by is None else _stratum(raw.value.get(by), by, raw.where)
        rows.append(SourceRow(row_id, raw.where, tuple(messages), stratum))

    faults = Faults(path)
    for raw in read_file(path, choose):
        try:
            take(raw)
        except CalibrationError as error:
            faults.add(error)
    faults.tell()
    if by is not None and rows and by not in fields:
        raise _no_stratum(by, fields, path)
    return SourceRows(rows, skipped)


class _Null(Exception):
    """A cell of a table holds nothing."""


class _ToolCalls(Exception):
    """A message calls tools, and rendered without them it would say something else."""


def _needed(
    names: tuple[str, ...], columns: ColumnsSpec | None, by: str | None, path: Path
) -> list[str]:
    """The columns of a table that are read."""
    if by is not None and by not in names:
        raise _no_stratum(by, names, path)
    wanted = list(columns.names) if columns else [name for name in _FIELDS if name in names]
    if columns and columns.id:
        wanted.append(columns.id)
    for name in wanted:
        if name not in names:
            raise CalibrationError(
                f"there is no column '{name}'",
                where=f"{path}; calibration: columns",
                fix=f"{did_you_mean(name, names)}columns: {listed(names)}",
            )
    if not columns and not (
        {"text", "messages"} & {*wanted} or {"prompt", "response"} <= {*wanted}
    ):
        raise CalibrationError(
            "no column is called 'text', 'prompt' and 'response', or 'messages'",
            where=str(path),
            fix=f"{_say_columns(names)}; columns: {listed(names)}",
        )
    extra = [name for name in ("id", by) if name in names]
    return list(dict.fromkeys([*wanted, *(name for name in extra if name)]))


def _id(raw: RawRow, columns: ColumnsSpec | None, table: bool) -> str:
    name = columns.id if columns and columns.id else "id"
    value = raw.value or {}
    if columns and columns.id and name not in value:
        raise _missing(name, value, raw.where)
    row_id = value.get(name, raw.id)
    if table and isinstance(row_id, int) and not isinstance(row_id, bool):
        row_id = str(row_id)
    if not isinstance(row_id, str) or not row_id:
        raise CalibrationError(
            f"the id of a row is not a text ({shown(row_id)})",
            where=raw.where,
            fix='{"id": "a-1", ...}',
        )
    return row_id


def _stratum(value: Any, by: str, where: str) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, str | int):
        return str(value).strip() or None if value is not None else None
    raise _wrong(f"the field '{by}' to stratify by is a {type(value).__name__}", where)


def _no_stratum(by: str, fields: Iterable[str], path: Path) -> CalibrationError:
    return CalibrationError(
        f"no row has the field '{by}' to stratify by",
        where=f"{path}; calibration: strata.by",
        fix=f"{did_you_mean(by, fields)}fields: {listed(fields)}",
    )


def _messages(
    value: Mapping[str, Any], where: str, columns: ColumnsSpec | None
) -> list[dict[str, str]]:
    names = {key: getattr(columns, key) for key in _FIELDS} if columns else {k: k for k in _FIELDS}
    if columns.messages if columns else "messages" in value:
        return _conversation(value, names["messages"], where)
    if columns.prompt if columns else "prompt" in value or "response" in value:
        if columns is None and not {"prompt", "response"} <= value.keys():
            lost, there = "response", "prompt"
            if there not in value:
                lost, there = there, lost
            raise CalibrationError(
                f"the field '{lost}' is missing, which goes with '{there}' "
                f"(the row has {listed(map(repr, value))})",
                where=where,
                fix=f"correct the row, or remove it; if all are like it, {_say_columns(value)}",
            )
        return [{"role": role, "content": _text(value, names[key], where)} for role, key in _TURNS]
    if columns is None and "text" not in value:
        guesses = "".join(did_you_mean(key, _FIELDS) for key in value)
        raise CalibrationError(
            f"a row has no 'text', 'prompt' and 'response', or 'messages' "
            f"(it has {listed(map(repr, value)) or 'nothing'})",
            where=where,
            fix=f"{guesses}{_say_columns(value)}",
        )
    return [{"role": "user", "content": _text(value, names["text"], where)}]


def _conversation(value: Mapping[str, Any], name: str, where: str) -> list[dict[str, str]]:
    if name not in value:
        raise _missing(name, value, where)
    messages = value[name]
    if messages is None:
        raise _Null(name)
    if isinstance(messages, str):  # a cell of a CSV file
        try:
            messages = whole_json(messages)
        except (ValueError, RecursionError) as error:
            raise _wrong(f"'{name}' is not the JSON text of a list: {error}", where) from error
    if not isinstance(messages, list) or not messages:
        raise _wrong(f"'{name}' is not a list with something in it", where)
    return [_message(message, where) for message in messages]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _wrong("a message is not a JSON object", where)
    role = message.get("role")
    if role not in _ROLES:
        raise CalibrationError(
            f"a message has the unknown role {shown(role)}",
            where=where,
            fix=f"{did_you_mean(str(role)[:MOST_SHOWN], _ROLES)}roles are {', '.join(_ROLES)}",
        )
    if message.get("tool_calls"):
        raise _ToolCalls
    return {"role": str(role), "content": _text(message, "content", where)}


def _text(value: Mapping[str, Any], key: str, where: str) -> str:
    if key not in value:
        raise _missing(key, value, where)
    found = value[key]
    if found is None:
        raise _Null(key)
    if not isinstance(found, str):
        raise _wrong(f"the field '{key}' is not a text ({type(found).__name__})", where)
    return found


#: What fields of other names usually are.
_GUESSES = {
    "prompt": ("question", "instruction", "input", "query", "problem", "user"),
    "response": ("answer", "output", "completion", "reply", "solution", "assistant", "target"),
    "text": ("content", "body", "message", "document", "passage"),
    "messages": ("conversations", "conversation", "dialogue", "turns"),
}


def _say_columns(fields: Iterable[str]) -> str:
    """Which `columns` a recipe could name, by what the fields are called."""
    folded = {name.casefold(): name for name in fields}
    guess: dict[str, str] = {
        kind: folded[name]
        for kind, names in _GUESSES.items()
        for name in reversed((kind, *names))
        if name in folded
    }
    wanted: dict[str, str]
    if {"prompt", "response"} <= guess.keys():
        wanted = {kind: guess[kind] for kind in ("prompt", "response")}
    elif "messages" in guess:
        wanted = {"messages": guess["messages"]}
    else:
        other = next((name for folded_, name in folded.items() if folded_ != "id"), "FIELD")
        wanted = {"text": guess.get("text") or guess.get("prompt") or other}
    said = ", ".join(f"{kind}: {name}" for kind, name in wanted.items())
    return f"say in the recipe's 'calibration' which fields to read: 'columns: {{{said}}}'"


def _missing(key: str, value: Mapping[str, Any], where: str) -> CalibrationError:
    fix = f"{did_you_mean(key, value)}correct the row, or remove it"
    return CalibrationError(f"the field '{key}' is missing", where=where, fix=fix)


def _wrong(what: str, where: str) -> CalibrationError:
    return CalibrationError(what, where=where, fix="correct the row, or remove it")
