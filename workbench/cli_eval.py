"""Commands about answers: `diff`, `rescore`, `suite from-regressions`. Arguments and output."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from workbench.rescore import SuiteRescore

RunName = Annotated[str, typer.Argument(metavar="RUN", help="name or folder of a run")]
VariantName = Annotated[str, typer.Argument(metavar="VARIANT", help="one of its variants")]
SuiteOption = Annotated[str, typer.Option("--suite", help="this suite alone; default: all")]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="results folder; default: results/ of the project")
]


#: Samples of a re-score that are named, and characters of one name; the rest is counted.
_NAMED = 5
_LONGEST_ID = 40


def register(app: typer.Typer) -> None:
    """Add the commands; `from-regressions` to the group `suite`, which is made where missing."""
    app.command()(diff)
    app.command()(rescore)
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    suite = groups.get("suite")
    if suite is None:
        suite = typer.Typer(help="Evaluation suites.", no_args_is_help=True)
        app.add_typer(suite, name="suite")
    suite.command("from-regressions")(from_regressions)


def diff(
    run: RunName,
    variant: VariantName,
    suite: SuiteOption = "",
    only: Annotated[
        str, typer.Option("--only", metavar="KIND", help="regressed, improved, changed or unscored")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="most samples that are shown; 0 is all")
    ] = 20,
    results: ResultsOption = None,
) -> None:
    """Show baseline and variant answers side by side, worst first."""
    from workbench.context import open_run
    from workbench.differences import diff as compare
    from workbench.report.differences import differences_view
    from workbench.streams import console as _console

    # What is not one of the four is refused there, with the nearest one.
    found = compare(open_run(run, results), variant, suite, only or None)  # type: ignore[arg-type]
    _console().print(differences_view(found.head(limit) if limit else found), highlight=False)


def rescore(run: RunName, results: ResultsOption = None) -> None:
    """Score a finished run again with the suites as they are now; no model is asked."""
    from rich.markup import escape

    from workbench.cli_gate import verdict
    from workbench.context import open_run
    from workbench.recipe import changed_since
    from workbench.rescore import rescore as score_again
    from workbench.streams import console as _console

    context = open_run(run, results)
    suites, record = score_again(context)
    console = _console()
    with contextlib.suppress(OSError):
        console.print(_rescored(suites), highlight=False)
    said = [
        f"{one.failed} answers of {one.variant} on {one.suite} are kept without a score: "
        f"{one.failure}; mend the scorer and do this again"
        for one in suites
        if one.failed
    ]
    if changed := changed_since(context.loaded):
        said.append(f"{changed}; scored as the run was started: {context.command} applies it")
    verdict(console, record, context.run, [f"[yellow]warn[/] {escape(text)}" for text in said])


def _rescored(suites: Sequence[SuiteRescore]) -> RenderableType:
    """The results whose scores changed as a table; the others as one line each kind."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from workbench.report.text import percent, plain

    table = Table(title="scored again, nothing was asked", title_justify="left")
    for column in ("variant", "suite", "answers", "changed", "before", "now", "changed samples"):
        table.add_column(column, no_wrap=column in ("before", "now"))
    changed = [one for one in suites if one.changed]
    for one in changed:
        named = ", ".join(plain(id_, _LONGEST_ID) for id_ in one.samples[:_NAMED])
        rest = len(one.samples) - _NAMED
        table.add_row(
            Text(one.variant),
            Text(one.suite + (" (second pass)" if one.again else "")),
            str(one.n),
            str(one.changed),
            percent(one.before),
            percent(one.after),
            Text(named + (f" and {rest} more" if rest > 0 else "")),
        )
    others = len(suites) - len(changed)
    kept = Counter(one.kept for one in suites if one.kept)
    aside = "".join(f"; {n} not scored again: {why}" for why, n in kept.items())
    if not changed:
        return Text(f"scored again, nothing was asked: no score of {others} results changed{aside}")
    return (
        Group(table, Text(f"{others} other results: no score changed{aside}")) if others else table
    )


def from_regressions(
    run: RunName,
    variant: VariantName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the new suite")],
    suite: SuiteOption = "",
    results: ResultsOption = None,
) -> None:
    """Make a suite of the samples a variant answers worse than its reference."""
    from workbench.context import open_run
    from workbench.regressions import ADVICE, export
    from workbench.report.text import plain

    made = export(open_run(run, results), variant, name, suite)
    for one in made.written:
        typer.echo(f"{one.folder}: {one.samples} samples of {one.suite}")
    for skipped, why in made.skipped.items():
        typer.echo(plain(f"{skipped}: nothing made of it: {why}", 1000))
    for unscored, n in made.unscored.items():
        typer.echo(
            f"{unscored}: {n} samples have no score on a side and may have regressed, too; "
            f"workbench diff {run} {variant} --only unscored shows them"
        )
    if not made.written:
        typer.echo(f"no sample of {variant} regressed that could be exported; nothing is written")
    else:
        names = ", ".join(one.folder.name for one in made.written)
        typer.echo(f"ask them from now on: add {names} to evaluate.suites of the recipe,")
        typer.echo("and to quality of the policy:")
        for one in made.written:
            typer.echo(f"  {one.policy_line}")
            if one.too_small:
                typer.echo(f"  ({one.too_small})")
        typer.echo(ADVICE)
