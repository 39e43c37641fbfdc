"""Stand-in until the scorers are merged: take the other side."""

from __future__ import annotations

from workbench.evaluation_records import Flag


def flags_of(output: str, finish_reason: str | None) -> tuple[Flag, ...]:
    """What is the matter with any output, whatever it is scored by."""
    found: list[Flag] = []
    if finish_reason == "length":
        found.append("truncated")
    if not output.strip():
        found.append("empty")
    return tuple(found)
