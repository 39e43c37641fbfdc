"""Tool calls: what is offered, what is read of a text, and what is written down."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llama_server import ids_of
from test_evaluate import TOOL, Letters, tool_suite

from workbench.client import Client, Completion, RequestFailed
from workbench.dialect import LlamaCppDialect
from workbench.questions import check_tokens, prepare_all
from workbench.tool_calls import (
    as_text,
    calls_schema,
    read_calls,
    read_said,
    request_digest,
    tools_as_sent,
)
from workbench.tool_routes import TOOL_ROUTES

HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'


def calls(text: str, choice: str = "auto") -> Any:
    return json.loads(read_said(text, choice))


def test_tools_are_sent_as_vllm_writes_them_out() -> None:
    """Known fields in the API's order, so that a template's JSON is the same on both sides."""
    odd = {"function": {"strict": True, "x": 1, "name": "f", "return": {}}, "type": "function"}
    sent = tools_as_sent([odd, TOOL])
    assert json.dumps(sent[0]) == json.dumps(
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": None, "strict": True},
        }
    )
    assert list(sent[1]["function"]) == ["name", "description", "parameters"]
    assert tools_as_sent(sent) == sent
    messages = [{"role": "user", "content": "x"}]
    assert request_digest(messages, [odd]) == request_digest(messages, sent[:1])
    assert request_digest(messages, [odd]) != request_digest(messages, [TOOL])


@pytest.mark.parametrize(
    ("text", "made", "content"),
    [
        (HERMES, ["weather"], None),
        ("Let me see. " + HERMES + HERMES, ["weather", "weather"], "Let me see. "),
        (HERMES.removesuffix("\n</tool_call>"), ["weather"], None),
        ("It rains.", [], "It rains."),
        ("", [], ""),
        ("<tool_call>not JSON</tool_call>", [], "<tool_call>not JSON</tool_call>"),
        (HERMES + "<tool_call>{", [], HERMES + "<tool_call>{"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', [], ...),
        ('<tool_call>{"name": "x"}</tool_call>', [], ...),
        ("<tool_call>[]</tool_call>", [], ...),
        ("<tool_call>" + "[" * 100_000, [], ...),
    ],
)
def test_calls_are_read_as_hermes_writes_them(text: str, made: list[str], content: Any) -> None:
    found = calls(text)
    assert [call["name"] for call in found["tool_calls"]] == made
    assert found["content"] == (text if content is ... else content)
    if made:
        assert json.loads(found["tool_calls"][0]["arguments"]) == {"city": "Łódź"}
        assert "Łódź" in found["tool_calls"][0]["arguments"]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('[{"name": "weather", "parameters": {"city": "Paris"}}]', ['{"city": "Paris"}']),
        ('[{"name": "weather", "parameters": "Paris"}]', ['"Paris"']),
        ('[{"name": "weather", "para', []),
        ("[]", []),
        ("3", []),
        ('"weather"', []),
        ('{"name": "weather"}', []),
    ],
)
def test_required_calls_are_an_array(text: str, arguments: list[str]) -> None:
    found = calls(text, "required")
    assert [call["arguments"] for call in found["tool_calls"]] == arguments
    assert found["content"] == (None if arguments else text)


def test_the_schema_of_required_calls() -> None:
    schema = calls_schema([TOOL, {"type": "function", "function": {"name": "now"}}])
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    good = [{"name": "weather", "parameters": {"city": "Paris"}}, {"name": "now", "parameters": {}}]
    assert validator.is_valid(good)
    for bad in ([], [{"name": "other", "parameters": {}}], [{"name": "now"}], {}):
        assert not validator.is_valid(bad)
    assert not validator.is_valid([{"name": "weather", "parameters": {"city": 3}}])


@given(st.text(), st.sampled_from(["auto", "required"]))
def test_no_text_is_too_much(text: str, choice: str) -> None:
    found = calls("<tool_call>" + text, choice)
    assert set(found) == {"tool_calls", "content"}
    assert read_said(text, choice) == as_text(
        calls(text, choice)["tool_calls"], calls(text, choice)["content"]
    )


def test_arguments_stay_as_they_were_sent() -> None:
    odd = '{"b":1, "a" : NaN'
    function = {"name": "f", "arguments": odd}
    answer = {"choices": [{"message": {"tool_calls": [{"function": function}]}}]}
    found = json.loads(read_calls(answer).text)
    assert found == {"tool_calls": [{"name": "f", "arguments": odd}], "content": None}


# --------------------------------------------------------------------------- llama.cpp


def llama(answer: Callable[[dict[str, Any]], Any], shown: bool, **changes: Any) -> Completion:
    """One question asked of a scripted llama.cpp."""
    of = tool_suite(1, **changes)
    (question,) = prepare_all(of, of.samples, Letters(), 2048, "")  # type: ignore[arg-type]

    async def tokenize(request: web.Request) -> web.Response:
        text = (await request.json())["content"]
        return web.json_response({"tokens": [{"id": i, "piece": chr(i)} for i in ids_of(text)]})

    async def post(request: web.Request) -> web.Response:
        return web.json_response(answer(await request.json()))

    async def main() -> Completion:
        app = web.Application()
        app.router.add_post("/tokenize", tokenize)
        app.router.add_post("/completion" if not shown else "/v1/chat/completions", post)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with Client(url, "key", "m", dialect=LlamaCppDialect()) as client:
                found = await TOOL_ROUTES["llamacpp"].ask(client, question, of.spec, shown)
                check_tokens(question, found.prompt_tokens or 0, "llamacpp", found.prompt_ids)
                return found
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def test_llama_cpp_is_believed_where_it_shows_the_prompt() -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        assert body["cache_prompt"] is False and body["samplers"] == ["temperature"]
        prompt = Letters().render(body["messages"], True, tools=body["tools"])
        return {
            "choices": [{"message": {"content": "no"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": 1},
            "__verbose": {"prompt": prompt},
        }

    def other(body: dict[str, Any]) -> dict[str, Any]:
        found = answer(body)
        found["__verbose"]["prompt"] += "."
        return found

    assert json.loads(llama(answer, True).text) == {"content": "no", "tool_calls": []}
    with pytest.raises(RequestFailed) as failure:
        llama(other, True)
    assert failure.value.reason == "other tokens"
    with pytest.raises(RequestFailed) as failure:
        llama(lambda body: answer(body) | {"__verbose": {}}, True)
    assert failure.value.reason == "malformed answer"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_where_the_template_shows_no_tools_the_prompt_is_completed(choice: str) -> None:
    said = {"auto": HERMES, "required": '[{"name": "weather", "parameters": {"city": "x"}}]'}

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        assert ("json_schema" in body) == (choice == "required")
        return {
            "content": said[choice],
            "stop_type": "eos",
            "tokens_predicted": 3,
            "tokens_evaluated": len(body["prompt"]),
        }

    found = json.loads(llama(answer, False, tool_choice=choice).text)
    assert [call["name"] for call in found["tool_calls"]] == ["weather"]
