"""What is done with the answers of a finished run, on the shipped fakes: real runs and commands."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import ROOT, edit_recipe

import workbench
from workbench import steps
from workbench.collect import changed_suites, collect
from workbench.context import Context, open_run
from workbench.differences import diff
from workbench.errors import RecipeError, StoreError, SuiteError
from workbench.gate import timings_aside
from workbench.integrity import flaw
from workbench.records import Evaluation, Gate
from workbench.regressions import ADVICE, Written, _card, _write, export
from workbench.rescore import _rows as rescored
from workbench.rescore import finish, rescore
from workbench.rows import read_rows
from workbench.sample_table import COLUMNS
from workbench.sample_table import _suite as lines_of
from workbench.spec import QualityCheck
from workbench.stats import binary_interval
from workbench.store import read_record
from workbench.suite_spec import JudgeScorer
from workbench.suites import Suite, load_suite

Call = Callable[..., subprocess.CompletedProcess[str]]

POLICY = """schema: workbench.policy/1
name: p
quality:
- {suite: sentiment, margin: 0.2, min_n: 20}
- {suite: short_question, margin: 0.2, min_n: 20}
"""


def call(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A project whose run 'smoke' is finished: 'bad' is wrong on more samples than the baseline."""
    root = tmp_path_factory.mktemp("answers") / "project"
    shutil.copytree(ROOT / "eval_suites", root / "eval_suites")
    for name in ("calib_data", "notebooks"):
        (root / name).symlink_to(ROOT / name)
    (root / "policy.yaml").write_text(POLICY)
    edit_recipe(root, lambda recipe: None, tiny)
    edit_recipe(
        root,
        lambda r: r.update(
            variants=[{"name": "bad", "method": "fake", "damage": 0.7}],
            evaluate={"suites": ["sentiment", "short_question"], "limit": 40},
            profile=None,
            calibration=None,
            policy="policy.yaml",
        ),
    )
    done = call(root, "run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr
    return root


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """The same for one test alone: its suites and results may be changed."""
    root = tmp_path / "project"
    shutil.copytree(finished, root, symlinks=True)
    lock = root / "results" / "smoke" / "recipe.lock.yaml"
    lock.write_text(lock.read_text().replace(str(finished), str(root)))
    return root


def edit_suite(project: Path, name: str, edit: Callable[[dict[str, Any]], object]) -> None:
    path = project / "eval_suites" / name / "suite.yaml"
    spec = yaml.safe_load(path.read_text())
    edit(spec)
    path.write_text(yaml.safe_dump(spec, sort_keys=False))


def edit_sample(project: Path, suite: str, id_: str, **changes: Any) -> None:
    path = project / "eval_suites" / suite / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(x | changes if x["id"] == id_ else x) + "\n" for x in lines))


def opened(project: Path) -> Context:
    return open_run(str(project / "results" / "smoke"))


def published(project: Path, variant: str) -> Evaluation:
    path = project / "results/smoke/variants" / variant / "evaluation.json"
    return read_record(path, Evaluation)


