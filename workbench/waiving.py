"""What waivers do to a verdict, and what is said of those that do nothing. Pure.

A waiver in force stands beside the FAIL it names, and the check stays a FAIL. It counts for one
check by its name, and only for a FAIL: what is missing, cannot be compared or is not settled was
not measured well enough to be excused, and produced files that are not what they claim to be are no
matter of a margin. A name that two checks of a variant share names neither.

The day is an argument. Without one no waiver counts.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

from workbench.errors import did_you_mean
from workbench.records import Check, VariantVerdict
from workbench.spec import Policy
from workbench.waivers import EVERY, Waived, Waiver
from workbench.words import listed

#: Characters of a reason in a sentence; the table of checks has it whole.
_LONGEST = 160


def waive(
    checks: Sequence[Check],
    variant: str,
    variants: Collection[str],
    waivers: Sequence[Waiver],
    on: datetime.date | None,
) -> tuple[Check, ...]:
    """The checks of a variant, each gated FAIL with the waiver in force that names it, if any.

    Args:
        checks: every check of the variant.
        variant: its name.
        variants: names of all variants that are judged.
        waivers: of the policy; of two that name a check the first one in force counts.
        on: the day; None: no waiver is in force.
    """
    found = []
    for check in checks:
        for waiver in waivers:
            named = waiver.check == check.name and _covers(waiver, variant, variants)
            if named and _in_force(waiver, on) and not _refused(check, checks):
                told = Waived(
                    owner=waiver.owner, reason=waiver.reason, expires=waiver.expires.isoformat()
                )
                check = check.model_copy(update={"waiver": told})
                break
        found.append(check)
    return tuple(found)


def waived_words(waived: Waived) -> str:
    """Who answers for a check, until when and why, for a sentence."""
    why = waived.reason.rstrip(".")
    why = why if len(why) <= _LONGEST else f"{why[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    return f"waived by {waived.owner} until {waived.expires}: {why}"


def remarks(
    waivers: Sequence[Waiver], judged: Sequence[VariantVerdict], on: datetime.date | None
) -> tuple[str, ...]:
    """A sentence for each waiver that does not count, or not for all it names."""
    variants = [v.variant for v in judged]
    found: list[str] = []
    for waiver in waivers:
        what = f"the waiver of '{waiver.check}' for {_whose(waiver)} ({waiver.owner})"
        if on is None:
            found.append(f"{what} does not count: the verdict was asked for without a day")
            continue
        if on > waiver.expires:
            found.append(f"{what} expired on {waiver.expires} and does not count")
            continue
        covered = [v for v in judged if _covers(waiver, v.variant, variants)]
        named = [(v, c) for v in covered for c in v.checks if c.name == waiver.check]
        if not named:
            found.append(f"{what} {_nothing(waiver, variants, {c.name for c in _all(covered)})}")
            continue
        refused: dict[str, list[str]] = {}
        for verdict, check in named:
            why = _refused(check, verdict.checks)
            if why and check.tier != "advisory" and check.status != "PASS":
                refused.setdefault(why, []).append(verdict.variant)
        found += [
            f"{what} does not count for {listed(dict.fromkeys(names))}: {why}"
            for why, names in refused.items()
        ]
    return tuple(found)


def beforehand(policy: Policy, variants: Sequence[str], on: datetime.date) -> list[str]:
    """The same as far as it is known before there are checks.

    Args:
        policy: whose waivers.
        variants: names of the recipe's.
        on: the day.
    """
    found = []
    for waiver in policy.waivers:
        what = f"policy: the waiver of '{waiver.check}' for {_whose(waiver)}"
        if on > waiver.expires:
            found.append(f"{what} expired on {waiver.expires} and does not count")
        elif not _known(waiver, variants):
            found.append(f"{what} {_nothing(waiver, variants, ())}")
    return found


def _all(judged: Sequence[VariantVerdict]) -> list[Check]:
    return [c for v in judged for c in v.checks]


def _whose(waiver: Waiver) -> str:
    return "every variant" if waiver.variant == EVERY else waiver.variant


def _known(waiver: Waiver, variants: Collection[str]) -> bool:
    return waiver.variant == EVERY or waiver.variant in variants


def _covers(waiver: Waiver, variant: str, variants: Collection[str]) -> bool:
    # Where a variant is called 'all', that one is meant: the narrower reading.
    every = waiver.variant == EVERY and EVERY not in variants
    return every or waiver.variant == variant


def _in_force(waiver: Waiver, on: datetime.date | None) -> bool:
    return on is not None and on <= waiver.expires


def _refused(check: Check, among: Sequence[Check]) -> str:
    """Why a check cannot be waived; empty where it can."""
    if check.kind == "artifact":
        return "what the produced files are cannot be waived"
    if sum(c.name == check.name for c in among) > 1:
        return "more than one check is called so"
    if check.status != "FAIL":
        return f"it is {check.status}, and only a FAIL can be waived"
    return "an advisory check needs none" if check.tier == "advisory" else ""


def _nothing(waiver: Waiver, variants: Sequence[str], checks: Collection[str]) -> str:
    if not _known(waiver, variants):
        near = did_you_mean(waiver.variant, variants)
        return f"names no variant of the run: {near}variants: {listed(variants)}"
    near = did_you_mean(waiver.check, sorted(checks))
    return f"names no check: {near}checks: {listed(sorted(checks))}"
