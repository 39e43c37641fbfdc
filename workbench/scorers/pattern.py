"""The scorer of a regular expression: what it finds in the output equals a target. Pure.

With `pattern`, the last match that is not blank is read (its first group, where it has groups) and
compared with the targets after `normalize`; no such match is `unreadable`. Without one, each target
is a pattern and one that is found anywhere is enough: write ``^...$`` for the whole output.

Only the last 10,000 characters of an output are searched. How a pattern is matched, and what it may
not hold, is `workbench.scorers.linear`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from workbench.scorers.base import Grade, kind, same, shown
from workbench.scorers.linear import Pattern, TooMuchWork
from workbench.scorers.text import texts
from workbench.suite_spec import RegexScorer, Sample

if TYPE_CHECKING:
    from workbench.suites import Suite

_MOST_SEARCHED = 10_000


def regex(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where the pattern finds a target in the output, or a target that is a pattern is found."""
    options = _options(suite)
    end = output[-_MOST_SEARCHED:]
    try:
        if options.pattern is None:
            patterns = [_compiled(text, options.ignore_case) for text in texts(sample)]
            return Grade(float(any(pattern.found_in(end) for pattern in patterns)))
        found = _compiled(options.pattern, options.ignore_case).last(end)
    except TooMuchWork as bad:
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
def _compiled(pattern: str, ignore_case: bool) -> Pattern:
    return Pattern(pattern, re.IGNORECASE if ignore_case else re.NOFLAG)


def _complaint(pattern: str, ignore_case: bool) -> str | None:
    try:
        _compiled(pattern, ignore_case)
    except ValueError as bad:
        return f"cannot be used as a pattern: {bad}"
    return None
