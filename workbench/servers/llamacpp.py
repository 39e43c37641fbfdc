"""The llama.cpp engine: llama.cpp's own server (xllamacpp) for one GGUF file.

Every slot, one for each request computed at a time, has a KV cache of `max_model_len` tokens to
itself, as many slots as the recipe asks at a time, as far as memory goes; further requests wait.
What is fixed beyond that is in `workbench/inside/llamacpp_server.py`.

The pinned wheel computes on the processor, on machines with a GPU too.
"""

from __future__ import annotations

import re
from pathlib import Path

from workbench.errors import CheckpointError, RecipeError
from workbench.kv_cache import kv_bytes_per_token
from workbench.records import Choice, Environment
from workbench.servers.engine import Command, Launch, LogFacts

SCRIPT = Path(__file__).parents[1] / "inside" / "llamacpp_server.py"
_GIB = 1 << 30
#: llama.cpp rounds a slot's context up to a multiple of this.
_CONTEXT_STEP = 256
#: Up to so many cores threads sleep while they wait.
_FEW = 4
_FEATURES = re.compile(r"system_info: .*?\| (CPU : .*)$", re.MULTILINE)
_FEATURE = re.compile(r"([A-Z0-9_]+) = 1\b")
_DEVICE = re.compile(r"  - (?!CPU\b)(\w+)\s*: (.+?) \(\d+ MiB")
_FLASH = re.compile(r"Flash Attention (enabled|disabled)")
_SLOTS = re.compile(r"initializing, n_slots = (\d+), n_ctx_slot = (\d+)")
_WEIGHTS = re.compile(r"- type\s+(\w+):\s+(\d+) tensors")


class LlamaCppEngine:
    """One llama.cpp server of one GGUF file."""

    key_variable = "LLAMA_API_KEY"

    def version(self, environment: Environment | None) -> str:
        """Version of xllamacpp, whose last part is the build of llama.cpp it carries."""
        packages = environment.packages if environment else {}
        return packages.get("xllamacpp", "unknown")

    def command(self, launch: Launch) -> Command:
        """Command, environment and choices.

        Raises:
            RecipeError: there is no environment to run it in.
            CheckpointError: the folder does not hold exactly one GGUF file.
        """
        spec = launch.spec
        if not launch.python:
            raise RecipeError(
                "llama.cpp runs in an environment of its own and none was given",
                where="variants: method gguf",
                fix="create it: workbench env create llamacpp",
            )
        context = -(-spec.max_model_len // _CONTEXT_STEP) * _CONTEXT_STEP
        parallel = slots(launch, context)
        threads, waiting = _threads(launch.hardware.cores)
        choices = {
            "slots": parallel,
            "threads": threads,
            "context_per_slot": Choice(
                value=str(context),
                reason=f"serve.max_model_len {spec.max_model_len}, rounded up to a multiple of "
                f"{_CONTEXT_STEP} as llama.cpp does; every slot has its own",
            ),
            "prompt_cache": Choice(
                value="off",
                reason="with it an answer, and the time to its first token, would depend on what "
                "was asked before",
            ),
            "weights_in_memory": Choice(
                value="mapped, not locked", reason="llama.cpp's own default for files on disk"
            ),
        }
        if launch.hardware.gpus:
            choices["device"] = Choice(
                value="cpu", reason="the pinned xllamacpp wheel is built without CUDA"
            )
        if spec.args:
            choices["args"] = Choice(
                value="(none)",
                reason=f"serve.args are for {spec.engine}'s own command; llama.cpp gets none",
            )
        return Command(
            words=(
                *(launch.python, str(SCRIPT)),
                *("--gguf", str(gguf_file(launch.checkpoint))),
                *("--model", launch.model_name),
                *("--port", str(launch.port)),
                *("--slots", parallel.value),
                *("--context", str(context)),
                *("--threads", threads.value),
            ),
            env={
                "PYTHONUNBUFFERED": "1",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": threads.value,
                **waiting,
            },
            choices=choices,
        )

    def read_log(self, text: str) -> LogFacts:
        """Vector extensions and devices it computes with, types of weights, KV cache and slots."""
        kernels: list[str] = []
        features = _FEATURES.search(text)
        if features:
            kernels.append("CPU: " + " ".join(_FEATURE.findall(features.group(1))))
        kernels += [f"{name}: {what.strip()}" for name, what in _DEVICE.findall(text)]
        kernels += [f"flash attention {state}" for state in sorted(set(_FLASH.findall(text)))]
        kernels += [f"{count} tensors {kind}" for kind, count in _WEIGHTS.findall(text)]
        found = _SLOTS.search(text)
        return LogFacts(
            kernels=tuple(kernels),
            kv_cache_tokens=int(found.group(1)) * int(found.group(2)) if found else None,
            max_concurrency=float(found.group(1)) if found else None,
        )


def _threads(cores: int) -> tuple[Choice, dict[str, str]]:
    """How many threads compute, and the variable that says how they wait for each other."""
    if cores > _FEW:
        return Choice(value=str(cores), reason="one for each core this process may use"), {}
    return (
        Choice(
            value=str(cores),
            reason="one for each core this process may use, asleep while it waits: a spinning one "
            "keeps the one it waits for from running whenever another program wants a core "
            "(measured under load on 2 cores: 16 to 18 tokens/s spinning, 63 to 73 asleep)",
        ),
        {"OMP_WAIT_POLICY": "PASSIVE"},
    )


def gguf_file(folder: Path) -> Path:
    """The one GGUF file of a checkpoint folder.

    Raises:
        CheckpointError: there is none, or more than one.
    """
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise CheckpointError(
            f"{len(found)} GGUF files, where llama.cpp is given one",
            where=str(folder),
            fix="make the variant again: workbench run RECIPE --force quantize:VARIANT",
        )
    return found[0]


def slots(launch: Launch, context: int) -> Choice:
    """Requests computed at a time: as many as the recipe asks at a time, as far as memory goes."""
    wanted = max(1, launch.concurrency)
    limit = launch.hardware.memory_bytes // 4
    told = "a quarter of the memory"
    if launch.spec.kv_cache_gib is not None:
        limit, told = int(launch.spec.kv_cache_gib * _GIB), "serve.kv_cache_gib"
    # llama.cpp keeps keys and values in float16.
    token = kv_bytes_per_token(launch.checkpoint, "float16")
    if token is None:
        return Choice(
            value=str(wanted),
            reason=f"the recipe asks {wanted} at a time; the config does not tell how much KV "
            "cache that takes",
        )
    value = max(1, min(wanted, limit // (context * token)))
    size = f"{value * context * token / _GIB:.1f} GiB of KV cache in float16"
    if value < wanted:
        return Choice(
            value=str(value),
            reason=f"{size}: no more fit in {told}; of the {wanted} requests the recipe sends at "
            "a time the others wait",
        )
    return Choice(value=str(value), reason=f"the recipe asks {wanted} at a time; {size}")
