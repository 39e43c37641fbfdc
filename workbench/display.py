"""What a person sees while a run works: a live table on a terminal, plain lines elsewhere.

Reads the run's events; decides nothing. Times are those of this view, from a step's first event.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from workbench.clusters import Grouping
from workbench.errors import StoreError
from workbench.events import EventReader
from workbench.power import Power
from workbench.records import MAY_SHIP, Gate, Manifest, Plan, VariantVerdict
from workbench.store import Run, read_record
from workbench.words import plain

#: Set in the environment of kernels whose progress somebody else shows.
DRIVEN = "WORKBENCH_DRIVEN"

#: Tools that took less than this have no share worth naming: one start of a kernel outweighs it.
_FEW_SECONDS = 60.0

_VERDICT_STYLE = {
    "GO": "bold green",
    "GO WITH WAIVER": "bold yellow",
    "NO-GO": "bold red",
    "INCONCLUSIVE": "bold yellow",
}
_MARK = {"waiting": "·", "cached": "=", "running": "▶", "done": "✓", "failed": "✗"}
_STYLE = {"cached": "dim", "running": "bold cyan", "done": "green", "failed": "bold red"}


def duration(seconds: float) -> str:
    """``7s``, ``3m20s``, ``1h05m``."""
    whole = round(min(seconds, 1e12))  # a rate next to nothing waits for ever
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


@dataclass
class _Row:
    name: str
    state: str = "waiting"
    note: str = ""
    begun: float | None = None
    ended: float | None = None
    phase_done: float = 0.0  # when the phase began: what was done before took none of its time
    progress: tuple[float, float, str] = (0, 0, "")
    phase_begun: float = 0.0
    remarks: list[str] = field(default_factory=list)  # they stay beside it when it is done

    def elapsed(self, now: float) -> str:
        return duration((self.ended or now) - self.begun) if self.begun is not None else ""

    def text(self, now: float) -> str:
        if self.state != "running":
            return self.note
        done, total, what = self.progress
        if not total:
            return what or self.note
        left = ""
        own = done - self.phase_done
        if own > 0 and own >= 0.1 * (total - self.phase_done) and now - self.phase_begun > 3:
            left = f", ~{duration((total - done) * (now - self.phase_begun) / own)} left"
        return f"{what} {done:g}/{total:g}{left}"


@dataclass
class _State:
    rows: dict[str, _Row] = field(default_factory=dict)

    def apply(self, event: dict[str, Any], now: float) -> str:
        """Take in one event; returns the plain line it is worth, or an empty text."""
        event = {k: plain(v) if isinstance(v, str) else v for k, v in event.items()}
        row = self.rows.get(event.get("step", ""))
        if row is None:
            return ""
        kind = event["event"]
        if kind == "start" and row.state != "running":
            row.state, row.begun, row.phase_begun = "running", now, now
            row.note = event.get("why", "")
            return f"{row.name}: started" + (f" - {row.note}" if row.note else "")
        if kind == "progress":
            before = row.progress
            row.progress = (event["done"], event["total"], event["what"])
            if event["total"] != before[1] or event["done"] < before[0]:
                row.phase_begun, row.phase_done = now, event["done"]
            return f"{row.name}: {row.text(now)}"
        if kind == "done":
            row.state, row.ended, row.note = "done", now, "; ".join(row.remarks)
            return f"{row.name}: done in {row.elapsed(now)}"
        if kind == "restart":
            return f"{row.name}: the server died and is started again ({event['what']})"
        if kind == "remark":
            row.remarks.append(event["what"])
        if kind in ("left out", "not scored", "reopened", "remark"):
            return f"{row.name}: {event['what']}"
        if kind in ("error", "interrupted"):
            row.state, row.ended, row.note = "failed", now, event.get("what", kind)
            return f"{row.name}: {row.note}"
        return ""


def plan_table(plan: Plan) -> Table:
    """The plan as a table: step, id, cached or not and why, estimated time and memory."""
    table = Table(title=f"run '{plan.run}'", title_justify="left", expand=False)
    for column in ("step", "id", "state", "why", "time", "memory"):
        table.add_column(column, no_wrap=column in ("step", "id", "state"))
    total = 0.0
    for step in plan.steps:
        total += step.estimate_seconds or 0
        memory = step.estimate_memory_bytes
        table.add_row(
            step.name,
            step.id[:8],
            Text("cached", "dim") if step.cached else Text("to do", "cyan"),
            Text(step.reason),
            f"~{duration(step.estimate_seconds)}" if step.estimate_seconds else "",
            f"~{memory / 2**30:.1f} GiB" if memory else "",
        )
    table.caption = (
        f"estimated {duration(total)}: a rule of thumb, not a promise" if total else None
    )
    return table


def power_table(found: Sequence[Power]) -> Table:
    """What each gated suite can show, and the samples it takes; one line a suite."""
    table = Table(title="what the gated suites can show", title_justify="left", expand=False)
    for column in ("suite", "samples", "margin", "variance", "detectable", "needed"):
        table.add_column(column, justify="left" if column == "suite" else "right")
    for one in found:
        short = one.n is not None and (one.needed is None or one.n < one.needed)
        table.add_row(
            Text(one.suite),
            "?" if one.n is None else _grouped(one.n, one.grouping),
            f"{'at most ' if one.relative else ''}{100 * one.margin:.1f}",
            Text(f"{one.variance:.3f} ({one.source})"),
            "?" if one.detectable is None else f"{100 * one.detectable:.1f}",
            Text(f"{one.needed}" if one.needed else "over a million", "yellow" if short else ""),
        )
    table.caption = (
        "points of the mean score; variance: of one answer's loss in score, where right or wrong "
        "about the share that turns; detectable: a true loss that far from the margin is settled 4 "
        "times in 5; needed: samples with which an undamaged variant passes 4 times in 5"
    )
    if any(one.grouping for one in found):
        table.caption += (
            "; clusters: samples that are not independent, counted as whole clusters that change "
            "as one until a verdict says how much they do"
        )
    return table


def _grouped(n: int, grouping: Grouping | None) -> str:
    if grouping is None:
        return f"{n}"
    count = len(grouping.sizes)
    return f"{n} in {count} clusters, worth {grouping.effective:.0f}"


def verdict_table(gate: Gate) -> Table:
    """One line per variant: the verdict and the sentence that explains it."""
    what = "WHAT IF:" if gate.what_if else "verdict of"
    table = Table(
        title=escape(f"{what} run '{gate.run}' under policy '{gate.policy}'{gate.aside}"),
        title_justify="left",
    )
    for column in ("variant", "method", "lane", "verdict", "reason"):
        table.add_column(column, no_wrap=column != "reason")
    for v in gate.variants:
        table.add_row(
            v.variant,
            v.method,
            v.lane.name if v.lane else "-",
            Text(v.verdict, _VERDICT_STYLE[v.verdict]),
            Text(v.reason),
        )
    if gate.best:
        table.caption = Text(f"{gate.best.objective}: {gate.best.reason}")
        table.caption_justify = "left"
    return table


def artifact_line(verdict: VariantVerdict, run: Run) -> str:
    """Which folder ships, of a variant that may; empty of one that may not."""
    if verdict.verdict not in MAY_SHIP:
        return ""
    try:
        made = read_record(run.published("quantize", verdict.variant), Manifest)
    except StoreError:
        return ""
    twin = verdict.lane is not None and verdict.lane.name == "emulated"
    aside = " (its dequantized twin was served; the twin is not what ships)" if twin else ""
    folder = run.results.root / made.path
    gone = "" if folder.is_dir() else " (it is gone; workbench run makes it again)"
    waived = " (with a waiver)" if verdict.verdict != "GO" else ""
    return f"artifact of {verdict.variant}{waived}: {folder}{gone}{aside}"


def own_time(seconds: float, tool_seconds: float) -> str:
    """How long the workbench itself took; as a share of the tools' time where that is some."""
    text = f"the workbench itself took {seconds - tool_seconds:.1f} s"
    tools = f"{tool_seconds:.1f} s in environments, quantizers and servers"
    if tool_seconds < _FEW_SECONDS:
        return f"{text}, beside {tools}"
    return f"{text}: {seconds / tool_seconds - 1:.1%} of the {tools}"


