"""Tool calls: how functions are offered to a model, and how the calls it makes are written down.

The chat route is the only one that parses calls, and there the server renders the template. So that
it is the same prompt all the same, its tokens are held against those our own tokenizer makes of our
own rendering, as for every other question.

What the model said becomes one text, the row's output: canonical JSON of ``{"content": ...,
"tool_calls": [{"arguments": "<as sent>", "name": ...}]}``. Arguments stay the text the server sent,
valid or not: whether they are is for the scorer to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.completion import Answer, ids_of
from workbench.digest import canonical_json, content_id

PATH = "/v1/chat/completions"
_FIELDS = ("name", "description", "parameters", "strict")


def tools_as_sent(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Functions as servers hand them to a chat template: known fields, in the order of the API.

    A template writes the JSON out as it comes, so another order would be another prompt.
    """
    found = []
    for tool in tools:
        function = {"description": None, "parameters": None, **tool["function"]}
        kept = {name: function[name] for name in _FIELDS if function.get(name) is not None}
        # vLLM writes these two even where they are not given.
        kept = {name: kept.get(name) for name in _FIELDS if name in kept or name != "strict"}
        found.append({"type": "function", "function": kept})
    return found


def request_digest(
    messages: Sequence[Mapping[str, str]], tools: Iterable[Mapping[str, Any]]
) -> str:
    """Content id of a conversation and the functions offered in it."""
    return content_id({"messages": [dict(m) for m in messages], "tools": tools_as_sent(tools)})


def read_calls(answer: Any) -> Answer:
    """Take an answer of the chat route apart.

    Raises:
        KeyError, TypeError, ValueError, IndexError: it is not one.
    """
    choice = answer["choices"][0]
    message = choice["message"]
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise TypeError("the content of a message is not a text")
    calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
    usage = answer.get("usage") or {}
    said = canonical_json({"tool_calls": calls, "content": content})
    return Answer(
        text=said.decode("utf-8", "surrogatepass"),
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        tokens=(),
        prompt_ids=ids_of(answer.get("prompt_token_ids")),
    )


def _call(function: Mapping[str, Any]) -> dict[str, str]:
    name, arguments = function["name"], function["arguments"]
    if not isinstance(name, str):
        raise TypeError("the name of a called function is not a text")
    if not isinstance(arguments, str):
        arguments = canonical_json(arguments).decode("utf-8", "surrogatepass")
    return {"name": name, "arguments": arguments}
