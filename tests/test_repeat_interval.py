"""A ratio of speeds with its interval, and what a check makes of one the limit lies within."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import simple
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_ind
from test_gate import GOOD, TTFT, only
from test_load_stats import QUICK, figures, repeat
from test_report_loads import DONE, load

from workbench.arrivals import ClosedLoop
from workbench.evidence import Evidence, VariantEvidence
from workbench.load_records import Quiet
from workbench.load_stats import load_point
from workbench.repeat_interval import repeat_interval
from workbench.spec import PerformanceCheck


def test_a_ratio_is_welchs_interval_of_the_logarithms() -> None:
    ours, theirs = [110.0, 118.0, 113.0, 121.0], [98.0, 100.0, 103.0]
    test = ttest_ind(np.log(ours), np.log(theirs), equal_var=False)
    welch = test.confidence_interval(0.9)
    centre = np.log(ours).mean() - np.log(theirs).mean()
    found = repeat_interval(float(np.exp(centre)), ours, theirs)
    assert found == pytest.approx((math.exp(welch.low), math.exp(welch.high)))


def test_a_figure_alone_is_students() -> None:
    found = repeat_interval(100.0, [90.0, 100.0, 111.0])
    spread = np.log([90.0, 100.0, 111.0]).std(ddof=1) / math.sqrt(3)
    reach = float(t.ppf(0.95, 2)) * spread
    assert found == pytest.approx((100 * math.exp(-reach), 100 * math.exp(reach)))
    assert repeat_interval(100.0, [100.0] * 3) == (100, 100)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([100, 101], [100, 101, 102]),
        ([100, 101, 102], [100, 101]),
        ([100, None, 102, 103], [100, 101, 102]),
        ([100, 0, 102], [100, 101, 102]),
        ([], []),
    ],
)
def test_fewer_than_three_repeats_have_none(
    ours: list[float | None], theirs: list[float | None]
) -> None:
    assert repeat_interval(1.0, ours, theirs) is None


def test_it_covers() -> None:
    dice = np.random.default_rng(6)
    hit = 0
    for ours, theirs in dice.lognormal(0, 0.04, (2000, 2, 3)):
        found = repeat_interval(float(np.exp(np.log(ours / theirs).mean())), ours, theirs)
        assert found is not None
        hit += found[1] >= 1
    assert hit / 2000 >= 0.94


repeats = st.lists(st.floats(1, 1000), min_size=3, max_size=8)


@given(repeats, repeats)
def test_order_does_not_matter_and_sides_swapped_give_the_reciprocal(
    ours: list[float], theirs: list[float]
) -> None:
    value = math.fsum(ours) / len(ours) / (math.fsum(theirs) / len(theirs))
    found = repeat_interval(value, ours, theirs)
    assert found is not None and found[0] <= value <= found[1]
    assert repeat_interval(value, sorted(ours), sorted(theirs)) == pytest.approx(found)
    mirrored = repeat_interval(1 / value, theirs, ours)
    assert mirrored == pytest.approx((1 / found[1], 1 / found[0]), rel=1e-9)


# --------------------------------------------------------------------------- in a check


def measured(
    ours: Sequence[float], theirs: Sequence[float], figure: str = "ttft_ms_p50", quiet: str = ""
) -> Evidence:
    """Both sides measured so many times at the load of the check; their medians are the points."""

    def side(of: VariantEvidence, values: Sequence[float]) -> VariantEvidence:
        assert of.profile is not None
        summary = load(
            repeats=len(values),
            by_repeat={figure: tuple(values)},
            quiet=Quiet(reasons=(quiet,) if quiet else ()),
        )
        points = tuple(
            p.model_copy(update={figure: float(np.median(values))}) for p in of.profile.points
        )
        more = {"loads": (summary,), "points": points}
        return replace(of, profile=of.profile.model_copy(update=more))

    found = simple(*GOOD)
    return replace(
        found, baseline=side(found.baseline, theirs), variants=(side(found.variants[0], ours),)
    )


STEADY = [100.0, 101.0, 99.0]


@pytest.mark.parametrize(
    ("ours", "status"),
    [
        ([110.0, 111.0, 109.0], "PASS"),
        ([118.0, 120.0, 122.0], "INCONCLUSIVE"),
        ([115.0, 121.0, 127.0], "INCONCLUSIVE"),
        ([130.0, 131.0, 129.0], "FAIL"),
    ],
)
def test_a_limit_within_the_interval_is_neither_kept_nor_broken(
    ours: list[float], status: str
) -> None:
    _, check = only(measured(ours, STEADY), TTFT)
    assert check.status == status
    assert check.low is not None and check.high is not None and check.value is not None
    assert check.low < check.value < check.high
    assert f"by its repeats {check.low:.3g} to {check.high:.3g}" in check.sentence
    matter = f"{check.limit:.4g} lies between {check.low:.3g} and {check.high:.3g}"
    assert check.details.get("matter") == (matter if check.status == "INCONCLUSIVE" else None)
    assert ("more repeats would settle it" in check.sentence) == (status == "INCONCLUSIVE")
    if status != "INCONCLUSIVE":
        assert only(measured(ours[:1], STEADY[:1]), TTFT)[1].status == status


def test_throughput_is_bounded_from_below() -> None:
    check = PerformanceCheck(
        metric="output_tokens_per_s", workload="short", concurrency=8, min_ratio=0.9
    )

    def status(*ours: float) -> str:
        return only(measured(ours, STEADY, check.metric), check)[1].status

    assert status(95, 96, 97) == "PASS"
    assert status(88, 91, 93) == status(87, 89, 92) == "INCONCLUSIVE"
    assert status(80, 81, 82) == "FAIL"


def test_an_absolute_target_is_about_the_variant_alone() -> None:
    check = PerformanceCheck(metric="tpot_ms_p50", workload="short", concurrency=8, max_value=50)
    for ours, status in (([45.0, 46, 44], "PASS"), ([48.0, 50, 51], "INCONCLUSIVE")):
        found = only(measured(ours, [1.0, 70, 900], check.metric), check)[1]
        assert found.status == status


def test_few_repeats_decide_as_before() -> None:
    _, check = only(measured([118.0, 120.0], [100.0, 101.0]), TTFT)
    assert (check.status, check.low) == ("PASS", None)
    assert "repeats" not in check.sentence


def test_a_limit_reached_exactly_is_kept_and_a_noisy_machine_makes_no_pass() -> None:
    assert only(measured([120.0] * 3, [100.0] * 3), TTFT)[1].status == "PASS"
    noisy = measured([110.0, 111.0, 109.0], STEADY, quiet="7.0% of CPU time was stolen")
    assert only(noisy, TTFT)[1].status == "INCONCLUSIVE"
    broken = measured([130.0, 131.0, 129.0], STEADY, quiet="7.0% of CPU time was stolen")
    assert only(broken, TTFT)[1].status == "FAIL"


def test_an_absolute_p95_needs_requests_enough_for_one() -> None:
    """Of 3 x 8 requests 17 % passed at the true p95 (lognormal), by the repeats alone."""

    def status(each: int, limit: float) -> tuple[str, str]:
        # The same in each repeat, 10 ms apart: nothing varies but the requests.
        times = [0.2 + i / 100 for i in range(each)]
        outcomes = [
            {**DONE, "token_times": [v, v + 0.1, v + 0.2], "last_byte": None} for v in times
        ]
        made = figures(*[repeat(*outcomes)] * 3, arrivals=ClosedLoop(concurrency=8), draws=QUICK)
        summary = made.model_copy(update={"workload": "short"})
        found = simple(*GOOD)
        (variant,) = found.variants
        assert variant.profile is not None
        more = {"loads": (summary,), "points": (load_point(summary),)}
        one = replace(variant, profile=variant.profile.model_copy(update=more))
        check = PerformanceCheck(
            metric="ttft_ms_p95", workload="short", concurrency=8, max_value=limit
        )
        _, said = only(replace(found, variants=(one,)), check)
        return said.status, said.sentence

    few, said = status(20, 5000)
    assert few == "INCONCLUSIVE"
    assert "60 requests are too few for an interval: a p95 takes 72" in said
    assert status(30, 5000)[0] == "PASS"
    between, said = status(30, 485)
    assert between == "INCONCLUSIVE" and "by its requests it may be 490" in said
    assert status(20, 300)[0] == "FAIL"


@pytest.mark.parametrize(
    ("metric", "limit", "words"),
    [
        ("ttft_ms_p50", {"max_value": 5000}, "2.574 ms, where at most 5000 is accepted"),
        ("tpot_ms_p95", {"max_value": 50}, "2.574 ms, where at most 50 is accepted"),
        ("output_tokens_per_s", {"min_value": 2}, "2.574 output tokens/s, where at least 2 is"),
        ("ttft_ms_p50", {"max_ratio": 2}, "1 times the baseline's, where at most 2 is accepted"),
    ],
)
def test_an_absolute_figure_has_its_unit(metric: str, limit: dict[str, float], words: str) -> None:
    check = PerformanceCheck.model_validate(
        {"metric": metric, "workload": "short", "concurrency": 8, **limit}
    )
    _, found = only(measured([2.574], [2.574], metric), check)
    assert found.status == "PASS" and words in found.sentence
