"""The checks of what was measured on a server or a disk, as `workbench.checks` has the rest. Pure.

performance  a ratio to the baseline, or an absolute target, of one figure of the profile; measured
three times or more it has an interval (`workbench.repeat_interval`), and where the limit lies
within it neither PASS nor FAIL is shown: INCONCLUSIVE. An absolute p95 must also be within the
limit by the order statistics of its requests (`workbench.load_intervals`). With fewer repeats
nothing says how they vary, so the figure itself decides, as the sentence says
size         bytes of weights against the unquantized checkpoint's, peak memory, or tokens the KV
             cache has room for; what is a limit and no ratio needs no baseline

`workbench.served_checks` has what is known of a load with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from workbench.checks import reference_name
from workbench.evidence import (
    Evidence,
    Refusal,
    VariantEvidence,
    alike,
    missing,
    not_the_same,
    wrong_weights,
)
from workbench.load_intervals import percentile_figure
from workbench.load_records import LoadSummary, Quiet
from workbench.measured_when import apart, span
from workbench.paired import first_difference
from workbench.quiet import believed, briefly, of_side
from workbench.records import Check, CheckStatus, LoadPoint, Profile
from workbench.repeat_interval import repeat_interval
from workbench.spec import PerformanceCheck, SizeCheck

#: Fewer completed requests than this say nothing about a median, let alone a p95.
MIN_REQUESTS = 8

#: A closed loop: workload and concurrency.
Load = tuple[str, int]


def performance_name(check: PerformanceCheck) -> str:
    """What a check of one figure of the profile is called: a ratio is not the target beside it."""
    relative = check.max_ratio is not None or check.min_ratio is not None
    return f"{check.metric} {check.workload} x{check.concurrency}{' ratio' * relative}"


def performance(check: PerformanceCheck, evidence: Evidence, variant: VariantEvidence) -> Check:
    """One figure of the profile, as a ratio to the baseline's or against an absolute target."""
    name = performance_name(check)
    relative = check.max_ratio is not None or check.min_ratio is not None
    limit = next(
        x
        for x in (check.max_ratio, check.min_ratio, check.max_value, check.min_value)
        if x is not None
    )
    details: dict[str, Any] = {
        "metric": check.metric,
        "workload": check.workload,
        "concurrency": check.concurrency,
        "relative": relative,
    }

    def answer(status: CheckStatus, sentence: str, **values: Any) -> Check:
        return Check(
            name=name,
            kind="performance",
            tier=check.tier,
            status=status,
            sentence=f"{name}: {sentence}.",
            limit=limit,
            details=details,
            **values,
        )

    refusal = profiles(evidence, variant, relative)
    if refusal:
        return answer(refusal.status, refusal.sentence)
    figures: list[float] = []
    requests: list[int] = []
    reference = measured_reference(evidence, variant)
    sides = (variant, reference) if relative else (variant,)
    for side in sides:
        found = _figure(side, check)
        if isinstance(found, Refusal):
            return answer(found.status, found.sentence)
        point, figure = found
        figures.append(figure)
        requests.append(point.completed)
    details["variant_value"] = figures[0]
    count, when = min(requests), ""
    if relative and variant.profile and reference.profile:
        # Where it was one server at a time, what drifts between the two is in the ratio.
        if when := apart(variant.profile, reference.profile):
            details["measured"] = {p.variant: span(p) for p in (variant.profile, reference.profile)}
            when = f"; {when}"
        details["baseline_value"] = figures[1]
        if figures[1] <= 0:
            return answer(
                "INCONCLUSIVE", f"{reference_name(variant)}'s figure is 0, so there is no ratio"
            )
    value = figures[0] / figures[1] if relative else figures[0]
    lower_is_better = check.max_ratio is not None or check.max_value is not None
    good = value <= limit if lower_is_better else value >= limit
    unit = "ms" if "_ms_" in check.metric else "output tokens/s"
    what = f"{value:.3g} times {reference_name(variant)}'s" if relative else f"{value:.4g} {unit}"
    bound = "at most" if lower_is_better else "at least"
    loads = [load for side in sides for load in _loads(side, check)]
    claim: CheckStatus = "PASS" if good else "FAIL"
    values: dict[str, Any] = {"value": value, "n": count}
    said = ""
    if limits := _limits(value, check, [_loads(side, check) for side in sides]):
        values["low"], values["high"] = limits
        said = f"; by its repeats {limits[0]:.3g} to {limits[1]:.3g}, each with 95 % confidence"
        # As of a loss: an upper limit on the margin is within it, a lower one is not beyond it.
        if limits[0] <= limit < limits[1] if lower_is_better else limits[0] < limit <= limits[1]:
            claim = "INCONCLUSIVE"
            said += f", so {limit:.4g} is neither kept nor broken: more repeats would settle it"
            details["matter"] = f"{limit:.4g} lies between {limits[0]:.3g} and {limits[1]:.3g}"
        if not relative and check.metric.endswith("_p95") and claim == "PASS":
            # In a ratio both sides are too low alike; alone, a p95 of few requests is just too low.
            pooled, doubt = percentile_figure(loads[0], check.metric)
            if pooled.high is not None and pooled.high > limit and not doubt:
                doubt = f"by its requests it may be {pooled.high:.4g}"
            if doubt:
                claim, said = "INCONCLUSIVE", f"{said}, but {doubt}"
                details["matter"] = doubt
    quiets = [(side.variant, load.quiet) for side in sides for load in _loads(side, check)]
    status, noise = believed(claim, *(of_side(*one) if relative else one[1] for one in quiets))
    if status != claim:
        details["matter"] = briefly(noise)
    runs = min((load.repeats for load in loads), default=1)
    of = "a single run" if runs == 1 else f"{runs} runs with a total"
    return answer(
        status,
        f"{what}, where {bound} {limit:.4g} is accepted ({of} of {count} requests)"
        + said
        + (f"; {noise}" if noise else "")
        + when,
        **values,
    )


