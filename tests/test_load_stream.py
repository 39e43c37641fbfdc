"""How an answer is read: known bytes, every way they can be cut, and each way they can be wrong."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import load_stream
from workbench.load_stream import AnswerReader
from workbench.traffic import Ask, Outcome

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish} | more
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def usage(prompt: int, output: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": output}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


def chunked(*parts: bytes, end: bool = True) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return HEAD + body + (b"0\r\n\r\n" if end else b"")


def read(
    *pieces: bytes, max_tokens: int = 2, ignore_eos: bool = True, end: Any = "open"
) -> tuple[AnswerReader, Outcome]:
    """Feed the pieces at 1, 2, 3 ... seconds; `end` is what the connection ended with."""
    outcome = Outcome(0, due=0.0, sent=0.5)
    ask = Ask(0, (1,), max_tokens, ignore_eos=ignore_eos)
    reader = AnswerReader(ask, outcome, keep_text=True)
    for number, piece in enumerate(pieces):
        if not reader.over:
            reader.feed(piece, number + 1.0)
    if end != "open" and not reader.over:
        reader.closed(end)
    return reader, outcome


GOOD = (event("a"), event("b", "length"), usage(1, 2), DONE)


def test_times_are_those_of_the_reads_that_brought_the_tokens() -> None:
    whole = chunked(event(""), *GOOD)
    first = whole.index(b'"a"') + 5  # in the middle of the first token's event
    second = whole.index(b'"b"')
    reader, found = read(HEAD, whole[len(HEAD) : first], whole[first:second], whole[second:])
    assert (found.status, found.reason, found.finish_reason) == ("completed", "", "length")
    assert found.first_byte == 1.0
    # The event's end counts: the token was not there before.
    assert found.token_times == [3.0, 4.0]
    assert (found.last_byte, found.ttft, found.seconds) == (4.0, 2.5, 3.5)
    assert (found.prompt_tokens, found.output_tokens, found.uncounted) == (1, 2, 0)
    assert found.text == "ab"
    assert reader.over and reader.reusable


def test_a_chunk_without_content_is_no_token() -> None:
    role = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    _, found = read(chunked(event(""), event(None), role), chunked(*GOOD).removeprefix(HEAD))
    assert found.status == "failed"  # the first was a whole answer already
    parts = [chunked(event(""), event(None), role, *GOOD)]
    _, found = read(parts[0][:-5], parts[0][-5:])
    assert (found.status, len(found.token_times)) == ("completed", 2)


def test_a_part_of_a_character_is_a_token_where_the_server_tells_ids() -> None:
    _, found = read(chunked(event("", token_ids=[7]), event("b", "length"), usage(1, 2), DONE))
    assert len(found.token_times) == 2
    _, found = read(chunked(event("", token_ids=[]), event("b", "length"), usage(1, 2), DONE))
    assert (len(found.token_times), found.uncounted) == (1, 1)


def test_chat_chunks_are_read_too() -> None:
    delta = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}\n\n'
    _, found = read(chunked(delta, usage(1, 2), DONE))
    assert (found.status, found.text, found.uncounted) == ("completed", "x", 1)


# --------------------------------------------------------------------------- any cut


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str], int]:
    """A whole answer as bytes, its tokens, and what usage says."""
    line_end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    tokens = draw(st.lists(st.text(max_size=6), min_size=1, max_size=6))
    noise = st.sampled_from([b"", b": ping", b"event: message", b"id: 4", b"retry: 10", b"dat: {}"])
    lines: list[bytes] = [draw(st.sampled_from([b"", b"\xef\xbb\xbf: hello"]))]
    for place, text in enumerate(tokens):
        lines.append(draw(noise))
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None}
        if place + 1 == len(tokens):
            choice["finish_reason"] = "length"
        ascii_ = draw(st.booleans())
        said = json.dumps({"id": "x", "choices": [choice]}, indent=1, ensure_ascii=ascii_)
        if draw(st.booleans()):
            said = said.replace("\n", "")
        space = draw(st.sampled_from([b" ", b""]))
        # JSON over several lines is one event of several data lines.
        lines += [b"data:" + space + part.encode() for part in said.split("\n")] + [b""]
    count = len(tokens)
    lines += [usage(3, count).strip(), b"", b"data: [DONE]", b""]
    body = line_end.join(lines) + line_end
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=6)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    return chunked(*parts), tokens, count


@given(streams(), st.lists(st.integers(0, 3000), max_size=12), st.booleans())
def test_any_cut_of_the_bytes_gives_the_same(
    made: tuple[bytes, list[str], int], places: list[int], byte_by_byte: bool
) -> None:
    data, tokens, count = made
    cuts = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    if byte_by_byte:
        cuts = list(range(len(data) + 1))
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]
    reader, found = read(*pieces, max_tokens=count)
    wanted = [text for text in tokens if text]
    if not wanted:
        assert (found.status, found.reason) == ("failed", "no tokens")
        return
    assert (found.status, found.reason) == ("completed", "")
    assert found.text == "".join(wanted)
    assert len(found.token_times) == len(wanted)
    assert found.token_times == sorted(found.token_times)
    assert (found.prompt_tokens, found.output_tokens, found.finish_reason) == (3, count, "length")
    assert reader.reusable


def test_a_read_that_looks_like_one_event_and_is_not() -> None:
    # Two events, the first ended by CR: what looks like one line holds two.
    two = event("a").replace(b"\n\n", b"\r\r") + event("b", "length")
    _, found = read(chunked(two, usage(1, 2), DONE))
    assert (found.status, found.text) == ("completed", "ab")
    # The second half of an event that begins and ends as a whole one does.
    whole = event("ok data: b", "length")
    cut = whole.index(b"data: b")
    _, found = read(chunked(event("a"), whole[:cut], whole[cut:], usage(1, 2), DONE))
    assert (found.status, found.text) == ("completed", "aok data: b")
    # A byte order mark may stand before the first event, and is not part of it.
    _, found = read(chunked(b"\xef\xbb\xbf" + event("a"), *GOOD[1:]))
    assert (found.status, found.text) == ("completed", "ab")


# --------------------------------------------------------------------------- every fault


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (chunked(event("a"), event("b", "length"), usage(1, 2)), "failed", "without [DONE]"),
        (chunked(event("a"), event("b"), usage(1, 2), DONE), "failed", "without a finish reason"),
        (chunked(event(""), event("", "length"), usage(1, 2), DONE), "failed", "no tokens"),
        (chunked(event("a"), b"data: {nope\n\n"), "failed", "malformed stream"),
        (chunked(event("a"), b"data: 7\n\n"), "failed", "malformed stream"),
        (chunked(event("a"), b'data: {"choices": 7}\n\n'), "failed", "malformed stream"),
        (chunked(event("a"), b'data: {"choices": [7]}\n\n'), "failed", "malformed stream"),
        (chunked(event("a"), b'data: {"x": "\xff"}\n\n'), "failed", "malformed stream"),
        # Lines of one event are joined by a line end, which no JSON text may hold.
        (chunked(b'data: {"choices": [{"text": "a\ndata: b"}]}\n\n'), "failed", "malformed stream"),
        (chunked(b'data: {"choices": [{"text": 7}]}\n\n'), "failed", "malformed stream"),
        (
            chunked(event("a"), b'data: {"choices": [], "usage": {"completion_tokens": "2"}}\n\n'),
            "failed",
            "malformed stream",
        ),
        (chunked(event("a"), b'data: {"error": "no"}\n\n'), "failed", "error in the stream"),
        (chunked(event("a"), event("b", "abort"), DONE), "failed", "finish reason 'abort'"),
        (
            chunked(event("a"), event("b", "length"), usage(1, -2), DONE),
            "failed",
            "malformed stream",
        ),
        (chunked(*GOOD[:2], usage(-1, 2), DONE), "failed", "malformed stream"),
        (chunked(*GOOD[:2], usage(1, 1), DONE), "failed", "usage contradicts the chunks"),
        (chunked(*GOOD[:2], usage(1, 0), DONE), "failed", "usage contradicts the chunks"),
        (chunked(*GOOD[:2], usage(1, 3), DONE), "failed", "more tokens than asked for"),
        (chunked(event("x"), *GOOD[:2], DONE), "failed", "more tokens than asked for"),
        (chunked(event("a", "length"), usage(1, 1), DONE), "short", "short answer"),
        (chunked(event("a", "stop"), usage(1, 1), DONE), "short", "short answer"),
        (chunked(event("a", "stop"), DONE), "short", "short answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "failed", "not a stream"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nwell", "failed", "http 500"),
        (b"HTTP/1.1 429 X\r\nContent-Length: 4\r\n\r\nwell", "refused", "http 429"),
        (b"HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nwell", "refused", "http 503"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "failed", "malformed HTTP"),
        (HEAD + b"zz\r\n", "failed", "malformed HTTP"),
    ],
)
def test_what_is_wrong_has_its_own_reason(data: bytes, status: str, reason: str) -> None:
    for pieces in ((data,), tuple(data[i : i + 1] for i in range(len(data)))):
        reader, found = read(*pieces)
        assert reader.over
        assert found.status == status
        assert found.reason.endswith(reason)
        assert len(found.detail) <= 400


class Counting:
    """The line ends, with how many bytes were looked at for them."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.seen = pattern, 0

    def split(self, data: bytes) -> list[bytes]:
        self.seen += len(data)
        return self.pattern.split(data)


