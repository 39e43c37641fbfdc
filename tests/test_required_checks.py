"""Where a variant ran, and tripwires: neither is a reason to ship."""

from dataclasses import replace
from typing import Any

import pytest
from builders import EMULATED, edit, profile, serving, simple, table

from workbench.digest import sha256_text
from workbench.evaluation_records import Divergence, DivergenceStats
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.policy_spec import Policy, QualityCheck, Tripwire
from workbench.records import Gate, Lane
from workbench.required_checks import named, tripwire
from workbench.store import dump_record

FALLBACK = Lane(name="weight-only fallback", reason="no FP8 on Ampere", source="documentation")
WEIGHTS = sha256_text("fp8 weights")
QUALITY = (QualityCheck(suite="suite", margin=0.1),)
GOOD = table(60, 1, 1, 18)


def gate(made: Evidence, **policy: Any) -> Gate:
    fields = {"schema_": "workbench.policy/1", "name": "p", "quality": QUALITY} | policy
    return decide(Policy(**fields), made, policy_digest="p", id_="g")


def required(made: Evidence, **policy: Any) -> tuple[str, str, str]:
    """Verdict, status and sentence of the one requirement."""
    (variant,) = gate(made, **policy).variants
    (check,) = (c for c in variant.checks if c.kind == "policy")
    assert check.tier == "critical"
    return variant.verdict, check.status, check.sentence


# --------------------------------------------------------------------------- requirements


def test_the_required_lane_or_a_better_one() -> None:
    assert required(simple(*GOOD), required_lane="native") == (
        *("GO", "PASS"),
        "required_lane: served on the native lane.",
    )
    fallback = simple(*GOOD, lane=FALLBACK)
    assert required(fallback, required_lane="native") == (
        *("INCONCLUSIVE", "NOT COMPARABLE"),
        "required_lane: fp8 was evaluated on the weight-only fallback lane (no FP8 on Ampere), and "
        "the policy wants native.",
    )
    assert required(fallback, required_lane="weight-only fallback")[:2] == ("GO", "PASS")
    assert required(simple(*GOOD), required_lane="weight-only fallback")[:2] == ("GO", "PASS")
    for lane in ("native", "weight-only fallback"):
        made = simple(*GOOD, lane=EMULATED)
        assert required(made, required_lane=lane)[:2] == ("INCONCLUSIVE", "NOT COMPARABLE")


def test_every_measurement_must_be_of_the_lane() -> None:
    made = edit(simple(*GOOD), profile=profile("fp8", WEIGHTS, EMULATED))
    _, status, sentence = required(made, required_lane="native")
    assert status == "NOT COMPARABLE" and "fp8 was profiled on the emulated lane" in sentence
    nothing = edit(simple(*GOOD), profile=None, evaluation=None)
    assert required(nothing, required_lane="native")[1] == "MISSING"
    assert required(nothing, required_hardware="NVIDIA L4")[1] == "MISSING"


def test_the_required_hardware_is_a_whole_name() -> None:
    assert required(simple(*GOOD), required_hardware="amd epyc")[:2] == ("GO", "PASS")
    verdict, status, sentence = required(simple(*GOOD), required_hardware="NVIDIA L4")
    assert (verdict, status) == ("INCONCLUSIVE", "NOT COMPARABLE")
    assert sentence == (
        "required_hardware: fp8 was evaluated on AMD EPYC x2 [avx2], and the policy wants NVIDIA "
        "L4."
    )
    assert named("NVIDIA L4", "NVIDIA L4 (sm8.9) + NVIDIA L4 (sm8.9)")
    assert not named("NVIDIA L4", "NVIDIA L40S (sm8.9)")
    assert not named("L4 (sm8.9)", "NVIDIA L40 (sm8.9)")


def test_llama_cpp_computes_beside_the_gpu_of_its_machine() -> None:
    def on(engine: str) -> tuple[str, str, str]:
        def of(side: Any, weights: str) -> Any:
            served = serving(weights, engine=engine, hardware="NVIDIA L4 (sm8.9)")
            assert side.evaluation
            evaluation = side.evaluation.model_copy(update={"serving": served})
            return replace(side, evaluation=evaluation, profile=None)

        made = simple(*GOOD)
        made = replace(
            made,
            baseline=of(made.baseline, sha256_text("baseline weights")),
            variants=(of(made.variants[0], WEIGHTS),),
        )
        return required(made, required_hardware="NVIDIA L4")

    assert on("vllm")[:2] == ("GO", "PASS")
    _, status, sentence = on("llamacpp")
    assert status == "NOT COMPARABLE"
    assert "evaluated on the processor beside NVIDIA L4 (sm8.9)" in sentence


