"""How far each variant's next-token distributions are from its reference's, for card and report.

Pure. It is a diagnosis, not a check: nothing here is compared with a limit, and the page says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench import plots
from workbench.evidence import Evidence
from workbench.records import Divergence, DivergenceStats
from workbench.report import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows of a table: the first is its head.
Rows = list[list[Any]]

#: Below this a KLD is the rounding of float32; the logarithmic axis ends here.
_LEAST = 1e-6
_PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
_FIGURES = (
    "tokens", "PPL before", "PPL after", "ln ratio", "KLD mean", "median", "99 %", "max",
    "\N{GREEK CAPITAL LETTER DELTA}p mean", "\N{GREEK CAPITAL LETTER DELTA}p RMS", "same top",
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """What the report shows.

    Attributes:
        figure: SVG text; None where nothing could be compared.
        overall: one row a variant.
        parts: one row for each source and each range of positions of a variant.
        missing: variants without a comparison, each with the reason.
        corpus: which texts, in one sentence.
        tail: how the tokens beyond the top k were treated.
        csv: every statistic, for a spreadsheet.
    """

    figure: str | None
    overall: Rows
    parts: Rows
    missing: list[tuple[str, str]]
    corpus: str
    tail: str
    csv: Rows


def section(evidence: Evidence) -> Section | None:
    """The report's section; None where no variant was to be compared."""
    found = [(v.variant, v.divergence) for v in evidence.variants if v.divergence]
    if not found:
        return None
    overall: Rows = [["variant", "against", *_FIGURES]]
    parts: Rows = [["variant", "where", *_FIGURES]]
    for name, record in found:
        if record.overall:
            overall.append([name, record.reference, *figures(record.overall)])
            parts += [[name, _label(where), *figures(s)] for where, s in _parts(record)]
    return Section(
        figure=_figure([(n, d) for n, d in found if d.overall]),
        overall=overall,
        parts=parts,
        missing=[(name, record.unavailable) for name, record in found if not record.overall],
        corpus=_corpus(evidence),
        tail=next((record.tail for _, record in found), ""),
        csv=_table(found),
    )


def figures(stats: DivergenceStats) -> list[str]:
    """A row of figures, under `_FIGURES`."""
    return [
        f"{stats.tokens:,}",
        _with(text.number(stats.ppl_reference), stats.ppl_reference_error),
        _with(text.number(stats.ppl_variant), stats.ppl_variant_error),
        _with(_small(stats.ln_ratio_mean), stats.ln_ratio_error),
        _with(_small(stats.kld_mean), stats.kld_error),
        _small(stats.kld["median"]),
        _small(stats.kld["99"]),
        _small(stats.kld["max"]),
        _points(stats.delta_p_mean),
        f"{100 * stats.delta_p_rms:.2f} pp",
        f"{100 * stats.same_top:.1f} %",
    ]


def rows(record: Divergence) -> Rows:
    """One variant's comparison as a table: the whole, each source, each range of positions."""
    table: Rows = [["where", *_FIGURES]]
    if record.overall:
        table.append(["all", *figures(record.overall)])
        table += [[_label(where), *figures(stats)] for where, stats in _parts(record)]
    return table


def _parts(record: Divergence) -> list[tuple[str, DivergenceStats]]:
    places = [(f"tokens {where}", stats) for where, stats in record.by_position.items()]
    return [*record.by_source.items(), *places]


def _corpus(evidence: Evidence) -> str:
    evaluation = evidence.baseline.evaluation
    trace = evaluation.divergence if evaluation else None
    if trace is None:
        return ""
    sources = ", ".join(f"{_label(name)} {n:,}" for name, n in trace.sources.items())
    said = f"{trace.documents} documents, {sum(trace.sources.values()):,} tokens scored ({sources})"
    if trace.cut:
        said += f"; {trace.cut} cut to fit"
    for reason, count in trace.left_out.items():
        said += f"; {count} left out: {reason}"
    return f"{said}; the {trace.top_k} likeliest tokens recorded at each. Corpus "


def _table(found: list[tuple[str, Divergence]]) -> Rows:
    table: Rows = []
    for name, record in found:
        if record.overall is None:
            continue
        for where, stats in [("all", record.overall), *_parts(record)]:
            flat: dict[str, Any] = {}
            for key, value in stats.model_dump().items():
                if isinstance(value, dict):
                    flat |= {f"{key} {label}": number for label, number in value.items()}
                else:
                    flat[key] = value
            table = table or [["variant", "reference", "where", *flat]]
            table.append([name, record.reference, where, *flat.values()])
    return table


def _figure(found: list[tuple[str, Divergence]]) -> str | None:
    """KLD of every variant, source by source: 10th to 99th percentile, median, mean; log scale."""
    import matplotlib

    groups: dict[str, list[tuple[int, str, DivergenceStats]]] = {}
    for index, (name, record) in enumerate(found, start=1):
        if record.overall:
            for where, stats in [("all", record.overall), *record.by_source.items()]:
                groups.setdefault(_label(where), []).append((index, name, stats))
    if not groups:
        return None
    with matplotlib.rc_context(plots._SETTINGS):
        lines = sum(len(group) + 1 for group in groups.values())
        drawing = plots._figure(7.6, 0.75 + 0.27 * lines)
        axes: Axes = drawing.add_subplot()
        plots._plain(axes)
        axes.set_xscale("log")
        side = axes.get_yaxis_transform()
        named: dict[str, Any] = {
            "transform": side,
            "ha": "right",
            "va": "center",
            "color": plots._colour("ink"),
        }
        y = 0.0
        for where, group in groups.items():
            axes.text(-0.005, y, where, weight="bold", **named)
            for index, name, stats in group:
                y += 1
                axes.text(-0.005, y, name, **named)
                _line(axes, y, index, stats)
            y += 1
        axes.set_ylim(y - 0.3, -0.8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(left=_LEAST)
        # Powers would be written as formulas, which text in an SVG is not.
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("KLD from the reference, nats a token  (right is further away)")
        return plots._svg(drawing, "divergence", "KLD per source and variant with percentiles")


def _line(axes: Axes, y: float, index: int, stats: DivergenceStats) -> None:
    colour = plots._variant_colour(index)
    low, middle, high, mean = (
        max(_LEAST, value)
        for value in (stats.kld["10"], stats.kld["median"], stats.kld["99"], stats.kld_mean)
    )
    axes.plot([low, high], [y, y], color=colour, lw=1.8)
    axes.plot([middle], [y], marker="|", ms=9, mew=2, color=colour, ls="none")
    axes.plot([mean], [y], marker=plots._SHAPES[index % 6], ms=6, color=colour, ls="none")
    axes.text(
        1.01, y, f"mean {_small(stats.kld_mean)}  n {stats.tokens:,}",
        transform=axes.get_yaxis_transform(), ha="left", va="center", color=plots._colour("ink"),
    )  # fmt: skip


def _label(where: str) -> str:
    """A source as it is written: plain and short, whatever a record holds."""
    return where.removeprefix("suite:").encode("ascii", "replace").decode()[:40]


def _small(value: float) -> str:
    """A figure that may be tiny: an exponent where zeros would hide it."""
    said = f"{value:.3g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.1e}"
    return said.replace("-", "\N{MINUS SIGN}")


def _points(value: float) -> str:
    return f"{100 * value:+.2f} pp".replace("-", "\N{MINUS SIGN}")


def _with(value: str, error: float | None) -> str:
    return value if error is None else f"{value} {_PLUS_MINUS} {error:.2g}"
