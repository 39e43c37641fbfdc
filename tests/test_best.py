"""The best GO variant by the policy's objective, and the sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import EMULATED, evidence, point, profile, rows, serving, table, variant

from workbench.digest import sha256_text
from workbench.display import verdict_table
from workbench.evidence import Evidence, VariantEvidence
from workbench.gate import decide, timings_aside
from workbench.objective import Best
from workbench.records import Gate
from workbench.report import record_html
from workbench.report.html import render
from workbench.spec import Policy

GOOD, BAD = table(62, 0, 0, 18), table(22, 40, 0, 18)


def side(
    name: str, scores: Any = GOOD, weight_bytes: int = 100, **speeds: float
) -> VariantEvidence:
    """A variant with the given output tokens/s at ``short`` of a concurrency (``x1=20.0``)."""
    made = variant(name, {"suite": rows(scores[1])}, weight_bytes=weight_bytes, profiled=False)
    if not speeds:
        return made
    points = tuple(
        point(concurrency=int(at[1:]), output_tokens_per_s=speed) for at, speed in speeds.items()
    )
    return replace(made, profile=profile(name, sha256_text(f"{name} weights"), points=points))


def gated(objective: str | None, *sides: VariantEvidence, **waived: Any) -> Gate:
    policy = Policy.model_validate(
        {
            "schema": "workbench.policy/1",
            "name": "test",
            "quality": [{"suite": "suite", "margin": 0.1}],
            **({"objective": objective} if objective else {}),
            **waived,
        }
    )
    return decide(policy, found(*sides), policy_digest="p", id_="g")


def found(*sides: VariantEvidence) -> Evidence:
    return evidence({"suite": GOOD[0]}, *sides)


def best(objective: str, *sides: VariantEvidence) -> Best:
    chosen = gated(objective, *sides).best
    assert chosen is not None
    return chosen


def test_without_an_objective_there_is_none() -> None:
    assert gated(None, side("a")).best is None


def test_the_smallest_of_those_that_are_go() -> None:
    chosen = best(
        "smallest",
        side("big", weight_bytes=300_000_000),
        side("small", weight_bytes=100_000_000),
        side("middle", weight_bytes=200_000_000),
        side("tiny", BAD, weight_bytes=1),
    )
    assert chosen.variant == "small"
    assert chosen.reason == (
        "small is the smallest of 3 GO variants: 100.0 MB of weights, middle 200.0 MB of weights."
    )


def test_no_go_no_best() -> None:
    chosen = best("smallest", side("tiny", BAD, weight_bytes=1))
    assert (chosen.variant, chosen.reason) == (None, "no variant is GO.")


def test_the_only_one_and_equal_ones_are_said_to_be() -> None:
    assert best("smallest", side("a"), side("bad", BAD)).reason.startswith(
        "a is the only GO variant: "
    )
    tied = best("smallest", side("b"), side("a"))
    assert tied.variant == "b"
    assert tied.reason.endswith("; a no worse, b is listed first.")


def test_a_waiver_makes_no_best() -> None:
    import datetime

    policy = Policy.model_validate(
        {
            "schema": "workbench.policy/1",
            "name": "test",
            "quality": [{"suite": "suite", "margin": 0.1}],
            "size": [{"metric": "weight_bytes", "max_ratio": 1.0}],
            "objective": "smallest",
            "waivers": [
                {
                    "check": "suite",
                    "variant": "tiny",
                    "owner": "o",
                    "reason": "r",
                    "expires": "2027-01-01",
                }
            ],
        }
    )

    def chosen(*sides: VariantEvidence) -> Best | None:
        on = datetime.date(2026, 12, 1)
        return decide(policy, found(*sides), policy_digest="p", id_="g", on=on).best

    one = chosen(side("tiny", BAD, weight_bytes=1), side("big"))
    assert one is not None and one.variant == "big"
    none = chosen(side("tiny", BAD, weight_bytes=1))
    assert none is not None
    assert (none.variant, none.reason) == (
        None,
        "no variant is GO; tiny may ship with a waiver alone.",
    )


def test_the_fastest_by_the_geometric_mean_over_the_common_loads() -> None:
    # Geometric means 20 and 24; the load that only one was measured at counts for neither.
    chosen = best("fastest", side("a", x1=10.0, x8=40.0, x32=900.0), side("b", x1=16.0, x8=36.0))
    assert chosen.variant == "b"
    assert chosen.reason == (
        "b is the fastest of 2 GO variants: 24.0 output tokens/s, a 20.0 output tokens/s (over 2 "
        "closed loops)."
    )


def test_the_cheapest_by_machine_hours_at_the_best_concurrency() -> None:
    # b is faster by the mean; a makes more tokens of an hour, at its best concurrency.
    sides = side("a", x1=10.0, x8=50.0, x32=20.0), side("b", x1=20.0, x8=40.0, x32=20.0)
    assert best("fastest", *sides).variant == "b"
    chosen = best("cheapest", *sides)
    assert chosen.variant == "a"
    assert "5.56 machine hours, b 6.94 machine hours for a million output tokens" in chosen.reason


def test_an_emulated_or_unmeasured_variant_is_not_compared_and_that_is_said() -> None:
    twin = variant("twin", {"suite": rows(GOOD[1])}, lane=EMULATED)
    chosen = best("fastest", side("a", x1=10.0), twin, side("none"))
    assert chosen.variant == "a"
    assert "not compared: twin (emulated lane" in chosen.reason
    assert "none (none was not profiled)" in chosen.reason
    alone = best("cheapest", twin)
    assert alone.variant is None
    assert "none has figures of speed: twin (emulated lane" in alone.reason


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (side("b", x4=10.0), "no load was measured on all of them"),
        (
            replace(
                side("b"),
                profile=profile(
                    "b",
                    sha256_text("b weights"),
                    points=(point(concurrency=1),),
                    serving=serving(sha256_text("b weights"), hardware="NVIDIA L4"),
                ),
            ),
            "they were measured on different machines",
        ),
    ],
)
def test_figures_that_cannot_be_compared_make_no_best(other: VariantEvidence, words: str) -> None:
    chosen = best("fastest", side("a", x1=10.0), other)
    assert chosen.variant is None and words in chosen.reason


def test_a_load_with_failed_requests_is_no_figure() -> None:
    broken = side("a", x1=900.0)
    assert broken.profile
    points = (broken.profile.points[0].model_copy(update={"failed": 1}),)
    broken = replace(broken, profile=broken.profile.model_copy(update={"points": points}))
    chosen = best("fastest", broken, side("b", x1=10.0))
    assert chosen.variant == "b" and "a (no load was measured whole on a)" in chosen.reason


def test_it_is_read_back_and_shown() -> None:
    gate = gated("smallest", side("a", weight_bytes=2_000_000))
    assert Gate.model_validate_json(gate.model_dump_json(by_alias=True)) == gate
    said = "a is the only GO variant: 2.0 MB of weights."
    assert said in render(gate, found(side("a", weight_bytes=2_000_000)))
    assert said in record_html(gate)
    assert said in str(verdict_table(gate).caption)


def test_what_is_measured_anew_is_aside() -> None:
    gate = gated("fastest", side("a", x1=10.0))
    again = gated("fastest", side("a", x1=11.0))
    assert gate.best != again.best
    assert timings_aside(gate) == timings_aside(again)
    assert timings_aside(gated("smallest", side("a")))["best"]["variant"] == "a"
