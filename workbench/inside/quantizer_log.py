"""What llama.cpp says while it quantizes, read line by line. Standard library only.

The lines are those of `llama_model_quantize_impl` and `tensor_type_fallback` in llama.cpp's
src/llama-quant.cpp. A line comes in pieces, and a note may interrupt it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TENSOR = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]\s+(\S+)\s.*type =\s*(\w+),")
_CONVERTING = re.compile(r"converting to (\w+) \.\.")
_FALLBACK = re.compile(
    r"^warning: (\S+)\s+- ncols\s+(\d+) not divisible by\s+\d+ \(required for type\s+(\w+)\).*"
    r"falling back to\s+(\w+)"
)
_NO_ENTRY = re.compile(r"did not find weights for (\S+)")
_SIZE = re.compile(r"quant size\s+=\s+[\d.]+ MiB \(([\d.]+) BPW\)")
_ERROR = re.compile(r"failed to quantize: (.+)")


class QuantizerLog:
    """Follows the lines.

    Args:
        told: called with (tensors begun, of how many, the tensor's name).

    Attributes:
        types: tensor -> the type it has in the result.
        fallbacks: tensor -> (its columns, the type that was meant, the type it got).
        no_entry: tensors the importance matrix says nothing about.
        bits_per_weight: as llama.cpp counts it; None before the end.
        error: why it failed, if it did.
    """

    def __init__(self, told: Callable[[int, int, str], None] = lambda *_: None) -> None:
        self.types: dict[str, str] = {}
        self.fallbacks: dict[str, tuple[int, str, str]] = {}
        self.no_entry: list[str] = []
        self.bits_per_weight: float | None = None
        self.error = ""
        self._told = told
        self._rest = ""
        self._tensor = ""

    def write(self, piece: str) -> None:
        """Take the next piece of output, whole lines or not."""
        *lines, self._rest = (self._rest + piece).split("\n")
        for line in lines:
            self._line(line)
        # A tensor's line stays open while the tensor is worked on.
        self._begun(self._rest)

    def _begun(self, line: str) -> None:
        if (match := _TENSOR.match(line)) and match[3] != self._tensor:
            self._tensor = match[3]
            self.types[match[3]] = match[4].upper()
            self._told(int(match[1]), int(match[2]), match[3])

    def _line(self, line: str) -> None:
        self._begun(line)
        if match := _CONVERTING.search(line):
            self.types[self._tensor] = match[1].upper()
        elif match := _FALLBACK.match(line):
            self.fallbacks[match[1]] = (int(match[2]), match[3].upper(), match[4].upper())
        elif match := _NO_ENTRY.search(line):
            self.no_entry.append(match[1])
        elif match := _SIZE.search(line):
            self.bits_per_weight = float(match[1])
        elif match := _ERROR.search(line):
            self.error = match[1].strip()
