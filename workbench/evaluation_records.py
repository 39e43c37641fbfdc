"""Records of an evaluation: rows, suite results, divergence. Pure data, see `workbench.records`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from workbench.base import Record
from workbench.suite_spec import Cadence, Kind, Tier

#: What can be the matter with an answer beside being wrong. Counted apart, not instead.
Flag = Literal[
    "invalid_json",
    "schema_violation",
    "no_tool_call",
    "wrong_tool",
    "invalid_arguments",
    "invalid_sql",
    "unreadable",  # no number, or nothing the pattern finds
    "truncated",
    "empty",
    "repetitive",
    "refused",  # where an answer was due
]

#: Where a row's `grade` has the counts of a pooled metric: fields right, found and wanted.
COUNTS = "counts"
#: How the error of a row begins whose answer is there and only the judge's word is not.
NOT_JUDGED = "not judged: "
#: The same where the user's own scorer failed at it.
NOT_SCORED = "not scored: "


class SampleRow(Record):
    """One sample asked once. A line of `eval/<suite>.jsonl`.

    What must be equal for a row to pair with another's: the digests of prompt, target, sampling,
    template and tokenizer, and of the tokens where both servers tell them.
    """

    id: str
    repeat: int = Field(0, description="which time it was asked; 0 is the first")
    prompt_digest: str = Field(
        description="sha256 of the exact text sent after templating, choices included"
    )
    tokens_digest: str | None = Field(
        None, description="of the prompt's token ids as the server made them; None: it tells none"
    )
    target_digest: str
    sampling_digest: str = ""
    template_digest: str | None = Field(None, description="None: no chat template was applied")
    tokenizer_digest: str = ""
    output: str
    score: float | None = Field(description="0..1; None where request or scorer failed")
    flags: tuple[Flag, ...] = Field((), description="what is the matter with it beside being wrong")
    grade: dict[str, Any] = Field({}, description="how the score came about, by the scorer")
    cluster: str | None = Field(None, description="samples of one cluster are not independent")
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    choice_logprobs: dict[str, float] | None = None
    started: float = Field(description="seconds since the step began")
    seconds: float
    error: str | None = None

    @property
    def key(self) -> str:
        """The id, with the number of the repeat from the second on: unique in a file."""
        return f"{self.id}#{self.repeat}" if self.repeat else self.id


class SuiteResult(Record):
    """One suite on one variant."""

    suite: str
    kind: Kind = "other"
    source: Literal["suite", "lm-eval"] = "suite"
    metric: str = "accuracy"
    higher_is_better: bool = True
    tier: Tier = "critical"
    cadence: Cadence = "commit"
    suite_digest: str = Field(description="of suite.yaml and samples.jsonl")
    conditions: dict[str, Any] = Field(description="what must be equal for two results to pair")
    lane: str = Field(
        "", description="how the format ran; a reference's may differ, so no condition"
    )
    rows_file: str
    rows_digest: str = Field(
        description="of ids, prompts, outputs and scores in sample order, no timings"
    )
    n: int = Field(description="rows: samples times repeats")
    samples: int | None = Field(
        None, description="that the suite has; `evaluate.limit` may have asked fewer. None: unknown"
    )
    repeats: int = Field(1, ge=1)
    failed: int
    score: float | None
    flagged: dict[str, int] = Field({}, description="flag -> rows that have it")
    finish_reasons: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    unavailable: str = Field("", description="why this engine cannot be asked; no rows then")


class DivergenceTrace(Record):
    """The log-probabilities one variant gave a fixed corpus, as kept on disk."""

    file: str = Field("", description="file name; empty where the engine gives none")
    digest: str = Field("", description="sha256 of the file")
    corpus_digest: str = ""
    documents: int = 0
    tokens: int = Field(0, description="positions whose log-probabilities are in the file")
    top_k: int = 0
    corpus_tokens: int = Field(0, description="of all documents, what is only context included")
    sources: dict[str, int] = Field({}, description="source -> positions")
    cut: int = Field(0, description="documents that were cut to fit context or budget")
    left_out: dict[str, int] = Field({}, description="reason -> documents, rows or samples")
    seconds: float = 0.0
    unavailable: str = Field("", description="why there is none")


class DivergenceStats(Record):
    """A variant's distributions against its reference's, over some positions. Natural logarithms.

    `error` entries are standard errors, None of a single token. Names follow llama.cpp's
    `--kl-divergence` report.
    """

    tokens: int
    ppl_reference: float
    ppl_reference_error: float | None
    ppl_variant: float
    ppl_variant_error: float | None
    ln_ratio_mean: float = Field(description="mean ln(PPL variant / PPL reference)")
    ln_ratio_error: float | None
    ln_ppl_correlation: float | None = Field(description="of the two, over tokens; None: constant")
    ppl_difference: float
    ppl_difference_error: float | None
    kld_mean: float
    kld_error: float | None
    kld: dict[str, float] = Field(
        description="max, 99.9, 99, 95, 90, median, 10, 5, 1 (percentiles), min"
    )
    delta_p_mean: float = Field(description="change of the correct token's probability")
    delta_p_error: float | None
    delta_p_rms: float
    delta_p: dict[str, float] = Field(description="percentiles, as of kld")
    same_top: float = Field(description="share of positions with the same likeliest token")
    same_top_error: float | None
    covered: float = Field(
        description="mean probability, by the reference, of the cells that were told apart, 0..1"
    )


class Divergence(Record):
    """A variant against its reference, teacher-forced on the same tokens: `divergence.json`."""

    schema_: Literal["workbench.divergence/1"] = Field("workbench.divergence/1", alias="schema")
    variant: str
    reference: str
    corpus_digest: str = ""
    top_k: int = 0
    tail: str = Field("", description="how what lies beyond the top k is treated")
    overall: DivergenceStats | None = None
    by_source: dict[str, DivergenceStats] = {}
    by_position: dict[str, DivergenceStats] = Field({}, description="range of positions -> stats")
    inputs: dict[str, str] = Field({}, description="digests of both traces")
    unavailable: str = Field("", description="why there is none")
