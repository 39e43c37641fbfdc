"""The sealed calibration rows in a job: token ids as they were sealed, never text again."""

from __future__ import annotations

import json
from pathlib import Path


def read_tokens(path: Path) -> list[list[int]]:
    """The rows of a sealed set, one JSON list of token ids a line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def block_length(rows: list[list[int]], limit: int) -> int:
    """Tokens in a block: no shorter than the longest row, and with the fewest tokens left over.

    Args:
        rows: the sealed rows.
        limit: most positions the model has.
    """
    longest = max(map(len, rows))
    total = sum(map(len, rows))
    last = max(longest, min(limit, 2 * longest, total))
    return min(range(longest, last + 1), key=lambda length: (total % length, length))
