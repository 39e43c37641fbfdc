"""Decoding against known values: numpy's own, and the formats' definitions."""

from pathlib import Path

import numpy as np
import pytest
from raw_safetensors import write_raw

from workbench import tensors
from workbench.safetensors_header import Tensor, read_header


def stored(folder: Path, dtype: str, data: bytes, count: int) -> Tensor:
    # A tensor before it, so that the offset counts.
    path = folder / "t.safetensors"
    write_raw(path, {"first": ("U8", [3], b"abc"), "t": (dtype, [count], data)})
    return read_header(path)["t"]


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    values = np.array([0, 1, -2.5, 3.140625, 1e30], dtype="<f4")
    data = (values.view("<u4") >> 16).astype("<u2").tobytes()
    found = np.concatenate(list(tensors.pieces(stored(tmp_path, "BF16", data, 5))))
    assert found == pytest.approx(values, rel=2**-7)


@pytest.mark.parametrize(
    ("dtype", "codes", "values"),
    [
        # The extremes of the formats: https://arxiv.org/abs/2209.05433, table 1.
        ("F8_E4M3", [0x38, 0x7E, 0xFE, 0x01, 0x00, 0x08], [1, 448, -448, 2**-9, 0, 2**-6]),
        ("F8_E5M2", [0x3C, 0x7B, 0xFB, 0x01, 0x04], [1, 57344, -57344, 2**-16, 2**-14]),
        ("F8_E8M0", [127, 0, 254], [1, 2.0**-127, 2.0**127]),
    ],
)
def test_fp8(tmp_path: Path, dtype: str, codes: list[int], values: list[float]) -> None:
    tensor = stored(tmp_path, dtype, bytes(codes), len(codes))
    assert next(tensors.pieces(tensor)).tolist() == values
    assert tensors.not_finite(tensor) == 0


@pytest.mark.parametrize(
    ("dtype", "data", "bad"),
    [
        ("F32", np.array([1, np.nan, np.inf, -np.inf, 0], dtype="<f4").tobytes(), 3),
        ("F16", np.array([1, np.nan, np.inf, 65504], dtype="<f2").tobytes(), 2),
        ("F64", np.array([1, np.nan, 1e308], dtype="<f8").tobytes(), 1),
        ("BF16", np.array([0x7F80, 0xFF80, 0x7FC0, 0x7F7F], dtype="<u2").tobytes(), 3),
        ("F8_E4M3", bytes([0x7F, 0xFF, 0x7E, 0x00]), 2),
        ("F8_E5M2", bytes([0x7C, 0x7F, 0x7B]), 2),
        ("F8_E8M0", bytes([0xFF, 0xFE]), 1),
        ("I32", np.array([-1, 2**31 - 1], dtype="<i4").tobytes(), 0),
    ],
)
def test_numbers_that_are_not_finite(tmp_path: Path, dtype: str, data: bytes, bad: int) -> None:
    width = {"F64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}.get(dtype, 1)
    tensor = stored(tmp_path, dtype, data, len(data) // width)
    assert tensors.not_finite(tensor) == bad
    if dtype != "I32":
        assert tensors.scan(tensor).not_finite == bad


def test_a_scan_knows_range_zeros_and_sameness(tmp_path: Path) -> None:
    data = np.array([0, 2, -1, np.nan], dtype="<f4").tobytes()
    found = tensors.scan(stored(tmp_path, "F32", data, 4))
    assert found == (4, 1, -1.0, 2.0, 1) and not found.constant
    same = tensors.scan(stored(tmp_path, "F16", np.full(7, 0.5, "<f2").tobytes(), 7))
    assert same.constant and (same.low, same.high) == (0.5, 0.5)
    assert tensors.scan(stored(tmp_path, "F32", b"", 0)) == (0, 0, 0.0, 0.0, 0)


def test_equal_and_one_code(tmp_path: Path) -> None:
    one = stored(tmp_path, "I32", np.full(5, 9, "<i4").tobytes(), 5)
    (tmp_path / "b").mkdir()
    other = stored(tmp_path / "b", "I32", np.array([9, 9, 9, 9, 8], "<i4").tobytes(), 5)
    assert tensors.equal(one, one) and not tensors.equal(one, other)
    assert tensors.one_code(one) and not tensors.one_code(other)


def test_a_difference_beyond_the_first_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_PIECE", 2)
    data = np.array([1, 1, 1, 1, np.inf], "<f4").tobytes()
    tensor = stored(tmp_path, "F32", data, 5)
    assert tensors.not_finite(tensor) == 1 and not tensors.one_code(tensor)
    assert tensors.scan(tensor).n == 5
