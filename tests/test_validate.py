"""What `workbench validate` refuses before a model is loaded, through the command line."""

import json
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import ROOT, edit_recipe
from suite_folders import CALLS, GENERATE, SAMPLE, write

from workbench.layer_patterns import endless, modules

Call = Callable[..., subprocess.CompletedProcess[str]]


def refused(workbench: Call, code: int = 2) -> str:
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "where:" in done.stderr and "fix:" in done.stderr
    return done.stderr


def test_the_smoke_recipe_is_valid(workbench: Call) -> None:
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "recipe.yaml is valid" in done.stdout
    assert "native lane" in done.stdout
    assert "5 gated checks per variant, 4 of the policy" in done.stdout
    assert "INCONCLUSIVE" not in done.stdout


def test_group_size_that_does_not_divide(workbench: Call, project: Path) -> None:
    edit_recipe(
        project,
        lambda r: r.update(variants=[{"name": "w4", "method": "gptq", "group_size": 128}]),
    )
    message = refused(workbench)
    assert "128" in message and "64" in message, message
    assert re.search(r"recipe\.yaml:\d+: variants: w4: group_size\n", message)


def test_suite_that_is_not_there(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["evaluate"].update(suites=["sentimnt"]))
    message = refused(workbench)
    assert "did you mean 'sentiment'" in message
    assert "make one with: workbench suite new sentimnt --from ROWS.csv" in message
    assert re.search(r"recipe\.yaml:\d+: evaluate\.suites: sentimnt\n", message)


def test_policy_checks_what_is_not_measured(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["evaluate"].update(suites=["sentiment"]))
    message = refused(workbench)
    assert "short_question" in message
    assert re.search(r"policies/smoke\.yaml:\d+: quality\.\d\n", message)
    edit_recipe(
        project,
        lambda r: (
            r["evaluate"].update(suites=["sentiment", "short_question", "json_extract"]),
            r["profile"].update(concurrency=[2]),
        ),
    )
    message = refused(workbench)
    assert "concurrency 1" in message and "short with concurrency: 2" in message


def own_suites(project: Path) -> Path:
    """Copies of the shipped suites of the recipe, which a test may change."""
    suites = project / "eval_suites"
    shipped = suites.resolve()
    suites.unlink()
    for name in ("sentiment", "short_question", "json_extract"):
        shutil.copytree(shipped / name, suites / name)
    return suites


def test_the_clusters_of_a_suite_are_counted_before_anything_runs(
    workbench: Call, project: Path
) -> None:
    spec = own_suites(project) / "sentiment" / "suite.yaml"
    spec.write_text(f"{spec.read_text()}\ncluster: target\n")
    edit_recipe(project, lambda r: r["evaluate"].update(limit=80))
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "'sentiment' asks 80 of its 88 samples (evaluate.limit), in 2 clusters: the" in said
    cells = [c.strip() for c in workbench("plan", "recipe.yaml").stdout.split("│")]
    assert "80 in 2 clusters, worth 2" in cells


def test_suites_beyond_the_cadence_are_left_out_and_said_so(workbench: Call, project: Path) -> None:
    suites = own_suites(project)
    rare = suites / "short_question" / "suite.yaml"
    text = "".join(
        line
        for line in rare.read_text().splitlines(keepends=True)
        if not line.startswith("cadence")
    )
    rare.write_text(text + "\ncadence: nightly\n")
    before = workbench("plan", "recipe.yaml").stdout
    assert "left out" not in before
    edit_recipe(project, lambda r: r["evaluate"].update(cadence="commit"))
    plan = workbench("plan", "recipe.yaml").stdout
    cells = [line.split("│")[4].strip() for line in plan.splitlines() if line.count("│") == 7]
    assert "left out at cadence commit: short_question (nightly)" in " ".join(cells)
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert (
        "suite 'short_question' is left out (its cadence is nightly, the recipe's commit)" in said
    )
    assert "can only be MISSING" in said
    edit_recipe(project, lambda r: r["evaluate"].update(suites=["short_question"]))
    assert "every suite is worth its time less often" in refused(workbench)


def test_context_beyond_the_checkpoint(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["serve"].update(max_model_len=1_000_000))
    assert "max_model_len" in refused(workbench)


