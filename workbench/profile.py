"""Measures latency, throughput and memory of a server, under every load of the recipe.

A *pass* is one workload under one load, once: a closed loop of so many workers, or requests that
arrive by themselves. `workbench.load` sends it from a process of its own, `workbench.watch` samples
server and machine meanwhile, and `workbench.load_stats` makes the figures. Repeats run through the
loads forwards and backwards in turn, so that what drifts adds the same to each.

Each load is warmed up once per server: requests of its concurrency with a few tokens to answer,
which count nowhere. Lengths and gaps are drawn once for a workload: every repeat is equal work at
equal times, and so is every load and rate that is searched (gaps are scaled with the rate). What
repeats differ by is the machine's own, and an interval over repeats is of the machine under these
draws, not under others; another `seed` has others. The words of the prompts are drawn anew for
every pass, and no two begin alike. Of a suite each pass asks its samples in another order.

A load that the server refuses or fails at is a recorded point without latencies. A server that
dies ends the profile; what was measured before is kept in `loads/` and is not measured again on
the same weights, served alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from workbench.arrivals import AnyArrivals, ClosedLoop, PoissonArrivals, alternated, load_name
from workbench.errors import ServingFailure
from workbench.load import Limits, Load, Target, run_load
from workbench.load_inputs import Inputs as Inputs
from workbench.load_inputs import SuiteLoad as SuiteLoad
from workbench.load_records import HighestRate, LoadSummary
from workbench.load_stats import Repeat, load_point, meets
from workbench.pass_figures import asks_of, repeat_of, summary_of
from workbench.passes import LOADS as LOADS
from workbench.passes import Pass, conditions, pass_file, plain, read_pass, write_pass
from workbench.profile_spec import ProfileSpec
from workbench.progress import Progress, silent
from workbench.rate_search import search, with_saturation
from workbench.records import LoadPoint
from workbench.servers import Endpoint
from workbench.traffic import Ask
from workbench.watch import Watch
from workbench.workload_spec import Workload
from workbench.workloads import make_prompts

#: A server's cache keeps whole blocks of so many tokens.
_BLOCK = 16
_WARM_TOKENS, _WARM_PROMPT = 4, 64
#: What a pass may take beyond its requests' own limits.
_SPARE_SECONDS = 60.0


@dataclass(frozen=True)
class Measured:
    """What a profile found.

    Attributes:
        loads: one for each workload and load, in the recipe's order, then the rates searched.
        highest: workload -> the highest rate that met the targets.
        peak_rss: peak resident bytes of the server's processes; None: never seen. Of every server
            that a pass was measured on: one that was started again may have used less since.
        peak_gpu: peak device bytes of the same; None: no GPU.
        resumed: passes taken over from an attempt that was cut short, each once.
        began: when the first pass began, UTC.
        finished: when the last one had ended.
    """

    loads: tuple[LoadSummary, ...]
    highest: dict[str, HighestRate]
    peak_rss: int | None
    peak_gpu: int | None
    resumed: int
    began: datetime
    finished: datetime

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """The closed loops, as the policy's checks read them."""
        return tuple(load_point(s) for s in self.loads if s.arrivals["arrivals"] == "closed")


def run_profile(
    endpoint: Endpoint,
    spec: ProfileSpec,
    inputs: Inputs,
    *,
    folder: Path,
    under: str = "",
    progress: Progress = silent,
) -> Measured:
    """Measure every workload under every load.

    Args:
        endpoint: the server.
        spec: workloads, loads, requests, repeats and seed.
        inputs: what the workloads are made of.
        folder: of the step; the passes are kept in its `loads/`.
        under: folder in `loads/`, where other serving options are measured than the recipe's own.
        progress: called with passes done, all, and which one runs.

    Raises:
        ServingFailure: the server died, or not one request of the whole profile was completed.
        RecipeError: a trace or a suite cannot be asked.
    """
    endpoint.give_way()
    with Watch(endpoint) as watch:
        profiler = Profiler(endpoint, spec, inputs, folder / LOADS / under, watch, progress)
        for repeat, workload, load in profiler.order:
            profiler.measure(workload, load, repeat)
        return profiler.found()