def test_a_line_that_never_ends_fails_its_request_and_costs_each_byte_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests of a load are read by one loop: what one costs, the others wait."""
    counting = Counting(load_stream._LINE_END)
    monkeypatch.setattr(load_stream, "_LINE_END", counting)
    endless = [chunked(b"y" * 65536, end=False).removeprefix(HEAD)] * 100
    reader, found = read(HEAD, *endless, max_tokens=4)
    assert reader.over and not reader.reusable
    assert (found.status, found.reason) == ("failed", "an event of more than 4 MiB")
    assert 4 << 20 < counting.seen < (4 << 20) + 200_000
    # Nor may lines of one event go on for ever.
    lines = [chunked(b"data: " + b"z" * 65530 + b"\n", end=False).removeprefix(HEAD)] * 100
    _, found = read(HEAD, *lines, max_tokens=4)
    assert found.reason == "an event of more than 4 MiB"


def test_events_of_megabytes_are_read_and_many_of_them_are_no_long_one() -> None:
    large = event("x" * 3_000_000)
    pieces = [
        chunked(large[i : i + 65536]).removesuffix(b"0\r\n\r\n").removeprefix(HEAD)
        for i in range(0, len(large), 65536)
    ]
    end = chunked(event("b", "length"), usage(1, 3), DONE).removeprefix(HEAD)
    _, found = read(HEAD, *pieces, *pieces, end, max_tokens=3)
    assert (found.status, len(found.text)) == ("completed", 6_000_001)


def test_what_the_server_says_of_an_error_is_kept() -> None:
    reader, found = read(b"HTTP/1.1 400 X\r\nContent-Length: 9\r\n\r\ntoo long!")
    assert (found.reason, found.detail) == ("http 400", "too long!")
    assert reader.reusable
    _, found = read(b"HTTP/1.1 400 X\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
    assert found.detail == "x" * 400


def test_an_error_that_is_null_is_none() -> None:
    parts = [part.replace(b'{"choices"', b'{"error": null, "choices"') for part in GOOD]
    _, found = read(chunked(*parts))
    assert (found.status, found.text) == ("completed", "ab")


def test_usage_and_chunks_may_differ_only_where_a_chunk_holds_several_tokens() -> None:
    sixty = [event("a") for _ in range(59)] + [event("a", "stop")]
    _, found = read(chunked(*sixty, usage(1, 1), DONE), max_tokens=64, ignore_eos=False)
    assert (found.status, found.detail) == (
        "failed",
        "1 tokens by usage, 60 chunks with content",
    )
    _, found = read(chunked(*sixty, usage(1, 64), DONE), max_tokens=64)
    assert (found.status, found.uncounted) == ("completed", 4)
    _, found = read(chunked(*sixty, usage(1, 63), DONE), max_tokens=64)
    assert (found.status, found.detail) == ("short", "63 of 64 tokens")


def test_without_usage_the_finish_reason_tells_whether_it_was_all() -> None:
    # Two tokens in one chunk: fewer chunks than tokens is not short.
    _, found = read(chunked(event("a b", "length"), DONE))
    assert (found.status, found.output_tokens, found.uncounted) == ("completed", None, None)
    assert len(found.token_times) == 1


def test_an_answer_that_may_end_early_is_complete() -> None:
    _, found = read(chunked(event("a", "stop"), usage(1, 1), DONE), ignore_eos=False)
    assert found.status == "completed"


@pytest.mark.parametrize(
    ("pieces", "end", "reason"),
    [
        ((), None, "connection closed before the answer"),
        ((), ConnectionResetError(), "connection reset before the answer"),
        ((chunked(event("a"), end=False),), None, "connection closed in the middle of the answer"),
        ((chunked(*GOOD, end=False),), None, "connection closed in the middle of the answer"),
        ((HEAD,), ConnectionResetError(), "connection reset in the middle of the answer"),
        ((HEAD,), OSError("odd"), "connection lost (OSError)"),
        ((b"HTTP/1.1 200",), None, "connection closed in the middle of the answer"),
    ],
)
def test_a_connection_that_ends_too_soon(pieces: tuple[bytes, ...], end: Any, reason: str) -> None:
    reader, found = read(*pieces, end=end)
    assert reader.over and not reader.reusable
    assert (found.status, found.reason) == ("failed", reason)


def test_an_answer_may_end_with_its_connection() -> None:
    bare = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"".join(GOOD)
    _, found = read(bare, end=None)
    assert found.status == "completed"
    _, found = read(bare, end=ConnectionResetError())
    assert found.reason == "connection reset in the middle of the answer"
    _, found = read(bare[:-20], end=None)
    assert found.reason == "the stream ended without [DONE]"


def test_a_connection_is_used_again_only_where_it_may_be() -> None:
    closing = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    reader, found = read(chunked(*GOOD).replace(HEAD, closing))
    assert (found.status, reader.reusable) == ("completed", False)
    reader, found = read(chunked(*GOOD) + b"HTTP/1.1 200 OK\r\n")
    assert (found.status, reader.reusable) == ("completed", False)
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    reader, found = read(interim + chunked(*GOOD))
    assert (found.status, reader.reusable) == ("completed", True)
