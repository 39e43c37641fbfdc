"""Output tokens/s of an evaluation beside those vLLM's own benchmark client reports.

One vLLM server, the same prompts, the same concurrency, answers of the same length (no end of text
is taken), in turn: workbench, vLLM, vLLM, workbench, and so on, after one pass to warm up.

    .venv/bin/python tests/benchmarks/evaluate_throughput.py [--pairs 3] [--prompts 64]

The workbench's side is the whole of `run_suite`: rendering, measuring, asking, grading, rows on
disk; its seconds are those of the call. vLLM's is `output_throughput` of `vllm bench serve`, whose
clock leaves its own start-up out. Ends with 1 where the medians' ratio is below 0.95.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_bench import bench

from workbench.checkpoint import inspect
from workbench.client import Client
from workbench.dialect import Ask, OpenAiDialect
from workbench.envs import ensure
from workbench.evaluate import run_suite
from workbench.hardware import detect
from workbench.progress import silent
from workbench.records import Serving
from workbench.servers import Endpoint, serve
from workbench.spec import Sample, ServeSpec, SuiteSpec
from workbench.suites import Suite
from workbench.support import dtype, lane
from workbench.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "results" / "checkpoints" / "SmolLM2-135M-Instruct"
LEAST = 0.95
_WORDS = ("harbour", "ledger", "invoice", "meadow", "engine", "lantern", "violin", "glacier")


class Forced(OpenAiDialect):
    """Answers go on to their last token, as vLLM's client makes them with `--ignore-eos`."""

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """The usual body, and no end of text."""
        return super().body(model, ask) | {"ignore_eos": True}


@dataclass(frozen=True)
class ForcedEndpoint:
    """The same server; its clients force the length of answers."""

    endpoint: Endpoint

    @property
    def serving(self) -> Serving:
        """How it is served."""
        return self.endpoint.serving

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return self.endpoint.base_url

    def client(self, **settings: Any) -> Client:
        """A client of it."""
        there = self.endpoint
        return Client(there.base_url, there.key, there.model, dialect=Forced(), **settings)


def ours(endpoint: Endpoint, suite: Suite, tokenizer: Tokenizer, level: int, rows: Path) -> float:
    """Output tokens/s of a whole evaluation of the suite."""
    begun = time.perf_counter()
    forced: Any = ForcedEndpoint(endpoint)
    result = run_suite(
        forced,
        suite,
        tokenizer,
        rows=rows,
        conditions={},
        concurrency=level,
        limit=None,
        request_seconds=600,
        progress=silent,
    )
    seconds = time.perf_counter() - begun
    wanted = len(suite.samples) * suite.spec.max_tokens
    if result.failed or result.output_tokens != wanted:
        sys.exit(f"{result.failed} failed; {result.output_tokens} tokens of {wanted}")
    return result.output_tokens / seconds


def theirs(
    endpoint: Endpoint, python: str, prompts: Sequence[str], options: argparse.Namespace
) -> float:
    """Output tokens/s that vLLM's benchmark client reports."""
    level, tokens = options.concurrency, [options.tokens] * len(prompts)
    found = bench(python, endpoint, DEMO, prompts, tokens, max_concurrency=level)
    return float(found["output_throughput"])


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    machine, record, tokenizer = detect(), inspect(DEMO), Tokenizer.load(DEMO)
    environment = ensure("vllm", machine.target)
    texts = [
        tokenizer.render(
            [
                {
                    "role": "user",
                    "content": f"{i}: write about a {_WORDS[i % 8]} and a {_WORDS[i // 8 % 8]}.",
                }
            ],
            True,
        )
        for i in range(options.prompts)
    ]
    spec = SuiteSpec.model_validate(
        {
            "schema": "workbench.suite/1",
            "name": "throughput",
            "description": "equal work",
            "ask": "generate",
            "prompt": "{text}",
            "chat_template": False,  # it is in the text already
            "max_tokens": options.tokens,
            "scorer": "contains",
        }
    )
    samples = tuple(
        Sample.model_validate({"id": f"p{i}", "target": "x", "text": text})
        for i, text in enumerate(texts)
    )
    suite = Suite(spec, samples, "throughput", ROOT)
    figures: dict[str, list[float]] = {"workbench": [], "vllm bench": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serve(
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
            folder=folder / "server",
            concurrency=options.concurrency,
        ) as endpoint:
            level = options.concurrency
            ours(endpoint, suite, tokenizer, level, folder / "warm.jsonl")
            for pair in range(options.pairs):
                order = list(figures) if pair % 2 == 0 else list(figures)[::-1]
                for side in order:
                    figures[side].append(
                        ours(endpoint, suite, tokenizer, level, folder / f"{pair}.jsonl")
                        if side == "workbench"
                        else theirs(endpoint, environment.python, texts, options)
                    )
                    print(f"{side:12} {figures[side][-1]:8.1f} output tokens/s", flush=True)
    mine, vllm = (statistics.median(found) for found in figures.values())
    print(
        f"\n{options.prompts} prompts x {options.tokens} tokens at concurrency "
        f"{options.concurrency}, {machine.key}\n"
        f"median: workbench {mine:.1f}, vLLM's client {vllm:.1f} output tokens/s, "
        f"ratio {mine / vllm:.3f} (at least {LEAST} is wanted)"
    )
    return 0 if mine / vllm >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
