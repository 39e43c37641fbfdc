"""A recipe's sweep from `validate` to the report, on the shipped fakes."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from projects import edit_recipe
from test_profile_run import profiled
from test_run import _gone, _start

import workbench as package
from workbench.context import new_run
from workbench.load_findings import load_findings
from workbench.plan import build
from workbench.records import PlanStep, Profile
from workbench.store import read_record
from workbench.sweep_spec import OPTIONS
from workbench.sweep_table import COLUMNS
from workbench.sweeping import KEPT

Call = Callable[..., subprocess.CompletedProcess[str]]
#: The second of two configurations does not come up.
SWEEP = {"max_num_seqs": [1, 4], "max_num_batched_tokens": [2], "workloads": ["short"]}


def swept(project: Path, sweep: dict[str, Any] = SWEEP, **changes: Any) -> None:
    workloads = [
        {"name": "short", "prompt_tokens": 16, "output_tokens": 8},
        {"name": "other", "prompt_tokens": 8, "output_tokens": 4},
    ]
    given = {"workloads": workloads, "arrivals": [], "sweep": sweep}
    profiled(project, **given | changes)


def passes(project: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in (project / "results" / "artifacts").glob("profile-*/loads/**/*.json")
        if not path.name.startswith(".")
    }


def test_a_sweep_from_recipe_to_report(
    workbench: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(project)
    checked = workbench("validate", "recipe.yaml")
    assert checked.returncode == 0, checked.stderr
    assert "sweep: 4 more server starts, 8 points more" in " ".join(checked.stdout.split())
    planned = " ".join(workbench("plan", "recipe.yaml").stdout.split())
    assert "2 more server starts" in planned and "4 points more" in planned
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    said = "profile:good: 1 of 2 configurations of the sweep failed, the first with: "
    assert said in done.stdout
    folder = project / "results" / "smoke"
    record = read_record(folder / "variants" / "good" / "profile.json", Profile)
    one, broken = record.sweep
    assert one.status == "measured" and one.options == {
        "max_num_seqs": 1,
        "max_num_batched_tokens": 2,
    }
    assert [(load.workload, load.completed) for load in one.loads] == [("short", 8)] * 2
    assert one.serving is not None and one.serving.kernels == ("fake",)
    assert broken.status == "failed" and "(2) < max_num_seqs (4)" in broken.error
    # The recipe's own configuration is measured whole, and alone is what the gate reads.
    assert {load.workload for load in record.loads} == {"short", "other"}
    assert len(record.points) == 4
    key = json.loads((folder / "gate.json").read_text())
    (check,) = (c for c in key["variants"][0]["checks"] if c["kind"] == "performance")
    assert check["value"] == record.loads[1].ttft_ms.p50.value
    page = (folder / "report.html").read_text()
    assert "What do other serving options change?" in page and "max_num_seqs 1" in page
    executed = (folder / "executed" / "04_profile.good.ipynb").read_text()
    assert "max_num_seqs 1" in executed and "failed: " in executed
    # The server of the evaluation had ended before the profile's began, and that one before the
    # sweep's: no two servers share the machine.
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    tools = [e["name"] for e in events if e["event"] == "tool"]
    assert [name for name in tools if name.endswith(" good") and "quantize" not in name] == [
        *("start server good", "stop server good"),
        *("start server good", "profile good", "stop server good", "sweep good"),
    ]
    # Nothing changed: nothing is measured again.
    before = passes(project)
    again = workbench("run", "recipe.yaml")
    assert "profile:good: cached" in again.stdout and passes(project) == before
    monkeypatch.chdir(project)
    table = package.sweep()
    assert list(table.columns) == list(COLUMNS)
    assert not table.duplicated(["variant", "configuration", "workload", "load"]).any()
    assert set(table["variant"]) == {"baseline", "good"}
    good = table[table["variant"] == "good"]
    assert list(good["status"]) == ["measured"] * 6 + ["failed"]
    assert set(good["quality"]) == {1.0}
    own = good[good["configuration"] == "the recipe's own"]
    assert own["max_num_seqs"].isna().all() and len(own) == 4
    slow = good[good["max_num_seqs"].eq(1).fillna(False)]
    assert slow["ttft_ms_p50"].to_list() == [load.ttft_ms.p50.value for load in one.loads]
    front = table[table["on_front"]].groupby(["workload", "load"]).size()
    assert len(front) == 4 and (front >= 1).all()
    told = package.sweep.__doc__ or ""
    assert not [name for name in COLUMNS if name not in told and name not in OPTIONS]


def test_a_killed_sweep_starts_no_server_twice_that_was_done(
    workbench: Call, project: Path
) -> None:
    slow = {"name": "short", "prompt_tokens": 16, "output_tokens": 8}
    swept(project, {"max_num_seqs": [1, 2, 3]}, workloads=[slow], requests=16)
    policy = project / "policy.yaml"
    policy.write_text(policy.read_text().split("performance")[0])
    done: list[Path] = []
    with _start(project) as run:
        while not done:
            assert run.poll() is None, "the run ended before it could be killed"
            done = list((project / "results").glob(f"artifacts/profile-*/loads/*/{KEPT}"))
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
    assert not _gone(project)
    (folder,) = {path.parents[2] for path in done}
    assert not (folder / "record.json").exists()
    own = (folder / "own.json").read_bytes()
    logs = {path: (path.parent / "server" / "server.log").stat().st_mtime_ns for path in done}
    kept = {path: path.read_bytes() for path in [*done, *(folder / "loads").glob("*.json")]}
    finished = workbench("run", "recipe.yaml")
    assert finished.returncode in (0, 11), finished.stdout + finished.stderr
    assert (folder / "own.json").read_bytes() == own
    assert {path: path.read_bytes() for path in kept} == kept
    now = {path: (path.parent / "server" / "server.log").stat().st_mtime_ns for path in done}
    assert now == logs
    record = read_record(project / "results/smoke/variants/good/profile.json", Profile)
    assert [c.status for c in record.sweep] == ["measured"] * 3


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ({"max_num_seq": [1]}, "did you mean 'max_num_seqs'"),
        ({"kv_cache_dtype": ["fp8"]}, "the fake engine has no 'kv_cache_dtype'"),
        ({"max_num_seqs": ["many"]}, "valid integer"),
        ({"max_num_seqs": [1], "workloads": ["shrot"]}, "did you mean 'short'"),
        ({"workloads": ["short"]}, "names no serving option"),
    ],
)
def test_a_sweep_that_cannot_be_done_is_refused(
    workbench: Call, project: Path, sweep: dict[str, Any], says: str
) -> None:
    swept(project, sweep)
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2, done.stdout
    assert says in done.stderr and "fix:" in done.stderr and "recipe.yaml:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sweep_changes_the_ids_of_the_profiles_alone(project: Path) -> None:
    def ids() -> dict[str, str]:
        return {name: step.id for name, step in new_run(project / "recipe.yaml").specs.items()}

    swept(project)
    given = ids()
    edit_recipe(project, lambda recipe: recipe["profile"].pop("sweep"))
    without = ids()
    changed = {name for name in given if given[name] != without[name]}
    assert changed == {"profile:baseline", "profile:good"}


def test_a_plan_counts_the_servers_and_says_who_is_left_out(project: Path) -> None:
    swept(project, {"max_num_seqs": [8, 16, None], "enforce_eager": [True, None]})
    edit_recipe(
        project,
        lambda recipe: recipe.update(
            serve={"engine": "vllm", "max_model_len": 512},
            variants=[
                {"name": "eight", "method": "fp8"},
                {"name": "twin", "method": "fp8", "serve_as": "twin"},
                {"name": "file", "method": "gguf", "type": "Q8_0", "imatrix": False},
            ],
        ),
    )
    context = new_run(project / "recipe.yaml")
    machine = context.facts.hardware.model_copy(update={"gpus": ()})
    facts = replace(context.facts, hardware=machine)

    def steps() -> dict[str, PlanStep]:
        loaded = new_run(project / "recipe.yaml").loaded
        plan = build(loaded, facts, context.run, context.today)
        return {step.name: step for step in plan.steps}

    found = steps()
    # On a CPU the recipe's own is eager already: 8 and 16 are left of the six combinations.
    for name in ("baseline", "eight"):
        said = found[f"profile:{name}"].reason
        assert said.endswith("sweep: 2 more server starts, 4 loads each, 8 points more")
    assert "a dequantized twin's" in found["profile:twin"].reason
    assert "llamacpp takes none" in found["profile:file"].reason
    edit_recipe(project, lambda recipe: recipe["profile"].pop("sweep"))
    without = steps()
    assert "sweep" not in without["profile:eight"].reason
    seconds = {
        name: (found[name].estimate_seconds or 0) - (step.estimate_seconds or 0)
        for name, step in without.items()
    }
    # Three starts of 45 s, and the loads twice more.
    measured = without["profile:eight"].estimate_seconds or 0
    assert seconds.pop("profile:eight") == pytest.approx(3 * 45 + 2 * measured)
    assert seconds.pop("profile:baseline") == pytest.approx(3 * 45 + 2 * measured)
    assert set(seconds.values()) == {0}


@pytest.mark.parametrize(
    ("values", "warns"),
    [([None], False), (["auto"], False), (["auto", "fp8"], True), ([None, "fp8"], True)],
)
def test_only_another_kv_cache_than_the_recipes_own_is_warned_of(
    project: Path, values: list[str | None], warns: bool
) -> None:
    swept(project, {"max_num_seqs": [8], "kv_cache_dtype": values})
    edit_recipe(
        project,
        lambda recipe: recipe.update(
            serve={"engine": "vllm", "max_model_len": 512},
            variants=[{"name": "eight", "method": "fp8"}],
        ),
    )
    said = [found.what for found in load_findings(new_run(project / "recipe.yaml"))]
    assert any("answers depend on kv_cache_dtype" in what for what in said) is warns
    starts = 4 if warns else 2  # of two variants: 8, and 8 with fp8
    assert any(what.startswith(f"sweep: {starts} more server starts") for what in said)


def test_a_variant_that_is_left_out_has_its_own_configuration_and_the_reason(
    workbench: Call, project: Path
) -> None:
    swept(project, {"max_num_seqs": [None]})
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    record = read_record(project / "results/smoke/variants/good/profile.json", Profile)
    assert record.sweep == () and len(record.loads) == 4
    assert record.not_swept == "not swept: every combination is the recipe's own configuration"
    assert record.not_swept in (project / "results/smoke/report.html").read_text().replace(
        "&#39;", "'"
    )
