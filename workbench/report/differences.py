"""Differences as a table: HTML for a notebook, text for a terminal or a log. Pure.

What a model wrote goes through `text.visible` or `text.plain`: escaped, cut, and with control codes
spelled out, so that no answer can colour, move or forge what stands around it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from markupsafe import Markup, escape
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.report import text

if TYPE_CHECKING:
    from workbench.differences import Difference, Differences
    from workbench.paired import Answers

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;white-space:pre-wrap"
_WIDTH = 110


def summary(found: Differences) -> list[str]:
    """What there is, in lines: one for each suite, and one for the variant."""
    lines = [f"{found.variant} beside {found.reference}, run '{found.run}'"]
    for c in found.counts:
        way = "" if c.higher_is_better else " (lower scores are better)"
        lines.append(
            f"{c.suite}: of {c.n} samples {c.regressed} regressed, {c.improved} improved, "
            f"{c.changed} changed with the same score{way}"
            + (f", {c.unscored} have no score on a side, so no verdict counts the suite")
            * bool(c.unscored)
        )
    lines += [f"{suite}: cannot be compared: {why}" for suite, why in found.refused.items()]
    if not found.counts and not found.refused:
        lines.append("no suite was asked of both yet")
    return lines


def _rest(found: Differences) -> str:
    rest = len(found.items) - len(found.shown)
    return f"and {rest} more" if rest else ""


def _said(answers: Answers) -> str:
    """Score, flags and finish reasons of one side, in words."""
    why = answers.unscored
    parts = [f"no score: {text.plain(why)}" if why else f"score {text.number(answers.score)}"]
    if answers.finish_reasons:
        parts.append(text.plain(answers.finish_reasons))
    parts += text.flag_words(answers.flags, len(answers.rows))
    if len(answers.rows) > 1:
        parts.append(f"mean of {len(answers.rows)}")
    return ", ".join(parts)


# --------------------------------------------------------------------------- HTML


def differences_html(found: Differences) -> str:
    """A self-contained table; every text of a model escaped."""
    first, *others = summary(found)
    parts = [Markup("<div><p><b>{}</b></p>").format(first)]
    parts += [Markup("<p>{}</p>").format(text.visible(line, 2000)) for line in others]
    if found.shown:
        head = ("sample", "asked", "expected", found.reference, found.variant)
        cells = Markup("").join(Markup('<th style="{}">{}</th>').format(_CELL, h) for h in head)
        lines = Markup("").join(_html_row(item) for item in found.shown)
        parts.append(
            Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
                cells, lines
            )
        )
    if rest := _rest(found):
        parts.append(Markup("<p>{}</p>").format(rest))
    return str(Markup("").join(parts) + Markup("</div>"))


def _html_row(item: Difference) -> Markup:
    name = Markup("{}<br>{}<br><b>{}</b>").format(item.suite, text.visible(item.id), item.change)
    cells = [name]
    target = item.target if item.target is None else text.targets_apart(item.target)
    cells += [escape("") if t is None else text.visible(t) for t in (item.question, target)]
    cells += [_html_answers(side) for side in (item.baseline, item.variant)]
    return Markup("<tr>{}</tr>").format(
        Markup("").join(Markup('<td style="{}">{}</td>').format(_CELL, cell) for cell in cells)
    )


def _html_answers(answers: Answers) -> Markup:
    outputs = Markup("<hr>").join(
        text.visible(text.calls_apart(row.output)) for row in answers.rows
    )
    return Markup("{}<br><i>{}</i>").format(outputs, _said(answers))


# --------------------------------------------------------------------------- terminal


def differences_view(found: Differences) -> RenderableType:
    """The table for a terminal. Nothing a model wrote is read as markup."""
    first, *others = summary(found)
    parts: list[RenderableType] = [Text(first, "bold")]
    parts += [Text(text.plain(line, 2000)) for line in others]
    if found.shown:
        table = Table(show_lines=True, expand=True)
        table.add_column("sample", ratio=3, overflow="fold")
        table.add_column("asked and expected", ratio=6, overflow="fold")
        for name in (found.reference, found.variant):
            table.add_column(Text(name), ratio=6, overflow="fold")
        for item in found.shown:
            table.add_row(
                _name(item),
                _asked(item),
                _answers(item.baseline),
                _answers(item.variant),
            )
        parts.append(table)
    if rest := _rest(found):
        parts.append(Text(rest))
    return Group(*parts)


def differences_text(found: Differences, width: int = _WIDTH) -> str:
    """The table as plain text of so many columns."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        color_system=None,
        emoji=False,
        force_terminal=False,
        force_jupyter=False,  # in a kernel it would show the table, in colours, and return nothing
    )
    console.print(differences_view(found), highlight=False)
    return buffer.getvalue().rstrip("\n")


def _name(item: Difference) -> Text:
    style = {"regressed": "red", "improved": "green", "unscored": "yellow"}.get(item.change, "")
    return Text.assemble(
        f"{item.suite}\n{text.plain(item.id)}\n",
        (f"{item.change} {text.signed_points(-item.loss)}" if item.loss else item.change, style),
    )


def _asked(item: Difference) -> Text:
    if item.question is None or item.target is None:
        return Text("the suite changed since", "dim")
    return Text.assemble(
        text.plain(item.question),
        ("\nexpected: ", "dim"),
        text.plain(text.targets_apart(item.target)),
    )


def _answers(answers: Answers) -> Text:
    outputs = "\n---\n".join(text.plain(text.calls_apart(row.output)) for row in answers.rows)
    return Text.assemble(outputs, (f"\n{_said(answers)}", "dim"))
