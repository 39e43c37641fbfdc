"""The figures of a load, from its outcomes alone. Pure: no clock, no network.

    TTFT        sent to first token
    TPOT        (last token - first token) / (tokens - 1), tokens by the server's usage
    ITL         each gap between successive chunks with content; a request gives many
    end to end  sent to last token
    rate        sum over repeats / sum of their seconds: from the first request sent until the last
                one was over, whatever became of it. Waiting for one that hangs is time in which
                nothing else was done: left out, a server would look faster the more it drops. A
                load that a limit cut off ends there. As `vllm bench serve` (its whole duration)

Only completed requests give a latency, a token or a request to a rate; every figure says how many
requests gave it and why the others gave none. An answer that stopped at its limit though it might
have gone on is truncated, not completed. Percentiles are over the values of all repeats together
(linear interpolation). Intervals: `workbench.load_intervals`.

Goodput counts requests completed within every target; quality goodput those of them whose answer is
right as well. What cannot be shown to be in time (all tokens at once, so that no gap is known)
or right (no grade) is not good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench import load_intervals
from workbench import load_requests as requests
from workbench.arrivals import AnyArrivals
from workbench.bootstrap import LEAST_REPEATS, Draws, Estimate, Unit, percentile
from workbench.load_records import (
    Figure,
    Good,
    LoadSummary,
    Quiet,
    Saturation,
    Spread,
    Targets,
    Tokens,
)
from workbench.records import LoadPoint
from workbench.saturation import NOT_KNOWN, over_repeats, saturation
from workbench.traffic import Ask, Outcome
from workbench.workloads import sample_keys

_PERCENTILES = (50.0, 90.0, 95.0, 99.0)
_ERRORS = ("short", "failed", "refused", "timeout")


@dataclass(frozen=True)
class Repeat:
    """One measured pass of a load, warm-up left out.

    Attributes:
        asks: what was to be sent.
        outcomes: what became of it, in any order.
        correct: key of a sample's answer in this repeat (`workloads.sample_keys`: its id, ``id#1``
            the second time it is asked) -> whether it is right; None: nobody graded.
    """

    asks: Sequence[Ask]
    outcomes: Sequence[Outcome]
    correct: Mapping[str, bool] | None = None


@dataclass(frozen=True)
class _Pair:
    ask: Ask
    outcome: Outcome
    status: str

    @property
    def done(self) -> bool:
        return self.status == "completed"

    @property
    def tokens(self) -> int:
        """Output tokens, by usage where there is one."""
        return requests.output_tokens(self.outcome)


_Pairs = Sequence[_Pair]


def summarize(
    repeats: Sequence[Repeat],
    *,
    workload: str,
    arrivals: AnyArrivals,
    targets: Targets | None = None,
    draws: Draws | None = None,
    quiet: Quiet | None = None,
) -> LoadSummary:
    """All figures of one workload at one load.

    Args:
        repeats: the same load, measured again; the order does not matter.
        workload: its name.
        arrivals: the arrival process; saturation is looked for in an open loop only.
        targets: without them there is no goodput; quality goodput also needs a graded repeat.
        draws: of the bootstrap.
        quiet: what was found of the machine.

    Raises:
        ValueError: no repeat, a repeat without requests, outcomes that do not belong to the asks
            one to one, or grades without targets or without any request that asks a sample.
    """
    draws = draws or Draws()
    paired = [_paired(repeat) for repeat in repeats]
    if not paired:
        raise ValueError("no repeat")
    pairs = [pair for repeat in paired for pair in repeat]
    done = [pair for pair in pairs if pair.done]
    unit: Unit = "repeat" if len(paired) >= LEAST_REPEATS else "request"
    seconds = [_seconds(repeat) for repeat in paired]

    def spread(values: Callable[[Outcome], requests.Values]) -> Spread:
        return _spread(paired, values, draws)

    def rate(amount: Callable[[_Pair], float]) -> Figure:
        """Of completed requests."""
        sums = [float(sum(amount(pair) for pair in repeat if pair.done)) for repeat in paired]
        parts = list(zip(sums, seconds, strict=True))
        return _figure(load_intervals.rate(parts, draws.confidence))

    def counts(among: Callable[[_Pair], bool]) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((sum(map(among, group)), len(group)) for group in paired))

    def share(among: Callable[[_Pair], bool]) -> Figure:
        return _figure(load_intervals.share(counts(among), draws.confidence))

    def good(missed: Callable[[_Pair], list[str]]) -> Good:
        why = {id(pair): missed(pair) for pair in pairs}
        return Good(
            count=sum(not reasons for reasons in why.values()),
            share=share(lambda pair: not why[id(pair)]),
            per_s=rate(lambda pair: not why[id(pair)]),
            by_repeat=counts(lambda pair: not why[id(pair)]),
            missed=_counted(reason for reasons in why.values() for reason in reasons),
        )

    def late(pair: _Pair) -> list[str]:
        return requests.missed_targets(pair.outcome, pair.status, targets.given if targets else {})

    in_time = right = None
    if targets is not None:
        in_time = good(late)
    if any(repeat.correct is not None for repeat in repeats):
        if targets is None:
            raise ValueError("quality goodput is of answers in time: it needs targets")
        wrong = _wrong(repeats, paired)
        right = good(lambda pair: late(pair) + wrong.get(id(pair), []))
    return LoadSummary(
        workload=workload,
        arrivals=arrivals.model_dump(mode="json"),
        repeats=len(paired),
        seconds=sum(sorted(seconds)),
        requests=len(pairs),
        completed=len(done),
        by_status=_counted(pair.status for pair in pairs),
        by_reason=_counted(
            f"{p.status}: {p.outcome.reason}" if p.outcome.reason else p.status
            for p in pairs
            if not p.done
        ),
        ttft_ms=spread(requests.ttft),
        tpot_ms=spread(requests.tpot),
        itl_ms=spread(requests.itl),
        e2e_ms=spread(requests.e2e),
        queued_ms=spread(requests.queued),
        user_tokens_per_s=spread(requests.user),
        requests_per_s=rate(lambda pair: 1),
        input_tokens_per_s=rate(_input_tokens),
        output_tokens_per_s=rate(lambda pair: pair.tokens),
        total_tokens_per_s=rate(lambda pair: _input_tokens(pair) + pair.tokens),
        completion_rate=share(lambda pair: pair.done),
        error_rate=share(lambda pair: pair.status in _ERRORS),
        tokens=_tokens(done),
        targets=targets.given if targets else None,
        good=in_time,
        correct=right,
        by_repeat=_by_repeat(paired, seconds),
        saturation=_saturation(paired, arrivals),
        resampled=unit,
        percentiles_by="order statistics",
        resamples=draws.resamples,
        confidence=draws.confidence,
        seed=draws.seed,
        quiet=quiet or Quiet(),
    )


def meets(summary: LoadSummary, share: float = 0.99) -> tuple[bool, str]:
    """Whether a load was carried: enough of *all* its requests in time, and no growing backlog.

    Args:
        summary: made with targets.
        share: of all requests, failed ones included, that must be good: 0.99 is "p99 within the
            targets" with nothing left out.

    Returns:
        The answer, and why in a few words.

    Raises:
        ValueError: the summary has no targets.
    """
    good = summary.good
    if good is None:
        raise ValueError("the summary was made without targets")
    if summary.saturation.verdict in ("growing", "refusing"):
        return False, summary.saturation.sentence
    found = good.count / summary.requests
    said = f"{good.count} of {summary.requests} requests ({found:.1%}) within the targets"
    if found >= share:
        unknown = summary.saturation.verdict == "unknown"
        return True, said + f"; {NOT_KNOWN}: {summary.saturation.sentence}" * unknown
    worst = max(good.missed, key=lambda why: good.missed[why])
    return False, f"{said}, {share:.1%} wanted; most missed: {worst}"


def _input_tokens(pair: _Pair) -> int:
    counted = pair.outcome.prompt_tokens
    return len(pair.ask.prompt) if counted is None else counted


def load_point(summary: LoadSummary) -> LoadPoint:
    """A closed loop's summary as the point of a profile, which the policy's checks read.

    Raises:
        ValueError: it is no closed loop: a point is known by its concurrency.
    """
    if summary.arrivals["arrivals"] != "closed":
        raise ValueError(f"workload '{summary.workload}' was not asked in a closed loop")
    return LoadPoint(
        workload=summary.workload,
        concurrency=summary.arrivals["concurrency"],
        completed=summary.completed,
        failed=summary.requests - summary.completed,
        ttft_ms_p50=summary.ttft_ms.p50.value,
        ttft_ms_p95=summary.ttft_ms.p95.value,
        tpot_ms_p50=summary.tpot_ms.p50.value,
        tpot_ms_p95=summary.tpot_ms.p95.value,
        output_tokens_per_s=summary.output_tokens_per_s.value,
        seconds=summary.seconds,
        errors=summary.by_reason,
    )


def _paired(repeat: Repeat) -> list[_Pair]:
    """Each outcome with its ask, in the order of the asks."""
    asks = {ask.number: ask for ask in repeat.asks}
    outcomes = {outcome.number: outcome for outcome in repeat.outcomes}
    whole = len(asks) == len(repeat.asks) and len(outcomes) == len(repeat.outcomes)
    if not asks or not whole or asks.keys() != outcomes.keys():
        raise ValueError(
            f"{len(repeat.outcomes)} outcomes do not belong to {len(repeat.asks)} requests: there "
            "is one for each number, the failed and unfinished included"
        )
    return [
        _Pair(asks[n], outcomes[n], requests.standing(asks[n], outcomes[n])) for n in sorted(asks)
    ]


def _seconds(pairs: _Pairs) -> float:
    """From the first request sent until the last one was over; 0 where none was sent.

    One that found no connection was never sent; its trying counts from when it was due.
    """
    outcomes = [pair.outcome for pair in pairs]
    if all(outcome.sent is None for outcome in outcomes):
        return 0.0
    begun = min(o.due if o.sent is None else o.sent for o in outcomes)
    return max(map(requests.over, outcomes)) - begun


def _spread(
    paired: Sequence[_Pairs], values: Callable[[Outcome], requests.Values], draws: Draws
) -> Spread:
    left_out: Counter[str] = Counter()
    repeats: list[list[list[float]]] = []
    for repeat in paired:
        repeats.append([])
        for pair in repeat:
            found = values(pair.outcome) if pair.done else pair.status
            if isinstance(found, str):
                left_out[found] += 1
            else:
                repeats[-1].append(found)
    figures = load_intervals.spread(repeats, _PERCENTILES, draws)
    mean, p50, p90, p95, p99, most = map(_figure, figures)
    return Spread(
        n=sum(len(one) for repeat in repeats for one in repeat),
        requests=sum(map(len, repeats)),
        left_out=dict(sorted(left_out.items())),
        mean=mean,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=most,
    )


def _by_repeat(
    paired: Sequence[_Pairs], seconds: Sequence[float]
) -> dict[str, tuple[float | None, ...]]:
    """What a policy may check, repeat by repeat: see `repeat_interval` and `workbench.quiet`."""

    def at(
        q: float, values: Callable[[Outcome], requests.Values], pairs: Sequence[_Pair]
    ) -> float | None:
        found = [values(pair.outcome) for pair in pairs if pair.done]
        return percentile([v for one in found if not isinstance(one, str) for v in one], q)

    def speed(pairs: _Pairs, took: float) -> float | None:
        return sum(pair.tokens for pair in pairs if pair.done) / took if took > 0 else None

    return {
        "ttft_ms_p50": tuple(at(50, requests.ttft, pairs) for pairs in paired),
        "ttft_ms_p95": tuple(at(95, requests.ttft, pairs) for pairs in paired),
        "tpot_ms_p50": tuple(at(50, requests.tpot, pairs) for pairs in paired),
        "tpot_ms_p95": tuple(at(95, requests.tpot, pairs) for pairs in paired),
        "output_tokens_per_s": tuple(map(speed, paired, seconds)),
    }


def _tokens(done: _Pairs) -> Tokens:
    told = [pair for pair in done if pair.outcome.output_tokens is not None]
    usage = sum(pair.tokens for pair in told)
    chunks = sum(len(pair.outcome.token_times) for pair in told)
    return Tokens(
        usage=usage,
        chunks=chunks,
        difference=usage - chunks,
        without_usage=len(done) - len(told),
        prompts_differ=sum(_input_tokens(pair) != len(pair.ask.prompt) for pair in done),
    )


def _wrong(repeats: Sequence[Repeat], paired: Sequence[_Pairs]) -> dict[int, list[str]]:
    """By identity of a pair: that its answer is wrong, or that nobody says it is right."""
    wrong: dict[int, list[str]] = {}
    if not any(ask.sample is not None for repeat in repeats for ask in repeat.asks):
        raise ValueError("answers are graded by sample, and no request asks one")
    for repeat, pairs in zip(repeats, paired, strict=True):
        keys, correct = sample_keys(repeat.asks), repeat.correct or {}
        for pair in pairs:
            grade = correct.get(keys.get(pair.ask.number, ""))
            if pair.done and not grade:
                wrong[id(pair)] = ["not graded" if grade is None else "wrong answer"]
    return wrong


def _saturation(paired: Sequence[_Pairs], arrivals: AnyArrivals) -> Saturation:
    if arrivals.arrivals == "closed":
        return Saturation(verdict="closed loop", sentence="a closed loop cannot build up a queue")
    return over_repeats([saturation([pair.outcome for pair in pairs]) for pairs in paired])


def _figure(found: Estimate) -> Figure:
    return Figure(value=found.value, low=found.low, high=found.high)


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
