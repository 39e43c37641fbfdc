"""What a scorer gives, and what all of them share: comparing values, showing what a model said.

Pure. A `Grade` goes into a row and from there into JSON, so that its details hold nothing a JSON
writer chokes on: `shown` cuts a text and writes out half characters, which models do produce.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from workbench.evaluation_records import Flag
from workbench.scorers.normal import normalize

_MOST_SHOWN = 20


@dataclass(frozen=True)
class Grade:
    """What a scorer says of one output.

    Attributes:
        score: 0 to 1; 1 is right where the suite's metric is higher-is-better.
        flags: what is the matter with the output beside being wrong.
        details: how the score came about; JSON values only, kept in the row.
    """

    score: float
    flags: tuple[Flag, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def shown(text: str, limit: int = 120) -> str:
    """A text as it may stand in a record: cut at `limit` characters, no half characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return cut.encode("utf-8", "backslashreplace").decode()


def shown_names(names: Iterable[str]) -> list[str]:
    """Names, sorted, as they may stand in a record: the first twenty, each cut."""
    return [shown(name, 64) for name in sorted(names)[:_MOST_SHOWN]]


def f1(right: int, found: int, wanted: int) -> float:
    """Harmonic mean of precision and recall, 2 right / (found + wanted); 1 where both are none."""
    return 2 * right / (found + wanted) if found + wanted else 1.0


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, holds NaN, a number too long to read, or is nested too deep.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def same(wanted: Any, found: Any) -> bool:
    """True where two JSON values mean the same.

    Texts are compared after `normalize` (where nothing is left of the wanted one, as they are but
    for case and white space), numbers by value, true and false as themselves, lists and objects
    element by element.
    """
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return wanted == found
    if isinstance(wanted, str) and isinstance(found, str):
        kept = normalize(wanted)
        return kept == normalize(found) if kept else _plain(wanted) == _plain(found)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(same(wanted[k], found[k]) for k in wanted)
    return wanted is None and found is None


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {str: "a text", bool: "true or false", int: "a number", float: "a number"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    found = names.get(type(value), type(value).__name__)
    return (
        f"an empty {found.split()[-1]}" if isinstance(value, list | dict) and not value else found
    )


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
