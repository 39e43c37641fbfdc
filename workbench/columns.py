"""The rows of one suite on one side as columns: a few bytes a row of what the gate compares.

As an object a row takes kilobytes and ten microseconds, and of a million of them a verdict looks at
a few numbers each. So a file is read once, some hundred lines at a time, and held against its
digest in the same pass. Lines that are exactly as the workbench writes them are taken apart at
once; where one is not, the strict parser (`workbench.rows.parse`) reads it, and its word counts.

Two sides pair where the digest of what they say of their questions is the same. That, and that
nothing is the matter with the rows, is all that is known here: what the matter is, say the rows
themselves (`workbench.evidence`, `workbench.paired`), which `StoredRows` reads again from the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import msgspec
import orjson

from workbench.digest import canonical_json
from workbench.errors import StoreError
from workbench.evaluation_records import Flag, SampleRow
from workbench.rows import IDENTITY, RowsDigest, counts_said, parse, read_rows, rows_digest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: Lines taken apart at once: what they become fits in a core's cache, and takes half the time.
_AT_ONCE = 128
#: Bytes that tell one output from another.
_OUTPUT = 16
_FLAGS = get_args(Flag)
_BIT = {flag: 1 << number for number, flag in enumerate(_FLAGS)}
_WANTED = (
    *("id", "repeat", *IDENTITY, "tokens_digest", "output", "score"),
    *("error", "flags", "output_tokens", "grade"),
)
#: What must be equal for rows to pair.
_ASKED = ("id", "repeat", *IDENTITY, "tokens_digest")
_WANTED_OF = attrgetter(*_WANTED)
#: Column by name, of some rows.
_Chunk = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Columns:
    """Rows of one suite on one side, one entry a row, sorted by id and repeat.

    Attributes:
        identity: digest of what each row says of its question, tokens aside, in the file's order.
        tokens: digest of the digests of the prompts' tokens; empty where no row tells it.
        uniform: all rows have one chat template and one tokenizer.
        distinct: no two rows have one key.
        repeats: how often each sample was asked, where it was all of 0, 1, ... of them; else 0.
        starts: first row of each sample; None where every row is a sample.
        scores: 0 to 1; NaN where there is none.
        outputs: digest of each output.
        flags: see `bits`.
        output_tokens: NaN where the server told none.
        counted: some row has the counts that a pooled metric is made of.
        clusters: of each row; None where no row has one.
        order: number of each row in the file; None where they are sorted there.
        digest: of the rows, as `workbench.rows.rows_digest` makes it; empty where nobody needs it.
    """

    identity: str
    tokens: str
    uniform: bool
    distinct: bool
    repeats: int
    starts: Ints | None
    scores: Floats
    outputs: NDArray[np.bytes_]
    flags: NDArray[np.uint32]
    output_tokens: Floats
    counted: bool
    clusters: tuple[str | None, ...] | None
    order: Ints | None = None
    digest: str = ""

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def told_tokens(self) -> float:
        """Output tokens of all rows, of those that tell theirs."""
        import numpy as np

        return float(np.nansum(self.output_tokens))

    def sound(self, repeats: int) -> bool:
        """Every sample is there so many times, once each, with a score from 0 to 1."""
        within = (self.scores >= 0) & (self.scores <= 1)  # NaN is not
        return self.distinct and self.repeats == repeats and bool(within.all())

    def alike(self, other: Columns) -> bool:
        """Surely the same questions in the same order; False where one has to look closer."""
        known = self.tokens and other.tokens
        same_tokens = self.tokens == other.tokens or not known
        return self.uniform and self.identity == other.identity and same_tokens


def bits(flags: Iterable[Flag]) -> int:
    """Flags as `Columns.flags` holds them, one bit each."""
    return sum(_BIT[flag] for flag in {*flags})


class StoredRows(Sequence[SampleRow]):
    """The rows of a file: columns in memory, and each row read again when somebody looks at it.

    Args:
        path: the file.
        columns: of it.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path = path
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[SampleRow]:
        return iter(self._read())

    @overload
    def __getitem__(self, index: int) -> SampleRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SampleRow, ...]: ...
    def __getitem__(self, index: int | slice) -> SampleRow | tuple[SampleRow, ...]:
        return self._read()[index]

    def chosen(self, numbers: Iterable[int]) -> list[SampleRow]:
        """Some of the rows, by their number in the file.

        Raises:
            StoreError: the file is no longer the one that was read.
        """
        self._unchanged(read_columns(self.path).digest)
        lines = self.path.read_bytes().split(b"\n")
        return [parse(lines[number]) for number in numbers]

    def _read(self) -> tuple[SampleRow, ...]:
        rows = read_rows(self.path)
        self._unchanged(rows_digest(rows))
        return rows

    def _unchanged(self, digest: str) -> None:
        if digest != self.columns.digest:
            raise StoreError(
                "these rows changed while they were being read",
                where=str(self.path),
                fix="give the command again when nothing else writes to the run",
            )


