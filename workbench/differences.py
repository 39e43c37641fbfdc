"""Baseline and variant answers side by side, worst first. Pure, but for `diff`, which reads a run.

A score says that something was lost; only the answers say what. Samples are paired exactly as the
gate pairs them, so what cannot be compared there is refused here too, with the same reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from workbench.errors import RecipeError, did_you_mean
from workbench.evidence import Evidence, VariantEvidence, pair
from workbench.paired import Answers, Paired

if TYPE_CHECKING:
    from workbench.context import Context

#: What became of a sample; `changed` is another answer with the same score, and `unscored` one of
#: which either side has no score: the request or the scorer failed.
Change = Literal["regressed", "improved", "changed", "same", "unscored"]
Only = Literal["regressed", "improved", "changed", "unscored"]

#: Suite -> sample id -> what was asked and what was expected.
Questions = Mapping[str, Mapping[str, tuple[str, str]]]


@dataclass(frozen=True)
class Difference:
    """One sample on both sides.

    Attributes:
        suite: its suite.
        change: what became of it.
        loss: baseline minus variant, so that more is worse whatever the metric's direction; 0 of
            an unscored one.
        question: what was asked; None where the suite is no longer the one that was asked.
        target: what was expected; None as above.
        baseline: what the reference answered.
        variant: what the variant answered.
    """

    suite: str
    change: Change
    loss: float
    question: str | None
    target: str | None
    baseline: Answers
    variant: Answers

    @property
    def id(self) -> str:
        """The sample's id."""
        return self.baseline.id


@dataclass(frozen=True)
class SuiteCount:
    """How many samples of a suite changed, and in which direction its scores are read."""

    suite: str
    n: int
    regressed: int
    improved: int
    changed: int
    higher_is_better: bool
    unscored: int = 0


@dataclass(frozen=True)
class Differences:
    """What differs between a variant and its reference. A table in a notebook and in a terminal.

    Attributes:
        run: name of the run.
        variant: name of the variant.
        reference: the unquantized variant it is paired with.
        only: the one kind that was asked for; None is all of them.
        items: worst first, unscored ones behind what regressed; those of one loss turn by turn of
            every suite, each in order of ids.
        counts: of each suite that could be paired, whatever `only` says.
        refused: suite -> why it could not be paired.
        limit: most items that are shown; the rest is counted.
    """

    run: str
    variant: str
    reference: str
    only: Only | None
    items: tuple[Difference, ...]
    counts: tuple[SuiteCount, ...]
    refused: Mapping[str, str]
    limit: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.items)

    @property
    def shown(self) -> tuple[Difference, ...]:
        """The items within the limit."""
        return self.items[: self.limit]

    def head(self, limit: int) -> Differences:
        """The same, showing so many items at most."""
        return replace(self, limit=limit)

    def _repr_html_(self) -> str:
        from workbench.report.differences import differences_html

        return differences_html(self)

    def __repr__(self) -> str:
        from workbench.report.differences import differences_text

        return differences_text(self)


def compare(
    evidence: Evidence,
    variant: VariantEvidence,
    *,
    suite: str = "",
    only: Only | None = None,
    questions: Questions | None = None,
) -> Differences:
    """Pair a variant with its reference and keep the samples that differ.

    Args:
        evidence: of the run.
        variant: one of its variants.
        suite: one suite alone; empty is all that were asked.
        only: one kind of difference alone.
        questions: what each sample asked and expected.
    """
    items: list[Difference] = []
    counts: list[SuiteCount] = []
    refused: dict[str, str] = {}
    for name in [suite] if suite else suites_of(evidence, variant):
        paired = pair(evidence, variant, name, scored=False)
        if not isinstance(paired, Paired):
            refused[name] = paired.sentence
            continue
        became = _became(paired)
        of = Counter(change for change, _ in became)
        counts.append(
            SuiteCount(
                suite=name,
                n=len(became),
                regressed=of["regressed"],
                improved=of["improved"],
                changed=of["changed"],
                higher_is_better=paired.higher_is_better,
                unscored=of["unscored"],
            )
        )
        wanted = {only} if only else {*of} - {"same"}
        numbers = [k for k, (change, _) in enumerate(became) if change in wanted]
        if not numbers:
            continue  # nobody's answers are read
        asked = (questions or {}).get(name, {})
        sides = (side.answers(numbers) for side in (paired.baseline, paired.variant))
        for k, before, after in zip(numbers, *sides, strict=True):
            (change, loss), (question, target) = became[k], asked.get(before.id, (None, None))
            items.append(Difference(name, change, loss, question, target, before, after))
    items = _in_turn(items)
    return Differences(
        run=evidence.run,
        variant=variant.variant,
        reference=variant.reference,
        only=only,
        items=tuple(items),
        counts=tuple(counts),
        refused=refused,
    )


