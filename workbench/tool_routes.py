"""Offers functions to a served model and gets the calls it makes: one way for each engine.

A request names the conversation and the functions; the server renders them. Each way gives the
prompt's token ids as the server made them, so that `questions.check_tokens` can refuse an answer to
another prompt than the one on record.

llama.cpp reads calls in the form its chat template shows. Of a template that shows no tools it
reads none, and takes no notice of `tool_choice: required` (measured, build 11549). There the same
prompt is completed and its answer read here, in the form vLLM would read it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from workbench.client import Client, Completion
from workbench.completion import Answer
from workbench.questions import Question
from workbench.suite_spec import SuiteSpec
from workbench.tool_calls import PATH, calls_schema, read_calls, read_said, tools_as_sent


class ToolRoute(Protocol):
    """A way to ask for tool calls."""

    def how(self, parser: str, shown: bool) -> str:
        """In a few words, for the record: results that were read differently do not pair.

        Args:
            parser: the one the server was started with.
            shown: whether the chat template shows tools at all.
        """

    async def ask(
        self, client: Client, question: Question, spec: SuiteSpec, shown: bool
    ) -> Completion:
        """The calls a model makes, as `tool_calls` writes them down.

        Raises:
            RequestFailed: no answer, or not one of the chat route's.
        """


class OpenAiTools:
    """vLLM's chat route, which the fake server speaks too."""

    def how(self, parser: str, shown: bool) -> str:
        """The server's parser reads them."""
        form = f" as {parser}" if parser else ""
        return f"tools, read by the server{form}" + ("" if shown else _UNSHOWN)

    async def ask(
        self, client: Client, question: Question, spec: SuiteSpec, shown: bool
    ) -> Completion:
        """One request."""
        body = _body(client.model, question, spec) | {
            "return_token_ids": True,
            # The template writes what special tokens there are.
            "add_special_tokens": False,
        }
        return await client.ask(PATH, body, read_calls)


class LlamaTools:
    """llama.cpp's chat route, or its completions where the template shows no tools."""

    def how(self, parser: str, shown: bool) -> str:
        """llama.cpp reads what its template shows."""
        if shown:
            return "tools, read by the server in its template's form"
        return "tools, read here as vLLM reads hermes" + _UNSHOWN

    async def ask(
        self, client: Client, question: Question, spec: SuiteSpec, shown: bool
    ) -> Completion:
        """One request, and one to see the tokens of the prompt it was."""
        if not shown:
            return await self._completed(client, question, spec)
        prompts: list[str] = []

        def read(answer: Any) -> Answer:
            prompts.append(answer["__verbose"]["prompt"])
            return read_calls(answer)

        samplers = ["temperature", *(["top_p"] if spec.sampling.top_p < 1 else [])]
        body = _body(client.model, question, spec) | {
            "samplers": samplers,
            "cache_prompt": False,
            "verbose": True,  # tells the prompt
        }
        answer = await client.ask(PATH, body, read)
        pieces = await client.tokenize(prompts[-1])
        return replace(answer, prompt_ids=tuple(piece.id for piece in pieces))

    async def _completed(self, client: Client, question: Question, spec: SuiteSpec) -> Completion:
        required = spec.tool_choice == "required"
        answer = await client.complete(
            question.prompt,
            max_tokens=spec.max_tokens,
            temperature=spec.sampling.temperature,
            top_p=spec.sampling.top_p,
            seed=question.seed,
            stop=spec.sampling.stop,
            response_schema=calls_schema(spec.tools) if required else None,
        )
        return replace(answer, text=read_said(answer.text, spec.tool_choice))


_UNSHOWN = "; the chat template shows none"


def _body(model: str, question: Question, spec: SuiteSpec) -> dict[str, Any]:
    """The JSON body every server takes."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in question.messages],
        "tools": tools_as_sent(spec.tools),
        "tool_choice": spec.tool_choice,
        "max_tokens": spec.max_tokens,
        "temperature": spec.sampling.temperature,
        "seed": question.seed,
    }
    if spec.sampling.top_p < 1:
        body["top_p"] = spec.sampling.top_p
    if spec.sampling.stop:
        body["stop"] = list(spec.sampling.stop)
    return body


#: engine -> how it is offered tools
TOOL_ROUTES: Mapping[str, ToolRoute] = {
    "vllm": OpenAiTools(),
    "fake": OpenAiTools(),
    "llamacpp": LlamaTools(),
}
