"""A sealed calibration set in tables and one small picture, for card and report. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from markupsafe import Markup

from workbench.calibration_records import SAID
from workbench.records import Calibration
from workbench.report import text

#: Pairs of row and sample that are shown; `calibration.json` has more.
SHOWN_PAIRS = 20
_WIDTH, _HEIGHT, _FOOT, _HEAD = 46, 70, 16, 14

Rows = list[list[Any]]


def tables(record: Calibration) -> list[tuple[str, Rows]]:
    """Each table with its heading: lengths, strata, what was dropped, overlap with the suites.

    The first row of a table is its head; a table that would say nothing is left out.
    """
    found = [
        ("Token lengths", _lengths(record)),
        ("Strata", _strata(record)),
        ("Rows of the source that were dropped", _dropped(record)),
        ("Overlap with the evaluation suites", _overlap(record)),
        ("Samples that stand in the calibration source", _pairs(record)),
    ]
    return [(title, rows) for title, rows in found if len(rows) > 1]


def histogram(record: Calibration) -> Markup:
    """Samples by token length as a picture: bars in the text's own colour, each with its count."""
    bins = _bins(record)
    most = max((sealed for _, _, sealed in bins), default=0)
    if not most:
        return Markup("")
    bars = []
    for i, (label, _, count) in enumerate(bins):
        tall = round(_HEIGHT * count / most, 1)
        middle, top = i * _WIDTH + _WIDTH // 2, round(_HEAD + _HEIGHT - tall, 1)
        bars.append(
            Markup(
                '<rect x="{}" y="{}" width="{}" height="{}" opacity="0.55"/>'
                '<text x="{}" y="{}">{}</text><text x="{}" y="{}">{}</text>'
            ).format(
                i * _WIDTH + 3, top, _WIDTH - 6, tall,
                middle, round(top - 3, 1), count or "",
                middle, _HEAD + _HEIGHT + 12, label,
            )
        )  # fmt: skip
    said = ", ".join(f"{label} tokens: {sealed}" for label, _, sealed in bins)
    return Markup(
        '<svg role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}" '
        'fill="currentColor" font-size="9" text-anchor="middle" font-family="sans-serif">{}</svg>'
    ).format(
        f"Samples by token length. {said}", *(2 * (len(bins) * _WIDTH, _HEAD + _HEIGHT + _FOOT)),
        Markup("").join(bars),
    )  # fmt: skip


def _bins(record: Calibration) -> list[tuple[str, int, int]]:
    """Label, rows as rendered and samples as sealed of each bin, empty ends left out."""
    edges = record.lengths.edges
    labels = [f"{low}-{high - 1}" for low, high in pairwise(edges)]
    both = zip(record.lengths.rendered, record.lengths.sealed, strict=True)
    bins = [
        (label, *counts) for label, counts in zip([*labels, f"{edges[-1]}+"], both, strict=True)
    ]
    full = [i for i, (_, rendered, sealed) in enumerate(bins) if rendered or sealed]
    return bins[full[0] : full[-1] + 1] if full else []


def _lengths(record: Calibration) -> Rows:
    return [
        ["tokens", "rows before cutting", "samples"],
        *([label, rendered, sealed] for label, rendered, sealed in _bins(record)),
    ]


def _strata(record: Calibration) -> Rows:
    strata = record.strata
    if strata is None:
        return []
    return [
        [strata.by, "usable rows", "quota", "samples"],
        *(
            [text.visible(k), s.rows, text.percent(s.quota), s.samples]
            for k, s in strata.values.items()
        ),
    ]


def _dropped(record: Calibration) -> Rows:
    rows: Rows = [["reason", "rows", "which"]]
    for reason, drop in record.dropped.items():
        more = drop.count - len(drop.rows)
        listed = ", ".join(drop.rows) + (f" and {more} more" if more else "")
        rows.append([reason, drop.count, text.visible(listed)])
    return rows


def _overlap(record: Calibration) -> Rows:
    found = record.contamination
    if found is None:
        return []
    return [
        ["suite", "samples", *SAID.values(), "too short to check", "share", "accepted"],
        *(
            [
                o.suite,
                o.samples,
                *(o.matched.get(kind, 0) for kind in SAID),
                o.short,
                text.percent(o.share),
                text.percent(found.limit),
            ]
            for o in found.suites
        ),
    ]


def _pairs(record: Calibration) -> Rows:
    found = record.contamination
    rows: Rows = [["suite", "sample", "row", "match", "text"]]
    for overlap in found.suites if found else ():
        rows += [
            [
                overlap.suite,
                text.visible(p.sample),
                text.visible(p.row),
                SAID[p.kind],
                text.visible(p.text),
            ]
            for p in overlap.pairs
        ]
    return rows[: SHOWN_PAIRS + 1]
