"""Where a command's words go. Whoever reads them, or stops reading, never decides how it ends."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def mend() -> None:
    """Give a command that was started without output (``>&-``) one that leads nowhere.

    Otherwise the first file that is opened is number 1, and gets what a subprocess prints. A
    character that the output's encoding lacks is written as its escape.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - stays open
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")


def let_go() -> None:
    """Lead nowhere what is still to be printed: Python tries that again at its end, and says so."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def end() -> None:
    """Print what waits to be printed, if anybody still takes it."""
    try:
        sys.stdout.flush()
    except OSError:
        let_go()


def console() -> Console:
    """The console of a command. It falls silent where nobody reads on, and the command goes on."""
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True  # rich would end the process with 1 here
            let_go()

    # A pipe has no width of its own.
    return Lasting(width=None if sys.stdout.isatty() else 110, emoji=False)
