"""A completion server with known token times, to measure a load client against.

`TimingServer` starts and asks it (`workbench.timing_app`). It computes nothing: the tokens of a
request are due at fixed times after its arrival (no drift: the i-th is due at TTFT + i ITL), and a
process of its own, bound to one core where there are more, writes each by one system call.

What it *says* is the nominal time; what it *does* is recorded: when a request had arrived and, just
before it, every write. A client is compared with that truth, because timers are 1 ms grained and a
busy server writes late. The clock is the machine's monotonic one, which another process can compare
with its own `time.perf_counter`.

It also fails on purpose, in each way a server has been seen to: see `Settings.fault`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Literal, Self
from urllib.request import ProxyHandler, build_opener

import orjson

from workbench.errors import ServingFailure

Fault = Literal[
    "",
    "429",
    "503",
    "500",
    "silent",
    "stall",
    "close",
    "reset",
    "die",
    "malformed",
    "error",
    "not http",
    "not a stream",
    "no done",
    "no finish",
    "no tokens",
    "no usage",
    "early",
    "too many",
]

_START_SECONDS = 20.0
#: It is on this machine, whatever proxy leads elsewhere.
_DIRECT = build_opener(ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Settings:
    """How it answers.

    Attributes:
        ttft_ms: from a request's arrival to its first token.
        itl_ms: between two tokens.
        tokens: of an answer; 0: what `max_tokens` asks.
        per_chunk: tokens in one chunk.
        role_first: send an empty chunk at once, as servers do that name the role first.
        fault: ``429``, ``503``, ``500``: answers this. ``silent``: never answers. ``stall``: stops
            after `after` tokens, connection open. ``close``, ``reset``, ``die``: ends there, in
            order, by a reset, by SIGKILL of the server. ``malformed``, ``error``: a chunk that is
            no JSON, or says an error, there. ``not http``, ``not a stream``: another kind of
            answer. ``no done``, ``no finish``, ``no tokens``, ``no usage``: left out. ``early``:
            ends with `stop` there. ``too many``: more tokens than asked for.
        every: each so many-th request meets the fault; 1: all.
        after: tokens before it.
    """

    ttft_ms: float = 50.0
    itl_ms: float = 10.0
    tokens: int = 0
    per_chunk: int = 1
    role_first: bool = False
    fault: Fault = ""
    every: int = 1
    after: int = 3


@dataclass(frozen=True, slots=True)
class Truth:
    """What was done for one request, seconds of the machine's monotonic clock.

    Attributes:
        serial: which request of the server it was, from 0; the answer's first token holds it.
        number: first token id of the prompt; None where the prompt was a text.
        arrived: when it had been read.
        writes: just before each chunk with content was handed to the system.
    """

    serial: int
    number: int | None
    arrived: float
    writes: tuple[float, ...]

    @property
    def ttft(self) -> float:
        """From arrival to first write."""
        return self.writes[0] - self.arrived


class TimingServer:
    """Starts the server's process, and ends it with the block.

    Attributes:
        url: base address.
        pid: of the server.

    Raises:
        ServingFailure: it did not start.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self.url = ""
        self.pid = 0

    def __enter__(self) -> Self:
        order = orjson.dumps(asdict(self._settings)).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workbench.timing_app", order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        # The line comes, or the end of a process that failed; a timer ends one that hangs.
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            self._end()
            raise ServingFailure(
                "the timing server did not start",
                fix=f"see above; it is given {_START_SECONDS:g} s",
            )
        self.url, self.pid = f"http://127.0.0.1:{int(line)}", self._process.pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def truth(self) -> list[Truth]:
        """What was done since this was last asked, in the order of arrival.

        Raises:
            ServingFailure: it does not say.
        """
        try:
            with _DIRECT.open(f"{self.url}/truth", timeout=30) as answer:
                found = orjson.loads(answer.read())
        except OSError as error:  # URLError is one
            raise ServingFailure(
                f"the timing server does not say what it did: {error}", where=self.url
            ) from error
        return [Truth(serial, number, at, tuple(writes)) for serial, number, at, writes in found]
