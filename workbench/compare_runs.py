"""`workbench compare`: the verdict on one run's artifacts against the same ones in another run."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.across import across, applied
from workbench.collect import collect
from workbench.context import Context
from workbench.digest import content_id
from workbench.errors import RecipeError, did_you_mean
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.plan import gate_spec
from workbench.recipe import digest_of
from workbench.records import Gate, Plan
from workbench.spec import Policy
from workbench.store import read_record


def compare_runs(
    before: Context, after: Context, policy: Policy | None = None, variants: Sequence[str] = ()
) -> tuple[Gate, Evidence]:
    """Judge each variant of a run against the same weights in an earlier run.

    Args:
        before: the earlier run, whose answers stand for the baseline's.
        after: the run to judge.
        policy: default is that of the run to judge.
        variants: of the run to judge; empty means all.

    Returns:
        The verdict, and what it rests on, for a report.

    Raises:
        RecipeError: both are one run, or it has no such variant.
        StoreError: a record is damaged or from another version.
    """
    if before.run.path.resolve() == after.run.path.resolve():
        raise RecipeError(
            f"run '{after.run.name}' would be compared with itself",
            where="workbench compare RUN_A RUN_B",
            fix="name a run of the same weights under another engine version or on another machine",
        )
    earlier, later = collect(before), collect(after)
    known = [side.variant for side in later.sides]
    for name in variants:
        if name not in known:
            raise RecipeError(
                f"run '{after.run.name}' has no variant '{name}'",
                where="--variant",
                fix=did_you_mean(name, known) + f"variants: {', '.join(known)}",
            )
    # Two machines give runs of one recipe the same name.
    label = before.run.name if before.run.name != after.run.name else str(before.run.path)
    evidence, left_out = across(earlier, later, label, variants)
    other, said = applied(policy or after.loaded.policy)
    record = decide(
        other,
        evidence,
        policy_digest=digest_of(other),
        id_=content_id(
            {
                "compare": [_id(before), _id(after)],
                "policy": digest_of(other),
                "variants": sorted(variants),
            }
        ),
    )
    warnings = (*record.warnings, *left_out, *said)
    return record.model_copy(update={"warnings": warnings}), evidence


def _id(context: Context) -> str:
    """Content id of everything a run's verdict rests on."""
    plan = read_record(context.run.plan, Plan)
    ids = {step.name: step.id for step in plan.steps if step.kind != "gate"}
    return gate_spec(context.loaded, context.run, ids, None).id
