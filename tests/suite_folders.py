"""Folders of suites, written as a user would, for tests."""

import json
from pathlib import Path
from typing import Any

import yaml

GENERATE: dict[str, Any] = {
    "schema": "workbench.suite/1",
    "name": "mine",
    "description": "a suite",
    "ask": "generate",
    "prompt": "{question}",
    "chat_template": False,
    "scorer": "contains",
}
RANK = GENERATE | {"ask": "rank_choices", "scorer": "choice"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
JSON = GENERATE | {"scorer": "json_fields", "response_schema": SCHEMA}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = GENERATE | {
    "ask": "call_tools",
    "chat_template": True,
    "scorer": "tool_call",
    "tools": [WEATHER],
}
SAMPLE: dict[str, Any] = {"id": "a", "question": "Capital of France?", "target": "Paris"}


class Bracket:
    """A chat template that shows what it was given."""

    opening = ""

    def render(
        self, messages: Any, add_generation_prompt: bool, tools: tuple[Any, ...] | None = None
    ) -> str:
        said = f"[{len(tools)} tools]" if tools else ""
        said += "".join(f"[{m['role']}]{m['content']}" for m in messages)
        return said + ("[assistant]" if add_generation_prompt else "")


def write(folder: Path, spec: dict[str, Any] | str, *samples: dict[str, Any] | str | bytes) -> Path:
    """Write a suite's folder; without samples there is an empty file."""
    folder.mkdir(exist_ok=True, parents=True)
    text = spec if isinstance(spec, str) else yaml.safe_dump(spec, sort_keys=False)
    (folder / "suite.yaml").write_text(text, "utf-8")
    lines = [
        s if isinstance(s, bytes) else (s if isinstance(s, str) else json.dumps(s)).encode()
        for s in samples
    ]
    (folder / "samples.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder
