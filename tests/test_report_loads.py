"""A profile's loads where people read them: every status, a queue that grew, a noisy machine."""

import base64
import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from builders import simple
from test_gate import GOOD, TTFT, policy
from test_load_stats import QUICK, figures, repeat
from test_memory import told

from workbench.arrivals import ClosedLoop, PoissonArrivals
from workbench.digest import sha256_text
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.load_figures import figures as every_figure
from workbench.load_records import (
    EngineUse,
    Figure,
    HighestRate,
    LoadSummary,
    MachineUse,
    Quiet,
    Saturation,
    Targets,
    Usage,
)
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


def suite_load() -> LoadSummary:
    """Three requests in each of three repeats; all in time, two of three right."""
    asked = [
        repeat(DONE, DONE, DONE, asks={"sample": "s", "ignore_eos": False, "max_tokens": 9})
        for _ in range(3)
    ]
    right = {"s": True, "s#1": True, "s#2": False}
    return figures(
        *(replace(one, correct=right) for one in asked),
        targets=Targets(ttft_ms=300, e2e_ms=1500),
        draws=QUICK,
    )


def test_the_reports_table_has_intervals_goodput_and_every_latency() -> None:
    graded, plain = suite_load(), figures(repeat(*[DONE] * 3))
    some = Figure(value=200, low=180, high=220)
    changed = {
        name: getattr(graded, name).model_copy(
            update={"p50": some, "p95": some.model_copy(update={"value": 210 + number})}
        )
        for number, name in enumerate(("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"))
    }
    graded = graded.model_copy(update=changed)
    found = with_loads(simple(*GOOD), graded, plain)
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    one, two = loads.lines(found.variants[0].profile)  # type: ignore[arg-type]
    said = dict(zip(loads.HEAD, one.cells, strict=True))
    assert said["completed"] == ("9 of 9",)
    count, limits, right = said["in time"]
    assert (count, right) == ("9 of 9", "6 also right") and limits.endswith(", 100.0] %")
    for number, name in enumerate(("TTFT", "TPOT", "ITL", "end to end")):
        assert said[name] == ("200 [180, 220]", f"{210 + number} [180, 220]")
    assert dict(zip(loads.HEAD, two.cells, strict=True))["in time"] == ("\N{EN DASH}",)
    assert "9 of 9<br>[" in page and "<br>6 also right" in page
    assert "completed within TTFT 300 ms, end to end 1,500 ms" in page
    for head in ("in time", "ITL", "end to end"):
        assert f'<th class="n">{head}</th>' in page
    bare = with_loads(simple(*GOOD), plain)
    assert "In time:" not in render(decide(policy(TTFT), bare, policy_digest="p", id_="g"), bare)


def test_the_csv_has_every_load_and_every_figure() -> None:
    opened = load(arrivals=PoissonArrivals(rate=2).model_dump(mode="json"))
    found = with_loads(simple(*GOOD), opened)
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    # There is no closed loop, so no figure of them: the numbers do not hang on it.
    (href,) = re.findall(r'download="latency.csv" href="data:text/csv;base64,([^"]+)"', page)
    lines = list(csv.DictReader(io.StringIO(base64.b64decode(href).decode())))
    assert [line["variant"] for line in lines] == ["baseline", "fp8"]
    line = lines[1]
    assert (line["load"], line["arrivals"], line["rate"]) == ("poisson 2/s", "poisson", "2.0")
    assert (line["requests"], line["completed"]) == ("3", "2")
    for name, figure in every_figure(opened):
        value, low, high = (line[name], line[f"{name}_low"], line[f"{name}_high"])
        wanted = ["" if v is None else str(v) for v in (figure.value, figure.low, figure.high)]
        assert [value, low, high] == wanted, name
    assert {"itl_ms_p99", "e2e_ms_p95", "good_share", "queued_ms_max"} <= line.keys()
    assert line["saturation"] == opened.saturation.verdict
    nothing = with_loads(simple(*GOOD), points=())
    page = render(decide(policy(TTFT), nothing, policy_digest="p", id_="g"), nothing)
    assert "latency.csv" not in page


def test_the_hit_rate_of_a_prefix_cache_is_a_figure_of_its_load() -> None:
    assert load().prefix_cache_hit_rate is None
    assert "prefix_cache_hit_rate" not in dict(every_figure(load()))
    hits = load(usage=hit_rates(0.5, None, 0.7))
    assert dict(every_figure(hits))["prefix_cache_hit_rate"].value == pytest.approx(0.6)


def hit_rates(*rates: float | None) -> tuple[Usage, ...]:
    """What a server told in each repeat."""
    machine = MachineUse(samples=0)
    told = (Usage(seconds=1.0, engine=None, machine=machine),)
    return told + tuple(
        Usage(
            seconds=1.0,
            engine=EngineUse(samples=1, prefix_cache_hit_rate=rate),
            machine=machine,
        )
        for rate in rates
    )


def test_an_open_loop_has_its_row_and_is_no_point_of_a_concurrency() -> None:
    opened = load(arrivals=PoissonArrivals(rate=2).model_dump(mode="json"))
    found = with_loads(simple(*GOOD), opened)
    profile = found.variants[0].profile
    assert profile is not None and [line.load for line in loads.lines(profile)] == [
        "short poisson 2/s"
    ]
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
    said = "the machine was not quiet: fp8: 7.0% of CPU time was stolen"
    assert said in check.sentence and "baseline: 7.0% of CPU time was stolen" in check.sentence
    assert check.details["matter"] == f"{said}, and 1 more"
    verdict = decide(policy(TTFT), noisy, policy_digest="p", id_="g").variants[0]
    assert f"ttft_ms_p50 short x8 ratio ({said}, and 1 more)" in verdict.reason
    # Another load was not quiet: that says nothing of this one.
    other = with_loads(
        simple(*GOOD), load(), load(concurrency=1, quiet=Quiet(reasons=("7.0% was stolen",)))
    )
    assert checked(other).status == "PASS"
