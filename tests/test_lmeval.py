"""lm-eval's log becomes rows that pair. The recordings are of real runs: `tests/data/lmeval/`."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.digest import sha256_text
from workbench.errors import JobFailure, RecipeError
from workbench.evidence import Evidence, Paired, Refusal, VariantEvidence, pair, pair_repeat
from workbench.lmeval import begins_with_bos
from workbench.lmeval_samples import Logged, import_task, unavailable
from workbench.records import SampleRow, SuiteResult
from workbench.spec import LmEvalTask
from workbench.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data" / "lmeval"
CONDITIONS = {
    "engine": "vllm",
    "dtype": "float32",
    "template_digest": None,
    "tokenizer_digest": "t",
}
Change = Callable[[dict[str, Any]], object]


def recorded(task: str) -> Logged:
    texts = [(DATA / f"{task}{end}").read_text() for end in (".json", ".samples.jsonl")]
    return Logged.parse(*texts, f"{task}.samples.jsonl")


def changed(logged: Logged, number: int, change: Change) -> Logged:
    samples = copy.deepcopy(list(logged.samples))
    change(samples[number])
    return replace(logged, samples=samples)


def imported(
    logged: Logged, name: str, **options: Any
) -> tuple[tuple[SampleRow, ...], SuiteResult]:
    return import_task(
        LmEvalTask(task=name, **options),
        logged,
        conditions=CONDITIONS,
        seed=0,
        max_length=512,
        rows_file=f"{name}.jsonl",
    )


def refusal(logged: Logged, name: str, **options: Any) -> str:
    with pytest.raises((RecipeError, JobFailure)) as caught:
        imported(logged, name, **options)
    assert caught.value.fix and caught.value.where
    return f"{type(caught.value).__name__}: {caught.value}"


# --------------------------------------------------------------------------- recorded runs


def test_ranked_choices_are_rows() -> None:
    rows, result = imported(recorded("wb_mood"), "wb_mood", fewshot=2)
    assert [row.id for row in rows] == [str(i) for i in range(12)]
    assert all(row.cluster is None and row.error is None for row in rows)
    for row in rows:
        assert row.choice_logprobs and set(row.choice_logprobs) == {"positive", "negative"}
        assert row.output == max(row.choice_logprobs, key=row.choice_logprobs.__getitem__)
        # Messages alternate: even documents are positive.
        right = "negative" if int(row.id) % 2 else "positive"
        assert row.score == float(row.output == right)
    assert result.source == "lm-eval" and result.metric == "acc" and result.higher_is_better
    assert result.n == 12 and result.failed == 0
    assert result.score == sum(r.score or 0 for r in rows) / 12
    assert 0 < (result.score or 0) < 1, "the demo model is neither at 0 nor at 1"
    assert result.conditions["lm_eval"] == "0.4.13" and result.conditions["fewshot"] == 2
    assert result.conditions["task_version"] == 1.0 and result.conditions["engine"] == "vllm"
    assert result.prompt_tokens > 12 * 2 * 60, "the two examples are in every prompt"


def test_generated_answers_are_rows_by_the_filter_that_is_named() -> None:
    logged = recorded("wb_capital")
    first, of_first = imported(logged, "wb_capital", chat_template=True)
    assert of_first.metric == "exact_match,first-capitalized", "the task's first"
    whole, of_whole = imported(logged, "wb_capital", chat_template=True, metric="exact_match,whole")
    assert len(first) == len(whole) == 12
    assert of_first.suite_digest == of_whole.suite_digest, "the same was asked"
    assert of_first.conditions != of_whole.conditions, "and another number made of it"
    for row, plain in zip(first, whole, strict=True):
        assert row.grade.get("generated", row.output) == plain.output
        assert ("unreadable" in row.flags) == (row.output == "[invalid]")
    assert any(row.score for row in first)


def test_a_group_has_its_tasks_as_clusters() -> None:
    rows, result = imported(recorded("wb_both_moods"), "wb_both_moods", limit=6)
    assert {row.cluster for row in rows} == {"wb_mood", "wb_mood_short"}
    assert result.n == len({row.id for row in rows}) == 12
    assert rows[0].id == f"{rows[0].cluster}/0"


@pytest.mark.parametrize("name", ["wb_mood", "wb_capital", "wb_both_moods"])
def test_hashes_are_lm_evals_own(name: str) -> None:
    logged = recorded(name)
    for sample in logged.samples:
        assert sha256_text(sample["arguments"][0][0]) == sample["prompt_hash"]
        assert sha256_text(str(sample["target"])) == sample["target_hash"]


# --------------------------------------------------------------------------- pairing


def paired(one: Logged, other: Logged, **options: Any) -> Paired | Refusal:
    evidence = builders.simple([1.0], [1.0])
    sides = []
    variant = evidence.variants[0]
    for side, logged in ((evidence.baseline, one), (variant, other)):
        rows, result = imported(logged, "wb_mood", **options)
        assert side.evaluation
        evaluation = side.evaluation.model_copy(update={"suites": (result,)})
        sides.append(replace(side, evaluation=evaluation, rows={"wb_mood": rows}))
    whole: Evidence = replace(evidence, baseline=sides[0], variants=(sides[1],))
    return pair(whole, sides[1], "wb_mood")


def test_two_results_of_the_same_task_pair() -> None:
    logged = recorded("wb_mood")

    def other_answer(sample: dict[str, Any]) -> None:
        sample["filtered_resps"].reverse()
        sample["scores"] = {k: 1.0 - v for k, v in sample["scores"].items()}

    found = paired(logged, changed(logged, 3, other_answer))
    assert isinstance(found, Paired) and len(found.variant) == 12
    before, after = found.scores
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.update(doc_hash="x"), "suite_digest"),
        (lambda s: s.update(target_hash="x"), "suite_digest"),
        # lm-eval's prompt_hash does not see the second choice.
        (lambda s: s["arguments"][1].__setitem__(1, " bad"), "suite_digest"),
    ],
)
def test_another_document_prompt_or_target_is_not_comparable(change: Change, says: str) -> None:
    logged = recorded("wb_mood")
    found = paired(logged, changed(logged, 5, change))
    assert isinstance(found, Refusal) and found.status == "NOT COMPARABLE"
    assert says in found.sentence


def test_other_settings_are_not_comparable_and_the_first_is_named() -> None:
    logged = recorded("wb_mood")
    facts = copy.deepcopy(dict(logged.facts))
    facts["wb_mood"] = facts["wb_mood"] | {"fewshot": 0}
    found = paired(logged, replace(logged, facts=facts))
    assert isinstance(found, Refusal) and "fewshot is 2 and 0" in found.sentence
    found = paired(logged, replace(logged, version="0.5.0"))
    assert isinstance(found, Refusal) and "lm_eval is '0.4.13' and '0.5.0'" in found.sentence


def test_a_second_pass_pairs_with_the_first() -> None:
    rows, result = imported(recorded("wb_mood"), "wb_mood")
    evidence = builders.simple([1.0], [1.0])
    assert evidence.baseline.evaluation
    evaluation = evidence.baseline.evaluation.model_copy(
        update={"suites": (result,), "repeat": (result,)}
    )
    side: VariantEvidence = replace(
        evidence.baseline, evaluation=evaluation, rows={"wb_mood": rows}
    )
    whole = replace(evidence, baseline=side, repeat_rows={"wb_mood": rows})
    assert isinstance(pair_repeat(whole, "wb_mood"), Paired)


def test_a_task_an_engine_cannot_be_asked_is_missing_with_the_reason() -> None:
    result = unavailable(LmEvalTask(task="wb_mood"), "it returns no log-probabilities", "x.jsonl")
    evidence = builders.simple([1.0], [1.0])
    variant = evidence.variants[0]
    rows, asked = imported(recorded("wb_mood"), "wb_mood")
    sides = []
    for side, one, of in ((evidence.baseline, asked, rows), (variant, result, ())):
        assert side.evaluation
        evaluation = side.evaluation.model_copy(update={"suites": (one,)})
        sides.append(replace(side, evaluation=evaluation, rows={"wb_mood": of}))
    found = pair(replace(evidence, baseline=sides[0], variants=(sides[1],)), sides[1], "wb_mood")
    assert isinstance(found, Refusal) and found.status == "MISSING"
    assert "no log-probabilities" in found.sentence


# --------------------------------------------------------------------------- bad logs


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_log_probability_that_is_no_number_is_no_answer(value: float) -> None:
    def broken(sample: dict[str, Any]) -> None:
        sample["filtered_resps"][1][0] = value
        sample["scores"] = {"acc": 1.0, "acc_norm": 1.0}  # what lm-eval makes of it

    rows, result = imported(changed(recorded("wb_mood"), 2, broken), "wb_mood")
    assert rows[2].score is None and "negative" in str(rows[2].error)
    assert result.failed == 1 and result.score is not None and math.isfinite(result.score)
    found = paired(recorded("wb_mood"), changed(recorded("wb_mood"), 2, broken))
    assert isinstance(found, Refusal) and found.status == "MISSING"


def test_a_metric_that_is_not_a_number_is_a_failed_document() -> None:
    logged = changed(recorded("wb_capital"), 0, lambda s: s["scores"].update(exact_match=math.nan))
    rows, result = imported(logged, "wb_capital")
    assert rows[0].score is None and "not a number" in str(rows[0].error) and result.failed == 1


def test_a_document_that_did_not_fit_is_counted_and_named() -> None:
    logged = changed(recorded("wb_mood"), 1, lambda s: s.update(too_long=600))
    rows, result = imported(logged, "wb_mood")
    assert rows[1].error == "longer than the context: 600 tokens with the answer, 512 fit"
    assert rows[1].score is None and rows[1].output == "" and result.failed == 1


@pytest.mark.parametrize(
    ("value", "says"),
    [(37.5, "from 0 to 1 but 37.5"), ([-1.0, 3], "one number"), (-0.5, "-0.5"), (None, "one num")],
)
def test_a_metric_that_cannot_be_paired_is_refused_and_another_named(value: Any, says: str) -> None:
    logged = changed(recorded("wb_mood"), 4, lambda s: s["scores"].update(acc=value))
    message = refusal(logged, "wb_mood")
    assert message.startswith("RecipeError") and says in message and "acc_norm" in message


def test_a_metric_that_is_not_there_is_refused_with_those_that_are() -> None:
    message = refusal(recorded("wb_capital"), "wb_capital", metric="exact_match,strict")
    assert "'exact_match,first-capitalized', 'exact_match,whole'" in message
    assert "acc, acc_norm" in refusal(recorded("wb_mood"), "wb_mood", metric="f1")


def test_a_metric_without_a_direction_is_refused() -> None:
    logged = recorded("wb_mood")
    facts = {"wb_mood": dict(logged.facts["wb_mood"]) | {"higher_is_better": {"acc": None}}}
    assert "whether a higher 'acc'" in refusal(replace(logged, facts=facts), "wb_mood")


def test_missing_and_doubled_documents_are_failures_of_the_job() -> None:
    logged = recorded("wb_mood")
    message = refusal(replace(logged, samples=logged.samples[:-1]), "wb_mood")
    assert message.startswith("JobFailure") and "12 documents of 'wb_mood' and logged 11" in message
    twice = replace(logged, samples=[*logged.samples[:-1], logged.samples[0]])
    assert "document 0 more than once" in refusal(twice, "wb_mood")


@pytest.mark.parametrize(
    ("facts", "samples"),
    [
        ("", ""),
        ("{", "{}"),
        ('{"tasks": {}, "versions": {"lm-eval": "1"}}', "{}"),
        ('{"tasks": {"a": {}}, "versions": {"lm-eval": "1"}}', ""),
        ('{"tasks": {"a": {}}, "versions": {"lm-eval": "1"}}', "[]"),
        ('{"tasks": {"a": {}}, "versions": {"lm-eval": "1"}}', '{"torn": '),
        ('{"tasks": {"a": {}}, "versions": {"lm-eval": "1"}}', "[" * 9999),
    ],
)
def test_files_that_are_missing_or_damaged_are_failures_of_the_job(
    facts: str, samples: str
) -> None:
    with pytest.raises(JobFailure) as caught:
        Logged.parse(facts, samples, "a.samples.jsonl")
    assert caught.value.where == "a.samples.jsonl"


_KEYS = ("filtered_resps", "resps", "arguments", "prompt_tokens", "doc_id", "filter", "task")
_ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@given(key=st.sampled_from(_KEYS), value=_ODD, name=st.sampled_from(["wb_mood", "wb_capital"]))
def test_no_damaged_document_is_a_bug(key: str, value: Any, name: str) -> None:
    logged = changed(recorded(name), 0, lambda s: s.update({key: value}))
    try:
        rows, _ = imported(logged, name)
    except (RecipeError, JobFailure):
        return
    for row in rows:
        json.dumps(row.model_dump(mode="json"), ensure_ascii=False, allow_nan=False).encode()


def test_outputs_are_what_utf8_can_hold() -> None:
    def half(sample: dict[str, Any]) -> None:
        sample["resps"], sample["filtered_resps"] = [["\ud83d<b>\x1b[2J"]], ["\ud83d"]

    rows, _ = imported(changed(recorded("wb_capital"), 0, half), "wb_capital")
    assert rows[0].output == "\ufffd" and rows[0].grade["generated"] == "\ufffd<b>\x1b[2J"


# --------------------------------------------------------------------------- choices


def ranked(metric: str, logprobs: list[float], choices: list[str]) -> SampleRow:
    """The first document of a task whose choices have these log-probabilities."""
    logged = recorded("wb_mood")
    sample = copy.deepcopy(dict(logged.samples[0]))
    sample["filtered_resps"] = [[value, False] for value in logprobs]
    sample["arguments"] = [["Question:", f" {choice}"] for choice in choices]
    sample["scores"] = {metric: 1.0}
    facts = dict(logged.facts["wb_mood"])
    facts |= {"documents": {"effective": 1}, "higher_is_better": {metric: True}}
    rows, _ = imported(Logged({"wb_mood": facts}, [sample], "1", "w"), "wb_mood")
    return rows[0]


def test_the_choice_shown_is_the_one_the_metric_took() -> None:
    """By sum, by character and by byte another choice wins."""
    choices = ["no", "perhaps", "好"]
    logprobs = [-4.0, -7.1, -3.9]
    assert ranked("acc", logprobs, choices).output == "好"
    assert ranked("acc_norm", logprobs, choices).output == "perhaps"
    assert ranked("acc_bytes", [-4.0, -7.1, -2.9], choices).output == "好"
    assert ranked("acc_bytes", [-4.0, -7.1, -3.2], choices).output == "perhaps"
    # Of the mutual information the second half are the choices alone.
    assert ranked("acc_mutual_info", [-4.0, -5.0, -1.0, -4.5], ["a", "b"] * 2).output == "b"


def test_of_tasks_that_vary_the_question_the_number_tells_choices_apart() -> None:
    row = ranked("acc", [-2.0, -1.0], ["same end", "same end"])
    assert row.output == "1: same end" and row.choice_logprobs == {
        "0: same end": -2.0,
        "1: same end": -1.0,
    }


# --------------------------------------------------------------------------- tokens


def test_a_bos_is_sent_where_the_tokenizer_writes_one(tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    ids = tokenizer.encode("a", True)
    assert begins_with_bos(tokenizer) == (ids[0] == tokenizer.bos_id and len(ids) > 1)
