"""Traces: what is read, and every line that is refused with its place."""

import json
from pathlib import Path

import pytest

from workbench.errors import RecipeError, SuiteError
from workbench.traces import last_time, prompt_ids, read_trace, trace_rate

GOOD = '{"at": 1, "input_tokens": 3, "output_tokens": 2}'


def trace(folder: Path, *written: str) -> Path:
    path = folder / "t.jsonl"
    path.write_text("\n".join(written))
    return path


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_a_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        '{"at": 0, "input_tokens": 812, "output_tokens": 40}',
        "",
        '{"at": 0, "input_tokens": 3, "output_tokens": 2, "prompt": "abc"}',
        '{"at": 4.5, "output_tokens": 7, "prompt": "ab"}',
    )
    rows = read_trace(path)
    assert [(r.at, r.input_tokens, r.output_tokens, r.prompt) for r in rows] == [
        (0.0, 812, 40, None),
        (0.0, 3, 2, "abc"),
        (4.5, None, 7, "ab"),
    ]
    assert rows[2].where == f"{path}:4"
    assert trace_rate(rows) == pytest.approx(2 / 4.5)
    assert trace_rate(rows[:2]) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"at": -0.5, "input_tokens": 3, "output_tokens": 2}', "before the trace began"),
        ('{"at": 0.5, "input_tokens": 3, "output_tokens": 2}', "before the 1 of an earlier line"),
        ('{"at": NaN, "input_tokens": 3, "output_tokens": 2}', "NaN is not JSON"),
        ('{"at": Infinity, "input_tokens": 3, "output_tokens": 2}', "Infinity is not JSON"),
        ('{"at": 1e999, "input_tokens": 3, "output_tokens": 2}', ""),
        ('{"at": 1767225600000, "input_tokens": 3, "output_tokens": 2}', "more than 1e+09"),
        ('{"at": "2", "input_tokens": 3, "output_tokens": 2}', "'at' is a number"),
        ('{"at": true, "input_tokens": 3, "output_tokens": 2}', "'at' is a number"),
        ('{"at": null, "input_tokens": 3, "output_tokens": 2}', "'at' is a number"),
        ('{"input_tokens": 3, "output_tokens": 2}', "'at' is missing"),
        ('{"at": 2, "output_tokens": 2}', "'input_tokens' is missing"),
        ('{"at": 2, "input_tokens": 3}', "'output_tokens' is missing"),
        ('{"at": 2, "prompt": "a"}', "'output_tokens' is missing"),
        ('{"at": 2, "input_tokens": 0, "output_tokens": 2}', "'input_tokens' is 0"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": 0}', "'output_tokens' is 0"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": -1}', "'output_tokens' is -1"),
        ('{"at": 2, "input_tokens": 3.5, "output_tokens": 2}', "whole number"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": true}', "whole number"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": NaN}', "NaN is not JSON"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": 1e9}', "whole number"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": 99999999}', "99999999"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": 2, "prompt": ""}', "not empty"),
        ('{"at": 2, "input_tokens": 3, "output_tokens": 2, "prompt": 5}', "'prompt' is a text"),
        ('{"at": 2, "inputtokens": 3, "output_tokens": 2}', "did you mean 'input_tokens'?"),
        ('{"at": 2, "at": 3, "input_tokens": 3, "output_tokens": 2}', "given twice"),
        ("[2, 3, 2]", "not a JSON object"),
        ('{"at": 2, "input_tokens": 3', "not JSON"),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = trace(tmp_path, GOOD, line)
    with pytest.raises(RecipeError) as error:
        read_trace(path)
    assert said in error.value.what
    assert error.value.where == f"{path}:2"
    assert "sorted by 'at'" in error.value.fix


def test_ten_bad_lines_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    path = trace(tmp_path, GOOD, *["{}"] * 12)
    with pytest.raises(RecipeError, match="12 problems") as error:
        read_trace(path)
    assert f"{path}:11: 'at' is missing" in error.value.what
    assert f"{path}:12" not in error.value.what
    assert "and 2 more" in error.value.what


def test_a_bad_time_is_not_what_the_next_line_is_compared_with(tmp_path: Path) -> None:
    late = json.dumps({"at": 9, "input_tokens": 0, "output_tokens": 2})
    with pytest.raises(RecipeError, match="'input_tokens' is 0"):
        read_trace(trace(tmp_path, GOOD, late, GOOD))


def test_an_empty_or_absent_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="holds no request"):
        read_trace(trace(tmp_path, "", "  "))
    with pytest.raises(SuiteError, match=r"there is no absent\.jsonl"):
        read_trace(tmp_path / "absent.jsonl")


def test_a_prompt_that_counts_otherwise_is_refused(tmp_path: Path) -> None:
    path = trace(
        tmp_path,
        '{"at": 0, "input_tokens": 3, "output_tokens": 2, "prompt": "abc"}',
        '{"at": 1, "output_tokens": 2, "prompt": "abcd"}',
        '{"at": 2, "input_tokens": 9, "output_tokens": 2, "prompt": "abcd"}',
    )
    rows = read_trace(path)
    assert prompt_ids(rows[0], encode) == (97, 98, 99)
    assert prompt_ids(rows[1], encode) == (97, 98, 99, 100)
    with pytest.raises(RecipeError, match=r"says 9 input tokens.* makes 4") as error:
        prompt_ids(rows[2], encode)
    assert error.value.where == f"{path}:3"


def test_how_long_a_trace_takes_is_known_from_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for text, seconds in (
        ('{"at": 1}\n{"at": 90.5, "output_tokens": 3}\n\n', 90.5),
        ('{"at": 7}', 7.0),
        ("", 0.0),
        ("{broken", 0.0),
        ("[1]", 0.0),
        ('{"at": -1}', 0.0),
        ('{"at": null}', 0.0),
    ):
        path.write_text(text)
        assert last_time(path) == seconds
