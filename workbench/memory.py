"""What a checkpoint takes in a GPU's memory: estimated, said by the engine, and measured.

The estimate needs no GPU: weights by their tensors' bytes (`workbench.weights`), the KV cache by
`workbench.kv_cache`, and a workspace by the rule `workspace` states. Pure.

    KV pool     = memory x utilization - weights / tp - workspace     on each GPU
    concurrency = pool / bytes of one sequence of the length asked about, in whole blocks

With a fixed `gpu_memory_utilization` every variant takes the same memory in all, so what a variant
frees is told as KV-cache tokens and as requests at a time, not as memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from workbench.base import Record
from workbench.kv_cache import KvLayout
from workbench.memory_records import Difference as Difference
from workbench.memory_records import Estimate as Estimate
from workbench.memory_records import MemoryStatement as MemoryStatement
from workbench.records import Hardware, Profile, Serving
from workbench.weights import Model

_GIB = 1 << 30
#: Context, communication buffers, CUDA graphs, and what the driver keeps of its own total.
_FIXED = _GIB
#: Tokens in a block of vLLM's KV cache: on GPUs, and on CPUs.
GPU_BLOCK, CPU_BLOCK = 16, 128


def batch_defaults(name: str, memory_bytes: int) -> tuple[int, int]:
    """Tokens vLLM computes at once, and requests at a time, where nobody sets them.

    From `EngineArgs.get_batch_defaults` of vLLM 0.32 for the API server.
    """
    if memory_bytes >= 70 * _GIB and "a100" not in name.lower():
        return 8192, 1024
    return 2048, 256


class Workspace(NamedTuple):
    """Bytes on one GPU beside weights and KV cache, and the rule they come from."""

    bytes: int
    rule: str


def workspace(config: Mapping[str, Any], tp: int, tokens: int, requests: int) -> Workspace:
    """What one GPU needs beside weights and KV cache.

    A rule, not a measurement: the engine measures it when it starts.

    Args:
        config: of the model.
        tp: tensor-parallel size.
        tokens: computed at once (`max_num_batched_tokens`).
        requests: at a time (`max_num_seqs`), each with a row of logits.
    """
    hidden = _size(config, "hidden_size")
    inner = max(
        _size(config, "intermediate_size") or 4 * hidden,
        _size(config, "moe_intermediate_size") * (_size(config, "num_experts_per_tok") or 1),
    )
    activations = 2 * tokens * (4 * hidden + 2 * inner // tp)
    logits = 8 * requests * _size(config, "vocab_size")
    total = _FIXED + activations + logits
    return Workspace(
        total,
        f"{total / _GIB:.1f} GiB on each GPU, a rule and not a measurement: 1 GiB for context and "
        f"graphs, activations of {tokens:,} tokens at once, logits of {requests:,} requests "
        "(vLLM's defaults for this GPU)",
    )


def _size(config: Mapping[str, Any], key: str) -> int:
    """A size of the config; the largest where layers differ; 0 where it is silent."""
    value = config.get(key)
    return max(
        (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)),
        default=0,
    )


# --------------------------------------------------------------------------- statements


def estimate(
    layout: KvLayout,
    *,
    weight_bytes: int,
    memory_bytes: int,
    length: int,
    utilization: float = 0.9,
    workspace_bytes: int = 0,
    kv_dtype: str = "bfloat16",
    tp: int = 1,
    block: int = GPU_BLOCK,
    pool_bytes: int | None = None,
) -> Estimate:
    """Estimate one server's memory.

    Args:
        layout: of the KV cache.
        weight_bytes: of the whole model; each GPU holds its `tp`-th part.
        memory_bytes: of one device.
        length: tokens of a request, prompt and answer.
        utilization: share of the device the engine takes.
        workspace_bytes: on each GPU.
        kv_dtype: of keys and values.
        tp: tensor-parallel size.
        block: tokens in a block.
        pool_bytes: of the KV cache where it was set (`--kv-cache-memory-bytes`); else what is left.
    """
    mine = -(-weight_bytes // tp)
    pool = int(memory_bytes * utilization) - mine - workspace_bytes
    pool = pool if pool_bytes is None else pool_bytes
    token = layout.token_bytes(kv_dtype, tp)
    usable = max(0, pool) // (block * token) * block * token
    each = layout.sequence_bytes(length, kv_dtype, tp, block)
    windowed = any(group.window is not None for group in layout.layers)
    return Estimate(
        memory_bytes=memory_bytes,
        utilization=utilization,
        tp=tp,
        weight_bytes=mine,
        workspace_bytes=workspace_bytes,
        kv_dtype=kv_dtype,
        block=block,
        token_bytes=token,
        pool_bytes=pool,
        length=length,
        kv_tokens=int(usable / each * length) if windowed else usable // token,
        max_concurrency=usable / each,
        context=layout.longest(usable, kv_dtype, tp, block),
    )


def state(
    variant: str,
    layout: KvLayout,
    estimated: Estimate,
    serving: Serving,
    peak_gpu_bytes: int | None,
    peak_memory_bytes: int | None,
) -> MemoryStatement:
    """Put an estimate beside what the engine said and what was measured.

    Args:
        variant: its name.
        layout: of its KV cache.
        estimated: of the server that ran.
        serving: how it ran.
        peak_gpu_bytes: most device memory; None without a GPU.
        peak_memory_bytes: most resident memory of the server's processes.
    """
    e = estimated
    found: list[tuple[str, float, float, Literal["engine", "measurement"]]] = []
    if serving.kv_cache_tokens is not None:
        found.append(("KV-cache tokens", e.kv_tokens, serving.kv_cache_tokens, "engine"))
    if serving.max_concurrency is not None:
        each = layout.sequence_bytes(serving.max_model_len, e.kv_dtype, e.tp, e.block)
        name = f"concurrency at {serving.max_model_len} tokens"
        found.append((name, e.usable_bytes / each, serving.max_concurrency, "engine"))
    total = e.tp * (e.weight_bytes + e.workspace_bytes + max(0, e.pool_bytes))
    if peak_gpu_bytes is not None:
        found.append(("device memory", total, peak_gpu_bytes, "measurement"))
    elif peak_memory_bytes is not None:
        found.append(("resident memory", total, peak_memory_bytes, "measurement"))
    return MemoryStatement(
        variant=variant,
        lane=serving.lane.name,
        estimate=e,
        kv_tokens=serving.kv_cache_tokens,
        max_concurrency=serving.max_concurrency,
        max_model_len=serving.max_model_len,
        peak_gpu_bytes=peak_gpu_bytes,
        peak_memory_bytes=peak_memory_bytes,
        differences=tuple(
            Difference(name=name, estimated=told, found=seen, by=by)
            for name, told, seen, by in found
        ),
    )


def stated(
    profile: Profile, model: Model, hardware: Hardware, length: int
) -> MemoryStatement | None:
    """The statement about a server that was profiled; None where it was not vLLM.

    What was set is read from its record: tensor parallelism, share of the memory, or the bytes of
    its KV cache, which is how vLLM is started on a CPU.

    Args:
        profile: of the variant.
        model: the checkpoint that was served.
        hardware: it was served on.
        length: tokens of a request to tell concurrency for, such as a recipe's P95.
    """
    serving = profile.serving
    if serving.engine != "vllm":
        return None
    dtype = serving.dtype.value
    kv = serving.choices.get("kv_cache_dtype")
    pool = serving.choices.get("kv_cache_bytes")
    tp = int(option_of(serving.command, "--tensor-parallel-size", "-tp") or 1)
    gpu = hardware.gpus[0] if hardware.gpus else None
    room, share = 0, 0.9
    if gpu is not None:
        room = workspace(model.config, tp, *batch_defaults(gpu.name, gpu.memory_bytes)).bytes
        share = float(option_of(serving.command, "--gpu-memory-utilization") or share)
    estimated = estimate(
        model.layout,
        weight_bytes=model.loaded_bytes(dtype),
        memory_bytes=gpu.memory_bytes if gpu else hardware.memory_bytes,
        length=length,
        utilization=share,
        workspace_bytes=room,
        kv_dtype=kv.value if kv else dtype,
        tp=tp,
        block=GPU_BLOCK if gpu else CPU_BLOCK,
        pool_bytes=int(pool.value) if pool else None,
    )
    return state(
        profile.variant,
        model.layout,
        estimated,
        serving,
        profile.peak_gpu_bytes,
        profile.peak_memory_bytes,
    )


def option_of(command: Sequence[str], *names: str) -> str:
    """What a server's command gives an option; empty where it has none of the names."""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            return value if equals else " ".join(command[place + 1 : place + 2])
    return ""


