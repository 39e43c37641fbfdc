"""Divergence over the real vLLM: its prompt log-probabilities are what the statistics need.

One server, with prefix caching on, which must change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from projects import ROOT
from real_server import served

from workbench.divergence import compare
from workbench.divergence_ask import trace
from workbench.divergence_corpus import CALIBRATION, Corpus, HeldOut, build
from workbench.divergence_trace import read_trace
from workbench.progress import silent
from workbench.servers import Endpoint
from workbench.sources import read_rows
from workbench.spec import CalibrationSpec, DivergenceSpec, ServeSpec
from workbench.suites import load_suite
from workbench.tokenizer import Tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

TOP_K = 64


@pytest.fixture(scope="module")
def corpus(demo: Path) -> Corpus:
    rows = read_rows(ROOT / "calib_data" / "instructions" / "samples.jsonl").rows
    spec = CalibrationSpec(source="instructions", samples=1, max_tokens=64)
    suites = {
        name: load_suite(ROOT / "eval_suites" / name) for name in ("sentiment", "short_question")
    }
    return build(
        DivergenceSpec(tokens=1500, top_k=TOP_K),
        suites,
        HeldOut(spec, rows, ()),
        Tokenizer.load(demo),
        512,
    )


@pytest.fixture(scope="module")
def endpoint(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    spec = ServeSpec(max_model_len=512, args=("--enable-prefix-caching",))
    folder = tmp_path_factory.mktemp("server")
    with served(demo, folder, spec, top_logprobs=TOP_K) as running:
        yield running


def traced(endpoint: Endpoint, corpus: Corpus, file: Path, at_a_time: int = 4) -> None:
    record = trace(
        endpoint, corpus, top_k=TOP_K, file=file, request_seconds=300, progress=silent,
        at_a_time=at_a_time,
    )  # fmt: skip
    assert record.unavailable == "" and record.tokens == sum(corpus.sources.values())


def test_asked_twice_it_diverges_in_nothing_that_matters(
    endpoint: Endpoint, corpus: Corpus, tmp_path: Path
) -> None:
    traced(endpoint, corpus, tmp_path / "a")
    traced(endpoint, corpus, tmp_path / "b", at_a_time=1)
    found = compare(read_trace(tmp_path / "a"), read_trace(tmp_path / "b"))
    assert {CALIBRATION, "suite:sentiment"} <= set(found.by_source)
    assert found.overall.kld["max"] < 1e-5 and found.overall.same_top > 0.999
    assert 0.8 < found.overall.covered < 1
    assert 5 < found.overall.ppl_reference < 200


def test_they_are_those_of_an_echo(endpoint: Endpoint, corpus: Corpus, tmp_path: Path) -> None:
    """The same numbers by another route of the server, position by position."""
    traced(endpoint, corpus, tmp_path / "t")
    documents = list(read_trace(tmp_path / "t"))[:6]

    async def echoes() -> list[list[float | None]]:
        async with endpoint.client(request_seconds=300) as client:
            found = []
            for document in documents:
                ids = corpus.documents[document.index].ids
                answer = await client.complete(ids, max_tokens=0, echo=True, logprobs=1)
                found.append(list(answer.token_logprobs))
            return found

    for document, echoed in zip(documents, asyncio.run(echoes()), strict=True):
        assert np.allclose(document.true_logprobs, echoed[document.start :], atol=1e-4)  # type: ignore[arg-type]
        top = (document.ids[:, 0] == document.true_ids) == (document.ranks == 1)
        assert top.mean() > 0.99
