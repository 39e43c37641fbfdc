"""The gate: what passes, what fails, and above all what must never pass."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import (
    EMULATED,
    artifact,
    edit,
    edit_row,
    evidence,
    point,
    profile,
    rows,
    serving,
    simple,
    suite_result,
    table,
    variant,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.artifact_records import Artifact, ArtifactCheck, ArtifactStatus
from workbench.checks import HARDLY
from workbench.digest import sha256_text
from workbench.evidence import Evidence
from workbench.gate import decide, timings_aside
from workbench.items import said, unpadded
from workbench.records import Check, Gate, VariantVerdict
from workbench.spec import PerformanceCheck, Policy, QualityCheck, SizeCheck
from workbench.stats import binary_interval, items_needed, pair_variance
from workbench.store import dump_record, read_record, write_record

TTFT = PerformanceCheck(metric="ttft_ms_p50", workload="short", concurrency=8, max_ratio=1.2)


def quality(**changes: Any) -> QualityCheck:
    return QualityCheck(**({"suite": "suite", "margin": 0.1} | changes))


def policy(*checks: QualityCheck | PerformanceCheck | SizeCheck) -> Policy:
    return Policy(
        schema_="workbench.policy/1",
        name="test",
        quality=tuple(c for c in checks if isinstance(c, QualityCheck)),
        performance=tuple(c for c in checks if isinstance(c, PerformanceCheck)),
        size=tuple(c for c in checks if isinstance(c, SizeCheck)),
    )


def quality_policy(found: Evidence) -> Policy:
    """Every suite of the baseline, gated at the default margin."""
    return policy(*(quality(suite=suite) for suite in found.baseline.rows))


def judge(found: Evidence, *checks: QualityCheck | PerformanceCheck | SizeCheck) -> VariantVerdict:
    gate = decide(policy(*checks), found, policy_digest="policy", id_="gate")
    assert len(gate.variants) == 1
    return gate.variants[0]


def only(
    found: Evidence, check: QualityCheck | PerformanceCheck | SizeCheck | None = None
) -> tuple[str, Check]:
    asks = check or quality()
    # Nothing is GO without a gated check of quality.
    beside = [] if isinstance(asks, QualityCheck) else [quality()]
    verdict = judge(found, *beside, asks)
    aside = {"artifact", "quality"} if beside else {"artifact"}
    asked = [c for c in verdict.checks if c.kind not in aside]
    assert len(asked) == 1
    return verdict.verdict, asked[0]


# --------------------------------------------------------------------------- quality


def test_an_undamaged_variant_passes_and_the_sentence_says_by_how_much() -> None:
    verdict, check = only(simple(*table(60, 2, 2, 16)))
    assert (verdict, check.status) == ("GO", "PASS")
    assert check.value == 0
    assert check.n == 80
    assert check.low is not None and check.high is not None
    assert check.low < 0 < check.high < 0.1
    assert check.sentence == (
        "suite: the mean score stayed at 77.5 % over 80 paired samples; with "
        "95 % confidence the loss is at most 5.8 points, within the 10.0 accepted."
    )


def test_a_critical_suite_that_no_check_gates_stands_beside_the_verdict() -> None:
    """A GO for a small file says nothing of what was lost on a suite nobody gated."""
    found = simple(*table(30, 40, 0, 10))
    size = SizeCheck(metric="weight_bytes", max_ratio=1000)
    advisory = quality(tier="advisory")
    for checks in ((size,), (size, advisory)):
        gate = decide(policy(*checks), found, policy_digest="policy", id_="gate")
        assert any("'suite': critical by its own" in text for text in gate.warnings)
    gate = decide(policy(size, quality()), found, policy_digest="policy", id_="gate")
    assert not gate.warnings


def test_a_broken_variant_fails() -> None:
    verdict, check = only(simple(*table(30, 40, 0, 10)))
    assert (verdict, check.status) == ("NO-GO", "FAIL")
    assert check.low is not None and check.low > 0.1
    assert check.sentence.startswith("suite: the mean score fell by 50.0 points, from 87.5 %")


def test_two_one_sided_limits_are_not_called_one_interval() -> None:
    """Each of them holds with 95 % confidence, both at once with 90 %."""
    _, check = only(simple(*table(60, 8, 2, 10)))
    loss = binary_interval(8, 2, 80)
    assert (
        f"the loss is at least {100 * loss.low:.1f} and at most {100 * loss.high:.1f} points, each "
        "with 95 % confidence, so 10.0 is neither kept nor broken"
    ) in check.sentence
    assert "between" not in check.sentence


def test_between_the_two_it_says_how_many_items_it_takes() -> None:
    verdict, check = only(simple(*table(60, 8, 2, 10)))
    assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    moved = [1.0] * 8 + [-1.0] * 2 + [0.0] * 70
    alone = unpadded(pair_variance(moved), 80)
    assert check.details["items_needed"] == items_needed(0.075, alone, 0.1) == 1197
    assert check.sentence.endswith(
        ": about 1,200 items would settle it as PASS in four of five cases, if the true loss is "
        "the one seen."
    )


def test_what_more_items_would_probably_show_is_said_to_be_a_fail() -> None:
    """A variant that lost twice what is accepted is not helped by more items."""
    found = simple(*table(48, 14, 1, 17))
    verdict, check = only(found)
    assert (verdict, check.details["settles_as"]) == ("INCONCLUSIVE", "FAIL")
    needed = said(check.details["items_needed"], 80)
    assert f"about {needed} items would settle it as FAIL in four of five cases" in check.sentence
    reason = judge(found, quality()).reason
    assert f"(about {needed} items instead of 80 would probably settle it as FAIL)" in reason


@pytest.mark.parametrize(
    ("needed", "n", "words"),
    [
        *((296, 80, "300"), (231, 88, "240"), (240, 88, "240"), (90, 88, "90"), (60, 88, "89")),
        *((60, 100, "110"), (1938, 88, "2,000"), (9990, 500, "10,000"), (19_001, 500, "20,000")),
    ],
)
def test_a_number_of_items_has_two_digits_and_is_more_than_there_were(
    needed: int, n: int, words: str
) -> None:
    assert said(needed, n) == words


@pytest.mark.parametrize(
    ("n", "lost", "hardly"),
    [
        (80, 6, False),
        (80, 7, False),  # 3,190 items
        (110, 10, True),  # more than 50 times as many
        (400, 37, False),  # 9,733
        (6000, 570, False),  # 21,338: not four times as many
        (6000, 576, True),  # 33,653: more than 20,000 more
    ],
)
def test_what_would_take_far_more_items_than_there_are_is_said_to_be_out_of_reach(
    n: int, lost: int, hardly: bool
) -> None:
    found = simple(*table(n - lost - n // 10, lost, 0, n // 10))
    verdict, check = only(found)
    assert verdict == "INCONCLUSIVE"
    assert (check.details["items_needed"] is None) == hardly
    assert (HARDLY in check.sentence) == (HARDLY in judge(found, quality()).reason) == hardly


@pytest.mark.parametrize(
    "counts",
    [
        (60, 8, 0, 12),  # loses exactly 0.1
        (41, 17, 8, 22),  # loses 0.102: a third of a million items would tell it from 0.1
    ],
)
def test_a_loss_on_the_margin_is_said_to_be_out_of_reach(counts: tuple[int, int, int, int]) -> None:
    _, check = only(simple(*table(*counts)))
    assert check.status == "INCONCLUSIVE"
    assert check.details["items_needed"] is None
    assert "more items would hardly settle it" in check.sentence


def test_limits_are_compared_unrounded() -> None:
    found = simple(*table(60, 2, 2, 16))
    high = only(found)[1].high
    assert high is not None
    assert only(found, quality(margin=high))[1].status == "PASS"
    verdict, check = only(found, quality(margin=high - 1e-6))
    assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    low = only(simple(*table(30, 40, 0, 10)))[1].low
    assert low is not None
    # Equal to the margin is not beyond it.
    assert only(simple(*table(30, 40, 0, 10)), quality(margin=low))[1].status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("right", "wrong"), [(80, 0), (40, 40), (20, 60)], ids=["all right", "half", "a quarter"]
)
def test_no_discordant_pair_is_not_a_zero_width(right: int, wrong: int) -> None:
    _, check = only(simple(*table(right, 0, 0, wrong)))
    assert check.status == "PASS"
    assert check.high is not None and check.high > 0.03
    # The same rows cannot settle a margin finer than what they could have shown.
    _, fine = only(simple(*table(right, 0, 0, wrong)), quality(margin=0.02))
    assert fine.status == "INCONCLUSIVE"


def test_a_baseline_at_zero_cannot_show_a_loss() -> None:
    verdict, check = only(simple(*table(0, 0, 0, 80)))
    assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert "the baseline scores 0 on it" in check.sentence
    verdict, check = only(simple(*table(8, 0, 0, 72)))  # 10 %, so at most 10 points to lose
    assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert "scores only 10.0 % on it" in check.sentence


def test_a_variant_that_answers_all_wrongly_fails() -> None:
    assert only(simple(*table(0, 80, 0, 0)))[1].status == "FAIL"


def test_too_few_samples_are_never_enough() -> None:
    few = simple(*table(29, 0, 0, 0))
    verdict, check = only(few, quality(margin=0.5))
    assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert "the policy wants at least 30" in check.sentence
    assert only(few, quality(margin=0.5, min_n=29))[1].status == "PASS"


def _capped(found: Evidence, samples: int) -> Evidence:
    evaluation = found.variants[0].evaluation
    assert evaluation
    suites = tuple(s.model_copy(update={"samples": samples}) for s in evaluation.suites)
    return edit(found, evaluation=evaluation.model_copy(update={"suites": suites}))


def test_too_few_samples_are_not_said_to_show_a_loss_near_the_margin() -> None:
    found = simple([1.0] * 100, [1.0] * 100)
    said = "it would take far more samples to settle it"
    few = judge(found, quality(margin=0.0005))
    assert said in few.checks[-1].sentence and f"({said})" in few.reason
    asked = tuple(
        row.model_copy(update={"cluster": f"c{k % 4}"}) for k, row in enumerate(rows([1.0] * 100))
    )
    baseline = variant("baseline", {"suite": asked}, method="none")
    clustered = replace(evidence({}, variant("fp8", {"suite": asked})), baseline=baseline)
    said = "it would take far more clusters of samples (there are 4) to settle it"
    few = judge(clustered, quality())
    assert few.verdict == "INCONCLUSIVE"
    assert said in few.checks[-1].sentence and f"({said})" in few.reason


@pytest.mark.parametrize(
    ("found", "matter"),
    [
        (simple(*table(20, 0, 0, 0)), "20 samples, 30 wanted"),
        (
            _capped(simple(*table(20, 0, 0, 0)), 88),
            "20 samples, 30 wanted (evaluate.limit asked 20 of the suite's 88)",
        ),
        (simple(*table(60, 8, 0, 12)), HARDLY),
        (
            simple([0.0] * 80, [0.0] * 80),
            "the baseline scores 0 on it, so no loss beyond 10.0 points could show",
        ),
        (edit(simple([1.0] * 80, [1.0] * 80), evaluation=None), "missing: fp8 was not evaluated"),
    ],
)
def test_the_reason_says_what_is_the_matter(found: Evidence, matter: str) -> None:
    assert judge(found, quality()).reason == (
        f"1 of 2 gated checks is not settled: suite ({matter})."
    )


@pytest.mark.parametrize(
    ("kind", "check", "what"),
    [("evaluate", quality(), "evaluation"), ("profile", TTFT, "profile")],
)
def test_a_record_of_an_older_recipe_is_not_called_missing_work(
    kind: str, check: QualityCheck | PerformanceCheck, what: str
) -> None:
    found = simple([1.0] * 80, [1.0] * 80)
    gone = replace(found.baseline, evaluation=None, profile=None)
    assert "was not" in judge(replace(found, baseline=gone), check).reason
    older = replace(found, baseline=replace(gone, stale=(kind,)))
    verdict = judge(older, check)
    assert verdict.verdict == "INCONCLUSIVE"
    assert f"the {what} of baseline is of an older recipe, suite or checkpoint" in verdict.reason


def test_a_limit_is_named_where_more_items_would_help() -> None:
    found = _capped(simple(*table(60, 8, 2, 10)), 300)
    asked = "(evaluate.limit asked 80 of the suite's 300)"
    assert f"would probably settle it as PASS {asked})" in judge(found, quality()).reason
    assert f"if the true loss is the one seen {asked}." in only(found)[1].sentence
    assert "limit" not in only(_capped(found, 80))[1].sentence


def test_a_reason_is_cut_where_a_check_has_much_to_say() -> None:
    odd = edit_row(simple([1.0] * 80, [1.0] * 80), 0, id="a" * 500)
    assert len(judge(odd, quality()).reason) < 260 and judge(odd, quality()).reason.endswith("…).")


def test_few_requests_are_said_so() -> None:
    found = simple([1.0] * 80, [1.0] * 80)
    measured = found.variants[0].profile
    assert measured
    few = tuple(p.model_copy(update={"completed": 4}) for p in measured.points)
    few_requests = edit(found, profile=measured.model_copy(update={"points": few}))
    assert "(fp8 completed 4 requests, fewer than 8)" in judge(few_requests, TTFT).reason


def test_graded_scores_are_judged_too() -> None:
    before = [1.0, 0.75, 0.5, 1.0] * 20
    _, check = only(simple(before, before))
    assert check.status == "PASS" and check.high is not None and check.high > 0.02
    assert "Student" in check.details["method"]
    assert only(simple(before, [s / 3 for s in before]))[1].status == "FAIL"


def test_confidence_is_used() -> None:
    found = simple(*table(60, 3, 1, 16))
    narrow, wide = (only(found, quality(confidence=c))[1] for c in (0.8, 0.99))
    assert narrow.high is not None and wide.high is not None and narrow.high < wide.high


def test_churn_by_direction_and_mcnemar_are_beside_it() -> None:
    before, after = table(50, 6, 1, 23)
    changed = list(rows(after))
    changed[70] = changed[70].model_copy(update={"output": "another wrong answer"})
    _, check = only(edit(simple(before, after), rows={"suite": tuple(changed)}))
    assert check.details["churn"] == {
        "n": 80,
        "same": 72,
        "right_to_wrong": 6,
        "wrong_to_right": 1,
        "wrong_to_different_wrong": 1,
    }
    assert check.details["mcnemar_p_worse"] == pytest.approx(8 / 128)
    assert check.details["mcnemar_p_different"] == pytest.approx(16 / 128)


# --------------------------------------------------------------------------- what is not a pass

GOOD = table(60, 1, 1, 18)


def _without(found: Evidence, keep: int) -> Evidence:
    short = found.variants[0].rows["suite"][:keep]
    evaluation = found.variants[0].evaluation
    assert evaluation
    result = suite_result("suite", short)
    return edit(
        found,
        rows={"suite": short},
        evaluation=evaluation.model_copy(update={"suites": (result,)}),
    )


def _evaluation(found: Evidence, **changes: Any) -> Evidence:
    evaluation = found.variants[0].evaluation
    assert evaluation
    return edit(found, evaluation=evaluation.model_copy(update=changes))


def _result(found: Evidence, **changes: Any) -> Evidence:
    evaluation = found.variants[0].evaluation
    assert evaluation
    return _evaluation(found, suites=(evaluation.suites[0].model_copy(update=changes),))


def _twice(found: Evidence) -> Evidence:
    old = found.variants[0].rows["suite"]
    return edit(found, rows={"suite": (*old[:-1], old[0])})


def _served(found: Evidence, **changes: Any) -> Evidence:
    evaluation = found.variants[0].evaluation
    assert evaluation
    return _evaluation(found, serving=evaluation.serving.model_copy(update=changes))


def _halfway(found: Evidence) -> Evidence:
    half = rows([1.0] * 40 + [None] * 40)
    return _result(edit(found, rows={"suite": half}), failed=40)


def _baseline_failed(found: Evidence) -> Evidence:
    before = list(found.baseline.rows["suite"])
    before[7] = before[7].model_copy(update={"score": None, "error": "timed out"})
    return replace(found, baseline=replace(found.baseline, rows={"suite": tuple(before)}))


CLOSED: dict[str, tuple[Callable[[Evidence], Evidence], str, str]] = {
    "not evaluated": (lambda e: edit(e, evaluation=None), "MISSING", "fp8 was not evaluated"),
    "baseline not evaluated": (
        lambda e: replace(e, baseline=replace(e.baseline, evaluation=None)),
        "MISSING",
        "baseline was not evaluated",
    ),
    "suite not asked": (lambda e: _evaluation(e, suites=()), "MISSING", "no result on it"),
    "no rows": (lambda e: edit(e, rows={}), "MISSING", "0 rows of 80 samples"),
    "rows cut short": (
        lambda e: edit(e, rows={"suite": e.variants[0].rows["suite"][:79]}),
        "MISSING",
        "79 rows of 80 samples",
    ),
    "a missing sample": (
        lambda e: _without(e, 79),
        "NOT COMPARABLE",
        "asked of only one side: 1 samples, 'suite-079' first",
    ),
    "one sample failed": (
        lambda e: edit_row(e, 3, score=None),
        "MISSING",
        "1 of 80 samples of fp8 have no score, 'suite-003' first",
    ),
    "NaN": (lambda e: edit_row(e, 3, score=float("nan")), "MISSING", "1 of 80 samples of fp8"),
    "score of 2": (
        lambda e: edit_row(e, 3, score=2.0),
        "NOT COMPARABLE",
        "a score outside 0 to 1 on 'suite-003'",
    ),
    "server answered half": (_halfway, "MISSING", "40 of 80 samples of fp8 have no score"),
    "baseline failed once": (
        _baseline_failed,
        "MISSING",
        "1 of 80 samples of baseline have no score, 'suite-007' first; timed out",
    ),
    "another prompt": (
        lambda e: edit_row(e, 5, prompt_digest=sha256_text("no chat template")),
        "NOT COMPARABLE",
        "1 of 80 samples have another prompt, 'suite-005' first",
    ),
    "another target": (
        lambda e: edit_row(e, 5, target_digest=sha256_text("x")),
        "NOT COMPARABLE",
        "1 of 80 samples have another target, 'suite-005' first",
    ),
    "another id": (
        lambda e: edit_row(e, 5, id="new"),
        "NOT COMPARABLE",
        "asked of only one side: 2 samples",
    ),
    "a sample twice": (_twice, "NOT COMPARABLE", "has sample 'suite-000' more than once"),
    "other conditions": (
        lambda e: _result(e, conditions={"engine": "fake", "dtype": "float32", "concurrency": 8}),
        "NOT COMPARABLE",
        "the conditions differ: concurrency is 16 and 8",
    ),
    "a condition is absent": (
        lambda e: _result(e, conditions={"engine": "fake", "dtype": "float32"}),
        "NOT COMPARABLE",
        "concurrency is 16 and 'absent'",
    ),
    "another suite version": (
        lambda e: _result(e, suite_digest="new"),
        "NOT COMPARABLE",
        "the conditions differ: suite_digest",
    ),
    "another engine version": (
        lambda e: _served(e, engine_version="0.33.0"),
        "NOT COMPARABLE",
        "engine_version is '0.32.0' and '0.33.0'",
    ),
    "other weights were served": (
        lambda e: _served(e, served_digest=sha256_text("older")),
        "NOT COMPARABLE",
        "measured on other weights",
    ),
    "a twin of other weights": (
        lambda e: _served(e, lane=EMULATED, twin_of=sha256_text("older")),
        "NOT COMPARABLE",
        "measured on other weights",
    ),
    "no manifest": (lambda e: edit(e, manifest=None), "MISSING", "has no manifest"),
    "the record of another": (
        lambda e: _evaluation(e, variant="gptq"),
        "NOT COMPARABLE",
        "the record of fp8 is of gptq",
    ),
}


@pytest.mark.parametrize("case", CLOSED)
def test_it_fails_closed(case: str) -> None:
    spoil, status, words = CLOSED[case]
    sound = simple(*GOOD)
    assert only(sound)[0] == "GO"
    verdict, check = only(spoil(sound))
    assert (verdict, check.status) == ("INCONCLUSIVE", status)
    assert words in check.sentence
    assert check.value is None


def test_nothing_gated_is_never_go() -> None:
    found = simple(*GOOD)
    assert judge(found).verdict == "INCONCLUSIVE"
    assert judge(found).reason == (
        "nothing is gated: the policy has no critical or supporting check."
    )
    assert judge(found, quality(tier="advisory")).verdict == "INCONCLUSIVE"


def test_a_suite_the_recipe_does_not_ask_is_missing() -> None:
    verdict = judge(simple(*GOOD), quality(), quality(suite="sentimant"))
    assert verdict.verdict == "INCONCLUSIVE"
    assert [c.status for c in verdict.checks] == ["PASS", "PASS", "MISSING"]
    assert verdict.reason == (
        "1 of 3 gated checks is not settled: sentimant (missing: baseline has no result on it)."
    )


def test_no_variant_is_inconclusive() -> None:
    gate = decide(policy(quality()), evidence({"suite": [1.0]}), policy_digest="p", id_="g")
    assert gate.variants == () and gate.verdict == "INCONCLUSIVE"


def test_a_fail_outweighs_what_is_not_settled_and_advice_does_not_count() -> None:
    bad = simple(*table(30, 40, 0, 10))
    verdict = judge(bad, quality(), quality(suite="other"))
    assert verdict.verdict == "NO-GO"
    assert verdict.reason == ("1 of 3 gated checks fails: suite (lost 50.0 points, 10.0 accepted).")
    (before, after), (whole, same) = table(30, 40, 0, 10), table(62, 0, 0, 18)
    both = evidence(
        {"suite": before, "fine": whole},
        variant("fp8", {"suite": rows(after), "fine": rows(same, suite="fine")}),
    )
    advised = judge(both, quality(tier="advisory"), quality(suite="fine"))
    assert advised.verdict == "GO"
    assert "advisory and not gated: suite fails" in advised.reason
    assert judge(both, quality(tier="supporting"), quality(suite="fine")).verdict == "NO-GO"


def test_size_and_speed_alone_are_never_go() -> None:
    wrong = simple([1.0] * 100, [0.0] * 100)
    fast = TTFT.model_copy(update={"max_ratio": 9.0})
    for checks in ([SizeCheck(max_ratio=0.9)], [SizeCheck(max_ratio=0.9), fast]):
        for advice in ([], [quality(tier="advisory")]):
            verdict = judge(wrong, *checks, *advice)
            assert {c.status for c in verdict.checks if c.tier != "advisory"} == {"PASS"}
            assert (verdict.verdict, verdict.reason) == (
                "INCONCLUSIVE",
                "no quality check is gated: size and speed alone do not show that it may ship.",
            )
    # Nor are limits of what an answer looks like, of a suite whose score is advice.
    looks = quality(tier="advisory", max_truncated=0.2)
    assert judge(wrong, looks, SizeCheck(max_ratio=0.9)).verdict == "INCONCLUSIVE"
    # What fails still fails.
    assert judge(wrong, SizeCheck(max_ratio=0.1)).verdict == "NO-GO"


# --------------------------------------------------------------------------- performance, size


def _points(found: Evidence, **changes: Any) -> Evidence:
    old = found.variants[0].profile
    assert old
    points = (point(concurrency=1), point(concurrency=8, **changes))
    return edit(found, profile=old.model_copy(update={"points": points}))


def test_a_ratio_to_the_baseline() -> None:
    found = simple(*GOOD)
    verdict, check = only(found, TTFT)
    assert (verdict, check.status, check.value) == ("GO", "PASS", 1.0)
    assert "single run of 16 requests" in check.sentence
    assert only(_points(found, ttft_ms_p50=960.0), TTFT)[1].status == "PASS"
    assert only(_points(found, ttft_ms_p50=960.1), TTFT)[1].status == "FAIL"
    more = PerformanceCheck(
        metric="output_tokens_per_s", workload="short", concurrency=8, min_ratio=1.0
    )
    assert only(found, more)[1].status == "PASS"
    assert only(_points(found, output_tokens_per_s=159.9), more)[1].status == "FAIL"


def test_an_absolute_target_needs_no_baseline() -> None:
    target = PerformanceCheck(
        metric="ttft_ms_p95", workload="short", concurrency=8, max_value=1200.0
    )
    found = simple(*GOOD)
    alone = replace(found, baseline=replace(found.baseline, profile=None))
    assert only(alone, target)[1].status == "PASS"
    assert only(_points(alone, ttft_ms_p95=1200.5), target)[1].status == "FAIL"
    floor = PerformanceCheck(
        metric="output_tokens_per_s", workload="short", concurrency=8, min_value=200.0
    )
    assert only(alone, floor)[1].status == "FAIL"


WEIGHTS = sha256_text("fp8 weights")

NOT_MEASURED: dict[str, tuple[Callable[[Evidence], Evidence], str, str]] = {
    "no profile": (lambda e: edit(e, profile=None), "MISSING", "fp8 was not profiled"),
    "no baseline profile": (
        lambda e: replace(e, baseline=replace(e.baseline, profile=None)),
        "MISSING",
        "baseline was not profiled",
    ),
    "emulated": (
        lambda e: edit(e, profile=profile("fp8", WEIGHTS, EMULATED)),
        "NOT COMPARABLE",
        "emulated lane: speed and memory cannot be measured",
    ),
    "emulated baseline": (
        lambda e: replace(
            e,
            baseline=replace(
                e.baseline, profile=profile("baseline", sha256_text("baseline weights"), EMULATED)
            ),
        ),
        "NOT COMPARABLE",
        "emulated lane",
    ),
    "other hardware": (
        lambda e: edit(
            e, profile=profile("fp8", WEIGHTS, serving=serving(WEIGHTS, hardware="NVIDIA H200"))
        ),
        "NOT COMPARABLE",
        "hardware is 'AMD EPYC x2 [avx2]' and 'NVIDIA H200'",
    ),
    "other engine": (
        lambda e: edit(e, profile=profile("fp8", WEIGHTS, serving=serving(WEIGHTS, engine="sgl"))),
        "NOT COMPARABLE",
        "engine is 'vllm' and 'sgl'",
    ),
    "other weights": (
        lambda e: edit(e, profile=profile("fp8", sha256_text("older"))),
        "NOT COMPARABLE",
        "measured on other weights",
    ),
    "of another variant": (
        lambda e: edit(e, profile=profile("gptq", WEIGHTS)),
        "NOT COMPARABLE",
        "the profile of fp8 is of gptq",
    ),
    "requests failed": (
        lambda e: _points(e, completed=13, failed=3),
        "INCONCLUSIVE",
        "3 of fp8's 16 requests failed",
    ),
    "all requests failed": (
        lambda e: _points(e, completed=0, failed=16, ttft_ms_p50=None),
        "MISSING",
        "none of fp8's 16 requests completed",
    ),
    "few requests": (lambda e: _points(e, completed=7), "INCONCLUSIVE", "fewer than 8"),
    "load not measured": (
        lambda e: edit(e, profile=profile("fp8", WEIGHTS, points=(point(concurrency=1),))),
        "MISSING",
        "fp8 was not measured at that load",
    ),
}


@pytest.mark.parametrize("case", NOT_MEASURED)
def test_speed_that_was_not_measured_never_passes(case: str) -> None:
    spoil, status, words = NOT_MEASURED[case]
    verdict, check = only(spoil(simple(*GOOD)), TTFT)
    assert (verdict, check.status) == ("INCONCLUSIVE", status)
    assert words in check.sentence


def test_another_workload_or_a_baseline_at_zero() -> None:
    other = TTFT.model_copy(update={"workload": "long"})
    assert only(simple(*GOOD), other)[1].status == "MISSING"
    found = simple(*GOOD)
    old = found.baseline.profile
    assert old
    zero = old.model_copy(update={"points": (point(concurrency=8, ttft_ms_p50=0.0),)})
    found = replace(found, baseline=replace(found.baseline, profile=zero))
    assert only(found, TTFT)[1].status == "INCONCLUSIVE"


def test_size_of_the_weights_is_known_on_every_lane() -> None:
    check = SizeCheck(max_ratio=0.75)
    for lane_evidence in (simple(*GOOD), simple(*GOOD, lane=EMULATED)):
        verdict, found = only(lane_evidence, check)
        assert (verdict, found.status) == ("GO", "PASS")
        assert found.value == 164_000_000 / 269_060_552
    big = evidence({"suite": GOOD[0]}, variant("fp8", {"suite": rows(GOOD[1])}, weight_bytes=10**9))
    assert only(big, check)[1].status == "FAIL"
    assert only(edit(simple(*GOOD), manifest=None), check)[1].status == "MISSING"
    manifest = simple(*GOOD).variants[0].manifest
    assert manifest
    empty = edit(simple(*GOOD), manifest=manifest.model_copy(update={"weight_bytes": 0}))
    assert only(empty, check)[1].status == "MISSING"


def test_peak_memory_needs_a_native_lane_and_prefers_the_device() -> None:
    check = SizeCheck(metric="peak_memory_bytes", max_ratio=1.0)
    assert only(simple(*GOOD), check)[1].status == "PASS"
    verdict, emulated = only(simple(*GOOD, lane=EMULATED), check)
    assert (verdict, emulated.status) == ("INCONCLUSIVE", "NOT COMPARABLE")
    base = sha256_text("baseline weights")
    found = edit(
        simple(*GOOD),
        profile=profile("fp8", WEIGHTS, peak_gpu_bytes=90, peak_memory_bytes=2_000_000_000),
    )
    found = replace(
        found,
        baseline=replace(found.baseline, profile=profile("baseline", base, peak_gpu_bytes=100)),
    )
    assert only(found, check)[1].value == 0.9
    nothing = edit(simple(*GOOD), profile=profile("fp8", WEIGHTS, peak_memory_bytes=None))
    assert only(nothing, check)[1].status == "MISSING"


def test_go_on_the_emulated_lane_says_what_it_does_not_say() -> None:
    found = simple(*GOOD, lane=EMULATED)
    verdict = judge(found, quality())
    assert verdict.verdict == "GO"
    assert verdict.lane is not None and verdict.lane.name == "emulated"
    assert "nothing about speed or memory" in verdict.reason
    # A GO that needs a speed check cannot be had there.
    assert judge(found, quality(), TTFT).verdict == "INCONCLUSIVE"
    assert judge(found, quality(), TTFT.model_copy(update={"tier": "advisory"})).verdict == "GO"


# --------------------------------------------------------------------------- the record


def full(shuffle: int = 0) -> Evidence:
    before, after = table(60, 3, 2, 15)
    found = evidence(
        {"suite": before},
        variant("fp8", {"suite": rows(after)}),
        variant("gptq", {"suite": rows(table(50, 13, 0, 17)[1])}, method="gptq", lane=EMULATED),
        repeat={"suite": [*before[:-1], 1.0]},
    )
    if shuffle:
        sides = []
        for side in (found.baseline, *found.variants):
            mixed = list(side.rows["suite"])
            random.Random(shuffle).shuffle(mixed)
            sides.append(replace(side, rows={"suite": tuple(mixed)}))
        found = replace(found, baseline=sides[0], variants=tuple(sides[1:]))
    return found


def gate_of(found: Evidence) -> Gate:
    checks = policy(quality(), TTFT, SizeCheck(max_ratio=0.75))
    return decide(checks, found, policy_digest="policy digest", id_="gate id")


def test_the_record_names_what_it_rests_on_and_round_trips(tmp_path: Path) -> None:
    gate = gate_of(full())
    assert (gate.id, gate.policy_digest, gate.policy) == ("gate id", "policy digest", "test")
    assert gate.inputs["fp8/weights"] == WEIGHTS
    assert set(gate.inputs) == {
        f"{v}/{what}"
        for v in ("baseline", "fp8", "gptq")
        for what in ("weights", "eval/suite", "profile")
    } | {"baseline/repeat/suite"}
    assert gate.noise_floor == {"suite": {"churn": 1 / 80, "difference": -1 / 80}}
    write_record(tmp_path / "gate.json", gate)
    assert read_record(tmp_path / "gate.json", Gate) == gate


def test_the_same_records_give_the_same_bytes_in_any_row_order() -> None:
    assert dump_record(gate_of(full())) == dump_record(gate_of(full()))
    assert dump_record(gate_of(full(shuffle=1))) == dump_record(gate_of(full()))


def test_timings_aside_leaves_quality_and_size() -> None:
    found = full()
    slower = _points(found, ttft_ms_p50=900.0)
    assert dump_record(gate_of(slower)) != dump_record(gate_of(found))
    assert timings_aside(gate_of(slower)) == timings_aside(gate_of(found))
    other = edit_row(found, 0, score=0.0)
    assert timings_aside(gate_of(other)) != timings_aside(gate_of(found))


# --------------------------------------------------------------------------- shipped policies

POLICIES = Path(__file__).parents[1] / "notebooks" / "policies"


def shipped(name: str) -> Policy:
    return Policy.model_validate(yaml.safe_load((POLICIES / f"{name}.yaml").read_text("utf-8")))


@pytest.mark.parametrize("name", ["quickstart", "strict", "smoke"])
def test_shipped_policies_gate_every_demo_suite_and_say_why(name: str) -> None:
    found = shipped(name)
    assert found.name == name
    assert {c.suite for c in found.quality} == {"sentiment", "short_question", "json_extract"}
    assert all(c.tier == "critical" and c.confidence == 0.95 for c in found.quality)
    assert (POLICIES / f"{name}.yaml").read_text("utf-8").startswith("#")


def test_the_numbers_in_the_policies_texts_are_what_comes_out() -> None:
    text = (POLICIES / "quickstart.yaml").read_text("utf-8")
    for lost, gained, words in [
        (0, 0, "points when no answer changed"),
        (2, 2, "when 2 were lost and 2 gained"),
        (2, 1, "when 2 were lost and 1 gained"),
        (3, 1, "when 3 were lost and 1 gained"),
    ]:
        assert f"{100 * binary_interval(lost, gained, 64).high:.1f} {words}" in text
    assert binary_interval(0, 0, 64).high > 0.05
    assert binary_interval(0, 0, 175).high > 0.02 >= binary_interval(0, 0, 176).high
    assert "0.02 takes 176" in text
    text = (POLICIES / "strict.yaml").read_text("utf-8")
    for changed, words in [
        (0, "the\n# upper limit is {:.1f} points"),
        (5, "with 5 lost and 5 gained it is {:.1f}"),
        (10, "with 10 and 10 it is {:.1f}"),
    ]:
        assert words.format(100 * binary_interval(changed, changed, 500).high) in text
    assert items_needed(0.0, 0.04, 0.02) == pytest.approx(665, rel=0.01)
    assert items_needed(0.0, 0.04, 0.01) == pytest.approx(2500, rel=0.02)


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_broken_reference_is_go_under_no_shipped_policy(path: Path) -> None:
    found = shipped(path.stem)
    assert {check.max_gain for check in found.quality} == {0.05}
    assert "max_gain" in "".join(re.findall("#.*", path.read_text("utf-8"))), "its reason"
    before, after = table(200, 0, 700, 100)
    suites = [check.suite for check in found.quality]
    sides = evidence(
        dict.fromkeys(suites, before), variant("fp8", {s: rows(after, suite=s) for s in suites})
    )
    (verdict,) = decide(found, sides, policy_digest="p", id_="g").variants
    assert verdict.verdict not in ("GO", "GO WITH WAIVER")
    assert {c.status for c in verdict.checks if c.kind == "quality"} == {"ANOMALOUS"}


def test_the_quickstart_can_say_go_on_a_cpu_and_strict_cannot() -> None:
    suites = {s: table(50, 1, 1, 12) for s in ("sentiment", "short_question", "json_extract")}
    found = evidence(
        {s: before for s, (before, _) in suites.items()},
        variant(
            "fp8", {s: rows(after, suite=s) for s, (_, after) in suites.items()}, lane=EMULATED
        ),
    )
    verdicts = [
        decide(shipped(name), found, policy_digest="p", id_="g").verdict
        for name in ("quickstart", "strict")
    ]
    assert verdicts == ["GO", "NO-GO"]  # strict: 0.61 of the bytes is more than 0.60


# --------------------------------------------------------------------------- properties

counts = st.integers(0, 40)


@given(counts, counts, counts, counts, st.integers(1, 200))
@settings(max_examples=60)
def test_agreeing_pairs_never_turn_pass_into_fail(
    right: int, lost: int, gained: int, wrong: int, more: int
) -> None:
    small = quality(min_n=1)
    before, after = table(right, lost, gained, wrong)
    if not before:
        return
    first = only(simple(before, after), small)[1].status
    second = only(simple([*before, *[1.0] * more], [*after, *[1.0] * more]), small)[1].status
    assert not (first == "PASS" and second == "FAIL")


@given(counts, counts, counts, counts)
@settings(max_examples=60)
def test_go_exactly_when_the_upper_limit_is_within(
    right: int, lost: int, gained: int, wrong: int
) -> None:
    before, after = table(right, lost, gained, wrong)
    if len(before) < 30 or sum(before) / len(before) <= 0.1:
        return
    verdict, check = only(simple(before, after))
    assert check.high is not None and check.low is not None
    expected = "GO" if check.high <= 0.1 else "NO-GO" if check.low > 0.1 else "INCONCLUSIVE"
    assert verdict == expected


# --------------------------------------------------------------------------- artifact


def examined(found: Evidence, made: Artifact | None) -> Evidence:
    side = found.variants[0]
    assert side.manifest is not None
    manifest = side.manifest.model_copy(update={"artifact": made})
    return replace(found, variants=(replace(side, manifest=manifest),))


def finding(status: ArtifactStatus) -> ArtifactCheck:
    return ArtifactCheck(name="finite", status=status, sentence="3 values of 'a' are NaN.")


def test_a_broken_artifact_is_no_go_however_well_it_answers() -> None:
    verdict = judge(examined(simple(*GOOD), artifact(finding("FAIL"))), quality())
    assert verdict.verdict == "NO-GO"
    assert verdict.reason == "1 of 2 gated checks fails: artifact (finite)."
    assert (verdict.checks[0].tier, verdict.checks[0].status) == ("critical", "FAIL")
    assert verdict.checks[0].sentence == "artifact: finite: 3 values of 'a' are NaN."


def test_a_broken_artifact_is_no_go_even_where_the_policy_gates_nothing() -> None:
    verdict = judge(examined(simple(*GOOD), artifact(finding("FAIL"))))
    assert verdict.verdict == "NO-GO"


def test_a_good_artifact_alone_is_no_go_ahead() -> None:
    for checks in ((), (quality(tier="advisory"),)):
        verdict = judge(simple(*GOOD), *checks)
        assert verdict.verdict == "INCONCLUSIVE" and "nothing is gated" in verdict.reason


def test_an_artifact_nobody_examined_is_missing() -> None:
    verdict = judge(examined(simple(*GOOD), None), quality())
    assert verdict.verdict == "INCONCLUSIVE"
    assert verdict.checks[0].status == "MISSING"


def test_an_artifact_without_a_check_is_missing_too() -> None:
    verdict = judge(
        examined(simple(*GOOD), artifact().model_copy(update={"checks": ()})), quality()
    )
    assert verdict.verdict == "INCONCLUSIVE"
    assert verdict.checks[0].status == "MISSING"


def test_a_warning_about_the_artifact_is_shown_and_passes() -> None:
    verdict = judge(examined(simple(*GOOD), artifact(finding("WARN"))), quality())
    assert verdict.verdict == "GO"
    assert "3 values of 'a' are NaN" in verdict.checks[0].sentence


# --------------------------------------------------------------------------- an unfinished run


def test_nothing_is_go_while_a_step_of_it_is_to_do_and_it_is_said() -> None:
    found = simple(*table(60, 2, 2, 16))
    for step in ("profile:fp8", "evaluate:baseline", "calibrate"):
        gate = decide(
            policy(quality()),
            replace(found, unfinished=(step,)),
            policy_digest="policy",
            id_="gate",
        )
        (verdict,) = gate.variants
        assert (verdict.verdict, gate.verdict) == ("INCONCLUSIVE", "INCONCLUSIVE")
        assert verdict.reason.startswith(f"the run is not finished ({step} still to do); ")
        assert f"the run is not finished: {step} still to do" in gate.warnings[0]
        assert "workbench run" in gate.warnings[0]


def test_what_another_variant_waits_for_takes_no_verdict_away() -> None:
    found = replace(simple(*table(60, 2, 2, 16)), unfinished=("evaluate:awq",))
    assert judge(found, quality()).verdict == "GO"
    lost = replace(simple(*table(30, 40, 0, 10)), unfinished=("profile:fp8",))
    assert judge(lost, quality()).verdict == "NO-GO"
