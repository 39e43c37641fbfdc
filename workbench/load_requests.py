"""What one request shows: its times, its tokens, whether it counts, whether it is in time. Pure.

Each measure gives the request's values in milliseconds (tokens/s for `user`), or in words why it
has none. Definitions stand in `workbench.load_stats`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from workbench.traffic import Ask, Outcome, Status

_NO_TOKEN = "no token"
_ONE_TOKEN = "one token"
#: Why an answer has no gap between its tokens: they came in one read.
AT_ONCE = "all tokens at once"

#: Values, or in words why there is none.
Values = list[float] | str


def output_tokens(outcome: Outcome) -> int:
    """Tokens of the answer, by the server's usage where it gives one, else chunks with content."""
    usage = outcome.output_tokens
    return len(outcome.token_times) if usage is None else usage


def ended(outcome: Outcome) -> float | None:
    """When a request left the system; None: it was in it to the end."""
    if outcome.last_byte is not None:
        return outcome.last_byte
    if outcome.status in ("timeout", "unfinished"):
        return None
    if outcome.token_times:
        return outcome.token_times[-1]
    return outcome.due if outcome.sent is None else outcome.sent


def over(outcome: Outcome) -> float:
    """When the client was done with a request, whatever became of it: the last that is known."""
    known = (outcome.sent, *outcome.token_times[-1:], outcome.last_byte, outcome.over)
    return max((at for at in known if at is not None), default=outcome.due)


def standing(ask: Ask, outcome: Outcome) -> Status:
    """The status a request counts under: the client's, unless its answer is not what was asked.

    A forced answer with fewer tokens than it had to use is short, one that was free to end and was
    cut off at its limit is truncated.
    """
    if outcome.status != "completed":
        return outcome.status
    if ask.ignore_eos:
        usage = outcome.output_tokens
        return "short" if usage is not None and usage < ask.max_tokens else "completed"
    return "truncated" if outcome.finish_reason == "length" else "completed"


def missed_targets(outcome: Outcome, status: str, limits: Mapping[str, float]) -> list[str]:
    """Why a request is not good: its status, or each target it missed; empty: it is good.

    A request with one token has no TPOT and no gap, and meets those targets; one whose tokens all
    came at once has gaps nobody saw, and does not.
    """
    if status != "completed":
        return [status]
    missed = []
    for name, limit in limits.items():
        values = _MEASURES[name](outcome)
        if isinstance(values, str):
            if values != _ONE_TOKEN:
                missed.append(f"{name}: {values}")
        elif max(values) > limit:
            missed.append(name)
    return missed


def ttft(outcome: Outcome) -> Values:
    """Sent to first token."""
    return _NO_TOKEN if outcome.ttft is None else [1000 * outcome.ttft]


def e2e(outcome: Outcome) -> Values:
    """Sent to last token."""
    return _NO_TOKEN if outcome.seconds is None else [1000 * outcome.seconds]


def queued(outcome: Outcome) -> Values:
    """Due to sent: the client's own delay."""
    return "never sent" if outcome.queued is None else [1000 * outcome.queued]


def _gaps_of(outcome: Outcome) -> str | None:
    """Why a request has no time between tokens; None: it has."""
    if not outcome.token_times:
        return _NO_TOKEN
    if output_tokens(outcome) < 2:
        return _ONE_TOKEN
    # What came in one read has no time between: 0 ms would be a figure nobody measured.
    return AT_ONCE if outcome.token_times[0] == outcome.token_times[-1] else None


def tpot(outcome: Outcome) -> Values:
    """Mean time per token after the first."""
    times = outcome.token_times
    return _gaps_of(outcome) or [1000 * (times[-1] - times[0]) / (output_tokens(outcome) - 1)]


def itl(outcome: Outcome) -> Values:
    """Each gap between successive chunks."""
    none = _gaps_of(outcome)
    return none or [1000 * (b - a) for a, b in pairwise(outcome.token_times)]


def user(outcome: Outcome) -> Values:
    """Tokens/s after the first token."""
    times = outcome.token_times
    return _gaps_of(outcome) or [(output_tokens(outcome) - 1) / (times[-1] - times[0])]


_MEASURES: dict[str, Callable[[Outcome], Values]] = {
    "ttft_ms": ttft,
    "tpot_ms": tpot,
    "itl_ms": itl,
    "e2e_ms": e2e,
}
