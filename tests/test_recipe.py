"""Recipes and policies from YAML: each mistake is named with its line, its key and the fix."""

import os
from pathlib import Path

import pytest

from workbench.errors import RecipeError, did_you_mean
from workbench.recipe import dump_lock, find_project, load_lock, load_model, load_recipe, located

RECIPE = """\
schema: workbench.recipe/1
name: r
model: {path: model}
calibration: {source: instructions, samples: 4}
variants:
  - {name: fp8, method: fp8}
  - {name: w4, method: gptq, group_size: 64}
evaluate: {suites: [sentiment]}
profile:
  workloads: [{name: short, prompt_tokens: 8, output_tokens: 4}]
policy: policy.yaml
"""
POLICY = """\
schema: workbench.policy/1
name: p
quality:
  - {suite: sentiment, margin: 0.05}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("eval_suites", "calib_data", "model"):
        (tmp_path / folder).mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def test_loads_and_locks(project: Path) -> None:
    loaded = load_recipe(project / "recipe.yaml")
    assert [v.name for v in loaded.recipe.all_variants] == ["baseline", "fp8", "w4"]
    assert loaded.recipe.profile is not None
    assert loaded.recipe.profile.concurrency == (1, 8)
    lock = project / "recipe.lock.yaml"
    lock.write_bytes(dump_lock(loaded))
    again = load_lock(lock)
    assert again == loaded
    assert again.digest == loaded.digest


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["recipe.yaml", "policy.yaml"])
def test_a_pipe_is_refused_and_not_waited_for(project: Path, name: str) -> None:
    (project / name).unlink()
    os.mkfifo(project / name)
    with pytest.raises(RecipeError, match="not a regular file") as error:
        load_recipe(project / "recipe.yaml")
    assert error.value.where.startswith(str(project / name))


def test_a_device_is_refused(project: Path) -> None:
    (project / "recipe.yaml").unlink()
    (project / "recipe.yaml").symlink_to("/dev/null")
    with pytest.raises(RecipeError, match="not a regular file"):
        load_recipe(project / "recipe.yaml")


def test_digest_follows_recipe_and_policy_not_layout(project: Path) -> None:
    before = load_recipe(project / "recipe.yaml").digest
    (project / "recipe.yaml").write_text("# a comment\n" + RECIPE)
    assert load_recipe(project / "recipe.yaml").digest == before
    (project / "policy.yaml").write_text(POLICY.replace("0.05", "0.04"))
    assert load_recipe(project / "recipe.yaml").digest != before


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("name: r", "name: r\nserv: {}", 3, "did you mean 'serve'"),
        ("samples: 4", "sample: 4", 4, "did you mean 'samples'"),
        ("group_size: 64", "groupsize: 64", 7, "did you mean 'group_size'"),
        ("group_size: 64", 'group_size: "64"', 7, "valid integer"),
        ("group_size: 64", "group_size: 3", 7, "32, 64 and 128 are usual"),
        ("method: fp8", "method: fp9", 6, "did you mean 'fp8'"),
        ("{name: fp8, method: fp8}", "{name: fp8}", 6, "has no 'method'"),
        ("name: fp8", "name: w4", 6, "two variants are called 'w4'"),
        ("name: fp8", "name: W4", 6, "two variants are called 'W4' and 'w4', which differ by case"),
        ("name: fp8", "name: Baseline", 6, "'baseline' and 'Baseline', which differ by case alone"),
        ("[sentiment]", "[sentiment, Sentiment]", 8, "'sentiment' and 'Sentiment', which differ"),
        (
            "{suites: [sentiment]}",
            "{suites: [sentiment], lm_eval: {tasks: [{task: SENTIMENT}]}}",
            8,
            "two suites or lm-eval tasks are called 'sentiment' and 'SENTIMENT'",
        ),
        (
            "output_tokens: 4}]",
            "output_tokens: 4}, {preset: many-short, name: Short}]",
            10,
            "two workloads are called 'short' and 'Short', which differ by case alone",
        ),
        ("name: fp8", "name: baseline", 6, "baseline is implied"),
        ("name: fp8", "name: ../up", 6, "pattern"),
        ("{path: model}", "{hub: a/b}", 3, "needs 'revision'"),
        ("{path: model}", "{path: model, hub: a/b, revision: c}", 3, "exactly one"),
        ("recipe/1", "recipe/7", 1, "workbench.recipe/1"),
        ("method: fp8", "method: fp8, ignore: lm_head", 6, "write a list: [a, b]"),
        ("group_size: 64", 'bits: "4"', 7, "write it without quotes"),
        ("group_size: 64", "dampening: 3", 7, "use less than 1.0"),
        ("group_size: 64", "dampening: 1e-2", 7, "write a number as 0.01, 10 or 1.0e-2"),
        ("policy: policy.yaml", "policy: [a]", 11, "write one text"),
        ("policy: policy.yaml", "policy:", 11, "write a text behind it"),
        ("group_size: 64", "symmetric: 1", 7, "write true or false"),
        ("method: fp8", "method: fp8, repeat: 3", 6, "write a mapping: {key: value}"),
        (
            "calibration: {source: instructions, samples: 4}\n",
            "",
            6,
            "needs a 'calibration' section",
        ),
        ("samples: 4", "samples: true", 4, "valid integer"),
        ("policy: policy.yaml", "policy: [a]", 11, "valid string"),
        ("{suites: [sentiment]}", "{suites: []}", 8, "at least 1 item"),
        ("name: r\n", "name: r\nname: s\n", 3, "given twice"),
        ("name: fp8", "name: w4", 6, "fix:   rename or remove one"),
        (
            "calibration: {source: instructions, samples: 4}\n",
            "",
            6,
            "fix:   add 'calibration: {so",
        ),
        ("policy: p", "serve: {engine: sglang}\npolicy: p", 11, "'vllm', 'fake'\n"),
        ("policy: p", "serve: {engine: sglang}\npolicy: p", 11, "fix:   choose one of them"),
        ("policy: p", "serve: {engine: vlm}\npolicy: p", 11, "fix:   did you mean 'vllm'?"),
        ("method: fp8", "method: non", 6, "did you mean 'none'? methods: none, fp8, "),
        ("method: fp8", "method: gguf, type: q5_k_m", 6, "fix:   did you mean 'Q5_K_M'?"),
        ("method: fp8", "method: gguf, type: Q7", 6, "is not one of 'F32', 'F16', 'BF16', "),
        ("{source: instructions", "{columns: {prompt: q}, source: instructions", 4, "{text: ...}"),
        ("schema: workbench.recipe/1\n", "", 1, "fix:   add 'schema: workbench.recipe/1'"),
        (
            "evaluate: {suites: [sentiment]}",
            "evaluate: {suites: [sentiment], lm_eval: {tasks: [gsm8k]}}",
            8,
            "fix:   write {task: gsm8k}",
        ),
        ("name: r\n", "name: [r\n", 3, "not valid YAML"),
        ("name: r\n", "name: !!python/object/apply:os.system [true]\n", 2, "not valid YAML"),
    ],
)
def test_mistake_is_named_with_line_and_fix(
    project: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in RECIPE
    (project / "recipe.yaml").write_text(RECIPE.replace(old, new, 1))
    with pytest.raises(RecipeError) as caught:
        load_recipe(project / "recipe.yaml")
    assert says in str(caught.value)
    assert f"recipe.yaml:{line}" in caught.value.where, caught.value.where


def test_every_problem_is_listed_at_once(project: Path) -> None:
    text = RECIPE.replace("name: r", "nam: r", 1).replace("samples: 4", "samples: no")
    (project / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(project / "recipe.yaml")
    assert "line 2: unknown key 'nam'" in caught.value.what
    assert "line 4: 'calibration.samples'" in caught.value.what


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{path: model}", "{path: modell}", "checkpoint folder 'modell' is not there"),
        (
            "{path: model}",
            "{path: results/checkpoints/tiny}",
            "fix:   build it with: workbench demo --tiny",
        ),
        ("{path: model}", "{path: up/tiny}", "fix:   paths are relative to the recipe file"),
        ("policy.yaml", "polcy.yaml", "did you mean 'policy.yaml'"),
        ("policy.yaml", "polcy.yaml", "recipe.yaml:11: policy\n"),
        ("{path: model}", "{path: modell}", "recipe.yaml:3: model.path\n"),
        (
            "{path: model}",
            "{path: policy.yaml}",
            "'policy.yaml' is a file, and a checkpoint is a f",
        ),
    ],
)
def test_missing_files(project: Path, old: str, new: str, says: str) -> None:
    (project / "recipe.yaml").write_text(RECIPE.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        load_recipe(project / "recipe.yaml")
    assert says in str(caught.value) and caught.value.fix


@pytest.mark.parametrize(
    ("check", "says", "fix"),
    [
        (
            "quality: [{suite: s, margin: 15}]",
            "less than 1",
            "use less than 1.0: write 0.15, which is 15 points",
        ),
        (
            "quality: [{suite: s, margin: 0.1, confidence: 95}]",
            "",
            "write 0.95, which is 95 percent",
        ),
        ("quality: [{suite: s, margin: 1000}]", "less than 1", "use less than 1.0"),
        (
            "performance: [{metric: ttft_ms_p50, workload: w, concurrency: 1}]",
            "give exactly one of max_ratio",
            "max_... bounds a time, min_... a throughput",
        ),
    ],
)
def test_mistakes_in_a_policy(project: Path, check: str, says: str, fix: str) -> None:
    (project / "policy.yaml").write_text(f"schema: workbench.policy/1\nname: p\n{check}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(project / "recipe.yaml")
    assert says in caught.value.what and fix in caught.value.fix
    assert caught.value.where.endswith("policy.yaml:3")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("calibration: chat_template", "{0}:4: calibration: chat_template"),
        ("variants: w4: group_size", "{0}:7: variants: w4: group_size"),
        ("variants: w4 (checkpoint /a/b)", "{0}:7: variants: w4 (checkpoint /a/b)"),
        ("{0}: calibration.samples", "{0}:4: calibration.samples"),
        ("rows.jsonl; calibration: columns", "rows.jsonl; {0}:4: calibration: columns"),
        ("evaluate.suites: sentiment", "{0}:8: evaluate.suites: sentiment"),
        ("serve.args", "{0}: serve.args"),
        ("/models/a/config.json: architectures", "/models/a/config.json: architectures"),
        ("model/config.json", "model/config.json"),
        ("", ""),
    ],
)
def test_an_error_at_a_key_is_located_in_the_recipe(project: Path, where: str, found: str) -> None:
    recipe = project / "recipe.yaml"
    with pytest.raises(RecipeError) as caught, located(recipe):
        raise RecipeError("w", where=where.format(recipe), fix="f")
    assert caught.value.where == found.format(recipe)
    # Without the file, as when a run goes on from its lock alone, the key is still said.
    recipe.unlink()
    with pytest.raises(RecipeError) as caught, located(recipe):
        raise RecipeError("w", where=where.format(recipe), fix="f")
    assert where.format(recipe).rpartition(": ")[2] in caught.value.where


def test_a_moved_recipe_is_told_where_its_checkpoint_is(project: Path) -> None:
    built = project / "results" / "checkpoints" / "tiny"
    built.mkdir(parents=True)
    moved = project / "my" / "deep" / "er" / "recipe.yaml"
    moved.parent.mkdir(parents=True)
    text = RECIPE.replace("{path: model}", "{path: ../../results/checkpoints/tiny}")
    moved.write_text(text.replace("policy.yaml", "../../../policy.yaml"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(moved)
    assert f"looked for {project / 'my' / 'results' / 'checkpoints' / 'tiny'}" in caught.value.what
    right = "../../../results/checkpoints/tiny"
    assert caught.value.fix == f"paths are relative to the recipe file: write 'path: {right}'"


def test_the_model_of_a_recipe_needs_no_policy(project: Path) -> None:
    (project / "policy.yaml").unlink()
    assert load_model(project / "recipe.yaml")[1] == project / "model"


def test_a_place_is_said_once(project: Path) -> None:
    source = project / "recipe.yaml"
    with pytest.raises(RecipeError) as caught, located(source):
        raise RecipeError("x", where=f"{source}:8: evaluate.suites: lmap")
    assert caught.value.where == f"{source}:8: evaluate.suites: lmap"


def test_a_hint_ends_without_a_blank() -> None:
    assert RecipeError("x", fix=did_you_mean("samles", ["samples"])).fix.endswith("?")


def test_missing_recipe_suggests_a_neighbour(project: Path) -> None:
    with pytest.raises(RecipeError, match="no file recipes") as caught:
        load_recipe(project / "recipes.yaml")
    assert "did you mean 'recipe.yaml'" in caught.value.fix


@pytest.mark.parametrize("content", [b"", b"- a\n", b"\xff\xfe", b"just text"])
def test_no_mapping(project: Path, content: bytes) -> None:
    (project / "recipe.yaml").write_bytes(content)
    with pytest.raises(RecipeError):
        load_recipe(project / "recipe.yaml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("margin: 0.05", "margin: -0.05", "greater than 0"),
        ("margin: 0.05", "margin: 0.05, confidence: 95", "less than 1"),
        ("margin: 0.05", "margn: 0.05", "did you mean 'margin'"),
        ("quality:", "qualiti:", "did you mean 'quality'"),
    ],
)
def test_policy_mistakes(project: Path, old: str, new: str, says: str) -> None:
    (project / "policy.yaml").write_text(POLICY.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        load_recipe(project / "recipe.yaml")
    assert says in str(caught.value)
    assert "policy.yaml" in caught.value.where


def test_outside_a_project(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="not inside a workbench project"):
        find_project(tmp_path)


@pytest.mark.parametrize(
    "content", ["schema: other\n", "schema: workbench.recipe-lock/1\nrecipe: 3\n"]
)
def test_damaged_lock(tmp_path: Path, content: str) -> None:
    (tmp_path / "recipe.lock.yaml").write_text(content)
    with pytest.raises(RecipeError, match="lock"):
        load_lock(tmp_path / "recipe.lock.yaml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("path: model", r'path: "mod\0el"', "a NUL character"),
        ("path: model", r'path: "mod\ud800el"', "half a character"),
        ("method: fp8", r'method: fp8, ignore: ["a\0"]', "a NUL character"),
        ("method: fp8", r"method: fp8, ignore: ['re:(']", "'re:(' is no regular expression"),
        ("method: fp8", r"method: fp8, ignore: ['re:']", "'re:' and a pattern"),
        ("method: fp8", "method: fp8, ignore: [lm_head, Linear]", "'Linear' is a class of layers"),
        ("method: fp8", r"method: fp8, ignore: ['']", "'re:' and a pattern"),
        ("samples: 4", "samples: 4, seed: -1", "calibration.seed"),
        ("samples: 4", "samples: 4, seed: 1" + "0" * 400, "calibration.seed"),
    ],
)
def test_texts_and_patterns_that_cannot_be(project: Path, old: str, new: str, says: str) -> None:
    recipe = project / "recipe.yaml"
    recipe.write_text(RECIPE.replace(old, new))
    with pytest.raises(RecipeError) as error:
        load_recipe(recipe)
    assert says in error.value.what
    line = next(n for n, text in enumerate(recipe.read_text().splitlines(), 1) if new in text)
    assert error.value.where == f"{recipe}:{line}"


def test_a_recipe_outside_a_project_is_told_so_before_its_own_mistakes(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("nonsense: [\n")
    with pytest.raises(RecipeError, match="not inside a workbench project") as caught:
        load_recipe(tmp_path / "recipe.yaml")
    assert "such as my/" in caught.value.fix
    # One that is not there at all is told that.
    with pytest.raises(RecipeError, match="no file"):
        load_recipe(tmp_path / "recipes.yaml")


BOMB = "x: &x0 [a]\n" + "".join(
    f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 14)
)


def test_a_recipe_that_is_a_bomb_of_aliases_is_refused(project: Path) -> None:
    recipe = project / "recipe.yaml"
    for text in (
        RECIPE + BOMB,
        BOMB + RECIPE,
        RECIPE.replace("policy.yaml", "policy.yaml\n" + BOMB),
    ):
        recipe.write_text(text)
        with pytest.raises(RecipeError, match="more than 100,000 values") as error:
            load_recipe(recipe)
        assert error.value.where.startswith(f"{recipe}:") and "alias" in error.value.fix
    recipe.write_text(RECIPE)
    (project / "policy.yaml").write_text(POLICY + BOMB)
    with pytest.raises(RecipeError, match="more than 100,000 values") as error:
        load_recipe(recipe)
    assert str(project / "policy.yaml") in error.value.where


def test_many_problems_are_counted_and_not_all_listed(project: Path) -> None:
    recipe = project / "recipe.yaml"
    recipe.write_text(RECIPE + "".join(f"k{i}: {'v' * 300}\n" for i in range(2000)))
    with pytest.raises(RecipeError, match="2000 problems") as error:
        load_recipe(recipe)
    assert "and 1980 more" in error.value.what and len(error.value.what) < 20_000


def test_a_kv_cache_no_machine_has(project: Path) -> None:
    recipe = project / "recipe.yaml"
    recipe.write_text(RECIPE + "serve: {kv_cache_gib: 1.0e+308}\n")
    with pytest.raises(RecipeError, match="less than or equal to 65536"):
        load_recipe(recipe)
