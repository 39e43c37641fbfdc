"""What a user writes: recipe, variants, policy, suites. Frozen, and an unknown key is an error.

Pure: nothing here reads a file. `workbench.recipe` loads YAML into these and turns pydantic's
complaints into errors that name the file, the line and the nearest known key.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from workbench.base import BASELINE, BASELINE_GGUF, Name, Spec, Unfit, distinct
from workbench.calibration_spec import CalibrationSpec as CalibrationSpec
from workbench.policy_spec import POLICY_SCHEMA as POLICY_SCHEMA
from workbench.policy_spec import PerformanceCheck as PerformanceCheck
from workbench.policy_spec import Policy as Policy
from workbench.policy_spec import QualityCheck as QualityCheck
from workbench.policy_spec import SizeCheck as SizeCheck
from workbench.profile_spec import ProfileSpec as ProfileSpec
from workbench.suite_spec import SUITE_SCHEMA as SUITE_SCHEMA
from workbench.suite_spec import Cadence
from workbench.suite_spec import Sample as Sample
from workbench.suite_spec import SuiteSpec as SuiteSpec
from workbench.suite_spec import Tier as Tier
from workbench.variants import AnyVariant, GgufSpec, NoneSpec

RECIPE_SCHEMA = "workbench.recipe/1"

# --------------------------------------------------------------------------- recipe


class ModelSpec(Spec):
    """The unquantized checkpoint: a local folder, or a hub id with a revision."""

    path: str | None = Field(None, description="folder, relative to the recipe or absolute")
    hub: str | None = Field(None, description="hub id such as org/name")
    revision: str | None = Field(None, description="commit of the hub repository, never a branch")
    licence: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise Unfit(
                "give exactly one of 'path' and 'hub'",
                "'path: FOLDER' is on this disk, 'hub: org/name' with 'revision' is fetched",
            )
        if self.hub is not None and self.revision is None:
            raise Unfit(
                "'hub' needs 'revision', a commit, so that the run can be repeated",
                "add 'revision: <the commit's 40 hex digits>'",
            )
        return self


class ServeSpec(Spec):
    """How every variant is served."""

    engine: Literal["vllm", "fake"] = "vllm"
    max_model_len: int = Field(2048, ge=64)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    kv_cache_gib: float | None = Field(
        None, gt=0, le=65536, description="CPU only: size of the KV cache"
    )
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="GPU only")
    port: int | None = Field(None, ge=1024, le=65535, description="default: a free one")
    startup_seconds: float = Field(900, gt=0, description="how long a server may take to be ready")
    args: tuple[str, ...] = Field((), description="more arguments for the engine's own command")


class LmEvalTask(Spec):
    """One task of lm-evaluation-harness, imported as a suite of the same name."""

    task: Name
    fewshot: int | None = Field(None, ge=0, description="default: the task's own")
    limit: int | None = Field(
        None, ge=1, description="only the first so many documents, of each task of a group"
    )
    metric: str | None = Field(
        None,
        min_length=1,
        description="per-document metric such as acc_norm, or with lm-eval's filter "
        "'exact_match,strict-match'; default: the task's first",
    )
    chat_template: bool = Field(
        False, description="ask as a chat, rendered with the checkpoint's own template"
    )


class LmEvalSpec(Spec):
    """Public benchmarks, run by lm-eval in its own environment against the same server."""

    tasks: tuple[LmEvalTask, ...] = Field(min_length=1)
    include_path: str | None = Field(
        None, description="folder of the user's own tasks, relative to the recipe"
    )
    seed: int = 0


class DivergenceSpec(Spec):
    """Teacher-forced log-probabilities on a fixed corpus, against the baseline's."""

    tokens: int = Field(20_000, ge=64, description="at most so many")
    top_k: int = Field(64, ge=1, le=1000, description="likeliest tokens recorded at each position")
    suites: bool = Field(True, description="reference answers of the suites are in the corpus")
    held_out: int = Field(64, ge=0, description="rows of the calibration source the set left out")


class JudgeSpec(Spec):
    """An OpenAI-compatible endpoint that judges answers."""

    url: str = Field(pattern=r"^https?://", description="without /v1")
    model: str
    key_env: str | None = Field(None, description="environment variable that holds the key")
    concurrency: int = Field(8, ge=1, le=256)
    request_seconds: float = Field(120, gt=0)


