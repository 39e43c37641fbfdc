"""What is simulated: each cell a world, a number of pairs, suites and a margin."""

from __future__ import annotations

from dataclasses import dataclass

from validity.worlds import Halves, Moving, RightWrong, Skewed, World


@dataclass(frozen=True)
class Cell:
    """One line of the table.

    Attributes:
        world: draws the pairs.
        n: pairs of each suite.
        margin: accepted loss of each suite, and the damage of a variant that must not pass.
        suites: gated ones, independent of each other.
        damaged: how many of them lose the margin; None is all.
    """

    world: World
    n: int
    margin: float = 0.04
    suites: int = 1
    damaged: int | None = None

    @property
    def says(self) -> str:
        if self.suites == 1:
            return self.world.says
        how = "each damaged" if self.damaged is None else f"{self.damaged} damaged"
        return f"{self.suites} suites, {how}: {self.world.says}"


_PLAIN = RightWrong()
_LOST = RightWrong(discordance=0.0)
_PAIRS = RightWrong(cluster=2, together=0.5)
_FIVES = RightWrong(cluster=5, together=0.5)
_COPIES = RightWrong(cluster=10, together=1.0)
_GRADED_FIVES = Moving(cluster=5, shared=0.1)

#: Every cell of the table in the documentation. At accuracy 0.8 a margin of 4 points is what
#: "recovery of 0.95" promises.
CELLS = (
    *(Cell(_PLAIN, n) for n in (20, 50, 100, 200, 500, 1000, 2000, 5000)),
    *(Cell(_LOST, n) for n in (20, 50, 100, 200, 500, 1000, 2000, 5000)),
    Cell(_PLAIN, 88, margin=0.10),
    Cell(RightWrong(discordance=0.05), 5000, margin=0.01),
    *(Cell(RightWrong(discordance=0.3), n) for n in (100, 1000)),
    *(Cell(RightWrong(0.99, 0.01), n, margin=0.02) for n in (200, 1000)),
    *(Cell(RightWrong(0.3, 0.2), n) for n in (100, 1000)),
    *(Cell(_PLAIN, 500, suites=k) for k in (5, 20)),
    *(Cell(_PLAIN, 1000, suites=k, damaged=1) for k in (5, 20)),
    *(Cell(Moving(), n) for n in (20, 100, 1000, 5000)),
    *(Cell(Halves(), n) for n in (50, 200, 1000, 5000)),
    *(Cell(Skewed(), n, margin=0.02) for n in (50, 100, 200, 500, 1000, 5000)),
    *(Cell(_PAIRS, n) for n in (200, 1000)),
    *(Cell(_FIVES, n) for n in (100, 500, 2000, 5000)),
    *(Cell(_COPIES, n) for n in (500, 5000)),
    *(Cell(_GRADED_FIVES, n) for n in (100, 1000)),
)

#: A cell of each kind that a test can afford.
QUICK = (
    *(Cell(_PLAIN, n) for n in (50, 200)),
    *(Cell(_LOST, n) for n in (20, 100)),
    Cell(_PLAIN, 88, margin=0.10),
    Cell(_PLAIN, 100, margin=0.10, suites=3, damaged=1),
    Cell(Moving(), 50),
    Cell(Halves(), 100, margin=0.10),
    Cell(_COPIES, 500, margin=0.10),
)
