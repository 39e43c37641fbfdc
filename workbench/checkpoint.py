"""Inspect a checkpoint folder without torch: config, shards, tokenizer, template, licence, digests.

Nothing is loaded: shapes come from safetensors headers, so this takes well under a second for a
small model, and the digests of big files are kept in a cache the caller names.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.checkpoint_shapes import check_shapes
from workbench.digest import content_id, sha256_file, sha256_text
from workbench.errors import CheckpointError
from workbench.model_card import licence
from workbench.records import Checkpoint
from workbench.safetensors_header import DTYPE_BITS, Tensor, read_header
from workbench.store import write_atomic
from workbench.weight_files import check_weight_files

INDEX = "model.safetensors.index.json"

#: Files that decide which token ids a text becomes.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt"),
)
#: Files a quantized checkpoint must share with its source, byte for byte.
COMPANIONS = (
    *TOKENIZER_FILES,
    *("chat_template.jinja", "chat_template.json", "generation_config.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "NOTICE", "NOTICE.txt", "USE_POLICY.md"),
)

#: Smaller files are hashed every time.
_CACHED_FROM = 1 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NOT_LINEAR = re.compile(r"embed|lm_head|\bwte\b|\bwpe\b|norm", re.IGNORECASE)
#: What compressed formats add beside a weight; these are no parameters of the model.
_ADDED = re.compile(
    r"\.(weight|input|output|k|v)_(scale|zero_point|shape|g_idx|global_scale)$"
    r"|\.weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__\w+)$"
)


def inspect(path: Path, cache: Path | None = None) -> Checkpoint:
    """Describe the checkpoint in a folder.

    Args:
        path: folder with config.json, safetensors and a tokenizer.
        cache: JSON file of digests by path, size and modification time; None hashes everything.

    Raises:
        CheckpointError: something is missing, truncated, or in a form that is not accepted.
    """
    if not path.is_dir():
        raise CheckpointError(
            "there is no checkpoint folder",
            where=str(path),
            fix="check 'model: path' in the recipe (for the demo checkpoint: workbench demo)",
        )
    config = read_config(path)
    index = path / INDEX
    check_weight_files(path, index, _weight_map(index) if index.is_file() else None)
    tensors = read_tensors(path)
    if not (path / "tokenizer.json").is_file():
        raise CheckpointError(
            "the checkpoint has no tokenizer (tokenizer.json)",
            where=str(path),
            fix="copy the tokenizer files of the original model into the folder; for a slow one: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    merged = {**config, **(text or {})}
    template = read_template(path)
    files = digests(path, cache)
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.bytes
    quantization = merged.get("quantization_config", config.get("compression_config"))
    if quantization is None and _looks_quantized(tensors):
        quantization = "its tensors are codes, config.json says nothing"
    if quantization is None:
        check_shapes(path, merged, tensors)
    return Checkpoint(
        path=str(path),
        architecture=_architecture(config, path),
        parameters=_parameters(tensors, quantization),
        weight_bytes=sum(sizes.values()),
        dtype=sizes.most_common(1)[0][0],
        hidden_size=_number(merged, "hidden_size", path),
        layers=_number(merged, "num_hidden_layers", path),
        max_position_embeddings=_number(merged, "max_position_embeddings", path),
        linear_input_widths=tuple(sorted(_widths(tensors))),
        tied_embeddings=bool(
            merged.get("tie_word_embeddings", not any("lm_head" in name for name in tensors))
        ),
        quantization=_quant_method(quantization),
        licence=licence(path),
        weights_digest=weights_digest(files),
        tokenizer_digest=tokenizer_digest(files),
        template_digest=None if template is None else sha256_text(template),
        files=files,
    )


@dataclass(frozen=True)
class Weights:
    """What a checkpoint's files weigh, and which they are.

    Attributes:
        weight_bytes: of the tensors; of a GGUF file, the whole file.
        weights_digest: content id of the weight files' digests.
        files: relative path -> sha256, of every file.
    """

    weight_bytes: int
    weights_digest: str
    files: dict[str, str]


def weigh(path: Path, cache: Path | None = None) -> Weights:
    """Weigh a produced checkpoint: safetensors, or GGUF files. What else is there is not judged.

    Raises:
        CheckpointError: it has neither, or what it has is damaged.
    """
    ggufs = sorted(path.glob("*.gguf"))
    if not ggufs:
        size = sum(tensor.bytes for tensor in read_tensors(path).values())
        files = digests(path, cache)
        return Weights(size, weights_digest(files), files)
    files = digests(path, cache)
    return Weights(
        weight_bytes=sum(file.stat().st_size for file in ggufs),
        weights_digest=content_id({file.name: files[file.name] for file in ggufs}),
        files=files,
    )


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder.

    Raises:
        CheckpointError: it is missing or is not a JSON object.
    """
    file = path / "config.json"
    if not file.is_file():
        fix = "name a folder as 'save_pretrained' writes it: config.json, *.safetensors, tokenizer"
        if any(path.glob("*.gguf")):
            fix = "a GGUF file is not a source checkpoint: name the folder it was converted from"
        raise CheckpointError("the checkpoint has no config.json", where=str(path), fix=fix)
    return json_object(file)


