"""The event file: whole lines, in order, from several processes."""

import subprocess
import sys
from pathlib import Path

from workbench.events import EventReader, Events


def test_reader_sees_each_event_once(tmp_path: Path) -> None:
    events = Events(tmp_path / "run" / "events.jsonl", "gate")
    reader = EventReader(events.path)
    assert reader.new() == []
    events.emit("start")
    events.tool("ask", 1.23456)
    first = reader.new()
    assert [e["event"] for e in first] == ["start", "tool"]
    assert first[1]["seconds"] == 1.235
    assert first[0]["step"] == "gate"
    assert reader.new() == []


def test_a_reader_starts_at_the_end(tmp_path: Path) -> None:
    events = Events(tmp_path / "e.jsonl")
    events.emit("old")
    reader = EventReader(events.path)
    events.emit("new")
    assert [e["event"] for e in reader.new()] == ["new"]


def test_a_line_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"event": "a", "step": ""}\n{"event": "b"')
    reader = EventReader(path, from_end=False)
    assert [e["event"] for e in reader.new()] == ["a"]
    with path.open("a") as file:
        file.write(', "step": ""}\n')
    assert [e["event"] for e in reader.new()] == ["b"]


def test_a_torn_line_is_said_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"event": "a", "st')
    reader = EventReader(path, from_end=False)
    Events(path).emit("b")
    assert [e["event"] for e in reader.new()] == ["damaged", "b"]


def test_progress_is_thinned_but_never_loses_the_end(tmp_path: Path) -> None:
    events = Events(tmp_path / "e.jsonl")
    report = events.progress
    for done in range(1, 1001):
        report(done, 1000, "rows")
    found = EventReader(events.path, from_end=False).new()
    assert len(found) < 100
    assert found[-1]["done"] == 1000


def test_processes_share_the_file(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from workbench.events import Events\n"
        "for i in range(300): Events(pathlib.Path(sys.argv[1])).emit('x', text='y' * 2000, i=i)"
    )
    path = tmp_path / "e.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [w.wait() for w in writers] == [0, 0]
    found = EventReader(path, from_end=False).new()
    assert len(found) == 600
    assert {e["event"] for e in found} == {"x"}
