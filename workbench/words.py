"""How the words of others are shown in a message: no control codes, no end of text. Pure.

An id, a key or a column's name comes from a file. Shown as it is, it could move a terminal's
cursor, colour what stands below, or fill the screen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

#: Characters of one value in a message.
MOST_SHOWN = 200
#: Characters of one part of a message: what, where or fix.
MOST_SAID = 20_000
_NAMED = 20


def plain(text: str) -> str:
    r"""A text as a terminal may show it: what is not printable is written as its escape.

    Line ends and tabs stay, and spaces of every width. A control code becomes ``\x1b``, half a
    character ``\ud800``.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_plain(c) else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    """A text of about `most` characters: its beginning, how many were left out, and its end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end]}… ({len(text) - most:,} more characters) …{text[-end:]}"


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """A value as Python writes it, shortened."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]!r}… ({len(value) - most:,} more characters)"
    return shortened(repr(value), most)


def listed(names: Iterable[str], most: int = _NAMED) -> str:
    """Names with commas between them: the first `most`, each shortened, and how many are left."""
    every = list(names)
    said = ", ".join(shortened(name, 64) for name in every[:most])
    return said if len(every) <= most else f"{said} and {len(every) - most:,} more"


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
