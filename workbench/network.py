"""What the network, and a server that does not speak as agreed, can throw: one kind of failure."""

from __future__ import annotations

from types import TracebackType

import aiohttp

from workbench.completion import RequestFailed


class Guard:
    """Turns what the network can throw into `RequestFailed`."""

    def __init__(self, where: str, seconds: float) -> None:
        self._where = where
        self._seconds = seconds

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(value, RequestFailed | None):
            return
        if isinstance(value, TimeoutError):
            raise RequestFailed(
                "timeout",
                f"no complete answer within {self._seconds:g} s",
                where=self._where,
                fix="raise the time limit of a request, or lower the concurrency",
            ) from value
        if isinstance(value, aiohttp.ClientConnectorError):
            raise RequestFailed(
                "connection refused", f"cannot connect: {value.strerror}", where=self._where
            ) from value
        if isinstance(value, aiohttp.ClientError | ConnectionError):
            raise RequestFailed(
                "connection lost",
                f"the connection broke: {type(value).__name__}",
                where=self._where,
                fix="the server may have died; its log is beside the results",
            ) from value
        # All that reading something else than an answer can come to.
        if isinstance(
            value,
            ValueError
            | LookupError
            | TypeError
            | AttributeError
            | ArithmeticError
            | RecursionError,
        ):
            raise RequestFailed(
                "malformed answer",
                f"the answer is not a completion: {type(value).__name__}: {value}",
                where=self._where,
            ) from value
