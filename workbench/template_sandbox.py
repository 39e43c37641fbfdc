"""The sandbox a chat template is rendered in: no way out of it, and an end to its work. Pure.

A template is a program that came with a checkpoint. jinja2's sandbox keeps it from the machine but
not from its memory: ``{{ 'x' * 10**9 }}`` is allowed there, as are loops in loops. Here everything
a template makes is counted: each pass of a loop, each call, each text or list that an operator, a
filter or a call reads or writes, by its length. What would be made at one stroke is refused before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Characters a template may write, and items of what it may make at one stroke.
MOST_CHARACTERS = 2**24
#: Characters, items and passes a template may go through; a pass or a call counts as `_STEP`.
MOST_WORK = 2**27
_STEP = 512
#: What each value counts that stands in another one.
_ITEM = 64
#: Bits of a whole number.
_MOST_BITS = 4096
#: Methods and filters whose result is as long as both of their operands multiplied.
_MULTIPLY = ("replace", "join", "expandtabs", "indent", "tojson", "wordwrap", "urlize")
_SIZED = (str, bytes, list, tuple, dict, range)
#: A width in a format, such as `{:1000000000}`.
_WIDE = re.compile(r"\d{6}")


class TooMuchWork(TemplateError):
    """The template makes more than a prompt can be."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, counting; `begin` is called before each rendering."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_weighed_output, **options)
        self._left = MOST_WORK
        self.filters = _Counting(self, self.filters)
        self.tests = _Counting(self, self.tests)
        del self.globals["lipsum"]

    def begin(self) -> None:
        """Forget what was counted."""
        self._left = MOST_WORK

    def spend(self, work: int) -> None:
        """Count some work.

        Raises:
            TooMuchWork: it is more than is left.
        """
        self._left -= work
        if self._left < 0:
            raise TooMuchWork(f"its loops and texts come to more than {MOST_WORK:,} steps")

    def weighed(self, value: Any) -> Any:
        """A value that is about to be written out or compared, counted with all that is in it."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, dict | list | tuple):
            waiting: list[Any] = [value]
            while waiting:
                found = waiting.pop()
                self.spend(_size(found) + _ITEM)
                if isinstance(found, dict):
                    waiting += [*found, *found.values()]
                elif isinstance(found, list | tuple):
                    waiting += found
        return value

    def passes(self, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes through, each pass counted."""
        for value in values:
            self.spend(_STEP)
            yield value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, if what it makes is not too large."""
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    _refuse_large(_size(many) * times)
        elif operator == "%" and isinstance(left, str):
            self.weighed(right)
            _refuse_wide(left, right if isinstance(right, tuple) else (right,))
        if operator in "**" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits * right if operator == "**" else bits + right.bit_length()
            if bits > _MOST_BITS:
                raise TooMuchWork(f"a number of more than {_MOST_BITS:,} bits")
        if operator == "+":
            _refuse_large(_size(left) + _size(right))
        made = super().call_binop(context, operator, left, right)
        self.spend(_size(made))
        return made

    def call(self, context: Context, called: Any, *args: Any, **options: Any) -> Any:
        """A call of a method, a macro or a function, if what it makes is not too large."""
        # The sandbox hands out its own function for a text's `format`.
        owner = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        name = str(getattr(called, "__name__", ""))
        given = args
        if isinstance(called, LoopContext):  # a recursive loop, going on with these
            args = tuple(self.passes(values) for values in args)
        if isinstance(owner, str):
            _refuse_numbers((*args, *options.values()))
            given = (owner, *args)
        return self.counted(name, super().call, given, options, context, called, *args, **options)

    def counted(
        self,
        name: str,
        call: Callable[..., Any],
        given: tuple[Any, ...],
        named: dict[str, Any],
        *args: Any,
        **options: Any,
    ) -> Any:
        """Do a call whose operands are `given` and `named`, before and after counting."""
        others = [*given[1:], *named.values()]
        if name in _MULTIPLY and given:
            times = max((n if isinstance(n, int) else _size(n) for n in others), default=1)
            _refuse_large(_size(given[0]) * times)
        if name in ("format", "format_map") and given and isinstance(given[0], str):
            _refuse_wide(given[0], others)
        deep = name in ("format", "format_map", "string", "tojson", "join", "pprint", "xmlattr")
        for value in (*given, *named.values()):
            if deep:
                self.weighed(value)
            else:
                self.spend(_size(value))
        self.spend(_STEP)
        made = call(*args, **options)
        _refuse_large(_size(made))
        self.spend(_size(made))
        return made

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _through("passes", loop.iter)
        for compared in tree.find_all(nodes.Compare):
            compared.expr = _through("weighed", compared.expr)
            for operand in compared.ops:
                operand.expr = _through("weighed", operand.expr)
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [_through("weighed", part) for part in joined.nodes]
        return tree


class _Counting(dict[str, Any]):
    """Filters or tests by name, each counted."""

    def __init__(self, environment: BoundedEnvironment, known: dict[str, Any]) -> None:
        super().__init__()
        self._environment = environment
        for name, call in known.items():
            self[name] = call

    def __setitem__(self, name: str, call: Callable[..., Any]) -> None:
        # jinja2 hands some of them its context or environment before the value.
        skip = 1 if getattr(call, "jinja_pass_arg", None) else 0

        @wraps(call)
        def counted(*args: Any, **options: Any) -> Any:
            given = args[skip:]
            if name not in ("default", "d", *self._environment.tests):
                _refuse_numbers((*given[1:], *options.values()))
            return self._environment.counted(name, call, given, options, *args, **options)

        super().__setitem__(name, counted)


@pass_context
def _weighed_output(context: Context, value: Any) -> Any:
    """What is written out. With a context, and unoptimized, nothing is made while compiling."""
    environment = context.environment
    assert isinstance(environment, BoundedEnvironment)
    return environment.weighed(value)


def _through(method: str, value: nodes.Node) -> Any:
    """A value handed through a method of the environment."""
    own = nodes.EnvironmentAttribute(method)
    return nodes.Call(own, [value], [], None, None).set_lineno(value.lineno)


def _size(value: Any) -> int:
    """Characters or items of a value, not of what is in it."""
    return len(value) if isinstance(value, _SIZED) else 0


def _refuse_large(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise TooMuchWork(f"it makes a text or list longer than {MOST_CHARACTERS:,}")


def _refuse_numbers(values: Iterable[Any]) -> None:
    """No width, count or depth a method or a filter is given makes sense beyond a prompt."""
    for value in values:
        if isinstance(value, int):
            _refuse_large(value)


def _refuse_wide(text: str, values: Iterable[Any]) -> None:
    wide = _WIDE.search(text) or (
        "*" in text and any(v > 10**5 for v in values if isinstance(v, int))
    )
    if wide:
        raise TooMuchWork("a format asks for 100,000 characters or more")
