"""Quantize one checkpoint with AutoGPTQ. Runs in the `autogptq` environment, on a CUDA device.

Request: ``source`` (folder with a config of transformers 4), ``out`` (empty folder), ``options``
(the variant's own), ``tokens`` (file of token ids, one JSON list a line), ``threads``. Result:
versions, how many modules were quantized and which were not.

Not yet run on a GPU: AutoGPTQ refuses to load a model without one.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _job import Job, fail, main, versions
from _tokens import read_tokens

_LAYER = re.compile(r"Start quantizing layer (\d+)/(\d+)")


class Follower(logging.Handler):
    """Reads the layer from the tool's own log lines."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the layer where the line names one."""
        if found := _LAYER.search(record.getMessage()):
            number, total = int(found[1]), int(found[2])
            self._job.progress(number - 1, total, f"layer {number}/{total}")


def tidy(out: Path) -> None:
    """Give the weights the usual name, and drop an output layer that is the embeddings once more.

    AutoGPTQ saves the whole state dict, shared tensors twice, under a name of its own.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    (path,) = out.glob("*.safetensors")
    config = json.loads((out / "config.json").read_text("utf-8"))
    with safe_open(str(path), framework="pt") as shard:
        tensors = {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    if path.name != "model.safetensors":
        path.unlink()
    # It names the folder it was made from; config.json holds the rest of it.
    (out / "quantize_config.json").unlink(missing_ok=True)


def work(job: Job) -> dict[str, Any]:
    """Load, quantize, save."""
    request = job.request
    options, out = request["options"], Path(request["out"])
    rows = read_tokens(Path(request["tokens"]))
    job.progress(0, 0, "loading the quantizer")
    import torch
    from auto_gptq import AutoGPTQForCausalLM, BaseQuantizeConfig

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    logging.getLogger("auto_gptq").addHandler(Follower(job))
    job.progress(0, 0, "loading the checkpoint")
    model = AutoGPTQForCausalLM.from_pretrained(
        request["source"],
        BaseQuantizeConfig(
            bits=options["bits"],
            group_size=options["group_size"],
            damp_percent=options["dampening"],
            desc_act=options["act_order"],
            sym=options["symmetric"],
        ),
        torch_dtype=torch.float16,
        trust_remote_code=False,
        local_files_only=True,
    )
    linear = [n for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)]
    try:
        model.quantize(
            [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows], batch_size=1
        )
    except torch.linalg.LinAlgError as error:
        fail(
            f"the Hessian of a layer has no inverse: {error}",
            "auto-gptq",
            "use a larger 'dampening' or more calibration samples",
        )
    left = {n for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)}
    kept = [name for name in linear if name in left]
    job.progress(0, 0, "saving the quantized checkpoint")
    model.save_quantized(str(out), use_safetensors=True)
    tidy(out)
    return {
        "quantized": len(linear) - len(kept),
        "kept": kept,
        "dtype": "float16",
        "device": "cuda",
        "packages": versions("auto-gptq", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
