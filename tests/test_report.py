"""The report: complete, self-contained, unharmed by what models write, readable in a browser.

Goldens are `tests/golden/`; after a wanted change, `UPDATE_GOLDEN=1 pytest tests/test_report.py`
writes them anew, and the difference belongs in the review.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from builders import demo, edit, evidence, simple, table
from test_across import EARLIER, HALF
from test_across import TTFT as SLOWER
from test_across import run as later_run
from test_gate import TTFT, policy, quality, quality_policy

from workbench import __version__, collect, show
from workbench.across import across
from workbench.calibration_records import (
    Contamination,
    Dropped,
    Lengths,
    Overlap,
    OverlapPair,
    Strata,
    Stratum,
)
from workbench.context import new_run
from workbench.digest import sha256_text
from workbench.errors import StoreError
from workbench.evidence import Evidence, VariantEvidence
from workbench.gate import decide
from workbench.records import FAKE, Calibration, CalibrationRow, Choice, Environment, Gate
from workbench.report import record_html
from workbench.report.html import REGRESSIONS, render
from workbench.report.text import SHOWN, visible
from workbench.spec import SizeCheck
from workbench.store import dump_record

GOLDEN = Path(__file__).parent / "golden"


def judged(found: Evidence) -> Gate:
    return decide(quality_policy(found), found, policy_digest=sha256_text("p"), id_="gate-id")


def full_gate(found: Evidence) -> Gate:
    checks = policy(
        quality(suite="sentiment"),
        quality(suite="short_question", tier="supporting"),
        TTFT.model_copy(update={"tier": "advisory"}),
        SizeCheck(max_ratio=0.75),
    )
    return decide(checks, found, policy_digest=sha256_text("policy"), id_=sha256_text("gate"))


def calibration() -> Calibration:
    return Calibration(
        id="calibration",
        source="instructions",
        source_digest=sha256_text("source"),
        source_rows=20,
        tokenizer_digest=sha256_text("tokenizer"),
        template_digest=sha256_text("template"),
        seed=7,
        max_tokens=128,
        min_tokens=8,
        packing="truncate",
        strata=Strata(
            by="language",
            values={
                "en": Stratum(rows=15, quota=0.75, samples=12),
                "zh": Stratum(rows=5, quota=0.25, samples=4),
            },
        ),
        lengths=Lengths(
            rendered=(0, 0, 0, 15, 1, 0, 0, 0, 0, 0, 0),
            sealed=(0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0),
        ),
        contamination=Contamination(
            scope="sample",
            rows=16,
            limit=0.1,
            ngram=13,
            suites=(
                Overlap(
                    suite="sentiment",
                    suite_digest=sha256_text("suite"),
                    samples=80,
                    matched={"exact": 1, "ngram": 2},
                    short=3,
                    share=1 / 80,
                    ngram_share=2 / 80,
                    pairs=(
                        OverlapPair(row="7", sample="sent-001", kind="exact", text="<b>same</b>"),
                        OverlapPair(row="9", sample="sent-002", kind="ngram", text="a \u202eb"),
                    ),
                ),
            ),
        ),
        rows=tuple(
            CalibrationRow(
                row=str(i), text_digest="t", token_digest="t", tokens=100 + i, truncated=i == 0
            )
            for i in range(16)
        ),
        dropped={"shorter than 8 tokens": Dropped(count=3, rows=("a", "b", "c"))},
        seal=sha256_text("seal"),
        tokens_file="tokens.jsonl",
    )


def page(found: Evidence | None = None, **more: Any) -> str:
    found = found or demo()
    return render(full_gate(found), found, **more)


class _Text(HTMLParser):
    """The page's visible text, one line a block, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag in ("p", "tr", "h1", "h2", "h3", "summary", "footer", "figcaption", "strong"):
            self.parts.append("\n")
        elif tag in ("td", "th", "br"):
            self.parts.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "svg" not in self.open:
            self.parts.append(data.replace("\n", " "))

    @property
    def text(self) -> str:
        lines = "".join(self.parts).splitlines()
        return "\n".join(line for line in (" ".join(x.split()) for x in lines) if line)


def parse(document: str) -> _Text:
    parser = _Text()
    parser.feed(document)
    parser.close()
    assert not parser.open, f"left open: {parser.open}"
    return parser


