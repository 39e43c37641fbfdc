"""Read the header of a GGUF file: metadata and tensors, values of tensors left where they are.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, counts,
key-value pairs, tensor infos, then the data, aligned. The `gguf` package's own reader makes an
array of every token of the vocabulary (4.4 s for 49,152 of them, measured); this one counts long
arrays and keeps only short ones (0.1 s). Constants and names of tensors are the package's.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import CheckpointError

_SCALARS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"},
    **{10: "<Q", 11: "<q", 12: "<d"},
}
_STRING, _ARRAY = 8, 9
#: Longer arrays are counted, not kept.
_KEPT = 64
_VERSIONS = (2, 3)


@dataclass(frozen=True)
class Long:
    """An array that was only counted."""

    count: int


@dataclass(frozen=True)
class GgufTensor:
    """One tensor.

    Attributes:
        type: name of its GGML type, such as ``Q4_K``.
        shape: as the source has it: [outputs, inputs].
        offset: of its data in the file.
        bytes: of its data.
        block: weights and bytes of one block of the type.
    """

    type: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    block: tuple[int, int]

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Gguf:
    """A GGUF file's header.

    Attributes:
        metadata: key -> value; long arrays as `Long`.
        tensors: name -> tensor.
    """

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("rb")
        self.size = path.stat().st_size

    def take(self, n: int) -> bytes:
        data = self.file.read(n)
        if len(data) != n:
            raise _broken(self.path, "it ends inside its header")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        if length > self.size:
            raise _broken(self.path, f"a text of {length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise _broken(self.path, f"a value of unknown type {kind}")
        return self.number(_SCALARS[kind])

    def array(self) -> Any:
        kind, count = self.number("<I"), self.number("<Q")
        if count > self.size:
            raise _broken(self.path, f"an array of {count} values")
        if count <= _KEPT:
            return [self.value(kind) for _ in range(count)]
        if kind in _SCALARS:
            self.file.seek(struct.calcsize(_SCALARS[kind]) * count, 1)
        elif kind == _STRING:
            for _ in range(count):
                self.file.seek(self.number("<Q"), 1)
        else:
            for _ in range(count):
                self.value(kind)
        return Long(count)


def read_gguf(path: Path) -> Gguf:
    """Metadata and tensors of a GGUF file, checked against the file's size.

    Raises:
        CheckpointError: it is no GGUF file, is cut short, or holds a type nobody knows.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    cursor = _Cursor(path)
    with cursor.file:
        if cursor.take(4) != b"GGUF":
            raise _broken(path, "it does not begin with 'GGUF'")
        version = cursor.number("<I")
        if version not in _VERSIONS:
            raise _broken(path, f"version {version}; {_VERSIONS} are read")
        tensors, pairs = cursor.number("<Q"), cursor.number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = cursor.text()
            metadata[key] = cursor.value(cursor.number("<I"))
        infos = []
        for _ in range(tensors):
            name = cursor.text()
            dims = [cursor.number("<Q") for _ in range(cursor.number("<I"))]
            infos.append((name, dims, cursor.number("<I"), cursor.number("<Q")))
        alignment = int(metadata.get("general.alignment", 32))
        begin = -(-cursor.file.tell() // alignment) * alignment
    found: dict[str, GgufTensor] = {}
    for name, dims, code, offset in infos:
        try:
            kind = GGMLQuantizationType(code)
            block = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise _broken(path, f"tensor '{name}' has the unknown type {code}") from None
        if dims and dims[0] % block[0]:
            raise _broken(path, f"tensor '{name}' of {dims[0]} in blocks of {block[0]}")
        size = math.prod(dims) // block[0] * block[1]
        if name in found:
            raise _broken(path, f"tensor '{name}' is there twice")
        if begin + offset + size > cursor.size:
            raise CheckpointError(
                f"truncated GGUF file: tensor '{name}' ends at byte {begin + offset + size}, the "
                f"file has {cursor.size}",
                where=str(path),
                fix="make it again: quantizing or copying was cut short",
            )
        found[name] = GgufTensor(kind.name, tuple(dims[::-1]), begin + offset, size, block)
    return Gguf(metadata, found)


def _broken(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"not a GGUF file that can be read: {why}", where=str(path), fix="make it again"
    )
