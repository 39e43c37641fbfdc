"""The serving options a profile sweeps, as a recipe writes them, and the grid they make. Pure.

Names are vLLM's own; `workbench.sweep_grid` says which engine knows which, and what of the grid is
the recipe's own configuration.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from workbench.base import Name, Spec, Unfit
from workbench.digest import content_id

#: Server starts of one variant that nobody asks for without having mistyped.
MOST = 100

_Count = Annotated[int, Field(ge=1, le=10_000_000)]
_Share = Annotated[float, Field(gt=0, le=1)]
#: Those of vLLM 0.32 that any attention backend may know; the others belong to single models.
_KvDtype = Literal["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"]

#: Keys of vLLM's speculative config that a recipe may not set -> why.
_NEVER = {
    "draft_load_config": "the weights of a draft are read from safetensors",
    "code_revision": "code of a checkpoint is never run",
    "synthetic_acceptance_rates": "accepted tokens are measured, never made up",
    "synthetic_acceptance_length": "accepted tokens are measured, never made up",
}


class ServingOptions(Spec):
    """One configuration of a server: the options that differ from the recipe's own. None: as it."""

    max_num_seqs: _Count | None = None
    max_num_batched_tokens: _Count | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    kv_cache_dtype: _KvDtype | None = None
    gpu_memory_utilization: _Share | None = None
    speculative: dict[str, Any] | None = None
    tensor_parallel_size: _Count | None = None
    enforce_eager: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set, by name, in the order above."""
        return {k: v for k, v in self.model_dump(mode="json").items() if v is not None}

    @property
    def digest(self) -> str:
        """Twelve digits that no other configuration has: name of a folder."""
        return content_id(self.given)[:12]

    @property
    def label(self) -> str:
        """In words, such as ``max_num_seqs 8, prefix_caching on``."""
        return said_options(self.given)


#: Every option, in its order.
OPTIONS = tuple(ServingOptions.model_fields)


class SweepSpec(Spec):
    """A grid of serving options: every combination is one server start for each variant.

    A value `null` is the recipe's own, so that an option can be left out in part of the grid. An
    option whose only value that is, is not swept.
    """

    max_num_seqs: tuple[_Count | None, ...] = ()
    max_num_batched_tokens: tuple[_Count | None, ...] = ()
    chunked_prefill: tuple[bool | None, ...] = ()
    prefix_caching: tuple[bool | None, ...] = ()
    kv_cache_dtype: tuple[_KvDtype | None, ...] = ()
    gpu_memory_utilization: tuple[_Share | None, ...] = Field((), description="GPU only")
    speculative: tuple[dict[str, Any] | None, ...] = Field(
        (), description="handed to vLLM's --speculative-config as it is"
    )
    tensor_parallel_size: tuple[_Count | None, ...] = Field((), description="GPU only")
    enforce_eager: tuple[bool | None, ...] = ()
    workloads: tuple[Name, ...] = Field((), description="only these; empty: all of the profile")

    @field_validator("speculative")
    @classmethod
    def _allowed(
        cls, value: tuple[dict[str, Any] | None, ...]
    ) -> tuple[dict[str, Any] | None, ...]:
        for config in value:
            if config is not None:
                _refuse_speculative(config)
        return value

    @model_validator(mode="after")
    def _grid(self) -> Self:
        named = {name: values for name in OPTIONS if (values := getattr(self, name))}
        if not named:
            raise Unfit(
                "'sweep' names no serving option",
                f"give one or more of {', '.join(OPTIONS)}, each a list of values",
            )
        for name, values in named.items():
            if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
                raise Unfit(f"'sweep.{name}' has a value twice", "remove one of them")
        if (count := math.prod(len(values) for values in named.values())) > MOST:
            raise Unfit(
                f"'sweep' makes {count} configurations, each with a server start for every variant",
                f"leave values out: at most {MOST} are taken",
            )
        return self

    @property
    def swept(self) -> tuple[str, ...]:
        """Names of the options that are given a value other than the recipe's own."""
        return tuple(name for name in OPTIONS if any(v is not None for v in getattr(self, name)))

    def grid(self) -> tuple[ServingOptions, ...]:
        """Every combination, the last option changing first."""
        names = self.swept
        return tuple(
            ServingOptions(**dict(zip(names, values, strict=True)))
            for values in itertools.product(*(getattr(self, name) for name in names))
        )


def said_options(given: dict[str, Any]) -> str:
    """Options in words; ``the recipe's own`` where none is given."""
    return (
        ", ".join(f"{name} {_said(value)}" for name, value in given.items()) or "the recipe's own"
    )


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True, separators=(", ", ": "))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _refuse_speculative(config: dict[str, Any]) -> None:
    # vLLM takes a dash for an underscore here.
    keys = {str(key).replace("-", "_"): value for key, value in config.items()}
    method = keys.get("method")
    # Without one vLLM guesses, and takes a dotted model name for code to run.
    if not isinstance(method, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", method):
        raise Unfit(
            "a speculative config names its 'method'",
            "such as {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}",
        )
    for name, why in _NEVER.items():
        if name in keys:
            raise Unfit(f"'{name}' may not be set: {why}", "leave it out")
    if method == "custom_class":
        raise Unfit("'method: custom_class' runs code that is not vLLM's", "name another method")
    if keys.get("rejection_sample_method") == "synthetic":
        raise Unfit("a synthetic acceptance is made up and not measured", "leave it out")
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Unfit(
            f"it is not JSON: {error}", "write numbers, texts, lists and mappings"
        ) from error
