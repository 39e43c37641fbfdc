"""The real llama.cpp server on the demo checkpoint as a GGUF: what the workbench relies on.

Served in float32, so that its numbers can be held against transformers'. What only a real server
shows: that a choice's likelihood is the model's own, with parts of characters in it too; that it
counts tokens as we do; that an answer hardly depends on its neighbours; and that it ends.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jsonschema import Draft202012Validator
from projects import ROOT
from test_servers import gone

from workbench.checkpoint import inspect, weigh
from workbench.client import Client, Completion, RequestFailed
from workbench.demo import DEMO_NAME
from workbench.dialect import LlamaCppDialect
from workbench.envs import ensure
from workbench.errors import ServingFailure
from workbench.hardware import detect
from workbench.profile import Inputs, run_profile
from workbench.progress import silent
from workbench.quantizers import Task, quantizer
from workbench.questions import Question, common_length
from workbench.ranking import RANKINGS
from workbench.servers import Canary, Endpoint, attach, serve
from workbench.spec import ProfileSpec, Sample, ServeSpec
from workbench.support import dtype, lane
from workbench.tokenizer import Tokenizer
from workbench.variants import GgufSpec
from workbench.workload_spec import Workload

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

HARDWARE = detect()
COUNTRIES = (
    *("France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Norway", "Kenya"),
    *("India", "China", "Cuba", "Chile", "Iran", "Mali", "Nepal", "Oman"),
)
QUESTIONS = [f"What is the capital of {c}? Answer in one short sentence." for c in COUNTRIES]
#: What transformers says of the same ids: sums of log-probabilities in float32.
TRANSFORMERS = textwrap.dedent(
    """
    import json, sys, torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    sums = []
    for given, ids in json.load(sys.stdin):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        logprobs = torch.log_softmax(logits, -1)
        sums.append(sum(float(logprobs[i - 1, ids[i]]) for i in range(given, len(ids))))
    print(json.dumps(sums))
    """
)


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    return {n: ensure(n, HARDWARE.target, silent).python for n in ("quantize", "gguf", "llamacpp")}


@pytest.fixture(scope="module")
def served_folder(
    tmp_path_factory: pytest.TempPathFactory, demo: Path, pythons: dict[str, str]
) -> Path:
    """The checkpoint as a GGUF in float32."""
    folder = tmp_path_factory.mktemp("gguf")
    converted: Path | None = None
    for kind in ("source", "F32"):
        variant = GgufSpec(name=kind, type=kind, imatrix=False)  # type: ignore[arg-type]
        out = folder / kind / "checkpoint"
        quantizer("gguf").quantize(
            Task(
                variant,
                inspect(demo),
                out,
                folder=folder / kind,
                log=folder / f"{kind}.log",
                progress=silent,
                pythons=pythons,
                converted=converted,
            )
        )
        converted = out
    assert converted is not None
    return converted


@pytest.fixture(scope="module")
def tokenizer(demo: Path) -> Tokenizer:
    return Tokenizer.load(demo)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


def server(
    served_folder: Path, folder: Path, **more: Any
) -> contextlib.AbstractContextManager[Endpoint]:
    settings: dict[str, Any] = {
        "engine_name": "llamacpp",
        "checkpoint": served_folder,
        "model_name": "baseline-gguf",
        "lane": lane("gguf", {"type": "F32"}, "llamacpp", HARDWARE),
        "dtype": dtype(
            "auto", inspect(ROOT / "results" / "checkpoints" / DEMO_NAME), "llamacpp", HARDWARE
        ),
        "served_digest": weigh(served_folder).weights_digest,
        "twin_of": None,
        "environment": ensure("llamacpp", HARDWARE.target),
        "hardware": HARDWARE,
        "folder": folder,
        "concurrency": 8,
    }
    spec = ServeSpec(max_model_len=1024, **more.pop("spec", {}))
    return serve(spec, **(settings | more))


@pytest.fixture(scope="module")
def endpoint(served_folder: Path, tokenizer: Tokenizer, folder: Path) -> Iterator[Endpoint]:
    canary = Canary(rendered(tokenizer, QUESTIONS[0]), 8, "Paris")
    with server(served_folder, folder, canary=canary) as running:
        pids = [running.pid, *(p.pid for p in psutil.Process(running.pid).children(recursive=True))]
        yield running
    assert all(gone(pid) for pid in pids)
    assert "llamacpp:tokens_predicted_total" in (folder / "metrics.txt").read_text()


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

        async with endpoint.client() as client:
            return await asyncio.gather(*map(one, prompts))

    return asyncio.run(main())


def test_the_record_of_a_real_server(endpoint: Endpoint, folder: Path) -> None:
    serving = endpoint.serving
    assert serving.engine_version.startswith("2026.10.")
    assert serving.lane.name == "native"
    assert any(kernel.startswith("CPU: ") and "AVX2" in kernel for kernel in serving.kernels)
    assert (serving.kv_cache_tokens, serving.max_concurrency) == (8 * 1024, 8.0)
    assert (endpoint.rss() or 0) > 500 << 20  # 135 M weights in float32
    assert attach(folder) == endpoint
    log = (folder / "server.log").read_text()
    for secret in (endpoint.key, endpoint.key[-4:]):
        assert secret not in log
        assert secret not in " ".join(serving.command)
    assert "What is the capital" not in log
    for process in psutil.process_iter(["cmdline"]):
        assert endpoint.key not in " ".join(process.info["cmdline"] or ())


def test_without_the_key_nobody_is_answered(endpoint: Endpoint) -> None:
    async def main(key: str, path: str) -> str:
        dialect = LlamaCppDialect()
        async with Client(endpoint.base_url, key, endpoint.model, dialect=dialect) as client:
            if path == "/completion":
                return (await client.complete([1, 2, 3], max_tokens=1)).text
            return await client.get_text(path)

    for path in ("/completion", "/v1/models", "/metrics"):
        for key in ("x", ""):
            with pytest.raises(RequestFailed) as failure:
                asyncio.run(main(key, path))
            assert failure.value.reason == "http 401"
        assert asyncio.run(main(endpoint.key, path)) is not None


def test_tokens_are_counted_as_we_count_them(endpoint: Endpoint, tokenizer: Tokenizer) -> None:
    texts = [
        rendered(tokenizer, "naïve 日本語 😀 1234567"),
        "plain text\n\n\tdef f(x):\n    return x**2",
        "  leading and trailing  ",
    ]
    for text, answer in zip(texts, ask(endpoint, texts, max_tokens=1), strict=True):
        own = tokenizer.encode(text, False)
        assert list(answer.prompt_ids or ()) == own
        assert answer.prompt_tokens == len(own)


def test_the_likelihood_of_a_choice_is_what_transformers_says(
    endpoint: Endpoint, tokenizer: Tokenizer, demo: Path, pythons: dict[str, str]
) -> None:
    prompts = [
        rendered(tokenizer, "Is this review positive or negative? 'I loved every minute.'"),
        rendered(tokenizer, "这条评论是正面还是负面? '太棒了!'"),
        "The capital of France is",
    ]
    choices = [
        "positive",
        " not good at all",
        "正面",
        "负面 😀 naïve",
        " Paris, the city of light.",
    ]
    pairs = [(prompt, choice) for prompt in prompts for choice in choices]

    async def main() -> list[float]:
        async with endpoint.client() as client:
            sums = []
            for prompt, choice in pairs:
                ids = tuple(tokenizer.encode(prompt, False))
                question = Question(Sample(id="s", target="t"), prompt, ids, "", "", None)
                scored = await RANKINGS["llamacpp"].score(client, question, choice, tokenizer)
                sums.append(scored.total)
            return sums

    found = asyncio.run(main())
    asked = []
    for prompt, choice in pairs:
        before, ids = tokenizer.encode(prompt, False), tokenizer.encode(prompt + choice, False)
        asked.append((common_length(before, ids), ids))
    said = subprocess.run(
        [pythons["quantize"], "-c", TRANSFORMERS, str(demo)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    expected = json.loads(said.stdout.splitlines()[-1])
    # Each token has an error of its own: llama.cpp's KV cache is float16, transformers' float32.
    errors = [
        abs(a - b) / (len(ids) - given)
        for a, b, (given, ids) in zip(found, expected, asked, strict=True)
    ]
    sys.stdout.write(f"log-likelihoods differ from transformers' by {max(errors):.5f} a token\n")
    assert max(errors) < 1e-2, list(zip(pairs, found, expected, strict=True))
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 0.05


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
        # On a busy machine tokens may be read at once; each time all at once would be no stream.
        if len(set(streamed.token_times)) > 4:
            break
    assert len(set(streamed.token_times)) > 4
    assert streamed.ttft is not None and streamed.ttft < streamed.seconds


def test_a_text_ends_an_answer(endpoint: Endpoint, tokenizer: Tokenizer) -> None:
    prompt = rendered(tokenizer, QUESTIONS[0])
    (whole,) = ask(endpoint, [prompt])
    (cut,) = ask(endpoint, [prompt], stop=["Paris"])
    assert "Paris" in whole.text and cut.finish_reason == "stop"
    assert cut.text == whole.text.partition("Paris")[0]


def test_the_longest_request_fits_its_slot(endpoint: Endpoint, tokenizer: Tokenizer) -> None:
    ids = (tokenizer.encode(" the", False) * 1024)[: 1024 - 8]

    async def main() -> Completion:
        async with endpoint.client() as client:
            return await client.complete(ids, max_tokens=8, ignore_eos=True)

    answer = asyncio.run(main())
    assert (answer.prompt_tokens, answer.output_tokens) == (1024 - 8, 8)


def test_an_answer_hardly_depends_on_its_neighbours(
    endpoint: Endpoint, tokenizer: Tokenizer
) -> None:
    prompts = [rendered(tokenizer, question) for question in QUESTIONS]
    alone = [a.text for a in ask(endpoint, prompts, concurrency=1)]
    again = [a.text for a in ask(endpoint, prompts, concurrency=1)]
    together = [a.text for a in ask(endpoint, prompts, concurrency=8)]
    assert again == alone
    changed = sum(a != b for a, b in zip(alone, together, strict=True))
    sys.stdout.write(f"{changed} of {len(prompts)} answers are others at concurrency 8\n")
    assert changed <= 2
    assert "Paris" in alone[0]


def test_a_real_profile(endpoint: Endpoint, tokenizer: Tokenizer, tmp_path: Path) -> None:
    spec = ProfileSpec(
        workloads=(Workload(name="short", prompt_tokens=48, output_tokens=8),),
        concurrency=(1, 8),
        requests=8,
    )
    found = run_profile(endpoint, spec, Inputs(tokenizer), folder=tmp_path)
    points, peak = found.points, found.peak_rss
    assert [(p.completed, p.failed) for p in points] == [(8, 0), (8, 0)]
    for point in points:
        assert 0 < (point.tpot_ms_p50 or 0) < 5000 and 0 < (point.ttft_ms_p50 or 0) < 60_000
    assert (peak or 0) > 500 << 20


def test_a_taken_port_is_said(served_folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServingFailure, match=f"port {port} is in use"),
            server(served_folder, tmp_path, spec={"port": port}),
        ):
            raise AssertionError("it started")


def test_a_damaged_file_is_a_failure_that_quotes_the_log(
    served_folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.gguf").write_bytes(next(served_folder.glob("*.gguf")).read_bytes()[:100_000])
    with (
        pytest.raises(ServingFailure, match="ended before it was ready") as failure,
        server(broken, tmp_path / "server", served_digest="d"),
    ):
        raise AssertionError("it started")
    assert "model.gguf" in failure.value.what or "load" in failure.value.what


def test_kill_9_of_its_parent_ends_it(served_folder: Path, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        from test_real_llamacpp import server
        with server(Path(sys.argv[2]), Path(sys.argv[3])) as endpoint:
            print(endpoint.pid, flush=True)
            time.sleep(600)
        """
    )
    words = [
        sys.executable,
        "-c",
        script,
        str(Path(__file__).parent),
        str(served_folder),
        str(tmp_path),
    ]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    assert gone(pid, 15.0)
