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

from workbench import stats
from workbench.base import BASELINE
from workbench.checks import points
from workbench.clusters import Grouping
from workbench.measured_checks import MIN_REQUESTS, performance_name
from workbench.plan import Facts, variant_lane
from workbench.proportion import proportion
from workbench.recipe import Loaded
from workbench.spec import Policy, QualityCheck

#: Scorers that say right or wrong and nothing between.
RIGHT_OR_WRONG = frozenset(
    {"exact", "normalized", "contains", "regex", "numeric", "choice", "sql_result", "refusal"}
)


def bound(
    n: int, confidence: float, graded: bool = False, grouping: Grouping | None = None
) -> float:
    """Upper limit of the loss, 0 to 1, when none of n paired answers changed.

    Args:
        n: paired samples.
        confidence: of the one-sided limit.
        graded: scores may lie between 0 and 1, which bounds it a little closer.
        grouping: clusters of the suite; the n samples are then in clusters of such sizes.
    """
    limit = stats.binary_interval(0, 0, n, confidence).high
    limit = min(limit, _graded(n, confidence)) if graded else limit
    if grouping is None:
        return limit
    clusters = max(1, math.floor(n / grouping.mean + 1e-9))
    return min(1.0, max(limit, grouping.scale * _graded(clusters, confidence)))


def _graded(n: int, confidence: float) -> float:
    return stats.graded_interval([0.0] * n, confidence).high


def fewest(
    margin: float, confidence: float, graded: bool = False, grouping: Grouping | None = None
) -> int:
    """The fewest samples whose loss can be bounded within a margin: where no answer changes."""
    enough = 1
    while bound(enough, confidence, graded, grouping) > margin:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if bound(middle, confidence, graded, grouping) > margin:
            too_few = middle
        else:
            enough = middle
    return enough


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
    return [text for text in (*said, _requests(loaded), _emulated(loaded, facts)) if text]


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


def _requests(loaded: Loaded) -> str:
    profile = loaded.recipe.profile
    names = _speeds(loaded.policy)
    if profile is None or not names or profile.requests >= MIN_REQUESTS:
        return ""
    return (
        f"profile.requests is {profile.requests}, and fewer than {MIN_REQUESTS} settle no check of "
        f"speed: INCONCLUSIVE at best, gated are {', '.join(names)}"
    )


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
