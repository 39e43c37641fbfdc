"""Follows llm-compressor from the outside: its log lines and its progress bars.

It offers no callback. What it logs and draws tells which layer it is at, and what it did not do.
"""

from __future__ import annotations

import re
from typing import Any

from _job import Job

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_FALLBACK = re.compile(r"Hessian inversion failed for (\d+)/")
_SKIPPED = re.compile(r"^(\d+) mappings were skipped")
_BAR = re.compile(r"\((\d+)/(\d+)\): (Calibrating|Propagating)")
_GRID = re.compile(r"Grid search for (\S+)")
#: Share of a layer's time in each phase, as begin and end; AWQ searches between the passes.
_PHASES = {"Calibrating": (0.0, 0.5), "Propagating": (0.5, 1.0)}
_AWQ_PHASES = {"Calibrating": (0.0, 0.05), "Smoothing": (0.05, 0.95), "Propagating": (0.95, 1.0)}


class Follower:
    """Turns the tool's log and bars into progress, and counts what it changed or left out.

    Args:
        job: told how far it is.
        method: of the variant.
        modules: how many are to be quantized.
        layers: of the model.

    Attributes:
        fallback: how many modules were rounded to nearest because GPTQ's Hessian had no inverse.
        smoothed: names of the modules that AWQ or SmoothQuant scaled.
        skipped: how many of AWQ's mappings were left out.
    """

    def __init__(self, job: Job, method: str, modules: int, layers: int) -> None:
        self.fallback = 0
        self.smoothed: set[str] = set()
        self.skipped = 0
        self._job, self._layers = job, layers
        # GPTQ names each batch of modules; the others only draw bars.
        self._by_module = method in ("gptq", "int8")
        self._modules, self._done = modules, 0
        self._phases = _AWQ_PHASES if method == "awq" else _PHASES
        self._layer, self._of, self._phase = 1, layers, "Calibrating"
        self._mapping, self._mappings = 0, 1

    def listen(self) -> None:
        """Read log and bars from now on, until the process ends."""
        from loguru import logger
        from tqdm import tqdm

        logger.add(lambda message: self.read(message.record["message"]), level="INFO")
        plain = tqdm.display

        def display(bar: Any, *args: Any, **kwargs: Any) -> Any:
            self.draw(str(bar.desc), int(bar.n), int(bar.total or 0))
            return plain(bar, *args, **kwargs)

        tqdm.display = display

    def read(self, text: str) -> None:
        """One line of the log."""
        if found := _FALLBACK.search(text):
            self.fallback += int(found[1])
        if found := _SKIPPED.search(text):
            self.skipped += int(found[1])
        elif text.startswith("Skipping "):
            self.skipped += 1
        elif text.startswith("Smoothing with "):
            self.smoothed.add(text.removeprefix("Smoothing with ").strip())
        if self._by_module and text.startswith("Quantizing "):
            names = re.findall(r"'([^']+)'", text)
            found = _LAYER.search(text)
            what = f"layer {int(found[1]) + 1}/{self._layers}" if found else (names or ["?"])[0]
            self._job.progress(self._done, self._modules, what)
            self._done += max(1, len(names))

    def draw(self, what: str, done: int, total: int) -> None:
        """One state of a progress bar."""
        part = done / total if total else 0.0
        if found := _BAR.match(what):
            self._layer, self._of = int(found[1]), int(found[2])
            self._phase = found[3]
            detail = f"{found[3].lower()} {done}/{total}"
        elif what.startswith("Smoothing"):
            self._phase, self._mapping, self._mappings = "Smoothing", done, max(1, total)
            detail = f"smoothing {done}/{total}"
        elif found := _GRID.match(what):
            name = found[1].rstrip(":")
            self.smoothed.add(name)
            part = (self._mapping + part) / self._mappings
            detail = f"grid search for {name.rpartition('.')[2]} {done}/{total}"
        else:
            return
        if self._by_module:
            return
        begin, end = self._phases.get(self._phase, (0.0, 1.0))
        at = self._layer - 1 + begin + (end - begin) * min(1.0, part)
        layer = min(self._layer, self._layers)
        self._job.progress(at, self._of, f"layer {layer}/{self._layers}: {detail}")
