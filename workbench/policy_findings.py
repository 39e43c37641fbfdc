"""What can be known to be wrong with a policy before anything runs, or is decided again.

A policy may only speak of what the recipe measures. `refuse_unknown` needs the two alone and says
file and line; `policy_findings` also knows suites, machine and lanes, and says what may surprise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.arrivals import load_name
from workbench.errors import RecipeError, did_you_mean
from workbench.gate import UNJUDGED
from workbench.lmeval_tasks import most_documents
from workbench.plan import variant_lane
from workbench.policy_spec import WIDEST, Policy
from workbench.reach import RIGHT_OR_WRONG, out_of_reach
from workbench.recipe import spot
from workbench.required_checks import LANES, named
from workbench.served_checks import said_targets
from workbench.spec import Recipe
from workbench.waiving import beforehand

if TYPE_CHECKING:
    from workbench.context import Context
    from workbench.validate import Finding


def refuse_unknown(policy: Policy, recipe: Recipe, file: Path) -> None:
    """Refuse a policy that checks what the recipe does not measure.

    Args:
        policy: what a variant must show.
        recipe: what is measured.
        file: the policy's, for the line.

    Raises:
        RecipeError: a suite, load, target or divergence the recipe does not have.
    """
    for number, check in enumerate(policy.quality):
        if check.suite not in recipe.evaluate.names:
            raise RecipeError(
                f"the policy checks suite '{check.suite}', which the recipe does not evaluate",
                where=spot(file, f"quality.{number}"),
                fix=did_you_mean(check.suite, recipe.evaluate.names)
                + "add it to evaluate.suites or evaluate.lm_eval.tasks, or take the check out",
            )
    loads = [
        (workload.name, load_name(load))
        for workload in (recipe.profile.workloads if recipe.profile else ())
        for load in (recipe.profile.loads(workload) if recipe.profile else ())
    ]
    known = list(dict.fromkeys(workload for workload, _ in loads))
    for where, what, workload, name in _loads(policy):
        if (workload, name) not in loads:
            have = ", ".join(f"{w} with {_as_written(load)}" for w, load in loads) or "nothing"
            under = f"at concurrency {name[1:]}" if name[1:].isdigit() else f"under '{name}'"
            raise RecipeError(
                f"the policy checks {what} of workload '{workload}' {under}, which the recipe does "
                "not profile",
                where=spot(file, where),
                fix=(did_you_mean(workload, known) if workload not in known else "")
                + f"the recipe profiles {have}: name one of these, or add it to 'profile'",
            )
    given = recipe.profile.targets if recipe.profile else None
    for number, goal in enumerate(policy.goodput):
        if given is None or goal.targets not in (None, given):
            has = "no targets" if given is None else f"the targets {said_targets(given.given)}"
            raise RecipeError(
                f"the policy checks goodput of workload '{goal.workload}', and the recipe has "
                f"{has}",
                where=spot(file, f"goodput.{number}"),
                fix="requests are counted against 'profile.targets': write the policy's there",
            )
    if policy.tripwires and recipe.evaluate.divergence is None:
        raise RecipeError(
            "the policy has tripwires, and the recipe records no divergence",
            where=spot(file, "tripwires"),
            fix="add 'divergence: {}' to 'evaluate', or take the tripwires out",
        )


def _as_written(load: str) -> str:
    level = load.removeprefix("x")
    return f"concurrency: {level}" if level.isdigit() else f"arrivals: '{load}'"


def _loads(policy: Policy) -> Iterator[tuple[str, str, str, str]]:
    """Key, figure, workload and load of every check of the profile."""
    for number, check in enumerate(policy.performance):
        yield f"performance.{number}", check.metric, check.workload, f"x{check.concurrency}"
    for number, target in enumerate(policy.latency):
        yield f"latency.{number}", target.metric, target.workload, target.load
    for number, goal in enumerate(policy.goodput):
        yield f"goodput.{number}", "goodput", goal.workload, goal.load


def policy_findings(context: Context) -> list[Finding]:
    """A policy against its recipe: what cannot be, what can pass at best, what is in no check.

    Raises:
        RecipeError: it speaks of what is not measured.
    """
    from workbench.validate import Finding

    loaded = context.loaded
    recipe, policy = loaded.recipe, loaded.policy
    file = loaded.source.parent / recipe.policy
    refuse_unknown(policy, recipe, file)
    _metrics(context, file)
    said = [
        f"suite '{check.suite}' is left out (its cadence is {context.facts.left_out[check.suite]}, "
        f"the recipe's {recipe.evaluate.cadence}): its check can only be MISSING"
        for check in policy.quality
        if check.suite in context.facts.left_out
    ]
    said += [
        f"the policy limits {check.metric}, which a profile measures, and the recipe has no "
        "'profile': its check can only be MISSING"
        for check in policy.size
        if check.metric != "weight_bytes" and recipe.profile is None
    ]
    gated = [tier for tier in policy.tiers if tier != "advisory"]
    if not gated:
        said.append("the policy gates nothing: no variant can be GO")
    elif all(check.tier == "advisory" for check in policy.quality):
        said.append(f"{UNJUDGED}: INCONCLUSIVE at best")
    graded = {
        name
        for name, suite in context.suites.items()
        if suite.spec.repeats > 1 or suite.spec.scorer.name not in RIGHT_OR_WRONG
    }
    said += [
        f"the margin of suite '{check.suite}' is {check.most:g}, and above {WIDEST} the error of a "
        f"verdict is not kept at {1 - check.confidence:.2g}"
        for check in policy.quality
        if check.tier != "advisory" and check.most > WIDEST
    ]
    said += out_of_reach(loaded, context.facts, graded, most_documents(loaded))
    said += _elsewhere(context)
    said += _unchecked(context)
    said += beforehand(policy, [variant.name for variant in recipe.variants], context.today)
    required = [x for x in (policy.required_lane, policy.required_hardware) if x is not None]
    of_policy = len(gated) + len(required)
    text = (
        f"policy '{policy.name}': {of_policy + 1} gated checks per variant, {of_policy} of the "
        "policy and the one of the produced files"
    )
    return [Finding("ok", text), *(Finding("warn", one) for one in said)]


def _metrics(context: Context, file: Path) -> None:
    """Refuse a metric that is not the suite's; what lm-eval measures is known when it has run."""
    for number, check in enumerate(context.loaded.policy.quality):
        suite = context.suites.get(check.suite)
        if suite and check.metric not in (None, suite.spec.metric):
            raise RecipeError(
                f"the policy speaks of '{check.metric}' of suite '{check.suite}', which is scored "
                f"by {suite.spec.metric}",
                where=spot(file, f"quality.{number}"),
                fix=did_you_mean(check.metric or "", [suite.spec.metric])
                + f"write 'metric: {suite.spec.metric}', or leave it out",
            )


