"""Asking for prompt log-probabilities: of the fake server, and of servers that answer wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import serving
from scripted_server import ScriptedServer
from test_evaluate_fake import fake
from test_servers import flag, launch

from workbench import divergence_ask
from workbench.divergence import compare
from workbench.divergence_ask import read_answer, trace
from workbench.divergence_corpus import Corpus, Document
from workbench.divergence_trace import read_trace
from workbench.errors import ServingFailure
from workbench.evaluation_records import DivergenceTrace
from workbench.progress import silent
from workbench.servers import Endpoint
from workbench.servers.fake_prompt import prompt_logprobs
from workbench.servers.vllm import VllmEngine

TOP_K = 5


def corpus(count: int = 6) -> Corpus:
    return Corpus(
        tuple(
            Document("calibration", f"d{i}", tuple(range(i + 1, i + 9)), 1 + i % 3)
            for i in range(count)
        ),
        {"empty": 2},
    )


def ask(
    endpoint: Endpoint, file: Path, of: Corpus | None = None, **changes: Any
) -> DivergenceTrace:
    options: dict[str, Any] = {
        "top_k": TOP_K,
        "request_seconds": 10.0,
        "progress": silent,
        "pauses": (0.0, 0.0),
    }
    return trace(endpoint, of or corpus(), file=file, **(options | changes))


def healthy(body: dict[str, Any]) -> dict[str, Any]:
    ids = body["prompt"]
    given = prompt_logprobs(ids, body["prompt_logprobs"], 0.0, "s")
    return {"choices": [{"text": "", "prompt_token_ids": ids, "prompt_logprobs": given}]}


def at(url: str, **changes: Any) -> Endpoint:
    return Endpoint(url, "k", "m", serving("w").model_copy(update=changes), 1)


def test_the_fake_server_is_led_through_a_corpus(tmp_path: Path) -> None:
    seen: list[tuple[float, float, str]] = []
    with fake(tmp_path) as endpoint:
        record = ask(endpoint, tmp_path / "t", progress=lambda *told: seen.append(told))
        again = ask(endpoint, tmp_path / "again", at_a_time=1)
    assert record.unavailable == "" and record.file == "t"
    assert (record.documents, record.top_k) == (6, TOP_K)
    assert record.tokens == sum(record.sources.values()) == sum(7 - i % 3 for i in range(6))
    assert record.corpus_tokens == 48 and record.left_out == {"empty": 2}
    assert record.digest == again.digest, "the same numbers, however many at a time"
    assert seen[0] == (0, 6, "divergence") and seen[-1] == (6, 6, "divergence")
    found = list(read_trace(tmp_path / "t"))
    for document, asked in zip(found, corpus().documents, strict=True):
        assert document.true_ids.tolist() == list(asked.ids[asked.start :])
        assert (document.logprobs[:, :-1] >= document.logprobs[:, 1:]).all()


def test_a_damaged_fake_diverges_and_an_undamaged_one_does_not(tmp_path: Path) -> None:
    means = []
    for damage in (0.0, 0.2, 0.8):
        with fake(tmp_path, damage=damage) as endpoint:
            ask(endpoint, tmp_path / f"t{damage}")
        got = compare(read_trace(tmp_path / "t0.0"), read_trace(tmp_path / f"t{damage}"))
        means.append(got.overall.kld_mean)
    assert means[0] == 0 and means == sorted(set(means))


def test_nan_is_refused_with_its_position_and_the_record_says_so(tmp_path: Path) -> None:
    def broken(body: dict[str, Any]) -> dict[str, Any]:
        answer = healthy(body)
        if body["prompt"][0] == 3:
            for entry in answer["choices"][0]["prompt_logprobs"][5].values():
                entry["logprob"] = math.nan
        return answer

    with ScriptedServer(broken) as server:
        record = ask(at(server.url), tmp_path / "t")
    assert "document 2 (calibration), position 5: a log-probability is not a number" in (
        record.unavailable
    )
    assert record.file == "" and not (tmp_path / "t").exists()


def test_an_engine_without_them_is_not_asked(tmp_path: Path) -> None:
    record = ask(at("http://127.0.0.1:9", engine="llamacpp"), tmp_path / "t")
    assert record.unavailable == "llamacpp's server returns no log-probabilities of a prompt"
    assert record.corpus_digest == corpus().digest and not (tmp_path / "t").exists()
    assert (
        "no document" in ask(at("http://127.0.0.1:9"), tmp_path / "t", Corpus((), {})).unavailable
    )


def edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    answer = healthy({"prompt": list(range(1, 9)), "prompt_logprobs": TOP_K})
    edit(answer["choices"][0])
    return answer


def entry(choice: dict[str, Any], position: int) -> dict[str, Any]:
    found: dict[str, Any] = choice["prompt_logprobs"][position]
    return found


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c.update(prompt_logprobs=None), "without the prompt's log-probabilities"),
        (lambda c: c["prompt_token_ids"].__setitem__(0, 99), "other token ids"),
        (lambda c: c["prompt_logprobs"].pop(), "7 positions came back of 8"),
        (lambda c: entry(c, 3).pop("4"), "nothing is said of token 4 at position 3"),
        (lambda c: c["prompt_logprobs"].__setitem__(3, None), "nothing is said of token 4"),
        (lambda c: entry(c, 3).update({"7777": None}), "malformed|not one with"),
        (lambda c: entry(c, 3).update({"x": {"logprob": -1, "rank": 1}}), "not one with"),
        (lambda c: entry(c, 3)["4"].update(logprob=None), "no number at position 3"),
        (lambda c: entry(c, 3)["4"].update(logprob="low"), "not one with"),
        (lambda c: entry(c, 3)["4"].update(logprob=1e300), "position 3: a log-probability is inf"),
        (lambda c: entry(c, 3)["4"].update(rank=None), "not one with"),
        (lambda c: entry(c, 3)["4"].update(rank=1 << 40), "not one with"),
        (lambda c: c.update(prompt_logprobs=[1] * 8), "not one with"),
        (lambda c: c.update(prompt_logprobs="12345678"), "not one with"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(edit: Any, says: str) -> None:
    document = Document("calibration", "d", tuple(range(1, 9)), 1)
    assert read_answer(document, 0, edited(lambda c: None), TOP_K).index == 0
    with pytest.raises(divergence_ask.RequestFailed, match=says):
        read_answer(document, 0, edited(edit), TOP_K)


@pytest.mark.parametrize("answer", [None, [], {}, {"choices": []}, {"choices": [None]}, "text", 7])
def test_what_is_no_answer_is_refused(answer: Any) -> None:
    document = Document("calibration", "d", tuple(range(1, 9)), 1)
    with pytest.raises(divergence_ask.RequestFailed):
        read_answer(document, 0, answer, TOP_K)


def test_fewer_than_asked_for_are_refused() -> None:
    document = Document("calibration", "d", tuple(range(1, 9)), 1)
    answer = healthy({"prompt": list(document.ids), "prompt_logprobs": 3})
    with pytest.raises(divergence_ask.RequestFailed, match=r"of 5 log-probabilities at position 1"):
        read_answer(document, 0, answer, TOP_K)


def test_a_true_token_beyond_the_likeliest_is_kept_apart() -> None:
    given: list[Any] = [
        None,
        {
            "9": {"logprob": -7.0, "rank": 40},
            "1": {"logprob": -0.5, "rank": 1},
            "2": {"logprob": -1.5, "rank": 2},
        },
        {"1": {"logprob": -1.0, "rank": 1}, "2": {"logprob": -1.0, "rank": 2}},
    ]
    answer = {"choices": [{"prompt_token_ids": [5, 9, 2], "prompt_logprobs": given}]}
    found = read_answer(Document("s", "d", (5, 9, 2), 1), 0, answer, 2)
    assert found.true_ids.tolist() == [9, 2] and found.ranks.tolist() == [40, 2]
    assert found.ids.tolist() == [[1, 2], [1, 2]]
    assert found.true_logprobs.tolist() == [-7.0, -1.0]


def test_a_server_that_dies_keeps_what_was_answered(tmp_path: Path) -> None:
    with (
        ScriptedServer(healthy, dies_after=3) as server,
        pytest.raises(ServingFailure, match="failed at document"),
    ):
        ask(at(server.url), tmp_path / "t", at_a_time=1)
    with ScriptedServer(healthy) as server:
        record = ask(at(server.url), tmp_path / "t", at_a_time=1)
        assert len(server.bodies) == 3, "the first three were not asked again"
    with ScriptedServer(healthy) as server:
        assert ask(at(server.url), tmp_path / "other").digest == record.digest
    # Of other weights nothing is kept.
    with ScriptedServer(healthy) as server:
        ask(at(server.url, served_digest="x"), tmp_path / "t")
        assert len(server.bodies) == 6


def test_a_busy_server_is_asked_again_and_a_refusing_one_is_not(tmp_path: Path) -> None:
    answers = iter([503, 503])
    with ScriptedServer(lambda b: next(answers, None) or healthy(b)) as server:
        assert ask(at(server.url), tmp_path / "a", at_a_time=1).documents == 6
        assert len(server.bodies) == 8
    with ScriptedServer(lambda b: 400) as server:
        record = ask(at(server.url), tmp_path / "b", at_a_time=1)
        assert len(server.bodies) == 1 and "http 400" in record.unavailable
    with ScriptedServer(lambda b: 500) as server, pytest.raises(ServingFailure, match="http 500"):
        ask(at(server.url), tmp_path / "c", at_a_time=1)


def test_no_more_than_a_few_at_a_time_and_in_order(tmp_path: Path) -> None:
    # Each is open for so long that two others come meanwhile, in one of seven rounds at least.
    with ScriptedServer(healthy, seconds=0.3) as server:
        ask(at(server.url), tmp_path / "t", corpus(20), at_a_time=3)
        assert server.at_once == 3
        body = server.bodies[0]
    assert body["prompt_logprobs"] == TOP_K and body["max_tokens"] == 1
    assert body["return_token_ids"] is True and body["add_special_tokens"] is False
    assert [d.index for d in read_trace(tmp_path / "t")] == list(range(20))


def test_the_fakes_distributions_are_distributions() -> None:
    for top_k in (1, 5, 64):
        given = prompt_logprobs(list(range(50)), top_k, 0.5, "s")
        document = Document("s", "d", tuple(range(50)), 1)
        answer = {"choices": [{"prompt_token_ids": list(range(50)), "prompt_logprobs": given}]}
        found = read_answer(document, 0, answer, top_k)
        assert (found.logprobs <= 0).all()
        assert replace(found, index=1).index == 1


def test_vllm_is_told_how_many_it_will_be_asked_for(tmp_path: Path) -> None:
    engine = VllmEngine()
    asked = replace(launch(tmp_path), top_logprobs=64)
    assert flag(engine.command(asked).words, "--max-logprobs") == "64"
    assert "--max-logprobs" not in engine.command(launch(tmp_path)).words
    # The user's own limit stays: two would contradict each other.
    own = replace(launch(tmp_path, args=("--max_logprobs=100",)), top_logprobs=64)
    assert "--max-logprobs" not in engine.command(own).words
