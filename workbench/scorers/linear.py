"""Regular expressions whose matching always ends, whatever the pattern and the text.

Python's `re` backtracks, and cannot be stopped: ``(a+)+b`` on forty times ``a`` runs for hours, and
a model that goes in circles writes just that. Here a pattern is parsed by `re` and run as a list of
threads over the text (Thompson 1968, Pike's variant with groups; see Cox, "Regular Expression
Matching: the Virtual Machine Approach", 2009), each place of the program at most once for each
character. What is found is what `re` finds, with its priorities. The one exception is a repeat of
something that can match nothing, ``(a*?)+``: whether it matches is the same, how far may differ.

What no such machine can do is refused when the pattern is made: back references, look-around,
possessive and atomic groups. The parser is `re`'s own and private to it; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# No stubs: it is private. The public `re` shows nothing of a pattern's structure.
from re import _constants, _parser  # type: ignore[attr-defined]  # isort: skip

_MOST_INSTRUCTIONS = 5_000
_MOST_STEPS = 2_000_000
_KEPT_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
_CATEGORIES = {
    _constants.CATEGORY_DIGIT: r"\d",
    _constants.CATEGORY_NOT_DIGIT: r"\D",
    _constants.CATEGORY_SPACE: r"\s",
    _constants.CATEGORY_NOT_SPACE: r"\S",
    _constants.CATEGORY_WORD: r"\w",
    _constants.CATEGORY_NOT_WORD: r"\W",
}

#: Where the match began, and where its first group begins and ends (-1: it took no part).
Caught = tuple[int, int, int]
Thread = tuple[int, Caught]


class TooMuchWork(Exception):
    """The text needs more steps than a search may take."""


class Match(NamedTuple):
    """What was found: from, to, and the first group's from and to (-1: it took no part)."""

    start: int
    end: int
    group_start: int
    group_end: int


class _Step(NamedTuple):
    """One instruction: take a character, or test, split, save, jump without taking one."""

    what: str
    test: Callable[[str], bool] | Callable[[str, int], bool] | None = None
    a: int = 0
    b: int = 0


class Pattern:
    """A compiled pattern.

    Args:
        pattern: in `re`'s syntax.
        flags: of `re`.

    Raises:
        ValueError: it does not compile, is too large, or holds what is not supported.
    """

    def __init__(self, pattern: str, flags: re.RegexFlag) -> None:
        try:
            re.compile(pattern, flags)
            tree = _parser.parse(pattern, flags)
        except (re.error, OverflowError, RecursionError) as bad:
            raise ValueError(str(bad)) from None
        self.groups: int = tree.state.groups - 1
        self._program: list[_Step] = []
        self._emit_all(tree, re.RegexFlag(tree.state.flags))
        self._add(_Step("match"))

    def found_in(self, text: str) -> bool:
        """True where it matches somewhere.

        Raises:
            TooMuchWork: see the class.
        """
        return next(self.matches(text), None) is not None

    def last(self, text: str) -> str | None:
        """The first group (the whole match where it has none) of the last match that is not blank.

        Raises:
            TooMuchWork: see the class.
        """
        found = None
        for match in self.matches(text):
            at = (match.group_start, match.group_end) if self.groups else (match.start, match.end)
            said = text[at[0] : at[1]] if at[0] >= 0 else ""
            found = said if said.strip() else found
        return found

    def matches(self, text: str) -> Iterator[Match]:
        """The matches from left to right, none over another.

        Raises:
            TooMuchWork: see the class.
        """
        left = [_MOST_STEPS]
        at = 0
        while at <= len(text):
            match = self._search(text, at, left)
            if match is None:
                return
            yield match
            at = match.end if match.end > match.start else match.end + 1

    # ------------------------------------------------------------------ running

    def _search(self, text: str, begin: int, left: list[int]) -> Match | None:
        found: Match | None = None
        threads: list[Thread] = []
        seen: set[int] = set()
        for i in range(begin, len(text) + 1):
            if found is None:
                self._follow(threads, seen, text, i, (0, (i, -1, -1)))
            if not threads and found is not None:
                break
            left[0] -= len(seen) + 1
            if left[0] < 0:
                raise TooMuchWork("the pattern needs too many steps on this output")
            here, threads, seen = threads, [], set()
            for at, caught in here:
                step = self._program[at]
                if step.what == "match":
                    found = Match(caught[0], i, caught[1], caught[2])
                    break  # what comes after has a lower priority
                if i < len(text) and step.test(text[i]):  # type: ignore[misc,call-arg]
                    self._follow(threads, seen, text, i + 1, (at + 1, caught))
        return found

    def _follow(
        self, threads: list[Thread], seen: set[int], text: str, i: int, first: Thread
    ) -> None:
        """Add a thread, followed to the next instructions that take a character."""
        stack = [first]
        while stack:
            at, caught = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            step = self._program[at]
            if step.what in ("take", "match"):
                threads.append((at, caught))
            elif step.what == "split":
                stack += [(step.b, caught), (step.a, caught)]
            elif step.what == "jump":
                stack.append((step.a, caught))
            elif step.what == "open":
                stack.append((at + 1, (caught[0], i, -1)))
            elif step.what == "close":
                stack.append((at + 1, (caught[0], caught[1], i)))
            elif step.test(text, i):  # type: ignore[misc,call-arg]
                stack.append((at + 1, caught))

    # ------------------------------------------------------------------ compiling

    def _add(self, step: _Step) -> int:
        if len(self._program) >= _MOST_INSTRUCTIONS:
            raise ValueError("it is too large: repeat less often")
        self._program.append(step)
        return len(self._program) - 1

    def _emit_all(self, items: Any, flags: re.RegexFlag) -> None:
        for op, arg in items:
            self._emit(op, arg, flags)

    def _emit(self, op: Any, arg: Any, flags: re.RegexFlag) -> None:
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            self._emit_repeat(arg, flags, greedy=op is _constants.MAX_REPEAT)
        elif op is _constants.SUBPATTERN:
            group, added, removed, items = arg
            if group == 1:
                self._add(_Step("open"))
            self._emit_all(items, re.RegexFlag((flags | added) & ~removed))
            if group == 1:
                self._add(_Step("close"))
        elif op is _constants.BRANCH:
            ends = []
            for branch in arg[1][:-1]:
                split = self._add(_Step("split"))
                self._emit_all(branch, flags)
                ends.append(self._add(_Step("jump")))
                self._program[split] = _Step("split", None, split + 1, len(self._program))
            self._emit_all(arg[1][-1], flags)
            for end in ends:
                self._program[end] = _Step("jump", None, len(self._program))
        elif op is _constants.AT:
            self._add(_Step("test", _place(arg, flags)))
        elif (source := _source(op, arg)) is not None:
            self._add(_Step("take", _taker(source, flags)))
        else:
            what = str(op).lower().replace("_", " ")
            raise ValueError(f"'{what}' is not supported: a pattern must match in linear time")

    def _emit_repeat(self, arg: Any, flags: re.RegexFlag, *, greedy: bool) -> None:
        least, most, items = arg
        for _ in range(least):
            self._emit_all(items, flags)
        if most is _constants.MAXREPEAT:
            # Back to the items and not to the first split: where they match nothing that split was
            # seen already, and the way out would be lost until the least of the priorities.
            splits = [self._add(_Step("split"))]
            self._emit_all(items, flags)
            splits.append(self._add(_Step("split")))
            for split in splits:
                self._set_split(split, splits[0] + 1, greedy)
            return
        splits = []
        for _ in range(most - least):
            splits.append(self._add(_Step("split")))
            self._emit_all(items, flags)
        for split in splits:
            self._set_split(split, split + 1, greedy)

    def _set_split(self, at: int, on: int, greedy: bool) -> None:
        """Let a split choose between going on at a place and leaving for the program's end."""
        ways = (on, len(self._program))
        self._program[at] = _Step("split", None, *(ways if greedy else ways[::-1]))


