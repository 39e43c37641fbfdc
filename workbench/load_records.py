"""Records of a load: what one workload at one load measured, beside `records.LoadPoint`. Pure data.

Times are milliseconds, rates per second. A figure whose `low` and `high` are None has no interval.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from workbench.base import Record, Spec, Unfit


class Targets(Spec):
    """Latency targets. A request is in time when it meets every one that is given."""

    ttft_ms: float | None = Field(None, gt=0, description="sent to first token")
    tpot_ms: float | None = Field(None, gt=0, description="mean time per token after the first")
    itl_ms: float | None = Field(None, gt=0, description="the largest gap between two tokens")
    e2e_ms: float | None = Field(None, gt=0, description="sent to last token")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if not self.given:
            raise Unfit("no target", "give one or more of ttft_ms, tpot_ms, itl_ms, e2e_ms")
        return self

    @property
    def given(self) -> dict[str, float]:
        """The targets that are set, by name."""
        return {k: v for k, v in self.model_dump().items() if v is not None}


class Figure(Record):
    """One number with its interval."""

    value: float | None = Field(description="None: there was nothing to make it of")
    low: float | None = None
    high: float | None = None


class Spread(Record):
    """How one time, or one user's speed, is distributed over the completed requests."""

    n: int = Field(description="values: gaps for ITL, else requests")
    requests: int = Field(description="requests that gave a value")
    left_out: dict[str, int] = Field(description="why others gave none -> how many requests")
    mean: Figure
    p50: Figure
    p90: Figure
    p95: Figure
    p99: Figure
    max: Figure = Field(description="its upper limit is the largest seen, never more")


class Good(Record):
    """Requests within the targets."""

    count: int
    share: Figure = Field(description="of all requests, the failed ones included")
    per_s: Figure
    by_repeat: tuple[tuple[int, int], ...] = Field(
        (),
        description="of each repeat, in rising order: these requests, and all; empty: an older "
        "record, whose interval over repeats is too narrow",
    )
    missed: dict[str, int] = Field(
        description="status, target or wrong answer -> requests that were no good for it; a late "
        "one counts under each target it missed"
    )


class Tokens(Record):
    """Output tokens of completed requests, counted in two ways."""

    usage: int = Field(description="as the server says, of the requests where it says it")
    chunks: int = Field(description="chunks with content, of the same requests")
    difference: int = Field(description="usage - chunks; above 0 where a chunk held several tokens")
    without_usage: int = Field(description="completed requests without usage, counted by chunks")
    prompts_differ: int = Field(
        description="completed requests whose prompt the server counts otherwise than it was sent"
    )


class Saturation(Record):
    """Whether the number of unfinished requests grew without bound."""

    verdict: Literal["stable", "growing", "refusing", "unknown", "closed loop"]
    sentence: str
    growth_per_s: float | None = Field(None, description="requests/s by which the backlog grows")
    p: float | None = Field(None, description="one-sided, that a backlog without trend looks so")
    backlog: tuple[float, ...] = Field((), description="mean requests in the system, by block")


class Quiet(Record):
    """Whether the machine did nothing else while something was measured."""

    reasons: tuple[str, ...] = Field((), description="why it was not; empty: see unknown")
    unknown: tuple[str, ...] = Field((), description="what could not be looked at")

    @property
    def marked(self) -> bool:
        """Whether a performance figure of this run proves nothing."""
        return bool(self.reasons)


