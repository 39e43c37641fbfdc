"""What a verdict rests on, and whether two results may be paired at all. Pure.

`pair` is where most wrong numbers of this field die: it refuses to compare rows that were asked
another prompt, under other conditions, of other weights, or that were not all answered. It returns
the refusal as data, so that the gate can show it.

The unit is the sample: rows pair by id and repeat, and `workbench.paired` counts a sample once,
however often it was asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.base import BASELINE
from workbench.columns import columns_of
from workbench.paired import Answers as Answers
from workbench.paired import Paired as Paired
from workbench.paired import Refusal as Refusal
from workbench.paired import Side, first_difference, pair_sides
from workbench.pooled import POOLED, uncounted
from workbench.records import (
    Checkpoint,
    Divergence,
    Evaluation,
    Manifest,
    Profile,
    SampleRow,
    Serving,
    SuiteResult,
)
from workbench.words import shortened


@dataclass(frozen=True)
class VariantEvidence:
    """The records of one variant; what was not made is None or absent.

    Attributes:
        variant: its name.
        method: quantization method, "none" for the baseline.
        manifest: the produced checkpoint.
        evaluation: suites asked of it.
        rows: suite name -> its rows, in any order; of a run, `workbench.columns.StoredRows`, so
            that only those somebody looks at are read.
        profile: latency and memory.
        reference: name of the unquantized variant it is paired with, which the same engine serves.
        repeat_rows: suite -> rows of the second pass (A/A) of a further reference.
        divergence: its distributions against its reference's; only shown.
        stale: kinds of steps whose record is there and no evidence: what it rests on has changed.
    """

    variant: str
    method: str
    manifest: Manifest | None = None
    evaluation: Evaluation | None = None
    rows: Mapping[str, Sequence[SampleRow]] = field(default_factory=dict)
    profile: Profile | None = None
    reference: str = BASELINE
    repeat_rows: Mapping[str, Sequence[SampleRow]] = field(default_factory=dict)
    divergence: Divergence | None = None
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Every record of one run that the gate and the report read.

    Attributes:
        run: name of the run.
        recipe: name of the recipe.
        recipe_digest: of the recipe as it was resolved.
        checkpoint: the unquantized checkpoint.
        baseline: its evaluation and profile.
        variants: the others, in the recipe's order.
        repeat_rows: suite -> rows of the baseline's second pass (A/A).
        replicas: variant -> the same made with other calibration seeds.
        references: the checkpoint unquantized for another engine (a GGUF file for llama.cpp).
        doubts: what a reader must know of the records themselves.
        unfinished: names of the steps, the gate's aside, that left no record yet, in their order.
        across: where two runs of the same weights are compared, the earlier one, whose sides are
            then the references; empty where variants are paired with unquantized ones.
        apart: then, variant -> which of its files is another one in the earlier run.
    """

    run: str
    recipe: str
    recipe_digest: str
    checkpoint: Checkpoint
    baseline: VariantEvidence
    variants: tuple[VariantEvidence, ...]
    repeat_rows: Mapping[str, Sequence[SampleRow]] = field(default_factory=dict)
    replicas: Mapping[str, tuple[VariantEvidence, ...]] = field(default_factory=dict)
    references: tuple[VariantEvidence, ...] = ()
    doubts: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    across: str = ""
    apart: Mapping[str, str] = field(default_factory=dict)
    #: What was paired already, with the side it is of: several checks ask for each pairing.
    _paired: dict[tuple[int, str, str], tuple[VariantEvidence, Paired | Refusal]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(
        self, side: VariantEvidence, suite: str, how: str, make: Callable[[], Paired | Refusal]
    ) -> Paired | Refusal:
        """A pairing, made the first time that it is asked for."""
        # The side is kept with it: another one could be given the id of one that is gone.
        key = (id(side), suite, how)
        if key not in self._paired:
            self._paired[key] = (side, make())
        return self._paired[key][1]

    @property
    def unquantized(self) -> tuple[VariantEvidence, ...]:
        """The baseline, and the checkpoint unquantized for other engines."""
        return (self.baseline, *self.references)

    @property
    def sides(self) -> tuple[VariantEvidence, ...]:
        """Everything that was served: the unquantized ones first, then the variants."""
        return (*self.unquantized, *self.variants)

    def reference(self, variant: VariantEvidence) -> VariantEvidence:
        """What a variant is paired with; empty where the run has no such reference."""
        for side in self.unquantized:
            if side.variant == variant.reference:
                return side
        return VariantEvidence(variant.reference, "none")

    def second_pass(self, reference: VariantEvidence) -> Mapping[str, Sequence[SampleRow]]:
        """Suite -> rows of the second time a reference was asked."""
        return self.repeat_rows if reference is self.baseline else reference.repeat_rows


def weights_of(evidence: Evidence, variant: VariantEvidence) -> str | None:
    """Digest of the weights a variant's verdict is about, None where they were not made."""
    if variant is evidence.baseline:
        return evidence.checkpoint.weights_digest
    return variant.manifest.weights_digest if variant.manifest else None


def wrong_weights(evidence: Evidence, variant: VariantEvidence, serving: Serving) -> Refusal | None:
    """Refuse a measurement that was not made on the weights the verdict is about."""
    weights = weights_of(evidence, variant)
    if weights is None:
        return missing(variant, "quantize", "has no manifest, so its weights are unknown")
    source = variant.manifest.inputs.get("checkpoint") if variant.manifest else None
    if variant is not evidence.baseline and source != evidence.checkpoint.weights_digest:
        return Refusal(
            "NOT COMPARABLE",
            f"{variant.variant} was made of another checkpoint ({_short(source)}) "
            f"than this run's ({_short(evidence.checkpoint.weights_digest)})",
        )
    # Losses against a broken reference would flatter; a variant's own files have their own check.
    reference = any(variant is one for one in evidence.references)
    made = variant.manifest.artifact if variant.manifest else None
    if reference and made and (broken := made.having("FAIL")):
        return Refusal(
            "NOT COMPARABLE",
            f"the files of {variant.variant} are not what they should be "
            f"({broken[0].name}: {broken[0].sentence.rstrip('.')})",
        )
    stands_for = serving.twin_of if serving.lane.name == "emulated" else serving.served_digest
    if stands_for != weights:
        return Refusal(
            "NOT COMPARABLE",
            f"{variant.variant} was measured on other weights ({_short(stands_for)}) "
            f"than the ones to be released ({_short(weights)})",
        )
    return None


_MADE = {"quantize": "checkpoint", "evaluate": "evaluation", "profile": "profile"}


def missing(side: VariantEvidence, kind: str, said: str) -> Refusal:
    """Why a record is not there: never made, or made before recipe, suite or checkpoint changed.

    Args:
        side: whose record.
        kind: of the step that makes it.
        said: what is said, after its name, of a side that never had one.
    """
    if kind not in side.stale:
        return Refusal("MISSING", f"{side.variant} {said}")
    return Refusal(
        "MISSING",
        f"the {_MADE[kind]} of {side.variant} is of an older recipe, suite or checkpoint: "
        "workbench run makes it again",
    )


def _short(digest: str | None) -> str:
    return digest[:8] if digest else "none recorded"


def suite_result(evidence: VariantEvidence, suite: str) -> SuiteResult | None:
    """The one result of a suite; None where there is none, or several."""
    return _one(evidence.evaluation.suites if evidence.evaluation else (), suite)


def _one(results: Iterable[SuiteResult], suite: str) -> SuiteResult | None:
    found = [r for r in results if r.suite == suite]
    return found[0] if len(found) == 1 else None


def _conditions(evaluation: Evaluation, result: SuiteResult) -> dict[str, Any]:
    # The engine and the dtype count whether or not whoever wrote `conditions` thought of them.
    serving = evaluation.serving
    return {
        **result.conditions,
        "engine": serving.engine,
        "engine_version": serving.engine_version,
        "dtype": serving.dtype.value,
        "suite_digest": result.suite_digest,
        "source": result.source,
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "repeats": result.repeats,
    }


#: Conditions that two runs of the same weights may differ in: they are what is asked about.
MAY_DIFFER = ("engine_version", "hardware")


def alike(evidence: Evidence, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """What of the conditions must be equal."""
    aside = MAY_DIFFER if evidence.across else ()
    return {key: value for key, value in conditions.items() if key not in aside}


def not_the_same(
    evidence: Evidence, variant: VariantEvidence, measured: Evaluation | Profile | None
) -> Refusal | None:
    """Across two runs: refuse other weights, and one measurement that both runs hold.

    Args:
        evidence: of one run, which is never refused, or of two.
        variant: of the later run.
        measured: the reference's, of the same kind as is judged of the variant.
    """
    if not evidence.across:
        return None
    reference = evidence.reference(variant)
    one, other = (weights_of(evidence, side) for side in (reference, variant))
    if one and other and one != other:
        return Refusal(
            "NOT COMPARABLE",
            f"the weights differ: {_short(one)} are {reference.variant}'s, {_short(other)} this "
            "run's",
        )
    if variant.variant in evidence.apart:
        return Refusal("NOT COMPARABLE", f"the files differ: {evidence.apart[variant.variant]}")
    mine = variant.profile if isinstance(measured, Profile) else variant.evaluation
    if measured and mine and _measuring(measured) == _measuring(mine):
        kind = "profile" if isinstance(measured, Profile) else "evaluate"
        return Refusal(
            "NOT COMPARABLE",
            "both runs hold one and the same measurement: nothing was asked twice (workbench run "
            f"RECIPE --run OTHER --force {kind} asks again)",
        )
    return None


def _measuring(record: Evaluation | Profile) -> dict[str, Any]:
    # Start-up and duration are measured, so two servers never agree in all of it.
    return record.model_dump(include={"serving", "seconds", "finished"})


def pair(
    evidence: Evidence, variant: VariantEvidence, suite: str, *, scored: bool = True
) -> Paired | Refusal:
    """Pair a variant's rows of one suite with its reference's, or say why that cannot be done.

    Args:
        evidence: of the run.
        variant: one of its variants.
        suite: which one.
        scored: refuse where an answer has no score; False is to show answers, never to judge.
    """
    how = "scored" if scored else "shown"
    return evidence.once(variant, suite, how, lambda: _pair(evidence, variant, suite, scored))


def _pair(
    evidence: Evidence, variant: VariantEvidence, suite: str, scored: bool
) -> Paired | Refusal:
    sides: list[Side] = []
    conditions: list[dict[str, Any]] = []
    reference = evidence.reference(variant)
    if refusal := not_the_same(evidence, variant, reference.evaluation):
        return refusal
    for side in (reference, variant):
        result = suite_result(side, suite)
        found = _side_of(evidence, side, result, side.rows.get(suite, ()), scored)
        if isinstance(found, Refusal):
            return found
        assert side.evaluation is not None and result is not None
        sides.append(found)
        conditions.append(_conditions(side.evaluation, result))
    asked = [alike(evidence, one) for one in conditions]
    difference = first_difference(*asked)
    if difference:
        return Refusal("NOT COMPARABLE", f"the conditions differ: {difference}")
    before, after = sides
    return pair_sides(before, after, conditions[0]["higher_is_better"])


def _side_of(
    evidence: Evidence,
    side: VariantEvidence,
    result: SuiteResult | None,
    rows: Sequence[SampleRow],
    scored: bool = True,
) -> Side | Refusal:
    """The rows of one side, when they are whole and of the right weights."""
    name = side.variant
    if side.evaluation is None:
        return missing(side, "evaluate", "was not evaluated")
    if result is None:
        return Refusal("MISSING", f"{name} has no result on it")
    if side.evaluation.variant != name:
        return Refusal("NOT COMPARABLE", f"the record of {name} is of {side.evaluation.variant}")
    wrong = wrong_weights(evidence, side, side.evaluation.serving)
    if wrong:
        return wrong
    if result.unavailable:
        return Refusal("MISSING", f"{name} cannot be asked it: {result.unavailable}")
    if not rows or len(rows) != result.n:
        return Refusal("MISSING", f"{name} has {len(rows)} rows of {result.n} samples")
    columns = columns_of(rows)
    # Of a pooled metric every row's counts are looked at, too.
    pooled = result.metric in POOLED
    sound = columns.sound(result.repeats) and not pooled
    refusal = None if sound else _unsound(name, result, rows, scored)
    return refusal or Side(columns, rows, pooled=pooled)


def _unsound(
    name: str, result: SuiteResult, rows: Sequence[SampleRow], scored: bool
) -> Refusal | None:
    """The first thing that is the matter with the rows of a side."""
    found = {(row.id, row.repeat): row for row in rows}
    if len(found) != len(rows):
        twice = sorted(k for k, count in Counter(r.key for r in rows).items() if count > 1)
        return Refusal("NOT COMPARABLE", f"{name} has sample {twice[0]!r} more than once")
    failed = sorted(r.key for r in rows if r.score is None or not math.isfinite(r.score))
    if failed and scored:
        said = f"{len(failed)} of {len(rows)} samples of {name} have no score, {failed[0]!r} first"
        why = next((r.error for r in rows if r.key == failed[0] and r.error), "")
        return Refusal("MISSING", f"{said}; {shortened(why)}" if why else said)
    outside = sorted(r.key for r in rows if r.score is not None and not 0 <= r.score <= 1)
    if outside:
        return Refusal("NOT COMPARABLE", f"{name} has a score outside 0 to 1 on {outside[0]!r}")
    if scored and result.source == "suite" and (why := uncounted(result.metric, rows)):
        return Refusal("MISSING", f"{name}: {why}")
    wanted = range(result.repeats)
    for id_ in dict.fromkeys(row.id for row in rows):
        if any((id_, k) not in found for k in wanted):
            return Refusal(
                "MISSING", f"{name} was not asked {id_!r} all of the {result.repeats} times"
            )
    return None


def pair_repeat(
    evidence: Evidence, suite: str, reference: VariantEvidence | None = None
) -> Paired | Refusal:
    """Pair a reference's second pass with its first: what differs there is noise.

    Args:
        evidence: of the run.
        suite: which one.
        reference: an unquantized variant of the run; default is the baseline.
    """
    side = reference or evidence.baseline
    return evidence.once(side, suite, "repeat", lambda: _pair_repeat(evidence, suite, side))


def _pair_repeat(evidence: Evidence, suite: str, side: VariantEvidence) -> Paired | Refusal:
    asked = side.evaluation
    results = [suite_result(side, suite), _one(asked.repeat if asked else (), suite)]
    first = _side_of(evidence, side, results[0], side.rows.get(suite, ()))
    if isinstance(first, Refusal):
        return first
    again = evidence.second_pass(side).get(suite, ())
    second = _side_of(evidence, side, results[1], again) if again else None
    if second is None or isinstance(second, Refusal):
        return Refusal("MISSING", f"{side.variant} was not asked twice, or not answered twice")
    difference = first_difference(*(_conditions(asked, r) for r in results if asked and r))
    if difference:
        return Refusal("NOT COMPARABLE", f"the conditions of the two passes differ: {difference}")
    assert results[0] is not None
    return pair_sides(first, second, results[0].higher_is_better)
