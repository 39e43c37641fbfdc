"""The real lm-eval: against a scripted server, and beside a suite against the real vLLM.

Runs where the `lmeval` environment is (`make test` makes it); the last test also where vLLM's and
the demo checkpoint are.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projects import ROOT, edit_recipe
from scripted_server import Script, ScriptedServer

from workbench import envs
from workbench.errors import JobFailure
from workbench.jobs import run_job
from workbench.lmeval import SCRIPT
from workbench.lmeval_samples import Logged, import_task
from workbench.progress import silent
from workbench.records import Evaluation, Gate, SuiteResult
from workbench.rows import read_rows
from workbench.spec import LmEvalTask
from workbench.store import read_record
from workbench.tokenizer import Tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

Call = Callable[..., subprocess.CompletedProcess[str]]
TASKS = Path(__file__).parent / "data" / "lmeval_tasks"
KEY = "a-key-that-nothing-may-show"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": KEY}


def answers(logprob: float = -1.0, text: str = "Paris") -> Script:
    """Every token of an echoed prompt has the same log-probability; every answer is the same."""

    def script(body: dict[str, Any]) -> dict[str, Any]:
        (ids,) = body["prompt"]
        if not body.get("echo"):
            return {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        values = [None] + [logprob] * len(ids)
        told = {"token_logprobs": values, "top_logprobs": [{"x": v or 0.0} for v in values]}
        return {"choices": [{"index": 0, "text": "", "logprobs": told}]}

    return script


class Asked:
    """One call of the job on the shipped test tasks."""

    def __init__(self, tiny: Path, folder: Path) -> None:
        self.tiny, self.folder = tiny, folder
        self.out, self.log = folder / "samples", folder / "job.log"

    def __call__(self, url: str, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
        defaults = {"fewshot": None, "limit": None, "chat_template": False, "add_bos": False}
        request = {
            "base_url": f"{url}/v1/completions",
            "model": "tiny",
            "tokenizer": str(self.tiny),
            "tasks": [defaults | task for task in tasks],
            "include_path": str(TASKS),
            "seed": 3,
            "concurrency": 4,
            "max_length": 512,
            "request_seconds": 20,
            "likelihood": True,
            "date": "2026-01-01",
            "out": str(self.out),
        }
        env = OFFLINE | {"HF_DATASETS_CACHE": str(self.folder / "datasets")}
        return run_job(
            envs.ensure("lmeval", "cpu").python,
            SCRIPT,
            request | more,
            folder=self.folder,
            log=self.log,
            timeout=300,
            progress=silent,
            name="lm-eval",
            env=env,
        ).value

    def result(self, task: str, **options: Any) -> SuiteResult:
        texts = [(self.out / f"{task}{end}").read_text() for end in (".json", ".samples.jsonl")]
        logged = Logged.parse(*texts, str(self.out))
        none = {"template_digest": None, "tokenizer_digest": "x"}
        spec = LmEvalTask(task=task, **options)
        settings: dict[str, Any] = {"conditions": none, "seed": 3, "max_length": 512}
        self.rows, result = import_task(spec, logged, rows_file="rows.jsonl", **settings)
        return result


@pytest.fixture
def asked(tiny: Path, tmp_path: Path) -> Asked:
    return Asked(tiny, tmp_path / "job")


def test_a_server_that_dies_is_an_error_and_only_the_missing_requests_are_asked_again(
    asked: Asked,
) -> None:
    tasks = ({"task": "wb_mood", "fewshot": 2}, {"task": "wb_capital"})
    with (
        ScriptedServer(answers(), dies_after=10) as dying,
        pytest.raises(JobFailure) as caught,
    ):
        asked(dying.url, *tasks)
    assert "its last lines" in str(caught.value) and KEY not in str(caught.value)
    assert not (asked.out / "wb_mood.json").exists()
    with ScriptedServer(answers()) as server:
        asked(server.url, *tasks)
        assert len(server.bodies) == 2 * 12 - 10 + 12
        assert server.at_once <= 4
        assert {body["seed"] for body in server.bodies} == {3}
        asked(server.url, *tasks)
        assert len(server.bodies) == 2 * 12 - 10 + 12, "what is finished is not asked again"
    mood = asked.result("wb_mood", fewshot=2)
    assert mood.conditions["fewshot"] == 2 and mood.n == 12 and mood.failed == 0
    assert asked.result("wb_capital", metric="exact_match,whole").score == 1 / 12
    assert KEY not in "".join(p.read_text(errors="replace") for p in asked.folder.rglob("*.json*"))
    assert KEY not in asked.log.read_text()


def test_refusals_of_the_server_do_not_show_the_key(asked: Asked) -> None:
    with ScriptedServer(lambda body: 500) as server, pytest.raises(JobFailure) as caught:
        asked(server.url, {"task": "wb_capital", "limit": 1})
    assert "500" in str(caught.value)
    assert KEY not in str(caught.value) + asked.log.read_text()
    assert "Bearer ***" in asked.log.read_text(), "the HTTP client quotes its headers: starred out"


def test_a_template_is_applied_here_and_told_a_fixed_date(asked: Asked, tmp_path: Path) -> None:
    asked.tiny = Path(shutil.copytree(asked.tiny, tmp_path / "dated"))
    template = "<{{ strftime_now('%d %B %Y') }}|{{ messages[0].content }}|{{ bos_token }}>"
    (asked.tiny / "chat_template.jinja").write_text(template)
    with ScriptedServer(answers()) as server:
        asked(server.url, {"task": "wb_capital", "limit": 1, "chat_template": True})
    said = json.loads((asked.out / "wb_capital.samples.jsonl").read_text().partition("\n")[0])
    tokenizer = Tokenizer.load(asked.tiny)
    content = "What is the capital of France? Answer with the name alone."
    ours = tokenizer.render([{"role": "user", "content": content}], True)
    assert said["arguments"][0][0] == ours and ours.startswith("<01 January 2026|")
    assert server.bodies[0]["prompt"] == [tokenizer.encode(ours, False)]


def test_no_number_and_no_room_are_failures_of_the_document(asked: Asked) -> None:
    with ScriptedServer(answers(math.nan)) as server:
        asked(server.url, {"task": "wb_mood", "limit": 3})
    mood = asked.result("wb_mood")
    assert mood.score is None and mood.failed == 3
    assert "no log-probability that is a number" in str(asked.rows[0].error)
    with ScriptedServer(answers()) as server:
        asked(server.url, {"task": "wb_capital"}, max_length=40)
        sent = len(server.bodies)
        assert all(len(body["prompt"][0]) + 12 <= 39 for body in server.bodies)
    capital = asked.result("wb_capital", metric="exact_match,whole")
    assert 0 < sent < 12 and capital.failed == 12 - sent
    assert any("longer than the context" in str(row.error) for row in asked.rows)


def test_what_cannot_be_asked_is_said(asked: Asked) -> None:
    found = asked("http://127.0.0.1:9", {"task": "wb_moood"})
    assert "wb_moood" in found["refused"]["what"] and "'wb_mood'" in found["refused"]["fix"]
    with ScriptedServer(answers()) as server:
        tasks = ({"task": "wb_both_moods"}, {"task": "wb_capital", "limit": 2})
        found = asked(server.url, *tasks, likelihood=False)
    assert found["unavailable"] == ["wb_both_moods"] and (asked.out / "wb_capital.json").exists()
    with pytest.raises(JobFailure) as caught:
        asked("http://127.0.0.1:9", {"task": "gsm8k"})
    assert "network" in caught.value.fix and "gsm8k" in str(caught.value)
    known = asked("", list=True)["names"]
    assert {"mmlu", "gsm8k", "wb_mood"} <= set(known)


POLICY = """\
schema: workbench.policy/1
name: real
quality:
  - {suite: sentiment, margin: 0.9, min_n: 3}
  - {suite: wb_mood, margin: 0.6, min_n: 5}
  - {suite: wb_capital, margin: 0.9, min_n: 5}
