"""Suites asked of the real servers through `run_suite`: tools, ranked choices, repeats.

The demo model's own chat template shows no tools; a copy of the checkpoint has one that does. What
only a real server shows: that it renders tools to the tokens ours makes, Chinese included; that an
echo comes with the prompt's ids; that calls cut short are an answer and not an error.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_server import HARDWARE, served
from test_evaluate import TOOL, suite

from workbench.checkpoint import inspect
from workbench.envs import ensure
from workbench.evaluate import read_rows, run_suite
from workbench.progress import silent
from workbench.quantizers import Task, quantizer
from workbench.records import SuiteResult
from workbench.servers import Endpoint
from workbench.spec import Sample, ServeSpec
from workbench.suites import Suite
from workbench.tokenizer import Tokenizer
from workbench.variants import GgufSpec

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

TOOLS_SHOWN = """{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- 'Call one as <tool_call>{"name": NAME, "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>\\n' }}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CITY = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city - 城市的天气 <today>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "day": {"enum": ["today", "tomorrow"]}},
            "required": ["city", "day"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def tooled(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint with a chat template that shows tools."""
    folder = tmp_path_factory.mktemp("tooled")
    for file in demo.iterdir():
        if file.name != "tokenizer_config.json" and file.suffix != ".jinja":
            (folder / file.name).symlink_to(file)
    config = json.loads((demo / "tokenizer_config.json").read_text())
    config["chat_template"] = TOOLS_SHOWN
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TOOLS_SHOWN)
    return folder


@contextlib.contextmanager
def server(engine: str, checkpoint: Path, folder: Path) -> Iterator[tuple[Endpoint, Tokenizer]]:
    loaded, method = checkpoint, "none"
    if engine == "llamacpp":
        loaded, method = folder / "checkpoint", "gguf"
        quantizer("gguf").quantize(
            Task(
                GgufSpec(name="source", type="source", imatrix=False),
                inspect(checkpoint),
                loaded,
                folder=folder,
                log=folder / "gguf.log",
                progress=silent,
                pythons={n: ensure(n, HARDWARE.target).python for n in ("quantize", "gguf")},
                converted=None,
            )
        )
    with served(
        checkpoint,
        folder / "server",
        ServeSpec(max_model_len=1024),
        engine=engine,
        loaded=loaded,
        made=(method, {"type": "source"}),
        concurrency=4,
        tools=True,
    ) as running:
        yield running, Tokenizer.load(checkpoint)


def ask(running: tuple[Endpoint, Tokenizer], of: Suite, rows: Path) -> SuiteResult:
    endpoint, tokenizer = running
    result = run_suite(
        endpoint,
        of,
        tokenizer,
        rows=rows,
        conditions={},
        concurrency=4,
        limit=None,
        request_seconds=120,
        progress=silent,
    )
    for row in read_rows(rows):
        assert row.error is None, row.error
        assert row.tokens_digest and row.prompt_tokens
    return result


def tools(choice: str, max_tokens: int = 64) -> Suite:
    questions = ["What is the weather in Paris today?", "明天北京的天气怎么样?"]
    made = suite(
        1,
        ask="call_tools",
        tools=[CITY, TOOL],
        tool_choice=choice,
        chat_template=True,
        max_tokens=max_tokens,
    )
    samples = tuple(
        Sample.model_validate({"id": f"t{i}", "q": q, "target": "x"})
        for i, q in enumerate(questions)
    )
    return Suite(made.spec, samples, "digest", Path("mine"))


def check_calls(rows: Path, *, required: bool) -> None:
    for row in read_rows(rows):
        said: dict[str, Any] = json.loads(row.output)
        assert set(said) == {"tool_calls", "content"}
        if required and row.finish_reason != "length":
            assert said["tool_calls"], "a call was required"
        for call in said["tool_calls"]:
            assert isinstance(call["arguments"], str) and isinstance(call["name"], str)


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
@pytest.mark.parametrize("template", ["demo", "tooled"])
def test_suites_of_a_real_server(
    engine: str, template: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint: Path = request.getfixturevalue(template)
    with server(engine, checkpoint, tmp_path / "made") as running:
        shown = {}
        for choice in ("auto", "required"):
            rows = tmp_path / f"{choice}.jsonl"
            result = ask(running, tools(choice), rows)
            shown[choice] = result.conditions["asked"]
            check_calls(rows, required=choice == "required")
        assert ("shows none" in shown["auto"]) == (template == "demo")
        ask(running, tools("required", max_tokens=4), tmp_path / "cut.jsonl")
        ranked = suite(3, choices=[" yes", " 不好"], chat_template=True)
        assert ask(running, ranked, tmp_path / "ranked.jsonl").failed == 0
        drawn = suite(2, repeats=2, sampling={"temperature": 1.5, "top_p": 0.95}, max_tokens=16)
        first = ask(running, drawn, tmp_path / "drawn.jsonl")
        again = ask(running, drawn, tmp_path / "again.jsonl")
        outputs = [r.output for r in read_rows(tmp_path / "drawn.jsonl")]
        assert len(set(outputs)) > 1 and first.n == 4
        if engine == "vllm":
            # llama.cpp's seeds give the same draw too, but its batches do not round alike.
            assert [r.output for r in read_rows(tmp_path / "again.jsonl")] == outputs
        assert again.conditions == first.conditions
