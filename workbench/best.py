"""The best of the variants that are GO, by the policy's objective. Pure.

    smallest  fewest bytes of weights on disk
    fastest   most output tokens/s, as the geometric mean over the closed loops that all of them
              were measured at: at a fixed concurrency the inverse of the time a request takes
    cheapest  fewest machine hours for a million output tokens, each workload at its best
              concurrency, the mean over workloads: whatever an hour of the machine costs

At equal quality: a GO has shown that its losses are within the policy's margins. A variant that is
GO WITH WAIVER has not, and is never the best. What was not measured where it ships (an emulated
lane, another machine) is not compared, and the sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from workbench.evidence import Evidence, Refusal, VariantEvidence
from workbench.measured_checks import Load, quietness_of, throughputs
from workbench.objective import Best, Objective
from workbench.quiet import believed
from workbench.records import VariantVerdict
from workbench.words import listed

_MILLION_HOURS = 1e6 / 3600


def best(
    objective: Objective | None, evidence: Evidence, judged: Sequence[VariantVerdict]
) -> Best | None:
    """The best GO variant with its reason; None where the policy has no objective.

    Args:
        objective: of the policy.
        evidence: the records the verdicts rest on.
        judged: the verdicts.
    """
    if objective is None:
        return None
    verdicts = {v.variant: v.verdict for v in judged}
    go = [v for v in evidence.variants if verdicts.get(v.variant) == "GO"]
    if not go:
        waived = [name for name, verdict in verdicts.items() if verdict == "GO WITH WAIVER"]
        aside = f"; {listed(waived)} may ship with a waiver alone" if waived else ""
        return Best(objective=objective, variant=None, reason=f"no variant is GO{aside}.")
    if objective == "smallest":
        sizes = {v.variant: v.manifest.weight_bytes for v in go if v.manifest}
        words = {name: f"{size / 1e6:.1f} MB of weights" for name, size in sizes.items()}
        return _least(objective, sizes, words, len(go), "")
    return _quickest(objective, evidence, go)


def _quickest(objective: Objective, evidence: Evidence, go: Sequence[VariantEvidence]) -> Best:
    speeds: dict[str, Mapping[Load, float]] = {}
    left_out: list[str] = []
    for variant in go:
        found = throughputs(evidence, variant)
        if isinstance(found, Refusal):
            left_out.append(f"{variant.variant} ({found.sentence})")
        else:
            speeds[variant.variant] = found
    aside = f"; not compared: {', '.join(left_out)}" if left_out else ""
    compared = [v for v in go if v.variant in speeds]
    common = sorted(set.intersection(*map(set, speeds.values()))) if speeds else []
    machines = {v.profile.serving.hardware for v in compared if v.profile}
    if not common or len(machines) > 1:
        why = "no load was measured on all of them"
        if len(machines) > 1:
            why = "they were measured on different machines"
        if not speeds:
            why, aside = f"none has figures of speed: {', '.join(left_out)}", ""
        reason = f"the {len(go)} GO variants cannot be compared, {why}{aside}."
        return Best(objective=objective, variant=None, reason=reason)
    over = f"over {len(common)} closed loops" if len(common) > 1 else "at the one closed loop"
    if objective == "fastest":
        figures = {
            name: math.exp(-math.fsum(math.log(of[load]) for load in common) / len(common))
            for name, of in speeds.items()
        }
        words = {name: f"{1 / value:,.1f} output tokens/s" for name, value in figures.items()}
        aside = f" ({over}){aside}"
    else:
        figures = {name: _hours(of, common) for name, of in speeds.items()}
        words = {name: f"{value:,.2f} machine hours" for name, value in figures.items()}
        aside = f" for a million output tokens ({over}){aside}"
    _, noise = believed("PASS", *(q for v in compared for q in quietness_of(v, common)))
    return _least(objective, figures, words, len(go), aside + (f"; {noise}" if noise else ""))


def _hours(speeds: Mapping[Load, float], loads: Sequence[Load]) -> float:
    most: dict[str, float] = {}
    for load in loads:
        most[load[0]] = max(most.get(load[0], 0.0), speeds[load])
    return _MILLION_HOURS * math.fsum(1 / speed for speed in most.values()) / len(most)


def _least(
    objective: Objective,
    figures: Mapping[str, float],
    words: Mapping[str, str],
    go: int,
    aside: str,
) -> Best:
    """The variant of the least figure; of equal ones the first in the recipe's order."""
    first, *others = sorted(figures, key=lambda name: figures[name])
    if go == 1:
        reason = f"{first} is the only GO variant: {words[first]}{aside}."
    elif not others:
        reason = f"{first} is the {objective} of {go} GO variants: {words[first]}{aside}."
    else:
        equal = [name for name in others if figures[name] == figures[first]]
        tied = f"; {listed(equal)} no worse, {first} is listed first" if equal else ""
        reason = (
            f"{first} is the {objective} of {go} GO variants: {words[first]}, "
            f"{others[0]} {words[others[0]]}{aside}{tied}."
        )
    return Best(objective=objective, variant=first, reason=reason)
