"""Commands that decide from records: `gate` and `compare`. Arguments and output."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.context import Context
    from workbench.records import Gate
    from workbench.store import Run

RunName = Annotated[str, typer.Argument(metavar="RUN", help="name of a run; default: the last one")]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="results folder; default: results/ of the project")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", help="folder, outside results/, to write it to")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gate)
    app.command()(compare)


def verdict(console: Console, record: Gate, run: Run | None, first: Sequence[str] = ()) -> None:
    """Print a verdict and leave with its exit code, whatever happens to the output.

    Args:
        console: where to.
        record: the verdict.
        run: whose own verdict it is, for the folders; None of one that is no run's.
        first: lines, with markup, to say before it.
    """
    from rich.markup import escape

    from workbench.display import artifact_line, verdict_table
    from workbench.records import EXIT_CODES

    with contextlib.suppress(OSError):  # the exit code is the answer; it must not hang on a pipe
        for line in first:
            console.print(line, highlight=False, soft_wrap=True)
        console.print(verdict_table(record))
        for warning in record.warnings:
            console.print("[yellow]warn[/]", escape(warning), highlight=False, soft_wrap=True)
        if run is not None:
            for one in record.variants:
                if line := artifact_line(one, run):
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
            console.print(f"report: {run.report}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(EXIT_CODES[record.verdict])


def gate(
    run: RunName = "",
    policy: Annotated[
        Path | None, typer.Option("--policy", help="what if this policy file were the run's")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="KEY=VALUE",
            help="what if margin, confidence or min_n (or SUITE.margin ...) were this, or the day "
            "by which waivers expire (date=2026-12-31); repeatable",
        ),
    ] = None,
    output: OutputOption = None,
    results: ResultsOption = None,
) -> None:
    """Decide again from the records of a run: no server, and no weights need be there.

    With --policy or --what-if it says what the verdict would be, and leaves the run's own alone.
    """
    from rich.markup import escape

    from workbench import steps
    from workbench.asked import HINT
    from workbench.collect import changed_suites
    from workbench.context import Context, find_run
    from workbench.errors import RecipeError, UserError, name_file
    from workbench.gate import UNFINISHED
    from workbench.recipe import changed_since, load_lock
    from workbench.streams import console as _console

    found = find_run(run, results)
    own = policy is None and not what_if
    try:
        context = Context(load_lock(found.recipe_lock), found)
    except (UserError, OSError) as error:
        name_file(error, found.recipe_lock)
        # As of records that cannot be believed: the former verdict is of nothing that is there.
        if own and output is None:
            with found.lock():
                found.withdraw()
        raise
    if not own:
        _what_if(context, policy, what_if or [], output)
    if output is not None:
        raise RecipeError(
            "a run's own verdict is written into its own folder",
            where="--output",
            fix="leave it out, or ask with --policy or --what-if",
        )
    with context.run.lock():
        record = steps.gate(context)
    changed = changed_since(context.loaded)
    suites = changed_suites(context)
    hint = f"; {HINT.format(context.run.name)}" if suites and all(suites.values()) else ""
    said = []
    if any(warning.startswith(UNFINISHED) for warning in record.warnings):
        said.append(f"{context.command} finishes this run")  # the verdict's own warning says why
    if changed:
        said.append(f"{changed}; decided as the run was started: {context.command} applies it")
    if suites:
        names = ", ".join(f"suite '{name}'" for name in suites)
        said.append(
            f"{names} changed since; decided as the run was started: {context.command} applies "
            f"that{hint}"
        )
    verdict(_console(), record, context.run, [f"[yellow]warn[/] {escape(s)}" for s in said])


def _what_if(context: Context, file: Path | None, changes: list[str], output: Path | None) -> None:
    """Print what the verdict would be; nothing in the run's folder is written."""
    from workbench import collect
    from workbench.policy_findings import refuse_unknown
    from workbench.recipe import load_spec
    from workbench.spec import Policy
    from workbench.streams import console as _console
    from workbench.what_if import changed
    from workbench.words import plain

    said = [f"policy {plain(file.name)}"] if file else []
    policy = context.loaded.policy
    if file:
        policy = load_spec(file, Policy)
        refuse_unknown(policy, context.loaded.recipe, file)
    policy, on, named = changed(policy, changes)
    if output is not None:
        collect.refuse_folder(context, output)
    evidence = collect.collect(context)
    record = collect.decided(context, evidence, on, policy=policy, what_if=(*said, *named))
    if output is not None:
        collect.write_aside(context, record, evidence, output)
    verdict(_console(), record, None, _written(output))


def _written(output: Path | None) -> list[str]:
    from rich.markup import escape

    return [f"written to {escape(str(output))}"] if output else []


def compare(
    before: Annotated[
        str, typer.Argument(metavar="RUN_A", help="name or folder of the earlier run")
    ],
    after: Annotated[str, typer.Argument(metavar="RUN_B", help="the run to judge")],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="policy file; default: the policy of RUN_B")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option("--variant", help="this one alone (repeatable)")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="folder, outside results/, for gate.json and report.html; default: "
            "comparisons/RUN_A-RUN_B in the working folder",
        ),
    ] = None,
    results: ResultsOption = None,
) -> None:
    """Gate the same weights in two runs: another engine version, or another machine.

    RUN_A stands for the baseline. Verdict and report are written aside, and nothing of either run.
    """
    from workbench.collect import refuse_folder, write_aside
    from workbench.compare_runs import compare_runs
    from workbench.context import open_run
    from workbench.errors import RecipeError
    from workbench.policy_findings import refuse_unknown
    from workbench.recipe import load_spec
    from workbench.spec import Policy
    from workbench.streams import console as _console

    for name, metavar in ((before, "RUN_A"), (after, "RUN_B")):
        if not name.strip():
            raise RecipeError(
                "an empty name is the name of no run",
                where=metavar,
                fix="name a run; a variable of the shell may not be set",
            )
    runs = open_run(before, results), open_run(after, results)
    folder = output or Path("comparisons") / "-".join(context.run.name for context in runs)
    for context in runs:
        refuse_folder(context, folder)
    given = load_spec(policy, Policy) if policy else None
    if policy and given:
        # The rest of a policy is not compared.
        asked = Policy(schema_=given.schema_, name=given.name, quality=given.quality)
        refuse_unknown(asked, runs[1].loaded.recipe, policy)
    record, evidence = compare_runs(*runs, given, variant or ())
    write_aside(runs[1], record, evidence, folder)
    verdict(_console(), record, None, _written(folder))
