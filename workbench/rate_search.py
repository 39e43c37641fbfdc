"""The highest rate that still meets the targets, in a bounded number of probes. Pure.

`next_rate` looks at the probes so far and says which rate to try, so that a search can be stopped
and taken up again, and points of a sweep serve as its first probes. Both ends come first, then
halves of the gap between what held and what did not, and the answer is tried once more: a rate that
holds once may be luck.

Bisection believes that what fails at one rate fails at every higher one. Where a higher rate held,
or the same rate held once and failed once, it says so, and the answer is the highest rate with no
failure at or below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from workbench.load_records import HighestRate, Probe, Saturation
from workbench.saturation import NOT_KNOWN


def next_rate(
    probes: Sequence[Probe], low: float, high: float, *, most: int, within: float
) -> float | None:
    """The rate to try next; None: enough is known, or nothing is left to try with.

    Args:
        probes: what was tried, of a sweep too.
        low: lowest rate worth knowing, above 0.
        high: highest rate worth trying, above `low`.
        most: probes in all, at least 3.
        within: stop when what failed is no more than this share above what held, such as 0.05.

    Raises:
        ValueError: the limits are none.
    """
    if not (0 < low < high and math.isfinite(high) and most >= 3 and within > 0):
        raise ValueError(f"a search from {low:g} to {high:g}, {most} probes, within {within:g}")
    if len(probes) >= most:
        return None
    tried = {probe.rate for probe in probes}
    for end in (low, high):
        if end not in tried:
            return end
    held, failed = _held(probes), min((p.rate for p in probes if not p.meets), default=None)
    if held is None:
        return None
    if failed is not None and not _monotone(probes):
        return None
    again = held if sum(p.rate == held for p in probes) < 2 else None
    # The last probe is kept for trying the answer again.
    if failed is None or failed / held <= 1 + within or len(probes) == most - 1:
        return again
    return math.sqrt(held * failed)


def conclude(probes: Sequence[Probe], within: float | None = None) -> HighestRate:
    """What the probes say.

    Args:
        probes: in the order they were tried.
        within: what the search was to reach; said where it did not. None: nothing was to be.

    Raises:
        ValueError: there is none.
    """
    if not probes:
        raise ValueError("nothing was tried")
    held = _held(probes)
    failures = sorted((p for p in probes if not p.meets), key=lambda p: p.rate)
    tried = f"{len(probes)} probes"
    if not _monotone(probes):
        worst = failures[0]
        above = max(p.rate for p in probes if p.meets)
        kept = "no rate" if held is None else f"{held:g} requests/s"
        return HighestRate(
            outcome="not monotone",
            rate=held,
            sentence=f"{worst.rate:g} requests/s did not meet the targets ({worst.why}), and "
            f"{above:g} did: the machine is not steady, or the load too short; {kept} held "
            f"without a failure at or below it ({tried})",
            probes=tuple(probes),
        )
    if held is None:
        worst = failures[0]
        return HighestRate(
            outcome="nothing meets",
            rate=None,
            sentence=f"no rate meets the targets: already {worst.rate:g} requests/s does not "
            f"({worst.why}); try a lower rate, or targets this server can meet ({tried})",
            probes=tuple(probes),
        )
    if not failures:
        return HighestRate(
            outcome="everything meets",
            rate=held,
            sentence=f"the highest rate tried, {held:g} requests/s, meets the targets: the limit "
            f"lies above it ({tried})",
            probes=tuple(probes),
        )
    first = failures[0]
    wide = within is not None and first.rate / held > 1 + within
    short = (
        f"; the limit lies anywhere between: {tried} did not bring them within {within:.3g} of "
        "each other, raise 'most' or narrow 'low' and 'high'"
        if wide
        else ""
    )
    return HighestRate(
        outcome="found",
        rate=held,
        sentence=f"{held:g} requests/s meet the targets, {first.rate:g} do not: {first.why} "
        f"({tried}){short}",
        probes=tuple(probes),
    )


def with_saturation(found: HighestRate, saturation: Saturation) -> HighestRate:
    """The answer, saying so where it is not known whether the queue grows at it.

    Args:
        found: what the probes say.
        saturation: at the rate that was found, over all its probes.
    """
    if found.rate is None or saturation.verdict != "unknown":
        return found
    why = saturation.sentence
    sentence = f"{found.sentence}; {NOT_KNOWN} at {found.rate:g} requests/s: {why}"
    return found.model_copy(update={"sentence": sentence, "growth_unknown": why})


def search(
    probe: Callable[[float], tuple[bool, str]],
    low: float,
    high: float,
    *,
    most: int = 10,
    within: float = 0.05,
    known: Sequence[Probe] = (),
) -> HighestRate:
    """Try rates until the highest that meets the targets is known, or `most` were tried.

    Args:
        probe: measures one rate: whether it meets the targets, and why.
        low: see `next_rate`.
        high: see `next_rate`.
        most: see `next_rate`; those of `known` count.
        within: see `next_rate`.
        known: points that were measured before.

    Raises:
        ValueError: see `next_rate`.
    """
    probes = [*known]
    while (rate := next_rate(probes, low, high, most=most, within=within)) is not None:
        meets, why = probe(rate)
        probes.append(Probe(rate=rate, meets=meets, why=why))
    return conclude(probes, within)


def _held(probes: Sequence[Probe]) -> float | None:
    """Highest rate that met the targets with no failure at or below it."""
    lowest = min((p.rate for p in probes if not p.meets), default=math.inf)
    return max((p.rate for p in probes if p.meets and p.rate < lowest), default=None)


def _monotone(probes: Sequence[Probe]) -> bool:
    """Whether every rate that met the targets lies below every one that did not."""
    lowest = min((p.rate for p in probes if not p.meets), default=math.inf)
    return all(p.rate < lowest for p in probes if p.meets)
