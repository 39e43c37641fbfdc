"""Everything the workbench can tell its user, as one tree.

    WorkbenchError                 exit 1   (a bug, unless a subclass says otherwise)
    ├── UserError                  exit 2   the user can fix it: recipe, suite, policy, checkpoint
    │   ├── RecipeError                     unknown key, wrong type, missing file, impossible option
    │   ├── CheckpointError                 no tokenizer, truncated shard, wrong shape
    │   ├── SuiteError                      broken line, duplicate id, schema that is not a schema
    │   ├── CalibrationError                a row that cannot be read, too few usable rows
    │   │   └── ContaminationError          the set holds samples of an evaluation suite
    │   └── StoreError                      a record or run that is not there, or unreadable
    │       └── Busy           exit 3       one that another process holds: try again
    └── MachineError               exit 3   the machine or a tool failed: try again, free something
        ├── EnvironmentFailure              an isolated environment could not be made or verified
        ├── JobFailure                      a quantizer died, ran out of memory or time
        ├── ServingFailure                  a server did not start, failed its canary, or died
        └── DiskFull                        no space left where results go

Each error says *what* happened, *where* (file and line, or key) and the *fix*. Verdicts are not
errors: NO-GO is exit 10 and INCONCLUSIVE exit 11, see `workbench.records.EXIT_CODES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from workbench.words import MOST_SAID, plain, shortened


class WorkbenchError(Exception):
    """An error with three parts a person needs.

    Args:
        what: what happened, one sentence.
        where: the file and line, the key or the process it happened in; may be empty.
        fix: what to do about it; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix.rstrip()  # what `did_you_mean` says is made to be followed by more

    def __str__(self) -> str:
        # Parts quote files somebody else wrote: nothing in them moves a cursor or has no end.
        what, where, fix = (
            shortened(plain(p), MOST_SAID) for p in (self.what, self.where, self.fix)
        )
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if fix:
            lines.append(f"  fix:   {fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.fix))


def _rebuild(cls: type[WorkbenchError], what: str, where: str, fix: str) -> WorkbenchError:
    return cls(what, where=where, fix=fix)


class UserError(WorkbenchError):
    """The user can fix it."""

    exit_code = 2


class RecipeError(UserError):
    """The recipe or the policy asks for something impossible or unknown."""


class CheckpointError(UserError):
    """The checkpoint on disk is not one that can be used."""


class SuiteError(UserError):
    """An evaluation suite is broken."""


class CalibrationError(UserError):
    """A calibration set cannot be made from the source."""


class ContaminationError(CalibrationError):
    """More of an evaluation suite stands in the calibration set than the recipe accepts."""


class StoreError(UserError):
    """A run or a record is missing, unreadable or from a newer version."""


class Busy(StoreError):
    """Another process holds it: nothing is wrong with what was asked."""

    exit_code = 3


class MachineError(WorkbenchError):
    """The machine or a tool on it failed."""

    exit_code = 3


class EnvironmentFailure(MachineError):
    """An isolated environment could not be created or verified."""


class JobFailure(MachineError):
    """A job died, ran out of memory or time, or left no result."""


class ServingFailure(MachineError):
    """A server did not start, failed its canary, or died."""


class DiskFull(MachineError):
    """No space is left where the workbench writes."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` for the nearest known word, whatever its case, or nothing."""
    names = list(known)
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not match:
        folded = {name.casefold(): name for name in names}
        match = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.6)
        match = [folded[name] for name in match]
    return f"did you mean '{match[0]}'? " if match else ""


def name_file(error: Exception, path: Path) -> None:
    """Name the file of a system's error that names none, as a failed read does."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)
