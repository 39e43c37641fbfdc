"""Pairing of repeats, digests and directions, and the answers side by side. From records alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from builders import demo, edit, edit_row, evidence, rows, simple, table, variant
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import checks, noise
from workbench.differences import Differences, _first_that_lost, compare
from workbench.digest import sha256_text
from workbench.evidence import Evidence, Paired, Refusal, pair, pair_repeat
from workbench.gate import decide
from workbench.records import SampleRow, SuiteResult
from workbench.report import text as words
from workbench.report.cards import record_text, show
from workbench.report.differences import differences_text
from workbench.report.html import render
from workbench.spec import Policy, QualityCheck
from workbench.tool_calls import as_text

CHECK = QualityCheck(suite="suite", margin=0.1, min_n=1)


def results(found: Evidence, side: str, **changes: Any) -> Evidence:
    """The same with fields of the suite results of 'baseline', 'fp8' or 'both' replaced."""

    def changed(one: Any) -> Any:
        def each(of: tuple[SuiteResult, ...]) -> tuple[SuiteResult, ...]:
            return tuple(r.model_copy(update=changes) for r in of)

        new = one.evaluation.model_copy(
            update={"suites": each(one.evaluation.suites), "repeat": each(one.evaluation.repeat)}
        )
        return replace(one, evaluation=new)

    if side in ("baseline", "both"):
        found = replace(found, baseline=changed(found.baseline))
    if side in ("fp8", "both"):
        found = replace(found, variants=(changed(found.variants[0]), *found.variants[1:]))
    return found


def repeated(*scores: Sequence[float]) -> tuple[SampleRow, ...]:
    """Rows of samples that were asked several times: one list of scores a sample."""
    return tuple(
        row.model_copy(
            update={
                "repeat": k,
                "score": score,
                "output": f"answer {score}",
                "sampling_digest": sha256_text(f"seed {k}"),
            }
        )
        for row, of in zip(rows([1.0] * len(scores)), scores, strict=True)
        for k, score in enumerate(of)
    )


def sampled(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Evidence:
    found = simple([1.0], [1.0])
    for name, of in (("baseline", repeated(*before)), ("fp8", repeated(*after))):
        found = results(found, name, n=len(of), repeats=len(before[0]))
        if name == "fp8":
            found = edit(found, rows={"suite": of})
        else:
            found = replace(found, baseline=replace(found.baseline, rows={"suite": of}))
    return found


def paired(found: Evidence) -> Paired:
    made = pair(found, found.variants[0], "suite")
    assert isinstance(made, Paired), made
    return made


def refusal(found: Evidence) -> Refusal:
    made = pair(found, found.variants[0], "suite")
    assert isinstance(made, Refusal)
    assert checks.quality(CHECK, found, found.variants[0]).status == made.status
    return made


# --------------------------------------------------------------------------- repeats


def test_a_sample_that_is_asked_four_times_counts_once() -> None:
    found = sampled([[1, 1, 1, 0], [0, 0, 0, 0]], [[1, 0, 0, 0], [0, 0, 0, 0]])
    made = paired(found)
    assert made.scores == ([0.75, 0.0], [0.25, 0.0])
    check = checks.quality(CHECK, found, found.variants[0])
    assert check.n == 2 and check.value == 0.25
    assert made.outputs[0][1] == made.outputs[1][1]
    assert made.outputs[0][0] != made.outputs[1][0]


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=8))
def test_equal_repeats_never_differ(scores: list[list[float]]) -> None:
    found = sampled(scores, scores)
    made = paired(found)
    assert made.scores[0] == made.scores[1]
    assert all(0 <= s <= 1 for s in made.scores[0])
    assert not len(compare(found, found.variants[0]))


def test_repeats_must_be_the_same_and_whole() -> None:
    two, three = [[1.0, 0.0]] * 3, [[1.0, 0.0, 1.0]] * 3
    said = refusal(sampled(two, three))
    assert said.status == "NOT COMPARABLE" or "all of the" in said.sentence
    found = sampled(two, two)
    fewer = found.variants[0].rows["suite"]
    # As many rows as there should be, one of them a third answer to another sample.
    odd = (*fewer[:-1], fewer[1].model_copy(update={"repeat": 2}))
    said = refusal(edit(found, rows={"suite": odd}))
    assert (said.status, said.sentence) == (
        "MISSING",
        "fp8 was not asked 'suite-002' all of the 2 times",
    )
    said = refusal(results(found, "fp8", repeats=1))
    assert said.status == "NOT COMPARABLE" and "repeats is 2 and 1" in said.sentence
    twice = (*fewer[:-1], fewer[0])
    assert "'suite-000' more than once" in refusal(edit(found, rows={"suite": twice})).sentence


# --------------------------------------------------------------------------- digests


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("prompt_digest", "prompt"),
        ("tokens_digest", "tokens"),
        ("target_digest", "target"),
        ("sampling_digest", "sampling parameters"),
        ("template_digest", "chat template"),
        ("tokenizer_digest", "tokenizer"),
        ("cluster", "cluster"),
    ],
)
def test_each_digest_must_match_and_the_first_that_does_not_is_named(field: str, word: str) -> None:
    known = {"tokens_digest": "t", "template_digest": "t", "cluster": "c"}
    found = simple(*table(60, 2, 2, 16))

    def with_known(of: tuple[SampleRow, ...]) -> tuple[SampleRow, ...]:
        return tuple(row.model_copy(update=known) for row in of)

    found = replace(
        found,
        baseline=replace(found.baseline, rows={"suite": with_known(found.baseline.rows["suite"])}),
    )
    found = edit(found, rows={"suite": with_known(found.variants[0].rows["suite"])})
    assert paired(found)
    said = refusal(edit_row(found, 7, **{field: "another"}))
    assert said.status == "NOT COMPARABLE"
    assert said.sentence == f"1 of 80 samples have another {word}, 'suite-007' first"


def test_tokens_count_only_where_both_servers_tell_them() -> None:
    found = edit_row(simple(*table(60, 2, 2, 16)), 7, tokens_digest="told by one side")
    assert paired(found)


def test_no_template_is_another_template() -> None:
    found = edit_row(simple(*table(60, 2, 2, 16)), 7, template_digest="t")
    assert "chat template" in refusal(found).sentence


# --------------------------------------------------------------------------- direction


def test_lower_is_better_turns_loss_sentence_and_verdict() -> None:
    before, after = [0.0] * 90 + [1.0] * 10, [0.0] * 40 + [1.0] * 60
    worse = results(simple(before, after), "both", higher_is_better=False, metric="error_rate")
    check = checks.quality(CHECK, worse, worse.variants[0])
    assert check.status == "FAIL" and check.value == pytest.approx(0.5)
    assert "rose by 50.0 points, from 10.0 % to 60.0 % (lower is better)" in check.sentence
    assert (check.details["baseline_score"], check.details["variant_score"]) == (0.1, 0.6)
    assert check.details["churn"]["right_to_wrong"] == 50
    better = results(simple(after, before), "both", higher_is_better=False)
    check = checks.quality(CHECK, better, better.variants[0])
    assert check.status == "PASS" and "fell by 50.0 points" in check.sentence
    # The same rows read the other way are the other verdict.
    plain = simple(before, after)
    assert checks.quality(CHECK, plain, plain.variants[0]).value == pytest.approx(-0.5)


SIXTEENTHS = st.integers(0, 16).map(lambda k: k / 16)


@given(st.lists(st.tuples(SIXTEENTHS, SIXTEENTHS), min_size=2, max_size=30))
def test_turning_scores_and_direction_changes_no_loss(scores: list[tuple[float, float]]) -> None:
    plain = simple([b for b, _ in scores], [a for _, a in scores])
    turned = simple([1 - b for b, _ in scores], [1 - a for _, a in scores])
    turned = results(turned, "both", higher_is_better=False)
    one, other = (checks.quality(CHECK, e, e.variants[0]) for e in (plain, turned))
    assert one.value == pytest.approx(other.value, abs=1e-9)
    assert one.high == pytest.approx(other.high, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"higher_is_better": False}, "higher_is_better is True and False"),
        ({"metric": "f1"}, "metric is 'accuracy' and 'f1'"),
        ({"source": "lm-eval"}, "source is 'suite' and 'lm-eval'"),
    ],
)
def test_two_metrics_do_not_pair(change: dict[str, Any], says: str) -> None:
    said = refusal(results(simple([1.0] * 40, [1.0] * 40), "fp8", **change))
    assert said.status == "NOT COMPARABLE" and says in said.sentence


# --------------------------------------------------------------------------- clusters, noise


def test_clusters_are_counted_and_handed_on() -> None:
    found = simple(*table(6, 0, 0, 0))
    assert paired(found).cluster_count is None
    for i, cluster in enumerate(("a", "a", "b", None, None, "b")):
        of = [found.baseline.rows["suite"][i], found.variants[0].rows["suite"][i]]
        before, after = (row.model_copy(update={"cluster": cluster}) for row in of)
        base = list(found.baseline.rows["suite"])
        base[i] = before
        found = replace(found, baseline=replace(found.baseline, rows={"suite": tuple(base)}))
        found = edit_row(found, i, **after.model_dump(include={"cluster"}))
    assert paired(found).clusters == ("a", "a", "b", None, None, "b")
    check = checks.quality(CHECK, found, found.variants[0])
    assert check.details["clusters"] == 4
    gate = decide(policy(), found, policy_digest="p", id_="g")
    assert "4 clusters" in render(gate, found)


def policy() -> Policy:
    return Policy(schema_="workbench.policy/1", name="p", quality=(CHECK,))


def test_the_noise_floor_is_beside_every_result() -> None:
    before, after = table(60, 2, 1, 17)
    again = [*before[:-1], 1.0]
    found = evidence(
        {"suite": before}, variant("fp8", {"suite": rows(after)}), repeat={"suite": again}
    )
    check = checks.quality(CHECK, found, found.variants[0])
    floor = {"churn": 1 / 80, "difference": -1 / 80}
    assert check.details["noise_floor"] == floor
    assert check.details["inside_noise"] is True
    assert "no more than the baseline differs from itself, asked twice" in check.sentence
    turned = results(found, "both", higher_is_better=False)
    assert noise.floor(turned, "suite", turned.baseline) == floor | {"difference": 1 / 80}
    gate = decide(policy(), turned, policy_digest="p", id_="g")
    assert gate.noise_floor == {"suite": floor | {"difference": 1 / 80}}
    assert "the second pass of the baseline lost 1.2 points" in render(gate, turned)
    other = results(found, "both", repeats=1)
    second = other.baseline.evaluation
    assert second
    changed = second.model_copy(
        update={"repeat": tuple(r.model_copy(update={"metric": "f1"}) for r in second.repeat)}
    )
    other = replace(other, baseline=replace(other.baseline, evaluation=changed))
    said = pair_repeat(other, "suite")
    assert isinstance(said, Refusal) and "two passes differ: metric" in said.sentence


def test_inside_the_noise() -> None:
    floor = {"churn": 0.1, "difference": -0.02}
    assert noise.inside(floor, 0.02, 0.5)
    assert noise.inside(floor, 0.05, 0.1)
    assert not noise.inside(floor, 0.03, 0.2)
    assert not noise.inside(floor, 0.0, 0.5), "a mean that did not move needs no excuse"
    assert not noise.inside(None, 0.0, 0.0)


# --------------------------------------------------------------------------- side by side


def differences(found: Evidence, **more: Any) -> Differences:
    return compare(found, found.variants[-1], **more)


def test_worst_first_and_each_kind_apart() -> None:
    before, after = [1.0, 1.0, 0.5, 0.0, 0.0, 1.0], [0.0, 1.0, 0.25, 0.0, 1.0, 1.0]
    outputs = [["a", "b", "c", "d", "e", "f"], ["x", "b", "y", "z", "w", "other words"]]
    found = evidence({"suite": before}, variant("fp8", {"suite": rows(after, outputs[1])}))
    base = rows(before, outputs[0])
    found = replace(found, baseline=replace(found.baseline, rows={"suite": base}))
    made = differences(found)
    assert [(d.id[-1], d.change, d.loss) for d in made] == [
        ("0", "regressed", 1.0),
        ("2", "regressed", 0.25),
        ("3", "changed", 0.0),
        ("5", "changed", 0.0),
        ("4", "improved", -1.0),
    ]
    (count,) = made.counts
    assert (count.n, count.regressed, count.improved, count.changed) == (6, 2, 1, 2)
    for kind in ("regressed", "improved", "changed"):
        only = differences(found, only=kind)
        assert {d.change for d in only} == {kind}
        assert only.counts == made.counts
    assert [d.id for d in made.head(2).shown] == [d.id for d in made][:2]
    assert "and 3 more" in repr(made.head(2)) and "and 3 more" in made.head(2)._repr_html_()
    assert show(made) is made
    turned = differences(results(found, "both", higher_is_better=False))
    assert [d.change for d in turned if d.id[-1] in "02"] == ["improved"] * 2


@pytest.mark.parametrize("side", ["baseline", "fp8"])
def test_a_sample_without_a_score_is_shown_and_counted(side: str) -> None:
    whole, part = [1.0, 1.0, 0.0], [0.0, None, 0.0]
    found = simple(whole, part) if side == "fp8" else simple([1.0, None, 0.0], [0.0, 1.0, 0.0])
    refusal(found)  # judged it is not
    made = differences(found)
    assert [(d.id[-1], d.change) for d in made] == [("0", "regressed"), ("1", "unscored")]
    (count,) = made.counts
    assert (count.n, count.regressed, count.improved, count.unscored) == (3, 1, 0, 1)
    assert [d.id[-1] for d in differences(found, only="unscored")] == ["1"]
    for shown in (repr(made), made._repr_html_()):
        shown = re.sub(r"[\s\u2502]+", " ", shown)
        assert "1 have no score on a side" in shown
        assert "no score: the server" in shown and "red 500" in shown
    assert "1 have no score on a side" in repr(differences(found, only="improved"))


def test_what_cannot_be_paired_is_said() -> None:
    found = edit_row(simple(*table(60, 2, 2, 16)), 7, prompt_digest="x")
    made = differences(found)
    assert not len(made) and not made.counts
    assert "another prompt" in made.refused["suite"]
    assert "cannot be compared" in repr(made) and "another prompt" in made._repr_html_()


HOSTILE = "<script>alert(1)</script></td></table>\x1b[2J\x1b]8;;http://x\x07\u202e[red]\r\nGO"


class _Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_what_a_model_wrote_is_only_text() -> None:
    ids = [f"sentiment-{i:03d}" for i in range(33, 63)]
    found = demo(dict.fromkeys(ids, HOSTILE))
    asked = {"sentiment": dict.fromkeys(ids, (HOSTILE, HOSTILE))}
    made = differences(found, only="regressed", questions=asked)
    assert len(made) == 30
    for text in (repr(made), differences_text(made, 60)):
        assert not set("\x1b\x07\u202e\r") & set(text)
        assert "[red]" in text
        assert not [line for line in text.splitlines() if line.startswith("GO")]
    assert "<U+001B>" in repr(made)
    page = made._repr_html_()
    assert not set("\x1b\x07\u202e") & set(page) and "U+001B" in page
    # Nor is what a server says of its end; no digest holds it.
    found = edit_row(simple([1.0, 1.0], [0.0, 1.0]), 0, finish_reason=HOSTILE)
    assert not set("\x1b\x07\u202e") & set(repr(differences(found)))
    tags = _Tags(page).tags
    assert "script" not in tags and tags.count("table") == 1
    long = differences(demo({ids[0]: "A" * 100_000}), only="regressed")
    assert "more characters" in long._repr_html_() and len(long._repr_html_()) < 60_000


@settings(max_examples=40)
@given(st.text(st.characters(codec=None), max_size=40))
def test_any_output_can_be_shown(output: str) -> None:
    found = simple([1.0, 1.0], [0.0, 1.0])
    found = edit_row(found, 0, output=output, flags=("truncated", "invalid_json"))
    made = differences(found)
    for shown in (repr(made), made._repr_html_()):
        assert not set(shown) & set("\x00\x07\x08\x1b\x7f\x9b\u202e\u2066")
        shown.encode()
    assert "truncated (1)" not in repr(made) and "invalid JSON" in made._repr_html_()


# --------------------------------------------------------------------------- flags


def test_calls_are_shown_without_json_inside_json() -> None:
    arguments = {
        "weather": '{"city": "Köln", "days": [1, {"x": null}]}',
        "go": "{",
        "text": '"Paris"',
        "twice": '{"a": 1, "a": 2}',
        "none": "{}",
        "deep": "[" * 9**5,
        "a(b=1)\nc": '{"d)\\ne(": "\\n"}',
    }
    calls = [{"name": name, "arguments": said} for name, said in arguments.items()]
    lines = words.calls_apart(as_text(calls, "Let me see")).split("\n")
    assert lines == [
        "Let me see",
        'weather(city="Köln", days=[1, {"x": null}])',
        "go({)",
        'text("Paris")',
        'twice({"a": 1, "a": 2})',
        "none()",
        f"deep({'[' * 9**5})",
        r""""a(b=1)\nc"("d)\ne("="\n")""",
    ]
    assert words.calls_apart(as_text([], None)) == "(no call)"
    wanted = '[{"name": "weather", "arguments": {"city": "Köln"}}]'
    assert words.targets_apart(wanted) == 'weather(city="Köln")'
    for other in ('{"content":1,"tool_calls":[]}', '{"content":', "[" * 9**5, "[1]", "", '[{"a"'):
        assert words.calls_apart(other) == words.targets_apart(other) == other


def test_the_report_shows_calls_as_the_table_does() -> None:
    said = as_text([{"name": "weather", "arguments": '{"city": "<b>Köln"}'}], None)
    found = edit_row(simple([1.0], [0.0]), 0, output=said)
    wanted = json.dumps([{"name": "weather", "arguments": {"city": "<b>Bonn"}}])
    asked = {"suite": {"suite-000": ("Where?", wanted)}}
    shown = differences_text(compare(found, found.variants[0], questions=asked))
    gate = decide(policy(), found, policy_digest="p", id_="g")
    page = render(gate, found, questions=asked)
    for city in ("Köln", "Bonn"):
        assert f'weather(city="<b>{city}")' in shown
        assert f"weather(city=&#34;&lt;b&gt;{city}&#34;)" in page
    assert "tool_calls" not in shown + page and "arguments" not in shown + page


def test_no_variant_named_is_the_first_that_lost_answers() -> None:
    assert _first_that_lost(simple([1.0, 1.0], [1.0, 1.0]), "") == ""
    found = simple([1.0, 1.0], [1.0, 0.0])
    unasked = replace(found.variants[0], variant="int4", evaluation=None, rows={})
    found = replace(found, variants=(unasked, *found.variants))
    assert _first_that_lost(found, "") == _first_that_lost(found, "suite") == "fp8"
    assert _first_that_lost(found, "another") == ""


def test_flags_stand_beside_the_score() -> None:
    found = results(simple(*table(60, 2, 2, 16)), "fp8", flagged={"invalid_json": 3})
    found = results(found, "baseline", flagged={"truncated": 1})
    found = edit_row(found, 61, flags=("invalid_json",))
    gate = decide(policy(), found, policy_digest="p", id_="g")
    page = render(gate, found)
    assert "invalid JSON 0 → 3, truncated 1 → 0" in page
    assert "stop, invalid JSON" in page
    evaluation = found.variants[0].evaluation
    assert evaluation
    assert "invalid JSON 3" in record_text(evaluation)
    lower = results(found, "both", higher_is_better=False).variants[0].evaluation
    assert lower and "(lower is better)" in record_text(lower)
