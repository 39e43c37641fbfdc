"""The client against real servers: the shipped fake, and one whose every byte a test chooses."""

import asyncio
import contextlib
import itertools
import json
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.client import Client, Completion, RequestFailed, SseParser, Token, run_async

KEY = "not-to-be-seen"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        int(line.split(":")[1])
        for line in head.split("\r\n")
        if line.lower().startswith("content-length")
    )
    body: dict[str, Any] = json.loads(await reader.readexactly(length))
    assert f"Authorization: Bearer {KEY}" in head
    return body


def answer(body: Any, status: int = 200, **headers: str) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status,
        more.encode(),
        len(text),
        text,
    )


def plain(text: str = "yes", **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    return {"choices": [{"text": text, "finish_reason": "stop", **more}], "usage": usage}


@asynccontextmanager
async def served(handler: Handler, **options: Any) -> AsyncIterator[Client]:
    """A server that gives each connection to the handler, and a client of it."""
    ended = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(done := asyncio.Event())
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            done.set()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"request_seconds": 5, "backoff": 0.01} | options
    try:
        async with Client(f"http://127.0.0.1:{port}", KEY, "m", **settings) as client:
            yield client
    finally:
        server.close()
        await server.wait_closed()
        for done in ended:
            await done.wait()


def scripted(*answers: bytes, seen: list[dict[str, Any]] | None = None) -> Handler:
    """Answer the first connection with the first bytes, and so on; the last one stays."""
    left = list(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await read_request(reader)
        if seen is not None:
            seen.append(body)
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return handle


def ask(handler: Handler, *, options: dict[str, Any] | None = None, **request: Any) -> Completion:
    async def main() -> Completion:
        async with served(handler, **(options or {})) as client:
            return await client.complete("p", **({"max_tokens": 4} | request))

    return asyncio.run(main())


# --------------------------------------------------------------------------- requests


def test_an_answer_is_read_whole() -> None:
    logprobs = {"tokens": ["y", "es"], "text_offset": [0, 1], "token_logprobs": [None, -0.5]}
    found = ask(scripted(answer(plain(logprobs=logprobs))), echo=True, logprobs=0)
    assert (found.text, found.finish_reason) == ("yes", "stop")
    assert (found.prompt_tokens, found.output_tokens) == (3, 1)
    assert found.token_logprobs == (None, -0.5)
    assert found.seconds > 0 and found.ttft is None and found.tpot is None


def test_what_is_sent() -> None:
    seen: list[dict[str, Any]] = []
    schema = {"type": "object"}
    ask(
        scripted(answer(plain()), seen=seen),
        max_tokens=0,
        echo=True,
        logprobs=0,
        ignore_eos=True,
        response_schema=schema,
    )
    body = seen[0]
    # Special tokens added by the server would double the template's own.
    assert body["add_special_tokens"] is False
    assert (body["max_tokens"], body["echo"], body["logprobs"]) == (0, True, 0)
    assert (body["temperature"], body["seed"], body["ignore_eos"]) == (0.0, 0, True)
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert "guided_json" not in body and "stream" not in body


def test_token_ids_are_sent_as_they_are() -> None:
    seen: list[dict[str, Any]] = []

    async def main() -> None:
        async with served(scripted(answer(plain()), seen=seen)) as client:
            await client.complete((5, 6), max_tokens=1)

    asyncio.run(main())
    assert seen[0]["prompt"] == [5, 6]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    busy = answer({"error": "later"}, status)
    found = ask(scripted(busy, busy, answer(plain())))
    assert (found.text, found.retries) == ("yes", 2)


@pytest.mark.parametrize("says", ["0.3", "date"])
def test_a_busy_server_is_given_the_time_it_asks_for(says: str) -> None:
    begun = time.monotonic()
    in_a_moment = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    busy = answer({}, 429, Retry_After=says if says != "date" else in_a_moment)
    assert ask(scripted(busy, answer(plain()))).text == "yes"
    # A date has whole seconds.
    assert (0.3 if says != "date" else 0.5) <= time.monotonic() - begun < 40


@pytest.mark.parametrize("says", ["soon", "-5", "nan", "1e400", "", "Mon, 99 Foo 2026"])
def test_a_retry_after_that_means_nothing_is_no_wait(says: str) -> None:
    begun = time.monotonic()
    assert ask(scripted(answer({}, 503, Retry_After=says), answer(plain()))).text == "yes"
    assert time.monotonic() - begun < 20


def test_no_server_can_make_us_wait_forever() -> None:
    begun = time.monotonic()
    answers = scripted(answer({}, 503, Retry_After="86400"), answer(plain()))
    assert ask(answers, options={"patience": 0.2}).text == "yes"
    assert 0.2 <= time.monotonic() - begun < 20


def test_a_server_that_stays_busy_is_an_error() -> None:
    with pytest.raises(RequestFailed) as failure:
        ask(scripted(answer({}, 503)), options={"retries": 2})
    assert failure.value.reason == "http 503"


def test_an_http_error_is_not_repeated_and_quotes_the_answer_without_the_key() -> None:
    seen: list[dict[str, Any]] = []
    said = answer({"error": f"engine died, {KEY}"}, 500)
    with pytest.raises(RequestFailed, match="engine died") as failure:
        ask(scripted(said, seen=seen))
    assert failure.value.reason == "http 500"
    assert len(seen) == 1
    assert KEY not in str(failure.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "malformed answer"),
        (b"{}", "malformed answer"),
        (b'{"choices": []}', "malformed answer"),
        (b'{"choices": [{"text": null}]}', "malformed answer"),
    ],
)
def test_an_answer_that_is_no_completion(body: bytes, reason: str) -> None:
    with pytest.raises(RequestFailed) as failure:
        ask(scripted(answer(body)))
    assert failure.value.reason == reason


