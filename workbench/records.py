"""What happened: every record the workbench writes, each with a schema version. Pure data.

A record is written once, whole, when its step is complete (`workbench.store`). Its `id` is the
content id of the step's inputs; `inputs` holds the digests that were actually read, so that a
result can be traced and is never reused for other bytes.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from workbench.artifact_records import Artifact
from workbench.base import Record as Record
from workbench.calibration_records import Calibration as Calibration
from workbench.calibration_records import CalibrationRow as CalibrationRow
from workbench.evaluation_records import Divergence as Divergence
from workbench.evaluation_records import DivergenceStats as DivergenceStats
from workbench.evaluation_records import DivergenceTrace as DivergenceTrace
from workbench.evaluation_records import SampleRow as SampleRow
from workbench.evaluation_records import SuiteResult as SuiteResult
from workbench.load_records import HighestRate, LoadSummary
from workbench.memory_records import MemoryStatement
from workbench.objective import Best
from workbench.plan_records import Plan as Plan
from workbench.plan_records import PlanStep as PlanStep
from workbench.plan_records import StepKind as StepKind
from workbench.waivers import Waived

Verdict = Literal["GO", "GO WITH WAIVER", "NO-GO", "INCONCLUSIVE"]
#: ANOMALOUS is too good to be true, and blocks; WARN and NOT TRIPPED are of tripwires, which are
#: advisory and show nothing to be good.
CheckStatus = Literal[
    "PASS",
    "FAIL",
    "INCONCLUSIVE",
    "MISSING",
    "NOT COMPARABLE",
    "ANOMALOUS",
    "WARN",
    "NOT TRIPPED",
]
LaneName = Literal["native", "weight-only fallback", "emulated", "unsupported"]

#: Exit codes of the command line. 1 is left to Python: it means a bug.
EXIT_CODES: dict[Verdict, int] = {"GO": 0, "GO WITH WAIVER": 0, "NO-GO": 10, "INCONCLUSIVE": 11}
#: The verdicts a variant may ship with.
MAY_SHIP: tuple[Verdict, ...] = ("GO", "GO WITH WAIVER")


#: The warning of a verdict that rests on the shipped fakes.
FAKE = "a fake engine or quantizer was used: this verdict says nothing about a model"


class Choice(Record):
    """An automatic decision, with the reason that led to it."""

    value: str
    reason: str


class Lane(Record):
    """How an engine can run a format on this hardware."""

    name: LaneName
    reason: str
    source: str = Field(description="where the statement comes from: documentation, or 'measured'")


class Gpu(Record):
    """One GPU."""

    name: str
    compute_capability: str
    memory_bytes: int
    driver: str
    platform: Literal["cuda", "rocm"] = "cuda"


class Hardware(Record):
    """The machine, as far as it decides what can run and how fast."""

    cpu: str
    isa: tuple[str, ...] = Field(description="the vector extensions that choose kernels, sorted")
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def key(self) -> str:
        """Short text that is equal where measurements may be compared."""
        if self.gpus:
            return " + ".join(f"{g.name} (sm{g.compute_capability})" for g in self.gpus)
        return f"{self.cpu} x{self.cores} [{','.join(self.isa)}]"

    @property
    def target(self) -> Literal["cpu", "cuda"]:
        """Which flavour of each environment this machine needs."""
        return "cuda" if self.gpus else "cpu"


class Environment(Record):
    """An isolated environment that was created and verified."""

    schema_: Literal["workbench.environment/1"] = Field("workbench.environment/1", alias="schema")
    name: str
    target: Literal["cpu", "cuda"]
    lock_digest: str = Field(
        description="sha256 of the pinned requirement file and the Python version"
    )
    python: str = Field(description="path of its interpreter")
    python_version: str
    packages: dict[str, str] = Field(description="distribution -> version, as installed")
    created_seconds: float


class Checkpoint(Record):
    """A checkpoint on disk, read without torch."""

    schema_: Literal["workbench.checkpoint/1"] = Field("workbench.checkpoint/1", alias="schema")
    path: str
    architecture: str
    parameters: int
    weight_bytes: int
    dtype: str = Field(
        description="dtype of most of the weight bytes, safetensors spelling, e.g. BF16"
    )
    hidden_size: int
    layers: int
    max_position_embeddings: int
    linear_input_widths: tuple[int, ...] = Field(
        description="distinct widths a group_size must divide"
    )
    tied_embeddings: bool
    quantization: str | None = Field(None, description="quant_method of config.json, if any")
    licence: str | None = None
    weights_digest: str
    tokenizer_digest: str
    template_digest: str | None
    files: dict[str, str] = Field(description="relative path -> sha256")


class Manifest(Record):
    """A produced checkpoint."""

    schema_: Literal["workbench.manifest/2"] = Field("workbench.manifest/2", alias="schema")
    id: str
    variant: str
    method: str
    options: dict[str, Any]
    inputs: dict[str, str] = Field(description="digests read: checkpoint, calibration seal")
    path: str = Field(description="folder of the checkpoint")
    weight_bytes: int
    weights_digest: str
    files: dict[str, str]
    environment: str = Field(
        description="lock digest of the environment that made it, or 'workbench'"
    )
    packages: dict[str, str] = Field(description="versions of the tools that made it")
    choices: dict[str, Choice] = {}
    seconds: float
    peak_memory_bytes: int | None = None
    peak_gpu_bytes: int | None = Field(
        None, description="most device memory the quantizing job held; None: it used no GPU"
    )
    artifact: Artifact | None = Field(
        None, description="what its files were found to be; None for what was not produced here"
    )


class Serving(Record):
    """How a variant was served when something was measured on it."""

    engine: str
    engine_version: str
    environment: str
    lane: Lane
    served_path: str
    served_digest: str = Field(
        description="weights digest of what was loaded: the twin's own on an emulated lane"
    )
    twin_of: str | None = Field(
        None, description="weights digest of the checkpoint a twin stands for"
    )
    drafts: dict[str, str] = Field(
        {}, description="draft model of speculative decoding -> digest of its files"
    )
    dtype: Choice
    max_model_len: int
    command: tuple[str, ...] = Field(description="exact command, the key redacted")
    hardware: str
    kernels: tuple[str, ...] = Field((), description="kernel names read from the engine's log")
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    choices: dict[str, Choice] = Field({}, description="what was decided for the engine, and why")
    startup_seconds: float
    log: str = Field("", description="file name of the kept log")


class Evaluation(Record):
    """Every suite on one variant, asked of one server."""

    schema_: Literal["workbench.evaluation/2"] = Field("workbench.evaluation/2", alias="schema")
    id: str
    variant: str
    inputs: dict[str, str]
    serving: Serving
    suites: tuple[SuiteResult, ...]
    repeat: tuple[SuiteResult, ...] = Field((), description="the baseline's second pass (A/A)")
    restarts: int = Field(0, description="times the server died and was started again")
    rescored: dict[str, tuple[float | None, float | None]] = Field(
        {}, description="suite scored again after it was asked -> score as asked, and now"
    )
    divergence: DivergenceTrace | None = None
    seconds: float
    finished: str = Field("", description="when, UTC, ISO 8601")


class LoadPoint(Record):
    """One workload at one concurrency. Times in milliseconds, over completed requests only."""

    workload: str
    concurrency: int
    completed: int
    failed: int
    ttft_ms_p50: float | None
    ttft_ms_p95: float | None
    tpot_ms_p50: float | None
    tpot_ms_p95: float | None
    output_tokens_per_s: float | None
    seconds: float
    errors: dict[str, int] = {}


class Configuration(Record):
    """One configuration of a sweep: what its server was, or why it has no figures. Never gated."""

    schema_: Literal["workbench.configuration/1"] = Field(
        "workbench.configuration/1", alias="schema"
    )
    options: dict[str, Any] = Field(description="as the recipe names them; others are its own")
    status: Literal["measured", "failed"]
    error: str = Field("", description="why its server did not come up, or died")
    weights: str = Field(description="digest of the variant's weights")
    serving: Serving | None = Field(None, description="None: the server was never ready")
    loads: tuple[LoadSummary, ...] = Field((), description="those before it died, if it died")
    peak_memory_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    seconds: float = Field(description="start and end of the server included")


class Profile(Record):
    """Latency, throughput and memory of one variant."""

    schema_: Literal["workbench.profile/1"] = Field("workbench.profile/1", alias="schema")
    id: str
    variant: str
    inputs: dict[str, str]
    serving: Serving
    points: tuple[LoadPoint, ...] = Field(description="closed loops, as the checks read them")
    loads: tuple[LoadSummary, ...] = Field((), description="every load, with all of its figures")
    highest_rates: dict[str, HighestRate] = Field(
        {}, description="workload -> the highest rate that met the targets"
    )
    peak_memory_bytes: int | None = Field(description="peak RSS of the server's process group")
    peak_gpu_bytes: int | None = Field(None, description="peak used device memory (NVML)")
    memory: MemoryStatement | None = Field(
        None, description="estimated, said by the engine and measured; None: see memory_unknown"
    )
    memory_unknown: str = Field("", description="why nothing could be estimated")
    sweep: tuple[Configuration, ...] = Field(
        (), description="other serving options, each on a server of its own"
    )
    not_swept: str = Field("", description="why the recipe's sweep left this variant out")
    resumed: int = Field(
        0, description="passes taken over from an attempt that was cut short, each once"
    )
    began: str = Field("", description="when its first pass began, UTC, ISO 8601; sweep left out")
    finished: str = Field("", description="when its last one had ended")
    seconds: float
    beside: Profile | None = Field(
        None,
        description="its unquantized reference, measured in turn with it (profile.alternate)",
        exclude_if=lambda value: value is None,
    )


class Check(Record):
    """One gated or advisory statement about one variant."""

    name: str
    kind: Literal["quality", "answers", "performance", "size", "divergence", "policy", "artifact"]
    tier: Literal["critical", "supporting", "advisory"]
    status: CheckStatus
    sentence: str = Field(description="one sentence a person can read aloud")
    value: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    n: int | None = None
    details: dict[str, Any] = {}
    waiver: Waived | None = Field(None, description="in force for this FAIL, which stays one")


class VariantVerdict(Record):
    """The answer for one variant."""

    variant: str
    method: str
    verdict: Verdict
    reason: str
    lane: Lane | None
    reference: str = Field("baseline", description="the unquantized variant it was paired with")
    checks: tuple[Check, ...]


class Spread(Record):
    """One suite on a variant that was made with several calibration seeds."""

    variant: str
    suite: str
    scores: dict[str, float] = Field(description="variant or replica -> mean score, 0..1")
    deviation: float | None = Field(description="sample standard deviation; None of fewer than two")
    statuses: dict[str, CheckStatus] = Field({}, description="what the gate says of each")
    missing: tuple[str, ...] = Field((), description="replicas without a score")


class Gate(Record):
    """The decision document's data: `gate.json`."""

    schema_: Literal["workbench.gate/1"] = Field("workbench.gate/1", alias="schema")
    id: str
    run: str
    recipe: str
    recipe_digest: str
    policy: str
    policy_digest: str
    inputs: dict[str, str] = Field(
        description="record -> rows or weights digest the verdict rests on"
    )
    variants: tuple[VariantVerdict, ...]
    noise_floor: dict[str, dict[str, float]] = Field(
        {}, description="suite -> A/A churn and difference of the baseline"
    )
    reference_noise: dict[str, dict[str, dict[str, float]]] = Field(
        {}, description="the same of each further reference, such as baseline-gguf"
    )

    sensitivity: tuple[Spread, ...] = Field((), description="of variants with `repeat`")
    warnings: tuple[str, ...] = Field((), description="what a reader must know beside the verdict")
    best: Best | None = Field(None, description="by the policy's objective; None: it has none")
    what_if: tuple[str, ...] = Field(
        (), description="what differs from the run's own policy: not the run's verdict"
    )
    compared_with: str = Field(
        "", description="the earlier run that stands for the baseline, of the same weights"
    )
    date: str = Field(
        "", description="the day, UTC, by which waivers expire; empty: the policy has none"
    )
    verdict: Verdict = Field(
        "INCONCLUSIVE", description="the worst of the variants'; INCONCLUSIVE where there is none"
    )

    @property
    def aside(self) -> str:
        """What must stand right beside the verdict, in brackets; empty where nothing must."""
        said = f" (compared with run {self.compared_with})" if self.compared_with else ""
        said += (
            f" (what if {', '.join(self.what_if)}: not the run's verdict)" if self.what_if else ""
        )
        fake = " (fake engine: says nothing about a model)" if FAKE in self.warnings else ""
        return said + fake

    @model_validator(mode="after")
    def _worst(self) -> Self:
        verdicts = {v.verdict for v in self.variants}
        worst: Verdict = "INCONCLUSIVE"
        if "NO-GO" in verdicts:
            worst = "NO-GO"
        elif verdicts and verdicts <= set(MAY_SHIP):
            worst = "GO" if verdicts == {"GO"} else "GO WITH WAIVER"
        if "verdict" in self.model_fields_set and self.verdict != worst:
            raise ValueError(f"the verdict says {self.verdict}, the variants say {worst}")
        object.__setattr__(self, "verdict", worst)
        return self
