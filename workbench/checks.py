"""The checks of a policy, each from records to one status, one sentence and the numbers. Pure.

    quality      PASS where the one-sided upper limit of the paired loss is within the margin, FAIL
                 where the lower limit is beyond it, otherwise INCONCLUSIVE with the items it takes;
                 ANOMALOUS where the gain is surely more than quantizing can give
    artifact     the produced files are what they claim to be; always on, no policy turns it off

"The baseline" of a variant is the unquantized one that the same engine serves: for a GGUF file the
checkpoint's own GGUF under llama.cpp (`Evidence.reference`). Sentences name it where it is another.

What cannot be checked is MISSING or NOT COMPARABLE, never a pass. Numbers are compared unrounded
and rounded only in sentences. The form of the answers is in `workbench.limit_checks`, speed and
size in `workbench.measured_checks`; how the statuses add up to a verdict is `workbench.gate`'s
matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from workbench import items, noise, stats
from workbench.base import BASELINE
from workbench.clusters import clustered
from workbench.evidence import (
    Evidence,
    Paired,
    Refusal,
    VariantEvidence,
    pair,
)
from workbench.margin_test import beyond_margin
from workbench.pooled import MICRO_F1
from workbench.quality_figures import QualityFigures, bootstrap, quality_figures
from workbench.records import Check, CheckStatus
from workbench.spec import QualityCheck

#: Nobody asks a suite of so many samples more to settle a check...
MOST_MORE = 20_000
#: ... and so many times the samples there are say nothing of a loss that few of them showed.
MOST_TIMES = 50
HARDLY = "the loss sits so near the margin that more items would hardly settle it"


def points(value: float, beside: float | None = None) -> str:
    """A share as percentage points, with as many decimals as tell it from another one."""
    for decimals in range(1, 9):
        text = f"{100 * value:.{decimals}f}"
        if beside is None or value == beside or text != f"{100 * beside:.{decimals}f}":
            break
    return text if float(text) else f"{0:.{decimals}f}"


def quality(check: QualityCheck, evidence: Evidence, variant: VariantEvidence) -> Check:
    """Non-inferiority of one suite, on the paired rows."""
    margin = check.margin
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
            limit=margin,
            details=details,
            **values,
        )

    paired = pair(evidence, variant, check.suite)
    if isinstance(paired, Refusal):
        return answer(paired.status, paired.sentence)
    if other := _other_metric(check, variant):
        return answer("NOT COMPARABLE", other)
    before, after = paired.scores
    n = len(before)
    figures = quality_figures(paired, check.confidence)
    loss, variance, changed = figures.loss, figures.variance, figures.changed
    worse, different = stats.mcnemar(changed.right_to_wrong, changed.wrong_to_right)
    baseline, score = figures.shown
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
        "test": asdict(figures.test),
        "recovery": {**figures.recovery.as_dict(), "confidence": check.confidence},
        "detectable_loss": stats.detectable_loss(n, variance, check.confidence),
    }
    if figures.counts:
        details["pooled"] = MICRO_F1
    if figures.graded:
        limits = bootstrap(paired, figures).as_dict()
        details["bootstrap"] = {**limits, "confidence": check.confidence}
    share = ""
    if margin is None:
        part = check.margin_relative or 0.0
        details["margin_relative"] = part
        margin, loss = _relative(paired, figures, part)
        share = f" ({100 * part:.4g} % of what {reference_name(variant)} scores"
        share += ", whose uncertainty is in the interval)"
    if margin > 0:
        p = [counts.beyond(margin) for counts in figures.counts]
        details["p_beyond_margin"] = max(
            p or [beyond_margin(before, after, margin, figures.clusters)]
        )
    has = samples_of(variant, check.suite)
    if has and has > n:
        details["suite_samples"] = has
    values = {"value": loss.estimate, "low": loss.low, "high": loss.high, "n": n}
    moved = (
        f"{figures.what} {_moved(paired, loss.estimate, baseline, score)} over {n} paired samples"
    )
    if details["inside_noise"]:
        moved += f" (no more than {reference_name(variant)} differs from itself, asked twice)"
    sure = f"with {100 * check.confidence:.4g} % confidence"
    if n < check.min_n:
        return answer(
            "INCONCLUSIVE",
            f"{moved}, and the policy wants at least {check.min_n}{limited(details, n)}",
            **values,
        )
    if check.max_gain is not None and -loss.high > check.max_gain:
        return answer(
            "ANOMALOUS",
            f"{moved}; {sure} the gain is at least {points(-loss.high, check.max_gain)} points, "
            f"and quantizing is not believed to gain more than {points(check.max_gain)}: look "
            "whether both were asked and graded alike",
            **values,
        )
    if margin == 0:
        name = reference_name(variant)
        return answer(
            "INCONCLUSIVE", f"{name} scores 0 on it, and a part of that is no margin", **values
        )
    if (baseline if figures.counts else sum(before) / n) <= margin:
        only = "only " if paired.higher_is_better else ""
        none = "scores 0 on it" if baseline == 0 else f"scores {only}{points(baseline)} % on it"
        none += "" if paired.higher_is_better else ", where lower is better"
        return answer(
            "INCONCLUSIVE",
            f"{reference_name(variant)} {none}, so no loss beyond {points(margin)} points "
            "could show",
            **values,
        )
    limit = points(margin)
    if loss.high <= margin:
        return answer(
            "PASS",
            f"{moved}; {sure} the loss is at most {points(loss.high, margin)} points, "
            f"within the {limit} accepted{share}",
            **values,
        )
    if loss.low > margin:
        return answer(
            "FAIL",
            f"{moved}; {sure} the loss is at least {points(loss.low, margin)} points, "
            f"beyond the {limit} accepted{share}",
            **values,
        )
    alone = items.unpadded(variance, n)
    needed = items.needed(loss.estimate, alone, margin, check.confidence)
    hardly = HARDLY
    if needed and (needed - n > MOST_MORE or needed > MOST_TIMES * n):
        # As far from the margin as that, the loss is not to blame: samples or clusters are few.
        if abs(loss.estimate - margin) >= margin / 2:
            hardly = f"it would take far more {_asked(paired)} to settle it"
        needed = None
    details["items_needed"] = needed
    details["settles_as"] = ("FAIL" if loss.estimate > margin else "PASS") if needed else None
    settle = (
        f"about {items.said(needed, n)} items would settle it as {details['settles_as']} in four "
        f"of five cases, if the true loss is the one seen{limited(details, n)}"
        if needed
        else hardly
    )
    if not needed:
        details["hardly"] = hardly
    return answer(
        "INCONCLUSIVE",
        # Two one-sided limits: "between them" is true less often than each of them.
        f"{moved}; the loss is at least {points(loss.low)} and at most "
        f"{points(loss.high, margin)} points, each {sure}, so {limit}{share} is neither kept nor "
        f"broken: {settle}",
        **values,
    )


def _other_metric(check: QualityCheck, variant: VariantEvidence) -> str:
    """What is wrong where a policy names a metric and the suite was scored by another."""
    results = variant.evaluation.suites if variant.evaluation else ()
    scored = next((r.metric for r in results if r.suite == check.suite), check.metric)
    if check.metric is None or scored == check.metric:
        return ""
    return f"the policy speaks of its {check.metric}, and it was scored by {scored}"


def _relative(paired: Paired, figures: QualityFigures, part: float) -> tuple[float, stats.Interval]:
    """A margin that is a part of the reference's mean score, and the limits of the loss under it.

    The margin is then itself estimated from the samples. What is bounded is the mean of loss minus
    part times score, pair by pair, whose limits against 0 are Fieller's (1954, Some problems in
    interval estimation, JRSS B 16, 175-185); where they are wider than the loss's own, they count.
    """
    if figures.counts:
        return figures.relative(part)
    loss = figures.loss
    (before, after), (scores, _) = paired.scores, paired.raw_scores
    margin = part * sum(scores) / len(scores)
    reach = 1 + part  # of one pair's contrast, which the interval wants between -1 and 1
    contrasts = [(b - a - part * s) / reach for b, a, s in zip(before, after, scores, strict=True)]
    contrast = stats.graded_interval(contrasts, loss.confidence)
    if figures.clusters is not None:
        contrast, _ = clustered(contrast, contrasts, figures.clusters)
    return margin, replace(
        loss,
        low=min(loss.low, margin + reach * contrast.low),
        high=max(loss.high, margin + reach * contrast.high),
    )


def samples_of(variant: VariantEvidence, suite: str) -> int | None:
    """How many samples a suite has, asked of the variant or not; None where nothing says it."""
    results = variant.evaluation.suites if variant.evaluation else ()
    return next((r.samples for r in results if r.suite == suite), None)


def _asked(paired: Paired) -> str:
    count = paired.cluster_count
    return f"clusters of samples (there are {count})" if count else "samples"


def limited(details: Mapping[str, Any], n: int) -> str:
    """In brackets, that the recipe's limit left samples of the suite unasked; or nothing."""
    has = details.get("suite_samples")
    return f" (evaluate.limit asked {n} of the suite's {has})" if has else ""


def reference_name(variant: VariantEvidence) -> str:
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
