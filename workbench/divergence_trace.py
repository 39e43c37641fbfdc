"""The file of what one model said of a corpus: written document by document, read the same way.

    magic, header frame, one frame a document in the corpus' order, end frame

A frame is a kind, a length, a CRC-32 and as many bytes; a document's are its place and its arrays
in little-endian order, compressed by zlib. Nothing is held but one document: 20,000 tokens with the
64 likeliest each are some 10 MB on disk and a few in memory.

A crash can tear the last frame and nothing else. The next attempt keeps every whole document of
the same corpus, asked of the same weights under the same conditions, and goes on after it; a file
without its end frame is never read as a trace. Two traces of equal numbers are equal bytes.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from workbench.digest import canonical_json, sha256_file
from workbench.divergence import TracedDocument
from workbench.errors import StoreError
from workbench.evaluation_records import DivergenceTrace
from workbench.store import disk_errors

MAGIC = b"workbench.divergence-trace/1\n"

_FRAME = struct.Struct("<cII")  # kind, length, CRC-32
_PLACE = struct.Struct("<IIIIH")  # index, start, tokens, top k, bytes of the source's name
_HEADER, _DOCUMENT, _END = b"H", b"D", b"E"
#: No frame is as long as this: a length beyond it is damage, not a reason to take memory.
_LONGEST = 1 << 30
#: Documents between two waits for the disk.
_SYNC_EVERY = 16


class _Frame(NamedTuple):
    kind: bytes
    payload: bytes
    end: int


class TraceWriter:
    """Appends documents to a trace, going on after those an earlier attempt left there.

    Args:
        path: the file.
        header: what makes two attempts one: corpus, weights, conditions. JSON values.

    Attributes:
        documents: that are in the file.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self._header = canonical_json(dict(header))
        self.documents = 0

    def __enter__(self) -> Self:
        end = self._kept()
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what was appended is with the operating system, whatever becomes of us.
            self._file: BinaryIO = self._path.open("r+b" if end else "wb", buffering=0)
            self._file.truncate(end)
            self._file.seek(end)
        if not end:
            self._write(MAGIC)
            self._frame(_HEADER, self._header)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._sync()
        finally:
            self._file.close()

    def append(self, document: TracedDocument) -> None:
        """Add the next document.

        Raises:
            DiskFull: no space is left.
            ValueError: it is not the next one.
        """
        if document.index != self.documents:
            raise ValueError(f"document {document.index} is not the next, {self.documents} is")
        self._frame(_DOCUMENT, _pack(document))
        self.documents += 1
        if self.documents % _SYNC_EVERY == 0:
            self._sync()

    def finish(self) -> None:
        """Write the end, which makes the file a trace."""
        self._frame(_END, canonical_json({"documents": self.documents}))
        self._sync()

    def _kept(self) -> int:
        """End of the last whole document of an earlier attempt; 0 where nothing can be kept."""
        end = 0
        try:
            with self._path.open("rb") as file:
                for frame in _frames(file, self._path):
                    if frame.kind == _HEADER and frame.payload != self._header:
                        return 0
                    if frame.kind == _DOCUMENT:
                        if _unpack(frame.payload, self._path).index != self.documents:
                            break
                        self.documents += 1
                    if frame.kind == _END:
                        break
                    end = frame.end
        except FileNotFoundError:
            return 0
        except StoreError:
            pass  # torn: what stands before is whole
        return end

    def _frame(self, kind: bytes, payload: bytes) -> None:
        self._write(_FRAME.pack(kind, len(payload), zlib.crc32(payload)) + payload)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with disk_errors(self._path):
            while view:
                view = view[self._file.write(view) :]

    def _sync(self) -> None:
        with disk_errors(self._path):
            os.fsync(self._file.fileno())


def read_trace(path: Path) -> Iterator[TracedDocument]:
    """The documents of a whole trace, one at a time.

    Raises:
        StoreError: the file is missing, torn, damaged, or of another version.
    """
    found, ended = 0, False
    try:
        with path.open("rb") as file:
            for frame in _frames(file, path):
                if ended:
                    _damaged(path, "something follows its end")
                if frame.kind == _DOCUMENT:
                    document = _unpack(frame.payload, path)
                    if document.index != found:
                        _damaged(path, f"document {document.index} stands where {found} should")
                    found += 1
                    yield document
                elif frame.kind == _END:
                    ended = frame.payload == canonical_json({"documents": found})
                    if not ended:
                        _damaged(path, "its end speaks of another number of documents")
    except FileNotFoundError:
        raise StoreError(
            "a divergence trace is missing", where=str(path), fix="run the evaluation again"
        ) from None
    if not ended:
        _damaged(path, f"it ends after {found} documents without its end")


