"""Papermill driver: run one notebook with parameters, and believe only what it shows.

Papermill alone is too trusting for a release decision: it runs with defaults when a parameter's
name is wrong, it calls a notebook that exited half-way a success, and the executed copy does not
say which kernel ran it. This module refuses, asserts and stamps. It knows nothing of steps.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from workbench.digest import sha256_file
from workbench.display import DRIVEN
from workbench.errors import JobFailure, RecipeError, WorkbenchError, did_you_mean
from workbench.store import disk_errors, write_atomic

#: What jupyter_client says of a kernel that never began.
_NO_KERNEL = ("Kernel didn't respond", "Kernel died before replying")


class NotebookFailure(WorkbenchError):
    """A notebook raised something, or stopped half-way.

    Attributes:
        raised: class name of the exception a cell raised, or an empty text.
        message: its text.
    """

    raised = ""
    message = ""


def execute(
    notebook: Path, out: Path, parameters: Mapping[str, str], *, cwd: Path, stamp: dict[str, Any]
) -> None:
    """Run a notebook and keep the executed copy, whatever happens.

    Args:
        notebook: the notebook to run; it is not changed.
        out: where the executed copy goes.
        parameters: plain texts; they are stored in the copy, so never a secret.
        cwd: the kernel's working folder.
        stamp: what the copy's ``metadata.workbench`` shall say beside kernel and digests.

    Raises:
        RecipeError: the notebook has no such parameter.
        NotebookFailure: a cell raised, or not every cell was completed.
        JobFailure: the kernel died, or did not start twice.
        DiskFull: no space for the copy.
    """
    # 0.5 s, and not needed where everything is cached.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import papermill
        from papermill.exceptions import PapermillExecutionError

    logging.getLogger("traitlets").setLevel(logging.ERROR)
    logging.getLogger("papermill").setLevel(logging.ERROR)
    known = papermill.inspect_notebook(str(notebook))
    for name in parameters:
        if name not in known:
            raise RecipeError(
                f"notebook {notebook.name} has no parameter '{name}'",
                where=str(notebook),
                fix=did_you_mean(name, known) + f"parameters: {', '.join(known)}",
            )
    out.parent.mkdir(parents=True, exist_ok=True)

    # The kernel inherits it, and leaves progress to whoever watches the run's events.
    os.environ[DRIVEN] = "1"

    def work() -> None:
        papermill.execute_notebook(
            str(notebook),
            str(out),
            parameters=dict(parameters),
            kernel_name="python3",
            cwd=str(cwd),
            progress_bar=False,
            log_output=False,
            # Loopback TCP is not encrypted: known, and no news at every start.
            extra_arguments=["--log-level=50"],
        )

    failure: PapermillExecutionError | None = None
    with disk_errors(out), warnings.catch_warnings():
        # jupyter_client warns at each start that loopback TCP is not encrypted.
        warnings.simplefilter("ignore")
        try:
            try:
                _interruptible(work)
            except RuntimeError as error:
                # The ports a kernel was promised can be taken before it binds them: of one it hears
                # nothing, of the others it dies. No cell has run by then.
                if not any(words in str(error) for words in _NO_KERNEL):
                    raise
                _interruptible(work)
        except PapermillExecutionError as error:
            failure = error
        except RuntimeError as error:
            raise JobFailure(
                f"the kernel of {notebook.name} died: {error}",
                where=str(out),
                fix="free some memory and run the same command again: it goes on where it stopped",
            ) from error
    _stamp(out, {**stamp, "notebook_sha256": sha256_file(notebook)})
    if failure is not None:
        found = NotebookFailure(
            f"{notebook.name}, cell {failure.exec_count}: {failure.ename}: {failure.evalue}",
            where=str(out),
            fix="open the executed copy; the last cell shows the traceback",
        )
        found.raised, found.message = failure.ename, failure.evalue
        raise found from None
    _assert_completed(out)


def _interruptible(work: Callable[[], None]) -> None:
    """Run `work` in a thread, and end its kernel when this one is interrupted.

    In the main thread nbclient would take over SIGINT and SIGTERM, end the kernel, report a dead
    kernel instead of an interrupt, and leave the default handlers behind.
    """
    from jupyter_core.utils import ensure_event_loop

    raised: list[BaseException] = []

    def target() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)
        finally:
            # Jupyter makes a loop for each thread that asks, and leaves it open.
            ensure_event_loop().close()

    thread = threading.Thread(target=target, name="papermill", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.5)
    except KeyboardInterrupt:
        # What the kernel started is guarded and goes with it.
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if "ipykernel_launcher" in child.cmdline():
                    child.kill()
        thread.join(10)
        raise
    if raised:
        raise raised[0]


def _stamp(path: Path, stamp: dict[str, Any]) -> None:
    """Say in the copy which interpreter ran it: papermill's kernelspec entry may be another."""
    import nbformat

    node = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    node.metadata["workbench"] = {"interpreter": sys.version.split()[0], **stamp}
    text: str = nbformat.writes(node)  # type: ignore[no-untyped-call]
    write_atomic(path, text.encode())


def _assert_completed(path: Path) -> None:
    """Every code cell must have run to its end: an early exit is not a success."""
    import nbformat

    node = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for index, cell in enumerate(node.cells):
        status = cell.metadata.get("papermill", {}).get("status")
        if cell.cell_type == "code" and status != "completed":
            raise NotebookFailure(
                f"cell {index} of {path.name} is '{status}', not completed",
                where=str(path),
                fix="a notebook must not exit early; let errors be raised",
            )
