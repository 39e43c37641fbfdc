"""What can be wrong with a suite beyond the types of its keys. Pure.

Each rule says what it found, where in the file and what to do; none stops at the first. What a
target must look like is the scorer's own business, see `workbench.scorers.check_target`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.errors import did_you_mean
from workbench.json_schema import Validator, complaint
from workbench.pooled import MICRO_F1
from workbench.prompts import MOST_CHARACTERS, fields_shown, filled_length, placeholders
from workbench.scorers import check_target
from workbench.suite_spec import Sample, SamplingSpec, SuiteSpec
from workbench.words import listed, shown

if TYPE_CHECKING:
    from workbench.suites import Suite

#: Fields a prompt must not show: the answer, and a name that says nothing about the question.
HIDDEN = ("target", "id")
#: Scorers that can say something about tool calls.
_OF_CALLS = ("tool_call", "python", "judge")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class SpecProblem(NamedTuple):
    """One thing that is wrong in `suite.yaml`.

    Attributes:
        loc: the keys that lead to it.
        what: what is wrong.
        fix: what to do; may be empty.
        where: file and line, where that is another file's; else empty.
    """

    loc: tuple[str | int, ...]
    what: str
    fix: str = ""
    where: str = ""


def spec_problems(spec: SuiteSpec, folder: str) -> Iterator[SpecProblem]:
    """Everything wrong with `suite.yaml`, which stands in a folder of the given name."""
    if spec.name != folder:
        yield SpecProblem(
            ("name",), f"the suite is called '{spec.name}' in a folder '{folder}'", "rename one"
        )
    yield from _asking(spec)
    yield from _metric(spec)
    yield from _sampling(spec)
    yield from _templates(spec)
    yield from _tools(spec)
    if spec.response_schema is not None:
        bad = complaint(spec.response_schema)
        if bad:
            yield SpecProblem(
                ("response_schema",), f"'response_schema' is not a JSON schema: {bad}"
            )


def _asking(spec: SuiteSpec) -> Iterator[SpecProblem]:
    """Does the scorer fit the way of asking, and is nothing said that has no effect?"""
    ranked, calls = spec.ask == "rank_choices", spec.ask == "call_tools"
    scorer = spec.scorer.name
    if ranked != (scorer == "choice"):
        yield SpecProblem(
            ("scorer",),
            f"scorer '{scorer}' does not fit 'ask: {spec.ask}'",
            "'choice' goes with 'rank_choices', the others do not",
        )
    elif calls != (scorer == "tool_call") and not (calls and scorer in _OF_CALLS):
        yield SpecProblem(
            ("scorer",),
            f"scorer '{scorer}' does not fit 'ask: {spec.ask}'",
            f"'call_tools' goes with one of {', '.join(_OF_CALLS)}; 'tool_call' with nothing else",
        )
    if calls and not spec.tools:
        yield SpecProblem(("ask",), "'ask: call_tools' needs 'tools'", "list the functions")
    if not calls and spec.tools:
        yield SpecProblem(
            ("tools",), f"'tools' have no effect under 'ask: {spec.ask}'", "say 'ask: call_tools'"
        )
    if not calls and spec.tool_choice != "auto":
        yield SpecProblem(
            ("tool_choice",), f"'tool_choice' has no effect under 'ask: {spec.ask}'", "remove it"
        )
    if calls and not spec.chat_template:
        yield SpecProblem(
            ("chat_template",),
            "'ask: call_tools' needs 'chat_template: true'",
            "the chat template is what shows the tools to the model",
        )
    if spec.ask != "generate" and spec.response_schema is not None:
        on = "ranked choices" if ranked else "tool calls"
        yield SpecProblem(
            ("response_schema",), f"'response_schema' has no effect on {on}", "remove it"
        )
    if spec.response_schema is None and not spec.guided:
        yield SpecProblem(
            ("guided",),
            "'guided: false' has no effect without 'response_schema'",
            "add the schema, or remove the key",
        )


def _metric(spec: SuiteSpec) -> Iterator[SpecProblem]:
    """A pooled metric is made of counts that one scorer gives; another's mean is not called so."""
    like = "".join(c for c in spec.metric.lower() if c.isalnum())
    if like not in ("microf1", "f1micro"):
        return
    if spec.metric != MICRO_F1:
        what = f"'metric: {spec.metric}' would be the name of a mean score, which micro-F1 is not"
        yield SpecProblem(("metric",), what, f"write 'metric: {MICRO_F1}'")
    elif spec.scorer.name != "json_fields":
        yield SpecProblem(
            ("metric",),
            f"'metric: {MICRO_F1}' is made of counted fields, and scorer '{spec.scorer.name}' "
            "counts none",
            "use scorer 'json_fields', or call the mean score something else",
        )
    elif not spec.higher_is_better:
        yield SpecProblem(
            ("higher_is_better",), f"a high '{MICRO_F1}' is always better", "remove the key"
        )


