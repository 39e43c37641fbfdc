"""Answers beside being right: their form, their ends, their length."""

from dataclasses import replace
from typing import Any

import pytest
from builders import edit_row, evidence, rows, table, variant

from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.limit_checks import limits
from workbench.policy_spec import OutputLength, Policy, QualityCheck
from workbench.records import Check, SampleRow

N = 200
SCORES = table(160, 2, 2, 36)


def flagged(count: int, *flags: str, of: int = N) -> tuple[SampleRow, ...]:
    """Rows of which the first so many have the flags."""
    made = rows(SCORES[1])[:of]
    return tuple(
        r.model_copy(update={"flags": flags}) if i < count else r for i, r in enumerate(made)
    )


def long(factor: float, of: int = N) -> tuple[SampleRow, ...]:
    """Rows with so many times the tokens of the baseline's, up and down by a tenth."""
    return tuple(
        r.model_copy(update={"output_tokens": round(100 * factor + (10 if i % 2 else -10))})
        for i, r in enumerate(rows(SCORES[1])[:of])
    )


def found(made: tuple[SampleRow, ...]) -> Evidence:
    base = [s for s in SCORES[0][: len(made)]]
    before = tuple(r.model_copy(update={"output_tokens": 100}) for r in rows(base))
    whole = evidence({"suite": base}, variant("fp8", {"suite": made}))
    baseline = variant("baseline", {"suite": before}, method="none")
    return replace(whole, baseline=baseline)


def check(made: Evidence, **limit: Any) -> Check:
    quality = QualityCheck(**({"suite": "suite", "margin": 0.1} | limit))
    (one,) = limits(quality, made, made.variants[0])
    return one


@pytest.mark.parametrize(
    ("limit", "flag", "name", "what"),
    [
        ("max_truncated", "truncated", "suite truncated", "were cut at the token limit"),
        (
            "max_format_failures",
            "invalid_json",
            "suite format failures",
            "have not the form asked for",
        ),
    ],
)
def test_a_share_passes_by_its_upper_limit_and_fails_by_its_lower_one(
    limit: str, flag: str, name: str, what: str
) -> None:
    passed = check(found(flagged(4, flag)), **{limit: 0.05})
    assert (passed.name, passed.kind, passed.status) == (name, "answers", "PASS")
    assert passed.value == 0.02 and passed.n == N and passed.limit == 0.05
    assert passed.sentence == (
        f"{name}: 4 of 200 answers {what} (0 of the "
        "baseline's); with 95 % confidence it is at most 4.5 %, within the 5.0 accepted."
    )
    # The share itself is within, and not surely.
    open_ = check(found(flagged(6, flag)), **{limit: 0.05})
    assert open_.value == 0.03 and open_.status == "INCONCLUSIVE"
    assert "so 5.0 is neither kept nor broken" in open_.sentence
    # Beyond it, and not surely either.
    assert check(found(flagged(14, flag)), **{limit: 0.05}).status == "INCONCLUSIVE"
    failed = check(found(flagged(25, flag)), **{limit: 0.05})
    assert failed.status == "FAIL" and failed.low is not None and failed.low > 0.05
    assert "beyond the 5.0 accepted" in failed.sentence


def test_only_what_cannot_be_read_is_a_failure_of_form() -> None:
    for flag in ("schema_violation", "no_tool_call", "invalid_arguments", "invalid_sql"):
        assert check(found(flagged(9, flag)), max_format_failures=0.01).value == 9 / N
    for flag in ("empty", "unreadable"):
        assert check(found(flagged(9, flag)), max_format_failures=0.01).value == 9 / N
    others = ("wrong_tool", "truncated", "repetitive", "refused")
    assert check(found(flagged(9, *others)), max_format_failures=0.01).value == 0
    # Two flags are one answer.
    both = found(flagged(9, "empty", "invalid_json"))
    assert check(both, max_format_failures=0.01).details["count"] == 9


def test_no_failure_among_few_is_not_none() -> None:
    clean = found(flagged(0))
    assert check(clean, max_truncated=0.02).status == "PASS"
    tight = check(clean, max_truncated=0.01)
    assert (tight.status, tight.low) == ("INCONCLUSIVE", 0.0)
    assert "it is at least 0.0 and at most " in tight.sentence
    assert "%, each with 95 % confidence, so 1.0 is neither kept nor broken" in tight.sentence
    few = check(found(flagged(0, of=29)), max_truncated=0.5)
    assert few.status == "INCONCLUSIVE" and "wants at least 30 samples" in few.sentence
    assert check(found(flagged(0, of=29)), max_truncated=0.5, min_n=29).status == "PASS"


def test_whole_clusters_are_the_units_of_a_share() -> None:
    """Twenty documents of ten questions show what twenty samples show: what cuts one, cuts all."""

    def clustered(per: int, count: int) -> Check:
        made = found(flagged(count, "truncated"))
        sides = []
        for side in (made.baseline, made.variants[0]):
            answers = tuple(
                r.model_copy(update={"cluster": f"d{k // per}"})
                for k, r in enumerate(side.rows["suite"])
            )
            sides.append(replace(side, rows={"suite": answers}))
        return check(replace(made, baseline=sides[0], variants=(sides[1],)), max_truncated=0.05)

    alone, whole = clustered(1, 0), clustered(10, 0)
    assert alone.status == "PASS" and alone.high == check(found(flagged(0)), max_truncated=0.9).high
    # Of 20 documents none was cut: up to 14 % may be (0.05 = .86^20).
    assert whole.status == "INCONCLUSIVE" and whole.low == 0.0
    assert whole.high is not None and whole.high > 0.13
    assert clustered(1, 25).status == "FAIL" and clustered(10, 20).status == "INCONCLUSIVE"


