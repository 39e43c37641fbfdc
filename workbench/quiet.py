"""Was the machine quiet while something was measured? One that was not makes no PASS. Pure.

The limits are stated and are arguments. What could not be looked at is said apart: it marks
nothing, and no reader takes it for a quiet machine. A card at its power limit (`sw_power_cap`) does
its usual work under full load and is not marked; thermal slowdown and a power brake are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.load_records import LoadSummary, Quiet
from workbench.records import CheckStatus

#: NVML's throttle reasons that do not mean that the card was slower than it usually is.
HARMLESS = ("gpu_idle", "applications_clocks_setting", "sw_power_cap", "display_clock_setting")


@dataclass(frozen=True)
class Limits:
    """What still counts as quiet.

    Attributes:
        variation: coefficient of variation of a load's repeats.
        steal: share of CPU time the hypervisor gave to others.
        queued_ms: 99th percentile of what requests waited in the client itself.
        client_wait: share of a pass that the client waited for a processor.
        client_cpu: share of a pass that the client computed. It is one loop on one core: what
            arrives meanwhile is read late. At a third of it `workbench bench-client` finds
            medians right to a millisecond, at three quarters no more.
    """

    variation: float = 0.05
    steal: float = 0.02
    queued_ms: float = 10.0
    client_wait: float = 0.02
    client_cpu: float = 0.6


def variation(values: Sequence[float | None]) -> float | None:
    """Coefficient of variation: sample standard deviation (n - 1) over mean.

    None of fewer than two values, where one is None, or where the mean is not above 0.
    """
    known = [value for value in values if value is not None]
    n = len(known)
    mean = math.fsum(known) / n if n else 0.0
    if n < 2 or n < len(values) or not mean > 0:
        return None
    return math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (n - 1)) / mean


def alike(load: LoadSummary) -> dict[str, Sequence[float | None]]:
    """The figures of a load that are alike in each of its repeats on a quiet machine.

    Repeats are equal work at equal times, but where samples of a suite are asked: these are others
    in each, so nothing of them is to be compared. A p95 of one repeat rests on its slowest few and
    differs on the quietest machine. In an open loop the throughput is what was offered, not what
    the machine did.
    """
    offered = load.arrivals["arrivals"] != "closed"
    return {
        figure: values
        for figure, values in load.by_repeat.items()
        if not figure.endswith("_p95") and not (offered and figure == "output_tokens_per_s")
    }


def quietness(
    *,
    baseline: Mapping[str, Sequence[float | None]] | None = None,
    steal: float | None = None,
    throttled: Mapping[str, float] | None = None,
    others: Sequence[str] | None = None,
    queued_ms: float | None = None,
    client_wait: float | None = None,
    client_cpu: float | None = None,
    limits: Limits | None = None,
) -> Quiet:
    """Everything that speaks against the quiet of a run.

    Args:
        baseline: figure -> its value in each repeat of the load, see `alike`.
        steal: share of CPU time stolen during the run, 0 to 1.
        throttled: NVML's name of a throttle reason -> share of samples that showed it.
        others: processes on the measured GPUs that are not the server's, in words.
        queued_ms: 99th percentile of the client's own delay.
        client_wait: share of a pass in which the client could have run but had no processor.
        client_cpu: share of a pass in which it ran.
        limits: what still counts as quiet.

    Each is None where it was not looked at; an empty mapping or list: looked at, nothing found.
    """
    limits = limits or Limits()
    reasons: list[str] = []
    unknown: list[str] = []
    if baseline is None:
        unknown.append("how its repeats differ")
    for figure, values in sorted((baseline or {}).items()):
        found = variation(values)
        if found is None:
            unknown.append(f"how its repeats differ in {figure}: {len(values)} of them")
        elif found > limits.variation:
            reasons.append(
                f"its {len(values)} repeats differ in {figure} by {found:.1%} "
                f"(coefficient of variation; {limits.variation:.1%} is the limit)"
            )
    if steal is None:
        unknown.append("CPU steal")
    elif not steal <= limits.steal:
        reasons.append(f"{steal:.1%} of CPU time was stolen ({limits.steal:.1%} is the limit)")
    if throttled is None:
        unknown.append("throttling of the GPU")
    for reason, share in sorted((throttled or {}).items()):
        if reason not in HARMLESS and share > 0:
            reasons.append(f"the GPU was throttled in {share:.1%} of the samples: {reason}")
    if others is None:
        unknown.append("other processes on the GPU")
    elif others:
        reasons.append(f"other processes on the GPU: {', '.join(sorted(others))}")
    if queued_ms is not None and not queued_ms <= limits.queued_ms:
        reasons.append(
            f"the client sent requests late: p99 {queued_ms:.1f} ms ({limits.queued_ms:g} ms is "
            "the limit)"
        )
    if client_wait is None:
        unknown.append("whether the client waited for a processor")
    elif not client_wait <= limits.client_wait:
        reasons.append(
            f"the client waited {client_wait:.1%} of the time for a processor "
            f"({limits.client_wait:.1%} is the limit): its latencies are late, or too short"
        )
    if client_cpu is not None and not client_cpu <= limits.client_cpu:
        reasons.append(
            f"the client computed {client_cpu:.0%} of the time ({limits.client_cpu:.0%} is the "
            "limit): it hardly keeps up, so latencies are its own"
        )
    return Quiet(reasons=tuple(reasons), unknown=tuple(unknown))


def of_side(side: str, found: Quiet) -> Quiet:
    """The same, where a check rests on several sides: each reason says whose it is."""
    return found.model_copy(update={"reasons": tuple(f"{side}: {r}" for r in found.reasons)})


def briefly(said: str) -> str:
    """The first reason of what `believed` says, without its figures' limits, and how many more."""
    first, *more = re.sub(r" \([^()]*\)", "", said).split("; ")
    return first + (f", and {len(more)} more" if more else "")


def believed(status: CheckStatus, *runs: Quiet) -> tuple[CheckStatus, str]:
    """What a performance check may say of runs on this machine: a marked one makes no PASS.

    Args:
        status: what the figures alone say.
        runs: the quietness of every run the check rests on, the baseline's too.

    Returns:
        PASS becomes INCONCLUSIVE where a run is marked, everything else stays; and the reasons,
        for the check's sentence, empty where there are none.
    """
    reasons = list(dict.fromkeys(reason for run in runs for reason in run.reasons))
    if not reasons:
        return status, ""
    said = "the machine was not quiet: " + "; ".join(reasons)
    return ("INCONCLUSIVE" if status == "PASS" else status), said
