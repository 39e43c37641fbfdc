"""What a policy says: which checks a variant must pass, with which limits. Pure.

`workbench.checks` and its neighbours do what is written here, `workbench.gate` adds it up. A field
that came later stays out of what is written while nobody uses it, so that an older policy keeps its
digest and its gates their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from workbench.base import Name, Spec, Unfit, distinct
from workbench.load_records import Targets
from workbench.objective import Objective
from workbench.suite_spec import Tier
from workbench.waivers import Waiver

POLICY_SCHEMA = "workbench.policy/1"
#: A margin above it is more than half of the scale, and nothing there is enumerated: see `stats`.
WIDEST = 0.5
#: A margin or a limit of a share below it takes more samples than anybody asks: 300,000.
FINEST = 1e-5

LatencyMetric = Literal[
    "ttft_ms_p50",
    "ttft_ms_p90",
    "ttft_ms_p95",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "tpot_ms_p90",
    "tpot_ms_p95",
    "tpot_ms_p99",
    "itl_ms_p50",
    "itl_ms_p90",
    "itl_ms_p95",
    "itl_ms_p99",
    "e2e_ms_p50",
    "e2e_ms_p90",
    "e2e_ms_p95",
    "e2e_ms_p99",
]


class _Grown(Spec):
    """A spec that has fields an older policy does not know; unset, they are not written."""

    LATER: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unused = {
            name
            for name in self.LATER
            if getattr(self, name) == type(self).model_fields[name].get_default()
        }
        return {name: value for name, value in handler(self).items() if name not in unused}


# --------------------------------------------------------------------------- quality


class OutputLength(Spec):
    """Output tokens of a suite's answers, variant / baseline; MLPerf's rule is within 10 %."""

    min: float = Field(0.9, gt=0, le=1)
    max: float = Field(1.1, ge=1)


class QualityDefaults(_Grown):
    """What holds for every quality check that does not say otherwise."""

    margin: float | None = Field(
        None, gt=0, lt=1, description="largest loss of the mean score one accepts, absolute"
    )
    margin_relative: float | None = Field(
        None, gt=0, lt=1, description="the same as a share of the baseline's mean score"
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="one-sided, 0.95 and not 95")
    min_n: int = Field(30, ge=1, description="fewer paired samples are never enough evidence")
    tier: Tier = "critical"
    max_gain: float | None = Field(
        None, gt=0, lt=1, description="a gain surely beyond it is no gain: ANOMALOUS"
    )
    max_format_failures: float | None = Field(
        None, gt=0, lt=1, description="share of samples whose answer has not the form asked for"
    )
    max_truncated: float | None = Field(
        None, gt=0, lt=1, description="share of samples whose answer was cut at its token limit"
    )
    output_length: OutputLength | None = Field(None, description="{} is within 10 %")

    @field_validator(
        *("margin", "margin_relative", "max_gain", "max_format_failures", "max_truncated")
    )
    @classmethod
    def _can_be_shown(cls, given: float | None) -> float | None:
        if given is not None and given < FINEST:
            raise Unfit(
                f"{given:g} is less than any number of samples could show",
                f"use {FINEST:.5f} or more, such as 0.02",
            )
        return given

    @model_validator(mode="after")
    def _one_margin(self) -> Self:
        if self.margin is not None and self.margin_relative is not None:
            raise Unfit(
                "'margin' and 'margin_relative' are both given",
                "keep one: an absolute loss, or a share of the baseline's score",
            )
        return self


class QualityCheck(QualityDefaults):
    """Non-inferiority of one suite: the paired loss must stay within the margin.

    The limits of format failures, truncation and length, where there are any, are checks beside it.
    """

    LATER = frozenset(
        {
            *("margin_relative", "metric", "max_gain", "max_format_failures", "max_truncated"),
            "output_length",
        }
    )

    suite: Name
    metric: str | None = Field(
        None, min_length=1, description="what the margin is about, where the suite could change it"
    )

    @property
    def most(self) -> float:
        """The largest margin, 0 to 1, that this can be: a mean score is at most 1."""
        return self.margin or self.margin_relative or 0.0

    def under(self, defaults: QualityDefaults) -> QualityCheck:
        """The same, with what it does not say itself taken from the policy's defaults.

        Raises:
            Unfit: neither says a margin.
        """
        said = set(self.model_fields_set)
        if said & {"margin", "margin_relative"}:
            said |= {"margin", "margin_relative"}
        inherited = defaults.model_fields_set - said
        found = self.model_copy(update={name: getattr(defaults, name) for name in inherited})
        if found.margin is None and found.margin_relative is None:
            raise Unfit(
                f"the check of suite '{self.suite}' has no margin",
                "add 'margin: 0.02' (two points) to it or to 'defaults'",
            )
        return found


# --------------------------------------------------------------------------- speed and size


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


class _OfLoad(Spec):
    """Something of one workload under one load, closed or open."""

    workload: Name
    concurrency: int | None = Field(None, ge=1, description="of a closed loop")
    arrivals: str | None = Field(
        None, min_length=1, description="an open loop as the report names it, 'poisson 4/s'"
    )
    tier: Tier = "supporting"

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if (self.concurrency is None) == (self.arrivals is None):
            raise Unfit(
                "give exactly one of concurrency, arrivals",
                "'concurrency: 8' is a closed loop, \"arrivals: 'poisson 4/s'\" an open one",
            )
        return self

    @property
    def load(self) -> str:
        """The load as `arrivals.load_name` calls it."""
        return self.arrivals or f"x{self.concurrency}"


class LatencyTarget(_OfLoad):
    """An absolute target of a latency: the upper end of its interval, at 97.5 %, must be within."""

    metric: LatencyMetric
    max_value: float = Field(gt=0, description="milliseconds")

    @property
    def name(self) -> str:
        """What its check is called."""
        return f"{self.metric} {self.workload} {self.load}"


class GoodputCheck(_OfLoad):
    """The share of all requests that were answered within the latency targets."""

    min_share: float = Field(gt=0, lt=1, description="0.99 and not 99")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="one-sided, 0.95 and not 95")
    targets: Targets | None = Field(None, description="None: those the profile was measured with")

    @property
    def name(self) -> str:
        """What its check is called."""
        return f"goodput {self.workload} {self.load}"


class SizeCheck(_Grown):
    """Weights on disk, measured peak memory, or tokens the KV cache has room for."""

    LATER = frozenset({"min_ratio", "max_value", "min_value"})

    metric: Literal["weight_bytes", "peak_memory_bytes", "kv_cache_tokens"] = "weight_bytes"
    max_ratio: float | None = Field(None, gt=0, description="variant / baseline, of bytes")
    tier: Tier = "supporting"
    min_ratio: float | None = Field(None, gt=0, description="variant / baseline, of KV tokens")
    max_value: float | None = Field(None, gt=0, description="bytes")
    min_value: float | None = Field(None, gt=0, description="KV tokens")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        of_tokens = self.metric == "kv_cache_tokens"
        low, high = (self.min_ratio, self.min_value), (self.max_ratio, self.max_value)
        right, wrong = (low, high) if of_tokens else (high, low)
        given = sum(limit is not None for limit in right)
        if given != 1 or any(limit is not None for limit in wrong):
            side = "min" if of_tokens else "max"
            raise Unfit(
                f"{self.metric} needs {side}_ratio or {side}_value, and no other limit",
                f"write '{side}_ratio: 1.0' (to the baseline), or '{side}_value'",
            )
        return self

    @property
    def limit(self) -> float:
        """The one limit there is."""
        limits = (self.max_ratio, self.max_value, self.min_ratio, self.min_value)
        return next(limit for limit in limits if limit is not None)

    @property
    def relative(self) -> bool:
        """True where the limit is a ratio to the baseline."""
        return self.max_ratio is not None or self.min_ratio is not None


# --------------------------------------------------------------------------- divergence


class Tripwire(Spec):
    """A figure of the divergence that is worth a look beyond a value. Advisory, whatever it says.

    KLD tells that something changed and not whether it matters: near the baseline its relation to
    the scores of tasks weakens. So it warns, and is no evidence for a variant.
    """

    metric: Literal["kld_mean", "kld_median", "kld_p95", "kld_p99", "kld_max", "same_top"]
    warn_above: float | None = Field(None, gt=0, description="of a KLD, natural logarithm")
    warn_below: float | None = Field(None, gt=0, lt=1, description="of same_top, a share")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        right, wrong = self.warn_above, self.warn_below
        side = "above"
        if self.metric == "same_top":
            right, wrong, side = wrong, right, "below"
        if right is None or wrong is not None:
            raise Unfit(f"{self.metric} needs warn_{side} alone", f"write 'warn_{side}: ...'")
        return self

    @property
    def limit(self) -> float:
        """The one limit there is."""
        return self.warn_above or self.warn_below or 0.0


# --------------------------------------------------------------------------- the policy


class Policy(_Grown):
    """What a variant must show to ship. A check that is not written is not gated."""

    LATER = frozenset(
        {
            *("defaults", "latency", "goodput", "tripwires"),
            *("required_lane", "required_hardware", "objective", "waivers"),
        }
    )

    schema_: Literal["workbench.policy/1"] = Field(alias="schema")
    name: Name
    required_lane: Literal["native", "weight-only fallback"] | None = Field(
        None, description="the lane every figure must come from, or a better one"
    )
    required_hardware: str | None = Field(
        None, min_length=1, description="name of the GPU or processor, as `workbench doctor` has it"
    )
    defaults: QualityDefaults = QualityDefaults()
    quality: tuple[QualityCheck, ...] = ()
    performance: tuple[PerformanceCheck, ...] = ()
    latency: tuple[LatencyTarget, ...] = ()
    goodput: tuple[GoodputCheck, ...] = ()
    size: tuple[SizeCheck, ...] = ()
    tripwires: tuple[Tripwire, ...] = ()
    objective: Objective | None = Field(None, description="which GO variant is the best")
    waivers: tuple[Waiver, ...] = Field((), description="checks that may fail, for a while")

    @model_validator(mode="after")
    def _resolved(self) -> Self:
        distinct("quality checks are of suite", [q.suite for q in self.quality])
        quality = tuple(check.under(self.defaults) for check in self.quality)
        object.__setattr__(self, "quality", quality)
        # Written out into every check, and done: a policy is what it asks for, however it says so.
        object.__setattr__(self, "defaults", QualityDefaults())
        return self

    @property
    def tiers(self) -> Iterator[Tier]:
        """The tier of every check of a variant that the policy makes, tripwires left out."""
        for check in self.quality:
            limits = (check.max_format_failures, check.max_truncated, check.output_length)
            yield from [check.tier] * (1 + sum(limit is not None for limit in limits))
        yield from (check.tier for check in self.performance)
        yield from (check.tier for check in self.latency)
        yield from (check.tier for check in self.goodput)
        yield from (check.tier for check in self.size)