def test_the_reference_must_be_of_the_hardware_too() -> None:
    made = simple(*GOOD)
    assert made.baseline.evaluation
    other = made.baseline.evaluation.model_copy(
        update={"serving": serving(sha256_text("baseline weights"), hardware="NVIDIA H200")}
    )
    made = replace(made, baseline=replace(made.baseline, evaluation=other))
    _, status, sentence = required(made, required_hardware="AMD EPYC")
    assert status == "NOT COMPARABLE" and "baseline was evaluated on NVIDIA H200" in sentence


def test_where_it_ran_is_no_reason_to_ship() -> None:
    made = gate(simple(*GOOD), quality=(), required_lane="native", required_hardware="AMD EPYC")
    assert made.verdict == "INCONCLUSIVE"
    assert made.variants[0].reason.startswith("nothing is gated")


# --------------------------------------------------------------------------- tripwires


def stats(**changes: Any) -> DivergenceStats:
    none = dict.fromkeys(("ppl_reference_error", "ppl_variant_error", "ln_ratio_error"))
    none |= dict.fromkeys(("ln_ppl_correlation", "ppl_difference_error", "kld_error"))
    none |= dict.fromkeys(("delta_p_error", "same_top_error"))
    numbers = {"tokens": 4000, "ppl_reference": 8.0, "ppl_variant": 8.1, "ln_ratio_mean": 0.01}
    numbers |= {"ppl_difference": 0.1, "kld_mean": 0.04, "delta_p_mean": 0.0, "delta_p_rms": 0.02}
    kld = {"max": 3.0, "99": 0.5, "95": 0.2, "median": 0.01}
    more = {"kld": kld, "delta_p": {}, "same_top": 0.93, "covered": 0.99}
    return DivergenceStats(**(none | numbers | more | changes))


def diverged(**changes: Any) -> Evidence:
    fields: dict[str, Any] = {"variant": "fp8", "reference": "baseline", "overall": stats()}
    return edit(simple(*GOOD), divergence=Divergence(**(fields | changes)))


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (Tripwire(metric="kld_mean", warn_above=0.039), "WARN"),
        (Tripwire(metric="kld_mean", warn_above=0.04), "NOT TRIPPED"),
        (Tripwire(metric="kld_median", warn_above=0.009), "WARN"),
        (Tripwire(metric="kld_p95", warn_above=0.21), "NOT TRIPPED"),
        (Tripwire(metric="kld_p99", warn_above=0.49), "WARN"),
        (Tripwire(metric="kld_max", warn_above=3.1), "NOT TRIPPED"),
        (Tripwire(metric="same_top", warn_below=0.94), "WARN"),
        (Tripwire(metric="same_top", warn_below=0.93), "NOT TRIPPED"),
    ],
)
def test_a_tripwire_warns_beyond_its_limit_and_is_never_a_pass(wire: Tripwire, status: str) -> None:
    made = diverged()
    check = tripwire(wire, made, made.variants[0])
    assert (check.status, check.tier, check.kind, check.n) == (
        *(status, "advisory"),
        *("divergence", 4000),
    )
    assert check.sentence.endswith("is worth a look; it decides nothing.")


def test_a_tripwire_changes_no_verdict_and_is_said() -> None:
    wires = (
        Tripwire(metric="kld_mean", warn_above=0.01),
        Tripwire(metric="same_top", warn_below=0.5),
    )
    made = gate(diverged(), tripwires=wires)
    assert made.verdict == "GO"
    assert made.variants[0].reason == ("all 2 gated checks pass; worth a look: kld_mean.")
    assert gate(diverged(), tripwires=wires, quality=()).verdict == "INCONCLUSIVE"
    # The verdict names the record it rests on, and an older policy's names what it did.
    assert "fp8/divergence" in made.inputs
    assert "fp8/divergence" not in gate(diverged()).inputs
    assert dump_record(gate(diverged())) == dump_record(gate(simple(*GOOD)))


@pytest.mark.parametrize(
    ("made", "status", "words"),
    [
        (simple(*GOOD), "MISSING", "no divergence of fp8 was recorded"),
        (edit(diverged(), evaluation=None), "MISSING", "fp8 was not evaluated"),
        (
            diverged(overall=None, unavailable="llama.cpp gives no log-probabilities"),
            *("MISSING", "llama.cpp gives no log-probabilities"),
        ),
        (
            diverged(overall=None, unavailable="NOT COMPARABLE: top_k is 64 and 32"),
            *("NOT COMPARABLE", "kld_mean: top_k is 64 and 32."),
        ),
        (diverged(reference="baseline-gguf"), "NOT COMPARABLE", "is of fp8 against baseline-gguf"),
        (edit(diverged(), manifest=None), "MISSING", "has no manifest"),
        (diverged(overall=stats(kld_mean=float("nan"))), "MISSING", "kld_mean: it is nan."),
    ],
)
def test_a_divergence_that_is_not_there_trips_nothing(
    made: Evidence, status: str, words: str
) -> None:
    check = tripwire(Tripwire(metric="kld_mean", warn_above=0.01), made, made.variants[0])
    assert (check.status, check.value) == (status, None) and words in check.sentence
