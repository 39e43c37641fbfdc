"""What a load sends and what came of each request: the contract between workloads, client and sums.

A workload makes `Ask`s, the load client sends them and hands out one `Outcome` each, and the sums
are made of outcomes alone. All times are seconds of one monotonic clock, 0 when the load began.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: What became of a request. Only ``completed`` ones count in latencies.
Status = Literal["completed", "short", "truncated", "failed", "refused", "timeout", "unfinished"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send.

    Attributes:
        number: its place in the load, from 0.
        prompt: token ids.
        max_tokens: tokens to answer with; exactly so many where `ignore_eos`.
        ignore_eos: answer with all of `max_tokens`, so that variants do equal work.
        at: when it is due, seconds after the load began; None: when a worker is free (closed loop).
        sample: id of the suite's sample it asks, where the prompt came from a suite.
        schema: JSON schema the answer is guided by; None: free.
    """

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool = True
    at: float | None = None
    sample: str | None = None
    schema: str | None = None


@dataclass(slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        number: of the `Ask`.
        due: when it should have been sent: `Ask.at`, or in a closed loop when its worker was free.
        sent: just before its last byte was handed to the system; None: never sent.
        first_byte: when the first byte of the answer was read.
        token_times: when each chunk with content was read; a chunk without content is no token.
        last_byte: when the answer's end was read.
        status: completed; short (ended before `max_tokens` though it had to use them all);
            truncated (stopped at `max_tokens` though it might have ended before); failed (broken
            connection, malformed stream, HTTP error); refused (429 or 503); timeout; unfinished
            (the load ended before it did).
        reason: a few words, equal for equal causes; empty when completed.
        finish_reason: as the server said.
        prompt_tokens: as the server counted; None: it did not say.
        output_tokens: as the server counted; None: it did not say.
        text: the answer; kept only where the load asks for it.
        detail: what a server or the system said about a failure, at most 400 characters.
        over: when the client was done with it, whatever became of it: a timeout when it was given
            up, what a limit of the load cut off then. None: not told.
    """

    number: int
    due: float
    sent: float | None = None
    first_byte: float | None = None
    token_times: list[float] = field(default_factory=list)
    last_byte: float | None = None
    status: Status = "unfinished"
    reason: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    detail: str = ""
    over: float | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds from sent to the first token; None: no token came."""
        if self.sent is None or not self.token_times:
            return None
        return self.token_times[0] - self.sent

    @property
    def seconds(self) -> float | None:
        """Seconds from sent to the last token; None: no token came."""
        if self.sent is None or not self.token_times:
            return None
        return self.token_times[-1] - self.sent

    @property
    def queued(self) -> float | None:
        """Seconds it waited in the client: sent - due. Large where the client cannot keep up."""
        return None if self.sent is None else self.sent - self.due

    @property
    def uncounted(self) -> int | None:
        """Tokens by the server's usage less chunks with content; None: it told no usage.

        Above 0 where a chunk carries several tokens or a token shows no text, below 0 where the
        server counts fewer than it sent.
        """
        return None if self.output_tokens is None else self.output_tokens - len(self.token_times)