def golden(name: str, found: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8"), f"{path} is no longer what comes out"


# ------------------------------------------------------------------------------ content


def _round(value: Any) -> Any:
    # Another machine's libm may differ in the last bits, which is no change of ours.
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {k: _round(v) for k, v in value.items()}
    return [_round(v) for v in value] if isinstance(value, list) else value


def test_golden_gate() -> None:
    data = _round(json.loads(dump_record(full_gate(demo()))))
    golden("gate.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def test_golden_report() -> None:
    document = page(
        calibration=calibration(),
        questions={"sentiment": {"sentiment-033": ("Is it good?", "yes")}},
    )
    golden("report.txt", parse(document).text.replace(__version__, "VERSION") + "\n")


def test_the_same_records_give_the_same_bytes() -> None:
    assert page(calibration=calibration()) == page(calibration=calibration())
    found = demo()
    backwards = replace(
        found,
        variants=tuple(
            replace(v, rows={s: r[::-1] for s, r in v.rows.items()}) for v in found.variants
        ),
        baseline=replace(found.baseline, rows={s: r[::-1] for s, r in found.baseline.rows.items()}),
    )
    assert page(backwards) == page(found)


def test_it_answers_in_the_order_a_reader_asks() -> None:
    text = parse(page(calibration=calibration())).text
    order = [
        "NO-GO",
        "may ship: fp8",
        "may not ship: broken",
        "not enough evidence: gptq",
        "How much was lost",
        "Checks",
        "Scores, pair by pair",
        "What got worse",
        "How fast is it",
        "What does a saved byte cost?",
        "What was it calibrated on?",
        "How it was measured",
        "Where it came from",
        sha256_text("gate"),
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_every_check_is_there_with_status_word_interval_and_n() -> None:
    found = demo()
    gate = full_gate(found)
    text = parse(render(gate, found)).text
    for verdict in gate.variants:
        assert verdict.reason in text
        for check in verdict.checks:
            assert check.sentence.removeprefix(f"{check.name}: ") in text
            assert f"{check.status} |" in text
    assert "+37.5 | [+27.5, +47.3] | +10.0 | 80" in text
    # How it was measured and where it came from.
    for part in (
        "emulated: the W4A16 kernel is only in the AVX-512 build (source: measured)",
        "vllm 0.32.0",
        "float32: bfloat16 is emulated on this CPU",
        "AMD EPYC x2 [avx2]",
        "vllm.entrypoints.openai.api_server --api-key ***",
        "llmcompressor 0.14.0.1",
        *gate.inputs,
        *gate.inputs.values(),
    ):
        assert part in text


def test_an_automatic_choice_is_shown_with_its_reason() -> None:
    found = demo()
    manifest = found.variants[0].manifest
    assert manifest
    chosen = {"group_size": Choice(value="64", reason="128 does not divide 576")}
    found = edit(found, manifest=manifest.model_copy(update={"choices": chosen}))
    assert "group_size 64 (128 does not divide 576)" in parse(page(found)).text


def test_a_suite_that_is_not_gated_is_named() -> None:
    found = demo()
    gate = decide(policy(quality(suite="sentiment")), found, policy_digest="p", id_="g")
    assert "Asked but not gated by this policy: short_question." in parse(render(gate, found)).text
    assert "not gated" not in parse(render(judged(found), found)).text


def test_the_folder_that_ships_is_named() -> None:
    text = parse(page()).text
    assert "| native | checkpoint" in text
    assert "emulated | checkpoint | a dequantized twin of it was served" in text
    assert "not what ships" not in parse(page(simple([1.0] * 40, [1.0] * 40))).text


def test_a_limit_and_the_digest_of_each_suite_are_shown() -> None:
    found = demo()
    digest = sha256_text("suite sentiment")
    assert f'title="{digest}"' in page(found)
    assert "evaluate.limit" not in page(found)

    def capped(side: VariantEvidence) -> VariantEvidence:
        assert side.evaluation
        results = tuple(r.model_copy(update={"samples": 500}) for r in side.evaluation.suites)
        changed = side.evaluation.model_copy(update={"suites": results})
        return replace(side, evaluation=changed)

    found = replace(
        found, baseline=capped(found.baseline), variants=tuple(map(capped, found.variants))
    )
    text = parse(page(found)).text
    assert "only the first 80 of its 500 samples (evaluate.limit)" in text
    assert "80 | the first of 500" in text


def test_a_verdict_of_a_fake_says_so_in_its_heading() -> None:
    gate = full_gate(demo())
    fake = gate.model_copy(update={"warnings": (FAKE,)})
    heading = "NO-GO (fake engine: says nothing about a model)"
    assert heading in parse(render(fake, demo())).text
    assert heading in record_html(fake)
    assert "fake" not in parse(render(gate, demo())).text + record_html(gate)


def test_regressions_are_counted_and_cut() -> None:
    text = parse(page()).text
    assert "broken, sentiment: 30 of 80 worse, 0 better" in text
    assert text.count("| right score 1, stop |") > REGRESSIONS
    assert f"and {30 - REGRESSIONS} more in variants/broken/eval/sentiment.jsonl" in text
    asked = {"sentiment": {"sentiment-062": ("Is <b>it</b> good?", "yes")}}
    with_questions = parse(page(questions=asked)).text
    assert "Is <b>it</b> good?" in with_questions and "asked | expected" in with_questions


def test_the_numbers_travel_with_the_figures() -> None:
    links = [a for tag, a in parse(page()).tags if tag == "a"]
    assert [a["download"] for a in links] == ["checks.csv", "latency.csv"]
    tables = [base64.b64decode((a["href"] or "").split(",")[1]).decode() for a in links]
    assert tables[0].splitlines()[0].startswith("variant,check,kind,tier,status,value,low,high")
    assert len(tables[0].splitlines()) == 1 + 3 * 5
    assert tables[1].splitlines()[1].startswith("baseline,short,x1,closed,1,16,16,")
    assert "gptq" not in tables[1]  # emulated: its speed is a twin's


@pytest.mark.parametrize(
    "spoil",
    [
        lambda e: edit(e, evaluation=None, profile=None, manifest=None, rows={}),
        lambda e: replace(e, variants=()),
        lambda e: replace(e, baseline=replace(e.baseline, evaluation=None, rows={}, profile=None)),
        lambda e: edit(e, profile=None),
        lambda e: replace(e, repeat_rows={}),
    ],
    ids=["nothing of a variant", "no variant", "no baseline", "no profile", "no repeat"],
)
def test_what_is_missing_is_said_not_hidden(spoil: Any) -> None:
    found = spoil(demo())
    text = parse(page(found)).text
    assert text.startswith("NO-GO - ") or text.startswith("INCONCLUSIVE - ")
    assert "None" not in text


# ------------------------------------------------------------------------------ alone and safe


def test_nothing_is_loaded_and_nothing_runs() -> None:
    document = page(calibration=calibration())
    assert len(document.encode()) < 1_000_000
    parsed = parse(document)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "img", "form", "base"}
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action"):
                assert (value or "").startswith(("#", "data:text/csv;base64,")), (tag, value)
    assert "@import" not in document
    assert not re.search(r"url\((?!#)", document)
    assert "default-src 'none'" in document


def test_status_is_never_by_colour_alone() -> None:
    for css, words in re.findall(r'class="badge (\w+)">([^<]+)<', page()):
        sign, word = words.split(" ", 1)
        assert sign in "✓✕?∅≠" and word.isupper(), (css, words)


HOSTILE = {
    "script": "<script>alert(1)</script><img src=http://evil.invalid/x onerror=alert(1)>",
    "breaks out": "</bdi></td></table></style></title><h1>GO</h1><!--",
    "workflow command": "::error::fake\n::set-output name=x::y",
    "terminal": "\x1b[31mred\x1b[0m\x07\x08\x00",
    "direction": "safe \u202egnp.exe\u2066 \u200b hidden",
    "template": "{{ 7*7 }} {% raw %}",
    "entities": "&lt;b&gt; &amp; \"quotes\" 'single'",
    "long": "A" * 100_000,
    "one line": "é" * 3_000 + "\u0301" * 300,
}


def hostile() -> Evidence:
    names = [f"sentiment-{i:03d}" for i in range(33, 33 + len(HOSTILE))]
    return demo(dict(zip(names, HOSTILE.values(), strict=True)))


def test_what_a_model_wrote_is_only_text() -> None:
    document = page(hostile())
    document.encode("utf-8")
    parsed = parse(document)
    tags = [tag for tag, _ in parsed.tags]
    assert sorted(set(tags)) == sorted({tag for tag, _ in parse(page()).tags})
    assert tags.count("h1") == 1
    # All there as text, and what hides is spelled out.
    assert HOSTILE["script"] in parsed.text and HOSTILE["breaks out"] in parsed.text
    assert "{{ 7*7 }} {% raw %}" in parsed.text
    assert "U+001B[31mredU+001B[0mU+0007U+0008U+0000" in parsed.text
    assert "safe U+202Egnp.exeU+2066 U+200B hidden" in parsed.text
    assert "::error::fake" in parsed.text
    assert not [c for c in document if c in "\x00\x07\x08\x1b\u202e\u2066\u200b"]
    assert f"{100_000 - SHOWN:,} more characters" in parsed.text
    assert "A" * SHOWN in document and "A" * (SHOWN + 1) not in document
    assert len(document) < 1_000_000


def test_visible_keeps_lines_and_says_empty() -> None:
    assert visible("a\n\tb & c") == '<bdi class="text">a\n\tb &amp; c</bdi>'
    assert "empty" in visible("")
    assert "more characters" not in visible("x" * SHOWN)
    assert "1 more characters" in visible("x" * (SHOWN + 1))
    assert "U+2028" in visible("a\u2028b")
    assert "U+D83D" in visible("half \ud83d a pair")


def test_names_from_records_are_escaped_too() -> None:
    found = demo()
    evaluation = found.variants[0].evaluation
    assert evaluation
    serving = evaluation.serving.model_copy(
        update={"hardware": "<i>cpu</i>", "kernels": ("<b>k</b>",), "command": ("<u>", "\x1b[2J")}
    )
    found = edit(found, evaluation=evaluation.model_copy(update={"serving": serving}))
    parsed = parse(page(found, title="<em>t</em>"))
    assert not {"i", "em", "u"} & {tag for tag, _ in parsed.tags}
    assert "<i>cpu</i>" in parsed.text and "<em>t</em>" in parsed.text
    assert "<u> U+001B[2J" in parsed.text


# ------------------------------------------------------------------------------ cards


def test_cards_show_each_record_in_html_and_text() -> None:
    found = demo()
    first = found.variants[1]
    records = [calibration(), first.manifest, first.evaluation, first.profile, full_gate(found)]
    expected = [
        ("Calibration set", "16 of at most 128 tokens"),
        ("Variant gptq", "112.0 MB"),
        ("Evaluation of gptq", "73.8 %"),
        ("Profile of gptq", "these figures are the twin's"),
        ("Verdict: NO-GO", "lost 37.5 points, 10.0 accepted"),
    ]
    for record, parts in zip(records, expected, strict=True):
        assert record is not None
        card = show(record)
        markup = card._repr_html_()
        parse(markup)
        assert "http" not in markup and "<script" not in markup
        for part in parts:
            assert part in repr(card)
            assert part in html.unescape(markup)
    baseline = found.baseline.evaluation
    assert baseline is not None and "asked again" in repr(show(baseline))


def test_cards_escape_and_refuse_what_has_no_card() -> None:
    found = simple(*table(60, 2, 2, 16))
    manifest = found.variants[0].manifest
    assert manifest
    markup = record_html(manifest.model_copy(update={"options": {"ignore": "<script>x</script>"}}))
    assert "<script" not in markup and "&lt;script&gt;" in markup
    environment = Environment(
        name="vllm", target="cpu", lock_digest="d", python="p", python_version="3.11",
        packages={}, created_seconds=1.0,
    )  # fmt: skip
    with pytest.raises(TypeError, match="Environment has no card"):
        show(environment)
    assert "INCONCLUSIVE" in repr(show(judged(evidence({"suite": [1.0]}))))


# ------------------------------------------------------------------------------ two runs


def comparison(**changes: Any) -> str:
    """The page of a run that an upgrade cost half of its answers."""
    later = later_run(scores=HALF, hardware="NVIDIA L4 (sm8.9)", **changes)
    found, _ = across(EARLIER, later, "before", ("fp8",))
    gate = decide(policy(quality(), SLOWER), found, policy_digest="p", id_="g")
    return render(gate, found)


def test_a_comparison_says_which_runs_versions_and_machines() -> None:
    document = comparison()
    said = parse(document).text
    assert "Upgrade verdict: b (compared with run before)" in said
    assert "Run b is judged, and run before stands for the baseline" in said
    (row,) = re.findall(r"<tr><th scope=\"row\">fp8</th><td>fp8 of run before</td>.*", document)
    assert "vllm 0.32.0, environment" in row and "→ vllm 0.33.0, environment" in row
    assert "AMD EPYC x2 [avx2] → NVIDIA L4 (sm8.9)" in row
    assert f"<td>{sha256_text('fp8 weights')[:8]}" in row, "one and the same weights"
    assert "<td>native</td>" in row
    both = "asked under vllm 0.32.0 and vllm 0.33.0 on AMD EPYC x2 [avx2] and NVIDIA L4 (sm8.9)"
    assert both in said
    assert "workbench compare decides again" in said


def test_a_comparison_shows_losses_and_answers_against_the_earlier_run() -> None:
    document = comparison()
    said = parse(document).text
    assert "fp8, suite: 40 of 80 worse, 0 better" in said
    assert "Samples the variant answers worse than the earlier run" in said
    assert document.count("<svg") == 2, "losses and latency; the size is one and the same"
    assert "loss of the mean score against the earlier run, points" in document
    for words in (
        "What does a saved byte cost?",
        "worse than the baseline",
        "paired with baseline",
    ):
        assert words not in said
    # Nothing is shown of the baseline that there is none of.
    assert '<th scope="row"></th><td colspan' not in document and "<h3></h3>" not in document
    alike = comparison(version="0.32.0")
    assert "<td>vllm 0.32.0, environment" in alike and "vllm 0.32.0 and" not in alike


# ------------------------------------------------------------------------------ in a real browser


def _browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if os.environ.get("CI"):
        pytest.fail("CI must have a browser: apt-get install chromium")
    pytest.skip("no chromium on PATH (apt-get install chromium); CI opens the report in one")


@contextmanager
def _proxy() -> Iterator[tuple[int, list[str]]]:
    """A proxy that answers nothing and remembers what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.requestline)
            self.send_response(404)
            self.end_headers()

        do_CONNECT = do_POST = do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def browse(path: Path, profile: Path) -> tuple[str, list[str]]:
    """Open a page in Chromium; returns its DOM and every request that was not the browser's own."""
    with _proxy() as (port, asked):
        done = subprocess.run(
            [
                _browser(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={profile}",
                f"--proxy-server=http://127.0.0.1:{port}",
                "--proxy-bypass-list=<-loopback>",
                "--virtual-time-budget=2000",
                "--dump-dom",
                path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    own = re.compile(r"^\w+ (https?://)?([\w-]+\.)*(google|googleapis|gstatic)\.com[:/]")
    return done.stdout, [line for line in asked if not own.match(line)]


def test_a_browser_shows_it_and_asks_nobody(tmp_path: Path) -> None:
    # First that the listening works at all.
    control = tmp_path / "control.html"
    control.write_text('<p>hello<img src="http://example.invalid/x.png">')
    dom, asked = browse(control, tmp_path / "one")
    assert "hello" in dom and any("example.invalid" in line for line in asked)

    report = tmp_path / "report.html"
    report.write_bytes(page(hostile(), calibration=calibration()).encode())
    dom, asked = browse(report, tmp_path / "two")
    assert asked == []
    banner = re.search(r'<div class="banner fail" id="verdict">(.*?)</div>', dom, re.S)
    assert banner and "NO-GO" in banner[1] and "may ship: <b>fp8</b>" in banner[1]
    assert dom.count("<svg") == 4 and "<script" not in dom


def test_a_browser_shows_a_comparison_and_asks_nobody(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_bytes(comparison().encode())
    dom, asked = browse(report, tmp_path / "profile")
    assert asked == []
    banner = re.search(r'<div class="banner fail" id="verdict">(.*?)</div>', dom, re.S)
    assert banner and "NO-GO (compared with run before)" in banner[1]
    assert "may not ship: <b>fp8</b>" in banner[1]
    assert dom.count("<svg") == 2 and "<script" not in dom


def test_a_report_of_an_unfinished_run_names_the_command(project: Path) -> None:
    with pytest.raises(StoreError, match=r"run 'smoke' has no verdict \(none yet, or") as caught:
        collect.report(new_run(project / "recipe.yaml"))
    assert caught.value.fix.startswith(f"workbench run {project / 'recipe.yaml'}")
