"""Quantize one checkpoint with llm-compressor. Runs in the `quantize` environment.

Request: ``source`` (folder), ``out`` (empty folder), ``method`` ("fp8" or "gptq"), ``options`` (the
variant's own), ``tokens`` (file of token ids, one JSON list a line, or null), ``max_tokens``,
``threads``. Result: versions, how many modules were quantized, which were not, and how
many fell back to round-to-nearest.

Only weights, config and llm-compressor's own recipe.yaml are written: the tokenizer, the chat
template and the generation config are copied from the source by the caller, byte for byte.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

# Nothing may be fetched: a quantizer reads the checkpoint and the sealed token ids, no more.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _job import Job, fail, main, versions

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_FALLBACK = re.compile(r"Hessian inversion failed for (\d+)/")


def read_tokens(path: Path) -> list[list[int]]:
    """The sealed rows as token ids."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def modifier(method: str, options: dict[str, Any]) -> Any:
    """The llm-compressor modifier for a variant."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    ignore = list(options["ignore"])
    if method == "fp8":
        from llmcompressor.modifiers.quantization import QuantizationModifier

        return QuantizationModifier(targets=["Linear"], scheme="FP8_DYNAMIC", ignore=ignore)
    from llmcompressor.modifiers.gptq import GPTQModifier

    per_channel = options["group_size"] == -1
    weights = QuantizationArgs(
        num_bits=options["bits"],
        type="int",
        symmetric=options["symmetric"],
        strategy="channel" if per_channel else "group",
        group_size=None if per_channel else options["group_size"],
    )
    return GPTQModifier(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)},
        ignore=ignore,
        actorder=None if options["act_order"] == "none" else options["act_order"],
        dampening_frac=options["dampening"],
    )


class Follower:
    """Reads the tool's own log lines: which layer it is at, and where it fell back.

    Attributes:
        fallback: how many modules were rounded to nearest because GPTQ's Hessian had no inverse.
    """

    def __init__(self, job: Job, total: int, layers: int) -> None:
        from loguru import logger

        self.fallback = 0
        self._job, self._total, self._layers = job, total, layers
        self._done = 0
        logger.add(self._read, level="INFO")

    def _read(self, message: Any) -> None:
        text = message.record["message"]
        if found := _FALLBACK.search(text):
            self.fallback += int(found[1])
        if not text.startswith("Quantizing "):
            return
        names = re.findall(r"'([^']+)'", text)
        found = _LAYER.search(text)
        what = f"layer {int(found[1]) + 1}/{self._layers}" if found else (names or ["?"])[0]
        self._job.progress(self._done, self._total, what)
        self._done += max(1, len(names))


def work(job: Job) -> dict[str, Any]:
    """Load, quantize, save."""
    request = job.request
    options, method = request["options"], request["method"]
    job.progress(0, 0, "loading the quantizer")
    import torch
    from compressed_tensors.utils import match_named_modules
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    job.progress(0, 0, "loading the checkpoint")
    model = AutoModelForCausalLM.from_pretrained(
        request["source"], dtype="auto", trust_remote_code=False, local_files_only=True
    )
    if torch.cuda.is_available():
        model.to("cuda")
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    chosen = [n for n, _ in match_named_modules(model, ["Linear"], options["ignore"])]
    if not chosen:
        fail(
            "no layer is left to quantize",
            f"ignore: {options['ignore']}",
            "'ignore' matches every linear layer: make it narrower",
        )
    arguments: dict[str, Any] = {"model": model, "recipe": modifier(method, options)}
    if request["tokens"] is not None:
        rows = read_tokens(Path(request["tokens"]))
        columns = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        arguments.update(
            dataset=Dataset.from_dict(columns),
            num_calibration_samples=len(rows),
            max_seq_length=request["max_tokens"],
            # The order is part of the sealed set.
            shuffle_calibration_samples=False,
        )
    else:
        job.progress(0, 0, "quantizing the weights")
    follower = Follower(job, len(chosen), int(model.config.num_hidden_layers))
    oneshot(**arguments)

    quantized = {
        name
        for name, module in model.named_modules()
        if getattr(module, "quantization_scheme", None) is not None
    }
    if missed := [name for name in chosen if name not in quantized]:
        fail(
            f"{len(missed)} layers were not quantized, '{missed[0]}' first",
            request["out"],
            "name them in 'ignore' if that is meant",
        )
    job.progress(0, 0, "saving the quantized checkpoint")
    model.save_pretrained(request["out"], save_compressed=True)
    return {
        "quantized": len(chosen),
        "fallback": follower.fallback,
        "kept": [name for name in linear if name not in quantized],
        "device": str(model.device),
        "packages": versions("llmcompressor", "compressed-tensors", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
