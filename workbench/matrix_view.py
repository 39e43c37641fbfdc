"""The support matrix on a terminal, and as JSON. Shows, never decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workbench.checkpoint import inspect, read_tensors
from workbench.fit import Note, notes
from workbench.hardware import detect
from workbench.matrix import Cell, as_json, check_dtype, machines, matrix
from workbench.records import Hardware

_COLOURS = {"native": "green", "weight-only fallback": "yellow", "emulated": "yellow"}
_MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "no": "[red]no  [/]"}


def show(
    console: Console, checkpoint: Path | None, gpus: list[str], dtype: str, as_data: bool
) -> None:
    """Print the matrix of this machine, or of named GPUs, and what a checkpoint adds to it.

    Args:
        console: where to.
        checkpoint: folder of a checkpoint, or None.
        gpus: names of the table; none: this machine.
        dtype: compute dtype; empty: the default.
        as_data: JSON instead of tables.

    Raises:
        RecipeError: an unknown GPU or dtype.
        CheckpointError: the checkpoint cannot be read.
    """
    compute = check_dtype(dtype)
    hosts = machines(gpus) if gpus else {"this machine": detect()}
    answers = {name: matrix(host, compute) for name, host in hosts.items()}
    told: list[Note] = []
    if checkpoint is not None:
        memory = [g.memory_bytes for host in hosts.values() for g in host.gpus]
        one = memory[0] if len(memory) == 1 else None
        told = notes(inspect(checkpoint), read_tensors(checkpoint), one)
    if as_data:
        data = {
            "machines": {name: as_json(hosts[name], cells) for name, cells in answers.items()},
            "checkpoint": str(checkpoint) if checkpoint else None,
            "notes": [asdict(note) for note in told],
        }
        console.file.write(json.dumps(data, indent=1) + "\n")
        return
    if len(answers) == 1:
        ((name, cells),) = answers.items()
        console.print(f"{name}: {_describe(hosts[name])}", highlight=False, markup=False)
        console.print(_one(cells, hosts[name]))
    else:
        console.print(_many(answers, hosts))
        console.print(
            "w-only: weight-only fallback; emul.: emulated on a dequantized twin; no: unsupported. "
            "Reasons and sources: workbench support --gpu NAME",
            highlight=False,
        )
    if told:
        console.print(f"\n{checkpoint}:", highlight=False, markup=False)
    for note in told:
        text = escape(f"{note.format}: {note.text}")
        console.print(_MARKS[note.level], text, highlight=False, soft_wrap=True)


def _describe(hardware: Hardware) -> str:
    if not hardware.gpus:
        return f"{hardware.cpu}, {', '.join(hardware.isa) or 'no vector extensions'}, no GPU"
    return "; ".join(
        f"{g.name}, compute capability {g.compute_capability}, {g.memory_bytes / 2**30:.1f} GiB"
        + (" (ROCm)" if g.platform == "rocm" else "")
        for g in hardware.gpus
    )


def _lane(name: str) -> str:
    return f"[{_COLOURS.get(name, 'red')}]{name}[/]"


def _engine(cell: Cell, hardware: Hardware) -> str:
    """Who runs it; where there is a GPU, and it is not what computes, that is said."""
    return f"{cell.engine}, CPU" if hardware.gpus and cell.device == "cpu" else cell.engine


def _one(cells: list[Cell], hardware: Hardware) -> Table:
    table = Table()
    for column in ("format", "engine", "lane", "reason", "source"):
        table.add_column(column, overflow="fold")
    for cell in cells:
        reason, source = escape(cell.reason), escape(cell.source)
        table.add_row(cell.format, _engine(cell, hardware), _lane(cell.lane), reason, source)
    return table


def _many(answers: Mapping[str, list[Cell]], hosts: Mapping[str, Hardware]) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("format (engine)", no_wrap=True)
    short = {"weight-only fallback": "w-only", "unsupported": "no", "emulated": "emul."}
    rows: dict[str, list[str]] = {}
    for name, cells in answers.items():
        table.add_column(name)
        for cell in cells:
            text = f"[{_COLOURS.get(cell.lane, 'red')}]{short.get(cell.lane, cell.lane)}[/]"
            rows.setdefault(f"{cell.format} ({_engine(cell, hosts[name])})", []).append(text)
    for label, row in rows.items():
        table.add_row(label, *row)
    return table