def altered(folder: Path, trace: DivergenceTrace) -> str:
    """What is wrong with the file a record speaks of; an empty text where nothing is."""
    if not trace.file:
        return ""
    try:
        same = sha256_file(folder / trace.file) == trace.digest
    except OSError:
        return f"its divergence trace {trace.file} is lost"
    return "" if same else f"its divergence trace {trace.file} is not the one that was recorded"


def _frames(file: BinaryIO, path: Path) -> Iterator[_Frame]:
    """Whole frames, the header first.

    Raises:
        StoreError: at the first one that is not.
    """
    if file.read(len(MAGIC)) != MAGIC:
        _damaged(path, "it does not begin as one of this version")
    end, first = len(MAGIC), True
    while head := file.read(_FRAME.size):
        if len(head) < _FRAME.size:
            _damaged(path, f"it is torn at byte {end}")
        kind, length, checksum = _FRAME.unpack(head)
        if kind not in (_HEADER, _DOCUMENT, _END) or length > _LONGEST:
            _damaged(path, f"there is no frame at byte {end}")
        if first != (kind == _HEADER):
            _damaged(path, f"its header is not where it should be, at byte {end}")
        payload = file.read(length)
        if len(payload) < length:
            _damaged(path, f"it is torn at byte {end}")
        if zlib.crc32(payload) != checksum:
            _damaged(path, f"the frame at byte {end} has another checksum")
        end += _FRAME.size + length
        first = False
        yield _Frame(kind, payload, end)


def _pack(document: TracedDocument) -> bytes:
    source = document.source.encode("utf-8", "replace")
    n, k = document.ids.shape
    arrays = (
        (document.true_ids, "<i4"),
        (document.true_logprobs, "<f4"),
        (document.ranks, "<i4"),
        (document.ids, "<i4"),
        (document.logprobs, "<f4"),
    )
    data = b"".join(np.ascontiguousarray(values, dtype).tobytes() for values, dtype in arrays)
    place = _PLACE.pack(document.index, document.start, n, k, len(source))
    return place + source + zlib.compress(data, 6)


def _unpack(payload: bytes, path: Path) -> TracedDocument:
    if len(payload) < _PLACE.size:
        _damaged(path, "a document is too short")
    index, start, n, k, named = _PLACE.unpack_from(payload)
    size = 4 * n * (3 + 2 * k)
    if size > _LONGEST:
        _damaged(path, f"document {index} is said to be of {size} bytes")
    at = _PLACE.size + named
    unpacker = zlib.decompressobj()
    try:
        source = payload[_PLACE.size : at].decode("utf-8")
        # At most one byte more than is right, however much a damaged file would become.
        data = unpacker.decompress(payload[at:], size + 1)
    except (zlib.error, UnicodeDecodeError) as error:
        _damaged(path, f"document {index} cannot be read: {error}")
    if len(data) != size:
        _damaged(path, f"document {index} has {len(data)} bytes instead of {size}")
    place = 0

    def take(dtype: DTypeLike, count: int) -> NDArray[Any]:
        nonlocal place
        values = np.frombuffer(data, dtype, count, place)
        place += 4 * count
        return values

    return TracedDocument(
        index=index,
        source=source,
        start=start,
        true_ids=take("<i4", n),
        true_logprobs=take("<f4", n),
        ranks=take("<i4", n),
        ids=take("<i4", n * k).reshape(n, k),
        logprobs=take("<f4", n * k).reshape(n, k),
    )


def header_of(path: Path) -> dict[str, Any]:
    """The header of a trace.

    Raises:
        StoreError: the file is no trace.
    """
    with path.open("rb") as file:
        for frame in _frames(file, path):
            found: dict[str, Any] = json.loads(frame.payload)
            return found
    _damaged(path, "it has no header")


def _damaged(path: Path, what: str) -> NoReturn:
    raise StoreError(
        f"a divergence trace is damaged: {what}", where=str(path), fix="run the evaluation again"
    )
