"""Two runs of the same weights, paired: what another engine version or machine does to them. Pure.

The earlier run's answers stand for the baseline's. Everything that must be equal for two results to
pair must be equal here, too (suite, prompts, targets, sampling, template, tokenizer, dtype, context
length, flags), and the weights besides, with every other file an engine reads beside them. Only the
engine's version and the hardware may differ: they are what is asked about, and each verdict says
how they do.

Waivers and objective of a policy are of a run's own verdict and are left aside. So are checks of
`weight_bytes`, as equal weights have equal sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from workbench.evidence import Evidence, VariantEvidence, weights_of
from workbench.records import Record, Serving
from workbench.spec import Policy

R = TypeVar("R", bound=Record)
_TOLD = ("calibration.json", "LICENSE")


def across(
    before: Evidence, after: Evidence, label: str, variants: Sequence[str] = ()
) -> tuple[Evidence, tuple[str, ...]]:
    """What a verdict on the later run against the earlier one rests on.

    Args:
        before: of the earlier run.
        after: of the later one.
        label: what the earlier run is called.
        variants: of the later run; empty means all, the unquantized ones included.

    Returns:
        The evidence, and what of the runs is not compared, in words.
    """
    digests = {side.variant: weights_of(before, side) for side in before.sides}
    judged = [s for s in after.sides if not variants or s.variant in variants]
    partners = {s.variant: _partner(s.variant, weights_of(after, s), digests) for s in judged}
    names = {side.variant: f"{side.variant} of run {label}" for side in before.sides}
    references = []
    for side in before.sides:
        rows = before.second_pass(side)
        references.append(replace(_named(side, names[side.variant]), repeat_rows=rows))
    left = [name for name in digests if name not in partners.values()]
    aside = (f"not compared, only of run {label}: {', '.join(left)}",) if left else ()
    unfinished = [
        f"{kind}:{names[name]}" if name in names else f"{step} of run {label}"
        for step in before.unfinished
        for kind, _, name in (step.partition(":"),)
    ]
    evidence = Evidence(
        run=after.run,
        recipe=after.recipe,
        recipe_digest=after.recipe_digest,
        checkpoint=after.checkpoint,
        # Nothing is paired with it: each side has the same side of the earlier run.
        baseline=VariantEvidence("", "none"),
        variants=tuple(
            replace(s, reference=names.get(partners[s.variant], f"{s.variant} of run {label}"))
            for s in judged
        ),
        references=tuple(references),
        doubts=(*after.doubts, *(f"run {label}: {doubt}" for doubt in before.doubts)),
        unfinished=(*after.unfinished, *unfinished),
        across=label,
        apart=_apart(before, after, partners),
    )
    return evidence, aside


def applied(policy: Policy) -> tuple[Policy, tuple[str, ...]]:
    """What of a policy counts between two runs, and what does not, in words."""
    size = tuple(check for check in policy.size if check.metric != "weight_bytes")
    said = []
    if len(size) < len(policy.size):
        said.append("weight_bytes is not checked: what is compared has the same weights")
    if policy.waivers:
        said.append("the policy's waivers are of a run's own verdict and do not count here")
    other = policy.model_copy(update={"size": size, "waivers": (), "objective": None})
    return other, tuple(said)


def differences(evidence: Evidence, variant: VariantEvidence) -> str:
    """How the two runs differ where they may: versions, hardware, lane; for a sentence."""
    one, other = (serving(side) for side in (evidence.reference(variant), variant))
    if one is None or other is None:
        return ""
    engines = [f"{side.engine} {side.engine_version}" for side in (one, other)]
    told = [
        f"{what} {old} -> {new}"
        for what, old, new in (
            (f"{other.engine} version", one.engine_version, other.engine_version)
            if one.engine == other.engine
            else ("engine", *engines),
            ("hardware", one.hardware, other.hardware),
            ("lane", one.lane.name, other.lane.name),
            ("environment", one.environment[:8], other.environment[:8]),
        )
        if old != new
    ]
    return ", ".join(told) or "engine version and hardware are the same"


def serving(side: VariantEvidence) -> Serving | None:
    """How a side was served, by what was measured of it; None where nothing was."""
    measured = side.evaluation or side.profile
    return measured.serving if measured else None


def _apart(before: Evidence, after: Evidence, partners: dict[str, str]) -> dict[str, str]:
    """Variant -> the first file that is another one in the earlier run."""
    earlier = {side.variant: side for side in before.sides}
    found = {}
    for side in after.sides:
        other = earlier.get(partners.get(side.variant, ""))
        one = _files(after, side)
        two = _files(before, other) if other else None
        if one is None or two is None:
            continue
        odd = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        if odd:
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            found[side.variant] = (
                f"{odd[0]} of {side.variant}{more}, while the weights are the same"
            )
    return found


def _files(evidence: Evidence, side: VariantEvidence) -> dict[str, str] | None:
    """Digests of the files that decide what a side answers; None where nobody recorded them."""
    if side is evidence.baseline:
        files = evidence.checkpoint.files
    elif side.manifest:
        files = side.manifest.files
    else:
        return None
    # Of what they were made is told beside them, and changes no answer.
    return {name: of for name, of in files.items() if name not in _TOLD and name[-3:] != ".md"}


def _partner(name: str, weights: str | None, before: dict[str, str | None]) -> str:
    """The earlier run's side of the same weights, of the same name where there is a choice."""
    same = [n for n, digest in before.items() if digest is not None and digest == weights]
    return name if name in same or not same else same[0]


def _named(side: VariantEvidence, name: str) -> VariantEvidence:
    """A side under another name; a record of somebody else keeps the name that gives it away."""

    def called(record: R | None) -> R | None:
        if record is None or getattr(record, "variant", None) != side.variant:
            return record
        return record.model_copy(update={"variant": name})

    return replace(
        side,
        variant=name,
        manifest=called(side.manifest),
        evaluation=called(side.evaluation),
        profile=called(side.profile),
    )
