"""When variants were measured, for what drifts in between is in their differences. Pure.

Loads of one server run back and forth, so that a drift adds alike to each. Between variants there
is nothing of the kind unless the recipe alternates (`workbench.alternating`): each has the machine
for itself, one after another, and is measured once. A machine that grew hotter or busier meanwhile
looks like a slower variant. So the times stand beside the figures; none is corrected by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from workbench.records import Profile


def span(profile: Profile) -> str:
    """From the first request to the last answer, ``2026-11-30 14:02:03 to 14:05:10 UTC``.

    Empty of a profile that does not say, which older ones do not.
    """
    times = _times(profile)
    return _said(*times) if times else ""


def apart(variant: Profile, reference: Profile) -> str:
    """How far apart two profiles were measured: ``measured 14 min after baseline``.

    Empty where one of them does not say when.
    """
    ours, theirs = _times(variant), _times(reference)
    if ours is None or theirs is None:
        return ""
    if variant.beside is reference:
        return f"measured in turn with {reference.variant}"
    for word, gap in (("after", ours[0] - theirs[1]), ("before", theirs[0] - ours[1])):
        if gap.total_seconds() >= 0:
            return f"measured {_lasting(gap.total_seconds())} {word} {reference.variant}"
    return f"measured at times that overlap with {reference.variant}'s"


def one_after_another(profiles: Sequence[Profile]) -> str:
    """What a reader has to know of variants that are compared; empty of fewer than two.

    Args:
        profiles: of one run; those that do not say when are left out.
    """
    known = sorted((t, p.variant) for p in profiles if (t := _times(p)) is not None)
    if len(known) < 2:
        return ""
    whole = _said(min(t[0] for t, _ in known), max(t[1] for t, _ in known))
    order = f"Measured one after another, {whole}: {', '.join(name for _, name in known)}."
    if in_turn := [p.variant for p in profiles if p.beside]:
        return (
            f"{order} The loads of {', '.join(in_turn)} ran in turn with those of the unquantized "
            "reference, which stands beside each: a check holds a variant against that, so a slow "
            "drift of the machine is in no such ratio. It is between the figures of different "
            "variants."
        )
    return (
        f"{order} None was measured again, so what changed on the machine meanwhile, its heat or "
        "other work, is in their differences and cannot be told from them."
    )


def _times(profile: Profile) -> tuple[datetime, datetime] | None:
    if not profile.began or not profile.finished:
        return None
    return datetime.fromisoformat(profile.began), datetime.fromisoformat(profile.finished)


def _said(began: datetime, finished: datetime) -> str:
    end = f"{finished:%H:%M:%S}" if finished.date() == began.date() else f"{finished:%F %T}"
    return f"{began:%F %T} to {end} UTC"


def _lasting(seconds: float) -> str:
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
