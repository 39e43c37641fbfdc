"""What a checkpoint's model card and licence files say: the licence, and the original."""

from __future__ import annotations

import re
from pathlib import Path


def _front_matter(path: Path) -> str:
    """The YAML front matter of README.md as text; empty where there is none."""
    card = path / "README.md"
    if not card.is_file():
        return ""
    front = re.match(r"---\s*\n(.*?)\n---", card.read_text("utf-8", "replace"), re.DOTALL)
    return front[1] if front else ""


def licence(path: Path) -> str | None:
    """`license:` of the card, else that a licence file is there."""
    found = re.search(r"^license:\s*(\S+)", _front_matter(path), re.MULTILINE)
    if found:
        return found[1]
    return next((f"see {p.name}" for p in sorted(path.glob("LICENSE*"))), None)


def original(path: Path) -> str | None:
    """`base_model:` of the card: what a quantized checkpoint was made from."""
    key = r"^base_model:[ \t]*(?:\n[ \t]*-[ \t]*)?(\S+)"
    found = re.search(key, _front_matter(path), re.MULTILINE)
    return found[1].strip("'\"") if found else None