def everything(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


# --------------------------------------------------------------------------- diff, samples


def test_diff_shows_both_answers_worst_first(finished: Path) -> None:
    context = open_run(str(finished / "results" / "smoke"))
    found = diff(context, "bad")
    assert [c.suite for c in found.counts] == ["sentiment", "short_question"]
    losses = [item.loss for item in found]
    assert losses == sorted(losses, reverse=True) and losses[0] == 1
    for count in found.counts:
        rows = {
            v: {
                r.id: r
                for r in read_rows(
                    finished / f"results/smoke/variants/{v}/eval/{count.suite}.jsonl"
                )
            }
            for v in ("baseline", "bad")
        }
        lost = {i for i, r in rows["bad"].items() if r.score < rows["baseline"][i].score}
        assert count.regressed == len(lost) > 0
        shown = {d.id for d in diff(context, "bad", count.suite, "regressed")}
        assert shown == lost
    # Of equal losses one of each suite in turn, and no variant named is the first that lost some.
    assert {d.suite for d in found.items[:2]} == {"sentiment", "short_question"}
    assert diff(context).variant == "bad"
    first = found.items[0]
    assert first.question and first.target
    said = call(finished, "diff", "smoke", "bad", "--only", "regressed", "--limit", "2")
    assert said.returncode == 0, said.stderr
    assert f"of 40 samples {found.counts[0].regressed} regressed" in said.stdout
    assert "and " in said.stdout and "more" in said.stdout
    page = found._repr_html_()
    assert page.count("<tr>") == len(found) + 1 and "<script" not in page


def test_the_notebook_of_the_gate_shows_them_as_a_table(finished: Path) -> None:
    (made,) = (finished / "results" / "smoke" / "executed").glob("*gate*.ipynb")
    (shown,) = json.loads(made.read_text())["cells"][-1]["outputs"]
    assert shown["output_type"] == "execute_result"
    assert "<table>" in "".join(shown["data"]["text/html"])
    text = "".join(shown["data"]["text/plain"])
    assert "bad beside baseline" in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("smoke", "bda"), "did you mean 'bad'"),
        (("smoke", "baseline"), "what the variants are compared with"),
        (("smoke", "bad", "--suite", "sentimnt"), "did you mean 'sentiment'"),
        (("smoke", "bad", "--only", "regresed"), "did you mean 'regressed'"),
        (("smok", "bad"), "did you mean 'smoke'"),
    ],
)
def test_diff_of_what_is_not_there(finished: Path, arguments: tuple[str, ...], says: str) -> None:
    done = call(finished, "diff", *arguments)
    assert done.returncode == 2 and says in done.stderr
    assert "Traceback" not in done.stderr


