"""Words and numbers for pages: model output made harmless, figures made readable. Pure."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

#: Characters of one model output that are shown; the rest is counted.
SHOWN = 600

#: Status or verdict -> sign and CSS class. The sign is what is left without colour.
SIGNS = {
    "PASS": ("\N{CHECK MARK}", "pass"),
    "GO": ("\N{CHECK MARK}", "pass"),
    "WARN": ("!", "open"),
    "FAIL": ("\N{MULTIPLICATION X}", "fail"),
    "NO-GO": ("\N{MULTIPLICATION X}", "fail"),
    "INCONCLUSIVE": ("?", "open"),
    "MISSING": ("\N{EMPTY SET}", "open"),
    "NOT COMPARABLE": ("\N{NOT EQUAL TO}", "open"),
    "ANOMALOUS": ("!!", "open"),
    "NOT TRIPPED": ("\N{MIDDLE DOT}", "open"),
}


def badge(status: str) -> Markup:
    """A status as sign and word."""
    sign, css = SIGNS.get(status, ("", "open"))
    return Markup('<span class="badge {}">{} {}</span>').format(css, sign, status)


def _hidden(character: str) -> bool:
    # Control, format (bidirectional overrides, zero width), surrogate, private, unassigned; and the
    # line and paragraph separators, which a browser draws as nothing.
    return character not in "\n\t" and (
        unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp")
    )


def visible(text: str, shown: int = SHOWN) -> Markup:
    """Text a model wrote, escaped, cut after `shown` characters, hidden characters spelled out.

    What would move the cursor, turn the reading direction or draw nothing is shown as its code
    point. The rest of a long text is counted, not shown.
    """
    if not text:
        return Markup('<span class="ctl">empty</span>')
    parts: list[Markup] = []
    plain: list[str] = []
    for character in text[:shown]:
        if _hidden(character):
            parts.append(escape("".join(plain)))
            plain.clear()
            parts.append(Markup('<span class="ctl">U+{:04X}</span>').format(ord(character)))
        else:
            plain.append(character)
    parts.append(escape("".join(plain)))
    if len(text) > shown:
        parts.append(
            Markup('<span class="ctl">\N{HORIZONTAL ELLIPSIS} {:,} more characters</span>').format(
                len(text) - shown
            )
        )
    return Markup('<bdi class="text">{}</bdi>').format(Markup("").join(parts))


def plain(text: str, shown: int = SHOWN) -> str:
    """The same for a terminal or a log: cut, and hidden characters spelled out."""
    if not text:
        return "(empty)"
    kept = "".join(f"<U+{ord(c):04X}>" if _hidden(c) else c for c in text[:shown])
    if len(text) > shown:
        kept += f"\N{HORIZONTAL ELLIPSIS} {len(text) - shown:,} more characters"
    return kept


def calls_apart(output: str) -> str:
    """An answer that calls functions, as ``name(arg=value, ...)`` in lines; others as they are."""
    try:
        answer = json.loads(output) if output.startswith('{"content":') else None
        if not isinstance(answer, dict) or answer.keys() != {"content", "tool_calls"}:
            return output
        content, calls = answer["content"], answer["tool_calls"]
        lines = [_call(call["name"], call["arguments"]) for call in calls]
    except (ValueError, KeyError, TypeError, RecursionError):
        return output
    if content is not None and not isinstance(content, str):
        return output
    said = [content] if content else []
    return "\n".join([*said, *lines]) or "(no call)"


def _call(name: str, arguments: str) -> str:
    """One call. Arguments that are no JSON object, or hold a key twice, stay as they were sent."""
    try:
        found = json.loads(arguments, object_pairs_hook=_once)
        if isinstance(found, dict):
            values = (json.dumps(value, ensure_ascii=False) for value in found.values())
            arguments = ", ".join(map("{}={}".format, map(_word, found), values))
    except (ValueError, RecursionError):
        pass
    return f"{_word(name)}({arguments})"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _word(name: str) -> str:
    """A name as it is; in quotes where it could be taken for more than one."""
    return name if re.fullmatch(r"[\w.-]+", name) else json.dumps(name, ensure_ascii=False)


def targets_apart(target: str) -> str:
    """Expected calls in the form of `calls_apart`; any other target as it is."""
    try:
        calls = json.loads(target) if target.startswith('[{"') else ()
        lines = [
            _call(call["name"], json.dumps(call["arguments"], ensure_ascii=False))
            for call in calls
            if call.keys() == {"name", "arguments"}
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return target
    return "\n".join(lines) if calls and len(lines) == len(calls) else target


def flag_word(flag: str) -> str:
    """The name of a flag as people write it."""
    return flag.replace("_", " ").replace("json", "JSON").replace("sql", "SQL")


def flag_words(flags: Mapping[str, int], of: int = 1) -> list[str]:
    """Each flag, with how many of the answers have it where there are several."""
    return [flag_word(f) + (f" ({n} of {of})" if of > 1 else "") for f, n in flags.items()]


def short(digest: str | None) -> Markup:
    """A digest cut to twelve characters, whole in its tooltip."""
    if not digest:
        return Markup('<span class="muted">none</span>')
    return Markup('<code class="digest" title="{}">{}</code>').format(digest, digest[:12])


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal."""
    return "\N{EN DASH}" if value is None else f"{100 * value:.1f} %"


def signed_points(value: float | None) -> str:
    """A difference in percentage points, always with its sign."""
    if value is None:
        return "\N{EN DASH}"
    if not round(100 * value, 1):
        return "0.0"
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def number(value: float | None) -> str:
    """A figure with four significant digits, never in exponent notation where people look."""
    if value is None:
        return "\N{EN DASH}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


def p_value(value: float) -> str:
    """A probability, or that it is below one in a thousand."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def megabytes(value: int | None) -> str:
    """Bytes as MB (10^6) or GB (10^9)."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value / 1e9:,.2f} GB" if value >= 10**9 else f"{value / 1e6:,.1f} MB"


def seconds(value: float) -> str:
    """A duration, in the unit a person would say it in."""
    if value < 90:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 5400 else f"{value / 3600:.1f} h"
