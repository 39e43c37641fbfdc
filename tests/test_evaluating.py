"""The evaluate step through the command line: suites of every way of asking, and what is recorded.

How it survives a server's death is in `test_run_faults`.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml
from projects import edit_recipe
from test_evaluate import TOOL

from workbench.evaluating import of_these_weights, throw_away
from workbench.rows import altered, rows_digest, staged, write_rows
from workbench.store import RECORD

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tooled(project: Path) -> Path:
    """A project with one suite, which calls tools."""
    suites = project / "eval_suites"
    suites.unlink()
    folder = suites / "weather"
    folder.mkdir(parents=True)
    suite = {
        "schema": "workbench.suite/1",
        "name": "weather",
        "kind": "tool_call",
        "description": "d",
        "ask": "call_tools",
        "prompt": "What is the weather in {city}?",
        "chat_template": True,
        "tools": [TOOL],
        "tool_choice": "required",
        "scorer": "tool_call",
        "metric": "calls",
        "cluster": "country",
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    (folder / "samples.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "id": f"w{i}",
                    "city": f"town {i}",
                    "country": f"c{i % 5}",
                    "target": [{"name": "weather", "arguments": {"city": f"town {i}"}}],
                }
            )
            + "\n"
            for i in range(30)
        )
    )
    (project / "policy.yaml").write_text("schema: workbench.policy/1\nname: p\nquality: []\n")

    def cut(recipe: dict[str, Any]) -> None:
        recipe["evaluate"] = {"suites": ["weather"], "total_seconds": 60}
        recipe["variants"] = [{"name": "good", "method": "fake"}]
        recipe["profile"] = None
        recipe["policy"] = "policy.yaml"
        recipe["calibration"]["contamination_limit"] = 1.0

    edit_recipe(project, cut)
    return project


def test_a_suite_that_calls_tools_runs_to_a_record(workbench: Call, tooled: Path) -> None:
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 11, done.stdout + done.stderr  # nothing is gated
    for variant in ("baseline", "good"):
        folder = tooled / "results" / "smoke" / "variants" / variant
        record = json.loads((folder / "evaluation.json").read_text())
        (result,) = record["suites"]
        assert (result["kind"], result["metric"]) == ("tool_call", "calls")
        assert (result["n"], result["failed"], record["restarts"]) == (30, 0, 0)
        assert 0.5 < result["score"] < 1.0 and result["lane"] == "native"
        conditions = result["conditions"]
        assert conditions["asked"].startswith("tools, read by the server")
        assert conditions["args"] == [] and "lane" not in conditions
        assert conditions["sampling"]["tool_choice"] == "required"
        rows = [
            json.loads(line)
            for line in (folder / "eval" / "weather.jsonl").read_text().splitlines()
        ]
        assert [row["cluster"] for row in rows[:6]] == ["c0", "c1", "c2", "c3", "c4", "c0"]
        assert all(row["template_digest"] and row["tokenizer_digest"] for row in rows)
        assert all(json.loads(row["output"])["tool_calls"] for row in rows)


def test_a_judge_suite_without_a_judge_is_refused_before_it_is_asked(
    workbench: Call, tooled: Path
) -> None:
    path = tooled / "eval_suites" / "weather" / "suite.yaml"
    suite = yaml.safe_load(path.read_text())
    suite |= {"ask": "generate", "scorer": {"name": "judge", "rubric": "r"}}
    for key in ("tools", "tool_choice"):
        del suite[key]
    path.write_text(yaml.safe_dump(suite))
    samples = path.with_name("samples.jsonl")
    rows = [json.loads(line) | {"target": "rain"} for line in samples.read_text().splitlines()]
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the recipe names none" in done.stderr and "evaluate.judge" in done.stderr
    assert workbench("run", "recipe.yaml").returncode == 2
    assert not list((tooled / "results").glob("artifacts/evaluate-*"))


def test_an_unfinished_evaluation_keeps_no_rows_of_other_weights(tmp_path: Path) -> None:
    made = builders.simple([1.0], [1.0]).variants[0].manifest
    assert made is not None
    rows = tmp_path / "s.jsonl"

    def begin(weights: str) -> bool:
        of_these_weights(tmp_path, made.model_copy(update={"weights_digest": weights}), weights)
        return rows.exists()

    rows.write_text("{}\n")
    assert not begin("one"), "nobody knows of which weights they are"
    rows.write_text("{}\n")
    assert begin("one")
    assert not begin("other")


def test_of_an_evaluation_only_what_was_altered_is_thrown_away(tmp_path: Path) -> None:
    found = builders.simple([1.0, 0.0], [1.0, 1.0]).variants[0]
    assert found.evaluation is not None
    (one,), rows = found.evaluation.suites, found.rows["suite"]

    def result(name: str, file: str, **changes: Any) -> Any:
        write_rows(tmp_path / file, rows)
        facts = {"suite": name, "rows_file": file, "rows_digest": rows_digest(rows)}
        return one.model_copy(update=facts | changes)

    record = found.evaluation.model_copy(
        update={
            "suites": (
                result("a", "a.jsonl"),
                result("b", "b.jsonl"),
                result("t", "t.jsonl", source="lm-eval"),
            ),
            "repeat": (result("a", "a.repeat.jsonl"), result("t", "t.repeat.jsonl")),
        }
    )
    logs = [tmp_path / "lm-eval" / f"{which}-w" / "samples" for which in ("first", "repeat")]
    for folder in logs:
        folder.mkdir(parents=True)
        for name in ("t.json", "t.samples.jsonl", "tt.json"):
            (folder / name).touch()
    (tmp_path / RECORD).touch()
    (tmp_path / "a.repeat.jsonl").write_text("torn")
    write_rows(tmp_path / "t.jsonl", rows[:1])
    throw_away(tmp_path, record)
    left = {p.name for p in tmp_path.glob("*.*")}
    assert left == {"a.jsonl", "b.jsonl", "t.repeat.jsonl"}
    assert [sorted(p.name for p in folder.iterdir()) for folder in logs] == [
        ["tt.json"],
        ["t.json", "t.samples.jsonl", "tt.json"],
    ]


def test_rows_that_wait_for_their_record_take_their_place(tmp_path: Path) -> None:
    found = builders.simple([1.0, 0.0], [1.0, 1.0]).variants[0]
    assert found.evaluation is not None
    (one,), rows = found.evaluation.suites, found.rows["suite"]
    path = tmp_path / one.rows_file
    facts = {"rows_digest": rows_digest(rows)}
    record = found.evaluation.model_copy(update={"suites": (one.model_copy(update=facts),)})
    write_rows(path, rows[:1])
    write_rows(staged(path), rows[1:])
    assert list(altered(tmp_path, record)) == [path.name] and staged(path).exists()
    write_rows(staged(path), rows)
    assert not altered(tmp_path, record) and not staged(path).exists()
    write_rows(staged(path), rows[1:])
    assert not altered(tmp_path, record) and len(path.read_text().splitlines()) == 2
