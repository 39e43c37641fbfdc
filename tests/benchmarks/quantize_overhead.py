"""What quantizing through the workbench costs beside the same tool called directly.

Both quantize the same checkpoint with the same settings and the same token ids, in the same
environment, in turn: direct, workbench, workbench, direct, and so on. The workbench's side is the
whole command, `workbench run --only quantize:w4`: plan, notebook, job, digests, record.

    .venv/bin/python tests/benchmarks/quantize_overhead.py [--pairs 3] [--samples 128]

Wall time is that of the command. Memory is the largest sum of resident bytes of the command's whole
process tree, read four times a second on both sides alike, and that of its largest process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import yaml

from workbench import envs
from workbench.hardware import detect
from workbench.quantizers.cores import available_cores, threads

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "results" / "checkpoints" / "SmolLM2-135M-Instruct"
MIB = 1 << 20


def measure(
    command: list[str], log: Path, variables: Mapping[str, str] | None = None
) -> tuple[float, int, int]:
    """Run a command; its seconds, peak resident bytes of its tree, and of its largest process."""
    begun = time.monotonic()
    with log.open("wb") as out:
        env = {**os.environ, **(variables or {})}
        process = psutil.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
        tree = largest = 0
        while process.poll() is None:
            sizes = []
            for one in (process, *_children(process)):
                try:
                    sizes.append(one.memory_info().rss)
                except psutil.Error:
                    continue
            tree, largest = max(tree, sum(sizes)), max([largest, *sizes])
            time.sleep(0.25)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
    return time.monotonic() - begun, tree, largest


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=256)
    arguments = parser.parse_args()
    environment = envs.ensure("quantize", detect().target)
    with tempfile.TemporaryDirectory(dir=ROOT / "results") as scratch:
        folder = Path(scratch)
        recipe = folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(_recipe(arguments.samples, arguments.max_tokens)))
        results = folder / "r"
        run = [*(sys.executable, "-m", "workbench", "run"), str(recipe), "--results", str(results)]
        measure([*run, "--only", "calibrate"], folder / "log")
        (tokens,) = (results / "artifacts").rglob("tokens.jsonl")
        direct = [
            *(environment.python, str(ROOT / "tests" / "benchmarks" / "direct_gptq.py")),
            *(str(DEMO), str(tokens), str(folder / "direct"), str(available_cores()), "64"),
        ]
        ours = [*run, "--only", "quantize:w4", "--force", "quantize:w4"]
        # The same settings for both, how threads wait for each other among them.
        variables = threads(available_cores())[1]
        found: dict[str, list[tuple[float, int, int]]] = {"direct": [], "workbench": []}
        for pair in range(arguments.pairs):
            order = ("direct", "workbench") if pair % 2 == 0 else ("workbench", "direct")
            for side in order:
                command = direct if side == "direct" else ours
                found[side].append(measure(command, folder / "log", variables))
                seconds, tree, largest = found[side][-1]
                print(
                    f"{side:10} {seconds:7.1f} s   tree {tree / MIB:6.0f} MiB   "
                    f"largest process {largest / MIB:6.0f} MiB",
                    flush=True,
                )
    for index, what in enumerate(("wall time", "peak memory, tree", "peak memory, largest")):
        a, b = (statistics.median(r[index] for r in found[s]) for s in ("direct", "workbench"))
        print(f"{what}: workbench / direct = {b / a:.3f} (medians of {arguments.pairs})")
    print(json.dumps(found))


def _recipe(samples: int, max_tokens: int) -> dict[str, object]:
    """The quickstart, with GPTQ alone: its policy must find the suites and loads it speaks of."""
    quickstart = ROOT / "notebooks" / "recipes" / "quickstart.yaml"
    recipe: dict[str, object] = yaml.safe_load(quickstart.read_text("utf-8"))
    return {
        **recipe,
        "name": "overhead",
        "model": {"path": str(DEMO)},
        "calibration": {"source": "instructions", "samples": samples, "max_tokens": max_tokens},
        "variants": [{"name": "w4", "method": "gptq", "group_size": 64}],
        "policy": str((quickstart.parent / str(recipe["policy"])).resolve()),
    }


if __name__ == "__main__":
    main()
