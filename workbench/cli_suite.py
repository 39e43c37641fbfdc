"""`workbench suite`: list, check and make evaluation suites. Arguments and output only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from workbench.suite_check import Finding

suite_app = typer.Typer(
    help="Evaluation suites: the folders of eval_suites/.", no_args_is_help=True
)

_COLORS = {"ok": "green", "warn": "yellow", "error": "red"}


@suite_app.command("list")
def suite_list() -> None:
    """List the suites of the project, and what each is."""
    from workbench.errors import SuiteError
    from workbench.suites import load_suite, suite_names

    root = _root()
    names = suite_names(root)
    width = max(map(len, names), default=0)
    for name in names:
        try:
            suite = load_suite(root / name)
        except SuiteError as error:
            said = f"broken: {error.what.splitlines()[0]}"
        else:
            spec = suite.spec
            said = f"{len(suite.samples):>5} samples  {spec.kind}, {spec.ask}, {spec.scorer.name}"
            said += f", {spec.tier}: {spec.description}"
        typer.echo(_line(f"{name:<{width}}  {said}"))


@suite_app.command("check")
def suite_check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="default: all of them")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", help="measure prompts for this recipe's model")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="measure prompts for this checkpoint")
    ] = None,
) -> None:
    """Validate suites completely without a model: files, rules, and every target by its scorer."""
    from workbench.errors import SuiteError
    from workbench.suite_check import check_suite, open_model
    from workbench.suites import find_suite, load_suite, suite_names

    root = _root()
    model = open_model(recipe, checkpoint)
    errors = 0
    for name in names or suite_names(root):
        try:
            found = check_suite(load_suite(find_suite(name, root)), model)
        except SuiteError as error:
            errors += 1
            typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
            typer.echo(str(error), err=True)
            continue
        errors += _show(name, found)
    if errors:
        raise typer.Exit(2)


@suite_app.command("new")
def suite_new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the suite and its folder")],
    source: Annotated[Path, typer.Option("--from", help="rows: a .csv, .tsv or .jsonl file")],
    prompt: Annotated[str, typer.Option(help="template, columns as {fields}")] = "",
    target: Annotated[str, typer.Option(help="column of the right answer; default: target")] = "",
    id_: Annotated[
        str, typer.Option("--id", help="column of the id; default: id, or the row's content")
    ] = "",
    scorer: Annotated[
        str,
        typer.Option(
            help="a name, or as YAML: '{name: numeric, absolute: 0.5}'; your own: '{name: python, "
            "function: score.py:score}' with --file score.py, which holds def score(sample: dict, "
            "output: str) -> float, from 0 to 1"
        ),
    ] = "",
    ask: Annotated[
        str, typer.Option(help="generate or rank_choices; of --scorer choice: the second")
    ] = "",
    choices: Annotated[
        str, typer.Option(help="the same for all samples: a,b,c; default: the targets' own values")
    ] = "",
    system: Annotated[str, typer.Option(help="system message, sent as it is")] = "",
    description: Annotated[str, typer.Option(help="one sentence")] = "",
    kind: Annotated[str, typer.Option(help="the business case it stands for")] = "",
    cluster: Annotated[
        str, typer.Option(help="column whose equal values are not independent samples")
    ] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="of an answer")] = None,
    chat_template: Annotated[bool, typer.Option(help="apply the model's chat template")] = True,
    schema: Annotated[Path | None, typer.Option(help="JSON schema of an answer, a file")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="what the scorer needs, copied (repeatable)")
    ] = None,
) -> None:
    """Make a suite from the rows of a CSV or JSONL file. It never replaces one."""
    from workbench.suite_check import check_suite
    from workbench.suite_new import Wanted, new_suite

    wanted = Wanted(
        prompt=prompt,
        target=target,
        id=id_,
        ask=ask,
        scorer=scorer,
        choices=_split(choices),
        system=system,
        description=description,
        kind=kind,
        max_tokens=max_tokens,
        chat_template=chat_template,
        cluster=cluster,
        schema=schema,
        files=tuple(file or ()),
    )
    suite = new_suite(_root(), name, source, wanted)
    typer.echo(f"{suite.path}: {len(suite.samples)} samples, digest {suite.digest[:12]}")
    made = suite.samples[0].choices
    if made and not choices and all(sample.choices == made for sample in suite.samples):
        typer.echo(_line(f"choices, of every sample: {', '.join(made)}"))
    _show(name, [finding for finding in check_suite(suite) if finding.level == "warn"])
    typer.echo(f"say in {suite.path / 'README.md'} where they come from, then name it in a recipe")


def _split(choices: str) -> tuple[str, ...]:
    """`a,b` as a list; a choice that holds a comma is put in double quotes."""
    import csv

    cells = next(csv.reader([choices], skipinitialspace=True), [])
    return tuple(cell.strip() for cell in cells)


def _show(name: str, found: list[Finding]) -> int:
    """Print what was found; returns how many errors there are."""
    for finding in found:
        mark = typer.style(f"{finding.level:<5}", fg=_COLORS[finding.level])
        typer.echo(f"{mark} {_line(f'{name}: {finding.what}')}", err=finding.level == "error")
    return sum(finding.level == "error" for finding in found)


def _root() -> Path:
    from workbench.recipe import find_project

    return find_project(Path.cwd()) / "eval_suites"


def _line(text: str) -> str:
    """One line as a terminal may show it, at most 2,000 characters of it."""
    from workbench.words import plain, shortened

    return shortened(plain(text).replace("\n", "\\n"), 2000)
