"""From rendered rows to samples: one row each, cut; or one after another, packed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workbench.calibration_records import CalibrationPart, CalibrationRow
from workbench.digest import canonical_json, content_id, sha256_bytes


class Rendered(NamedTuple):
    """A row as the model reads it.

    Attributes:
        row: its id.
        text_digest: of the rendered text.
        ids: its tokens, at least one.
    """

    row: str
    text_digest: str
    ids: list[int]


class Sample(NamedTuple):
    """A sample of the set.

    Attributes:
        sealed: what is recorded of it.
        ids: its tokens.
        lengths: of the rows that begin in it, before cutting.
    """

    sealed: CalibrationRow
    ids: list[int]
    lengths: tuple[int, ...]


def cut(rows: Iterator[Rendered], wanted: int, max_tokens: int) -> list[Sample]:
    """One row a sample, its first `max_tokens` tokens.

    Returns:
        As many as are wanted, or fewer where the rows run out.
    """
    samples: list[Sample] = []
    while len(samples) < wanted and (rendered := next(rows, None)):
        kept = rendered.ids[:max_tokens]
        sealed = CalibrationRow(
            row=rendered.row,
            text_digest=rendered.text_digest,
            token_digest=token_digest(kept),
            tokens=len(kept),
            truncated=len(kept) < len(rendered.ids),
        )
        samples.append(Sample(sealed, kept, (len(rendered.ids),)))
    return samples


def pack(
    rows: Iterator[Rendered], wanted: int, max_tokens: int, separator: int, before: int = 0
) -> list[Sample]:
    """Rows one after another, cut into samples of exactly `max_tokens`.

    Args:
        rows: in the order they are drawn.
        wanted: how many samples.
        max_tokens: length of each.
        separator: token between two rows; not doubled after a row that ends with it.
        before: how many samples there are already: ids are ``pack-<before + 1>`` and on.

    Returns:
        As many as are wanted, or fewer where the rows run out.
    """
    samples: list[Sample] = []
    ids: list[int] = []
    parts: list[CalibrationPart] = []
    lengths: list[int] = []
    while len(samples) < wanted and (rendered := next(rows, None)):
        own = len(rendered.ids)
        stream = rendered.ids if rendered.ids[-1] == separator else [*rendered.ids, separator]
        lengths.append(own)
        start = 0
        while start < len(stream) and len(samples) < wanted:
            piece = stream[start : start + max_tokens - len(ids)]
            if start < own:  # not the separator alone
                parts.append(
                    CalibrationPart(
                        row=rendered.row,
                        text_digest=rendered.text_digest,
                        start=start,
                        tokens=min(len(piece), own - start),
                    )
                )
            ids += piece
            start += len(piece)
            if len(ids) == max_tokens:
                sealed = CalibrationRow(
                    row=f"pack-{before + len(samples) + 1}",
                    text_digest=content_id([part.text_digest for part in parts]),
                    token_digest=token_digest(ids),
                    tokens=len(ids),
                    truncated=start < own or parts[0].start > 0,
                    parts=tuple(parts),
                )
                samples.append(Sample(sealed, ids, tuple(lengths)))
                ids, parts, lengths = [], [], []
    return samples


def token_digest(ids: list[int]) -> str:
    """sha256 of the canonical JSON of token ids, what a sealed set is checked by."""
    return sha256_bytes(canonical_json(ids))
