"""Quantization and evaluation workbench: may this quantized model ship?

Light on purpose: importing it costs milliseconds and never imports torch. What a notebook needs is
here by name and loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.context import open_run
    from workbench.load_table import loads
    from workbench.report import show
    from workbench.sample_table import samples
    from workbench.sweep_table import sweep

__version__ = "0.1.0"
__all__ = ["__version__", "loads", "open_run", "samples", "show", "sweep"]

_LAZY = {
    "loads": "workbench.load_table",
    "open_run": "workbench.context",
    "samples": "workbench.sample_table",
    "show": "workbench.report",
    "sweep": "workbench.sweep_table",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'workbench' has no attribute '{name}'")
