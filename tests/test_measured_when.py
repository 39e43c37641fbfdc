"""Variants are measured one after another, and whoever compares them is told when."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from builders import EMULATED, profile, simple
from test_gate import GOOD, TTFT, policy
from test_profile import profile as measured

from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.measured_when import apart, one_after_another, span
from workbench.records import Check, Profile
from workbench.report.cards import record_text
from workbench.report.html import render
from workbench.spec import PerformanceCheck

BASE = ("2026-11-30T14:00:00+00:00", "2026-11-30T14:05:00+00:00")
LATER = ("2026-11-30T14:19:10+00:00", "2026-11-30T14:24:10+00:00")


def at(times: tuple[str, str], variant: str = "good", **changes: Any) -> Profile:
    return profile(variant, "w" * 64, began=times[0], finished=times[1], **changes)


def timed(baseline: tuple[str, str], variant: tuple[str, str]) -> Evidence:
    found = simple(*GOOD)

    def of(side: Any, times: tuple[str, str]) -> Any:
        more = {"began": times[0], "finished": times[1]}
        return replace(side, profile=side.profile.model_copy(update=more))

    return replace(
        found,
        baseline=of(found.baseline, baseline),
        variants=tuple(of(side, variant) for side in found.variants),
    )


def checked(found: Evidence, check: PerformanceCheck = TTFT) -> Check:
    gate = decide(policy(check), found, policy_digest="p", id_="g")
    (check,) = (c for c in gate.variants[0].checks if c.kind == "performance")
    return check


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (LATER, "measured 14 min after baseline"),
        (("2026-11-30T13:58:00+00:00", "2026-11-30T13:59:20+00:00"), "measured 40 s before"),
        (("2026-11-30T14:04:00+00:00", "2026-11-30T14:09:00+00:00"), "that overlap with baseline"),
        (("2026-12-01T00:05:00+00:00", "2026-12-01T00:09:00+00:00"), "measured 10 h after"),
        (("2026-12-10T14:05:00+00:00", "2026-12-10T14:09:00+00:00"), "measured 10 days after"),
    ],
)
def test_how_far_apart_two_sides_were_measured_is_said(variant: tuple[str, str], said: str) -> None:
    assert said in apart(at(variant), at(BASE, "baseline"))


def test_a_ratio_says_when_its_two_sides_were_measured() -> None:
    check = checked(timed(BASE, LATER))
    assert check.sentence.endswith("; measured 14 min after baseline.")
    assert check.details["measured"] == {
        simple(*GOOD).variants[0].variant: "2026-11-30 14:19:10 to 14:24:10 UTC",
        "baseline": "2026-11-30 14:00:00 to 14:05:00 UTC",
    }
    limit = TTFT.model_copy(update={"max_ratio": None, "max_value": 1e6})
    absolute = checked(timed(BASE, LATER), limit)
    assert "measured" not in absolute.sentence and "measured" not in absolute.details


def test_a_report_says_that_variants_were_measured_one_after_another() -> None:
    found = timed(BASE, LATER)
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    name = found.variants[0].variant
    assert (
        "Measured one after another, 2026-11-30 14:00:00 to 14:24:10 UTC: baseline, "
        f"{name}. None was measured again, so what changed on the machine meanwhile"
    ) in text
    assert "measured : 2026-11-30 14:19:10 to 14:24:10 UTC" in text
    first = found.variants[0].profile
    assert first is not None
    resumed = record_text(first.model_copy(update={"resumed": 3}))
    assert "14:24:10 UTC; 3 passes of an attempt that was cut short" in resumed


def test_a_variant_alone_or_one_that_does_not_say_when_is_after_nobody() -> None:
    old = profile("good", "w" * 64)
    assert span(old) == apart(old, at(BASE)) == apart(at(BASE), old) == ""
    assert one_after_another([at(BASE)]) == one_after_another([at(BASE), old]) == ""
    found = timed(("", ""), ("", ""))
    assert "measured" not in checked(found).details
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    assert "one after another" not in page
    # A twin's times are shown nowhere.
    twin = replace(found.variants[0], profile=at(LATER, lane=EMULATED))
    found = replace(timed(BASE, LATER), variants=(twin,))
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    assert "one after another" not in page


def test_a_profile_knows_when_its_passes_were_measured(tmp_path: Any) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # the record has whole milliseconds
    first = measured(tmp_path, {"ttft_ms": 40})
    assert before <= first.began < first.finished <= datetime.now(UTC)
    took = (first.finished - first.began).total_seconds()
    assert took >= sum(load.seconds for load in first.loads) - 0.01
    assert took < sum(load.seconds for load in first.loads) + 60
    # Taken over, the passes are as old as they were.
    again = measured(tmp_path, {})
    assert again.resumed == 2
    assert (again.began, again.finished) == (first.began, first.finished)
