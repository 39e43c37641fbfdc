"""Asks a server for completions, and is the only place that reads the clock of a request.

Every request carries text that was already rendered (the workbench owns the chat template) or token
ids, and no special tokens are added: a second begin-of-text or a template applied twice is the most
common silent wrong number. How a request is written and an answer read is the engine's dialect
(`workbench.dialect`). What comes back is typed, a failure
is a `RequestFailed` with a short reason that can be counted, and nothing is ever half an answer: a
stream that ends before its last event is a failure.

Times are seconds of one monotonic clock, comparable with each other and with nothing else. A token
counts as received when the chunk that carries it was read from the socket. A chunk without a token
(the empty first chunk some servers send) is not a token, and a token whose text is still empty (a
part of a multi-byte character) is one.

It does not decide what to ask, does not score, and does not start servers.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp

from workbench.completion import MAX_QUOTE, Answer, Completion, RequestFailed, SseParser, Token
from workbench.dialect import Ask, Dialect, OpenAiDialect
from workbench.network import Guard

__all__ = ["Client", "Completion", "Piece", "RequestFailed", "SseParser", "Token", "run_async"]

T = TypeVar("T")

#: HTTP states that say "not now": worth asking again.
_BUSY = (429, 503)


class Piece(NamedTuple):
    """One token of a text; its text is None where it is only a part of a character."""

    id: int
    text: str | None


class Client:
    """Requests to one server, over persistent connections where its dialect has them.

    Args:
        base_url: such as ``http://127.0.0.1:8000``, without ``/v1``.
        key: the bearer key; it is never written into an error.
        model: the served name.
        request_seconds: time limit of one request, from sending to the last byte.
        retries: how often a request is sent again after HTTP 429 or 503.
        backoff: seconds before the first retry, doubled each time, at most 8. A server that says
            `Retry-After` is given that time instead.
        patience: longest time a server is given so, seconds.
        dialect: of the engine; default is vLLM's.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        model: str,
        *,
        request_seconds: float = 300.0,
        retries: int = 4,
        backoff: float = 0.25,
        patience: float = 60.0,
        dialect: Dialect | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._key = key
        self._timeout = aiohttp.ClientTimeout(total=request_seconds)
        self._seconds = request_seconds
        self._retries = retries
        self._backoff = backoff
        self._patience = patience
        self._dialect = dialect or OpenAiDialect()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No limit on connections: the caller decides the concurrency, a queue here would hide it.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not self._dialect.keeps_alive),
            timeout=self._timeout,
            headers={"Authorization": f"Bearer {self._key}"},
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        response_schema: Mapping[str, Any] | None = None,
        echo: bool = False,
        logprobs: int | None = None,
        ignore_eos: bool = False,
        stream: bool = False,
        token_ids: bool = False,
    ) -> Completion:
        """Ask for one completion.

        Args:
            prompt: rendered text, or token ids.
            max_tokens: upper limit of the answer; 0 is allowed with `echo`.
            temperature: 0 is greedy.
            top_p: share of the probability that is drawn from; 1 is all of it.
            seed: for sampling; without effect at temperature 0.
            stop: texts that end the answer; they are not part of it.
            response_schema: JSON schema the answer is decoded under.
            echo: return the prompt's tokens too, with `logprobs` their log-probabilities.
            logprobs: how many alternatives to compute; 0 gives the chosen token alone.
            ignore_eos: go on to `max_tokens` whatever the model says.
            stream: receive token by token and record when each came.
            token_ids: have the server tell the prompt's token ids, where it can.

        Raises:
            RequestFailed: no answer, an error, a time-out, or an answer that is not whole.
            ValueError: the engine's dialect cannot express what is asked.
        """
        ids = None
        if isinstance(prompt, str) and self._dialect.wants_ids:
            ids = tuple(piece.id for piece in await self.tokenize(prompt))
        ask = Ask(
            prompt=ids if ids is not None else prompt if isinstance(prompt, str) else tuple(prompt),
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=tuple(stop),
            response_schema=response_schema,
            echo=echo,
            logprobs=logprobs,
            ignore_eos=ignore_eos,
            stream=stream,
            token_ids=token_ids,
        )
        body, spoken = self._dialect.body(self.model, ask), self._dialect
        if stream:
            answer = await self._patiently(lambda n: self._stream(spoken.path, body, n))
        else:
            answer = await self.ask(spoken.path, body, spoken.read)
        return answer if ids is None else replace(answer, prompt_ids=ids)

    async def ask(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], Answer]
    ) -> Completion:
        """Post to a route that answers with one completion, with the same patience as `complete`.

        Args:
            path: route, such as ``/v1/chat/completions``.
            body: JSON of the request.
            read: takes the answer's JSON apart; may raise KeyError, TypeError, ValueError and
                IndexError where it is no answer.

        Raises:
            RequestFailed: no answer, an error, a time-out, or not an answer that can be read.
        """
        return await self._patiently(lambda n: self._whole(path, body, read, n))

    async def _patiently(self, ask: Callable[[int], Awaitable[Completion]]) -> Completion:
        """One request, sent again while the server says "not now"."""
        for attempt in range(self._retries + 1):
            try:
                return await ask(attempt)
            except RequestFailed as failure:
                busy = failure.reason in {f"http {code}" for code in _BUSY}
                if not busy or attempt == self._retries:
                    raise
                pause = min(8.0, self._backoff * 2**attempt)
                if failure.retry_after is not None:
                    pause = min(self._patience, failure.retry_after)
            await asyncio.sleep(pause)
        raise AssertionError("the loop returns or raises")

    async def tokenize(self, text: str) -> tuple[Piece, ...]:
        """A text's tokens by the server's own tokenizer; special tokens are known, none is added.

        Raises:
            RequestFailed: no answer, or one of another form than llama.cpp's `/tokenize` gives.
        """
        body = {
            "content": text,
            "add_special": False,
            "parse_special": True,
            "with_pieces": True,
        }
        answer = await self.post_json("/tokenize", body)
        async with self._guard("/tokenize"):
            # The piece of a part of a character comes as a list of bytes.
            return tuple(
                Piece(t["id"], t["piece"] if isinstance(t["piece"], str) else None)
                for t in answer["tokens"]
            )

    async def get_text(self, path: str) -> str:
        """The body of a GET, such as `/metrics`.

        Raises:
            RequestFailed: anything but HTTP 200.
        """
        async with self._guard(path), self._open().get(self.base_url + path) as response:
            return await self._read(response, path)

    async def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer to a POST, for routes beside completions.

        Raises:
            RequestFailed: anything but HTTP 200 with JSON.
        """
        async with (
            self._guard(path),
            self._open().post(self.base_url + path, json=dict(body)) as response,
        ):
            return json.loads(await self._read(response, path))

    # ------------------------------------------------------------------ inside

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the client in 'async with'")
        return self._session

    def _guard(self, path: str) -> Guard:
        return Guard(f"{self.base_url}{path}", self._seconds)

    async def _read(self, response: aiohttp.ClientResponse, path: str) -> str:
        text = (await response.read()).decode("utf-8", "replace")
        if response.status != 200:
            said = text[:MAX_QUOTE].replace(self._key, "***") if self._key else text[:MAX_QUOTE]
            raise RequestFailed(
                f"http {response.status}",
                f"the server answered HTTP {response.status}: {said.strip() or '(empty)'}",
                where=f"{self.base_url}{path}",
                retry_after=_retry_after(response.headers.get("Retry-After")),
            )
        return text

    async def _stream(self, path: str, body: Mapping[str, Any], attempt: int) -> Completion:
        async with self._guard(path):
            started = time.perf_counter()
            async with self._open().post(self.base_url + path, json=body) as response:
                if response.status != 200:
                    await self._read(response, path)
                return await self._streamed(response, started, attempt)

    async def _whole(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], Answer], attempt: int
    ) -> Completion:
        async with self._guard(path):
            started = time.perf_counter()
            async with self._open().post(self.base_url + path, json=body) as response:
                answer = json.loads(await self._read(response, path))
            last = time.perf_counter()
            return Completion(
                **vars(read(answer)),
                started=started,
                first_token=None,
                last=last,
                retries=attempt,
            )

    async def _streamed(
        self, response: aiohttp.ClientResponse, started: float, attempt: int
    ) -> Completion:
        parser, state = SseParser(), self._dialect.stream()
        async for chunk in response.content.iter_any():
            now = time.perf_counter()
            for data in parser.feed(chunk):
                state.take(data, now)
        if not state.done or state.finish_reason is None:
            raise RequestFailed(
                "stream cut", f"the stream ended after {len(state.times)} tokens without its end"
            )
        if not state.times:
            raise RequestFailed("no tokens", "the stream ended without a single token")
        return Completion(
            text="".join(state.text),
            finish_reason=state.finish_reason,
            prompt_tokens=state.usage.get("prompt_tokens"),
            output_tokens=state.usage.get("completion_tokens"),
            tokens=tuple(state.tokens),
            started=started,
            first_token=state.times[0],
            last=state.times[-1],
            token_times=tuple(state.times),
            retries=attempt,
        )


def run_async(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also where a loop runs already (a notebook): then in a thread.

    An interrupt cancels it and is raised after it has cleaned up.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def inside() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await make()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: asyncio.run(inside()))
        try:
            return future.result()
        except BaseException:
            for loop, task in running:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(task.cancel)
            raise


def _retry_after(header: str | None) -> float | None:
    """Seconds a `Retry-After` header asks for (RFC 9110, 10.2.3): a number, or a date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
