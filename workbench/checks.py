"""The checks of a policy, each from records to one status, one sentence and the numbers. Pure.

    quality      PASS where the one-sided upper limit of the paired loss is within the margin, FAIL
                 where the lower limit is beyond it, otherwise INCONCLUSIVE with the items it takes
    performance  a ratio to the baseline, or an absolute target, of one figure of the profile; one
                 run of few requests, so no interval yet, and the sentence says how many requests
    size         bytes of weights against the unquantized checkpoint's, or peak memory
    artifact     the produced files are what they claim to be; always on, no policy turns it off

"The baseline" of a variant is the unquantized one that the same engine serves: for a GGUF file the
checkpoint's own GGUF under llama.cpp (`Evidence.reference`). Sentences name it where it is another.

What cannot be checked is MISSING or NOT COMPARABLE, never a pass. Numbers are compared unrounded
and rounded only in sentences. How the statuses add up to a verdict is `workbench.gate`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench import noise, stats
from workbench.base import BASELINE
from workbench.evidence import (
    Evidence,
    Paired,
    Refusal,
    VariantEvidence,
    first_difference,
    missing,
    pair,
    wrong_weights,
)
from workbench.load_records import LoadSummary
from workbench.quiet import believed
from workbench.records import Check, CheckStatus, LoadPoint, Profile
from workbench.spec import PerformanceCheck, QualityCheck, SizeCheck

#: Nobody asks a suite of more samples than this to settle a check.
MOST_ITEMS = 100_000
#: Fewer completed requests than this say nothing about a median, let alone a p95.
MIN_REQUESTS = 8


def points(value: float, beside: float | None = None) -> str:
    """A share as percentage points, with as many decimals as tell it from another one."""
    for decimals in range(1, 9):
        text = f"{100 * value:.{decimals}f}"
        if beside is None or value == beside or text != f"{100 * beside:.{decimals}f}":
            break
    return text if float(text) else f"{0:.{decimals}f}"


def quality(check: QualityCheck, evidence: Evidence, variant: VariantEvidence) -> Check:
    """Non-inferiority of one suite, on the paired rows."""
    details: dict[str, Any] = {
        "suite": check.suite,
        "confidence": check.confidence,
        "min_n": check.min_n,
    }

    def answer(status: CheckStatus, sentence: str, **values: Any) -> Check:
        return Check(
            name=check.suite,
            kind="quality",
            tier=check.tier,
            status=status,
            sentence=f"{check.suite}: {sentence}.",
            limit=check.margin,
            details=details,
            **values,
        )

    paired = pair(evidence, variant, check.suite)
    if isinstance(paired, Refusal):
        return answer(paired.status, paired.sentence)
    before, after = paired.scores
    n = len(before)
    loss = stats.paired_interval(before, after, check.confidence)
    changed = stats.churn(before, after, *paired.outputs)
    variance = stats.pair_variance([b - a for b, a in zip(before, after, strict=True)])
    worse, different = stats.mcnemar(changed.right_to_wrong, changed.wrong_to_right)
    baseline, score = (sum(scores) / n for scores in paired.raw_scores)
    floor = noise.floor(evidence, check.suite, evidence.reference(variant))
    details |= {
        "baseline_score": baseline,
        "variant_score": score,
        "higher_is_better": paired.higher_is_better,
        "clusters": paired.cluster_count,
        "noise_floor": floor,
        "inside_noise": noise.inside(floor, loss.estimate, changed.share),
        "method": loss.method,
        "churn": changed.as_dict(),
        "mcnemar_p_worse": worse,
        "mcnemar_p_different": different,
        "detectable_loss": stats.detectable_loss(n, variance, check.confidence),
    }
    has = samples_of(variant, check.suite)
    if has and has > n:
        details["suite_samples"] = has
    values = {"value": loss.estimate, "low": loss.low, "high": loss.high, "n": n}
    moved = (
        f"the mean score {_moved(paired, loss.estimate, baseline, score)} over {n} paired samples"
    )
    if details["inside_noise"]:
        moved += f" (no more than {_named(variant)} differs from itself, asked twice)"
    sure = f"with {100 * check.confidence:.4g} % confidence"
    if n < check.min_n:
        return answer(
            "INCONCLUSIVE",
            f"{moved}, and the policy wants at least {check.min_n}{limited(details, n)}",
            **values,
        )
    if sum(before) / n <= check.margin:
        only = "only " if paired.higher_is_better else ""
        none = "scores 0 on it" if baseline == 0 else f"scores {only}{points(baseline)} % on it"
        none += "" if paired.higher_is_better else ", where lower is better"
        return answer(
            "INCONCLUSIVE",
            f"{_named(variant)} {none}, so no loss beyond {points(check.margin)} points could show",
            **values,
        )
    limit = points(check.margin)
    if loss.high <= check.margin:
        return answer(
            "PASS",
            f"{moved}; {sure} the loss is at most {points(loss.high, check.margin)} points, "
            f"within the {limit} accepted",
            **values,
        )
    if loss.low > check.margin:
        return answer(
            "FAIL",
            f"{moved}; {sure} the loss is at least {points(loss.low, check.margin)} points, "
            f"beyond the {limit} accepted",
            **values,
        )
    needed = stats.items_needed(loss.estimate, variance, check.margin, check.confidence)
    if needed and needed > MOST_ITEMS:
        needed = None
    details["items_needed"] = needed
    # The formula is a normal approximation: it may name fewer items than were just not enough.
    settle = (
        f"about {max(needed, n + 1)} items would settle it{limited(details, n)}"
        if needed
        else "the loss sits so near the margin that more items would hardly settle it"
    )
    return answer(
        "INCONCLUSIVE",
        f"{moved}; {sure} the loss is between {points(loss.low)} and "
        f"{points(loss.high, check.margin)} points, so {limit} is neither kept nor "
        f"broken: {settle}",
        **values,
    )


def samples_of(variant: VariantEvidence, suite: str) -> int | None:
    """How many samples a suite has, asked of the variant or not; None where nothing says it."""
    results = variant.evaluation.suites if variant.evaluation else ()
    return next((r.samples for r in results if r.suite == suite), None)


def limited(details: Mapping[str, Any], n: int) -> str:
    """In brackets, that the recipe's limit left samples of the suite unasked; or nothing."""
    has = details.get("suite_samples")
    return f" (evaluate.limit asked {n} of the suite's {has})" if has else ""