def test_samples_is_one_table(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    table = workbench.samples()
    assert list(table.columns) == list(COLUMNS)
    # Two suites of 40, asked of two variants, and of the baseline twice.
    assert len(table) == 2 * 40 * 3
    assert table.equals(workbench.samples(str(finished / "results" / "smoke")))
    assert table.equals(workbench.samples(finished / "results" / "smoke"))
    assert not table.duplicated(["variant", "suite", "pass", "sample_id", "repeat"]).any()
    bad = table[table.variant == "bad"]
    assert (bad.delta == bad.score - bad.baseline_score).all()
    assert (bad.change == "regressed").sum() == len(
        diff(str(finished / "results/smoke"), "bad", only="regressed")
    )
    second = table[table["pass"] == "second"]
    assert len(second) == 80 and (second.variant == "baseline").all()
    assert (second.change == "same").all()
    assert table[table.variant == "baseline"].query("`pass` == 'first'").baseline_score.isna().all()
    assert bad.question.notna().all() and (bad.unpaired == "").all()
    documented = workbench.samples.__doc__ or ""
    assert not [name for name in COLUMNS if name not in documented]
    # The recipe in it counts what somebody else counts.
    first, last = [x.strip() for x in documented.splitlines() if x.strip().startswith("some")]
    flagged = table.copy()
    flagged.loc[flagged.variant == "bad", "flags"] = "empty,truncated"
    flagged.loc[second.index, "flags"] = "empty"
    names: dict[str, Any] = {"table": flagged}
    exec(first, names)
    counts = eval(last, names)
    assert counts.to_dict() == {("bad", "empty"): 80, ("bad", "truncated"): 80}


def test_what_lm_eval_does_not_log_is_missing_and_said_to_be(finished: Path) -> None:
    side = collect(opened(finished)).variants[0]
    assert side.evaluation is not None
    result = side.evaluation.suites[0]
    for source in ("suite", "lm-eval"):
        asked = result.model_copy(update={"source": source})
        for line in lines_of(side, asked, side.rows[result.suite], "first", None, "", {}):
            timed = [line[name] is not None for name in ("started", "seconds")]
            assert timed == [source == "suite"] * 2
    missing = "finish_reason, output_tokens, started and seconds are missing"
    assert f"Of tasks of lm-eval, {missing}" in (workbench.samples.__doc__ or "")


def test_samples_of_what_names_no_run_is_refused() -> None:
    with pytest.raises(RecipeError, match="3 names no run") as caught:
        workbench.samples(3)
    assert "its name, its folder" in caught.value.fix


def test_samples_of_what_cannot_be_paired_say_why(project: Path) -> None:
    edit_suite(project, "sentiment", lambda s: s.update(description="another"))
    table = workbench.samples(project / "results" / "smoke")
    assert table[table.suite == "sentiment"].question.isna().all()
    assert table[table.suite == "short_question"].question.notna().all()


# --------------------------------------------------------------------------- regressions


def test_regressions_become_suites(project: Path) -> None:
    done = call(project, "suite", "from-regressions", "smoke", "bad", "again")
    assert done.returncode == 0, done.stderr
    for suite in ("sentiment", "short_question"):
        made = load_suite(project / "eval_suites" / f"again-{suite}")
        source = load_suite(project / "eval_suites" / suite)
        lost = {d.id for d in diff(str(project / "results/smoke"), "bad", suite, "regressed")}
        assert {s.id for s in made.samples} == lost
        kept = {s.id: s for s in source.samples}
        assert all(kept[s.id] == s for s in made.samples)
        about = f"{len(lost)} samples that bad of run smoke got wrong."
        as_it_was = {"name": made.spec.name, "description": about, "tier": "advisory"}
        assert made.spec == source.spec.model_copy(update=as_it_was)
        card = (made.path / "README.md").read_text()
        (line,) = [x for x in done.stdout.splitlines() if f"suite: again-{suite}," in x]
        assert line.strip() in card and ADVICE[1:] in card and ADVICE in done.stdout
        (check,) = yaml.safe_load(line)
        wanted = QualityCheck(suite=made.spec.name, margin=0.5, min_n=len(lost), tier="advisory")
        assert QualityCheck(**check) == wanted
        assert published(project, "bad").id in card and "`smoke`" in card
        assert "can never settle" not in card + done.stdout, "there are enough"
    before = everything(project / "eval_suites")
    twice = call(project, "suite", "from-regressions", "smoke", "bad", "again")
    assert twice.returncode == 2 and "already" in twice.stderr
    assert everything(project / "eval_suites") == before
    one = call(project, "suite", "from-regressions", "smoke", "bad", "only", "--suite", "sentiment")
    assert one.returncode == 0 and load_suite(project / "eval_suites" / "only").samples


@pytest.mark.parametrize("samples", [1, 4, 5])
def test_a_check_too_small_to_be_settled_is_said_to_be(finished: Path, samples: int) -> None:
    said = Written(finished / "again", "sentiment", samples).too_small
    passes = binary_interval(0, 0, samples).high <= 0.5
    fails = binary_interval(samples, 0, samples).low > 0.5
    assert (passes or fails) == (not said) == (samples == 5)
    assert not said or "at a margin of 50.0 points it takes at least 5" in said
    evidence = collect(opened(finished))
    items = list(diff(opened(finished), "bad", "sentiment", "regressed"))[:samples]
    card = _card(evidence, evidence.variants[0], "sentiment", items, "again")
    assert ("can never settle that check" in card) == bool(said)


def test_a_folder_the_export_did_not_make_is_left_alone(project: Path) -> None:
    theirs = project / "eval_suites" / ".again.partial" / "notes.txt"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    made = export(opened(project), "bad", "again", "sentiment").written
    assert [one.folder.name for one in made] == ["again"] and theirs.read_text() == "mine"
    assert [p.name for p in (project / "eval_suites").glob(".*")] == [".again.partial"]


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "x" * 80])
def test_a_name_that_is_none(project: Path, name: str) -> None:
    before = everything(project)
    with pytest.raises(StoreError, match="cannot be the name of a suite"):
        export(opened(project), "bad", name)
    assert everything(project) == before


def test_a_changed_suite_is_not_exported(project: Path) -> None:
    edit_suite(project, "sentiment", lambda s: s.update(description="another"))
    before = everything(project / "eval_suites")
    with pytest.raises(SuiteError, match="no longer the one that was asked"):
        export(opened(project), "bad", "again")
    assert everything(project / "eval_suites") == before
    assert not list((project / "eval_suites").glob(".*"))


# --------------------------------------------------------------------------- gate


