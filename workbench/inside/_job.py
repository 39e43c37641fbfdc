"""What every script in this folder shares: request in, progress and result out.

Standard library only. A script is started as ``python script.py request.json result.json`` with the
interpreter of an environment. It reads the request, tells how far it is in ``progress.json`` beside
the result, and leaves one JSON object under the result's name, by rename, so that a half-written
result is never read. A problem the
person can act on is reported with `fail`; anything else may raise: the log has the traceback.

These files run by path, so this folder is the first entry of ``sys.path``: no file here may be
named like a package it imports.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

#: At most this often is progress written; a job must not spend its time on telling.
_PROGRESS_SECONDS = 0.2


class Failed(Exception):
    """A failure with the three parts a person needs; becomes the result's ``error``."""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix


def fail(what: str, where: str = "", fix: str = "") -> NoReturn:
    """End the job, reporting what happened, where, and what to do."""
    raise Failed(what, where, fix)


class Job:
    """The request, and the way to tell progress.

    Args:
        request: the decoded request.
        folder: where ``progress.json`` goes; scratch space of the job.
    """

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        self.request = request
        self.folder = folder
        self._told = float("-inf")

    def progress(self, done: float, total: float, what: str) -> None:
        """Tell how far the work is; ``total`` 0 means unknown. Cheap: most calls write nothing."""
        now = time.monotonic()
        if now - self._told < _PROGRESS_SECONDS and done < total:
            return
        self._told = now
        _write(self.folder / "progress.json", {"done": done, "total": total, "what": what})


def _write(path: Path, value: Any) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, ensure_ascii=False), "utf-8")
    partial.replace(path)


def _gpu_peak() -> dict[str, int]:
    """Most device memory torch held, all devices together; nothing where it used none."""
    torch = sys.modules.get("torch")  # a job that needs it has imported it
    if torch is None or not torch.cuda.is_available():
        return {}
    peaks = (torch.cuda.max_memory_reserved(i) for i in range(torch.cuda.device_count()))
    return {"peak_gpu_bytes": sum(peaks)}


def versions(*distributions: str) -> dict[str, str]:
    """Installed version of each distribution named."""
    return {name: metadata.version(name) for name in distributions}


def main(work: Callable[[Job], dict[str, Any]]) -> None:
    """Run ``work`` on the request named on the command line and leave its result.

    The exit status is 0 with a result, 1 with a reported error or a traceback.
    """
    request_path, result_path = Path(sys.argv[1]), Path(sys.argv[2])
    job = Job(json.loads(request_path.read_text("utf-8")), result_path.resolve().parent)
    try:
        value = work(job)
    except Failed as failure:
        print(f"failed: {failure.what}", file=sys.stderr)
        error = {"what": failure.what, "where": failure.where, "fix": failure.fix}
        _write(result_path, {"error": error})
        raise SystemExit(1) from None
    _write(result_path, value | _gpu_peak())
