"""Bootstrap intervals by the percentile method, of means and percentiles. Pure, seeded.

Efron, B. (1979), Annals of Statistics 7, 1-26. What is drawn again is whole *units*: repeats, or
requests, and then the interval says how sure this one run is and nothing about the next. Requests
of one run wait for each other, so even that is too narrow.

With r repeats there are few different draws (ten for r = 3) and none beyond the repeats themselves:
no check is decided by them, and `workbench.load_intervals` says what has better limits. The
bootstrap of a maximum never exceeds the maximum seen (Bickel and Freedman 1981): its upper limit is
no limit for the next run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

Unit = Literal["repeat", "request"]
#: Fewer repeats than this say nothing about how repeats vary.
LEAST_REPEATS = 3
_FEW = 8


@dataclass(frozen=True)
class Draws:
    """How intervals are made.

    Attributes:
        resamples: how often.
        confidence: of the two-sided interval.
        seed: of the draws.
    """

    resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1 or not 0 < self.confidence < 1:
            raise ValueError(f"{self.resamples} resamples at confidence {self.confidence}")


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval; the limits are None where there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None


def percentile(values: Sequence[float], q: float) -> float | None:
    """Percentile by linear interpolation between order statistics; None of nothing.

    Hyndman and Fan (1996), type 7, numpy's default.
    """
    import numpy as np

    return float(np.percentile(values, q, method="linear")) if len(values) else None


def estimates(
    units: Sequence[Sequence[float]], percentiles: Sequence[float], draws: Draws
) -> list[Estimate]:
    """The mean, then each percentile, of all values together, with bootstrap intervals.

    The result does not depend on the order of units or of values in them.

    Args:
        units: values by unit; a unit may be empty.
        percentiles: 0 to 100.
        draws: how many draws and their seed.

    Returns:
        One more than there are percentiles; values None where there is no value at all, limits
        None where fewer than two units hold any.
    """
    import numpy as np

    ordered = sorted(sorted(unit) for unit in units)
    lengths = [len(unit) for unit in ordered]
    total = sum(lengths)
    if total == 0:
        return [Estimate(None)] * (len(percentiles) + 1)
    flat = np.array([value for unit in ordered for value in unit], dtype=np.float64)
    order = np.argsort(flat, kind="stable")
    values: Floats = flat[order]
    owner: Counts = np.repeat(np.arange(len(ordered)), lengths)[order]

    def figures(times: Counts) -> list[float] | None:
        """The figures where unit i is there `times[i]` times; None where no value is."""
        weights = times[owner]
        upto: Counts = np.cumsum(weights)
        count = int(upto[-1])
        if count == 0:
            return None
        # Not a dot product: BLAS adds in an order that depends on the number of threads.
        found = [float((values * weights).sum()) / count]
        for q in percentiles:
            at = (count - 1) * q / 100
            below, share = math.floor(at), at - math.floor(at)
            first, second = np.searchsorted(upto, [below, min(below + 1, count - 1)], side="right")
            a, b = float(values[first]), float(values[second])
            found.append(a + (b - a) * share)
        return found

    whole = figures(np.ones(len(ordered), dtype=np.int64)) or []
    if sum(length > 0 for length in lengths) < 2:
        return [Estimate(value) for value in whole]
    limits = _limits(len(ordered), figures, draws)
    return [Estimate(v, low, high) for v, (low, high) in zip(whole, limits, strict=True)]


def _limits(
    units: int, figures: Callable[[Counts], list[float] | None], draws: Draws
) -> list[tuple[float, float]]:
    import numpy as np

    dice, even = np.random.default_rng(draws.seed), np.full(units, 1 / units)
    known: dict[bytes, list[float] | None] = {}
    rows = []
    for _ in range(draws.resamples):
        times = dice.multinomial(units, even)
        # Few repeats have few different draws, and each of them is worked out once.
        key = times.tobytes() if units <= _FEW else b""
        found = known[key] if key in known else figures(times)
        if key:
            known[key] = found
        if found is not None:
            rows.append(found)
    tail = 50 * (1 - draws.confidence)
    low, high = np.percentile(np.array(rows), [tail, 100 - tail], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