def measured_reference(evidence: Evidence, variant: VariantEvidence) -> VariantEvidence:
    """The side whose profile a variant's is held against.

    Its reference; as it was measured in turn with the variant, where the recipe alternates. Of two
    runs, each of which may have done so, the earlier one's.
    """
    reference = evidence.reference(variant)
    beside = variant.profile.beside if variant.profile and not evidence.across else None
    return replace(reference, profile=beside) if beside else reference


def _limits(
    value: float, check: PerformanceCheck, loads: list[list[LoadSummary]]
) -> tuple[float, float] | None:
    """The interval over repeats; None where a side has too few, or an old record holds none."""
    repeats = [side[0].by_repeat.get(check.metric, ()) for side in loads if len(side) == 1]
    if len(repeats) < len(loads):
        return None
    return repeat_interval(value, repeats[0], repeats[1] if len(repeats) > 1 else None)


def _loads(side: VariantEvidence, check: PerformanceCheck) -> list[LoadSummary]:
    """What is known of the load a check reads, beside its figures; old profiles hold nothing."""
    return _summaries(side, (check.workload, check.concurrency))


def _summaries(side: VariantEvidence, load: Load) -> list[LoadSummary]:
    arrivals = {"arrivals": "closed", "concurrency": load[1]}
    return [
        found
        for found in (side.profile.loads if side.profile else ())
        if found.workload == load[0] and found.arrivals == arrivals
    ]


def throughputs(evidence: Evidence, variant: VariantEvidence) -> dict[Load, float] | Refusal:
    """Output tokens/s of each closed loop a performance check could read."""
    if refusal := profiles(evidence, variant, relative=False):
        return refusal
    found: dict[Load, float] = {}
    for at in variant.profile.points if variant.profile else ():
        check = PerformanceCheck(
            metric="output_tokens_per_s",
            workload=at.workload,
            concurrency=at.concurrency,
            min_value=1.0,
        )
        figure = _figure(variant, check)
        if not isinstance(figure, Refusal) and figure[1] > 0:
            found[at.workload, at.concurrency] = figure[1]
    return found or Refusal("MISSING", f"no load was measured whole on {variant.variant}")