def test_a_connection_that_breaks() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"
    with pytest.raises(RequestFailed) as failure:
        ask(scripted(cut))
    assert failure.value.reason == "connection lost"


def test_nobody_listens() -> None:
    async def main() -> None:
        async with Client("http://127.0.0.1:1", KEY, "m") as client:
            await client.complete("p", max_tokens=1)

    with pytest.raises(RequestFailed) as failure:
        asyncio.run(main())
    assert failure.value.reason == "connection refused"


def test_a_server_that_never_answers() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    with pytest.raises(RequestFailed) as failure:
        ask(handle, options={"request_seconds": 0.2})
    assert failure.value.reason == "timeout"


def test_a_client_outside_its_block_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(Client("http://127.0.0.1:1", KEY, "m").complete("p", max_tokens=1))


def test_the_failure_survives_another_process() -> None:
    failure = RequestFailed("timeout", "too late", where="here", fix="wait")
    again = pickle.loads(pickle.dumps(failure))
    assert (again.reason, again.what, again.where, again.fix) == (
        "timeout",
        "too late",
        "here",
        "wait",
    )


# --------------------------------------------------------------------------- streams


def event(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish, **more}]}


def stream(*parts: bytes, pause: float = 0.0, written: list[float] | None = None) -> Handler:
    """Send the parts of a stream, waiting before each; when each was sent is put into a list."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        for part in parts:
            await asyncio.sleep(pause)
            if written is not None:
                written.append(time.perf_counter())
            writer.write(part)
            await writer.drain()

    return handle


def sse(*events: dict[str, Any] | str) -> list[bytes]:
    return [
        b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + b"\n\n" for e in events
    ]


USAGE: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}


def test_a_stream_is_timed_at_its_tokens() -> None:
    parts = sse(event(""), event("a"), event("b"), event("c", "length"), USAGE, "[DONE]")
    written: list[float] = []
    found = ask(stream(*parts, pause=0.2, written=written), stream=True)
    assert (found.text, found.finish_reason, found.output_tokens) == ("abc", "length", 3)
    # Each after it was sent and before the next part was, however late both were; the first of the
    # six parts is no token.
    first, second, third = found.token_times
    _, a, b, c, usage, _ = written
    assert a <= first < b <= second < c <= third < usage
    assert found.ttft == first - found.started and found.ttft > 0.39
    assert found.tpot == (third - first) / 2 and found.tpot > 0.1
    assert found.last == third


def test_a_token_without_text_is_a_token_where_the_server_tells_ids() -> None:
    parts = sse(
        event("", token_ids=[7]),
        event("é", token_ids=[8]),
        event("xy", "stop", token_ids=[9, 10]),
        "[DONE]",
    )
    written: list[float] = []
    found = ask(stream(*parts, pause=0.2, written=written), stream=True)
    assert len(found.token_times) == 4
    assert found.first_token is not None and written[0] <= found.first_token < written[1]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (sse(event("a"), event("b")), "stream cut"),
        (sse(event("a", "stop"), USAGE), "stream cut"),
        (sse(event("a"), "[DONE]"), "stream cut"),
        (sse(event("", "stop"), "[DONE]"), "no tokens"),
        (sse(event("a"), {"error": {"message": "engine died"}}), "error in stream"),
        ([b"data: {nonsense\n\n"], "malformed answer"),
    ],
)
def test_half_a_stream_is_no_answer(parts: list[bytes], reason: str) -> None:
    with pytest.raises(RequestFailed) as failure:
        ask(stream(*parts), stream=True)
    assert failure.value.reason == reason


def test_a_refused_stream_is_an_http_error() -> None:
    with pytest.raises(RequestFailed) as failure:
        ask(scripted(answer({"error": "no"}, 400)), stream=True)
    assert failure.value.reason == "http 400"


@given(
    texts=st.lists(st.text(min_size=1, max_size=12), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    crlf=st.booleans(),
)
def test_events_are_the_same_however_the_bytes_are_cut(
    texts: list[str], cuts: list[int], crlf: bool
) -> None:
    data = [json.dumps({"t": text}, ensure_ascii=False) for text in texts]
    end = "\r\n" if crlf else "\n"
    whole = "".join(f": comment{end}data: {d}{end}{end}" for d in data).encode(
        "utf-8", "surrogatepass"
    )
    parser = SseParser()
    found = []
    edges = [0, *sorted(min(c, len(whole)) for c in cuts), len(whole)]
    for start, stop in itertools.pairwise(edges):
        found += parser.feed(whole[start:stop])
    assert len(found) == len(data)
    assert found == [d.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for d in data]


def test_an_event_of_several_lines() -> None:
    assert SseParser().feed(b"data: a\ndata: b\n\n") == ["a\nb"]


# --------------------------------------------------------------------------- likelihood


def completion(*tokens: Token) -> Completion:
    return Completion("", None, None, None, tokens, 0.0, None, 0.0)


def test_the_likelihood_of_what_follows_the_prompt() -> None:
    tokens = (Token("The", 0, None), Token(" end", 3, -1.0), Token(" is", 7, -2.0))
    assert completion(*tokens).logprob_after(7) == -2.0
    assert completion(*tokens).logprob_after(3) == -3.0


def test_a_token_across_the_border_counts() -> None:
    tokens = (Token("The", 0, None), Token(" ending", 3, -1.5), Token("", 10, -0.5))
    assert completion(*tokens).logprob_after(7) == -2.0


@pytest.mark.parametrize(
    "tokens", [(), (Token("a", 0, -1.0),), (Token("a", 0, -1.0), Token("b", 1, None))]
)
def test_no_likelihood_without_log_probabilities(tokens: tuple[Token, ...]) -> None:
    with pytest.raises(RequestFailed):
        completion(*tokens).logprob_after(1)


# --------------------------------------------------------------------------- loops


def test_it_runs_inside_a_running_loop_too() -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 7

    async def notebook() -> int:
        return run_async(inner)

    assert run_async(inner) == 7
    assert asyncio.run(notebook()) == 7


def test_an_error_comes_out_of_the_thread() -> None:
    async def inner() -> None:
        raise RequestFailed("timeout", "too late")

    async def notebook() -> None:
        run_async(inner)

    with pytest.raises(RequestFailed, match="too late"):
        asyncio.run(notebook())
