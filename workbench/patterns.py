r"""Regular expressions of what somebody else wrote, by RE2. Pure.

Patterns are RE2's (https://github.com/google/re2/wiki/Syntax), which never backtracks. Python's
`re` does and cannot be stopped: ``(a+)+b`` on forty times ``a`` runs for hours, and a model that
goes in circles writes just that. The price is what no such matcher can do, back references and
look-around, which are refused. Beside that:

- ``\d``, ``\w``, ``\s`` and ``\b`` are of ASCII: ``\p{Nd}``, ``\p{L}`` and ``\p{Han}`` are not;
- ``^`` and ``$`` are the ends of the whole text, or of its lines after ``(?m)``;
- of the matches that begin at one place, alternatives and repeats prefer one as in Perl and `re`.
"""

from __future__ import annotations

import re
from functools import lru_cache

import re2

#: What `re` reads as a count, and RE2 without a word as these characters.
_NO_COUNT = re.compile(r"(?<!\\)(?:\\\\)*(\{(?:,(\d+)|\d{5,}(?:,\d*)?)\})")
_SURROUND = "match what stands around it, too, and put what counts into a group: 'a=(b)'"
_LESS = "repeat less often"
#: How RE2's complaint begins -> what it is about, and what to do.
_MEANINGS = (
    (r"invalid perl operator: \(\?<?[=!]", "look-around", _SURROUND),
    (r"invalid perl operator: \(\?P", "a back reference", "write out what may stand there"),
    (r"invalid escape sequence: \\[1-9]", "a back reference", "write out what may stand there"),
    (r"invalid perl operator: \(\?>", "an atomic group", "write '(?:...)'"),
    (r"invalid perl operator: \(\?\(", "a condition", "write both ways out: '(?:a...|b...)'"),
    (r"invalid escape sequence: \\Z", r"'\Z'", r"write '$' or '\z'"),
    (r"invalid escape sequence: \\[uUN]", "a character by code", r"write it, or '\x{4e00}'"),
    (r"invalid repetition size", "repeats that come to more than 1000", _LESS),
    (r"pattern too large", "a pattern of that size", _LESS),
    (r"bad repetition operator", "a repeat of a repeat", "one is enough, or group it: '(?:a*)+'"),
)


class Refused(ValueError):
    """A pattern RE2 does not take; `args` are what is wrong and the fix."""


@lru_cache(maxsize=256)
def compiled(pattern: str, ignore_case: bool = False) -> re2._Regexp:
    """A pattern, ready to search with.

    Raises:
        Refused: RE2 does not take it.
    """
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    count = _NO_COUNT.search(pattern)
    if count:
        fix = f"write {{0,{count[2]}}}" if count[2] else _LESS
        raise Refused(f"RE2 reads '{count[1]}' as these characters and not as a count", fix)
    try:
        return re2.compile(pattern, options)
    except UnicodeEncodeError:
        raise Refused("it holds half a character", "write the whole character") from None
    except re2.error as bad:
        said = bad.args[0]
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise Refused(*_meaning(text)) from None


def _meaning(said: str) -> tuple[str, str]:
    """What RE2 complains about, as (what, fix)."""
    for start, name, fix in _MEANINGS:
        if re.match(start, said):
            return f"RE2 does not take {name} ({said})", fix
    return said, "see https://github.com/google/re2/wiki/Syntax"


def whole_characters(text: str) -> str:
    """A text that UTF-8 can hold: half characters, which models do produce, become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