def columns_of(rows: Sequence[SampleRow]) -> Columns:
    """The columns of rows, wherever they are."""
    return rows.columns if isinstance(rows, StoredRows) else _columns(_of_rows(rows))


def read_columns(path: Path) -> Columns:
    """The columns of a finished file, and its digest.

    Raises:
        StoreError: as of `workbench.rows.read_rows`.
    """
    digest = RowsDigest()
    try:
        found = _columns(_of_file(path, digest))
        if found.distinct:
            return replace(found, digest=digest.hexdigest())
    except (ValueError, FileNotFoundError):
        pass
    rows = read_rows(path)  # it says what is wrong, and where
    return replace(columns_of(rows), digest=rows_digest(rows))


# --------------------------------------------------------------------------- some rows at a time


def _of_rows(rows: Iterable[SampleRow]) -> Iterator[_Chunk]:
    left = iter(rows)
    while some := list(islice(left, _AT_ONCE)):
        yield _chunk(some)


def _chunk(rows: Sequence[Any]) -> _Chunk:
    return dict(zip(_WANTED, zip(*map(_WANTED_OF, rows), strict=True), strict=True))


def _of_file(path: Path, digest: RowsDigest) -> Iterator[_Chunk]:
    """Columns of the lines of a file, whose digest is made on the way.

    Raises:
        ValueError: a line is not a row, or has a number that no digest is made of.
    """
    with path.open("rb") as file:
        while lines := list(islice(file, _AT_ONCE)):
            chunk = _plain(lines)
            if chunk is None:
                rows = [parse(line.removesuffix(b"\n")) for line in lines]
                chunk = _chunk(rows)
            fine = [error is None for error in chunk["error"]]
            said = [chunk[name] for name in _WANTED[: _WANTED.index("error")]]
            rows_said = list(zip(*said, fine, chunk["flags"], strict=True))
            counts = list(map(counts_said, chunk["grade"]))
            if any(counts):
                rows_said = [(*row, *more) for row, more in zip(rows_said, counts, strict=True)]
            digest.update(rows_said, chunk["score"])
            yield chunk


#: A row as the workbench writes it: each field is there, and of its type.
_Line = msgspec.defstruct(
    "_Line",
    [(name, field.annotation) for name, field in SampleRow.model_fields.items()],
    forbid_unknown_fields=True,
    gc=False,  # nothing in it refers back to it
)
_line = msgspec.json.Decoder(_Line).decode


