"""Measures latency, throughput and memory of a server under a closed loop of equal requests.

At each concurrency so many workers send one request after the other. Every prompt has exactly the
workload's number of tokens, and no two begin alike, so that no cached prefix helps; every answer
has exactly its number of tokens (`ignore_eos`). Requests before the measured ones warm the server
up and count nowhere.

    TTFT  request sent to first token received
    TPOT  (last token - first token) / (tokens - 1)

Percentiles (linear interpolation) are over completed requests only; failed ones are counted apart,
by reason, and never averaged in. Output tokens/s is tokens of completed requests over the time from
the first request sent to the last answer. The clock is read in `workbench.client`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from workbench.client import Client, Completion, RequestFailed, run_async
from workbench.errors import ServingFailure
from workbench.progress import Progress, silent
from workbench.records import LoadPoint
from workbench.servers import Endpoint
from workbench.spec import ProfileSpec, WorkloadSpec
from workbench.workloads import Encoder, make_prompts

_SAMPLE_SECONDS = 0.2


@dataclass
class Peak:
    """Highest memory seen while something ran.

    Attributes:
        rss: resident bytes of the server's process tree; None: never seen.
        gpu: used device bytes; None: no GPU.
        samples: how often it was looked at.
    """

    rss: int | None = None
    gpu: int | None = None
    samples: int = 0

    def look(self, endpoint: Endpoint) -> None:
        """Look once."""
        self.samples += 1
        rss, gpu = endpoint.rss(), endpoint.gpu_bytes()
        if rss is not None:
            self.rss = max(self.rss or 0, rss)
        if gpu is not None:
            self.gpu = max(self.gpu or 0, gpu)


@dataclass
class Answers:
    """What came back of one load point.

    Attributes:
        completed: complete answers.
        errors: reason -> how many requests failed for it.
    """

    completed: list[Completion] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def run_profile(
    endpoint: Endpoint,
    spec: ProfileSpec,
    tokenizer: Encoder,
    *,
    request_seconds: float = 600.0,
    progress: Progress = silent,
) -> tuple[tuple[LoadPoint, ...], int | None, int | None]:
    """Measure every workload at every concurrency.

    Args:
        endpoint: the server.
        spec: workloads, concurrencies, requests and seed.
        tokenizer: of the checkpoint; makes prompts of an exact length.
        request_seconds: time limit of one request.
        progress: called with load points done, all, and which one runs.

    Returns:
        One load point for each workload and concurrency in the order written, the peak resident
        bytes of the server's processes, and the peak device bytes (None without a GPU).

    Raises:
        ServingFailure: not one request of a load point was completed.
    """
    return run_async(lambda: _profile(endpoint, spec, tokenizer, request_seconds, progress))


async def _profile(
    endpoint: Endpoint,
    spec: ProfileSpec,
    tokenizer: Encoder,
    request_seconds: float,
    progress: Progress,
) -> tuple[tuple[LoadPoint, ...], int | None, int | None]:
    plan = [(workload, level) for workload in spec.workloads for level in spec.concurrency]
    points = []
    async with (
        # A retry would hide a refusal inside a latency.
        endpoint.client(request_seconds=request_seconds, retries=0) as client,
        _watched(endpoint) as peak,
    ):
        for number, (workload, level) in enumerate(plan):
            progress(number, len(plan), f"{workload.name} at concurrency {level}")
            points.append(await _point(client, workload, level, spec, tokenizer, number))
        progress(len(plan), len(plan), "profiled")
    return tuple(points), peak.rss, peak.gpu


@contextlib.asynccontextmanager
async def _watched(endpoint: Endpoint) -> AsyncIterator[Peak]:
    """Sample memory while the block runs."""
    peak = Peak()

    async def sample() -> None:
        while True:
            # In a thread: reading /proc must not delay the reading of tokens.
            await asyncio.to_thread(peak.look, endpoint)
            await asyncio.sleep(_SAMPLE_SECONDS)

    task = asyncio.create_task(sample())
    try:
        yield peak
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        peak.look(endpoint)


async def _point(
    client: Client,
    workload: WorkloadSpec,
    level: int,
    spec: ProfileSpec,
    tokenizer: Encoder,
    number: int,
) -> LoadPoint:
    warm = max(2, level)
    prompts = make_prompts(
        tokenizer,
        count=warm + spec.requests,
        tokens=workload.prompt_tokens,
        seed=f"{spec.seed}/{workload.name}/{level}/{number}",
    )
    await _ask(client, workload, level, prompts[:warm])
    answers = await _ask(client, workload, level, prompts[warm:])
    if not answers.completed:
        reason, count = answers.errors.most_common(1)[0]
        raise ServingFailure(
            f"no request of workload '{workload.name}' at concurrency {level} was completed: "
            f"{reason} ({count} times)",
            where=client.base_url,
            fix="read the server's log, or lower the workload's token counts",
        )
    return summarize(workload, level, answers)


async def _ask(
    client: Client, workload: WorkloadSpec, level: int, prompts: Sequence[list[int]]
) -> Answers:
    """Send every prompt, `level` at a time, each worker its next one when its last has ended."""
    waiting = iter(prompts)
    answers = Answers()

    async def worker() -> None:
        for prompt in waiting:
            try:
                answer = await client.complete(
                    prompt, max_tokens=workload.output_tokens, ignore_eos=True, stream=True
                )
            except RequestFailed as failure:
                answers.errors[failure.reason] += 1
                continue
            if answer.output_tokens != workload.output_tokens:
                answers.errors["short answer"] += 1
            else:
                answers.completed.append(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(level):
            group.create_task(worker())
    return answers


def summarize(workload: WorkloadSpec, level: int, answers: Answers) -> LoadPoint:
    """Percentiles and throughput of completed answers; everything None where there are none."""
    done = answers.completed
    ttft = [1000 * a.ttft for a in done if a.ttft is not None]
    tpot = [1000 * a.tpot for a in done if a.tpot is not None]
    seconds = max(a.last for a in done) - min(a.started for a in done) if done else 0.0
    tokens = sum(a.output_tokens or 0 for a in done)
    return LoadPoint(
        workload=workload.name,
        concurrency=level,
        completed=len(done),
        failed=answers.errors.total(),
        ttft_ms_p50=_percentile(ttft, 50),
        ttft_ms_p95=_percentile(ttft, 95),
        tpot_ms_p50=_percentile(tpot, 50),
        tpot_ms_p95=_percentile(tpot, 95),
        output_tokens_per_s=tokens / seconds if seconds > 0 else None,
        seconds=seconds,
        errors=dict(sorted(answers.errors.items())),
    )


def _percentile(values: Sequence[float], q: float) -> float | None:
    import numpy as np

    return float(np.percentile(values, q, method="linear")) if values else None
