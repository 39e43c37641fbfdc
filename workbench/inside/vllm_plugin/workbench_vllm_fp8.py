"""FP8 W8A8 on a CPU with AMX: what vLLM 0.32 with torch 2.13 needs to serve it.

On a CPU whose AMX knows 8-bit integers torch gives ``torch._scaled_mm`` to oneDNN. On a Xeon whose
AMX does not know float16 its answer was reference code (``ONEDNN_VERBOSE=1`` says ``ref:any``),
and 64 x 576 by 576 x 1536 took 0.9 s: a 135M model had not answered its first request after 120 s.
A CPU without AMX gets torch's own way, which widens both sides to float32 and multiplies those
(3 ms). The same is done here, where it is the faster one: the values are the same but for the
order of a sum. torch widens value by value; here the weights' bits are moved into place instead,
all of a vector at once (1.2 ms; of one row 0.5 instead of 4).

Asked, not assumed: `apply` multiplies two small matrices both ways first, and changes nothing where
oneDNN's is not several times slower. vLLM calls it in each of its processes, as the entry point
beside it says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

#: The versions it was written for.
NEEDED_BY = "torch 2.13.0 with oneDNN 3.12"
#: As a server's log names a kernel; the workbench reads it from there into the record.
SAID = "Using WidenedFp8ScaledMMKernel: torch._scaled_mm without oneDNN, see"
#: Far above what a busy machine makes of two equal ways, far below the hundreds seen at 64 rows.
_TIMES_SLOWER = 5


def apply() -> bool:
    """Multiply FP8 in float32 where oneDNN's way is far slower. Returns whether so."""
    import torch

    by_onednn = torch._scaled_mm
    if getattr(by_onednn, "widened", False):
        return True
    said: list[bool] = []

    def widened(*matrices: Any, **asked: Any) -> Any:
        if not said:
            said.append(True)
            print(f"{SAID} {__file__} ({NEEDED_BY})", file=sys.stderr, flush=True)
        if len(matrices) == 2 and asked.keys() == {"scale_a", "scale_b", "out_dtype"}:
            left, right = matrices
            wide = widen(torch, right)
            if wide is not None:
                product = torch.mm(left.float(), wide)
                return product.mul_(asked["scale_a"]).mul_(asked["scale_b"]).to(asked["out_dtype"])
        with torch.backends.mkldnn.flags(enabled=False):
            return by_onednn(*matrices, **asked)

    said.append(False)  # the question below is no use of it
    if not _seconds(torch, by_onednn) > _TIMES_SLOWER * _seconds(torch, widened):
        return False
    said.clear()
    widened.widened = True  # type: ignore[attr-defined]
    torch._scaled_mm = widened
    return True


def widen(torch: Any, weights: Any) -> Any:
    """FP8 E4M3 in float32, the same values. None where they are no E4M3, or not all numbers.

    E4M3 is sign, 4 bits of exponent with bias 7, 3 of mantissa; float16 is sign, 5 with bias 15,
    10. So the seven lower bits, moved up by seven, are the same number over 2**8, small ones
    (subnormals) included. Only E4M3's NaN (all seven bits set) would come out as a number, 480:
    weights are looked through for it once.
    """
    if weights.dtype != torch.float8_e4m3fn:
        return None
    bits = weights.view(torch.int8)
    if not hasattr(weights, "without_nan"):
        weights.without_nan = not bool(((bits & 127) == 127).any())
    if not weights.without_nan:
        return None
    moved = bits.to(torch.int16)  # the sign is in all upper bits
    moved <<= 7
    moved &= ~0x4000  # and stays in the highest only
    return moved.view(torch.float16).float().mul_(256.0)


def _seconds(torch: Any, multiply: Callable[..., Any]) -> float:
    """The quickest of three products of 32 x 256 by 256 x 256."""
    left = torch.ones(32, 256).to(torch.float8_e4m3fn)
    right = torch.ones(256, 256).to(torch.float8_e4m3fn).t()
    one = torch.ones(())
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        multiply(left, right, scale_a=one, scale_b=one, out_dtype=torch.float32)
        taken.append(time.perf_counter() - begun)
    return min(taken)
