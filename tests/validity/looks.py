"""What becomes of the level where one looks again, or at several variants.

A variant that loses exactly the margin is drawn and put before the gate. While it is INCONCLUSIVE,
the gate names a number of items and looks are left, that many are drawn and it is put before the
gate again: what a reader of "about 320 items would settle it" does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from validity.worlds import Drawn, RightWrong, drawn

from workbench.items import said
from workbench.records import Check, VariantVerdict

#: Pairs of the first look, the accepted loss, and how the pairs come about: the quickstart's.
FIRST, MARGIN, WORLD = 88, 0.10, RightWrong(discordance=0.23)

Judge = Callable[[Sequence[Drawn]], VariantVerdict]
#: From a confidence to the gate that decides at it.
Gatekeeper = Callable[[float], AbstractContextManager[Judge]]


@dataclass(frozen=True)
class Way:
    """How one goes on.

    Attributes:
        says: for the table.
        looks: at most so many.
        confidence: of every look.
        fresh: the first look decides nothing, and the second is at new samples alone.
        variants: that lose the margin each; one GO among them is one too many.
    """

    says: str
    looks: int = 1
    confidence: float = 0.95
    fresh: bool = False
    variants: int = 1


WAYS = (
    Way("one look"),
    Way("a second look, at the number named", looks=2),
    Way("up to four looks", looks=4),
    Way("the first look decides nothing, the second is at new samples alone", looks=2, fresh=True),
    Way("two looks, `confidence: 0.975`", looks=2, confidence=0.975),
    Way("up to four looks, `confidence: 0.9875`", looks=4, confidence=0.9875),
    Way("one look at each of five variants", variants=5),
    Way("one look at each of five variants, `confidence: 0.99`", variants=5, confidence=0.99),
)


def share(way: Way, trials: int, seed: int, gatekeeper: Gatekeeper) -> float:
    """How often a variant that lost the margin, or one of several, is let through, 0 to 1."""
    rng = np.random.default_rng([seed, WAYS.index(way)])
    seen: dict[tuple[float, ...], Check] = {}
    with gatekeeper(way.confidence) as judge:

        def look(pairs: Drawn) -> Check:
            # Nothing but the counts decides of pairs that are right or wrong.
            before, after = np.asarray(pairs.before), np.asarray(pairs.after)
            key = (len(before), before.sum(), after.sum(), before @ after)
            if key not in seen:
                checks = judge([pairs]).checks
                seen[key] = next(c for c in checks if c.kind == "quality")
            return seen[key]

        return (
            sum(any([_passes(way, look, rng) for _ in range(way.variants)]) for _ in range(trials))
            / trials
        )


def _passes(way: Way, look: Callable[[Drawn], Check], rng: np.random.Generator) -> bool:
    pairs = WORLD.draw(rng, FIRST, MARGIN)
    for number in range(1, way.looks + 1):
        check = look(pairs)
        if number == way.looks or not (more := _named(check, len(pairs.before))):
            break
        if way.fresh:
            pairs = WORLD.draw(rng, more, MARGIN)
            continue
        new = WORLD.draw(rng, more - len(pairs.before), MARGIN)
        pairs = drawn(pairs.before + new.before, pairs.after + new.after)
    return check.status == "PASS" and not (way.fresh and number < way.looks)


def _named(check: Check, n: int) -> int:
    """The number of items the sentence names; 0 where it names none."""
    needed = check.details.get("items_needed") if check.status == "INCONCLUSIVE" else None
    return int(said(needed, n).replace(",", "")) if needed else 0


def lines(trials: int, seed: int, gatekeeper: Gatekeeper) -> Iterator[str]:
    """Markdown: how each way was gone, and how often the variant passed, in percent."""
    yield (
        f"{FIRST} samples at first, margin {100 * MARGIN:g} points, {WORLD.says}; {trials:,} "
        f"trials of each, seed {seed}.\n"
    )
    yield "| how it is decided | let through at the margin, % |"
    yield "|---|---:|"
    for way in WAYS:
        found = share(way, trials, seed, gatekeeper)
        error = math.sqrt(max(found * (1 - found), 1 / trials) / trials)
        yield f"| {way.says} | **{100 * found:.1f}** ± {100 * error:.1f} |"
