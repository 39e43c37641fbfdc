"""Quantize one checkpoint with AutoAWQ. Runs in the `autoawq` environment.

Request: ``source`` (folder with a config of transformers 4), ``out`` (empty folder), ``options``
(the variant's own), ``tokens`` (file of token ids, one JSON list a line), ``longest`` (most tokens
the model has positions for), ``threads``. Result: versions, how many modules were quantized and
which were not, and what the tool made of the rows.

AutoAWQ does not keep rows apart: it strings them together, cuts the string into blocks of one
length, and drops the rest; rows longer than a block it drops silently. The length is chosen here
so that no row is dropped and as few tokens as possible are left over.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _job import Job, fail, main, versions
from _tokens import block_length, read_tokens

#: More calibration tokens than this do not go through a layer at once.
_TOKENS_AT_ONCE = 65_536


def watch_rows(rows: list[list[int]], length: int) -> None:
    """Fail where the tool calibrates with anything but the rows, strung together and cut."""
    from awq.quantize import quantizer

    plain = quantizer.get_calib_dataset
    string = [token for row in rows for token in row]

    def checked(**options: Any) -> Any:
        blocks = plain(**options)
        found = [token for block in blocks for token in block[0].tolist()]
        if found != string[: len(string) // length * length]:
            fail(
                "AutoAWQ calibrates with other tokens than the sealed ones",
                "calibration",
                "lower 'max_tokens': it drops rows that are longer than a block",
            )
        return blocks

    quantizer.get_calib_dataset = checked


def follow(job: Job) -> None:
    """Tell the layers of the tool's own progress bar."""
    from awq.quantize import quantizer

    def told(items: Any, **options: Any) -> Any:
        total = len(items)
        for number, item in enumerate(items):
            job.progress(number, total, f"layer {number + 1}/{total}")
            yield item

    quantizer.tqdm = told


def plain_metadata(path: Path) -> None:
    """Leave only the format in a safetensors file's metadata, in place.

    The saver also names the tied tensors it left out there, in an order that changes from run to
    run, so that equal weights would make two different files.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = {"format": "pt"}
        encoded = json.dumps(header, separators=(",", ":")).encode()
        if len(encoded) > length:  # it only ever grows shorter: what was there held more
            return
        file.seek(8)
        file.write(encoded.ljust(length))


def work(job: Job) -> dict[str, Any]:
    """Load, quantize, save."""
    request = job.request
    options = request["options"]
    rows = read_tokens(Path(request["tokens"]))
    job.progress(0, 0, "loading the quantizer")
    import torch
    from awq import AutoAWQForCausalLM

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    job.progress(0, 0, "loading the checkpoint")
    model = AutoAWQForCausalLM.from_pretrained(
        request["source"],
        torch_dtype=torch.float16,  # the only one it was made for
        trust_remote_code=False,
        safetensors=True,
        device_map=None,
        local_files_only=True,
    )
    linear = [n for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)]
    length = block_length(rows, request["longest"])
    tokens = sum(map(len, rows))
    at_once = None if tokens <= _TOKENS_AT_ONCE else max(1, _TOKENS_AT_ONCE // length)
    watch_rows(rows, length)
    follow(job)
    model.quantize(
        tokenizer=None,
        quant_config={
            "zero_point": options["zero_point"],
            "q_group_size": options["group_size"],
            "w_bit": options["bits"],
            "version": "GEMM",
        },
        calib_data=rows,
        max_calib_samples=len(rows),
        max_calib_seq_len=length,
        n_parallel_calib_samples=at_once,
    )
    left = {n for n, m in model.model.named_modules() if isinstance(m, torch.nn.Linear)}
    kept = [name for name in linear if name in left]
    job.progress(0, 0, "saving the quantized checkpoint")
    model.save_quantized(request["out"], safetensors=True)
    for path in Path(request["out"]).glob("*.safetensors"):
        plain_metadata(path)
    return {
        "quantized": len(linear) - len(kept),
        "kept": kept,
        "rows": len(rows),
        "tokens": tokens,
        "length": length,
        "blocks": tokens // length,
        "at_once": at_once,
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "device": "cuda" if on_gpu else "cpu",
        "packages": versions("autoawq", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
