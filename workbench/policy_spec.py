"""What a policy says: which checks a variant must pass, with which limits. Pure.

`workbench.checks` and its neighbours do what is written here, `workbench.gate` adds it up.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from workbench.base import Name, Spec, Unfit, distinct
from workbench.suite_spec import Tier

POLICY_SCHEMA = "workbench.policy/1"


class QualityCheck(Spec):
    """Non-inferiority of one suite: the paired loss must stay within the margin."""

    suite: Name
    margin: float = Field(
        gt=0, lt=1, description="largest loss of the mean score one accepts, absolute"
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="one-sided, 0.95 and not 95")
    min_n: int = Field(30, ge=1, description="fewer paired samples are never enough evidence")
    tier: Tier = "critical"


class PerformanceCheck(Spec):
    """A ratio to the baseline, or an absolute target, of one figure of the profile."""

    metric: Literal[
        "ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95", "output_tokens_per_s"
    ]
    workload: Name
    concurrency: int = Field(ge=1)
    max_ratio: float | None = Field(
        None, gt=0, description="variant / baseline, for lower-is-better"
    )
    min_ratio: float | None = Field(
        None, gt=0, description="variant / baseline, for higher-is-better"
    )
    max_value: float | None = Field(None, gt=0)
    min_value: float | None = Field(None, gt=0)
    tier: Tier = "supporting"

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        limits = (self.max_ratio, self.min_ratio, self.max_value, self.min_value)
        if sum(limit is not None for limit in limits) != 1:
            raise Unfit(
                "give exactly one of max_ratio, min_ratio, max_value, min_value",
                "max_... bounds a time, min_... a throughput; ..._ratio is to the baseline",
            )
        higher_is_better = self.metric == "output_tokens_per_s"
        lowest = self.min_ratio is not None or self.min_value is not None
        if lowest != higher_is_better:
            side = "min" if higher_is_better else "max"
            raise Unfit(
                f"{self.metric} needs {side}_ratio or {side}_value: the other is no limit",
                f"write {side}_... instead",
            )
        return self


class SizeCheck(Spec):
    """Weights on disk against the baseline's, or measured peak memory."""

    metric: Literal["weight_bytes", "peak_memory_bytes"] = "weight_bytes"
    max_ratio: float = Field(gt=0)
    tier: Tier = "supporting"


class Policy(Spec):
    """What a variant must show to ship. A check that is not written is not gated."""

    schema_: Literal["workbench.policy/1"] = Field(alias="schema")
    name: Name
    quality: tuple[QualityCheck, ...] = ()
    performance: tuple[PerformanceCheck, ...] = ()
    size: tuple[SizeCheck, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> Self:
        distinct("quality checks are of suite", [q.suite for q in self.quality])
        return self
