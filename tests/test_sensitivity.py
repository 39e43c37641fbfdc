"""What a change of the calibration seed does to a suite, from records alone."""

from dataclasses import replace
from statistics import stdev

import pytest
from builders import evidence, rows, variant
from pydantic import ValidationError

from workbench.gate import decide
from workbench.records import Gate
from workbench.spec import CalibrationSpec, Policy, QualityCheck, Recipe
from workbench.variants import Fp8Spec, GptqSpec

GOOD = [1.0] * 95 + [0.0] * 5
BAD = [1.0] * 60 + [0.0] * 40
POLICY = Policy(
    schema="workbench.policy/1", name="p", quality=(QualityCheck(suite="s", margin=0.1),)
)


def judged(*again: list[float] | None) -> Gate:
    own = variant("w4", {"s": rows(GOOD, suite="s")}, method="gptq")
    replicas = tuple(
        variant(f"w4-seed{n}", {"s": rows(scores, suite="s")} if scores else {}, method="gptq")
        for n, scores in enumerate(again, 1)
    )
    found = replace(evidence({"s": GOOD}, own), replicas={"w4": replicas} if again else {})
    return decide(POLICY, found, policy_digest="p", id_="g")


def test_a_variant_that_is_not_repeated_has_no_spread() -> None:
    assert judged().sensitivity == ()


def test_spread_over_seeds() -> None:
    gate = judged(GOOD, BAD)
    (spread,) = gate.sensitivity
    assert spread.scores == {"w4": 0.95, "w4-seed1": 0.95, "w4-seed2": 0.6}
    assert spread.deviation == pytest.approx(stdev([0.95, 0.95, 0.6]))
    assert spread.statuses == {"w4": "PASS", "w4-seed1": "PASS", "w4-seed2": "FAIL"}
    # The verdict is about the checkpoint that would ship; the warning is about the method.
    assert [(v.variant, v.verdict) for v in gate.variants] == [("w4", "GO")]
    assert any("FAIL as w4-seed2" in warning for warning in gate.warnings)
    assert "w4-seed2/weights" in gate.inputs


def test_seeds_that_agree_raise_no_warning() -> None:
    assert not judged(GOOD, GOOD).warnings


def test_a_replica_that_was_not_measured_is_named() -> None:
    (spread,) = judged(None).sensitivity
    assert spread.missing == ("w4-seed1",)
    assert spread.deviation is None
    assert spread.statuses["w4-seed1"] == "MISSING"


def recipe(*variants: object, calibration: bool = True) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": "workbench.recipe/1",
            "name": "r",
            "model": {"path": "m"},
            "calibration": CalibrationSpec(source="s", seed=7) if calibration else None,
            "variants": variants,
            "evaluate": {"suites": ["s"]},
            "policy": "p.yaml",
        }
    )


def test_replicas_are_the_variant_with_other_seeds() -> None:
    found = recipe(GptqSpec(name="w4", group_size=64, repeat={"seeds": 3}))
    assert list(found.replicas) == ["w4-seed8", "w4-seed9"]
    again = found.variant("w4-seed8")
    assert again.repeat is None and again.method == "gptq"
    seeds = [found.calibration_of(n) for n in ("w4", "w4-seed8", "w4-seed9")]
    assert [s.seed for s in seeds if s] == [7, 8, 9]


def test_what_reads_no_calibration_set_cannot_be_repeated() -> None:
    with pytest.raises(ValidationError, match="does not read the calibration set"):
        Fp8Spec(name="f", repeat={"seeds": 2})


def test_a_replica_must_not_take_a_variants_name() -> None:
    with pytest.raises(ValidationError, match="w4-seed8"):
        recipe(
            GptqSpec(name="w4", repeat={"seeds": 2}),
            GptqSpec(name="w4-seed8"),
        )
