"""Quantize one checkpoint with llm-compressor. Runs in the `quantize` environment.

Request: ``source`` (folder), ``out`` (empty folder), ``method`` ("none", "fp8", "gptq", "awq" or
"int8"), ``options`` (the variant's own), ``tokens`` (file of token ids, one JSON list a line, or
null), ``max_tokens``, ``threads``. Result: versions, how many modules were quantized, which were
not, how many fell back to round-to-nearest, what was smoothed or left out, and the range of the
KV cache's scales where they were asked for.

Only weights, config and llm-compressor's own recipe.yaml are written: the tokenizer, the chat
template and the generation config are copied from the source by the caller, byte for byte.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# Nothing may be fetched: a quantizer reads the checkpoint and the sealed token ids, no more.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import _awq_pin_memory
import _kv_scales
from _follow import Follower
from _job import Job, fail, main, versions
from _llmcompressor_recipe import modifiers


def read_tokens(path: Path) -> list[list[int]]:
    """The sealed rows as token ids."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def work(job: Job) -> dict[str, Any]:
    """Load, quantize, save, look at what was saved."""
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
    ignore = list(options.get("ignore", ()))
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    chosen: list[str] = []
    if method != "none":
        chosen = [n for n, _ in match_named_modules(model, ["Linear"], ignore)]
        if not chosen:
            fail(
                "no layer is left to quantize",
                f"ignore: {ignore}",
                "'ignore' matches every linear layer: make it narrower",
            )
    cached: list[str] = []
    if options["kv_cache"] == "fp8":
        cached = _kv_scales.attention_layers(model, ignore)
    arguments: dict[str, Any] = {"model": model, "recipe": modifiers(method, options, model)}
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
    workarounds = []
    if method == "awq" and _awq_pin_memory.apply():
        workarounds.append(f"no memory is pinned ({_awq_pin_memory.NEEDED_BY} without a GPU)")
    follower = Follower(job, method, len(chosen), int(model.config.num_hidden_layers))
    follower.listen()
    oneshot(**arguments)

    quantized = {
        name
        for name, module in model.named_modules()
        if getattr(getattr(module, "quantization_scheme", None), "weights", None) is not None
    }
    if missed := [name for name in chosen if name not in quantized]:
        fail(
            f"{len(missed)} layers were not quantized, '{missed[0]}' first",
            request["out"],
            "name them in 'ignore' if that is meant",
        )
    if method == "awq" and not follower.smoothed:
        fail(
            "AWQ smoothed no layer: its layer mappings fit nothing in this model",
            f"mappings: {options['mappings'] or type(model).__name__}",
            "name an architecture with the same layers as 'mappings', or use 'gptq'",
        )
    if method == "int8" and options["smoothing"] and not follower.smoothed:
        fail(
            "SmoothQuant smoothed no layer: its layer mappings fit nothing in this model",
            f"smoothing: {options['smoothing']}",
            "set 'smoothing: 0', which leaves it out",
        )
    job.progress(0, 0, "saving the quantized checkpoint")
    model.save_pretrained(request["out"], save_compressed=True)
    scales = None
    if cached:
        scales = _kv_scales.judge(
            _kv_scales.read(Path(request["out"])), cached, f"{request['out']}: kv_cache"
        )
    return {
        "quantized": len(chosen),
        "fallback": follower.fallback,
        "kept": [name for name in linear if name not in quantized],
        "smoothed": len(follower.smoothed),
        "skipped_mappings": follower.skipped,
        "kv_scales": scales,
        "workarounds": workarounds,
        "device": str(model.device),
        "packages": versions("llmcompressor", "compressed-tensors", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
