"""One record as a small table, for the last line of a notebook cell. Pure; shows, never decides.

Styled inline, because a notebook has no style sheet of ours and an exported one must not fetch any.
Colours are those of the surrounding page, and no status relies on one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup, escape

from workbench.artifact_records import Artifact
from workbench.differences import Differences
from workbench.pooled import POOLED
from workbench.records import (
    Calibration,
    Check,
    Choice,
    Divergence,
    Evaluation,
    Gate,
    Lane,
    Manifest,
    Profile,
    Record,
)
from workbench.report import calibration, divergence, loads, sweep, text
from workbench.waiving import waived_words

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"
_NUMBER = "text-align:right;vertical-align:top;padding:2px 12px 2px 0"

#: Rows of a table: the first is its head. Text is escaped when it is written.
_Rows = list[list[Any]]


@dataclass(frozen=True)
class _Content:
    title: str
    facts: list[tuple[str, Any]]
    tables: list[_Rows]
    picture: Markup = field(default_factory=Markup)


@dataclass(frozen=True)
class Card:
    """A record with a face: HTML in a notebook, plain text in a terminal or a log."""

    record: Record

    def _repr_html_(self) -> str:
        return record_html(self.record)

    def __repr__(self) -> str:
        return record_text(self.record)


def show(record: Record | Differences) -> Card | Differences:
    """Wrap a record so that a notebook shows it as a table; differences are one already.

    Raises:
        TypeError: the record has no card.
    """
    if isinstance(record, Differences):
        return record
    _content(record)
    return Card(record)


def record_html(record: Record) -> str:
    """A record as self-contained HTML: a title, facts, tables. Everything escaped.

    Raises:
        TypeError: the record has no card.
    """
    content = _content(record)
    parts = [Markup("<div><p><b>{}</b></p>").format(content.title)]
    facts = Markup("").join(
        Markup('<tr><th scope="row" style="{}">{}</th><td style="{}">{}</td></tr>').format(
            _CELL, name, _CELL, value
        )
        for name, value in content.facts
    )
    parts.append(Markup("<table><tbody>{}</tbody></table>").format(facts))
    parts.append(content.picture)
    for head, *body in content.tables:
        cells = Markup("").join(Markup('<th style="{}">{}</th>').format(_CELL, h) for h in head)
        lines = Markup("").join(
            Markup("<tr>{}</tr>").format(Markup("").join(_cell(value) for value in row))
            for row in body
        )
        parts.append(
            Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
                cells, lines
            )
        )
    return str(Markup("").join(parts) + Markup("</div>"))


def _cell(value: Any) -> Markup:
    style = _NUMBER if isinstance(value, int) or str(value)[:1].isdigit() else _CELL
    return Markup('<td style="{}">{}</td>').format(style, escape(value))


def record_text(record: Record) -> str:
    """A record as aligned plain text.

    Raises:
        TypeError: the record has no card.
    """
    content = _content(record)
    lines = [content.title]
    lines += [f"  {name}: {_plain(value)}" for name, value in content.facts]
    for rows in content.tables:
        table = [[_plain(v) for v in row] for row in rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines += [
            "  " + "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    return Markup(value).striptags() if isinstance(value, Markup) else str(value)


def _content(record: Record) -> _Content:
    for cls, card in _CARDS.items():
        if isinstance(record, cls):
            return card(record)
    known = ", ".join(cls.__name__ for cls in _CARDS)
    raise TypeError(f"a {type(record).__name__} has no card; these have: {known}")


def _lane(lane: Lane) -> str:
    return f"{lane.name}: {lane.reason}"


def _choice(choice: Choice) -> str:
    return f"{choice.value} ({choice.reason})"


def _calibration(record: Calibration) -> _Content:
    lengths = sorted(r.tokens for r in record.rows)
    revision = f" at {record.source_revision[:12]}" if record.source_revision else ""
    packed = record.packing == "pack"
    facts: list[tuple[str, Any]] = [
        ("source", f"{record.source}{revision}, {record.source_rows} rows, seed {record.seed}"),
        (
            "samples",
            f"{len(lengths)} {'packed to' if packed else 'of at most'} {record.max_tokens} tokens",
        ),
        (
            "tokens",
            f"{sum(lengths):,}, {lengths[0]} to {lengths[-1]} a sample" if lengths else "none",
        ),
        ("cut", f"{sum(r.truncated for r in record.rows)} samples hold part of a row"),
        ("chat template", "applied" if record.template_digest else "not applied"),
        ("seal", text.short(record.seal)),
        ("dropped", sum(drop.count for drop in record.dropped.values()) or "nothing"),
    ]
    if record.contamination:
        scope = {"sample": "drawn rows", "source": "all rows"}[record.contamination.scope]
        shared = sum(n for o in record.contamination.suites for n in o.matched.values())
        against = f"{record.contamination.rows} {scope} against {len(record.contamination.suites)}"
        facts.append(("contamination", f"{shared or 'no'} samples shared ({against} suites)"))
    tables = calibration.tables(record)
    return _Content("Calibration set", facts, [r for _, r in tables], calibration.histogram(record))


def _manifest(record: Manifest) -> _Content:
    options = ", ".join(f"{k} {v}" for k, v in record.options.items()) or "none"
    facts: list[tuple[str, Any]] = [
        ("method", record.method),
        ("options", options),
        ("weights", text.megabytes(record.weight_bytes)),
        ("digest", text.short(record.weights_digest)),
        ("made in", text.seconds(record.seconds)),
        ("peak memory of the quantizing job", text.megabytes(record.peak_memory_bytes)),
        ("peak GPU memory of the quantizing job", text.megabytes(record.peak_gpu_bytes)),
        ("made by", ", ".join(f"{k} {v}" for k, v in record.packages.items()) or "nothing"),
        ("folder", record.path),
    ]
    if record.peak_gpu_bytes is None:
        facts = [(name, value) for name, value in facts if "GPU" not in name]
    facts += [(name, _choice(choice)) for name, choice in record.choices.items()]
    return _Content(f"Variant {record.variant}", facts, _artifact(record.artifact))


def _artifact(found: Artifact | None) -> list[_Rows]:
    """What examining the files found: each check, then where the layers went."""
    if found is None:
        return []
    checks: _Rows = [["check of the files", "status", "in words"]]
    checks += [[c.name, text.badge(c.status), c.sentence] for c in found.checks]
    layers: _Rows = [["stored as", "why", "tensors", "share", "bits a weight", "such as"]]
    layers += [
        [
            g.format,
            g.why if g.declared else f"{g.why} (not declared)",
            g.layers,
            text.percent(g.share),
            f"{g.bits_per_weight:.2f}",
            ", ".join(g.examples[:1]),
        ]
        for g in found.layers
    ]
    return [rows for rows in (checks, layers) if len(rows) > 1]


def _evaluation(record: Evaluation) -> _Content:
    serving = record.serving
    head = ["suite", "n", "failed", "score", "flagged", "finish reasons", "output tokens"]
    again = {r.suite: r for r in record.repeat}
    if again:
        head.append("asked again")
    rows: _Rows = [head]
    for r in record.suites:
        reasons = ", ".join(f"{k} {v}" for k, v in r.finish_reasons.items())
        flagged = ", ".join(f"{text.flag_word(k)} {v}" for k, v in r.flagged.items()) or "none"
        score = text.percent(r.score) + ("" if r.higher_is_better else " (lower is better)")
        score += f" ({r.metric})" if r.metric in POOLED else ""
        row = [r.suite, r.n, r.failed, score, flagged, reasons, r.output_tokens]
        if again:
            row.append(text.percent(again[r.suite].score) if r.suite in again else "")
        rows.append(row)
    facts: list[tuple[str, Any]] = [
        ("engine", f"{serving.engine} {serving.engine_version}"),
        ("lane", _lane(serving.lane)),
        ("dtype", _choice(serving.dtype)),
        ("took", text.seconds(record.seconds)),
    ]
    if trace := record.divergence:
        said = trace.unavailable or f"{trace.tokens:,} tokens at top {trace.top_k}"
        facts.append(("divergence trace", text.visible(said)))
    return _Content(f"Evaluation of {record.variant}", facts, [rows])


def _divergence(record: Divergence) -> _Content:
    facts: list[tuple[str, Any]] = []
    if record.overall:
        facts = [
            ("corpus", f"{record.corpus_digest[:12]}, top {record.top_k}"),
            ("tail", record.tail),
        ]
    if record.unavailable:
        facts.append(("not compared", text.visible(record.unavailable)))
    rows = divergence.rows(record)
    title = f"Divergence of {record.variant} from {record.reference}"
    return _Content(title, facts, [rows] if len(rows) > 1 else [])


def _profile(record: Profile) -> _Content:
    serving = record.serving
    facts: list[tuple[str, Any]] = [
        ("engine", f"{serving.engine} {serving.engine_version}"),
        ("lane", _lane(serving.lane)),
        ("hardware", serving.hardware),
        ("peak memory", text.megabytes(record.peak_memory_bytes)),
    ]
    if record.peak_gpu_bytes is not None:
        facts.append(("peak GPU memory", text.megabytes(record.peak_gpu_bytes)))
    if serving.lane.name == "emulated":
        facts.append(("note", "emulated lane: these figures are the twin's, not the variant's"))
    facts += [*loads.remarks(record), *sweep.card_remarks(record)]
    tables = [loads.rows(record.loads)] if record.loads else []
    if record.beside and record.beside.loads:
        tables.append(loads.rows(record.beside.loads, f"{record.beside.variant}, in turn with it"))
    tables += [rows] if (rows := sweep.card_rows(record)) else []
    curves = Markup(sweep.card_figure(record) or "")  # our own drawing, escaped by matplotlib
    return _Content(f"Profile of {record.variant}", facts, tables, curves)


def _gate(record: Gate) -> _Content:
    verdicts: _Rows = [["variant", "verdict", "reason"]]
    verdicts += [[v.variant, text.badge(v.verdict), v.reason] for v in record.variants]
    checks: _Rows = [["variant", "check", "tier", "status", "in words"]]
    checks += [
        [v.variant, c.name, c.tier, text.badge(c.status), _words(c)]
        for v in record.variants
        for c in v.checks
    ]
    facts: list[tuple[str, Any]] = [("run", record.run), ("policy", record.policy)]
    if record.best:
        facts.append((record.best.objective, record.best.reason))
    if record.date:
        facts.append(("waivers", f"those in force on {record.date}"))
    tables = [rows for rows in (verdicts, checks) if len(rows) > 1]
    return _Content(f"Verdict: {record.verdict}{record.aside}", facts, tables)


def _words(check: Check) -> str:
    said = check.sentence.removeprefix(f"{check.name}: ")
    return f"{said} It is {waived_words(check.waiver)}." if check.waiver else said


_CARDS: dict[type[Record], Callable[[Any], _Content]] = {
    Calibration: _calibration,
    Manifest: _manifest,
    Evaluation: _evaluation,
    Divergence: _divergence,
    Profile: _profile,
    Gate: _gate,
}
