"""What a suite's author writes: `suite.yaml`, its scorer, and one line of `samples.jsonl`. Pure.

`workbench.suites` loads and checks the files, `workbench.scorers` does what the options say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from workbench.base import Name, Spec, Unfit

SUITE_SCHEMA = "workbench.suite/1"

Tier = Literal["critical", "supporting", "advisory"]
#: How often a suite is worth its time; each includes the ones before it.
Cadence = Literal["commit", "nightly", "release"]
CADENCES: tuple[Cadence, ...] = ("commit", "nightly", "release")
Kind = Literal[
    "short_question",
    "long_context",
    "summarization",
    "structured_output",
    "tool_call",
    "nl2sql",
    "refusal",
    "classification",
    "other",
]

#: llama.cpp keeps 32 bits of a seed, and its highest value means "any"; repeats count on from it.
MOST_SEED = 2**31 - 1
#: Tokens of an answer: no server this asks has a longer context.
MOST_TOKENS = 2**20

# --------------------------------------------------------------------------- scorers


class ExactScorer(Spec):
    """The output is a target, white space at both ends apart."""

    name: Literal["exact"] = "exact"


class NormalizedScorer(Spec):
    """Equal to a target after case, width, accents, articles and punctuation are folded."""

    name: Literal["normalized"] = "normalized"


class ContainsScorer(Spec):
    """A target stands in the output as whole words."""

    name: Literal["contains"] = "contains"
    all: bool = Field(False, description="every target must stand in it, not just one")


class RegexScorer(Spec):
    """What a pattern finds in the output equals a target; without a pattern the target is one."""

    name: Literal["regex"] = "regex"
    pattern: str | None = Field(
        None, description="its first group (or whole match) is compared, the last match counts"
    )
    ignore_case: bool = True


class NumericScorer(Spec):
    """The number in the output is the target's, within a tolerance, units converted."""

    name: Literal["numeric"] = "numeric"
    absolute: float = Field(0.0, ge=0, description="accepted difference, in the target's unit")
    relative: float = Field(0.0, ge=0, lt=1, description="accepted share of the target")
    units: dict[str, float] = Field(
        {}, description="unit -> how many of the base unit it is, such as {kg: 1, g: 0.001}"
    )
    which: Literal["first", "last"] = Field("last", description="number of the output that counts")


class ChoiceScorer(Spec):
    """The choice is the target, character for character. For ranked choices."""

    name: Literal["choice"] = "choice"


class JsonFieldsScorer(Spec):
    """F1 over the fields of a JSON object; what breaks `response_schema` is flagged."""

    name: Literal["json_fields"] = "json_fields"
    strict: bool = Field(False, description="an answer that breaks the schema scores 0")


class ToolCallScorer(Spec):
    """The right tools with the right arguments, in order."""

    name: Literal["tool_call"] = "tool_call"
    ordered: bool = Field(True, description="the calls must come in the target's order")
    extra_arguments: bool = Field(False, description="arguments beyond the target's are accepted")


class SqlScorer(Spec):
    """The result set of the query equals the target query's, on the suite's own database."""

    name: Literal["sql_result"] = "sql_result"
    database: str = Field("database.sql", description="SQL script beside suite.yaml that makes it")
    seconds: float = Field(2.0, gt=0, le=60, description="time limit of one query")


class RougeScorer(Spec):
    """ROUGE F1 against the best of the targets (Lin 2004)."""

    name: Literal["rouge"] = "rouge"
    variant: Literal["rouge1", "rouge2", "rougeL"] = "rougeL"


class SimilarityScorer(Spec):
    """chrF against the best of the targets (Popovic 2015): no embedding, any language."""

    name: Literal["similarity"] = "similarity"


class RefusalScorer(Spec):
    """Target `refuse` or `answer`: did the model do what it should?"""

    name: Literal["refusal"] = "refusal"
    phrases: tuple[str, ...] = Field((), description="more phrases that count as a refusal")


class JudgeScorer(Spec):
    """A model judges the answer against the target, twice, with the positions swapped.

    The endpoint is the recipe's `evaluate.judge`.
    """

    name: Literal["judge"] = "judge"
    rubric: str = Field(min_length=1, description="what makes an answer good")


