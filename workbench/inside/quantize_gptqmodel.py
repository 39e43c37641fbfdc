"""Quantize one checkpoint with GPTQModel. Runs in the `gptqmodel` environment.

Request: ``source`` (folder), ``out`` (empty folder), ``options`` (the variant's own), ``tokens``
(file of token ids, one JSON list a line), ``threads``. Result: versions, how many modules were
quantized and which were not, and what the tool decided by itself: modules it rounded to nearest,
dampening it raised, its order of columns, the layout of the zero points.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    # Its loader wants two workers and its own default on two cores is one: it refuses to load.
    GPTQMODEL_CPU_WORKERS=str(max(2, (len(os.sched_getaffinity(0)) + 1) // 2)),
)

from _job import Job, fail, main, versions
from _tokens import read_tokens


def only_sealed_rows(model: Any, rows: list[list[int]]) -> None:
    """Make the tool calibrate with the sealed rows, all of them, in their order and one by one.

    By itself it drops rows of 10 tokens or fewer, sorts the rest by length, and its `quantize`
    does not pass the option for the first on to where it counts.
    """
    kind = type(model)
    plain = kind.prepare_dataset

    def prepare(self: Any, calibration_dataset: Any, **options: Any) -> Any:
        options.update(calibration_data_min_length=0, calibration_dataset_sort=None, batch_size=1)
        batches = plain(self, calibration_dataset, **options)
        found = [row for batch in batches for row in batch["input_ids"].tolist()]
        if found != rows:
            fail(
                f"GPTQModel made {len(found)} rows of the {len(rows)} sealed ones, or changed some",
                "calibration",
                "rows longer than the model's positions are cut by it: lower 'max_tokens'",
            )
        return batches

    kind.prepare_dataset = prepare


def configuration(options: dict[str, Any]) -> Any:
    """The tool's configuration of a variant; what is not said here is its own default."""
    from gptqmodel import QuantizeConfig

    return QuantizeConfig(
        bits=options["bits"],
        group_size=options["group_size"],
        sym=options["symmetric"],
        desc_act=options["act_order"],
        damp_percent=options["dampening"],
        # The older layout stores a zero point minus one, which borrows from its neighbour where it
        # is 0. That never happens with symmetric codes.
        format="gptq" if options["symmetric"] else "gptq_v2",
        # Its scratch folder would be named in the checkpoint's config.
        offload_to_disk=False,
        # Otherwise it compiles its packing code on first use, into the user's home.
        pack_impl="original",
    )


def work(job: Job) -> dict[str, Any]:
    """Load, quantize, save."""
    request = job.request
    options, out = request["options"], Path(request["out"])
    rows = read_tokens(Path(request["tokens"]))
    os.chdir(job.folder)  # it keeps a log of its own in the working folder
    job.progress(0, 0, "loading the quantizer")
    import torch
    from gptqmodel import GPTQModel

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    config = configuration(options)
    job.progress(0, 0, "loading the checkpoint")
    model = GPTQModel.load(request["source"], config, trust_remote_code=False)
    linear = [n for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)]
    layers = int(model.model.config.num_hidden_layers)
    only_sealed_rows(model, rows)
    job.progress(0, layers, f"layer 1/{layers}")

    def tell(layer_idx: int, submodule_finalized: bool) -> None:
        job.progress(layer_idx + 1, layers, f"layer {min(layer_idx + 2, layers)}/{layers}")

    model.layer_callback = tell
    examples = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
    model.quantize(examples, batch_size=1, calibration_sort=None)
    log = model.quant_log
    job.progress(0, 0, "saving the quantized checkpoint")
    model.save_quantized(str(out))
    # Its log of losses holds timings, so no two runs would leave the same files.
    (out / "quant_log.csv").unlink(missing_ok=True)
    shutil.rmtree("logs", ignore_errors=True)
    left = {n for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)}
    kept = [name for name in linear if name in left]
    fallback = [entry for entry in log if "fallback" in str(entry["loss"])]
    raised = [entry for entry in log if float(entry["damp"]) > options["dampening"] + 1e-6]
    device = model.quantize_config.device
    return {
        "quantized": len(linear) - len(kept),
        "kept": kept,
        "fallback": len(fallback),
        "fallback_rule": f"{config.fallback.strategy.value} below {config.fallback.threshold}"
        if config.fallback
        else "none",
        "raised": len(raised),
        "group_aware": bool(config.act_group_aware),
        "format": str(getattr(config.format, "value", config.format)),
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "device": str(getattr(device, "value", device)),
        "packages": versions("gptqmodel", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
