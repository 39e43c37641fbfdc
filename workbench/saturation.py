"""Whether an open loop asked for more than the server can do: does its backlog grow? Pure.

The backlog at a moment is the number of requests that were due and had not ended. Below capacity
it wanders about a mean, above it grows as long as the load lasts. A long queue alone is no proof:
close to capacity it is long and stable, and it wanders slowly, so that neighbouring moments are no
independent samples. The rule therefore works on ten block means, and wants three things:

1.  a trend: Mann and Kendall's test over the ten blocks, one-sided, p below 0.01;
2.  that matters: the backlog grows, by Theil and Sen's slope, by 5 % of the arrivals or more;
3.  that chance does not make: by more than 2 sqrt(arrivals), twice the standard deviation of the
    number of arrivals in a Poisson process.

A trend that is too small to be told from chance by 2 or 3 is "unknown", never "stable": a longer
load tells. "stable" says that no trend was seen.

The first quarter of the time is left out: there the backlog fills up from nothing at any rate.
Where one request takes longer than a tenth of the load (median of the first 5 % of them), the
filling is not over by then, and the answer is "unknown". An overload below 5 % is not told from a
long queue.

Simulated M/M/1 queues of 500 to 2,000 arrivals: "growing" of at most 1 in 50 at a utilization of
0.9 or less, of 3 in 4 at 1.2 with 500 arrivals and 19 in 20 with 1,000. "unknown" of 1 in 10 at 0.9
with 500 arrivals and 1 in 100 at 0.8; of 64 arrivals, of 1 in 5 at 0.9. A server that answers 429
or 503 keeps its backlog short by refusing: more than 5 % of that is "refusing".

Mann (1945), Econometrica 13, 245-259; Sen (1968), JASA 63, 1379-1389.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Literal

from workbench.load_records import Saturation
from workbench.load_requests import ended
from workbench.traffic import Outcome

_BLOCKS = 10
_RAMP = 0.25
_P = 0.01
_SHARE = 0.05
_EARLY = 0.05
_LONGEST = 0.1
#: Fewer arrivals than this show nothing.
LEAST = 50

#: Said of a load whose verdict is "unknown", before the reason.
NOT_KNOWN = "whether the queue grows is not known"

#: The worse first: which of two verdicts stands where repeats are split evenly.
_SEVERITY = ("growing", "refusing", "unknown", "stable", "closed loop")


def mann_kendall(values: Sequence[float]) -> float:
    """One-sided p of Mann and Kendall's test that values do not rise. Normal approximation.

    With the continuity correction; ties count as neither, which makes p too large, not too small.
    """
    n = len(values)
    score = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    if score <= 0:
        return 1.0 if score < 0 else 0.5
    z = (score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return 0.5 * math.erfc(z / math.sqrt(2))


def slope(values: Sequence[float]) -> float:
    """Theil and Sen's slope of equally spaced values, per step: the median over all pairs."""
    pairs = combinations(enumerate(values), 2)
    return median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def backlog(
    spans: Sequence[tuple[float, float | None]], begin: float, end: float, blocks: int
) -> list[float]:
    """Mean number of requests in the system in each of so many equal blocks of time.

    Args:
        spans: when each request was due and when it ended, None where it did not.
        begin: of the first block, seconds.
        end: of the last block.
        blocks: how many.
    """
    width = (end - begin) / blocks
    edges = [(begin + i * width, begin + (i + 1) * width) for i in range(blocks)]
    return [
        math.fsum(
            max(0.0, (high if gone is None else min(gone, high)) - max(due, low))
            for due, gone in spans
        )
        / width
        for low, high in edges
    ]


def saturation(outcomes: Sequence[Outcome]) -> Saturation:
    """The verdict on one open loop, from every one of its requests.

    Args:
        outcomes: the failed and unfinished ones included; `due` is when they arrived.
    """
    spans = sorted(
        ((o.due, ended(o)) for o in outcomes),
        key=lambda span: (span[0], math.inf if span[1] is None else span[1]),
    )
    count = len(spans)
    if count < LEAST:
        return _unknown(f"{count} requests show no trend: {LEAST} are the least")
    refused = sum(o.status == "refused" for o in outcomes)
    if refused > _SHARE * count:
        return Saturation(
            verdict="refusing",
            sentence=f"the server refused {refused} of {count} requests (429 or 503)",
        )
    first, last = spans[0][0], spans[-1][0]
    if not last > first:
        return _unknown("all requests came at once")
    early = [math.inf if gone is None else gone - due for due, gone in spans]
    usual = median(early[: max(10, math.ceil(_EARLY * count))])
    if usual > _LONGEST * (last - first):
        took = "did not end" if math.isinf(usual) else f"took {usual:.3g} s"
        return _unknown(
            f"the first requests {took}, and the load lasted {last - first:.3g} s: it must last "
            f"{1 / _LONGEST:.0f} times as long as a request"
        )
    begin = first + _RAMP * (last - first)
    means = backlog(spans, begin, last, _BLOCKS)
    arrived = sum(due >= begin for due, _ in spans)
    growth, p = slope(means) * _BLOCKS, mann_kendall(means)
    least = max(_SHARE * arrived, 2 * math.sqrt(arrived))
    held = f"unfinished requests from {means[0]:.3g} to {means[-1]:.3g} over {last - begin:.3g} s"
    verdict: Literal["growing", "unknown", "stable"]
    if p >= _P:
        verdict, sentence = "stable", f"no growth seen: {held}"
    elif growth > least:
        verdict, sentence = "growing", f"saturated: {held}, and growing"
    else:
        verdict, sentence = (
            "unknown",
            f"{held} grow (p = {p:.2g}), but by {growth:.3g}, and {arrived} arrivals show no less "
            f"than {least:.3g}: a longer load tells",
        )
    return Saturation(
        verdict=verdict,
        sentence=sentence,
        growth_per_s=growth / (last - begin),
        p=p,
        backlog=tuple(means),
    )


def over_repeats(found: Sequence[Saturation]) -> Saturation:
    """What most repeats say, the worse where they are split evenly.

    Raises:
        ValueError: there is no repeat.
    """
    counts = Counter(one.verdict for one in found)
    if not counts:
        raise ValueError("no repeat")
    verdict = min(counts, key=lambda v: (-counts[v], _SEVERITY.index(v)))
    # The clearest of them, so that the order of repeats does not matter.
    same = [one for one in found if one.verdict == verdict]
    chosen = max(same, key=lambda one: (one.growth_per_s or 0.0, one.sentence))
    if len(found) == 1:
        return chosen
    said = f"{counts[verdict]} of {len(found)} repeats: {chosen.sentence}"
    return chosen.model_copy(update={"sentence": said})


def _unknown(why: str) -> Saturation:
    return Saturation(verdict="unknown", sentence=why)
