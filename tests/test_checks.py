"""What a policy may ask of quality and size beyond one margin; and what bad records give."""

from dataclasses import replace
from typing import Any

import pytest
from builders import EMULATED, edit, evidence, profile, rows, serving, simple, table, variant
from test_gate import GOOD, judge, only, quality
from test_gate import policy as of_checks

from workbench.digest import sha256_text
from workbench.evidence import Evidence, VariantEvidence
from workbench.gate import decide
from workbench.plots import forest
from workbench.records import Check
from workbench.report.html import render
from workbench.spec import PerformanceCheck, SizeCheck

WEIGHTS = sha256_text("fp8 weights")
BASE = sha256_text("baseline weights")


def relative(part: float, **changes: Any) -> Any:
    return quality(margin=None, margin_relative=part, **changes)


def lower_is_better(found: Evidence) -> Evidence:
    """The same rows, of a suite on which a high score is damage."""

    def of(side: VariantEvidence) -> VariantEvidence:
        assert side.evaluation
        (result,) = side.evaluation.suites
        worse = result.model_copy(update={"higher_is_better": False})
        return replace(side, evaluation=side.evaluation.model_copy(update={"suites": (worse,)}))

    return replace(found, baseline=of(found.baseline), variants=tuple(map(of, found.variants)))


# --------------------------------------------------------------------------- relative margins


def test_a_relative_margin_is_a_part_of_what_the_baseline_scores() -> None:
    found = simple(*table(300, 4, 4, 292))  # 304 of 600 right
    verdict, check = only(found, relative(0.05))
    assert (verdict, check.status) == ("GO", "PASS")
    assert check.limit == pytest.approx(0.05 * 304 / 600)
    assert check.details["margin_relative"] == 0.05
    assert check.sentence == (
        "suite: the mean score stayed at 50.7 % over 600 paired samples; with 95 % confidence the "
        "loss is at most 1.0 points, within the 2.5 accepted (5 % of what the baseline scores, "
        "whose uncertainty is in the interval)."
    )
    # Twice the score, twice the margin: the same loss passes beside a better baseline.
    same, better = simple(*table(300, 10, 4, 286)), simple(*table(586, 10, 4, 0))
    assert only(same, relative(0.04))[1].status == "INCONCLUSIVE"
    assert only(better, relative(0.04))[1].status == "PASS"
    assert only(simple(*table(250, 60, 0, 290)), relative(0.05))[1].status == "FAIL"


def test_a_relative_margin_is_estimated_and_its_own_error_counts() -> None:
    """Where nothing changed, the margin is all that is uncertain: it may be less than it looks."""
    found = simple(*table(6, 0, 0, 594))
    _, absolute = only(found, quality(margin=0.9 * 6 / 600))
    _, check = only(found, relative(0.9))
    assert check.limit == pytest.approx(0.9 * 6 / 600)
    assert absolute.high is not None and check.high is not None and check.low is not None
    assert check.high > absolute.high
    assert check.value == 0 and check.low < 0 < check.high


def test_where_lower_is_better_the_part_is_of_the_score_as_shown() -> None:
    rises = simple(*table(54, 0, 6, 540))  # errors: 54 of 600, and 60 with the variant
    found = lower_is_better(rises)
    verdict, check = only(found, relative(0.5))
    assert check.limit == pytest.approx(0.5 * 54 / 600)
    assert check.value == pytest.approx(6 / 600)
    assert (verdict, check.status) == ("GO", "PASS")
    assert only(found, relative(0.2))[1].status == "INCONCLUSIVE"
    assert only(lower_is_better(simple(*table(54, 0, 100, 446))), relative(0.5))[1].status == "FAIL"


def test_a_part_of_nothing_is_no_margin() -> None:
    for found in (simple(*table(0, 0, 4, 76)), lower_is_better(simple(*table(0, 0, 0, 80)))):
        verdict, check = only(found, relative(0.1))
        assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
        assert "the baseline scores 0 on it, and a part of that is no margin" in check.sentence
    refused = only(edit(simple(*GOOD), evaluation=None), relative(0.1))[1]
    assert (refused.status, refused.limit) == ("MISSING", None)


