"""Other serving options than the recipe's own, for card and report: tables and curves. Pure.

Nothing here decides: checks read the recipe's own configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench import plots
from workbench.evidence import Evidence
from workbench.load_figures import said_arrivals
from workbench.load_records import LoadSummary
from workbench.records import Profile
from workbench.report import text
from workbench.report.loads import said_load
from workbench.sweep_rows import has_sweep, sweep_rows
from workbench.sweep_spec import said_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows of a table: the first is its head.
Rows = list[list[Any]]

_LINES = ("-", "--", "-.", ":")
_PANELS = (("ttft_ms", "TTFT p50, ms"), ("tpot_ms", "TPOT p50, ms"))
#: Characters of a configuration in a figure's legend; the table has all of it.
_LEGEND = 60


@dataclass(frozen=True)
class Curve:
    """Closed loops of one configuration of one variant: a line of the figure.

    Attributes:
        label: of the line.
        colour: position of the variant, as in the other figures.
        style: position of the configuration; 0 is the recipe's own.
        loads: in any order.
        best: those on the Pareto front, as (workload, load).
    """

    label: str
    colour: int
    style: int
    loads: tuple[LoadSummary, ...]
    best: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Section:
    """What the report shows.

    Attributes:
        figure: SVG text; None where no closed loop was completed.
        table: one row a variant, configuration and load.
        failed: variant, configuration, and why its server failed.
        left_out: variant, and why it was not swept.
    """

    figure: str | None
    table: Rows
    failed: list[tuple[str, str, str]]
    left_out: list[tuple[str, str]]


def section(evidence: Evidence) -> Section | None:
    """The report's section; None where the recipe swept nothing."""
    if not has_sweep(evidence):
        return None
    rows = sweep_rows(evidence)
    table: Rows = [
        [
            *("variant", "configuration", "load", "completed", "TTFT p50 / p95, ms"),
            *("TPOT p50 / p95, ms", "end to end p50, ms", "tokens/s", "KV tokens"),
            *("peak memory", "recovery", "prefix hits", "machine", "front"),
        ]
    ]
    for row in rows:
        if row.load is None:
            continue
        load, kv = row.load, row.serving.kv_cache_tokens if row.serving else None
        table.append(
            [
                *(row.side.variant, row.label, said_load(load)),
                *_figures(load),
                f"{kv:,}" if kv is not None else text.number(None),
                text.megabytes(row.memory_bytes),
                text.percent(row.quality),
                *_beside(load),
                "yes" if row.on_front else "",
            ]
        )
    sides = (evidence.baseline, *evidence.variants, *evidence.references)
    colours = {side.variant: index for index, side in enumerate(sides)}
    styles: dict[str, int] = {said_options({}): 0}
    found: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        if row.load is not None and row.serving and row.serving.lane.name != "emulated":
            styles.setdefault(row.label, len(styles))
            found.setdefault((row.side.variant, row.label), []).append(row)
    curves = [
        Curve(
            f"{variant}: {label}",
            colours[variant],
            styles[label],
            tuple(row.load for row in of),
            frozenset((r.load.workload, said_arrivals(r.load)) for r in of if r.on_front),
        )
        for (variant, label), of in found.items()
    ]
    failed = {(r.side.variant, r.label): r.error for r in rows if r.error}
    profiles = [(side.variant, side.profile) for side in evidence.sides if side.profile]
    return Section(
        figure=curves_figure(curves, "sweep"),
        table=_known(table),
        failed=[(variant, label, error) for (variant, label), error in failed.items()],
        left_out=[(name, profile.not_swept) for name, profile in profiles if profile.not_swept],
    )


def card_rows(record: Profile) -> Rows:
    """One row for each configuration and load of one variant; empty where it was not swept."""
    if not record.sweep:
        return []
    rows: Rows = [
        [
            *("configuration", "load", "completed", "TTFT p50 / p95, ms", "TPOT p50 / p95, ms"),
            *("end to end p50, ms", "tokens/s", "KV tokens", "peak memory"),
            *("prefix hits", "machine"),
        ]
    ]
    for found in record.sweep:
        kv = found.serving.kv_cache_tokens if found.serving else None
        peak = text.megabytes(found.peak_gpu_bytes or found.peak_memory_bytes)
        rows += [
            [
                *(said_options(found.options), said_load(load), *_figures(load)),
                *(f"{kv:,}" if kv is not None else text.number(None), peak, *_beside(load)),
            ]
            for load in found.loads
        ]
    return _known(rows)


def card_remarks(record: Profile) -> Iterator[tuple[str, str]]:
    """Servers of a sweep that failed, and why a variant was not swept."""
    if record.not_swept:
        yield "sweep", record.not_swept
    for found in record.sweep:
        if found.error:
            yield said_options(found.options), f"failed: {first_line(found.error)}"


