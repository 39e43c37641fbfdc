"""The load client beside its peers: the same timing server, the same requests, one run.

    .venv/bin/python tests/benchmarks/client_peers.py [--levels 16 64 256] [--requests 256]

Peers are `vllm bench serve` of the vLLM environment and a client as one writes it in an hour
(aiohttp and json, one task a request, persistent connections). Every client is matched with the
server's own record request by request: the first token of an answer says which request it was.

Errors are reported - true, in ms, as in `workbench.bench_client`: TTFT request by request, ITL as
the 99th percentile of all gaps as reported less that of the gaps as written. CPU is processor time
of the client's process while it asks, its start left out; start-up is from the start of the process
to the first request's arrival. The server sends no empty first chunk here, except in the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.bench_client import SETTINGS, TOKENS
from workbench.envs import ensure
from workbench.hardware import detect
from workbench.load import Target, run_load
from workbench.timing_server import Settings, TimingServer, Truth
from workbench.traffic import Ask

ROOT = Path(__file__).parents[2]
#: `vllm bench serve`, as in evaluate_throughput.py; its asking alone is timed.
_VLLM = """
import json, sys, time
from pathlib import Path
from vllm.benchmarks.datasets import CustomDataset
def load_data(self):
    lines = Path(self.dataset_path).read_text("utf-8").splitlines()
    self.data = [json.loads(line) for line in lines]
CustomDataset.load_data = load_data
import vllm.benchmarks.serve as serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
inner, cpu_file = serve.benchmark, sys.argv.pop(1)
async def benchmark(*args, **kwargs):
    begun = time.process_time()
    found = await inner(*args, **kwargs)
    Path(cpu_file).write_text(str(time.process_time() - begun))
    return found
serve.benchmark = benchmark
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


@dataclass(frozen=True)
class Seen:
    """What a client says: answers as (serial, TTFT, gaps), seconds; its time and processor time."""

    answers: list[tuple[int, float, list[float]]]
    seconds: float
    cpu: float


Client = Callable[[str, int, int], Seen]


def workbench(url: str, level: int, count: int) -> Seen:
    """The client of this package."""
    asks = [Ask(i, (i, 1, 2, 3), TOKENS) for i in range(count)]
    load = run_load(Target(url, "k", "timing"), asks, concurrency=level, keep_text=True)
    answers = [
        (serial_of(o.text), o.ttft, list(np.diff(o.token_times)))
        for o in load.completed
        if o.ttft is not None
    ]
    return Seen(answers, load.seconds, load.cpu_seconds)


def serial_of(text: str) -> int:
    """Which request of the server an answer belongs to."""
    return int(text.split()[0].removeprefix("#"))


def vllm_bench(python: str, tokenizer: Path) -> Client:
    """vLLM's own benchmark client."""

    def run(url: str, level: int, count: int) -> Seen:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prompts = folder / "prompts.jsonl"
            prompts.write_text('{"prompt": "one two three four"}\n' * count)
            settings = {
                "--backend": "openai",
                "--base-url": url,
                "--endpoint": "/v1/completions",
                "--model": "timing",
                "--tokenizer": tokenizer,
                "--dataset-name": "custom",
                "--dataset-path": prompts,
                "--custom-output-len": TOKENS,
                "--num-prompts": count,
                "--max-concurrency": level,
                "--temperature": 0,
                "--ready-check-timeout-sec": 0,
                "--result-dir": folder,
                "--result-filename": "found.json",
            }
            command = [python, "-c", _VLLM, str(folder / "cpu")]
            for option, value in settings.items():
                command += [option, str(value)]
            command += ["--skip-chat-template", "--disable-shuffle", "--ignore-eos"]
            command += ["--save-result", "--save-detailed", "--disable-tqdm"]
            env = os.environ | {"OPENAI_API_KEY": "k", "HF_HUB_OFFLINE": "1"}
            env.pop("PYTHONPATH", None)  # of this environment, not of that one
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"vLLM's client ended with {done.returncode}:\n{done.stderr[-3000:]}")
            found = json.loads((folder / "found.json").read_text())
            cpu = float((folder / "cpu").read_text())
        rows = zip(found["generated_texts"], found["ttfts"], found["itls"], strict=True)
        answers = [(serial_of(text), ttft, gaps) for text, ttft, gaps in rows if text]
        return Seen(answers, found["duration"], cpu)

    return run


