"""Load an evaluation suite and check it completely, without a model.

A suite is a folder: `suite.yaml` says how the samples are asked and scored, `samples.jsonl` holds
one sample a line, each with an id that never changes. What is wrong is collected (the first ten
problems, each with file and line) and raised as one error, so that a broken file is mended in one
go. A byte order mark, CRLF line ends, blank lines and the order of keys are taken as they come and
do not change the digest.

The prompt is a template: `{field}` stands for that field of the sample, `{{` and `}}` for braces.
There is no format specification and no attribute access, so a suite cannot reach into the program.
`system` is sent as it is written. It does not ask or score anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pydantic import ValidationError

from workbench.digest import canonical_json, content_id
from workbench.errors import SuiteError, did_you_mean
from workbench.recipe import load_spec
from workbench.scorers import check_target
from workbench.spec import Sample, SuiteSpec

SPEC_FILE = "suite.yaml"
SAMPLES_FILE = "samples.jsonl"

_MOST_PROBLEMS = 10
#: Fields a prompt must not show: the answer, and a name that says nothing about the question.
_HIDDEN = ("target", "id")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Renderer(Protocol):
    """What renders a chat: `workbench.tokenizer.Tokenizer` does."""

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """The text of a chat in the model's own template."""


@dataclass(frozen=True)
class Suite:
    """A suite that was checked.

    Attributes:
        spec: how samples are asked and scored.
        samples: in file order; ids are unique.
        digest: content id of spec and samples, whatever the files' formatting.
        path: its folder.
        resources: file name -> text of the files its scorer needs; part of the digest.
    """

    spec: SuiteSpec
    samples: tuple[Sample, ...]
    digest: str
    path: Path
    resources: Mapping[str, str] = field(default_factory=dict)


def find_suite(name: str, root: Path) -> Path:
    """The folder of a suite.

    Args:
        name: as a recipe writes it.
        root: the folder that holds the suites.

    Raises:
        SuiteError: there is none of that name.
    """
    folder = root / name
    if (folder / SPEC_FILE).is_file():
        return folder
    known = sorted(p.parent.name for p in root.glob(f"*/{SPEC_FILE}"))
    if folder.is_dir():
        raise SuiteError(
            f"suite '{name}' has no {SPEC_FILE}",
            where=str(folder),
            fix=f"copy the {SPEC_FILE} of another suite and change it",
        )
    listing = f"suites: {', '.join(known)}" if known else "there are no suites in that folder"
    raise SuiteError(
        f"there is no suite '{name}'", where=str(root), fix=did_you_mean(name, known) + listing
    )


def load_suite(path: Path) -> Suite:
    """Load and check one suite.

    Args:
        path: its folder.

    Raises:
        SuiteError: everything that is wrong, up to ten problems, each with file and line.
    """
    spec_file, samples_file = path / SPEC_FILE, path / SAMPLES_FILE
    spec = load_spec(spec_file, SuiteSpec, SuiteError)
    problems = [
        _Problem(f"{spec_file}:{_line_of(spec_file, key)}", what, fix)
        for key, what, fix in _spec_problems(spec, path.resolve().name)
    ]
    samples: list[Sample] = []
    lines: dict[str, int] = {}
    check = _SampleCheck(
        Suite(spec, (), "", path),
        schema_usable=not any("response_schema" in p.what for p in problems),
    )
    for number, raw in _lines(samples_file):
        where = f"{samples_file}:{number}"
        try:
            sample = _parse(raw)
        except ValueError as bad:
            problems.append(_Problem(where, str(bad), ""))
            continue
        if sample.id in lines:
            first = f"{samples_file}:{lines[sample.id]}"
            problems.append(
                _Problem(
                    where,
                    f"id '{sample.id}' is used twice, first in {first}",
                    "ids pair a variant with the baseline: give this sample one of its own",
                )
            )
            continue
        lines[sample.id] = number
        samples.append(sample)
        problems += [_Problem(where, what, fix) for what, fix in check.problems(sample)]
    if not lines and not problems:
        problems.append(
            _Problem(str(samples_file), "the suite has no sample", "write one JSON object a line")
        )
    if problems:
        _refuse(path, problems)
    digest = content_id({"spec": _dump(spec), "samples": [_dump(s) for s in samples]})
    return Suite(spec, tuple(samples), digest, path)


