"""Holm's adjustment, and where the gate shows it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from builders import demo
from hypothesis import given
from hypothesis import strategies as st
from test_gate import policy, quality

import workbench.holm
from workbench.gate import decide
from workbench.holm import holm
from workbench.report.html import render


def test_holms_own_procedure() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.02]) == [0.02]
    assert holm([0.5, 0.9, 0.6]) == [1, 1, 1]
    assert holm([]) == []
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holm([wrong])


def test_one_false_claim_in_a_family_is_at_most_as_rare_as_promised() -> None:
    dice = np.random.default_rng(4)
    wrong = [min(holm(dice.random(20).tolist())) <= 0.05 for _ in range(4000)]
    assert np.mean(wrong) <= 0.06
    assert np.mean(dice.random((4000, 20)).min(axis=1) <= 0.05) > 0.6


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(0, 1000))
def test_no_p_falls_and_the_order_does_not_matter(p: list[float], seed: int) -> None:
    found = holm(p)
    assert all(p <= q <= 1 for p, q in zip(p, found, strict=True))
    order = random.Random(seed).sample(range(len(p)), len(p))
    assert holm([p[i] for i in order]) == [found[i] for i in order]
    ranked = sorted(zip(p, found, strict=True))
    assert [q for _, q in ranked] == sorted(found)


def test_a_fail_of_a_run_has_its_p_adjusted_over_everything_that_was_judged() -> None:
    checks = policy(quality(suite="sentiment"), quality(suite="short_question"))
    gate = decide(checks, demo(), policy_digest="policy", id_="gate")
    judged = [c for v in gate.variants for c in v.checks if c.kind == "quality"]
    failed = [c for c in judged if c.status == "FAIL"]
    assert len(judged) == 6 and [c.name for c in failed] == ["sentiment"]
    (check,) = failed
    assert check.details["claims"] == 6
    assert check.details["p_holm"] == pytest.approx(6 * check.details["p_beyond_margin"])
    assert check.details["p_holm"] < 0.05
    assert all("p_holm" not in c.details for c in judged if c.status != "FAIL")


def test_a_fail_shows_its_adjusted_p_in_the_report_and_no_other_check_has_one() -> None:
    checks = policy(quality(suite="sentiment"), quality(suite="short_question"))
    found = demo()
    gate = decide(checks, found, policy_digest="policy", id_="gate")
    assert render(gate, found).count("(Holm)") == 1
    assert "among the 6 quality checks of this run: p &lt; 0.001 (Holm)" in render(gate, found)


def test_no_verdict_depends_on_the_adjusted_p(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the documentation says so."""
    checks = policy(quality(suite="sentiment"), quality(suite="short_question"))
    honest = decide(checks, demo(), policy_digest="policy", id_="gate")
    monkeypatch.setattr("workbench.holm.holm", lambda p: [1.0] * len(p))
    doubtful = decide(checks, demo(), policy_digest="policy", id_="gate")
    assert doubtful != honest
    assert [v.verdict for v in doubtful.variants] == [v.verdict for v in honest.variants]
    readme = " ".join((Path(__file__).parents[1] / "README.md").read_text("utf-8").split())
    for text in (readme, " ".join((workbench.holm.__doc__ or "").split())):
        assert "No verdict depends on" in text
