"""A recorded load to replay: JSONL, one request a line, in the order of arrival.

    {"at": 0.0, "input_tokens": 812, "output_tokens": 40}
    {"at": 0.31, "input_tokens": 95, "output_tokens": 220, "prompt": "Dear support, ..."}

`at` is seconds since the trace began. Where the text of the prompt is given, it is asked as it is
and `input_tokens` may be left out; where both are given they must agree, since a count made by
another model's tokenizer would be a wrong figure. What is wrong is collected, the first ten lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from workbench.errors import RecipeError, did_you_mean
from workbench.lengths import MOST_TOKENS
from workbench.suite_files import lines, parse_object

_KEYS = ("at", "input_tokens", "output_tokens", "prompt")
_MOST_PROBLEMS = 10
#: Thirty years; epoch times in milliseconds are beyond it, and so are infinities.
_LONGEST = 1e9


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request.

    Attributes:
        where: file and line.
        at: seconds since the trace began.
        input_tokens: of the prompt; None only where `prompt` is given.
        output_tokens: of the answer.
        prompt: its text; None: a prompt of the length is made.
    """

    where: str
    at: float
    input_tokens: int | None
    output_tokens: int
    prompt: str | None = None


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """Read and check a trace.

    Raises:
        RecipeError: everything that is wrong, up to ten lines, each with file and line.
        SuiteError: the file is not there, or not UTF-8.
    """
    return parse_trace(lines(path), str(path))


def last_time(path: Path) -> float:
    """Seconds until the last request of a trace, of its last line alone: for an estimate.

    0 where that line cannot be read; `read_trace` says what is wrong with it.
    """
    last = path.read_bytes().rstrip().rpartition(b"\n")[2]
    try:
        return min(max(0.0, float(orjson.loads(last)["at"])), _LONGEST)
    except (ValueError, TypeError, KeyError):
        return 0.0


def parse_trace(numbered: Iterable[tuple[int, str]], name: str) -> tuple[TraceRow, ...]:
    """Check the lines of a trace.

    Args:
        numbered: line number and text, blank lines left out.
        name: of the file, for messages.

    Raises:
        RecipeError: see `read_trace`.
    """
    rows: list[TraceRow] = []
    problems: list[tuple[str, str]] = []
    before = 0.0
    for number, text in numbered:
        where = f"{name}:{number}"
        try:
            row = _row(where, parse_object(text))
            if row.at < before:
                raise ValueError(f"'at' is {row.at:g}, before the {before:g} of an earlier line")
        except ValueError as bad:
            problems.append((where, str(bad)))
            continue
        before = row.at
        rows.append(row)
    if len(problems) == 1:
        raise RecipeError(problems[0][1], where=problems[0][0], fix=_FIX)
    if problems:
        shown = [f"  {where}: {what}" for where, what in problems[:_MOST_PROBLEMS]]
        if len(problems) > _MOST_PROBLEMS:
            shown.append(f"  and {len(problems) - _MOST_PROBLEMS} more")
        raise RecipeError(
            f"the trace has {len(problems)} problems:\n" + "\n".join(shown), where=name, fix=_FIX
        )
    if not rows:
        raise RecipeError("the trace holds no request", where=name, fix=_FIX)
    return tuple(rows)


_FIX = (
    'a line is {"at": seconds, "input_tokens": n, "output_tokens": n}, "prompt" if you like, '
    "sorted by 'at'"
)


def trace_rate(rows: Sequence[TraceRow]) -> float | None:
    """Requests/s of a trace as it was recorded; None where all came at once."""
    span = rows[-1].at - rows[0].at
    return (len(rows) - 1) / span if span > 0 else None


def prompt_ids(row: TraceRow, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    """Token ids of a row's own prompt.

    Raises:
        RecipeError: it has another number of tokens than the trace says, or none.
    """
    ids = tuple(encode(row.prompt or ""))
    if not ids:
        raise RecipeError("the prompt has no token", where=row.where, fix="leave 'prompt' out")
    if row.input_tokens is not None and len(ids) != row.input_tokens:
        raise RecipeError(
            f"the trace says {row.input_tokens} input tokens, and this checkpoint's tokenizer "
            f"makes {len(ids)} of the prompt",
            where=row.where,
            fix="leave 'input_tokens' out where the prompt is given, or leave out the prompt",
        )
    return ids


def _row(where: str, value: dict[str, Any]) -> TraceRow:
    for key in value:
        if key not in _KEYS:
            near = did_you_mean(key, _KEYS).strip()
            raise ValueError(f"unknown key '{key}'" + (f": {near}" if near else ""))
    prompt = value.get("prompt")
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        raise ValueError("'prompt' is a text that is not empty")
    needed = ("at", "output_tokens") if prompt is not None else _KEYS[:3]
    for key in needed:
        if key not in value:
            raise ValueError(f"'{key}' is missing")
    at = value["at"]
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise ValueError(f"'at' is a number of seconds, not {at!r}")
    if at < 0:
        raise ValueError(f"'at' is {at:g}: a time before the trace began")
    if not at <= _LONGEST:
        raise ValueError(f"'at' is more than {_LONGEST:g} seconds")
    tokens = (_tokens(value, "input_tokens"), _tokens(value, "output_tokens"))
    return TraceRow(where, float(at), tokens[0], tokens[1] or 0, prompt)


def _tokens(value: dict[str, Any], key: str) -> int | None:
    if key not in value:
        return None
    given = value[key]
    if isinstance(given, bool) or not isinstance(given, int):
        raise ValueError(f"'{key}' is a whole number, not {given!r}")
    if not 1 <= given <= MOST_TOKENS:
        raise ValueError(f"'{key}' is {given}: use 1 to {MOST_TOKENS}")
    return given