"""


def test_public_tasks_beside_a_suite_against_vllm_and_llama_cpp(
    workbench: Call, project: Path
) -> None:
    demo = ROOT / "results" / "checkpoints" / "SmolLM2-135M-Instruct"
    assert demo.is_dir(), "build it with: workbench demo"
    shutil.copytree(TASKS, project / "tasks")
    (project / "policy.yaml").write_text(POLICY)
    tasks = [
        {"task": "wb_mood", "fewshot": 2, "metric": "acc_norm"},
        {"task": "wb_capital", "chat_template": True},
    ]
    edit_recipe(
        project,
        lambda r: r.update(
            name="public",
            model={"path": str(demo)},
            calibration=None,
            variants=[
                {"name": "fp8", "method": "fp8"},
                {"name": "q8", "method": "gguf", "type": "Q8_0", "imatrix": False},
            ],
            serve={"engine": "vllm", "max_model_len": 512},
            evaluate={
                "suites": ["sentiment"],
                "limit": 4,
                "concurrency": 8,
                "lm_eval": {"tasks": tasks, "include_path": "tasks"},
            },
            profile=None,
            policy="policy.yaml",
        ),
    )
    done = workbench("run", "recipe.yaml", timeout=1200)
    assert done.returncode == 11, done.stdout + done.stderr
    run = project / "results" / "public"
    gate = read_record(run / "gate.json", Gate)
    checks = {(v.variant, c.name): c.status for v in gate.variants for c in v.checks}
    assert {*checks.values()} <= {"PASS", "INCONCLUSIVE", "MISSING"}
    # FP8 under vLLM pairs with the baseline on everything; llama.cpp cannot be asked a likelihood.
    missing = [check for check, status in checks.items() if status == "MISSING"]
    assert missing == [("q8", "wb_mood")]
    floor = gate.noise_floor
    assert floor["wb_mood"] == floor["wb_capital"] == {"churn": 0.0, "difference": 0.0}
    base = read_record(run / "variants" / "baseline" / "evaluation.json", Evaluation)
    names = [result.suite for result in base.suites]
    assert names == ["sentiment", "wb_mood", "wb_capital"]
    assert [result.source for result in base.suites] == ["suite", "lm-eval", "lm-eval"]
    mood = read_rows(run / "variants" / "baseline" / "eval" / "wb_mood.jsonl")
    assert len(mood) == 12 and all(row.choice_logprobs for row in mood)
    llama = read_record(run / "variants" / "q8" / "evaluation.json", Evaluation)
    assert "log-probabilities of a prompt" in llama.suites[1].unavailable
    assert llama.suites[2].n == 12 and llama.suites[2].failed == 0
    files = [p for p in (project / "results").rglob("*") if p.suffix in (".json", ".log", ".jsonl")]
    assert not [
        p for p in files if re.search(r"Bearer (?!\*\*\*)", p.read_text("utf-8", "replace"))
    ]
    again = workbench("run", "recipe.yaml")
    assert "evaluate:fp8: cached" in again.stdout
