"""Lead a served model through a corpus, and keep what it says of each token.

vLLM answers `prompt_logprobs: k` on `/v1/completions` with, for every token of the prompt but the
first, the k likeliest tokens and the one that stands there. The prompt goes as token ids, and the
ids that come back must be the same. A request with `prompt_logprobs` reads no prefix cache
(`SamplingParams.skip_reading_prefix_cache` of vLLM 0.32), so what was asked before changes nothing.
The server holds the logits of one document at a time: its tokens x vocabulary x 4 bytes, a few
times over.

llama.cpp's server gives no log-probabilities of a prompt, and forcing them token by token, as
`workbench.ranking` does for a choice, would take as many requests as there are tokens; the record
says so instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.client import Client, RequestFailed, run_async
from workbench.dialect import dialect
from workbench.digest import sha256_file
from workbench.divergence import TracedDocument, complaint
from workbench.divergence_corpus import Corpus, Document
from workbench.divergence_trace import TraceWriter
from workbench.errors import ServingFailure
from workbench.evaluation_records import DivergenceTrace
from workbench.progress import Progress

if TYPE_CHECKING:
    from workbench.servers import Endpoint

_PATH = "/v1/completions"
#: Documents asked at a time: enough to read one answer while the next is computed, few enough that
#: a handful of answers of several MB each is all that is held.
AT_A_TIME = 4
#: Pauses in seconds before a request is sent again that found the server busy or gone.
PAUSES = (0.2, 1.0, 3.0)
_GONE = ("connection refused", "connection lost", "timeout")


def trace(
    endpoint: Endpoint,
    corpus: Corpus,
    *,
    top_k: int,
    file: Path,
    request_seconds: float,
    progress: Progress,
    at_a_time: int = AT_A_TIME,
    pauses: Sequence[float] = PAUSES,
) -> DivergenceTrace:
    """Ask for every document that the file does not hold yet.

    Args:
        endpoint: the server.
        corpus: what to ask.
        top_k: likeliest tokens at each position.
        file: the trace; an earlier attempt of the same weights and corpus is gone on with.
        request_seconds: time limit of one request.
        progress: told after each document.
        at_a_time: documents asked at a time.
        pauses: seconds before a request is sent again that found the server busy or gone.

    Returns:
        The record; with `unavailable` and without a file where the engine gives no
        log-probabilities of a prompt, or gives what cannot be used.

    Raises:
        ServingFailure: the server is gone or fails; what was answered is in the file.
        DiskFull: no space is left.
    """
    begun = time.monotonic()
    serving = endpoint.serving
    record = DivergenceTrace(
        corpus_digest=corpus.digest,
        top_k=top_k,
        corpus_tokens=sum(len(d.ids) for d in corpus.documents),
        sources=corpus.sources,
        cut=sum(d.cut for d in corpus.documents),
        left_out=dict(corpus.left_out),
    )
    if not dialect(serving.engine).echoes:
        why = f"{serving.engine}'s server returns no log-probabilities of a prompt"
        return record.model_copy(update={"unavailable": why})
    if not corpus.documents:
        why = "no document: neither a held-out row nor a suite's reference answer"
        return record.model_copy(update={"unavailable": why})
    header = {
        "corpus": record.corpus_digest,
        "top_k": top_k,
        "served": serving.served_digest,
        "engine": [serving.engine, serving.engine_version, serving.environment],
        "dtype": serving.dtype.value,
        "hardware": serving.hardware,
    }
    with TraceWriter(file, header) as writer:
        asking = _Asking(endpoint, corpus, top_k, writer, progress, pauses)
        try:
            run_async(lambda: asking.run(request_seconds, at_a_time))
        except RequestFailed as failure:
            # What a server cannot do is a fact to record; that it is ill is a failure.
            if failure.reason in _GONE or failure.reason.startswith("http 5"):
                raise ServingFailure(
                    f"the server failed at document {writer.documents} of "
                    f"{len(corpus.documents)} of the divergence corpus ({failure.reason}): "
                    f"{failure.what}",
                    where=endpoint.base_url,
                    fix="read the server's log; what was answered is kept, the same command goes "
                    "on there. Where it ran out of memory, lower serve.max_model_len or leave "
                    "'divergence' out",
                ) from failure
            unusable = f"{failure.reason}: {failure.what}"
        else:
            writer.finish()
            unusable = ""
    if unusable:
        file.unlink()
        return record.model_copy(update={"unavailable": unusable})
    return record.model_copy(
        update={
            "file": file.name,
            "digest": sha256_file(file),
            "documents": len(corpus.documents),
            "tokens": sum(corpus.sources.values()),
            "seconds": time.monotonic() - begun,
        }
    )


def read_answer(document: Document, index: int, answer: Any, top_k: int) -> TracedDocument:
    """What an answer says of the scored tokens of a document.

    Args:
        document: that was asked.
        index: its place in the corpus.
        answer: the JSON body of the answer.
        top_k: how many tokens were asked for.

    Raises:
        RequestFailed: other tokens than ours, a position without log-probabilities, or a number
            that is none; the position is named.
    """
    where = f"document {index} ({document.source} {document.name})"
    try:
        choice = answer["choices"][0]
        ids, given = choice.get("prompt_token_ids"), choice.get("prompt_logprobs")
        if given is None:
            raise RequestFailed(
                "no logprobs",
                f"the server answers without the prompt's log-probabilities ({where})",
                fix="divergence needs a server that knows 'prompt_logprobs', as vLLM does",
            )
        if ids is not None and list(ids) != list(document.ids):
            raise RequestFailed("other tokens", f"{where}: the server read other token ids")
        if len(given) != len(document.ids):
            raise RequestFailed(
                "no logprobs",
                f"{where}: {len(given)} positions came back of {len(document.ids)}",
            )
        with np.errstate(over="ignore"):  # 1e300 becomes infinite, and is then complained about
            found = _read(document, index, given, top_k, where)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise RequestFailed(
            "malformed answer",
            f"{where}: the answer is not one with prompt log-probabilities: "
            f"{type(error).__name__}: {str(error)[:200]}",
        ) from error
    if said := complaint(found):
        raise RequestFailed("no logprobs", said)
    return found


def _read(
    document: Document, index: int, given: Sequence[Any], top_k: int, where: str
) -> TracedDocument:
    true_ids = np.array(document.ids[document.start :], np.int32)
    n = len(true_ids)
    ids = np.empty((n, top_k), np.int32)
    values = np.empty((n, top_k), np.float32)
    true_values = np.empty(n, np.float32)
    ranks = np.empty(n, np.int32)
    for row, entries in enumerate(given[document.start :]):
        position = document.start + row
        token = document.ids[position]
        told = entries or {}
        if str(token) not in told:
            raise RequestFailed(
                "no logprobs",
                f"{where}: nothing is said of token {token} at position {position}",
            )
        mine = told[str(token)]
        true_values[row] = _number(mine["logprob"], where, position)
        ranks[row] = mine["rank"]
        # The true token is among the likeliest, or it comes on top of them.
        others = {
            int(name): _number(entry["logprob"], where, position)
            for name, entry in told.items()
            if len(told) <= top_k or name != str(token)
        }
        if len(others) != top_k:
            raise RequestFailed(
                "no logprobs",
                f"{where}: {len(others)} of {top_k} log-probabilities at position {position}",
                fix="the server's own limit is lower (vLLM: --max-logprobs)",
            )
        ids[row] = list(others)
        values[row] = list(others.values())
    # Likeliest first, the lowest id of equals: the file then depends on the numbers alone.
    order = np.lexsort((ids, -values), axis=1)
    return TracedDocument(
        index=index,
        source=document.source,
        start=document.start,
        true_ids=true_ids,
        true_logprobs=true_values,
        ranks=ranks,
        ids=np.take_along_axis(ids, order, axis=1),
        logprobs=np.take_along_axis(values, order, axis=1),
    )


def _number(value: Any, where: str, position: int) -> float:
    if value is None:
        raise RequestFailed("no logprobs", f"{where}: no number at position {position}")
    return float(value)


class _Asking:
    """One pass over the documents that are not in the file yet."""

    def __init__(
        self,
        endpoint: Endpoint,
        corpus: Corpus,
        top_k: int,
        writer: TraceWriter,
        progress: Progress,
        pauses: Sequence[float],
    ) -> None:
        self._endpoint = endpoint
        self._pauses = pauses
        self._corpus = corpus
        self._top_k = top_k
        self._writer = writer
        self._progress = progress

    async def run(self, request_seconds: float, at_a_time: int) -> None:
        """Ask a few at a time, write in order: the oldest of them is waited for."""
        total = len(self._corpus.documents)
        self._progress(self._writer.documents, total, "divergence")
        waiting = iter(range(self._writer.documents, total))
        async with self._endpoint.client(request_seconds=request_seconds) as client:
            open_: deque[asyncio.Task[TracedDocument]] = deque()
            try:
                for _ in range(at_a_time):
                    self._start(client, waiting, open_)
                while open_:
                    document = await open_.popleft()
                    self._start(client, waiting, open_)
                    self._writer.append(document)
                    self._progress(self._writer.documents, total, "divergence")
            finally:
                for task in open_:
                    task.cancel()
                for task in open_:
                    with contextlib.suppress(asyncio.CancelledError, RequestFailed):
                        await task

    def _start(
        self, client: Client, waiting: Iterator[int], open_: deque[asyncio.Task[TracedDocument]]
    ) -> None:
        index = next(waiting, None)
        if index is not None:
            open_.append(asyncio.create_task(self._ask(client, index)))

    async def _ask(self, client: Client, index: int) -> TracedDocument:
        document = self._corpus.documents[index]
        body = {
            "model": client.model,
            "prompt": list(document.ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "seed": 0,
            "add_special_tokens": False,
            "prompt_logprobs": self._top_k,
            "return_token_ids": True,
        }
        for pause in self._pauses:
            try:
                answer = await client.post_json(_PATH, body)
                break
            except RequestFailed as failure:
                again = failure.reason in (*_GONE[:2], "http 429")
                if not again and not failure.reason.startswith("http 5"):
                    raise
            await asyncio.sleep(pause)
        else:
            answer = await client.post_json(_PATH, body)
        return read_answer(document, index, answer, self._top_k)
