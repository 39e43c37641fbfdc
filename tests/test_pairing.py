"""A GGUF file is paired with the checkpoint's own GGUF, and with nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import checkpoint, edit, evidence, rows, serving, variant
from builders import table as pairs

from workbench import measured_checks
from workbench.artifact_records import ArtifactCheck
from workbench.asked import ASKING
from workbench.base import BASELINE_GGUF
from workbench.evidence import Evidence, Paired, Refusal, VariantEvidence, pair, pair_repeat
from workbench.gate import decide
from workbench.paired import first_difference
from workbench.records import Gate
from workbench.report.cards import record_text
from workbench.report.html import render
from workbench.spec import PerformanceCheck, Policy, QualityCheck, SizeCheck

POLICY = Policy(
    schema="workbench.policy/1",
    name="p",
    quality=(QualityCheck(suite="suite", margin=0.1),),
    performance=(
        PerformanceCheck(metric="ttft_ms_p50", workload="short", concurrency=1, max_ratio=1.2),
    ),
    size=(SizeCheck(max_ratio=0.5), SizeCheck(metric="peak_memory_bytes", max_ratio=1.0)),
)


def under_llama_cpp(side: VariantEvidence) -> VariantEvidence:
    """The same records, of a server of llama.cpp."""
    assert side.manifest and side.evaluation and side.profile
    served = serving(
        side.manifest.weights_digest, engine="llamacpp", engine_version="2026.10", environment="e"
    )
    once, again = (
        tuple(
            r.model_copy(update={"conditions": r.conditions | {"engine": "llamacpp"}})
            for r in results
        )
        for results in (side.evaluation.suites, side.evaluation.repeat)
    )
    return replace(
        side,
        reference=BASELINE_GGUF,
        evaluation=side.evaluation.model_copy(
            update={"serving": served, "suites": once, "repeat": again}
        ),
        profile=side.profile.model_copy(update={"serving": served}),
    )


def gguf(before: Sequence[float], after: Sequence[float], again: Sequence[float]) -> Evidence:
    """A baseline that answers everything wrong under vLLM, its GGUF, and a quantized GGUF."""
    found = evidence({"suite": [0.0] * len(before)})
    reference = under_llama_cpp(
        variant(
            BASELINE_GGUF,
            {"suite": rows(before)},
            method="gguf",
            weight_bytes=270_000_000,
            repeat={"suite": rows(again)},
        )
    )
    reference = replace(reference, repeat_rows={"suite": rows(again)})
    q4 = variant("q4", {"suite": rows(after)}, method="gguf", weight_bytes=99_000_000)
    return replace(found, references=(reference,), variants=(under_llama_cpp(q4),))


def judged(found: Evidence) -> Gate:
    return decide(POLICY, found, policy_digest="p", id_="i")


@pytest.fixture
def found() -> Evidence:
    before, after = pairs(right=70, lost=1, gained=1, wrong=8)
    return gguf(before, after, [*before[:-1], 1.0])


def test_it_is_paired_with_what_the_same_engine_serves(found: Evidence) -> None:
    (q4,) = found.variants
    paired = pair(found, q4, "suite")
    assert isinstance(paired, Paired)
    # The baseline under vLLM scores 0: a pairing with it would show a gain of 89 points.
    assert sum(paired.scores[0]) == 71
    (verdict,) = judged(found).variants
    assert verdict.verdict == "GO"
    assert verdict.reference == BASELINE_GGUF
    assert "paired with baseline-gguf" in verdict.reason


def test_paired_with_the_baseline_it_is_not_comparable(found: Evidence) -> None:
    wrong = edit(found, reference="baseline")
    refusal = pair(wrong, wrong.variants[0], "suite")
    assert isinstance(refusal, Refusal) and refusal.status == "NOT COMPARABLE"
    assert "engine" in refusal.sentence
    assert judged(wrong).variants[0].verdict == "INCONCLUSIVE"


def test_without_its_reference_nothing_passes(found: Evidence) -> None:
    alone = replace(found, references=())
    refusal = pair(alone, alone.variants[0], "suite")
    assert refusal == Refusal("MISSING", "baseline-gguf was not evaluated")
    statuses = {c.name: c.status for c in judged(alone).variants[0].checks}
    assert statuses == {
        "artifact": "PASS",
        "suite": "MISSING",
        "ttft_ms_p50 short x1 ratio": "MISSING",
        "weight_bytes": "PASS",
        "peak_memory_bytes": "MISSING",
    }


def test_a_reference_of_another_checkpoint_is_none(found: Evidence) -> None:
    (reference,) = found.references
    assert reference.manifest
    other = reference.manifest.model_copy(update={"inputs": {"checkpoint": "o" * 64}})
    changed = replace(found, references=(replace(reference, manifest=other),))
    refusal = pair(changed, changed.variants[0], "suite")
    assert isinstance(refusal, Refusal) and refusal.status == "NOT COMPARABLE"
    assert "made of another checkpoint" in refusal.sentence
    assert judged(changed).variants[0].verdict == "INCONCLUSIVE"


def test_a_reference_measured_on_other_weights_is_none(found: Evidence) -> None:
    (reference,) = found.references
    assert reference.manifest
    other = reference.manifest.model_copy(update={"weights_digest": "o" * 64})
    changed = replace(found, references=(replace(reference, manifest=other),))
    refusal = pair(changed, changed.variants[0], "suite")
    assert isinstance(refusal, Refusal) and refusal.status == "NOT COMPARABLE"


def test_speed_is_compared_with_the_reference(found: Evidence) -> None:
    (reference,) = found.references
    assert reference.profile
    slow = tuple(
        p.model_copy(update={"ttft_ms_p50": 2 * (p.ttft_ms_p50 or 0)})
        for p in reference.profile.points
    )
    profile = reference.profile.model_copy(update={"points": slow, "peak_memory_bytes": 10**9})
    changed = replace(found, references=(replace(reference, profile=profile),))
    by_name = {c.name: c for c in judged(changed).variants[0].checks}
    speed = by_name["ttft_ms_p50 short x1 ratio"]
    assert speed.value == 0.5 and "0.5 times baseline-gguf's" in speed.sentence
    memory = by_name["peak_memory_bytes"]
    assert memory.value == 1.2 and "times baseline-gguf's" in memory.sentence


def test_size_is_compared_with_the_original_checkpoint(found: Evidence) -> None:
    size = measured_checks.size(SizeCheck(max_ratio=0.5), found, found.variants[0])
    assert size.value == 99_000_000 / checkpoint().weight_bytes
    assert "times the baseline's" in size.sentence


def test_each_reference_has_its_own_noise(found: Evidence) -> None:
    gate = judged(found)
    assert gate.noise_floor == {}
    assert gate.reference_noise == {
        BASELINE_GGUF: {"suite": {"churn": 1 / 80, "difference": -1 / 80}}
    }
    repeated = pair_repeat(found, "suite", found.references[0])
    assert isinstance(repeated, Paired)
    assert isinstance(pair_repeat(found, "suite"), Refusal)
    for name in ("weights", "eval/suite", "profile"):
        assert f"{BASELINE_GGUF}/{name}" in gate.inputs
    assert Gate.model_validate_json(gate.model_dump_json(by_alias=True)) == gate


def test_the_report_shows_the_reference_and_says_who_is_paired_with_it(found: Evidence) -> None:
    gate = judged(found)
    page = render(gate, found)
    assert "q4: paired with <b>baseline-gguf</b>" in page
    assert page.count('<th scope="row">baseline-gguf</th>') >= 3  # speed, size, origin
    assert "<h3>baseline-gguf</h3>" in page
    assert "asked under vllm 0.32.0 and llamacpp 2026.10" in page
    assert ">1.2 %</td>" in page  # its own A/A churn, 1 of 80
    assert "baseline-gguf" in record_text(gate)
    # It is no variant: it gets no verdict.
    assert [v.variant for v in gate.variants] == ["q4"]


def test_a_broken_reference_is_no_reference() -> None:
    good = [1.0] * 95 + [0.0] * 5
    found = gguf(good, good, good)
    (reference,) = found.references
    assert isinstance(pair(found, found.variants[0], "suite"), Paired)
    assert reference.manifest
    wrong = ArtifactCheck(name="finite", status="FAIL", sentence="2 values are NaN.")
    examined = reference.manifest.artifact
    assert examined is not None
    made = examined.model_copy(update={"checks": (wrong,)})
    manifest = reference.manifest.model_copy(update={"artifact": made})
    broken = replace(found, references=(replace(reference, manifest=manifest),))
    refused = pair(broken, broken.variants[0], "suite")
    assert isinstance(refused, Refusal) and refused.status == "NOT COMPARABLE"
    assert "finite: 2 values are NaN" in refused.sentence


def test_the_first_difference_is_said_in_words() -> None:
    one, other = {"dtype": "float32", ASKING: "a"}, {"dtype": "float32", ASKING: "b"}
    assert first_difference(one, one) is None
    assert first_difference(one, other) == (
        "suite.yaml asks otherwise (its prompt, system, sampling, max_tokens or tools)"
    )
    assert first_difference(one, {"dtype": "float32"}) == "asking_digest is 'a' and 'absent'"
    assert first_difference(one | {"dtype": "bfloat16"}, other) == (
        "suite.yaml asks otherwise (its prompt, system, sampling, max_tokens or tools)"
    )
