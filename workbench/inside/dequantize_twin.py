"""Write the dequantized twin of a quantized checkpoint, in the `quantize` environment.

Request: ``source`` (a checkpoint of compressed-tensors, bitsandbytes, GPTQ or AWQ), ``out`` (empty
folder), ``threads``. Result: versions, how many tensors were written and how many of them were
dequantized.

The twin holds exactly the tensors the unquantized checkpoint has, by name and shape, as plain
float32. It has the quantized *weights'* quality; a scheme that also quantizes activations is not
reproduced by it, and its speed and size say nothing about the quantized checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _job import Job, fail, main, versions

_SHARD_BYTES = 4 << 30

#: What compressed-tensors adds beside a weight, or to an attention layer for its KV cache.
_ADDED = re.compile(r"(weight|input|output|q|k|v)_(scale|zero_point|shape|g_idx|global_scale)$")


def expected(folder: Path) -> tuple[dict[str, list[int]], int]:
    """Shapes of the tensors the unquantized checkpoint had, and how many of them are quantized.

    Read from the quantized files: what was left alone is there under its own name, a packed
    weight says its shape in ``weight_shape``, an FP8 or INT8 weight keeps its shape.
    """
    from safetensors import safe_open

    found: dict[str, list[int]] = {}
    quantized = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as shard:
            names = set(shard.keys())
            for name in names:
                module, _, leaf = name.rpartition(".")
                if leaf == "weight_packed":
                    shape = shard.get_tensor(f"{module}.weight_shape").tolist()
                    found[f"{module}.weight"] = [int(n) for n in shape]
                    quantized += 1
                elif leaf == "weight_scale":
                    quantized += f"{module}.weight" in names
                elif not _ADDED.match(leaf):
                    found[name] = list(shard.get_slice(name).get_shape())
    return found, quantized


def save(tensors: dict[str, Any], out: Path) -> None:
    """Write the tensors, in shards with an index where they are many."""
    from safetensors.torch import save_file

    shards: list[dict[str, Any]] = [{}]
    size = 0
    for name in sorted(tensors):
        tensor_bytes = tensors[name].numel() * tensors[name].element_size()
        if size and size + tensor_bytes > _SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += tensor_bytes
    if len(shards) == 1:
        save_file(shards[0], str(out / "model.safetensors"), metadata={"format": "pt"})
        return
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, str(out / name), metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    document = {"metadata": {"total_size": total}, "weight_map": index}
    (out / "model.safetensors.index.json").write_text(json.dumps(document, indent=2), "utf-8")


def compressed_tensors(source: Path) -> tuple[dict[str, Any], int]:
    """The float32 tensors of a compressed-tensors checkpoint, and how many were quantized.

    transformers decompresses them; what it loads is checked against the names and shapes in the
    files.
    """
    import torch
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    model = AutoModelForCausalLM.from_pretrained(
        str(source),
        dtype=torch.float32,
        quantization_config=CompressedTensorsConfig(dequantize=True),
        trust_remote_code=False,
        local_files_only=True,
    )
    shapes, quantized = expected(source)
    state = model.state_dict()
    tensors: dict[str, Any] = {}
    for name, shape in shapes.items():
        tensor = state.get(name)
        if tensor is None:
            fail(f"the twin has no tensor '{name}'", str(source), "quantize the variant again")
        if list(tensor.shape) != shape:
            fail(
                f"tensor '{name}' has shape {list(tensor.shape)}, {shape} is expected",
                str(source),
                "quantize the variant again",
            )
        tensors[name] = tensor
    return tensors, quantized


def bitsandbytes(source: Path) -> tuple[dict[str, Any], int]:
    """The tensors of a 4-bit bitsandbytes checkpoint, and how many were quantized.

    Each is dequantized by bitsandbytes itself from what lies beside it in the files, in the dtype
    it has when the checkpoint is served. transformers refuses to save such a model dequantized.
    """
    from safetensors import safe_open

    every: dict[str, Any] = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as shard:
            every.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118
    from bitsandbytes.functional import QuantState, dequantize_4bit

    states: dict[str, dict[str, Any]] = {}
    for name in list(every):
        stem, dot, leaf = name.partition(".weight.")
        if dot:
            states.setdefault(f"{stem}.weight", {})[leaf] = every.pop(name)
    for name, parts in states.items():
        if name not in every or not any("bitsandbytes__nf4" in leaf for leaf in parts):
            fail(
                f"'{name}' is not a complete NF4 weight: beside it are {', '.join(sorted(parts))}",
                str(source),
                "quantize the variant again",
            )
        state = QuantState.from_dict(parts, device="cpu")
        every[name] = dequantize_4bit(every[name], state).reshape(state.shape)
    return every, len(states)


_READERS = {"compressed-tensors": compressed_tensors, "bitsandbytes": bitsandbytes}
#: quant_methods that are read without the tool that wrote them.
_PACKED = ("gptq", "awq")


def work(job: Job) -> dict[str, Any]:
    """Load dequantized, check, write."""
    request = job.request
    source, out = Path(request["source"]), Path(request["out"])
    job.progress(0, 3, "loading the quantized checkpoint")
    import torch

    torch.set_num_threads(request["threads"])
    config = json.loads((source / "config.json").read_text("utf-8"))
    method = config.pop("quantization_config")["quant_method"]
    if method in _PACKED:
        import dequantize_packed

        found, quantized = getattr(dequantize_packed, method)(source)
    else:
        found, quantized = _READERS[method](source)
    if not quantized:
        fail("nothing in the checkpoint is quantized", str(source), "serve it as it is")
    job.progress(1, 3, "checking the dequantized tensors")
    tensors: dict[str, Any] = {}
    for name, tensor in found.items():
        tensor = tensor.to(torch.float32)
        if not bool(torch.isfinite(tensor).all()):
            fail(
                f"tensor '{name}' has values that are not finite after dequantizing",
                str(source),
                "the quantized checkpoint is damaged (a scale that is NaN, infinite): quantize it "
                "again, with a larger 'dampening' or more calibration samples",
            )
        tensors[name] = tensor.contiguous()
    job.progress(2, 3, "writing float32 safetensors")
    save(tensors, out)
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    job.progress(3, 3, "twin written")
    return {
        "tensors": len(tensors),
        "dequantized": quantized,
        "packages": versions(
            *([] if method in _PACKED else [method]), "transformers", "torch", "safetensors"
        ),
    }


if __name__ == "__main__":
    main(work)
