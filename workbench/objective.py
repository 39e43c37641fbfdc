"""Which of the variants that may ship one would ship. Pure data; `workbench.best` decides it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workbench.base import Record

Objective = Literal["smallest", "fastest", "cheapest"]


class Best(Record):
    """The best GO variant of a run, by the policy's objective."""

    objective: Objective
    variant: str | None = Field(description="None: no variant is GO, or none can be compared")
    reason: str = Field(description="one sentence")
