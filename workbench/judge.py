"""Asks the judge: an OpenAI-compatible chat endpoint that compares answers with their targets.

What it is asked and how its word is read is `workbench.scorers.judge`. Greedy, and each answer
twice. The judge is a model like any other and changes under its name, so that every grade holds
the `model` and `system_fingerprint` the endpoint itself gave, and `Judgement.versions` all of them:
more than one, and the scores of a suite are not of one judge.

An answer that could not be judged has no grade, and the reason stands beside its key. It is never
scored.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.client import Client
from workbench.completion import RequestFailed
from workbench.errors import RecipeError
from workbench.scorers.base import Grade, shown
from workbench.scorers.judge import Judged, Messages, Verdict, combine, prompts, read_verdict
from workbench.spec import JudgeSpec

_BUSY = ("http 429", "http 503")
#: Of fewer answers nobody can say that a judge goes by their position.
_FEW = 10
_RETRIES = 5
_LONGEST_WAIT = 8.0
#: Room for a judge that argues before its word.
_MAX_TOKENS = 512


@dataclass
class Judgement:
    """What a judge said of some answers.

    Attributes:
        grades: key -> grade, of those that were judged.
        failed: key -> why it was not.
        versions: ``model`` or ``model (fingerprint)``, as the endpoint told, sorted; one if all is
            well.
    """

    grades: dict[str, Grade] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: tuple[str, ...] = ()


def judge_key(spec: JudgeSpec) -> str:
    """The endpoint's key, empty where it needs none.

    Raises:
        RecipeError: the environment variable that should hold it is not set.
    """
    if spec.key_env is None:
        return ""
    key = os.environ.get(spec.key_env, "")
    if not key:
        raise RecipeError(
            f"the judge's key is missing: environment variable {spec.key_env} is not set",
            where="evaluate.judge.key_env",
            fix=f"export {spec.key_env}=..., or remove key_env where the endpoint needs no key",
        )
    return key


async def judge_rows(
    spec: JudgeSpec,
    rubric: str,
    judged: Sequence[Judged],
    *,
    key: str = "",
    backoff: float = 0.5,
    known: Mapping[str, Grade] | None = None,
    keep: Callable[[str, Grade], None] = lambda key, grade: None,
) -> Judgement:
    """Judge answers, so many at a time.

    An empty answer loses without being shown. HTTP 429 and 503 are asked again, up to five times.

    Args:
        spec: the endpoint.
        rubric: what makes an answer good.
        judged: keys must be unique.
        key: of the endpoint, see `judge_key`; it is in no error.
        backoff: seconds before the first retry, doubled each time, at most 8.
        known: key -> grade, of answers this judge has judged before: whether it goes by the
            position is seen of all together.
        keep: told each grade as it comes.
    """
    found = Judgement(dict(known or {}))
    versions: set[str] = set()

    def graded(of: str, grade: Grade) -> None:
        found.grades[of] = grade
        keep(of, grade)

    gate = asyncio.Semaphore(spec.concurrency)

    async def one(client: Client, item: Judged) -> None:
        if not item.answer.strip():
            graded(item.key, Grade(0.0, (), {"why": "empty, not shown to the judge"}))
            return
        async with gate:
            try:
                said = [await _ask(client, chat, backoff) for chat in prompts(rubric, item)]
            except RequestFailed as failure:
                found.failed[item.key] = f"judge: {failure.reason}: {failure.what}"
                return
        (first, version), (second, other) = said
        versions.update((version, other))
        if first is None or second is None:
            # Not a tie: two sides that were both not judged would look alike.
            found.failed[item.key] = "judge: no verdict: it said neither A, B nor TIE"
            return
        grade = combine(first, second)
        judge = sorted({version, other})
        graded(item.key, Grade(grade.score, (), {**grade.details, "judge": judge}))

    async with Client(spec.url, key, spec.model, request_seconds=spec.request_seconds) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for item in judged:
                    group.create_task(one(client, item))
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
    _refuse_a_coin(found)
    found.versions = tuple(sorted(versions))
    return found


def _refuse_a_coin(found: Judgement) -> None:
    """A judge that goes by the position has judged nothing: its halves would make all alike."""
    swayed = [
        key for key, grade in found.grades.items() if grade.details.get("consistent") is False
    ]
    if len(found.grades) < _FEW or len(swayed) <= len(found.grades) / 2:
        return
    share = f"{len(swayed)} of {len(found.grades)}"
    for key in found.grades:
        found.failed[key] = (
            f"judge: undecided: {share} verdicts went with the position of the answer"
        )
    found.grades.clear()


async def _ask(client: Client, messages: Messages, backoff: float) -> tuple[Verdict | None, str]:
    """One verdict, and the version of the judge that gave it."""
    body = {
        "model": client.model,
        "messages": messages,
        "temperature": 0.0,
        "seed": 0,
        "max_tokens": _MAX_TOKENS,
    }
    for attempt in range(_RETRIES + 1):
        try:
            return _read(await client.post_json("/v1/chat/completions", body))
        except RequestFailed as failure:
            if failure.reason not in _BUSY or attempt == _RETRIES:
                raise
        await asyncio.sleep(min(_LONGEST_WAIT, backoff * 2**attempt))
    raise AssertionError("the loop returns or raises")


def _read(answer: Any) -> tuple[Verdict | None, str]:
    try:
        said = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as bad:
        raise RequestFailed(
            "malformed answer", f"the judge's answer is no chat completion: {type(bad).__name__}"
        ) from None
    model, fingerprint = answer.get("model"), answer.get("system_fingerprint")
    version = shown(str(model or "unnamed"))
    if fingerprint:
        version += f" ({shown(str(fingerprint))})"
    return read_verdict(said if isinstance(said, str) else ""), version