def card_figure(record: Profile) -> str | None:
    """The curves of one variant's configurations; None where it was not swept."""
    if not record.sweep:
        return None
    own = Curve(said_options({}), 1, 0, record.loads)
    others = [
        Curve(said_options(found.options), 1 + number, number, found.loads)
        for number, found in enumerate(record.sweep, 1)
    ]
    return curves_figure([own, *others], "sweep")


def first_line(error: str) -> str:
    """A failure in one line: what happened, and the last error its server named."""
    head, *said = (line.strip() for line in error.splitlines() if line.strip())
    named = [line for line in said if "rror" in line]
    return f"{head} {named[-1]}" if named else head


def curves_figure(curves: Sequence[Curve], name: str) -> str | None:
    """Output tokens/s over TTFT and TPOT by concurrency: a row a workload, a line a configuration.

    Each line goes through its closed loops by concurrency, which is written at its last point; a
    ring is a point on the Pareto front, a cross one where the machine was not quiet.

    Args:
        curves: the lines.
        name: of the figure, for ids in the page.

    Returns:
        SVG text, or None where no closed loop was completed.
    """
    import matplotlib

    workloads = list(dict.fromkeys(ld.workload for c in curves for ld in c.loads if _drawn(ld)))
    if not workloads:
        return None
    with matplotlib.rc_context(plots._SETTINGS):
        drawing = plots._figure(9.2, 0.9 + 2.6 * len(workloads))
        grid: Any = drawing.subplots(len(workloads), len(_PANELS), squeeze=False)
        for place, workload in enumerate(workloads):
            for column, (figure, title) in enumerate(_PANELS):
                axes: Axes = grid[place][column]
                plots._plain(axes)
                for curve in curves:
                    _line(axes, curve, workload, figure)
                axes.set_title(
                    f"{workload}: up and left is better", fontsize=9, loc="left",
                    color=plots._colour("ink"),
                )  # fmt: skip
                axes.set_xlabel(title)
                axes.set_ylabel("output tokens/s")
                axes.set_xlim(left=0)
                axes.set_ylim(bottom=0)
        handles = {
            label: handle
            for row in grid
            for axes in row
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        drawing.legend(
            [*handles.values()], [*handles], loc="outside lower center", frameon=False,
            ncols=2, labelcolor=plots._colour("ink"),
        )  # fmt: skip
        return plots._svg(drawing, name, "Throughput over latency by serving configuration")


def _line(axes: Axes, curve: Curve, workload: str, figure: str) -> None:
    points = sorted(
        (
            load.arrivals["concurrency"],
            getattr(load, figure).p50.value,
            load.output_tokens_per_s.value,
            (load.workload, said_arrivals(load)) in curve.best,
            load.quiet.marked,
        )
        for load in curve.loads
        if load.workload == workload and _drawn(load)
    )
    points = [point for point in points if point[1] is not None and point[2] is not None]
    if not points:
        return
    colour = plots._variant_colour(curve.colour)
    _, xs, ys, best, noisy = zip(*points, strict=True)
    axes.plot(
        xs, ys, color=colour, ls=_LINES[curve.style % 4], marker=plots._SHAPES[curve.style % 6],
        ms=5, lw=1.4, label=text.plain(curve.label, _LEGEND),
    )  # fmt: skip
    crossed = [(x, y) for x, y, on in zip(xs, ys, noisy, strict=True) if on]
    if crossed:
        axes.plot(
            *zip(*crossed, strict=True), marker="x", ms=9, ls="none", color=plots._colour("ink"),
            label="the machine was not quiet",
        )  # fmt: skip
    ringed = [(x, y) for x, y, on in zip(xs, ys, best, strict=True) if on]
    if ringed:
        axes.plot(
            *zip(*ringed, strict=True), marker="o", ms=11, mfc="none", ls="none",
            color=plots._colour("pass"), label="on the Pareto front",
        )  # fmt: skip
    axes.annotate(
        f" x{points[-1][0]}", (xs[-1], ys[-1]), color=plots._colour("muted"), fontsize=8,
        va="bottom",
    )  # fmt: skip


def _drawn(load: LoadSummary) -> bool:
    return load.arrivals["arrivals"] == "closed" and load.completed > 0


def _beside(load: LoadSummary) -> tuple[str, str]:
    """Hit rate of the prefix cache, and whether the machine was busy with other things."""
    return text.percent(load.prefix_cache_hit_rate), "not quiet" if load.quiet.marked else ""


def _known(table: Rows) -> Rows:
    """The table without the hit rate where no server told one."""
    at = table[0].index("prefix hits")
    if any(row[at] != text.percent(None) for row in table[1:]):
        return table
    return [row[:at] + row[at + 1 :] for row in table]


def _figures(load: LoadSummary) -> list[Any]:
    return [
        f"{load.completed} of {load.requests}",
        *(
            f"{text.number(spread.p50.value)} / {text.number(spread.p95.value)}"
            for spread in (load.ttft_ms, load.tpot_ms)
        ),
        text.number(load.e2e_ms.p50.value),
        text.number(load.output_tokens_per_s.value),
    ]
