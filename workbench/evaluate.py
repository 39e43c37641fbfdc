"""Ask a suite of one server and keep one row per sample, whatever happens to it.

Rows are appended as answers come and flushed to disk within a second, so that a crash at any
moment loses nothing that was answered: the next call keeps every whole row that still belongs to
the suite and asks only for the rest. When all are there, the file is rewritten once in sample
order. A sample that failed is a row with `error` and no score; nothing is dropped and nothing is
cut to fit. A server that is gone raises, with what was answered kept.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.asked import ASKING, asking_digest
from workbench.client import Client, RequestFailed, run_async
from workbench.errors import ServingFailure
from workbench.progress import Progress
from workbench.questions import Question, check_tokens, fake_answers, prepare
from workbench.ranking import RANKINGS
from workbench.records import SampleRow, SuiteResult
from workbench.rows import RowFile, clean_text, keep_rows, read_rows, rows_digest, write_rows
from workbench.scorers import grade
from workbench.suites import Suite

if TYPE_CHECKING:
    from workbench.servers import Endpoint
    from workbench.tokenizer import Tokenizer

__all__ = ["fake_answers", "read_rows", "run_suite", "summarize"]

T = TypeVar("T")

#: Greedy, so that two passes differ only where the server's arithmetic does.
TEMPERATURE = 0.0
SEED = 0

#: How often a request whose connection broke is sent again, with these pauses in seconds.
_PAUSES = (0.2, 0.5, 1.0)
_GONE = "connection refused"
_BROKEN = (_GONE, "connection lost")


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
) -> SuiteResult:
    """Ask every sample that has no usable row yet, score it, and sum up.

    Args:
        endpoint: the server.
        suite: what to ask.
        tokenizer: of the checkpoint that is served; renders and measures prompts.
        rows: the JSONL file of rows; what it holds already is kept where it still belongs.
        conditions: what must be equal for two results to pair; the digests of suite, template and
            tokenizer, the sampling parameters and the way choices are ranked are added.
        concurrency: samples asked at a time.
        limit: only the first so many samples; None is all.
        request_seconds: time limit of one request.
        progress: told after each sample.

    Raises:
        ServingFailure: the server is gone, or answers nothing; what was answered is in `rows`.
        DiskFull: no space is left.
    """
    samples = suite.samples[:limit]
    longest = endpoint.serving.max_model_len
    questions = [prepare(suite, sample, tokenizer, longest) for sample in samples]
    digests = {q.sample.id: (q.prompt_digest, q.target_digest) for q in questions}
    kept = keep_rows(rows, digests)
    work = [q for q in questions if q.sample.id not in kept]
    what = suite.spec.name
    progress(len(kept), len(questions), what)
    if work:
        write_rows(rows, kept.values())
        asking = _Asking(endpoint, suite, tokenizer, kept, len(questions), progress)
        run_async(lambda: asking.run(work, rows, concurrency, request_seconds))
    ordered = [kept[q.sample.id] for q in questions]
    write_rows(rows, ordered)
    made = {
        **conditions,
        "ranking": RANKINGS[endpoint.serving.engine].how
        if suite.spec.ask == "rank_choices"
        else None,
        "suite_digest": suite.digest,
        ASKING: asking_digest(suite.spec),
        "template_digest": tokenizer.template_digest if suite.spec.chat_template else None,
        "tokenizer_digest": tokenizer.digest,
        "sampling": {
            "temperature": TEMPERATURE,
            "seed": SEED,
            "max_tokens": suite.spec.max_tokens if suite.spec.ask == "generate" else 0,
        },
    }
    return summarize(suite, ordered, conditions=made, rows_file=rows.name)


def summarize(
    suite: Suite, rows: Sequence[SampleRow], *, conditions: dict[str, Any], rows_file: str
) -> SuiteResult:
    """Sum rows up. The score is the mean over the rows that have one; failures are counted."""
    scores = [row.score for row in rows if row.score is not None]
    reasons = Counter(row.finish_reason for row in rows if row.finish_reason)
    return SuiteResult(
        suite=suite.spec.name,
        suite_digest=suite.digest,
        conditions=conditions,
        rows_file=rows_file,
        rows_digest=rows_digest(rows),
        n=len(rows),
        failed=sum(row.error is not None for row in rows),
        score=math.fsum(scores) / len(scores) if scores else None,
        finish_reasons=dict(sorted(reasons.items())),
        prompt_tokens=sum(row.prompt_tokens or 0 for row in rows),
        output_tokens=sum(row.output_tokens or 0 for row in rows),
    )


class _Asking:
    """One pass over the samples that have no usable row yet."""

    def __init__(
        self,
        endpoint: Endpoint,
        suite: Suite,
        tokenizer: Tokenizer,
        found: dict[str, SampleRow],
        total: int,
        progress: Progress,
    ) -> None:
        self._endpoint = endpoint
        self._engine = endpoint.serving.engine
        self._suite = suite
        self._tokenizer = tokenizer
        self._found = found
        self._total = total
        self._progress = progress
        self._answered = 0
        self._failures: Counter[str] = Counter()
        self._failures_in_a_row = 0
        self._begun = time.perf_counter()

    async def run(
        self, work: Sequence[Question], rows: Path, concurrency: int, request_seconds: float
    ) -> None:
        """Ask, so many at a time; fills `found`."""
        queue = iter(work)
        file = RowFile(rows)
        at_a_time = min(concurrency, len(work))

        async def worker(client: Client) -> None:
            for question in queue:
                row = await self._row(client, question)
                file.append(row)
                self._found[row.id] = row
                self._progress(len(self._found), self._total, self._suite.spec.name)
                self._give_up_where_nothing_answers(max(16, 2 * at_a_time))

        endpoint = self._endpoint
        async with (
            file.syncing(),
            endpoint.client(request_seconds=request_seconds) as client,
        ):
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(at_a_time):
                        group.create_task(worker(client))
            except BaseExceptionGroup as failures:
                first = failures.exceptions[0]
                raise first from first.__cause__
        if self._failures and not self._answered:
            raise self._nothing_answers()

    async def _row(self, client: Client, question: Question) -> SampleRow:
        """Ask one sample. Only a server that is gone raises; all else becomes the row's error."""
        if question.too_long:
            return self._failed(question, time.perf_counter(), question.too_long)
        begun = time.perf_counter()
        try:
            if self._suite.spec.ask == "rank_choices":
                row = await self._ranked(client, question)
            else:
                row = await self._generated(client, question)
        except RequestFailed as failure:
            if failure.reason == _GONE:
                raise self._gone() from failure
            self._failures[failure.reason] += 1
            self._failures_in_a_row += 1
            return self._failed(question, begun, f"{failure.reason}: {failure.what}")
        self._answered += 1
        self._failures_in_a_row = 0
        return row

    async def _generated(self, client: Client, question: Question) -> SampleRow:
        spec = self._suite.spec
        answer = await _again(
            lambda: client.complete(
                question.prompt,
                max_tokens=spec.max_tokens,
                temperature=TEMPERATURE,
                seed=SEED,
                response_schema=spec.response_schema,
            )
        )
        if answer.prompt_tokens is None or answer.output_tokens is None:
            raise RequestFailed("no usage", "the server did not say how many tokens it counted")
        check_tokens(question, answer.prompt_tokens, self._engine, answer.prompt_ids)
        output = clean_text(answer.text)
        return SampleRow(
            id=question.sample.id,
            prompt_digest=question.prompt_digest,
            target_digest=question.target_digest,
            output=output,
            score=grade(self._suite, question.sample, output).score,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            started=answer.started - self._begun,
            seconds=answer.seconds,
        )

    async def _ranked(self, client: Client, question: Question) -> SampleRow:
        choices = question.sample.choices or []
        ranking = RANKINGS[self._engine]
        begun = time.perf_counter()
        scored = []
        for choice in choices:
            ask = functools.partial(ranking.score, client, question, choice, self._tokenizer)
            scored.append(await _again(ask))
        sums = [found.total for found in scored]
        # `index` of the maximum: the first of equals.
        best = choices[sums.index(max(sums))]
        return SampleRow(
            id=question.sample.id,
            prompt_digest=question.prompt_digest,
            target_digest=question.target_digest,
            output=best,
            score=grade(self._suite, question.sample, best).score,
            finish_reason=None,
            prompt_tokens=sum(found.prompt_tokens for found in scored),
            output_tokens=0,
            choice_logprobs=dict(zip(choices, sums, strict=True)),
            started=begun - self._begun,
            seconds=time.perf_counter() - begun,
        )

    def _failed(self, question: Question, begun: float, error: str) -> SampleRow:
        return SampleRow(
            id=question.sample.id,
            prompt_digest=question.prompt_digest,
            target_digest=question.target_digest,
            output="",
            score=None,
            finish_reason=None,
            prompt_tokens=None,
            output_tokens=None,
            started=begun - self._begun,
            seconds=time.perf_counter() - begun,
            error=clean_text(error),
        )

    def _give_up_where_nothing_answers(self, most: int) -> None:
        if self._failures_in_a_row >= most:
            raise self._nothing_answers()

    def _nothing_answers(self) -> ServingFailure:
        reason, count = self._failures.most_common(1)[0]
        last = next(r.error for r in reversed(list(self._found.values())) if r.error)
        return ServingFailure(
            f"the server fails at one sample after the other ({reason}, {count} times): {last}",
            where=f"{self._endpoint.base_url}, suite '{self._suite.spec.name}'",
            fix="read the server's log; what was answered is kept, the same command goes on there",
        )

    def _gone(self) -> ServingFailure:
        answered = sum(row.error is None for row in self._found.values())
        return ServingFailure(
            f"the server is gone: {answered} of {self._total} samples of suite "
            f"'{self._suite.spec.name}' were answered",
            where=self._endpoint.base_url,
            fix="read the server's log; what was answered is kept, the same command goes on there",
        )


async def _again(ask: Callable[[], Awaitable[T]]) -> T:
    """One request, sent again where the connection broke: the server may only be busy."""
    for pause in _PAUSES:
        try:
            return await ask()
        except RequestFailed as failure:
            if failure.reason not in _BROKEN:
                raise
        await asyncio.sleep(pause)
    return await ask()
