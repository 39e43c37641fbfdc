"""What a recipe's `profile` says: which workloads, under which loads, how often. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from workbench.arrivals import (
    AnyArrivals,
    BurstArrivals,
    ClosedLoop,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
    load_name,
)
from workbench.base import Spec, Unfit
from workbench.errors import did_you_mean
from workbench.load_records import Targets
from workbench.rate_search import search
from workbench.sweep_spec import SweepSpec
from workbench.workload_spec import Workload

#: Default of `requests` where a rate is searched: above `saturation.LEAST`.
SEARCH_REQUESTS = 64
#: Tokens of an answer of a trace or a suite, where an estimate is all that is wanted.
_UNKNOWN = 64

OpenArrivals = Annotated[
    PoissonArrivals | ConstantArrivals | BurstArrivals | TraceArrivals,
    Field(discriminator="arrivals"),
]


class RateSpec(Spec):
    """The search for the highest rate of independent users that still meets the targets."""

    low: float = Field(ge=1e-9, le=1e6, description="requests/s, the lowest tried")
    high: float = Field(gt=0, le=1e6, description="requests/s, the highest tried")
    share: float = Field(0.99, gt=0, le=1, description="of all requests that must be in time")
    most: int = Field(8, ge=3, le=64, description="rates tried at most")
    within: float = Field(0.1, ge=0.001, lt=1, description="relative width it stops at")

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.low >= self.high:
            raise Unfit(f"'low' {self.low:g} is not below 'high' {self.high:g}", "swap them")
        return self


class ProfileSpec(Spec):
    """The latency and memory sweep: every workload under every load."""

    workloads: tuple[Workload, ...] = Field(min_length=1)
    concurrency: tuple[int, ...] = Field((1, 8), description="closed loops: so many at a time")
    arrivals: tuple[OpenArrivals, ...] = Field((), description="open loops, beside the closed ones")
    highest_rate: RateSpec | None = Field(None, description="search it for every workload")
    requests: int = Field(
        16,
        ge=2,
        le=1_000_000,
        description="measured at each load, warm-up apart; where a rate is searched 64 by default",
    )
    repeats: int = Field(1, ge=1, le=100, description="how often every load is measured")
    targets: Targets | None = Field(None, description="latencies a request must keep to be good")
    request_seconds: float = Field(600, gt=0, le=86400, description="time limit of one request")
    seed: int = 0
    alternate: bool = Field(
        False,
        description="measure each variant in turn with its unquantized reference, both served",
        exclude_if=lambda value: not value,  # a recipe without it keeps its ids
    )
    sweep: SweepSpec | None = Field(
        None,
        description="other serving options, each with a server of its own",
        exclude_if=lambda value: value is None,  # a recipe without it keeps its ids
    )

    @model_validator(mode="before")
    @classmethod
    def _enough(cls, data: Any) -> Any:
        """Where a rate is searched, by default so many that a growing queue shows."""
        if isinstance(data, dict) and data.get("highest_rate") and "requests" not in data:
            return {**data, "requests": SEARCH_REQUESTS}
        return data

    @field_validator("concurrency")
    @classmethod
    def _levels(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(level < 1 for level in value) or len(set(value)) != len(value):
            raise Unfit(
                "concurrency levels are distinct integers of at least 1", "such as [1, 8, 32]"
            )
        return value

    @model_validator(mode="after")
    def _loads(self) -> Self:
        twice = [a for i, a in enumerate(self.arrivals) if a in self.arrivals[:i]]
        if twice:
            raise Unfit("an entry of 'arrivals' is there twice", "remove one of them")
        for workload in self.workloads:
            names = [load_name(load) for load in self.loads(workload)]
            if len(set(names)) < len(names):
                raise Unfit(
                    f"workload '{workload.name}' has two loads that are both called "
                    f"'{next(n for n in names if names.count(n) > 1)}'",
                    "remove one of them",
                )
            if not self.loads(workload) and self.highest_rate is None:
                raise Unfit(
                    f"workload '{workload.name}' has no load",
                    "give 'concurrency: [1, 8]', or an entry of 'arrivals' that fits it",
                )
            if workload.suite is not None and self.targets is None:
                raise Unfit(
                    f"workload '{workload.name}' asks a suite, and its quality goodput is of right "
                    "answers in time",
                    "add 'targets: {ttft_ms: 500, tpot_ms: 50}'",
                )
            if workload.trace is not None and (workload.concurrency or workload.requests):
                raise Unfit(
                    f"workload '{workload.name}' replays a trace, which has its own times and its "
                    "own number of requests",
                    "remove its 'concurrency' and 'requests'",
                )
        replayed = [workload.trace is not None for workload in self.workloads]
        if any(isinstance(a, TraceArrivals) for a in self.arrivals) and not any(replayed):
            raise Unfit("'arrivals: trace' and no workload with a trace", "remove the entry")
        if self.highest_rate is not None and all(replayed):
            raise Unfit(
                "'highest_rate' is searched for workloads without a trace, and there are none",
                "remove it, or add a workload",
            )
        if self.highest_rate is not None and self.targets is None:
            raise Unfit(
                "'highest_rate' is the highest that meets the targets, and there are none",
                "add 'targets: {ttft_ms: 500, tpot_ms: 50}'",
            )
        return self

    @model_validator(mode="after")
    def _sweep(self) -> Self:
        known = [workload.name for workload in self.workloads]
        for name in self.sweep.workloads if self.sweep else ():
            if name not in known:
                raise Unfit(
                    f"'sweep.workloads' names '{name}', which is no workload of the profile",
                    did_you_mean(name, known) + f"workloads: {', '.join(known)}",
                )
        for workload in self.swept.workloads if self.sweep else ():
            if not self.loads(workload):
                raise Unfit(
                    f"workload '{workload.name}' has no load to be swept: no rate is searched "
                    "under a sweep",
                    "give it a 'concurrency', or leave it out of 'sweep.workloads'",
                )
        return self

    @property
    def swept(self) -> ProfileSpec:
        """What is measured under each configuration of the sweep: no rate is searched there."""
        names = self.sweep.workloads if self.sweep else ()
        workloads = tuple(w for w in self.workloads if not names or w.name in names)
        return self.model_copy(update={"workloads": workloads, "highest_rate": None, "sweep": None})

    @property
    def load_count(self) -> int:
        """Points of one server: workloads times loads, without repeats and searched rates."""
        return sum(len(self.loads(workload)) for workload in self.workloads)

    def loads(self, workload: Workload) -> tuple[AnyArrivals, ...]:
        """The loads a workload is measured under, in order: closed loops, then open ones.

        A trace is replayed at its own times, or as fast as the `trace` entries of `arrivals` say;
        no other workload has times to replay.
        """
        replays = tuple(a for a in self.arrivals if isinstance(a, TraceArrivals))
        if workload.trace is not None:
            return replays or (TraceArrivals(),)
        levels = workload.concurrency if workload.concurrency is not None else self.concurrency
        others = tuple(a for a in self.arrivals if not isinstance(a, TraceArrivals))
        return (*(ClosedLoop(concurrency=level) for level in levels), *others)

    def count(self, workload: Workload) -> int:
        """Measured requests of a workload at one load; a trace has its own number of them."""
        return workload.requests or self.requests

    @property
    def answer_tokens(self) -> float:
        """About how many tokens all answers have together, warm-up left out."""
        tokens = 0.0
        for workload in self.workloads:
            passes = self.repeats * len(self.loads(workload))
            if self.highest_rate is not None and workload.trace is None:
                passes += self.highest_rate.most
            length = workload.output_tokens
            tokens += passes * self.count(workload) * (length.quantile(0.5) if length else _UNKNOWN)
        return tokens

    def open_seconds(self, traces: Mapping[str, float]) -> float:
        """About how long the open loops take at least: requests wait for their own times.

        Without the search for a rate: that is `search_seconds`.

        Args:
            traces: workload that replays a trace -> seconds until the trace's last request.
        """
        seconds = 0.0
        for workload in self.workloads:
            for load in self.loads(workload):
                last = self.count(workload) - 1
                if isinstance(load, BurstArrivals):
                    seconds += last // load.size * load.gap
                elif isinstance(load, PoissonArrivals | ConstantArrivals):
                    seconds += last / load.rate
                elif isinstance(load, TraceArrivals):
                    seconds += traces.get(workload.name, 0.0) / load.speed
        return self.repeats * seconds

    @property
    def search_seconds(self) -> float:
        """About how long the search for a rate waits at most for its requests' own times.

        That is where only the lowest rate holds: each rate tried is then as low as it can be.
        """
        rates = self.highest_rate
        if rates is None:
            return 0.0
        low = rates.low
        slowest = search(
            lambda rate: (rate <= low, ""), low, rates.high, most=rates.most, within=rates.within
        )
        gaps = sum(self.count(w) - 1 for w in self.workloads if w.trace is None)
        return gaps * sum(1 / probe.rate for probe in slowest.probes)

    @property
    def most_at_a_time(self) -> int:
        """The highest concurrency of a closed loop; open loops have no limit of their own."""
        return max(
            (
                load.concurrency
                for workload in self.workloads
                for load in self.loads(workload)
                if isinstance(load, ClosedLoop)
            ),
            default=1,
        )
