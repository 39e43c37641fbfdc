"""What the console says of a profile beside "done": what its figures alone do not show. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.records import Profile


def profile_remarks(record: Profile) -> Iterator[str]:
    """One sentence for each thing whoever started the run should know before its report."""
    failed = [point for point in record.sweep if point.status == "failed"]
    if failed:
        many = len(record.sweep) == len(failed)
        yield (
            f"{'all' if many else len(failed)} of {len(record.sweep)} configurations of the sweep "
            f"failed, the first with: {failed[0].error}"
        )
    differ = [load for load in record.loads if load.tokens.prompts_differ]
    if differ:
        count = sum(load.tokens.prompts_differ for load in differ)
        answered = sum(load.completed for load in differ)
        names = ", ".join(dict.fromkeys(load.workload for load in differ))
        yield (
            f"the server counts the prompts of {count} of {answered} answers otherwise than they "
            f"were sent ({names}): it adds tokens or cuts them, and its load is not the recipe's"
        )
