"""The fake quantizer's job: copy a checkpoint, slowly if told so, or fail in a way real jobs do.

Request: ``source``, ``out``, ``seconds``, ``fail`` ("", "signal", "oom", "no_result" or "error").
Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from _job import Job, fail, main

_STEPS = 20


def copy(source: Path, out: Path) -> None:
    """Copy shards and config, and mark the config as a fake's."""
    for path in sorted([*source.glob("*.safetensors"), *source.glob("*.safetensors.index.json")]):
        shutil.copyfile(path, out / path.name)
    config = json.loads((source / "config.json").read_text("utf-8"))
    config["quantization_config"] = {"quant_method": "fake"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def work(job: Job) -> dict[str, Any]:
    """Take the time asked for, then fail as asked or copy."""
    request = job.request
    for step in range(_STEPS):
        job.progress(step, _STEPS, f"layer {step}/{_STEPS}")
        time.sleep(request["seconds"] / _STEPS)
    wanted = request["fail"]
    if wanted == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if wanted == "oom":
        raise MemoryError("the fake quantizer was told to run out of memory")
    if wanted == "no_result":
        print("the fake quantizer leaves no result, as it was told")
        sys.exit(0)
    if wanted == "error":
        fail("the fake quantizer was told to fail", "fail: error", "remove 'fail' from the variant")
    copy(Path(request["source"]), Path(request["out"]))
    job.progress(_STEPS, _STEPS, "copied")
    return {"packages": {"python": platform.python_version()}}


if __name__ == "__main__":
    main(work)
