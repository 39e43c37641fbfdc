"""The likelihood of a choice after a prompt: one way to ask for it each engine can.

Both give the sum of the natural log-probabilities of the choice's tokens, each after exactly the
tokens before it, from the model's own distribution (no sampler has touched it):

- *echo* (vLLM): prompt and choice are sent together, and come back with their log-probabilities.
- *forced* (llama.cpp, which has no echo): the choice's token ids are forced after the prompt's, and
  the log-probability each had before it was forced comes back.

llama.cpp leaves out a token that is only a part of a character. Such tokens are asked for one by
one, each beside a whole token that is forced: the whole token's log-probability is known, and how
much likelier it is than the part is read from the distribution after a bias on both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from workbench.client import Client, Piece, RequestFailed
from workbench.dialect import LlamaCppDialect, llama_tokens
from workbench.questions import Question, common_length, likelihood, other_tokens

if TYPE_CHECKING:
    from workbench.tokenizer import Tokenizer

_PATH = LlamaCppDialect.path
#: Added to the logits of the two tokens that are compared: no other comes near.
_BIAS = 100.0
#: Added to the whole token's logit on top, so that it is the one that is drawn. The larger it is,
#: the nearer the part's probability comes to the smallest float32, so a few are tried.
_LEADS = (30.0, 70.0, 5.0)
#: The forced token's logit: greedy decoding takes it whatever the model thinks.
_FORCE = 10_000.0


@dataclass(frozen=True)
class Scored:
    """The likelihood of one choice.

    Attributes:
        total: sum of the log-probabilities of its tokens, natural logarithm.
        prompt_tokens: tokens of prompt and choice together.
        prompt_ids: those tokens, as the server made them; None: it did not tell.
    """

    total: float
    prompt_tokens: int
    prompt_ids: tuple[int, ...] | None = None


class Ranking(Protocol):
    """A way to ask for likelihoods.

    Attributes:
        how: in a few words, for the record: results that were ranked differently do not pair.
    """

    how: str

    async def score(
        self, client: Client, question: Question, choice: str, tokenizer: Tokenizer
    ) -> Scored:
        """The likelihood of a choice after the question's prompt.

        Raises:
            RequestFailed: no answer, other tokens than the tokenizer's, or no number.
        """


class EchoRanking:
    """Prompt and choice come back with their log-probabilities."""

    how = "echo"

    def __init__(self, engine: str) -> None:
        self._engine = engine

    async def score(
        self, client: Client, question: Question, choice: str, tokenizer: Tokenizer
    ) -> Scored:
        """One request."""
        answer = await client.complete(
            question.prompt + choice, max_tokens=0, echo=True, logprobs=0, token_ids=True
        )
        total = likelihood(question, choice, answer, tokenizer, self._engine)
        return Scored(total, answer.prompt_tokens or 0, answer.prompt_ids)


class ForcedRanking:
    """The choice's token ids are forced after the prompt's."""

    how = "forced token ids"

    async def score(
        self, client: Client, question: Question, choice: str, tokenizer: Tokenizer
    ) -> Scored:
        """One request, or one or two for each token where a character is cut in parts."""
        text = question.prompt + choice
        ids = tokenizer.encode(text, False)
        pieces = await client.tokenize(text)
        if [piece.id for piece in pieces] != ids:
            raise other_tokens([piece.id for piece in pieces], ids)
        # Where the border was merged into one token, that token belongs to the choice.
        given = common_length(question.prompt_ids, ids)
        if given == 0 or given == len(ids):
            raise RequestFailed(
                "no logprobs", f"choice {choice!r} has no token of its own after the prompt"
            )
        try:
            values = await self._values(client, ids[:given], pieces[given:])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RequestFailed(
                "malformed answer",
                f"the answer is not one of llama.cpp's: {type(error).__name__}: {error}",
                where=client.base_url,
            ) from error
        total = math.fsum(values)
        if not math.isfinite(total):
            raise RequestFailed(
                "no logprobs", f"choice {choice!r} has no log-probability that is a number"
            )
        return Scored(total, len(ids), tuple(ids))

    async def _values(
        self, client: Client, before: Sequence[int], forced: Sequence[Piece]
    ) -> list[float]:
        if all(piece.text is not None for piece in forced):
            ids = [piece.id for piece in forced]
            grammar = "root ::= " + " ".join(f"<[{i}]>" for i in ids)
            values = await self._ask(client, before, len(ids), grammar=grammar)
            return [_chosen(values, place, i) for place, i in enumerate(ids)]
        found = []
        for place, piece in enumerate(forced):
            prompt = [*before, *(p.id for p in forced[:place])]
            if piece.text is not None:
                found.append(await self._forced(client, prompt, piece.id))
            else:
                found.append(await self._part(client, prompt, piece.id))
        return found

    async def _forced(self, client: Client, prompt: Sequence[int], token: int) -> float:
        """Log-probability of one token that is text by itself."""
        values = await self._ask(client, prompt, 1, logit_bias=[[token, _FORCE]])
        return _chosen(values, 0, token)

    async def _part(self, client: Client, prompt: Sequence[int], token: int) -> float:
        """Log-probability of one token that is a part of a character."""
        whole = (await client.tokenize("."))[-1].id
        known = await self._forced(client, prompt, whole)
        for lead in _LEADS:
            body = self._body(client, prompt, 1) | {
                "temperature": 1.0,
                "n_probs": 2,
                "post_sampling_probs": True,
                "logit_bias": [[token, _BIAS], [whole, _BIAS + lead]],
            }
            answer = await client.post_json(_PATH, body)
            for drawn in answer.get("completion_probabilities") or ():
                shares = {entry["id"]: entry["prob"] for entry in drawn["top_probs"]}
                if drawn["id"] == whole and min(shares.get(token, 0.0), shares[whole]) > 1e-30:
                    return known + math.log(shares[token]) - math.log(shares[whole]) + lead
        raise RequestFailed(
            "no logprobs", f"token {token}, a part of a character, is beyond what float32 can tell"
        )

    async def _ask(
        self, client: Client, prompt: Sequence[int], count: int, **force: Any
    ) -> list[tuple[int | None, float | None]]:
        answer = await client.post_json(_PATH, self._body(client, prompt, count) | force)
        return [(token.id, token.logprob) for token in llama_tokens(answer)]

    @staticmethod
    def _body(client: Client, prompt: Sequence[int], count: int) -> dict[str, Any]:
        return {
            "model": client.model,
            "prompt": list(prompt),
            "n_predict": count,
            "temperature": 0.0,
            "seed": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "n_probs": 1,
        }


def _chosen(values: Sequence[tuple[int | None, float | None]], place: int, token: int) -> float:
    """The log-probability at a place.

    Raises:
        RequestFailed: another token stands there.
    """
    if place >= len(values) or values[place][0] != token:
        stands = values[place][0] if place < len(values) else "nothing"
        raise RequestFailed(
            "no logprobs", f"token {token} was forced and {stands} stands in the answer"
        )
    value = values[place][1]
    return math.nan if value is None else value


#: engine -> how it ranks choices
RANKINGS: Mapping[str, Ranking] = {
    "vllm": EchoRanking("vllm"),
    "fake": EchoRanking("fake"),
    "llamacpp": ForcedRanking(),
}
