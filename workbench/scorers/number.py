"""The scorer of a number in a text: written in many ways, within a tolerance, with units. Pure.

What is read as a number: digits (ASCII or full-width), a minus sign of any kind, groups of three
after commas or thin spaces, a decimal point, an exponent; then a scale (``thousand``, ``million``,
``billion``, ``万``, ``亿``) and a unit of the scorer's table. Digits after a letter are part of a
name (``B12``). Where a text has no digits at all, Chinese numerals are read (``三百二十``); beside
digits they are not, because ``一`` is as often an article as a number.

A number without a known unit is in the target's unit: the question said which. ``%`` is a unit like
any other, so that without an entry in the table ``50%`` is 50.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from workbench.scorers.base import Grade, kind, shown
from workbench.suite_spec import NumericScorer, Sample

if TYPE_CHECKING:
    from workbench.suites import Suite

#: Characters of an output that are read, at its beginning or end.
_MOST_READ = 20_000
_PLAIN = str.maketrans(
    {chr(0xFF10 + i): str(i) for i in range(10)}
    | {"\u2212": "-", "\uff0d": "-", "\ufe63": "-", "\uff0b": "+", "\uff0e": ".", "\uff05": "%"}
    | dict.fromkeys("\u00a0\u2009\u202f\u2007", "\u202f")
)
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_])(?<!\d\.)[-+\u8d1f\u8ca0]?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:\u202f\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d{1,4}(?!\d))?"
)
_HAN_DIGITS = dict(
    zip("零〇一二两兩三四五六七八九", (0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9), strict=True)
)
_HAN_PLACES = {"十": 10, "百": 100, "千": 1000}
_HAN_SCALES = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_HAN = re.compile(
    f"[负負]?[{''.join((*_HAN_DIGITS, *_HAN_PLACES, *_HAN_SCALES))}]{{1,40}}"
    f"(?:点[{''.join(_HAN_DIGITS)}]{{1,20}})?"
)
_SCALES: Mapping[str, float] = {
    "thousand": 1e3,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
    "万亿": 1e12,
    "百万": 1e6,
    "千万": 1e7,
    **_HAN_SCALES,
}


class Number(NamedTuple):
    """A number that was read.

    Attributes:
        value: with its scale, in `unit`.
        unit: of the scorer's table; None where none of them follows.
        text: as it was written.
    """

    value: float
    unit: str | None
    text: str


def numeric(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where the first or last number of the output is the target's, units converted.

    The accepted difference is the larger of `absolute` (in the target's unit) and `relative` times
    the target, with one part in 10^9 more for the conversion. No number is `unreadable`.
    """
    options = suite.spec.scorer
    assert isinstance(options, NumericScorer)
    first = options.which == "first"
    found = list(numbers(output[:_MOST_READ] if first else output[-_MOST_READ:], options.units))
    if not found:
        return Grade(0.0, ("unreadable",), {"why": "no number"})
    number = found[0] if first else found[-1]
    wanted = _target(sample, options)
    factor = options.units[wanted.unit] if wanted.unit else 1.0
    target = wanted.value * factor
    value = number.value * (options.units[number.unit] if number.unit else factor)
    accepted = max(options.absolute * factor, options.relative * abs(target)) + 1e-9 * abs(target)
    right = math.isfinite(value) and abs(value - target) <= accepted
    return Grade(float(right), (), {"read": shown(number.text, 64), "unit": number.unit})


def numbers(text: str, units: Mapping[str, float]) -> Iterator[Number]:
    """The numbers of a text, in order.

    Args:
        text: any.
        units: names that may follow a number; the longest that fits is taken, case first as written
            and then, where only one fits, ignored.
    """
    plain = text.translate(_PLAIN)
    seen = False
    for match in _NUMBER.finditer(plain):
        seen = True
        digits = re.sub(r"[,\s\u202f]", "", match.group()).replace("负", "-").replace("負", "-")
        yield from _with_unit(plain, match.start(), match.end(), float(digits), units)
    if not seen:
        for match in _HAN.finditer(plain):
            value = _han_value(match.group())
            if value is not None:
                yield from _with_unit(plain, match.start(), match.end(), value, units)


def check_units(suite: Suite) -> str | None:
    """What is wrong with the table of units, or None."""
    options = suite.spec.scorer
    assert isinstance(options, NumericScorer)
    for unit, factor in options.units.items():
        if not unit.strip() or not factor > 0:
            return f"'scorer.units': {unit!r} needs a name and a factor above 0, not {factor:g}"
    return None


