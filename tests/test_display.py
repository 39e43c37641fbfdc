"""What a person sees of a run."""

import io
import logging
from pathlib import Path

import pytest
from builders import EMULATED, NATIVE, variant
from rich.console import Console

from workbench.display import (
    DRIVEN,
    ProgressLine,
    _Row,
    _State,
    artifact_line,
    duration,
    in_notebook,
    own_time,
    plan_table,
    verdict_table,
    watching,
)
from workbench.events import Events
from workbench.records import FAKE, Gate, Lane, Plan, PlanStep, VariantVerdict
from workbench.store import Results, write_record

PLAN = Plan(
    run="r",
    recipe_digest="d",
    steps=(
        PlanStep(
            kind="quantize",
            variant="fp8",
            id="a" * 64,
            cached=True,
            reason="same inputs",
            notebook="02_quantize.ipynb",
        ),
        PlanStep(
            kind="evaluate",
            variant="fp8",
            id="b" * 64,
            cached=False,
            reason="not done yet",
            notebook="03_evaluate.ipynb",
            estimate_seconds=90,
            estimate_memory_bytes=3 * 2**30,
        ),
    ),
)


def _console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=120, force_terminal=terminal, no_color=True), out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0s"),
        (59.4, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3900, "1h05m"),
        (float("inf"), "277777777h46m"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plan_table() -> None:
    console, out = _console()
    console.print(plan_table(PLAN))
    text = out.getvalue()
    assert "quantize:fp8" in text and "cached" in text and "same inputs" in text
    assert "~1m30s" in text and "~3.0 GiB" in text and "estimated 1m30s" in text


def test_verdict_table() -> None:
    lane = Lane(name="emulated", reason="", source="")
    verdict = VariantVerdict(
        variant="fp8", method="fp8", verdict="INCONCLUSIVE", reason="too few", lane=lane, checks=()
    )
    gate = Gate(
        id="",
        run="r",
        recipe="r",
        recipe_digest="",
        policy="p",
        policy_digest="",
        inputs={},
        variants=(verdict,),
    )
    console, out = _console()
    console.print(verdict_table(gate))
    for word in ("fp8", "emulated", "INCONCLUSIVE", "too few"):
        assert word in out.getvalue()
    assert "fake" not in out.getvalue()
    console.print(verdict_table(gate.model_copy(update={"warnings": (FAKE,)})))
    assert "(fake engine: says nothing about a model)" in " ".join(out.getvalue().split())


def test_the_folder_to_ship_is_named_for_go_alone(tmp_path: Path) -> None:
    run = Results(tmp_path).run("r")
    made = variant("fp8", {}).manifest
    assert made
    write_record(run.published("quantize", "fp8"), made)

    def line(verdict: str, lane: Lane, name: str = "fp8") -> str:
        found = VariantVerdict.model_validate(
            {"variant": name, "method": "fp8", "verdict": verdict, "reason": "", "checks": []}
            | {"lane": lane}
        )
        return artifact_line(found, run)

    assert "it is gone" in line("GO", NATIVE)
    (tmp_path / "checkpoint").mkdir()
    assert line("GO", NATIVE) == f"artifact of fp8: {tmp_path / 'checkpoint'}"
    assert "the twin is not what ships" in line("GO", EMULATED)
    assert not line("NO-GO", NATIVE) and not line("GO", NATIVE, "other")


def test_the_time_left_is_by_what_this_attempt_did() -> None:
    state = _State({"profile:fp8": _Row("profile:fp8")})

    def told(now: float, done: float, total: float, what: str) -> str:
        event = {"event": "progress", "step": "profile:fp8"}
        return state.apply(event | {"done": done, "total": total, "what": what}, now)

    state.apply({"event": "start", "step": "profile:fp8"}, 0)
    assert "left" not in told(10, 25, 62, "chat x1")  # 25 were there when it looked
    assert "left" not in told(20, 26, 62, "chat x8")
    # Ten in a hundred seconds, whatever the workloads are called; 27 are to come.
    assert told(110, 35, 62, "rag x1").endswith("35/62, ~4m30s left")
    # What turns out to be no work any more changes the total, and the clock begins anew.
    assert "left" not in told(120, 35, 50, "rag x8")
    assert told(150, 45, 50, "rag x8").endswith("45/50, ~15s left")


def test_no_share_of_next_to_nothing() -> None:
    assert own_time(16.4, 3.0) == (
        "the workbench itself took 13.4 s, beside 3.0 s in environments, quantizers and servers"
    )
    assert "6.0 s: 5.0% of the 120.0 s" in own_time(126, 120)


@pytest.mark.parametrize("terminal", [False, True])
def test_watching(tmp_path: Path, terminal: bool) -> None:
    console, out = _console(terminal)
    events = Events(tmp_path / "e.jsonl", "evaluate:fp8")
    with watching(PLAN, events.path, console):
        events.emit("start", why="changed since the last record: suites (sentiment)")
        events.emit("start")
        events.progress(3, 88, "sentiment")
        events.of("unknown:step").emit("start")
        events.emit("error", what="the server died [bold]not markup[/]")
    text = out.getvalue()
    assert "quantize:fp8" in text and "same inputs" in text
    assert "the server died [bold]not markup[/]" in text
    assert "unknown:step" not in text
    if not terminal:
        assert "evaluate:fp8: started - changed since the last record: suites (senti" in text
        assert text.count("started") == 1
        assert "\x1b" not in text


def test_plain_progress_is_thinned(tmp_path: Path) -> None:
    console, out = _console()
    events = Events(tmp_path / "e.jsonl", "evaluate:fp8")
    with watching(PLAN, events.path, console):
        events.emit("start")
        for done in range(200):
            events.emit("progress", done=done, total=200, what="sentiment")
        events.emit("done")
    assert len(out.getvalue().splitlines()) <= 5
    assert "evaluate:fp8: done in" in out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_remark_stays_beside_a_step_that_is_done(tmp_path: Path, terminal: bool) -> None:
    console, out = _console(terminal)
    events = Events(tmp_path / "e.jsonl", "evaluate:fp8")
    with watching(PLAN, events.path, console):
        events.emit("start")
        events.emit("remark", what="all points failed")
        events.emit("done")
    shown = out.getvalue().rpartition("✓")[2] if terminal else out.getvalue()
    assert "all points failed" in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_line(terminal: bool) -> None:
    console, out = _console(terminal)
    with ProgressLine(console) as progress:
        progress(0, 0, "starting")
        progress(148, 148, "installed")
    assert "installed" in out.getvalue()


def test_what_an_event_quotes_moves_no_cursor(tmp_path: Path) -> None:
    out = io.StringIO()
    with watching(PLAN, tmp_path / "events.jsonl", Console(file=out, width=200)):
        events = Events(tmp_path / "events.jsonl", PLAN.steps[0].name)
        events.emit("error", what="id '\x1b[2J\x9b' is wrong")
    assert r"id '\x1b[2J\x9b' is wrong" in out.getvalue()


def test_a_kernel_that_is_shut_down_writes_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driven by `run`, a kernel shares its standard error with the user's terminal."""
    logger = logging.getLogger("tornado.general")
    before = logger.level
    try:
        monkeypatch.delenv(DRIVEN, raising=False)
        with in_notebook("gate", tmp_path / "events.jsonl"):
            assert logger.level == before, "a notebook by hand keeps its own logging"
        monkeypatch.setenv(DRIVEN, "1")
        with in_notebook("gate", tmp_path / "events.jsonl"):
            assert not logger.isEnabledFor(logging.ERROR)
    finally:
        logger.setLevel(before)
