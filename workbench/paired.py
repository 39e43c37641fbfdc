"""What pairing gives: the same samples on both sides, one entry each. Pure.

A sample that was asked several times is one entry, with the mean of its scores: repeats of one
sample are not independent of each other, and taking them for more samples would make every interval
too narrow. Whether two sides may be paired at all is `workbench.evidence`'s matter.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

from workbench.evaluation_records import SampleRow


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


@dataclass(frozen=True)
class Paired:
    """The same samples on both sides, sorted by id, every answer with a score from 0 to 1.

    Only what is shown and not judged (`pair` with `scored=False`) has answers without one.

    Attributes:
        baseline: what the reference answered.
        variant: what the variant answered.
        higher_is_better: False where a high score is damage, an error rate for instance.
    """

    baseline: tuple[Answers, ...]
    variant: tuple[Answers, ...]
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
        return [a.score for a in self.baseline], [a.score for a in self.variant]

    @property
    def outputs(self) -> tuple[list[str], list[str]]:
        """Baseline's and variant's outputs."""
        return [a.output for a in self.baseline], [a.output for a in self.variant]

    @property
    def clusters(self) -> tuple[str | None, ...]:
        """Each sample's cluster; None is independent of every other."""
        return tuple(a.cluster for a in self.baseline)

    @property
    def cluster_count(self) -> int | None:
        """Groups of samples that are independent of each other; None where the suite has none."""
        named = {c for c in self.clusters if c is not None}
        return len(named) + self.clusters.count(None) if named else None