def test_the_gate_of_an_unfinished_run_says_what_is_to_do(project: Path) -> None:
    assert collect(opened(project)).unfinished == ()
    (project / "results/smoke/variants/bad/evaluation.json").unlink()
    done = call(project, "gate", "smoke")
    assert done.returncode == 11, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "the run is not finished (evaluate:bad still to do)" in re.sub("[│ ]+", " ", said)
    assert "the run is not finished: evaluate:bad still to do" in said
    assert f"workbench run {project / 'recipe.yaml'} finishes this run" in said
    assert said.count("the run is not finished: ") == 1
    report = (project / "results/smoke/report.html").read_text()
    assert "the run is not finished: evaluate:bad still to do" in report


# --------------------------------------------------------------------------- rescore


def asked_nothing(project: Path) -> Iterator[str]:
    """Steps whose server was started since the events were cleared."""
    events = project / "results/smoke/events.jsonl"
    for line in events.read_text().splitlines() if events.exists() else ():
        if '"start server' in line:
            yield line


def test_rescore_a_changed_scorer_and_run_asks_nobody(project: Path, tmp_path: Path) -> None:
    before = {v: published(project, v) for v in ("baseline", "bad")}
    edit_suite(project, "short_question", lambda s: s.update(scorer="exact"))
    fresh = tmp_path / "fresh"
    shutil.copytree(project, fresh, symlinks=True, ignore=shutil.ignore_patterns("results"))
    hint = "if only targets or scorers changed, workbench rescore smoke needs no model"
    assert hint in " ".join(call(project, "gate", "smoke").stdout.split())
    reasons = {s.name: s.reason for s in opened(project).plan().steps if s.kind == "evaluate"}
    assert set(reasons.values()) == {
        f"changed since the last record: suites (short_question); {hint}"
    }
    (project / "results/smoke/events.jsonl").unlink()
    old = project / "results/artifacts" / f"evaluate-{before['bad'].id[:16]}"
    kept = everything(old)

    done = call(project, "rescore", "smoke")
    assert done.returncode in (0, 10, 11), done.stdout + done.stderr
    # In one line, with no table of what is as it was.
    assert done.stdout.startswith(
        "scored again, nothing was asked: no score of 6 results changed\nverdict of run"
    )
    after = {v: published(project, v) for v in ("baseline", "bad")}
    for name, new in after.items():
        assert new.id != before[name].id
        assert new.inputs["rescored_from"] == before[name].id
        assert new.serving == before[name].serving
        assert not new.rescored, "no score changed, so a reader need not know"
    events = (project / "results/smoke/events.jsonl").read_text().splitlines()
    told = [e for e in map(json.loads, events) if e["event"] == "rescore"]
    assert [e["step"] for e in told] == ["evaluate:baseline", "evaluate:bad"]
    assert everything(old) == kept, "the artifact that was scored before is another's record too"

    again = call(project, "run", "recipe.yaml")
    assert again.returncode == done.returncode, again.stdout + again.stderr
    assert again.stdout.count("cached - same inputs and tools") == 3
    assert not list(asked_nothing(project))

    # What was scored again is what asking again gives.
    asked = call(fresh, "run", "recipe.yaml")
    assert asked.returncode == done.returncode, asked.stdout + asked.stderr
    gates = [
        timings_aside(read_record(p / "results/smoke/gate.json", Gate)) for p in (project, fresh)
    ]
    assert gates[0] == gates[1]
    for name in after:
        other = published(fresh, name)
        assert other.id == after[name].id
        for one, two in zip(after[name].suites, other.suites, strict=True):
            assert one == two

    # A second time there is nothing to do.
    written = everything(project / "results" / "artifacts")
    assert call(project, "rescore", "smoke").returncode == done.returncode
    assert everything(project / "results" / "artifacts") == written


def test_what_must_be_asked_again_is_not_said_to_be_scored(project: Path) -> None:
    edit_suite(project, "short_question", lambda s: s.update(max_tokens=5))
    context = opened(project)
    said = [s.reason for s in context.plan().steps if s.kind == "evaluate"]
    assert said == ["changed since the last record: suites (short_question)"] * 2
    assert changed_suites(context) == {"short_question": False}
    # One that could be scored again does not help the other.
    edit_suite(project, "sentiment", lambda s: s.update(description="another"))
    assert changed_suites(opened(project)) == {"sentiment": True, "short_question": False}
    assert not any("rescore" in s.reason for s in opened(project).plan().steps)


