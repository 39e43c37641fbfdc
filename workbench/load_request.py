"""Who is asked, how long each wait may be, and the bytes of each request. No network, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

import orjson

from workbench import dialect
from workbench.errors import UserError
from workbench.traffic import Ask


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest waits of a load, seconds, and how many connections may be open.

    A wait that is over its limit ends the request with a reason that names the limit.

    Attributes:
        connect: for a connection, and for the server's name.
        first_byte: from sending to the first byte of the answer.
        between: between two reads in the middle of an answer.
        request: from sending to the end of the answer.
        load: from the load's begin to its end; what is open then is unfinished.
        connections: open at a time in an open loop.

    Raises:
        ValueError: one is not positive.
    """

    connect: float = 10.0
    first_byte: float = 300.0
    between: float = 120.0
    request: float = 600.0
    load: float = 3600.0
    connections: int = 4096

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"the limit '{field.name}' of a load must be above 0")


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked.

    Attributes:
        base_url: such as ``http://127.0.0.1:8000``, without ``/v1``.
        key: bearer key; never written into a reason.
        model: the served name.
        keep_alive: one connection serves many requests. False for a server that closes a connection
            after an answer without saying so, as llama.cpp's does.
    """

    base_url: str
    key: str
    model: str
    keep_alive: bool = True


def payloads(target: Target, asks: Sequence[Ask]) -> list[bytes]:
    """The bytes of each request, made before the clock begins.

    Raises:
        UserError: an address or a key that cannot be one, or a schema that is not JSON.
    """
    try:
        url = urlsplit(target.base_url)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise UserError(
            f"'{target.base_url}' is not the address of a server",
            fix="write it as http://HOST:PORT",
        )
    if not target.key.isprintable() or not target.key.isascii():
        raise UserError("the key holds characters that no HTTP header may hold")
    spoken = dialect.OpenAiDialect()
    lines = [
        f"POST {url.path.rstrip('/')}{spoken.path} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        f"Authorization: Bearer {target.key}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Connection: {'keep-alive' if target.keep_alive else 'close'}",
    ]
    head = "".join(f"{line}\r\n" for line in lines)
    made = []
    for ask in asks:
        try:
            schema = None if ask.schema is None else orjson.loads(ask.schema)
        except ValueError as error:
            raise UserError(f"the schema of request {ask.number} is not JSON: {error}") from error
        wanted = dialect.Ask(
            prompt=ask.prompt,
            max_tokens=ask.max_tokens,
            ignore_eos=ask.ignore_eos,
            response_schema=schema,
            stream=True,
        )
        body = spoken.body(target.model, wanted)
        # They would come back with every chunk, and the prompt's with the first: work for both
        # sides that no user's request causes.
        del body["return_token_ids"]
        data = orjson.dumps(body)
        made.append(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return made
