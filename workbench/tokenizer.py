"""Encode text and render chats in the light kernel, without transformers.

`tokenizers` encodes; a jinja2 sandbox renders. The sandbox has what transformers gives a chat
template (``raise_exception``, ``strftime_now``, ``tojson``, loop controls, the ``generation``
block), with one difference on purpose: a template that asks for today's date gets a fixed one, so
that the same recipe sends the same prompts every day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from tokenizers import Tokenizer as Backend

from workbench.checkpoint import TOKENIZER_FILES, json_object, read_template, tokenizer_digest
from workbench.digest import sha256_file, sha256_text
from workbench.errors import CheckpointError, RecipeError
from workbench.template_sandbox import BoundedEnvironment, TooMuchWork

#: What ``strftime_now`` formats.
TEMPLATE_DATE = datetime(2026, 1, 1)
#: A text whose tokens are surely its own; what stands before them the tokenizer put there.
_PROBE = "a"
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """A checkpoint's tokenizer and chat template.

    Args:
        backend: the loaded ``tokenizer.json``.
        special: role -> token text, such as ``{"eos_token": "<|im_end|>"}``.
        template: text of the chat template; None where there is none.
        digest: content id of the tokenizer's files.
    """

    def __init__(
        self, backend: Backend, special: Mapping[str, str], template: str | None, digest: str
    ) -> None:
        self._backend = backend
        self.special = dict(special)
        self.template = template
        self.digest = digest
        self._compiled = None if template is None else _compile(template)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Load from a checkpoint folder.

        Raises:
            CheckpointError: there is no tokenizer, or it or its template cannot be read.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(
                "the checkpoint has no tokenizer (tokenizer.json)",
                where=str(path),
                fix="copy the tokenizer files of the original model into the folder",
            )
        try:
            backend = Backend.from_file(str(file))
        except Exception as error:  # the binding raises Exception itself
            raise CheckpointError(
                f"tokenizer.json cannot be read: {error}",
                where=str(file),
                fix="fetch the file again",
            ) from error
        # A saved tokenizer may carry settings of the run that saved it; neither belongs here.
        backend.no_truncation()
        backend.no_padding()
        files = {n: sha256_file(path / n) for n in TOKENIZER_FILES if (path / n).is_file()}
        try:
            return cls(backend, _special(path), read_template(path), tokenizer_digest(files))
        except TemplateError as error:
            raise CheckpointError(
                f"the chat template is not valid: {error}",
                where=str(path),
                fix="correct chat_template.jinja, or copy it from the original model",
            ) from error

    @property
    def template_digest(self) -> str | None:
        """sha256 of the chat template's text."""
        return None if self.template is None else sha256_text(self.template)

    @property
    def bos_id(self) -> int | None:
        """Id of the beginning-of-sequence token, if there is one."""
        return self._id("bos_token")

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-sequence token, if there is one."""
        return self._id("eos_token")

    @cached_property
    def opening(self) -> str:
        """Text of the special tokens the tokenizer itself puts before a plain text.

        Mostly a BOS, or nothing. Where a tokenizer also marks the first word of a text with a
        space, that mark is lost behind the token, as it is in transformers.
        """
        whole = self.encode(_PROBE, add_special_tokens=True)
        own = self.encode(_PROBE, add_special_tokens=False)
        added = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
        return "".join(self._backend.id_to_token(token) or "" for token in whole[:added])

    def bos_count(self, ids: Sequence[int]) -> int:
        """How many BOS tokens a text begins with; 0 where the tokenizer has none."""
        bos = self.bos_id
        if bos is None:
            return 0
        return next((i for i, token in enumerate(ids) if token != bos), len(ids))

    def expected_bos(self, rendered: bool) -> int:
        """How many BOS tokens a prompt must begin with, by the checkpoint's own files.

        Args:
            rendered: False for a plain text: what the tokenizer's own post-processor puts there.
                True for a chat: what the template writes, since nothing is added to its text.

        Raises:
            RecipeError: there is no template, or it refuses a single message of a user.
        """
        if not rendered:
            return self.bos_count(self.encode(_PROBE, add_special_tokens=True))
        text = self.render([{"role": "user", "content": _PROBE}], add_generation_prompt=True)
        return self.bos_count(self.encode(text, add_special_tokens=False))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids; special tokens written in the text are always recognized.

        Args:
            text: what to encode.
            add_special_tokens: add what the tokenizer itself puts around a text (a BOS, mostly).
                False for text a chat template has rendered: the template wrote them already.
        """
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render a chat with the model's own template.

        Args:
            messages: ``{"role": ..., "content": ...}`` in order.
            add_generation_prompt: end with the opening of the assistant's turn.
            tools: function definitions as OpenAI's API has them; a template may ignore them.

        Raises:
            RecipeError: there is no template, or it refuses these messages.
        """
        if self._compiled is None:
            raise RecipeError(
                "the checkpoint has no chat template",
                where="chat_template of the checkpoint",
                fix="a suite whose prompts go in as they are says 'chat_template: false'",
            )
        try:
            text: str = self._compiled.environment.write(
                self._compiled,
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=[dict(tool) for tool in tools] if tools else None,
                documents=None,
                **self.special,
            )
            text.encode()  # half a character is no text a tokenizer takes
            return text
        except (TooMuchWork, MemoryError) as error:
            raise RecipeError(
                f"the chat template works without end: {error or 'memory ran out'}",
                where="chat_template of the checkpoint",
                fix="correct chat_template.jinja, or copy it from the original model",
            ) from error
        except Exception as error:  # a template is a program: it divides by zero, it never ends
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise RecipeError(
                f"the chat template refused the messages: {error}",
                where=f"roles: {roles}",
                fix="give messages the template accepts; many want user and assistant in turns",
            ) from error

    def _id(self, role: str) -> int | None:
        token = self.special.get(role)
        return None if token is None else self._backend.token_to_id(token)


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's tokens for training; here only the text counts."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _compile(template: str) -> Any:
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = TEMPLATE_DATE.strftime
    return environment.from_string(template)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, which would change the prompt.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _special(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = path / name
        if not file.is_file():
            continue
        value = json_object(file)
        for role in _ROLES:
            token = value.get(role)
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str):
                found[role] = token
    return found
