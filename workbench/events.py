"""`events.jsonl`: what a run does, line by line, written by every process that works on it.

One short line per event, appended in one write, so that a notebook's kernel and the command that
started it can share the file. The live table reads it while it grows; afterwards it tells how long
the tools took and how long the workbench itself did.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from workbench.progress import Progress
from workbench.store import disk_errors

#: Longest text of one field: a line stays far below what one append writes whole.
_MAX_TEXT = 1500


class Events:
    """Appends to one run's event file.

    Args:
        path: the file; its folder is made.
        step: name of the step that writes, e.g. ``evaluate:fp8``.
    """

    def __init__(self, path: Path, step: str = "") -> None:
        self.path = path
        self.step = step
        self._last_progress = 0.0

    def of(self, step: str) -> Events:
        """The same file for another step."""
        return Events(self.path, step)

    def emit(self, event: str, **data: Any) -> None:
        """Append one event with the wall-clock time."""
        data = {k: v[:_MAX_TEXT] if isinstance(v, str) else v for k, v in data.items()}
        line = json.dumps(
            {"time": round(time.time(), 3), "event": event, "step": self.step, **data}
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors(self.path):
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, self._gap() + line.encode() + b"\n")
            finally:
                os.close(handle)

    def _gap(self) -> bytes:
        """A newline where a crash left the last line without one, so that this one stays whole."""
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return b""
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"

    def tool(self, name: str, seconds: float) -> None:
        """Record time spent in a quantizer or a server rather than in the workbench."""
        self.emit("tool", name=name, seconds=round(seconds, 3))

    @property
    def progress(self) -> Progress:
        """A progress callback that writes at most four lines a second."""

        def report(done: float, total: float, what: str) -> None:
            now = time.monotonic()
            if now - self._last_progress >= 0.25 or (total and done >= total):
                self._last_progress = now
                self.emit("progress", done=done, total=total, what=what)

        return report


class EventReader:
    """Reads the events appended since the last call; a line still being written waits."""

    def __init__(self, path: Path, *, from_end: bool = True) -> None:
        self.path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """The complete events since the last call, oldest first."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        events = []
        for line in data[:whole].splitlines():
            if not line:
                continue  # a gap that two writers closed at the same time
            try:
                events.append(json.loads(line))
            except ValueError:
                # A crash can tear one line; the next one starts behind it. Say so, go on.
                events.append({"event": "damaged", "step": "", "time": 0.0})
        return events
