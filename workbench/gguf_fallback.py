"""Which matrices of a checkpoint a K-quant cannot take as they are. Pure.

K-quants come in blocks of 256 along a row. Where 256 does not divide a matrix's width, llama.cpp
takes another type for it, and the file is larger than its name says. What counts is every matrix of
the model: the embeddings, and an output layer of its own, are quantized in a GGUF like the rest;
norms and biases are not. The experts of one layer are one matrix, as they are in the file.

`validate`, `support`, the manifest and the examination of the file all count by this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BLOCK = 256
#: What the types without 256 in a block have; a row that even this does not divide becomes F16.
SMALL_BLOCK = 32
#: Base type -> what llama.cpp takes where the width is no multiple of 256.
FALLBACK = {
    **{"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"},
    "IQ4_XS": "IQ4_NL",
}
EXPERT = re.compile(r"\.experts\.\d+\.")


def matrices(shapes: Mapping[str, tuple[int, ...]], *, tied: bool) -> dict[str, int]:
    """Name -> width of every matrix that is quantized in a GGUF.

    Args:
        shapes: of the checkpoint's tensors, by name.
        tied: the output layer shares the embeddings, so that a copy of it is not in the file.
    """
    return {
        EXPERT.sub(".experts.", name): shape[-1]
        for name, shape in shapes.items()
        if len(shape) >= 2 and not (tied and name == "lm_head.weight")
    }


def misfits(widths: Mapping[str, int], block: int = BLOCK) -> dict[str, int]:
    """Those of them, name -> width, whose width a block does not divide."""
    return {name: width for name, width in widths.items() if width % block}


def counted(misfit: Mapping[str, int], of: Mapping[str, int]) -> str:
    """How many of how many, in the words all of the workbench uses."""
    return f"{len(misfit)} of {len(of)} matrices"
