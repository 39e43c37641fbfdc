"""The checks of a load with its interval: absolute latency targets, and goodput. Pure.

    latency    PASS where the upper end of the percentile's interval is within the target, FAIL
               where the lower end is beyond it; each end is missed in at most 2.5 % of cases
    goodput    requests within the latency targets, of all that were sent: PASS where the lower
               limit of the share is enough, FAIL where the upper one is too little, each at the
               policy's confidence

`workbench.load_intervals` has both intervals, and why a percentile of few requests has none.

They need no baseline: a user who waits does not ask how long the other model takes. Ratios to the
baseline are in `workbench.measured_checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from workbench.arrivals import AnyArrivals, Arrivals, load_name
from workbench.bootstrap import LEAST_REPEATS
from workbench.evidence import Evidence, Refusal, VariantEvidence
from workbench.load_intervals import OLDER, percentile_figure, share_limits
from workbench.load_records import LoadSummary
from workbench.load_requests import AT_ONCE
from workbench.measured_checks import MIN_REQUESTS, profiles
from workbench.policy_spec import GoodputCheck, LatencyTarget
from workbench.quiet import believed, briefly
from workbench.records import Check, CheckStatus

_ARRIVALS: TypeAdapter[AnyArrivals] = TypeAdapter(Arrivals)


def latency(check: LatencyTarget, evidence: Evidence, variant: VariantEvidence) -> Check:
    """One percentile of one latency, against an absolute target."""
    details, answer = _answers(check, check.max_value)
    load = _load(check, evidence, variant)
    if isinstance(load, Refusal):
        return answer(load.status, load.sentence)
    late = load.requests - load.completed
    if load.completed == 0:
        return answer("MISSING", f"none of {variant.variant}'s {load.requests} requests completed")
    if late:
        return answer(
            "INCONCLUSIVE",
            f"{late} of {variant.variant}'s {load.requests} requests did not complete, and the "
            "figures of the others would flatter it",
        )
    figure, doubt = percentile_figure(load, check.metric)
    requests = getattr(load, check.metric.rpartition("_")[0]).requests
    if figure.value is None:
        return answer("MISSING", f"no request of {variant.variant} gave it")
    if requests < MIN_REQUESTS:
        return answer("INCONCLUSIVE", f"{requests} requests gave it, fewer than {MIN_REQUESTS}")
    values = {"value": figure.value, "n": requests}
    if doubt or figure.low is None or figure.high is None:
        return answer("INCONCLUSIVE", f"{figure.value:.4g} ms, and {doubt}", **values)
    values |= {"low": figure.low, "high": figure.high}
    said = (
        f"{figure.value:.4g} ms [{figure.low:.4g}, {figure.high:.4g}], where at most "
        f"{check.max_value:.4g} is accepted ({requests} requests in {_runs(load)})"
    )
    status: CheckStatus = "INCONCLUSIVE"
    if figure.high <= check.max_value:
        status = "PASS"
    elif figure.low > check.max_value:
        status = "FAIL"
    else:
        said += (
            f"; so {check.max_value:.4g} is neither kept nor broken: more requests would settle it"
        )
        between = f"between {figure.low:.4g} and {figure.high:.4g} ms"
        details["matter"] = f"{check.max_value:.4g} lies {between}"
    status, noise = _trusted(status, load, details, check.metric)
    return answer(status, said + (f"; {noise}" if noise else ""), **values)


def goodput(check: GoodputCheck, evidence: Evidence, variant: VariantEvidence) -> Check:
    """The share of a load's requests within the targets; what failed was not within them.

    Its limits are the exact ones of a proportion, or those of three repeats or more where these are
    wider: requests that wait for one another are not independent, which shows between repeats.
    """
    details, answer = _answers(check, check.min_share)
    load = _load(check, evidence, variant)
    if isinstance(load, Refusal):
        return answer(load.status, load.sentence)
    if load.good is None or load.targets is None:
        return answer("MISSING", f"{variant.variant} was measured without latency targets")
    if check.targets is not None and check.targets.given != load.targets:
        return answer(
            "NOT COMPARABLE",
            f"measured against {said_targets(load.targets)}, and the policy's targets are "
            f"{said_targets(check.targets.given)}",
        )
    count, n = load.good.count, load.requests
    if n < MIN_REQUESTS:
        return answer("INCONCLUSIVE", f"{n} requests, fewer than {MIN_REQUESTS}")
    if load.repeats >= LEAST_REPEATS and not load.good.by_repeat:
        return answer("INCONCLUSIVE", f"{count} of {n} requests, and {OLDER}", value=count / n, n=n)
    low, high = share_limits(load.good.by_repeat or ((count, n),), check.confidence)
    sure = f"with {100 * check.confidence:.4g} % confidence"
    least, open_ = f"{100 * check.min_share:.4g}", ""
    status: CheckStatus = "INCONCLUSIVE"
    found = f"the share is at least {100 * low:.4g} and at most {100 * high:.4g} %, each {sure}"
    if low >= check.min_share:
        status, found = "PASS", f"{sure} the share is at least {100 * low:.4g} %"
    elif high < check.min_share:
        status, found = "FAIL", f"{sure} the share is at most {100 * high:.4g} %"
    else:
        open_ = f", so {least} is neither reached nor missed: more requests would settle it"
        details["matter"] = f"{least} lies between {100 * low:.4g} and {100 * high:.4g} %"
    status, noise = _trusted(status, load, details)
    return answer(
        status,
        f"{count} of {n} requests within {said_targets(load.targets)} in {_runs(load)}; "
        f"{found}, where at least {least} is accepted{open_}" + (f"; {noise}" if noise else ""),
        value=count / n,
        low=low,
        high=high,
        n=n,
    )


def _trusted(
    status: CheckStatus, load: LoadSummary, details: dict[str, Any], metric: str = ""
) -> tuple[CheckStatus, str]:
    """What the figures show of a load, if it is to be believed; and why not, in words."""
    found, noise = believed(status, load.quiet)
    if found != status:
        details["matter"] = briefly(noise)
    if found == "PASS" and (doubt := _doubt(load, metric)):
        details["matter"] = doubt
        return "INCONCLUSIVE", f"but {doubt}"
    return found, noise


def _answers(
    check: LatencyTarget | GoodputCheck, limit: float
) -> tuple[dict[str, Any], Callable[..., Check]]:
    details: dict[str, Any] = {"workload": check.workload, "load": check.load, "relative": False}
    details["metric"] = check.metric if isinstance(check, LatencyTarget) else "goodput"

    def answer(status: CheckStatus, sentence: str, **values: Any) -> Check:
        return Check(
            name=check.name,
            kind="performance",
            tier=check.tier,
            status=status,
            sentence=f"{check.name}: {sentence}.",
            limit=limit,
            details=details,
            **values,
        )

    return details, answer


def _load(
    check: LatencyTarget | GoodputCheck, evidence: Evidence, variant: VariantEvidence
) -> LoadSummary | Refusal:
    refusal = profiles(evidence, variant, relative=False)
    if refusal:
        return refusal
    found = [
        load
        for load in (variant.profile.loads if variant.profile else ())
        if load.workload == check.workload
        and load_name(_ARRIVALS.validate_python(load.arrivals)) == check.load
    ]
    if len(found) != 1:
        return Refusal("MISSING", f"{variant.variant} was not measured at that load")
    return found[0]


def _doubt(load: LoadSummary, metric: str = "") -> str:
    """Why a load that kept its targets shows nothing: it was not the one its name says."""
    if load.saturation.verdict in ("growing", "refusing"):
        return f"{load.saturation.sentence}: asked for longer, it would answer later"
    level, each = load.arrivals.get("concurrency"), load.requests // load.repeats
    if level is not None and level > each:
        return f"of {each} requests never {level} were open at a time"
    spread = getattr(load, metric.rpartition("_")[0]) if metric else None
    blind = spread.left_out.get(AT_ONCE, 0) if spread else 0
    if blind:
        return f"of {blind} requests it is not known: {AT_ONCE}"
    return ""


def _runs(load: LoadSummary) -> str:
    return "a single run" if load.repeats == 1 else f"{load.repeats} runs"


def said_targets(given: dict[str, float]) -> str:
    """Latency targets in words: ``TTFT 500 ms, TPOT 50 ms``."""
    return ", ".join(
        f"{name.removesuffix('_ms').upper()} {value:g} ms" for name, value in given.items()
    )
