"""Micro-F1: counted over all fields of all answers, judged by its own difference."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from builders import edit_row, evidence, rows, simple, variant
from hypothesis import given, settings
from hypothesis import strategies as st
from projects import edit_recipe
from scipy.special import betaincinv
from scipy.stats import t
from scoring import graded, suite_of
from suite_folders import GENERATE, JSON, SCHEMA, write
from test_gate import only, policy, quality

from workbench import noise, stats
from workbench.errors import SuiteError
from workbench.evaluate import summarize
from workbench.evaluation_records import COUNTS
from workbench.evidence import Evidence, VariantEvidence, pair
from workbench.gate import decide
from workbench.paired import Paired
from workbench.paired_bootstrap import bca
from workbench.pooled import Pooled, micro_f1, pooled_score
from workbench.quality_figures import QualityFigures, quality_figures
from workbench.records import Check, Evaluation, Gate, SampleRow
from workbench.report.html import render
from workbench.rows import read_rows, rows_digest
from workbench.scorers.base import f1
from workbench.store import read_record
from workbench.suites import load_suite
from workbench.sweep_rows import recovery

Count = tuple[int, int, int]


def counted(
    counts: Sequence[Count], clusters: Sequence[str] | None = None
) -> tuple[SampleRow, ...]:
    """Rows as the scorer of JSON fields leaves them: right, found and wanted of each answer."""
    made = rows([f1(*count) for count in counts], [f"{count}" for count in counts])
    names = clusters or [None] * len(made)
    return tuple(
        row.model_copy(update={"grade": {COUNTS: list(count)}, "cluster": name})
        for row, count, name in zip(made, counts, names, strict=True)
    )


def called(side: VariantEvidence, metric: str = "micro_f1") -> VariantEvidence:
    assert side.evaluation
    results = tuple(r.model_copy(update={"metric": metric}) for r in side.evaluation.suites)
    again = tuple(r.model_copy(update={"metric": metric}) for r in side.evaluation.repeat)
    update = {"suites": results, "repeat": again}
    return replace(side, evaluation=side.evaluation.model_copy(update=update))


def found(
    before: Sequence[Count],
    after: Sequence[Count],
    clusters: Sequence[str] | None = None,
    metric: str = "micro_f1",
) -> Evidence:
    """One suite, one variant, both with counts."""
    ours, theirs = counted(before, clusters), counted(after, clusters)
    made = evidence(
        {"suite": [r.score for r in ours]},
        variant("fp8", {"suite": theirs}),
        repeat={"suite": [r.score for r in theirs]},
    )
    baseline = replace(made.baseline, rows={"suite": ours})
    return replace(
        made,
        baseline=called(baseline, metric),
        variants=tuple(called(v, metric) for v in made.variants),
        repeat_rows={"suite": theirs},
    )


def figures(
    before: Sequence[Count], after: Sequence[Count], clusters: Sequence[str] | None = None
) -> QualityFigures:
    made = found(before, after, clusters)
    paired = pair(made, made.variants[0], "suite")
    assert isinstance(paired, Paired)
    return quality_figures(paired, 0.95)


SIDES = ("baseline", "bad")

#: Long documents lose most of their fields, short ones none.
LONG_LOST = ([(40, 40, 40)] * 8 + [(2, 2, 2)] * 92, [(4, 40, 40)] * 8 + [(2, 2, 2)] * 92)


# --------------------------------------------------------------------------- by hand


def test_micro_f1_by_hand() -> None:
    before, after = [(4, 4, 4), (1, 2, 4)], [(3, 4, 4), (0, 0, 4)]
    counts = Pooled(np.array(before, float), np.array(after, float))
    assert counts.scores == (10 / 14, 6 / 12)
    assert counts.loss == pytest.approx(10 / 14 - 1 / 2)
    ours, theirs = counts.linear
    # 5/7 + 2 (8 - 5/7 8) / 14 and 5/7 + 2 (2 - 5/7 6) / 14; 1/2 + 2 (6 - 4) / 12 ...
    assert ours.tolist() == pytest.approx([5 / 7 + 16 / 49, 5 / 7 - 16 / 49])
    assert theirs.tolist() == pytest.approx([1 / 2 + 1 / 3, 1 / 2 - 1 / 3])
    # Sizes 8 and 6 before, 8 and 4 after: sqrt((64 + 16) / 2) / 6.
    assert counts.weight == pytest.approx(40**0.5 / 6)
    assert pooled_score(counted(before)) == 10 / 14
    # All answers together: 8 right, so F is 16 / 26.
    f = 16 / 26
    assert counts.exchanged.tolist() == pytest.approx(
        [(8 - 8 * f) - (6 - 8 * f), 2 - 6 * f + 4 * f]
    )


def test_answers_of_equal_size_are_judged_as_their_mean_is() -> None:
    before, after = [(4, 4, 4)] * 50 + [(2, 4, 4)] * 10, [(4, 4, 4)] * 44 + [(2, 4, 4)] * 16
    counts = Pooled(np.array(before, float), np.array(after, float))
    mean = stats.paired_interval([f1(*c) for c in before], [f1(*c) for c in after])
    # 6 answers lost a half: 3 of 60 in whole ones.
    assert counts.weight == 1 and counts.loss == pytest.approx(mean.estimate) == 0.05
    assert counts.limits(0.95) == pytest.approx((mean.low, mean.high))
    # Many small gains and few great losses: Johnson's correction is in the upper limit.
    before, after = [(3, 4, 4)] * 30 + [(4, 4, 4)] * 30, [(4, 4, 4)] * 30 + [(0, 4, 4)] * 4
    leaning = Pooled(np.array(before, float), np.array(after + before[34:], float))
    high = stats.graded_interval([-0.25] * 30 + [1.0] * 4 + [0.0] * 26).high
    assert leaning.limits(0.95)[1] == pytest.approx(high)
    assert counts.variance == pytest.approx(stats.pair_variance([0.0] * 54 + [0.5] * 6))


@pytest.mark.parametrize(
    ("sides", "widest"),
    [
        (LONG_LOST, "formula"),
        (
            (
                [(20,) * 3] * 10 + [(2,) * 3] * 190,
                [(0, 0, 20)] * 3 + [(20,) * 3] * 7 + [(2,) * 3] * 190,
            ),
            "drawn",
        ),
    ],
)
def test_the_limits_hold_both_the_bootstrap_and_the_others(
    sides: tuple[list[Count], list[Count]], widest: str
) -> None:
    one, before, after = figures(*sides), *(np.array(side, float) for side in sides)
    drawn, counts = bca(before, after, micro_f1), Pooled(before, after)
    assert one.resampled == drawn and drawn.low is not None and drawn.high is not None
    low, high = counts.limits(0.95)
    assert one.loss.high == min(1, max(drawn.high, high)) == {"drawn": drawn.high}.get(widest, high)
    assert one.loss.low == min(drawn.low, low)
    assert one.loss.estimate == counts.loss
    lost = sum(ours != theirs for ours, theirs in zip(*sides, strict=True))
    assert (one.changed.right_to_wrong, one.changed.same) == (lost, len(before) - lost)
    assert one.variance == pytest.approx(counts.variance)


def test_each_limit_by_its_formula() -> None:
    """Long documents: 8 of 80 and 92 of 4 fields, found and wanted; on average 10.08."""
    before, after = [(40, 40, 40)] * 8 + [(2, 2, 2)] * 92, [(38, 40, 40)] * 8 + [(2, 2, 2)] * 92
    counts = Pooled(np.array(before, float), np.array(after, float))
    assert counts.loss == pytest.approx(32 / 1008)
    assert counts.weight == pytest.approx(((8 * 6400 + 92 * 16) / 100) ** 0.5 / 10.08)
    effective = 1008**2 / (8 * 6400 + 92 * 16)
    net = betaincinv(effective * 32 / 1008 + 1, effective * (1 - 32 / 1008), 0.95)
    assert counts.limits(0.95)[1] == pytest.approx(net), "few units count, so this is the widest"
    same = Pooled(counts.baseline, counts.baseline)
    padded = t.ppf(0.95, 101) * (2 * counts.weight**2 / 102 / 101) ** 0.5
    none = 1 - 0.05 ** (1 / effective)
    assert same.variance == pytest.approx(2 * counts.weight**2 / 102)
    assert same.limits(0.95) == pytest.approx((-max(none, padded), max(none, padded)))


def test_where_nothing_changes_the_limits_have_a_width() -> None:
    same = [(2, 2, 2)] * 30 + [(6, 6, 6)] * 30
    one = figures(same, same)
    assert one.loss.estimate == 0 and one.resampled is not None and one.resampled.low is None
    assert one.loss.high == pytest.approx(1 - 0.05 ** (1 / 48)), "of 60, 48 count"
    assert one.loss.low == -one.loss.high
    assert one.test.different == 1 and one.recovery.value == 1


def test_clusters_are_drawn_and_bounded_whole() -> None:
    names = [str(i // 4) for i in range(100)]
    before = [(8, 8, 8)] * 20 + [(4, 4, 4)] * 80
    after = [(4, 8, 8)] * 8 + before[8:]
    alone, whole = figures(before, after), figures(before, after, names)
    ours, theirs = np.array(before, float), np.array(after, float)
    grouped = Pooled(*(side.reshape(25, 4, 3).sum(axis=1) for side in (ours, theirs)))
    low, high = grouped.limits(0.95)
    drawn = bca(ours, theirs, micro_f1, clusters=names)
    assert whole.resampled == drawn and drawn.low is not None and drawn.high is not None
    assert whole.loss.high == pytest.approx(max(high, drawn.high, alone.loss.high))
    assert whole.loss.low == pytest.approx(min(low, drawn.low, alone.loss.low))
    assert whole.variance == pytest.approx(4 * grouped.variance)
    assert whole.loss.high > alone.loss.high and whole.loss.low < alone.loss.low
    assert whole.test.worse > alone.test.worse and "clusters" in whole.test.method


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.1])
def test_the_p_of_a_loss_beyond_the_margin_is_where_its_limit_meets_it(margin: float) -> None:
    before = [(8, 8, 8)] * 30 + [(3, 4, 4)] * 70
    after = [(3, 8, 8)] * 20 + before[20:]
    counts = Pooled(np.array(before, float), np.array(after, float))
    p = counts.beyond(margin)
    assert 0 < p < 0.1
    assert counts.limits(1 - p)[0] == pytest.approx(margin)
    assert counts.beyond(counts.loss) == 1


@pytest.mark.parametrize("seed", range(5))
def test_the_p_of_a_loss_is_that_of_all_exchanges_of_sides(seed: int) -> None:
    dice = np.random.default_rng(seed)
    wanted = dice.integers(1, 9, 7)
    sides = []
    for share in (0.9, 0.5):
        found = dice.integers(1, 9, 7)
        right = dice.binomial(np.minimum(found, wanted), share)
        sides.append(
            [(int(r), int(f), int(w)) for r, f, w in zip(right, found, wanted, strict=True)]
        )
    before, after = sides
    worse, loss = 0, Pooled(np.array(before, float), np.array(after, float)).loss
    for turned in range(2**7):
        exchanged = [
            (a, b) if turned >> i & 1 else (b, a)
            for i, (b, a) in enumerate(zip(before, after, strict=True))
        ]
        ours, theirs = (np.array(side, float) for side in zip(*exchanged, strict=True))
        worse += Pooled(ours, theirs).loss >= loss - 1e-12
    assert figures(before, after).test.worse == worse / 2**7


# --------------------------------------------------------------------------- properties

documents = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 6)).map(
    lambda c: (min(c), c[1], c[2])
)
pairs = st.lists(st.tuples(documents, documents), min_size=2, max_size=12)


@settings(max_examples=30)
@given(pairs, st.randoms())
def test_sides_mirror_and_order_does_not_matter(both: list[tuple[Count, Count]], dice: Any) -> None:
    before, after = zip(*both, strict=True)
    one, other = figures(before, after), figures(after, before)
    assert one.loss.estimate == -other.loss.estimate
    assert (one.loss.low, one.loss.high) == pytest.approx((-other.loss.high, -other.loss.low))
    assert -1 <= one.loss.low <= one.loss.estimate <= one.loss.high <= 1
    assert one.loss.low < one.loss.high
    dice.shuffle(both)
    again = figures(*zip(*both, strict=True))
    assert (again.loss.low, again.loss.high) == pytest.approx((one.loss.low, one.loss.high))
    assert again.test.worse == one.test.worse
    singles = figures(before, after, [str(i) for i in range(len(before))])
    limits = pytest.approx((one.loss.low, one.loss.high))
    assert (singles.loss.low, singles.loss.high) == limits


def _drawn(dice: np.random.Generator, n: int, *, rare: bool) -> tuple[Any, Any]:
    """One document in seven has 20 fields and loses: a third of what was right, or rarely all."""
    long = dice.random(n) < 1 / 7
    wanted = np.where(long, 20, dice.integers(1, 5, n))
    if rare:
        before = found = wanted
        found_after = after = np.where(long & (dice.random(n) < 0.1), 0, wanted)
    else:
        found = found_after = np.maximum(dice.binomial(wanted, 0.97), 1)
        before = dice.binomial(found, 0.92)
        after = dice.binomial(before, np.where(long, 0.65, 0.98))
    return (
        np.column_stack((before, found, wanted)).astype(float),
        np.column_stack((after, found_after, wanted)).astype(float),
    )


@pytest.mark.parametrize("rare", [False, True])
def test_the_interval_covers_the_loss_of_documents_of_any_length(rare: bool) -> None:
    dice = np.random.default_rng(11)
    truth = Pooled(*_drawn(dice, 400_000, rare=rare)).loss
    low = high = of_the_mean = of_the_bootstrap = 0
    for _ in range(200):
        sides = _drawn(dice, 60, rare=rare)
        before, after = ([(int(r), int(f), int(w)) for r, f, w in side] for side in sides)
        one = figures(before, after)
        low += one.loss.low <= truth
        high += truth <= one.loss.high
        scores = [[f1(*count) for count in side] for side in (before, after)]
        of_the_mean += truth <= stats.paired_interval(*scores).high
        assert one.resampled is not None
        of_the_bootstrap += truth <= (one.resampled.high or one.loss.estimate)
    # Each limit holds at 95 %; three standard errors of 200 runs are 4.6 points.
    assert min(low, high) >= (0.95 - 0.046) * 200
    if rare:
        assert of_the_bootstrap < 0.8 * 200, "what it is widened for"
    else:
        assert of_the_mean < 0.5 * 200, "the mean of the samples' own F1 is another figure"


# --------------------------------------------------------------------------- the gate


def test_a_loss_in_long_documents_fails_though_the_mean_would_pass() -> None:
    check = quality(margin=0.15)
    verdict, one = only(found(*LONG_LOST), check)
    assert (verdict, one.status) == ("NO-GO", "FAIL")
    assert one.value == pytest.approx(288 / 504) and one.n == 100
    assert one.sentence.startswith(
        "suite: the micro-F1 fell by 57.1 points, from 100.0 % to 42.9 %"
    )
    assert one.details["pooled"] == "micro_f1" and one.details["baseline_score"] == 1
    assert one.details["bootstrap"]["why"] == "BCa, 2000 draws of 100 units, seed 0"
    assert one.details["p_beyond_margin"] < 0.05 and one.details["p_holm"] < 0.05
    assert one.details["recovery"]["value"] == pytest.approx(216 / 504)
    before, after = ([f1(*count) for count in side] for side in LONG_LOST)
    verdict, mean = only(simple(before, after), check)
    assert (verdict, mean.status) == ("GO", "PASS") and mean.value == pytest.approx(0.072)


def test_a_margin_relative_to_the_score_and_a_policy_that_names_the_metric() -> None:
    before = [(8, 10, 10)] * 100 + [(1, 2, 2)] * 100
    after = [(7, 10, 10)] * 10 + before[10:]
    counts = Pooled(np.array(before, float), np.array(after, float))
    part = quality(margin=None, margin_relative=0.1, metric="micro_f1")
    _, one = only(found(before, after), part)
    assert one.status == "PASS" and "(10 % of what the baseline scores, " in one.sentence
    assert one.limit == pytest.approx(0.075), "of the micro-F1: the mean of the samples' is 65 %"
    assert one.details["baseline_score"] == pytest.approx(0.75)
    low, high = (0.075 + end for end in counts.limits(0.95, 0.1))
    _, plain = only(found(before, after), quality(margin=0.075))
    assert one.low is not None and one.high is not None and plain.low and plain.high
    assert one.high == pytest.approx(max(high, plain.high)) and high > plain.high
    assert one.low == pytest.approx(min(low, plain.low))
    _, other = only(found(before, after), quality(metric="accuracy"))
    assert other.status == "NOT COMPARABLE"
    assert "speaks of its accuracy, and it was scored by micro_f1" in other.sentence


def test_a_baseline_whose_metric_has_no_more_than_the_margin_to_lose_passes_nothing() -> None:
    poor = [(0, 40, 40)] * 10 + [(2, 2, 2)] * 90
    verdict, one = only(found(poor, poor), quality(margin=0.4))
    assert (verdict, one.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert "the baseline scores only 31.0 % on it" in one.sentence


def test_between_the_two_it_says_how_many_items_it_takes() -> None:
    before, after = [(6, 6, 6)] * 80, [(6, 6, 6)] * 64 + [(3, 6, 6)] * 16
    _, one = only(found(before, after), quality(margin=0.12))
    assert one.status == "INCONCLUSIVE" and one.details["items_needed"] > 80
    assert "items would settle it" in one.sentence


@pytest.mark.parametrize(
    "grade",
    [
        {},
        {COUNTS: [1, 2]},
        {COUNTS: [3, 2, 3]},
        {COUNTS: [0, 0, 0]},
        {COUNTS: [0.5, 1, 1]},
        {COUNTS: 1},
    ],
)
def test_an_answer_without_its_counts_is_missing(grade: dict[str, Any]) -> None:
    made = edit_row(found(*LONG_LOST), 5, grade=grade)
    verdict, one = only(made)
    assert (verdict, one.status) == ("INCONCLUSIVE", "MISSING")
    assert (
        "fp8: 1 of 100 answers have no count of fields, of which micro_f1 is made" in one.sentence
    )
    assert "'suite-005' first: workbench rescore counts them" in one.sentence


def test_an_answer_that_failed_is_missing() -> None:
    verdict, one = only(edit_row(found(*LONG_LOST), 5, score=None))
    assert (verdict, one.status) == ("INCONCLUSIVE", "MISSING")


def test_noise_and_the_spread_over_seeds_are_of_the_metric() -> None:
    made = found(*LONG_LOST)
    floor = noise.floor(made, "suite", made.baseline)
    assert floor is not None and floor["difference"] == pytest.approx(288 / 504)
    assert floor["churn"] == 0.08
    replica = called(variant("fp8-seed1", {"suite": counted(LONG_LOST[0])}))
    made = replace(made, replicas={"fp8": (replica,)})
    gate = decide(policy(quality()), made, policy_digest="p", id_="g")
    assert recovery(made, made.variants[0]) == pytest.approx(216 / 504)
    (spread,) = gate.sensitivity
    assert spread.scores == {"fp8": pytest.approx(216 / 504), "fp8-seed1": 1.0}


def test_the_report_shows_the_metric_and_says_what_it_is() -> None:
    made = found(*LONG_LOST)
    gate = decide(policy(quality()), made, policy_digest="p", id_="g")
    page = render(gate, made)
    assert '<th scope="row">suite<br><span class="muted">micro_f1</span></th>' in page
    assert "of the F1 over all fields of all answers" in page
    assert '<td class="n">100.0 %</td><td class="n">42.9 %</td>' in page
    plain = replace(made, variants=(replace(made.variants[0], evaluation=None),))
    assert "answers" in render(decide(policy(quality()), plain, policy_digest="p", id_="g"), plain)


# --------------------------------------------------------------------------- suite and rows


@pytest.mark.parametrize(
    ("output", "strict", "counts"),
    [
        ('{"n": 1, "m": 2}', False, [2, 2, 2]),
        ('{"n": 1}', False, [1, 1, 2]),
        ('{"n": 2, "m": 2, "x": 0}', False, [1, 3, 2]),
        ("{}", False, [0, 0, 2]),
        ("no JSON", False, [0, 0, 2]),
        ('{"n": "1", "m": 2}', False, [1, 2, 2]),
        ('{"n": "1", "m": 2}', True, [0, 0, 2]),
    ],
)
def test_the_scorer_counts_fields(output: str, strict: bool, counts: list[int]) -> None:
    scorer = {"name": "json_fields", "strict": strict}
    schema = {"properties": {"n": {"type": "integer"}}}
    suite = suite_of(scorer, metric="micro_f1", response_schema=schema)
    grade = graded(suite, {"n": 1, "m": 2}, output)
    assert grade.details[COUNTS] == counts
    assert grade.score == pytest.approx(f1(*counts))
    plain = suite_of(scorer, response_schema=schema)
    assert COUNTS not in graded(plain, {"n": 1, "m": 2}, output).details


def test_counts_are_in_the_digest_of_the_rows_and_in_the_score_of_the_suite() -> None:
    made = counted(LONG_LOST[1])
    edited = (made[0].model_copy(update={"grade": {COUNTS: [5, 40, 40]}}), *made[1:])
    assert rows_digest(made) != rows_digest(edited)
    other = (made[0].model_copy(update={"grade": {**made[0].grade, "why": "x"}}), *made[1:])
    assert rows_digest(made) == rows_digest(other)
    suite = suite_of("json_fields", metric="micro_f1")
    assert summarize(suite, made, conditions={}, rows_file="f").score == pytest.approx(216 / 504)
    mean = summarize(suite_of("json_fields"), made, conditions={}, rows_file="f").score
    assert mean == pytest.approx(0.92 + 0.08 * 0.1)
    lost = [made[0].model_copy(update={"score": None, "grade": {}, "error": "x"})]
    assert summarize(suite, lost, conditions={}, rows_file="f").score is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({**GENERATE, "metric": "micro_f1"}, "scorer 'contains' counts none"),
        ({**JSON, "metric": "micro-f1"}, "write 'metric: micro_f1'"),
        ({**JSON, "metric": "F1.micro"}, "write 'metric: micro_f1'"),
        ({**JSON, "metric": "micro_f1", "higher_is_better": False}, "is always better"),
    ],
)
def test_a_metric_that_would_be_called_wrongly_is_refused(
    spec: dict[str, Any], words: str, tmp_path: Path
) -> None:
    sample = {"id": "a", "question": "q", "target": {"n": 1} if "response_schema" in spec else "x"}
    with pytest.raises(SuiteError) as refused:
        load_suite(write(tmp_path / "mine", spec, sample))
    assert words in f"{refused.value}"
    good = {**JSON, "metric": "micro_f1", "response_schema": SCHEMA}
    assert load_suite(write(tmp_path / "mine", good, {**sample, "target": {"n": 1}})).samples


def test_from_suite_to_report(
    workbench: Callable[..., CompletedProcess[str]], project: Path
) -> None:
    suites = project / "eval_suites"
    shipped = suites.resolve()
    suites.unlink()
    shutil.copytree(shipped / "json_extract", suites / "json_extract")
    file = suites / "json_extract" / "suite.yaml"
    mean = file.read_text()
    pool = mean.replace("metric: accuracy", "metric: micro_f1")
    file.write_text(pool)
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\nquality: [{suite: json_extract, margin: 0.2}]\n"
    )
    edit_recipe(
        project,
        lambda r: r.update(
            variants=[{"name": "bad", "method": "fake", "damage": 0.6}],
            evaluate={"suites": ["json_extract"], "limit": 60, "noise_floor": False},
            profile=None,
            calibration=None,
            policy="policy.yaml",
        ),
    )
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr
    folder = project / "results" / "smoke"

    def judged() -> Check:
        gate = read_record(folder / "gate.json", Gate)
        (check,) = (c for c in gate.variants[0].checks if c.kind == "quality")
        return check

    names = [folder / "variants" / name / "eval" / "json_extract.jsonl" for name in SIDES]
    sides = [np.array([r.grade[COUNTS] for r in read_rows(path)], float) for path in names]
    first = judged()
    assert first.status == "FAIL" and first.details["pooled"] == "micro_f1"
    assert first.value == pytest.approx(Pooled(*sides).loss)
    evaluated = read_record(folder / "variants" / "bad" / "evaluation.json", Evaluation)
    assert evaluated.suites[0].score == pytest.approx(Pooled(*sides).scores[1])
    report = (folder / "report.html").read_text()
    assert '<span class="muted">micro_f1</span>' in report and "the micro-F1 fell by" in report
    # The same answers by their mean, and by the metric again: no model is asked.
    file.write_text(mean)
    assert workbench("rescore", "smoke").returncode == 10
    assert "pooled" not in judged().details and "the mean score fell by" in judged().sentence
    file.write_text(pool)
    assert workbench("rescore", "smoke").returncode == 10
    assert judged() == first


@pytest.mark.parametrize("written", [[0, 0, 0], [1, 2, 3], {"words": 3}, "three"])
def test_what_a_scorer_of_ones_own_calls_counts_is_no_metric(written: Any) -> None:
    asked = rows([1.0] * 40)
    odd = (asked[0].model_copy(update={"grade": {COUNTS: written}}), *asked[1:])
    for some in (
        odd,
        tuple(row.model_copy(update=odd[0].model_dump(include={"grade"})) for row in asked),
    ):
        baseline = variant("baseline", {"suite": some}, method="none")
        made = replace(evidence({}, variant("fp8", {"suite": some})), baseline=baseline)
        check = only(made)[1]
        assert check.status == "PASS" and "the mean score stayed at 100.0 %" in check.sentence
        assert "pooled" not in check.details
