"""Write a suite's folder, whole and checked, or not at all.

Files are made in a folder beside the final one and loaded from there; only a suite that loads, and
whose targets are right by its own scorer, is moved to its name. Nothing that is there is replaced:
ids and targets of a suite are what later runs are compared by.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from workbench.errors import SuiteError
from workbench.store import disk_errors
from workbench.suite_check import check_suite
from workbench.suite_files import SAMPLES_FILE, SPEC_FILE
from workbench.suite_spec import SUITE_SCHEMA
from workbench.suites import Suite, load_suite

README_FILE = "README.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def write_suite(
    folder: Path,
    spec: Mapping[str, Any],
    samples: Iterable[Mapping[str, Any]],
    *,
    readme: str = "",
    files: Mapping[str, str] | None = None,
) -> Suite:
    """Make a suite's folder.

    Args:
        folder: must not be there; its name is the suite's name.
        spec: as `suite.yaml` says it; `schema` and `name` may be left out. Left out too are None
            values and `samples_of`: the samples are given.
        samples: one object each, in order.
        readme: text of README.md; none is written where it is empty.
        files: path inside the folder -> text, what the scorer needs.

    Returns:
        The suite, as it was loaded from what was written.

    Raises:
        SuiteError: the folder is there already, or what would be written is no sound suite. Lines
            are those of the files as they would be.
        DiskFull: no space is left.
    """
    if not _NAME.match(folder.name):
        raise SuiteError(
            f"'{folder.name}' is no name of a suite",
            where=str(folder),
            fix="use letters, digits, '.', '_' and '-', at most 64, no '.' first",
        )
    if folder.exists() or folder.is_symlink():
        raise SuiteError(
            f"'{folder.name}' is there already",
            where=str(folder),
            fix="choose another name, or remove the folder; a suite is never replaced",
        )
    said = {k: v for k, v in spec.items() if v is not None and k != "samples_of"}
    whole = {"schema": SUITE_SCHEMA, "name": folder.name} | said
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The name begins with a dot: no listing takes it for a suite while it is being made.
        staging = Path(tempfile.mkdtemp(prefix=".new-suite-", dir=folder.parent))
    try:
        made = staging / folder.name
        with disk_errors(made):
            made.mkdir()
            (made / SPEC_FILE).write_text(_yaml(whole), "utf-8")
            (made / SAMPLES_FILE).write_text("".join(map(_line, samples)), "utf-8", newline="\n")
            if readme:
                (made / README_FILE).write_text(readme, "utf-8")
            for name, text in (files or {}).items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_text(text, "utf-8", newline="\n")
        try:
            _sound(load_suite(made))
        except SuiteError as bad:
            raise SuiteError(
                bad.what.replace(str(made), str(folder)),
                where=bad.where.replace(str(made), str(folder)),
                fix=bad.fix,
            ) from None
        with disk_errors(folder):
            made.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return load_suite(folder)


def _sound(suite: Suite) -> None:
    wrong = [finding.what for finding in check_suite(suite) if finding.level == "error"]
    if wrong:
        raise SuiteError(
            "\n".join(wrong),
            where=str(suite.path / SAMPLES_FILE),
            fix="choose a scorer that fits the targets, or mend them",
        )


def _yaml(spec: Mapping[str, Any]) -> str:
    # Through JSON: tuples become lists, and what JSON has no word for is found here.
    plain = json.loads(json.dumps(spec, allow_nan=False))
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """The safe dumper; a text of several lines is written as a block, to be read and edited."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    # Only between double quotes does YAML keep what it would take for a line end or leave out.
    if not text.replace("\n", "").isprintable():
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _line(sample: Mapping[str, Any]) -> str:
    return json.dumps(sample, ensure_ascii=False) + "\n"
