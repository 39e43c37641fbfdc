"""How work tells how far it is. Pure: a type and a silent listener.

Long work takes a `Progress` and calls it as often as it likes; who listens (the live table, the
event log, a test) decides what to do with it.
"""

from __future__ import annotations

from collections.abc import Callable

#: ``progress(done, total, what)``: how much is done, of how much (0 where nobody knows), and one
#: short text for a person, such as ``"layer 3/30"``.
Progress = Callable[[float, float, str], None]


def silent(done: float, total: float, what: str) -> None:
    """Listen to nothing."""