def test_a_port_that_is_taken_is_a_warning(workbench: Call, project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        edit_recipe(project, lambda r: r["serve"].update(port=port))
        done = workbench("validate", "recipe.yaml")
        assert done.returncode == 0 and f"port {port} is in use" in done.stdout
    assert "in use" not in workbench("validate", "recipe.yaml").stdout


def test_calibration_beyond_the_checkpoint(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["calibration"].update(max_tokens=1_000_000))
    assert "never trained on such positions" in refused(workbench)


def test_too_few_samples_is_a_warning(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["evaluate"].update(limit=10))
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0
    assert "asks 10 of its 88 samples (evaluate.limit), and its check wants 60" in done.stdout
    assert "bounded at 27.6 points even if nothing changes" in done.stdout
    assert "it can only be INCONCLUSIVE" in done.stdout
    planned = workbench("plan", "recipe.yaml")
    assert "its check wants 60" in " ".join(planned.stdout.split())


def test_divergence_of_the_fake_engine_is_invented(workbench: Call, project: Path) -> None:
    assert "invents" not in workbench("validate", "recipe.yaml").stdout
    edit_recipe(project, lambda r: r["evaluate"].update(divergence={"tokens": 128}))
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "the fake engine invents its log-probabilities" in " ".join(done.stdout.split())


@pytest.fixture
def copied(project: Path, tiny: Path) -> Path:
    """The recipe on a checkpoint of its own that a test may damage."""
    model = project / "model"
    model.mkdir()
    for file in tiny.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    edit_recipe(project, lambda r: r.update(model={"path": "model"}))
    return model


def test_no_tokenizer(workbench: Call, copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    assert "tokenizer" in refused(workbench)


def test_truncated_shard(workbench: Call, copied: Path) -> None:
    shard = copied / "model.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    message = refused(workbench)
    assert "truncated" in message and str(len(data) // 2) in message.replace(",", "")


def test_header_that_is_no_header(workbench: Call, copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    assert "model.safetensors" in refused(workbench)


def test_already_quantized(workbench: Call, copied: Path, project: Path) -> None:
    config: dict[str, Any] = json.loads((copied / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (copied / "config.json").write_text(json.dumps(config))
    edit_recipe(project, lambda r: r.update(variants=[{"name": "f", "method": "fp8"}]))
    assert "its model card may name" in refused(workbench)
    (copied / "README.md").write_text("---\nbase_model: org/original\n---\n")
    assert "its model card names org/original" in refused(workbench)


def test_a_model_that_writes_no_text(workbench: Call, copied: Path, project: Path) -> None:
    config: dict[str, Any] = json.loads((copied / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    (copied / "config.json").write_text(json.dumps(config))
    edit_recipe(project, lambda r: r.update(variants=[{"name": "f", "method": "fp8"}]))
    assert "BertForMaskedLM does not write text" in refused(workbench)


@pytest.mark.parametrize(
    ("edit", "line", "says"),
    [
        (lambda lines: [*lines[:5], lines[2], *lines[5:]], 6, "sent-003"),
        (lambda lines: [*lines[:4], '{"id": "x", ', *lines[5:]], 5, "JSON"),
        (lambda lines: [*lines[:4], '{"id": "x", "target": "positive"}', *lines[5:]], 5, "message"),
    ],
    ids=["duplicate id", "broken line", "missing field"],
)
def test_broken_suite_names_file_and_line(
    workbench: Call, project: Path, edit: Callable[[list[str]], list[str]], line: int, says: str
) -> None:
    shipped = (project / "eval_suites").resolve()
    (project / "eval_suites").unlink()
    folder = project / "eval_suites"
    for suite in (p for p in shipped.iterdir() if p.is_dir()):
        (folder / suite.name).mkdir(parents=True)
        for file in suite.iterdir():
            (folder / suite.name / file.name).write_bytes(file.read_bytes())
    samples = folder / "sentiment" / "samples.jsonl"
    samples.write_text("\n".join(edit(samples.read_text().splitlines())) + "\n")
    message = refused(workbench)
    assert f"samples.jsonl:{line}" in message or f"line {line}" in message, message
    assert says in message
    assert not (project / "results" / "smoke").exists()


@pytest.mark.parametrize(
    ("ignore", "says"),
    [(["re:.*"], "nothing is left to quantize"), (["lm_head", "re:model"], "nothing is left")],
)
def test_a_list_that_ignores_everything(
    workbench: Call, project: Path, ignore: list[str], says: str
) -> None:
    variant = {"name": "w8", "method": "fp8", "ignore": ignore}
    edit_recipe(project, lambda r: r.update(variants=[variant]))
    assert says in refused(workbench)


def test_a_pattern_that_backtracks_for_ever_is_refused(workbench: Call, project: Path) -> None:
    names = ["lm_head", r"re:(\w+\.?)+!"]
    edit_recipe(
        project, lambda r: r.update(variants=[{"name": "w8", "method": "fp8", "ignore": names}])
    )
    message = refused(workbench)
    assert "of 'ignore' is not done" in message and r"re:(\\w+\\.?)+!" in message
    assert re.search(r"recipe\.yaml:\d+: variants: w8: ignore\n", message)


def test_the_first_pattern_without_an_end_is_named() -> None:
    tensors = ["model.layers.0.self_attn.q_proj.weight"]
    assert modules(tensors)[:2] == ["lm_head", "model"]
    good = ["lm_head", r"re:^(?!.*self_attn)", r"re:(.*\.)?q_proj$", "re:.*.*.*_proj"]
    assert endless(good, tensors) is None
    assert endless([*good, r"re:(\w|.)*!", r"re:(.+)+!"], tensors, 1) == r"re:(\w|.)*!"


def test_a_layer_to_ignore_that_is_not_there(workbench: Call, project: Path) -> None:
    names = ["lm_head", "model.layers.0.mlp.downproj", "model.layers.0.mlp.up_proj"]
    edit_recipe(
        project, lambda r: r.update(variants=[{"name": "w8", "method": "fp8", "ignore": names}])
    )
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "'model.layers.0.mlp.downproj' of 'ignore' is no linear layer" in done.stdout
    assert "up_proj" not in done.stdout and "lm_head" not in done.stdout


@pytest.mark.parametrize("argument", ["--port=9", "--kv_cache_dtype", "--config"])
def test_arguments_the_workbench_sets_itself(workbench: Call, project: Path, argument: str) -> None:
    edit_recipe(
        project,
        lambda r: r.update(
            variants=[{"name": "w8", "method": "fp8"}],
            serve={"engine": "vllm", "max_model_len": 512, "args": [argument, "x"]},
        ),
    )
    assert "serve.args may not set --" in refused(workbench)


def test_a_fake_variant_wants_the_fake_engine(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["serve"].update(engine="vllm"))
    assert "fix:   set 'serve.engine: fake'" in refused(workbench)


def test_a_name_too_long_for_a_path(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r.update(model={"path": "x" * 5000}))
    message = refused(workbench)
    assert "File name too long" in message and len(message) < 1000


def test_a_path_of_a_source_that_is_nearly_right_is_told(workbench: Call, project: Path) -> None:
    (project / "texts").mkdir()
    for name in ("texts/tickets.jsonl", "notes.csv"):
        (project / name).write_text("{}")
    for said, meant in [("texts/tikets.jsonl", "tickets.jsonl"), ("note.csv", "notes.csv")]:
        edit_recipe(project, lambda r, said=said: r["calibration"].update(source=said))
        assert f"did you mean '{meant}'" in refused(workbench)
    edit_recipe(project, lambda r: r["calibration"].update(source="instruction"))
    assert "did you mean 'instructions'" in refused(workbench)


def test_a_source_without_rows(workbench: Call, project: Path) -> None:
    (project / "empty.jsonl").write_bytes(b"\xef\xbb\xbf\r\n  \n")
    edit_recipe(project, lambda r: r["calibration"].update(source="empty.jsonl"))
    message = refused(workbench)
    assert "0 usable rows" in message and "2 blank line" in message and "at most 0" not in message


def test_a_critical_suite_that_nothing_gates_is_named(workbench: Call, project: Path) -> None:
    def without(keep: str, tier: str) -> str:
        policy = yaml.safe_load((project / "notebooks/policies/smoke.yaml").read_text())
        policy["quality"] = [q for q in policy["quality"] if q["suite"] == keep]
        policy["quality"][0]["tier"] = tier
        (project / "policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
        done = workbench("validate", "recipe.yaml")
        assert done.returncode == 0, done.stderr
        return done.stdout

    edit_recipe(project, lambda r: r.update(policy="policy.yaml"))
    text = without("sentiment", "critical")
    assert "suite 'short_question' calls itself critical and the policy does not gate it" in text
    assert "suite 'sentiment' calls itself critical" not in text
    assert "suite 'sentiment' calls itself critical" in without("sentiment", "advisory")


def test_a_supporting_suite_in_no_check_is_listed(workbench: Call, project: Path) -> None:
    shipped = (project / "eval_suites").resolve()
    (project / "eval_suites").unlink()
    shutil.copytree(shipped, project / "eval_suites")
    spec = GENERATE | {"name": "extra", "tier": "supporting"}
    write(project / "eval_suites" / "extra", spec, SAMPLE)
    edit_recipe(project, lambda r: r["evaluate"]["suites"].append("extra"))
    text = workbench("validate", "recipe.yaml").stdout
    assert "evaluated but in no check: extra" in text
    assert "'extra' calls itself critical" not in text


def test_tools_that_the_chat_template_does_not_show(
    workbench: Call, project: Path, copied: Path
) -> None:
    (project / "eval_suites").unlink()
    shutil.copytree(ROOT / "eval_suites", project / "eval_suites")
    spec = CALLS | {"scorer": {"name": "judge", "rubric": "the right tool"}}
    write(project / "eval_suites" / "calls", spec | {"name": "calls"}, SAMPLE)
    judge = {"url": "http://127.0.0.1:1", "model": "judge"}
    edit_recipe(project, lambda r: r["evaluate"].update(judge=judge))
    edit_recipe(project, lambda r: r["evaluate"]["suites"].append("calls"))
    edit_recipe(project, lambda r: r["evaluate"]["judge"].update(key_env="NO_SUCH_KEY"))
    assert "environment variable NO_SUCH_KEY is not set" in refused(workbench)
    edit_recipe(project, lambda r: r["evaluate"]["judge"].pop("key_env"))
    assert "suite 'calls': the model's chat template shows no tools" in (
        workbench("validate", "recipe.yaml").stdout
    )
    (copied / "chat_template.jinja").write_text(
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"
    )
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "shows no tools" not in done.stdout


def test_a_template_that_renders_nothing_is_known_before_the_run(
    workbench: Call, project: Path, copied: Path
) -> None:
    (copied / "chat_template.jinja").write_text("")
    edit_recipe(project, lambda r: r["calibration"].update(chat_template=False))
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2 and "is empty once the chat template is applied" in done.stderr


def test_samples_longer_than_the_context_are_counted_and_named(
    workbench: Call, project: Path
) -> None:
    edit_recipe(project, lambda r: r["serve"].update(max_model_len=72))
    done = workbench("validate", "recipe.yaml")
    assert "are longer than the context of 72 tokens" in done.stdout + done.stderr


def test_the_tokenizer_of_another_model(workbench: Call, project: Path, tiny: Path) -> None:
    model = Path(shutil.copytree(tiny, project / "model"))
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {
            **{"id": 99_999, "content": "the", "special": False, "normalized": False},
            **{"single_word": False, "lstrip": False, "rstrip": False},
        }
    )
    tokenizer["model"]["vocab"]["the"] = 99_999
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    edit_recipe(project, lambda r: r["model"].update(path=str(model)))
    message = refused(workbench)
    assert "token 99999, and the model has 512 embeddings" in message
    edit_recipe(project, lambda r: r.update(calibration=None))
    assert "token 99999" in refused(workbench)  # found by the suites' prompts alone, too


def test_weights_that_are_no_file(workbench: Call, project: Path, tiny: Path) -> None:
    model = Path(shutil.copytree(tiny, project / "model"))
    edit_recipe(project, lambda r: r["model"].update(path=str(model)))
    weights = model / "model.safetensors"
    weights.unlink()
    weights.symlink_to("/nowhere")
    assert "model.safetensors" in refused(workbench)
    weights.unlink()
    weights.mkdir()
    assert "model.safetensors" in refused(workbench)


def test_home_of_nobody(workbench: Call, project: Path) -> None:
    edit_recipe(project, lambda r: r["calibration"].update(source="~nobody-here/x.jsonl"))
    assert "there is no calibration source" in refused(workbench)
    edit_recipe(project, lambda r: r["model"].update(path="~nobody-here/x"))
    assert "is not there" in refused(workbench)


def test_another_recipe_of_the_same_name_is_said_to_replace_the_run(
    workbench: Call, project: Path
) -> None:
    assert workbench("run", "recipe.yaml", "--only", "calibrate").returncode == 0
    text = (project / "recipe.yaml").read_text()
    (project / "other.yaml").write_text(text.replace("seed: 7", "seed: 8"))
    said = " ".join(workbench("validate", "other.yaml").stdout.split())
    assert f"run 'smoke' was made of the recipe {project}/recipe.yaml: its verdict will be" in said
    assert "was made of" not in workbench("validate", "other.yaml", "--run", "b").stdout
    assert "was made of" not in workbench("validate", "recipe.yaml").stdout
    (project / "recipe.yaml").unlink()  # it was moved
    assert "was made of" not in workbench("validate", "other.yaml").stdout


def test_a_place_where_nothing_can_be_written_is_not_called_full(workbench: Call) -> None:
    done = workbench("validate", "recipe.yaml", "--results", "/proc/there")
    assert done.returncode == 3 and "nothing can be written here" in done.stderr
    assert "/proc/there" in done.stderr and "free some space" not in done.stderr
