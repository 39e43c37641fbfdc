"""Likelihoods of choices by forced token ids, against a model whose every number is known."""

import asyncio
import math
from typing import Any

import pytest
from aiohttp import web
from llama_server import PART, LlamaModel, ids_of, logprob

from workbench.client import Client, RequestFailed
from workbench.dialect import LlamaCppDialect
from workbench.questions import Question
from workbench.ranking import RANKINGS, Scored
from workbench.servers.engine import ENGINES
from workbench.spec import Sample


class Letters:
    """The tokenizer of `LlamaModel`."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return ids_of(text)


def score(prompt: str, choice: str, model: LlamaModel) -> Scored:
    question = Question(
        sample=Sample(id="s", target="t"),
        prompt=prompt,
        prompt_ids=tuple(ids_of(prompt)),
        prompt_digest="",
        target_digest="",
        too_long=None,
    )

    async def main() -> Scored:
        runner = web.AppRunner(model.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with Client(url, "key", "m", dialect=LlamaCppDialect()) as client:
                letters: Any = Letters()
                return await RANKINGS["llamacpp"].score(client, question, choice, letters)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def known(choice: str) -> float:
    return math.fsum(logprob(token) for token in ids_of(choice))


@pytest.mark.parametrize("choice", ["a", " positive", "x" * 40])
def test_a_choice_of_whole_characters_takes_one_request(choice: str) -> None:
    model = LlamaModel()
    found = score("Good or bad?", choice, model)
    assert found.total == pytest.approx(known(choice), abs=1e-9)
    assert found.prompt_tokens == len(ids_of("Good or bad?" + choice))
    (body,) = [body for route, body in model.bodies if route == "/completion"]
    assert body["prompt"] == ids_of("Good or bad?")
    assert body["n_predict"] == len(ids_of(choice))
    assert body["cache_prompt"] is False and body["temperature"] == 0.0


@pytest.mark.parametrize("choice", ["é", "好", "naïve 正面!", "a好b"])
def test_a_part_of_a_character_counts_though_llama_cpp_leaves_it_out(choice: str) -> None:
    assert PART in ids_of(choice)
    found = score("q", choice, LlamaModel())
    assert found.total == pytest.approx(known(choice), abs=1e-5)


def test_another_tokenizer_in_the_served_file_is_noticed() -> None:
    with pytest.raises(RequestFailed) as failure:
        score("q", "a", LlamaModel("double bos"))
    assert failure.value.reason == "other tokens"
    assert "puts tokens [1] before the prompt" in failure.value.what


@pytest.mark.parametrize("broken", ["other token", "zero"])
@pytest.mark.parametrize("choice", ["ab", "好"])
def test_what_is_no_likelihood_fails(broken: str, choice: str) -> None:
    with pytest.raises(RequestFailed) as failure:
        score("q", choice, LlamaModel(broken))
    assert failure.value.reason == "no logprobs"


@pytest.mark.parametrize(("prompt", "choice"), [("", "a"), ("q", "")])
def test_a_choice_needs_a_prompt_and_a_token(prompt: str, choice: str) -> None:
    with pytest.raises(RequestFailed):
        score(prompt, choice, LlamaModel())


def test_every_engine_ranks_and_says_how() -> None:
    assert RANKINGS.keys() == ENGINES.keys()
    assert RANKINGS["llamacpp"].how != RANKINGS["vllm"].how