def quietness_of(side: VariantEvidence, loads: Iterable[Load]) -> list[Quiet]:
    """How quiet the machine was at each of the loads, as far as it is known."""
    return [summary.quiet for load in loads for summary in _summaries(side, load)]


def _figure(side: VariantEvidence, check: PerformanceCheck) -> tuple[LoadPoint, float] | Refusal:
    assert side.profile is not None
    found = [
        p
        for p in side.profile.points
        if p.workload == check.workload and p.concurrency == check.concurrency
    ]
    if len(found) != 1:
        return Refusal("MISSING", f"{side.variant} was not measured at that load")
    point, figure = found[0], getattr(found[0], check.metric)
    asked = point.completed + point.failed
    if figure is None or point.completed == 0:
        return Refusal("MISSING", f"none of {side.variant}'s {asked} requests completed")
    if not math.isfinite(figure):
        return Refusal("MISSING", f"{side.variant}'s figure is {figure}, which is no measurement")
    if point.failed:
        return Refusal(
            "INCONCLUSIVE",
            f"{point.failed} of {side.variant}'s {asked} requests failed, and the figures of the "
            "others would flatter it",
        )
    if point.completed < MIN_REQUESTS:
        return Refusal(
            "INCONCLUSIVE",
            f"{side.variant} completed {point.completed} requests, fewer than {MIN_REQUESTS}",
        )
    return point, float(figure)


def profiles(evidence: Evidence, variant: VariantEvidence, relative: bool) -> Refusal | None:
    """Refuse profiles that are missing, emulated, of other weights, or not alike."""
    reference = measured_reference(evidence, variant)
    for side in (variant, reference) if relative else (variant,):
        profile = side.profile
        if profile is None:
            return missing(side, "profile", "was not profiled")
        if profile.variant != side.variant:
            return Refusal(
                "NOT COMPARABLE", f"the profile of {side.variant} is of {profile.variant}"
            )
        if profile.serving.lane.name == "emulated":
            return Refusal(
                "NOT COMPARABLE",
                "emulated lane: speed and memory cannot be measured on a dequantized twin",
            )
        wrong = wrong_weights(evidence, side, profile.serving)
        if wrong:
            return wrong
    if relative and variant.profile and reference.profile:
        if refusal := not_the_same(evidence, variant, reference.profile):
            return refusal
        settings = (alike(evidence, _setting(s)) for s in (reference.profile, variant.profile))
        difference = first_difference(*settings)
        if difference:
            return Refusal("NOT COMPARABLE", f"the profiles were not made alike: {difference}")
    return None


def _setting(profile: Profile) -> dict[str, Any]:
    serving = profile.serving
    return {
        "engine": serving.engine,
        "engine_version": serving.engine_version,
        "hardware": serving.hardware,
        "max_model_len": serving.max_model_len,
    }


