"""Commands about load: `bench-client`. Arguments and output only."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("bench-client")(bench_client)


def bench_client(
    concurrency: Annotated[
        list[int] | None,
        typer.Option("--concurrency", min=1, help="default: 16, 64 and 256 (repeatable)"),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="least requests a point")
    ] = 256,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Measure the load client: its error in TTFT and ITL, whose it is, and its CPU."""
    import json

    from workbench.bench_client import LEVELS, as_json, as_table, run_bench
    from workbench.cli import _progress
    from workbench.progress import silent
    from workbench.streams import console as _console

    console = _console()
    levels = tuple(concurrency or LEVELS)
    if json_:
        points = run_bench(levels, least=requests, progress=silent)
        typer.echo(json.dumps(as_json(points), indent=2))
        return
    with _progress(console) as progress:
        points = run_bench(levels, least=requests, progress=progress)
    console.print(as_table(points))
