"""Values of stored tensors, memory-mapped, decoded and scanned by numpy. No framework.

Nothing is held: a scan reads a tensor in pieces, so a checkpoint larger than memory is no trouble.
Numbers that are not finite are found in their bits, which is faster than decoding them:
an exponent of all ones is infinity or NaN in IEEE 754 and in bfloat16; FP8 E4M3 (the "fn" variant
of https://arxiv.org/abs/2209.05433) has no infinity and one NaN pattern, E8M0 one NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.safetensors_header import Tensor

#: Elements looked at in one piece.
_PIECE = 1 << 22

#: dtype of the format -> how numpy sees its bytes.
_STORED = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "BOOL": "u1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1"},
    **{"F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"},
}
#: dtype -> (unsigned view, mask, pattern): not finite where bits & mask == pattern.
_NOT_FINITE = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000, 0x7F80_0000),
    "F16": ("<u2", 0x7C00, 0x7C00),
    "BF16": ("<u2", 0x7F80, 0x7F80),
    "F8_E4M3": ("u1", 0x7F, 0x7F),
    "F8_E5M2": ("u1", 0x7C, 0x7C),
    "F8_E8M0": ("u1", 0xFF, 0xFF),
}
#: dtypes whose values are real numbers, as opposed to codes and counts.
FLOATS = tuple(_NOT_FINITE)


class Scan(NamedTuple):
    """What a tensor holds.

    Attributes:
        n: elements.
        not_finite: how many are NaN or infinite.
        low: smallest finite value; 0 where there is none.
        high: largest finite value; 0 where there is none.
        zeros: how many are zero.
    """

    n: int
    not_finite: int
    low: float
    high: float
    zeros: int

    @property
    def constant(self) -> bool:
        """Whether all of several values are one."""
        return self.n > 1 and self.not_finite == 0 and self.low == self.high


def stored(tensor: Tensor) -> NDArray[Any]:
    """The bytes of a tensor as numpy sees them, flat: codes for bfloat16 and FP8.

    Raises:
        ValueError: numpy has no dtype for it.
    """
    kind = _STORED.get(tensor.dtype)
    if kind is None:
        raise ValueError(f"{tensor.dtype} cannot be read")
    if tensor.elements == 0:
        return np.zeros(0, dtype=kind)
    return np.memmap(tensor.file, dtype=kind, mode="r", offset=tensor.offset, shape=tensor.elements)


def pieces(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """The values of a tensor, flat, a few million at a time; reals as float32 (F64 stays)."""
    flat = stored(tensor)
    for begin in range(0, len(flat), _PIECE):
        yield decode(np.asarray(flat[begin : begin + _PIECE]), tensor.dtype)


def decode(raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Stored codes as numbers."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2", "F8_E8M0"):
        values: NDArray[np.float32] = _table(dtype)[raw]
        return values
    return raw.astype(np.float32) if dtype == "F16" else raw


@cache
def _table(dtype: str) -> NDArray[np.float32]:
    """Value of each of the 256 codes."""
    code = np.arange(256, dtype=np.int64)
    if dtype == "F8_E8M0":
        values = np.ldexp(1.0, code - 127)
        values[255] = np.nan
        return values.astype(np.float32)
    fraction_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    exponent = (code & 0x7F) >> fraction_bits
    fraction = (code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    values = np.where(
        exponent == 0,
        np.ldexp(fraction, 1 - bias),
        np.ldexp(1 + fraction, exponent - bias),
    )
    if dtype == "F8_E4M3":
        values[(code & 0x7F) == 0x7F] = np.nan
    else:
        values[exponent == 31] = np.where(fraction[exponent == 31] == 0, np.inf, np.nan)
    return np.where(code & 0x80, -values, values).astype(np.float32)


def not_finite(tensor: Tensor) -> int:
    """How many values are NaN or infinite; 0 for whole numbers."""
    if tensor.dtype not in _NOT_FINITE:
        return 0
    view, mask, pattern = _NOT_FINITE[tensor.dtype]
    flat = stored(tensor).view(view)
    kind = flat.dtype.type
    count = 0
    for begin in range(0, len(flat), _PIECE):
        piece = np.asarray(flat[begin : begin + _PIECE])
        count += int(np.count_nonzero((piece & kind(mask)) == kind(pattern)))
    return count


def scan(tensor: Tensor) -> Scan:
    """Range, zeros and non-finite values of a tensor: for scales and zero points."""
    n = bad = zeros = 0
    low, high = np.inf, -np.inf
    for piece in pieces(tensor):
        n += piece.size
        finite = piece[np.isfinite(piece)] if piece.dtype.kind == "f" else piece
        bad += piece.size - finite.size
        zeros += piece.size - int(np.count_nonzero(piece))
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:
        low = high = 0.0
    return Scan(n, bad, low, high, zeros)


def one_code(tensor: Tensor) -> bool:
    """Whether every element has the same bits: a weight that was lost. Stops at a difference."""
    flat = stored(tensor)
    if len(flat) < 2:
        return False
    first = flat[0]
    return all(
        bool((np.asarray(flat[begin : begin + _PIECE]) == first).all())
        for begin in range(0, len(flat), _PIECE)
    )


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    a, b = stored(one), stored(other)
    return all(
        np.array_equal(a[begin : begin + _PIECE].view("u1"), b[begin : begin + _PIECE].view("u1"))
        for begin in range(0, len(a), _PIECE)
    )