def check_number(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target of `numeric`, or None."""
    options = suite.spec.scorer
    assert isinstance(options, NumericScorer)
    target = sample.target
    if isinstance(target, bool) or not isinstance(target, int | float | str):
        return f"'target' must be a number, or a text with one, not {kind(target)}"
    try:
        _target(sample, options)
    except ValueError as bad:
        return f"'target' {bad}"
    return None


def unit_of(suite: Suite, sample: Sample) -> str | None:
    """The unit of a target, as the table writes it; None where there is none."""
    options = suite.spec.scorer
    assert isinstance(options, NumericScorer)
    return _target(sample, options).unit


def converted(suite: Suite, sample: Sample) -> tuple[str, ...]:
    """The target in every other unit of the table: each must be right.

    A target without a unit is in the base unit, the one with the factor 1.
    """
    options = suite.spec.scorer
    assert isinstance(options, NumericScorer)
    wanted = _target(sample, options)
    base = wanted.value * (options.units[wanted.unit] if wanted.unit else 1.0)
    others = [(unit, base / one) for unit, one in options.units.items() if unit != wanted.unit]
    return tuple(f"{value!r} {unit.strip()}" for unit, value in others if math.isfinite(value))


def _target(sample: Sample, options: NumericScorer) -> Number:
    """The target's number.

    Raises:
        ValueError: it is not finite, or more than one number and a known unit stands in the text.
    """
    target = sample.target
    if not isinstance(target, str):
        try:
            value = float(target)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise ValueError("is too large to compare with")
        return Number(value, None, str(target))
    found = list(numbers(target, options.units))
    if len(found) != 1:
        raise ValueError(f"must hold one number, and {target!r} has {len(found)}")
    if found[0].text != target.translate(_PLAIN).strip():
        known = ", ".join(options.units) or "none"
        raise ValueError(f"{target!r} is more than a number and a unit of the scorer ({known})")
    return found[0]


def _with_unit(
    text: str, start: int, end: int, value: float, units: Mapping[str, float]
) -> Iterator[Number]:
    unit, after = _word_at(text, end, units)
    if unit is None:
        scale, scaled = _word_at(text, end, _SCALES)
        if scale is not None:
            value *= _SCALES[scale]
            unit, after = _word_at(text, scaled, units)
            after = scaled if unit is None else after
    if math.isfinite(value):
        yield Number(value, unit, text[start:after].strip())


def _word_at(text: str, at: int, words: Mapping[str, float]) -> tuple[str | None, int]:
    """The word of a table that stands at a place, after a space or hyphen, and where it ends."""
    start = at
    while start < len(text) and start < at + 2 and text[start] in " -\u202f":
        start += 1
    for ignore_case in (False, True):
        fits = [w for w in words if _is_at(text, start, w.strip(), ignore_case)]
        longest = [w for w in fits if len(w.strip()) == max(len(f.strip()) for f in fits)]
        if len(longest) == 1:
            return longest[0], start + len(longest[0].strip())
    return None, at


def _is_at(text: str, start: int, word: str, ignore_case: bool) -> bool:
    there = text[start : start + len(word)]
    if there != word and not (ignore_case and there.lower() == word.lower()):
        return False
    # A unit ends where its word ends: `m` is not in `min`. Chinese runs on.
    after = text[start + len(word) : start + len(word) + 1]
    return not (after.isascii() and after.isalnum() and word[-1:].isascii() and word[-1].isalnum())


def _han_value(text: str) -> float | None:
    """The value of Chinese numerals; None for a run that is none, such as a lone `千`."""
    sign = -1 if text[0] in "负負" else 1
    whole, _, fraction = text.lstrip("负負").partition("点")
    if all(c in _HAN_DIGITS for c in whole):
        total = int("".join(str(_HAN_DIGITS[c]) for c in whole))
    elif whole[0] in _HAN_SCALES or whole[0] in "百千":
        return None
    else:
        total = section = digit = scale = 0
        for c in whole:
            if c in _HAN_DIGITS:
                digit = _HAN_DIGITS[c]
            elif c in _HAN_PLACES:
                section += (digit or 1) * _HAN_PLACES[c]
                digit = 0
            elif _HAN_SCALES[c] > scale:  # a larger scale multiplies all before it: 一万亿
                total, section, digit = (total + section + digit) * _HAN_SCALES[c], 0, 0
                scale = _HAN_SCALES[c]
            else:
                total, section, digit = total + (section + digit) * _HAN_SCALES[c], 0, 0
        total += section + digit
    tail = "".join(str(_HAN_DIGITS[c]) for c in fraction)
    return sign * float(f"{total}.{tail or 0}")
