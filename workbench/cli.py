"""The command line: arguments, output and exit codes, nothing else.

Exit codes: 0 GO or GO WITH WAIVER (or done), 10 NO-GO, 11 INCONCLUSIVE, 2 bad input, 3 environment
or serving failure, 1 a bug, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench import __version__, capacity_view, cli_eval, cli_gate, cli_load, streams
from workbench.cli_suite import suite_app
from workbench.errors import RecipeError, WorkbenchError
from workbench.streams import console as _console

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.display import ProgressLine
    from workbench.records import Environment
    from workbench.validate import Finding

#: Steps still to do that are named; the rest is counted.
_NAMED = 5

app = typer.Typer(
    help="Quantize a checkpoint, serve every variant, and answer: may it ship?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
env_app = typer.Typer(
    help="The isolated environments of quantizers and servers.", no_args_is_help=True
)
app.add_typer(env_app, name="env")
app.add_typer(suite_app, name="suite")

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="recipe file (YAML)")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="name of a run; default: the last one")]
RunOption = Annotated[str, typer.Option("--run", help="name of the run; default: the recipe's")]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="results folder; default: results/ of the project")
]


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    pass


@app.command()
def validate(recipe: RecipePath, run: RunOption = "", results: ResultsOption = None) -> None:
    """Check everything that can be checked before a model is loaded."""
    from rich.markup import escape

    from workbench.context import new_run
    from workbench.validate import validate as check
    from workbench.words import plain

    context = new_run(recipe, run, results)
    console = _console()
    findings = check(context)
    for finding in findings:
        mark = "[green]ok  [/]" if finding.level == "ok" else "[yellow]warn[/]"
        console.print(mark, escape(plain(finding.what)), highlight=False, soft_wrap=True)
    warnings = sum(f.level == "warn" for f in findings)
    text = f"{recipe} is valid" + (f", with {warnings} to look at" if warnings else "")
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _warn(console: Console, findings: Iterable[Finding]) -> None:
    from rich.markup import escape

    from workbench.words import plain

    for finding in findings:
        if finding.level == "warn":
            console.print(
                "[yellow]warn[/]", escape(plain(finding.what)), highlight=False, soft_wrap=True
            )


@app.command()
def plan(recipe: RecipePath, run: RunOption = "", results: ResultsOption = None) -> None:
    """Show the steps: ids, what is cached and why, time and memory; what each suite can show."""
    from workbench.context import new_run
    from workbench.display import plan_table, power_table
    from workbench.validate import validate as check

    console = _console()
    context = new_run(recipe, run, results)
    _warn(console, check(context))
    console.print(plan_table(context.plan()))
    if found := context.power():
        console.print(power_table(found))


@app.command()
def run(
    recipe: RecipePath,
    run: RunOption = "",
    only: Annotated[
        str, typer.Option("--only", metavar="STEP", help="run this step or kind of step alone")
    ] = "",
    force: Annotated[
        list[str] | None,
        typer.Option("--force", metavar="STEP", help="do this step or kind again (repeatable)"),
    ] = None,
    results: ResultsOption = None,
) -> None:
    """Run what is not done yet, to the verdict. Safe to stop and to repeat at any moment."""
    from rich.markup import escape

    from workbench.context import new_run
    from workbench.display import own_time, watching
    from workbench.records import Plan
    from workbench.run import run as run_steps
    from workbench.validate import validate as check

    console = _console()
    context = new_run(recipe, run, results)
    findings = check(context)

    @contextlib.contextmanager
    def shown(plan: Plan) -> Iterator[None]:
        _warn(console, findings)
        with watching(plan, context.run.events, console):
            yield

    outcome = run_steps(context, only=only, force=force or (), shown=shown)
    said = []
    if outcome.tool_seconds:
        said.append(own_time(outcome.seconds, outcome.tool_seconds))
    if outcome.open_:
        some = ", ".join(f"{s.name} ({s.reason})" for s in outcome.open_[:_NAMED])
        more = f" and {len(outcome.open_) - _NAMED} more" if len(outcome.open_) > _NAMED else ""
        text = f"still to do: {some}{more}; {context.command} does them"
        said.append(f"[yellow]warn[/] {escape(text)}")
    if outcome.gate is not None:
        cli_gate.verdict(console, outcome.gate, context.run, said)
    for line in said:
        console.print(line, highlight=False, soft_wrap=True)


cli_gate.register(app)


@app.command()
def report(run: RunName = "", results: ResultsOption = None) -> None:
    """Write report.html again from the records of a run, and print its path."""
    from workbench import collect
    from workbench.context import open_run

    context = open_run(run, results)
    collect.report(context)
    typer.echo(context.run.report)


@app.command()
def support(
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="say what each format does to this one")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="a GPU this machine does not have, or 'all' (repeatable)"),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="compute dtype; default: what a run would choose")
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say which format runs how, under which engine: on this machine, or on a named GPU."""
    from workbench.matrix_view import show

    show(_console(), checkpoint, gpu or [], dtype, json_)


