"""How much does a reference differ from itself, asked twice? Pure.

A difference that is no larger than that says nothing about the variant. The floor is one pair of
passes, so it is a measure of size and no test: it is shown beside each result and decides nothing.
"""

from __future__ import annotations

from workbench import stats
from workbench.evidence import Evidence, Paired, VariantEvidence, pair_repeat
from workbench.pooled import pooled

#: `churn`: share of samples whose score or wrong answer changed. `difference`: loss of the second
#: pass against the first, positive where the second was worse.
Floor = dict[str, float]


def floor(evidence: Evidence, suite: str, reference: VariantEvidence) -> Floor | None:
    """The noise floor of one suite; None where the reference was not asked twice and answered."""
    paired = pair_repeat(evidence, suite, reference)
    if not isinstance(paired, Paired):
        return None
    first, second = paired.scores
    counts = pooled(paired)
    return {
        "churn": stats.churn(first, second, *paired.outputs).share,
        "difference": counts.loss if counts else (sum(first) - sum(second)) / len(first),
    }


def floors(evidence: Evidence, reference: VariantEvidence) -> dict[str, Floor]:
    """Suite -> noise floor, of every suite the reference was asked twice."""
    found = {s: floor(evidence, s, reference) for s in sorted(evidence.second_pass(reference))}
    return {suite: value for suite, value in found.items() if value is not None}


def inside(found: Floor | None, loss: float, churn: float) -> bool:
    """True where the mean moved, and no further than two passes of the reference explain.

    That is where it moved no further than the mean of the second pass did, or where no more samples
    changed than between the two.

    Args:
        found: the floor.
        loss: of the variant's mean score.
        churn: share of samples that changed.
    """
    if found is None or loss == 0:
        return False
    return abs(loss) <= abs(found["difference"]) or churn <= found["churn"]
