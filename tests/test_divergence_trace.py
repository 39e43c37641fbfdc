"""The trace file: what goes in comes out, a torn one is known, and its size is bounded."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_divergence import pair

from workbench.digest import sha256_file
from workbench.divergence import TracedDocument, compare
from workbench.divergence_trace import MAGIC, TraceWriter, altered, header_of, read_trace
from workbench.errors import StoreError
from workbench.evaluation_records import DivergenceTrace

HEADER = {"corpus": "c", "top_k": 4}


def documents(count: int, top_k: int = 4) -> list[TracedDocument]:
    return [replace(pair(i, 7 + i, 30, top_k)[0], index=i, source=f"s{i}") for i in range(count)]


def written(path: Path, found: list[TracedDocument]) -> bytes:
    with TraceWriter(path, HEADER) as writer:
        for document in found[writer.documents :]:
            writer.append(document)
        writer.finish()
    return path.read_bytes()


def same(one: TracedDocument, other: TracedDocument) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    found = documents(5)
    path = tmp_path / "t"
    written(path, found)
    back = list(read_trace(path))
    assert len(back) == 5 and all(map(same, back, found))
    assert header_of(path) == HEADER


def test_equal_numbers_are_equal_bytes(tmp_path: Path) -> None:
    assert written(tmp_path / "a", documents(3)) == written(tmp_path / "b", documents(3))


def test_a_file_cut_anywhere_is_known_and_gone_on_with(tmp_path: Path) -> None:
    found = documents(4)
    whole = written(tmp_path / "whole", found)
    path = tmp_path / "torn"
    kept = set()
    for cut in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises(StoreError, match="damaged"):
            list(read_trace(path))
        with TraceWriter(path, HEADER) as writer:
            kept.add(writer.documents)
            for document in found[writer.documents :]:
                writer.append(document)
            writer.finish()
        assert path.read_bytes() == whole, cut
    assert kept == {0, 1, 2, 3, 4}, "each whole document was kept"


def test_a_whole_file_is_kept_as_it_is(tmp_path: Path) -> None:
    found = documents(3)
    whole = written(tmp_path / "t", found)
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        assert writer.documents == 3
        writer.finish()
    assert (tmp_path / "t").read_bytes() == whole


def test_another_corpus_or_other_weights_begin_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    written(path, documents(3))
    with TraceWriter(path, HEADER | {"top_k": 5}) as writer:
        assert writer.documents == 0
        writer.finish()
    assert header_of(path)["top_k"] == 5 and not list(read_trace(path))


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    whole = written(tmp_path / "t", documents(2))
    path = tmp_path / "changed"
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            list(read_trace(path))


@pytest.mark.parametrize("data", [b"", b"{}", MAGIC, MAGIC + b"D" + b"\xff" * 8, b"\0" * 100])
def test_what_is_no_trace_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        list(read_trace(path))
    with TraceWriter(path, HEADER) as writer:
        assert writer.documents == 0


def test_a_missing_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        list(read_trace(tmp_path / "none"))


def test_a_document_that_would_unpack_to_much_is_refused(tmp_path: Path) -> None:
    import struct

    place = struct.pack("<IIIIH", 0, 1, 2, 2, 1) + b"s" + zlib.compress(b"\0" * (1 << 24))
    header = b"{}"

    def frame(kind: bytes, data: bytes) -> bytes:
        return struct.pack("<cII", kind, len(data), zlib.crc32(data)) + data

    path = tmp_path / "t"
    path.write_bytes(MAGIC + frame(b"H", header) + frame(b"D", place))
    with pytest.raises(StoreError, match="instead of 56"):
        list(read_trace(path))


def test_documents_come_in_order(tmp_path: Path) -> None:
    with (
        TraceWriter(tmp_path / "t", HEADER) as writer,
        pytest.raises(ValueError, match="not the next"),
    ):
        writer.append(documents(2)[1])


def test_a_changed_file_is_not_the_recorded_one(tmp_path: Path) -> None:
    path = tmp_path / "t"
    written(path, documents(1))
    record = DivergenceTrace(file="t", digest=sha256_file(path))
    assert altered(tmp_path, record) == ""
    path.write_bytes(path.read_bytes()[:-1])
    assert "not the one" in altered(tmp_path, record)
    path.unlink()
    assert "lost" in altered(tmp_path, record)
    assert altered(tmp_path, DivergenceTrace(unavailable="none")) == ""


def test_twenty_thousand_tokens_fit_on_disk_and_stream(tmp_path: Path) -> None:
    """20,000 tokens at top 64: under 200 MB on disk, and never more than a few in memory."""

    def long(seed: int) -> Iterator[TracedDocument]:
        dice = np.random.default_rng(seed)
        for index in range(20):
            logits = dice.normal(0, 3, (1000, 64)).astype(np.float32)
            logprobs = -np.sort(-(logits - np.log(np.exp(logits).sum(1, keepdims=True)) - 0.1), 1)
            ids = np.argsort(np.random.default_rng(index).random((1000, 256)), axis=1)[:, :64]
            yield TracedDocument(
                index=index,
                source="calibration",
                start=1,
                true_ids=ids[:, 1].astype(np.int32),
                true_logprobs=logprobs[:, 1],
                ranks=np.full(1000, 2, np.int32),
                ids=ids.astype(np.int32),
                logprobs=logprobs,
            )

    for seed, name in enumerate(("a", "b")):
        with TraceWriter(tmp_path / name, HEADER) as writer:
            for document in long(seed):
                writer.append(document)
            writer.finish()
        assert (tmp_path / name).stat().st_size < 12_000_000
    tracemalloc.start()
    try:
        found = compare(read_trace(tmp_path / "a"), read_trace(tmp_path / "b"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.overall.tokens == 20_000
    # All of it would be 20 MB in arrays; one document with its temporaries is some 10.
    assert peak < 20_000_000
