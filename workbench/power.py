"""What a suite can show before it is asked: the damage it tells apart, the samples it takes. Pure.

Both follow from how much one sample's difference varies. Of right/wrong answers that is, without
any loss, the share of answers that turn right or wrong. It is taken from the run's last verdict
where there is one, else assumed and said to be: 10 %, which 4-bit weights of small models reach,
and of a suite with clusters that they change cluster by cluster (`workbench.clusters.Grouping`).
`workbench.reach` says what not even a perfect copy could pass; this says what a usual one could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from workbench import items, stats
from workbench.clusters import Grouping
from workbench.plan import Facts
from workbench.recipe import Loaded
from workbench.records import Check, Gate

#: Share of answers that turn right or wrong where no verdict says it.
ASSUMED = 0.10


@dataclass(frozen=True)
class Power:
    """A gated suite before it is asked.

    Attributes:
        suite: its name.
        n: samples that will be asked of it; None: only lm-eval knows.
        margin: accepted loss; the largest it can be where it is a part of the baseline's score.
        variance: of one sample's difference.
        source: where the variance is from.
        detectable: how far from the margin a true loss must be to be settled, a PASS or a FAIL,
            four times in five; an undamaged variant passes so often where this is the margin.
        needed: samples with which an undamaged variant passes four times in five; None: too many.
        relative: the margin is a part of the baseline's score.
        grouping: clusters of the suite's samples; None: every sample is independent.
    """

    suite: str
    n: int | None
    margin: float
    variance: float
    source: str
    detectable: float | None
    needed: int | None
    relative: bool = False
    grouping: Grouping | None = None


def power(
    loaded: Loaded, facts: Facts, earlier: Gate | None, most: Mapping[str, int]
) -> list[Power]:
    """One entry for each gated quality check of the policy.

    Args:
        loaded: recipe and policy.
        facts: sizes of the suites.
        earlier: the run's last verdict; its suites may have been others, its spread is a guide.
        most: task of lm-eval -> the most documents its limit lets it ask, where that is known.
    """
    limit, found = loaded.recipe.evaluate.limit, []
    for check in loaded.policy.quality:
        if check.tier == "advisory" or check.suite in facts.left_out:
            continue
        grouping = facts.suite_groupings.get(check.suite)
        # Of one sample. A verdict's is that of its clusters, unless the suite had none yet.
        said = _earlier(check.suite, earlier) or _Earlier(ASSUMED, "assumed", None, False)
        spread = _Spread(said.variance, None if said.clustered else grouping)
        n = said.n
        if check.suite in facts.suite_sizes:
            size = facts.suite_sizes[check.suite][0]
            n = min(size, limit or size)
        n = most.get(check.suite, n)
        apart = None
        if n is not None:
            # What not even equal answers can show, a usual variant cannot either.
            loss = stats.detectable_loss(n, spread.padded(n), check.confidence)
            apart = max(items.bound(n, check.confidence, grouping=grouping), loss)
        needed = items.needed(0.0, said.variance, check.most, check.confidence, spread.grouping)
        if needed:
            least = items.fewest(check.most, check.confidence, grouping=grouping)
            needed = max(needed, least, check.min_n)
        found.append(
            Power(
                check.suite,
                n,
                check.most,
                said.variance,
                said.source,
                apart,
                needed,
                relative=check.margin is None,
                grouping=grouping,
            )
        )
    return found


@dataclass(frozen=True)
class _Spread:
    """Variance of one sample's difference; with a grouping, of answers that change by clusters."""

    variance: float
    grouping: Grouping | None

    def padded(self, n: int) -> float:
        """As the gate counts it: with two pseudo-pairs, one lost and one gained."""
        if self.grouping is not None:
            return self.grouping.variance(self.variance, n)
        return (self.variance * n + 2) / (n + 2)


class _Earlier(NamedTuple):
    variance: float
    source: str
    n: int | None
    clustered: bool


def _earlier(suite: str, gate: Gate | None) -> _Earlier | None:
    """What a verdict says: the largest variance of what did not fail, else of what did."""
    found = [
        (
            check.status != "FAIL",
            _variance(check, check.n),
            verdict.variant,
            check.n,
            check.details.get("clusters") is not None,
        )
        for verdict in (gate.variants if gate else ())
        for check in verdict.checks
        if check.kind == "quality" and check.details.get("suite") == suite
        if check.n and "detectable_loss" in check.details
    ]
    if not found:
        return None
    sound = any(passed for passed, *_ in found)
    variance, variant, n, clustered = max(one[1:] for one in found if one[0] == sound)
    return _Earlier(variance, f"{variant}, last verdict", n, clustered)


def _variance(check: Check, n: int) -> float:
    unit = stats.detectable_loss(n, 1.0, check.details["confidence"])
    return items.unpadded(float((check.details["detectable_loss"] / unit) ** 2), n)
