"""A real HTTP server whose answers a test scripts, in a thread of its own.

The shipped fake server answers as a healthy server does. This one is for what no server should do:
die at a given request, forget log-probabilities, answer half of the time.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

#: Gets the request's body, gives the answer's body or an HTTP status.
Script = Callable[[dict[str, Any]], dict[str, Any] | int]


def completion(text: str, **usage: Any) -> dict[str, Any]:
    counted = {"prompt_tokens": 7, "completion_tokens": 2} | usage
    return {"choices": [{"text": text, "finish_reason": "stop"}], "usage": counted}


def echoed(prompt: str, logprobs: list[float | None]) -> dict[str, Any]:
    """An echo of a prompt with one token a character."""
    said = {
        "tokens": list(prompt),
        "text_offset": list(range(len(prompt))),
        "token_logprobs": logprobs,
    }
    choice = {"text": prompt, "finish_reason": "length", "logprobs": said}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 0}
    return {"choices": [choice], "usage": usage}


@dataclass
class ScriptedServer:
    """Serves on a free port while the block runs.

    Attributes:
        script: what to answer.
        seconds: how long each answer takes.
        dies_after: stop listening, and cut every connection, once so many were answered.
        headers: of an answer that is an HTTP status.
        bodies: what was asked.
        at_once: the most requests that were open at a time.
    """

    script: Script
    seconds: float = 0.0
    dies_after: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    url: str = ""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def prompts(self) -> list[str]:
        return [body["prompt"] for body in self.bodies]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._open = self._answered = 0
        self._dead = False
        self._transports: set[asyncio.Transport] = set()
        app = web.Application()
        for route in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(route, self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await runner.setup()
        with socket.socket() as holder:
            # It never listens. Where this server stops listening its port is still nobody else's:
            # a request to the dead one must not be answered by a server of another test.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port = holder.getsockname()[1]
            site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
            await site.start()
            self.url = f"http://127.0.0.1:{port}"
            self._site = site
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _die(self) -> None:
        if not self._dead:
            self._dead = True
            await self._site.stop()
        for transport in self._transports:
            transport.abort()
        raise asyncio.CancelledError

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if request.transport is not None:
            self._transports.add(request.transport)
        self._open += 1
        self.at_once = max(self.at_once, self._open)
        try:
            await asyncio.sleep(self.seconds)
            if self.dies_after is not None and self._answered >= self.dies_after:
                await self._die()
            found = self.script(body)
            self._answered += 1
            if isinstance(found, int):
                return web.Response(status=found, text="scripted", headers=self.headers)
            return web.json_response(found)
        finally:
            self._open -= 1
