"""One pass over the questions of a suite: asked concurrently and bounded, one row for each.

Rows are appended as answers come, without a grade: nothing of the user's own runs while requests
are open. A request that fails is a row with `error`, and so is what the time limit of the suite
left unanswered; only a server that is gone, or that fails at one sample after the other, raises.
What was answered is in the file by then.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.client import Client, Completion, RequestFailed
from workbench.digest import content_id
from workbench.errors import ServingFailure
from workbench.progress import Progress
from workbench.questions import Question, check_tokens, guides
from workbench.ranking import RANKINGS
from workbench.records import SampleRow
from workbench.rows import RowFile, clean_text
from workbench.scorers.flags import flags_of
from workbench.suites import Suite
from workbench.tool_routes import TOOL_ROUTES

if TYPE_CHECKING:
    from workbench.servers import Endpoint
    from workbench.tokenizer import Tokenizer

T = TypeVar("T")

#: How the error of a sample begins that was not answered within the time of its suite.
TIME_LIMIT = "time limit of the suite"
#: How often a request whose connection broke is sent again, with these pauses in seconds.
_PAUSES = (0.2, 0.5, 1.0)
_GONE = "connection refused"
_BROKEN = (_GONE, "connection lost")


class Asking:
    """One pass over the questions that have no usable row yet.

    Args:
        endpoint: the server.
        suite: what is asked.
        tokenizer: of the checkpoint.
        found: rows by key; those that are there already, and then what is answered.
        total: questions of the suite, for the progress.
        progress: told after each row.
        tools_shown: whether the chat template shows the functions of a suite that calls tools.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        suite: Suite,
        tokenizer: Tokenizer,
        found: dict[str, SampleRow],
        total: int,
        progress: Progress,
        tools_shown: bool = True,
    ) -> None:
        self._tools_shown = tools_shown
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
        self,
        work: Sequence[Question],
        rows: Path,
        *,
        concurrency: int,
        request_seconds: float,
        total_seconds: float | None,
    ) -> None:
        """Ask, so many at a time; fills `found`.

        Raises:
            ServingFailure: the server is gone, or answers nothing.
            DiskFull: no space is left.
        """
        queue = iter(work)
        file = RowFile(rows)
        at_a_time = min(concurrency, len(work))

        def keep(row: SampleRow) -> None:
            file.append(row)
            self._found[row.key] = row
            self._progress(len(self._found), self._total, self._suite.spec.name)

        async def worker(client: Client) -> None:
            for question in queue:
                keep(await self._row(client, question))
                self._give_up_where_nothing_answers(max(16, 2 * at_a_time))

        endpoint = self._endpoint
        async with (
            file.syncing(),
            endpoint.client(request_seconds=request_seconds) as client,
        ):
            try:
                async with asyncio.timeout(total_seconds) as limit, asyncio.TaskGroup() as group:
                    for _ in range(at_a_time):
                        group.create_task(worker(client))
            except BaseExceptionGroup as failures:
                first = failures.exceptions[0]
                raise first from first.__cause__
            except TimeoutError:
                if not limit.expired():
                    raise
                late = f"{TIME_LIMIT}: not answered within {total_seconds:g} s"
                for question in work:
                    if question.key not in self._found:
                        keep(self._failed(question, time.perf_counter(), question.too_long or late))
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
        answer = await _again(lambda: self._ask(client, question))
        if answer.prompt_tokens is None or answer.output_tokens is None:
            raise RequestFailed("no usage", "the server did not say how many tokens it counted")
        check_tokens(question, answer.prompt_tokens, self._engine, answer.prompt_ids)
        output = clean_text(answer.text)
        ids = answer.prompt_ids
        return self._answer(
            question,
            output,
            tokens_digest=None if ids is None else content_id(list(ids)),
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            started=answer.started - self._begun,
            seconds=answer.seconds,
        )

    async def _ask(self, client: Client, question: Question) -> Completion:
        spec = self._suite.spec
        if spec.ask == "call_tools":
            route = TOOL_ROUTES[self._engine]
            return await route.ask(client, question, spec, self._tools_shown)
        return await client.complete(
            question.prompt,
            max_tokens=spec.max_tokens,
            temperature=spec.sampling.temperature,
            top_p=spec.sampling.top_p,
            seed=question.seed,
            stop=spec.sampling.stop,
            response_schema=spec.response_schema if guides(spec) else None,
            token_ids=True,
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
        ids = [found.prompt_ids for found in scored if found.prompt_ids is not None]
        return self._answer(
            question,
            # `index` of the maximum: the first of equals.
            choices[sums.index(max(sums))],
            tokens_digest=content_id(ids) if len(ids) == len(scored) else None,
            finish_reason=None,
            prompt_tokens=sum(found.prompt_tokens for found in scored),
            output_tokens=0,
            choice_logprobs=dict(zip(choices, sums, strict=True)),
            started=begun - self._begun,
            seconds=time.perf_counter() - begun,
        )

    def _answer(
        self, question: Question, output: str, *, finish_reason: str | None, **fields: Any
    ) -> SampleRow:
        """The row of an answer, without a grade: `workbench.grading` gives it one later."""
        generated = self._suite.spec.ask != "rank_choices"
        return SampleRow(
            id=question.sample.id,
            repeat=question.repeat,
            **question.identity,
            output=output,
            score=None,
            flags=flags_of(output, finish_reason) if generated else (),
            finish_reason=finish_reason,
            **fields,
        )

    def _failed(self, question: Question, begun: float, error: str) -> SampleRow:
        return SampleRow(
            id=question.sample.id,
            repeat=question.repeat,
            **question.identity,
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
