"""The scorer of tool calls: the right names with the right arguments, in order. Pure.

A call is right where its name and its whole arguments are. Arguments are what a program would read:
a text that is JSON and an object (``"Paris"`` is JSON and no arguments), and that fits the tool's
own `parameters`. A call that does not is wrong, whatever else it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.evaluation_records import Flag
from workbench.scorers.base import Grade, f1, kind, same, shown, shown_names
from workbench.scorers.structured import parse_object, violation
from workbench.suite_spec import Sample, ToolCallScorer

if TYPE_CHECKING:
    from workbench.suites import Suite

#: Calls beyond so many are counted as wrong without a look at them.
_MOST_CALLS = 200


class Call(NamedTuple):
    """A tool call. Its arguments are None where they are no JSON object."""

    name: str
    arguments: Mapping[str, Any] | None


def tool_call(suite: Suite, sample: Sample, output: str) -> Grade:
    """F1 over calls, 2 right / (made + wanted); with no call wanted, 1 where none was made.

    With `ordered`, right is the longest run of right calls in the target's order; without, the
    most that can be paired. Values are compared as `json_fields` does.
    """
    options = suite.spec.scorer
    assert isinstance(options, ToolCallScorer)
    wanted = [Call(call["name"], call["arguments"]) for call in sample.target]
    made, count = read_calls(output)
    schemas = parameters(suite)
    complaints = [_complaint(call, schemas) for call in made]

    def right(i: int, j: int) -> bool:
        return complaints[j] is None and _is_right(wanted[i], made[j], options.extra_arguments)

    pair = _in_order if options.ordered else _paired
    hits = pair(len(wanted), len(made), right)
    flags: list[Flag] = []
    if wanted and not count:
        flags.append("no_tool_call")
    if {call.name for call in made} - {call.name for call in wanted} or (count and not wanted):
        flags.append("wrong_tool")
    bad = next((complaint for complaint in complaints if complaint), None)
    details: dict[str, Any] = {
        "right": hits,
        "made": count,
        "wanted": len(wanted),
        "names": shown_names({call.name for call in made}),
    }
    if bad:
        flags.append("invalid_arguments")
        details["arguments"] = bad
    return Grade(f1(hits, count, len(wanted)), tuple(flags), details)


def read_calls(output: str) -> tuple[list[Call], int]:
    """The calls in an output (see `workbench.scorers.grade`), and how many there are.

    The list ends after two hundred. A call without a name has an empty one.
    """
    said = (parse_object(output) or {}).get("tool_calls")
    found = said if isinstance(said, list) else []
    return [_call(item) for item in found[:_MOST_CALLS]], len(found)


def parameters(suite: Suite) -> dict[str, Mapping[str, Any]]:
    """Name of each tool the suite offers -> the JSON schema of its arguments."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in suite.spec.tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            found[function["name"]] = schema if isinstance(schema, dict) else {}
    return found


def check_calls(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target of `tool_call`, or None. An empty list: no call is right."""
    target = sample.target
    if not isinstance(target, list):
        return f"'target' must be a list of calls, which may be empty, not {kind(target)}"
    if not target and suite.spec.tool_choice == "required":
        return (
            "'target' is no call, and 'tool_choice: required' makes the model call: no answer "
            "could be right\nsay 'tool_choice: auto', or name the right call"
        )
    schemas = parameters(suite)
    for number, call in enumerate(target, 1):
        if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
            return f"call {number} of 'target' must be an object with 'name' and 'arguments'"
        name, arguments = call["name"], call["arguments"]
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return f"call {number} of 'target': 'name' is a text and 'arguments' an object"
        if name not in schemas:
            offered = ", ".join(schemas) or "none"
            return f"call {number} of 'target': the suite has no tool {name!r} (it has: {offered})"
        complaint = violation(schemas[name], arguments)
        if complaint:
            return f"call {number} of 'target' breaks the parameters of {name!r}: {complaint}"
    return None


def _call(item: Any) -> Call:
    name = item.get("name") if isinstance(item, dict) else None
    arguments = item.get("arguments") if isinstance(item, dict) else None
    return Call(
        name if isinstance(name, str) else "",
        parse_object(arguments) if isinstance(arguments, str) else None,
    )


def _complaint(call: Call, schemas: Mapping[str, Mapping[str, Any]]) -> str | None:
    if call.arguments is None:
        return shown(f"{call.name}: not a JSON object", 300)
    schema = schemas.get(call.name)
    bad = None if schema is None else violation(schema, call.arguments)
    return None if bad is None else shown(f"{call.name}: {bad}", 300)


def _is_right(wanted: Call, made: Call, extra: bool) -> bool:
    if wanted.name != made.name or wanted.arguments is None or made.arguments is None:
        return False
    if not extra and made.arguments.keys() != wanted.arguments.keys():
        return False
    return all(
        name in made.arguments and same(value, made.arguments[name])
        for name, value in wanted.arguments.items()
    )


def _in_order(rows: int, columns: int, right: Callable[[int, int], bool]) -> int:
    """Length of the longest common subsequence under `right`."""
    best = [0] * (columns + 1)
    for i in range(rows):
        before = list(best)
        for j in range(columns):
            best[j + 1] = before[j] + 1 if right(i, j) else max(before[j + 1], best[j])
    return best[columns]


def _paired(rows: int, columns: int, right: Callable[[int, int], bool]) -> int:
    """Size of the largest matching: each row with one column (augmenting paths, Kuhn 1955)."""
    fits: Sequence[Sequence[int]] = [
        [j for j in range(columns) if right(i, j)] for i in range(rows)
    ]
    taken: dict[int, int] = {}

    def place(i: int, seen: set[int]) -> bool:
        for j in fits[i]:
            if j not in seen:
                seen.add(j)
                if j not in taken or place(taken[j], seen):
                    taken[j] = i
                    return True
        return False

    return sum(place(i, set()) for i in range(rows))
