"""The sandbox a chat template is rendered in: no way out of it, and an end to its work. Pure.

A template is a program that came with a checkpoint. jinja2's sandbox keeps it from the machine but
not from its memory and time: ``{{ 'x' * 10**9 }}`` is allowed there, as are loops in loops. Here
products, passes of loops and the text written are bounded; what else a template makes in one call
of a method or filter is found when it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Characters a template may write, and items of a product; no context holds a text that long.
MOST_CHARACTERS = 2**24
#: Passes of all loops of one rendering.
MOST_PASSES = 10**6
#: Bits of a whole number.
_MOST_BITS = 4096


class TooMuchWork(TemplateError):
    """The template makes more than a prompt can be."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, counting."""

    intercepted_binops = frozenset({"*", "**"})
    _passes = 0

    def write(self, template: Template, **variables: Any) -> str:
        """The text of one of its templates.

        Raises:
            TooMuchWork: it is longer than a prompt can be, or needs more passes.
            TemplateError: what jinja2 complains about.
        """
        self._passes = 0
        parts, length = [], 0
        for part in template.generate(**variables):
            length += len(part)
            if length > MOST_CHARACTERS:
                raise TooMuchWork(f"it writes more than {MOST_CHARACTERS:,} characters")
            parts.append(part)
        return "".join(parts)

    def passes(self, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes through, each pass counted."""
        for value in values:
            self._passes += 1
            if self._passes > MOST_PASSES:
                raise TooMuchWork(f"its loops take more than {MOST_PASSES:,} passes")
            yield value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A product or power, if what it makes is not too large."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length()
            if max(bits, right.bit_length()) > _MOST_BITS:
                raise TooMuchWork(f"a number of more than {_MOST_BITS:,} bits")
        for many, times in ((left, right), (right, left)):
            made = len(many) * times if hasattr(many, "__len__") and isinstance(times, int) else 0
            if made > MOST_CHARACTERS:
                raise TooMuchWork(f"it makes a text or list longer than {MOST_CHARACTERS:,}")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            counted = nodes.Call(nodes.EnvironmentAttribute("passes"), [loop.iter], [], None, None)
            loop.iter = counted.set_lineno(loop.lineno)
        return tree