def test_rescore_a_corrected_target(project: Path) -> None:
    rows = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")
    wrong = next(r for r in rows if r.score == 0 and r.output)
    edit_sample(project, "short_question", wrong.id, target=wrong.output)
    artifacts = project / "results" / "artifacts"
    trace = artifacts / f"evaluate-{published(project, 'bad').id[:16]}" / "more" / "trace.jsonl"
    trace.parent.mkdir()
    trace.write_text("what else the step left")
    suites, gate = rescore(opened(project))
    assert ("bad", "short_question", 1) in [(s.variant, s.suite, s.changed) for s in suites]
    assert max(s.changed for s in suites) == 1
    now = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")
    changed = [b.id for b, a in zip(rows, now, strict=True) if b.score != a.score]
    assert changed == [wrong.id]
    moved = [b.id for b, a in zip(rows, now, strict=True) if b.target_digest != a.target_digest]
    assert moved == [wrong.id]
    assert [r.output for r in now] == [r.output for r in rows]
    assert steps.gate(opened(project)) == gate
    new = artifacts / f"evaluate-{published(project, 'bad').id[:16]}" / "more" / "trace.jsonl"
    assert new != trace and new.read_text() == "what else the step left"
    # Whoever reads the verdict reads that it is not of what was expected when it was asked.
    (line,) = [w for w in gate.warnings if "re-scored" in w]
    one, two = published(project, "bad").rescored["short_question"]
    assert one is not None and two is not None and two == pytest.approx(one + 1 / 40)
    assert line.startswith("short_question re-scored: targets or scorer changed after the answers")
    assert f"bad {100 * one:.1f} -> {100 * two:.1f} %" in line
    assert line in html.unescape((project / "results/smoke/report.html").read_text())
    assert "re-scored" not in str(timings_aside(gate)["warnings"])
    # What it was when it was asked is said however often it is scored again.
    edit_sample(project, "short_question", wrong.id, target="something else")
    rescore(opened(project))
    assert published(project, "bad").rescored["short_question"] == (one, one)


def test_rescore_shows_what_changed_alone(project: Path) -> None:
    rows = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")
    wrong = [r for r in rows if r.score == 0 and r.output][:7]
    for row in wrong:
        edit_sample(project, "short_question", row.id, target=row.output)
    done = call(project, "rescore", "smoke")
    table, _, rest = done.stdout.partition("verdict of run")
    said = " ".join(re.sub("[│┃]", " ", table).split())
    assert "changed samples" in said and "sentiment" not in table
    assert "other results: no score changed" in said
    assert wrong[0].id in table and wrong[-1].id not in table and "more" in table
    assert "warn short_question re-scored: targets or scorer changed after" in rest


