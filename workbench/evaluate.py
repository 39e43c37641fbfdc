"""Ask a suite of one server and keep one row per question, whatever happens to it.

Rows are appended as answers come and flushed to disk within a second, so that a crash at any
moment loses nothing that was answered: the next call keeps every whole row that still belongs to
the suite and asks only for the rest. When all are there, they are graded, and the file is rewritten
in sample order, the repeats of a sample one after the other. A sample that failed is a row with
`error` and no score; nothing is dropped and nothing is cut to fit. A server that is gone raises,
with what was answered kept.

What is asked is in `workbench.questions`, how in `workbench.asking`, grades in `workbench.grading`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.asked import ASKING, asking_digest
from workbench.asking import TIME_LIMIT, Asking
from workbench.client import run_async
from workbench.errors import RecipeError
from workbench.grading import grade_rows
from workbench.pooled import POOLED, pooled_score
from workbench.progress import Progress
from workbench.prompts import shows_tools
from workbench.questions import Question, bos_found, fake_answers, prepare_all, sampling
from workbench.ranking import RANKINGS
from workbench.records import SampleRow, SuiteResult
from workbench.rows import keep_rows, read_rows, reopened, rows_digest, write_rows
from workbench.spec import JudgeSpec
from workbench.suites import Suite
from workbench.tool_routes import TOOL_ROUTES

if TYPE_CHECKING:
    from workbench.servers import Endpoint
    from workbench.tokenizer import Tokenizer

__all__ = ["TIME_LIMIT", "fake_answers", "read_rows", "run_suite", "summarize"]


def run_suite(
    endpoint: Endpoint,
    suite: Suite,
    tokenizer: Tokenizer,
    *,
    rows: Path,
    conditions: Mapping[str, Any],
    concurrency: int,
    limit: int | None,
    request_seconds: float,
    progress: Progress,
    total_seconds: float | None = None,
    judge: JudgeSpec | None = None,
) -> SuiteResult:
    """Ask every question that has no usable row yet, score it, and sum up.

    Args:
        endpoint: the server.
        suite: what to ask.
        tokenizer: of the checkpoint that is served; renders and measures prompts.
        rows: the JSONL file of rows; what it holds already is kept where it still belongs.
        conditions: what must be equal for two results to pair; the digests of suite, template and
            tokenizer, the sampling parameters, the way the engine is asked and the number of
            begin-of-sequence tokens are added.
        concurrency: samples asked at a time.
        limit: only the first so many samples; None is all.
        request_seconds: time limit of one request.
        progress: told after each sample.
        total_seconds: time limit of the suite; what is unanswered then becomes failed rows.
        judge: who judges the answers of a suite with the scorer `judge`.

    Raises:
        RecipeError: the suite cannot be asked so: no judge, no chat template, an engine that calls
            no tools, more than one begin-of-sequence token. Nothing was asked.
        ServingFailure: the server is gone, or answers nothing; what was answered is in `rows`.
        DiskFull: no space is left.
    """
    spec = suite.spec
    shown = spec.ask == "call_tools" and shows_tools(spec, suite.samples[0], tokenizer)
    how = _how(endpoint, suite, shown)
    check_judge(suite, judge)
    questions = prepare_all(
        suite, suite.samples[:limit], tokenizer, endpoint.serving.max_model_len, how or ""
    )
    made = {**conditions, **_conditions(suite, tokenizer, questions, how)}
    made[ASKING] = asking_digest(spec)
    kept = keep_rows(rows, {q.key: q.identity for q in questions})
    work = [q for q in questions if q.key not in kept]
    progress(len(kept), len(questions), spec.name)
    if work:
        write_rows(rows, kept.values())
        asking = Asking(endpoint, suite, tokenizer, kept, len(questions), progress, shown)
        run_async(
            lambda: asking.run(
                work,
                rows,
                concurrency=concurrency,
                request_seconds=request_seconds,
                total_seconds=total_seconds,
            )
        )
    ordered = [kept[q.key] for q in questions]
    write_rows(rows, ordered)
    ordered = grade_rows(suite, ordered, rows, judge)
    write_rows(rows, ordered)
    if judge is not None and spec.scorer.name == "judge":
        versions = {version for row in ordered for version in row.grade.get("judge", ())}
        made["judge"] = {"model": judge.model, "versions": sorted(versions)}
    return summarize(
        suite,
        ordered,
        conditions=made,
        rows_file=rows.name,
        lane=endpoint.serving.lane.name,
    )


def check_judge(suite: Suite, judge: JudgeSpec | None) -> None:
    """Refuse a suite that is scored by a judge where there is none.

    Raises:
        RecipeError: so it is.
    """
    if suite.spec.scorer.name == "judge" and judge is None:
        raise RecipeError(
            f"suite '{suite.spec.name}' is scored by a judge, and the recipe names none",
            where="evaluate.judge",
            fix="name its endpoint (url, model, key_env), or leave the suite out",
        )


def summarize(
    suite: Suite,
    rows: Sequence[SampleRow],
    *,
    conditions: dict[str, Any],
    rows_file: str,
    lane: str = "",
) -> SuiteResult:
    """Sum rows up. The score is the mean over the rows that have one; failures are counted.

    Of a suite whose metric is pooled it is that metric over the same rows (`workbench.pooled`).
    Where an answer is there and only its grade is not, there is no score: a scorer that fails does
    so at answers of a kind, and the mean over the others would be of another suite.
    """
    spec = suite.spec
    ungraded = any(reopened(row) is not row for row in rows)
    graded = [row for row in rows if row.score is not None and not ungraded]
    reasons = Counter(row.finish_reason for row in rows if row.finish_reason)
    flagged = Counter(flag for row in rows for flag in row.flags)
    return SuiteResult(
        suite=spec.name,
        kind=spec.kind,
        metric=spec.metric,
        higher_is_better=spec.higher_is_better,
        tier=spec.tier,
        cadence=spec.cadence,
        suite_digest=suite.digest,
        conditions=conditions,
        lane=lane,
        rows_file=rows_file,
        rows_digest=rows_digest(rows),
        n=len(rows),
        samples=len(suite.samples),
        repeats=spec.repeats,
        failed=sum(row.error is not None or row.score is None for row in rows),
        score=_score(spec.metric, graded) if graded else None,
        flagged=dict(sorted(flagged.items())),
        finish_reasons=dict(sorted(reasons.items())),
        prompt_tokens=sum(row.prompt_tokens or 0 for row in rows),
        output_tokens=sum(row.output_tokens or 0 for row in rows),
    )


def _score(metric: str, rows: Sequence[SampleRow]) -> float:
    if metric in POOLED:
        return pooled_score(rows)
    return math.fsum(row.score or 0.0 for row in rows) / len(rows)


def _how(endpoint: Endpoint, suite: Suite, shown: bool) -> str | None:
    """The way this engine is asked, where there is more than one; results must have it equal.

    Raises:
        RecipeError: the engine cannot be asked so.
    """
    serving, spec = endpoint.serving, suite.spec
    if spec.ask == "rank_choices":
        return RANKINGS[serving.engine].how
    if spec.ask != "call_tools":
        return None
    if serving.engine not in TOOL_ROUTES:
        raise RecipeError(
            f"suite '{spec.name}' calls tools, which {serving.engine} cannot be asked here",
            where="evaluate.suites",
            fix="leave the suite out, or serve the variant with another engine",
        )
    parser = serving.choices.get("tool_call_parser")
    return TOOL_ROUTES[serving.engine].how(parser.value if parser else "", shown)


def _conditions(
    suite: Suite, tokenizer: Tokenizer, questions: Sequence[Question], how: str | None
) -> dict[str, Any]:
    """What of the suite must be equal for two results to pair.

    The lane is not among it: an emulated variant pairs with a baseline that runs natively.
    """
    spec = suite.spec
    return {
        "suite_digest": suite.digest,
        "template_digest": tokenizer.template_digest if spec.chat_template else None,
        "tokenizer_digest": tokenizer.digest,
        "asked": how,
        "sampling": sampling(spec),
        "bos": bos_found(tokenizer, spec, questions),
    }