def aiohttp_json(url: str, level: int, count: int) -> Seen:
    """The plain client below, in a process of its own."""
    command = [sys.executable, __file__, "--plain", url, str(level), str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the plain client ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    return Seen([tuple(row) for row in found["answers"]], found["seconds"], found["cpu"])


async def plain(url: str, level: int, count: int) -> dict[str, Any]:
    """Ask with aiohttp and json as a careful person would in an hour."""
    import aiohttp

    answers: list[tuple[int, float, list[float]]] = []
    left = iter(range(count))

    async def worker(session: aiohttp.ClientSession) -> None:
        for number in left:
            body = {
                "model": "timing",
                "prompt": [number, 1, 2, 3],
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            sent = time.perf_counter()
            times: list[float] = []
            text = ""
            async with session.post(f"{url}/v1/completions", json=body) as response:
                async for line in response.content:
                    now = time.perf_counter()
                    data = line.decode().strip().removeprefix("data: ")
                    if not data or data == "[DONE]":
                        continue
                    for choice in json.loads(data)["choices"]:
                        if choice["text"]:
                            times.append(now)
                            text = text or choice["text"]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            answers.append((serial_of(text), times[0] - sent, gaps))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        cpu, begun = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(level):
                group.create_task(worker(session))
        seconds = time.perf_counter() - begun
    return {"answers": answers, "seconds": seconds, "cpu": time.process_time() - cpu}


def row(seen: Seen, truth: list[Truth], called: float, count: int) -> list[str]:
    """One line of figures."""
    true = {record.serial: record for record in truth}
    errors = 1000 * np.array([ttft - true[serial].ttft for serial, ttft, _ in seen.answers])
    reported = np.concatenate([gaps for _, _, gaps in seen.answers])
    written = np.concatenate([np.diff(true[serial].writes) for serial, _, _ in seen.answers])
    itl = 1000 * (np.percentile(reported, 99) - np.percentile(written, 99))
    return [
        f"{len(seen.answers)}/{count}",
        f"{np.percentile(errors, 50):.2f}",
        f"{np.percentile(errors, 99):.2f}",
        f"{itl:.2f}",
        f"{len(seen.answers) / seen.seconds:.1f}",
        f"{1000 * seen.cpu / len(seen.answers):.2f}",
        f"{min(record.arrived for record in truth) - called:.1f}",
    ]


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--requests", type=int, default=256, help="least of a point")
    parser.add_argument(
        "--tokenizer", type=Path, default=ROOT / "results/checkpoints/SmolLM2-135M-Instruct"
    )
    parser.add_argument("--plain", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        url, level, count = options.plain
        json.dump(asyncio.run(plain(url, int(level), int(count))), sys.stdout)
        return 0
    python = ensure("vllm", detect().target).python
    clients: dict[str, Client] = {
        "workbench": workbench,
        "vllm bench": vllm_bench(python, options.tokenizer),
        "aiohttp+json": aiohttp_json,
    }
    head = ["TTFT/ITL", "conc.", "client", "completed", "TTFT p50", "TTFT p99", "ITL p99"]
    head += ["requests/s", "CPU s/1,000", "start, s"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)

    def line(server: TimingServer, name: str, level: int, label: str) -> None:
        count = max(options.requests, 2 * level)
        called = time.perf_counter()
        seen = clients[name](server.url, level, count)
        figures = row(seen, server.truth(), called, count)
        print("| " + " | ".join([label, str(level), name, *figures]) + " |", flush=True)

    for ttft, itl in SETTINGS:
        with TimingServer(Settings(ttft_ms=ttft, itl_ms=itl)) as server:
            for level in options.levels:
                for name in clients:
                    line(server, name, level, f"{ttft:g}/{itl:g}")
    with TimingServer(Settings(ttft_ms=50, itl_ms=10, role_first=True)) as server:
        for name in clients:
            line(server, name, options.levels[0], "50/10, empty first chunk")
    return 0


if __name__ == "__main__":
    sys.exit(main())
