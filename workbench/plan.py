"""From a recipe to ordered steps: their content ids, what is already done, and why.

`step_specs` is pure: it computes each step's id from everything its result depends on. `build`
then looks the ids up in the results folder. An id holds

- the step's own part of the recipe,
- the ids of the steps before it, down to the checkpoint's digests,
- the lock digest of the environment that does the work, and a version number of our own code.

The name of a variant or of a run is in no id, so equal work is shared between runs. What a step
read is checked too (`inputs` of its record): weights that were made again with other bytes
invalidate what was measured on the old ones.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench import __version__
from workbench.base import BASELINE, BASELINE_GGUF
from workbench.clusters import Grouping
from workbench.digest import content_id, sha256_file
from workbench.divergence_inputs import held_out_inputs
from workbench.drafts import in_id, named, swept
from workbench.estimates import estimate, searching
from workbench.integrity import flaw
from workbench.quantizers import quantizer
from workbench.reasons import decided_id, why_decide, why_not
from workbench.recipe import Loaded
from workbench.records import (
    Calibration,
    Checkpoint,
    Choice,
    Evaluation,
    Gate,
    Hardware,
    Lane,
    Manifest,
    Plan,
    PlanStep,
    Profile,
    Record,
    StepKind,
)
from workbench.spec import Recipe
from workbench.store import Run
from workbench.suite_spec import SuiteSpec
from workbench.support import dtype as choose_dtype
from workbench.support import lane as choose_lane
from workbench.sweep_grid import configurations, not_swept
from workbench.sweep_spec import ServingOptions
from workbench.variants import AnyVariant

#: Raised by hand when a step's own code changes what it produces; part of every id.
STEP_VERSIONS: dict[str, int] = {
    "calibrate": 3,
    "quantize": 2,
    "twin": 1,
    "evaluate": 3,
    "profile": 4,
    "gate": 1,
}
NOTEBOOKS: dict[StepKind, str] = {
    "calibrate": "01_calibrate.ipynb",
    "quantize": "02_quantize.ipynb",
    "evaluate": "03_evaluate.ipynb",
    "profile": "04_profile.ipynb",
    "gate": "05_gate.ipynb",
}
RECORDS: dict[StepKind, type[Record]] = {
    "calibrate": Calibration,
    "quantize": Manifest,
    "evaluate": Evaluation,
    "profile": Profile,
    "gate": Gate,
}


@dataclass(frozen=True)
class Facts:
    """What the world says, gathered once; with the recipe it determines every id.

    Attributes:
        checkpoint: the unquantized checkpoint.
        hardware: this machine.
        locks: environment name -> lock digest.
        suites: suite name -> digest; those the recipe's cadence leaves out are not among them.
        suite_sizes: suite name -> (samples, most tokens its answers to one may have together).
        source_digest: of the calibration source; None where nothing of it is read.
        left_out: suite name -> its cadence, of suites the recipe's cadence leaves out.
        suite_specs: suite name -> its `suite.yaml`; only reasons are made of it.
        tasks_digest: of the folder of the user's own lm-eval tasks; None where there is none.
        load_inputs: workload name -> digest of the trace or the suite it asks.
        trace_seconds: workload name -> seconds until the last request of its trace.
        drafts: draft model of speculative decoding -> digest of its files.
        suite_groupings: suite name -> clusters of its samples; only what is said is made of it.
    """

    checkpoint: Checkpoint
    hardware: Hardware
    locks: Mapping[str, str]
    suites: Mapping[str, str]
    suite_sizes: Mapping[str, tuple[int, int]]
    source_digest: str | None
    left_out: Mapping[str, str] = field(default_factory=dict)
    suite_specs: Mapping[str, SuiteSpec] = field(default_factory=dict)
    tasks_digest: str | None = None
    load_inputs: Mapping[str, str] = field(default_factory=dict)
    trace_seconds: Mapping[str, float] = field(default_factory=dict)
    drafts: Mapping[str, str] = field(default_factory=dict)
    suite_groupings: Mapping[str, Grouping] = field(default_factory=dict)


@dataclass(frozen=True)
class StepSpec:
    """One step before anyone looked whether it is done."""

    kind: StepKind
    variant: str | None
    id: str
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        """``evaluate:fp8`` or ``calibrate``."""
        return f"{self.kind}:{self.variant}" if self.variant else self.kind


def variant_lane(loaded: Loaded, variant: AnyVariant, facts: Facts) -> Lane:
    """The lane a variant is served on here; a recipe may ask for the twin all the same."""
    engine = loaded.recipe.engine(variant)
    compute = serving_dtype(loaded, facts, engine).value
    lane = choose_lane(variant.method, _options(variant), engine, facts.hardware, compute)
    if variant.serve_as == "twin" and lane.name in ("native", "weight-only fallback"):
        return Lane(
            name="emulated",
            reason="the recipe asks for the dequantized twin (serve_as: twin)",
            source="recipe",
        )
    return lane


def serving_dtype(loaded: Loaded, facts: Facts, engine: str) -> Choice:
    """The compute dtype all variants that an engine serves share, with its reason."""
    requested = loaded.recipe.serve.dtype
    return choose_dtype(requested, facts.checkpoint, engine, facts.hardware)


def most_at_a_time(recipe: Recipe) -> int:
    """Most requests the recipe sends to one server at a time."""
    profiled = recipe.profile.most_at_a_time if recipe.profile else 1
    return max(recipe.evaluate.concurrency, profiled)


def _options(variant: AnyVariant) -> dict[str, Any]:
    return variant.model_dump(mode="json", exclude={"name", "method", "serve_as", "repeat"})


def calibrate_step(recipe: Recipe, variant: str) -> str:
    """Name of the step that seals the set a variant reads: a replica has one of its own."""
    return f"calibrate:{variant}" if variant in recipe.replicas else "calibrate"


def step_specs(loaded: Loaded, facts: Facts) -> list[StepSpec]:
    """The steps of a recipe in the order they run, the gate left out (its id needs results)."""
    recipe, checkpoint = loaded.recipe, facts.checkpoint
    source = {
        "weights": checkpoint.weights_digest,
        "tokenizer": checkpoint.tokenizer_digest,
        "template": checkpoint.template_digest,
        "config": checkpoint.files.get("config.json", ""),
    }
    steps: list[StepSpec] = []

    def add(kind: StepKind, variant: str | None, spec: dict[str, Any]) -> str:
        whole = {"kind": kind, "version": STEP_VERSIONS[kind], **spec}
        steps.append(StepSpec(kind, variant, content_id(whole), whole))
        return steps[-1].id

    sets: dict[str, str] = {}  # calibrate step -> id of the set it seals
    for variant in recipe.all_variants:
        spec, name = recipe.calibration_of(variant.name), calibrate_step(recipe, variant.name)
        if spec is None or not recipe.calibrates(variant) or name in sets:
            continue
        sets[name] = add(
            "calibrate",
            variant.name if variant.name in recipe.replicas else None,
            {
                # The set does not depend on what the suites may share with it.
                "calibration": spec.model_dump(
                    mode="json", exclude={"contamination_limit", "contamination_scope"}
                ),
                "source": facts.source_digest,
                "tokenizer": source["tokenizer"],
                "template": source["template"],
            },
        )
    made: dict[str, str] = {BASELINE: content_id(source)}
    for variant in (v for v in recipe.all_variants if v.name != BASELINE):
        tools = quantizer(variant.method).environments(variant)
        made[variant.name] = add(
            "quantize",
            variant.name,
            {
                "method": variant.method,
                "options": _options(variant),
                "checkpoint": source,
                "calibration": sets[calibrate_step(recipe, variant.name)]
                if recipe.calibrates(variant)
                else None,
                # None: it does not exist for this processor, which `validate` refuses.
                "environments": {name: facts.locks.get(name) for name in tools},
                # Converted once per source, not once per type.
                "converted": made.get(BASELINE_GGUF) if variant.method == "gguf" else None,
            },
        )
    serve = recipe.serve.model_dump(mode="json", exclude={"port", "startup_seconds"})
    corpus = held_out_inputs(recipe, facts.source_digest, sets)
    for variant in recipe.all_variants:
        lane = variant_lane(loaded, variant, facts)
        engine = recipe.engine(variant)
        served: dict[str, Any] = {
            "serve": serve,
            "lane": lane.name,
            "dtype": serving_dtype(loaded, facts, engine).value,
            "hardware": facts.hardware.key,
            "engine": facts.locks.get(engine),
            "weights": made[variant.name],
            "twin": facts.locks.get("quantize") if lane.name == "emulated" else None,
            **in_id(named(recipe, engine), facts.drafts),
        }
        if engine == "llamacpp":  # its server is started with a slot for each
            served["at_a_time"] = most_at_a_time(recipe)
        # How long one waits, and what is left out, decide nothing of what is asked.
        aside = dict.fromkeys(("suites", "cadence", "request_seconds", "total_seconds"), True)
        evaluate = recipe.evaluate.model_dump(
            mode="json",
            exclude={**aside, "judge": {"key_env", "concurrency", "request_seconds"}},
        )
        evaluate["noise_floor"] = recipe.evaluate.noise_floor and variant in recipe.references
        if evaluate["lm_eval"]:
            # What the folder holds counts, not where it lies.
            evaluate["lm_eval"]["include_path"] = facts.tasks_digest
            evaluate["lm_eval"]["environment"] = facts.locks.get("lmeval")
        add(
            "evaluate",
            variant.name,
            {
                "served": served,
                "evaluate": evaluate,
                "suites": dict(facts.suites),
                "tokenizer": source["tokenizer"],
                "template": source["template"],
                **corpus,
            },
        )
        if recipe.profile and variant.name not in recipe.replicas:
            profile = recipe.profile.model_dump(mode="json", exclude={"alternate"})
            inputs = {"inputs": dict(facts.load_inputs), "tokenizer": source["tokenizer"]}
            inputs |= in_id(swept(recipe, engine), facts.drafts)
            if reference := recipe.in_turn_with(variant, lane.name):
                inputs["beside"] = made[reference]
            add("profile", variant.name, {"served": served, "profile": profile, **inputs})
    return steps


def evidence_digests(loaded: Loaded, run: Run) -> dict[str, str]:
    """Digest of each record the gate reads, by step name; empty where one is missing."""
    found: dict[str, str] = {}
    for variant in loaded.recipe.all_variants:
        folder = run.variant(variant.name)
        names = ["manifest.json", "evaluation.json"] + ["profile.json"] * bool(
            loaded.recipe.profile
        )
        for name in names:
            path = folder / name
            if not path.is_file():
                return {}
            found[f"{variant.name}/{name}"] = content_id(path.read_text("utf-8", "surrogateescape"))
        for rows in sorted((folder / "eval").glob("*.jsonl")):
            found[f"{variant.name}/eval/{rows.name}"] = sha256_file(rows)
        if (path := folder / "divergence.json").is_file():
            found[f"{variant.name}/divergence.json"] = sha256_file(path)
    return found


def gate_spec(
    loaded: Loaded, run: Run, ids: Mapping[str, str], on: datetime.date | None
) -> StepSpec:
    """The gate's step; its id follows from the records that are there now.

    Args:
        loaded: the recipe.
        run: whose records.
        ids: step name -> id as planned; a record with another id is no evidence.
        on: the day by which waivers expire; in no id of a policy without any.
    """
    spec: dict[str, Any] = {
        "kind": "gate",
        "version": STEP_VERSIONS["gate"],
        "run": run.name,
        "recipe": loaded.digest,
        "steps": dict(ids),
        "evidence": evidence_digests(loaded, run),
    }
    if loaded.policy.waivers:
        spec["date"] = on.isoformat() if on else ""
    return StepSpec("gate", None, content_id(spec), spec)


def build(loaded: Loaded, facts: Facts, run: Run, on: datetime.date) -> Plan:
    """The plan of a run on a day: each step, its id, whether it is cached, and why or why not."""
    results = run.results
    steps: list[PlanStep] = []
    weights: dict[str, str | None] = {BASELINE: facts.checkpoint.weights_digest}
    all_cached = True
    specs = step_specs(loaded, facts)
    for step in specs:
        record = results.complete(step.kind, step.id, RECORDS[step.kind])
        cached, reason = False, why_not(step, facts.suite_specs, run)
        if record is not None:
            cached, reason = True, f"same inputs and tools as the record {step.id[:8]}"
        if record is not None and (why := flaw(results, step.kind, step.id, record)):
            cached, reason = False, f"the record {step.id[:8]} is not used: {why}"
        if isinstance(record, Manifest) and step.variant:
            weights[step.variant] = record.weights_digest
        if isinstance(record, Evaluation | Profile) and step.variant:
            have = weights.get(step.variant)
            if have is not None and record.inputs.get("weights") != have:
                cached, reason = False, "the weights were made again with other bytes"
        all_cached = all_cached and cached
        if step.kind == "evaluate" and facts.left_out:
            reason += f"; {left_out(loaded, facts)}"
        starts, said = _sweep(step, loaded, facts)
        reason += "" if cached else said + searching(step, loaded)
        seconds, memory = estimate(step, loaded, facts, starts)
        steps.append(
            PlanStep(
                kind=step.kind,
                variant=step.variant,
                id=step.id,
                cached=cached,
                reason=reason,
                notebook=NOTEBOOKS[step.kind],
                estimate_seconds=None if cached else seconds,
                estimate_memory_bytes=None if cached else memory,
            )
        )
    gate = gate_spec(loaded, run, {s.name: s.id for s in specs}, on)
    done = all_cached and decided_id(run) == gate.id
    steps.append(
        PlanStep(
            kind="gate",
            variant=None,
            id=gate.id,
            cached=done and run.report.is_file(),
            reason=f"same records and policy as the verdict {gate.id[:8]}"
            if done
            else why_decide(loaded, run, on),
            notebook=NOTEBOOKS["gate"],
            estimate_seconds=None if done else 3.0,
        )
    )
    about = {"run": run.name, "recipe_digest": loaded.digest, "workbench": __version__}
    return Plan(**about, steps=tuple(steps))


def configurations_of(
    loaded: Loaded, facts: Facts, variant: str
) -> tuple[ServingOptions, ...] | str:
    """The configurations of the recipe's sweep for a variant, or why there are none."""
    profile, chosen = loaded.recipe.profile, loaded.recipe.variant(variant)
    if profile is None or profile.sweep is None:
        return ""
    engine, kv_cache = loaded.recipe.engine(chosen), getattr(chosen, "kv_cache", "auto")
    found = configurations(profile.sweep, engine, loaded.recipe.serve, kv_cache, facts.hardware)
    lane = variant_lane(loaded, chosen, facts).name
    return not_swept(engine, lane, len(found)) or found


def _sweep(step: StepSpec, loaded: Loaded, facts: Facts) -> tuple[int, str]:
    """How many servers a sweep adds to a step, and how much that is in words."""
    profile = loaded.recipe.profile
    if step.kind != "profile" or profile is None or profile.sweep is None:
        return 0, ""
    found = configurations_of(loaded, facts, step.variant or BASELINE)
    if isinstance(found, str):
        return 0, f"; {found}"
    starts, loads = len(found), profile.swept.load_count
    said = f"; sweep: {starts} more server starts, {loads} loads each, {starts * loads} points more"
    return starts, said


def left_out(loaded: Loaded, facts: Facts) -> str:
    """In words, which suites the recipe's cadence leaves out."""
    names = ", ".join(f"{name} ({cadence})" for name, cadence in facts.left_out.items())
    return f"left out at cadence {loaded.recipe.evaluate.cadence}: {names}"