def test_rescore_in_the_other_direction_turns_the_verdict(project: Path) -> None:
    edit_suite(
        project,
        "sentiment",
        lambda s: s.update(metric="error_rate", higher_is_better=False),
    )
    _, gate = rescore(opened(project))
    assert gate == read_record(project / "results/smoke/gate.json", Gate)
    check = next(c for c in gate.variants[0].checks if c.name == "sentiment")
    assert check.details["higher_is_better"] is False
    assert check.value is not None and check.value < 0
    assert check.details["variant_score"] < check.details["baseline_score"]
    assert "scores 80.0 % on it, where lower is better" in check.sentence
    assert gate.noise_floor["sentiment"] == {"churn": 0.0, "difference": 0.0}
    assert all(
        d.change == "improved"
        for d in diff(str(project / "results/smoke"), "bad", "sentiment", "improved")
    )
    assert not len(diff(str(project / "results/smoke"), "bad", "sentiment", "regressed"))
    before = everything(project / "eval_suites")
    done = call(
        project, "suite", "from-regressions", "smoke", "bad", "none", "--suite", "sentiment"
    )
    assert done.returncode == 0 and "nothing is written" in done.stdout
    assert everything(project / "eval_suites") == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda p: edit_suite(p, "sentiment", lambda s: s.update(prompt="Well? {message}")),
            "the prompts of 40 samples changed",
        ),
        (
            lambda p: edit_sample(p, "sentiment", "sent-003", message="another"),
            "'sent-003' first",
        ),
        (
            lambda p: edit_sample(p, "sentiment", "sent-003", id="renamed"),
            "2 samples came or went, 'renamed' first",
        ),
        (
            lambda p: edit_suite(p, "short_question", lambda s: s.update(max_tokens=5)),
            "how it is asked changed",
        ),
        (
            lambda p: (p / "results/smoke/variants/bad/evaluation.json").unlink(),
            "a record is missing",
        ),
        (
            lambda p: [
                f.write_text(f.read_text().replace('"score":0.0', '"score":1.0'))
                for f in (p / "results/artifacts").glob("evaluate-*/sentiment.jsonl")
            ],
            "not those that were recorded",
        ),
        (
            lambda p: [f.unlink() for f in (p / "results/artifacts").glob("evaluate-*/spec.json")],
            "are gone",
        ),
        (
            lambda p: [
                f.write_text(f.read_text().replace('"concurrency": 16', '"concurrency": 2'))
                for f in (p / "results/artifacts").glob("evaluate-*/spec.json")
            ],
            "concurrency is 2 and 16",
        ),
    ],
    ids=["prompt", "field", "id", "length", "record", "rows", "artifact", "serving"],
)
def test_what_must_be_asked_again_is_refused(
    project: Path, change: Callable[[Path], object], says: str
) -> None:
    change(project)
    before = everything(project)
    with pytest.raises(StoreError, match=re.escape(says)) as refused:
        rescore(opened(project))
    assert refused.value.fix and refused.value.where
    left = {p: b for p, b in everything(project).items() if ".cache" not in p.parts}
    assert left == {p: b for p, b in before.items() if ".cache" not in p.parts}


def test_diff_refuses_by_name(finished: Path) -> None:
    context = open_run(str(finished / "results" / "smoke"))
    with pytest.raises(RecipeError):
        diff(context, "nobody")
    with pytest.raises(StoreError):
        diff(str(finished / "results" / "nothing"), "bad")


KILLED = """
import sys, os
from workbench.context import open_run
from workbench.rescore import finish, rescore
left = [int(sys.argv[2])]
def hook(event, arguments):
    if event == "os.rename":  # what makes a file be there under its name
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
context = open_run(sys.argv[1])
sys.addaudithook(hook)
rescore(context)
"""
BIASED = """
import os
def score(sample, output):
    return float(os.environ.get("BIAS", "0"))
"""


def killed(project: Path, after: int, **env: str) -> None:
    """A rescore that dies before its file number `after` takes its name."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(project / "results" / "smoke"), str(after)],
        cwd=project,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 9, done.stderr


def own_scorer(project: Path, source: str) -> None:
    scorer = {"name": "python", "function": "own.py:score"}
    edit_suite(project, "short_question", lambda s: s.update(scorer=scorer))
    (project / "eval_suites/short_question/own.py").write_text(source)


def planned(project: Path) -> set[str]:
    return {s.name for s in opened(project).plan().steps if s.cached and s.kind == "evaluate"}


@pytest.mark.parametrize("after", [1, 4, 7, 10, 14, 17])
def test_a_rescore_that_is_killed_is_finished_and_nobody_is_asked(
    project: Path, after: int
) -> None:
    edit_suite(project, "short_question", lambda s: s.update(scorer="exact"))
    killed(project, after)
    context = opened(project)
    with context.run.lock():
        finish(context)
    assert planned(project) == {"evaluate:baseline", "evaluate:bad"}
    assert not (project / "results/smoke/.rescore").exists()
    for step in context.specs.values():
        if step.kind == "evaluate":
            made = context.run.results.complete("evaluate", step.id, Evaluation)
            assert made and made.inputs["rescored_from"] and not made.restarts
            assert not flaw(context.run.results, "evaluate", step.id, made)


def test_a_run_finishes_a_rescore_that_was_killed(project: Path) -> None:
    edit_suite(project, "short_question", lambda s: s.update(scorer="exact"))
    killed(project, 4)
    (project / "results/smoke/events.jsonl").unlink(missing_ok=True)
    done = call(project, "run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr
    assert not list(asked_nothing(project)) and "rescored_from" in published(project, "bad").inputs


def test_what_a_killed_rescore_leaves_under_the_same_id_is_whole(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scorer reads what no digest covers, so that the artifact is written over."""
    own_scorer(project, BIASED)
    monkeypatch.setenv("BIAS", "0")
    rescore(opened(project))
    for after in range(1, 20, 4):
        bias = f"{(after + 1) / 64}"  # exact, as is its mean
        killed(project, after, BIAS=bias)
        assert planned(project) == {"evaluate:baseline", "evaluate:bad"}
        monkeypatch.setenv("BIAS", bias)
        context = opened(project)
        with context.run.lock():
            finish(context)
        step = context.specs["evaluate:bad"]
        made = context.run.results.complete("evaluate", step.id, Evaluation)
        assert made and {r.suite: r.score for r in made.suites}["short_question"] == float(bias)


