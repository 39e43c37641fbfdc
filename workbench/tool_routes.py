"""Offers functions to a served model and gets the calls it makes: one way for each engine.

A request names the conversation and the functions; the server renders them. Each way gives the
prompt's token ids as the server made them where it can, so that `questions.check_tokens` can refuse
an answer to another prompt than the one on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from workbench.client import Client, Completion
from workbench.questions import Question
from workbench.suite_spec import SuiteSpec
from workbench.tool_calls import PATH, read_calls, tools_as_sent


class ToolRoute(Protocol):
    """A way to ask for tool calls."""

    async def ask(self, client: Client, question: Question, spec: SuiteSpec) -> Completion:
        """The calls a model makes, as `tool_calls` writes them down.

        Raises:
            RequestFailed: no answer, or not one of the chat route's.
        """


class OpenAiTools:
    """vLLM's chat route, which the fake server speaks too."""

    async def ask(self, client: Client, question: Question, spec: SuiteSpec) -> Completion:
        """One request."""
        body = request(client.model, question, spec) | {
            "return_token_ids": True,
            # The template writes what special tokens there are.
            "add_special_tokens": False,
        }
        return await client.ask(PATH, body, read_calls)


def request(model: str, question: Question, spec: SuiteSpec) -> dict[str, Any]:
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
TOOL_ROUTES: Mapping[str, ToolRoute] = {"vllm": OpenAiTools(), "fake": OpenAiTools()}
