"""The verdict: from records and a policy to GO, NO-GO or INCONCLUSIVE, failing closed.

A variant is NO-GO when any gated check fails, GO when every gated check passes, and INCONCLUSIVE
otherwise; critical and supporting checks are gated, advisory ones are shown. Where nothing is the
matter but FAILs that a waiver in force names, it is GO WITH WAIVER (`workbench.waiving`), unless
all that is gated is waived: then nothing was shown. Nothing gated is never
GO. That the produced files are what they claim to be is gated always, whatever the policy says, and
is not enough for a GO by itself, nor is where it ran, nor are size and speed without a gated check
of quality; nor is anything while a step of the variant is still to do. What is too good to be true
(ANOMALOUS) is not settled either.
Several checks must all pass, so no correction for multiplicity is needed to keep the rate of false
GOs: it can only be lower than that of a single check. A FAIL is the other way round, one of many is
enough, so each has its p adjusted beside it (`workbench.holm`), on which no verdict depends.

The checks themselves are in `workbench.checks`, what may be paired in `workbench.evidence`. Nothing
here reads a clock or a disk: the same records, policy and day give the same bytes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any

from workbench import checks as checking
from workbench import items, noise, sensitivity, waiving
from workbench import limit_checks as limiting
from workbench import measured_checks as measuring
from workbench import required_checks as requiring
from workbench import served_checks as serving
from workbench.across import differences
from workbench.base import BASELINE
from workbench.best import best
from workbench.digest import content_id
from workbench.evidence import Evidence, VariantEvidence, weights_of
from workbench.holm import adjusted
from workbench.load_figures import profiles_of
from workbench.records import FAKE, MAY_SHIP, Check, Gate, Record, VariantVerdict, Verdict
from workbench.spec import Policy

#: The beginning of a warning, behind the suite's name, and how many variants it names.
RESCORED = "re-scored: targets or scorer changed after the answers were in; "
_SIDES = 5
#: The beginning of the warning that steps are still to do.
UNFINISHED = "the run is not finished"
#: Steps still to do that are named; the rest is counted.
_STEPS = 5
#: Why nothing ships by its size and its speed.
UNJUDGED = "no quality check is gated: size and speed alone do not show that it may ship"
#: Sizes that are measured and not counted.
_MEMORY = ("peak_memory_bytes", "kv_cache_tokens")
#: Characters of one check's reason in the sentence of a verdict; the table of checks has it whole.
_LONGEST = 160

__all__ = ["Evidence", "VariantEvidence", "decide", "timings_aside"]


def decide(
    policy: Policy,
    evidence: Evidence,
    *,
    policy_digest: str,
    id_: str,
    on: datetime.date | None = None,
    what_if: Sequence[str] = (),
) -> Gate:
    """Judge every variant of a run.

    Args:
        policy: what a variant must show.
        evidence: the records of the run; what is missing stays missing and is never a pass.
        policy_digest: of the policy file, for the record.
        id_: content id of the gate step, for the record.
        on: the day by which waivers expire, UTC; without one no waiver counts.
        what_if: how the policy differs from the run's own.
    """
    spreads = sensitivity.spreads(policy, evidence)
    judged = adjusted([_judge(policy, evidence, v, on) for v in evidence.variants])
    return Gate(
        id=id_,
        run=evidence.run,
        recipe=evidence.recipe,
        recipe_digest=evidence.recipe_digest,
        policy=policy.name,
        policy_digest=policy_digest,
        inputs=_inputs(policy, evidence),
        variants=judged,
        noise_floor=noise.floors(evidence, evidence.baseline),
        reference_noise={r.variant: noise.floors(evidence, r) for r in evidence.references},
        sensitivity=spreads,
        warnings=(
            *_warnings(policy, evidence),
            *waiving.remarks(policy.waivers, judged, on),
            *sensitivity.warnings(spreads),
        ),
        best=best(policy.objective, evidence, judged),
        what_if=tuple(what_if),
        compared_with=evidence.across,
        date=on.isoformat() if on and policy.waivers else "",
    )


def timings_aside(gate: Gate) -> dict[str, Any]:
    """The part of a gate that measuring again on the same weights must give again.

    Leaves out speed and memory: performance checks, memory checks, digests of profiles, and the
    reasons that quote them. Verdicts stay.
    """
    data = gate.model_dump(mode="json", by_alias=True)
    del data["id"], data["date"]  # the id covers the measured times
    if data["best"] and data["best"]["objective"] != "smallest":
        data["best"] = None
    # Asked again, the answers are judged as they are, and there is nothing to tell.
    data["warnings"] = [w for w in data["warnings"] if RESCORED not in w]
    data["inputs"] = {k: v for k, v in data["inputs"].items() if not k.endswith("/profile")}
    for variant in data["variants"]:
        del variant["reason"]
        variant["checks"] = [
            c
            for c in variant["checks"]
            if c["kind"] != "performance" and c["details"].get("metric") not in _MEMORY
        ]
    return data


def _inputs(policy: Policy, evidence: Evidence) -> dict[str, str]:
    found: dict[str, str] = {}
    replicas = [one for group in evidence.replicas.values() for one in group]
    for side in (*evidence.sides, *replicas):
        weights = weights_of(evidence, side)
        if weights:
            found[f"{side.variant}/weights"] = weights
        if side.evaluation:
            for result in side.evaluation.suites:
                found[f"{side.variant}/eval/{result.suite}"] = result.rows_digest
            for result in side.evaluation.repeat:
                found[f"{side.variant}/repeat/{result.suite}"] = result.rows_digest
        for name, profile in profiles_of(side):
            measured = {"points", "peak_memory_bytes", "peak_gpu_bytes"}
            found[f"{name}/profile"] = _digest(profile, measured)
        if side.divergence and policy.tripwires:
            found[f"{side.variant}/divergence"] = _digest(side.divergence)
    return found


def _digest(record: Record, include: set[str] | None = None) -> str:
    """Of a record as it stands in its file, where what is no number is null."""
    return content_id(json.loads(record.model_dump_json(include=include)))


def _warnings(policy: Policy, evidence: Evidence) -> tuple[str, ...]:
    served = [v.evaluation.serving for v in evidence.sides if v.evaluation]
    fake = {"fake"} & ({s.engine for s in served} | {v.method for v in evidence.variants})
    return (
        *((FAKE,) if fake else ()),
        *_unfinished(evidence),
        *_ungated(policy, evidence),
        *evidence.doubts,
        *_rescored(evidence),
    )


def _unfinished(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.unfinished:
        return ()
    return (
        f"{UNFINISHED}: {_listed(evidence.unfinished)} still to do; workbench run with its recipe "
        "finishes it",
    )


def _listed(steps: Sequence[str]) -> str:
    more = f" and {len(steps) - _STEPS} more" if len(steps) > _STEPS else ""
    return ", ".join(steps[:_STEPS]) + more


def _todo(evidence: Evidence, variant: VariantEvidence) -> list[str]:
    """Steps still to do that a verdict on this variant would have to know."""
    replicas = (one.variant for one in evidence.replicas.get(variant.variant, ()))
    names = {"", BASELINE, variant.reference, variant.variant, *replicas}
    return [step for step in evidence.unfinished if step.partition(":")[2] in names]


def _ungated(policy: Policy, evidence: Evidence) -> tuple[str, ...]:
    """Suites that call themselves critical and that no verdict here speaks of."""
    gating = {check.suite for check in policy.quality if check.tier != "advisory"}
    sides = [side.evaluation for side in evidence.unquantized if side.evaluation]
    asked = {result.suite: result for one in sides for result in one.suites}
    loose = [
        f"'{result.suite}'"
        for result in asked.values()
        if result.tier == "critical" and result.source == "suite" and result.suite not in gating
    ]
    if not loose:
        return ()
    return (
        f"{', '.join(loose)}: critical by {'its' if len(loose) == 1 else 'their'} own suite.yaml, "
        "and the policy gates no such check; whatever was lost there is in no verdict",
    )


def _rescored(evidence: Evidence) -> tuple[str, ...]:
    """One line for each suite whose scores are not those the answers got when they came in."""
    replicas = [one for group in evidence.replicas.values() for one in group]
    said: dict[str, list[str]] = {}
    for side in (*evidence.sides, *replicas):
        for suite, (before, now) in (side.evaluation.rescored if side.evaluation else {}).items():
            said.setdefault(suite, []).append(f"{side.variant} {_moved(before, now)}")
    return tuple(
        f"{suite} {RESCORED}{', '.join(sides[:_SIDES])}"
        + (f" and {len(sides) - _SIDES} more" if len(sides) > _SIDES else "")
        for suite, sides in said.items()
    )


def _moved(before: float | None, now: float | None) -> str:
    one, other = ("-" if s is None else f"{100 * s:.1f}" for s in (before, now))
    return f"{one} % as before" if one == other else f"{one} -> {other} %"


# --------------------------------------------------------------------------- one variant


def _judge(
    policy: Policy, evidence: Evidence, variant: VariantEvidence, on: datetime.date | None
) -> VariantVerdict:
    checks: tuple[Check, ...] = (
        # Across two runs the checkpoint itself is judged, too, and nobody here produced it.
        *(() if variant.variant == BASELINE else (checking.artifact(variant),)),
        *requiring.required(policy, evidence, variant),
        *(checking.quality(check, evidence, variant) for check in policy.quality),
        *(c for check in policy.quality for c in limiting.limits(check, evidence, variant)),
        *(measuring.performance(check, evidence, variant) for check in policy.performance),
        *(serving.latency(check, evidence, variant) for check in policy.latency),
        *(serving.goodput(check, evidence, variant) for check in policy.goodput),
        *(measuring.size(check, evidence, variant) for check in policy.size),
        *(requiring.tripwire(wire, evidence, variant) for wire in policy.tripwires),
    )
    names = [v.variant for v in evidence.variants]
    checks = waiving.waive(checks, variant.variant, names, policy.waivers, on)
    verdict, reason = _verdict(checks)
    if todo := _todo(evidence, variant):
        unfinished = f"{UNFINISHED} ({_listed(todo)} still to do)"
        if verdict in MAY_SHIP:
            verdict, reason = "INCONCLUSIVE", f"{unfinished}; of what is there, {reason}"
        elif verdict == "INCONCLUSIVE":
            reason = f"{unfinished}; {reason}"
    measured = variant.evaluation or variant.profile
    lane = measured.serving.lane if measured else None
    if verdict in MAY_SHIP and lane and lane.name == "emulated":
        reason += "; measured on a dequantized twin, so this says nothing about speed or memory"
    if evidence.across:
        told = differences(evidence, variant)
        reason += f"; {told}" if told else ""
    elif variant.reference != BASELINE:
        reason += f"; paired with {variant.reference}: the same checkpoint under the same engine"
    return VariantVerdict(
        variant=variant.variant,
        method=variant.method,
        verdict=verdict,
        reason=f"{reason}.",
        lane=lane,
        reference=variant.reference,
        checks=checks,
    )


def _verdict(checks: tuple[Check, ...]) -> tuple[Verdict, str]:
    gated = [c for c in checks if c.tier != "advisory"]
    failed = [c for c in gated if c.status == "FAIL"]
    waived = [c for c in failed if c.waiver]
    if len(waived) < len(failed):
        return "NO-GO", f"{_share(failed, gated)} {_do(failed, 'fails', 'fail')}: {_why(failed)}"
    if all(c.kind in ("artifact", "policy") for c in gated):
        return "INCONCLUSIVE", "nothing is gated: the policy has no critical or supporting check"
    does = f"{_do(waived, 'fails and is', 'fail and are')} waived: {_why(waived)}"
    open_ = [c for c in gated if c.status not in ("PASS", "FAIL")]
    if open_:
        settled = _do(open_, "is", "are")
        aside = f"; {len(waived)} {does}" if waived else ""
        return "INCONCLUSIVE", f"{_share(open_, gated)} {settled} not settled: {_why(open_)}{aside}"
    if waived and not any(
        c.status == "PASS" and c.kind not in ("artifact", "policy") for c in gated
    ):
        return "NO-GO", f"{_share(waived, gated)} {does}; with all of them waived nothing is shown"
    quality = [c for c in gated if c.kind == "quality"]
    if not quality:
        return "INCONCLUSIVE", UNJUDGED
    reason = (
        "the one gated check passes" if len(gated) == 1 else f"all {len(gated)} gated checks pass"
    )
    if waived:
        none = "" if any(c.status == "PASS" for c in quality) else ", and no quality check does"
        reason = f"{_share(waived, gated)} {does}; the others pass{none}"
    worse = [c for c in checks if c.tier == "advisory" and c.status == "FAIL"]
    if worse:
        reason += f"; advisory and not gated: {_names(worse)} {_do(worse, 'fails', 'fail')}"
    odd = [c for c in checks if c.tier == "advisory" and c.status in ("WARN", "ANOMALOUS")]
    if odd:
        reason += f"; worth a look: {_names(odd)}"
    return "GO WITH WAIVER" if waived else "GO", reason


def _share(some: list[Check], gated: list[Check]) -> str:
    return f"{len(some)} of {len(gated)} gated {'check' if len(gated) == 1 else 'checks'}"


def _do(items: list[Check], one: str, many: str) -> str:
    return one if len(items) == 1 else many


def _why(checks: Iterable[Check]) -> str:
    """Each check with the shortest text that says what is the matter with it."""
    return ", ".join(f"{c.name} ({_matter(c)}{_excused(c)})" for c in checks)


def _excused(check: Check) -> str:
    return f"; {waiving.waived_words(check.waiver)}" if check.waiver else ""


def _matter(check: Check) -> str:
    if check.kind == "artifact" and check.status == "FAIL":
        return ", ".join(name for name, status in check.details.items() if status == "FAIL")
    if check.status == "FAIL" and check.value is not None and check.limit is not None:
        if check.kind == "quality":
            value, limit = checking.points(check.value), checking.points(check.limit)
            return f"lost {value} points, {limit} accepted"
        return f"{_measured(check, check.value)}, {_limit(check, check.limit)} accepted"
    if check.kind == "quality" and check.status == "INCONCLUSIVE" and check.n is not None:
        return _unsettled(check, check.n)
    if matter := check.details.get("matter"):
        return str(matter)
    said = _said(check)
    why = said if check.status == "INCONCLUSIVE" else f"{check.status.lower()}: {said}"
    return why if len(why) <= _LONGEST else f"{why[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _measured(check: Check, value: float) -> str:
    """A figure that is too large or too small, with its unit where it is one of a profile's."""
    if check.kind != "performance":
        return f"{value:.3g}"
    metric = check.details["metric"]
    if check.details["relative"]:
        return f"{value:.3g} times its reference's"
    if metric == "goodput":
        return f"{100 * value:.3g} % of requests"
    return f"{value:.3g} {'ms' if '_ms_' in metric else 'output tokens/s'}"


def _limit(check: Check, limit: float) -> str:
    goodput = check.kind == "performance" and check.details["metric"] == "goodput"
    return f"{100 * limit:.3g} %" if goodput else f"{limit:.3g}"


def _said(check: Check) -> str:
    return check.sentence.removeprefix(f"{check.name}: ").rstrip(".")


def _unsettled(check: Check, n: int) -> str:
    details, only = check.details, checking.limited(check.details, n)
    if n < details["min_n"]:
        return f"{n} samples, {details['min_n']} wanted{only}"
    if "items_needed" not in details:
        return _said(check)
    if needed := details["items_needed"]:
        return (
            f"about {items.said(needed, n)} items instead of {n} would probably settle it as "
            f"{details['settles_as']}{only}"
        )
    return str(details["hardly"])


def _names(checks: Iterable[Check]) -> str:
    return ", ".join(c.name for c in checks)
