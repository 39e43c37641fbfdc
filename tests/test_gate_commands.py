"""`gate` and `compare` on the records of one finished run, which they leave as they are."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from projects import ROOT, edit_recipe

from workbench import cli, steps
from workbench.collect import report
from workbench.context import Context, new_run, open_run
from workbench.digest import content_id, sha256_text, tree_digests
from workbench.errors import DiskFull, RecipeError, StoreError
from workbench.records import Evaluation, Gate, Manifest
from workbench.rows import read_rows, rows_digest, write_rows
from workbench.store import locked, read_record, write_marked


class Done(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A project with one finished run: `good` is GO, what `bad` lost is waived for 30 days."""
    root = tmp_path_factory.mktemp("gate") / "project"
    root.mkdir()
    for name in ("eval_suites", "calib_data", "notebooks"):
        (root / name).symlink_to(ROOT / name)
    waiver = {
        "check": "sentiment",
        "variant": "bad",
        "owner": "release owner",
        "reason": "known, see the ticket",
        "expires": datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(30),
    }
    text = {
        "schema": "workbench.policy/1",
        "name": "p",
        "quality": [{"suite": "sentiment", "margin": 0.1, "min_n": 20}],
        "size": [{"metric": "weight_bytes", "max_ratio": 1.1}],
        "objective": "smallest",
        "waivers": [waiver],
    }
    (root / "policy.yaml").write_text(yaml.safe_dump(text))
    edit_recipe(root, lambda recipe: None, tiny)
    edit_recipe(
        root,
        lambda r: r.update(
            variants=[
                {"name": "good", "method": "fake"},
                {"name": "bad", "method": "fake", "damage": 0.6},
            ],
            evaluate={"suites": ["sentiment"], "limit": 40, "noise_floor": False},
            profile=None,
            calibration=None,
            policy="policy.yaml",
        ),
    )
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "run", "recipe.yaml"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GO WITH WAIVER" in done.stdout
    return root


@pytest.fixture(autouse=True)
def today(home: Path, monkeypatch: pytest.MonkeyPatch) -> datetime.date:
    """The day of that run, which every test takes for today: midnight may have passed since."""
    day = datetime.date.fromisoformat(read_record(home / "results/smoke/gate.json", Gate).date)
    monkeypatch.setattr(Context, "today", day)
    return day


@pytest.fixture
def late(today: datetime.date) -> datetime.date:
    """A day on which the waiver has expired."""
    return today + datetime.timedelta(40)


@pytest.fixture
def results(home: Path, tmp_path: Path) -> Path:
    """The results folder of that run, one's own."""
    return Path(shutil.copytree(home / "results", tmp_path / "results"))


