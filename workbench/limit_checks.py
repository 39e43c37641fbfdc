"""The checks of a suite's answers beside being right: their form, their ends, their length. Pure.

    format failures   share of samples whose answer has not the form asked for, and
    truncated         share of those cut at the token limit: PASS where the one-sided upper limit of
                      the share is within, FAIL where the lower limit is beyond
    output length     output tokens, variant / baseline: PASS where its interval is inside the two
                      limits, FAIL where it is outside; a few answers that never end cost more than
                      all the others, so the fewer samples and the higher the suite's `max_tokens`,
                      the wider it is

Where the suite names clusters, whole clusters are the units of all of them.

A sample that was asked several times counts once: as failed where any of its answers did. What a
check rests on is paired as for the scores, so what refuses a score refuses these, too.
"""

from __future__ import annotations

from typing import Any

from workbench.checks import points, reference_name
from workbench.clusters import clustered
from workbench.evaluation_records import Flag
from workbench.evidence import Evidence, Paired, Refusal, VariantEvidence, pair, suite_result
from workbench.policy_spec import OutputLength, QualityCheck
from workbench.proportion import proportion, ratio_of_means
from workbench.records import Check, CheckStatus
from workbench.stats import Interval

#: Answers that whoever called for them cannot read, right or wrong.
FORMAT: tuple[Flag, ...] = (
    *("invalid_json", "schema_violation", "no_tool_call", "invalid_arguments"),
    *("invalid_sql", "unreadable", "empty"),
)


def limits(check: QualityCheck, evidence: Evidence, variant: VariantEvidence) -> tuple[Check, ...]:
    """A check for each limit of a suite's answers that the policy sets."""
    if not (check.max_format_failures or check.max_truncated or check.output_length):
        return ()
    found = pair(evidence, variant, check.suite)
    made = []
    if check.max_format_failures is not None:
        name, what = "format failures", "have not the form asked for"
        made.append(_share(check, name, what, FORMAT, check.max_format_failures, found, variant))
    if check.max_truncated is not None:
        name, what = "truncated", "were cut at the token limit"
        made.append(_share(check, name, what, ("truncated",), check.max_truncated, found, variant))
    if check.output_length is not None:
        made.append(_length(check, check.output_length, found, variant))
    return tuple(made)


def _check(
    check: QualityCheck, what: str, status: CheckStatus, sentence: str, **values: Any
) -> Check:
    name = f"{check.suite} {what}"
    details = {"suite": check.suite, "confidence": check.confidence, "min_n": check.min_n}
    return Check(
        name=name,
        kind="answers",
        tier=check.tier,
        status=status,
        sentence=f"{name}: {sentence}.",
        details=details | values.pop("details", {}),
        **values,
    )


def _share(
    check: QualityCheck,
    name: str,
    what: str,
    flags: tuple[Flag, ...],
    limit: float,
    found: Paired | Refusal,
    variant: VariantEvidence,
) -> Check:
    if isinstance(found, Refusal):
        return _check(check, name, found.status, found.sentence, limit=limit)
    n = len(found.variant)
    each = found.variant.having(flags)
    before, count = sum(found.baseline.having(flags)), sum(each)
    low, high = proportion(count, n, check.confidence)
    if found.cluster_count is not None:
        exact = Interval(count / n, low, high, check.confidence, "Clopper and Pearson")
        wide, _ = clustered(exact, each, found.clusters)
        low, high = max(0.0, wide.low), wide.high
    said = f"{count} of {n} answers {what} ({before} of {reference_name(variant)}'s)"
    with_ = f"with {100 * check.confidence:.4g} % confidence"
    sure = f"{said}; {with_} it is"
    accepted = points(limit)
    status: CheckStatus = "INCONCLUSIVE"
    if n < check.min_n:
        sentence = f"{said}, and the policy wants at least {check.min_n} samples"
    elif high <= limit:
        status = "PASS"
        sentence = f"{sure} at most {points(high, limit)} %, within the {accepted} accepted"
    elif low > limit:
        status = "FAIL"
        sentence = f"{sure} at least {points(low, limit)} %, beyond the {accepted} accepted"
    else:
        sentence = (
            f"{said}; it is at least {points(low)} and at most {points(high, limit)} %, each "
            f"{with_}, so {accepted} is neither kept nor broken"
        )
    return _check(
        check,
        name,
        status,
        sentence,
        value=count / n,
        low=low,
        high=high,
        limit=limit,
        n=n,
        details={"count": count, "baseline_count": before},
    )


def _length(
    check: QualityCheck, span: OutputLength, found: Paired | Refusal, variant: VariantEvidence
) -> Check:
    name = "output length"
    if isinstance(found, Refusal):
        return _check(check, name, found.status, found.sentence, limit=span.max)
    n = len(found.variant)
    uncounted = found.baseline.uncounted + found.variant.uncounted
    if uncounted:
        said = f"of {uncounted} answers the server did not tell the tokens"
        return _check(check, name, "MISSING", said, limit=span.max, n=n)
    lengths = found.baseline.output_tokens, found.variant.output_tokens
    result = suite_result(variant, check.suite)
    # Of a suite of lm-eval it is not known; then the longest answer counts.
    asked = result.conditions.get("sampling", {}) if result else {}
    most = float(asked.get("max_tokens") or 0) * (result.repeats if result else 1)
    clusters = found.clusters if found.cluster_count is not None else None
    ratio = ratio_of_means(*lengths, most, check.confidence, clusters)
    if ratio is None:
        said = f"{reference_name(variant)}'s answers give no length to compare with"
        return _check(check, name, "INCONCLUSIVE", said, limit=span.max, n=n)
    value, low, high = ratio
    ends = "any length, for the samples are few" if high is None else f"{high:.4g}"
    said = f"{value:.3g} times {reference_name(variant)}'s output tokens over {n} samples"
    sure = f"{said}; with {100 * check.confidence:.4g} % confidence"
    between = f"{span.min:.4g} to {span.max:.4g}"
    status: CheckStatus = "INCONCLUSIVE"
    if n < check.min_n:
        sentence = f"{said}, and the policy wants at least {check.min_n}"
    elif high is not None and span.min <= low and high <= span.max:
        status = "PASS"
        sentence = f"{sure} {low:.4g} to {high:.4g}, within the {between} accepted"
    elif low > span.max or (high is not None and high < span.min):
        status = "FAIL"
        sentence = f"{sure} {low:.4g} to {high:.4g}, outside the {between} accepted"
    else:
        sentence = f"{sure} {low:.4g} to {ends}, so {between} is neither kept nor broken"
    return _check(
        check,
        name,
        status,
        sentence,
        value=value,
        low=low,
        high=high,
        limit=span.max if value >= 1 else span.min,
        n=n,
        details={"least": span.min, "most": span.max},
    )