def test_a_metric_the_margin_is_not_about_is_not_comparable() -> None:
    assert only(simple(*GOOD), quality(metric="accuracy"))[1].status == "PASS"
    _, check = only(simple(*GOOD), quality(metric="f1"))
    assert (check.status, check.value) == ("NOT COMPARABLE", None)
    assert "the policy speaks of its f1, and it was scored by accuracy" in check.sentence


# --------------------------------------------------------------------------- too good to be true


def test_a_gain_beyond_belief_is_anomalous_and_blocks() -> None:
    before, after = table(300, 0, 60, 240)
    found = evidence(
        {"suite": before, "gated": before},
        variant("fp8", {"suite": rows(after), "gated": rows(before, suite="gated")}),
    )
    asked = of_checks(
        quality(suite="gated"), quality(max_gain=0.05, tier="advisory"), SizeCheck(max_ratio=0.9)
    )
    gate = decide(asked, found, policy_digest="p", id_="g")
    assert gate.verdict == "GO" and gate.variants[0].reason.endswith("; worth a look: suite.")
    page = render(gate, found)
    assert '<span class="badge open">!! ANOMALOUS</span>' in page
    drawing = forest(gate)
    assert drawing is not None and "ANOMALOUS (advisory)" in drawing


# --------------------------------------------------------------------------- sizes


def test_kv_tokens_want_more_and_bytes_less() -> None:
    def with_tokens(ours: int | None, theirs: int | None) -> Evidence:
        def of(name: str, weights: str, tokens: int | None) -> Any:
            return profile(name, weights, serving=serving(weights, kv_cache_tokens=tokens))

        found = edit(simple(*GOOD), profile=of("fp8", WEIGHTS, ours))
        return replace(
            found, baseline=replace(found.baseline, profile=of("baseline", BASE, theirs))
        )

    ratio = SizeCheck(metric="kv_cache_tokens", min_ratio=1.5)
    verdict, check = only(with_tokens(30_000, 20_000), ratio)
    assert (verdict, check.status, check.value) == ("GO", "PASS", 1.5)
    assert check.sentence == (
        "kv_cache_tokens: 1.5 times the baseline's (30,000 of 20,000 tokens), where at least 1.5 "
        "is accepted."
    )
    assert only(with_tokens(29_999, 20_000), ratio)[1].status == "FAIL"
    assert only(with_tokens(None, 20_000), ratio)[1].status == "MISSING"
    assert only(with_tokens(30_000, None), ratio)[1].status == "MISSING"
    assert only(with_tokens(30_000, 0), ratio)[1].status == "MISSING"
    enough = SizeCheck(metric="kv_cache_tokens", min_value=30_000)
    _, check = only(with_tokens(30_000, None), enough)
    assert check.sentence == "kv_cache_tokens: 30,000 tokens, where at least 30,000 is accepted."
    assert check.status == "PASS"
    assert only(with_tokens(29_999, None), enough)[1].status == "FAIL"
    assert only(with_tokens(0, None), enough)[1].status == "MISSING"
    twin = edit(simple(*GOOD), profile=profile("fp8", WEIGHTS, EMULATED))
    for asked in (ratio, enough):
        assert only(twin, asked)[1].status == "NOT COMPARABLE"


def test_a_limit_in_bytes_needs_no_baseline() -> None:
    found = simple(*GOOD)
    alone = replace(found, baseline=replace(found.baseline, profile=None))
    weights = SizeCheck(max_value=164_000_000)
    _, check = only(alone, weights)
    assert (check.status, check.value) == ("PASS", 164_000_000)
    assert check.sentence == "weight_bytes: 164.0 MB, where at most 164.0 is accepted."
    assert only(alone, SizeCheck(max_value=163_999_999))[1].status == "FAIL"
    peak = SizeCheck(metric="peak_memory_bytes", max_value=1_200_000_000)
    assert only(alone, peak)[1].status == "PASS"
    on_gpu = edit(alone, profile=profile("fp8", WEIGHTS, peak_gpu_bytes=1_300_000_000))
    assert only(on_gpu, peak)[1].status == "FAIL"
    unknown = edit(alone, profile=profile("fp8", WEIGHTS, peak_memory_bytes=None))
    assert only(unknown, peak)[1].status == "MISSING"
    assert only(edit(alone, profile=None), peak)[1].status == "MISSING"
    assert only(edit(alone, manifest=None), weights)[1].status == "MISSING"


