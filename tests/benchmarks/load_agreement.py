"""The same workload through the load client and through `vllm bench serve`: do they agree?

One vLLM server, the demo checkpoint, in turn: workbench, vLLM, then vLLM, workbench, and so on.

    .venv/bin/python tests/benchmarks/load_agreement.py [--rounds 3] [--requests 40] [--rate 0.8]

Both ask the completions route with the same token ids in the same order, greedily, for answers of
the same exact lengths, in each round again; no two prompts of a load begin alike, and the server
has no prefix cache. Lengths vary by a half to either side: of equal ones a closed loop's requests
would all end and begin together, and which of them share a step of the server, so the median TTFT,
would hang on a few hundred microseconds between the sends. Both clients warm up right before their
clock begins. In the open loop both send at the same times: those of the Poisson process that vLLM
draws from its seed (`--burstiness 1`), for two draws would differ by more than what is looked for.

The server computes with one thread, so that with two cores its engine's loop, which polls all the
time, and the client have the other: with two threads a token at concurrency 1 took 62 to 70 ms
instead of 25 to 28 and differed by a tenth from load to load, whoever asked (2 cores, vLLM 0.32).

What a client reports is compared as it is, with one exception. The definitions differ in this:

    TTFT        vLLM's clock begins before it writes the request as JSON and connects, ours when the
                request's last byte is handed over. It takes the first chunk, with text or without;
                a chunk without text is no token here (the last line counts such answers' chunks).
                It looks at the clock when the chunk's JSON is read, ours when the bytes are.
    TPOT        the same: (last token - first token) / (tokens - 1), tokens by the server's usage.
    throughput  over the time to the last answer's end, from the first request sent (ours) or from
                the load's begin (vLLM's): in an open loop the wait for the first arrival is in it.
                It is taken out of vLLM's here; the JSON has it as reported too.

In the open loop about half of the answers share the server with a newcomer's prompt, which costs
them some 4 ms a token; which ones hangs on a few milliseconds, in each round on the same ones, so
the median TPOT there is the coarsest of the figures.

Ends with 1 where a throughput, a median TTFT or a median TPOT differs by more than 5 %, medians
over rounds. 99th percentiles are shown and not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from vllm_bench import bench

from workbench.arrivals import ClosedLoop, PoissonArrivals
from workbench.checkpoint import inspect
from workbench.envs import ensure
from workbench.hardware import detect
from workbench.load import Target, run_load
from workbench.load_stats import Repeat, summarize
from workbench.servers import Endpoint, serve
from workbench.spec import ServeSpec
from workbench.support import dtype, lane
from workbench.tokenizer import Tokenizer
from workbench.traffic import Ask
from workbench.workloads import Workload, make_asks

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "results" / "checkpoints" / "SmolLM2-135M-Instruct"
MOST = 0.05
#: Figure -> its name in what vLLM's client reports, and whether it is judged.
FIGURES = {
    "output tokens/s": ("output_throughput", True),
    "requests/s": ("request_throughput", True),
    "TTFT p50, ms": ("median_ttft_ms", True),
    "TTFT p99, ms": ("p99_ttft_ms", False),
    "TPOT p50, ms": ("median_tpot_ms", True),
    "TPOT p99, ms": ("p99_tpot_ms", False),
}
#: Figures of one client at one load in one round.
Figures = dict[str, float]


@dataclass(frozen=True)
class Point:
    """A load: so many requests open, or a rate and the times of its arrivals."""

    name: str
    level: int | None = None
    rate: float = 0.0

    def times(self, count: int, seed: int) -> list[float]:
        """When vLLM's client sends in an open loop: its own draws, stretched to count / rate."""
        if self.level is not None:
            return [0.0] * count
        # The generator that the client seeds and draws from, so no newer one.
        gaps = np.random.RandomState(seed).gamma(1.0, 1 / self.rate, count)
        at = np.cumsum(gaps)
        return [float(t) for t in at * (count / self.rate / at[-1])]


@dataclass(frozen=True)
class Same:
    """What both clients are given."""

    endpoint: Endpoint
    python: str
    point: Point
    asks: Sequence[Ask]
    warm: Sequence[Ask]
    seed: int


