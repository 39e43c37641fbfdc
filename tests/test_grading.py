"""Grading begins when every answer is stored: nothing that fails or stops then costs an answer."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import serving
from scripted_server import ScriptedServer
from test_evaluate import Endpoint, Letters, right, said, suite, word

from workbench.evaluate import read_rows, run_suite
from workbench.records import SuiteResult
from workbench.spec import JudgeSpec
from workbench.suites import Suite

#: What the scorers below do, by the sample's id; and the servers they look at.
DO: dict[str, Callable[[], object]] = {}
calls: list[str] = []


def scorer(sample: dict[str, Any], output: str) -> float:
    """The scorer of these suites, named as a user names one of an installed module."""
    calls.append(sample["id"])
    DO.get(sample["id"], lambda: None)()
    return float(output == sample["target"])


@pytest.fixture(autouse=True)
def fresh() -> None:
    DO.clear()
    calls.clear()


def own(n: int, function: str = "test_grading:scorer", **resources: str) -> Suite:
    made = suite(n, scorer={"name": "python", "function": function})
    return replace(made, resources=resources)


def ask(server: ScriptedServer, of: Suite, rows: Path, judge: JudgeSpec | None = None) -> Any:
    result: SuiteResult = run_suite(
        Endpoint(server.url, serving("w", max_model_len=2048)),  # type: ignore[arg-type]
        of,
        Letters(),  # type: ignore[arg-type]
        rows=rows,
        conditions={},
        concurrency=1,
        limit=None,
        request_seconds=10.0,
        progress=lambda done, total, what: None,
        judge=judge,
    )
    return result


def test_a_scorer_that_fails_keeps_the_answer_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    source = "def score(sample, output):\n    return {'r2': {}}.get(output, %s)%s\n"
    broken = own(4, "own.py:score", **{"own.py": source % ("{'x': 1}", "['x']")})
    with ScriptedServer(right) as server:
        first = ask(server, broken, path)
        rows = read_rows(path)
        assert [r.output for r in rows] == ["r0", "r1", "r2", "r3"]
        assert [r.score for r in rows] == [1.0, 1.0, None, 1.0] and first.failed == 1
        assert first.score is None, "the mean over the others is no score of the suite"
        said = rows[2].error or ""
        assert said.startswith("not scored: scorer 'own.py:score' raised KeyError: 'x'")
        assert "(sample 's2')" in said and "own.py:2" in said
        again = ask(server, broken, path)
        assert again == first, "asked nothing, and still nothing is known of it"
        mended = own(4, "own.py:score", **{"own.py": source % ("1", "and 1 or 0.5")})
        second = ask(server, mended, path)
        assert len(server.bodies) == 4, "the answers were there"
    assert second.failed == 0 and read_rows(path)[2].score == 0.5
    assert read_rows(path)[2].error is None


def test_what_an_exception_quotes_is_one_harmless_line(tmp_path: Path) -> None:
    def quote() -> None:
        raise ValueError("\x1b[2J\u202eno\nsuch" + "x" * 9000)

    DO["s0"] = quote
    with ScriptedServer(right) as server:
        ask(server, own(1), tmp_path / "mine.jsonl")
    said = read_rows(tmp_path / "mine.jsonl")[0].error or ""
    assert said.isprintable() and len(said) < 600 and "no such" in said


def test_no_answer_is_graded_while_another_is_asked(tmp_path: Path) -> None:
    with ScriptedServer(right) as server:
        seen: list[int] = []
        DO.update({f"s{i}": lambda: seen.append(len(server.bodies)) for i in range(5)})
        assert ask(server, own(5), tmp_path / "mine.jsonl").score == 1.0
    assert seen == [5] * 5 and calls == [f"s{i}" for i in range(5)]


def test_a_scorer_that_is_stopped_costs_no_answer_and_no_grade(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"

    def stop() -> None:
        raise KeyboardInterrupt

    DO["s3"] = stop
    with ScriptedServer(right) as server:
        with pytest.raises(KeyboardInterrupt):
            ask(server, own(5), path)
        DO.clear()
        calls.clear()
        result = ask(server, own(5), path)
        assert len(server.bodies) == 5
    assert calls == ["s3", "s4"] and result.failed == 0 and result.score == 1.0


# --------------------------------------------------------------------------- the judge


def judging(say: Callable[[str, int], str], look: Callable[[int], object]) -> Any:
    """A judge that says a word of an answer, after somebody looked which one it is."""

    def script(body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][-1]["content"]
        number = next(i for i in range(99) if f"q{i}\n" in text)
        look(number)
        return {"model": "judge-1", "choices": [{"message": {"content": say(text, number)}}]}

    return script


@pytest.fixture
def stopped(tmp_path: Path) -> Callable[..., Any]:
    """Judge n answers; then as if the process had died when it came to one of them."""

    def run(n: int, at: int, say: Callable[[str, int], str]) -> tuple[SuiteResult, list[Any]]:
        path, of = tmp_path / "mine.jsonl", suite(n, scorer={"name": "judge", "rubric": "R"})
        left: list[bytes] = []

        def look(number: int) -> None:
            if number == at and not left:
                left.append(path.read_bytes())

        script = judging(say, look)
        with (
            ScriptedServer(lambda b: said(b, f"A{b['prompt']}")) as server,
            ScriptedServer(script) as judge,
        ):
            spec = JudgeSpec(url=judge.url, model="judge", concurrency=1)
            ask(server, of, path, spec)
            path.write_bytes(left[0])
            judge.bodies.clear()
            result = ask(server, of, path, spec)
            assert len(server.bodies) == n
            return result, judge.bodies

    return run


def test_a_judge_that_is_stopped_is_asked_only_what_is_missing(
    stopped: Callable[..., Any], tmp_path: Path
) -> None:
    result, asked = stopped(5, 3, word)
    assert len(asked) == 2 * 2, "two answers, in both positions"
    assert result.failed == 0 and result.conditions["judge"]["versions"] == ["judge-1"]
    assert [r.score for r in read_rows(tmp_path / "mine.jsonl")] == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert len((tmp_path / "mine.jsonl").read_text().splitlines()) == 5


def test_a_judge_that_goes_by_the_position_is_seen_over_all_it_said(
    stopped: Callable[..., Any], tmp_path: Path
) -> None:
    result, asked = stopped(12, 7, lambda text, number: "A")
    assert len(asked) == 2 * 5 and result.failed == 12 and result.score is None
    rows = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert all("12 of 12 verdicts went with the position" in row["error"] for row in rows)
    assert all(row["output"] and row["score"] is None and not row["grade"] for row in rows)
