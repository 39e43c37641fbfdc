"""What a recipe can show at best: checks that a perfect copy would not pass. Pure.

Hours of machine time that can only end INCONCLUSIVE are worth a sentence before they start. What is
known then is how many samples and requests there will be and on which lane each variant is served;
so this takes the kindest of all outcomes, the one in which no answer changes, and looks whether it
would settle each gated check.

Of lm-eval's tasks it knows no more than `limit` says, and that of the user's own alone: how many
documents a task has is found out when lm-eval loads it, and whether a name of lm-eval's own stands
for one task or for sixty, each of which has the limit, only lm-eval's environment could say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from workbench.base import BASELINE
from workbench.bootstrap import LEAST_REPEATS
from workbench.checks import points
from workbench.clusters import Grouping
from workbench.exact_intervals import fewest_values
from workbench.items import bound, fewest
from workbench.measured_checks import MIN_REQUESTS, performance_name
from workbench.plan import Facts, variant_lane
from workbench.proportion import proportion
from workbench.recipe import Loaded
from workbench.spec import Policy, QualityCheck

#: Scorers that say right or wrong and nothing between.
RIGHT_OR_WRONG = frozenset(
    {"exact", "normalized", "contains", "regex", "numeric", "choice", "sql_result", "refusal"}
)


def out_of_reach(
    loaded: Loaded,
    facts: Facts,
    graded: Collection[str] = (),
    most: Mapping[str, int] | None = None,
) -> list[str]:
    """A sentence for each check of the policy that cannot pass whatever the variants answer.

    Args:
        loaded: recipe and policy.
        facts: sizes of the suites, and the machine.
        graded: suites whose scores may lie between 0 and 1.
        most: task of lm-eval -> the most documents its limit lets it ask, where that is known.
    """
    most = most or {}
    said = [
        _quality(check, loaded, facts, check.suite in graded)
        for check in loaded.policy.quality
        if check.suite in facts.suite_sizes
    ]
    said += [
        _short(
            # Its metric may be a graded one.
            check,
            most[check.suite],
            f"task '{check.suite}' asks {most[check.suite]} documents at most (its limit)",
            True,
        )
        for check in loaded.policy.quality
        if check.suite in most
    ]
    said += [
        text
        for check in loaded.policy.quality
        if check.suite in facts.suite_sizes and check.tier != "advisory"
        for text in _shares(check, _asked(check, loaded, facts))
    ]
    return [text for text in (*said, *_requests(loaded), _emulated(loaded, facts)) if text]


def _quality(check: QualityCheck, loaded: Loaded, facts: Facts, graded: bool) -> str:
    size, n = facts.suite_sizes[check.suite][0], _asked(check, loaded, facts)
    asked = f"{n} of its {size} samples (evaluate.limit)" if n < size else f"all its {n} samples"
    grouping = facts.suite_groupings.get(check.suite)
    if grouping:
        asked += f", in {len(grouping.sizes)} clusters"
    return _short(check, n, f"suite '{check.suite}' asks {asked}", graded, grouping)


def _asked(check: QualityCheck, loaded: Loaded, facts: Facts) -> int:
    size = facts.suite_sizes[check.suite][0]
    return min(size, loaded.recipe.evaluate.limit or size)


def _shares(check: QualityCheck, n: int) -> Iterator[str]:
    """Limits of a share of answers that n samples without a single one cannot show to be kept."""
    limits = {
        "max_format_failures": check.max_format_failures,
        "max_truncated": check.max_truncated,
    }
    for name, limit in limits.items():
        if limit is not None and proportion(0, n, check.confidence)[1] > limit:
            needed = math.ceil(math.log(1 - check.confidence) / math.log1p(-limit))
            yield (
                f"suite '{check.suite}' asks {n} samples, and {name} {limit:g} takes {needed} even "
                "if not one answer is counted: it can be INCONCLUSIVE at best"
            )


def _short(
    check: QualityCheck, n: int, text: str, graded: bool, grouping: Grouping | None = None
) -> str:
    """What n samples cannot show, after a text that says where n comes from; or nothing."""
    few, limit = n < check.min_n, bound(n, check.confidence, graded, grouping)
    wide = check.tier != "advisory" and limit > check.most
    if not few and not wide:
        return ""
    if few:
        text += f", and its check wants {check.min_n}"
    if wide:
        text += (
            f": the loss can be bounded at {points(limit, check.most)} points even if nothing "
            f"changes, and a margin of {points(check.most)} needs at least "
            f"{fewest(check.most, check.confidence, graded, grouping)} samples"
            + (", in clusters of such sizes" if grouping else "")
        )
    return f"{text}: it can {'only be INCONCLUSIVE' if few else 'be INCONCLUSIVE at best'}"


def _requests(loaded: Loaded) -> Iterator[str]:
    """Checks of speed that so few requests cannot settle, the ones of one reason together."""
    profile = loaded.recipe.profile
    if profile is None:
        return
    counts = {w.name: profile.count(w) for w in profile.workloads if w.trace is None}
    short: dict[tuple[int, int, str], list[str]] = {}
    for name, workload, takes, why in _takes(loaded.policy, profile.repeats):
        n = counts.get(workload)
        if n is not None and n * profile.repeats < takes:
            short.setdefault((takes, n, why), []).append(name)
    for (takes, n, why), names in short.items():
        times = f" x {profile.repeats} repeats" if profile.repeats > 1 else ""
        yield (
            f"{', '.join(names)} can be INCONCLUSIVE at best: {why} takes {takes} requests, and "
            f"{n}{times} are measured: it takes 'requests: {math.ceil(takes / profile.repeats)}'"
        )


def _takes(policy: Policy, repeats: int) -> Iterator[tuple[str, str, int, str]]:
    """Name and workload of each gated check of speed, the requests it takes, and for what."""
    any_ = "a check of speed"
    for check in policy.performance:
        if check.tier != "advisory":
            takes, why = MIN_REQUESTS, any_
            if check.metric.endswith("_p95") and check.max_value and repeats >= LEAST_REPEATS:
                takes, why = fewest_values(95), "a p95"
            yield performance_name(check), check.workload, takes, why
    for target in policy.latency:
        if target.tier != "advisory":
            measured, _, place = target.metric.rpartition("_")
            takes, why = MIN_REQUESTS, any_
            # A request has many gaps, and how alike they are shows when they are measured.
            if measured != "itl_ms" and fewest_values(float(place[1:])) > takes:
                takes, why = fewest_values(float(place[1:])), f"a {place}"
            yield target.name, target.workload, takes, why
    for goal in policy.goodput:
        if goal.tier != "advisory":
            takes, why = MIN_REQUESTS, any_
            all_in_time = math.ceil(math.log(1 - goal.confidence) / math.log(goal.min_share))
            if all_in_time > takes:
                takes, why = all_in_time, f"a share of {goal.min_share:g}, were all in time,"
            yield goal.name, goal.workload, takes, why


def _speeds(policy: Policy) -> list[str]:
    """Names of the gated checks of speed."""
    named = [(performance_name(check), check.tier) for check in policy.performance]
    named += [(check.name, check.tier) for check in policy.latency]
    named += [(check.name, check.tier) for check in policy.goodput]
    return [name for name, tier in named if tier != "advisory"]


def _emulated(loaded: Loaded, facts: Facts) -> str:
    policy = loaded.policy
    names = _speeds(policy) + [
        c.metric for c in policy.size if c.metric != "weight_bytes" and c.tier != "advisory"
    ]
    variants = [
        v.name
        for v in loaded.recipe.variants
        if v.name != BASELINE and variant_lane(loaded, v, facts).name == "emulated"
    ]
    if not names or not variants:
        return ""
    return (
        f"gated speed and peak memory cannot be settled on an emulated lane: "
        f"{', '.join(variants)} can be INCONCLUSIVE at best ({', '.join(names)})"
    )