def ours(same: Same) -> tuple[Figures, int]:
    """Figures of the load client, and the tokens that came in no chunk of their own."""
    there, level = same.endpoint, same.point.level
    target = Target(there.base_url, there.key, there.model)
    times = same.point.times(len(same.asks), same.seed)
    asks = same.asks
    if level is None:
        asks = [replace(ask, at=at) for ask, at in zip(asks, times, strict=True)]
    run_load(target, same.warm, concurrency=level or len(same.warm))
    load = run_load(target, asks, concurrency=level)
    arrivals = ClosedLoop(concurrency=level) if level else PoissonArrivals(rate=same.point.rate)
    found = summarize([Repeat(asks, load.outcomes)], workload="agreement", arrivals=arrivals)
    tokens = found.tokens
    if found.completed != len(asks) or tokens.usage != sum(ask.max_tokens for ask in asks):
        sys.exit(f"completed {found.completed}, {tokens.usage} tokens; {found.by_reason}")
    if tokens.prompts_differ:
        sys.exit(f"the server counts {tokens.prompts_differ} prompts otherwise than they were sent")
    values = (
        found.output_tokens_per_s,
        found.requests_per_s,
        found.ttft_ms.p50,
        found.ttft_ms.p99,
        found.tpot_ms.p50,
        found.tpot_ms.p99,
    )
    figures = {
        name: float(figure.value or 0.0) for name, figure in zip(FIGURES, values, strict=True)
    }
    return figures, tokens.difference


def theirs(same: Same) -> Figures:
    """Figures of vLLM's client."""
    point, count = same.point, len(same.asks)
    if point.level is None:
        how: dict[str, Any] = {"request_rate": point.rate, "burstiness": 1.0}
    else:
        how = {"max_concurrency": point.level}
    found = bench(
        same.python,
        same.endpoint,
        DEMO,
        [ask.prompt for ask in same.asks],
        [ask.max_tokens for ask in same.asks],
        **how,
        seed=same.seed,
        # Its first look whether the server is there would be one more request.
        ready_check_timeout_sec=0,
        num_warmups=len(same.warm),
        percentile_metrics="ttft,tpot,itl,e2el",
        metric_percentiles="99",
    )
    if found["input_lens"] != [len(ask.prompt) for ask in same.asks]:
        sys.exit("the server counts prompts of vLLM's client otherwise than they were made")
    figures = {name: float(found[key]) for name, (key, _) in FIGURES.items()}
    times = point.times(count, same.seed)
    if point.level is None:
        late = np.array(found["start_times"]) - np.array(times)
        if np.median(np.abs(late - np.median(late))) > 0.1 / point.rate:
            sys.exit("vLLM's client sent at other times than those drawn from its seed here")
    for name in ("output tokens/s", "requests/s"):
        figures[f"{name}, as reported"] = figures[name]
        figures[name] *= found["duration"] / (found["duration"] - times[0])
    return figures


def compared(
    point: str, mine: Sequence[Figures], vllm: Sequence[Figures]
) -> tuple[list[str], list[str], dict[str, float]]:
    """Lines of the table, what differs too much, and the ratios."""
    lines, apart, ratios = [], [], {}
    for name, (_, judged) in FIGURES.items():
        cells, middles = [], []
        for rounds in (mine, vllm):
            values = [figures[name] for figures in rounds]
            middles.append(statistics.median(values))
            cells.append(f"{middles[-1]:.2f} ({min(values):.2f} to {max(values):.2f})")
        ratios[name] = ratio = middles[0] / middles[1]
        verdict = "not judged"
        if judged:
            verdict = "agree" if abs(ratio - 1) <= MOST else "**apart**"
        if verdict == "**apart**":
            apart.append(f"{point}: {name} {ratio:.3f}")
        lines.append(f"| {point} | {name} | {cells[0]} | {cells[1]} | {ratio:.3f} | {verdict} |")
    return lines, apart, ratios


