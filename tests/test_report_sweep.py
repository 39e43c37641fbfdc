"""Serving configurations as rows, table, figure and page, and which of them nothing beats."""

import re
from dataclasses import replace
from typing import Any

import pytest
from builders import EMULATED, serving, simple, table
from test_gate import GOOD, TTFT, policy
from test_load_stats import QUICK, figures, repeat
from test_report_loads import hit_rates, load, with_loads

from workbench.arrivals import ClosedLoop
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.load_records import LoadSummary, Quiet
from workbench.records import Configuration, Profile
from workbench.report import sweep
from workbench.report.cards import record_html, record_text
from workbench.report.html import render
from workbench.sweep_rows import SweepRow, has_sweep, recovery, sweep_rows
from workbench.sweep_table import COLUMNS, _line

FAST = {"sent": 0.0, "token_times": [0.1, 0.2, 0.3], "last_byte": 0.3, "output_tokens": 3}
SLOW = {"sent": 0.0, "token_times": [0.4, 0.6, 0.9], "last_byte": 0.9, "output_tokens": 3}


def done(request: dict[str, Any], concurrency: int = 8) -> LoadSummary:
    made = figures(
        repeat(request, request), arrivals=ClosedLoop(concurrency=concurrency), draws=QUICK
    )
    return made.model_copy(update={"workload": "short"})


def configuration(*loads: LoadSummary, **changes: Any) -> Configuration:
    values: dict[str, Any] = {
        "options": {"max_num_seqs": 8},
        "status": "measured",
        "weights": "w",
        "serving": serving("w", kv_cache_tokens=4096),
        "loads": loads,
        "peak_memory_bytes": 900_000_000,
        "seconds": 9.0,
    }
    return Configuration(**(values | changes))


def evidence(*sweep: Configuration, **changes: Any) -> Evidence:
    """A variant that was swept, beside a baseline that was not."""
    found = with_loads(simple(*GOOD), done(SLOW))
    (variant,) = found.variants
    assert variant.profile is not None
    profile = variant.profile.model_copy(update={"sweep": sweep} | changes)
    return replace(found, variants=(replace(variant, profile=profile),))


def of_variant(found: Evidence) -> list[SweepRow]:
    return [row for row in sweep_rows(found) if row.side is found.variants[0]]


def test_quality_is_mean_paired_recovery_against_the_reference() -> None:
    found = simple(*table(60, 20, 4, 16))
    base, variant = found.baseline, found.variants[0]
    (suite,) = variant.rows
    assert recovery(found, variant) == pytest.approx(64 / 80)
    assert recovery(found, base) == 1.0
    # A row that is missing makes the suite unpaired, and then nothing is told.
    short = replace(variant, rows={suite: variant.rows[suite][:-1]})
    assert recovery(replace(found, variants=(short,)), short) is None
    assert recovery(found, replace(variant, evaluation=None)) is None


def test_what_nothing_beats_is_on_the_front() -> None:
    found = evidence(
        configuration(done(FAST)),
        configuration(done(FAST), options={"max_num_seqs": 9}, peak_memory_bytes=950_000_000),
        configuration(done(SLOW), options={"max_num_seqs": 2}, peak_memory_bytes=800_000_000),
    )
    rows = of_variant(found)
    assert [row.label for row in rows] == [
        *("the recipe's own", "max_num_seqs 8", "max_num_seqs 9", "max_num_seqs 2")
    ]
    assert [row.on_front for row in rows] == [False, True, False, True]
    assert {row.quality for row in rows} == {recovery(found, found.variants[0])}


def test_of_two_that_are_as_fast_and_as_large_the_better_one_is_on_the_front() -> None:
    found = with_loads(simple(*table(60, 20, 4, 16)), done(FAST))
    base, variant = sweep_rows(found)
    assert (base.quality, variant.quality) == (1.0, 0.8)
    assert base.memory_bytes == variant.memory_bytes
    assert (base.on_front, variant.on_front) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"kv_cache_dtype": "fp8"}},  # no suite was asked under it
        {"loads": (load(),)},  # a request was refused
        {"peak_memory_bytes": None},
        {"serving": serving("w", EMULATED)},
        {"serving": None},
        {"error": "it died", "status": "failed"},
    ],
)
def test_what_is_not_known_whole_is_on_no_front(changes: dict[str, Any]) -> None:
    own, *others = of_variant(evidence(configuration(done(FAST), **changes)))
    assert [row.on_front for row in others] == [False]
    assert of_variant(evidence(configuration(done(FAST))))[1].on_front
    if "options" in changes:
        assert others[0].quality is None and own.quality is not None


def test_where_one_has_device_memory_the_others_resident_memory_is_none() -> None:
    found = evidence(configuration(done(FAST), peak_gpu_bytes=5_000), peak_gpu_bytes=6_000)
    own, other = of_variant(found)
    assert (own.memory_bytes, other.memory_bytes) == (6_000, 5_000)
    assert [r.memory_bytes for r in sweep_rows(found) if r.side is found.baseline] == [None]


def test_a_server_without_a_load_has_a_row_of_its_own() -> None:
    failed = configuration(status="failed", error="no memory", serving=None)
    _, other = of_variant(evidence(failed))
    assert other.load is None and other.error == "no memory" and not other.on_front


