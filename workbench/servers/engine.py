"""What an engine is to the rest: a command for a launch, and facts read from its log. No processes.

A new engine is one module with a class of this protocol and one line in `ENGINES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workbench.records import Choice, Environment, Hardware
from workbench.spec import ServeSpec
from workbench.sweep_spec import ServingOptions

#: engine -> where it is implemented; imported when it is used
ENGINES: Mapping[str, str] = {
    "vllm": "workbench.servers.vllm:VllmEngine",
    "llamacpp": "workbench.servers.llamacpp:LlamaCppEngine",
    "fake": "workbench.servers.fake:FakeEngine",
}


@dataclass(frozen=True)
class Launch:
    """Everything an engine needs to write its command.

    Attributes:
        spec: of the recipe.
        checkpoint: folder that is loaded.
        model_name: the name it is served under.
        dtype: compute dtype.
        port: that is free.
        python: interpreter of the engine's environment.
        hardware: of this machine.
        kv_cache: ``fp8`` where the variant asks for an FP8 KV cache, else ``auto``.
        twin: whether `checkpoint` is a dequantized twin, which has no scales of a KV cache.
        concurrency: most requests the recipe sends at a time.
        tools: whether a suite offers functions to the model.
        top_logprobs: most log-probabilities of one position that are asked for.
        options: of a sweep; none of them where the recipe's own configuration is served.
    """

    spec: ServeSpec
    checkpoint: Path
    model_name: str
    dtype: str
    port: int
    python: str
    hardware: Hardware
    kv_cache: str = "auto"
    twin: bool = False
    concurrency: int = 1
    tools: bool = False
    top_logprobs: int = 0
    options: ServingOptions = field(default_factory=ServingOptions)


@dataclass(frozen=True)
class Command:
    """How an engine starts: its command, what it needs in its environment, and why so.

    Attributes:
        words: program and exact arguments; the key is not among them.
        env: variables on top of ours; the key comes apart.
        choices: what was decided, with reasons.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    choices: Mapping[str, Choice]


@dataclass(frozen=True)
class LogFacts:
    """What an engine's log tells about itself."""

    kernels: tuple[str, ...] = ()
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None


class Engine(Protocol):
    """What differs between engines."""

    key_variable: str

    def version(self, environment: Environment | None) -> str:
        """The engine's own version."""

    def command(self, launch: Launch) -> Command:
        """Command, environment and choices for one server.

        Raises:
            RecipeError: the spec asks for what the engine cannot do.
        """

    def read_log(self, text: str) -> LogFacts:
        """Find kernels and KV-cache figures in a log."""


def engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        KeyError: there is none.
    """
    module, _, attribute = ENGINES[name].partition(":")
    found: Engine = getattr(importlib.import_module(module), attribute)()
    return found
