"""What a comparison of two runs compares: which weights, engine versions and machines. Pure."""

from __future__ import annotations

from workbench.across import serving
from workbench.evidence import Evidence, weights_of
from workbench.records import Serving

Rows = list[list[str]]

_NONE = "not measured"


def table(evidence: Evidence) -> Rows:
    """One row a variant: weights, and engine, machine and lane in the earlier and the later run.

    Args:
        evidence: of two runs (`workbench.across`).

    Returns:
        A head, then the rows; where both runs agree, one figure stands for both.
    """
    rows: Rows = [["variant", "paired with", "weights", "engine", "hardware", "lane"]]
    for variant in evidence.variants:
        reference = evidence.reference(variant)
        one, other = serving(reference), serving(variant)
        rows.append(
            [
                variant.variant,
                reference.variant,
                _either(weights_of(evidence, reference), weights_of(evidence, variant)),
                _moved(_engine(one), _engine(other)),
                _moved(one.hardware if one else _NONE, other.hardware if other else _NONE),
                _moved(one.lane.name if one else _NONE, other.lane.name if other else _NONE),
            ]
        )
    return rows


def _engine(served: Serving | None) -> str:
    if served is None:
        return _NONE
    return f"{served.engine} {served.engine_version}, environment {served.environment[:8]}"


def _either(one: str | None, other: str | None) -> str:
    return _moved(*(digest[:8] if digest else "unknown" for digest in (one, other)))


def _moved(one: str, other: str) -> str:
    return one if one == other else f"{one} \N{RIGHTWARDS ARROW} {other}"
