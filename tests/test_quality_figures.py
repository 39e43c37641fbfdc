"""What stands beside a quality check: p, recovery, bootstrap; and clusters in its limits."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from builders import edit, simple, table
from test_gate import only, policy, quality

from workbench import quality_figures
from workbench.evidence import Evidence, pair
from workbench.gate import decide
from workbench.paired import Paired
from workbench.permutation import sign_flip
from workbench.recovery import recovery
from workbench.report.html import render
from workbench.stats import mcnemar


def grouped(found: Evidence, size: int) -> Evidence:
    """The same samples, `size` of them in each cluster, on both sides."""

    def named(rows: tuple, /) -> tuple:  # type: ignore[type-arg]
        return tuple(r.model_copy(update={"cluster": f"d{i // size}"}) for i, r in enumerate(rows))

    baseline = replace(found.baseline, rows={"suite": named(found.baseline.rows["suite"])})
    return replace(
        edit(found, rows={"suite": named(found.variants[0].rows["suite"])}), baseline=baseline
    )


def test_right_and_wrong_has_mcnemar_and_recovery() -> None:
    before, after = table(60, 8, 2, 10)
    _, check = only(simple(before, after))
    worse, different = mcnemar(8, 2)
    assert check.details["test"] == {
        "worse": worse,
        "different": different,
        "method": "exact McNemar",
    }
    found = recovery(before, after).as_dict()
    assert check.details["recovery"] == {**found, "confidence": 0.95}
    assert check.details["recovery"]["value"] == 62 / 68
    assert "bootstrap" not in check.details


def test_graded_has_a_permutation_and_a_bootstrap_beside_its_limits() -> None:
    before, after = [1.0, 0.75, 0.5, 0.5] * 20, [1.0, 0.5, 0.5, 0.25] * 20
    found = simple(before, after)
    _, check = only(found)
    differences = [b - a for b, a in zip(before, after, strict=True)]
    assert check.details["test"]["worse"] == sign_flip(differences).worse == 0.5**40
    drawn = check.details["bootstrap"]
    assert drawn["estimate"] == pytest.approx(check.value)
    assert check.low is not None and check.high is not None
    assert check.low < drawn["low"] < 0.125 < drawn["high"] < check.high
    assert only(found)[1] == check


@pytest.mark.parametrize("confidence", [0.9, 0.975])
def test_limits_that_stand_beside_the_loss_say_their_confidence(confidence: float) -> None:
    graded = simple([1.0, 0.75, 0.5, 0.5] * 20, [1.0, 0.5, 0.5, 0.25] * 20)
    _, check = only(graded, quality(confidence=confidence))
    assert check.details["recovery"]["confidence"] == confidence
    assert check.details["bootstrap"]["confidence"] == confidence


def test_a_baseline_at_zero_has_no_recovery_and_says_why() -> None:
    _, check = only(simple(*table(0, 0, 0, 80)))
    assert check.details["recovery"]["value"] is None
    assert check.details["recovery"]["undefined"] == "the baseline scores 0"


def test_where_lower_is_better_recovery_is_of_what_is_right() -> None:
    found = simple([0.0] * 72 + [1.0] * 8, [0.0] * 64 + [1.0] * 16)

    def lower(side: object) -> object:
        asked = side.evaluation  # type: ignore[attr-defined]
        suites = tuple(s.model_copy(update={"higher_is_better": False}) for s in asked.suites)
        return asked.model_copy(update={"suites": suites})

    baseline = replace(found.baseline, evaluation=lower(found.baseline))  # type: ignore[arg-type]
    found = replace(edit(found, evaluation=lower(found.variants[0])), baseline=baseline)
    _, check = only(found)
    assert check.details["recovery"]["value"] == pytest.approx(64 / 72)


def test_a_suite_with_clusters_is_judged_by_whole_clusters() -> None:
    """One whole document of ten lost: as 80 samples that is within 0.3, as ten it is not shown."""
    before, after = table(72, 8, 0, 0)
    alone, found = simple(before, after), grouped(simple(before, after), 8)
    assert only(alone, quality(margin=0.3))[1].status == "PASS"
    _, check = only(found, quality(margin=0.3))
    assert check.status == "INCONCLUSIVE"
    assert check.details["method"].endswith("clusters as units")
    assert check.details["test"]["worse"] == 0.5
    assert "of clusters" in check.details["test"]["method"]
    assert check.details["items_needed"] > 80
    # Eight documents lost whole are a FAIL for both, and more surely as samples.
    before, after = table(16, 64, 0, 0)
    p = [
        only(e, quality(margin=0.1))[1].details["p_beyond_margin"]
        for e in (simple(before, after), grouped(simple(before, after), 8))
    ]
    assert p[0] < p[1] < 0.05


def test_the_report_shows_recovery_and_the_limits_that_decided() -> None:
    found = grouped(simple(*table(72, 8, 0, 0)), 8)
    gate = decide(policy(quality(margin=0.3)), found, policy_digest="policy", id_="gate")
    check = gate.variants[0].checks[1]
    page = render(gate, found)
    assert check.low is not None and check.high is not None
    pairs = page.split("Scores, pair by pair")[1]
    assert f"+{100 * check.high:.1f}]" in pairs
    assert "90.0 %<br>" in pairs
    none = simple(*table(0, 0, 0, 80))
    gate = decide(policy(quality()), none, policy_digest="policy", id_="gate")
    assert "none: the baseline scores 0" in render(gate, none)


def test_a_big_suite_takes_no_memory_for_each_draw() -> None:
    """50,000 samples, the twentieth of a million, with more different scores than are drawn."""
    before = [(i % 997) / 997 for i in range(50_000)]
    after = [max(0.0, b - 0.3 * (i % 7 == 0)) for i, b in enumerate(before)]
    found = pair(small := simple(before[:40], after[:40]), small.variants[0], "suite")
    assert isinstance(found, Paired)

    class Big(Paired):
        scores = (before, after)  # type: ignore[assignment]
        outputs = ([""] * 50_000, [""] * 50_000)  # type: ignore[assignment]

    big = Big(found.baseline, found.variant)
    tracemalloc.start()
    figures = quality_figures.quality_figures(big, 0.95)
    drawn = quality_figures.bootstrap(big, figures)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert drawn.low is None and "too many" in drawn.why
    assert figures.test.worse < 1e-3
