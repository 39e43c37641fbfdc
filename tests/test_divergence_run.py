"""Divergence in a run on the fakes: recipe, evaluation, comparison, report, notebook."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from projects import edit_recipe

from workbench import divergence_step, steps
from workbench.collect import collect
from workbench.context import Context, new_run
from workbench.divergence_step import compared, corpus_of, published
from workbench.integrity import flaw
from workbench.recipe import dump_lock
from workbench.records import Divergence, Evaluation
from workbench.report import show
from workbench.report.divergence import section
from workbench.report.html import render
from workbench.store import read_record, write_atomic, write_record

Edit = Callable[[dict[str, Any]], object]
DIVERGENCE = {"tokens": 1500, "top_k": 8, "held_out": 12}


def opened(project: Path, *edits: Edit) -> Context:
    """A planned run of the smoke recipe with divergence, one suite and no second pass."""

    def edit(recipe: dict[str, Any]) -> None:
        recipe["evaluate"] = {
            "suites": ["sentiment"],
            "limit": 8,
            "noise_floor": False,
            "divergence": dict(DIVERGENCE),
        }
        recipe.pop("profile", None)
        recipe["policy"] = "policy.yaml"
        for change in edits:
            change(recipe)

    (project / "policy.yaml").write_text(
        "schema: workbench.policy/1\nname: one\nquality: [{suite: sentiment, margin: 0.1}]\n"
    )
    edit_recipe(project, edit)
    context = new_run(project / "recipe.yaml")
    write_record(context.run.plan, context.plan())
    write_atomic(context.run.recipe_lock, dump_lock(context.loaded))
    write_record(context.run.checkpoint, context.facts.checkpoint)
    return context


def path(context: Context, variant: str) -> Path:
    return context.run.variant(variant) / "divergence.json"


def ran(context: Context, *order: str) -> dict[str, Evaluation]:
    steps.calibrate(context)
    for variant in context.loaded.recipe.variants:
        steps.quantize(context, variant.name)
    return {name: steps.evaluate(context, name) for name in order}


def test_a_run_compares_each_variant_with_its_reference(project: Path) -> None:
    context = opened(project)
    # A variant first: it waits for the baseline's trace.
    ran(context, "damaged")
    assert not path(context, "damaged").exists()
    assert published(context, "damaged").unavailable == "baseline was not evaluated yet"
    found = ran(context, "damaged", "good", "baseline")
    for name in ("good", "damaged"):
        record = read_record(path(context, name), Divergence)
        assert record.reference == "baseline" and record.unavailable == ""
        assert record.corpus_digest == corpus_of(context).digest  # type: ignore[union-attr]
        assert record.top_k == 8 and "lower bound" in record.tail
        assert record.inputs == {
            "reference": found["baseline"].divergence.digest,  # type: ignore[union-attr]
            "variant": found[name].divergence.digest,  # type: ignore[union-attr]
        }
        assert set(record.by_source) == {"calibration", "suite:sentiment"}
        assert record.overall is not None and "0-63" in record.by_position
    good, damaged = (read_record(path(context, n), Divergence) for n in ("good", "damaged"))
    assert good.overall is not None and damaged.overall is not None
    assert good.overall.kld["max"] == 0 and good.overall.same_top == 1
    assert damaged.overall.kld_mean > 0.01 and damaged.overall.same_top < 1
    assert not path(context, "baseline").exists()
    # Read back and shown, and no verdict rests on it.
    gate = steps.gate(context)
    page = context.run.report.read_text()
    assert "word-by-word predictions" in page and "divergence.csv" in page
    assert not any("divergence" in c.name for v in gate.variants for c in v.checks)
    # The page shows it, so another comparison makes the page another.
    decided = context.plan().steps[-1].id
    write_record(path(context, "good"), good.model_copy(update={"tail": "other"}))
    assert context.plan().steps[-1].id != decided
    assert published(context, "damaged") == damaged
    assert "Divergence of damaged from baseline" in repr(show(damaged))
    assert "<table>" in show(damaged)._repr_html_()
    assert "divergence trace: " in repr(show(found["good"]))
    assert "not compared: the others" in repr(show(published(context, "baseline")))


def test_a_comparison_is_made_once_and_again_when_a_trace_is_new(project: Path) -> None:
    context = opened(project)
    ran(context, "baseline", "good")
    before = path(context, "good").stat().st_mtime_ns
    steps.evaluate(context, "good")
    steps.evaluate(context, "baseline")
    assert path(context, "good").stat().st_mtime_ns == before
    # A comparison of another trace is made again, and is no evidence meanwhile.
    record = read_record(path(context, "good"), Divergence)
    stale = record.model_copy(update={"inputs": {"reference": "x", "variant": "y"}})
    write_record(path(context, "good"), stale)
    (good, _) = collect(context).variants
    assert good.divergence is None
    steps.evaluate(context, "good")
    assert read_record(path(context, "good"), Divergence) == record
    (good, _) = collect(context).variants
    assert good.divergence == record


def test_ids_follow_from_what_the_corpus_is_made_of(project: Path) -> None:
    def id_of(*edits: Edit) -> str:
        return opened(project, *edits).spec("evaluate:baseline").id

    first = id_of()
    changed: list[Edit] = [
        lambda r: r["evaluate"].pop("divergence"),
        lambda r: r["evaluate"]["divergence"].update(tokens=1400),
        lambda r: r["evaluate"]["divergence"].update(top_k=9),
        lambda r: r["calibration"].update(source="prose"),
        lambda r: r["calibration"].update(seed=8),
        lambda r: r["calibration"].update(seed=7, chat_template=False),
    ]
    ids = [id_of(edit) for edit in changed]
    assert len({first, *ids}) == len(ids) + 1
    # Without a held-out part the calibration does not matter.
    without: Edit = lambda r: r["evaluate"]["divergence"].update(held_out=0)  # noqa: E731
    assert id_of(without) == id_of(without, lambda r: r["calibration"].update(seed=11))


def test_the_corpus_holds_no_row_of_any_set(project: Path) -> None:
    context = opened(
        project,
        lambda r: r.update(variants=[{"name": "good", "method": "fake", "repeat": {"seeds": 3}}]),
        lambda r: r["evaluate"]["divergence"].update(held_out=200, suites=False, tokens=20_000),
    )
    corpus = corpus_of(context)
    assert corpus is not None
    steps.calibrate(context)
    for name in ("good-seed8", "good-seed9"):
        steps.calibrate(context, name)
    records = [context.run.calibration, *context.run.path.glob("variants/*/calibration.json")]
    assert len(records) == 3
    drawn = {row["row"] for file in records for row in json.loads(file.read_text())["rows"]}
    assert len(drawn) > 8, "replicas draw other rows"
    assert not drawn & {d.name for d in corpus.documents}
    assert corpus_of(context) == corpus, "whether or not the sets are sealed yet"


def test_a_lost_or_changed_trace_makes_the_evaluation_worth_nothing(project: Path) -> None:
    context = opened(project)
    found = ran(context, "baseline")["baseline"]
    results = context.run.results
    trace = results.artifact("evaluate", found.id) / divergence_step.TRACE_FILE
    assert flaw(results, "evaluate", found.id, found) == ""
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-5])
    assert "not the one that was recorded" in flaw(results, "evaluate", found.id, found)
    again = steps.evaluate(context, "baseline")
    assert again.divergence is not None and trace.read_bytes() == whole


def test_what_differs_is_not_compared_and_the_difference_is_named(project: Path) -> None:
    context = opened(project)
    found = ran(context, "baseline", "good")
    before, after = found["baseline"], found["good"]
    assert before.divergence is not None and after.divergence is not None

    def refused(a: Evaluation, b: Evaluation) -> str:
        record = compared(context, "baseline", "good", a, b)
        assert record.overall is None and not record.by_source
        return record.unavailable

    def serving(**changes: Any) -> Evaluation:
        return after.model_copy(update={"serving": after.serving.model_copy(update=changes)})

    def trace(**changes: Any) -> Evaluation:
        update = after.divergence.model_copy(update=changes)  # type: ignore[union-attr]
        return after.model_copy(update={"divergence": update})

    assert refused(before, serving(engine_version="9")).startswith(
        "NOT COMPARABLE: engine_version is"
    )
    assert refused(before, trace(top_k=9)) == "NOT COMPARABLE: top_k is 8 and 9"
    assert "NOT COMPARABLE: corpus is" in refused(before, trace(corpus_digest="x"))
    assert "NOT COMPARABLE: a divergence trace is missing" in refused(before, trace(file="none"))
    lost = trace(unavailable="llamacpp's server returns no log-probabilities of a prompt")
    assert refused(before, lost) == f"good: {lost.divergence.unavailable}"  # type: ignore[union-attr]
    assert refused(lost, after).startswith("baseline: ")
    none = after.model_copy(update={"divergence": None})
    assert refused(before, none) == "good: no trace was taken"


def test_a_report_says_why_there_is_no_comparison(project: Path) -> None:
    context = opened(project)
    ran(context, "baseline", "good", "damaged")
    record = read_record(path(context, "good"), Divergence)
    write_record(
        path(context, "good"),
        record.model_copy(update={"overall": None, "unavailable": "<b>no</b> \x1b[31m numbers"}),
    )
    evidence = collect(context)
    gate = steps.gate(context)
    page = render(gate, evidence)
    assert page == render(gate, evidence)
    assert "<b>no</b>" not in page and "\x1b" not in page and "&lt;b&gt;no" in page
    shown = section(evidence)
    assert shown is not None and [name for name, _ in shown.missing] == ["good"]
    assert shown.figure is not None and len(shown.overall) == 2
    assert shown.csv[0][:4] == ["variant", "reference", "where", "tokens"]
    assert all(len(line) == len(shown.csv[0]) for line in shown.csv)


def test_a_recipe_without_it_has_none(project: Path) -> None:
    context = opened(project, lambda r: r["evaluate"].pop("divergence"))
    found = ran(context, "baseline", "good")
    assert found["good"].divergence is None and not path(context, "good").exists()
    steps.gate(context)
    assert "word-by-word" not in context.run.report.read_text()
    assert "asks for none" in repr(show(published(context, "good")))
