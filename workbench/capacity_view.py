"""`workbench capacity`: the command, its table and its JSON. Shows, never decides."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from workbench.capacity import Answer
    from workbench.capacity_rows import Load, Row
    from workbench.records import Hardware
    from workbench.weights import Model

_GIB = 1 << 30
_SHORT = {
    "native": "[green]native[/]",
    "weight-only fallback": "[yellow]w-only[/]",
    "another build": "[yellow]build[/]",
    "emulated": "[red]no[/]",
    "unsupported": "[red]no[/]",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(capacity)


def capacity(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="folder of safetensors, or a GGUF file")
    ],
    gpu: Annotated[str, typer.Option("--gpu", help="as `workbench support` names them")],
    p95_in: Annotated[int, typer.Option("--p95-in", help="tokens of a prompt, 95th percentile")],
    p95_out: Annotated[int, typer.Option("--p95-out", help="tokens of an answer, the same")],
    mean_in: Annotated[
        float | None, typer.Option("--mean-in", help="mean tokens of a prompt, for cost")
    ] = None,
    mean_out: Annotated[
        float | None, typer.Option("--mean-out", help="mean tokens of an answer, the same")
    ] = None,
    qps: Annotated[float | None, typer.Option("--qps", help="requests/s to serve")] = None,
    latency: Annotated[
        float | None, typer.Option("--latency", help="seconds a request takes, if you know it")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="profile.json measured on that GPU")
    ] = None,
    workload: Annotated[str, typer.Option("--workload", help="of the profile")] = "",
    price: Annotated[float | None, typer.Option("--price", help="of one card and hour")] = None,
    utilization: Annotated[
        float, typer.Option("--utilization", help="share of the memory the engine takes")
    ] = 0.9,
    kv: Annotated[
        list[str] | None, typer.Option("--kv", help="auto or fp8 (repeatable); default: both")
    ] = None,
    format_: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="bf16, fp8, int8, gptq, awq, nf4, or a GGUF type (repeatable); default: those "
            "six, q8_0 and q4_k_m; a quantized checkpoint as it is",
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", help="cards of one server; default: the fewest")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what fits a GPU, how many requests at a time, how many cards, at what cost."""
    from workbench.capacity import plan
    from workbench.capacity_rows import Load
    from workbench.capacity_speed import speed
    from workbench.gpus import named
    from workbench.records import Profile
    from workbench.store import read_record
    from workbench.streams import console as _console
    from workbench.weights import read_model

    load = Load(
        p95_in=p95_in,
        p95_out=p95_out,
        qps=qps,
        latency=latency,
        price=price,
        utilization=utilization,
        kv=tuple(dict.fromkeys(word.lower() for word in kv or ("auto", "fp8"))),
        formats=tuple(word.lower() for word in format_ or ()),
        tp=tp,
        mean_in=mean_in,
        mean_out=mean_out,
    )
    load.check()
    hardware = named(gpu)
    measured = speed(read_record(profile, Profile), hardware, workload) if profile else None
    model = read_model(checkpoint)
    answer = plan(model, hardware, load, measured)
    console = _console()
    if json_:
        console.file.write(json.dumps(_data(model, hardware, load, answer), indent=1) + "\n")
        return
    title = f"{checkpoint} on {hardware.gpus[0].name}"
    if qps is not None and latency is not None:
        title += "; cards and cost by your --latency and memory alone, the computing is not checked"
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    console.print(_table(answer, priced=price is not None))
    for line in _remarks(answer):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print("assumed:", highlight=False)
    for line in answer.assumptions:
        console.print(f"- {line}", highlight=False, markup=False, soft_wrap=True)


def _data(model: Model, hardware: Hardware, load: Load, answer: Answer) -> dict[str, Any]:
    rows = []
    for row in answer.rows:
        told = asdict(row)
        told["estimate"] = row.estimate.model_dump(mode="json") if row.estimate else None
        rows.append(told)
    return {
        "checkpoint": str(model.path),
        "hardware": hardware.model_dump(mode="json"),
        "kv_layout": asdict(model.layout),
        "load": asdict(load),
        "rows": rows,
        "assumptions": answer.assumptions,
    }


def _table(answer: Answer, *, priced: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    names = ["format", "lane", "KV", "TP", "weights\nGiB", "KV pool\nGiB", "KV\ntokens"]
    names += ["longest\nrequest", "at P95\nlength", "plan\nwith", "cards"]
    names += ["per M\noutput", "per M\ntokens"] if priced else []
    for name in names:
        right = name not in ("format", "lane", "KV")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in answer.rows:
        cells = _cells(row)
        table.add_row(row.format, _SHORT[row.lane], row.kv, *cells[: len(names) - 3])
    return table


def _cells(row: Row) -> list[str]:
    """Figures of a row; dashes where it does not fit or does not run."""
    e = row.estimate
    if e is None:
        return ["-"] * 10
    start = [f"{e.tp}", f"{e.weight_bytes / _GIB:.2f}"]
    if not row.fits:
        return [*start, "too large", *["-"] * 7]
    cards = "?" if row.cards is None else f"{row.cards:,}"
    costs = ["?" if c is None else _cost(c) for c in (row.cost_output, row.cost_total)]
    if row.impossible:
        cards, costs = "no", ["-", "-"]
    return [
        *start,
        f"{e.pool_bytes / _GIB:.1f}",
        _count(e.kv_tokens),
        _count(e.context),
        _count(int(e.max_concurrency)),
        _count(row.planned),
        cards,
        *costs,
    ]


def _cost(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def _count(value: int) -> str:
    """A whole number in at most nine characters."""
    return f"{value:,}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def _remarks(answer: Answer) -> list[str]:
    """Why rows do not run as named, do not fit or cannot be that fast; equal reasons once."""
    told: dict[str, list[str]] = {}
    for row in answer.rows:
        name = f"{row.format}, FP8 KV" if row.kv == "fp8" else row.format
        if not row.fits or row.lane != "native":
            told.setdefault(row.reason, []).append(name)
        if row.impossible and row.estimate:
            cards = f"{row.estimate.tp} cards" if row.estimate.tp > 1 else "one card"
            least = f"impossible: {row.least:.2g} s at least on {cards}"
            told.setdefault(least, []).append(name)
    return [f"{'; '.join(names)}: {reason}" for reason, names in told.items()]
