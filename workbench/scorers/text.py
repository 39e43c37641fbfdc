"""Scorers of a text against a target text or a list of accepted ones. Pure; each gives 0 or 1."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.scorers.base import Grade, kind
from workbench.scorers.normal import normalize
from workbench.suite_spec import ContainsScorer, Sample

if TYPE_CHECKING:
    from workbench.suites import Suite


def exact(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where the output is a target, white space at both ends apart."""
    return Grade(float(output.strip() in {text.strip() for text in texts(sample)}))


def normalized(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where output and a target are equal after `normalize`."""
    return Grade(float(normalize(output) in {normalize(text) for text in texts(sample)}))


def contains(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where a target (with `all`: every target) stands in the output as whole words.

    Both after `normalize`. Whole words, because ``Au`` is not an answer found in ``Australia``, nor
    ``0`` in ``100``. Scripts written without spaces have no word borders and need none.
    """
    options = suite.spec.scorer
    assert isinstance(options, ContainsScorer)
    said = normalize(output)
    found = [stands_in(normalize(text), said) for text in texts(sample)]
    return Grade(float(all(found) if options.all else any(found)))


def choice(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where the choice is the target, character for character."""
    return Grade(float(output == sample.target))


def texts(sample: Sample) -> Sequence[str]:
    """The target as a list of texts, one of which is enough."""
    return sample.target if isinstance(sample.target, list) else [sample.target]


def stands_in(needle: str, text: str) -> bool:
    """True where a normalized text stands in another as whole words."""
    start = text.find(needle)
    while needle and start >= 0:
        end = start + len(needle)
        if _border(text[start - 1 : start], needle[0]) and _border(needle[-1], text[end : end + 1]):
            return True
        start = text.find(needle, start + 1)
    return False


def check_texts(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target that is a text or a list of texts, or None."""
    target = sample.target
    found = target if isinstance(target, list) else [target]
    if not found or not all(isinstance(text, str) for text in found):
        return f"'target' must be a text or a list of texts, not {kind(target)}"
    for text in found:
        kept = text.strip() if suite.spec.scorer.name == "exact" else normalize(text)
        if not kept:
            return f"'target' has nothing to compare with in {text!r}"
    return None


def check_choices(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a sample's choices, or None."""
    choices = sample.choices
    if not choices or len(choices) < 2:
        return "'choices' must list at least two texts"
    if not all(choices):
        return "'choices' holds an empty text"
    twice = [text for text in choices if choices.count(text) > 1]
    if twice:
        return f"'choices' lists {twice[0]!r} twice"
    if sample.target not in choices:
        return f"'target' {sample.target!r} is not one of 'choices' {choices}"
    return None


def _border(left: str, right: str) -> bool:
    """True where a word may end between two neighbours; either may be empty."""
    if not left.strip() or not right.strip():
        return True
    return unicodedata.category(left) == "Lo" or unicodedata.category(right) == "Lo"