class Freed(Record):
    """What a variant frees against its reference, in tokens and requests of one length."""

    source: Literal["engine", "estimate", "none"]
    length: int
    kv_tokens: int | None
    concurrency: tuple[float, float] | None = Field(description="of the reference, of the variant")
    sentence: str


def freed(reference: MemoryStatement, variant: MemoryStatement) -> Freed:
    """What a variant frees: by what both engines said, else by both estimates; never mixed.

    Concurrency is told at the length the estimates were made for.
    """
    length = variant.estimate.length
    if reference.estimate.length != length:
        raise ValueError(f"estimates at {reference.estimate.length} and {length} tokens")
    if "emulated" in (reference.lane, variant.lane):
        sentence = f"{variant.variant} was served as its twin, which says nothing about its memory"
        return Freed(
            source="none", length=length, kv_tokens=None, concurrency=None, sentence=sentence
        )
    before, after = reference.kv_tokens, variant.kv_tokens
    source: Literal["engine", "estimate"] = "engine"
    rates: tuple[float, float]
    if before is not None and after is not None:
        whole = [-(-length // s.estimate.block) * s.estimate.block for s in (reference, variant)]
        rates = (before / whole[0], after / whole[1])
    else:
        source = "estimate"
        before, after = reference.estimate.kv_tokens, variant.estimate.kv_tokens
        rates = (reference.estimate.max_concurrency, variant.estimate.max_concurrency)
    told = "by the engines' logs" if source == "engine" else "estimated"
    return Freed(
        source=source,
        length=length,
        kv_tokens=after - before,
        concurrency=rates,
        sentence=f"{variant.variant} has {after - before:+,} KV-cache tokens against "
        f"{reference.variant} ({told}): {int(rates[0]):,} -> {int(rates[1]):,} requests of "
        f"{length:,} tokens at a time",
    )