def _named(variant: VariantEvidence) -> str:
    """What a sentence calls the unquantized variant another one is paired with."""
    return "the baseline" if variant.reference == BASELINE else variant.reference


def _moved(paired: Paired, loss: float, baseline: float, score: float) -> str:
    aside = "" if paired.higher_is_better else " (lower is better)"
    if loss == 0:
        return f"stayed at {points(score)} %{aside}"
    way = "fell" if (loss > 0) == paired.higher_is_better else "rose"
    return (
        f"{way} by {points(abs(loss), 0.0)} points, from {points(baseline)} % to "
        f"{points(score)} %{aside},"
    )


# --------------------------------------------------------------------------- artifact


def artifact(variant: VariantEvidence) -> Check:
    """What was found when the variant's files were examined: one FAIL among them is a FAIL."""
    found = variant.manifest.artifact if variant.manifest else None
    status: CheckStatus = "PASS"
    if found is None or not found.checks:
        status, said = "MISSING", "the produced files were not examined"
    elif failed := found.having("FAIL"):
        status = "FAIL"
        said = "; ".join(f"{c.name}: {c.sentence.rstrip('.')}" for c in failed)
    else:
        said = f"{len(found.checks)} checks of the produced files found nothing wrong"
        if warned := found.having("WARN"):
            said += ", to be known: " + "; ".join(c.sentence.rstrip(".") for c in warned)
    return Check(
        name="artifact",
        kind="artifact",
        tier="critical",
        status=status,
        sentence=f"artifact: {said}.",
        n=len(found.checks) if found else None,
        details={c.name: c.status for c in found.checks} if found else {},
    )


# --------------------------------------------------------------------------- performance, size


