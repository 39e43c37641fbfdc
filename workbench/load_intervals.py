"""How sure is each figure of a load: which interval it has, and whether a record's can be trusted.

Each limit is one-sided at (1 + confidence) / 2, so that both together hold `confidence`: of 95 %,
each is missed in 2.5 % of cases.

    percentile  order statistics of all requests together (`workbench.exact_intervals`); none where
                they are too few. Three repeats or more: Student's t over the repeats' own
                percentiles as well (`workbench.repeat_interval`), and the wider side of the two:
                the first does not see what moves all requests of a repeat together, the second not
                that three percentiles of few requests are all too low
    share       Clopper and Pearson's limits, widened by the repeats' in the same way
    rate, mean  three repeats or more: Student's t over the repeats. Fewer: a rate has none, as it
                is one value a repeat, and a mean has the bootstrap's over requests
    maximum     the bootstrap's, which never exceeds the largest seen

`tests/test_load_intervals.py` has the share of loads that pass a limit at the true value: at most
2.5 %, of repeats that differ by up to 5 %. Three that differ by 30 % know little of the next: there
11 % pass at the true p99, and `workbench.quiet` lets none of them pass. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.bootstrap import LEAST_REPEATS, Draws, Estimate, estimates, percentile
from workbench.exact_intervals import (
    clustered_quantile_interval,
    fewest_values,
    quantile_interval,
)
from workbench.load_records import Figure, LoadSummary
from workbench.proportion import proportion
from workbench.repeat_interval import repeat_interval, repeat_share_interval

Limits = tuple[float, float] | None


def spread(
    repeats: Sequence[Sequence[Sequence[float]]], percentiles: Sequence[float], draws: Draws
) -> list[Estimate]:
    """Mean, each percentile and the maximum of all values together, with their intervals.

    Args:
        repeats: of each repeat its requests, of each request its values: one, or its gaps.
        percentiles: 0 to 100, ends excluded.
        draws: confidence of all, and draws of the bootstrap.
    """
    groups = [one for repeat in repeats for one in repeat if one]
    units = [[value for one in repeat for value in one] for repeat in repeats]
    many = len(repeats) >= LEAST_REPEATS
    found = estimates(units if many else groups, (*percentiles, 100.0), draws)
    if not groups:
        return found

    def over_repeats(value: float | None, own: Sequence[float | None]) -> Limits:
        return repeat_interval(value or 0.0, own, confidence=_side(draws.confidence))

    if many:
        means = [math.fsum(unit) / len(unit) if unit else None for unit in units]
        found[0] = _estimate(found[0].value, over_repeats(found[0].value, means))
    for place, q in enumerate(percentiles, 1):
        value = found[place].value
        if all(len(one) == 1 for one in groups):
            limits = quantile_interval([one[0] for one in groups], q, draws.confidence)
        else:
            limits = clustered_quantile_interval(groups, q, draws.confidence)
        if many:
            limits = _wider(limits, over_repeats(value, [percentile(unit, q) for unit in units]))
        found[place] = _estimate(value, limits)
    return found


def rate(parts: Sequence[tuple[float, float]], confidence: float = 0.95) -> Estimate:
    """Sum of the first over sum of the second; of three repeats or more with an interval.

    Args:
        parts: of each repeat, tokens and seconds for instance.
        confidence: of both limits together.

    Returns:
        Value None where there is next to no time to divide by.
    """
    above, below = (math.fsum(side) for side in zip(*parts, strict=True)) if parts else (0.0, 0.0)
    value = above / below if below > 0 else math.inf
    if not math.isfinite(value):
        return Estimate(None)
    own = [a / b if b > 0 and math.isfinite(a / b) else None for a, b in parts]
    return _estimate(value, repeat_interval(value, own, confidence=_side(confidence)))


def share(parts: Sequence[tuple[int, int]], confidence: float = 0.95) -> Estimate:
    """Count over requests, both summed over the repeats; the confidence is of both limits."""
    count, n = (sum(side) for side in zip(*parts, strict=True))
    return Estimate(count / n, *share_limits(parts, _side(confidence)))


def share_limits(parts: Sequence[tuple[int, int]], confidence: float) -> tuple[float, float]:
    """One-sided lower and upper limit of a share, each at `confidence`.

    Args:
        parts: of each repeat, what counts and all its requests.
        confidence: of each limit.
    """
    count, n = (sum(side) for side in zip(*parts, strict=True))
    exact = proportion(count, n, confidence)
    if len(parts) < LEAST_REPEATS:
        return exact
    return _wider(exact, repeat_share_interval(parts, confidence)) or exact


def percentile_figure(load: LoadSummary, metric: str) -> tuple[Figure, str]:
    """A percentile of a latency in a record, and in words why its interval decides nothing.

    Args:
        load: the record.
        metric: ``ttft_ms_p95``: the latency and the percentile.

    Returns:
        The figure, and the reason; empty where its interval can be trusted.
    """
    measured, _, place = metric.rpartition("_")
    found = getattr(load, measured)
    figure: Figure = getattr(found, place)
    takes = fewest_values(float(place[1:]), load.confidence)
    gaps = measured == "itl_ms"
    if found.requests < takes and not gaps:
        few = f"{found.requests} requests are too few for an interval: a {place} takes {takes}"
        return figure, few
    if load.percentiles_by is None and (gaps or load.repeats >= LEAST_REPEATS):
        return figure, OLDER
    if figure.low is None or figure.high is None:
        if gaps:
            return figure, (
                f"the gaps of {found.requests} requests are too few for an interval, or too alike "
                f"within a request: a {place} takes {takes} that do not depend on each other"
            )
        return figure, "no interval of it is known"
    return figure, ""


#: What is said of a record whose intervals over repeats are a bootstrap's.
OLDER = (
    "its profile is an older one, whose intervals end too near the figure: measure again "
    "(workbench run RECIPE --force profile)"
)


def _side(confidence: float) -> float:
    return (1 + confidence) / 2


def _wider(one: Limits, other: Limits) -> Limits:
    """The outer side of both; None where one of them has nothing to say."""
    return None if one is None or other is None else (min(one[0], other[0]), max(one[1], other[1]))


def _estimate(value: float | None, limits: Limits) -> Estimate:
    return Estimate(value, *(limits or (None, None)))
