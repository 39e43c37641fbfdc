"""`workbench suite new`: a suite from the rows of a CSV or JSONL file.

What can be known from the file is taken from it; what cannot is asked for, by an error that names
the option. An id comes from a column, or from the content of its row, so that sorting the file or
adding to it changes no id. Each right answer is graded before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from workbench.digest import canonical_json, content_id, sha256_file
from workbench.errors import SuiteError, did_you_mean
from workbench.prompts import is_field, placeholders
from workbench.scorers.custom import SIGNATURE
from workbench.suite_files import SAMPLES_FILE, SPEC_FILE, parse_object
from workbench.suite_rows import Row, read_rows
from workbench.suite_spec import SqlScorer
from workbench.suite_write import write_suite
from workbench.suites import Suite
from workbench.words import listed, shortened, shown
from workbench.yaml_file import BoundedLoader

#: Hex digits of a row's content id that make an id: two of 10,000 rows alike once in 5 million.
_ID_DIGITS = 12
#: Columns that say something about a sample and are not what it asks.
_ABOUT = ("id", "target", "choices", "language")
#: So many different targets are taken for the choices where none are given.
_CHOICES = (2, 20)
_JSON_TARGETS = ("json_fields", "tool_call")
#: Columns that an example of a prompt shows.
_NAMED = 5
_SCORER_FORM = "write a name, or its options as YAML: '{name: numeric, absolute: 0.5}'"
_ASK_SCORER = "say how an answer is judged: exact, normalized, contains, numeric, json_fields, ..."


@dataclass(frozen=True)
class Wanted:
    """The options of `workbench suite new`; empty ones are to be found in the file.

    Attributes:
        prompt: template; columns are its fields.
        target: column of the right answer.
        id: column of the id.
        ask: `generate` or `rank_choices`.
        scorer: a name, or a YAML mapping with options.
        choices: the same for every sample; of ranked ones the targets' own values by default.
        schema: file of a JSON schema of the answer.
        files: what the scorer needs, copied beside `suite.yaml`.
    """

    prompt: str = ""
    target: str = ""
    id: str = ""
    ask: str = ""
    scorer: str = ""
    choices: tuple[str, ...] = ()
    system: str = ""
    description: str = ""
    kind: str = ""
    max_tokens: int | None = None
    chat_template: bool = True
    cluster: str = ""
    schema: Path | None = None
    files: tuple[Path, ...] = ()


def new_suite(root: Path, name: str, source: Path, wanted: Wanted) -> Suite:
    """Make a suite's folder from a file of rows.

    Args:
        root: the folder that holds the suites.
        name: of the new one.
        source: CSV or JSONL.
        wanted: the options given.

    Raises:
        SuiteError: an option is missing or names what is not there, a row is broken, or the suite
            would not be sound; lines are those of the source.
    """
    if not name or Path(name).name != name:
        raise SuiteError(f"'{name}' is no name", where="NAME", fix="give a name, and no path")
    folder = root / name
    rows = _renamed(source, read_rows(source))
    columns = list(dict.fromkeys(name for row in rows for name in row.fields))
    scorer = _scorer(wanted, "choices" in columns)
    ranked = _is_ranked(wanted, columns, scorer)
    target = _column("--target", wanted.target, "target", columns, source)
    if ranked and not wanted.choices and "choices" not in columns:
        wanted = replace(wanted, choices=_choices(rows, target))
    key = _column("--id", wanted.id, "id" if "id" in columns else "", columns, source)
    for taken, said in (("target", target), ("id", key)):
        if taken in columns and said != taken:
            raise SuiteError(
                f"column '{taken}' is in the way: a sample's '{taken}' is to come from "
                f"{said or 'its content'}",
                where=f"{source}: {taken}",
                fix=f"rename that column, or say --{taken} {taken}",
            )
    cluster = _column("--cluster", wanted.cluster, "", columns, source)
    spec = {
        "kind": wanted.kind or ("classification" if ranked else "other"),
        "description": wanted.description or f"{len(rows)} samples made from {source.name}.",
        "ask": "rank_choices" if ranked else "generate",
        "chat_template": wanted.chat_template,
        "system": wanted.system or None,
        "prompt": wanted.prompt or _prompt(columns, (target, key, cluster), source),
        "max_tokens": wanted.max_tokens,
        "response_schema": _schema(wanted.schema),
        "scorer": scorer["name"] if len(scorer) == 1 else scorer,
        "cluster": cluster or None,
    }
    _known_fields(str(spec["prompt"]), columns)
    samples = [_sample(row, key, target, scorer, wanted, name, source) for row in rows]
    _distinct(samples, rows, key, source)
    files = {path.name: _text(path) for path in wanted.files}
    readme = _readme(name, spec, source, len(samples), key)
    try:
        return write_suite(folder, spec, samples, readme=readme, files=files)
    except SuiteError as bad:
        raise _at_source(bad, folder, source, rows, wanted.files) from None


def _is_ranked(wanted: Wanted, columns: Sequence[str], scorer: Mapping[str, Any]) -> bool:
    chosen = wanted.choices or "choices" in columns or scorer["name"] == "choice"
    return wanted.ask == "rank_choices" or (not wanted.ask and bool(chosen))


def _choices(rows: Sequence[Row], target: str) -> tuple[str, ...]:
    """The values of the target column, sorted: the order of the rows means nothing.

    Raises:
        SuiteError: too few of them are texts, or too many, to be what is chosen from.
    """
    values = [row.fields.get(target) for row in rows]
    texts = sorted({value for value in values if isinstance(value, str) and value})
    few, most = _CHOICES
    if not few <= len(texts) <= most:
        raise SuiteError(
            f"the choices are not known: column '{target}' has {len(texts)} different texts, and "
            f"{few} to {most} would be taken for the choices",
            where="--choices",
            fix="say --choices a,b, or give every row a list 'choices' in JSONL",
        )
    return tuple(texts)


def _scorer(wanted: Wanted, has_choices: bool) -> dict[str, Any]:
    if wanted.ask not in ("", "generate", "rank_choices"):
        raise SuiteError(
            f"a suite with 'ask: {wanted.ask}' cannot be made from rows alone",
            where="--ask",
            fix="say generate or rank_choices; for call_tools copy a suite and list its tools",
        )
    ranked = wanted.ask == "rank_choices" or (not wanted.ask and (has_choices or wanted.choices))
    if not wanted.scorer and not ranked:
        raise SuiteError("the scorer is not known", where="--scorer", fix=_ASK_SCORER)
    said = None
    try:
        said = yaml.load(wanted.scorer or "choice", BoundedLoader)
        canonical_json(said)
    except yaml.YAMLError as bad:
        said_of = getattr(bad, "problem", None) or str(bad)
        raise SuiteError(
            f"{shown(wanted.scorer)} is not valid YAML: {said_of}",
            where="--scorer",
            fix="a pattern with a backslash goes in single quotes: "
            "\"{name: regex, pattern: '\\d+'}\""
            if "escape" in said_of
            else _SCORER_FORM,
        ) from None
    except (ValueError, TypeError) as bad:
        if said is not None:
            raise SuiteError(
                f"an option holds what JSON has no word for: {bad}",
                where="--scorer",
                fix="write numbers, texts, true or false; .nan, .inf and dates are none of them",
            ) from None
    scorer = {"name": said} if isinstance(said, str) else said
    if not isinstance(scorer, dict) or not isinstance(scorer.get("name"), str):
        raise SuiteError(
            f"{shown(wanted.scorer)} names no scorer",
            where="--scorer",
            fix=_SCORER_FORM,
        )
    if scorer["name"] == "tool_call":
        raise SuiteError(
            "tool calls need 'tools', which a file of rows does not hold",
            where="--scorer",
            fix="copy a suite that calls tools, and change its suite.yaml and samples.jsonl",
        )
    needed = ""
    if scorer["name"] == "sql_result":
        needed = str(scorer.get("database", SqlScorer().database))
    elif scorer["name"] == "python":
        place = str(scorer.get("function", "")).partition(":")[0]
        needed = place if place.endswith(".py") else ""
        if not place:
            raise SuiteError(
                "the function is not known",
                where="--scorer",
                fix="name a function of your own: '{name: python, function: scorer.py:score}' with "
                "--file PATH/scorer.py, or 'function: module:score' of an installed module; "
                f"it is called as {SIGNATURE}",
            )
    if needed and needed not in [path.name for path in wanted.files]:
        raise SuiteError(
            f"the scorer needs the file '{needed}'",
            where="--file",
            fix=f"say --file PATH/{needed}: it is copied beside suite.yaml",
        )
    return scorer


def _column(option: str, said: str, default: str, columns: Sequence[str], source: Path) -> str:
    """A column by option, or by its own name; empty only where the default is."""
    name = said if said in columns else _field(said) if said else default
    if name and name not in columns:
        what = f"there is no column '{said}'" if said else f"no column is called '{default}'"
        raise SuiteError(
            what,
            where=f"{option} of {source}",
            fix=did_you_mean(said or default, columns)
            + f"say {option} COLUMN; columns: {listed(columns)}",
        )
    return name


def _prompt(columns: Sequence[str], used: Sequence[str], source: Path) -> str:
    left = [name for name in columns if name not in (*_ABOUT, *used)]
    if len(left) == 1:
        return f"{{{left[0]}}}"
    example = " ".join(f"{{{name}}}" for name in left[:_NAMED]) or "{column}"
    raise SuiteError(
        f"the prompt is not known: {source.name} has "
        + (f"the columns {listed(left)}" if left else "no column left that could be it"),
        where="--prompt",
        fix=f"write it with the columns as fields, such as --prompt '{example}'",
    )


def _known_fields(prompt: str, columns: Sequence[str]) -> None:
    try:
        names = placeholders(prompt)
    except ValueError as bad:
        raise SuiteError(str(bad), where="--prompt", fix="mend the template") from None
    for name in names:
        if name not in columns:
            raise SuiteError(
                f"the prompt shows '{{{name}}}', which is no column",
                where="--prompt",
                fix=did_you_mean(name, columns) + f"columns: {listed(columns)}",
            )


def _sample(
    row: Row,
    key: str,
    target: str,
    scorer: Mapping[str, Any],
    wanted: Wanted,
    name: str,
    source: Path,
) -> dict[str, Any]:
    where = f"{source}:{row.line}"
    fields = dict(row.fields)
    right = fields.pop(target, None)
    if right is None or right == "":
        raise SuiteError(f"'{target}' is empty", where=where, fix="every sample needs a target")
    if isinstance(right, str) and scorer["name"] in _JSON_TARGETS:
        try:
            right = parse_object(right)
        except ValueError as bad:
            raise SuiteError(
                f"'{target}': {bad}", where=where, fix="write the fields as a JSON object"
            ) from None
    said = fields.pop(key, None) if key else None
    if key and (said is None or said == ""):
        raise SuiteError(f"'{key}' is empty", where=where, fix="every sample needs an id")
    if isinstance(fields.get("choices"), str) and not wanted.choices:
        raise SuiteError(
            "'choices' is one text",
            where=where,
            fix="say --choices a,b for all samples, or give each a list in JSONL",
        )
    if wanted.choices:
        fields["choices"] = list(wanted.choices)
    sample = {**fields, "target": right}
    made = f"{name}-{content_id(row.fields)[:_ID_DIGITS]}"
    number = isinstance(said, int) and not isinstance(said, bool)
    return {"id": str(said) if number else said if key else made, **sample}


def _distinct(
    samples: Sequence[Mapping[str, Any]], rows: Sequence[Row], key: str, source: Path
) -> None:
    first: dict[Any, int] = {}
    for sample, row in zip(samples, rows, strict=True):
        before = first.setdefault(str(sample["id"]), row.line)
        if before != row.line:
            what = f"id '{sample['id']}' is used twice" if key else "the row is there twice"
            raise SuiteError(
                f"{what}, first in line {before}",
                where=f"{source}:{row.line}",
                fix="give it an id of its own" if key else "remove one of the two",
            )


def _renamed(source: Path, rows: Sequence[Row]) -> list[Row]:
    """Rows with columns as a template can name them: `Customer text` becomes `customer_text`."""
    names: dict[str, str] = {}
    for row in rows:
        for name in row.fields:
            field = _field(name)
            if names.setdefault(field, name) != name:
                raise SuiteError(
                    f"columns '{shortened(names[field])}' and '{shortened(name)}' would both be "
                    f"'{shortened(field)}'",
                    where=f"{source}:{row.line}",
                    fix="rename one of them",
                )
    return [row._replace(fields={_field(k): v for k, v in row.fields.items()}) for row in rows]


def _field(name: str) -> str:
    if is_field(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower()
    return plain if is_field(plain) else f"column_{plain or content_id(name)[:6]}"


def _schema(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        return parse_object(_text(path))
    except ValueError as bad:
        raise SuiteError(str(bad), where=str(path), fix="write a JSON schema") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SuiteError(
            f"there is no file {path.name}", where=str(path), fix="check the path"
        ) from None
    except UnicodeDecodeError as bad:
        raise SuiteError(
            f"not UTF-8: byte {bad.start} cannot be decoded", where=str(path), fix="save as UTF-8"
        ) from None


def _at_source(
    bad: SuiteError, folder: Path, source: Path, rows: Sequence[Row], files: Sequence[Path]
) -> SuiteError:
    """The same complaint about the rows and files it came from, which are still there."""

    def line(match: re.Match[str]) -> str:
        return f"{source}:{rows[int(match.group(1)) - 1].line}"

    def told(text: str) -> str:
        text = re.sub(rf"{re.escape(str(folder / SAMPLES_FILE))}:(\d+)", line, text)
        for path in files:
            text = text.replace(f"{folder / path.name}:", f"{path}:")
        return re.sub(rf"{re.escape(str(folder / SPEC_FILE))}:\d+", "the options", text)

    where = str(source) if bad.where == str(folder) and not folder.exists() else told(bad.where)
    return SuiteError(told(bad.what), where=where, fix=bad.fix)


def _readme(name: str, spec: Mapping[str, Any], source: Path, n: int, key: str) -> str:
    scorer = spec["scorer"] if isinstance(spec["scorer"], str) else spec["scorer"]["name"]
    ids = f"from column `{key}`" if key else "from each row's content: the order does not matter"
    return (
        f"# {name}\n\n{spec['description']}\n\n"
        f"- **Asked**: `{spec['ask']}`, "
        f"chat template {'applied' if spec['chat_template'] else 'not applied'}.\n"
        f"- **Scored**: by `{scorer}`.\n"
        f"- **Made** by `workbench suite new` from {n} rows of `{source.name}` "
        f"(sha256 {sha256_file(source)}); ids {ids}.\n"
        "- **Origin and licence**: say here who wrote the samples, and under which licence.\n"
    )
