"""Reasons name what changed, one level down."""

import pytest

from workbench.reasons import changes, last_attempt


def test_a_change_is_named_one_level_down() -> None:
    before = {"suites": {"a": "1", "b": "2"}, "options": {"bits": 4}, "same": {"x": 1}, "tool": "1"}
    now = {"suites": {"a": "9", "c": "2"}, "options": {"bits": 4}, "same": {"x": 1}, "tool": "2"}
    assert changes(before, now) == ["suites (a, b, c)", "tool"]
    assert changes(before, before) == []


def test_what_has_no_keys_or_is_new_is_named_alone() -> None:
    assert changes({"calibration": None}, {"calibration": {"seed": 7}}) == ["calibration"]
    assert changes({"twin": None}, {}) == ["twin"]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (["start", "progress", "error"], "the last attempt failed: no space"),
        (["start", "error", "start", "progress"], "an attempt was cut short"),
        (["start", "error", "start", "interrupted"], "an attempt was cut short"),
        (
            ["start", "not scored", "done"],
            "the last attempt left answers without a score: no space",
        ),
        (["start", "start", "progress", "done"], "samples failed in the last attempt"),
        (["start", "not scored", "done", "start"], "an attempt was cut short"),
        ([], "an attempt was cut short"),
    ],
)
def test_how_the_last_attempt_ended_is_told_apart(events: list[str], says: str) -> None:
    of = [{"event": e, "step": "evaluate:a", "what": "no space"} for e in events]
    others = [{"event": "error", "step": "evaluate:b", "what": "other"}, {"event": "damaged"}]
    assert last_attempt([*others, *of, *others], "evaluate:a") == says
