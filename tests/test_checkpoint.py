import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_safetensors import read_raw, write_raw

from workbench.checkpoint import COMPANIONS, INDEX, copy_companions, digests, inspect, is_linear
from workbench.digest import sha256_file, sha256_text
from workbench.errors import CheckpointError


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def shard(folder: Path, names: int = 2) -> None:
    """Split the one weight file into shards with an index."""
    tensors = read_raw(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {}
    for number in range(names):
        part = dict(list(tensors.items())[number::names])
        file = f"model-{number + 1:05d}-of-{names:05d}.safetensors"
        write_raw(folder / file, part)
        where |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_what_is_read(tiny: Path) -> None:
    found = inspect(tiny)
    assert found.architecture == "LlamaForCausalLM"
    assert (found.hidden_size, found.layers, found.max_position_embeddings) == (64, 2, 2048)
    assert found.linear_input_widths == (64, 128)  # neither embeddings nor norms
    layer = 64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 128 + 2 * 64
    assert found.parameters == 512 * 64 + 2 * layer + 64
    assert found.weight_bytes == 2 * found.parameters
    assert found.dtype == "BF16"
    assert found.tied_embeddings
    assert found.quantization is None
    assert found.licence == "apache-2.0"
    assert found.template_digest == sha256_text((tiny / "chat_template.jinja").read_text())
    assert found.files["config.json"] == sha256_file(tiny / "config.json")
    assert set(found.files) == {p.name for p in tiny.iterdir()}


def test_digests_follow_the_bytes_they_are_named_for(tiny: Path, copy: Path) -> None:
    before = inspect(tiny)
    same = inspect(copy)
    assert (same.weights_digest, same.tokenizer_digest) == (
        before.weights_digest,
        before.tokenizer_digest,
    )
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    after = inspect(copy)
    assert after.weights_digest != before.weights_digest
    assert after.tokenizer_digest == before.tokenizer_digest
    edit_json(copy / "tokenizer.json", lambda t: t["model"]["merges"].pop())
    assert inspect(copy).tokenizer_digest != before.tokenizer_digest


def test_shards_are_read_as_one(tiny: Path, copy: Path) -> None:
    shard(copy)
    assert inspect(copy).parameters == inspect(tiny).parameters


def test_missing_shard_is_named(copy: Path) -> None:
    shard(copy, 3)
    (copy / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="1 of 3 shards are missing: model-00002"):
        inspect(copy)


def test_tensor_of_the_index_that_is_nowhere(copy: Path) -> None:
    shard(copy)
    first = next(iter(json.loads((copy / INDEX).read_text())["weight_map"].values()))
    edit_json(copy / INDEX, lambda index: index["weight_map"].update(ghost=first))
    with pytest.raises(CheckpointError, match="1 tensors of the index are in no shard, 'ghost'"):
        inspect(copy)


def test_tensor_in_two_shards(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    shard(copy)
    (copy / "model-00002-of-00002.safetensors").write_bytes(whole)
    with pytest.raises(CheckpointError, match="is in two shards"):
        inspect(copy)


def test_truncated_shard(copy: Path) -> None:
    path = copy / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 100)
    with pytest.raises(CheckpointError, match=rf"says {size} bytes, the file has {size - 100}"):
        inspect(copy)


@pytest.mark.parametrize(
    ("remove", "message", "fix"),
    [
        ("tokenizer.json", "no tokenizer", "AutoTokenizer"),
        ("config.json", "no config.json", "save_pretrained"),
        ("model.safetensors", "no weights", "copy the weight files"),
    ],
)
def test_missing_files(copy: Path, remove: str, message: str, fix: str) -> None:
    (copy / remove).unlink()
    with pytest.raises(CheckpointError, match=message) as error:
        inspect(copy)
    assert fix in error.value.fix
    assert error.value.where


def test_pickles_alone_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickles") as error:
        inspect(copy)
    assert "safe_serialization" in error.value.fix


def test_a_gguf_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(CheckpointError) as error:
        inspect(tmp_path)
    assert "GGUF" in error.value.fix


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        inspect(tmp_path / "nothing")


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "architectures"])
def test_config_without_a_needed_key(copy: Path, key: str) -> None:
    edit_json(copy / "config.json", lambda config: config.pop(key))
    with pytest.raises(CheckpointError) as error:
        inspect(copy)
    assert key in error.value.where


