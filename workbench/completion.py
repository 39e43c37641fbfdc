"""What an answer is: tokens, times, and how one is read from a body or a stream. No network.

`workbench.client` asks and reads the clock; here is what it hands out. An answer is whole or it is
a `RequestFailed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import ServingFailure

#: How much of what a server said an error quotes, characters.
MAX_QUOTE = 400


class RequestFailed(ServingFailure):
    """One request got no usable answer.

    Args:
        reason: a few words that are equal for equal causes, such as ``http 500`` or ``timeout``.
        what: the whole sentence.
        retry_after: seconds the server asked to wait before the next try; None: it did not say.
    """

    def __init__(
        self,
        reason: str,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.reason = reason
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.reason, self.what, self.where, self.fix))


def _rebuild(reason: str, what: str, where: str, fix: str) -> RequestFailed:
    return RequestFailed(reason, what, where=where, fix=fix)


@dataclass(frozen=True)
class Token:
    """One token of an answer, or of the prompt where `echo` was asked.

    Attributes:
        text: what it decodes to; empty for a part of a character.
        offset: position of its first character in the returned text, in code points.
        logprob: natural logarithm of its probability; None for the first token of a prompt.
        id: its id, where the server tells.
    """

    text: str
    offset: int
    logprob: float | None
    id: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a server said, times apart; the attributes are those of `Completion`.

    Raises:
        TypeError: one of them is something else.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    tokens: tuple[Token, ...]
    prompt_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.finish_reason, str | None):
            raise TypeError("the text of an answer, or why it ended, is not a text")
        if any(type(n) not in (int, type(None)) for n in (self.prompt_tokens, self.output_tokens)):
            raise TypeError("a count of tokens is not a whole number")


@dataclass(frozen=True)
class Completion:
    """One complete answer.

    Attributes:
        text: the answer; it begins with the prompt where `echo` was asked.
        finish_reason: ``stop``, ``length`` or what else the server said.
        prompt_tokens: tokens of the prompt, as the server counted them.
        output_tokens: tokens of the answer, as the server counted them.
        tokens: tokens with their log-probabilities; empty unless `logprobs` was asked.
        started: when the request was sent, seconds.
        first_token: when the first token was received; None unless streamed.
        last: when the last token (streamed) or the whole answer was received.
        token_times: one time for each token received; empty unless streamed.
        retries: how many times the server said "not now" before.
        prompt_ids: the prompt's tokens as the server's own tokenizer made them, where it told.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    tokens: tuple[Token, ...]
    started: float
    first_token: float | None
    last: float
    token_times: tuple[float, ...] = ()
    retries: int = 0
    prompt_ids: tuple[int, ...] | None = None

    @property
    def seconds(self) -> float:
        """From sent to last token received."""
        return self.last - self.started

    @property
    def ttft(self) -> float | None:
        """Time to first token, seconds; None unless streamed."""
        return None if self.first_token is None else self.first_token - self.started

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, seconds: (last - first) / (tokens - 1)."""
        n = self.output_tokens or len(self.token_times)
        if self.first_token is None or n < 2:
            return None
        return (self.last - self.first_token) / (n - 1)

    @property
    def token_logprobs(self) -> tuple[float | None, ...]:
        """The log-probability of each token of `tokens`."""
        return tuple(t.logprob for t in self.tokens)

    def logprob_after(self, length: int) -> float:
        """Log-likelihood of the text after the first `length` characters.

        A token that straddles the border counts: without it, the likelihood of a choice would
        leave out its beginning.

        Raises:
            RequestFailed: no token lies there, or one of them has no log-probability.
        """
        found = [t for t in self.tokens if t.offset >= length or t.offset + len(t.text) > length]
        values = [t.logprob for t in found if t.logprob is not None]
        if not values or len(values) != len(found):
            raise RequestFailed(
                "no logprobs",
                f"the server gave no log-probability for the text after character {length}",
                fix="the server must answer /v1/completions with echo and logprobs",
            )
        return sum(values)


class SseParser:
    """Splits a byte stream into the `data` of server-sent events, however it was cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Take bytes, return the data of every event that is complete now."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append("\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
        return events


@dataclass
class Stream:
    """What a stream has said so far."""

    text: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    done: bool = False

    def take(self, data: str, now: float) -> None:
        """Take the data of one event that was received at `now`, seconds.

        Raises:
            RequestFailed: the event is an error.
            ValueError: it is not JSON.
        """
        if data == "[DONE]":
            self.done = True
            return
        event = self.decode(data)
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            text = choice.get("text") or ""
            ids = choice.get("token_ids")
            # Servers that tell token ids are believed; the others show a token by its text.
            count = len(ids) if ids is not None else int(bool(text))
            self.times.extend([now] * count)
            self.text.append(text)
            self.tokens.extend(tokens_of(choice))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    @staticmethod
    def decode(data: str) -> dict[str, Any]:
        """The object in an event.

        Raises:
            RequestFailed: the event is an error.
            ValueError: it is not JSON.
        """
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise RequestFailed("error in stream", f"the server said: {str(event)[:MAX_QUOTE]}")
        return event


def ids_of(value: Any) -> tuple[int, ...] | None:
    """Token ids a server told; None where it told none.

    Raises:
        TypeError: it told something else.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        raise TypeError("token ids that are not a list of numbers")
    return tuple(value)


def tokens_of(choice: Mapping[str, Any]) -> list[Token]:
    """Tokens with log-probabilities of one choice; none where none were asked.

    Raises:
        ValueError: the lists differ in length.
    """
    found = choice.get("logprobs") or {}
    return [
        Token(text, offset, None if value is None else float(value))
        for text, offset, value in zip(
            found.get("tokens") or (),
            found.get("text_offset") or (),
            found.get("token_logprobs") or (),
            strict=True,
        )
    ]
