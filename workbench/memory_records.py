"""What is written of a server's memory; `workbench.memory` fills it in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workbench.base import Record


class Estimate(Record):
    """Memory of one server, from the checkpoint alone. Bytes are those on each GPU."""

    memory_bytes: int = Field(description="of one device")
    utilization: float
    tp: int = 1
    weight_bytes: int
    workspace_bytes: int
    kv_dtype: str
    block: int
    token_bytes: int = Field(description="of the KV cache, while no window is full")
    pool_bytes: int = Field(description="of the KV cache; negative where the weights do not fit")
    length: int = Field(description="tokens of the request that concurrency is told for")
    kv_tokens: int = Field(description="in the cache, when every request has that length")
    max_concurrency: float = Field(description="requests of that length at a time")
    context: int = Field(description="longest single request")

    @property
    def usable_bytes(self) -> int:
        """The pool in whole blocks."""
        block = self.block * self.token_bytes
        return max(0, self.pool_bytes) // block * block


class Difference(Record):
    """One figure told twice."""

    name: str
    estimated: float
    found: float
    by: Literal["engine", "measurement"]

    @property
    def relative(self) -> float | None:
        """(found - estimated) / estimated; None where nothing was estimated."""
        return (self.found - self.estimated) / self.estimated if self.estimated else None


class MemoryStatement(Record):
    """What a variant takes: estimated, said by its engine, and measured, side by side."""

    schema_: Literal["workbench.memory/1"] = Field("workbench.memory/1", alias="schema")
    variant: str
    lane: str
    estimate: Estimate
    kv_tokens: int | None = Field(description="the engine's own statement, from its log")
    max_concurrency: float | None = Field(description="the same, at `max_model_len` tokens")
    max_model_len: int
    peak_gpu_bytes: int | None = Field(description="measured by NVML, all devices together")
    peak_memory_bytes: int | None = Field(description="measured, resident on the host")
    differences: tuple[Difference, ...]
