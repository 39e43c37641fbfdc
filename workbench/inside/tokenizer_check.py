"""Is the tokenizer in a GGUF's metadata the checkpoint's own? Standard library only.

A converter that meets a tokenizer it does not know well may take it for another kind. The file then
loads, and answers nonsense or crashes the server at the first request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _job import fail


def byte_level(tokenizer: dict[str, Any]) -> bool:
    """Whether a tokenizer.json describes byte-level BPE, which llama.cpp calls ``gpt2``."""

    def kinds(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield str(part.get("type"))
            for below in (*part.get("pretokenizers", ()), *part.get("decoders", ())):
                yield from kinds(below)

    model = tokenizer.get("model") or {}
    found = {*kinds(tokenizer.get("pre_tokenizer")), *kinds(tokenizer.get("decoder"))}
    return bool(model.get("type") == "BPE" and "ByteLevel" in found)


def check_tokenizer(source: Path, written: dict[str, Any]) -> None:
    """Refuse a GGUF whose tokenizer is not the checkpoint's: it loads, and then answers nonsense.

    Args:
        source: folder of the checkpoint.
        written: the GGUF's metadata.
    """
    where = str(source / "tokenizer.json")
    tokenizer = json.loads((source / "tokenizer.json").read_text("utf-8"))
    model, pre = written.get("tokenizer.ggml.model"), written.get("tokenizer.ggml.pre")
    if byte_level(tokenizer) and (model != "gpt2" or pre in (None, "default")):
        fail(
            f"the tokenizer is byte-level BPE and the converter took it for model {model!r}, "
            f"pre-tokenizer {pre!r}",
            where,
            "use the tokenizer files of the original model: one of them names another class",
        )
    file = source / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    eos = config.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    number = written.get("tokenizer.ggml.eos_token_id")
    tokens = written.get("tokenizer.ggml.tokens") or []
    if eos is not None and (number is None or number >= len(tokens) or tokens[number] != eos):
        fail(
            f"the end-of-text token is {eos!r} and the GGUF says id {number}",
            str(file),
            "correct 'eos_token' in tokenizer_config.json or 'eos_token_id' in config.json",
        )
    template = source / "chat_template.jinja"
    text = template.read_text("utf-8") if template.is_file() else config.get("chat_template")
    if isinstance(text, str) and written.get("tokenizer.chat_template") != text:
        fail(
            "the chat template did not come through the conversion",
            str(template if template.is_file() else file),
            "keep one chat template, in chat_template.jinja",
        )
