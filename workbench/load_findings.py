"""What can be known to be wrong with a recipe's loads before a server starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.arrivals import ClosedLoop
from workbench.errors import RecipeError
from workbench.profile_spec import ProfileSpec
from workbench.reach import RIGHT_OR_WRONG
from workbench.recipe import spot
from workbench.workload_spec import Workload
from workbench.workloads import suite_asks

if TYPE_CHECKING:
    from workbench.context import Context
    from workbench.validate import Finding


def load_findings(context: Context) -> list[Finding]:
    """Check the profile against the context, its traces and suites, and the policy against it.

    Raises:
        RecipeError: a trace or a suite cannot be asked, a request is longer than the context, or
            the policy checks a load that is not measured.
    """
    from workbench.validate import Finding

    profile = context.loaded.recipe.profile
    for workload in profile.workloads if profile else ():
        if workload.trace is not None:
            _trace(context, workload)
        if workload.suite is not None:
            _suite(context, workload)
    _policy(context, profile)
    return [Finding("warn", said) for said in (_surprises(profile) if profile else ())]


def _policy(context: Context, profile: ProfileSpec | None) -> None:
    loaded = context.loaded
    file = loaded.source.parent / loaded.recipe.policy
    loads = {
        (workload.name, load.concurrency)
        for workload in (profile.workloads if profile else ())
        for load in (profile.loads(workload) if profile else ())
        if isinstance(load, ClosedLoop)
    }
    for number, check in enumerate(loaded.policy.performance):
        if (check.workload, check.concurrency) not in loads:
            have = ", ".join(f"{w}@{c}" for w, c in sorted(loads)) or "nothing"
            raise RecipeError(
                f"the policy checks {check.metric} of workload '{check.workload}' at concurrency "
                f"{check.concurrency}, which the recipe does not profile",
                where=spot(file, f"performance.{number}"),
                fix=f"the recipe profiles {have}: name one of these, or add it to 'profile'",
            )


def _trace(context: Context, workload: Workload) -> None:
    most = context.loaded.recipe.serve.max_model_len
    for row in context.traces[workload.name]:
        needs = (row.input_tokens or 0) + row.output_tokens
        if needs > most:
            raise RecipeError(
                f"a request of trace '{workload.trace}' needs {needs} tokens, "
                f"serve.max_model_len is {most}",
                where=row.where,
                fix="leave the line out, or raise serve.max_model_len",
            )


def _suite(context: Context, workload: Workload) -> None:
    suite = context.load_suites[workload.name]
    where = spot(context.loaded.source, "profile.workloads")
    if suite.spec.scorer.name not in RIGHT_OR_WRONG or suite.spec.repeats > 1:
        raise RecipeError(
            f"workload '{workload.name}': quality goodput counts right answers, and suite "
            f"'{suite.spec.name}' gives grades ({suite.spec.scorer.name})",
            where=where,
            fix=f"choose a suite scored by one of {', '.join(sorted(RIGHT_OR_WRONG))}",
        )
    suite_asks(
        suite.spec, suite.samples, lambda sample: (), ClosedLoop(concurrency=1), count=1, seed=""
    )


def _surprises(profile: ProfileSpec) -> Iterator[str]:
    for workload in profile.workloads:
        count = profile.count(workload)
        levels = [ld.concurrency for ld in profile.loads(workload) if isinstance(ld, ClosedLoop)]
        most = max(levels, default=0)
        if most > count:
            yield (
                f"workload '{workload.name}': {count} requests are never {most} at a time; raise "
                "'requests', or lower the concurrency"
            )
        elif 2 * most > count:
            yield (
                f"workload '{workload.name}': {count} requests at concurrency {most} are all begin "
                f"and end of a load; {2 * most} or more show its steady state"
            )
