"""What a workload is: its lengths, a trace, or a suite, and the six classes by name. Pure.

    {name: chat, prompt_tokens: 512, output_tokens: 128}
    {preset: long-context}                                   one of the six classes, see PRESETS
    {preset: shared-prefix, prompt_tokens: 4096}             the same, with another length
    {name: monday, trace: traces/monday.jsonl}
    {name: questions, suite: short_question}

`workbench.workloads` makes requests of it.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from workbench.base import Name, Spec, Unfit
from workbench.json_schema import complaint
from workbench.lengths import Length

PresetName = Literal[
    "short-question",
    "many-short",
    "long-context",
    "long-output",
    "structured-output",
    "shared-prefix",
]

#: Fields of bounded size, so that answers under it are of about equal length.
_ORDER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 32},
        "priority": {"enum": ["low", "normal", "high"]},
        "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 4,
            "items": {
                "type": "object",
                "properties": {
                    "article": {"type": "string", "maxLength": 24},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                },
                "required": ["article", "quantity"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["customer", "priority", "items"],
    "additionalProperties": False,
}


def _long_tail(median: int, p95: int, most: int) -> dict[str, Any]:
    return {"distribution": "lognormal", "median": median, "p95": p95, "min": 8, "max": most}


#: The classes of request a serving test has to cover, as what a recipe would say of each.
PRESETS: dict[PresetName, dict[str, Any]] = {
    "short-question": {
        "prompt_tokens": _long_tail(64, 192, 512),
        "output_tokens": _long_tail(64, 192, 384),
    },
    "many-short": {"prompt_tokens": 64, "output_tokens": 32, "concurrency": (32, 64, 128)},
    "long-context": {
        "prompt_tokens": {"distribution": "uniform", "min": 6144, "max": 8192},
        "output_tokens": 128,
    },
    "long-output": {"prompt_tokens": 128, "output_tokens": 1024},
    "structured-output": {
        "prompt_tokens": _long_tail(256, 512, 1024),
        "output_tokens": 256,
        "response_schema": _ORDER_SCHEMA,
    },
    "shared-prefix": {"prompt_tokens": 1024, "output_tokens": 64, "shared_prefix": 0.75},
}


class Workload(Spec):
    """One kind of traffic. Its prompts come from lengths, from a trace, or from a suite."""

    name: Name
    preset: PresetName | None = Field(None, description="take what is not written here from it")
    prompt_tokens: Length | None = None
    output_tokens: Length | None = Field(
        None, description="exactly so many where `ignore_eos`, else at most"
    )
    ignore_eos: bool | None = Field(
        None, description="force the length; default: yes, unless a schema or a sample decides"
    )
    shared_prefix: float = Field(
        0.0, ge=0, lt=1, description="share of each prompt that is the same in all of a group"
    )
    prefixes: int = Field(1, ge=1, description="groups, each with a prefix of its own")
    response_schema: dict[str, Any] | None = Field(None, description="decode answers under it")
    trace: str | None = Field(None, description="JSONL file to replay, relative to the recipe")
    suite: Name | None = Field(None, description="ask the samples of this suite")
    concurrency: tuple[int, ...] | None = Field(
        None, min_length=1, description="levels for this workload in place of the profile's"
    )
    requests: int | None = Field(
        None,
        ge=2,
        le=1_000_000,
        description="measured at each load in place of the profile's",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("preset") not in [*PRESETS]:
            return data
        preset = data["preset"]
        return {"name": preset, **PRESETS[preset], **data}

    @field_validator("response_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        # A server would refuse every request of the load, hours later.
        if value is not None and (bad := complaint(value)):
            raise Unfit(
                f"it is no JSON schema: {bad}",
                "write one of draft 2020-12, such as {type: object, properties: {answer: {type: "
                "string}}, required: [answer]}",
            )
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        lengths = self.prompt_tokens is not None or self.output_tokens is not None
        sources = (lengths, self.trace is not None, self.suite is not None)
        if sum(sources) != 1:
            raise Unfit(
                f"workload '{self.name}' has {'more than one source' if any(sources) else 'none'}",
                "give 'prompt_tokens' and 'output_tokens', or 'trace', or 'suite'",
            )
        if lengths and (self.prompt_tokens is None or self.output_tokens is None):
            raise Unfit(
                f"workload '{self.name}' has one length without the other",
                "give 'prompt_tokens' and 'output_tokens'",
            )
        if not lengths and (self.shared_prefix or self.response_schema is not None):
            raise Unfit(
                "'shared_prefix' and 'response_schema' are of prompts that are made from lengths",
                "remove them: a trace or a suite brings its own",
            )
        if self.prefixes > 1 and not self.shared_prefix:
            raise Unfit("'prefixes' without 'shared_prefix'", "add 'shared_prefix: 0.5'")
        if self.ignore_eos and (self.response_schema is not None or self.suite is not None):
            raise Unfit(
                "'ignore_eos' cannot be kept: a schema, or a sample, decides where an answer ends",
                "remove 'ignore_eos: true'",
            )
        if any(level < 1 for level in self.concurrency or ()):
            raise Unfit("a concurrency level is at least 1", "such as [1, 8, 32]")
        return self

    @property
    def forced(self) -> bool:
        """Whether answers are forced to their length."""
        if self.ignore_eos is not None:
            return self.ignore_eos
        return self.response_schema is None and self.suite is None

    def tokens_at(self, share: float) -> int | None:
        """Prompt and answer together, each at this quantile: 1 is the longest, 0.95 the P95.

        None where a trace or a suite decides.
        """
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return self.prompt_tokens.quantile(share) + self.output_tokens.quantile(share)
