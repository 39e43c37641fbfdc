"""The verdict a run would have under other limits or on another day. Pure; nothing is changed.

A change is written as on the command line: ``margin=0.02`` for every check of quality,
``sentiment.margin=0.02`` for one suite's, ``date=2026-12-31`` for the day by which waivers expire.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from workbench.complaints import problem
from workbench.errors import RecipeError, did_you_mean
from workbench.spec import Policy, QualityCheck
from workbench.waivers import day
from workbench.words import shown

_NUMBERS = {"margin": float, "confidence": float, "min_n": int}
_DATE = "date"
_WHERE = "--what-if"
_KNOWN = "margin=, confidence= and min_n=, or of one suite as SUITE.margin=; and date="


class _Change(NamedTuple):
    suite: str  # empty: every suite
    key: str
    value: str


def changed(
    policy: Policy, changes: Sequence[str]
) -> tuple[Policy, datetime.date | None, tuple[str, ...]]:
    """A policy with other limits.

    Args:
        policy: as it is.
        changes: each as ``key=value``; what is said of one suite outweighs what is said of all.

    Returns:
        The other policy, the day if one was named, and the changes as they are shown.

    Raises:
        RecipeError: a change is none, names a suite the policy has no check of, or asks for what no
            policy may say.
    """
    wanted = [_parse(change, policy) for change in changes]
    named = [(c.suite, c.key) for c in wanted]
    if twice := [c for c in named if named.count(c) > 1]:
        what = ".".join(part for part in twice[0] if part)
        raise RecipeError(f"'{what}' is given twice", where=_WHERE, fix="give it once")
    quality = list(policy.quality)
    on = None
    for change in sorted(wanted, key=lambda c: bool(c.suite)):
        if change.key == _DATE:
            on = a_day(change.value, _WHERE)
            continue
        quality = [_with(q, change) if change.suite in ("", q.suite) else q for q in quality]
    other = policy.model_copy(update={"quality": tuple(quality)})
    return other, on, tuple(".".join(p for p in c[:2] if p) + f"={c.value}" for c in wanted)


def a_day(text: str, where: str = "date") -> datetime.date:
    """A day, as 2026-12-31.

    Raises:
        RecipeError: it is none.
    """
    try:
        return day(text)
    except ValueError:
        raise RecipeError(
            f"{shown(text, 40)} is no day", where=where, fix="write it as 2026-12-31"
        ) from None


def _parse(change: str, policy: Policy) -> _Change:
    key, equals, value = (part.strip() for part in change.partition("="))
    suite, _, name = key.rpartition(".")
    if not equals or not value:
        raise RecipeError(
            f"{shown(change, 80)} says no value", where=_WHERE, fix=f"known: {_KNOWN}"
        )
    if "." in key and not suite:
        raise RecipeError(
            f"{shown(key, 80)} names no suite before its dot (a variable of the shell may not be "
            "set)",
            where=_WHERE,
            fix=f"write SUITE.{name}, or {name} alone for every suite",
        )
    if name == _DATE and not suite:
        return _Change("", _DATE, value)
    if name not in _NUMBERS:
        raise RecipeError(
            f"{shown(key, 80)} is nothing that can be changed",
            where=_WHERE,
            fix=did_you_mean(name, [*_NUMBERS, _DATE]) + f"known: {_KNOWN}",
        )
    suites = [check.suite for check in policy.quality]
    if not suites or (suite and suite not in suites):
        raise RecipeError(
            f"the policy has no check of suite '{suite}'"
            if suite and suites
            else "the policy has no check of quality",
            where=_WHERE,
            fix=did_you_mean(suite, suites) + f"suites: {', '.join(suites)}" if suites else "",
        )
    return _Change(suite, name, value)


def _with(check: QualityCheck, change: _Change) -> QualityCheck:
    try:
        value = _NUMBERS[change.key](change.value)
        # A margin takes the place of the one that is a part of the baseline's score.
        aside = {"margin_relative"} if change.key == "margin" else set()
        said = check.model_dump(exclude=aside)
        return QualityCheck.model_validate({**said, change.key: value})
    except ValidationError as bad:
        what, _, fix = problem(bad.errors()[0], QualityCheck, None)
    except (ValueError, OverflowError):
        what, fix = f"{shown(change.value, 40)} is no number", "write a number, such as 0.02"
    raise RecipeError(what, where=f"{_WHERE} {change.key}", fix=fix)
