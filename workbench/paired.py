"""What pairing gives: the same samples on both sides, one entry each. Pure.

A sample that was asked several times is one entry, with the mean of its scores: repeats of one
sample are not independent of each other, and taking them for more samples would make every interval
too narrow. Whether two sides may be paired at all is `workbench.evidence`'s matter.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from workbench.asked import ASKING
from workbench.columns import Columns, StoredRows, bits
from workbench.evaluation_records import Flag, SampleRow
from workbench.records import CheckStatus

if TYPE_CHECKING:
    from workbench.columns import Floats


@dataclass(frozen=True)
class Answers:
    """One sample on one side: every time it was asked, the first one first."""

    rows: tuple[SampleRow, ...]

    @property
    def id(self) -> str:
        """The sample's id."""
        return self.rows[0].id

    @property
    def cluster(self) -> str | None:
        """What it is not independent of."""
        return self.rows[0].cluster

    @property
    def score(self) -> float:
        """Mean over the repeats, as the scorer gave it, 0 to 1; none of an `unscored` one."""
        return math.fsum(r.score or 0.0 for r in self.rows) / len(self.rows)

    @property
    def unscored(self) -> str:
        """Why an answer has no score: the first one's error; empty where all have one."""
        errors = (r.error or "no reason is recorded" for r in self.rows if r.score is None)
        return next(errors, "")

    @property
    def output(self) -> str:
        """The output; of several, one text that is equal where all of them are."""
        outputs = [r.output for r in self.rows]
        return outputs[0] if len(outputs) == 1 else json.dumps(outputs, ensure_ascii=False)

    @property
    def flags(self) -> dict[str, int]:
        """Flag -> how many of the repeats have it."""
        return dict(sorted(Counter(flag for r in self.rows for flag in r.flags).items()))

    @property
    def finish_reasons(self) -> str:
        """Each reason once."""
        return ", ".join(dict.fromkeys(r.finish_reason for r in self.rows if r.finish_reason))


class Side:
    """The samples of one side, sorted by id: columns, and the rows themselves for who wants to see.

    Iterating gives every sample's answers, as `answers` does.

    Args:
        columns: of the rows.
        rows: in any order.
        pooled: the suite's metric is made of counts that each row has.
    """

    def __init__(
        self, columns: Columns, rows: Sequence[SampleRow], *, pooled: bool = False
    ) -> None:
        self.columns = columns
        self.rows = rows
        self.pooled = pooled

    def __len__(self) -> int:
        return len(self.columns) if self.columns.starts is None else len(self.columns.starts)

    def __iter__(self) -> Iterator[Answers]:
        return iter(self.answers(range(len(self))))

    def answers(self, samples: Iterable[int]) -> list[Answers]:
        """What was answered to some samples, by their number; made anew each time."""
        columns = self.columns
        if columns.starts is None:
            groups = [[k] for k in samples]
        else:
            ends = [*columns.starts.tolist(), len(columns)]
            groups = [list(range(ends[k], ends[k + 1])) for k in samples]
        numbers = [k for group in groups for k in group]
        if columns.order is not None:
            numbers = columns.order[numbers].tolist()
        if isinstance(self.rows, StoredRows):
            left = iter(self.rows.chosen(numbers))
        else:
            left = iter([self.rows[k] for k in numbers])
        return [Answers(tuple(islice(left, len(group)))) for group in groups]

    @cached_property
    def scores(self) -> list[float]:
        """Mean over the repeats, as `Answers.score`."""
        import numpy as np

        rows = np.nan_to_num(self.columns.scores, nan=0.0) + 0.0  # no negative zero
        if self.columns.starts is None:
            return list(rows.tolist())
        return [math.fsum(of) / len(of) for of in self._samples(rows)]

    @property
    def outputs(self) -> list[bytes]:
        """Equal of two sides where every output of a sample is."""
        columns = self.columns
        if columns.starts is None:
            return list(columns.outputs.tolist())
        data, size = columns.outputs.tobytes(), columns.outputs.itemsize
        starts = [*(columns.starts * size).tolist(), len(data)]
        return [data[a:b] for a, b in pairwise(starts)]

    @property
    def clusters(self) -> tuple[str | None, ...]:
        """What each sample is not independent of."""
        named, starts = self.columns.clusters, self.columns.starts
        if named is None:
            return (None,) * len(self)
        return named if starts is None else tuple(named[k] for k in starts)

    @property
    def unscored(self) -> list[bool]:
        """Whether an answer of the sample has no score."""
        import numpy as np

        none = np.isnan(self.columns.scores)
        starts = self.columns.starts
        return list((none if starts is None else np.logical_or.reduceat(none, starts)).tolist())

    def having(self, flags: Iterable[Flag]) -> list[bool]:
        """Of each sample whether an answer has one of the flags."""
        import numpy as np

        found = (self.columns.flags & bits(flags)) != 0
        starts = self.columns.starts
        return list((found if starts is None else np.logical_or.reduceat(found, starts)).tolist())

    @property
    def uncounted(self) -> int:
        """Answers of which the server did not tell the tokens."""
        import numpy as np

        return int(np.isnan(self.columns.output_tokens).sum())

    @property
    def output_tokens(self) -> list[float]:
        """Of each sample, over the repeats."""
        if self.columns.starts is None:
            return list(self.columns.output_tokens.tolist())
        return [math.fsum(of) for of in self._samples(self.columns.output_tokens)]

    def _samples(self, values: Floats) -> Iterator[list[float]]:
        assert self.columns.starts is not None
        each = values.tolist()
        return (each[a:b] for a, b in pairwise([*self.columns.starts.tolist(), len(each)]))