def read_template(path: Path) -> str | None:
    """Text of the chat template: chat_template.jinja, else the one in tokenizer_config.json.

    Raises:
        CheckpointError: tokenizer_config.json is not a JSON object, or has several templates and
            none is called ``default``.
    """
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    file = path / "tokenizer_config.json"
    found = json_object(file).get("chat_template") if file.is_file() else None
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found}
        if "default" not in named:
            raise CheckpointError(
                f"no chat template is called 'default' (there are {', '.join(map(str, named))})",
                where=str(file),
                fix="write the one to use into chat_template.jinja",
            )
        found = named["default"]
    return found if isinstance(found, str) else None


def tokenizer_digest(files: dict[str, str]) -> str:
    """Content id of the tokenizer's files, from the digests of a folder's files."""
    return content_id({name: files[name] for name in TOKENIZER_FILES if name in files})


def weights_digest(files: dict[str, str]) -> str:
    """Content id of the safetensors files, from the digests of a folder's files."""
    return content_id({n: d for n, d in files.items() if n.endswith(".safetensors")})


def copy_companions(source: Path, out: Path) -> None:
    """Make tokenizer, template, generation config and licence in `out` equal to the source's.

    A file of that kind which the source does not have is removed from `out`: a tool wrote it on
    its own account.
    """
    for name in COMPANIONS:
        (out / name).unlink(missing_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def digests(path: Path, cache: Path | None) -> dict[str, str]:
    """Map every file of the folder (hidden ones left out) to its sha256, sorted by path."""
    known: dict[str, list[Any]] = {}
    if cache is not None:
        # A cache that is missing or damaged only costs time.
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(cache.read_text("utf-8"))
            known = loaded if isinstance(loaded, dict) else {}
    fresh: dict[str, list[Any]] = {}
    found: dict[str, str] = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        relative = file.relative_to(path)
        if any(part.startswith(".") for part in relative.parts):
            continue
        status = file.stat()
        key = str(file.resolve())
        # The time of the last change, which a copied or reset modification time does not hide.
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        entry = known.get(key)
        if isinstance(entry, list) and entry[:-1] == stamp:
            digest = str(entry[-1])
        else:
            digest = sha256_file(file)
            if status.st_size >= _CACHED_FROM:
                fresh[key] = [*stamp, digest]
        found[relative.as_posix()] = digest
    if cache is not None and fresh:
        write_atomic(cache, json.dumps({**known, **fresh}, indent=0).encode())
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of every shard, shards and index checked against each other.

    Raises:
        CheckpointError: a shard is missing or damaged, or there are none.
    """
    shards = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    listed: dict[str, str] = {}
    if index.is_file():
        listed = _weight_map(index)
        shards = [path / name for name in sorted(set(listed.values()))]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise CheckpointError(
                f"{len(missing)} of {len(shards)} shards are missing: {', '.join(missing[:5])}",
                where=str(index),
                fix="fetch the missing files; the index names every shard",
            )
    if not shards:
        pickles = sorted(p.name for pattern in _PICKLES for p in path.glob(pattern))
        if pickles:
            raise CheckpointError(
                f"the weights are pickles ({pickles[0]}), which can run code when they are loaded",
                where=str(path),
                fix="convert them to safetensors: load the model where you trust it and call "
                "save_pretrained(folder, safe_serialization=True)",
            )
        raise CheckpointError(
            "the checkpoint has no weights (*.safetensors)",
            where=str(path),
            fix="copy the weight files into the folder",
        )
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in read_header(shard).items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor '{name}' is in two shards",
                    where=str(shard),
                    fix="remove the shards that belong to another save of the model",
                )
            tensors[name] = tensor
    lost = sorted(set(listed) - set(tensors))
    if lost:
        raise CheckpointError(
            f"{len(lost)} tensors of the index are in no shard, '{lost[0]}' first",
            where=str(index),
            fix="fetch index and shards again, from the same revision",
        )
    if not tensors:
        raise CheckpointError(
            "the weight files hold no tensor", where=str(path), fix="fetch the weights again"
        )
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    found = json_object(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise CheckpointError(
            "the index lists no tensor (weight_map)", where=str(index), fix="fetch the file again"
        )
    return found


def _parameters(tensors: dict[str, Tensor], quantization: Any) -> int:
    bits = _packed_bits(quantization)
    total = 0
    for name, tensor in tensors.items():
        if _ADDED.search(name):
            continue
        if name.endswith(".weight_packed"):
            total += tensor.elements * (32 // bits)
        elif f"{name}.absmax" in tensors:
            total += tensor.elements * 2  # bitsandbytes: two 4-bit codes to a byte
        else:
            total += tensor.elements
    return total


def _packed_bits(quantization: Any) -> int:
    with contextlib.suppress(KeyError, TypeError, StopIteration, AttributeError):
        groups = quantization["config_groups"].values()
        return int(next(iter(groups))["weights"]["num_bits"])
    return 32


def is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is the weight of a linear layer a method may quantize, by its name."""
    return name.endswith(".weight") and len(shape) == 2 and not _NOT_LINEAR.search(name)


def _widths(tensors: dict[str, Tensor]) -> Counter[int]:
    """Input widths of linear layers: the second dimension of their weights."""
    return Counter(t.shape[1] for name, t in tensors.items() if is_linear(name, t.shape))


def _architecture(config: dict[str, Any], path: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError(
            "config.json names no architecture",
            where=f"{path / 'config.json'}: architectures",
            fix='add it, for example "architectures": ["LlamaForCausalLM"]',
        )
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(
            "config.json has no 'model_type', by which transformers knows what to build",
            where=f"{path / 'config.json'}: model_type",
            fix='use the config.json of the original model: "model_type": "llama"',
        )
    return str(names[0])


def _number(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"config.json has no usable '{key}' ({value!r})",
            where=f"{path / 'config.json'}: {key}",
            fix="use the config.json of the original model",
        )
    return value


def _quant_method(quantization: Any) -> str | None:
    if quantization is None or isinstance(quantization, str):
        return quantization
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return str(method) if method else "unknown"


def _looks_quantized(tensors: dict[str, Tensor]) -> bool:
    """Whether weights are stored as codes: packed, or in a dtype of 8 bits or fewer."""
    return any(
        name.endswith((".weight_packed", ".qweight"))
        or (name.endswith(".weight") and len(t.shape) == 2 and DTYPE_BITS[t.dtype] <= 8)
        for name, t in tensors.items()
    )


def json_object(file: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        CheckpointError: it holds something else.
    """
    try:
        value = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file.name} is not JSON: {error}", where=str(file), fix="fetch the file again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{file.name} is not a JSON object", where=str(file), fix="fetch the file again"
        )
    return value
