"""Figures: the same bytes twice, well-formed, text as text, nothing by colour alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import pytest
from builders import demo, edit, evidence, point, profile, simple, table
from test_gate import quality_policy

from workbench import plots
from workbench.digest import sha256_text
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.records import Gate


def judged(found: Evidence) -> Gate:
    return decide(quality_policy(found), found, policy_digest="p", id_="g")


FIGURES: dict[str, Callable[[Evidence], str | None]] = {
    "forest": lambda e: plots.forest(judged(e)),
    "latency": plots.latency,
    "size": lambda e: plots.size_and_loss(judged(e), e),
}


def drawn(name: str, found: Evidence | None = None) -> str:
    svg = FIGURES[name](found or demo())
    assert svg is not None
    return svg


def words(svg: str) -> str:
    return " ".join(t.strip() for t in ElementTree.fromstring(svg).itertext() if t.strip())


@pytest.mark.parametrize("name", FIGURES)
def test_two_runs_give_the_same_bytes(name: str) -> None:
    here = drawn(name)
    assert here == drawn(name)
    code = (
        f"import sys; from test_plots import drawn; sys.stdout.write(drawn({name!r})); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    there = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=__file__.rsplit("/", 1)[0],
        check=True,
    )
    assert there.stdout == here


@pytest.mark.parametrize("name", FIGURES)
def test_it_can_be_inlined(name: str) -> None:
    svg = drawn(name)
    ElementTree.fromstring(svg)
    assert svg.startswith("<svg") and 'role="img"' in svg and "aria-label" in svg
    assert "<metadata" not in svg and "<!DOCTYPE" not in svg
    assert not re.search(r'(?:src|href)="(?!#)', svg)
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert len(ids) == len(set(ids)) and all(i.startswith(f"{name}-") for i in ids)
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert {a or b for a, b in used} <= set(ids)
    # Every colour follows the page into dark mode.
    bare = re.sub(r"var\(--[a-z0-9]+, #[0-9a-f]{6}\)", "", svg)
    assert not re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", bare.replace("#000000", ""))


def test_no_two_figures_share_an_id() -> None:
    ids = [i for name in FIGURES for i in re.findall(r'\bid="([^"]+)"', drawn(name))]
    assert len(ids) == len(set(ids))


def test_drawing_leaves_no_trace_in_the_settings() -> None:
    before = dict(matplotlib.rcParams)
    for name in FIGURES:
        drawn(name)
    assert dict(matplotlib.rcParams) == before


def test_the_forest_says_in_words_what_it_shows() -> None:
    text = words(drawn("forest"))
    for part in ("sentiment", "short_question", "fp8", "gptq", "broken", "n 80", "n 64"):
        assert part in text
    assert "+37.5" in text and "FAIL" in text and "PASS" in text and "INCONCLUSIVE" in text
    for verdict in judged(demo()).variants:
        for check in (c for c in verdict.checks if c.kind == "quality"):
            assert check.value is not None and check.high is not None
            assert plots._signed(check.value) in text and plots._signed(check.high) in text


def test_the_margin_is_drawn_where_the_policy_puts_it() -> None:
    """The dashed line's x in the drawing is the margin on the axis."""
    svg = drawn("forest", simple(*table(60, 2, 2, 16)))
    dashed = re.search(r'd="M ([\d.]+) [^"]*"[^>]*stroke-dasharray[^>]*', svg)
    assert dashed is not None
    ticks = {
        float(label.replace("\N{MINUS SIGN}", "-")): float(x)
        for x, label in re.findall(
            r'<use [^>]*?x="([\d.]+)".*?<text [^>]*>([^<]+)</text>', svg, re.S
        )
        if re.fullmatch(r"[\N{MINUS SIGN}\d.]+", label)
    }
    (a, xa), (b, xb) = sorted(ticks.items())[0], sorted(ticks.items())[-1]
    at = a + (float(dashed[1]) - xa) / (xb - xa) * (b - a)
    assert at == pytest.approx(10, abs=0.1)


def test_latency_leaves_out_what_was_emulated_and_shows_what_failed() -> None:
    text = words(drawn("latency"))
    assert "fp8" in text and "broken" in text and "gptq" not in text
    assert "lower is better" in text and "higher is better" in text and "failed" not in text
    weights = sha256_text("fp8 weights")
    points = (point(concurrency=1), point(concurrency=8, completed=13, failed=3))
    found = edit(demo(), profile=profile("fp8", weights, points=points))
    assert "3 failed" in words(drawn("latency", found))


def test_nothing_to_draw_is_none() -> None:
    found = edit(simple(*table(60, 2, 2, 16)), evaluation=None, profile=None)
    bare = replace(found, baseline=replace(found.baseline, profile=None))
    assert plots.forest(judged(bare)) is None
    assert plots.latency(bare) is None
    assert plots.size_and_loss(judged(bare), bare) is None
    assert plots.forest(judged(evidence({"suite": [1.0]}))) is None


def test_odd_values_draw_without_a_warning() -> None:
    found = simple(*table(80, 0, 0, 0))
    weights = sha256_text("fp8 weights")
    odd = (
        point(
            concurrency=1,
            completed=0,
            failed=16,
            ttft_ms_p50=None,
            ttft_ms_p95=None,
            tpot_ms_p50=None,
            tpot_ms_p95=None,
            output_tokens_per_s=None,
        ),
        point("long", 64),
    )
    found = edit(found, profile=profile("fp8", weights, points=odd))
    for name in FIGURES:
        ElementTree.fromstring(drawn(name, found))
    many = evidence(
        {"suite": [1.0] * 80},
        *(replace(simple(*table(80, 0, 0, 0)).variants[0], variant=f"v{i}") for i in range(9)),
    )
    assert "v8" in words(drawn("latency", many))
