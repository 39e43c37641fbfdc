"""What the fake server answers: a function of the prompt, the known answers and a damage. Pure.

Every checkpoint is wrong on the same prompts first (`BASE_ERROR`), and a damaged one on more of
them, so that two variants pair as real ones do.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Sequence
from typing import Any

from workbench.digest import sha256_text
from workbench.servers.fake_prompt import prompt_logprobs

#: Share of prompts every checkpoint answers wrongly.
BASE_ERROR = 0.15
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty")
_TOKEN = re.compile(r"\s*\S+|\s+")


def tokenize(text: str) -> list[tuple[str, int]]:
    """Cut a text into words with the white space before them, each with its offset."""
    return [(m.group(), m.start()) for m in _TOKEN.finditer(text)]


def share(text: str, salt: str) -> float:
    """A number in [0, 1) that is a function of a text."""
    return int(sha256_text(salt + text)[:8], 16) / 2**32


class Brain:
    """What the server answers. Pure: a function of prompt, known answers and damage.

    Args:
        known: sha256 of a prompt -> its entry.
        damage: share of prompts answered wrongly beyond `BASE_ERROR`.
        salt: makes other checkpoints wrong on other prompts; the base errors stay shared.
    """

    def __init__(self, known: dict[str, Any], damage: float, salt: str) -> None:
        self._known = known
        self._damage = damage
        self._salt = salt

    def is_right(self, prompt: str) -> bool:
        """Whether this prompt is answered rightly."""
        if share(prompt, "base") < BASE_ERROR:
            return False
        return share(prompt, self._salt) >= self._damage

    def answer(self, prompt: str, schema: dict[str, Any] | None) -> str:
        """The text that follows a prompt."""
        entry = self._known.get(sha256_text(prompt))
        if entry is not None and self.is_right(prompt):
            return str(entry["text"])
        dice = random.Random(sha256_text(prompt))
        if schema is not None:
            return json.dumps(instance_of(schema, dice))
        return " ".join(dice.choice(WORDS) for _ in range(dice.randint(4, 12)))

    def calls(self, digest: str, tools: list[dict[str, Any]]) -> list[dict[str, str]]:
        """The tool calls that answer a request: the known ones, or a made-up one.

        Args:
            digest: of the request, see `workbench.tool_calls.request_digest`.
            tools: the functions it offers.
        """
        entry = self._known.get(digest)
        if entry is not None and self.is_right(digest):
            return [_call(call["name"], call["arguments"]) for call in entry["tool_calls"]]
        dice = random.Random(digest)
        function = dice.choice(tools)["function"]
        return [_call(function["name"], instance_of(function.get("parameters") or {}, dice))]

    def logprobs(self, text: str) -> list[float]:
        """One log-probability for each token of a text.

        A known choice after a known prompt gets its own; where the prompt is answered wrongly,
        another choice is the likeliest.
        """
        tokens = tokenize(text)
        values = [-1.0 - share(f"{offset}{token}", "token") for token, offset in tokens]
        split, total = self._choice(text)
        tail = [i for i, (token, offset) in enumerate(tokens) if offset + len(token) > split]
        for i in tail if total is not None else ():
            values[i] = (total or 0.0) / len(tail)
        return values

    def prompt_logprobs(self, ids: Sequence[int], top_k: int, *, broken: bool) -> list[Any]:
        """What vLLM's `prompt_logprobs` gives for these token ids."""
        return prompt_logprobs(ids, top_k, self._damage, self._salt, broken=broken)

    def _choice(self, text: str) -> tuple[int, float | None]:
        """Where the choice begins in the text, and its log-probability; None: not a known one."""
        digest = hashlib.sha256()
        for position, character in enumerate(text):
            entry = self._known.get(digest.hexdigest()) if position else None
            if entry and text[position:] in entry.get("choices", {}):
                choices = dict(entry["choices"])
                if not self.is_right(text[:position]):
                    names = list(choices)
                    shifted = names[1:] + names[:1]
                    choices = {
                        name: entry["choices"][other]
                        for name, other in zip(names, shifted, strict=True)
                    }
                return position, float(choices[text[position:]])
            digest.update(character.encode("utf-8", "surrogatepass"))
        return len(text), None


def _call(name: str, arguments: Any) -> dict[str, str]:
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def instance_of(schema: dict[str, Any], dice: random.Random) -> Any:
    """A small value that satisfies a JSON schema of the common keywords."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return dice.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return instance_of(schema[key][0], dice)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        known = schema.get("properties", {})
        names = schema.get("required", list(known))
        return {name: instance_of(known.get(name, {"type": "string"}), dice) for name in names}
    if kind == "array":
        items = schema.get("items", {"type": "string"})
        return [instance_of(items, dice) for _ in range(int(schema.get("minItems", 0)))]
    if kind in ("integer", "number"):
        low = int(schema.get("minimum", 0))
        return dice.randint(low, int(schema.get("maximum", low + 9)))
    if kind == "boolean":
        return dice.random() < 0.5
    if kind == "null":
        return None
    word = dice.choice(WORDS)
    return word.ljust(int(schema.get("minLength", 0)), "x")[: int(schema.get("maxLength", 64))]