def measure(
    endpoint: Endpoint,
    python: str,
    tokenizer: Tokenizer,
    points: Sequence[Point],
    options: argparse.Namespace,
) -> tuple[dict[str, dict[str, list[Figures]]], int]:
    """Load -> client -> figures of each round; and our tokens without a chunk of their own."""
    workload = Workload.model_validate(
        {
            "name": "agreement",
            "prompt_tokens": options.prompt_tokens,
            "output_tokens": {
                "distribution": "uniform",
                "min": options.tokens - options.tokens // 2,
                "max": options.tokens + options.tokens // 2,
            },
        }
    )
    rounds: dict[str, dict[str, list[Figures]]] = {
        point.name: {"workbench": [], "vllm bench": []} for point in points
    }
    silent = 0
    for number in range(options.rounds):
        for place, point in enumerate(points):
            # Enough that a closed loop's begin and end, where fewer are open, weigh little.
            requests = max(options.requests, options.per_level * (point.level or 0))
            made = [
                make_asks(
                    workload,
                    tokenizer,
                    ClosedLoop(concurrency=1),
                    count=count,
                    seed=f"{kind}/{place}",
                )
                for kind, count in (("asks", requests), ("warm", options.warm))
            ]
            same = Same(endpoint, python, point, made[0], made[1], seed=place)
            clients = ["workbench", "vllm bench"]
            for client in clients if (number + place) % 2 == 0 else clients[::-1]:
                if client == "workbench":
                    figures, more = ours(same)
                    silent += more
                else:
                    figures = theirs(same)
                rounds[point.name][client].append(figures)
                said = ", ".join(f"{name} {figures[name]:.2f}" for name in FIGURES)
                print(f"{number + 1}: {point.name}, {client}: {said}", file=sys.stderr, flush=True)
    return rounds, silent


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=40, help="of a client at a load, least")
    parser.add_argument("--per-level", type=int, default=16, help="requests for each open one")
    parser.add_argument("--warm", type=int, default=8, help="requests before each")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer, on average")
    parser.add_argument("--levels", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rate", type=float, default=0.8, help="requests/s of the open loop")
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "load_agreement.json")
    options = parser.parse_args()
    machine, record, tokenizer = detect(), inspect(DEMO), Tokenizer.load(DEMO)
    environment = ensure("vllm", machine.target)
    points = [Point(f"concurrency {level}", level) for level in options.levels]
    points.append(Point(f"{options.rate:g} requests/s", rate=options.rate))
    before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(
            ServeSpec(max_model_len=1024),
            engine_name="vllm",
            checkpoint=DEMO,
            model_name="demo",
            lane=lane("none", {}, "vllm", machine),
            dtype=dtype("auto", record, "vllm", machine),
            served_digest=record.weights_digest,
            twin_of=None,
            environment=environment,
            hardware=machine,
            folder=Path(folder) / "server",
            concurrency=max(options.levels, default=1),
            extra_env={"OMP_NUM_THREADS": "1"},
        ) as endpoint,
    ):
        endpoint.give_way()  # as a profile does
        if "--no-enable-prefix-caching" not in endpoint.serving.command:
            sys.exit("the server has a prefix cache, and the second client would find its prompts")
        rounds, silent = measure(endpoint, environment.python, tokenizer, points, options)
        version = endpoint.serving.engine_version
    ratios: dict[str, Mapping[str, float]] = {}
    apart: list[str] = []
    head = ["load", "figure", "workbench (rounds)", f"vllm bench serve {version} (rounds)"]
    head += ["ratio", f"within {MOST:.0%}"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for name, found in rounds.items():
        lines, more, ratios[name] = compared(name, found["workbench"], found["vllm bench"])
        print("\n".join(lines))
        apart += more
    print(
        f"\n{options.requests} requests or more of {options.prompt_tokens} tokens, answers of "
        f"{options.tokens} on average; medians of {options.rounds} rounds (least to most); "
        f"{machine.key}, load average before {before:.1f}; {silent} tokens of our "
        "answers without a chunk with text\n"
        + ("apart: " + "; ".join(apart) if apart else "all agree")
    )
    report = {
        "options": vars(options) | {"json": str(options.json)},
        "hardware": machine.key,
        "vllm": version,
        "load_average_before": before,
        "tokens_without_chunk": silent,
        "rounds": rounds,
        "ratios": ratios,
        "apart": apart,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
