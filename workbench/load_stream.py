"""Reads the answer to one streamed completion as its bytes come. No network and no clock.

It knows HTTP (httptools), server-sent events (https://html.spec.whatwg.org/multipage/server-sent-
events.html, 9.2.6) and OpenAI's completion chunks, and decides what became of the request. The
bytes may be cut anywhere. Most reads hold one whole event, so that case is short; every other one
takes the long way to the same result.
"""

from __future__ import annotations

import re
from typing import Any, Final

import httptools
import orjson

from workbench.traffic import Ask, Outcome, Status

#: HTTP states that mean "not now". A load never asks again: a retry would hide in a latency.
REFUSED: Final = (429, 503)
#: How much of what a server said is kept, characters.
MAX_DETAIL: Final = 400
#: Lines of one event longer than this together are no chunk of a completion, bytes.
MAX_EVENT: Final = 4 << 20

_LINE_END = re.compile(rb"\r\n|[\r\n]")
_BOM = b"\xef\xbb\xbf"


class AnswerReader:
    """Reads one answer into an `Outcome`.

    Args:
        ask: what was asked.
        outcome: gets times, counts, status and reason.
        keep_text: keep the answer's text too.

    Attributes:
        over: the answer's end was read, or the outcome is settled otherwise.
        reusable: the connection may carry another request.
        heard: when the last bytes were read, seconds.
    """

    __slots__ = (
        "_ask",
        "_data",
        "_done",
        "_events",
        "_framed",
        "_headers",
        "_held",
        "_keep_text",
        "_now",
        "_parser",
        "_rest",
        "_skip_lf",
        "_status",
        "_texts",
        "heard",
        "outcome",
        "over",
        "reusable",
    )

    def __init__(self, ask: Ask, outcome: Outcome, *, keep_text: bool = False) -> None:
        self.outcome = outcome
        self.over = False
        self.reusable = False
        self.heard = 0.0
        self._ask = ask
        self._keep_text = keep_text
        self._parser: Any = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._status = 0
        self._headers = False
        self._framed = False
        self._done = False
        self._events = 0
        self._rest: list[bytes] = []  # of a line that is not over, or of what an error says
        self._data: list[bytes] = []
        self._held = 0  # bytes of an event that is not over, about
        self._texts: list[str] = []
        self._skip_lf = False

    # ------------------------------------------------------------------ from the connection

    def feed(self, data: bytes, now: float) -> bool:
        """Take what was read at `now`, seconds; True when the request is over."""
        self.heard = self._now = now
        if self.outcome.first_byte is None:
            self.outcome.first_byte = now
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.over:
                self.fail("failed", "malformed HTTP", str(error))
            self.reusable = False
        if self.over:
            self._parser = None  # it refers to this object, and would keep both alive
        return self.over

    def closed(self, error: Exception | None) -> None:
        """The connection ended, in order or by an error, before the answer was over."""
        if self._headers and not self._framed and error is None:
            self._settle()  # neither a length nor chunks: the end of the connection is the end
        elif isinstance(error, ConnectionResetError | BrokenPipeError):
            where = "in the middle of the answer" if self.heard else "before the answer"
            self.fail("failed", f"connection reset {where}")
        elif error is not None:
            self.fail("failed", f"connection lost ({type(error).__name__})", str(error))
        elif self.heard:
            self.fail("failed", "connection closed in the middle of the answer")
        else:
            self.fail("failed", "connection closed before the answer")
        self._parser = None

    def fail(self, status: Status, reason: str, detail: str = "") -> None:
        """Settle it as not completed; the first reason stays."""
        if self.over:
            return
        self.over = True
        self.reusable = False
        found = self.outcome
        found.status, found.reason, found.detail = status, reason, detail[:MAX_DETAIL]
        found.text = "".join(self._texts)

    # ------------------------------------------------------------------ from the HTTP parser

    def on_message_begin(self) -> None:
        """Bytes after the end of the answer: the connection cannot be trusted any more."""
        if self.over:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Whether the answer says itself where it ends."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """The status is known now."""
        if not self.over:
            self._headers = True
            self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A part of the body: events, or what an error says."""
        if self.over:
            return
        if self._status != 200:
            if self._held < 4 * MAX_DETAIL:
                self._held += len(body)
                self._rest.append(body)
            return
        if (
            body.startswith(b"data: ")
            and body.find(b"\n") == len(body) - 2
            and body.endswith(b"\n\n")
            and not (self._rest or self._data or self._skip_lf)
            and b"\r" not in body
        ):
            self._event(body[6:-2])
        else:
            self._lines(body)

    def on_message_complete(self) -> None:
        """The end of the answer, unless it was an interim one (1xx)."""
        if self.over or 100 <= self._status < 200:
            self._framed = self._headers = False
            return
        reusable = self._parser.should_keep_alive()
        self._settle()
        self.reusable = reusable

    # ------------------------------------------------------------------ inside

    def _lines(self, body: bytes) -> None:
        if self._skip_lf and body:
            # The line end was CR LF, and its two bytes came apart.
            body = body.removeprefix(b"\n")
            self._skip_lf = False
        # Only what is new is looked at: a line that never ends must not cost more with each read,
        # as every other request of the load waits meanwhile.
        *lines, rest = _LINE_END.split(body)
        self._skip_lf = body.endswith(b"\r")
        if lines:
            if self._rest:
                lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = [rest] if rest else []
        elif rest:
            self._rest.append(rest)
        self._held += len(body)
        for line in lines:
            if self.over:
                return
            if not line:
                self._held = 0
                if self._data:
                    data = b"\n".join(self._data)
                    self._data = []
                    if data:
                        self._event(data)
                continue
            if not self._events and not self._data:
                line = line.removeprefix(_BOM)
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._data.append(b"")
        if not (self._rest or self._data):
            self._held = 0
        elif self._held > MAX_EVENT:
            self.fail("failed", f"an event of more than {MAX_EVENT >> 20} MiB")

    def _event(self, data: bytes) -> None:
        self._events += 1
        if self._done:
            return
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event = orjson.loads(data)
            if event.get("error") is not None:
                self.fail("failed", "error in the stream", str(event["error"]))
                return
            for choice in event["choices"]:
                self._choice(choice)
            usage = event.get("usage")
            if usage is not None:
                self._usage(usage)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            shown = data[:MAX_DETAIL].decode("utf-8", "replace")
            self.fail("failed", "malformed stream", f"{type(error).__name__}: {error}: {shown}")

    def _choice(self, choice: dict[str, Any]) -> None:
        found = self.outcome
        text = choice.get("text")
        if text is None:
            delta = choice.get("delta")
            text = delta.get("content") if delta else None
        if text:
            if not isinstance(text, str):
                raise TypeError("the text of a chunk is not a text")
            found.token_times.append(self._now)
            if self._keep_text:
                self._texts.append(text)
        elif choice.get("token_ids"):
            # A part of a character has no text yet, but is a token where the server tells ids.
            found.token_times.append(self._now)
        reason = choice.get("finish_reason")
        if reason is not None:
            if not isinstance(reason, str):
                raise TypeError("a finish reason that is not a text")
            found.finish_reason = reason

    def _usage(self, usage: dict[str, Any]) -> None:
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if any(n is not None and (type(n) is not int or n < 0) for n in counts):
            raise TypeError("a count of tokens is not a whole number from 0 on")
        self.outcome.prompt_tokens, self.outcome.output_tokens = counts

    def _settle(self) -> None:
        """Decide what became of it, now that all of it was read."""
        found, most = self.outcome, self._ask.max_tokens
        found.last_byte = self._now
        usage, chunks = found.output_tokens, len(found.token_times)
        if self._status != 200:
            said = b"".join(self._rest).decode("utf-8", "replace").strip()
            kind: Status = "refused" if self._status in REFUSED else "failed"
            self.fail(kind, f"http {self._status}", said)
        elif not self._events:
            said = b"".join(self._rest).decode("utf-8", "replace")
            self.fail("failed", "not a stream", said)
        elif not self._done:
            self.fail("failed", "the stream ended without [DONE]")
        elif found.finish_reason is None:
            self.fail("failed", "the stream ended without a finish reason")
        elif found.finish_reason in ("abort", "error"):
            self.fail("failed", f"finish reason '{found.finish_reason}'")
        elif not found.token_times:
            self.fail("failed", "no tokens")
        elif usage is not None and usage < chunks:
            # A chunk may hold several tokens, and a token may show no text; no token has two.
            said = f"{usage} tokens by usage, {chunks} chunks with content"
            self.fail("failed", "usage contradicts the chunks", said)
        elif max(usage or 0, chunks) > most:
            self.fail("failed", "more tokens than asked for", f"{usage or chunks} of {most}")
        elif self._ask.ignore_eos and self._is_short():
            self.fail("short", "short answer", f"{usage or chunks} of {most} tokens")
        else:
            self.over = True
            found.status = "completed"
            found.text = "".join(self._texts)

    def _is_short(self) -> bool:
        """Whether it ended before all its tokens.

        Without usage the finish reason tells: a chunk may carry several tokens.
        """
        if self.outcome.output_tokens is None:
            return self.outcome.finish_reason != "length"
        return self.outcome.output_tokens < self._ask.max_tokens
