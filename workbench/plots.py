"""Figures of the report, as inline SVG text. Pure: records in, the same bytes out every time.

Drawn by matplotlib's object interface, so no global state is touched and no window is needed. Text
stays text, and every colour becomes a CSS variable with a fallback, so that a figure follows the
page into dark mode and still looks right on its own in a notebook. No figure relies on colour: each
status has a marker and a word, each variant a hatch and a name.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.base import BASELINE_GGUF
from workbench.evidence import Evidence
from workbench.records import Check, CheckStatus, Gate, LoadPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Drawn in these exact colours, then replaced: name of the CSS variable -> colour without the page.
_COLOURS = {
    "page": "#fffffe",
    "ink": "#1b1f24",
    "muted": "#656d77",
    "line": "#d0d5da",
    "beyond": "#fbe9e7",
    "pass": "#17663a",
    "fail": "#b3261e",
    "open": "#8a5a00",
    "v0": "#8c959f",
    "v1": "#2a6fb0",
    "v2": "#c2571a",
    "v3": "#3d8f6d",
    "v4": "#8250a8",
    "v5": "#a8326e",
}
_MARKERS: dict[CheckStatus, tuple[str, str]] = {
    "PASS": ("o", "pass"),
    "FAIL": ("X", "fail"),
    "INCONCLUSIVE": ("D", "open"),
    "MISSING": ("s", "muted"),
    "NOT COMPARABLE": ("s", "muted"),
    "ANOMALOUS": ("*", "open"),
    "WARN": ("s", "muted"),
    "NOT TRIPPED": ("s", "muted"),
}
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")
_SHAPES = ("s", "o", "D", "^", "v", "P")
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "axes.linewidth": 0.8,
    "text.parse_math": False,
    "axes.unicode_minus": True,
}


def _colour(name: str) -> str:
    return _COLOURS[name]


def _variant_colour(index: int) -> str:
    return _COLOURS[f"v{index if index < 6 else 1 + (index - 1) % 5}"]


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _plain(axes: Axes) -> None:
    """Light spines, no box, text in the page's ink."""
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_colour("line"))
    axes.tick_params(colors=_colour("muted"), labelcolor=_colour("ink"), length=3)
    axes.xaxis.label.set_color(_colour("ink"))
    axes.yaxis.label.set_color(_colour("ink"))


