"""A variant and its unquantized reference, both served and measured in turn."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import EMULATED, profile, simple
from projects import edit_recipe
from test_gate import GOOD, TTFT, policy
from test_measured_when import BASE, LATER, at, timed
from test_profile import Bytes, workload
from test_profile_run import profiled
from test_run import _gone, _start
from test_servers import CPU, start

import workbench as package
from workbench.alternating import BESIDE, run_alternated
from workbench.arrivals import ClosedLoop
from workbench.context import new_run
from workbench.errors import RecipeError, ServingFailure
from workbench.gate import decide
from workbench.load_findings import load_findings
from workbench.measured_checks import measured_reference
from workbench.measured_when import one_after_another
from workbench.passes import LOADS, pass_file
from workbench.plan import build
from workbench.profile import Inputs, Measured
from workbench.profile_spec import ProfileSpec
from workbench.records import Gpu, Profile
from workbench.report.cards import record_text
from workbench.report.html import render
from workbench.store import read_record

Call = Callable[..., subprocess.CompletedProcess[str]]


def alternated(
    folder: Path,
    faults: dict[str, Any] | None = None,
    other_faults: dict[str, Any] | None = None,
    told: list[str] | None = None,
    gpus: tuple[Any, Any] = (None, None),
    **spec: Any,
) -> tuple[Measured, Measured]:
    settings: dict[str, Any] = {"workloads": (workload(),), "concurrency": (1, 2), "requests": 4}
    with ExitStack() as stack:
        one, two = folder / "one", folder / "two"
        for place in (one, two):
            place.mkdir(parents=True, exist_ok=True)
        ours = stack.enter_context(start(one, faults, model_name="good"))
        theirs = stack.enter_context(start(two, other_faults, model_name="baseline"))
        return run_alternated(
            replace(ours, gpu=gpus[0]),
            replace(theirs, gpu=gpus[1]),
            ProfileSpec(**(settings | spec)),
            Inputs(Bytes()),
            folder=folder,
            progress=lambda done, whole, what: (told if told is not None else []).append(
                f"{done:g}/{whole:g} {what}"
            ),
        )


def passes(folder: Path) -> dict[str, dict[str, Any]]:
    """File below `loads/` -> the pass in it."""
    root = folder / LOADS
    return {
        path.relative_to(root).as_posix(): json.loads(path.read_bytes())
        for path in root.rglob("*.json")
    }


def test_each_load_is_measured_on_both_in_turn(tmp_path: Path) -> None:
    told: list[str] = []
    alternated(tmp_path, told=told, repeats=2)
    began = sorted((found["began"], name) for name, found in passes(tmp_path).items())
    assert [name for _, name in began] == [
        *("beside/short.x1.0.json", "short.x1.0.json"),  # reference, variant
        *("short.x2.0.json", "beside/short.x2.0.json"),  # the other way round
        *("beside/short.x2.1.json", "short.x2.1.json"),  # backwards, and again
        *("short.x1.1.json", "beside/short.x1.1.json"),
    ]
    # Progress is of both servers together, and says whose turn it is.
    assert told[0] == "0/8 baseline: short x1, 1 of 2"
    assert any(what.startswith("1/8 good: short x1, 1 of 2") for what in told)
    assert told[-1] == "8/8 baseline: profiled"


def test_both_get_the_same_prompts_and_each_its_own_figures(tmp_path: Path) -> None:
    ours, theirs = alternated(tmp_path, {"ttft_ms": 80}, {"ttft_ms": 10}, repeats=3)
    found = passes(tmp_path)
    for name in ("short.x1.0.json", "short.x2.2.json"):
        sent = [
            [(o["prompt_tokens"], o["output_tokens"]) for o in found[key]["outcomes"]]
            for key in (name, f"{BESIDE}/{name}")
        ]
        assert sent[0] == sent[1]
    for one, other in zip(ours.points, theirs.points, strict=True):
        assert one.ttft_ms_p50 is not None and other.ttft_ms_p50 is not None
        assert one.ttft_ms_p50 - other.ttft_ms_p50 > 35
        assert (one.completed, other.completed) == (12, 12)
    assert ours.began < theirs.finished and theirs.began < ours.finished


def test_a_pass_of_before_is_kept_with_its_partner_only(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match="server for 'baseline' died"):
        # Canary 2, warm-up 2, x1 4, warm-up 2: its reference dies in the load x2, after it.
        alternated(tmp_path, other_faults={"die_after": 11})
    before = passes(tmp_path)
    assert set(before) == {"short.x1.0.json", "beside/short.x1.0.json", "short.x2.0.json"}
    ours, theirs = alternated(tmp_path)
    assert (ours.resumed, theirs.resumed) == (1, 1)
    now = passes(tmp_path)
    same = {name for name in before if now[name]["began"] == before[name]["began"]}
    assert same == {"short.x1.0.json", "beside/short.x1.0.json"}


def test_a_reference_that_answers_nothing_ends_the_profile_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match="the server for 'baseline' takes requests and"):
        # The canary has the time for its two answers.
        alternated(tmp_path, other_faults={"ttft_ms": 6_000}, request_seconds=1)
    assert not passes(tmp_path)


def test_a_rate_is_searched_for_the_variant_alone(tmp_path: Path) -> None:
    search = {"low": 1.0, "high": 40.0, "most": 3}
    ours, theirs = alternated(
        tmp_path,
        concurrency=(1,),
        requests=4,
        targets={"ttft_ms": 20000},
        highest_rate=search,
    )
    assert "short" in ours.highest and theirs.highest == {}
    beside = pass_file(tmp_path / LOADS / BESIDE, "short", ClosedLoop(concurrency=1), 0)
    assert [path.name for path in beside.parent.iterdir()] == [beside.name]


# --------------------------------------------------------------------------- from recipe to report


def recipe(project: Path, **changes: Any) -> None:
    workloads = [{"name": "short", "prompt_tokens": 16, "output_tokens": 8}]
    given = {"workloads": workloads, "arrivals": [], "alternate": True}
    profiled(project, **given | changes)
    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: p\n"
        "quality: [{suite: sentiment, margin: 0.2, min_n: 20}]\n"
        "performance: [{metric: ttft_ms_p50, workload: short, concurrency: 4, max_ratio: 90}]\n"
    )


def test_alternation_from_recipe_to_report(
    workbench: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe(project)
    checked = workbench("validate", "recipe.yaml")
    assert checked.returncode == 0, checked.stderr
    said = " ".join(checked.stdout.split())
    assert "measured in turn, two servers up: good with baseline" in said
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    folder = project / "results" / "smoke"
    record = read_record(folder / "variants" / "good" / "profile.json", Profile)
    alone = read_record(folder / "variants" / "baseline" / "profile.json", Profile)
    assert alone.beside is None and record.beside is not None
    assert record.beside.variant == "baseline"
    assert record.beside.inputs == alone.inputs
    assert record.beside.points != alone.points
    gate = json.loads((folder / "gate.json").read_text())
    (check,) = (c for c in gate["variants"][0]["checks"] if c["kind"] == "performance")
    # The ratio is to the reference beside it, not to the one that was measured by itself.
    ours, theirs, other = (
        next(p for p in points if p.concurrency == 4).ttft_ms_p50
        for points in (record.points, record.beside.points, alone.points)
    )
    assert ours and theirs and theirs != other
    assert check["details"]["baseline_value"] == theirs
    assert check["value"] == pytest.approx(ours / theirs)
    assert check["sentence"].endswith("; measured in turn with baseline.")
    assert "baseline beside good/profile" in gate["inputs"]
    assert "baseline, in turn with it" in record_text(record)
    page = (folder / "report.html").read_text()
    assert "baseline beside good" in page and "ran in turn with those of" in page
    assert not (folder / "variants" / "good" / "server" / BESIDE / "server.json").exists()
    monkeypatch.chdir(project)
    table = package.loads()
    one = table.query("variant == 'baseline beside good' and concurrency == 4")
    assert one.set_index("figure")["value"]["ttft_ms_p50"] == theirs
    assert set(one["method"]) == {"none"}
    tools = [
        event["name"]
        for line in (folder / "events.jsonl").read_text().splitlines()
        if (event := json.loads(line))["event"] == "tool"
    ]
    # Its own server is the one that was asked the suites.
    assert tools[-4:] == [
        *("start server baseline beside good", "profile good"),
        *("stop server baseline beside good", "stop server good"),
    ]
    # It is what the gate says again, and nothing is measured a second time.
    again = workbench("run", "recipe.yaml")
    assert "profile:good: cached" in again.stdout
    # Without it the variant is measured alone, and what was measured of the baseline still holds.
    edit_recipe(project, lambda r: r["profile"].pop("alternate"))
    planned = {s.name: s for s in plan_of(project).steps}
    assert planned["profile:baseline"].cached and not planned["profile:good"].cached


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_killed_run_leaves_no_server_and_no_half_pair(
    workbench: Call, project: Path, after: int
) -> None:
    recipe(project, repeats=2)
    with _start(project) as run:
        while True:
            assert run.poll() is None, "the run ended before it could be killed"
            found = [*(project / "results").glob(f"artifacts/profile-*/loads/{BESIDE}/*.json")]
            if found:
                made = [*found, *found[0].parent.parent.glob("*.json")]
                if len(made) >= after:
                    break
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    assert not _gone(project)
    folder = found[0].parents[2]
    assert not (folder / "record.json").exists()
    before = {name: one["began"] for name, one in passes(folder).items()}
    whole = {name for name in before if {name, f"{BESIDE}/{name}"} <= set(before)}
    done = workbench("run", "recipe.yaml")
    assert done.returncode in (0, 11), done.stdout + done.stderr
    now = {name: one["began"] for name, one in passes(folder).items()}
    both = whole | {f"{BESIDE}/{name}" for name in whole}
    assert {name for name in before if before[name] == now[name]} == both
    record = read_record(project / "results/smoke/variants/good/profile.json", Profile)
    assert record.beside is not None
    assert record.resumed == record.beside.resumed == len(whole)
    assert not [*project.rglob("server.json")]


def plan_of(project: Path) -> Any:
    context = new_run(project / "recipe.yaml")
    return build(context.loaded, context.facts, context.run, context.today)


@pytest.mark.parametrize(("engine", "startup"), [("fake", 0.0), ("vllm", 45.0)])
def test_a_plan_counts_both_servers(project: Path, engine: str, startup: float) -> None:
    recipe(project)
    edit_recipe(project, lambda r: r["serve"].update(engine=engine))
    twice = {s.name: s for s in plan_of(project).steps}
    edit_recipe(project, lambda r: r["profile"].pop("alternate"))
    once = {s.name: s for s in plan_of(project).steps}
    assert twice["profile:baseline"] == once["profile:baseline"]
    one, two = once["profile:good"], twice["profile:good"]
    assert one.id != two.id
    assert two.estimate_seconds == pytest.approx(2 * (one.estimate_seconds or 0) + startup)
    assert two.estimate_memory_bytes == 2 * (one.estimate_memory_bytes or 0)


def test_one_port_is_not_enough_for_two_servers(workbench: Call, project: Path) -> None:
    recipe(project)
    edit_recipe(project, lambda r: r["serve"].update(port=18431))
    done = workbench("validate", "recipe.yaml")
    assert done.returncode == 2
    assert "two servers up" in done.stderr and "leave serve.port out" in done.stderr


@pytest.mark.parametrize(("share", "refused"), [(0.9, True), (0.46, True), (0.45, False)])
def test_two_servers_share_the_gpu(project: Path, share: float, refused: bool) -> None:
    recipe(project)
    edit_recipe(project, lambda r: r["serve"].update(engine="vllm", gpu_memory_utilization=share))
    context = new_run(project / "recipe.yaml")
    card = Gpu(name="H100", compute_capability="9.0", memory_bytes=80 << 30, driver="570")
    hardware = CPU.model_copy(update={"gpus": (card,)})
    context.__dict__["facts"] = replace(context.facts, hardware=hardware)
    if refused:
        with pytest.raises(RecipeError, match="two servers up") as caught:
            list(load_findings(context))
        assert "0.45" in caught.value.fix
    else:
        list(load_findings(context))


def test_a_server_beside_that_does_not_fit_says_what_to_do(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe(project)
    from workbench import profiling

    def full(*_: Any, **__: Any) -> Any:
        raise ServingFailure("no memory is left", where="log", fix="read its log")

    monkeypatch.setattr(profiling, "served_with", full)
    context = new_run(project / "recipe.yaml")
    with (
        pytest.raises(ServingFailure) as caught,
        profiling._started_beside(context, "good", "baseline", context.events.of("profile:good")),
    ):
        pass
    assert "'profile.alternate'" in caught.value.fix and "read its log" in caught.value.fix


# --------------------------------------------------------------------------- what a check reads


def beside(found: Any, ttft: float, **changes: Any) -> Any:
    """Evidence whose variant was measured in turn with its reference."""
    (side,) = found.variants
    base = found.baseline.profile
    points = tuple(p.model_copy(update={"ttft_ms_p50": ttft}) for p in base.points)
    other = base.model_copy(update={"points": points, **changes})
    made = side.profile.model_copy(update={"beside": other})
    return replace(found, variants=(replace(side, profile=made),))


def ttft_check(found: Any) -> Any:
    gate = decide(policy(TTFT), found, policy_digest="p", id_="g")
    (check,) = (c for c in gate.variants[0].checks if c.kind == "performance")
    return check


def test_a_ratio_is_to_the_reference_in_turn_with_it() -> None:
    plain = timed(BASE, LATER)
    (side,) = plain.variants
    assert side.profile is not None
    ours = next(p.ttft_ms_p50 for p in side.profile.points if p.concurrency == TTFT.concurrency)
    assert ours is not None
    found = beside(plain, 4 * ours, began=LATER[0], finished=LATER[1])
    check = ttft_check(found)
    assert check.value == pytest.approx(0.25)
    assert check.details["measured"]["baseline"] == "2026-11-30 14:19:10 to 14:24:10 UTC"
    assert measured_reference(found, found.variants[0]).variant == "baseline"
    # Across two runs the earlier one's profile of the same weights is the reference.
    across = replace(found, across="before")
    assert measured_reference(across, found.variants[0]).profile is found.baseline.profile


def test_what_is_beside_is_held_to_the_same_rules() -> None:
    found = simple(*GOOD)
    base = found.baseline.profile
    assert base is not None
    for changes, says in (
        ({"serving": base.serving.model_copy(update={"served_digest": "x" * 64})}, "weights"),
        ({"serving": base.serving.model_copy(update={"engine_version": "other"})}, "engine"),
        ({"variant": "somebody"}, "is of somebody"),
        ({"points": ()}, "not measured at that load"),
    ):
        check = ttft_check(beside(found, 50.0, **changes))
        assert check.status in ("NOT COMPARABLE", "MISSING"), check.sentence
        assert says in check.sentence


def test_a_twin_is_measured_alone(project: Path) -> None:
    recipe(project)
    loaded = new_run(project / "recipe.yaml").loaded
    good = loaded.recipe.variant("good")
    assert loaded.recipe.in_turn_with(good, "native") == "baseline"
    assert loaded.recipe.in_turn_with(good, EMULATED.name) == ""
    assert loaded.recipe.in_turn_with(loaded.recipe.variant("baseline"), "native") == ""


def test_reports_and_cards_show_what_is_beside() -> None:
    found = beside(timed(BASE, LATER), 50.0)
    gate = decide(policy(TTFT), found, policy_digest="p", id_="g")
    text = " ".join(re.sub(r"<[^>]*>", " ", render(gate, found)).split())
    name = found.variants[0].variant
    assert f"baseline beside {name}" in text
    assert "None was measured again" not in text
    record = found.variants[0].profile
    assert record is not None
    assert "ran in turn" in one_after_another([at(BASE, "baseline"), record])


def test_a_partner_is_no_stranger_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_watch import endpoint, gpu

    from workbench import watch

    own, other = os.getpid(), os.getppid()
    monkeypatch.setattr(watch, "descendants", lambda pid: [])
    watched = endpoint(gpu=gpu([(own, None), (other, None)]))
    partner = replace(endpoint(), pid=other)
    assert watch._Machine(watched, partner).look().others == frozenset()
    assert watch._Machine(watched).look().others != frozenset()


def test_what_the_reference_takes_of_a_gpu_is_not_the_variants() -> None:
    """Where NVML tells no process's own memory, as in many containers."""
    from test_gpu import GIB
    from test_watch import endpoint, gpu

    from workbench import watch
    from workbench.servers.gpu import GpuWatch

    variant = gpu([])
    (nvml, used) = (variant._nvml, variant.before)
    nvml.used[0] += 30 * GIB  # the variant's server
    reference = GpuWatch(nvml, [0])
    nvml.used[0] += 35 * GIB  # the reference's, beside it
    assert (variant.before, variant.grown(), reference.grown()) == (used, 65 * GIB, 35 * GIB)
    ours = watch._Machine(endpoint(gpu=variant), endpoint(gpu=reference), reference.grown())
    theirs = watch._Machine(endpoint(gpu=reference), endpoint(gpu=variant))
    ours.look()
    theirs.look()
    assert (ours.peak.gpu, theirs.peak.gpu) == (30 * GIB, 35 * GIB)
    nvml.refuses.add("nvmlDeviceGetMemoryInfo")
    assert reference.grown() == 0


def test_each_watch_knows_what_the_other_server_took(tmp_path: Path) -> None:
    class Card:
        def __init__(self) -> None:
            self.asides = set[int]()

        def readings(self) -> tuple[()]:
            return ()

        def used_by(self, tree: Any, readings: Any, aside: int) -> int:
            self.asides.add(aside)
            return 7

        def grown(self) -> int:
            return 35

    cards = Card(), Card()
    ours, theirs = alternated(tmp_path, gpus=cards, concurrency=(1,))
    assert (cards[0].asides, cards[1].asides) == ({35}, {0})
    assert (ours.peak_gpu, theirs.peak_gpu) == (7, 7)


def test_old_records_have_nothing_beside_them() -> None:
    record = profile("good", "w" * 64)
    assert record.beside is None and "beside" not in record.model_dump(mode="json")