def _elsewhere(context: Context) -> Iterator[str]:
    """Requirements of lane and hardware that this machine cannot meet."""
    policy, facts = context.loaded.policy, context.facts
    if policy.required_lane is not None:
        accepted = LANES[: LANES.index(policy.required_lane) + 1]
        lanes = {
            v.name: variant_lane(context.loaded, v, facts).name
            for v in context.loaded.recipe.variants
        }
        other = [f"{name} ({lane})" for name, lane in lanes.items() if lane not in accepted]
        if other:
            yield (
                f"the policy wants the {policy.required_lane} lane, which here is not that of "
                f"{', '.join(other)}: INCONCLUSIVE at best"
            )
    wanted = policy.required_hardware
    if wanted is not None and not named(wanted, facts.hardware.key):
        yield (
            f"the policy wants {wanted}, and this machine is {facts.hardware.key}: INCONCLUSIVE "
            "at best"
        )


def _unchecked(context: Context) -> list[str]:
    """Suites whose result decides nothing; a critical one deserves a sentence of its own."""
    quality = context.loaded.policy.quality
    gating = {check.suite for check in quality if check.tier != "advisory"}
    loose = [
        name
        for name, suite in context.suites.items()
        if suite.spec.tier == "critical" and name not in gating
    ]
    said = [
        f"suite '{name}' calls itself critical and the policy does not gate it: whatever a "
        "variant loses there, it can be GO"
        for name in loose
    ]
    shown = {check.suite for check in quality} | {*loose}
    lm_eval = context.loaded.recipe.evaluate.lm_eval
    tasks = {one.task for one in lm_eval.tasks} if lm_eval else set()
    unchecked = sorted({*context.suites, *tasks} - shown)
    if unchecked:
        said.append(f"evaluated but in no check: {', '.join(unchecked)}")
    return said