def _source(op: Any, arg: Any) -> str | None:
    """What takes one character, as a pattern again; None for all else."""
    if op is _constants.LITERAL:
        return re.escape(chr(arg))
    if op is _constants.NOT_LITERAL:
        return f"[^{re.escape(chr(arg))}]"
    if op is _constants.ANY:
        return "."
    if op is not _constants.IN:
        return None
    parts = []
    for what, value in arg:
        if what is _constants.NEGATE:
            parts.append("^")
        elif what is _constants.RANGE:
            parts.append(f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}")
        elif what is _constants.CATEGORY:
            parts.append(_CATEGORIES[value])
        else:
            parts.append(re.escape(chr(value)))
    return f"[{''.join(parts)}]"


def _taker(source: str, flags: re.RegexFlag) -> Callable[[str], bool]:
    """Does a character fit? Asked of `re`, once for each character."""
    match = re.compile(source, flags & _KEPT_FLAGS).match
    known: dict[str, bool] = {}

    def fits(character: str) -> bool:
        if character not in known:
            known[character] = match(character) is not None
        return known[character]

    return fits


def _place(where: Any, flags: re.RegexFlag) -> Callable[[str, int], bool]:
    """Does a place in a text fit? For ``^``, ``$`` and the places written with a backslash."""
    lines = bool(flags & re.MULTILINE)
    if where is _constants.AT_BEGINNING_STRING or (where is _constants.AT_BEGINNING and not lines):
        return lambda text, i: i == 0
    if where is _constants.AT_BEGINNING:
        return lambda text, i: i == 0 or text[i - 1] == "\n"
    if where is _constants.AT_END_STRING:
        return lambda text, i: i == len(text)
    if where is _constants.AT_END:
        if lines:
            return lambda text, i: i == len(text) or text[i] == "\n"
        return lambda text, i: text[i:] in ("", "\n")
    fits = _taker(r"\w", flags)

    def at_border(text: str, i: int) -> bool:
        before = i > 0 and fits(text[i - 1])
        return before != (i < len(text) and fits(text[i]))

    if where is _constants.AT_BOUNDARY:
        return at_border
    return lambda text, i: not at_border(text, i)
