"""The checks of where a variant ran, and the tripwires of its divergence. Pure.

What was measured on another lane or other hardware than the release's is no damage and no evidence:
NOT COMPARABLE. A tripwire is advisory and shows nothing to be good: WARN, or NOT TRIPPED.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from workbench.checks import reference_name
from workbench.evidence import Evidence, Refusal, VariantEvidence, missing, wrong_weights
from workbench.policy_spec import Policy, Tripwire
from workbench.records import Check, CheckStatus, DivergenceStats, Serving

#: Lanes from the format's own kernel downwards.
LANES = ("native", "weight-only fallback", "emulated", "unsupported")
#: Metric of a tripwire -> percentile of the KLD.
_PERCENTILES = {"kld_median": "median", "kld_p95": "95", "kld_p99": "99", "kld_max": "max"}


def required(policy: Policy, evidence: Evidence, variant: VariantEvidence) -> tuple[Check, ...]:
    """A check for the lane and one for the hardware, where the policy names them."""
    found = []
    if policy.required_lane is not None:
        found.append(_lane(policy.required_lane, variant))
    if policy.required_hardware is not None:
        found.append(_hardware(policy.required_hardware, evidence, variant))
    return tuple(found)


def named(wanted: str, hardware: str) -> bool:
    """True where the name stands in a machine's as whole words: an L4 is no L40S."""
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", hardware, re.IGNORECASE) is not None


def _check(name: str, status: CheckStatus, sentence: str) -> Check:
    return Check(
        name=name,
        kind="policy",
        tier="critical",
        status=status,
        sentence=f"{name}: {sentence}.",
    )


def _servings(side: VariantEvidence) -> Iterator[tuple[str, Serving]]:
    if side.evaluation is not None:
        yield "evaluated", side.evaluation.serving
    if side.profile is not None:
        yield "profiled", side.profile.serving


def _lane(wanted: str, variant: VariantEvidence) -> Check:
    name, accepted = "required_lane", LANES[: LANES.index(wanted) + 1]
    served = list(_servings(variant))
    if not served:
        return _check(name, "MISSING", f"{variant.variant} was not served")
    for how, serving in served:
        lane = serving.lane
        if lane.name not in accepted:
            return _check(
                name,
                "NOT COMPARABLE",
                f"{variant.variant} was {how} on the {lane.name} lane ({lane.reason}), and the "
                f"policy wants {wanted}",
            )
    return _check(name, "PASS", f"served on the {served[0][1].lane.name} lane")


def _hardware(wanted: str, evidence: Evidence, variant: VariantEvidence) -> Check:
    name = "required_hardware"
    if not list(_servings(variant)):
        return _check(name, "MISSING", f"{variant.variant} was not served")
    for side in (variant, evidence.reference(variant)):
        for how, serving in _servings(side):
            place = serving.hardware
            # A machine with GPUs is called by them, and llama.cpp here computes beside them.
            beside = serving.engine == "llamacpp" and " (sm" in place
            if beside or not named(wanted, place):
                place = f"the processor beside {place}" if beside else place
                return _check(
                    name,
                    "NOT COMPARABLE",
                    f"{side.variant} was {how} on {place}, and the policy wants {wanted}",
                )
    return _check(name, "PASS", f"served on {wanted}")


def tripwire(wire: Tripwire, evidence: Evidence, variant: VariantEvidence) -> Check:
    """One figure of the divergence from the reference, over all positions."""
    found = _stats(evidence, variant)
    value = None if isinstance(found, Refusal) else _figure(wire, found)
    status: CheckStatus
    if isinstance(found, Refusal):
        status, said = found.status, found.sentence
    elif value is None or not math.isfinite(value):
        status, said, value = "MISSING", f"it is {value}", None
    else:
        above = wire.warn_above is not None
        status = "WARN" if (value > wire.limit if above else value < wire.limit) else "NOT TRIPPED"
        beyond = f"{'more' if above else 'less'} than {wire.limit:.4g}"
        said = (
            f"{value:.4g} against {reference_name(variant)} over {found.tokens} tokens, where "
            f"{beyond} is worth a look; it decides nothing"
        )
    return Check(
        name=wire.metric,
        kind="divergence",
        tier="advisory",
        status=status,
        sentence=f"{wire.metric}: {said}.",
        value=value,
        limit=wire.limit,
        n=None if isinstance(found, Refusal) else found.tokens,
        details={"metric": wire.metric},
    )


def _figure(wire: Tripwire, found: DivergenceStats) -> float | None:
    if wire.metric == "same_top":
        return found.same_top
    return found.kld_mean if wire.metric == "kld_mean" else found.kld.get(_PERCENTILES[wire.metric])


def _stats(evidence: Evidence, variant: VariantEvidence) -> DivergenceStats | Refusal:
    if variant.evaluation is None:
        return missing(variant, "evaluate", "was not evaluated")
    wrong = wrong_weights(evidence, variant, variant.evaluation.serving)
    if wrong:
        return wrong
    found = variant.divergence
    if found is None:
        return Refusal("MISSING", f"no divergence of {variant.variant} was recorded")
    if (found.variant, found.reference) != (variant.variant, variant.reference):
        return Refusal(
            "NOT COMPARABLE",
            f"the record of {variant.variant} against {variant.reference} is of {found.variant} "
            f"against {found.reference}",
        )
    if found.overall is None:
        why = found.unavailable or "there was nothing to compare"
        if why.startswith("NOT COMPARABLE: "):
            return Refusal("NOT COMPARABLE", why.removeprefix("NOT COMPARABLE: "))
        return Refusal("MISSING", why)
    return found.overall