def _sampling(spec: SuiteSpec) -> Iterator[SpecProblem]:
    if spec.ask == "rank_choices" and spec.sampling != SamplingSpec():
        yield SpecProblem(("sampling",), "'sampling' has no effect on ranked choices", "remove it")
    if spec.repeats > 1 and spec.sampling.temperature == 0:
        yield SpecProblem(
            ("repeats",),
            f"'repeats: {spec.repeats}' at temperature 0 asks the same for the same answer",
            "give 'sampling: {temperature: ...}' above 0, or remove 'repeats'",
        )


def _templates(spec: SuiteSpec) -> Iterator[SpecProblem]:
    if spec.system is not None and not spec.chat_template:
        yield SpecProblem(
            ("system",),
            "'system' needs 'chat_template: true'",
            "write its text into 'prompt' where the model has no chat template",
        )
    if spec.messages and not spec.chat_template:
        yield SpecProblem(
            ("messages",),
            "'messages' need 'chat_template: true'",
            "write one 'prompt' where the model has no chat template",
        )
    if spec.messages and spec.messages[-1].role != "user":
        yield SpecProblem(
            ("messages", len(spec.messages) - 1, "role"),
            f"the last of 'messages' is the {spec.messages[-1].role}'s: nothing asks for an answer",
            "end with a message of role 'user'",
        )
    for i, message in enumerate(spec.messages):
        if i and message.role == "system":
            yield SpecProblem(
                ("messages", i, "role"), "a system message stands first or nowhere", "move it"
            )
    shown: list[str] = []
    for i, message in enumerate(spec.templates):
        loc = ("messages", i, "content") if spec.messages else ("prompt",)
        name = f"messages.{i}.content" if spec.messages else "prompt"
        try:
            names = placeholders(message.content)
        except ValueError as bad:
            yield SpecProblem(loc, f"'{name}': {bad}")
            return
        for hidden in sorted(set(names) & set(HIDDEN)):
            yield SpecProblem(
                loc, f"'{name}' shows '{{{hidden}}}'", "the model must not see that field"
            )
        shown += names
    if not shown:
        key = "messages" if spec.messages else "prompt"
        verb = "use" if spec.messages else "uses"
        yield SpecProblem((key,), f"'{key}' {verb} no field of the sample", "write one as {field}")


def _tools(spec: SuiteSpec) -> Iterator[SpecProblem]:
    first: dict[str, int] = {}
    for i, tool in enumerate(spec.tools):
        name = None
        for keys, what, fix in _tool(tool):
            yield SpecProblem(
                ("tools", i, *keys), f"'{'.'.join(('tools', str(i), *keys))}': {what}", fix
            )
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            if name in first:
                yield SpecProblem(
                    ("tools", i, "function", "name"),
                    f"two tools are called '{name}', the first is tools.{first[name]}",
                    "a call must say which of them is meant: rename one",
                )
            first.setdefault(name, i)


