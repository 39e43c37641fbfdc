"""How an engine wants to be asked for a completion, and how its answers are read. No network.

`workbench.client` sends and reads the clock; here is what it sends and what comes back. vLLM and
the fake server speak one dialect of the OpenAI completions route. Of llama.cpp the own route is
asked: its OpenAI one tells neither how many tokens a stream's event carries nor their ids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.completion import Answer, Stream, Token, ids_of, tokens_of

#: llama.cpp writes this for the logarithm of a probability that is 0 in float32.
_NOTHING = -1e30


@dataclass(frozen=True)
class Ask:
    """One request, as every engine understands it; the attributes of `Client.complete`."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    response_schema: Mapping[str, Any] | None = None
    echo: bool = False
    logprobs: int | None = None
    ignore_eos: bool = False
    stream: bool = False
    token_ids: bool = False


class Dialect(Protocol):
    """What differs between servers that complete a prompt.

    Attributes:
        path: route of completions.
        wants_ids: text goes through `tokenize` first, since the route would add special tokens.
        echoes: it can return a prompt's tokens with their log-probabilities.
        keeps_alive: a connection serves many requests. llama.cpp's HTTP server ends one after a
            stream without saying so, and the next request on it is lost.
    """

    path: str
    wants_ids: bool
    echoes: bool
    keeps_alive: bool

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """The JSON body of a request.

        Raises:
            ValueError: the engine cannot do what is asked.
        """

    def read(self, answer: Any) -> Answer:
        """An answer that was not streamed.

        Raises:
            KeyError, TypeError, ValueError, IndexError: it is not one.
        """

    def stream(self) -> Stream:
        """A reader of one stream."""


class OpenAiDialect:
    """vLLM's completions route, which the fake server speaks too."""

    path = "/v1/completions"
    wants_ids = False
    echoes = True
    keeps_alive = True

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """The JSON body; special tokens are never added."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "add_special_tokens": False,
        }
        if ask.top_p < 1:
            body["top_p"] = ask.top_p
        if ask.stop:
            body["stop"] = list(ask.stop)
        if ask.token_ids:
            # With an echo, vLLM then leaves the prompt's text out: its ids stand for it.
            body["return_token_ids"] = True
        if ask.echo:
            body["echo"] = True
        if ask.logprobs is not None:
            body["logprobs"] = ask.logprobs
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if ask.response_schema is not None:
            # vLLM ignores the older `guided_json` without a word; this one it enforces.
            schema = {"name": "response", "schema": dict(ask.response_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if ask.stream:
            body |= {
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
            }
        return body

    def read(self, answer: Any) -> Answer:
        """The first choice, its tokens and its usage."""
        choice = answer["choices"][0]
        if not isinstance(choice["text"], str):
            raise TypeError("the text of an answer is not a text")
        usage = answer.get("usage") or {}
        return Answer(
            text=choice["text"],
            finish_reason=choice.get("finish_reason"),
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            tokens=tuple(tokens_of(choice)),
            prompt_ids=ids_of(choice.get("prompt_token_ids")),
        )

    def stream(self) -> Stream:
        """Events of the OpenAI kind."""
        return Stream()


class LlamaCppDialect:
    """llama.cpp's own completion route (`tools/server/README.md` of llama.cpp).

    Greedy at temperature 0 and the model's own distribution above it: llama.cpp's default samplers
    (top-k 40, min-p 0.05) would change it. Its prompt cache is off for every request.
    """

    path = "/completion"
    wants_ids = True
    echoes = False
    keeps_alive = False

    def body(self, model: str, ask: Ask) -> dict[str, Any]:
        """The JSON body.

        Raises:
            ValueError: an echo, which the server has not, or a prompt that is not token ids.
        """
        if ask.echo:
            raise ValueError("llama.cpp's server returns no log-probabilities of a prompt")
        if isinstance(ask.prompt, str):
            raise ValueError("a text is tokenized before it is sent to llama.cpp")
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(ask.prompt),
            "n_predict": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
        }
        if ask.top_p < 1:
            # In this order, as vLLM has it: the temperature is applied first.
            body |= {"samplers": ["temperature", "top_p"], "top_p": ask.top_p}
        if ask.stop:
            body["stop"] = list(ask.stop)
        if ask.logprobs is not None:
            body["n_probs"] = max(1, ask.logprobs)
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if ask.response_schema is not None:
            body["json_schema"] = dict(ask.response_schema)
        if ask.stream:
            body["stream"] = True
        return body

    def read(self, answer: Any) -> Answer:
        """Text, counts and why it ended."""
        if not isinstance(answer["content"], str):
            raise TypeError("the text of an answer is not a text")
        return Answer(
            text=answer["content"],
            finish_reason=_finish(answer),
            prompt_tokens=answer["tokens_evaluated"],
            output_tokens=answer["tokens_predicted"],
            tokens=llama_tokens(answer),
        )

    def stream(self) -> Stream:
        """Events of llama.cpp's own kind."""
        return LlamaStream()


class LlamaStream(Stream):
    """What a stream of llama.cpp's own route has said so far.

    A part of a multi-byte character is not sent until the character is whole; the count of tokens
    in the next event then grows by more than one, and all of them were received with it.
    """

    def take(self, data: str, now: float) -> None:
        """Take the data of one event that was received at `now`, seconds."""
        event = self.decode(data)
        self.text.append(event["content"])
        self.times.extend([now] * (event["tokens_predicted"] - len(self.times)))
        self.tokens.extend(llama_tokens(event))
        if event["stop"]:
            self.finish_reason = _finish(event)
            self.usage = {
                "prompt_tokens": event["tokens_evaluated"],
                "completion_tokens": event["tokens_predicted"],
            }
            self.done = True


def llama_tokens(answer: Mapping[str, Any]) -> tuple[Token, ...]:
    """Tokens with log-probabilities of an answer of llama.cpp; none where none were asked.

    A token that is only a part of a character is not among them: llama.cpp leaves it out.
    """
    found = answer.get("completion_probabilities") or ()
    offsets = itertools.accumulate((len(t["token"]) for t in found), initial=0)
    return tuple(
        Token(
            text=token["token"],
            offset=offset,
            logprob=token["logprob"] if token["logprob"] > _NOTHING else -math.inf,
            id=token["id"],
        )
        for token, offset in zip(found, offsets, strict=False)
    )


def _finish(answer: Mapping[str, Any]) -> str | None:
    kind = answer["stop_type"]
    return {"eos": "stop", "word": "stop", "limit": "length"}.get(kind, str(kind))


#: engine -> its dialect
_DIALECTS: Mapping[str, Dialect] = {
    "vllm": OpenAiDialect(),
    "fake": OpenAiDialect(),
    "llamacpp": LlamaCppDialect(),
}


def dialect(engine: str) -> Dialect:
    """The dialect of an engine.

    Raises:
        KeyError: there is no such engine.
    """
    return _DIALECTS[engine]
