"""The record of a sealed calibration set, `calibration.json`. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workbench.base import Record
from workbench.digest import content_id

#: Lower ends of the bins token lengths are counted in; the last one is open.
LENGTH_BINS = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
#: Ids of dropped rows that are kept for each reason.
MOST_DROPPED_IDS = 20

OverlapKind = Literal["exact", "normalized", "contained", "ngram"]
#: What became of a sample, in words; see `workbench.contamination`.
SAID: dict[OverlapKind, str] = {
    "exact": "equal to a text",
    "normalized": "equal but for case and punctuation",
    "contained": "whole inside a row",
    "ngram": "sharing 13 words in a row",
}


class CalibrationPart(Record):
    """A stretch of one row inside a packed sample."""

    row: str = Field(description="id of the source row")
    text_digest: str = Field(description="of the whole rendered row")
    start: int = Field(description="first token of the row that is here, counted from 0")
    tokens: int


class CalibrationRow(Record):
    """One sample of a sealed set: a row of the source, or several packed into one."""

    row: str = Field(description="id of the source row; of a packed sample, pack-<number>")
    text_digest: str = Field(description="of the rendered text; of a packed sample, of its parts'")
    token_digest: str
    tokens: int
    truncated: bool
    parts: tuple[CalibrationPart, ...] = Field(
        (), description="what a packed sample is made of, end-of-sequence tokens between"
    )

    @property
    def source_rows(self) -> tuple[str, ...]:
        """Ids of the source rows it shows."""
        return tuple(part.row for part in self.parts) or (self.row,)


class Dropped(Record):
    """Rows of the source that were left out for one reason."""

    count: int
    rows: tuple[str, ...] = Field(description="ids of the first of them, 20 at most")


class Stratum(Record):
    """One value of the field a set is stratified by."""

    rows: int = Field(description="usable rows of the source")
    quota: float = Field(description="share of the samples")
    samples: int


class Strata(Record):
    """How a set is divided."""

    by: str
    values: dict[str, Stratum]


class Lengths(Record):
    """Histogram of token lengths. Bin i counts edges[i] <= length < edges[i + 1]."""

    edges: tuple[int, ...] = LENGTH_BINS
    rendered: tuple[int, ...] = Field(description="rows that were drawn, before cutting")
    sealed: tuple[int, ...] = Field(description="samples as they are in the set")


class OverlapPair(Record):
    """A suite's sample that stands in a row of the calibration source."""

    row: str
    sample: str
    kind: OverlapKind
    text: str = Field(description="what matched, shortened")


class Overlap(Record):
    """One evaluation suite compared with the calibration set."""

    suite: str
    suite_digest: str
    samples: int
    matched: dict[OverlapKind, int] = Field(
        description="samples by the strictest kind of match they have; samples without one missing"
    )
    short: int = Field(description="samples too short to be looked for but by equality")
    share: float = Field(
        description="of the samples: equal, or whole in a row; what the limit is about"
    )
    ngram_share: float = Field(description="of the samples: a shared n-gram and nothing stricter")
    pairs: tuple[OverlapPair, ...] = Field(description="the strictest first, 50 at most")


class Contamination(Record):
    """What the suites of a run share with its calibration set."""

    scope: Literal["sample", "source"]
    rows: int = Field(description="rows that were compared")
    limit: float
    ngram: int = Field(description="words; a Chinese or Japanese character is 0.65 of one")
    shortest: int = Field(4, description="words of a sample that is looked for inside a row")
    suites: tuple[Overlap, ...]


class Calibration(Record):
    """A sealed calibration set: what exactly the calibrated methods saw."""

    schema_: Literal["workbench.calibration/2"] = Field("workbench.calibration/2", alias="schema")
    id: str
    source: str = Field(description="as the recipe says it; of a hub dataset, name and file")
    source_revision: str | None = Field(None, description="commit of a hub dataset")
    source_digest: str = Field(description="sha256 of the file")
    source_rows: int = Field(description="rows of the file, blank lines apart")
    tokenizer_digest: str
    template_digest: str | None = Field(description="None where no template was applied")
    seed: int
    max_tokens: int
    min_tokens: int
    packing: Literal["truncate", "pack"]
    rows: tuple[CalibrationRow, ...]
    strata: Strata | None
    lengths: Lengths
    dropped: dict[str, Dropped] = Field(description="reason -> rows of the source")
    seal: str = Field(description="digest of all of the above but id and source, see seal_of")
    tokens_file: str = Field(description="token ids beside the record, one JSON list a line")
    contamination: Contamination | None = Field(
        None, description="in a run's own copy: what its suites share with the set"
    )

    @property
    def row_ids(self) -> frozenset[str]:
        """Ids of the source rows that are in the set."""
        return frozenset(row for sample in self.rows for row in sample.source_rows)


#: Not sealed: the step's id and the name a source goes by differ where the set is the same, and
#: the suites of a run are no part of it.
_UNSEALED = {"schema_", "id", "source", "seal", "tokens_file", "contamination"}


def seal_of(record: Calibration) -> str:
    """The digest a record should bear: equal on every machine where the inputs are."""
    return content_id(record.model_dump(mode="json", exclude=_UNSEALED))
