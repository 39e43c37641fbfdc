"""How sure is a figure of speed that was measured several times, or its ratio to another's? Pure.

Student's t on the logarithms of the repeats' own figures; of a ratio with Welch's degrees of
freedom: Welch, B. L. (1947), The generalization of 'Student's' problem when several different
population variances are involved, Biometrika 34, 28-35. Logarithms, as times and rates vary in
proportion and a ratio of them is then a difference. Repeats of one side are of one server process:
what a restart would change is not in it.

The bootstrap of three repeats hardly reaches beyond the three themselves and would call too much
settled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.bootstrap import LEAST_REPEATS


def repeat_interval(
    value: float,
    repeats: Sequence[float | None],
    baseline: Sequence[float | None] | None = None,
    confidence: float = 0.95,
) -> tuple[float, float] | None:
    """One-sided lower and upper limit of a figure, or of its ratio to the baseline's.

    Args:
        value: the figure over all repeats together, or the ratio of two such; what is shown.
        repeats: the figure in each repeat.
        baseline: the baseline's in each of its own; None: the figure itself is asked about.
        confidence: of each limit.

    Returns:
        None where a side has fewer than `LEAST_REPEATS` repeats, or a figure is not above 0.
    """
    from scipy.special import stdtrit

    sides = [repeats] if baseline is None else [repeats, baseline]
    parts = []
    for side in sides:
        logs = [math.log(v) for v in side if v is not None and v > 0]
        if len(logs) < max(LEAST_REPEATS, len(side)) or not value > 0:
            return None
        mean = math.fsum(logs) / len(logs)
        spread = math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)
        parts.append((spread / len(logs), len(logs) - 1))
    variance = math.fsum(v for v, _ in parts)
    if variance == 0:
        return value, value
    degrees = variance**2 / math.fsum(v * v / d for v, d in parts)
    reach = float(stdtrit(degrees, confidence)) * math.sqrt(variance)
    return value * math.exp(-reach), value * math.exp(reach)


def repeat_share_interval(
    parts: Sequence[tuple[int, int]], confidence: float = 0.95
) -> tuple[float, float]:
    """One-sided lower and upper limit of a share, by how it varies from repeat to repeat.

    Student's t on the log-odds, as a share near 0 or 1 varies less and leans away from that end;
    half a request is added on both sides (Haldane 1955), so that none and all have log-odds.

    Args:
        parts: of each of `LEAST_REPEATS` repeats or more, what counts and all its requests.
        confidence: of each limit.
    """
    from scipy.special import stdtrit

    def odds(count: int, n: int) -> float:
        return math.log((count + 0.5) / (n - count + 0.5))

    own = [odds(count, n) for count, n in parts]
    mean = math.fsum(own) / len(own)
    spread = math.fsum((x - mean) ** 2 for x in own) / (len(own) - 1)
    reach = float(stdtrit(len(own) - 1, confidence)) * math.sqrt(spread / len(own))
    centre = odds(sum(count for count, _ in parts), sum(n for _, n in parts))
    low, high = (1 / (1 + math.exp(-x)) for x in (centre - reach, centre + reach))
    return low, high
