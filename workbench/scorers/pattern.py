r"""The scorer of a regular expression: what it finds in the output equals a target. Pure.

With `pattern`, the last match that is not blank is read (its first group, where it has groups) and
compared with the targets after `normalize`; no such match is `unreadable`. Without one, each target
is a pattern and one that is found anywhere is enough: write ``^...$`` for the whole output.

Patterns are RE2's (https://github.com/google/re2/wiki/Syntax), which never backtracks. Python's
`re` does and cannot be stopped: ``(a+)+b`` on forty times ``a`` runs for hours, and a model that
goes in circles writes just that. The price is what no such matcher can do, back references and
look-around, which `suite check` refuses. Beside that:

- ``\d``, ``\w``, ``\s`` and ``\b`` are of ASCII: ``\p{Nd}``, ``\p{L}`` and ``\p{Han}`` are not;
- ``^`` and ``$`` are the ends of the whole text, or of its lines after ``(?m)``;
- of the matches that begin at one place, alternatives and repeats prefer one as in Perl and `re`.

White space at both ends of an output is left out, as by `exact`, so that ``$`` stands behind its
last word. Only the last 10,000 characters are searched.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import re2

from workbench.scorers.base import Grade, kind, same, shown
from workbench.scorers.text import texts
from workbench.suite_spec import RegexScorer, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workbench.suites import Suite

_MOST_SEARCHED = 10_000
#: One search is linear, the search for the last match starts again behind each: instructions times
#: characters, at about 1e8 a second where RE2 has to give up its automaton.
_MOST_STEPS = 300_000_000
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


class _TooMuchWork(Exception):
    """The output needs more steps than a search may take."""


class _Refused(ValueError):
    """A pattern RE2 does not take; `args` are what is wrong and the fix."""


class _Pattern(NamedTuple):
    """A compiled pattern, as RE2 has it."""

    compiled: re2._Regexp

    def found_in(self, text: str) -> bool:
        return self.compiled.search(text) is not None

    def last(self, text: str) -> str | None:
        """The first group (the whole match where it has none) of the last match not blank.

        Raises:
            _TooMuchWork: see the class.
        """
        found = None
        group = 1 if self.compiled.groups else 0
        for match in self._matches(text):
            said = match.group(group) or ""
            found = said if said.strip() else found
        return found

    def _matches(self, text: str) -> Iterator[re2._Match]:
        left = _MOST_STEPS
        for match in self.compiled.finditer(text):
            yield match
            left -= self.compiled.programsize * (len(text) - match.end())
            if left < 0:
                raise _TooMuchWork("the pattern needs too many steps on this output")


def regex(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where the pattern finds a target in the output, or a target that is a pattern is found."""
    options = _options(suite)
    end = _whole_characters(output.strip()[-_MOST_SEARCHED:])
    if options.pattern is None:
        patterns = [_compiled(text, options.ignore_case) for text in texts(sample)]
        return Grade(float(any(pattern.found_in(end) for pattern in patterns)))
    try:
        found = _compiled(options.pattern, options.ignore_case).last(end)
    except _TooMuchWork as bad:
        return Grade(0.0, ("unreadable",), {"why": str(bad)})
    if found is None:
        return Grade(0.0, ("unreadable",), {"why": "the pattern finds nothing"})
    right = any(same(text.strip(), found.strip()) for text in texts(sample))
    return Grade(float(right), (), {"read": shown(found)})


def check_pattern(suite: Suite) -> str | None:
    """What is wrong with the scorer's pattern, or None."""
    options = _options(suite)
    if options.pattern is None:
        return None
    complaint = _complaint(options.pattern, options.ignore_case)
    return f"'scorer.pattern' {complaint}" if complaint else None


def check_patterns(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target of `regex`, or None."""
    options, target = _options(suite), sample.target
    found = target if isinstance(target, list) else [target]
    if not found or not all(isinstance(text, str) for text in found):
        return f"'target' must be a text or a list of texts, not {kind(target)}"
    for text in found:
        if not text.strip():
            return f"'target' has nothing to compare with in {text!r}"
        complaint = None if options.pattern else _complaint(text, options.ignore_case)
        if complaint:
            return f"'target' {complaint}"
    return None


def _options(suite: Suite) -> RegexScorer:
    options = suite.spec.scorer
    assert isinstance(options, RegexScorer)
    return options


@lru_cache(maxsize=256)
def _compiled(pattern: str, ignore_case: bool) -> _Pattern:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    count = _NO_COUNT.search(pattern)
    if count:
        fix = f"write {{0,{count[2]}}}" if count[2] else _LESS
        raise _Refused(f"RE2 reads '{count[1]}' as these characters and not as a count", fix)
    try:
        return _Pattern(re2.compile(pattern, options))
    except UnicodeEncodeError:
        raise _Refused("it holds half a character", "write the whole character") from None
    except re2.error as bad:
        said = bad.args[0]
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise _Refused(*_meaning(text)) from None


def _meaning(said: str) -> tuple[str, str]:
    """What RE2 complains about, as (what, fix)."""
    for start, name, fix in _MEANINGS:
        if re.match(start, said):
            return f"RE2 does not take {name} ({said})", fix
    return said, "see https://github.com/google/re2/wiki/Syntax"


def _complaint(pattern: str, ignore_case: bool) -> str | None:
    try:
        _compiled(pattern, ignore_case)
    except _Refused as bad:
        what, fix = bad.args
        return f"cannot be used as a pattern: {what}\n{fix}"
    return None


def _whole_characters(text: str) -> str:
    """A text that UTF-8 can hold: half characters, which models do produce, become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
