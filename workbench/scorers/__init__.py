"""Scorers: how right an output is, from 0 to 1. Pure, one small function each.

A scorer sees the suite, the sample and the output and nothing else, so a finished run can be scored
again without asking a model. It never raises on an output, whatever a model says; `check_target`
finds beforehand, without a model, what could not be compared with.

Two are not like that, and say so: `python` runs the user's own function, whose faults are a
`SuiteError`; `judge` has to ask a model, which `workbench.judge` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from workbench.scorers import (
    custom,
    judge,
    number,
    overlap,
    pattern,
    refusal,
    sql,
    structured,
    tools,
)
from workbench.scorers import text as texts
from workbench.scorers.base import Grade as Grade
from workbench.scorers.flags import flags_of as flags_of
from workbench.scorers.normal import normalize as normalize
from workbench.suite_spec import Sample

if TYPE_CHECKING:
    from workbench.suites import Suite


class _Scorer(NamedTuple):
    """A scorer.

    Attributes:
        grade: an output; None where a model has to be asked.
        check: says what is wrong with a sample, or None; what to do may follow in a second line.
        check_suite: the same of the scorer's options and files.
    """

    grade: Callable[[Suite, Sample, str], Grade] | None
    check: Callable[[Suite, Sample], str | None]
    check_suite: Callable[[Suite], str | None] = lambda suite: None


_SCORERS: dict[str, _Scorer] = {
    "exact": _Scorer(texts.exact, texts.check_texts),
    "normalized": _Scorer(texts.normalized, texts.check_texts),
    "contains": _Scorer(texts.contains, texts.check_texts),
    "choice": _Scorer(texts.choice, texts.check_choices),
    "regex": _Scorer(pattern.regex, pattern.check_patterns, pattern.check_pattern),
    "numeric": _Scorer(number.numeric, number.check_number, number.check_units),
    "json_fields": _Scorer(structured.json_fields, structured.check_object),
    "tool_call": _Scorer(tools.tool_call, tools.check_calls),
    "sql_result": _Scorer(sql.sql_result, sql.check_query, sql.check_database),
    "rouge": _Scorer(overlap.rouge, overlap.check_words),
    "similarity": _Scorer(overlap.similarity, overlap.check_words),
    "refusal": _Scorer(refusal.refusal, refusal.check_refusal),
    "judge": _Scorer(None, judge.check_judged),
    "python": _Scorer(custom.python, lambda suite, sample: None, custom.check_function),
}


def grade(suite: Suite, sample: Sample, output: str) -> Grade:
    """Grade one output.

    Args:
        suite: names the scorer, and holds the files it needs (`Suite.resources`).
        sample: holds the target; one that `check_target` accepts.
        output: what was generated, the choice that was ranked first, or for tool calls the JSON
            text of ``{"tool_calls": [{"name": ..., "arguments": "<as sent>"}], "content": ...}``.

    Raises:
        SuiteError: the user's own scorer failed.
        ValueError: the scorer is `judge`: `workbench.judge.judge_rows` gives its grades.
    """
    scorer = _SCORERS[suite.spec.scorer.name].grade
    if scorer is None:
        raise ValueError("a judge grades by asking a model: see workbench.judge.judge_rows")
    return scorer(suite, sample, output)


def check_scorer(suite: Suite) -> str | None:
    """What is wrong with the scorer's options and files, whatever the sample, or None.

    What to do about it may follow in a second line, and in a third the place where, if that is
    not in suite.yaml.
    """
    return _SCORERS[suite.spec.scorer.name].check_suite(suite)


def check_target(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a sample's target or choices for this suite's scorer, or None.

    What `check_scorer` finds is found here, too.
    """
    return check_scorer(suite) or _SCORERS[suite.spec.scorer.name].check(suite, sample)
