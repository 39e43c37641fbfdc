"""The real vLLM on the demo checkpoint: one server, and everything the workbench relies on.

What only a real server can show: that it counts tokens as we do, that it obeys a schema, that an
echo carries log-probabilities of the prompt, and that an answer does not depend on its neighbours.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jsonschema import Draft202012Validator
from real_server import served
from test_servers import gone

from workbench.client import Client, Completion
from workbench.profile import Inputs, run_profile
from workbench.servers import Canary, Endpoint, attach
from workbench.spec import ProfileSpec, ServeSpec
from workbench.tokenizer import Tokenizer
from workbench.workload_spec import Workload

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

COUNTRIES = (
    *("France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Norway", "Kenya"),
    *("India", "China", "Cuba", "Chile", "Iran", "Mali", "Nepal", "Oman"),
)
QUESTIONS = [f"What is the capital of {c}? Answer in one short sentence." for c in COUNTRIES]


@pytest.fixture(scope="module")
def tokenizer(demo: Path) -> Tokenizer:
    return Tokenizer.load(demo)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def endpoint(demo: Path, tokenizer: Tokenizer, folder: Path) -> Iterator[Endpoint]:
    canary = Canary(rendered(tokenizer, QUESTIONS[0]), 8, "Paris")
    with served(demo, folder, ServeSpec(max_model_len=1024), canary=canary) as running:
        pids = [running.pid, *(p.pid for p in psutil.Process(running.pid).children(recursive=True))]
        assert len(pids) > 1
        yield running
    assert all(gone(pid) for pid in pids)
    assert "vllm:generation_tokens_total" in (folder / "metrics.txt").read_text()


def rendered(tokenizer: Tokenizer, question: str) -> str:
    return tokenizer.render([{"role": "user", "content": question}], True)


def ask(
    endpoint: Endpoint, prompts: list[str], concurrency: int = 4, **more: object
) -> list[Completion]:
    async def main() -> list[Completion]:
        gate = asyncio.Semaphore(concurrency)

        async def one(prompt: str) -> Completion:
            async with gate:
                return await client.complete(prompt, **({"max_tokens": 24} | more))  # type: ignore[arg-type]

        async with Client(endpoint.base_url, endpoint.key, endpoint.model) as client:
            return await asyncio.gather(*map(one, prompts))

    return asyncio.run(main())


def test_the_record_of_a_real_server(endpoint: Endpoint, folder: Path) -> None:
    serving = endpoint.serving
    assert serving.engine_version.startswith("0.32")
    assert (serving.kv_cache_tokens or 0) >= 1024
    assert (serving.max_concurrency or 0) >= 1
    assert serving.startup_seconds > 1
    assert (endpoint.rss() or 0) > 500 << 20
    assert endpoint.key not in (folder / "server.log").read_text()
    assert endpoint.key not in serving.model_dump_json()
    for process in psutil.process_iter(["cmdline"]):
        assert endpoint.key not in " ".join(process.info["cmdline"] or ())
    assert attach(folder) == endpoint


def test_tokens_are_counted_as_we_count_them(endpoint: Endpoint, tokenizer: Tokenizer) -> None:
    texts = [
        rendered(tokenizer, "naïve 日本語 😀 1234567"),
        "plain text\n\n\tdef f(x):\n    return x**2",
        "  leading and trailing  ",
    ]
    for text, answer in zip(texts, ask(endpoint, texts, max_tokens=1), strict=True):
        assert answer.prompt_tokens == len(tokenizer.encode(text, False))


def test_an_echo_carries_the_likelihood_of_a_choice(
    endpoint: Endpoint, tokenizer: Tokenizer
) -> None:
    prompt = rendered(tokenizer, "Is this review positive or negative? 'I loved every minute.'")
    choices = ["positive", "negative"]
    answers = ask(endpoint, [prompt + c for c in choices], max_tokens=0, echo=True, logprobs=0)
    sums = {}
    for choice, answer in zip(choices, answers, strict=True):
        count = len(tokenizer.encode(prompt, False))
        assert len(answer.tokens) == len(tokenizer.encode(prompt + choice, False))
        by_position = sum(t.logprob or 0 for t in answer.tokens[count:])
        sums[choice] = answer.logprob_after(len(prompt))
        assert sums[choice] == pytest.approx(by_position)
        assert sums[choice] < 0
    assert sums["positive"] > sums["negative"]


def test_a_schema_is_obeyed(endpoint: Endpoint, tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    prompt = rendered(tokenizer, "Paris has 2 million people. Give city and people as JSON.")
    answer = ask(endpoint, [prompt], max_tokens=64, response_schema=schema)[0]
    assert answer.finish_reason == "stop"
    Draft202012Validator(schema).validate(json.loads(answer.text))


def test_a_stream_is_token_by_token(endpoint: Endpoint, tokenizer: Tokenizer) -> None:
    prompt = rendered(tokenizer, QUESTIONS[0])
    whole = ask(endpoint, [prompt], max_tokens=16, ignore_eos=True)[0]
    for _ in range(5):
        streamed = ask(endpoint, [prompt], max_tokens=16, ignore_eos=True, stream=True)[0]
        assert streamed.text == whole.text
        assert len(streamed.token_times) == streamed.output_tokens == 16
        assert list(streamed.token_times) == sorted(streamed.token_times)
        # Where we stand still as long as all of it takes it is read at once. Not five times.
        if streamed.ttft is not None and streamed.ttft < streamed.seconds:
            break
    assert streamed.ttft is not None and streamed.ttft < streamed.seconds


def test_an_answer_does_not_depend_on_its_neighbours(
    endpoint: Endpoint, tokenizer: Tokenizer
) -> None:
    prompts = [rendered(tokenizer, question) for question in QUESTIONS]
    alone = [a.text for a in ask(endpoint, prompts, concurrency=1)]
    together = [a.text for a in ask(endpoint, prompts, concurrency=len(prompts))]
    assert together == alone
    assert "Paris" in alone[0]


def test_a_real_profile(endpoint: Endpoint, tokenizer: Tokenizer, tmp_path: Path) -> None:
    spec = ProfileSpec(
        workloads=(Workload(name="short", prompt_tokens=48, output_tokens=8),),
        concurrency=(1, 4),
        requests=4,
    )
    found = run_profile(endpoint, spec, Inputs(tokenizer), folder=tmp_path)
    points, peak = found.points, found.peak_rss
    assert [(p.completed, p.failed) for p in points] == [(4, 0), (4, 0)]
    assert all((p.tpot_ms_p50 or 0) > 0 and (p.ttft_ms_p50 or 0) > 0 for p in points)
    assert (peak or 0) > 500 << 20