# --------------------------------------------------------------------------- bad records


def both(found: Evidence, change: Any) -> Evidence:
    """Change every row of the one suite on both sides."""

    def of(side: VariantEvidence) -> VariantEvidence:
        rows_ = tuple(change(i, r) for i, r in enumerate(side.rows["suite"]))
        return replace(side, rows={"suite": rows_})

    return replace(found, baseline=of(found.baseline), variants=tuple(map(of, found.variants)))


@pytest.mark.parametrize("field", ["template_digest", "tokenizer_digest"])
def test_rows_of_two_times_are_no_measurement_though_each_has_its_pair(field: str) -> None:
    mixed = both(
        simple(*GOOD), lambda i, r: r.model_copy(update={field: "old" if i < 30 else "new"})
    )
    verdict, check = only(mixed)
    assert (verdict, check.status, check.value) == ("INCONCLUSIVE", "NOT COMPARABLE", None)
    assert "the samples were asked with 2" in check.sentence
    alike = both(simple(*GOOD), lambda i, r: r.model_copy(update={field: "new"}))
    assert only(alike)[0] == "GO"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_a_missing_answer_on_either_side(score: float) -> None:
    found = simple(*GOOD)
    broken = tuple(
        r.model_copy(update={"score": score}) if i == 9 else r
        for i, r in enumerate(found.baseline.rows["suite"])
    )
    verdict, check = only(replace(found, baseline=replace(found.baseline, rows={"suite": broken})))
    assert (verdict, check.status) == ("INCONCLUSIVE", "MISSING")
    assert "1 of 80 samples of baseline have no score, 'suite-009' first" in check.sentence


def test_a_latency_that_is_no_number_is_missing() -> None:
    found = simple(*GOOD)
    made = found.variants[0].profile
    assert made
    points = tuple(p.model_copy(update={"ttft_ms_p50": float("nan")}) for p in made.points)
    check = PerformanceCheck(metric="ttft_ms_p50", workload="short", concurrency=8, max_ratio=1.2)
    spoiled = edit(found, profile=made.model_copy(update={"points": points}))
    verdict, one = only(spoiled, check)
    assert (verdict, one.status) == ("INCONCLUSIVE", "MISSING")
    assert "fp8's figure is nan, which is no measurement" in one.sentence


def test_a_variant_without_a_record_is_missing_in_every_check() -> None:
    found = replace(simple(*GOOD), variants=(VariantEvidence("fp8", "fp8"),))
    verdict = judge(found, quality(), SizeCheck(max_ratio=1), SizeCheck(max_value=1))
    assert verdict.verdict == "INCONCLUSIVE"
    assert {c.status for c in verdict.checks} == {"MISSING"}


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_one_item_settles_nothing(before: float, after: float) -> None:
    verdict, check = only(simple([before], [after]), quality(min_n=1))
    assert (verdict, check.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert only(simple([before], [after]))[1].status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ((80, 0, 0, 0), "PASS"),  # all right
        ((0, 0, 0, 80), "INCONCLUSIVE"),  # all wrong: there was nothing to lose
        ((0, 80, 0, 0), "FAIL"),  # all right, then all wrong
        ((40, 0, 0, 40), "PASS"),  # no discordant pair
        ((0, 0, 80, 0), "INCONCLUSIVE"),  # a baseline at zero, and a variant at one
    ],
)
def test_every_extreme_has_its_verdict(counts: tuple[int, int, int, int], status: str) -> None:
    before, after = table(*counts)
    found = evidence({"suite": before}, variant("fp8", {"suite": rows(after)}))
    made: tuple[str, Check] = only(found)
    assert made[1].status == status
    assert made[0] == {"PASS": "GO", "FAIL": "NO-GO"}.get(status, "INCONCLUSIVE")
