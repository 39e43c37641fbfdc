"""Sample rows of a source, render and tokenize them, and seal exactly what a method will see.

The sample is the same on every machine and Python: rows are put in the order of
``sha256(seed, row id)`` and the first usable ones are taken, so no random generator is involved.
A row's id is its ``id`` field, or ``line-<number>`` where it has none.

A row is one of ``{"messages": [...]}``, ``{"prompt": ..., "response": ...}`` or ``{"text": ...}``.
With the chat template, prompt and response become a user's and an assistant's turn, and a text one
user's turn; without it, the parts are joined by an empty line.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.digest import canonical_json, content_id, sha256_bytes, sha256_file, sha256_text
from workbench.errors import CalibrationError, RecipeError, did_you_mean
from workbench.records import Calibration, CalibrationRow
from workbench.spec import CalibrationSpec
from workbench.store import write_atomic
from workbench.tokenizer import Tokenizer

TOKENS_FILE = "tokens.jsonl"
SAMPLES_FILE = "samples.jsonl"

#: Shorter rows say nothing about a layer's inputs.
MIN_TOKENS = 8
_ROLES = ("system", "user", "assistant", "tool")
_FIELDS = ("messages", "prompt", "response", "text")


@dataclass(frozen=True)
class SourceRow:
    """One row of a source file.

    Attributes:
        id: its ``id`` field, or ``line-<number>``.
        where: file and line.
        messages: the conversation it stands for.
    """

    id: str
    where: str
    messages: tuple[dict[str, str], ...]

    @property
    def text(self) -> str:
        """The contents, joined by an empty line: the row without a template."""
        return "\n\n".join(message["content"] for message in self.messages)


def resolve_source(name: str, root: Path) -> Path:
    """Find a calibration source: a folder of ``calib_data/``, or a JSONL file.

    Args:
        name: as the recipe says it.
        root: the project's folder, which holds ``calib_data/``.

    Raises:
        CalibrationError: there is no such source.
    """
    shipped = root / "calib_data"
    for path in (shipped / name / SAMPLES_FILE, root / name, Path(name)):
        if path.is_file():
            return path.resolve()
    known = sorted(p.parent.name for p in shipped.glob(f"*/{SAMPLES_FILE}"))
    raise CalibrationError(
        f"there is no calibration source '{name}'",
        where="calibration: source",
        fix=f"{did_you_mean(name, known)}name a folder of calib_data/ "
        f"({', '.join(known) or 'it has none'}) or a JSONL file",
    )


def read_source(path: Path) -> tuple[list[SourceRow], int]:
    """Rows of a JSONL file in file order, and how many lines in it were blank.

    A byte-order mark and CRLF line ends are taken as they come.

    Raises:
        CalibrationError: invalid UTF-8 (with its position), a line that is not JSON, a missing or
            wrong field, an unknown role, a duplicate id; each with file and line.
    """
    rows: list[SourceRow] = []
    blank = 0
    seen: dict[str, str] = {}
    for number, line in _lines(path):
        where = f"{path}:{number}"
        if not line.strip():
            blank += 1
            continue
        row = _parse(line, number, where)
        if row.id in seen:
            raise CalibrationError(
                f"two rows have the id '{row.id}'",
                where=f"{where} and {seen[row.id]}",
                fix="ids must differ: they decide which rows are sampled",
            )
        seen[row.id] = where
        rows.append(row)
    return rows, blank


def seal(
    spec: CalibrationSpec, source: Path, tokenizer: Tokenizer, id_: str, folder: Path
) -> Calibration:
    """Sample, tokenize and seal; writes the token ids beside the record.

    Args:
        spec: how many rows, how long, which seed, with the template or without.
        source: the JSONL file.
        tokenizer: of the checkpoint that will be quantized.
        id_: content id of the step.
        folder: where ``tokens.jsonl`` goes, one JSON list of token ids a line, in sampling order.

    Returns:
        The record. ``dropped`` counts blank lines, empty, whitespace and duplicate rows over the
        whole source, and rows that are too short among those drawn before the sample was full.

    Raises:
        CalibrationError: the source is broken or too small, or the template refuses a row.
    """
    if spec.chat_template and tokenizer.template is None:
        raise CalibrationError(
            "the checkpoint has no chat template to render the rows with",
            where="calibration: chat_template",
            fix="say 'chat_template: false' to calibrate on the rows as they are",
        )
    rows, blank = read_source(source)
    dropped: Counter[str] = Counter()
    if blank:
        dropped["blank line"] = blank
    usable = _usable(rows, dropped)
    sealed: list[CalibrationRow] = []
    tokens: list[list[int]] = []
    for row in sorted(usable, key=lambda r: _order(spec.seed, r.id)):
        if len(sealed) == spec.samples:
            break
        text, ids = _tokenize(row, spec, tokenizer)
        if len(ids) < MIN_TOKENS:
            dropped[f"shorter than {MIN_TOKENS} tokens"] += 1
            continue
        kept = ids[: spec.max_tokens]
        tokens.append(kept)
        sealed.append(
            CalibrationRow(
                row=row.id,
                text_digest=sha256_text(text),
                token_digest=sha256_bytes(canonical_json(kept)),
                tokens=len(kept),
                truncated=len(kept) < len(ids),
            )
        )
    if len(sealed) < spec.samples:
        lost = ", ".join(f"{n} {why}" for why, n in sorted(dropped.items())) or "none dropped"
        raise CalibrationError(
            f"{spec.samples} samples are asked for, the source has {len(sealed)} usable rows "
            f"of {len(rows)} ({lost})",
            where=str(source),
            fix=f"ask for at most {len(sealed)} ('calibration: samples'), or add rows",
        )
    template_digest = tokenizer.template_digest if spec.chat_template else None
    lines = "".join(json.dumps(ids, separators=(",", ":")) + "\n" for ids in tokens)
    write_atomic(folder / TOKENS_FILE, lines.encode())
    return Calibration(
        id=id_,
        source=spec.source,
        source_digest=sha256_file(source),
        tokenizer_digest=tokenizer.digest,
        template_digest=template_digest,
        seed=spec.seed,
        max_tokens=spec.max_tokens,
        rows=tuple(sealed),
        dropped=dict(sorted(dropped.items())),
        seal=content_id(
            {
                "rows": [row.model_dump(mode="json") for row in sealed],
                "tokenizer": tokenizer.digest,
                "template": template_digest,
            }
        ),
        tokens_file=TOKENS_FILE,
    )


def _order(seed: int, row_id: str) -> str:
    return hashlib.sha256(f"{seed}\n{row_id}".encode("utf-8", "surrogatepass")).hexdigest()


def _usable(rows: list[SourceRow], dropped: Counter[str]) -> list[SourceRow]:
    """Rows that say something and say it first; the rest is counted in `dropped`."""
    usable: list[SourceRow] = []
    seen: set[str] = set()
    for row in rows:
        contents = [message["content"] for message in row.messages]
        digest = content_id([dict(message) for message in row.messages])
        if any(not content for content in contents):
            dropped["empty"] += 1
        elif any(not content.strip() for content in contents):
            dropped["whitespace only"] += 1
        elif digest in seen:
            dropped["duplicate text"] += 1
        else:
            seen.add(digest)
            usable.append(row)
    return usable


def _tokenize(row: SourceRow, spec: CalibrationSpec, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    if not spec.chat_template:
        text = row.text
        # No template wrote a BOS, so the tokenizer adds what it always adds.
        ids = tokenizer.encode(text, add_special_tokens=True)
    else:
        try:
            text = tokenizer.render(row.messages, add_generation_prompt=False)
        except RecipeError as error:
            raise CalibrationError(
                f"row '{row.id}': {error.what}", where=row.where, fix=error.fix
            ) from error
        ids = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise CalibrationError(
            f"row '{row.id}' begins with the beginning-of-sequence token twice",
            where=row.where,
            fix="remove the token from the row's text, or from the chat template",
        )
    return text, ids


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    offset = path.stat().st_size - len(data)
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()  # the newline at the end of the file begins no line
    for number, raw in enumerate(lines, 1):
        try:
            yield number, raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CalibrationError(
                f"invalid UTF-8 at byte {offset + error.start} of the file",
                where=f"{path}:{number}",
                fix="save the file as UTF-8",
            ) from error
        offset += len(raw) + 1


def _parse(line: str, number: int, where: str) -> SourceRow:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise CalibrationError(
            f"a line is not JSON: {error}", where=where, fix="one JSON object a line"
        ) from error
    if not isinstance(value, dict):
        raise CalibrationError("a line is not a JSON object", where=where, fix='{"text": "..."}')
    row_id = value.get("id", f"line-{number}")
    if not isinstance(row_id, str) or not row_id:
        raise CalibrationError(
            f"the id of a row is not a text ({row_id!r})", where=where, fix='{"id": "a-1", ...}'
        )
    return SourceRow(row_id, where, tuple(_messages(value, where)))


def _messages(value: dict[str, Any], where: str) -> list[dict[str, str]]:
    if "messages" in value:
        messages = value["messages"]
        if not isinstance(messages, list) or not messages:
            raise _field("'messages' is not a list with something in it", where)
        return [_message(message, where) for message in messages]
    if "prompt" in value or "response" in value:
        turns = (("user", "prompt"), ("assistant", "response"))
        return [{"role": role, "content": _text(value, key, where)} for role, key in turns]
    if "text" not in value:
        guesses = "".join(did_you_mean(key, _FIELDS) for key in value)
        raise CalibrationError(
            f"a row has no 'text', 'prompt' and 'response', or 'messages' "
            f"(it has {', '.join(map(repr, value)) or 'nothing'})",
            where=where,
            fix=f"{guesses}give each row one of the three",
        )
    return [{"role": "user", "content": _text(value, "text", where)}]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _field("a message is not a JSON object", where)
    role = message.get("role")
    if role not in _ROLES:
        raise CalibrationError(
            f"a message has the unknown role {role!r}",
            where=where,
            fix=f"{did_you_mean(str(role), _ROLES)}roles are {', '.join(_ROLES)}",
        )
    return {"role": str(role), "content": _text(message, "content", where)}


def _text(value: dict[str, Any], key: str, where: str) -> str:
    if key not in value:
        raise _field(f"the field '{key}' is missing", where)
    found = value[key]
    if not isinstance(found, str):
        raise _field(f"the field '{key}' is not a text ({type(found).__name__})", where)
    return found


def _field(what: str, where: str) -> CalibrationError:
    return CalibrationError(what, where=where, fix="correct the row, or remove it")
