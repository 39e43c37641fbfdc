"""Asks a server for its `/metrics` over one connection that is kept, in a time that is bounded.

`http.client` limits each read and not the whole: a server that sends a byte a second would hold its
reader for ever. Here every read gets what is left of the whole's time.
"""

from __future__ import annotations

import http.client
import socket
import time
from typing import Any, cast
from urllib.parse import urlsplit

from workbench.engine_metrics import Metrics, read_metrics

#: Longest answer that is waited for.
ANSWER_SECONDS = 2.0
_LARGEST_BYTES = 16 << 20


class _Bounded(socket.socket):
    """A socket that is read until a time and no longer, however slowly its bytes come."""

    ends = 0.0

    def recv_into(self, *arguments: Any, **named: Any) -> int:
        """As `socket.recv_into`, in the time that is left."""
        self.settimeout(_left(self.ends))
        return super().recv_into(*arguments, **named)


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class MetricsLink:
    """The connection. Of one thread at a time.

    Args:
        base_url: of the server; only `http` is asked, which every server of ours speaks.
        key: its bearer key.
    """

    def __init__(self, base_url: str, key: str) -> None:
        url = urlsplit(base_url)
        self._path = f"{url.path.rstrip('/')}/metrics"
        self._headers = {"Authorization": f"Bearer {key}", "Accept": "text/plain"}
        self._link = http.client.HTTPConnection(url.hostname or "", url.port or 80)
        self._plain = url.scheme == "http"

    def ask(self) -> Metrics | None:
        """What it says of itself; None: nothing known, or nothing in time."""
        ends = time.monotonic() + ANSWER_SECONDS
        while self._plain:
            kept = self._link.sock is not None
            try:
                return self._get(ends)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                # A server may close a connection that was idle: then a new one is tried, once.
                if not (kept and isinstance(error, ConnectionError)):
                    break
        return None

    def _get(self, ends: float) -> Metrics | None:
        if self._link.sock is None:
            made = socket.create_connection((self._link.host, self._link.port), _left(ends))
            self._link.sock = _Bounded(fileno=made.detach())
        sock = cast(_Bounded, self._link.sock)
        sock.ends = ends
        sock.settimeout(_left(ends))
        self._link.request("GET", self._path, headers=self._headers)
        with self._link.getresponse() as answer:
            body = bytearray()
            while part := answer.read(1 << 16):
                body += part
                if len(body) > _LARGEST_BYTES:
                    raise ValueError("no metrics are as long as this")
            if answer.length:
                raise ValueError("the answer was cut")
            return read_metrics(body.decode("utf-8", "replace")) if answer.status == 200 else None

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()
