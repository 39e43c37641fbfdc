"""AWQ on a machine without an accelerator: what llmcompressor 0.14.0.1 needs for it.

Its AWQ modifier pins the cached inputs of a layer in memory (``IntermediatesCache.pin_memory``),
and torch answers "Cannot access accelerator device when none is available". Pinning only makes
copies to an accelerator faster, so without one there is nothing to do.

Asked, not assumed: `apply` tries the method first and leaves it alone where it works. A version of
llm-compressor that asks for an accelerator itself needs nothing of this.
"""

from __future__ import annotations

from typing import Any

#: The version it was written for.
NEEDED_BY = "llmcompressor 0.14.0.1"


def apply() -> bool:
    """Make ``pin_memory`` do nothing where it fails for want of an accelerator.

    Returns whether it was needed. A failure with an accelerator is not this one, and is raised.
    """
    import torch
    from llmcompressor.pipelines.cache import IntermediatesCache

    cache = IntermediatesCache(None, None)
    cache.append({"probe": torch.zeros(1)})
    try:
        cache.pin_memory(0)
    except RuntimeError:
        if torch.accelerator.is_available():
            raise
    else:
        return False

    def pin_memory(self: Any, batch_index: int, input_names: list[str] | None = None) -> None:
        return None

    IntermediatesCache.pin_memory = pin_memory
    return True
