"""Load an evaluation suite and check it completely, without a model.

A suite is a folder: `suite.yaml` says how the samples are asked and scored, `samples.jsonl` holds
one sample a line, each with an id that never changes. A suite may instead take the samples of one
beside it (`samples_of`), to ask the same in another way. What is wrong is collected (the first ten
problems, each with file and line) and raised as one error, so that a broken file is mended in one
go. The formatting of the files does not change the digest; what a scorer reads beside them does.

The rules are in `workbench.suite_problems`, files in `workbench.suite_files`, templates in
`workbench.prompts`. It does not ask or score anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from workbench.complaints import locate
from workbench.digest import canonical_json, content_id
from workbench.errors import SuiteError, did_you_mean
from workbench.prompts import Renderer as Renderer
from workbench.prompts import chat_messages as chat_messages
from workbench.prompts import fields_shown as fields_shown
from workbench.prompts import fill as fill
from workbench.prompts import placeholders as placeholders
from workbench.prompts import render_prompt as render_prompt
from workbench.recipe import load_spec
from workbench.scorers import check_scorer
from workbench.scorers.custom import module_source
from workbench.suite_files import SAMPLES_FILE as SAMPLES_FILE
from workbench.suite_files import SPEC_FILE as SPEC_FILE
from workbench.suite_files import lines, parse_sample, read_resource, resource_names
from workbench.suite_problems import SampleCheck, SpecProblem, in_no_sample, spec_problems
from workbench.suite_spec import Sample, SuiteSpec
from workbench.suite_words import misread
from workbench.words import shortened
from workbench.yaml_file import read_yaml

_MOST_PROBLEMS = 10
#: Characters of one problem.
_MOST_SAID = 1000


@dataclass(frozen=True)
class Suite:
    """A suite that was checked.

    Attributes:
        spec: how samples are asked and scored.
        samples: in file order; ids are unique.
        digest: content id of spec, samples and resources, whatever the files' formatting.
        path: its folder.
        resources: file name -> text of the files its scorer needs; part of the digest.
    """

    spec: SuiteSpec
    samples: tuple[Sample, ...]
    digest: str
    path: Path
    resources: Mapping[str, str] = field(default_factory=dict)


def cluster_of(spec: SuiteSpec, sample: Sample) -> str | None:
    """What a sample is not independent of, as its row has it; None: of no other sample."""
    value = sample.model_dump().get(spec.cluster) if spec.cluster else None
    return value if value is None or isinstance(value, str) else canonical_json(value).decode()


def suite_names(root: Path) -> list[str]:
    """Names of the suites in a folder, sorted."""
    return sorted(p.parent.name for p in root.glob(f"*/{SPEC_FILE}"))


def find_suite(name: str, root: Path) -> Path:
    """The folder of a suite.

    Args:
        name: as a recipe writes it.
        root: the folder that holds the suites.

    Raises:
        SuiteError: there is none of that name.
    """
    folder = root / name
    known = suite_names(root)
    if name in known:
        return folder
    if Path(name).name == name and folder.is_dir():
        raise SuiteError(
            f"suite '{name}' has no {SPEC_FILE}",
            where=str(folder),
            fix=f"copy the {SPEC_FILE} of another suite and change it",
        )
    listing = f"suites: {', '.join(known)}" if known else "there are no suites in that folder"
    raise SuiteError(
        f"there is no suite '{name}'",
        where=str(root),
        fix=f"{did_you_mean(name, known)}{listing}; "
        f"make one with: workbench suite new {shlex.quote(name)} --from ROWS.csv",
    )


def load_suite(path: Path) -> Suite:
    """Load and check one suite.

    Args:
        path: its folder; `samples_of` names a folder beside it.

    Raises:
        SuiteError: everything that is wrong, up to ten problems, each with file and line.
    """
    _refuse_misread(path)
    spec = load_spec(path / SPEC_FILE, SuiteSpec, SuiteError)
    found = list(spec_problems(spec, path.resolve().name))
    resources: dict[str, str] = {}
    for key, name in resource_names(spec):
        try:
            resources[name] = read_resource(path, name)
        except ValueError as bad:
            found.append(SpecProblem(("scorer", key), str(bad)))
    # A target cannot be compared under a schema, tools or a file that are broken themselves.
    usable = not any(p.loc[0] in ("response_schema", "tools", "scorer") for p in found)
    bare = Suite(spec, (), "", path, resources)
    if usable and (bad_scorer := check_scorer(bare)):
        found.append(_of_scorer(bad_scorer))
        usable = False
    samples_file = _samples_file(path, spec)
    check = SampleCheck(bare, usable=usable)
    samples, problems = _read(samples_file, check)
    for mistake, begins in in_no_sample(spec, samples):
        found.append(mistake)
        problems = [p for p in problems if not p.what.startswith(begins)]
    problems = [*_located(path / SPEC_FILE, found), *problems]
    if problems:
        _refuse(path, problems)
    digest = suite_digest(spec, samples, {**resources, **module_source(bare)})
    return Suite(spec, tuple(samples), digest, path, resources)


def suite_digest(
    spec: SuiteSpec, samples: Sequence[Sample], resources: Mapping[str, str] | None = None
) -> str:
    """Content id of what a suite asks and how it is scored."""
    return content_id(
        {
            "spec": _dump(spec),
            "samples": [_dump(sample) for sample in samples],
            "resources": dict(resources or {}),
        }
    )


def _samples_file(path: Path, spec: SuiteSpec) -> Path:
    """The file that holds a suite's samples, its own or another's.

    Raises:
        SuiteError: `samples_of` leads nowhere or in a circle, or there are two sources.
    """
    seen = [spec.name]
    folder = path if path.name else path.resolve()
    first = folder
    while spec.samples_of is not None:
        key = f"{folder / SPEC_FILE}:{_line(folder / SPEC_FILE, ('samples_of',))}"
        if (folder / SAMPLES_FILE).exists():
            raise SuiteError(
                f"'samples_of: {spec.samples_of}' and a {SAMPLES_FILE} of its own",
                where=key,
                fix="remove one of the two",
            )
        if spec.samples_of in seen:
            raise SuiteError(
                f"'samples_of' leads in a circle: {' -> '.join([*seen, spec.samples_of])}",
                where=key,
                fix=f"one of them needs a {SAMPLES_FILE}",
            )
        seen.append(spec.samples_of)
        known = [name for name in suite_names(first.parent) if name != spec.name]
        if spec.samples_of not in known:
            raise SuiteError(
                f"'samples_of' names the suite '{spec.samples_of}', which is not there",
                where=key,
                fix=did_you_mean(spec.samples_of, known) + f"suites beside it: {', '.join(known)}",
            )
        folder = first.parent / spec.samples_of
        spec = load_spec(folder / SPEC_FILE, SuiteSpec, SuiteError)
    return folder / SAMPLES_FILE


def _read(path: Path, check: SampleCheck) -> tuple[list[Sample], list[_Problem]]:
    """The samples of a file, and what is wrong with them."""
    samples: list[Sample] = []
    problems: list[_Problem] = []
    first: dict[str, int] = {}
    for number, raw in lines(path):
        where = f"{path}:{number}"
        try:
            sample = parse_sample(raw)
        except ValueError as bad:
            problems.append(_Problem(where, str(bad), ""))
            continue
        if sample.id in first:
            problems.append(
                _Problem(
                    where,
                    f"id '{sample.id}' is used twice, first in {path}:{first[sample.id]}",
                    "ids pair a variant with the baseline: give this sample one of its own",
                )
            )
            continue
        first[sample.id] = number
        samples.append(sample)
        problems += [_Problem(where, what, fix) for what, fix in check.problems(sample)]
    if not samples and not problems:
        problems.append(
            _Problem(str(path), "the suite has no sample", "write one JSON object a line")
        )
    return samples, problems


def _of_scorer(complaint: str) -> SpecProblem:
    """What `check_scorer` says, at the option it quotes."""
    what, fix, where = (*complaint.split("\n"), "", "")[:3]
    option = re.match(r"'scorer\.(\w+)'", what)
    return SpecProblem(("scorer", option[1]) if option else ("scorer",), what, fix, where)


@dataclass(frozen=True)
class _Problem:
    where: str
    what: str
    fix: str


def _located(path: Path, found: Sequence[SpecProblem]) -> list[_Problem]:
    """Problems with their lines; those that are only counted need none."""
    node = read_yaml(path, SuiteError)[1] if found else None
    lines_of = [p.where or f"{path}:{locate(p.loc, node)[1]}" for p in found[:_MOST_PROBLEMS]]
    lines_of += [str(path)] * (len(found) - len(lines_of))
    return [_Problem(where, p.what, p.fix) for where, p in zip(lines_of, found, strict=True)]


def _line(path: Path, loc: tuple[str | int, ...]) -> int:
    return locate(loc, read_yaml(path, SuiteError)[1])[1]


def _refuse_misread(path: Path) -> None:
    """Before anything reads the schemas: a key that is no text breaks more than its own line."""
    file = path / SPEC_FILE
    words = misread(read_yaml(file, SuiteError)[1])
    problems = [_Problem(f"{file}:{word.line}", word.what, word.fix) for word in words]
    if problems:
        _refuse(path, problems)


def _refuse(path: Path, problems: Sequence[_Problem]) -> NoReturn:
    if len(problems) == 1:
        (only,) = problems
        raise SuiteError(
            shortened(only.what, _MOST_SAID), where=only.where, fix=only.fix or "mend that line"
        )
    shown = [
        f"  {p.where}: {shortened(p.what, _MOST_SAID)}{f' ({p.fix})' if p.fix else ''}"
        for p in problems[:_MOST_PROBLEMS]
    ]
    if len(problems) > _MOST_PROBLEMS:
        shown.append(f"  and {len(problems) - _MOST_PROBLEMS} more")
    raise SuiteError(
        f"suite '{path.name}' has {len(problems)} problems:\n" + "\n".join(shown),
        where=str(path),
        fix="mend each line named",
    )


def _dump(model: SuiteSpec | Sample) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)
