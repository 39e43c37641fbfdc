"""Evidence from lists of scores: real records, only small. Everything has a default that passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.artifact_records import Artifact, ArtifactCheck, LayerGroup
from workbench.digest import content_id, sha256_text
from workbench.evidence import Evidence, VariantEvidence
from workbench.records import (
    Checkpoint,
    Choice,
    Evaluation,
    Lane,
    LoadPoint,
    Manifest,
    Profile,
    SampleRow,
    Serving,
    SuiteResult,
)

NATIVE = Lane(name="native", reason="vLLM has a kernel for it on this CPU", source="measured")
EMULATED = Lane(
    name="emulated", reason="the W4A16 kernel is only in the AVX-512 build", source="measured"
)
BASELINE_BYTES = 269_060_552
CONDITIONS = {"engine": "fake", "dtype": "float32", "concurrency": 16}


def checkpoint() -> Checkpoint:
    return Checkpoint(
        path="model",
        architecture="LlamaForCausalLM",
        parameters=134_515_008,
        weight_bytes=BASELINE_BYTES,
        dtype="BF16",
        hidden_size=576,
        layers=30,
        max_position_embeddings=8192,
        linear_input_widths=(576, 1536),
        tied_embeddings=True,
        weights_digest=sha256_text("baseline weights"),
        tokenizer_digest=sha256_text("tokenizer"),
        template_digest=sha256_text("template"),
        files={"model.safetensors": sha256_text("baseline file")},
    )


def serving(weights: str, lane: Lane = NATIVE, **changes: Any) -> Serving:
    emulated = lane.name == "emulated"
    values: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "environment": sha256_text("vllm lock"),
        "lane": lane,
        "served_path": "checkpoint",
        "served_digest": sha256_text("twin of " + weights) if emulated else weights,
        "twin_of": weights if emulated else None,
        "dtype": Choice(value="float32", reason="bfloat16 is emulated on this CPU"),
        "max_model_len": 2048,
        "command": ("python", "-m", "vllm.entrypoints.openai.api_server", "--api-key", "***"),
        "hardware": "AMD EPYC x2 [avx2]",
        "kernels": ("CPUInt8ScaledMMLinearKernel",),
        "startup_seconds": 55.0,
    }
    return Serving(**(values | changes))


def rows(
    scores: Sequence[float | None], outputs: Sequence[str] | None = None, suite: str = "suite"
) -> tuple[SampleRow, ...]:
    return tuple(
        SampleRow(
            id=f"{suite}-{i:03d}",
            prompt_digest=sha256_text(f"{suite} prompt {i}"),
            target_digest=sha256_text(f"{suite} target {i}"),
            output=outputs[i] if outputs else ("right" if score == 1 else f"answer {score}"),
            score=score,
            finish_reason="stop" if score is not None else None,
            prompt_tokens=20,
            output_tokens=5,
            started=0.1 * i,
            seconds=0.5,
            error=None if score is not None else "the server answered 500",
        )
        for i, score in enumerate(scores)
    )


def suite_result(suite: str, of: tuple[SampleRow, ...], repeat: bool = False) -> SuiteResult:
    scores = [r.score for r in of if r.score is not None]
    return SuiteResult(
        suite=suite,
        suite_digest=sha256_text(f"suite {suite}"),
        conditions=CONDITIONS,
        rows_file=f"{suite}.repeat.jsonl" if repeat else f"{suite}.jsonl",
        rows_digest=content_id([[r.id, r.output, r.score] for r in of]),
        n=len(of),
        failed=len(of) - len(scores),
        score=sum(scores) / len(scores) if scores else None,
        finish_reasons={"stop": len(scores)},
        prompt_tokens=20 * len(of),
        output_tokens=5 * len(of),
    )


def point(workload: str = "short", concurrency: int = 1, **changes: Any) -> LoadPoint:
    values: dict[str, Any] = {
        "completed": 16,
        "failed": 0,
        "ttft_ms_p50": 100.0 * concurrency,
        "ttft_ms_p95": 150.0 * concurrency,
        "tpot_ms_p50": 50.0,
        "tpot_ms_p95": 60.0,
        "output_tokens_per_s": 20.0 * concurrency,
        "seconds": 10.0,
    }
    return LoadPoint(workload=workload, concurrency=concurrency, **(values | changes))


def profile(variant: str, weights: str, lane: Lane = NATIVE, **changes: Any) -> Profile:
    values: dict[str, Any] = {
        "id": sha256_text(f"profile {variant}"),
        "inputs": {"weights": weights},
        "serving": serving(weights, lane),
        "points": (point(concurrency=1), point(concurrency=8)),
        "peak_memory_bytes": 1_200_000_000,
        "seconds": 40.0,
    }
    return Profile(variant=variant, **(values | changes))


def artifact(*checks: ArtifactCheck) -> Artifact:
    """An examined artifact whose checks pass, or the ones given."""
    good = ArtifactCheck(name="tensors", status="PASS", sentence="272 tensors are accounted for.")
    return Artifact(
        format="compressed-tensors",
        parameters=134_515_008,
        quantized_parameters=106_168_320,
        bits_per_weight=9.7,
        quantized_bits_per_weight=8.02,
        declared_bits_per_weight=8.02,
        size_ratio=0.607,
        declared_size_ratio=0.607,
        layers=(
            LayerGroup(
                format="float8_e4m3 per channel",
                why="quantized",
                declared=True,
                layers=210,
                parameters=106_168_320,
                share=0.789,
                bits_per_weight=8.02,
                examples=("model.layers.0.mlp.down_proj.weight",),
            ),
        ),
        checks=checks or (good,),
        files={"model.safetensors": sha256_text("file")},
    )


def variant(
    name: str,
    suites: Mapping[str, tuple[SampleRow, ...]],
    *,
    method: str = "fp8",
    lane: Lane = NATIVE,
    weight_bytes: int = 164_000_000,
    repeat: Mapping[str, tuple[SampleRow, ...]] | None = None,
    profiled: bool = True,
) -> VariantEvidence:
    baseline = method == "none"
    weights = sha256_text(f"{name} weights")
    manifest = Manifest(
        id=sha256_text(f"manifest {name}"),
        variant=name,
        method=method,
        options={} if baseline else {"ignore": ["lm_head"]},
        inputs={"checkpoint": sha256_text("baseline weights")},
        path="checkpoint",
        weight_bytes=BASELINE_BYTES if baseline else weight_bytes,
        weights_digest=weights,
        files={"model.safetensors": sha256_text(f"{name} file")},
        environment="workbench" if baseline else sha256_text("quantize lock"),
        packages={} if baseline else {"llmcompressor": "0.14.0.1"},
        seconds=0.0 if baseline else 3.0,
        artifact=None if baseline else artifact(),
    )
    return VariantEvidence(
        variant=name,
        method=method,
        manifest=manifest,
        evaluation=Evaluation(
            id=sha256_text(f"evaluation {name}"),
            variant=name,
            inputs={"weights": weights},
            serving=serving(weights, lane),
            suites=tuple(suite_result(s, r) for s, r in suites.items()),
            repeat=tuple(suite_result(s, r, True) for s, r in (repeat or {}).items()),
            seconds=100.0,
        ),
        rows=dict(suites),
        profile=profile(name, weights, lane) if profiled else None,
    )


def evidence(
    baseline: Mapping[str, Sequence[float | None]],
    *variants: VariantEvidence,
    repeat: Mapping[str, Sequence[float | None]] | None = None,
) -> Evidence:
    again = {s: rows(scores, suite=s) for s, scores in (repeat or {}).items()}
    return Evidence(
        run="quickstart",
        recipe="quickstart",
        recipe_digest=sha256_text("recipe"),
        checkpoint=checkpoint(),
        baseline=variant(
            "baseline",
            {s: rows(scores, suite=s) for s, scores in baseline.items()},
            method="none",
            repeat=again,
        ),
        variants=variants,
        repeat_rows=again,
    )


def simple(
    before: Sequence[float | None], after: Sequence[float | None], lane: Lane = NATIVE
) -> Evidence:
    """One suite called `suite`, one variant called `fp8`."""
    return evidence({"suite": before}, variant("fp8", {"suite": rows(after)}, lane=lane))


def edit(found: Evidence, **changes: Any) -> Evidence:
    """The same evidence with fields of its first variant replaced."""
    return replace(found, variants=(replace(found.variants[0], **changes), *found.variants[1:]))


def edit_row(found: Evidence, index: int, **changes: Any) -> Evidence:
    """The same evidence with one row of the first variant changed."""
    changed = list(found.variants[0].rows["suite"])
    changed[index] = changed[index].model_copy(update=changes)
    return edit(found, rows={"suite": tuple(changed)})


def table(right: int, lost: int, gained: int, wrong: int) -> tuple[list[float], list[float]]:
    """Scores of baseline and variant with the given counts of pairs."""
    before = [1.0] * right + [1.0] * lost + [0.0] * gained + [0.0] * wrong
    after = [1.0] * right + [0.0] * lost + [1.0] * gained + [0.0] * wrong
    return before, after


def demo(outputs: Mapping[str, str] | None = None) -> Evidence:
    """Two suites and three variants: one as good, one emulated and a little worse, one broken.

    Args:
        outputs: replaces outputs of the broken variant's first regressions, by sample id.
    """
    tables = {
        "sentiment": {"fp8": (62, 1, 1, 16), "gptq": (57, 6, 2, 15), "broken": (33, 30, 0, 17)},
        "short_question": {"fp8": (40, 2, 1, 21), "gptq": (39, 3, 1, 21), "broken": (42, 0, 0, 22)},
    }
    scores = {s: {v: table(*t) for v, t in of.items()} for s, of in tables.items()}

    def answers(name: str) -> dict[str, tuple[SampleRow, ...]]:
        made = {s: rows(of[name][1], suite=s) for s, of in scores.items()}
        return {
            s: tuple(
                r.model_copy(update={"output": (outputs or {}).get(r.id, r.output)}) for r in rs
            )
            if name == "broken"
            else rs
            for s, rs in made.items()
        }

    # Every variant's table has the same right answers of the baseline first.
    baseline = {s: of["fp8"][0] for s, of in scores.items()}
    return evidence(
        baseline,
        variant("fp8", answers("fp8")),
        variant("gptq", answers("gptq"), method="gptq", lane=EMULATED, weight_bytes=112_000_000),
        variant("broken", answers("broken"), method="gptq", weight_bytes=105_000_000),
        repeat={s: [*b[:-1], 1.0] for s, b in baseline.items()},
    )