class LoadSummary(Record):
    """One workload at one load, over all repeats. Latencies are of completed requests only."""

    schema_: Literal["workbench.load/1"] = Field("workbench.load/1", alias="schema")
    workload: str
    arrivals: dict[str, Any] = Field(description="the arrival process, as the recipe would say it")
    repeats: int
    seconds: float = Field(
        description="first request sent until the last was over, summed over repeats"
    )
    requests: int
    completed: int
    by_status: dict[str, int]
    by_reason: dict[str, int] = Field(description="'status: reason' -> requests not completed")
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    queued_ms: Spread = Field(description="sent later than due: waiting in the client")
    user_tokens_per_s: Spread = Field(description="1 / TPOT of each request: low is slow")
    requests_per_s: Figure
    input_tokens_per_s: Figure
    output_tokens_per_s: Figure
    total_tokens_per_s: Figure
    completion_rate: Figure = Field(description="completed / all")
    error_rate: Figure = Field(description="short, failed, refused and timed out / all")
    tokens: Tokens
    targets: dict[str, float] | None = None
    good: Good | None = Field(None, description="completed within the targets: goodput")
    correct: Good | None = Field(None, description="the same, and right: quality goodput")
    by_repeat: dict[str, tuple[float | None, ...]] = Field(
        description="figure -> its value in each repeat, in their order"
    )
    saturation: Saturation
    resampled: Literal["repeat", "request"] = Field(description="unit of the bootstrap")
    percentiles_by: Literal["order statistics"] | None = Field(
        None,
        description="how percentiles have their limits, see `load_intervals`; None: an older "
        "record, whose limits over repeats and of gaps are a bootstrap's and too narrow",
    )
    resamples: int
    confidence: float
    seed: int
    quiet: Quiet = Quiet()
    usage: tuple[Usage, ...] = Field((), description="of server and machine, in each repeat")
    seen_before: int = Field(
        0, description="requests that begin with a whole block asked before: a cache may help them"
    )
    client_cpu_seconds: float | None = Field(None, description="of the load's own process")
    client_wait_seconds: float | None = Field(None, description="it waited for a processor")

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Mean over repeats of tokens found / looked up; None where the server told none."""
        rates = [u.engine.prefix_cache_hit_rate for u in self.usage if u.engine is not None]
        known = [rate for rate in rates if rate is not None]
        return sum(known) / len(known) if known else None


class Probe(Record):
    """One load that was tried."""

    rate: float
    meets: bool
    why: str = ""


class HighestRate(Record):
    """The highest rate that met the targets, and how it was found."""

    outcome: Literal["found", "nothing meets", "everything meets", "not monotone"]
    rate: float | None = Field(description="highest that met them with none below that did not")
    sentence: str
    growth_unknown: str = Field(
        "", description="why nobody knows whether the queue grows at that rate; empty: it is known"
    )
    probes: tuple[Probe, ...] = Field(description="in the order they were tried")


class Level(Record):
    """What the samples of a gauge said, each sample counting alike."""

    mean: float
    max: float


class Clock(Record):
    """What the samples of a clock said: a card that was slowed down shows in the lowest."""

    min: float
    mean: float
    max: float


class EngineUse(Record):
    """What the server itself said on `/metrics`; None: it did not."""

    samples: int = Field(description="readings within the interval; gauges are of these alone")
    running: Level | None = Field(None, description="requests the engine works on")
    waiting: Level | None = Field(None, description="requests it has queued")
    kv_cache_share: Level | None = Field(None, description="of its KV cache in use, 0 to 1")
    preemptions: int | None = None
    prefix_cache_hit_rate: float | None = Field(
        None,
        description="tokens found / tokens looked up; None: nothing was looked up, untold, or the "
        "counters contradict each other",
    )
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class GpuUse(Record):
    """One device, whoever used it; None: NVML does not tell."""

    memory_bytes: int | None = Field(None, description="the most that was used")
    utilization: Level | None = Field(None, description="share of time a kernel ran, 0 to 1")
    power_w: Level | None = None
    clock_mhz: Clock | None = Field(None, description="of the SMs")
    throttled: dict[str, float] | None = Field(
        None, description="NVML's reason -> share of samples that showed it; empty: none did"
    )


class MachineUse(Record):
    """The server's processes, and the machine they ran on."""

    samples: int = Field(description="looks within the interval; levels are of these alone")
    rss_bytes: Level | None = Field(None, description="None: not one look found a process")
    cpu_cores: float | None = Field(None, description="mean cores the server's processes used")
    steal: float | None = Field(None, description="share of all CPU time the hypervisor took")
    gpus: tuple[GpuUse, ...] = ()
    others: tuple[str, ...] | None = Field(
        None, description="processes on the GPUs that are not the server's; None: cannot be told"
    )


class Usage(Record):
    """What a server and its machine did between two times."""

    seconds: float
    engine: EngineUse | None = Field(description="None: it has no `/metrics`, or was gone")
    machine: MachineUse
