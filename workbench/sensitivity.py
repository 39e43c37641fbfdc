"""How much of a score is the calibration sample, and not the method? Pure.

A variant with `repeat` is made again with other calibration seeds. Its verdict is about the one
checkpoint that would ship; the spread over the seeds is about the method, and is shown beside it.
"""

from __future__ import annotations

from statistics import stdev

from workbench import checks
from workbench.evidence import Evidence, Paired, VariantEvidence, pair
from workbench.pooled import pooled
from workbench.records import CheckStatus, Spread
from workbench.spec import Policy


def spreads(policy: Policy, evidence: Evidence) -> tuple[Spread, ...]:
    """One spread for each suite of each repeated variant, gated or not.

    A replica that was not evaluated, or whose rows cannot be paired, is missing from `scores` and
    named in `missing`.
    """
    gated = {check.suite: check for check in policy.quality}
    found = []
    for variant in evidence.variants:
        made = (variant, *evidence.replicas.get(variant.variant, ()))
        if len(made) == 1:
            continue
        suites = [s.suite for s in variant.evaluation.suites] if variant.evaluation else []
        for suite in suites:
            scores = {one.variant: _score(evidence, one, suite) for one in made}
            known = {name: score for name, score in scores.items() if score is not None}
            statuses: dict[str, CheckStatus] = {}
            if suite in gated:
                statuses = {
                    one.variant: checks.quality(gated[suite], evidence, one).status for one in made
                }
            found.append(
                Spread(
                    variant=variant.variant,
                    suite=suite,
                    scores=known,
                    deviation=stdev(known.values()) if len(known) > 1 else None,
                    statuses=statuses,
                    missing=tuple(name for name in scores if name not in known),
                )
            )
    return tuple(found)


def warnings(found: tuple[Spread, ...]) -> tuple[str, ...]:
    """A sentence for each suite whose answer depends on the calibration seed."""
    sentences = []
    for spread in found:
        own = spread.statuses.get(spread.variant)
        others = [name for name, status in spread.statuses.items() if status != own]
        if others:
            listed = ", ".join(f"{spread.statuses[name]} as {name}" for name in others)
            sentences.append(
                f"{spread.suite} is {own} for {spread.variant} and {listed}: made with another "
                "calibration seed the method gives another answer"
            )
    return tuple(sentences)


def _score(evidence: Evidence, variant: VariantEvidence, suite: str) -> float | None:
    paired = pair(evidence, variant, suite)
    if not isinstance(paired, Paired):
        return None
    if (counts := pooled(paired)) is not None:
        return counts.scores[1]
    scores = paired.raw_scores[1]
    return sum(scores) / len(scores)