def _svg(figure: Figure, name: str, label: str) -> str:
    """Serialise a figure for inlining: responsive, labelled, ids of its own, no metadata."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    head = (
        f'<svg class="figure" role="img" aria-label="{label}" '
        f'style="width:{float(size[1]) * 4 / 3:.0f}px" viewBox="{size[0][9:-1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    text = re.sub(r"<svg[^>]*>", lambda _: head, text, count=1)
    for old, new in (
        ('id="', f'id="{name}-'),
        ('href="#', f'href="#{name}-'),
        ("url(#", f"url(#{name}-"),
    ):
        text = text.replace(old, new)
    for variable, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{variable}, {colour})")
    # Matplotlib names the font family it measured with; the page's own reads better.
    return re.sub(r"'?DejaVu Sans'?, ?", "", text)


def _signed(value: float) -> str:
    text = f"{100 * value:+.1f}" if round(100 * value, 1) else "0.0"
    return text.replace("-", "\N{MINUS SIGN}")


def forest(gate: Gate) -> str | None:
    """Paired loss of every suite and variant with its interval, against the margin.

    Returns:
        SVG text, or None where no quality check has a value.
    """
    import matplotlib

    groups: dict[str, list[tuple[str, Check]]] = {}
    for verdict in gate.variants:
        for check in verdict.checks:
            if check.kind == "quality" and check.value is not None:
                groups.setdefault(check.name, []).append((verdict.variant, check))
    if not groups:
        return None
    with matplotlib.rc_context(_SETTINGS):
        lines = sum(len(g) + 1 for g in groups.values())
        figure = _figure(7.6, 0.75 + 0.29 * lines)
        axes: Axes = figure.add_subplot()
        _plain(axes)
        checks = [c for group in groups.values() for _, c in group]
        low = min([0.0, *(c.low or 0.0 for c in checks)])
        high = max([0.0, *(max(c.high or 0.0, c.limit or 0.0) for c in checks)])
        span = high - low
        left, right = 100 * (low - 0.05 * span), 100 * (high + 0.08 * span)
        y = 0.0
        for suite, group in groups.items():
            axes.text(
                -0.005,
                y,
                suite,
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                weight="bold",
                color=_colour("ink"),
            )
            top = y + 0.5
            for name, check in group:
                y += 1
                _forest_row(axes, y, name, check)
            limits = sorted({c.limit for _, c in group if c.limit is not None})
            for limit in limits:
                axes.plot([100 * limit] * 2, [top, y + 0.5], color=_colour("fail"), lw=1.2, ls="--")
            if limits:
                axes.fill_betweenx(
                    [top, y + 0.5],
                    100 * max(limits),
                    right,
                    color=_colour("beyond"),
                    lw=0,
                    zorder=0,
                )
            y += 1
        axes.axvline(0, color=_colour("muted"), lw=0.8, zorder=1)
        axes.set_xlim(left, right)
        axes.set_ylim(y - 0.2, -0.8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        against = "earlier run" if gate.compared_with else "baseline"
        axes.set_xlabel(f"loss of the mean score against the {against}, points  (right is worse)")
        return _svg(figure, "forest", "Paired loss per suite and variant with its interval")


def _forest_row(axes: Axes, y: float, name: str, check: Check) -> None:
    assert check.value is not None and check.low is not None and check.high is not None
    marker, status = _MARKERS[check.status]
    colour = _colour(status)
    axes.plot([100 * check.low, 100 * check.high], [y, y], color=colour, lw=1.8, zorder=3)
    hollow = check.status not in ("PASS", "FAIL")
    axes.plot(
        [100 * check.value],
        [y],
        marker=marker,
        ms=6.5,
        color=colour,
        ls="none",
        zorder=4,
        mfc=_colour("page") if hollow else colour,
    )
    side = axes.get_yaxis_transform()
    axes.text(-0.005, y, name, transform=side, ha="right", va="center", color=_colour("ink"))
    advisory = " (advisory)" if check.tier == "advisory" else ""
    axes.text(
        1.01,
        y,
        f"{_signed(check.value)} [{_signed(check.low)}, {_signed(check.high)}]  "
        f"n {check.n}  {check.status}{advisory}",
        transform=side,
        ha="left",
        va="center",
        color=colour,
    )


#: Metric of a load point, what its panel is called, factor to the unit shown.
_PANELS: tuple[tuple[str, str | None, str], ...] = (
    ("ttft_ms_p50", "ttft_ms_p95", "TTFT, ms (lower is better)"),
    ("tpot_ms_p50", "tpot_ms_p95", "TPOT, ms (lower is better)"),
    ("output_tokens_per_s", None, "output tokens/s (higher is better)"),
)


def measured(evidence: Evidence) -> list[tuple[int, str, tuple[LoadPoint, ...]]]:
    """Variants whose speed was really measured: position, name and load points."""
    # Further references last, so that a variant has one colour in every figure.
    sides = (evidence.baseline, *evidence.variants, *evidence.references)
    return [
        (i, side.variant, side.profile.points)
        for i, side in enumerate(sides)
        if side.profile and side.profile.points and side.profile.serving.lane.name != "emulated"
    ]


def latency(evidence: Evidence) -> str | None:
    """TTFT, TPOT and throughput over concurrency: one row a workload, one panel a metric.

    Bars are medians, whiskers end at the 95th percentile; failed requests are written under the
    axis. Variants on the emulated lane have no bar.

    Returns:
        SVG text, or None where nothing was measured.
    """
    import matplotlib

    sides = measured(evidence)
    workloads = list(dict.fromkeys(p.workload for _, _, points in sides for p in points))
    if not workloads:
        return None
    with matplotlib.rc_context(_SETTINGS):
        figure = _figure(9.2, 0.4 + 2.3 * len(workloads))
        grid: Any = figure.subplots(len(workloads), len(_PANELS), squeeze=False)
        for row, workload in enumerate(workloads):
            for column, (metric, tail, title) in enumerate(_PANELS):
                axes: Axes = grid[row][column]
                _plain(axes)
                _bars(axes, sides, workload, metric, tail)
                axes.set_title(f"{workload}: {title}", fontsize=9, loc="left", color=_colour("ink"))
                axes.set_xlabel("concurrency")
        _legend(figure, [axes for row in grid for axes in row])
        return _svg(figure, "latency", "Latency and throughput over concurrency")


def _bars(
    axes: Axes,
    sides: Sequence[tuple[int, str, tuple[LoadPoint, ...]]],
    workload: str,
    metric: str,
    tail: str | None,
) -> None:
    levels = sorted({p.concurrency for _, _, ps in sides for p in ps if p.workload == workload})
    width = 0.8 / len(sides)
    failed = dict.fromkeys(levels, 0)
    for place, (index, name, points) in enumerate(sides):
        label: str | None = name
        for point in points:
            if point.workload != workload:
                continue
            failed[point.concurrency] += point.failed
            value = getattr(point, metric)
            if value is None:
                continue
            x = levels.index(point.concurrency) - 0.4 + width * (place + 0.5)
            axes.bar(
                x,
                value,
                width * 0.92,
                # Another reference is a baseline too: its colour, and a hatch of its own.
                color=_variant_colour(0 if name == BASELINE_GGUF else index),
                hatch="--" if name == BASELINE_GGUF else _HATCHES[index % 6],
                edgecolor=_colour("page"),
                lw=0,
                label=label,
            )
            label = None
            end = getattr(point, tail) if tail else None
            if end is not None:
                axes.plot([x, x], [value, end], color=_colour("ink"), lw=1)
                axes.plot([x], [end], color=_colour("ink"), marker="_", ms=5)
    axes.set_xticks(
        range(len(levels)),
        [f"{n}\n{failed[n]} failed" if failed[n] else str(n) for n in levels],
    )
    axes.set_ylim(bottom=0)


def size_and_loss(gate: Gate, evidence: Evidence) -> str | None:
    """Loss over bytes of weights, one panel a suite: what each saved byte costs.

    Returns:
        SVG text, or None where no variant has both a size and a loss.
    """
    import matplotlib

    sizes = {v.variant: v.manifest.weight_bytes for v in evidence.variants if v.manifest}
    suites: dict[str, list[tuple[int, str, Check]]] = {}
    for index, verdict in enumerate(gate.variants, start=1):
        for check in verdict.checks:
            if check.kind == "quality" and check.value is not None and verdict.variant in sizes:
                suites.setdefault(check.name, []).append((index, verdict.variant, check))
    if not suites:
        return None
    columns = min(3, len(suites))
    rows = -(-len(suites) // columns)
    with matplotlib.rc_context(_SETTINGS):
        figure = _figure(0.4 + 2.95 * columns, 0.5 + 2.3 * rows)
        grid: Any = figure.subplots(rows, columns, squeeze=False, sharex=True)
        full = evidence.checkpoint.weight_bytes / 1e6
        for place, (suite, found) in enumerate(suites.items()):
            axes: Axes = grid[place // columns][place % columns]
            _plain(axes)
            axes.axhline(0, color=_colour("muted"), lw=0.8)
            for limit in sorted({c.limit for _, _, c in found if c.limit is not None}):
                axes.axhline(100 * limit, color=_colour("fail"), lw=1, ls="--")
            axes.plot(
                [full], [0], marker="s", ms=6, color=_variant_colour(0), ls="none", label="baseline"
            )
            for index, name, check in found:
                assert check.low is not None and check.high is not None and check.value is not None
                x, colour = sizes[name] / 1e6, _variant_colour(index)
                axes.plot([x, x], [100 * check.low, 100 * check.high], color=colour)
                axes.plot(
                    [x],
                    [100 * check.value],
                    marker=_SHAPES[index % len(_SHAPES)],
                    ms=6.5,
                    ls="none",
                    color=colour,
                    label=name,
                )
            axes.set_title(suite, fontsize=9, loc="left", color=_colour("ink"))
            axes.set_xlim(0, 1.12 * max(full, *(s / 1e6 for s in sizes.values())))
            axes.set_xlabel("weights, MB")
            axes.set_ylabel("loss, points")
        for place in range(len(suites), rows * columns):
            grid[place // columns][place % columns].set_visible(False)
        _legend(figure, [axes for row in grid for axes in row])
        return _svg(figure, "size", "Loss of the mean score over the size of the weights")


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, each name once, in the order it first appears."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=min(len(found), 6),
        frameon=False,
        labelcolor=_colour("ink"),
    )
