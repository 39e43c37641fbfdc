"""How many threads a quantizing job computes with, and how they wait for each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

from workbench.records import Choice

#: Up to so many cores a job's threads sleep while they wait.
_FEW = 4


def available_cores() -> int:
    """Cores this process may use, as the scheduler sees it."""
    return len(os.sched_getaffinity(0))


def threads(cores: int) -> tuple[Choice, Mapping[str, str]]:
    """The threads of a job, and the variables that make them so.

    OpenMP's threads spin while they wait for the slowest. GPTQ waits thousands of times for little:
    as soon as another program wants a core, the spinning ones keep it from the one that works.
    """
    if cores > _FEW:
        return Choice(value=str(cores), reason="every core that may be used"), {}
    return (
        Choice(
            value=f"{cores}, passive wait",
            reason=f"{cores} cores: a thread that spins while it waits takes one from another "
            "program (GPTQ of two layers on 2 busy cores: 221 s spinning, 40 s asleep)",
        ),
        {"OMP_WAIT_POLICY": "PASSIVE"},
    )
