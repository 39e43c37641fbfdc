"""A recipe's loads from `validate` to the report, on the shipped fakes."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projects import edit_recipe
from test_servers import CPU

import workbench as package
from workbench.context import new_run
from workbench.load import Limits
from workbench.load_findings import _uncached
from workbench.load_table import COLUMNS
from workbench.profile import _WARM_PROMPT, _WARM_TOKENS
from workbench.profile_spec import ProfileSpec
from workbench.quiet import Limits as QuietLimits
from workbench.records import Gate, Profile
from workbench.spec import ServeSpec
from workbench.store import read_record
from workbench.workload_spec import Workload

Call = Callable[..., subprocess.CompletedProcess[str]]
TRACE = [
    {"at": 0.0, "input_tokens": 20, "output_tokens": 4},
    {"at": 0.2, "output_tokens": 6, "prompt": "Dear support, my parcel is late."},
]


def profiled(project: Path, **changes: Any) -> None:
    """The smoke recipe with one variant, one suite, and loads of every kind."""
    profile: dict[str, Any] = {
        "workloads": [
            {"name": "short", "prompt_tokens": 16, "output_tokens": 8},
            {"preset": "short-question", "requests": 4},
            {"name": "monday", "trace": "monday.jsonl"},
            {"name": "orders", "suite": "short_question", "requests": 6, "concurrency": [2]},
        ],
        "concurrency": [1, 4],
        "arrivals": [{"arrivals": "poisson", "rate": 40}],
        "requests": 8,
        "targets": {"ttft_ms": 20000},
    }
    (project / "monday.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    edit_recipe(
        project,
        lambda r: r.update(
            variants=[{"name": "good", "method": "fake"}],
            evaluate={"suites": ["sentiment"], "noise_floor": False, "limit": 40},
            profile=profile | changes,
            policy="policy.yaml",
        ),
    )
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: sentiment, margin: 0.2, min_n: 20}]\n"
        "performance: [{metric: ttft_ms_p50, workload: short, concurrency: 4, max_value: 9000}]\n"
    )


def test_every_kind_of_load_from_recipe_to_report(
    workbench: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiled(project)
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    folder = project / "results" / "smoke"
    record = read_record(folder / "variants" / "good" / "profile.json", Profile)
    found = [(load.workload, load.arrivals["arrivals"], load.requests) for load in record.loads]
    assert found == [
        *[("short", kind, 8) for kind in ("closed", "closed", "poisson")],
        *[("short-question", kind, 4) for kind in ("closed", "closed", "poisson")],
        ("monday", "trace", 2),
        *[("orders", kind, 6) for kind in ("closed", "poisson")],
    ]
    assert all(load.completed == load.requests for load in record.loads[:7])
    orders = record.loads[7]
    assert orders.correct is not None and orders.good is not None
    # The fake knows most of the answers, and asks of a suite are graded by the suite's scorer.
    assert 0 < orders.correct.count <= orders.good.count <= 6
    assert record.memory is None and record.memory_unknown == ""
    gate = json.loads((folder / "gate.json").read_text())
    checks = {c["name"]: c for c in gate["variants"][0]["checks"]}
    assert checks["ttft_ms_p50 short x4"]["status"] in ("PASS", "INCONCLUSIVE")
    page = (folder / "report.html").read_text()
    assert "short poisson 40/s" in page and "monday replay" in page
    monkeypatch.chdir(project)
    table = package.loads()
    assert list(table.columns) == list(COLUMNS)
    assert not [name for name in COLUMNS if name not in (package.loads.__doc__ or "")]
    assert not table.duplicated(["variant", "workload", "arrivals", "concurrency", "figure"]).any()
    one = table.query("variant == 'good' and workload == 'short' and concurrency == 4")
    by_figure = one.set_index("figure")["value"]
    assert by_figure["ttft_ms_p50"] == record.loads[1].ttft_ms.p50.value
    assert by_figure["good_share"] == 1.0
    # Nothing changed: nothing is measured again. Another trace is another load.
    again = workbench("run", "recipe.yaml")
    assert "profile:good: cached" in again.stdout
    rows = [*TRACE, {"at": 0.3, "input_tokens": 9, "output_tokens": 3}]
    (project / "monday.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    planned = workbench("plan", "recipe.yaml").stdout
    line = next(line for line in planned.splitlines() if "profile:good" in line)
    assert "to do" in line


def test_an_interrupted_profile_keeps_what_was_measured(workbench: Call, project: Path) -> None:
    profiled(project)
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    (made,) = {
        path.parent
        for path in (project / "results" / "artifacts").glob("profile-*/record.json")
        if json.loads(path.read_text())["variant"] == "good"
    }
    kept = {path.name: path.read_bytes() for path in (made / "loads").iterdir()}
    assert len(kept) == 9
    (made / "record.json").unlink()
    (made / "loads" / "short.x4.0.json").unlink()
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    record = read_record(project / "results/smoke/variants/good/profile.json", Profile)
    assert record.resumed == 8
    now = {path.name: path.read_bytes() for path in (made / "loads").iterdir()}
    assert {name for name in kept if now[name] != kept[name]} == {"short.x4.0.json"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workloads": [{"preset": "short-questoin"}]}, "did you mean 'short-question'"),
        ({"workloads": [{"name": "m", "trace": "tuesday.jsonl"}]}, "'tuesday.jsonl' of workload"),
        (
            {"workloads": [{"name": "o", "suite": "short_questoin"}]},
            "did you mean 'short_question'",
        ),
        ({"workloads": [{"name": "o", "suite": "sentiment"}]}, "rank"),
        ({"workloads": [{"name": "o", "suite": "summarization"}]}, "gives grades"),
        ({"workloads": [{"preset": "long-context"}]}, "serve.max_model_len is 1024"),
        (
            {"workloads": [{"preset": "structured-output", "response_schema": {"type": "objekt"}}]},
            "'profile.workloads.0.response_schema': it is no JSON schema: 'objekt'",
        ),
        ({"concurrency": [1]}, "the recipe profiles"),
        ({"arrivals": [{"arrivals": "poison", "rate": 3}]}, "poisson"),
        ({"targets": {}}, "no target"),
        ({"targets": None}, "quality goodput"),
    ],
)
def test_loads_that_cannot_be_asked_are_refused(
    workbench: Call, project: Path, changes: dict[str, Any], says: str
) -> None:
    profiled(project, **changes)
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2, done.stdout
    assert says in done.stderr and "fix:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ['{"at": 1, "input_tokens": 4, "output_tokens": 2}', '{"at": 0, "output_tokens": 2}'],
            ":2",
        ),
        (['{"at": -1, "input_tokens": 4, "output_tokens": 2}'], ":1"),
        (['{"at": 0, "input_tokens": 4000, "output_tokens": 2}'], "max_model_len is 1024"),
        (
            ['{"at": 0, "output_tokens": 2, "prompt": "' + "hello there " * 3000 + '"}'],
            "max_model_len is 1024",
        ),
        (['{"at": 0, "input_tokens": 999, "output_tokens": 2, "prompt": "hi"}'], "999"),
    ],
)
def test_a_trace_that_is_none_is_refused(
    workbench: Call, project: Path, lines: list[str], says: str
) -> None:
    profiled(project)
    (project / "monday.jsonl").write_text("\n".join(lines) + "\n")
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2 and says in done.stderr, done.stdout + done.stderr
    assert "monday.jsonl" in done.stderr and "Traceback" not in done.stderr


def test_what_loads_wait_for_is_planned_and_a_search_of_years_is_warned_of(
    workbench: Call, project: Path
) -> None:
    rates = {"low": 1e-6, "high": 2}
    profiled(project, highest_rate=rates, requests=64)
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert re.search(
        r"the search for the highest rate may take \d+\.\d years for each variant: it begins at "
        r"'low', 1e-06 requests/s; raise 'highest_rate.low'",
        said,
    )
    assert "the open loops alone" not in said
    profiled(project, highest_rate={"low": 1, "high": 1.05}, arrivals=[])
    late = [*TRACE, {"at": 600, "input_tokens": 20, "output_tokens": 4}]
    (project / "monday.jsonl").write_text("".join(json.dumps(row) + "\n" for row in late))
    context = new_run(project / "recipe.yaml")
    (step,) = (s for s in context.plan().steps if s.name == "profile:good")
    # 600 s of the trace; 7, 3 and 5 gaps of a second, of which the lower rate is tried twice.
    searched = (7 + 3 + 5) * (2 + 1 / 1.05)
    assert step.estimate_seconds == pytest.approx(3 + 600 + searched)
    assert f"of its time at most {searched:.0f} seconds are the search for a rate" in step.reason


def test_a_shared_prefix_that_no_cache_keeps_is_said() -> None:
    rag = {"preset": "shared-prefix", "name": "rag"}
    chat = {"name": "chat", "prompt_tokens": 16, "output_tokens": 8}

    def said(sweep: Any = None, engine: str = "vllm", args: tuple[str, ...] = ()) -> str:
        profile = ProfileSpec.model_validate({"workloads": [rag, chat], "sweep": sweep})
        serve = ServeSpec.model_validate({"engine": engine, "args": args})
        return " ".join(_uncached(profile, serve, CPU))

    warned = "workload 'rag' shares 75% of its prompts, and prefix caching is off"
    found = said()
    assert found.startswith(warned) and "'chat'" not in found
    assert "write 'serve: {args: [--enable-prefix-caching]}'" in found
    assert "'sweep: {prefix_caching: [true, null]}' under 'profile'" in found
    assert warned in said({"prefix_caching": [True], "workloads": ["chat"]})
    assert warned in said({"max_num_seqs": [2]})
    assert said({"prefix_caching": [True, None]}) == ""
    assert said(args=("--enable-prefix-caching",)) == ""
    assert said(args=("--no-enable-prefix-caching",)) == ""  # it was meant
    assert said(engine="fake") == ""


def test_validate_warns_of_a_shared_prefix_without_a_cache(workbench: Call, project: Path) -> None:
    profiled(
        project,
        workloads=[{"preset": "shared-prefix", "name": "short", "prompt_tokens": 64}],
        arrivals=[],
    )

    def change(recipe: dict[str, Any]) -> None:
        recipe["serve"]["engine"] = "vllm"
        recipe["variants"] = [{"name": "fp8", "method": "fp8"}]

    edit_recipe(project, change)
    done = workbench("validate", "recipe.yaml")
    said = " ".join((done.stdout + done.stderr).split())
    assert "workload 'short' shares 75% of its prompts" in said


def test_how_a_load_is_measured_is_written_down_with_its_numbers() -> None:
    root = Path(__file__).parents[1]
    readme = (root / "README.md").read_text()
    assert "(notebooks/recipes/WORKLOADS.md#how-a-load-is-measured)" in readme
    said = (root / "notebooks/recipes/WORKLOADS.md").read_text()
    said = " ".join(said.split("## How a load is measured\n")[1].split("\n## ")[0].split())
    spec = ProfileSpec(workloads=(Workload(name="w", trace="t"),))
    for text in (
        f"with answers of {_WARM_TOKENS} tokens",
        f"({_WARM_PROMPT} tokens of a trace or a suite)",
        f"`profile.request_seconds` ({spec.request_seconds:g})",
        f"`profile.seed` ({spec.seed})",
        f"no free one of {Limits().connections:,}",
        f"above {QuietLimits().queued_ms:g} ms at its p99",
        "count from *sent*, not from *due*",
        "prefix caching is **off**",
        "type 7",
    ):
        assert text in said, text


def test_a_load_too_short_for_its_concurrency_is_said(workbench: Call, project: Path) -> None:
    rates = {"low": 1, "high": 2}
    rare = [{"arrivals": "poisson", "rate": 1e-4}]
    profiled(project, requests=4, arrivals=rare, highest_rate=rates)
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "the open loops alone take 30.6 hours for each variant" in said
    assert "workload 'short': of 4 requests 99% in time means all of them" in said
    assert "4 requests at a rate do not show whether the queue grows (50 are the least)" in said
    assert "workload 'short': 4 requests at concurrency 4 are all begin and end" in said


def test_what_the_recipe_no_longer_asks_for_is_no_evidence(workbench: Call, project: Path) -> None:
    profiled(project, workloads=[{"name": "short", "prompt_tokens": 16, "output_tokens": 8}])
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: sentiment, margin: 0.2, min_n: 20}]\n"
        "size: [{metric: peak_memory_bytes, max_value: 1.0e+12}]\n"
        "objective: fastest\n"
    )
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seal" in (project / "results/smoke/report.html").read_text()
    # Served otherwise since, and not profiled: the profile that lies there is of another server.
    edit_recipe(
        project,
        lambda r: (r.pop("profile"), r.pop("calibration"), r["serve"].update(max_model_len=768)),
    )
    said = workbench("validate", "recipe.yaml")
    assert "the policy limits peak_memory_bytes, which a profile measures" in said.stdout
    done = workbench("run", "recipe.yaml")
    assert done.returncode == 11, done.stdout + done.stderr
    gate = read_record(project / "results/smoke/gate.json", Gate)
    assert "missing: good was not profiled" in gate.variants[0].reason
    (project / "results/smoke/variants/good/profile.json").stat()  # it does lie there
    page = (project / "results/smoke/report.html").read_text()
    assert "seal" not in page and "output tokens/s" not in page
    assert package.loads(project / "results/smoke").empty