class PythonScorer(Spec):
    """A function of the user's own: `module:function`, or `file.py:function` in the folder.

    It is called with the sample as a dict and the output, and returns a number from 0 to 1.
    """

    name: Literal["python"] = "python"
    function: str = Field(pattern=r"^[A-Za-z_][\w./]*:[A-Za-z_]\w*$")


AnyScorer = Annotated[
    ExactScorer
    | NormalizedScorer
    | ContainsScorer
    | RegexScorer
    | NumericScorer
    | ChoiceScorer
    | JsonFieldsScorer
    | ToolCallScorer
    | SqlScorer
    | RougeScorer
    | SimilarityScorer
    | RefusalScorer
    | JudgeScorer
    | PythonScorer,
    Field(discriminator="name"),
]

# --------------------------------------------------------------------------- suite


class MessageSpec(Spec):
    """One message of a prompt; its content is a template like `prompt`."""

    role: Literal["system", "user", "assistant"]
    content: str


class SamplingSpec(Spec):
    """How an answer is drawn. Greedy unless the suite says otherwise."""

    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(
        0, ge=0, le=MOST_SEED, description="of the first repeat; the next ones count on from it"
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), max_length=16)


class SuiteSpec(Spec):
    """`suite.yaml`: how the samples beside it are asked and scored."""

    schema_: Literal["workbench.suite/1"] = Field(alias="schema")
    name: Name
    kind: Kind = Field("other", description="the business case it stands for")
    description: str
    ask: Literal["generate", "rank_choices", "call_tools"] = Field(
        description="'rank_choices' compares the likelihood of each choice after the prompt, "
        "'call_tools' sends `tools` and reads `tool_calls`"
    )
    system: str | None = None
    prompt: str | None = Field(None, description="template with {field} of the sample")
    messages: tuple[MessageSpec, ...] = Field(
        (), description="instead of `system` and `prompt`: a whole conversation, each a template"
    )
    chat_template: bool = Field(
        description="explicit: the most common silent wrong number is a missing template"
    )
    samples_of: Name | None = Field(
        None, description="take the samples of that suite instead of a file of its own"
    )
    max_tokens: int = Field(64, ge=1, le=MOST_TOKENS)
    sampling: SamplingSpec = SamplingSpec()
    repeats: int = Field(1, ge=1, le=64, description="times each sample is asked; for sampling")
    response_schema: dict[str, Any] | None = Field(None, description="JSON schema of an answer")
    guided: bool = Field(True, description="decode under `response_schema`, not only check it")
    tools: tuple[dict[str, Any], ...] = Field((), description="functions, as OpenAI's API has them")
    tool_choice: Literal["auto", "required"] = "auto"
    scorer: AnyScorer
    metric: Name = "accuracy"
    higher_is_better: bool = True
    tier: Tier = Field("critical", description="how much it matters; the policy decides")
    cluster: str | None = Field(
        None, description="field whose equal values are not independent samples"
    )
    cadence: Cadence = "commit"
    tags: tuple[str, ...] = ()

    @field_validator("scorer", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("name")
    @classmethod
    def _no_second_pass(cls, name: str) -> str:
        if name.endswith(".repeat"):
            raise Unfit(
                "a suite's name must not end with '.repeat'",
                "rows of the baseline's second pass are named so; choose another",
            )
        return name

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise Unfit(
                "give exactly one of 'prompt' and 'messages'",
                "'prompt: \"{question}\"' is the usual one",
            )
        if self.messages and self.system is not None:
            raise Unfit(
                "'system' goes with 'prompt'; in 'messages' it is the first of them",
                "move it there: {role: system, content: ...}",
            )
        return self

    @property
    def templates(self) -> tuple[MessageSpec, ...]:
        """The prompt as messages, whichever way it was written. `system` is no template."""
        if self.messages:
            return self.messages
        return (MessageSpec(role="user", content=self.prompt or ""),)


class Sample(BaseModel):
    """One line of `samples.jsonl`. Fields beyond these feed the prompt template."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    id: Annotated[str, Field(min_length=1, max_length=128)]
    target: Any = Field(
        description="what the scorer compares with: a text, a list of texts, an object"
    )
    choices: list[str] | None = None