def size(check: SizeCheck, evidence: Evidence, variant: VariantEvidence) -> Check:
    """Bytes of weights, which any lane knows; peak memory and KV tokens the emulated one does not.

    A ratio is to the baseline's; the baseline need not be there for a limit in bytes or tokens.
    """
    details: dict[str, Any] = {"metric": check.metric}

    def answer(status: CheckStatus, sentence: str, **values: Any) -> Check:
        return Check(
            name=check.metric,
            kind="size",
            tier=check.tier,
            status=status,
            sentence=f"{check.metric}: {sentence}.",
            limit=check.limit,
            details=details,
            **values,
        )

    found = _SIZES[check.metric](evidence, variant, check.relative)
    if isinstance(found, Refusal):
        return answer(found.status, found.sentence)
    size, baseline = found
    unit = "tokens" if check.metric == "kv_cache_tokens" else "bytes"
    details["variant_value"] = size
    if baseline is None:
        return _absolute(check, size, unit, answer)
    details["baseline_value"] = baseline
    if baseline <= 0 or size <= 0:
        return answer("MISSING", f"a size of 0 {unit} was recorded, so there is no ratio")
    value = size / baseline
    # Bytes on disk are compared with the checkpoint's own, whatever engine serves the variant.
    whose = "the baseline" if check.metric == "weight_bytes" else reference_name(variant)
    if check.min_ratio is not None:
        good, bound, sizes = value >= check.limit, "at least", f"{size:,} of {baseline:,} tokens"
    else:
        good, bound = value <= check.limit, "at most"
        sizes = f"{size / 1e6:.1f} of {baseline / 1e6:.1f} MB"
    return answer(
        "PASS" if good else "FAIL",
        f"{value:.3g} times {whose}'s ({sizes}), where {bound} {check.limit:.4g} is accepted",
        value=value,
    )


def _absolute(check: SizeCheck, size: int, unit: str, answer: Callable[..., Check]) -> Check:
    """A size against a limit of its own unit."""
    if size <= 0:
        return answer("MISSING", f"a size of 0 {unit} was recorded")
    if unit == "tokens":
        good, bound = size >= check.limit, "at least"
        said, limit = f"{size:,} tokens", f"{check.limit:,.0f}"
    else:
        good, bound = size <= check.limit, "at most"
        said, limit = f"{size / 1e6:,.1f} MB", f"{check.limit / 1e6:,.1f}"
    status: CheckStatus = "PASS" if good else "FAIL"
    return answer(status, f"{said}, where {bound} {limit} is accepted", value=float(size))


#: A variant's size, and the baseline's where it is asked for.
_Sizes = tuple[int, int | None] | Refusal


def _weight_bytes(evidence: Evidence, variant: VariantEvidence, relative: bool) -> _Sizes:
    if variant.manifest is None:
        return missing(variant, "quantize", "has no manifest, so its size is unknown")
    return variant.manifest.weight_bytes, evidence.checkpoint.weight_bytes if relative else None


def _kv_tokens(evidence: Evidence, variant: VariantEvidence, relative: bool) -> _Sizes:
    refusal = profiles(evidence, variant, relative)
    if refusal:
        return refusal
    tokens = []
    for side in (variant, measured_reference(evidence, variant)) if relative else (variant,):
        found = side.profile.serving.kv_cache_tokens if side.profile else None
        if found is None:
            return Refusal("MISSING", f"{side.variant}'s engine did not say how many it has")
        tokens.append(found)
    return tokens[0], tokens[1] if relative else None


def _peak_bytes(evidence: Evidence, variant: VariantEvidence, relative: bool) -> _Sizes:
    refusal = profiles(evidence, variant, relative)
    if refusal:
        return refusal
    ours, theirs = variant.profile, measured_reference(evidence, variant).profile
    if ours is not None and not relative:
        alone = ours.peak_memory_bytes if ours.peak_gpu_bytes is None else ours.peak_gpu_bytes
        return (
            Refusal("MISSING", "peak memory was not measured") if alone is None else (alone, None)
        )
    assert ours is not None and theirs is not None
    # Device memory where both have it: on a GPU the process's own memory is beside the point.
    for one, other in (
        (ours.peak_gpu_bytes, theirs.peak_gpu_bytes),
        (ours.peak_memory_bytes, theirs.peak_memory_bytes),
    ):
        if one is not None and other is not None:
            return one, other
    return Refusal("MISSING", "peak memory was not measured on both")


_SIZES: dict[str, Callable[[Evidence, VariantEvidence, bool], _Sizes]] = {
    "weight_bytes": _weight_bytes,
    "peak_memory_bytes": _peak_bytes,
    "kv_cache_tokens": _kv_tokens,
}