@app.command()
def doctor(results: ResultsOption = None) -> None:
    """Say what this machine has, and what can run on it."""
    from workbench.doctor import diagnose
    from workbench.recipe import find_project

    console = _console()
    findings = diagnose(results or find_project(Path.cwd()) / "results")
    marks = {"ok": "[green]ok     [/]", "warn": "[yellow]warn   [/]", "missing": "[red]missing[/]"}
    for finding in findings:
        console.print(marks[finding.ok], f"{finding.name}: {finding.detail}", highlight=False)
        if finding.fix:
            console.print(f"        fix: {finding.fix}", highlight=False, markup=False)


@app.command()
def demo(
    tiny: Annotated[
        bool, typer.Option("--tiny", help="the random one of the smoke recipe instead: a second")
    ] = False,
    results: ResultsOption = None,
) -> None:
    """Build the demo checkpoint, SmolLM2-135M-Instruct, if it is not there yet."""
    from workbench.demo import DEMO_NAME, make_demo_checkpoint, make_tiny_checkpoint
    from workbench.hardware import detect
    from workbench.recipe import find_project

    console = _console()
    root = results or find_project(Path.cwd()) / "results"
    if tiny:
        path = make_tiny_checkpoint(root / "checkpoints" / "tiny")
        console.print(f"tiny checkpoint: {path}", highlight=False, markup=False, soft_wrap=True)
        return
    work = root / ".cache" / "demo"
    environment = _ensure(console, "quantize", detect().target)
    with _progress(console) as progress:
        path = make_demo_checkpoint(
            root / "checkpoints" / DEMO_NAME,
            python=environment,
            folder=work,
            log=work / "demo.log",
            progress=progress,
        )
    console.print(f"demo checkpoint: {path}", highlight=False, markup=False, soft_wrap=True)


@env_app.command("create")
def env_create(
    names: Annotated[
        list[str] | None, typer.Argument(help="default: all that this machine can use")
    ] = None,
) -> None:
    """Create environments, some side by side, or finish ones that were cut short."""
    from workbench import envs
    from workbench.hardware import detect

    console = _console()

    def ready(name: str, made: Environment) -> None:
        said = f"{name}: ready, {made.python}"
        console.print(said, highlight=False, markup=False, soft_wrap=True)

    with _progress(console) as progress:
        lines: dict[str, ProgressLine] = defaultdict(progress.another)
        envs.ensure_all(names or envs.DEFAULT, detect().target, lines.__getitem__, ready)


@env_app.command("list")
def env_list() -> None:
    """List the environments, whether they are there, and what they are for."""
    from rich.table import Table

    from workbench import envs
    from workbench.hardware import detect

    table = Table()
    for column in ("name", "state", "size", "lock", "for"):
        table.add_column(column)
    for row in envs.listing(detect().target):
        table.add_row(row.name, row.state, row.size, row.lock_digest[:12], row.purpose)
    _console().print(table)


@env_app.command("verify")
def env_verify(
    names: Annotated[list[str] | None, typer.Argument(help="default: all that are there")] = None,
) -> None:
    """Import what each environment is for, and compare every version with its lock."""
    from workbench import envs
    from workbench.hardware import detect

    target = detect().target
    for name in names or [r.name for r in envs.listing(target) if r.state == "ready"]:
        environment = envs.verify(name, target)
        typer.echo(f"{name}: {len(environment.packages)} packages as pinned")


def _ensure(console: Console, name: str, target: str) -> str:
    from workbench import envs

    with _progress(console) as progress:
        return envs.ensure(name, target, progress).python  # type: ignore[arg-type]


def _progress(console: Console) -> ProgressLine:
    from workbench.display import ProgressLine

    return ProgressLine(console)


cli_eval.register(app)
capacity_view.register(app)
cli_load.register(app)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse an argument that is empty: a shell variable nobody set must not mean the default.

    Raises:
        RecipeError: one is.
    """
    for before, word in zip(["", *words], words, strict=False):
        if not word or re.fullmatch(r"--[a-z-]+=", word):
            raise RecipeError(
                "an argument is empty",
                where=word or (f"after {before}" if before else "the first one"),
                fix="say what is meant, or leave it out; is it a shell variable that is not set?",
            )


def _called() -> Any:
    _refuse_empty(sys.argv[1:])
    try:
        return app(standalone_mode=False)
    except RuntimeError as error:
        # As Path.resolve() says it before Python 3.13; any other one is a bug.
        loop = re.fullmatch(r"Symlink loop from '(.*)'", str(error))
        if loop is None:
            raise
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), loop[1]) from None


def main() -> None:
    """Entry point: run the command, turn errors of ours into a message and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    streams.mend()
    try:
        code = _called()
    except WorkbenchError as error:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        code = 3  # whoever read our output is gone; the records are on disk
    except OSError as error:
        typer.echo(f"error: {error.strerror or error}", err=True)
        typer.echo(f"  where: {str(error.filename or 'the file system')[:400]}", err=True)
        typer.echo("  fix:   check that the path can be written and is what it should be", err=True)
        # What cannot be a path was not the machine's doing.
        code = 2 if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP) else 3
    except Exception as error:
        # Usage errors know how to show themselves; anything else is a bug and keeps its traceback.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        code = getattr(error, "exit_code", 2)
    if code == 130:
        typer.echo("interrupted; the same command goes on where it stopped", err=True)
    streams.end()
    sys.exit(code)