def test_the_page_shows_table_curves_failures_and_what_was_left_out() -> None:
    nasty = {"method": "ngram", "model": "<script>x</script>"}
    found = evidence(
        configuration(done(FAST), done(FAST, 1)),
        configuration(done(SLOW), options={"speculative": nasty}),
        configuration(
            status="failed",
            error="the server ended; it said:\n    OutOfMemoryError: <b>3 GiB",
            options={"max_num_seqs": 512},
            serving=None,
        ),
    )
    gate = decide(policy(TTFT), found, policy_digest="p", id_="g")
    page = render(gate, found)
    assert "What do other serving options change?" in page
    assert "measured under the recipe's own serving options" in page
    assert "max_num_seqs 8" in page and "4,096" in page and "900" in page
    assert "OutOfMemoryError: &lt;b&gt;3 GiB" in page
    assert "<script>" not in page and "<b>3" not in page
    assert page == render(gate, found)
    section = sweep.section(found)
    assert section is not None and section.figure is not None
    assert "on the Pareto front" in section.figure and " x8" in section.figure
    assert section.failed[0][:2] == ("fp8", "max_num_seqs 512")
    lines = {(row[1], row[2]): row for row in section.table[1:] if row[0] == "fp8"}
    assert lines["max_num_seqs 8", "short x8"][-1] == "yes"
    assert lines["the recipe's own", "short x8"][-1] == ""
    # The verdict is the one without the sweep, to the last figure.
    plain = with_loads(simple(*GOOD), done(SLOW))
    without = decide(policy(TTFT), plain, policy_digest="p", id_="g")
    assert gate == without
    assert "What do other serving options change?" not in render(without, plain)
    assert not has_sweep(plain) and sweep.section(plain) is None
    left = evidence(not_swept="not swept: llamacpp takes none of these serving options")
    assert "not swept: llamacpp takes none" in render(gate, left)


def test_what_was_not_quiet_is_marked_in_table_curves_and_card() -> None:
    noisy = done(FAST, 1).model_copy(update={"quiet": Quiet(reasons=("7.0% was stolen",))})
    found = evidence(configuration(done(FAST), noisy))
    section = sweep.section(found)
    assert section is not None and section.figure is not None
    at = section.table[0].index("machine")
    said = {(row[1], row[2]): (row[at], row[-1]) for row in section.table[1:]}
    assert said["max_num_seqs 8", "short x1"] == ("not quiet", "yes")
    assert said["max_num_seqs 8", "short x8"] == ("", "yes")
    assert "the machine was not quiet" in section.figure
    quiet = sweep.section(evidence(configuration(done(FAST))))
    assert quiet is not None and "not quiet" not in str(quiet.figure)
    page = render(decide(policy(TTFT), found, policy_digest="p", id_="g"), found)
    assert "a difference within the spread of the repeats decides nothing" in page
    profile = found.variants[0].profile
    assert profile is not None
    assert "not quiet" in [row[-1] for row in sweep.card_rows(profile)]


def test_the_hit_rate_of_the_prefix_cache_is_in_table_card_and_frame() -> None:
    hits = done(FAST).model_copy(update={"usage": hit_rates(0.25)})
    found = evidence(configuration(hits, options={"prefix_caching": True}))
    section = sweep.section(found)
    assert section is not None
    at = section.table[0].index("prefix hits")
    assert [row[at] for row in section.table[1:]].count("25.0 %") == 1
    profile = found.variants[0].profile
    assert profile is not None
    head, row = sweep.card_rows(profile)
    assert row[head.index("prefix hits")] == "25.0 %"
    own, swept = (_line(row) for row in of_variant(found))
    assert own["prefix_cache_hit_rate"] is None and swept["prefix_cache_hit_rate"] == 0.25
    assert "prefix_cache_hit_rate" in COLUMNS
    # No server told one: no column of dashes.
    untold = sweep.section(evidence(configuration(done(FAST))))
    assert untold is not None and "prefix hits" not in untold.table[0]


def test_a_line_goes_through_its_concurrencies_in_order() -> None:
    loads = (done(SLOW, 8), done(FAST, 1), done(SLOW, 16))
    curve = sweep.Curve("own", 1, 0, loads, frozenset({("short", "x1")}))
    drawn = sweep.curves_figure([curve], "sweep")
    assert drawn is not None and drawn == sweep.curves_figure([curve], "sweep")
    assert " x16" in re.sub(r"\s+", " ", drawn) and " x8" not in drawn
    assert "on the Pareto front" in drawn
    assert sweep.curves_figure([replace(curve, loads=())], "sweep") is None
    other = sweep.curves_figure([replace(curve, loads=loads[1:])], "sweep")
    assert other is not None and other != drawn


def test_a_profiles_card_shows_its_configurations() -> None:
    failed = configuration(
        status="failed",
        error="the server ended; it last said:\n    starting\n    ValueError: 2 < 4\n    bye",
        options={"max_num_seqs": 4, "max_num_batched_tokens": 2},
        serving=None,
    )
    (variant,) = evidence(configuration(done(FAST)), failed).variants
    assert isinstance(variant.profile, Profile)
    said = record_text(variant.profile)
    assert "max_num_seqs 8" in said and "4,096" in said
    assert "failed: the server ended; it last said: ValueError: 2 < 4" in said
    assert "<svg" in record_html(variant.profile)
    assert sweep.first_line("nothing more") == "nothing more"
    (plain,) = with_loads(simple(*GOOD), done(SLOW)).variants
    assert plain.profile is not None
    assert sweep.card_rows(plain.profile) == [] and "<svg" not in record_html(plain.profile)
    left = plain.profile.model_copy(update={"not_swept": "not swept: it is emulated"})
    assert "not swept: it is emulated" in record_text(left)
