"""Quantize one checkpoint with AutoGPTQ. Runs in the `autogptq` environment, on a CUDA device.

Request: ``source`` (folder with a config of transformers 4), ``out`` (empty folder), ``options``
(the variant's own), ``tokens`` (file of token ids, one JSON list a line), ``threads``. Result:
versions, how many modules were quantized and which were not.

Not yet run on a GPU: AutoGPTQ refuses to load a model without one. This script went through once on
a CPU with AutoGPTQ's CUDA calls replaced, under its transformers and another torch.
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


def check_metadata(source: Path) -> None:
    """Fail in words where transformers 4.38 would with an AttributeError.

    It only reads safetensors whose header says they were saved from PyTorch.
    """
    from safetensors import safe_open

    for path in sorted(source.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as shard:
            said = (shard.metadata() or {}).get("format")
        if said != "pt":
            fail(
                f"{path.name} does not say that it was saved from PyTorch (metadata 'format' is "
                f"{said!r}), and the transformers of AutoGPTQ's time does not read it",
                str(path.resolve()),
                "save the checkpoint again with save_pretrained, or use 'gptqmodel'",
            )


def tidy(out: Path, source: Path) -> None:
    """Give the weights the usual name, and drop what the source does not have.

    AutoGPTQ saves the whole state dict under a name of its own: a tied output layer beside the
    embeddings it shares, and a bias of zeros for every layer that has none.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    known: set[str] = set()
    for shard_path in source.glob("*.safetensors"):
        with safe_open(str(shard_path), framework="pt") as shard:
            known.update(shard.keys())
    (path,) = out.glob("*.safetensors")
    config = json.loads((out / "config.json").read_text("utf-8"))
    with safe_open(str(path), framework="pt") as shard:
        tensors = {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    for name in [n for n in tensors if n.endswith(".bias") and n not in known]:
        if bool(tensors[name].any()):
            fail(f"'{name}' is not in the source and not zero", str(path), "quantize it again")
        del tensors[name]
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
    check_metadata(Path(request["source"]))
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
    tidy(out, Path(request["source"]))
    return {
        "quantized": len(linear) - len(kept),
        "kept": kept,
        "dtype": "float16",
        "device": "cuda",
        "packages": versions("auto-gptq", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
