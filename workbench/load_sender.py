"""Sends the requests of one load over connections that stay open, and keeps every limit.

One asyncio loop and no task a request. A closed loop keeps so many requests open. An open loop
sends each when it is due, over a free connection or a new one; only where the limit of open
connections is reached does one wait, and that is in `Outcome.queued`. Timers are 1 ms grained: a
request may be sent up to about 1 ms after its time, never before it.
"""

from __future__ import annotations

import asyncio
import errno
import math
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from socket import SOCK_STREAM
from typing import Any, Final
from urllib.parse import urlsplit

from workbench.errors import ServingFailure
from workbench.load_connection import Connection
from workbench.load_request import Limits, Target, payloads
from workbench.load_stream import AnswerReader
from workbench.traffic import Ask, Outcome

#: A connection idle for longer is not used again: uvicorn, and so vLLM, closes one after 5 s, and a
#: request that meets the closing is lost.
IDLE_SECONDS = 2.0
#: A load ends where at least so many, and one of each worker, waited to their limit and not one of
#: the load ever got a token: the others would wait as long for nothing.
SILENT: Final = 4


class Sender:
    """One load, once.

    Args:
        target: who is asked.
        asks: in the order they are sent (closed loop) or due (open loop).
        limits: of every wait.
        concurrency: requests open at a time; None: an open loop.
        seconds: none is sent later than this, but one of an open loop that was due by then where
            this process stood still; what was not sent has no outcome. None: all are.
        keep_text: keep the answers.

    Attributes:
        opened: connections opened.
        keeps_alive: a connection may carry another request.
        most_open: the most requests that were open at a time.
        waited: requests of an open loop that found all connections taken.
        silent: why the load was ended because its first requests got nothing; else empty.
        began: of the monotonic clock, seconds.
    """

    def __init__(
        self,
        target: Target,
        asks: Sequence[Ask],
        limits: Limits,
        *,
        concurrency: int | None,
        seconds: float | None = None,
        keep_text: bool = False,
    ) -> None:
        self.keeps_alive = target.keep_alive
        self.opened = self.most_open = self.waited = 0
        self.silent = ""
        self._unheard = 0
        self._stopped = False
        self.began = 0.0
        self._url, self._key = target.base_url, target.key
        self._asks = asks
        self._limits = limits
        self._seconds = seconds
        self._keep_text = keep_text
        self._slots = limits.connections if concurrency is None else concurrency
        self._open_loop = concurrency is None
        self._payloads = payloads(target, asks)
        self._outcomes: list[Outcome | None] = [None] * len(asks)
        self._left = len(asks)
        self._coming = 0  # of an open loop: the next one that is not due yet
        self._waiting: deque[int] = deque()
        self._busy: dict[Connection, None] = {}
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def now(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self.began

    async def resolve(self) -> None:
        """Find the server's address, before the load begins.

        Raises:
            ServingFailure: its name is not known.
        """
        url = urlsplit(self._url)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host, port = url.hostname, url.port or (443 if self._tls else 80)
        try:
            async with asyncio.timeout(self._limits.connect):
                found = await asyncio.get_running_loop().getaddrinfo(
                    self._host, port, type=SOCK_STREAM
                )
        except OSError as error:  # TimeoutError is one
            raise ServingFailure(
                f"the server's name '{self._host}' is not known: "
                f"{error or f'no answer within {self._limits.connect:g} s'}",
                where=self._url,
            ) from error
        self._addresses = [(str(entry[4][0]), int(entry[4][1])) for entry in found]

    async def run(self) -> list[Outcome]:
        """Send all of them, to what `resolve` found; one outcome each, in the order of the asks."""
        loop = asyncio.get_running_loop()
        self._loop, self._finished = loop, loop.create_future()
        # A fault of this module must end the load, not leave a request that nobody ends.
        loop.set_exception_handler(self._crashed)
        limits = self._limits
        self._step = min(0.25, min(limits.first_byte, limits.between, limits.request) / 4)
        self.began = time.perf_counter()
        if not self._left:
            return []
        late = f"the load was not over within {limits.load:g} s (load)"
        self._later("load", limits.load, lambda: self._abandon(late))
        if self._seconds is not None:
            self._later("seconds", self._seconds, self._stop_sending)
        self._later("sweep", self._step, self._sweep)
        if self._open_loop:
            self._tick()
        else:
            self._waiting.extend(range(len(self._asks)))
            self._pump()
        try:
            await self._finished
        finally:
            loop.set_exception_handler(None)
            for timer in self._timers.values():
                timer.cancel()
            for task in self._connecting:
                task.cancel()
            for connection in [*self._busy, *self._idle]:
                connection.reader = None
                connection.drop()
            await asyncio.sleep(0)
        found = [outcome for outcome in self._outcomes if outcome is not None]
        for outcome in found:
            if self._key and self._key in outcome.detail:
                outcome.detail = outcome.detail.replace(self._key, "***")
        return found

    def ended(self, connection: Connection) -> None:
        """The request of a connection is over; the connection may be closed."""
        del self._busy[connection]
        if connection.transport is not None:
            connection.idle_since = self.now()
            self._idle.append(connection)
        self._settled()

    def lost(self, connection: Connection) -> None:
        """A connection without a request ended."""
        if connection in self._idle:
            self._idle.remove(connection)

    def soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it when the loop comes round."""
        self._loop.call_soon(call, *arguments)

    # ------------------------------------------------------------------ inside

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        self._timers[name] = self._loop.call_later(seconds, call)

    def _tick(self) -> None:
        """Take what is due of an open loop, and come back for the next."""
        now, before = self.now(), self._coming
        last = math.inf if self._seconds is None else self._seconds
        while self._coming < len(self._asks):
            at = self._asks[self._coming].at or 0.0
            if at > last:  # after a stall it may be due by now
                break
            wait = at - now
            if wait > 0:
                # Whole milliseconds, rounded up: a timer that comes too early must come again.
                self._later("due", (int(wait * 1000) + 1) / 1000, self._tick)
                break
            self._waiting.append(self._coming)
            self._coming += 1
        self._pump()
        self.waited += min(self._coming - before, len(self._waiting))

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._finished.done():
            error = context.get("exception") or RuntimeError(context["message"])
            self._finished.set_exception(error)

    def _connected(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(self._loop, {"exception": error})

    def _pump(self) -> None:
        """Send what waits while a connection may be used."""
        while self._waiting and len(self._busy) + len(self._connecting) < self._slots:
            index = self._waiting.popleft()
            ask = self._asks[index]
            outcome = Outcome(ask.number, due=self.now() if ask.at is None else ask.at)
            self._outcomes[index] = outcome
            reader = AnswerReader(ask, outcome, keep_text=self._keep_text)
            connection = self._free()
            if connection is None:
                task = self._loop.create_task(self._connect(index, reader))
                self._connecting.add(task)
                task.add_done_callback(self._connected)
            else:
                self._launch(connection, index, reader)
            self.most_open = max(self.most_open, len(self._busy) + len(self._connecting))

    def _free(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if self.now() - connection.idle_since > IDLE_SECONDS:
                connection.drop()
            if connection.transport is not None:
                return connection
        return None

    def _launch(self, connection: Connection, index: int, reader: AnswerReader) -> None:
        payload, self._payloads[index] = self._payloads[index], b""
        self._busy[connection] = None
        connection.send(reader, payload)

    async def _connect(self, index: int, reader: AnswerReader) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = None
        try:
            async with asyncio.timeout(self._limits.connect):
                connection = await self._opened()
        except TimeoutError:
            reader.fail("timeout", f"no connection within {self._limits.connect:g} s (connect)")
        except OSError as error:
            reader.fail("failed", _named(error), str(error))
        self._connecting.discard(task)  # before the next one may start
        if connection is None:
            reader.outcome.over = self.now()
            self._settled()
        else:
            self.opened += 1
            self._launch(connection, index, reader)

    async def _opened(self) -> Connection:
        """A connection to the first address that takes one; that address comes first from now."""
        failure: OSError | None = None
        for address in list(self._addresses):
            try:
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self),
                    *address,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except OSError as error:
                failure = failure or error
            else:
                if address != self._addresses[0]:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                return connection
        raise failure or OSError("no address")

    def _settled(self) -> None:
        """One request is over: go on with the next, or end."""
        self._left -= 1
        self._pump()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._left <= 0 and not self._finished.done():
            self._finished.set_result(None)

    def _sweep(self) -> None:
        """End what is over a limit. Looked at every `_step` s: a timer a read would cost more."""
        now, limits = self.now(), self._limits
        for connection in list(self._busy):
            reader = connection.reader
            if reader is None:
                continue
            waited, limit = now - connection.started, ""
            # Where limits are equal, the one that says most.
            if not reader.heard and waited > limits.first_byte:
                limit = f"no first byte within {limits.first_byte:g} s (first_byte)"
            elif waited > limits.request:
                limit = f"not over within {limits.request:g} s (request)"
            elif reader.heard and now - reader.heard > limits.between:
                limit = f"silent for {limits.between:g} s within the answer (between)"
            if limit:
                self._unheard += not reader.outcome.token_times
                connection.give_up("timeout", limit)
        enough = min(len(self._asks), max(SILENT, 0 if self._open_loop else self._slots))
        begun = [outcome for outcome in self._outcomes if outcome is not None]
        if self._unheard >= enough and not any(outcome.token_times for outcome in begun):
            heard = any(outcome.first_byte is not None for outcome in begun)
            first = not heard and limits.first_byte <= limits.request
            self.silent = (
                f"its first {self._unheard} requests got not a {'token' if heard else 'byte'} "
                f"within {limits.first_byte if first else limits.request:g} s "
                f"({'first_byte' if first else 'request'})"
            )
            self._abandon(f"the load was ended: {self.silent}")
            return
        self._later("sweep", self._step, self._sweep)

    def _stop_sending(self) -> None:
        """Forget what was not begun."""
        self._stopped = True
        self._left = len(self._busy) + len(self._connecting)
        self._waiting.clear()
        self._coming = len(self._asks)
        self._end_if_done()

    def _abandon(self, reason: str) -> None:
        """End all that is left, as unfinished."""
        for connection in self._busy:
            connection.reader = None
            connection.drop()
        self._busy.clear()
        for index, ask in enumerate(self._asks):
            if self._outcomes[index] is None and not self._stopped:
                due = self.now() if ask.at is None else ask.at
                self._outcomes[index] = Outcome(ask.number, due=due)
        for outcome in self._outcomes:
            if outcome is not None and outcome.status == "unfinished":
                outcome.over = self.now()
                outcome.reason = reason
        if not self._finished.done():
            self._finished.set_result(None)


def _named(error: OSError) -> str:
    """A connection that could not be opened, in a few words."""
    known = {
        errno.ECONNREFUSED: "connection refused",
        errno.ECONNRESET: "connection reset while connecting",
        errno.EMFILE: "too many open files",
        errno.EADDRNOTAVAIL: "no local port left",
        errno.ENETUNREACH: "network unreachable",
        errno.EHOSTUNREACH: "host unreachable",
    }
    return known.get(error.errno or 0, f"no connection ({type(error).__name__})")
