"""The fake server's process: speaks a completion server's routes and computes nothing.

Run as ``python -m workbench.servers.fake_app --port P --model NAME --path FOLDER``. It exists so
that everything above a server (lanes, canary, evaluation, profile, verdict, and each way a server
can fail) runs in seconds on any machine. It is shipped, not a test double.

What it answers is a function of the prompt and of the checkpoint folder:

- `WORKBENCH_FAKE_ANSWERS` names a JSON file, sha256 of a prompt -> ``{"text": a right answer,
  "choices": {choice: log-probability}}``, and digest of a request with tools -> ``{"tool_calls":
  [...]}``. What it does not know gets seeded gibberish.
- `workbench_fake.json` in the checkpoint folder may hold ``damage``, the share of prompts answered
  wrongly *on top of* `fake_brain.BASE_ERROR`, which all checkpoints share.
- `WORKBENCH_FAKE_FAULTS`, a JSON object (or the same keys in `workbench_fake.json`), makes it fail
  on purpose: see `Faults`.

Two serving options are real: ``--max-num-seqs N`` answers at most N requests at a time and lets the
others wait, and ``--max-num-batched-tokens N`` below that number is refused at start, as by vLLM.

The key comes in `VLLM_API_KEY`, as for vLLM, and is checked on every `/v1` route.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aiohttp import web

from workbench import tool_calls
from workbench.digest import sha256_text
from workbench.servers.fake_brain import WORDS, Brain, tokenize


@dataclass(frozen=True)
class Faults:
    """Ways to fail on purpose, and how slow to be.

    Attributes:
        exit_at_start: end with this exit code before listening; 0: do not.
        start_seconds: how long it takes until it listens.
        never_ready: listen, but never answer `/health` with 200.
        fail_after_health: answer `/health` with 200 and every completion with HTTP 500.
        die_after: die by SIGKILL when this completion request arrives (1 is the first); 0: never.
        die_times: so many processes die of `die_after`, counted in a file beside the known answers;
            later ones live; 0: each one dies.
        out_of_memory_at: die when so many requests are answered at a time; 0: never.
        error_every: answer every so many-th completion with HTTP 500; 0: never.
        busy_first: answer so many completions with HTTP 503 first.
        busy_every: answer every so many-th completion with HTTP 503; 0: never.
        stops_early: end answers at the model's own end, whatever `ignore_eos` says.
        drop_stream_after: close a stream without its end after so many tokens; 0: never.
        nan_logprobs: log-probabilities that are not numbers, as a corrupt kernel gives.
        unstable: another answer each time.
        empty: answers without text.
        ttft_ms: time until the first token of a request.
        itl_ms: time between two tokens.
    """

    exit_at_start: int = 0
    start_seconds: float = 0.0
    never_ready: bool = False
    fail_after_health: bool = False
    die_after: int = 0
    die_times: int = 0
    out_of_memory_at: int = 0
    error_every: int = 0
    busy_first: int = 0
    busy_every: int = 0
    stops_early: bool = False
    drop_stream_after: int = 0
    nan_logprobs: bool = False
    unstable: bool = False
    empty: bool = False
    ttft_ms: float = 2.0
    itl_ms: float = 1.0

    @classmethod
    def of(cls, *sources: dict[str, Any]) -> Faults:
        """Merge the known keys of several objects, the last one winning."""
        names = {f.name for f in fields(cls)}
        merged = {k: v for source in sources for k, v in source.items() if k in names}
        return cls(**merged)


class App:
    """The routes."""

    def __init__(
        self,
        model: str,
        key: str,
        brain: Brain,
        faults: Faults,
        deaths: Path | None = None,
        seats: int = 0,
    ) -> None:
        self._seats: contextlib.AbstractAsyncContextManager[None]
        self._seats = asyncio.Semaphore(seats) if seats else contextlib.nullcontext()
        self._deaths = deaths
        self._model = model
        self._key = key
        self._brain = brain
        self._faults = faults
        self._asked = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._running = self._waiting = 0

    def application(self) -> web.Application:
        """The application to run."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post(tool_calls.PATH, self.completions)
        return app

    async def health(self, request: web.Request) -> web.Response:
        """Ready or not."""
        return web.Response(status=503 if self._faults.never_ready else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """What it did and does, under vLLM's names; it has no cache."""
        label = f'{{engine="0",model_name="{self._model}"}}'
        return web.Response(
            text=(
                f"vllm:prompt_tokens_total{label} {self._prompt_tokens}\n"
                f"vllm:generation_tokens_total{label} {self._output_tokens}\n"
                f"vllm:num_requests_running{label} {self._running}\n"
                f"vllm:num_requests_waiting{label} {self._waiting}\n"
                f"vllm:kv_cache_usage_perc{label} 0\n"
                f"vllm:num_preemptions_total{label} 0\n"
            )
        )

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        self._authorize(request)
        return web.json_response({"object": "list", "data": [{"id": self._model}]})

    def _authorize(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self._key}":
            raise web.HTTPUnauthorized(
                text=json.dumps({"error": "Unauthorized"}), content_type="application/json"
            )

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer, or fail as told."""
        self._authorize(request)
        self._asked += 1
        body = await request.json()
        if body.get("model") != self._model:
            raise web.HTTPNotFound(
                text=json.dumps({"error": f"the model '{body.get('model')}' does not exist"}),
                content_type="application/json",
            )
        faults = self._faults
        if faults.die_after and self._asked >= faults.die_after:
            self._die()
        if faults.fail_after_health or (
            faults.error_every and self._asked % faults.error_every == 0
        ):
            log("ERROR: RuntimeError: '_OpNamespace' '_C' object has no attribute 'fake_gemm'")
            return web.json_response({"error": "EngineCore encountered an issue"}, status=500)
        if self._asked <= faults.busy_first or (
            faults.busy_every and self._asked % faults.busy_every == 0
        ):
            return web.json_response({"error": "try again"}, status=503)
        self._waiting += 1
        async with self._seats:
            self._waiting -= 1
            self._running += 1
            if self._running >= faults.out_of_memory_at > 0:
                log("ERROR: OutOfMemoryError: the fake's memory holds fewer requests at a time")
                self._die()
            try:
                if request.path == tool_calls.PATH:
                    return await self._call_tools(body)
                return await self._complete(request, body)
            finally:
                self._running -= 1

    def _die(self) -> None:
        if self._deaths is not None:
            before = self._deaths.stat().st_size if self._deaths.exists() else 0
            if before >= self._faults.die_times > 0:
                return
            with self._deaths.open("ab") as file:
                file.write(b".")
        os.kill(os.getpid(), 9)

    async def _call_tools(self, body: dict[str, Any]) -> web.Response:
        """The calls of a chat with tools; it has no template and tells no token ids."""
        messages, tools = body["messages"], body["tools"]
        calls = self._brain.calls(tool_calls.request_digest(messages, tools), tools)
        count = sum(len(tokenize(message["content"])) for message in messages)
        made = sum(len(tokenize(call["arguments"])) + 1 for call in calls)
        await asyncio.sleep((self._faults.ttft_ms + self._faults.itl_ms * made) / 1000)
        said = [
            {"id": f"call-{i}", "type": "function", "function": call}
            for i, call in enumerate([] if self._faults.empty else calls)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": said}
        self._prompt_tokens += count
        self._output_tokens += made
        usage = {"prompt_tokens": count, "completion_tokens": made, "total_tokens": count + made}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})

    async def _complete(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ids = prompt = body["prompt"]
        count = len(prompt) if isinstance(prompt, list) else len(tokenize(prompt))
        prompt = prompt if isinstance(prompt, str) else " ".join(str(i) for i in prompt)
        limit = int(body.get("max_tokens", 16))
        pieces, finish = self._pieces(prompt, body, limit)
        self._prompt_tokens += count
        usage = {
            "prompt_tokens": count,
            "completion_tokens": len(pieces),
            "total_tokens": count + len(pieces),
        }
        if body.get("stream"):
            return await self._stream(request, pieces, finish, usage)
        if limit:
            pause = self._faults.ttft_ms + self._faults.itl_ms * max(0, len(pieces) - 1)
            await asyncio.sleep(pause / 1000)
        self._output_tokens += len(pieces)
        text = (prompt if body.get("echo") else "") + "".join(pieces)
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "finish_reason": finish,
            "logprobs": self._logprobs(prompt, text, body),
        }
        if body.get("prompt_logprobs") is not None and isinstance(ids, list):
            choice["prompt_token_ids"] = ids
            choice["prompt_logprobs"] = self._brain.prompt_logprobs(
                ids, int(body["prompt_logprobs"]), broken=self._faults.nan_logprobs
            )
        return web.json_response({"object": "text_completion", "choices": [choice], "usage": usage})

    def _pieces(self, prompt: str, body: dict[str, Any], limit: int) -> tuple[list[str], str]:
        """The tokens of the answer and why it ends."""
        if self._faults.empty:
            return [], "stop"
        shape = body.get("response_format") or {}
        schema = (shape.get("json_schema") or {}).get("schema")
        schema = schema or (body.get("structured_outputs") or {}).get("json")
        seed = f"{prompt}#{self._asked}" if self._faults.unstable else prompt
        words = [token for token, _ in tokenize(self._brain.answer(seed, schema))]
        if body.get("ignore_eos") and words and not self._faults.stops_early:
            dice = random.Random(sha256_text(prompt))
            while len(words) < limit:
                words.append(" " + dice.choice(WORDS))
        cut = words[:limit]
        return cut, "length" if len(cut) < len(words) or len(cut) == limit else "stop"

    def _logprobs(self, prompt: str, text: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if body.get("logprobs") is None:
            return None
        tokens = tokenize(text)
        values: list[float | None] = list(self._brain.logprobs(text))
        if body.get("echo") and values:
            values[0] = None
        if self._faults.nan_logprobs:
            values = [float("nan")] * len(values)
        return {
            "tokens": [token for token, _ in tokens],
            "text_offset": [offset for _, offset in tokens],
            "token_logprobs": values,
            "top_logprobs": None,
        }

    async def _stream(
        self, request: web.Request, pieces: list[str], finish: str, usage: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(event: dict[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        # An empty first chunk, as some servers send: it is not a token.
        await send({"choices": [{"index": 0, "text": "", "finish_reason": None}]})
        for i, piece in enumerate(pieces):
            await asyncio.sleep((self._faults.itl_ms if i else self._faults.ttft_ms) / 1000)
            last = i + 1 == len(pieces)
            self._output_tokens += 1
            await send(
                {
                    "choices": [
                        {"index": 0, "text": piece, "finish_reason": finish if last else None}
                    ]
                }
            )
            if i + 1 == self._faults.drop_stream_after:
                if request.transport is not None:
                    request.transport.close()
                return response
        await send({"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def log(text: str) -> None:
    """One line for the server's log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def load_json(path: str | Path | None) -> dict[str, Any]:
    """The object in a file; empty where there is no file."""
    if not path or not Path(path).is_file():
        return {}
    found = json.loads(Path(path).read_text("utf-8"))
    if not isinstance(found, dict):
        raise SystemExit(f"{path} does not hold a JSON object")
    return found


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=0)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--speculative-config", type=json.loads)  # it guesses nothing
    arguments = parser.parse_args()
    seats, batched = arguments.max_num_seqs, arguments.max_num_batched_tokens
    if batched is not None and batched < seats:
        log(f"ERROR: ValueError: max_num_batched_tokens ({batched}) < max_num_seqs ({seats})")
        return 1
    settings = load_json(arguments.path / "workbench_fake.json")
    faults = Faults.of(settings, json.loads(os.environ.get("WORKBENCH_FAKE_FAULTS", "{}")))
    if faults.exit_at_start:
        log("ERROR: the fake server was told to end at its start")
        return faults.exit_at_start
    brain = Brain(
        load_json(os.environ.get("WORKBENCH_FAKE_ANSWERS")),
        float(settings.get("damage", 0.0)),
        str(settings.get("salt", "damage")),
    )
    answers = os.environ.get("WORKBENCH_FAKE_ANSWERS")
    deaths = Path(answers).with_name("deaths") if answers else None
    app = App(arguments.model, os.environ.get("VLLM_API_KEY", ""), brain, faults, deaths, seats)

    async def serve() -> None:
        await asyncio.sleep(faults.start_seconds)
        runner = web.AppRunner(app.application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
        log(f"the fake server for {arguments.model} listens on port {arguments.port}")
        await asyncio.Event().wait()

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
