"""The user's own lm-eval tasks, and what is refused of a recipe before anything starts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projects import edit_recipe

from workbench.context import new_run
from workbench.errors import RecipeError
from workbench.lmeval_tasks import folder_digest, is_offline, leaves, local_tasks, most_documents
from workbench.recipe import load_recipe

TASKS = Path(__file__).parent / "data" / "lmeval_tasks"
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TASKS, tmp_path / "tasks"))


def test_tasks_groups_and_includes_of_a_folder(folder: Path) -> None:
    tasks = local_tasks(folder)
    assert set(tasks) == {"wb_mood", "wb_mood_short", "wb_capital", "wb_both_moods"}
    assert tasks["wb_mood_short"].config["dataset_path"] == "json", "what it includes counts"
    assert tasks["wb_mood"].likelihood and not tasks["wb_capital"].likelihood
    assert {t.name for t in leaves("wb_both_moods", tasks) if t} == {"wb_mood", "wb_mood_short"}
    assert all(is_offline(name, tasks) for name in tasks)
    assert not is_offline("mmlu", tasks)


def test_a_task_of_the_hub_is_not_offline(folder: Path) -> None:
    (folder / "hub.yaml").write_text("task: hub\ndataset_path: cais/mmlu\ntag: mine\n")
    far = "dataset_kwargs: {data_files: 'https://example.org/a.jsonl'}"
    (folder / "far.yaml").write_text(f"task: far\ndataset_path: json\n{far}\ntag: [mine]\n")
    code = "task: code\ndataset_path: json\nprocess_docs: !function utils.process_docs\n"
    (folder / "code.yaml").write_text(code)
    tasks = local_tasks(folder)
    assert not is_offline("hub", tasks) and not is_offline("far", tasks)
    assert sorted(tasks["mine"].members) == ["far", "hub"] and not is_offline("mine", tasks)
    assert tasks["code"].config["process_docs"] == "!function utils.process_docs"


def test_groups_that_hold_each_other_end(folder: Path) -> None:
    (folder / "a.yaml").write_text("group: a\ntask: [b]\n")
    (folder / "b.yaml").write_text("group: b\ntask: [a, wb_mood]\ninclude: b.yaml\n")
    assert [t.name for t in leaves("a", local_tasks(folder)) if t] == ["wb_mood"]


@pytest.mark.timeout(20)
def test_files_that_include_one_another_do_not_multiply(folder: Path) -> None:
    every = [f"part{n}.yaml" for n in range(9)]
    for name in every:
        (folder / name).write_text(f"include: [{', '.join(every)}]\n")
    with pytest.raises(RecipeError, match="includes more than 100 files") as caught:
        local_tasks(folder)
    assert caught.value.where == f"{folder / 'part0.yaml'}: include"
    for number, name in enumerate(every):  # a plain chain and a wide file are no bomb
        (folder / name).write_text(f"include: part{number + 1}.yaml\nk{number}: 1\n")
    (folder / "wide.yaml").write_text(f"task: wide\ninclude: [{', '.join(every[5:] * 5)}]\n")
    assert {"k5", "k8"} <= local_tasks(folder)["wide"].config.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task: [a\n", "bad.yaml:2"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {data_files: ../x.jsonl}\n", "outside"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {data_files: [x.jsonl]}\n", "not there"),
        ("task: \x00\n", "bad.yaml"),
    ],
)
def test_a_broken_folder_is_refused_with_its_place(folder: Path, text: str, says: str) -> None:
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        local_tasks(folder)
    assert says in str(caught.value) and "fix:" in str(caught.value)


def test_the_digest_is_of_what_the_folder_holds(folder: Path) -> None:
    before = folder_digest(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "utils.pyc").write_text("x")
    assert folder_digest(folder) == before == folder_digest(TASKS)
    (folder / "messages.jsonl").write_text("")
    assert folder_digest(folder) != before


# --------------------------------------------------------------------------- recipe


def with_tasks(project: Path, *tasks: dict[str, Any], **more: Any) -> Path:
    shutil.copytree(TASKS, project / "tasks", dirs_exist_ok=True)
    spec = {"tasks": list(tasks), "include_path": "tasks"} | more
    return edit_recipe(project, lambda r: r["evaluate"].update(lm_eval=spec))


def test_the_fake_engine_is_refused_with_the_reason(workbench: Call, project: Path) -> None:
    with_tasks(project, {"task": "wb_mood"})
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2
    assert "fake engine" in done.stderr and "evaluate.lm_eval" in done.stderr


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([{"task": "wb_mood"}, {"task": "wb_mood", "fewshot": 2}], "called 'wb_mood'"),
        ([{"task": "sentiment"}], "called 'sentiment'"),
        ([], "lm_eval.tasks"),
        ([{"task": "wb_mood", "fewshots": 1}], "did you mean 'fewshot'"),
    ],
)
def test_names_that_would_meet_are_refused(
    project: Path, tasks: list[dict[str, Any]], says: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(with_tasks(project, *tasks))
    assert says in str(caught.value)


def test_a_folder_that_is_not_there_is_named(project: Path) -> None:
    recipe = with_tasks(project, {"task": "wb_mood"}, include_path="my_taks")
    with pytest.raises(RecipeError) as caught:
        _ = new_run(recipe).facts
    assert "my_taks" in str(caught.value) and "include_path" in str(caught.value)


def test_what_the_tasks_are_is_part_of_the_evaluation_and_where_they_lie_is_not(
    project: Path,
) -> None:
    recipe = with_tasks(project, {"task": "wb_mood"})
    assert "lmeval" in new_run(recipe).environments()

    def ids() -> dict[str, str]:
        return {name: spec.id for name, spec in new_run(recipe).specs.items()}

    before = ids()
    (project / "tasks").rename(project / "moved")
    with_path = {"tasks": [{"task": "wb_mood"}], "include_path": "moved"}
    edit_recipe(project, lambda r: r["evaluate"].update(lm_eval=with_path))
    assert ids() == before
    (project / "moved" / "messages_shots.jsonl").write_text("{}\n")
    changed = {name for name, id_ in ids().items() if id_ != before[name]}
    assert changed == {name for name in before if name.startswith("evaluate:")}


def test_how_many_documents_a_limit_lets_be_asked(project: Path) -> None:
    limited = [{"task": name, "limit": 7} for name in ("wb_mood", "wb_both_moods", "mmlu")]
    recipe = with_tasks(project, *limited, {"task": "wb_capital"})
    assert most_documents(load_recipe(recipe)) == {"wb_mood": 7, "wb_both_moods": 14}
    edit_recipe(project, lambda r: r["evaluate"].update(lm_eval={"tasks": limited}))
    assert most_documents(load_recipe(recipe)) == {}
    edit_recipe(project, lambda r: r["evaluate"].pop("lm_eval"))
    assert most_documents(load_recipe(recipe)) == {}


def test_a_task_that_is_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    bomb = "x0: &x0 [a]\n" + "".join(
        f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 14)
    )
    (tmp_path / "t.yaml").write_text("task: t\n" + bomb)
    with pytest.raises(RecipeError, match="more than 100,000 values"):
        local_tasks(tmp_path)
