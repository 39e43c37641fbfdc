"""Imports what an environment is for, inside it. Standard library only; run by path as a job.

Request ``{"imports": [names]}``; result ``{"python", "failed": {name: error}, "torch_cuda"}``. Each
name is told before it is imported, so that a crash in a native library can be laid at its door.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from pathlib import Path


def main(request: Path, result: Path) -> None:
    """Import each name of the request and write what failed."""
    imports = json.loads(request.read_text("utf-8"))["imports"]
    failed = {}
    for number, name in enumerate(imports):
        state = {"done": number, "total": len(imports), "what": f"importing {name}"}
        partial = result.with_name("progress.partial")
        partial.write_text(json.dumps(state), "utf-8")
        partial.replace(result.with_name("progress.json"))
        try:
            importlib.import_module(name)
        except Exception as error:  # any failure of any library is the answer here
            failed[name] = f"{type(error).__name__}: {error}"
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    answer = {
        "python": platform.python_version(),
        "failed": failed,
        "torch_cuda": getattr(version, "cuda", None),
    }
    result.write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    # This folder must not be where its imports are looked up: it holds modules named otherwise.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
    main(Path(sys.argv[1]), Path(sys.argv[2]))