def performance_name(check: PerformanceCheck) -> str:
    """What a check of one figure of the profile is called."""
    return f"{check.metric} {check.workload} x{check.concurrency}"


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

    refusal = _profiles(evidence, variant, relative)
    if refusal:
        return answer(refusal.status, refusal.sentence)
    figures: list[float] = []
    requests: list[int] = []
    reference = evidence.reference(variant)
    sides = (variant, reference) if relative else (variant,)
    for side in sides:
        found = _figure(side, check)
        if isinstance(found, Refusal):
            return answer(found.status, found.sentence)
        point, figure = found
        figures.append(figure)
        requests.append(point.completed)
    details["variant_value"] = figures[0]
    count = min(requests)
    if relative:
        details["baseline_value"] = figures[1]
        if figures[1] <= 0:
            return answer("INCONCLUSIVE", f"{_named(variant)}'s figure is 0, so there is no ratio")
    value = figures[0] / figures[1] if relative else figures[0]
    lower_is_better = check.max_ratio is not None or check.max_value is not None
    good = value <= limit if lower_is_better else value >= limit
    what = f"{value:.3g} times {_named(variant)}'s" if relative else f"{value:.4g}"
    bound = "at most" if lower_is_better else "at least"
    loads = [load for side in sides for load in _loads(side, check)]
    status, noise = believed("PASS" if good else "FAIL", *(load.quiet for load in loads))
    runs = min((load.repeats for load in loads), default=1)
    of = "a single run" if runs == 1 else f"{runs} runs with a total"
    return answer(
        status,
        f"{what}, where {bound} {limit:.4g} is accepted ({of} of {count} requests)"
        + (f"; {noise}" if noise else ""),
        value=value,
        n=count,
    )


def _loads(side: VariantEvidence, check: PerformanceCheck) -> list[LoadSummary]:
    """What is known of the load a check reads, beside its figures; old profiles hold nothing."""
    load = {"arrivals": "closed", "concurrency": check.concurrency}
    return [
        found
        for found in (side.profile.loads if side.profile else ())
        if found.workload == check.workload and found.arrivals == load
    ]


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


def _profiles(evidence: Evidence, variant: VariantEvidence, relative: bool) -> Refusal | None:
    """Refuse profiles that are missing, emulated, of other weights, or not alike."""
    reference = evidence.reference(variant)
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
        difference = first_difference(_setting(reference.profile), _setting(variant.profile))
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
    """Bytes of weights, which any lane knows, or peak memory, which the emulated lane does not."""
    details: dict[str, Any] = {"metric": check.metric}

    def answer(status: CheckStatus, sentence: str, **values: Any) -> Check:
        return Check(
            name=check.metric,
            kind="size",
            tier=check.tier,
            status=status,
            sentence=f"{check.metric}: {sentence}.",
            limit=check.max_ratio,
            details=details,
            **values,
        )

    found = (
        _weight_bytes(evidence, variant)
        if check.metric == "weight_bytes"
        else _peak_bytes(evidence, variant)
    )
    if isinstance(found, Refusal):
        return answer(found.status, found.sentence)
    size, baseline = found
    details |= {"variant_value": size, "baseline_value": baseline}
    if baseline <= 0 or size <= 0:
        return answer("MISSING", "a size of 0 bytes was recorded, so there is no ratio")
    value = size / baseline
    # Bytes on disk are compared with the checkpoint's own, whatever engine serves the variant.
    whose = "the baseline" if check.metric == "weight_bytes" else _named(variant)
    return answer(
        "PASS" if value <= check.max_ratio else "FAIL",
        f"{value:.3g} times {whose}'s ({size / 1e6:.1f} of {baseline / 1e6:.1f} MB), "
        f"where at most {check.max_ratio:.4g} is accepted",
        value=value,
    )


def _weight_bytes(evidence: Evidence, variant: VariantEvidence) -> tuple[int, int] | Refusal:
    if variant.manifest is None:
        return missing(variant, "quantize", "has no manifest, so its size is unknown")
    return variant.manifest.weight_bytes, evidence.checkpoint.weight_bytes


def _peak_bytes(evidence: Evidence, variant: VariantEvidence) -> tuple[int, int] | Refusal:
    refusal = _profiles(evidence, variant, relative=True)
    if refusal:
        return refusal
    ours, theirs = variant.profile, evidence.reference(variant).profile
    assert ours is not None and theirs is not None
    # Device memory where both have it: on a GPU the process's own memory is beside the point.
    for one, other in (
        (ours.peak_gpu_bytes, theirs.peak_gpu_bytes),
        (ours.peak_memory_bytes, theirs.peak_memory_bytes),
    ):
        if one is not None and other is not None:
            return one, other
    return Refusal("MISSING", "peak memory was not measured on both")