@contextlib.contextmanager
def watching(plan: Plan, events: Path, console: Console) -> Iterator[None]:
    """Show the run's progress for the block, from another thread.

    Args:
        plan: what will run and what is cached.
        events: the run's event file.
        console: where to; a terminal gets a live table, anything else a line per change, at most
            one every ten seconds per step for mere progress.
    """
    state = _State({s.name: _Row(s.name) for s in plan.steps})
    for step in plan.steps:
        if step.cached:
            state.rows[step.name].state = "cached"
            state.rows[step.name].note = step.reason
    reader = EventReader(events)
    stop = threading.Event()
    live = (
        Live(console=console, refresh_per_second=4, transient=False)
        if console.is_terminal
        else None
    )

    def draw() -> Group:
        now = time.monotonic()
        table = Table(box=None, padding=(0, 1), show_header=False)
        for row in state.rows.values():
            style = _STYLE.get(row.state, "")
            table.add_row(
                Text(_MARK[row.state], style),
                Text(row.name, style),
                Text(row.elapsed(now)),
                Text(row.text(now), "dim" if row.state != "failed" else "red", overflow="ellipsis"),
            )
        return Group(table)

    said: dict[str, float] = {}

    def follow() -> None:
        while True:
            last = stop.is_set()
            now = time.monotonic()
            for event in reader.new():
                line = state.apply(event, now)
                name = event.get("step", "")
                mere = event["event"] == "progress"
                if live is None and line and not (mere and now - said.get(name, 0.0) < 10):
                    said[name] = now
                    console.print(time.strftime("%H:%M:%S"), line, highlight=False, markup=False)
            if live is not None:
                live.update(draw())
            if last:
                return
            stop.wait(0.25)

    if live is None:
        for step in plan.steps:
            if step.cached:
                console.print(f"{step.name}: cached - {step.reason}", highlight=False, markup=False)
    thread = threading.Thread(target=follow, name="display", daemon=True)
    with live or contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextlib.contextmanager
