"""Quantize one checkpoint to NF4 with bitsandbytes. Runs in the `quantize` environment.

Request: ``source`` (folder), ``out`` (empty folder), ``options`` (the variant's own), ``threads``.
Result: versions, how many modules were quantized, and which were not.

NormalFloat4 (QLoRA, https://arxiv.org/abs/2305.14314): 16 levels at the quantiles of a normal
distribution, one absolute maximum per block of 64 weights; with double quantization these maxima
are themselves in 8 bits, in blocks of 256.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", BNB_DISABLE_TELEMETRY="1")

from _job import Job, fail, main, versions


def split_layers(source: str, ignore: list[str]) -> tuple[list[str], list[str]]:
    """Names of the linear layers to quantize and of those `ignore` keeps; no weight is read.

    `ignore` is read as llm-compressor reads it: a name, a class, or a ``re:`` pattern.
    """
    import torch
    from accelerate import init_empty_weights
    from compressed_tensors.utils import match_named_modules
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=True)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    linear = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    chosen = [name for name, _ in match_named_modules(model, ["Linear"], ignore)]
    return chosen, [name for name in linear if name not in chosen]


def check_config(folder: Path) -> None:
    """Fail unless the config that was saved says nf4: its readers take fp4 for a missing type."""
    config = json.loads((folder / "config.json").read_text("utf-8"))["quantization_config"]
    if config.get("bnb_4bit_quant_type") != "nf4" or config.get("quant_method") != "bitsandbytes":
        fail(
            f"the saved config says type {config.get('bnb_4bit_quant_type')!r}, not nf4",
            str(folder / "config.json"),
            "another version of transformers is in the environment: create it again",
        )


def work(job: Job) -> dict[str, Any]:
    """Load quantized, save."""
    request = job.request
    options = request["options"]
    job.progress(0, 0, "loading the quantizer")
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    torch.set_num_threads(request["threads"])
    chosen, kept = split_layers(request["source"], list(options["ignore"]))
    if not chosen:
        fail(
            "no layer is left to quantize",
            f"ignore: {options['ignore']}",
            "'ignore' matches every linear layer: make it narrower",
        )
    job.progress(0, len(chosen), "quantizing the weights as they are loaded")
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        request["source"],
        dtype="auto",
        device_map={"": device},
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=options["double_quant"],
            bnb_4bit_compute_dtype=options["compute_dtype"],
            # Their full names: an empty list would let transformers choose by itself.
            llm_int8_skip_modules=kept or ["no module of this name"],
        ),
        trust_remote_code=False,
        local_files_only=True,
    )
    import bitsandbytes

    quantized = {
        name for name, m in model.named_modules() if isinstance(m, bitsandbytes.nn.Linear4bit)
    }
    if wrong := sorted(quantized ^ set(chosen)):
        fail(
            f"{len(wrong)} layers were not treated as 'ignore' says, '{wrong[0]}' first",
            request["out"],
            "name each layer in full in 'ignore'",
        )
    job.progress(0, 0, "saving the quantized checkpoint")
    model.save_pretrained(request["out"])
    check_config(Path(request["out"]))
    return {
        "quantized": len(quantized),
        "kept": kept,
        "device": device,
        "packages": versions("bitsandbytes", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
