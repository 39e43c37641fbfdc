"""Real servers of a checkpoint, for the tests that ask one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.checkpoint import inspect
from workbench.envs import ensure
from workbench.hardware import detect
from workbench.servers import Endpoint, serve
from workbench.spec import ServeSpec
from workbench.support import dtype, lane

HARDWARE = detect()


@contextlib.contextmanager
def served(
    checkpoint: Path,
    folder: Path,
    spec: ServeSpec,
    *,
    engine: str = "vllm",
    loaded: Path | None = None,
    made: tuple[str, dict[str, Any]] = ("none", {}),
    **options: Any,
) -> Iterator[Endpoint]:
    """Serve a checkpoint, or the file `loaded` made of it by `made` (method and options)."""
    record = inspect(checkpoint)
    with serve(
        spec,
        engine_name=engine,
        checkpoint=loaded or checkpoint,
        model_name="baseline",
        lane=lane(*made, engine, HARDWARE),
        dtype=dtype("auto", record, engine, HARDWARE),
        served_digest=record.weights_digest,
        twin_of=None,
        environment=ensure(engine, HARDWARE.target),
        hardware=HARDWARE,
        folder=folder,
        **options,
    ) as running:
        yield running
