"""What the workloads of a profile are made of, and the requests of one pass. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.arrivals import AnyArrivals
from workbench.suite_spec import Sample
from workbench.suites import Suite
from workbench.traces import TraceRow
from workbench.traffic import Ask, Outcome
from workbench.workload_spec import Workload
from workbench.workloads import Encoder, make_asks, sample_keys, suite_asks, trace_asks


@dataclass(frozen=True)
class SuiteLoad:
    """A suite whose samples are asked under load.

    Attributes:
        suite: the suite.
        prompt_of: token ids of a sample's prompt.
        right: whether an answer to a sample is right.
    """

    suite: Suite
    prompt_of: Callable[[Sample], Sequence[int]]
    right: Callable[[Sample, str], bool]


@dataclass(frozen=True)
class Inputs:
    """What workloads are made of.

    Attributes:
        tokenizer: of the checkpoint; makes prompts of an exact length.
        traces: workload -> the trace it replays.
        suites: workload -> the suite it asks.
    """

    tokenizer: Encoder
    traces: Mapping[str, Sequence[TraceRow]] = field(default_factory=dict)
    suites: Mapping[str, SuiteLoad] = field(default_factory=dict)

    def asks(
        self, workload: Workload, load: AnyArrivals, count: int, *, seed: str, texts: str
    ) -> list[Ask]:
        """The requests of one pass; a trace has its own number of them.

        Args:
            workload: what is asked.
            load: when.
            count: how many.
            seed: of lengths and gaps.
            texts: of the words, or of the samples' order.

        Raises:
            RecipeError: the trace or the suite cannot be asked.
        """
        if workload.trace is not None:
            rows = self.traces[workload.name]
            return trace_asks(workload, rows, self.tokenizer, load, seed=seed, texts=texts)
        if workload.suite is not None:
            of = self.suites[workload.name]
            spec, samples = of.suite.spec, of.suite.samples
            return suite_asks(
                spec, samples, of.prompt_of, load, count=count, seed=seed, texts=texts
            )
        return make_asks(workload, self.tokenizer, load, count=count, seed=seed, texts=texts)

    def graded(
        self, workload: Workload, asks: Sequence[Ask], outcomes: Sequence[Outcome]
    ) -> dict[str, bool] | None:
        """By key of a sample's answer, whether it is right; None where no suite is asked."""
        if workload.suite is None:
            return None
        asked = self.suites[workload.name]
        samples = {sample.id: sample for sample in asked.suite.samples}
        of = {ask.number: samples[ask.sample] for ask in asks if ask.sample is not None}
        keys = sample_keys(asks)
        return {
            keys[o.number]: asked.right(of[o.number], o.text)
            for o in outcomes
            if o.status == "completed"
        }