# --------------------------------------------------------------------------- a scorer that fails


def test_answers_a_scorer_failed_at_wait_for_a_rescore(project: Path) -> None:
    rows = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")
    sample = next(r.id for r in rows if r.score)
    source = f"def score(sample, output):\n    return 1 / (sample['id'] != '{sample}')\n"
    own_scorer(project, source)
    done = call(project, "run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr  # for what it lost of sentiment
    said = " ".join(done.stdout.split())
    assert "1 answers of suite 'short_question' are kept without a score: not scored" in said

    def check() -> Any:
        gate = read_record(project / "results/smoke/gate.json", Gate)
        return next(c for c in gate.variants[0].checks if c.name == "short_question")

    assert check().status == "MISSING"
    assert "scorer 'own.py:score' raised ZeroDivisionError" in check().sentence
    assert f"(sample '{sample}')" in check().sentence and "own.py:2" in check().sentence
    before = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")

    again = call(project, "run", "recipe.yaml")
    said = " ".join(again.stdout.split())
    assert "started - the last attempt left answers without a score: 1 answers" in said
    assert "cut short" not in said

    other = next(r.id for r in rows if r.id != sample)
    own_scorer(project, source.replace(sample, other).replace("1 /", "0.5 /"))
    done = call(project, "rescore", "smoke")
    assert done.returncode == 10, done.stdout + done.stderr
    assert check().status == "MISSING" and f"(sample '{other}')" in check().sentence
    said = " ".join(done.stdout.split())
    assert "1 answers of bad on short_question are kept without a score: not scored: " in said
    assert "ZeroDivisionError" in said
    shown = " ".join(call(project, "diff", "smoke", "bad", "--only", "unscored").stdout.split())
    assert "1 have no score on a side" in shown and other in re.sub("[│ ]", "", shown)
    made = call(project, "suite", "from-regressions", "smoke", "bad", "again")
    assert "short_question: 1 samples have no score on a side" in made.stdout
    half = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")
    assert {r.id: r.score for r in half} == {r.id: None if r.id == other else 0.5 for r in half}
    assert sum(r.failed for r in published(project, "bad").suites) == 1

    own_scorer(project, source.replace("1 / (", "1.0 * ("))
    (project / "results/smoke/events.jsonl").unlink()
    assert call(project, "rescore", "smoke").returncode == 10
    assert check().status in ("INCONCLUSIVE", "PASS")
    after = read_rows(project / "results/smoke/variants/bad/eval/short_question.jsonl")
    assert [r.output for r in after] == [r.output for r in before]
    assert [r.score for r in after] == [float(r.id != sample) for r in after]
    assert all(r.failed == 0 for r in published(project, "bad").suites)
    assert call(project, "run", "recipe.yaml").returncode == 10
    assert not list(asked_nothing(project))


# --------------------------------------------------------------------------- a damaged file


def test_only_a_suite_whose_rows_were_altered_is_asked_again(project: Path) -> None:
    run = project / "results" / "smoke"
    rows = read_rows(run / "variants/bad/eval/sentiment.jsonl")
    wrong_target = next(r for r in rows if r.score == 0)
    edit_sample(project, "sentiment", wrong_target.id, target=wrong_target.output)
    rescore(opened(project))
    rescored_then = published(project, "bad").rescored
    assert rescored_then
    folder = project / "results/artifacts" / f"evaluate-{published(project, 'bad').id[:16]}"
    wrong = folder / "short_question.jsonl"
    asked = wrong.read_bytes()
    wrong.write_bytes(asked.replace(b'"score":0.0', b'"score":1.0', 1))
    for copy in (run / "variants/bad/eval").glob("*.jsonl"):
        copy.unlink()
    others = {p: p.read_bytes() for p in folder.glob("*.jsonl") if p != wrong}
    events = run / "events.jsonl"
    events.unlink()
    done = call(project, "run", "recipe.yaml")
    assert done.returncode == 10, done.stdout + done.stderr
    what = "its rows short_question.jsonl are not those that were recorded; the rest of it is kept"
    assert what in " ".join(done.stdout.split())
    assert {p: p.read_bytes() for p in others} == others, "asked again, it would have other times"
    assert wrong.read_bytes() != asked
    assert published(project, "bad").rescored == rescored_then, "kept with the rows it speaks of"
    now = [(r.id, r.output, r.score) for r in read_rows(wrong)]
    wrong.write_bytes(asked)
    assert now == [(r.id, r.output, r.score) for r in read_rows(wrong)]


# --------------------------------------------------------------------------- without a run


def judged(project: Path, **changes: Any) -> Suite:
    """The sentiment suite as if a judge scored it."""
    suite = load_suite(project / "eval_suites" / "sentiment")
    scorer = JudgeScorer(rubric="is it true?")
    return replace(suite, spec=suite.spec.model_copy(update={"scorer": scorer}), **changes)


def test_scores_of_judges_and_benchmarks_are_kept_and_it_is_said(finished: Path) -> None:
    context, result = opened(finished), published(finished, "bad").suites[0]
    asked = read_rows(finished / "results/smoke/variants/bad/eval" / result.rows_file)
    kept, why = rescored(context, None, result, asked, 2048)
    assert kept == asked and "lm-eval" in why
    kept, why = rescored(context, judged(finished), result, asked, 2048)
    assert kept == asked and "no judge is asked" in why
    with pytest.raises(StoreError, match="judged by a model, and it changed"):
        rescored(context, judged(finished, digest="another"), result, asked, 2048)


def test_a_row_without_an_answer_stays_without_a_score(finished: Path) -> None:
    context, result = opened(finished), published(finished, "bad").suites[0]
    asked = read_rows(finished / "results/smoke/variants/bad/eval" / result.rows_file)
    failed = asked[0].model_copy(update={"error": "timeout", "score": None, "output": ""})
    cut = asked[1].model_copy(update={"flags": ("invalid_json", "truncated")})
    suite = context.suites["sentiment"]
    kept, _ = rescored(context, suite, result, (failed, cut, *asked[2:]), 2048)
    assert kept[0] == failed
    # What the scorer said goes, what is true of the answer whatever is expected stays.
    assert kept[1].flags == ("truncated",)


def test_what_a_scorer_needs_goes_with_the_suite(finished: Path, tmp_path: Path) -> None:
    context = opened(finished)
    items = list(diff(context, "bad", "sentiment", "regressed"))
    suite = context.suites["sentiment"]
    needs = replace(suite, resources={"database.sql": "CREATE TABLE t (a);"})
    _write(tmp_path / "made", needs, items, "card", "about.")
    assert (tmp_path / "made" / "database.sql").read_text() == "CREATE TABLE t (a);"
    for name in ("../up.sql", "/tmp/up.sql", "suite.yaml"):
        with pytest.raises(SuiteError, match="cannot be copied"):
            _write(tmp_path / name.strip("./"), replace(suite, resources={name: ""}), items, "", "")