def in_notebook(step: str, events: Path) -> Iterator[None]:
    """Show one step's progress below the cell that runs it, in a notebook opened by hand.

    Nothing is shown outside a notebook, nor where `workbench run` shows the progress itself.
    """
    if "ipykernel" not in sys.modules or DRIVEN in os.environ:
        if DRIVEN in os.environ:
            # A kernel that is shut down while it flushes says so with a traceback on our stderr.
            logging.getLogger("tornado.general").setLevel(logging.CRITICAL)
        yield
        return
    from IPython.display import display

    state = _State({step: _Row(step)})
    reader = EventReader(events)
    handle = display(_Line(""), display_id=True)  # type: ignore[no-untyped-call]
    stop = threading.Event()

    def follow() -> None:
        last = ""
        while True:
            ending = stop.is_set()
            now = time.monotonic()
            lines = [state.apply(event, now) for event in reader.new()]
            line = next((line for line in reversed(lines) if line), last)
            if handle is not None and line != last:
                handle.update(_Line(line))
                last = line
            if ending:
                return
            stop.wait(0.5)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _Line:
    """A line of text that a notebook shows as text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class ProgressLine:
    """A progress callback outside a run: a bar on a terminal, else a line every ten seconds."""

    def __init__(self, console: Console, bar: Progress | None = None) -> None:
        self._console = console
        self._bar = bar
        self._task: TaskID | None = None
        self._said = 0.0
        self._last = ""

    def another(self) -> ProgressLine:
        """One more beside this one, for work that goes on at the same time; ends with this one."""
        return ProgressLine(self._console, self._bar)

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:g}/{task.total:g}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: float, total: float, what: str) -> None:
        """Show that `done` of `total` is reached (0: nobody knows how many)."""
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(what)
            self._bar.update(self._task, completed=done, total=total or None, description=what)
        elif (now := time.monotonic()) - self._said >= 10 or (
            total and done >= total and what != self._last
        ):
            self._said, self._last = now, what
            count = f" {done:g}/{total:g}" if total else ""
            self._console.print(
                time.strftime("%H:%M:%S"), f"{what}{count}", highlight=False, markup=False
            )
