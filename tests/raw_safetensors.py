"""Write safetensors files by hand, broken ones too."""

import json
from collections.abc import Mapping
from pathlib import Path


def write_raw(path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]]) -> None:
    """Name -> (dtype, shape, data). The header says "pt": old transformers read nothing else."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def read_raw(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {
        name: (e["dtype"], e["shape"], body[e["data_offsets"][0] : e["data_offsets"][1]])
        for name, e in header.items()
    }


def cut_layers(source: Path, out: Path, layers: int) -> Path:
    """Copy a one-shard Llama checkpoint with its first layers only."""
    out.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            (out / path.name).write_bytes(path.read_bytes())
    config = json.loads((out / "config.json").read_text())
    config["num_hidden_layers"] = layers
    (out / "config.json").write_text(json.dumps(config))
    kept = {}
    for name, tensor in read_raw(source / "model.safetensors").items():
        parts = name.split(".")
        if "layers" not in parts or int(parts[parts.index("layers") + 1]) < layers:
            kept[name] = tensor
    write_raw(out / "model.safetensors", kept)
    return out