def _in_turn(items: Iterable[Difference]) -> list[Difference]:
    """Worst first, and of equal losses one of each suite in turn, so that few show them all."""
    turns: Counter[tuple[float, bool, str]] = Counter()
    placed = []
    for item in sorted(items, key=lambda d: (-d.loss, d.suite, d.id)):
        known = item.change != "unscored"
        turn = turns[item.loss, known, item.suite]
        turns[item.loss, known, item.suite] += 1
        placed.append(((-item.loss, known, turn, item.suite), item))
    return [item for _, item in sorted(placed, key=lambda pair: pair[0])]


def change_of(loss: float, same_output: bool) -> Change:
    """The word for what became of a sample."""
    if loss:
        return "regressed" if loss > 0 else "improved"
    return "same" if same_output else "changed"


def suites_of(evidence: Evidence, variant: VariantEvidence) -> list[str]:
    """Suites that either side was asked, the reference's order first."""
    sides = (evidence.reference(variant), variant)
    return list(dict.fromkeys(r.suite for s in sides if s.evaluation for r in s.evaluation.suites))


def _became(paired: Paired) -> list[tuple[Change, float]]:
    """What became of each sample, and how much it lost."""
    unscored = zip(paired.baseline.unscored, paired.variant.unscored, strict=True)
    both = zip(unscored, *paired.scores, *paired.outputs, strict=True)
    return [
        ("unscored", 0.0) if any(without) else (change_of(good - now, said == says), good - now)
        for without, good, now, said, says in both
    ]


# --------------------------------------------------------------------------- of a run


def diff(
    run: str | Path | Context = "",
    variant: str = "",
    suite: str = "",
    only: Only | None = None,
) -> Differences:
    """Show what a variant answers otherwise than its reference.

    Args:
        run: name or folder of a run, or an opened one; empty is the last run.
        variant: one of the run's variants or replicas; empty is the first that lost answers, and
            the recipe's first where none has.
        suite: one suite alone; empty is all.
        only: ``regressed``, ``improved``, ``changed`` (another answer, the same score), or
            ``unscored`` (one side has no score).

    Raises:
        StoreError: there is no such run, or its records are damaged.
        RecipeError: the run has no such variant or suite, or `only` is none of the four.
    """
    from workbench.collect import collect, questions
    from workbench.context import opened

    if only is not None and only not in get_args(Only):
        raise RecipeError(
            f"there is no kind of difference '{only}'",
            where="only",
            fix=did_you_mean(only, get_args(Only)) + f"one of {', '.join(get_args(Only))}",
        )
    evidence = collect(opened(run))
    chosen = find_variant(evidence, variant or _first_that_lost(evidence, suite))
    known = suites_of(evidence, chosen)
    if suite and suite not in known:
        raise RecipeError(
            f"variant '{chosen.variant}' was not asked a suite '{suite}'",
            where=f"run '{evidence.run}'",
            fix=did_you_mean(suite, known) + f"suites: {', '.join(known) or 'none yet'}",
        )
    asked = questions(opened(run), evidence)
    return compare(evidence, chosen, suite=suite, only=only, questions=asked)


def _first_that_lost(evidence: Evidence, suite: str) -> str:
    for side in evidence.variants:
        if (not suite or suite in suites_of(evidence, side)) and len(
            compare(evidence, side, suite=suite, only="regressed")
        ):
            return side.variant
    return ""


def find_variant(evidence: Evidence, name: str) -> VariantEvidence:
    """A variant or replica of the run by name; empty is the first variant.

    Raises:
        RecipeError: the run has none of that name, or it is a reference.
    """
    replicas = [one for group in evidence.replicas.values() for one in group]
    sides = (*evidence.variants, *replicas)
    for side in sides:
        if side.variant == name or not name:
            return side
    if any(side.variant == name for side in evidence.unquantized):
        what = f"'{name}' is what the variants are compared with"
    else:
        what = f"the run has no variant '{name}'"
    names = [side.variant for side in sides]
    raise RecipeError(
        what,
        where=f"run '{evidence.run}'",
        fix=did_you_mean(name, names) + f"variants: {', '.join(names)}",
    )
