"""The main job on the real stack: real checkpoint, llm-compressor, vLLM, papermill; killed once.

Runs where the isolated environments and the demo checkpoint are (`make test` makes them).
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import ROOT, edit_recipe

from workbench.gate import timings_aside
from workbench.records import Evaluation, Gate, Profile
from workbench.store import read_record

Call = Callable[..., subprocess.CompletedProcess[str]]

POLICY = """\
schema: workbench.policy/1
name: real
quality:
  - {suite: sentiment, margin: 0.9, min_n: 5}
  - {suite: json_extract, margin: 0.9, min_n: 5}
performance:
  - {metric: tpot_ms_p50, workload: short, concurrency: 1, max_value: 60000}
size:
  - {metric: weight_bytes, max_ratio: 0.75}
"""


@pytest.mark.real
@pytest.mark.timeout(1500)
def test_recipe_to_verdict_killed_once(workbench: Call, project: Path) -> None:
    demo = ROOT / "results" / "checkpoints" / "SmolLM2-135M-Instruct"
    assert demo.is_dir(), "build it with: workbench demo"
    (project / "policy.yaml").write_text(POLICY)
    edit_recipe(
        project,
        lambda r: r.update(
            name="real",
            model={"path": str(demo)},
            calibration={"source": "instructions", "samples": 4, "max_tokens": 64},
            variants=[
                {"name": "fp8", "method": "fp8"},
                {"name": "w4", "method": "gptq", "group_size": 64},
            ],
            serve={"engine": "vllm", "max_model_len": 512},
            evaluate={"suites": ["sentiment", "json_extract"], "limit": 8},
            profile={
                "workloads": [{"name": "short", "prompt_tokens": 16, "output_tokens": 4}],
                "concurrency": [1, 4],
                "requests": 8,
            },
            policy="policy.yaml",
        ),
    )
    run = project / "results" / "real"
    first = subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with first:
        ends = time.monotonic() + 600
        events = run / "events.jsonl"
        while time.monotonic() < ends and first.poll() is None:
            text = events.read_text() if events.exists() else ""
            if '"step": "evaluate:fp8"' in text and '"what": "sentiment"' in text:
                break
            time.sleep(0.2)
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL, "it ended before it was killed"

    done = workbench("run", "recipe.yaml", timeout=1200)
    assert done.returncode in (0, 10, 11), done.stdout + done.stderr
    assert "quantize:w4: cached" in done.stdout and "evaluate:baseline: cached" in done.stdout
    gate = read_record(run / "gate.json", Gate)
    lanes = {v.variant: v.lane.name for v in gate.variants if v.lane}
    assert lanes == {"fp8": "native", "w4": "emulated"}
    # A performance check on the emulated lane can never be passed.
    assert {v.variant: v.verdict for v in gate.variants}["w4"] == "INCONCLUSIVE"
    statuses = {c.status for v in gate.variants for c in v.checks if c.kind == "quality"}
    assert "MISSING" not in statuses and "NOT COMPARABLE" not in statuses
    twin = read_record(run / "variants" / "w4" / "evaluation.json", Evaluation).serving
    assert twin.twin_of and twin.twin_of != twin.served_digest
    assert twin.dtype.value == "float32"
    profile = read_record(run / "variants" / "fp8" / "profile.json", Profile)
    assert all(p.completed == 8 and p.failed == 0 for p in profile.points)
    assert profile.peak_memory_bytes and profile.peak_memory_bytes > 500_000_000
    floor = gate.noise_floor["json_extract"]
    assert floor["churn"] == 0, "float32 under vLLM answers the same way twice"

    again = workbench("run", "recipe.yaml")
    assert again.stdout.count("cached - ") == 10
    assert timings_aside(read_record(run / "gate.json", Gate)) == timings_aside(gate)
    for path in run.rglob("*.json"):
        json.loads(path.read_text())
