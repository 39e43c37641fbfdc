"""What of a sweep's grid an engine can be given here: what it knows, and what is the recipe's own.

Pure. A combination that is the recipe's own configuration, as far as that is known, is no server
start: the profile measures it anyway. So is a second one that comes to the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workbench.records import Hardware
from workbench.spec import ServeSpec
from workbench.sweep_spec import OPTIONS, ServingOptions, SweepSpec

#: engine -> the options its command takes.
KNOWN: Mapping[str, tuple[str, ...]] = {
    "vllm": OPTIONS,
    "fake": ("max_num_seqs", "max_num_batched_tokens", "speculative"),
    "llamacpp": (),
}
_FLAGS = {
    "prefix_caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "enforce_eager": ("--enforce-eager", "--no-enforce-eager"),
}
_SPECULATIVE = ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens")


def own_options(engine: str, serve: ServeSpec, kv_cache: str, hardware: Hardware) -> dict[str, Any]:
    """The options of the recipe's own configuration that are known; others are the engine's choice.

    Args:
        engine: that serves the variant.
        serve: of the recipe; what its `args` set is not looked into.
        kv_cache: of the variant, ``fp8`` or ``auto``.
        hardware: of this machine.
    """
    if engine != "vllm":
        return {}
    known: dict[str, Any] = {
        "prefix_caching": False,
        "tensor_parallel_size": 1,
        "enforce_eager": not hardware.gpus,
    }
    known = {k: v for k, v in known.items() if not any(map(_FLAGS[k].count, _named(serve.args)))}
    known["kv_cache_dtype"] = kv_cache
    known["gpu_memory_utilization"] = serve.gpu_memory_utilization
    return known


def configurations(
    sweep: SweepSpec, engine: str, serve: ServeSpec, kv_cache: str, hardware: Hardware
) -> tuple[ServingOptions, ...]:
    """The configurations of a grid that are not the recipe's own, each once, in the grid's order.

    Args:
        sweep: the grid.
        engine: that serves the variant.
        serve: of the recipe.
        kv_cache: of the variant, ``fp8`` or ``auto``.
        hardware: of this machine.
    """
    own = own_options(engine, serve, kv_cache, hardware)
    found: dict[str, ServingOptions] = {}
    for options in sweep.grid():
        given = {k: v for k, v in options.given.items() if k not in own or own[k] != v}
        if given:
            other = ServingOptions(**given)
            found.setdefault(other.digest, other)
    return tuple(found.values())


def not_swept(engine: str, lane: str, count: int) -> str:
    """Why a variant is measured under its own configuration alone; empty where it is swept.

    Args:
        engine: that serves it.
        lane: it is served on.
        count: configurations that are not the recipe's own.
    """
    if not KNOWN[engine]:
        return f"not swept: {engine} takes none of these serving options"
    if lane == "emulated":
        return "not swept: on the emulated lane speed and memory are a dequantized twin's"
    if not count:
        return "not swept: every combination is the recipe's own configuration"
    return ""


def refused(sweep: SweepSpec, serve: ServeSpec, hardware: Hardware) -> tuple[str, str, str] | None:
    """What of a sweep cannot be done here, as (key, what, fix); None where all of it can.

    Args:
        sweep: the grid.
        serve: of the recipe; GGUF variants, which another engine serves, are left out instead.
        hardware: of this machine.
    """
    known = KNOWN[serve.engine]
    for name in sweep.swept:
        key = f"profile.sweep.{name}"
        if name not in known:
            return key, f"the {serve.engine} engine has no '{name}'", f"it has {', '.join(known)}"
        most = max((v for v in sweep.tensor_parallel_size if v is not None), default=1)
        if name == "gpu_memory_utilization" and not hardware.gpus:
            return key, f"'{name}' is of a GPU, and this machine has none", "leave it out here"
        if name == "tensor_parallel_size" and most > max(len(hardware.gpus), 1):
            have = f"this machine has {len(hardware.gpus)}"
            return key, f"tensor_parallel_size {most} needs as many GPUs, {have}", "leave it out"
    if "speculative" in sweep.swept and any(map(_SPECULATIVE.count, _named(serve.args))):
        return (
            "profile.sweep.speculative",
            "serve.args speculate too, and vLLM merges the two",
            "take it out of serve.args: the sweep measures both with and without",
        )
    return None


def _named(args: tuple[str, ...]) -> list[str]:
    """The flags above that arguments set: argparse takes the beginning of one for the whole."""
    flags = [*_SPECULATIVE, *(flag for flags in _FLAGS.values() for flag in flags)]
    names = [re.split(r"[=.+]", argument, maxsplit=1)[0].replace("_", "-") for argument in args]
    return [
        flag
        for flag in flags
        if any(name == flag or (len(name) > 3 and flag.startswith(name)) for name in names)
    ]
