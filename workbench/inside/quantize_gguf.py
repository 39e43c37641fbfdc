"""Quantize a GGUF file with llama.cpp's `llama_model_quantize`. Runs in the `gguf` environment.

Request: ``source`` and ``out`` (files), ``type`` (llama.cpp's name of the mixture, e.g. "Q4_K_M"),
``imatrix`` (safetensors of GGUF tensor name -> float32 [columns], or null), ``strings`` and
``numbers`` (metadata to add), ``threads``. Result: versions, ``types`` (tensor -> type),
``fallbacks`` (tensor -> columns, type meant, type got), ``no_entry`` and ``bits_per_weight``.

The threads share a tensor's rows, and every row is rounded by itself: the bytes do not depend on
how many there are.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from _job import Job, fail, main, versions
from quantizer_log import QuantizerLog

#: `llama_model_kv_override.val_str` holds 128 bytes, the closing zero among them.
LONGEST_STRING = 127
_INT, _STRING = 0, 3


def file_type(api: Any, name: str) -> int:
    """llama.cpp's number of a mixture."""
    number: int = getattr(
        api, "LLAMA_FTYPE_ALL_F32" if name == "F32" else f"LLAMA_FTYPE_MOSTLY_{name}"
    )
    return number


def metadata(api: Any, strings: dict[str, str], numbers: dict[str, int]) -> Any:
    """The array of key-value pairs to write, ended by an empty key."""
    pairs = (api.llama_model_kv_override * (len(strings) + len(numbers) + 1))()
    for pair, (key, value) in zip(pairs, [*strings.items(), *numbers.items()], strict=False):
        pair.key = key.encode()
        if isinstance(value, str):
            encoded = value.encode()
            if len(encoded) > LONGEST_STRING:
                fail(f"metadata '{key}' is longer than {LONGEST_STRING} bytes", key, "shorten it")
            pair.tag, pair.value.val_str = _STRING, encoded
        else:
            pair.tag, pair.value.val_i64 = _INT, value
    return pairs


def importance(api: Any, entries: dict[str, Any]) -> Any:
    """The importance matrix as llama.cpp wants it: an array that points into the entries."""
    array = (api.llama_model_imatrix_data * (len(entries) + 1))()
    for slot, (name, values) in zip(array, sorted(entries.items()), strict=False):
        slot.name = name.encode()
        slot.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        slot.size = values.size
    return array


def work(job: Job) -> dict[str, Any]:
    """Quantize, following llama.cpp's own log."""
    request = job.request
    job.progress(0, 0, "loading llama.cpp")
    from llama_cpp import llama_cpp as api
    from safetensors.numpy import load_file

    log = QuantizerLog(
        lambda done, of, name: job.progress(done - 1, of, f"tensor {done}/{of} {name}")
    )

    @api.llama_log_callback
    def listen(level: int, text: bytes, _: Any) -> None:
        piece = text.decode("utf-8", "replace")
        sys.stderr.write(piece)
        log.write(piece)

    api.llama_log_set(listen, None)
    api.llama_backend_init()
    params = api.llama_model_quantize_default_params()
    params.ftype = file_type(api, request["type"])
    params.nthread = request["threads"]
    pairs = metadata(api, request["strings"], request["numbers"])
    params.kv_overrides = ctypes.cast(pairs, type(params.kv_overrides))
    entries = load_file(request["imatrix"]) if request["imatrix"] else {}
    array = importance(api, entries)
    if entries:
        params.imatrix = ctypes.cast(array, type(params.imatrix))
    code = api.llama_model_quantize(
        request["source"].encode(), request["out"].encode(), ctypes.byref(params)
    )
    if code != 0:
        fail(
            f"llama.cpp could not quantize to {request['type']}: {log.error or f'code {code}'}",
            request["source"],
            "the log has its own words",
        )
    count = len(log.types)
    job.progress(count, count, f"{count} tensors written")
    return {
        "types": log.types,
        "fallbacks": log.fallbacks,
        "no_entry": log.no_entry,
        "bits_per_weight": log.bits_per_weight,
        "packages": versions("llama-cpp-python"),
    }


if __name__ == "__main__":
    main(work)
