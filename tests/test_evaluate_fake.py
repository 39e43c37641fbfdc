"""The shipped suites, asked of the shipped fake server as a real process."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_evaluate import TOOL

from workbench.errors import ServingFailure
from workbench.evaluate import fake_answers, read_rows, run_suite
from workbench.progress import silent
from workbench.records import Choice, Hardware, Lane, SuiteResult
from workbench.servers import Endpoint, serve
from workbench.spec import Sample, ServeSpec, SuiteSpec
from workbench.suites import Suite, load_suite

SHIPPED = Path(__file__).parent.parent / "eval_suites"
SUITES = ("sentiment", "short_question", "json_extract")


class Letters:
    digest = "tokenizer"
    template_digest = "template"
    opening = ""

    def bos_count(self, ids: Sequence[int]) -> int:
        return 0

    def expected_bos(self, rendered: bool) -> int:
        return 0

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(c) for c in text]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        return "".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>\n"


@contextmanager
def fake(tmp_path: Path, *suites: Suite, **faults: Any) -> Iterator[Endpoint]:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    settings = {"damage": faults.pop("damage", 0.0)}
    (checkpoint / "workbench_fake.json").write_text(json.dumps(settings))
    answers = tmp_path / "answers.json"
    known: dict[str, Any] = {}
    for suite in suites:
        known.update(fake_answers(suite, Letters()))  # type: ignore[arg-type]
    answers.write_text(json.dumps(known))
    with serve(
        ServeSpec(engine="fake"),
        engine_name="fake",
        checkpoint=checkpoint,
        model_name="m",
        lane=Lane(name="native", reason="fake", source="measured"),
        dtype=Choice(value="float32", reason="fake"),
        served_digest="w",
        twin_of=None,
        environment=None,
        hardware=Hardware(cpu="cpu", isa=(), cores=1, memory_bytes=1),
        folder=tmp_path / f"server{random.random()}",
        extra_env={
            "WORKBENCH_FAKE_ANSWERS": str(answers),
            "WORKBENCH_FAKE_FAULTS": json.dumps(faults),
        },
    ) as endpoint:
        yield endpoint


def ask(endpoint: Endpoint, suite: Suite, rows: Path) -> SuiteResult:
    return run_suite(
        endpoint,
        suite,
        Letters(),  # type: ignore[arg-type]
        rows=rows,
        conditions={},
        concurrency=8,
        limit=None,
        request_seconds=20,
        progress=silent,
    )


def test_the_fake_knows_the_shipped_suites(tmp_path: Path) -> None:
    suites = [load_suite(SHIPPED / name) for name in SUITES]
    with fake(tmp_path, *suites) as endpoint:
        results = [ask(endpoint, s, tmp_path / f"{s.spec.name}.jsonl") for s in suites]
        again = [ask(endpoint, s, tmp_path / f"{s.spec.name}.repeat.jsonl") for s in suites]
    for suite, first, second in zip(suites, results, again, strict=True):
        assert first.n == len(suite.samples) and first.failed == 0
        assert first.score is not None and 0.6 < first.score < 1.0, suite.spec.name
        assert first.rows_digest == second.rows_digest
    with fake(tmp_path, suites[0], damage=0.5) as endpoint:
        damaged = ask(endpoint, suites[0], tmp_path / "damaged.jsonl")
    assert damaged.score is not None and results[0].score is not None
    assert damaged.score < results[0].score - 0.2


def test_a_fake_that_is_killed_keeps_what_it_answered(tmp_path: Path) -> None:
    suite = load_suite(SHIPPED / "short_question")
    rows = tmp_path / "rows.jsonl"
    with pytest.raises(ServingFailure), fake(tmp_path, suite, die_after=40) as endpoint:
        ask(endpoint, suite, rows)
    kept = {r.id for r in read_rows(rows) if r.error is None}
    assert 20 <= len(kept) < 40
    with fake(tmp_path, suite, die_after=2 + len(suite.samples) - len(kept) + 1) as endpoint:
        # It would die if one sample more than the missing ones were asked.
        result = ask(endpoint, suite, rows)
    assert result.failed == 0 and result.n == len(suite.samples)


def test_a_fake_without_numbers_ends_the_step(tmp_path: Path) -> None:
    suite = load_suite(SHIPPED / "sentiment")
    with pytest.raises(ServingFailure), fake(tmp_path, suite, nan_logprobs=True) as endpoint:
        ask(endpoint, suite, tmp_path / "rows.jsonl")


def tool_suite(n: int = 40) -> Suite:
    spec = {
        "schema": "workbench.suite/1",
        "name": "tools",
        "description": "d",
        "ask": "call_tools",
        "prompt": "What is the weather in {city}?",
        "chat_template": True,
        "tools": [TOOL],
        "scorer": "contains",
    }
    samples = [
        {
            "id": f"t{i}",
            "city": f"town {i}",
            "target": [{"name": "weather", "arguments": {"city": f"town {i}"}}],
        }
        for i in range(n)
    ]
    made = tuple(Sample.model_validate(sample) for sample in samples)
    return Suite(SuiteSpec.model_validate(spec), made, "digest", Path("tools"))


def test_the_fake_calls_the_tools_it_knows(tmp_path: Path) -> None:
    """Right on most requests and wrong on some, the same ones each time."""
    suite = tool_suite()

    def right(rows: Path) -> list[bool]:
        found = []
        for row, sample in zip(read_rows(rows), suite.samples, strict=True):
            (call,) = json.loads(row.output)["tool_calls"]
            wanted = {"name": "weather", "arguments": json.loads(call["arguments"])}
            assert call["name"] == "weather" and row.finish_reason == "tool_calls"
            found.append([wanted] == sample.target)
        return found

    texts = tuple(s.model_copy(update={"target": "x"}) for s in suite.samples)
    asked = Suite(suite.spec, texts, suite.digest, suite.path)
    for damage, low, high in ((0.0, 0.6, 1.0), (0.5, 0.1, 0.6)):
        with fake(tmp_path, suite, damage=damage) as endpoint:
            for name in ("first", "second"):
                result = ask(endpoint, asked, tmp_path / f"{name}{damage}.jsonl")
                assert result.failed == 0 and result.n == 40
        first, second = (right(tmp_path / f"{n}{damage}.jsonl") for n in ("first", "second"))
        assert first == second and low <= sum(first) / 40 < high