@pytest.fixture
def call(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line in the project, as a user has it, in this process."""

    def inner(*arguments: str | Path) -> Done:
        monkeypatch.chdir(home)
        monkeypatch.setattr(sys, "argv", ["workbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        code = left.value.code or 0
        assert isinstance(code, int)
        return Done(code, " ".join(said.out.replace("│", " ").split()), said.err)

    return inner


def test_a_waiver_ends_with_0_and_is_said(results: Path, call: Call, today: datetime.date) -> None:
    before = (results / "smoke/gate.json").read_bytes()
    done = call("gate", "smoke", "--results", results)
    assert done.code == 0, done.out + done.err
    assert "GO WITH WAIVER" in done.out
    assert "waived by release owner until" in done.out and "known, see the ticket" in done.out
    assert "artifact of bad (with a waiver): " in done.out
    assert "smallest: good is the only GO variant: " in done.out
    assert (results / "smoke/gate.json").read_bytes() == before, "the same day, the same bytes"
    gate = read_record(results / "smoke/gate.json", Gate)
    assert gate.date == today.isoformat() and gate.best and gate.best.variant == "good"


def test_the_notebook_is_given_the_day_of_the_run_that_starts_it(
    home: Path, today: datetime.date
) -> None:
    """A run over midnight has one day and not two."""
    copy = json.loads((home / "results/smoke/executed/05_gate.ipynb").read_text())
    (given,) = (c for c in copy["cells"] if "injected-parameters" in c["metadata"].get("tags", ()))
    assert f'date = "{today}"\n' in given["source"]


def test_another_day_decides_again_and_a_report_keeps_its_day(
    home: Path, results: Path, today: datetime.date, late: datetime.date
) -> None:
    context = open_run("smoke", results)
    first = (context.run.gate.read_bytes(), steps.gate(context).verdict)
    assert steps.gate(context, date=late.isoformat()).verdict == "NO-GO"
    page = context.run.report.read_text()
    assert f"in force on {late}" in page and "expired on" in page
    assert report(context).date == late.isoformat()
    assert context.run.report.read_text() == page
    # A verdict of another day is not today's: it is to do.
    planned = new_run(home / "recipe.yaml", results=results).plan().steps[-1]
    assert (planned.kind, planned.cached) == ("gate", False)
    assert planned.reason == "the policy has waivers, and they may have expired since the verdict"
    steps.gate(context, date=today.isoformat())
    assert (context.run.gate.read_bytes(), "GO WITH WAIVER") == first
    assert new_run(home / "recipe.yaml", results=results).plan().steps[-1].cached


@pytest.mark.parametrize("day", ["2026-01-01", "never", ""])
def test_a_verdict_with_an_edited_day_gets_no_report(results: Path, day: str) -> None:
    gate = results / "smoke/gate.json"
    data = json.loads(gate.read_text())
    gate.write_text(json.dumps({**data, "date": day}))
    with pytest.raises(StoreError, match="not what the records say"):
        report(open_run("smoke", results))


def test_an_expired_waiver_is_said_before_anything_runs(
    home: Path, call: Call, today: datetime.date
) -> None:
    policy = yaml.safe_load((home / "policy.yaml").read_text())
    policy["waivers"][0]["expires"] = today - datetime.timedelta(1)
    (home / "expired-policy.yaml").write_text(yaml.safe_dump(policy))
    recipe = yaml.safe_load((home / "recipe.yaml").read_text())
    (home / "expired.yaml").write_text(
        yaml.safe_dump({**recipe, "policy": "expired-policy.yaml"}, sort_keys=False)
    )
    done = call("validate", "expired.yaml")
    assert done.code == 0, done.err
    assert "warn policy: the waiver of 'sentiment' for bad expired on" in done.out


def test_a_day_that_is_none_is_refused(results: Path) -> None:
    with pytest.raises(RecipeError, match="is no day"):
        steps.gate(open_run("smoke", results), date="soon")


@pytest.mark.parametrize("output", ["gone", "full", ">&-", ">&- 2>&-"])
def test_the_exit_code_is_the_verdicts_whatever_happens_to_the_output(
    home: Path, results: Path, output: str
) -> None:
    command = [sys.executable, "-m", "workbench", "gate", "smoke", "--results", str(results)]
    command += ["--what-if", "margin=0.001"]  # INCONCLUSIVE: neither 0 nor what a failure ends with
    reading, writing = os.pipe()
    os.close(reading)
    if output.startswith(">"):
        command = ["sh", "-c", f'"$@" {output}', "sh", *command]
    if output == "full":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    done = subprocess.run(command, cwd=home, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (11, "")


def test_a_command_that_nobody_reads_goes_on(home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "workbench", "validate", "recipe.yaml"]
    done = subprocess.run(command, cwd=home, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_output_cannot_spell_is_escaped(home: Path, results: Path) -> None:
    policy = yaml.safe_load((home / "policy.yaml").read_text())
    policy["waivers"][0]["owner"] = "J\u00fcrgen"
    (results / "other.yaml").write_text(yaml.safe_dump(policy))
    command = [sys.executable, "-m", "workbench", "gate", "smoke", "--results", str(results)]
    done = subprocess.run(
        [*command, "--policy", str(results / "other.yaml")],
        cwd=home,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "J\\xfcrgen" in done.stdout


def test_a_refused_gate_leaves_no_verdict(results: Path, call: Call) -> None:
    run = results / "smoke"
    rows = run / "variants/bad/eval/sentiment.jsonl"
    true = rows.read_bytes()
    rows.write_bytes(b"".join(true.splitlines(keepends=True)[:-1]))
    for question in (["--what-if", "margin=0.2"], ["--what-if", "margin=never"]):
        assert call("gate", "smoke", "--results", results, *question).code == 2
        assert (run / "gate.json").is_file(), "a what-if leaves the run's own alone"
    with locked(run / ".lock", "it"):
        assert "in use" in call("gate", "smoke", "--results", results).err
    with pytest.raises(RecipeError, match="is no day"):
        steps.gate(open_run("smoke", results), date="soon")
    assert (run / "gate.json").is_file() and (run / "report.html").is_file()
    refused = call("gate", "smoke", "--results", results)
    assert refused.code == 2 and "not those that were recorded" in refused.err
    assert not (run / "gate.json").exists() and not (run / "report.html").exists()
    rows.write_bytes(true)
    assert call("gate", "smoke", "--results", results).code == 0
    assert (run / "gate.json").is_file() and (run / "report.html").is_file()


@pytest.mark.parametrize("unreadable", ["variants/bad/eval/sentiment.jsonl", "recipe.lock.yaml"])
def test_a_gate_that_cannot_read_leaves_no_verdict(
    results: Path, call: Call, unreadable: str
) -> None:
    run = results / "smoke"
    path = run / unreadable
    path.unlink()
    path.symlink_to("/proc/self/mem")  # a disk that fails: every read of it is EIO
    assert call("gate", "smoke", "--results", results, "--what-if", "margin=0.2").code in (2, 3)
    assert (run / "gate.json").is_file()
    refused = call("gate", "smoke", "--results", results)
    assert refused.code in (2, 3) and str(run) in refused.err
    assert not (run / "gate.json").exists() and not (run / "report.html").exists()


def test_a_full_disk_leaves_no_verdict_beside_the_report_of_another(
    results: Path, monkeypatch: pytest.MonkeyPatch, late: datetime.date
) -> None:
    context = open_run("smoke", results)

    def full(*_: object, **__: object) -> None:
        raise DiskFull("no space left")

    monkeypatch.setattr(steps, "write_report", full)
    with pytest.raises(DiskFull):
        steps.gate(context, date=late.isoformat())  # NO-GO, where GO WITH WAIVER lay
    assert not context.run.gate.exists() and not context.run.report.exists()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("margin: -0.1", "policy.yaml cannot be read any more; decided as the run was started"),
        ("gone", "policy.yaml cannot be read any more; decided as the run was started"),
        ("folder", "policy.yaml cannot be read any more; decided as the run was started"),
        ("margin: 0.2", "recipe or policy changed since; decided as the run was started"),
        ("recipe", "recipe.yaml cannot be read any more; decided as the run was started"),
    ],
)
def test_a_policy_that_is_broken_or_gone_since_is_said(
    home: Path, results: Path, tmp_path: Path, call: Call, how: str, words: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("recipe.yaml", "policy.yaml"):
        shutil.copy(home / name, here)
    lock = results / "smoke/recipe.lock.yaml"
    lock.write_text(lock.read_text().replace(f"source: {home}", f"source: {here}"))
    assert "as the run was started" not in call("gate", "smoke", "--results", results).out
    policy = here / "policy.yaml"
    if how.startswith("margin"):
        policy.write_text(policy.read_text().replace("margin: 0.1", how))
    elif how == "recipe":
        (here / "recipe.yaml").write_text("nonsense")
    else:
        policy.unlink()
    if how == "folder":
        policy.mkdir()
    done = call("gate", "smoke", "--results", results)
    assert done.code == 0 and words in done.out
    # A run that is looked at elsewhere has no files to speak of.
    shutil.rmtree(here)
    assert "as the run was started" not in call("gate", "smoke", "--results", results).out


def test_a_run_stays_itself_when_recipes_learn_a_word(
    home: Path, results: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an upgrade: the lock has no such field, and its plan the digest of the lock."""
    before = (results / "smoke/gate.json").read_bytes()
    lock = results / "smoke/recipe.lock.yaml"
    data = yaml.safe_load(lock.read_text())
    del data["recipe"]["evaluate"]["cadence"], data["policy"]["performance"]
    lock.write_text(yaml.safe_dump(data, sort_keys=False))
    refused = call("gate", "smoke", "--results", results)
    assert refused.code == 2 and "planned for another recipe or policy" in refused.err
    old = content_id({"recipe": data["recipe"], "policy": data["policy"]})
    plan = results / "smoke/plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "recipe_digest": old}))
    done = call("gate", "smoke", "--results", results)
    assert done.code == 0 and "changed since" not in done.out, done.err
    now = json.loads((results / "smoke/gate.json").read_text())
    was = json.loads(before)
    assert now["recipe_digest"] == old and now["variants"] == was["variants"]
    assert call("report", "smoke", "--results", results).code == 0
    compared = call("compare", home / "results/smoke", upgraded(results))
    assert compared.code == 0, compared.err


# --------------------------------------------------------------------------- what if

LOOSE = """schema: workbench.policy/1
name: loose
quality: [{suite: sentiment, margin: 0.79, min_n: 20}]
size: [{metric: weight_bytes, max_ratio: 1.1}]
"""


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    path = tmp_path / "loose.yaml"
    path.write_text(LOOSE)
    return path


def test_what_if_shows_another_verdict_and_changes_nothing(
    results: Path, call: Call, loose: Path, late: datetime.date
) -> None:
    before = tree_digests(results)
    done = call("gate", "smoke", "--results", results, "--policy", loose)
    assert done.code == 0, done.out + done.err
    assert "WHAT IF: run 'smoke' under policy 'loose' (what if policy loose.yaml: not" in done.out
    assert "GO WITH WAIVER" not in done.out and "report:" not in done.out
    assert "artifact of" not in done.out, "nothing ships by a what-if"
    stricter = call(
        *("gate", "smoke", "--results", results),
        *("--what-if", "sentiment.margin=0.01", "--what-if", "min_n=30"),
    )
    assert stricter.code == 11 and " items instead of " in stricter.out
    assert "(what if sentiment.margin=0.01, min_n=30: not the run's verdict)" in stricter.out
    expired = call("gate", "smoke", "--results", results, "--what-if", f"date={late}")
    assert expired.code == 10 and "expired on" in expired.out
    assert tree_digests(results) == before
    # What was loosened does not last.
    assert "GO WITH WAIVER" in call("gate", "smoke", "--results", results).out
    assert tree_digests(results)["smoke/gate.json"] == before["smoke/gate.json"]


def test_what_if_is_written_where_it_cannot_be_taken_for_the_verdict(
    results: Path, call: Call, loose: Path, tmp_path: Path
) -> None:
    asked = ("gate", "smoke", "--results", results, "--policy", loose, "--output")
    before = tree_digests(results)
    out = tmp_path / "out"
    for _ in range(2):  # its own former one may be replaced
        assert call(*asked, out).code == 0
    written = read_record(out / "gate.json", Gate)
    assert (written.verdict, written.what_if) == ("GO", ("policy loose.yaml",))
    assert written.id != read_record(results / "smoke/gate.json", Gate).id
    page = (out / "report.html").read_text()
    assert "<title>GO - Release verdict: smoke (what if policy loose.yaml: not the run" in page
    own = tmp_path / "own"
    shutil.copytree(results / "smoke", own)
    link = tmp_path / "link"
    link.symlink_to(results / "smoke")
    file = tmp_path / "file"
    file.write_text("")
    for folder, words in (
        (results / "smoke", "holds the verdicts of runs"),
        (results / "new", "holds the verdicts of runs"),
        (link, "holds the verdicts of runs"),
        (own, "holds the verdict of run 'smoke'"),
        (file, "this is a file"),
    ):
        refused = call(*asked, folder)
        assert refused.code == 2 and words in refused.err
    assert tree_digests(results) == before
    assert read_record(own / "gate.json", Gate).what_if == ()
    alone = call("gate", "smoke", "--results", results, "--output", out)
    assert alone.code == 2 and "written into its own folder" in alone.err


def test_what_if_refuses_what_it_cannot_mean(results: Path, call: Call, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "schema: workbench.policy/1\nname: p\nquality: [{suite: sentimnt, margin: 0.1}]\n"
    )
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "report.html").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for arguments, words in (
        (("--what-if", "margn=0.1"), "did you mean 'margin'?"),
        (("--what-if", "confidence=95"), "0.95"),
        (("--what-if", ".margin=0.6"), "names no suite before its dot"),
        (("--what-if", "margin=0.2", "--output", ""), "an argument is empty"),
        (("--what-if", "margin=0.2", "--output", "."), "the working folder, or an empty name"),
        (("--what-if", "margin=0.2", "--output", mine), "no verdict that it could be of"),
        (("--what-if", "margin=0.2", "--output", tmp_path / "a"), "levels of symbolic links"),
        (("--policy", other), "did you mean 'sentiment'?"),
        (("--policy", tmp_path / "nope.yaml"), "there is no file nope.yaml"),
    ):
        refused = call("gate", "smoke", "--results", results, *arguments)
        assert refused.code == 2 and words in refused.err
    assert (mine / "report.html").read_text() == "mine"