class Profiler:
    """Measures one server, pass by pass; whoever made it decides when which one is due.

    Args:
        endpoint, spec, inputs, progress: as of `run_profile`.
        folder: where the passes are kept.
        watch: of this server, entered.

    Attributes:
        order: repeat, workload and load of every pass of the recipe's own loads, as they are due.
        resumed: passes taken over from an attempt that was cut short, each once.
        done, whole: passes measured now, and all that are to be, as far as it is known.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        spec: ProfileSpec,
        inputs: Inputs,
        folder: Path,
        watch: Watch,
        progress: Progress,
    ) -> None:
        self._endpoint, self._spec, self._inputs = endpoint, spec, inputs
        self._folder, self._watch, self._progress = folder, watch, progress
        self._served = conditions(endpoint.serving)
        self._server = f"the server for '{endpoint.model}'"
        self._target = Target(
            endpoint.base_url,
            endpoint.key,
            endpoint.model,
            keep_alive=endpoint.serving.engine != "llamacpp",
        )
        self._warm: set[tuple[str, str]] = set()
        self._passes: dict[Path, tuple[Repeat, Pass]] = {}
        self._blocks: set[tuple[int, ...]] = set()
        self._heard = False  # whether the last load got a token; before the first none did
        self.done = 0
        self._found: dict[tuple[str, str], list[tuple[Repeat, Pass]]] = defaultdict(list)
        plan = [(w, load) for w in spec.workloads for load in spec.loads(w)]
        self.order = [(i, *one) for i, one in alternated(plan, spec.repeats)]
        most = spec.highest_rate.most if spec.highest_rate else 0
        searched = most * sum(workload.trace is None for workload in spec.workloads)
        self.whole = len(self.order) + searched
        self.resumed = 0

    def measure(self, workload: Workload, load: AnyArrivals, repeat: int) -> None:
        """One pass of `order`, or what is kept of it.

        Raises:
            ServingFailure, RecipeError: as of `run_profile`.
        """
        self._found[workload.name, load_name(load)].append(self._pass(workload, load, repeat))

    def kept(self, workload: Workload, load: AnyArrivals, repeat: int) -> Path | None:
        """File of a pass that an attempt which was cut short left of this server; None: none."""
        path = pass_file(self._folder, workload.name, load, repeat)
        return path if read_pass(path, self._served) is not None else None

    def found(self) -> Measured:
        """What all passes came to, when each of `order` was measured; searches rates first.

        Raises:
            ServingFailure: not one request of the whole profile was completed, or the server died.
        """
        loads, highest = self._figures()
        self._watch.look()
        peak, spans = self._watch.peak, self._spans
        for _, done in self._passes.values():
            peak.saw(done.peak_rss, done.peak_gpu)
        began, finished = min(one for one, _ in spans), max(end for _, end in spans)
        return Measured(loads, highest, peak.rss, peak.gpu, self.resumed, began, finished)

    def _figures(self) -> tuple[tuple[LoadSummary, ...], dict[str, HighestRate]]:
        passes = [done for pairs in self._found.values() for _, done in pairs]
        if passes and not any(map(_completed, passes)):
            self._refuse(passes)
        loads = [
            summary_of(self._spec, workload, load, self._found[workload.name, load_name(load)])
            for workload in self._spec.workloads
            for load in self._spec.loads(workload)
        ]
        highest = {}
        for workload in self._spec.workloads if self._spec.highest_rate else ():
            if workload.trace is None:  # a trace has times of its own
                highest[workload.name], probed = self._highest(workload)
                known = [s.arrivals for s in loads if s.workload == workload.name]
                loads += [summary for summary in probed if summary.arrivals not in known]
        self.whole = self.done  # of a search not every rate is tried
        self._progress(self.done, self.whole, "profiled")
        return tuple(loads), highest

    @property
    def _spans(self) -> list[tuple[datetime, datetime]]:
        begins = [(datetime.fromisoformat(p.began), p.seconds) for _, p in self._passes.values()]
        return [(began, began + timedelta(seconds=seconds)) for began, seconds in begins]

    def _highest(self, workload: Workload) -> tuple[HighestRate, list[LoadSummary]]:
        """The highest rate of a workload, and every rate that was tried."""
        rates = self._spec.highest_rate
        assert rates is not None
        tried: dict[float, list[tuple[Repeat, Pass]]] = defaultdict(list)

        def probe(rate: float) -> tuple[bool, str]:
            load = PoissonArrivals(rate=rate)
            # The answer is tried twice: another repeat, equal work at equal times in other words.
            tried[rate].append(self._pass(workload, load, len(tried[rate])))
            return meets(summary_of(self._spec, workload, load, tried[rate][-1:]), rates.share)

        found = search(probe, rates.low, rates.high, most=rates.most, within=rates.within)
        passes = [done for pairs in tried.values() for _, done in pairs]
        if not any(map(_completed, passes)):
            self._refuse(passes)
        loads = {
            rate: summary_of(self._spec, workload, PoissonArrivals(rate=rate), passes)
            for rate, passes in sorted(tried.items())
        }
        if found.rate is not None:
            found = with_saturation(found, loads[found.rate].saturation)
        return found, list(loads.values())

    def _pass(self, workload: Workload, load: AnyArrivals, repeat: int) -> tuple[Repeat, Pass]:
        label = f"{workload.name} {load_name(load)}"
        if self._spec.repeats > 1:
            label += f", {repeat + 1} of {self._spec.repeats}"
        if self.resumed:
            label += f", {self.resumed} kept"
        self._progress(self.done, self.whole, label)
        path = pass_file(self._folder, workload.name, load, repeat)
        # A rate that is searched may be one of the recipe's own loads: it is known already.
        # What took none of this attempt's time is no part of what it has to do.
        kept = self.resumed
        known = path in self._passes
        if not known:
            self._passes[path] = self._asked(path, workload, load, repeat, label)
        if known or self.resumed > kept:
            self.whole -= 1
        else:
            self.done += 1
        return self._passes[path]

    def _asked(
        self, path: Path, workload: Workload, load: AnyArrivals, repeat: int, label: str
    ) -> tuple[Repeat, Pass]:
        """A pass as an attempt that was cut short left it, or measured now."""
        asks = asks_of(self._spec, self._inputs, workload, load, repeat)
        seen = self._seen(asks)
        done = read_pass(path, self._served)
        if done is not None and len(done.outcomes) == len(asks):
            self.resumed += 1
        else:
            self._warm_up(workload, load)
            done = self._measure(workload, load, repeat, asks, seen, label)
            write_pass(path, done)
        return repeat_of(self._inputs, workload, asks, done), done

    def _measure(
        self,
        workload: Workload,
        load: AnyArrivals,
        repeat: int,
        asks: Sequence[Ask],
        seen: int,
        label: str,
    ) -> Pass:
        self._watch.look()  # what the warm-up did stays out of it
        began = datetime.now(UTC)
        sent = self._send(asks, load, keep_text=workload.suite is not None, label=label)
        if len(sent.completed) < len(asks) and not self._endpoint.alive():
            raise ServingFailure(
                f"{self._server} died under the load '{label}', after {len(sent.completed)} of "
                f"{len(asks)} requests: {_commonest(sent.reasons)}",
                where=self._endpoint.base_url,
                fix="read the server's log; the loads measured before are kept. A lighter load, or "
                "less memory for its KV cache, may help",
            )
        self._check_heard(sent, label)
        usage = self._watch.between(sent.began, sent.began + sent.seconds)
        return Pass(
            workload=workload.name,
            arrivals=load.model_dump(mode="json"),
            repeat=repeat,
            began=began.isoformat(timespec="milliseconds"),
            seconds=sent.seconds,
            client_cpu_seconds=sent.cpu_seconds,
            client_wait_seconds=sent.cpu_wait_seconds,
            seen_before=seen,
            usage=usage,
            peak_rss=self._watch.peak.rss,
            peak_gpu=self._watch.peak.gpu,
            outcomes=tuple(plain(outcome) for outcome in sent.outcomes),
            served=self._served,
        )

    def _check_heard(self, sent: Load, label: str) -> None:
        """A load without a token is a recorded point; of a server that answers nothing, none is.

        Raises:
            ServingFailure: no load before got a token of it, or the one just before did not.
        """
        if sent.silent and not self._heard:
            raise ServingFailure(
                f"{self._server} takes requests and answers none: of the load '{label}' "
                f"{sent.silent}",
                where=self._endpoint.base_url,
                fix="read the server's log; what was measured before is kept. Where a first token "
                "takes longer than that, raise profile.request_seconds",
            )
        self._heard = not sent.silent

    def _send(self, asks: Sequence[Ask], load: AnyArrivals, *, keep_text: bool, label: str) -> Load:
        level = load.concurrency if isinstance(load, ClosedLoop) else None
        limit = self._spec.request_seconds
        turns = -(-len(asks) // level) if level else 1
        last = max((ask.at or 0.0 for ask in asks), default=0.0)
        begun = self.done

        def waiting(seconds: float) -> None:
            self._progress(begun, self.whole, f"{label}, {seconds:.0f} s")

        return run_load(
            self._target,
            asks,
            concurrency=level,
            limits=Limits(
                first_byte=limit,
                between=limit,
                request=limit,
                load=last + turns * limit + _SPARE_SECONDS,
            ),
            keep_text=keep_text,
            waiting=waiting,
        )

    def _seen(self, asks: Iterable[Ask]) -> int:
        """How many begin with a whole block that was asked before: a prefix cache may help them."""
        seen = 0
        for ask in asks:
            block = ask.prompt[:_BLOCK]
            if len(block) == _BLOCK:
                seen += block in self._blocks
                self._blocks.add(block)
        return seen

    def _warm_up(self, workload: Workload, load: AnyArrivals) -> None:
        """Short answers to prompts of its length, at its concurrency; never its own prompts."""
        key = (workload.name, load_name(load))
        if key in self._warm:
            return
        self._warm.add(key)
        level = load.concurrency if isinstance(load, ClosedLoop) else 2
        length = workload.prompt_tokens
        prompts = make_prompts(
            self._inputs.tokenizer,
            count=max(2, level),
            tokens=length.quantile(0.5) if length else _WARM_PROMPT,
            seed=f"warm/{self._spec.seed}/{'/'.join(key)}",
        )
        asks = [Ask(i, tuple(ids), _WARM_TOKENS) for i, ids in enumerate(prompts)]
        warm = ClosedLoop(concurrency=max(2, level))
        sent = self._send(asks, warm, keep_text=False, label=f"{' '.join(key)}, warm-up")
        self._heard = self._heard or not sent.silent

    def _refuse(self, passes: Sequence[Pass]) -> None:
        failed = [o for done in passes for o in done.results()]
        reasons: dict[str, int] = defaultdict(int)
        for outcome in failed:
            reasons[outcome.reason or outcome.status] += 1
        raise ServingFailure(
            f"not one of {len(failed)} requests to {self._server} was completed: "
            f"{_commonest(reasons)}",
            where=self._endpoint.base_url,
            fix="read the server's log; lower the workloads' token counts, or raise "
            "profile.request_seconds",
        )


def _completed(done: Pass) -> bool:
    return any(outcome["status"] == "completed" for outcome in done.outcomes)


def _commonest(reasons: Mapping[str, int]) -> str:
    if not reasons:
        return "no reason was told"
    reason = max(reasons, key=lambda why: reasons[why])
    return f"{reason} ({reasons[reason]} times)"
