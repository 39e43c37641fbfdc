"""Paired data whose truth is known: worlds that draw a baseline's and a variant's scores.

A world is told how many pairs to draw and how much the variant is to lose on average; everything
else about it is its own. What it draws is what pairing gives the gate (`workbench.paired.Paired`),
without the rows that would be paired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.random import Generator

from workbench.paired import Paired


@dataclass(frozen=True)
class Drawn(Paired):
    """Pairs as the gate sees them, from scores instead of rows."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    labels: tuple[str | None, ...] = ()

    @property
    def raw_scores(self) -> tuple[list[float], list[float]]:
        return self.before, self.after

    @property
    def scores(self) -> tuple[list[float], list[float]]:
        return self.before, self.after

    @property
    def outputs(self) -> tuple[list[str], list[str]]:
        return [""] * len(self.before), [""] * len(self.after)

    @property
    def clusters(self) -> tuple[str | None, ...]:
        return self.labels


def drawn(before: list[float], after: list[float], clusters: list[str] | None = None) -> Drawn:
    labels = tuple(clusters) if clusters else (None,) * len(before)
    return Drawn((), (), before=before, after=after, labels=labels)


class World(Protocol):
    """Draws pairs.

    Attributes:
        says: how the pairs come about, for the table.
    """

    @property
    def says(self) -> str: ...

    def draw(self, rng: Generator, n: int, damage: float) -> Drawn: ...


@dataclass(frozen=True)
class RightWrong:
    """Answers that are right or wrong.

    Attributes:
        accuracy: of the baseline.
        discordance: share of pairs that differ, and at least the damage: then nothing is gained
            back, and an undamaged variant with discordance 0 is a perfect copy.
        cluster: samples that belong together; 1 where all are independent.
        together: share of clusters all of whose samples fare alike, and so the correlation within
            a cluster; the samples of the others are independent.
    """

    accuracy: float = 0.8
    discordance: float = 0.1
    cluster: int = 1
    together: float = 0.0

    @property
    def says(self) -> str:
        back = f"{100 * self.discordance:.0f} % differ" if self.discordance else "nothing gained"
        text = f"right/wrong, {100 * self.accuracy:.0f} % right, {back}"
        if self.cluster == 1:
            return text
        return f"{text}; clusters of {self.cluster}, correlation {self.together:g}"

    def draw(self, rng: Generator, n: int, damage: float) -> Drawn:
        differ = max(self.discordance, damage)
        lost, gained = (differ + damage) / 2, (differ - damage) / 2
        shares = [self.accuracy - lost, lost, gained, 1 - self.accuracy - gained]
        assert min(shares) >= 0, f"no such world: {shares}"
        if self.cluster == 1:
            right, down, up, wrong = (int(k) for k in rng.multinomial(n, shares))
            return drawn(
                [1.0] * (right + down) + [0.0] * (up + wrong),
                [1.0] * right + [0.0] * down + [1.0] * up + [0.0] * wrong,
            )
        groups = np.arange(n) // self.cluster
        own = rng.choice(4, n, p=shares)
        common = rng.choice(4, groups[-1] + 1, p=shares)
        alike = rng.random(groups[-1] + 1) < self.together
        fate = np.where(alike[groups], common[groups], own)
        return drawn(
            (fate <= 1).astype(float).tolist(),
            (fate % 2 == 0).astype(float).tolist(),
            [f"c{g}" for g in groups],
        )


@dataclass(frozen=True)
class Moving:
    """Graded answers every one of which moves a little: hardly a tie.

    Attributes:
        cluster: samples that belong together.
        shared: half-width of the part of the movement that a cluster has in common.
    """

    cluster: int = 1
    shared: float = 0.0

    @property
    def says(self) -> str:
        text = "graded, every score moves by up to 20 points"
        return f"{text}; clusters of {self.cluster}" if self.cluster > 1 else text

    def draw(self, rng: Generator, n: int, damage: float) -> Drawn:
        groups = np.arange(n) // self.cluster
        # Far enough from 0 and 1 that nothing is cut off and the mean loss is exact.
        before = rng.uniform(0.3, 0.7, n)
        common = rng.uniform(-self.shared, self.shared, groups[-1] + 1)[groups]
        own = rng.uniform(self.shared - 0.2, 0.2 - self.shared, n)
        after = before - damage + common + own
        clusters = [f"c{g}" for g in groups] if self.cluster > 1 else None
        return drawn(before.tolist(), after.tolist(), clusters)


@dataclass(frozen=True)
class Halves:
    """Graded answers of which few move, by half a point: many ties."""

    moving: float = 0.1

    @property
    def says(self) -> str:
        return f"graded, {100 * self.moving:.0f} % move by half"

    def draw(self, rng: Generator, n: int, damage: float) -> Drawn:
        moving = max(self.moving, 2 * damage)
        down, up = moving / 2 + damage, moving / 2 - damage
        counts = rng.multinomial(n, [down, up, 0.7 * (1 - moving), 0.3 * (1 - moving)])
        lost, gained, right, wrong = (int(k) for k in counts)
        return drawn(
            [0.5] * (lost + gained) + [1.0] * right + [0.0] * wrong,
            [0.0] * lost + [1.0] * (gained + right) + [0.0] * wrong,
        )


@dataclass(frozen=True)
class Skewed:
    """Graded answers half of which gain a little while few lose all: made to mislead Student's t.

    Attributes:
        gain: what half of the answers gain.
    """

    gain: float = 0.02

    @property
    def says(self) -> str:
        return f"graded, half gain {100 * self.gain:.0f} points and few lose all"

    def draw(self, rng: Generator, n: int, damage: float) -> Drawn:
        lost = damage + self.gain / 2
        down, up, same = (int(k) for k in rng.multinomial(n, [lost, 0.5, 0.5 - lost]))
        return drawn(
            [1.0] * down + [0.5] * up + [1.0] * same,
            [0.0] * down + [0.5 + self.gain] * up + [1.0] * same,
        )
