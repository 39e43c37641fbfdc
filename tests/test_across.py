"""Two runs of the same weights: only engine version and hardware may differ between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import CONDITIONS, EMULATED, evidence, point, profile, rows, serving, table, variant

from workbench.across import across, applied
from workbench.digest import sha256_text
from workbench.evidence import Evidence, VariantEvidence
from workbench.gate import decide
from workbench.records import Check, Gate, VariantVerdict
from workbench.spec import PerformanceCheck, Policy, QualityCheck, SizeCheck

GOOD = table(62, 0, 0, 18)[0]
HALF = table(22, 40, 0, 18)[1]


def run(
    name: str = "b",
    scores: Any = GOOD,
    *,
    version: str = "0.33.0",
    hardware: str = "AMD EPYC x2 [avx2]",
    of: str = "fp8",
    baseline: Any = GOOD,
) -> Evidence:
    """A run whose servers had that version and hardware; both its sides were asked `suite`."""
    found = evidence({"suite": baseline}, variant(of, {"suite": rows(scores)}))

    def served(side: VariantEvidence) -> VariantEvidence:
        assert side.evaluation and side.profile
        changes = {"engine_version": version, "hardware": hardware}
        asked = side.evaluation
        measured = side.profile
        results = tuple(
            r.model_copy(update={"conditions": {**CONDITIONS, **changes}}) for r in asked.suites
        )
        return replace(
            side,
            evaluation=asked.model_copy(
                update={
                    "serving": asked.serving.model_copy(update=changes),
                    "suites": results,
                    "finished": f"of {name}",
                }
            ),
            profile=measured.model_copy(
                update={
                    "serving": measured.serving.model_copy(update=changes),
                    "seconds": float(len(name)),
                }
            ),
        )

    # The unquantized one served as what it is: the checkpoint of the run.
    base = served(found.baseline)
    return replace(
        found, run=name, baseline=base, variants=tuple(served(v) for v in found.variants)
    )


EARLIER = run("before", version="0.32.0")


def policy(*checks: QualityCheck | PerformanceCheck | SizeCheck) -> Policy:
    return Policy(
        schema_="workbench.policy/1",
        name="test",
        quality=(
            *(c for c in checks if isinstance(c, QualityCheck)),
            *(() if any(isinstance(c, QualityCheck) for c in checks) else (SUITE,)),
        ),
        performance=tuple(c for c in checks if isinstance(c, PerformanceCheck)),
        size=tuple(c for c in checks if isinstance(c, SizeCheck)),
    )


@pytest.mark.parametrize("side", ["baseline", "fp8"])
def test_the_same_weights_beside_another_config_are_another_artifact(side: str) -> None:
    after = run()

    def given(evidence: Evidence, **files: str) -> Evidence:
        if side == "baseline":
            checkpoint = evidence.checkpoint.model_copy(update={"files": files})
            return replace(evidence, checkpoint=checkpoint)
        (made,) = evidence.variants
        assert made.manifest
        manifest = made.manifest.model_copy(update={"files": files})
        return replace(evidence, variants=(replace(made, manifest=manifest),))

    one = given(EARLIER, **{"config.json": "a", "README.md": "a", "calibration.json": "a"})
    same = given(after, **{"config.json": "a", "README.md": "b", "calibration.json": "b"})
    other = given(after, **{"config.json": "b", "extra.json": "a"})

    def verdict(later: Evidence) -> VariantVerdict:
        found, _ = across(one, later, "before")
        gate = decide(policy(SUITE), found, policy_digest="", id_="")
        return next(v for v in gate.variants if v.variant == side)

    assert verdict(same).verdict == "GO"
    (check,) = (c for c in verdict(other).checks if c.kind == "quality")
    assert check.status == "NOT COMPARABLE"
    assert (
        f"the files differ: config.json of {side} and 1 more, while the weights" in check.sentence
    )


SUITE = QualityCheck(suite="suite", margin=0.1)


def judged(after: Evidence, before: Evidence = EARLIER, *checks: Any, only: str = "fp8") -> Gate:
    found, _ = across(before, after, "before", (only,))
    other, _ = applied(policy(*checks))
    return decide(other, found, policy_digest="p", id_="g")


def verdict(gate: Gate) -> tuple[VariantVerdict, Check]:
    (one,) = gate.variants
    (check,) = (c for c in one.checks if c.kind != "artifact")
    return one, check


def edit(found: Evidence, **changes: Any) -> Evidence:
    (side,) = found.variants
    return replace(found, variants=(replace(side, **changes),))


def edit_row(found: Evidence, **changes: Any) -> Evidence:
    old = list(found.variants[0].rows["suite"])
    old[5] = old[5].model_copy(update=changes)
    return edit(found, rows={"suite": tuple(old)})


def edit_asked(found: Evidence, **changes: Any) -> Evidence:
    asked = found.variants[0].evaluation
    assert asked
    result = asked.suites[0]
    conditions = {**result.conditions, **changes.pop("conditions", {})}
    result = result.model_copy(update={"conditions": conditions, **changes})
    return edit(found, evaluation=asked.model_copy(update={"suites": (result,)}))


def edit_served(found: Evidence, **changes: Any) -> Evidence:
    asked = found.variants[0].evaluation
    assert asked
    return edit(
        found,
        evaluation=asked.model_copy(update={"serving": asked.serving.model_copy(update=changes)}),
    )


def test_another_engine_version_is_compared_and_named() -> None:
    gate = judged(run())
    one, check = verdict(gate)
    assert (gate.verdict, one.verdict, check.status) == ("GO", "GO", "PASS")
    assert one.reference == "fp8 of run before" and gate.compared_with == "before"
    assert one.reason == "all 2 gated checks pass; vllm version 0.32.0 -> 0.33.0."
    assert "(compared with run before)" in gate.aside


def test_another_machine_is_compared_and_named() -> None:
    one, _ = verdict(judged(run(version="0.32.0", hardware="NVIDIA L4 (sm8.9)")))
    assert one.verdict == "GO"
    assert one.reason.endswith("; hardware AMD EPYC x2 [avx2] -> NVIDIA L4 (sm8.9).")


def test_another_engine_is_named_with_its_own_version() -> None:
    one, _ = verdict(judged(edit_served(run(), engine="sglang", engine_version="0.5")))
    assert one.reason.endswith("; engine vllm 0.32.0 -> sglang 0.5.")


def test_what_an_upgrade_loses_is_no_go() -> None:
    one, check = verdict(judged(run(scores=HALF)))
    assert (one.verdict, check.status) == ("NO-GO", "FAIL")
    assert "fell by 50.0 points, from 77.5 % to 27.5 %" in check.sentence


def test_the_same_loss_before_and_after_is_none() -> None:
    """The variant is paired with itself and not with the baseline."""
    one, check = verdict(judged(run(scores=HALF), run("before", HALF, version="0.32.0")))
    assert (one.verdict, check.value) == ("GO", 0.0)


def test_a_gain_of_the_variant_is_a_gain() -> None:
    _, check = verdict(judged(run(scores=GOOD), run("before", HALF, version="0.32.0")))
    assert check.value == -0.5 and "rose by 50.0 points" in check.sentence


def test_within_one_run_another_version_stays_not_comparable() -> None:
    """What is allowed between two runs is not allowed inside one."""
    mixed = replace(run(), baseline=EARLIER.baseline)
    gate = decide(policy(), mixed, policy_digest="p", id_="g")
    _, check = verdict(gate)
    assert check.status == "NOT COMPARABLE"
    assert "engine_version is '0.32.0' and '0.33.0'" in check.sentence


def _other_weights(found: Evidence) -> Evidence:
    made = found.variants[0].manifest
    asked = found.variants[0].evaluation
    assert made and asked
    weights = sha256_text("made again")
    found = edit_served(found, served_digest=weights)
    return edit(found, manifest=made.model_copy(update={"weights_digest": weights}))


REFUSED: dict[str, tuple[Any, str, str]] = {
    "other weights": (_other_weights, "NOT COMPARABLE", "the weights differ: "),
    "weights that were not those served": (
        lambda e: edit_served(e, served_digest=sha256_text("older")),
        "NOT COMPARABLE",
        "fp8 was measured on other weights",
    ),
    "another engine": (
        lambda e: edit_served(e, engine="sglang"),
        "NOT COMPARABLE",
        "engine is 'vllm' and 'sglang'",
    ),
    "another dtype": (
        lambda e: edit_served(e, dtype=serving("w").dtype.model_copy(update={"value": "bfloat16"})),
        "NOT COMPARABLE",
        "dtype is 'float32' and 'bfloat16'",
    ),
    "another suite": (
        lambda e: edit_asked(e, suite_digest="new"),
        "NOT COMPARABLE",
        "suite_digest is",
    ),
    "other sampling": (
        lambda e: edit_asked(e, conditions={"sampling": {"temperature": 1}}),
        "NOT COMPARABLE",
        "sampling is 'absent' and",
    ),
    "another tokenizer": (
        lambda e: edit_row(e, tokenizer_digest="x"),
        "NOT COMPARABLE",
        "1 of 80 samples have another tokenizer, 'suite-005' first",
    ),
    "another template": (
        lambda e: edit_row(e, template_digest="x"),
        "NOT COMPARABLE",
        "another chat template",
    ),
    "another prompt": (
        lambda e: edit_row(e, prompt_digest="x"),
        "NOT COMPARABLE",
        "another prompt",
    ),
    "an unanswered sample": (
        lambda e: edit_row(e, score=None),
        "MISSING",
        "1 of 80 samples of fp8 have no score",
    ),
    "not evaluated": (lambda e: edit(e, evaluation=None), "MISSING", "fp8 was not evaluated"),
    "the record of another": (
        lambda e: edit(
            e, evaluation=e.variants[0].evaluation.model_copy(update={"variant": "gptq"})
        ),
        "NOT COMPARABLE",
        "the record of fp8 is of gptq",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_must_be_equal(case: str) -> None:
    spoil, status, words = REFUSED[case]
    one, check = verdict(judged(spoil(run())))
    assert (one.verdict, check.status) == ("INCONCLUSIVE", status)
    assert words in check.sentence and check.value is None


@pytest.mark.parametrize("case", [c for c in REFUSED if c != "other weights"])
def test_the_earlier_run_is_held_to_the_same(case: str) -> None:
    spoil, status, _ = REFUSED[case]
    one, check = verdict(judged(run(), spoil(EARLIER)))
    assert (one.verdict, check.status) == ("INCONCLUSIVE", status)


def test_the_same_evaluation_in_both_runs_says_nothing() -> None:
    same = EARLIER.variants[0]
    one, check = verdict(judged(replace(run(), variants=(same,))))
    assert (one.verdict, check.status) == ("INCONCLUSIVE", "NOT COMPARABLE")
    assert "nothing was asked twice" in check.sentence
    assert "--run OTHER --force evaluate asks again)" in one.reason


def test_the_same_weights_are_found_under_another_name_and_others_are_not() -> None:
    renamed = run()
    (side,) = renamed.variants
    assert side.evaluation and side.profile
    renamed = replace(
        renamed,
        variants=(
            replace(
                side,
                variant="w8",
                evaluation=side.evaluation.model_copy(update={"variant": "w8"}),
                profile=side.profile.model_copy(update={"variant": "w8"}),
            ),
        ),
    )
    one, _ = verdict(judged(renamed, only="w8"))
    assert (one.verdict, one.reference) == ("GO", "fp8 of run before")
    alone, check = verdict(judged(run(of="new"), only="new"))
    assert (alone.verdict, check.status) == ("INCONCLUSIVE", "MISSING")
    assert "new of run before was not evaluated" in check.sentence
    assert alone.reason.endswith("was not evaluated).")


def _baseline_alone(found: Evidence) -> Evidence:
    """The baseline served as the checkpoint of the run is."""
    digest = found.checkpoint.weights_digest
    made, asked = found.baseline.manifest, found.baseline.evaluation
    assert made and asked
    return replace(
        found,
        baseline=replace(
            found.baseline,
            manifest=made.model_copy(update={"weights_digest": digest}),
            evaluation=asked.model_copy(
                update={"serving": asked.serving.model_copy(update={"served_digest": digest})}
            ),
        ),
    )


def test_the_unquantized_checkpoint_is_compared_like_the_others() -> None:
    gate = judged(_baseline_alone(run()), _baseline_alone(EARLIER), only="baseline")
    one, check = verdict(gate)
    assert (one.verdict, check.status) == ("GO", "PASS")
    assert [c.kind for c in one.checks] == ["quality"], "nobody here produced its files"
    lost = judged(_baseline_alone(run(baseline=HALF)), _baseline_alone(EARLIER), only="baseline")
    assert lost.verdict == "NO-GO"


def test_all_are_judged_unless_some_are_named_and_what_is_left_is_said() -> None:
    found, left = across(EARLIER, run(), "before")
    assert [v.variant for v in found.variants] == ["baseline", "fp8"] and left == ()
    found, left = across(EARLIER, run(), "before", ("fp8",))
    assert [v.variant for v in found.variants] == ["fp8"]
    assert left == ("not compared, only of run before: baseline",)


def test_what_either_run_has_not_done_makes_no_go() -> None:
    for after, before, step in (
        (replace(run(), unfinished=("profile:fp8",)), EARLIER, "profile:fp8"),
        (run(), replace(EARLIER, unfinished=("evaluate:fp8",)), "evaluate:fp8 of run before"),
        (run(), replace(EARLIER, unfinished=("calibrate",)), "calibrate of run before"),
    ):
        one, _ = verdict(judged(after, before))
        assert one.verdict == "INCONCLUSIVE"
        assert f"not finished ({step} still to do)" in one.reason
    one, _ = verdict(judged(run(), replace(EARLIER, unfinished=("evaluate:w4",))))
    assert one.verdict == "GO", "another variant's step is nothing to this one"


def test_a_critical_suite_that_is_not_gated_is_said() -> None:
    gate = judged(run(), EARLIER, QualityCheck(suite="other", margin=0.1))
    assert gate.verdict == "INCONCLUSIVE"
    assert any("'suite': critical by its own suite.yaml" in text for text in gate.warnings)


def test_what_is_doubtful_in_either_run_is_said() -> None:
    gate = judged(replace(run(), doubts=("one",)), replace(EARLIER, doubts=("two",)))
    assert {"one", "run before: two"} <= set(gate.warnings)


TTFT = PerformanceCheck(metric="ttft_ms_p50", workload="short", concurrency=8, max_ratio=1.2)


def _speed(gate: Gate) -> Check:
    (check,) = (c for c in gate.variants[0].checks if c.kind == "performance")
    return check


def test_speed_is_a_ratio_to_the_earlier_run() -> None:
    after = run()
    measured = after.variants[0].profile
    assert measured
    slower = (point(concurrency=1), point(concurrency=8, ttft_ms_p50=1000.0))
    after = edit(after, profile=measured.model_copy(update={"points": slower}))
    check = _speed(judged(after, EARLIER, TTFT))
    assert (check.status, check.value) == ("FAIL", 1.25)
    assert "1.25 times fp8 of run before's" in check.sentence
    assert _speed(judged(run(), EARLIER, TTFT)).status == "PASS"


def test_the_same_profile_in_both_runs_is_no_ratio_of_one() -> None:
    same = EARLIER.variants[0].profile
    check = _speed(judged(edit(run(), profile=same), EARLIER, TTFT))
    assert check.status == "NOT COMPARABLE" and "nothing was asked twice" in check.sentence
    assert "--force profile asks again" in check.sentence


def test_speed_of_a_twin_is_not_compared() -> None:
    weights = sha256_text("fp8 weights")
    check = _speed(judged(edit(run(), profile=profile("fp8", weights, EMULATED)), EARLIER, TTFT))
    assert check.status == "NOT COMPARABLE" and "emulated lane" in check.sentence


def test_waivers_objective_and_equal_sizes_are_left_aside_and_said() -> None:
    given = Policy.model_validate(
        {
            **policy(SizeCheck(max_ratio=0.1)).model_dump(by_alias=True),
            "objective": "smallest",
            "waivers": [
                {
                    "check": "suite",
                    "variant": "all",
                    "owner": "o",
                    "reason": "r",
                    "expires": "2099-01-01",
                }
            ],
        }
    )
    other, said = applied(given)
    assert (other.size, other.waivers, other.objective) == ((), (), None)
    assert len(said) == 2 and "weight_bytes" in said[0] and "waivers" in said[1]
    memory = policy(SizeCheck(metric="peak_memory_bytes", max_ratio=1.0))
    assert applied(memory) == (memory, ())
