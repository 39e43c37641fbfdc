"""A profile's loads where people read them: every status, a queue that grew, a noisy machine."""

from dataclasses import replace
from typing import Any

from builders import simple
from test_gate import GOOD, TTFT, policy
from test_load_stats import QUICK, figures, repeat
from test_memory import told

from workbench.arrivals import ClosedLoop, PoissonArrivals
from workbench.digest import sha256_text
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.load_records import HighestRate, LoadSummary, Quiet, Saturation, Targets
from workbench.records import Check, Profile
from workbench.report import loads
from workbench.report.cards import record_text
from workbench.report.html import render

DONE = {"sent": 0.0, "token_times": [0.2, 0.3, 0.5], "last_byte": 0.6, "output_tokens": 3}


def load(concurrency: int = 8, **changes: Any) -> LoadSummary:
    made = figures(
        repeat(DONE, DONE, {"sent": 0.1, "status": "refused", "reason": "http <b>503"}),
        arrivals=ClosedLoop(concurrency=concurrency),
        targets=Targets(ttft_ms=300),
        draws=QUICK,
    )
    return made.model_copy(update={"workload": "short", **changes})


def with_loads(found: Evidence, *summaries: LoadSummary, **changes: Any) -> Evidence:
    """The evidence with these loads in every profile."""

    def of(side: Any) -> Any:
        assert isinstance(side.profile, Profile)
        more = {"loads": summaries, **changes}
        return replace(side, profile=side.profile.model_copy(update=more))

    return replace(
        found, baseline=of(found.baseline), variants=tuple(of(side) for side in found.variants)
    )


def checked(found: Evidence) -> Check:
    gate = decide(policy(TTFT), found, policy_digest=sha256_text("p"), id_="gate-id")
    (check,) = (c for c in gate.variants[0].checks if c.kind == "performance")
    return check


def test_a_row_says_what_was_not_completed_and_what_was_in_time() -> None:
    head, row = loads.rows([load()])
    said = dict(zip(head, row, strict=True))
    assert said["load"] == "short x8"
    assert (said["requests"], said["not completed"]) == (3, "1 refused")
    assert said["TTFT p50"] == "200 ms"  # two requests say nothing of a median's limits
    (_, row) = loads.rows([figures(*[repeat(*[DONE] * 3)] * 2)])
    assert dict(zip(head, row, strict=True))["TTFT p50"] == "200 [200, 200] ms"
    assert said["in time"] == "2 of 3"


def test_remarks_name_what_takes_belief_away() -> None:
    grew = Saturation(verdict="growing", sentence="the backlog grew by 3 requests/s")
    noisy = Quiet(reasons=("7.0% of CPU time was stolen",))
    rate = HighestRate(outcome="found", rate=4.0, sentence="4 requests/s meet them", probes=())
    found = with_loads(
        simple(*GOOD),
        load(saturation=grew, quiet=noisy),
        highest_rates={"short": rate},
        memory_unknown="no one knows <this> architecture",
    )
    profile = found.variants[0].profile
    assert profile is not None
    assert list(loads.remarks(profile)) == [
        ("short x8", "the backlog grew by 3 requests/s"),
        ("short x8", "not quiet: 7.0% of CPU time was stolen"),
        ("highest rate of short", "4 requests/s meet them"),
        ("KV cache", "not estimated: no one knows <this> architecture"),
    ]
    card = record_text(profile)
    assert "the backlog grew" in card and "1 refused" in card
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    assert "7.0% of CPU time was stolen" in page and "4 requests/s meet them" in page
    assert "<this>" not in page and "&lt;this&gt;" in page


def test_an_open_loop_has_its_row_and_is_no_point_of_a_concurrency() -> None:
    opened = load(arrivals=PoissonArrivals(rate=2).model_dump(mode="json"))
    found = with_loads(simple(*GOOD), opened)
    profile = found.variants[0].profile
    assert profile is not None and loads.open_loops(profile) == [opened]
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    assert "short poisson 2/s" in page
    assert "http &lt;b&gt;503" in page and "http <b>503" not in page


def test_what_a_variant_frees_is_said_against_its_reference() -> None:
    found = with_loads(simple(*GOOD))
    base, variant = found.baseline, found.variants[0]
    assert base.profile is not None and variant.profile is not None
    assert loads.freed_sentence(found, variant) == ""
    ours = variant.profile.model_copy(update={"memory": told("fp8")})
    theirs = base.profile.model_copy(update={"memory": told("baseline", tokens=2000)})
    found = replace(
        found,
        baseline=replace(base, profile=theirs),
        variants=(replace(variant, profile=ours),),
    )
    assert "KV-cache tokens against baseline" in loads.freed_sentence(found, found.variants[0])
    assert loads.freed_sentence(found, found.baseline) == ""


def test_a_machine_that_was_not_quiet_makes_no_pass() -> None:
    quiet = with_loads(simple(*GOOD), load())
    assert checked(quiet).status == "PASS"
    noisy = with_loads(simple(*GOOD), load(quiet=Quiet(reasons=("7.0% of CPU time was stolen",))))
    check = checked(noisy)
    assert check.status == "INCONCLUSIVE"
    assert "the machine was not quiet: 7.0% of CPU time was stolen" in check.sentence
    # Another load was not quiet: that says nothing of this one.
    other = with_loads(
        simple(*GOOD), load(), load(concurrency=1, quiet=Quiet(reasons=("7.0% was stolen",)))
    )
    assert checked(other).status == "PASS"
