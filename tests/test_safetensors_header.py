import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_safetensors import write_raw

from workbench.errors import CheckpointError
from workbench.safetensors_header import read_header

GOOD = {"a": ("BF16", [2, 3], bytes(12)), "b": ("F32", [4], bytes(16)), "c": ("I64", [], bytes(8))}


def test_entries(tmp_path: Path) -> None:
    write_raw(tmp_path / "x.safetensors", GOOD)
    found = read_header(tmp_path / "x.safetensors")
    assert {n: (t.dtype, t.shape, t.bytes, t.elements) for n, t in found.items()} == {
        "a": ("BF16", (2, 3), 12, 6),
        "b": ("F32", (4,), 16, 4),
        "c": ("I64", (), 8, 1),
    }


@given(st.data())
def test_cut_anywhere_is_never_accepted(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.safetensors"
    write_raw(path, GOOD)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CheckpointError):
        read_header(path)


def test_truncated_names_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, GOOD)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert f"truncated shard: the header says {size} bytes, the file has {size - 5}" in str(
        error.value
    )
    assert str(path) in error.value.where


def test_cut_inside_the_header_is_truncated_too(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, GOOD)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"truncated shard: .* at least \d+ bytes"):
        read_header(path)


def test_longer_than_its_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, GOOD)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="overlong shard"):
        read_header(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"nope",
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"safetensors|shard"):
        read_header(path)


@pytest.mark.parametrize(
    "entry",
    [("BF16", [2, 4], bytes(12)), ("Q4", [2], bytes(1)), ("F32", [-1], bytes(4))],
)
def test_shape_dtype_and_size_must_agree(
    tmp_path: Path, entry: tuple[str, list[int], bytes]
) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, {"w": entry})
    with pytest.raises(CheckpointError, match="'w'"):
        read_header(path)


@pytest.mark.parametrize(("begin", "says"), [(0, "'b' overlaps another"), (12, "hole before it")])
def test_tensors_lie_side_by_side(tmp_path: Path, begin: int, says: str) -> None:
    def entry(at: int) -> dict[str, object]:
        return {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]}

    header = json.dumps({"a": entry(0), "b": entry(begin)}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(begin + 8))
    with pytest.raises(CheckpointError, match=says):
        read_header(path)
