"""One connection of a load: what is read is taken where it arrives.

A time is that of the read and not of a task's turn. A request is written by the system call itself
(`os.write`), and `sent` is the moment before it: a client that loses the processor while it writes
makes a latency longer then, never shorter. What the system does not take at once goes through the
transport, and `sent` is when the transport has handed it on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Protocol, cast

from workbench.load_stream import AnswerReader
from workbench.traffic import Status


class Owner(Protocol):
    """What a connection needs of the load it belongs to."""

    @property
    def keeps_alive(self) -> bool:
        """A connection may carry another request."""

    def now(self) -> float:
        """Seconds since the load began."""

    def ended(self, connection: Connection) -> None:
        """Its request is over; its transport is None where it is closed."""

    def lost(self, connection: Connection) -> None:
        """It ended without a request on it."""

    def soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it when the loop comes round."""


class Connection(asyncio.Protocol):
    """One connection and the request on it, if any."""

    __slots__ = (
        "ended_by",
        "fd",
        "idle_since",
        "owner",
        "reader",
        "started",
        "transport",
        "unsent",
    )

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.reader: AnswerReader | None = None
        self.transport: asyncio.Transport | None = None
        self.fd: int | None = None
        self.started = 0.0
        self.idle_since = 0.0
        self.unsent = False
        self.ended_by: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        if transport.get_extra_info("ssl_object") is None:
            self.fd = transport.get_extra_info("socket").fileno()

    def send(self, reader: AnswerReader, payload: bytes) -> None:
        """Write a request; the connection carries none now."""
        self.reader = reader
        self.started = self.owner.now()
        if self.transport is None:
            # It ended between its opening and now.
            self.owner.soon(self._lost, self.ended_by)
            return
        written = 0
        if self.fd is not None:
            try:
                written = os.write(self.fd, payload)
            except BlockingIOError:
                pass
            except OSError as error:
                # Not here: the next request may meet the same, and the stack would grow.
                self.owner.soon(self._lost, error)
                return
        if written < len(payload):
            self.unsent = True
            self.transport.write(payload[written:])
            if self.transport.get_write_buffer_size() == 0:
                self.resume_writing()
        else:
            reader.outcome.sent = self.started

    def resume_writing(self) -> None:
        """All of a long request was handed on."""
        if self.unsent and self.reader is not None:
            self.unsent = False
            self.reader.outcome.sent = self.owner.now()

    def data_received(self, data: bytes) -> None:
        """A part of an answer."""
        now = self.owner.now()
        if self.reader is None:
            self.drop()  # nobody asked
        elif self.reader.feed(data, now):
            self._over()

    def connection_lost(self, error: Exception | None) -> None:
        """The other side, or the system, ended it."""
        self.ended_by = error
        self._lost(error)

    def give_up(self, status: Status, reason: str) -> None:
        """End the request by a limit."""
        if self.reader is not None:
            self.reader.fail(status, reason)
            self._over()

    def drop(self) -> None:
        """Close at once, without waiting for the other side."""
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    def _lost(self, error: Exception | None) -> None:
        self.drop()
        if self.reader is not None:
            self.reader.closed(error)
            self._over()
        else:
            self.owner.lost(self)

    def _over(self) -> None:
        reader, self.reader = self.reader, None
        assert reader is not None
        reader.outcome.over = self.owner.now()
        unsent, self.unsent = self.unsent, False
        if unsent or not reader.reusable or not self.owner.keeps_alive:
            self.drop()
        self.owner.ended(self)
