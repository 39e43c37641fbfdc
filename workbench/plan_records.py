"""What a run is going to do: its steps, each with its id and whether it is done. Pure data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workbench.base import Record

StepKind = Literal["calibrate", "quantize", "evaluate", "profile", "gate"]


class PlanStep(Record):
    """One step of a plan."""

    kind: StepKind
    variant: str | None
    id: str
    cached: bool
    reason: str
    notebook: str
    estimate_seconds: float | None = None
    estimate_memory_bytes: int | None = None

    @property
    def name(self) -> str:
        """``evaluate:fp8``, or the kind alone where a step belongs to the whole run."""
        return f"{self.kind}:{self.variant}" if self.variant else self.kind


class Plan(Record):
    """`plan.json`."""

    schema_: Literal["workbench.plan/1"] = Field("workbench.plan/1", alias="schema")
    run: str
    recipe_digest: str
    workbench: str = Field(
        "",
        description="version that planned it last; the one that did a step is in its 'start' of "
        "events.jsonl",
    )
    steps: tuple[PlanStep, ...]
