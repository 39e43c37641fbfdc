"""What must hold of the gate whatever the answers are: invariants of whole verdicts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
from builders import edit, evidence, rows, variant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from validity.simulate import gatekeeper
from validity.worlds import drawn

from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.records import Check, Gate, SampleRow
from workbench.spec import Policy, QualityCheck

#: Scores of the samples of a suite, and the cluster of each.
Pairs = list[tuple[float, float, str | None]]

RIGHT_WRONG = st.sampled_from([0.0, 1.0])
GRADED = st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 0.7, 1.0])
CLUSTER = st.sampled_from([None, "a", "b", "c"])
SEED = st.integers(0, 1000)
MARGIN = st.sampled_from([0.01, 0.05, 0.1, 0.3])


def exactly(
    score: st.SearchStrategy[float], cluster: st.SearchStrategy[str | None], n: int
) -> st.SearchStrategy[Pairs]:
    return st.lists(st.tuples(score, score, cluster), min_size=n, max_size=n)


def pairs(most: int = 60) -> st.SearchStrategy[Pairs]:
    """Right/wrong or graded, clustered or not; long lists as likely as short ones."""
    return st.one_of(
        st.integers(1, most).flatmap(partial(exactly, score, cluster))
        for score in (RIGHT_WRONG, GRADED)
        for cluster in (st.none(), CLUSTER)
    )


def side(
    scores: Sequence[float], clusters: Sequence[str | None], suite: str
) -> tuple[SampleRow, ...]:
    made = zip(rows(scores, suite=suite), clusters, strict=True)
    return tuple(row.model_copy(update={"cluster": cluster}) for row, cluster in made)


def built(suites: Mapping[str, Pairs]) -> Evidence:
    """A run with these suites, all rows there."""
    before, after = (
        {s: side([p[k] for p in of], [p[2] for p in of], s) for s, of in suites.items()}
        for k in (0, 1)
    )
    found = evidence({}, variant("fp8", after))
    return replace(found, baseline=variant("baseline", before, method="none"))


def judged(found: Evidence, margin: float) -> Gate:
    policy = Policy(
        schema_="workbench.policy/1",
        name="properties",
        quality=tuple(QualityCheck(suite=s, margin=margin, min_n=1) for s in found.baseline.rows),
    )
    return decide(policy, found, policy_digest="", id_="properties")


def quality(gate: Gate) -> Check:
    (check,) = (c for c in gate.variants[0].checks if c.kind == "quality")
    return check


# --------------------------------------------------------------------------- row order


@given(pairs(30), pairs(30), MARGIN, SEED)
def test_the_verdict_does_not_depend_on_the_order_of_rows(
    one: Pairs, other: Pairs, margin: float, seed: int
) -> None:
    dice = random.Random(seed)
    found = built({"one": one, "other": other})
    mixed = edit(found, rows={s: _shuffled(r, dice) for s, r in found.variants[0].rows.items()})
    mixed = replace(
        mixed,
        baseline=replace(
            mixed.baseline,
            rows={s: _shuffled(r, dice) for s, r in mixed.baseline.rows.items()},
        ),
    )
    assert judged(mixed, margin) == judged(found, margin)


def _shuffled(of: tuple[SampleRow, ...], dice: random.Random) -> tuple[SampleRow, ...]:
    return tuple(dice.sample(of, len(of)))


@given(pairs(40), MARGIN, SEED)
def test_nor_on_which_sample_fared_how(of: Pairs, margin: float, seed: int) -> None:
    """Other ids for the same pairs: which sample it was that changed is no matter."""
    one = quality(judged(built({"suite": of}), margin))
    mixed = random.Random(seed).sample(of, len(of))
    other = quality(judged(built({"suite": mixed}), margin))
    assert (one.status, one.n) == (other.status, other.n)
    for a, b in zip(
        (one.value, one.low, one.high), (other.value, other.low, other.high), strict=True
    ):
        assert a is not None and b is not None and abs(a - b) < 1e-12


# --------------------------------------------------------------------------- swapping sides


@given(pairs(), MARGIN)
def test_swapping_baseline_and_variant_mirrors_the_interval(of: Pairs, margin: float) -> None:
    one = quality(judged(built({"suite": of}), margin))
    other = quality(judged(built({"suite": [(b, a, c) for a, b, c in of]}), margin))
    assert one.value is not None and one.low is not None and one.high is not None
    # But for the last bit, which the order of a sum decides.
    mirrored = (-one.value, -one.high, -one.low)
    assert (other.value, other.low, other.high) == pytest.approx(mirrored, rel=1e-12, abs=1e-12)
    p = [c.details["mcnemar_p_different"] for c in (one, other)]
    assert p[0] == p[1]


# ---------------------------------------------------------------------- more of the same


@settings(max_examples=300)
@given(
    lost=st.integers(0, 12),
    gained=st.integers(0, 12),
    right=st.integers(0, 200),
    wrong=st.integers(0, 60),
    more=st.integers(1, 2000),
    margin=MARGIN,
)
def test_agreeing_pairs_never_turn_a_pass_into_a_fail(
    lost: int, gained: int, right: int, wrong: int, more: int, margin: float
) -> None:
    """Of answers right or wrong: the same pairs that differ among more that do not."""
    assume(lost + gained + right + wrong)

    def status(agreeing: int) -> tuple[str, float]:
        before = [1.0] * (lost + agreeing) + [0.0] * (gained + wrong)
        after = [0.0] * lost + [1.0] * (gained + agreeing) + [0.0] * wrong
        with gatekeeper(1, margin) as judge:
            (check,) = (c for c in judge([drawn(before, after)]).checks if c.kind == "quality")
        return check.status, check.value

    before, loss = status(right)
    after, diluted = status(right + more)
    assert abs(diluted) <= abs(loss)
    if before == "PASS":
        assert after == "PASS"


@settings(max_examples=60)
@given(pairs(40), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 400), MARGIN)
def test_nor_where_answers_are_graded_or_clustered(
    of: Pairs, score: float, more: int, margin: float
) -> None:
    before = quality(judged(built({"suite": of}), margin))
    agreeing: Pairs = [(score, score, None)] * more
    after = quality(judged(built({"suite": [*of, *agreeing]}), margin))
    if before.status == "PASS":
        assert after.status != "FAIL"


@settings(max_examples=60)
@given(
    table=st.tuples(*(st.integers(0, 25) for _ in range(4))),
    times=st.integers(2, 20),
    margin=MARGIN,
)
def test_more_samples_that_fare_alike_never_turn_a_pass_into_a_fail(
    table: tuple[int, int, int, int], times: int, margin: float
) -> None:
    """The same shares among more pairs: the interval closes in on the same loss."""
    assume(sum(table))
    right, lost, gained, wrong = table

    def check(k: int) -> Check:
        before = ([1.0] * (right + lost) + [0.0] * (gained + wrong)) * k
        after = ([1.0] * right + [0.0] * lost + [1.0] * gained + [0.0] * wrong) * k
        with gatekeeper(1, margin) as judge:
            (found,) = (c for c in judge([drawn(before, after)]).checks if c.kind == "quality")
        return found

    one, many = check(1), check(times)
    assert one.high is not None and many.high is not None
    assert many.high <= one.high + 1e-12
    if one.status == "PASS":
        assert many.status == "PASS"
    if one.status == "FAIL":
        assert many.status == "FAIL"
