"""Grades for answers that are in the file already: by the suite's scorer, or by its judge.

It begins when all were asked. So a scorer that takes its time lets no request wait, one that fails
loses no answer, and grading again asks no model. Each grade is appended to the file as it comes, so
that a crash costs only those that were missing.

An answer the scorer failed at, or the judge did not judge, is a row with `error` and no score; a
suite with such rows is missing evidence, never a score over the others. The next run, or
`workbench rescore`, grades them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.client import run_async
from workbench.digest import canonical_json
from workbench.errors import SuiteError
from workbench.evaluation_records import NOT_JUDGED, NOT_SCORED
from workbench.prompts import question_text
from workbench.records import SampleRow
from workbench.rows import RowFile, clean_text
from workbench.scorers import Grade, grade
from workbench.spec import JudgeSpec
from workbench.suite_spec import JudgeScorer, Sample
from workbench.suites import Suite

if TYPE_CHECKING:
    from workbench.judge import Judgement

#: Flags of an answer whatever is expected of it: grading again does not change them.
_OF_ANY_ANSWER = ("truncated", "empty", "repetitive")


def grade_rows(
    suite: Suite, rows: Sequence[SampleRow], path: Path, judge: JudgeSpec | None
) -> list[SampleRow]:
    """Grade the answers that have no grade yet; the others keep theirs.

    Args:
        suite: whose scorer or rubric it is.
        rows: in their order.
        path: the file they are in; grades are appended to it.
        judge: who judges where the suite's scorer is a judge.

    Raises:
        RecipeError: the judge's key is not set.
        DiskFull: no space is left.
    """
    samples = {sample.id: sample for sample in suite.samples}
    if suite.spec.scorer.name == "judge":
        assert judge is not None, "see check_judge"
        return _by_judge(suite, samples, rows, path, judge)
    if not any(map(_waits, rows)):
        return list(rows)
    made = []
    file = RowFile(path)
    try:
        for row in rows:
            if _waits(row):
                row = scored(suite, samples[row.id], row)
                file.append(row)
            made.append(row)
    finally:
        file.close()
    return made


def scored(suite: Suite, sample: Sample, row: SampleRow) -> SampleRow:
    """An answered row with the score, flags and details the suite's scorer gives it now.

    Where the user's own scorer fails at it, a row with `error` and none of these.
    """
    try:
        return _with_grade(row, grade(suite, sample, row.output))
    except SuiteError as failure:
        why = clean_text(f"{NOT_SCORED}{failure.what} ({failure.where})")
        none = _with_grade(row, Grade(0.0))
        return none.model_copy(update={"score": None, "error": why})


def _waits(row: SampleRow) -> bool:
    return row.error is None and row.score is None


def _with_grade(row: SampleRow, given: Grade) -> SampleRow:
    flags = (*given.flags, *(flag for flag in row.flags if flag in _OF_ANY_ANSWER))
    return row.model_copy(
        update={
            "score": given.score,
            "flags": tuple(dict.fromkeys(flags)),
            "grade": dict(given.details),
        }
    )


def _by_judge(
    suite: Suite,
    samples: Mapping[str, Sample],
    rows: Sequence[SampleRow],
    path: Path,
    judge: JudgeSpec,
) -> list[SampleRow]:
    """Have the judge grade what waits. The next run asks it again of what it could not judge."""
    from workbench.judge import judge_key, judge_rows
    from workbench.scorers.judge import Judged

    scorer = suite.spec.scorer
    assert isinstance(scorer, JudgeScorer)
    waiting = {row.key: row for row in rows if _waits(row)}
    known = {r.key: Grade(r.score, (), r.grade) for r in rows if r.score is not None}
    items = [
        Judged(
            key,
            question_text(suite.spec, samples[row.id]),
            _as_text(samples[row.id].target),
            row.output,
        )
        for key, row in waiting.items()
    ]
    key = judge_key(judge) if items else ""
    file = RowFile(path)

    def keep(of: str, given: Grade) -> None:
        file.append(_with_grade(waiting[of], given))

    async def ask() -> Judgement:
        async with file.syncing():
            return await judge_rows(judge, scorer.rubric, items, key=key, known=known, keep=keep)

    found = run_async(ask)
    return [_with_judgement(row, found) for row in rows]


def _as_text(target: Any) -> str:
    return target if isinstance(target, str) else canonical_json(target).decode()


def _with_judgement(row: SampleRow, found: Judgement) -> SampleRow:
    if why := found.failed.get(row.key):
        error = clean_text(NOT_JUDGED + why)
        return row.model_copy(update={"error": error, "score": None, "grade": {}})
    given = found.grades.get(row.key)
    return _with_grade(row, given) if given else row
