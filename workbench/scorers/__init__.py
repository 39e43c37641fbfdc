"""Scorers: how right an output is, from 0 to 1. Pure, one small function each.

A scorer sees the sample and the output and nothing else, so a finished run can be scored again
without asking a model. It never raises on an output, whatever a model says; `check_target` finds a
target it could not compare with beforehand, without a model.

`exact`, `normalized`, `contains` and `choice` give 0 or 1. `json_fields` is graded: the share of
the target's fields that are right.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from workbench.evaluation_records import Flag
from workbench.suite_spec import Sample

if TYPE_CHECKING:
    from workbench.suites import Suite

_ARTICLES = frozenset({"a", "an", "the"})
_DIGIT_GROUP = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MINUS = "-\u2212"


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


def grade(suite: Suite, sample: Sample, output: str) -> Grade:
    """Grade one output.

    Args:
        suite: names the scorer, and holds the files it needs (`Suite.resources`).
        sample: holds the target.
        output: what was generated, the choice that was ranked first, or for tool calls the JSON
            text of ``{"tool_calls": [{"name": ..., "arguments": "<as sent>"}], "content": ...}``.
    """
    return Grade(_SCORERS[suite.spec.scorer.name](sample, output))


def check_target(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a sample's target or choices for this suite's scorer, or None."""
    spec = suite.spec
    if spec.scorer.name == "choice":
        return _check_choices(sample)
    if spec.scorer.name == "json_fields":
        if not isinstance(sample.target, dict) or not sample.target:
            return f"'target' must be an object with fields, not {_kind(sample.target)}"
        return None
    target = sample.target
    texts = target if isinstance(target, list) else [target]
    if not texts or not all(isinstance(text, str) for text in texts):
        return f"'target' must be a text or a list of texts, not {_kind(target)}"
    for text in texts:
        kept = text.strip() if spec.scorer.name == "exact" else normalize(text)
        if not kept:
            return f"'target' has nothing to compare with in {text!r}"
    return None


def normalize(text: str) -> str:
    """Fold what does not matter in a short answer: case, width, accents, articles, punctuation.

    A comma between groups of three digits goes (``1,000`` is ``1000``); a point inside a number
    and a minus sign before one stay. Applying it twice changes nothing.
    """
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(c for c in folded if not unicodedata.combining(c))
    plain = _DIGIT_GROUP.sub("", plain)
    kept = [_kept(plain, i) for i in range(len(plain))]
    words = [word for word in "".join(kept).split() if word not in _ARTICLES]
    return " ".join(words)


def exact(sample: Sample, output: str) -> float:
    """1 where the output is a target, white space at both ends apart."""
    return float(output.strip() in {text.strip() for text in _texts(sample)})


def normalized(sample: Sample, output: str) -> float:
    """1 where output and a target are equal after `normalize`."""
    return float(normalize(output) in {normalize(text) for text in _texts(sample)})


def contains(sample: Sample, output: str) -> float:
    """1 where a target stands in the output as whole words, both after `normalize`.

    Whole words, because ``Au`` is not an answer found in ``Australia``, nor ``0`` in ``100``.
    Scripts written without spaces have no word borders and need none.
    """
    said = normalize(output)
    return float(any(_stands_in(normalize(text), said) for text in _texts(sample)))


def choice(sample: Sample, output: str) -> float:
    """1 where the choice is the target, character for character."""
    return float(output == sample.target)


def json_fields(sample: Sample, output: str) -> float:
    """Share of the target's fields that the output has right; 0 where it is not a JSON object.

    Texts are compared after `normalize`, numbers by value, true and false as themselves, lists and
    objects element by element. Fields beyond the target's are not looked at: a schema forbids them.
    """
    found = parse_object(output)
    if found is None:
        return 0.0
    target: Mapping[str, Any] = sample.target
    right = sum(name in found and _same(value, found[name]) for name, value in target.items())
    return right / len(target)


def parse_object(output: str) -> dict[str, Any] | None:
    """The JSON object an output is, or None: not JSON, not an object, NaN, nested too deep."""
    try:
        value = json.loads(output, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_SCORERS: dict[str, Callable[[Sample, str], float]] = {
    "choice": choice,
    "contains": contains,
    "exact": exact,
    "normalized": normalized,
    "json_fields": json_fields,
}


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _texts(sample: Sample) -> list[str]:
    return sample.target if isinstance(sample.target, list) else [sample.target]


def _kept(text: str, i: int) -> str:
    """What one character of a text becomes."""
    here, before, after = text[i], text[i - 1 : i], text[i + 1 : i + 2]
    if here.isalnum() or (here == "." and before.isdigit() and after.isdigit()):
        return here
    return "-" if here in _MINUS and after.isdigit() and not before.isalnum() else " "


def _stands_in(needle: str, text: str) -> bool:
    start = text.find(needle)
    while needle and start >= 0:
        end = start + len(needle)
        if _border(text[start - 1 : start], needle[0]) and _border(needle[-1], text[end : end + 1]):
            return True
        start = text.find(needle, start + 1)
    return False


def _border(left: str, right: str) -> bool:
    """True where a word may end between two neighbours; either may be empty."""
    if not left.strip() or not right.strip():
        return True
    return unicodedata.category(left) == "Lo" or unicodedata.category(right) == "Lo"


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return wanted == found
    if isinstance(wanted, str) and isinstance(found, str):
        return normalize(wanted) == normalize(found)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_same, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(_same(wanted[k], found[k]) for k in wanted)
    return wanted is None and found is None


def _check_choices(sample: Sample) -> str | None:
    choices = sample.choices
    if not choices or len(choices) < 2:
        return "'choices' must list at least two texts"
    if not all(choices):
        return "'choices' holds an empty text"
    twice = [text for text in choices if choices.count(text) > 1]
    if twice:
        return f"'choices' lists {twice[0]!r} twice"
    if sample.target not in choices:
        return f"'target' {sample.target!r} is not one of 'choices' {choices}"
    return None


def _kind(value: Any) -> str:
    names = {str: "a text", bool: "true or false", int: "a number", float: "a number"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    kind = names.get(type(value), type(value).__name__)
    return f"an empty {kind.split()[-1]}" if value in ([], {}) else kind