def _plain(lines: list[bytes]) -> _Chunk | None:
    """Columns of lines that are exactly as rows are written; None where one of them is not."""
    try:
        return _chunk(list(map(_line, lines)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# --------------------------------------------------------------------------- all of them


def _columns(chunks: Iterable[_Chunk]) -> Columns:
    import numpy as np

    asked, tokens, told = hashlib.sha256(), hashlib.sha256(), False
    ids: list[str] = []
    repeats: list[int] = []
    clusters: list[str | None] = []
    names: dict[str | None, str | None] = {}
    common: set[Any] = set()
    scores, outputs, flags, lengths = [], [], [], []
    counted = False
    for chunk in chunks:
        n = len(chunk["id"])
        said = {name: _folded(chunk[name]) for name in _ASKED}
        token = said.pop("tokens_digest")
        told = told or token is not None
        tokens.update(_json([n, token]))
        asked.update(_json([n, *said.values()]))
        common.add((said["template_digest"], said["tokenizer_digest"]))
        ids += chunk["id"]
        repeats += chunk["repeat"]
        clusters += [names.setdefault(name, name) for name in chunk["cluster"]]
        scores.append(np.array(chunk["score"], np.float64))  # of None it makes NaN
        outputs.append(np.frombuffer(_digests(chunk["output"]), "S32").astype(f"S{_OUTPUT}"))
        flags.append(np.array([bits(some) if some else 0 for some in chunk["flags"]], np.uint32))
        lengths.append(_lengths(chunk["output_tokens"]))
        counted = counted or any(map(counts_said, chunk["grade"]))
    distinct, whole, order, starts = _order(ids, repeats)
    empty = np.zeros(0)

    def arranged(values: NDArray[Any]) -> NDArray[Any]:
        return values if order is None else values[order]

    named = clusters if order is None else [clusters[k] for k in order.tolist()]
    return Columns(
        identity=asked.hexdigest(),
        tokens=tokens.hexdigest() if told else "",
        uniform=len(common) <= 1 and not any(isinstance(one, tuple) for one in chain(*common)),
        distinct=distinct,
        repeats=whole,
        starts=starts,
        scores=arranged(np.concatenate([empty, *scores])),
        outputs=arranged(np.concatenate([empty.astype(f"S{_OUTPUT}"), *outputs])),
        flags=arranged(np.concatenate([empty.astype(np.uint32), *flags])),
        output_tokens=arranged(np.concatenate([empty, *lengths])),
        counted=counted,
        clusters=tuple(named) if names.keys() - {None} else None,
        order=order,
    )


def _order(
    ids: Sequence[str], repeats: Sequence[int]
) -> tuple[bool, int, Ints | None, Ints | None]:
    """Are keys distinct; how often was each sample asked; order, None as it is; samples' starts."""
    import numpy as np

    n, rows = len(ids), range(len(ids))
    if not any(repeats) and len(set(ids)) == n:
        if sorted(ids) == ids:
            return True, 1, None, None
        return True, 1, np.array(sorted(rows, key=ids.__getitem__), np.int64), None
    pairs = list(zip(ids, repeats, strict=True))
    keys = {id_ if not repeat else f"{id_}#{repeat}" for id_, repeat in pairs}
    order = sorted(rows, key=pairs.__getitem__)
    starts = [k for k in rows if k == 0 or pairs[order[k]][0] != pairs[order[k - 1]][0]]
    times = n // len(starts) if starts else 0
    whole = [k % times for k in rows] == [repeats[k] for k in order] if starts else False
    whole = whole and starts == list(range(0, n, times))
    arrays = np.array(order, np.int64), np.array(starts, np.int64)
    return len(keys) == n, times if whole else 0, *arrays


def _folded(column: tuple[Any, ...]) -> Any:
    """A column, or its one value."""
    return column[0] if column.count(column[0]) == len(column) else column


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # half characters, numbers of more than 64 bits
        return canonical_json(value)


def _digests(texts: Iterable[str]) -> bytes:
    """32 bytes a text."""
    sha = hashlib.sha256
    try:
        return b"".join([sha(text.encode()).digest() for text in texts])
    except UnicodeEncodeError:  # half characters
        return b"".join([sha(text.encode("utf-8", "surrogatepass")).digest() for text in texts])


def _lengths(tokens: Sequence[int | None]) -> Floats:
    import numpy as np

    try:
        return np.array(tokens, np.float64)
    except OverflowError:  # more than any float
        most = 1 << 1000
        cut = [t if t is None else max(-most, min(t, most)) for t in tokens]
        return np.array(cut, np.float64)