def placeholders(template: str) -> tuple[str, ...]:
    """Names of the fields a template uses, in order of first use.

    Raises:
        ValueError: a single brace, or something in braces that is not the name of a field.
    """
    names: dict[str, None] = {}
    for match in _PIECE.finditer(template):
        piece, name = match.group(), match.group(1)
        if name is not None:
            if not _FIELD.match(name):
                raise ValueError(
                    f"'{piece}' is not a field: write {{name}} with letters, digits and _, "
                    "or double the braces to show them"
                )
            names[name] = None
        elif len(piece) == 1:
            raise ValueError(f"a single '{piece}': double it to show a brace")
    return tuple(names)


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """Put fields into a template.

    A text is put in as it is, a list of texts joined with commas, anything else as compact JSON.

    Raises:
        KeyError: a field is not there.
        ValueError: see `placeholders`.
    """
    placeholders(template)

    def put(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else _as_text(fields[name])

    return _PIECE.sub(put, template)


def render_prompt(spec: SuiteSpec, sample: Sample, renderer: Renderer) -> str:
    """The exact text that is sent for a sample; for `rank_choices`, what stands before a choice."""
    user = fill(spec.prompt or "", sample.model_dump())
    if not spec.chat_template:
        return user
    messages = [{"role": "system", "content": spec.system}] if spec.system is not None else []
    return renderer.render([*messages, {"role": "user", "content": user}], True)


# --------------------------------------------------------------------------- what can be wrong


@dataclass(frozen=True)
class _Problem:
    where: str
    what: str
    fix: str


def _refuse(path: Path, problems: Sequence[_Problem]) -> NoReturn:
    if len(problems) == 1:
        (only,) = problems
        raise SuiteError(only.what, where=only.where, fix=only.fix or "mend that line")
    shown = [
        f"  {p.where}: {p.what}{f' ({p.fix})' if p.fix else ''}" for p in problems[:_MOST_PROBLEMS]
    ]
    if len(problems) > _MOST_PROBLEMS:
        shown.append(f"  and {len(problems) - _MOST_PROBLEMS} more")
    raise SuiteError(
        f"suite '{path.name}' has {len(problems)} problems:\n" + "\n".join(shown),
        where=str(path),
        fix="mend each line named",
    )


def _spec_problems(spec: SuiteSpec, folder: str) -> Iterator[tuple[str, str, str]]:
    """What is wrong with `suite.yaml` beyond its types: (key, what, fix)."""
    if spec.name != folder:
        yield "name", f"the suite is called '{spec.name}' in a folder '{folder}'", "rename one"
    ranked = spec.ask == "rank_choices"
    if ranked != (spec.scorer.name == "choice"):
        yield (
            "scorer",
            f"scorer '{spec.scorer.name}' does not fit 'ask: {spec.ask}'",
            "'choice' goes with 'rank_choices', the others with 'generate'",
        )
    if ranked and spec.response_schema is not None:
        yield "response_schema", "'response_schema' has no effect on ranked choices", "remove it"
    if spec.system is not None and not spec.chat_template:
        yield (
            "system",
            "'system' needs 'chat_template: true'",
            "write its text into 'prompt' where the model has no chat template",
        )
    try:
        names = placeholders(spec.prompt or "")
    except ValueError as bad:
        yield "prompt", f"'prompt': {bad}", ""
    else:
        if not names:
            yield "prompt", "'prompt' uses no field of the sample", "write one as {field}"
        for name in sorted(set(names) & set(_HIDDEN)):
            yield "prompt", f"'prompt' shows '{{{name}}}'", "the model must not see that field"
    if spec.response_schema is not None:
        complaint = _schema_complaint(spec.response_schema)
        if complaint:
            yield "response_schema", f"'response_schema' is not a JSON schema: {complaint}", ""


def _schema_complaint(schema: dict[str, Any]) -> str | None:
    import jsonschema

    try:
        canonical_json(schema)
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as bad:
        return f"{bad.message} at {bad.json_path}"
    except (TypeError, ValueError) as bad:
        return str(bad)
    return None


class _SampleCheck:
    """What can be said against one sample of a suite."""

    def __init__(self, suite: Suite, *, schema_usable: bool) -> None:
        import jsonschema

        spec = suite.spec
        self._suite = suite
        try:
            self._fields = placeholders(spec.prompt or "")
        except ValueError:
            self._fields = ()
        usable = (
            schema_usable and spec.response_schema is not None and spec.scorer.name == "json_fields"
        )
        self._validator = (
            jsonschema.Draft202012Validator(spec.response_schema or {}) if usable else None
        )

    def problems(self, sample: Sample) -> Iterator[tuple[str, str]]:
        """Each problem as (what, fix)."""
        fields = sample.model_dump()
        for name in self._fields:
            if fields.get(name) is None and name not in _HIDDEN:
                known = [k for k in fields if k not in _HIDDEN]
                yield (
                    f"field '{name}', which the prompt uses, is missing",
                    did_you_mean(name, known).strip(),
                )
        complaint = check_target(self._suite, sample)
        if complaint:
            yield complaint, ""
        elif self._validator is not None:
            for bad in self._validator.iter_errors(sample.target):
                yield (
                    f"'target' does not fit 'response_schema': {bad.message} at {bad.json_path}",
                    "no answer could be right",
                )
                break


# --------------------------------------------------------------------------- reading samples


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SuiteError(
            f"there is no {path.name}", where=str(path), fix="write one JSON object a line"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        at = data.count(b"\n", 0, bad.start) + 1
        raise SuiteError(
            f"not UTF-8: byte {bad.start} (0x{data[bad.start]:02x}) cannot be decoded",
            where=f"{path}:{at}",
            fix="save the file as UTF-8",
        ) from None
    # Not splitlines: a sample may hold U+2028 and other characters it takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _parse(line: str) -> Sample:
    """One sample.

    Raises:
        ValueError: says what is wrong with the line.
    """
    try:
        value = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as bad:
        raise ValueError(f"not JSON: {bad.msg} at column {bad.colno}") from None
    except RecursionError:
        raise ValueError("not usable: nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("the line is not a JSON object")
    try:
        canonical_json(value).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("a \\u escape names half a character (a lone surrogate)") from None
    try:
        return Sample.model_validate(value)
    except ValidationError as bad:
        detail = bad.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        if detail["type"] == "missing":
            near = did_you_mean(key, value).strip()
            raise ValueError(f"'{key}' is missing" + (f": {near}" if near else "")) from None
        raise ValueError(f"'{key}': {detail['msg']}, not {detail['input']!r}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key '{twice}' is given twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _line_of(path: Path, key: str) -> int:
    """Line of a top-level key; 1 where it is left to its default."""
    start = re.compile(rf"[\"']?{re.escape(key)}[\"']?\s*:")
    for number, line in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
        if start.match(line):
            return number
    return 1


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return canonical_json(value).decode()


def _dump(model: SuiteSpec | Sample) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)
