"""From a suite's templates and a sample to what is sent. Pure.

A template says `{field}` for a field of the sample, and `{{`, `}}` for braces. There is no format
specification and no attribute access, so a suite cannot reach into the program. `system` is sent
as it is written; a system message in `messages` is a template like the others.

A prompt without a chat template begins as the tokenizer's own plain texts do: where its
post-processor puts a begin-of-sequence token, that token stands in the text, once. Servers are told
to add none, so that nothing is added twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from workbench.digest import canonical_json
from workbench.suite_spec import Sample, SuiteSpec

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
#: Characters of a prompt; no context holds a text that long.
MOST_CHARACTERS = 2**24
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Renderer(Protocol):
    """What renders a chat: `workbench.tokenizer.Tokenizer` does."""

    @property
    def opening(self) -> str:
        """Text of the special tokens the tokenizer itself puts before a plain text."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text of a chat in the model's own template."""


def placeholders(template: str) -> tuple[str, ...]:
    """Names of the fields a template uses, in order of first use.

    Raises:
        ValueError: a single brace, or something in braces that is not the name of a field.
    """
    names: dict[str, None] = {}
    for match in _PIECE.finditer(template):
        piece, name = match.group(), match.group(1)
        if name is not None:
            if not is_field(name):
                raise ValueError(
                    f"'{piece}' is not a field: write {{name}} with letters, digits and _, "
                    "or double the braces to show them"
                )
            names[name] = None
        elif len(piece) == 1:
            raise ValueError(f"a single '{piece}': double it to show a brace")
    return tuple(names)


def is_field(name: str) -> bool:
    """True where a template can name a field so."""
    return _FIELD.match(name) is not None


def fields_shown(spec: SuiteSpec) -> tuple[str, ...]:
    """Names of the fields of a sample that a suite's templates show, in order of first use.

    Raises:
        ValueError: see `placeholders`.
    """
    names = (name for message in spec.templates for name in placeholders(message.content))
    return tuple(dict.fromkeys(names))


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """Put fields into a template.

    A text is put in as it is, a list of texts joined with commas, anything else as compact JSON.

    Raises:
        KeyError: a field is not there.
        ValueError: see `placeholders`.
    """
    placeholders(template)

    def put(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else _as_text(fields[name])

    return _PIECE.sub(put, template)


def filled_length(template: str, fields: Mapping[str, Any]) -> int:
    """About how many characters `fill` would make, without making them."""
    uses = Counter(match.group(1) for match in _PIECE.finditer(template))
    lengths = {name: len(_as_text(fields.get(name))) for name in uses if name is not None}
    return len(template) + sum(uses[name] * length for name, length in lengths.items())


def chat_messages(spec: SuiteSpec, sample: Sample) -> list[dict[str, str]]:
    """The conversation a sample stands for: ``{"role": ..., "content": ...}`` in order."""
    fields = sample.model_dump()
    first = [{"role": "system", "content": spec.system}] if spec.system is not None else []
    asked = [{"role": m.role, "content": fill(m.content, fields)} for m in spec.templates]
    return [*first, *asked]


def render_prompt(spec: SuiteSpec, sample: Sample, renderer: Renderer) -> str:
    """The exact text that is sent for a sample; for `rank_choices`, what stands before a choice.

    For `call_tools` it is what the model's own template makes of messages and tools; there the
    server renders, and this text is what its tokens can be compared with.

    Raises:
        RecipeError: there is no chat template, or it refuses these messages.
    """
    messages = chat_messages(spec, sample)
    if not spec.chat_template:
        text, opening = messages[-1]["content"], renderer.opening
        return text if text.startswith(opening) else opening + text
    if spec.ask == "call_tools":
        return renderer.render(messages, True, tools=spec.tools)
    return renderer.render(messages, True)


def question_text(spec: SuiteSpec, sample: Sample) -> str:
    """What a sample asks, for a person to read: the prompt alone, or the whole conversation."""
    if not spec.messages:
        return fill(spec.prompt or "", sample.model_dump())
    return "\n".join(f"{m['role']}: {m['content']}" for m in chat_messages(spec, sample))


def shows_tools(spec: SuiteSpec, sample: Sample, renderer: Renderer) -> bool:
    """True where the chat template makes another prompt of the same messages with tools.

    Many templates leave tools out without a word, and the model is then asked about functions it
    never saw.

    Raises:
        RecipeError: see `render_prompt`.
    """
    messages = chat_messages(spec, sample)
    return renderer.render(messages, True, tools=spec.tools) != renderer.render(messages, True)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return canonical_json(value).decode()