def _tool(tool: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """What is wrong with one tool: (keys inside it, what, fix)."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        near = "" if "name" not in tool else "put name and parameters under 'function'"
        yield (), "a tool is {type: function, function: {name, description, parameters}}", near
        return
    yield from _unknown((), tool, ("type", "function"))
    yield from _unknown(("function",), function, _FUNCTION)
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.match(name):
        yield (
            ("function", "name"),
            f"{shown(name)} is no name of a function",
            "use letters, digits, '_' and '-', at most 64",
        )
    if not isinstance(function.get("description", ""), str):
        yield ("function", "description"), "this is no text", "put it in quotes"
    parameters = function.get("parameters")
    if "parameters" not in function:
        return
    bad = complaint(parameters)
    if bad:
        yield ("function", "parameters"), f"not a JSON schema: {bad}", ""
    elif isinstance(parameters, dict) and parameters.get("type") != "object":
        yield (
            ("function", "parameters"),
            "the arguments of a call are one object, and the schema is of something else",
            "say 'type: object' with 'properties'",
        )


_FUNCTION = ("name", "description", "parameters", "strict")


def _unknown(
    keys: tuple[str, ...], value: dict[str, Any], known: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    for key in value:
        if key not in known:
            hint = did_you_mean(str(key), known)
            yield (*keys, str(key)), "unknown key", f"{hint}known: {', '.join(known)}"


def in_no_sample(spec: SuiteSpec, samples: Sequence[Sample]) -> Iterator[tuple[SpecProblem, str]]:
    """Fields `suite.yaml` names and no sample has: one mistake there, not one in each line.

    Beside each is how the problem begins that every line has by it.
    """
    there = {name for s in samples for name, value in s.model_dump().items() if value is not None}
    if not samples:
        return
    known = [name for name in samples[0].model_dump() if name in there and name not in HIDDEN]
    if spec.cluster and spec.cluster not in there:
        near = did_you_mean(spec.cluster, known).strip()
        null = any(spec.cluster in s.model_dump() for s in samples)
        lacking = "which is null in every sample" if null else "which no sample has"
        what = f"'cluster' names the field '{spec.cluster}', {lacking}"
        problem = SpecProblem(("cluster",), what, near or "name one that all have")
        yield problem, f"field '{spec.cluster}', which 'cluster'"
    seen = {*there, *HIDDEN}
    for i, message in enumerate(spec.templates):
        try:
            names = [name for name in placeholders(message.content) if name not in seen]
        except ValueError:
            return
        for name in dict.fromkeys(names):
            seen.add(name)
            loc = ("messages", i, "content") if spec.messages else ("prompt",)
            key = ".".join(map(str, loc))
            problem = SpecProblem(
                loc,
                f"'{key}' uses the field '{name}', which no sample has",
                did_you_mean(name, known) + f"fields: {listed(known)}",
            )
            yield problem, f"field '{name}', which the prompt uses"


class SampleCheck:
    """What can be said against one sample of a suite.

    Args:
        suite: without its samples.
        usable: False where a schema or a file of the suite is broken already, so that no target
            can be compared under it.
    """

    def __init__(self, suite: Suite, *, usable: bool) -> None:
        self._suite = suite
        self._usable = usable
        spec = suite.spec
        try:
            self._fields = fields_shown(spec)
        except ValueError:
            self._fields = ()
        compared = usable and spec.response_schema is not None and spec.scorer.name == "json_fields"
        self._validator = Validator(spec.response_schema or {}) if compared else None

    def problems(self, sample: Sample) -> Iterator[tuple[str, str]]:
        """Each problem as (what, fix)."""
        yield from self._of_id(sample)
        fields = sample.model_dump()
        for name in self._fields:
            if fields.get(name) is None and name not in HIDDEN:
                if name in fields:
                    yield f"field '{name}', which the prompt uses, is null", "give it a value"
                    continue
                known = [k for k in fields if k not in HIDDEN]
                yield (
                    f"field '{name}', which the prompt uses, is missing",
                    did_you_mean(name, known).strip(),
                )
        length = sum(filled_length(m.content, fields) for m in self._suite.spec.templates)
        if length > MOST_CHARACTERS:
            yield (
                f"the prompt would be {length:,} characters long, and {MOST_CHARACTERS:,} are most",
                "shorten the field, or show it less often",
            )
        yield from self._of_cluster(fields)
        if not self._usable:
            return
        bad_target = check_target(self._suite, sample)
        if bad_target:
            what, _, fix = bad_target.partition("\n")
            yield what, fix
        elif self._validator is not None:
            bad = self._validator.first_error(sample.target)
            if bad:
                yield f"'target' does not fit 'response_schema': {bad}", "no answer could be right"

    def _of_id(self, sample: Sample) -> Iterator[tuple[str, str]]:
        if not sample.id.isprintable() or sample.id != sample.id.strip():
            yield (
                f"id {sample.id!r} holds line ends, control codes or outer spaces",
                "an id is shown and searched for: letters, digits, '-', '_' and '.' do",
            )
        if self._suite.spec.repeats > 1 and re.search(r"#\d+\Z", sample.id):
            yield (
                f"id '{sample.id}' ends like the number of a repeat",
                "with 'repeats', '#1' after an id means its second time",
            )

    def _of_cluster(self, fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
        name = self._suite.spec.cluster
        if name is None:
            return
        value = fields.get(name)
        if value is None:
            known = [k for k in fields if k not in HIDDEN]
            yield (
                f"field '{name}', which 'cluster' names, is missing",
                did_you_mean(name, known).strip() or "give every sample one, or remove 'cluster'",
            )
        elif not isinstance(value, str | int) or value == "":
            yield f"field '{name}', which 'cluster' names, is no text or number", ""
