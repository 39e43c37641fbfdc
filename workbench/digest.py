"""Canonical JSON, file and tree digests, content ids. Pure but for reading the files named.

A content id is the sha256 of the canonical JSON of everything a step's result depends on: its
specification, the ids and digests of its inputs, and the versions of the tools that do it. Equal
id means the work is already done.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Return UTF-8 JSON with sorted keys, no spaces, and no NaN: equal values, equal bytes.

    Raises:
        ValueError: a float is NaN or infinite; such a value has no canonical form.
        TypeError: the value holds something JSON has no word for.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    """Hex sha256 of the UTF-8 bytes of a text."""
    return sha256_bytes(text.encode("utf-8", "surrogatepass"))


def content_id(value: Any) -> str:
    """Hex sha256 of the canonical JSON of a value."""
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def tree_digests(root: Path) -> dict[str, str]:
    """Map each regular file under ``root`` (POSIX relative path) to its sha256, sorted by path."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return {p.relative_to(root).as_posix(): sha256_file(p) for p in files}


def is_finite(value: float) -> bool:
    """True where a number can be recorded and compared."""
    return math.isfinite(value)
