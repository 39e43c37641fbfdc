"""Folding a short answer: what does not matter when two of them are compared. Pure."""

from __future__ import annotations

import re
import unicodedata

_ARTICLES = frozenset({"a", "an", "the"})
_DIGIT_GROUP = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MINUS = "-\u2212"


def normalize(text: str) -> str:
    """Fold what does not matter in a short answer: case, width, accents, articles, punctuation.

    A comma between groups of three digits goes (``1,000`` is ``1000``); a point inside a number
    and a minus sign before one stay. Applying it twice changes nothing.
    """
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(c for c in folded if not unicodedata.combining(c))
    plain = _DIGIT_GROUP.sub("", plain)
    kept = [_kept(plain, i) for i in range(len(plain))]
    words = [word for word in "".join(kept).split() if word not in _ARTICLES]
    return " ".join(words)


def _kept(text: str, i: int) -> str:
    """What one character of a text becomes."""
    here, before, after = text[i], text[i - 1 : i], text[i + 1 : i + 2]
    if here.isalnum() or (here == "." and before.isdigit() and after.isdigit()):
        return here
    return "-" if here in _MINUS and after.isdigit() and not before.isalnum() else " "
