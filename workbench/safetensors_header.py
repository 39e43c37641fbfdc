"""Read the header of a safetensors file, without reading a tensor and without torch.

The format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian length, that
many bytes of JSON (name -> dtype, shape, data_offsets), then the tensors' bytes without holes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from workbench.errors import CheckpointError

_LENGTH_BYTES = 8
#: The format's own limit of a header.
_LARGEST_HEADER = 100_000_000

#: Bits of one element of each dtype of the format.
DTYPE_BITS = {
    **{"F64": 64, "I64": 64, "U64": 64, "C64": 64},
    **{"F32": 32, "I32": 32, "U32": 32},
    **{"F16": 16, "BF16": 16, "I16": 16, "U16": 16},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"I8": 8, "U8": 8, "BOOL": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}


@dataclass(frozen=True)
class Tensor:
    """One entry of a header.

    Attributes:
        dtype: the format's spelling, such as ``BF16``.
        shape: elements along each axis.
        bytes: size of its data.
        file: the file it is in.
        offset: where its data begin in that file, in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: Path = field(default=Path(), compare=False)
    offset: int = field(default=0, compare=False)

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensor name -> entry of one file, checked against the file's size.

    Raises:
        CheckpointError: the file is shorter or longer than its header says, its tensors overlap or
            leave holes, or it is no safetensors.
    """
    try:
        size = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"the weights cannot be read: {error.strerror}",
            where=str(path),
            fix="copy the file itself here; a link must lead to it",
        ) from error
    with file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or not 2 <= length <= _LARGEST_HEADER:
            raise _broken(path, f"it begins with a header length of {length} bytes")
        if _LENGTH_BYTES + length > size:
            raise _truncated(path, _LENGTH_BYTES + length, size, "at least ")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        entries = {
            name: (str(e["dtype"]), tuple(map(int, e["shape"])), tuple(map(int, e["data_offsets"])))
            for name, e in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(path, f"its header is not the JSON it should be ({error})") from error
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, (dtype, shape, offsets) in entries.items():
        if dtype not in DTYPE_BITS:
            raise _broken(path, f"tensor '{name}' has an unknown dtype '{dtype}'")
        spans = offsets[1] - offsets[0] if len(offsets) == 2 else -1
        begin = _LENGTH_BYTES + length + offsets[0] if offsets else 0
        tensors[name] = Tensor(dtype, shape, spans, path, begin)
        if min(shape, default=0) < 0 or spans * 8 != tensors[name].elements * DTYPE_BITS[dtype]:
            raise _broken(path, f"tensor '{name}' is {dtype} {list(shape)} but spans {offsets}")
    for name, (_, _, (begin, after)) in sorted(entries.items(), key=lambda item: item[1][2]):
        if begin != end:
            what = "overlaps another" if begin < end else "has a hole before it"
            raise _broken(path, f"tensor '{name}' {what}: it begins at {begin}, not at {end}")
        end = after
    expected = _LENGTH_BYTES + length + end
    if size != expected:
        raise _truncated(path, expected, size)
    return tensors


def _truncated(path: Path, expected: int, size: int, bound: str = "") -> CheckpointError:
    kind = "truncated" if size < expected else "overlong"
    return CheckpointError(
        f"{kind} shard: the header says {bound}{expected} bytes, the file has {size}",
        where=str(path),
        fix="the download or copy was cut short: fetch this file again",
    )


def _broken(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"not a safetensors file: {why}", where=str(path), fix="fetch this file again"
    )
