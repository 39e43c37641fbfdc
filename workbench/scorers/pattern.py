r"""The scorer of a regular expression: what it finds in the output equals a target. Pure.

With `pattern`, the last match that is not blank is read (its first group, where it has groups) and
compared with the targets after `normalize`; no such match is `unreadable`. Without one, each target
is a pattern and one that is found anywhere is enough: write ``^...$`` for the whole output.

What a pattern may hold is said in `workbench.patterns`. White space at both ends of an output is
left out, as by `exact`, so that ``$`` stands behind its last word. Only the last 10,000 characters
are searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from workbench.patterns import Refused, compiled, whole_characters
from workbench.scorers.base import Grade, kind, same, shown
from workbench.scorers.text import texts
from workbench.suite_spec import RegexScorer, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    import re2

    from workbench.suites import Suite

_MOST_SEARCHED = 10_000
#: One search is linear, the search for the last match starts again behind each: instructions times
#: characters, at about 1e8 a second where RE2 has to give up its automaton.
_MOST_STEPS = 300_000_000


class _TooMuchWork(Exception):
    """The output needs more steps than a search may take."""


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
    end = whole_characters(output.strip()[-_MOST_SEARCHED:])
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


def _compiled(pattern: str, ignore_case: bool) -> _Pattern:
    return _Pattern(compiled(pattern, ignore_case))


def _complaint(pattern: str, ignore_case: bool) -> str | None:
    try:
        compiled(pattern, ignore_case)
    except Refused as bad:
        what, fix = bad.args
        return f"cannot be used as a pattern: {what}\n{fix}"
    return None
