"""Reasons name what changed, one level down."""

from workbench.reasons import changes


def test_a_change_is_named_one_level_down() -> None:
    before = {"suites": {"a": "1", "b": "2"}, "options": {"bits": 4}, "same": {"x": 1}, "tool": "1"}
    now = {"suites": {"a": "9", "c": "2"}, "options": {"bits": 4}, "same": {"x": 1}, "tool": "2"}
    assert changes(before, now) == ["suites (a, b, c)", "tool"]
    assert changes(before, before) == []


def test_what_has_no_keys_or_is_new_is_named_alone() -> None:
    assert changes({"calibration": None}, {"calibration": {"seed": 7}}) == ["calibration"]
    assert changes({"twin": None}, {}) == ["twin"]
