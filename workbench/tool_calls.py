"""Tool calls: how functions are offered to a model, and how the calls it makes are written down.

The chat route is the only one that parses calls, and there the server renders the template. So that
it is the same prompt all the same, its tokens are held against those our own tokenizer makes of our
own rendering, as for every other question.

What the model said becomes one text, the row's output: canonical JSON of ``{"content": ...,
"tool_calls": [{"arguments": "<as sent>", "name": ...}]}``. Arguments stay the text the server sent,
valid or not: whether they are is for the scorer to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.completion import Answer, ids_of
from workbench.digest import canonical_json, content_id

PATH = "/v1/chat/completions"
_FIELDS = ("name", "description", "parameters", "strict")
#: Hermes' form of a call; of an open one, what was said of it counts.
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


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
    return Answer(
        text=as_text(calls, content),
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        tokens=(),
        prompt_ids=ids_of(answer.get("prompt_token_ids")),
    )


def as_text(calls: Sequence[Mapping[str, str]], content: str | None) -> str:
    """A row's output: canonical JSON of the calls, and of what was said beside them."""
    said = canonical_json({"tool_calls": [dict(call) for call in calls], "content": content})
    return said.decode("utf-8", "surrogatepass")


def calls_schema(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON schema of an array of calls, as vLLM decodes `tool_choice: required` under."""
    functions = [tool["function"] for tool in tools_as_sent(tools)]
    kinds = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [function["name"]]},
                "parameters": function["parameters"] or {"type": "object", "properties": {}},
            },
            "required": ["name", "parameters"],
        }
        for function in functions
    ]
    return {"type": "array", "minItems": 1, "items": {"anyOf": kinds}}


def read_said(text: str, choice: str) -> str:
    """The calls in a text that no server has parsed, as a row's output.

    Args:
        text: what the model said.
        choice: ``required``: a JSON array under `calls_schema`; ``auto``: calls as Hermes writes
            them, ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``. As in vLLM, one call
            that cannot be read makes the whole text no call.
    """
    try:
        if choice == "required":
            found = json.loads(text)
            pairs = [(call["name"], call["parameters"]) for call in found]
        else:
            found = [json.loads(said) for said in _HERMES.findall(text)]
            pairs = [(call["name"], call["arguments"]) for call in found]
        calls = [
            _call({"name": n, "arguments": json.dumps(a, ensure_ascii=False)}) for n, a in pairs
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        calls = []
    if not calls:
        return as_text([], text)
    before = "" if choice == "required" else text[: text.index("<tool_call>")]
    return as_text(calls, before if before.strip() else None)


def _call(function: Mapping[str, Any]) -> dict[str, str]:
    name, arguments = function["name"], function["arguments"]
    if not isinstance(name, str):
        raise TypeError("the name of a called function is not a text")
    if not isinstance(arguments, str):
        arguments = canonical_json(arguments).decode("utf-8", "surrogatepass")
    return {"name": name, "arguments": arguments}