def test_config_that_is_not_json(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        inspect(copy)


def test_nested_text_config(copy: Path) -> None:
    def nest(config: dict[str, Any]) -> None:
        text = {k: config.pop(k) for k in ("hidden_size", "num_hidden_layers")}
        config["text_config"] = text

    edit_json(copy / "config.json", nest)
    assert (inspect(copy).hidden_size, inspect(copy).layers) == (64, 2)


def test_untied_head_is_no_linear_width(copy: Path) -> None:
    tensors = read_raw(copy / "model.safetensors")
    tensors["lm_head.weight"] = ("BF16", [512, 64], bytes(2 * 512 * 64))
    write_raw(copy / "model.safetensors", tensors)
    edit_json(copy / "config.json", lambda config: config.pop("tie_word_embeddings"))
    assert not inspect(copy).tied_embeddings
    assert not is_linear("lm_head.weight", (512, 64))
    assert is_linear("model.layers.0.mlp.up_proj.weight", (128, 64))


def test_packed_weights_count_as_parameters(copy: Path) -> None:
    before = inspect(copy).parameters
    tensors = read_raw(copy / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        _, (rows, columns), _ = tensors.pop(name)
        stem = name.removesuffix(".weight")
        tensors[f"{stem}.weight_packed"] = ("I32", [rows, columns // 8], bytes(rows * columns // 2))
        tensors[f"{stem}.weight_scale"] = ("BF16", [rows, 2], bytes(rows * 4))
        tensors[f"{stem}.weight_shape"] = ("I64", [2], bytes(16))
    write_raw(copy / "model.safetensors", tensors)
    groups = {"group_0": {"weights": {"num_bits": 4}}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    edit_json(copy / "config.json", lambda c: c.update(quantization_config=quantization))
    found = inspect(copy)
    assert found.quantization == "compressed-tensors"
    assert found.parameters == before


def test_template_from_the_tokenizer_config(copy: Path) -> None:
    whole = inspect(copy).template_digest
    (copy / "chat_template.jinja").unlink()
    assert inspect(copy).template_digest == whole
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    edit_json(copy / "tokenizer_config.json", lambda c: c.update(chat_template=named))
    assert inspect(copy).template_digest == sha256_text("d")
    edit_json(copy / "tokenizer_config.json", lambda c: c.update(chat_template=named[:1]))
    with pytest.raises(CheckpointError, match="'default'"):
        inspect(copy)
    edit_json(copy / "tokenizer_config.json", lambda c: c.pop("chat_template"))
    assert inspect(copy).template_digest is None


def test_cache_saves_the_hashing_and_notices_a_change(tmp_path: Path) -> None:
    folder, cache = tmp_path / "m", tmp_path / "cache" / "digests.json"
    folder.mkdir()
    big = folder / "big.safetensors"
    big.write_bytes(bytes(2 << 20))
    first = digests(folder, cache)
    # What is in the cache is believed: that is how we see it was read.
    known = json.loads(cache.read_text())
    key = str(big.resolve())
    cache.write_text(json.dumps({key: [*known[key][:-1], "remembered"]}))
    assert digests(folder, cache) == {"big.safetensors": "remembered"}
    later = time.time_ns() + 10**9
    os.utime(big, ns=(later, later))
    assert digests(folder, cache) == first
    cache.write_text("{broken")
    assert digests(folder, cache) == first


def test_hidden_files_do_not_count(copy: Path) -> None:
    before = inspect(copy)
    (copy / ".cache").mkdir()
    (copy / ".cache" / "lock").write_text("x")
    assert inspect(copy).files == before.files


def test_companions_are_equal_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text("written by a tool")
    (tmp_path / "tokenizer.json").write_text("changed by a tool")
    copy_companions(tiny, tmp_path)
    made = {p.name for p in tmp_path.iterdir()}
    assert made == {p.name for p in tiny.iterdir()} & set(COMPANIONS)
    assert all((tmp_path / n).read_bytes() == (tiny / n).read_bytes() for n in made)


def test_a_whole_save_beside_the_shards_of_another(copy: Path) -> None:
    """transformers would read the one file, everything else here the shards."""
    whole = (copy / "model.safetensors").read_bytes()
    shard(copy)
    inspect(copy)
    (copy / "model.safetensors").write_bytes(whole)
    with pytest.raises(CheckpointError, match="lies beside an index of other files"):
        inspect(copy)


def test_shards_without_an_index(copy: Path) -> None:
    shard(copy)
    (copy / INDEX).unlink()
    with pytest.raises(CheckpointError, match=f"there is no {INDEX}"):
        inspect(copy)


def test_another_weight_file_beside_the_one(copy: Path) -> None:
    write_raw(copy / "extra.safetensors", {"extra": ("F32", [1], bytes(4))})
    with pytest.raises(CheckpointError, match=r"extra\.safetensors beside model"):
        inspect(copy)


def test_an_adapter_beside_the_weights(copy: Path) -> None:
    (copy / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(CheckpointError, match="an adapter lies beside the weights"):
        inspect(copy)


@pytest.mark.parametrize("listed", ["../other/model.safetensors", "sub/model.safetensors", 5])
def test_an_index_that_names_what_is_not_in_the_folder(copy: Path, listed: object) -> None:
    """Weights elsewhere would be quantized without a digest of theirs on record."""
    other = copy.parent / "other"
    for folder in (other, copy / "sub"):
        folder.mkdir()
        shutil.copyfile(copy / "model.safetensors", folder / "model.safetensors")
    names = read_raw(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    (copy / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, listed)}))
    with pytest.raises(CheckpointError, match="shards lie in the checkpoint's own folder"):
        inspect(copy)


def test_an_index_of_nothing(copy: Path) -> None:
    (copy / INDEX).write_text('{"weight_map": []}')
    with pytest.raises(CheckpointError, match="the index lists no tensor"):
        inspect(copy)


def test_a_quantized_text_model_inside_another(copy: Path) -> None:
    quantized = {"quantization_config": {"quant_method": "awq"}}
    edit_json(copy / "config.json", lambda c: c.update(text_config=quantized))
    assert inspect(copy).quantization == "awq"


def test_an_edit_that_keeps_size_and_time_is_noticed(tmp_path: Path) -> None:
    folder, cache = tmp_path / "m", tmp_path / "digests.json"
    folder.mkdir()
    big = folder / "big.safetensors"
    big.write_bytes(bytes(2 << 20))
    before, first = big.stat(), digests(folder, cache)
    time.sleep(0.05)  # the clock of files ticks every 10 ms on some systems
    with big.open("r+b") as file:
        file.write(b"x")
    os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests(folder, cache) != first


def test_a_config_without_a_model_type(copy: Path) -> None:
    edit_json(copy / "config.json", lambda c: c.pop("model_type"))
    with pytest.raises(CheckpointError, match="no 'model_type'"):
        inspect(copy)
