"""Suites of one scorer, made in a line, for the tests of scorers."""

import json
from pathlib import Path
from typing import Any

from workbench.scorers import Grade, check_target, grade
from workbench.spec import Sample, SuiteSpec
from workbench.suites import Suite

#: Outputs no scorer may stumble over.
HOSTILE = (
    "",
    " \n\t ",
    "\x00",
    "a\x00b",
    "\ud800",
    "half \udfff a character",
    "\x1b[2J\x1b]0;title\x07",
    "\u202e\ufeff\u2028",
    "[" * 100_000,
    '{"a":' * 50_000,
    "9" * 400_000,
    "1e" + "9" * 5_000,
    "-" * 5_000,
    "((((" * 2_000,
    "'" * 9_999,
    "```" * 3_000,
    "NaN",
    "Infinity",
    "null",
    "needles and\x00 \ud800 \x1b[2J 12,5 " * 30_000,
)


def suite_of(scorer: Any, *, resources: dict[str, str] | None = None, **fields: Any) -> Suite:
    """A suite with that scorer, its name or its options."""
    name = scorer if isinstance(scorer, str) else scorer["name"]
    ask = {"choice": "rank_choices", "tool_call": "call_tools"}.get(name, "generate")
    spec = SuiteSpec.model_validate(
        {
            "schema": "workbench.suite/1",
            "name": "s",
            "description": "d",
            "ask": ask,
            "prompt": "{text}",
            "chat_template": False,
            "scorer": scorer,
            **fields,
        }
    )
    return Suite(spec, (), "", Path("suites/s"), resources or {})


def sample(target: Any, **fields: Any) -> Sample:
    return Sample.model_validate({"id": "a", "target": target, **fields})


def graded(suite: Suite, target: Any, output: str) -> Grade:
    """The grade, which must be one that can be kept in a row."""
    found = grade(suite, sample(target), output)
    assert 0.0 <= found.score <= 1.0
    json.dumps(dict(found.details), allow_nan=False, ensure_ascii=False).encode()
    assert found == grade(suite, sample(target), output)
    return found


def complaint(suite: Suite, target: Any, **fields: Any) -> str:
    return check_target(suite, sample(target, **fields)) or ""
