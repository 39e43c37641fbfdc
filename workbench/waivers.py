"""A waiver: a person answers by name, for a while, for a check that fails. Pure data.

A waiver never turns a FAIL into a PASS; what it does to a verdict is `workbench.waiving`'s matter.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

from pydantic import Field, field_validator

from workbench.base import Name, Record, Spec, Unfit
from workbench.words import plain

#: What stands for every variant of a run.
EVERY = "all"


def day(text: str) -> datetime.date:
    """A day written as 2026-12-31, and in no other way that ISO 8601 has (2026-W53, 20261231).

    Raises:
        ValueError: it is none, or not written so.
    """
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError(f"{text!r} is not written as 2026-12-31")
    return datetime.date.fromisoformat(text)


class Waiver(Spec):
    """One check that may fail without making a variant NO-GO, until a day."""

    check: str = Field(
        max_length=200, description="name as in the table of checks: a suite, 'weight_bytes', ..."
    )
    variant: Name = Field(description="whose check, or 'all'")
    owner: str = Field(max_length=200, description="who answers for it")
    reason: str = Field(max_length=1000)
    expires: datetime.date = Field(description="the last day it counts, UTC")

    @field_validator("expires", mode="before")
    @classmethod
    def _day(cls, given: Any) -> Any:
        # YAML reads 2026-12-31 as a date; JSON, and so a recipe lock, has a text.
        if isinstance(given, datetime.datetime):
            raise Unfit("a day is wanted, without a time", "write it as 2026-12-31")
        if isinstance(given, str):
            try:
                return day(given)
            except ValueError:
                raise Unfit(f"{given[:40]!r} is no day", "write it as 2026-12-31") from None
        return given

    @field_validator("check", "owner", "reason")
    @classmethod
    def _words(cls, given: str) -> str:
        if not given.strip():
            raise Unfit("nothing is written there", "a waiver names check, owner and reason")
        if "\n" in given or plain(given) != given:
            raise Unfit("it holds what no line can show", "write one line of printable text")
        return given.strip()


class Waived(Record):
    """A waiver that was in force, beside the FAIL it is about."""

    owner: str
    reason: str
    expires: str = Field(description="the last day it counts, ISO 8601")