class EvaluateSpec(Spec):
    """Which suites are asked of the baseline and of every variant."""

    suites: tuple[Name, ...] = Field(min_length=1)
    cadence: Cadence = Field("release", description="leave out suites that are worth less often")
    concurrency: int = Field(16, ge=1, le=256)
    limit: int | None = Field(
        None, ge=1, description="only the first so many samples of each suite"
    )
    noise_floor: bool = Field(True, description="ask the baseline twice and record how it differs")
    request_seconds: float = Field(300, gt=0, description="time limit of one request")
    total_seconds: float | None = Field(None, gt=0, description="time limit of one suite")
    lm_eval: LmEvalSpec | None = None
    divergence: DivergenceSpec | None = None
    judge: JudgeSpec | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that is evaluated by name: suites, then tasks of lm-eval."""
        tasks = self.lm_eval.tasks if self.lm_eval else ()
        return (*self.suites, *(task.task for task in tasks))


#: How a recipe gets a calibration set.
_ADD = "add 'calibration: {source: instructions, samples: 128}', or your own JSONL file as source"


class Replica(NamedTuple):
    """A variant made again with another calibration seed.

    Attributes:
        variant: as it is made.
        of: name of the variant it repeats.
        seed: of its calibration set.
    """

    variant: AnyVariant
    of: str
    seed: int


class Recipe(Spec):
    """One release decision: a checkpoint, its variants, and how they are judged."""

    schema_: Literal["workbench.recipe/1"] = Field(alias="schema")
    name: Name
    model: ModelSpec
    calibration: CalibrationSpec | None = None
    variants: tuple[AnyVariant, ...] = Field(min_length=1)
    serve: ServeSpec = ServeSpec()
    evaluate: EvaluateSpec
    profile: ProfileSpec | None = None
    policy: str = Field(description="policy file, relative to the recipe or absolute")

    @model_validator(mode="after")
    def _variants(self) -> Self:
        distinct("variants are called", [v.name for v in self.variants])
        distinct("evaluate.suites entries are", list(self.evaluate.suites))
        distinct("suites or lm-eval tasks are called", list(self.evaluate.names))
        for w in self.profile.workloads if self.profile else ():
            needs = w.tokens_at(1.0)
            if needs is not None and needs > self.serve.max_model_len:
                raise Unfit(
                    f"workload '{w.name}' needs {needs} tokens, "
                    f"serve.max_model_len is {self.serve.max_model_len}",
                    "make the workload smaller, or raise serve.max_model_len",
                )
        if self.profile:
            distinct("workloads are called", [w.name for w in self.profile.workloads])
            if self.profile.alternate and self.serve.port is not None:
                raise Unfit(
                    f"'profile.alternate' has two servers up, and serve.port {self.serve.port} is "
                    "one port",
                    "leave serve.port out: each then gets a free one",
                )
        for v in self.variants:
            if v.name in (BASELINE, BASELINE_GGUF) or (v.method == "none" and v.kv_cache == "auto"):
                raise Unfit(
                    f"'{v.name}': the baseline is implied, do not list it in 'variants'",
                    "remove it, or name what is to be made of it",
                )
            if v.calibrates and self.calibration is None:
                rather = ", or 'imatrix: false'" if v.method == "gguf" else ""
                raise Unfit(
                    f"variant '{v.name}' ({v.method}) needs a 'calibration' section", _ADD + rather
                )
            if v.repeat and self.calibration is None:
                raise Unfit(f"'repeat' of variant '{v.name}' needs a 'calibration' section", _ADD)
        distinct("variants are called", [v.name for v in self.all_variants])
        return self

    def calibrates(self, variant: AnyVariant) -> bool:
        """True where a variant reads the calibration set; the fake method does if there is one."""
        return variant.calibrates or (variant.may_calibrate and self.calibration is not None)

    def engine(self, variant: AnyVariant) -> str:
        """The engine that serves a variant: the recipe's, and llama.cpp for a GGUF file."""
        if variant.method == "gguf" and self.serve.engine != "fake":
            return "llamacpp"
        return self.serve.engine

    def reference(self, variant: AnyVariant) -> str:
        """Name of the unquantized variant it is paired with, which is served by the same engine."""
        return BASELINE if self.engine(variant) == self.serve.engine else BASELINE_GGUF

    def in_turn_with(self, variant: AnyVariant, lane: str) -> str:
        """Name of the reference a variant's loads are measured in turn with; empty: with none.

        Args:
            variant: which one.
            lane: its lane's name; the speed of a twin is nothing to be compared.
        """
        alternates = self.profile is not None and self.profile.alternate
        alone = lane == "emulated" or variant in self.references
        return self.reference(variant) if alternates and not alone else ""

    @property
    def references(self) -> tuple[AnyVariant, ...]:
        """The unquantized variants: the baseline, and its GGUF where llama.cpp serves a variant."""
        found: list[AnyVariant] = [NoneSpec(name=BASELINE)]
        if any(v.method == "gguf" for v in self.variants):
            found.append(GgufSpec(name=BASELINE_GGUF, type="source", imatrix=False))
        return tuple(found)

    @property
    def all_variants(self) -> tuple[AnyVariant, ...]:
        """The unquantized ones first, the variants in the order written, then the replicas."""
        replicas = (replica.variant for replica in self.replicas.values())
        return (*self.references, *self.variants, *replicas)

    @property
    def replicas(self) -> dict[str, Replica]:
        """By name: variants made again with another calibration seed (`repeat`)."""
        found: dict[str, Replica] = {}
        for variant in self.variants:
            if variant.repeat is None or self.calibration is None:
                continue
            first = self.calibration.seed
            for seed in range(first + 1, first + variant.repeat.seeds):
                name = f"{variant.name}-seed{seed}"
                again = variant.model_copy(update={"name": name, "repeat": None})
                found[name] = Replica(again, variant.name, seed)
        return found

    def calibration_of(self, variant: str) -> CalibrationSpec | None:
        """The calibration a variant reads: the recipe's, a replica's with its own seed."""
        replica = self.replicas.get(variant)
        if replica is None or self.calibration is None:
            return self.calibration
        return self.calibration.model_copy(update={"seed": replica.seed})

    def variant(self, name: str) -> AnyVariant:
        """The variant of that name, the baseline included.

        Raises:
            KeyError: there is none.
        """
        for v in self.all_variants:
            if v.name == name:
                return v
        raise KeyError(name)
