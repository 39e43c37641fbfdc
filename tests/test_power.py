"""What a suite can show is said before anything is asked, and it is true."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from builders import demo, evidence, rows, simple, table, variant
from rich.console import Console
from test_gate import policy, quality
from test_reach import FACTS, loaded

from workbench import items, stats
from workbench.clusters import Grouping, clustered
from workbench.display import power_table
from workbench.evidence import VariantEvidence
from workbench.gate import decide
from workbench.items import bound, fewest
from workbench.power import ASSUMED, power
from workbench.spec import Policy


def test_before_anything_is_known_the_spread_is_assumed_and_said_to_be() -> None:
    (found,) = power(loaded(policy(quality(margin=0.05))), FACTS, None, {})
    assert (found.suite, found.n, found.variance, found.source) == ("suite", 88, 0.1, "assumed")
    # 8.8 changed answers and the gate's two pseudo-pairs, of 90.
    assert found.detectable == pytest.approx(stats.detectable_loss(88, 10.8 / 90))
    assert found.needed == stats.items_needed(0.0, ASSUMED, 0.05)
    (capped,) = power(loaded(policy(quality(margin=0.05)), limit=20), FACTS, None, {})
    assert capped.n == 20 and capped.detectable is not None
    assert capped.detectable > found.detectable


def test_so_many_samples_pass_an_undamaged_variant_four_times_in_five() -> None:
    dice = np.random.default_rng(9)
    for margin in (0.03, 0.1):
        (found,) = power(loaded(policy(quality(margin=margin))), FACTS, None, {})
        assert found.needed is not None
        half = ASSUMED / 2
        draws = dice.multinomial(found.needed, [half, half, 1 - ASSUMED], 800)
        passed = [
            stats.binary_interval(int(b), int(c), found.needed).high <= margin for b, c, _ in draws
        ]
        assert 0.74 < np.mean(passed) < 0.87


def test_nothing_is_promised_that_equal_answers_could_not_show() -> None:
    checks = policy(quality(margin=0.3), quality(suite="task", margin=0.1, min_n=500))
    found = power(loaded(checks), FACTS, None, {"task": 5})
    assert found[0].needed == max(30, fewest(0.3, 0.95))
    assert found[1].needed == 500
    assert found[1].n == 5 and found[1].detectable is not None
    assert found[1].detectable >= stats.binary_interval(0, 0, 5).high


def test_an_earlier_verdict_says_how_much_answers_vary() -> None:
    checks = policy(quality(suite="sentiment", margin=0.1))
    gate = decide(checks, demo(), policy_digest="p", id_="g")
    (found,) = power(loaded(checks), FACTS, gate, {})
    # Of the two that did not fail, gptq's 6 lost and 2 gained of 80 vary most; broken has failed.
    assert found.variance == pytest.approx(8 / 80, abs=0.003)
    assert found.detectable == pytest.approx(
        stats.detectable_loss(80, stats.pair_variance([1.0] * 6 + [-1.0] * 2 + [0.0] * 72))
    )
    assert found.source == "gptq, last verdict"
    assert found.n == 80  # the recipe's suites do not have it, the records do
    failed = evidence(
        {"sentiment": [1.0] * 80},
        variant("bad", {"sentiment": rows(table(20, 60, 0, 0)[1], suite="sentiment")}),
    )
    gate = decide(checks, failed, policy_digest="p", id_="g")
    assert power(loaded(checks), FACTS, gate, {})[0].source == "bad, last verdict"


def test_answers_that_never_change_promise_no_more_than_the_limits_can_show() -> None:
    checks = policy(quality(confidence=0.99))
    same = evidence({"suite": [1.0] * 88}, variant("fp8", {"suite": rows([1.0] * 88)}))
    gate = decide(checks, same, policy_digest="p", id_="g")
    (found,) = power(loaded(checks), FACTS, gate, {})
    assert found.variance == pytest.approx(0, abs=1e-12)
    assert found.detectable == bound(88, 0.99)


@pytest.mark.parametrize(
    ("margin", "lost", "n", "takes"),
    # As many gained as lost; the first three have been said to take 1473, 5889 and 236.
    [(0.02, 0, 88, 176), (0.01, 0, 88, 354), (0.05, 0, 50, 70), (0.02, 1, 2000, 183)],
)
def test_plan_and_gate_name_the_same_number(margin: float, lost: int, n: int, takes: int) -> None:
    variance = 2 * lost / n
    assert items.needed(0.0, variance, margin, 0.95) == takes
    checks = policy(quality(margin=margin))
    found = simple(*table(n - 2 * lost, lost, lost, 0))
    gate = decide(checks, found, policy_digest="p", id_="g")
    (planned,) = power(loaded(checks), FACTS, gate, {})
    assert planned.needed == max(takes, 30)
    (check,) = (c for c in gate.variants[0].checks if c.kind == "quality")
    if n < takes:
        assert check.details["items_needed"] == takes
        assert f"about {items.said(takes, n)} items would settle it" in check.sentence
    else:
        assert check.status == "PASS"


def test_only_what_is_gated_is_shown_and_an_unknown_size_is_not_made_up() -> None:
    checks: Policy = policy(quality(tier="advisory"), quality(suite="gsm8k", margin=0.02))
    (found,) = power(loaded(checks), FACTS, None, {})
    assert (found.suite, found.n, found.detectable) == ("gsm8k", None, None)
    out = io.StringIO()
    Console(file=out, width=110).print(power_table([found]))
    assert "gsm8k" in out.getvalue() and "?" in out.getvalue()
    # Not a share of answers: graded ones may all change, each by a little.
    assert "answers that change" not in out.getvalue() and "variance" in out.getvalue()
    assert "0.100 (assumed)" in out.getvalue() and str(found.needed) in out.getvalue()


FOURS = Grouping((4,) * 22)


def test_clusters_count_before_a_first_verdict_as_the_gate_would_judge_them() -> None:
    facts = replace(FACTS, suite_groupings={"suite": FOURS})
    (found,) = power(loaded(policy(quality(margin=0.2))), facts, None, {})
    (alone,) = power(loaded(policy(quality(margin=0.2))), FACTS, None, {})
    assert found.n == alone.n == 88 and found.source == "assumed"
    assert found.detectable is not None and alone.detectable is not None
    # 2.2 documents of 22 change as a whole, and the gate's two pseudo-documents, of 24: four
    # samples each, so that of one sample it is four times that.
    assert found.detectable == pytest.approx(stats.detectable_loss(88, 4 * 4.2 / 24))
    assert found.detectable > 1.8 * alone.detectable
    assert found.needed is not None and alone.needed is not None
    assert found.needed > 3 * alone.needed
    out = io.StringIO()
    Console(file=out, width=140).print(power_table([found]))
    assert "88 in 22 clusters, worth 22" in out.getvalue()
    assert "whole clusters that change as one" in " ".join(out.getvalue().split())


def test_so_many_samples_in_clusters_pass_an_undamaged_variant_four_times_in_five() -> None:
    facts = replace(FACTS, suite_groupings={"suite": FOURS})
    (found,) = power(loaded(policy(quality(margin=0.15))), facts, None, {})
    assert found.needed is not None
    count = round(found.needed / 4)
    names = [str(i // 4) for i in range(4 * count)]
    dice = np.random.default_rng(4)
    passed = []
    for lost, gained, _ in dice.multinomial(count, [ASSUMED / 2, ASSUMED / 2, 1 - ASSUMED], 300):
        change = [1.0] * 4 * lost + [-1.0] * 4 * gained
        change += [0.0] * (len(names) - len(change))
        before, after = [float(d > 0) for d in change], [float(d < 0) for d in change]
        loss = stats.paired_interval(before, after)
        passed.append(clustered(loss, change, names)[0].high <= 0.15)
    assert 0.72 < np.mean(passed) < 0.9


def test_after_a_verdict_the_clusters_are_in_its_spread() -> None:
    checks = policy(quality(margin=0.2))
    before, after = table(60, 8, 4, 16)

    def judged(*names: str | None) -> tuple[float, float]:
        """What is detectable, and what the verdict says is."""
        answers = [
            tuple(r.model_copy(update={"cluster": c}) for r, c in zip(rows(s), names, strict=True))
            for s in (before, after)
        ]
        found = evidence({"suite": before}, variant("fp8", {"suite": answers[1]}))
        found = replace(found, baseline=replace(found.baseline, rows={"suite": answers[0]}))
        gate = decide(checks, found, policy_digest="p", id_="g")
        facts = replace(FACTS, suite_groupings={"suite": FOURS})
        (one,) = power(loaded(checks), facts, gate, {})
        (check,) = (c for c in gate.variants[0].checks if c.kind == "quality")
        assert one.detectable is not None and one.source == "fp8, last verdict"
        return one.detectable, check.details["detectable_loss"]

    said, known = judged(*(f"{i // 4}" for i in range(88)))
    assert said == pytest.approx(known)
    # The suite had no clusters yet: nothing says how they change.
    said, known = judged(*[None] * 88)
    assert said > 1.8 * known


def test_equal_answers_in_clusters_promise_no_more_than_the_limits_can_show() -> None:
    checks = policy(quality(confidence=0.999, margin=0.3))
    same = evidence({"suite": [1.0] * 88}, variant("fp8", {"suite": rows([1.0] * 88)}))
    variants = tuple(map(_grouped, same.variants))
    same = replace(same, baseline=_grouped(same.baseline), variants=variants)
    gate = decide(checks, same, policy_digest="p", id_="g")
    facts = replace(FACTS, suite_groupings={"suite": FOURS})
    (found,) = power(loaded(checks), facts, gate, {})
    assert found.detectable == bound(88, 0.999, grouping=FOURS) > bound(88, 0.999)
    assert found.needed == fewest(0.3, 0.999, grouping=FOURS)


def _grouped(side: VariantEvidence) -> VariantEvidence:
    named = enumerate(side.rows["suite"])
    made = tuple(r.model_copy(update={"cluster": f"{i // 4}"}) for i, r in named)
    return replace(side, rows={"suite": made})