def test_a_what_if_whose_report_cannot_be_written_leaves_no_verdict(
    results: Path, call: Call, loose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("gate", "smoke", "--results", results, "--policy", loose, "--output")
    out = tmp_path / "out"
    assert call(*asked, out).code == 0

    def full(*_: Any) -> None:
        raise DiskFull("no space left", where="there")

    monkeypatch.setattr("workbench.collect.write_report", full)
    assert call(*asked, out).code == 3
    assert not list(out.iterdir())


# --------------------------------------------------------------------------- compare


def upgraded(results: Path, **conditions: Any) -> Path:
    """The same records as another server would have left them, without the weights."""
    shutil.rmtree(results / "artifacts")
    for path in sorted((results / "smoke").glob("variants/*/evaluation.json")):
        record = read_record(path, Evaluation)
        changes = {"engine_version": "9.9", "hardware": "another machine", **conditions}
        suites = tuple(
            r.model_copy(update={"conditions": {**r.conditions, **changes}}) for r in record.suites
        )
        serving = record.serving.model_copy(
            update={k: changes[k] for k in ("engine_version", "hardware")}
        )
        changed = record.model_copy(
            update={"serving": serving, "suites": suites, "seconds": record.seconds + 1}
        )
        write_marked(path, changed)
    return results / "smoke"


def test_an_upgrade_that_loses_nothing_is_go(
    home: Path, results: Path, call: Call, tmp_path: Path
) -> None:
    before, after = home / "results" / "smoke", upgraded(results)
    trees = tree_digests(before), tree_digests(after)
    out = tmp_path / "out"
    done = call("compare", before, after, "--output", out)
    assert done.code == 0, done.out + done.err
    assert f"(compared with run {before})" in done.out, "both runs have one name"
    assert "fake version 0.1.0 -> 9.9, hardware" in done.out and "-> another machine" in done.out
    assert "weight_bytes is not checked" in done.out and "waivers" in done.out
    gate = read_record(out / "gate.json", Gate)
    assert {v.variant: v.verdict for v in gate.variants} == {
        "baseline": "GO",
        "good": "GO",
        "bad": "GO",
    }
    assert gate.compared_with == str(before) and gate.best is None
    assert (tree_digests(before), tree_digests(after)) == trees
    page = (out / "report.html").read_text()
    assert f"<title>GO - Upgrade verdict: smoke (compared with run {before})" in page
    assert f"run <b>{before}</b> stands for the baseline" in page
    assert "fake 0.1.0, environment" in page and "another machine" in page
    assert "fake 9.9, environment" in page
    # Where nobody names a folder, it is said which one it is.
    unnamed = call("compare", before, after)
    assert unnamed.code == 0
    assert "written to comparisons/smoke-smoke" in unnamed.out
    folder = home / "comparisons" / "smoke-smoke"
    assert (folder / "gate.json").read_bytes() == (out / "gate.json").read_bytes()
    assert (folder / "report.html").read_text() == page
    refused = call("compare", before, after, "--output", before)
    assert refused.code == 2 and "holds the verdicts of runs" in refused.err


def test_an_upgrade_that_loses_answers_is_no_go(home: Path, results: Path, call: Call) -> None:
    after = upgraded(results)
    rows = after / "variants/good/eval/sentiment.jsonl"
    worse = [row.model_copy(update={"score": 0.0}) for row in read_rows(rows)]
    write_rows(rows, worse)
    path = after / "variants/good/evaluation.json"
    record = read_record(path, Evaluation)
    (result,) = record.suites
    result = result.model_copy(update={"rows_digest": rows_digest(worse), "score": 0.0})
    write_marked(path, record.model_copy(update={"suites": (result,)}))
    done = call("compare", home / "results/smoke", after, "--variant", "good")
    assert done.code == 10 and "1 of 2 gated checks fails: sentiment" in done.out
    # The other way round it is a gain, and a policy of one's own may be asked.
    assert call("compare", after, home / "results/smoke", "--variant", "good").code in (0, 11)
    assert call("compare", home / "results/smoke", after, "--variant", "bad").code == 0


def test_what_is_not_the_same_artifact_is_not_compared(
    home: Path, results: Path, call: Call
) -> None:
    after = upgraded(results)
    folder = after / "variants/good"
    weights = sha256_text("made again")
    made = read_record(folder / "manifest.json", Manifest)
    write_marked(folder / "manifest.json", made.model_copy(update={"weights_digest": weights}))
    asked = read_record(folder / "evaluation.json", Evaluation)
    serving = asked.serving.model_copy(update={"served_digest": weights})
    write_marked(folder / "evaluation.json", asked.model_copy(update={"serving": serving}))
    done = call("compare", home / "results/smoke", after)
    assert done.code == 11
    assert "the weights differ" in done.out


def test_other_conditions_are_named(home: Path, results: Path, call: Call) -> None:
    after = upgraded(results, max_model_len=512)
    done = call("compare", home / "results/smoke", after, "--variant", "good")
    assert done.code == 11
    assert "the conditions differ: max_model_len is 1024 and 512" in done.out


def test_a_run_is_not_compared_with_itself(home: Path, results: Path, call: Call) -> None:
    own = home / "results/smoke"
    refused = call("compare", own, own)
    assert refused.code == 2 and "compared with itself" in refused.err
    # Nor with a copy of its records.
    copied = call("compare", own, results / "smoke")
    assert copied.code == 11 and "nothing was asked twice" in copied.out


def test_compare_says_what_it_does_not_know(home: Path, results: Path, call: Call) -> None:
    after = upgraded(results)
    refused = call("compare", home / "results/smoke", after, "--variant", "goood")
    assert refused.code == 2 and "did you mean 'good'?" in refused.err
    assert call("compare", "smoke", "smokey").code == 2
    for names, why in (
        (("", after), "an argument is empty"),
        ((after, ""), "an argument is empty"),
        ((" ", after), "an empty name is the name of no run"),
    ):
        refused = call("compare", *names)
        assert refused.code == 2 and why in refused.err


def test_a_policy_of_an_unknown_suite_is_refused_by_compare_as_by_gate(
    home: Path, results: Path, call: Call, tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "schema: workbench.policy/1\nname: p\nquality: [{suite: sentimnt, margin: 0.1}]\n"
    )
    refused = call("compare", home / "results/smoke", upgraded(results), "--policy", other)
    assert refused.code == 2 and "did you mean 'sentiment'?" in refused.err
    assert f"{other}:3" in refused.err


def test_a_run_that_another_process_decides_is_no_bad_input(results: Path, call: Call) -> None:
    with locked(results / "smoke/.lock", "it"):
        busy = call("gate", "smoke", "--results", results)
    assert busy.code == 3 and "in use by another process" in busy.err


@pytest.mark.parametrize("name", ["plan.json", "checkpoint.json"])
def test_a_missing_record_names_the_command_that_writes_it(
    results: Path, call: Call, name: str
) -> None:
    (results / "smoke" / name).unlink()
    refused = call("gate", "smoke", "--results", results)
    assert refused.code == 2 and "a record is missing" in refused.err
    assert name in refused.err and "workbench run, with the run's recipe, writes it" in refused.err


def test_a_lock_of_another_policy_schema_is_told_in_words(results: Path, call: Call) -> None:
    lock = results / "smoke/recipe.lock.yaml"
    lock.write_text(lock.read_text().replace("workbench.policy/1", "workbench.policy/9"))
    refused = call("gate", "smoke", "--results", results)
    assert refused.code == 2
    assert "its policy: 'schema': 'workbench.policy/9' is not one of 'workbench.policy/1'" in (
        refused.err
    )
    assert "pydantic" not in refused.err and "http" not in refused.err
