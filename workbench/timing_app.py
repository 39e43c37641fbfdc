"""The timing server's process: see `workbench.timing_server`, which starts it.

Run as ``python -m workbench.timing_app '{"ttft_ms": 50, "itl_ms": 10}'`` (the attributes of
`Settings`). It prints its port, and serves on loopback until its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import httptools
import orjson

from workbench.timing_server import Settings


class _Clock:
    """Calls what is due, all of it by one timer: a timer a token would cost more than the write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._next = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, call))
        if when < self._next:
            self._arm(when)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        wait = when - time.perf_counter()
        # Timers come in whole milliseconds; one of 0 would come again and again until it is due.
        self._timer = self._loop.call_later(max(0.001, wait) if wait > 0 else 0, self._fire)

    def _fire(self) -> None:
        heap, now = self._heap, time.perf_counter()
        self._next = -1.0  # what is added meanwhile is seen here
        # What falls due meanwhile waits: a server that is late must still read requests.
        while heap and heap[0][0] <= now:
            heapq.heappop(heap)[2]()
        self._next = float("inf")
        if heap:
            self._arm(heap[0][0])


class _Answer:
    """One request being answered."""

    def __init__(self, connection: _Connection, serial: int, body: dict[str, Any]) -> None:
        server = connection.server
        self.connection, self.settings, self.clock = connection, server.settings, server.clock
        hit = (serial + 1) % self.settings.every == 0
        self.fault: str = self.settings.fault if hit else ""
        prompt = body.get("prompt")
        ids = isinstance(prompt, list)
        self.prompt_tokens = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        self.tokens = self.settings.tokens or int(body.get("max_tokens") or 16)
        self.tokens += 2 if self.fault == "too many" else 0
        self.usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.arrived = time.perf_counter()
        self.serial = serial
        self.made = 0
        self.writes: list[float] = []
        server.record.append(
            (serial, prompt[0] if ids and prompt else None, self.arrived, self.writes)
        )

    def begin(self) -> None:
        """The head of the answer, and the first token's time."""
        write = self.connection.write
        if self.fault in ("429", "503", "500"):
            said = b'{"error": {"message": "as told"}}'
            write(b"HTTP/1.1 %s X\r\nContent-Length: %d\r\n\r\n" % (self.fault.encode(), len(said)))
            write(said)
            self.connection.answer = None
            return
        if self.fault == "silent":
            return
        if self.fault == "not http":
            write(b"SSH-2.0-OpenSSH_9.2\r\n")
            return
        if self.fault == "not a stream":
            write(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{'choices': []}")
            self.connection.answer = None
            return
        write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if self.settings.role_first:
            write(_event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}))
        self._due()

    def _due(self) -> None:
        # With several tokens in a chunk it comes when the last of them is there.
        last = min(self.made + self.settings.per_chunk, self.tokens) - 1
        ms = self.settings.ttft_ms + self.settings.itl_ms * last
        self.clock.at(self.arrived + ms / 1000, self.step)

    def step(self) -> None:
        """One chunk, or the fault."""
        if self.connection.answer is not self:
            return
        if self.fault and self.made >= self.settings.after and self._fail():
            return
        count = min(self.settings.per_chunk, self.tokens - self.made)
        first = f"#{self.serial}" if not self.made else " token"
        text = "" if self.fault == "no tokens" else first + " token" * (count - 1)
        self.made += count
        early = self.fault == "early" and self.made >= self.settings.after
        over = early or self.made >= self.tokens
        reason = ("stop" if early else "length") if over and self.fault != "no finish" else None
        chunk = _token(text, reason)
        self.writes.append(time.perf_counter())
        self.connection.write(chunk)
        if over:
            self._end()
        else:
            self._due()

    def _end(self) -> None:
        tail = b""
        if self.usage and self.fault != "no usage":
            usage = {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.made,
                "total_tokens": self.prompt_tokens + self.made,
            }
            tail += _event({"choices": [], "usage": usage})
        if self.fault != "no done":
            tail += _chunk(b"data: [DONE]\n\n")
        self.connection.answer = None
        self.connection.write(tail + b"0\r\n\r\n")

    def _fail(self) -> bool:
        """Do the fault of this moment; False where it is not one of the middle."""
        connection = self.connection
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "close":
            connection.transport.close()
        elif self.fault == "reset":
            raw = connection.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.transport.abort()
        elif self.fault == "malformed":
            connection.write(_chunk(b'data: {"choices": [{\n\n'))
        elif self.fault == "error":
            connection.write(_event({"error": {"message": "as told", "code": 500}}))
        return self.fault in ("close", "reset", "malformed", "error", "stall")


class _Server:
    """What all connections share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = _Clock()
        self.serial = 0
        self.record: list[tuple[int, int | None, float, list[float]]] = []


class _Connection(asyncio.Protocol):
    """One connection, and the answer on it."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.answer: _Answer | None = None
        self.parser: Any = httptools.HttpRequestParser(self)
        self.path = b""
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        self.answer = None

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path, body, self.path, self.body = self.path, self.body, b"", b""
        server = self.server
        if path.endswith(b"/completions"):
            self.answer = _Answer(self, server.serial, orjson.loads(body))
            server.serial += 1
            self.answer.begin()
            return
        found: Any = {"object": "list", "data": [{"id": "timing", "object": "model"}]}
        if path == b"/truth":
            found = server.record
        said = orjson.dumps(found)
        if path == b"/truth":
            server.record = []
        kind = b"Content-Type: application/json\r\n"
        self.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (kind, len(said)) + said)

    def write(self, data: bytes) -> None:
        """Hand it to the system at once, so that the time before is that of the write."""
        if self.transport.get_write_buffer_size() == 0:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                pass
            except OSError:
                self.transport.abort()
                return
        if data:
            self.transport.write(data)


@lru_cache(maxsize=256)
def _token(text: str, reason: str | None) -> bytes:
    """A chunk as vLLM writes one; all but the first of an answer are alike."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    return _event(
        {
            "id": "cmpl-timing",
            "object": "text_completion",
            "created": 1,
            "model": "timing",
            "choices": [choice | {"stop_reason": None}],
            "usage": None,
        }
    )


def _event(event: dict[str, Any]) -> bytes:
    """One event as one HTTP chunk."""
    return _chunk(b"data: " + orjson.dumps(event) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def main() -> None:
    """Serve until standard input ends: then the process that started it is gone."""
    import uvloop

    settings = Settings(**orjson.loads(sys.argv[1]))
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[-1]})

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        shared = _Server(settings)
        listening = await loop.create_server(
            lambda: _Connection(shared), "127.0.0.1", 0, backlog=4096
        )
        print(listening.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - it is the answer
        ended = asyncio.Event()
        loop.add_reader(0, ended.set)
        await ended.wait()

    with (
        contextlib.suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(serve())


if __name__ == "__main__":
    main()