@dataclass(frozen=True)
class Paired:
    """The same samples on both sides, sorted by id, every answer with a score from 0 to 1.

    Only what is shown and not judged (`pair` with `scored=False`) has answers without one.

    Attributes:
        baseline: what the reference answered.
        variant: what the variant answered.
        higher_is_better: False where a high score is damage, an error rate for instance.
    """

    baseline: Side
    variant: Side
    higher_is_better: bool = True

    @property
    def scores(self) -> tuple[list[float], list[float]]:
        """Baseline's and variant's scores as statistics want them: more is always better."""
        before, after = self.raw_scores
        if self.higher_is_better:
            return before, after
        return [1 - s for s in before], [1 - s for s in after]

    @property
    def raw_scores(self) -> tuple[list[float], list[float]]:
        """Baseline's and variant's scores as they are shown."""
        return self.baseline.scores, self.variant.scores

    @property
    def outputs(self) -> tuple[list[bytes], list[bytes]]:
        """Of each sample something that is equal on both sides where its outputs are."""
        return self.baseline.outputs, self.variant.outputs

    @property
    def clusters(self) -> tuple[str | None, ...]:
        """Each sample's cluster; None is independent of every other."""
        return self.baseline.clusters

    @property
    def cluster_count(self) -> int | None:
        """Groups of samples that are independent of each other; None where the suite has none."""
        named = {c for c in self.clusters if c is not None}
        return len(named) + self.clusters.count(None) if named else None


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be checked."""

    status: CheckStatus
    sentence: str


#: Rows of one side by id and repeat.
Rows = dict[tuple[str, int], SampleRow]

#: What must be equal for a row to pair with another's, in the order it is looked at.
_EQUAL = (
    ("prompt", "prompt_digest"),
    ("tokens", "tokens_digest"),
    ("target", "target_digest"),
    ("sampling parameters", "sampling_digest"),
    ("chat template", "template_digest"),
    ("tokenizer", "tokenizer_digest"),
    ("cluster", "cluster"),
)


#: What all rows of a suite have in common, or they were not asked in one go.
_ONE = (("chat template", "template_digest"), ("tokenizer", "tokenizer_digest"))


def pair_sides(before: Side, after: Side, higher_is_better: bool) -> Paired | Refusal:
    """Pair whole sides, or name the first thing that is not equal."""
    # Rows need not be alike to pair: they may lie in another order.
    if not before.columns.alike(after.columns):
        refusal = _unlike(*({(r.id, r.repeat): r for r in side.rows} for side in (before, after)))
        if refusal:
            return refusal
    return Paired(before, after, higher_is_better)


def _unlike(before: Rows, after: Rows) -> Refusal | None:
    odd = sorted(before.keys() ^ after.keys())
    if odd:
        named = (before.get(odd[0]) or after[odd[0]]).key
        return Refusal(
            "NOT COMPARABLE", f"asked of only one side: {len(odd)} samples, {named!r} first"
        )
    keys = sorted(before)
    for what, field_ in _EQUAL:
        other = [
            key
            for key in keys
            if _differ(field_, getattr(before[key], field_), getattr(after[key], field_))
        ]
        if other:
            return Refusal(
                "NOT COMPARABLE",
                f"{len(other)} of {len(keys)} samples have another {what}, "
                f"{before[other[0]].key!r} first",
            )
    for what, field_ in _ONE:
        several = {getattr(row, field_) for row in before.values()}
        if len(several) > 1:
            return Refusal(
                "NOT COMPARABLE",
                f"the samples were asked with {len(several)} {what}s: that is not one measurement",
            )
    return None


def _differ(field_: str, one: str | None, other: str | None) -> bool:
    # Not every server tells the tokens it made; the prompt's text was compared all the same.
    unknown = field_ == "tokens_digest" and (one is None or other is None)
    return one != other and not unknown


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Name the first key, in sorted order, whose value differs, with both values."""
    for key in sorted({*one, *other}):
        if key not in one or key not in other or one[key] != other[key]:
            if key == ASKING and key in one and key in other:
                return (
                    "suite.yaml asks otherwise (its prompt, system, sampling, max_tokens or tools)"
                )
            return f"{key} is {one.get(key, 'absent')!r} and {other.get(key, 'absent')!r}"
    return None
