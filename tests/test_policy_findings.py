"""A policy may only speak of what the recipe measures, and says where it does not."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import ROOT, edit_recipe

from workbench.errors import RecipeError
from workbench.policy_findings import refuse_unknown
from workbench.policy_spec import Policy
from workbench.recipe import load_lock, load_spec
from workbench.spec import Recipe

Call = Callable[..., subprocess.CompletedProcess[str]]
RECIPE: dict[str, Any] = {
    "schema": "workbench.recipe/1",
    "name": "r",
    "model": {"path": "model"},
    "variants": [{"name": "bad", "method": "fake"}],
    "evaluate": {"suites": ["sentiment", "json_extract"], "divergence": {}},
    "profile": {
        "workloads": [{"name": "short", "prompt_tokens": 16, "output_tokens": 8}],
        "concurrency": [1, 8],
        "arrivals": [{"arrivals": "poisson", "rate": 4.0}],
        "targets": {"ttft_ms": 500.0},
    },
    "policy": "policy.yaml",
}


def refused(folder: Path, text: str, **changes: Any) -> RecipeError:
    path = folder / "policy.yaml"
    path.write_text(f"schema: workbench.policy/1\nname: p\n{text}\n")
    with pytest.raises(RecipeError) as caught:
        refuse_unknown(load_spec(path, Policy), Recipe.model_validate(RECIPE | changes), path)
    return caught.value


def test_a_policy_of_what_is_measured_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "schema: workbench.policy/1\nname: p\nquality: [{suite: sentiment, margin: 0.1}]\n"
        "performance: [{metric: ttft_ms_p50, workload: short, concurrency: 8, max_ratio: 1}]\n"
        "latency: [{metric: ttft_ms_p99, workload: short, arrivals: poisson 4/s, max_value: 1}]\n"
        "goodput: [{workload: short, concurrency: 1, min_share: 0.9, targets: {ttft_ms: 500}}]\n"
        "tripwires: [{metric: kld_mean, warn_above: 0.1}]\n"
    )
    refuse_unknown(load_spec(path, Policy), Recipe.model_validate(RECIPE), path)


@pytest.mark.parametrize(
    ("text", "line", "says", "fix"),
    [
        (
            "quality:\n- {suite: sentimant, margin: 0.1}",
            *(4, "checks suite 'sentimant'", "did you mean 'sentiment'? add it to"),
        ),
        (
            "performance:\n- {metric: ttft_ms_p50, workload: shrot, concurrency: 1, max_ratio: 1}",
            *(4, "workload 'shrot' at concurrency 1", "did you mean 'short'? the recipe profiles"),
        ),
        (
            "latency:\n\n- {metric: ttft_ms_p99, workload: short, concurrency: 4, max_value: 1}",
            *(
                5,
                "ttft_ms_p99 of workload 'short' at concurrency 4",
                "short with concurrency: 8, short with arrivals: 'poisson 4/s'",
            ),
        ),
        (
            "latency:\n- {metric: e2e_ms_p95, workload: short, arrivals: poisson 5/s, max_value: 1"
            "}",
            *(4, "under 'poisson 5/s'", "the recipe profiles short with concurrency: 1"),
        ),
        (
            "goodput:\n- {workload: short, concurrency: 2, min_share: 0.9}",
            *(4, "goodput of workload 'short' at concurrency 2", "name one of these"),
        ),
        (
            "goodput:\n- {workload: short, concurrency: 8, min_share: 0.9, targets: {ttft_ms: 9}}",
            *(4, "the recipe has the targets TTFT 500 ms", "'profile.targets'"),
        ),
    ],
)
def test_what_is_not_measured_is_refused_with_file_and_line(
    tmp_path: Path, text: str, line: int, says: str, fix: str
) -> None:
    error = refused(tmp_path, text)
    assert error.where.startswith(f"{tmp_path / 'policy.yaml'}:{line}: ")
    assert says in error.what and fix in error.fix
    assert "did you mean 'short'" not in error.fix or "shrot" in text


def test_a_recipe_without_targets_or_divergence_is_told_what_to_add(tmp_path: Path) -> None:
    profile = {k: v for k, v in RECIPE["profile"].items() if k != "targets"}
    goal = "goodput: [{workload: short, concurrency: 8, min_share: 0.9}]"
    assert "the recipe has no targets" in refused(tmp_path, goal, profile=profile).what
    error = refused(
        tmp_path,
        "tripwires: [{metric: kld_mean, warn_above: 0.1}]",
        evaluate={"suites": ["sentiment"]},
    )
    assert "records no divergence" in error.what and "'divergence: {}'" in error.fix
    assert error.where.endswith("policy.yaml:3: tripwires")


def test_validate_says_what_no_run_here_could_show(workbench: Call, project: Path) -> None:
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\nrequired_lane: native\n"
        "required_hardware: NVIDIA H900\n"
        "quality: [{suite: sentiment, margin: 0.1, max_truncated: 0.01, output_length: {}}]\n"
    )
    edit_recipe(
        project,
        lambda r: r.update(
            policy="policy.yaml",
            evaluate={"suites": ["sentiment"], "limit": 60, "noise_floor": False},
        ),
    )
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "6 gated checks per variant, 5 of the policy" in done.stdout
    assert "the policy wants NVIDIA H900, and this machine is" in done.stdout
    assert "asks 60 samples, and max_truncated 0.01 takes 299 even if" in done.stdout
    assert "wants the native lane" not in done.stdout  # the fake variant has it
    assert "no quality check is gated" not in done.stdout
    assert "the error of a verdict" not in done.stdout
    text = (project / "policy.yaml").read_text()
    (project / "policy.yaml").write_text(
        text.replace("margin: 0.1", "margin: 0.1, tier: advisory") + "size: [{max_ratio: 1.1}]\n"
    )
    done = workbench("validate", "recipe.yaml")
    assert "no quality check is gated: size and speed alone do not show" in done.stdout
    (project / "policy.yaml").write_text(text.replace("margin: 0.1", "margin: 0.51"))
    done = workbench("validate", "recipe.yaml")
    assert "the margin of suite 'sentiment' is 0.51, and above 0.5 the error" in done.stdout
    (project / "policy.yaml").write_text(
        text.replace("margin: 0.1", "margin: 0.1, metric: acuracy")
    )
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2
    assert "speaks of 'acuracy' of suite 'sentiment', which is scored by accuracy" in done.stderr
    assert "did you mean 'accuracy'?" in done.stderr and "policy.yaml:5: quality.0" in done.stderr


@pytest.mark.parametrize("schema", ["workbench.policy/0", "workbench.policy/2"])
def test_a_run_whose_policy_is_of_another_schema_is_not_decided(
    tmp_path: Path, schema: str
) -> None:
    policy = yaml.safe_load((ROOT / "notebooks" / "policies" / "quickstart.yaml").read_text())
    lock = {
        "schema": "workbench.recipe-lock/1",
        **{"source": "r.yaml", "project": ".", "model_path": None},
        **{"recipe": RECIPE, "policy": policy},
    }
    path = tmp_path / "recipe.lock.yaml"
    path.write_text(json.dumps(lock))
    assert load_lock(path).policy.name == "quickstart"
    path.write_text(json.dumps(lock | {"policy": policy | {"schema": schema}}))
    with pytest.raises(RecipeError, match="the recipe lock is damaged"):
        load_lock(path)
