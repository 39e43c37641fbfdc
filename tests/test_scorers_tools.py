import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring import complaint, graded, suite_of

from workbench.scorers.tools import Call, _in_order, _paired

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1},
                    "unit": {"enum": ["C", "F"]},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "ping"}},
)
PARIS = {"name": "weather", "arguments": {"city": "Paris", "days": 2}}
SEND = {"name": "send", "arguments": {"to": "Ann"}}


def suite(**options: Any) -> Any:
    return suite_of({"name": "tool_call", **options}, tools=TOOLS)


def said(*calls: dict[str, Any], content: str = "") -> str:
    def text(arguments: Any) -> str:
        return arguments if isinstance(arguments, str) else json.dumps(arguments)

    made = [{"name": c["name"], "arguments": text(c["arguments"])} for c in calls]
    return json.dumps({"tool_calls": made, "content": content})


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("target", "made", "score", "flags"),
    [
        ([PARIS], [PARIS], 1, ()),
        ([PARIS], [call("weather", {"days": 2.0, "city": "paris"})], 1, ()),
        ([PARIS], [call("weather", {"city": "Paris"})], 0, ()),
        ([PARIS], [call("weather", {"city": "Paris", "days": 3})], 0, ()),
        ([PARIS], [call("weather", {"city": "Paris", "days": 2, "unit": "C"})], 0, ()),
        ([PARIS], [], 0, ("no_tool_call",)),
        ([PARIS], [call("send", {"city": "Paris", "days": 2})], 0, ("wrong_tool",)),
        ([PARIS], [call("forecast", {"city": "Paris"})], 0, ("wrong_tool",)),
        ([PARIS], [call("weather", '"Paris"')], 0, ("invalid_arguments",)),
        ([PARIS], [call("weather", "")], 0, ("invalid_arguments",)),
        ([PARIS], [call("weather", '{"city": "Paris", "days": NaN}')], 0, ("invalid_arguments",)),
        ([PARIS], [call("weather", {"city": "Paris", "days": 0})], 0, ("invalid_arguments",)),
        ([PARIS], [call("weather", {"town": "Paris"})], 0, ("invalid_arguments",)),
        ([PARIS], [PARIS, PARIS], 2 / 3, ()),
        ([PARIS], [PARIS, SEND], 2 / 3, ("wrong_tool",)),
        ([PARIS, SEND], [PARIS], 2 / 3, ()),
        ([PARIS, SEND], [PARIS, SEND], 1, ()),
        ([PARIS, SEND], [SEND, PARIS], 1 / 2, ()),
        ([], [], 1, ()),
        ([], [PARIS], 0, ("wrong_tool",)),
        ([call("ping", {})], [call("ping", {})], 1, ()),
        ([call("ping", {})], [call("ping", "{}")], 1, ()),
    ],
)
def test_calls(
    target: list[Any], made: list[Any], score: float, flags: tuple[str, ...]
) -> None:  # fmt: skip
    assert complaint(suite(), target) == ""
    found = graded(suite(), target, said(*made))
    assert (found.score, found.flags) == (pytest.approx(score), flags)
    assert (found.details["made"], found.details["wanted"]) == (len(made), len(target))


def test_order_counts_only_where_it_should() -> None:
    assert graded(suite(ordered=False), [PARIS, SEND], said(SEND, PARIS)).score == 1.0


def test_extra_arguments_may_be_accepted_but_not_against_the_schema() -> None:
    lax = suite(extra_arguments=True)
    unit = call("weather", {"city": "Paris", "days": 2, "unit": "C"})
    assert graded(lax, [PARIS], said(unit)).score == 1.0
    sky = call("weather", {"city": "Paris", "days": 2, "sky": "blue"})
    found = graded(lax, [PARIS], said(sky))
    assert (found.score, found.flags) == (0.0, ("invalid_arguments",))


def test_a_call_takes_the_target_that_fits_it_best() -> None:
    """Paired greedily, the first call would take the only target the second one fits."""
    target = [call("send", {"a": 1}), call("send", {"a": 1, "b": 2})]
    made = said(call("send", {"a": 1, "b": 2}), call("send", {"a": 1, "c": 3}))
    assert graded(suite(extra_arguments=True, ordered=False), target, made).score == 1.0


@pytest.mark.parametrize(
    "output",
    [
        "I would call weather.",
        '{"tool_calls": null, "content": "x"}',
        '{"tool_calls": {"name": "weather"}}',
        '[{"name": "weather"}]',
        '{"content": ""}',
    ],
)
def test_what_holds_no_calls(output: str) -> None:
    assert graded(suite(), [PARIS], output).flags == ("no_tool_call",)
    assert graded(suite(), [], output).score == 1.0


def test_calls_that_are_no_calls() -> None:
    made = json.dumps({"tool_calls": [1, None, {"name": 3, "arguments": {}}, {"arguments": "{}"}]})
    found = graded(suite(), [PARIS], made)
    assert found.score == 0.0 and set(found.flags) == {"wrong_tool", "invalid_arguments"}
    many = json.dumps({"tool_calls": [{"name": "weather", "arguments": "{}"}] * 20_000})
    assert graded(suite(), [PARIS], many).details["made"] == 20_000


values = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab é", max_size=4)
calls = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments},
    st.sampled_from(("send", "ping")),
    st.dictionaries(st.text("xy", min_size=1, max_size=2), values, max_size=3),
)


@given(st.lists(calls, max_size=5), st.booleans())
def test_the_target_itself_is_right(target: list[Any], ordered: bool) -> None:
    found = graded(suite(ordered=ordered), target, said(*target))
    assert (found.score, found.flags) == (1.0, ())


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
def test_pairing_is_the_best_there_is(fits: list[list[bool]]) -> None:
    def right(i: int, j: int) -> bool:
        return fits[i][j]

    rows = range(len(fits))
    best = max(sum(fits[i][p[i]] for i in rows) for p in itertools.permutations(range(4)))
    assert _paired(len(fits), 4, right) == best
    ordered = max(
        len(chosen)
        for n in range(len(fits) + 1)
        for chosen in itertools.combinations(rows, n)
        for places in itertools.combinations(range(4), n)
        if all(fits[i][j] for i, j in zip(chosen, places, strict=True))
    )
    assert _in_order(len(fits), 4, right) == ordered <= best
    assert Call("x", None).arguments is None


@pytest.mark.parametrize(
    ("target", "said_"),
    [
        ({"name": "weather"}, "must be a list of calls"),
        (["weather"], "call 1 of 'target' must be an object with 'name' and 'arguments'"),
        ([PARIS, {"name": "send"}], "call 2"),
        ([call("send", "{}")], "'arguments' an object"),
        ([call("fly", {})], "no tool 'fly' (it has: weather, send, ping)"),
        ([call("weather", {"city": 3})], "breaks the parameters of 'weather'"),
    ],
)
def test_check_of_a_target(target: Any, said_: str) -> None:
    assert said_ in complaint(suite(), target)
