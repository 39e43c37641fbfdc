"""What a recipe says of its calibration set: the source, how it is sampled and rendered. Pure.

A source is a name or a path (JSONL, CSV, parquet), or a file of a hub dataset at a commit.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from workbench.base import Spec, Unfit

#: Shorter rows say nothing about a layer's inputs.
MIN_TOKENS = 8
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
#: As the hub names them.
_DATASET = re.compile(r"(?=.{3,96}\Z)\w(?:[\w.-]*\w)?(?:/\w(?:[\w.-]*\w)?)?\Z", re.ASCII)


class HubSource(Spec):
    """One file of a dataset on the hub, at a commit."""

    hub: str = Field(min_length=3, description="id of the dataset such as org/name")
    revision: str | None = Field(
        None, validate_default=True, description="commit of 40 hex digits, never a branch"
    )
    file: str = Field(min_length=1, description="parquet, JSONL or CSV file of its repository")

    @field_validator("hub")
    @classmethod
    def _an_id(cls, value: str) -> str:
        if not _DATASET.match(value) or ".." in value or "--" in value:
            raise ValueError("a dataset's id is 'name' or 'org/name', in letters, digits and -_.")
        return value

    @field_validator("file")
    @classmethod
    def _readable(cls, value: str) -> str:
        if value.startswith("/") or "\\" in value or ".." in value.split("/"):
            raise ValueError("the file is a path inside the dataset's repository, without '..'")
        if not value.endswith((".parquet", ".jsonl", ".csv")):
            raise ValueError("the file ends in .parquet, .jsonl or .csv")
        return value

    @field_validator("revision")
    @classmethod
    def _at_a_commit(cls, value: str | None) -> str | None:
        if value is None:
            raise ValueError("a hub dataset needs a commit of 40 hex digits: it must not move")
        if not _COMMIT.match(value):
            raise ValueError(
                f"'{value}' is no commit: a branch or a tag moves, so give the 40 hex digits of "
                "the commit it stands at"
            )
        return value

    @property
    def label(self) -> str:
        """Dataset and file, as records and messages name the source."""
        return f"{self.hub}:{self.file}"


def _kind(value: Any) -> str:
    return "<dataset>" if isinstance(value, dict | HubSource) else "<name>"


class ColumnsSpec(Spec):
    """Which fields of a row hold what: one of text, prompt and response, or messages."""

    text: str | None = None
    prompt: str | None = None
    response: str | None = None
    messages: str | None = Field(None, description="a list of messages, or the JSON text of one")
    id: str | None = Field(None, description="default: the field 'id', or the row's number")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.prompt is None) != (self.response is None):
            raise Unfit(
                "'prompt' and 'response' go together",
                "name both, or the one field that holds the text: 'columns: {text: ...}'",
            )
        kinds = [self.text, self.prompt, self.messages]
        if sum(kind is not None for kind in kinds) != 1:
            raise Unfit(
                "name one of 'text', 'prompt' with 'response', or 'messages'",
                "such as 'columns: {prompt: question, response: answer}'",
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The fields named, the id's apart."""
        named = (self.text, self.prompt, self.response, self.messages)
        return tuple(name for name in named if name is not None)


class StrataSpec(Spec):
    """Draw from groups of rows, each its share of the samples."""

    by: str = Field(min_length=1, description="field of the source, such as language")
    quotas: dict[str, float] | None = Field(
        None, description="value -> share of the samples; default: each value's share of the source"
    )

    @field_validator("quotas")
    @classmethod
    def _shares(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if value is None:
            return None
        if not value or any(not 0 < share <= 1 for share in value.values()):
            raise Unfit("a quota is a share above 0 and at most 1", "write 0.75 and not 75")
        total = sum(value.values())
        # Thirds written with two digits are meant as thirds.
        if abs(total - 1) > 0.015:
            raise Unfit(f"quotas add up to 1, not {total:g}", "change them, or leave 'quotas' out")
        return value


class CalibrationSpec(Spec):
    """Which texts a calibrated method sees."""

    source: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[HubSource, Tag("<dataset>")], Discriminator(_kind)
    ] = Field(
        description="folder of calib_data/, a JSONL, CSV or parquet file, or {hub, revision, file}"
    )
    column: str | None = Field(None, description="field that holds the text: 'columns: {text: …}'")
    columns: ColumnsSpec | None = None
    samples: int = Field(128, ge=1)
    max_tokens: int = Field(512, ge=8, description="tokens per sample; longer texts are cut")
    min_tokens: int = Field(
        MIN_TOKENS, ge=1, description="rows of less text, template apart, are dropped and counted"
    )
    seed: int = Field(0, ge=0, lt=2**63)
    packing: Literal["truncate", "pack"] = Field(
        "truncate", description="'pack': rows one after another, samples of exactly max_tokens"
    )
    strata: StrataSpec | None = None
    chat_template: bool = Field(
        True, description="render rows with the model's chat template; 'none' is false"
    )
    contamination_limit: float = Field(
        0.0, ge=0, le=1, description="share of a suite's samples that may stand in the set"
    )
    contamination_scope: Literal["sample", "source"] = Field(
        "sample", description="compare the suites with the drawn rows, or with every usable row"
    )

    @field_validator("chat_template", mode="before")
    @classmethod
    def _none_is_false(cls, value: Any) -> Any:
        return False if value == "none" else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.column is not None and self.columns is not None:
            raise Unfit("give 'column' or 'columns', not both", "remove one of them")
        if self.min_tokens > self.max_tokens:
            raise Unfit(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}",
                "use a smaller min_tokens",
            )
        return self

    @property
    def fields(self) -> ColumnsSpec | None:
        """Which fields hold what, however it was written; None where the usual names count."""
        return ColumnsSpec(text=self.column) if self.column is not None else self.columns

    @property
    def label(self) -> str:
        """The source as records and messages name it."""
        return self.source.label if isinstance(self.source, HubSource) else self.source
