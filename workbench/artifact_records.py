"""What the examination of a produced checkpoint leaves behind. Pure data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ArtifactStatus = Literal["PASS", "WARN", "FAIL"]


class _Part(BaseModel):
    """Base of what a manifest holds about its artifact; `workbench.records` builds on it."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ArtifactCheck(_Part):
    """One thing that was looked at in the files."""

    name: str
    status: ArtifactStatus
    sentence: str = Field(description="one sentence a person can read aloud")
    details: dict[str, Any] = {}


class LayerGroup(_Part):
    """Tensors of the source that ended the same way, for the same reason."""

    format: str = Field(description="such as 'int4 g64 sym', 'BF16', 'Q6_K'")
    why: str = Field(description="why they ended that way, such as 'quantized' or 'embeddings'")
    declared: bool = Field(description="whether recipe or format say that they end that way")
    layers: int
    parameters: int
    share: float = Field(description="of the model's parameters")
    bits_per_weight: float = Field(description="of the stored bytes, scales included")
    examples: tuple[str, ...]


class Artifact(_Part):
    """A produced checkpoint, examined without loading it."""

    schema_: Literal["workbench.artifact/1"] = Field("workbench.artifact/1", alias="schema")
    format: str = Field(description="layout the files were read as")
    parameters: int
    quantized_parameters: int
    bits_per_weight: float = Field(description="of all weights, everything stored counted")
    quantized_bits_per_weight: float | None = Field(
        description="of the quantized layers alone; None where there are none"
    )
    declared_bits_per_weight: float | None = Field(
        description="what the format takes by its definition, for the same layers"
    )
    size_ratio: float = Field(description="bytes of its weights to the source's")
    declared_size_ratio: float | None = None
    layers: tuple[LayerGroup, ...]
    checks: tuple[ArtifactCheck, ...]
    files: dict[str, str] = Field(description="weight file -> sha256")

    def having(self, status: ArtifactStatus) -> tuple[ArtifactCheck, ...]:
        """The checks with that status."""
        return tuple(c for c in self.checks if c.status == status)
