"""Draft models of speculative decoding: their files are part of what was measured."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projects import edit_recipe
from test_profile_run import profiled

from workbench.context import new_run
from workbench.drafts import draft_digests, named, served_drafts
from workbench.errors import RecipeError, StoreError
from workbench.records import Profile
from workbench.serving import served
from workbench.spec import Recipe
from workbench.store import read_record
from workbench.sweep_spec import ServingOptions

Call = Callable[..., subprocess.CompletedProcess[str]]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}


def drafting(folder: Path | str, **more: Any) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 4} | more


@pytest.fixture
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def given(project: Path, *, args: tuple[str, ...] = (), sweep: Any = None, **profile: Any) -> None:
    """The smoke recipe with one variant and one load; the fake engine takes a draft, too."""
    profiled(
        project,
        workloads=[{"name": "short", "prompt_tokens": 16, "output_tokens": 8}],
        concurrency=[4],
        arrivals=[],
        **({"sweep": {"speculative": sweep}} if sweep else {}),
        **profile,
    )
    edit_recipe(project, lambda recipe: recipe["serve"].update(args=list(args)))


def specs(project: Path) -> dict[str, dict[str, Any]]:
    return {name: step.spec for name, step in new_run(project / "recipe.yaml").specs.items()}


def ids(project: Path) -> dict[str, str]:
    return {name: step.id for name, step in new_run(project / "recipe.yaml").specs.items()}


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ((), []),
        (("--speculative-config", json.dumps(drafting("/d"))), ["/d"]),
        (("--speculative_config=" + json.dumps(drafting("/d", revision="ab")),), ["/d@ab"]),
        (("-sc", json.dumps({"model": "/d"})), ["/d"]),
        (("--speculative-config.model", "/d", "--speculative-config.method=eagle"), ["/d"]),
        (("--spec-model=/d",), ["/d"]),
        (("--spec-mod", "/d", "--spec-method", "eagle3"), ["/d"]),
        (("--speculative-conf", json.dumps(NGRAM | {"model": "/d"})), []),
        (("--spec-model", "ngram"), []),
        (("--spec-method=mtp", "--spec-tokens=2"), []),
        (("--speculative-config", "{"), []),
        (("--served-model", "/d", "--max-num-seqs=4"), []),
    ],
)
def test_a_draft_is_found_however_the_arguments_name_it(
    args: tuple[str, ...], found: list[str]
) -> None:
    recipe = Recipe.model_validate(
        {
            "schema": "workbench.recipe/1",
            "name": "r",
            "model": {"path": "m"},
            "variants": [{"name": "w", "method": "fp8"}],
            "serve": {"args": list(args)},
            "evaluate": {"suites": ["s"]},
            "policy": "p",
        }
    )
    assert [one.label for one in named(recipe, "vllm")] == found
    assert named(recipe, "llamacpp") == ()  # it gets no arguments
    options = ServingOptions(speculative=drafting("/swept"))
    assert [one.label for one in named(recipe, "vllm", options)] == [*found, "/swept"]


def test_the_files_of_a_draft_are_in_the_ids_of_what_is_measured_with_it(
    project: Path, draft: Path
) -> None:
    def changed(by: Callable[[], object]) -> set[str]:
        before = ids(project)
        by()
        return {name for name, id_ in ids(project).items() if id_ != before[name]}

    def other() -> None:
        (draft / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes() + b"x")

    measured = {f"{kind}:{of}" for kind in ("evaluate", "profile") for of in ("baseline", "good")}
    given(project, sweep=[None, drafting(draft)])
    assert changed(other) == {"profile:baseline", "profile:good"}
    given(project, args=("--speculative-config", json.dumps(drafting(draft))))
    assert changed(other) == measured
    assert changed(lambda: (draft / "config.json").write_text('{"a": 1}')) == measured


def test_without_a_draft_no_id_knows_of_any(project: Path) -> None:
    for args, sweep in (((), None), ((), [NGRAM]), (("--spec-method=ngram",), None)):
        given(project, args=args, sweep=sweep)
        assert not [step for step in specs(project).values() if "drafts" in json.dumps(step)]


def test_a_server_has_its_drafts_on_record_and_is_not_shared_with_another_draft(
    project: Path, draft: Path
) -> None:
    given(project, args=("--speculative-config", json.dumps(drafting(draft))))
    context = new_run(project / "recipe.yaml")
    events = context.events.of("evaluate:baseline")
    with served(context, "baseline", events) as first:
        assert first.serving.drafts == context.facts.drafts and [*first.serving.drafts] == [
            str(draft)
        ]
        with served(context, "baseline", events) as held:
            assert held.pid == first.pid
        (draft / "model.safetensors").write_bytes(b"other weights")
        with (
            pytest.raises(StoreError, match="changed since the run was opened"),
            served(context, "baseline", events),
        ):
            pass
        again = new_run(project / "recipe.yaml")
        with served(again, "baseline", events) as second:
            assert second.pid != first.pid
            assert second.serving.drafts != first.serving.drafts


def test_another_draft_of_a_sweep_is_measured_again(
    workbench: Call, project: Path, draft: Path
) -> None:
    given(project, sweep=[drafting(draft)])
    assert workbench("run", "recipe.yaml").returncode in (0, 11)
    path = project / "results/smoke/variants/good/profile.json"
    first = read_record(path, Profile)
    (swept,) = first.sweep
    assert swept.serving is not None and [*swept.serving.drafts] == [str(draft)]
    assert first.serving.drafts == {}
    (draft / "model.safetensors").write_bytes(b"other weights")
    planned = " ".join(workbench("plan", "recipe.yaml").stdout.split())
    assert "changed since the last record: drafts" in planned
    assert workbench("run", "recipe.yaml").returncode in (0, 11)
    (again,) = read_record(path, Profile).sweep
    assert again.serving is not None and again.serving.drafts != swept.serving.drafts
    assert again.loads != swept.loads


@pytest.mark.parametrize(
    ("model", "says", "fix"),
    [
        ("/nowhere/draft", "is not there", "name the folder"),
        ("{file}", "is a file", "name the folder"),
        ("{empty}", "holds no file", "fetch its files"),
        ("./draft", "is named by a relative path", "write its absolute path, /"),
        ("drafts/small", "is named by a relative path", "write its absolute path, /"),
        ("drafts/small/one", "is named by a relative path", "write its absolute path"),
        ("nobody/draft-of-nothing", "is not in the hub's cache", "hf download nobody/draft"),
    ],
)
def test_a_draft_whose_files_are_not_known_is_refused_where_it_is_named(
    workbench: Call, project: Path, draft: Path, model: str, says: str, fix: str
) -> None:
    (project / "draft").mkdir()
    (project / "drafts" / "small").mkdir(parents=True)
    model = model.format(file=draft / "config.json", empty=project / "draft")
    given(project, sweep=[drafting(model)])
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2, done.stdout
    told = " ".join(done.stderr.split())
    assert says in told and fix in told and "recipe.yaml:" in told
    assert "profile.sweep.speculative" in told and "Traceback" not in told


def test_a_draft_of_the_hub_is_the_one_its_cache_holds(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "c" * 40
    kept = tmp_path / "hub" / "models--org--draft"
    (kept / "snapshots" / commit).mkdir(parents=True)
    (kept / "snapshots" / commit / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    given(project, sweep=[drafting("org/draft", revision=commit)])
    loaded = new_run(project / "recipe.yaml").loaded
    found = draft_digests(loaded, tmp_path / "digests.json")
    assert [*found] == [f"org/draft@{commit}"]
    options = ServingOptions(speculative=drafting("org/draft", revision=commit))
    again = served_drafts(loaded, "fake", options, known=found, cache=tmp_path / "digests.json")
    assert again == found
    with pytest.raises(RecipeError, match="is not in the hub's cache"):
        given(project, sweep=[drafting("org/draft", revision="d" * 40)])
        draft_digests(new_run(project / "recipe.yaml").loaded, tmp_path / "digests.json")
