"""The Pareto front: which of several points no other one is better than. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: One point, every coordinate lower is better; None: not known.
Point = Sequence[float | None]


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is no worse anywhere and better somewhere.

    Where a coordinate is not known, neither point dominates.
    """
    pairs = list(zip(one, other, strict=True))
    if not all(_known(a) and _known(b) for a, b in pairs):
        return False
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return all(a <= b for a, b in known) and any(a < b for a, b in known)


def front(points: Sequence[Point]) -> list[bool]:
    """For each point, whether it is on the front: all of it known, and dominated by no other.

    Equal points are on it together. O(n^2) comparisons.

    Args:
        points: of one length each.
    """
    return [
        all(map(_known, point)) and not any(dominates(other, point) for other in points)
        for point in points
    ]


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
