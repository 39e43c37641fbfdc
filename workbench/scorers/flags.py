"""What can be seen of an output without knowing what was asked: empty, cut off, going in circles.

Pure. Repetition is the way a model that was quantized too hard fails, and a score cannot tell it
from a wrong answer. The rule, in two halves, errs on the side of silence:

- the output *ends* in a piece of up to 1000 characters four times or more in a row (the last time
  maybe cut off), over 48 columns or more, a Chinese character counting two;
- or one line or sentence of 16 columns or more stands in it four times or more and makes up at
  least half of it, whatever stands between.

So a list whose entries differ, a table, "no, no, no, no" and a row of zeros inside a JSON array are
not repetitive.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from workbench.evaluation_records import Flag

_TIMES = 4
_TAIL = 4000
_LONGEST_PIECE = _TAIL // _TIMES
_LEAST_TAIL = 48
_LEAST_SENTENCE = 16
_MOST_READ = 100_000
_SENTENCE = re.compile(r"[^\n.!?\u3002\uff01\uff1f\uff1b]+")


def flags_of(output: str, finish_reason: str | None) -> tuple[Flag, ...]:
    """The flags of any output, whatever the scorer.

    Args:
        output: as the row keeps it.
        finish_reason: as the server said; ``length`` is `truncated`.
    """
    found: list[Flag] = []
    if not output.strip():
        found.append("empty")
    if finish_reason == "length":
        found.append("truncated")
    if is_repetitive(output):
        found.append("repetitive")
    return tuple(found)


def is_repetitive(text: str) -> bool:
    """True where a text goes in circles; the rule is the module's."""
    if len(text) < _LEAST_TAIL // 2:
        return False
    return _ends_in_circles(text) or _ends_in_circles(text.rstrip()) or _says_one_thing(text)


def _ends_in_circles(text: str) -> bool:
    """The first half of the rule.

    Read from its end, a text of period p agrees with itself p characters on; how far, for every p
    at once, is the Z-function (Gusfield 1997).
    """
    end = text[: -_TAIL - 1 : -1]
    for period, agrees in enumerate(_z(end)[1 : _LONGEST_PIECE + 1], 1):
        length = period + agrees
        if length >= _TIMES * period and _columns(end[:length]) >= _LEAST_TAIL:
            return True
    return False


def _says_one_thing(text: str) -> bool:
    """The second half of the rule."""
    counts = Counter(s.strip() for s in _SENTENCE.findall(text[:_MOST_READ]))
    total = sum(len(s) * n for s, n in counts.items())
    return any(
        n >= _TIMES and 2 * n * len(s) >= total and _columns(s) >= _LEAST_SENTENCE
        for s, n in counts.items()
    )


def _z(text: str) -> list[int]:
    """For each place, how many characters from there on equal the text's beginning."""
    found = [0] * len(text)
    left = right = 0
    for i in range(1, len(text)):
        k = min(right - i, found[i - left]) if i < right else 0
        while i + k < len(text) and text[k] == text[i + k]:
            k += 1
        found[i] = k
        if i + k > right:
            left, right = i, i + k
    return found


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