def test_a_sample_asked_twice_counts_once_and_fails_where_one_answer_did() -> None:
    first = rows(SCORES[1])[:40]
    again = tuple(
        r.model_copy(update={"repeat": 1, "flags": ("truncated",) if i < 3 else ()})
        for i, r in enumerate(first)
    )
    whole = found((*first, *again))
    base = rows([1.0] * 40)
    asked = (
        (whole.baseline, (*base, *(r.model_copy(update={"repeat": 1}) for r in base))),
        (whole.variants[0], (*first, *again)),
    )
    sides = []
    for side, answers in asked:
        assert side.evaluation
        result = side.evaluation.suites[0].model_copy(update={"repeats": 2, "n": 80})
        evaluation = side.evaluation.model_copy(update={"suites": (result,)})
        sides.append(replace(side, evaluation=evaluation, rows={"suite": answers}))
    made = replace(whole, baseline=sides[0], variants=(sides[1],))
    one = check(made, max_truncated=0.3)
    assert (one.n, one.details["count"]) == (40, 3)


def test_the_output_length_is_a_ratio_with_an_interval() -> None:
    span = OutputLength()
    same = check(found(long(1.02)), output_length=span)
    assert (same.name, same.status) == ("suite output length", "PASS")
    assert same.value == pytest.approx(1.02)
    assert same.sentence.startswith(
        "suite output length: 1.02 times the baseline's output tokens over 200 samples; with 95 % "
        "confidence 1.0"
    )
    assert "within the 0.9 to 1.1 accepted" in same.sentence
    longer = check(found(long(1.3)), output_length=span)
    assert (longer.status, longer.limit) == ("FAIL", 1.1)
    shorter = check(found(long(0.7)), output_length=span)
    assert (shorter.status, shorter.limit) == ("FAIL", 0.9)
    edge = check(found(long(1.1)), output_length=span)
    assert edge.status == "INCONCLUSIVE" and "neither kept nor broken" in edge.sentence
    assert check(found(long(1.3)), output_length=OutputLength(max=1.5)).status == "PASS"
    few = check(found(long(1.0, of=20)), output_length=span)
    assert few.status == "INCONCLUSIVE" and "wants at least 30" in few.sentence


def test_few_answers_do_not_show_that_none_runs_on() -> None:
    made = found(long(1.0))

    def up_to(most: int, repeats: int = 1) -> Check:
        sides = []
        for side in (made.baseline, made.variants[0]):
            assert side.evaluation
            (one,) = side.evaluation.suites
            conditions = one.conditions | {"sampling": {"max_tokens": most}}
            one = one.model_copy(update={"conditions": conditions, "repeats": repeats})
            if repeats > 1:  # each sample again, with half of the tokens each time
                again = tuple(
                    r.model_copy(update={"repeat": k, "output_tokens": (r.output_tokens or 0) // 2})
                    for r in side.rows["suite"]
                    for k in range(repeats)
                )
                one = one.model_copy(update={"n": len(again)})
                side = replace(side, rows={"suite": again})
            evaluation = side.evaluation.model_copy(update={"suites": (one,)})
            sides.append(replace(side, evaluation=evaluation))
        return check(
            replace(made, baseline=sides[0], variants=(sides[1],)), output_length=OutputLength()
        )

    assert up_to(128).status == "PASS"
    endless = up_to(4096)
    assert endless.value == 1.0 and endless.status == "INCONCLUSIVE"
    assert endless.high is not None and endless.high > 1.3
    # Asked twice, a sample may run on twice.
    assert up_to(2048, 2).high == pytest.approx(endless.high)


def test_a_length_nobody_counted_is_missing_and_one_of_nothing_is_no_ratio() -> None:
    made = edit_row(found(long(1.0)), 3, output_tokens=None)
    one = check(made, output_length=OutputLength())
    assert one.status == "MISSING" and "of 1 answers the server did not tell" in one.sentence
    silent = found(long(1.0))
    nothing = tuple(
        r.model_copy(update={"output_tokens": 0}) for r in silent.baseline.rows["suite"]
    )
    base = replace(silent.baseline, rows={"suite": nothing})
    one = check(replace(silent, baseline=base), output_length=OutputLength())
    assert one.status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"score": None}, "MISSING"), ({"prompt_digest": "other"}, "NOT COMPARABLE")],
)
def test_what_refuses_the_scores_refuses_the_limits(changes: dict[str, Any], status: str) -> None:
    made = edit_row(found(flagged(0)), 5, **changes)
    asked = QualityCheck(
        suite="suite",
        margin=0.1,
        max_truncated=0.5,
        max_format_failures=0.5,
        output_length=OutputLength(),
    )
    several = limits(asked, made, made.variants[0])
    assert [c.status for c in several] == [status] * 3
    assert {c.value for c in several} == {None}


def test_a_limit_that_is_broken_is_a_no_go_and_none_is_made_unasked() -> None:
    made = found(flagged(25, "truncated"))
    plain = QualityCheck(suite="suite", margin=0.1)
    assert limits(plain, made, made.variants[0]) == ()
    policy = Policy(
        schema_="workbench.policy/1",
        name="p",
        quality=(plain.model_copy(update={"max_truncated": 0.05}),),
    )
    (verdict,) = decide(policy, made, policy_digest="p", id_="g").variants
    assert verdict.verdict == "NO-GO"
    assert verdict.reason == ("1 of 3 gated checks fails: suite truncated (0.125, 0.05 accepted).")
    advisory = policy.quality[0].model_copy(update={"tier": "advisory"})
    assert [c.tier for c in limits(advisory, made, made.variants[0])] == ["advisory"]
