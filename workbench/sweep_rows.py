"""Every load of a run under every serving configuration, and which of them nothing beats. Pure.

Quality is what the variant's suites said under the recipe's *own* serving options: the mean over
suites of paired recovery, the variant's mean score over its reference's on the same samples. No
suite is asked again under a sweep, so a configuration that changes what the KV cache holds has no
quality here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.evidence import Evidence, Paired, VariantEvidence, pair
from workbench.load_figures import said_arrivals
from workbench.load_records import LoadSummary
from workbench.pareto import front
from workbench.pooled import pooled
from workbench.records import Serving
from workbench.sweep_spec import said_options

#: Options under which a model computes its answers from other numbers.
_CHANGES_ANSWERS = "kv_cache_dtype"


@dataclass(frozen=True)
class SweepRow:
    """One workload at one load under one configuration of one variant.

    Attributes:
        side: the variant.
        options: that differ from the recipe's own; empty is its own configuration.
        load: what was measured; None where the server came to no load at all.
        error: why a server failed; of the loads before it died, too.
        serving: how it was served; None where it was never ready.
        memory_bytes: measured peak: of device memory where the machine has a GPU, else resident.
        quality: mean paired recovery under the recipe's own options; None: unknown.
        on_front: no other row of the same workload and load is as good in quality, latency (median
            end to end) and memory, and better in one. False where one of the three is not known, a
            request was not completed, or the lane is emulated.
    """

    side: VariantEvidence
    options: Mapping[str, Any] = field(default_factory=dict)
    load: LoadSummary | None = None
    error: str = ""
    serving: Serving | None = None
    memory_bytes: int | None = None
    quality: float | None = None
    on_front: bool = False

    @property
    def label(self) -> str:
        """The configuration in words."""
        return said_options(dict(self.options))


def sweep_rows(evidence: Evidence) -> list[SweepRow]:
    """One row for each variant, configuration, workload and load, the recipe's own options first.

    A server that came to no load has a row without one.
    """
    rows = [row for side in evidence.sides for row in _of_side(evidence, side)]
    groups: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        if row.load is not None:
            groups.setdefault((row.load.workload, said_arrivals(row.load)), []).append(number)
    for numbers in groups.values():
        for number, best in zip(numbers, front([_point(rows[n]) for n in numbers]), strict=True):
            rows[number] = replace(rows[number], on_front=best)
    return rows


def has_sweep(evidence: Evidence) -> bool:
    """Whether the recipe of a run swept serving options."""
    return any(s.profile and (s.profile.sweep or s.profile.not_swept) for s in evidence.sides)


def recovery(evidence: Evidence, side: VariantEvidence) -> float | None:
    """Mean over suites of a variant's mean score over its reference's, on the same samples.

    Suites where a high score is damage, and those the reference never got right, are left out.

    Returns:
        A ratio, 1 for an unquantized variant; None where a suite cannot be paired, or none is left.
    """
    suites = [r.suite for r in side.evaluation.suites] if side.evaluation else []
    ratios = []
    for suite in suites:
        paired = pair(evidence, side, suite)
        if not isinstance(paired, Paired):
            return None
        counts = pooled(paired)
        before, after = counts.scores if counts else (sum(s) for s in paired.raw_scores)
        if paired.higher_is_better and before > 0:
            ratios.append(after / before)
    return sum(ratios) / len(ratios) if ratios else None


def _of_side(evidence: Evidence, side: VariantEvidence) -> Iterator[SweepRow]:
    profile = side.profile
    if profile is None:
        return
    gpus = any(s.profile and s.profile.peak_gpu_bytes is not None for s in evidence.sides)
    quality = recovery(evidence, side)
    own = SweepRow(
        side,
        serving=profile.serving,
        memory_bytes=profile.peak_gpu_bytes if gpus else profile.peak_memory_bytes,
        quality=quality,
    )
    yield from (replace(own, load=load) for load in profile.loads)
    for found in profile.sweep:
        row = SweepRow(
            side,
            options=found.options,
            error=found.error,
            serving=found.serving,
            memory_bytes=found.peak_gpu_bytes if gpus else found.peak_memory_bytes,
            quality=None if _CHANGES_ANSWERS in found.options else quality,
        )
        if not found.loads:
            yield row
        yield from (replace(row, load=load) for load in found.loads)


def _point(row: SweepRow) -> tuple[float | None, float | None, float | None]:
    """Loss, latency and memory, each lower is better; None: not to be compared."""
    load, serving = row.load, row.serving
    emulated = serving is None or serving.lane.name == "emulated"
    if load is None or emulated or row.error or load.completed < load.requests:
        return None, None, None
    quality = -row.quality if row.quality is not None else None
    return quality, load.e2e_ms.p50.value, row.memory_bytes
