"""What the verdict would be: other limits on the same records."""

from __future__ import annotations

import datetime

import pytest

from workbench.errors import RecipeError
from workbench.spec import Policy
from workbench.what_if import changed

POLICY = Policy.model_validate(
    {
        "schema": "workbench.policy/1",
        "name": "test",
        "quality": [
            {"suite": "sentiment", "margin": 0.1},
            {"suite": "v1.2", "margin": 0.2, "min_n": 50, "tier": "advisory"},
        ],
        "size": [{"metric": "weight_bytes", "max_ratio": 0.75}],
    }
)


def test_a_limit_of_every_suite_or_of_one() -> None:
    other, on, said = changed(POLICY, ["v1.2.margin=0.05", "margin=0.02", "min_n=10"])
    assert [(q.suite, q.margin, q.min_n, q.confidence) for q in other.quality] == [
        ("sentiment", 0.02, 10, 0.95),
        ("v1.2", 0.05, 10, 0.95),
    ]
    assert other.quality[1].tier == "advisory" and other.size == POLICY.size
    assert on is None
    assert said == ("v1.2.margin=0.05", "margin=0.02", "min_n=10")
    assert POLICY.quality[0].margin == 0.1, "the policy itself stays what it is"


def test_a_confidence_and_a_day() -> None:
    other, on, _ = changed(POLICY, ["confidence=0.99", "date=2027-01-31"])
    assert {q.confidence for q in other.quality} == {0.99}
    assert on == datetime.date(2027, 1, 31)


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ("margin", "says no value", "known: margin="),
        ("margin=", "says no value", "known: margin="),
        ("margn=0.1", "nothing that can be changed", "did you mean 'margin'?"),
        ("tier=advisory", "nothing that can be changed", "known: margin="),
        ("sentimant.margin=0.1", "no check of suite 'sentimant'", "did you mean 'sentiment'?"),
        ("sentiment.date=2027-01-31", "nothing that can be changed", "known: margin="),
        ("margin=little", "is no number", "write a number"),
        ("margin=-0.1", "greater than 0", "use more than 0"),
        ("margin=nan", "'margin'", ""),
        ("margin=2", "less than 1", "0.02"),
        ("confidence=95", "less than 1", "0.95"),
        ("min_n=2.5", "is no number", "write a number"),
        ("min_n=0", "greater than or equal to 1", "use 1 or more"),
        ("date=tomorrow", "is no day", "2026-12-31"),
        ("date=2026-W53", "is no day", "2026-12-31"),
        ("date=20261231", "is no day", "2026-12-31"),
    ],
)
def test_what_no_policy_may_say_is_refused(change: str, what: str, fix: str) -> None:
    with pytest.raises(RecipeError) as caught:
        changed(POLICY, [change])
    assert what in caught.value.what and fix in caught.value.fix
    assert caught.value.where.startswith("--what-if")


def test_the_same_twice_and_a_policy_without_suites_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"'sentiment\.margin' is given twice"):
        changed(POLICY, ["sentiment.margin=0.1", "sentiment.margin=0.2"])
    bare = POLICY.model_copy(update={"quality": ()})
    with pytest.raises(RecipeError, match="no check of quality"):
        changed(bare, ["margin=0.1"])
