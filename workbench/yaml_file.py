"""Read YAML that somebody else wrote: whole, with its node tree, and in bounded time and memory.

An alias costs nothing where it stands and everything once it is written out: nine lines of aliases
of aliases are a thousand million values. So values are counted as if every alias were written out,
while the file is read. Everything of the workbench that reads a person's YAML reads it here.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from workbench.errors import RecipeError, UserError, did_you_mean
from workbench.words import shortened

#: A file larger than this is no recipe and no suite.yaml, bytes.
LARGEST = 4 * 2**20
#: Values of a file, its aliases written out; each hundred characters of a text count as one more.
MOST_VALUES = 100_000
MOST_DEPTH = 100
_LONGEST_NUMBER = 1000
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


class NotRead(yaml.MarkedYAMLError):
    """A file that is YAML, and too much of it or what is not read here; `note` says what to do."""


class BoundedLoader(yaml.SafeLoader):
    """The safe loader, refusing what is too much once it is written out."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0
        self._depth = 0
        #: id of a node that is whole -> values in it.
        self._weights: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node, counted."""
        before = self._values
        event = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._refuse(f"nested too deep, more than {MOST_DEPTH} levels", "nest less deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._weights:
            self._refuse(f"alias '{event.anchor}' stands inside itself", "write it out", event)
        if isinstance(node, yaml.ScalarNode):
            if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
                self._refuse(
                    f"a number of {len(node.value):,} characters", "put a text in quotes", event
                )
            self._values += 1 + len(node.value) // 100
        else:
            self._values += self._weights[id(node)] if is_alias else 1
        self._weights.setdefault(id(node), self._values - before)
        if self._values > MOST_VALUES:
            self._refuse(
                f"more than {MOST_VALUES:,} values, counted with every alias written out",
                "write less: an alias of an alias multiplies",
                event,
            )
        return node

    def construct_day(self, node: yaml.ScalarNode) -> Any:
        """A day or a time, refused where there is none such: YAML itself has no line for it."""
        try:
            return self.construct_yaml_timestamp(node)
        except (ValueError, OverflowError) as bad:
            fix = "write a day that exists, as 2026-12-31; a text goes in quotes"
            self._refuse(f"{shortened(node.value)} is no day: {bad}", fix, node)

    def _refuse(self, problem: str, fix: str, at: yaml.Event | yaml.Node) -> NoReturn:
        raise NotRead(problem=shortened(problem), problem_mark=at.start_mark, note=fix)  # type: ignore[arg-type]


BoundedLoader.add_constructor("tag:yaml.org,2002:timestamp", BoundedLoader.construct_day)


class _UniqueKeyLoader(BoundedLoader):
    """The same, refusing a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._refuse("the merge key '<<' is not read", "write the keys out", key_node)
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key '{shortened(str(key))}' is given twice, first in line "
                    f"{seen[key]}",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, error: type[UserError] = RecipeError) -> tuple[Any, yaml.Node | None]:
    """Parse one YAML document; returns its value and its node tree (for line numbers).

    Raises:
        UserError: of the class given - missing file, not UTF-8, not YAML, a key given twice, not
            a regular file, more than `LARGEST`, `MOST_VALUES` or `MOST_DEPTH`.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # Opening a pipe waits for whoever writes into it, and a device may have no end.
            raise error(
                "this is not a regular file", where=str(path), fix="save it as a file, and name it"
            )
        if path.is_file() and (size := path.stat().st_size) > LARGEST:
            raise error(
                f"the file is larger than {LARGEST >> 20} MiB ({size:,} bytes)",
                where=str(path),
                fix="texts and samples belong into files of their own",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, siblings)
        raise error(
            f"there is no file {path.name}", where=str(path), fix=hint or "check the path"
        ) from None
    except IsADirectoryError:
        raise error("this is a folder, not a file", where=str(path), fix="name the file") from None
    except UnicodeDecodeError as bad:
        raise error(
            f"not UTF-8: byte {bad.start} cannot be decoded",
            where=str(path),
            fix="save it as UTF-8",
        ) from None
    try:
        loader = _UniqueKeyLoader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                _whole_texts(node, path, error)
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as bad:
        line = bad.problem_mark.line + 1 if bad.problem_mark else 1
        if isinstance(bad, NotRead):
            raise error(str(bad.problem), where=f"{path}:{line}", fix=str(bad.note)) from None
        raise error(
            f"not valid YAML: {bad.problem}", where=f"{path}:{line}", fix="mend that line"
        ) from None
    except yaml.YAMLError as bad:
        raise error(f"not valid YAML: {bad}", where=str(path), fix="mend the file") from None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as bad:
        # PyYAML lets these through: a date that is none, a tag whose value is of another kind.
        raise error(
            f"a value cannot be read: {bad}",
            where=str(path),
            fix="quote texts that look like dates",
        ) from None
    return value, node


def _whole_texts(root: yaml.Node, path: Path, error: type[UserError]) -> None:
    """Refuse what neither a path, a command line nor a file can hold."""
    todo, seen = [root], set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            todo += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
        else:
            half = any("\ud800" <= character <= "\udfff" for character in node.value)
            if half or "\0" in node.value:
                what = "half a character (a lone surrogate)" if half else "a NUL character"
                raise error(
                    f"a text holds {what}",
                    where=f"{path}:{node.start_mark.line + 1}",
                    fix="take the escape out",
                )
