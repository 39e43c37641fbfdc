"""Does it fit, how many requests at a time, how many cards, at what cost: without a GPU. Pure.

For every format and KV type: does the checkpoint fit a named GPU, on how many of them together, how
long may a request be, how many of the P95 length run at a time. Speed is never made up: cards and
cost need a measured profile, or the latency the load is served with (Little's law).

    requests in flight = requests/s x latency            (Little, 1961)
    cost per million tokens = price per hour x cards / tokens per hour x 10^6
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.capacity_formats import asked
from workbench.capacity_rows import HEADROOM, SIZES, Load, Row, compute_dtype, rows
from workbench.capacity_speed import Speed
from workbench.errors import RecipeError
from workbench.gpus import entry_of
from workbench.memory import GPU_BLOCK, batch_defaults, workspace
from workbench.records import Hardware
from workbench.weights import Model

_GIB = 1 << 30


@dataclass(frozen=True)
class Answer:
    """Every row, and what they rest on."""

    rows: tuple[Row, ...]
    assumptions: tuple[str, ...] = field(repr=False)


def plan(model: Model, hardware: Hardware, load: Load, measured: Speed | None = None) -> Answer:
    """Answer for every format and KV type.

    Args:
        model: the checkpoint.
        hardware: with one GPU, the kind a server gets one or more of.
        load: what is asked, checked here.
        measured: speed of the one format the load names.

    Raises:
        RecipeError: the load is none, does not fit the model's context, or goes with a profile
            of nobody knows which format.
    """
    load.check()
    limit = model.layout.context
    if limit is not None and load.length > limit:
        raise RecipeError(
            f"a request of {load.length:,} tokens is longer than the model's context of {limit:,}",
            where="--p95-in, --p95-out",
            fix="lower them, or name a checkpoint with a longer context",
        )
    if measured is not None and load.qps is None:
        raise RecipeError(
            "a profile answers for a load, and there is none",
            where="--profile",
            fix="say how many requests a second: --qps",
        )
    if measured is not None and len(asked(model, load.formats)) != 1:
        raise RecipeError(
            "a profile is of one format, and it does not say which",
            where="--profile",
            fix="name it with --format",
        )
    if measured is not None and load.tp not in (None, measured.cards):
        raise RecipeError(
            f"the profile was measured on {measured.cards} cards",
            where="--tp",
            fix="leave it out, or measure on that many",
        )
    if measured is not None and load.latency is not None:
        raise RecipeError(
            "both a measured profile and a latency are given",
            where="--latency",
            fix="leave it out: the profile has the speed",
        )
    made = tuple(rows(model, hardware, load, measured))
    return Answer(made, tuple(_assumptions(model, hardware, load, measured, made)))


def _assumptions(
    model: Model, hardware: Hardware, load: Load, measured: Speed | None, made: tuple[Row, ...]
) -> Iterator[str]:
    """Everything the figures rest on, one sentence each."""
    gpu, layout, dtype = hardware.gpus[0], model.layout, compute_dtype(hardware)
    entry = entry_of(gpu.name)
    source = f" ({entry.source})" if entry else ""
    yield (
        f"memory: {gpu.memory_bytes / _GIB:.1f} GiB of {gpu.name}{source}, of which the engine "
        f"takes {load.utilization:.0%} (--utilization)"
    )
    yield (
        f"weights: by the checkpoint's tensors ({model.stored_bytes / _GIB:.2f} GiB as stored, "
        f"{model.dtype}); another format by its bits with scales, and embeddings, norms and "
        "output layer in 16 bits; divided evenly over the cards"
    )
    fused = [t for n, t in model.tensors.items() if len(t.shape) == 3 and "expert" in n]
    other = any(row.engine == "vllm" and not row.format.startswith("bf16") for row in made)
    if fused and other and model.quantization is None:
        size = sum(t.bytes for t in fused) / _GIB
        yield (
            f"weights: {len(fused)} tensors of fused experts ({size:.2f} GiB as stored) count in "
            "16 bits in fp8, int8, gptq, awq and nf4 too: whether and how a tool quantizes them is "
            "not known, so these formats may be much smaller"
        )
    told = "" if dtype == "bfloat16" else ", which has no bfloat16"
    yield (
        f"KV cache: {layout.kind}, {layout.token_bytes(dtype):,} bytes a token in {dtype} "
        f"('auto' on this GPU{told}), {layout.token_bytes('fp8'):,} in FP8, in blocks of "
        f"{GPU_BLOCK} tokens"
    )
    if any(group.window for group in layout.layers):
        yield (
            "KV cache: a layer with a window keeps the window and one block; what vLLM pads to "
            "make groups of layers alike, and a chunk being computed, is not counted"
        )
    yield from (f"KV cache: {note}" for note in layout.notes)
    sizes = sorted({row.estimate.tp for row in made if row.estimate})
    if any(size > layout.kv_heads for size in sizes) or (layout.kind == "MLA" and sizes[-1:] > [1]):
        yield "KV cache: more cards than KV heads (or MLA) keep copies, which frees nothing"
    tokens, requests = batch_defaults(gpu.name, gpu.memory_bytes)
    for size in sizes:
        on = f"in a server of {size}, " if len(sizes) > 1 else ""
        yield f"workspace: {on}{workspace(model.config, size, tokens, requests).rule}"
    yield (
        f"load: every request has the P95 length, {load.p95_in:,} + {load.p95_out:,} tokens; "
        f"planned for {HEADROOM:.0%} of the concurrency, since lengths and arrivals vary, and at "
        f"most the {requests:,} at a time that vLLM takes there (--max-num-seqs) and the workspace "
        "is for"
    )
    if load.tp is None and measured is None:
        for_load = load.qps is not None and load.latency is not None
        told = "serve the load with the fewest cards" if for_load else "hold one request"
        yield f"TP: cards of one server, at most {SIZES[-1]}: the fewest that {told}"
    yield from _told_speed(load, measured, made)
    if entry and load.qps is not None and (measured is not None or load.latency is not None):
        given = "--latency" if measured is None else "profile"
        yield (
            f"impossible: a {given} below the time one request takes at least, which is "
            f"{load.p95_out:,} output tokens x weights read for each / ({entry.bandwidth:,} GB/s "
            f"x TP), its published peak; one token a pass (no speculative decoding), without "
            "input embeddings and the experts a token does not pass"
        )
    if any(row.engine == "llamacpp" for row in made):
        yield (
            "GGUF: nominal bits, within 15 %; for a llama.cpp built for the GPU, which the pinned "
            "wheel is not (it computes on the processor), and one card"
        )


def _told_speed(load: Load, measured: Speed | None, made: tuple[Row, ...]) -> Iterator[str]:
    if load.qps is None:
        yield "cards and cost: not asked for (--qps)"
        return
    if measured is not None:
        yield (
            f"cards: the profile is of {measured.of}, with a KV cache in '{measured.kv}'; that "
            "this is the checkpoint and the format asked about is yours to know"
        )
        for row in made:
            point = measured.best(row.planned)
            if row.kv != measured.kv or row.engine != "vllm" or not row.fits or row.impossible:
                continue
            if point is None:
                yield (
                    f"cards: not known: no point of the profile without failures is within "
                    f"{row.planned} requests at a time"
                )
                continue
            length = (point.output_tokens_per_s or 0) * point.seconds / point.completed
            yield (
                f"cards: {load.qps:g} requests/s of {load.usual_out:g} output tokens, against "
                f"{point.output_tokens_per_s:,.0f} output tokens/s that '{point.workload}' had at "
                f"concurrency {point.concurrency} with {length:.0f} output tokens a request; "
                "longer prompts or answers than it was measured with are slower"
            )
    elif load.latency is not None:
        flight = load.qps * load.latency
        yield (
            f"cards: {load.qps:g} requests/s x {load.latency:g} s (--latency, yours) = "
            f"{flight:,.0f} in flight (Little's law), by memory alone: whether that many are "
            "served in that time is not known without a profile"
        )
    else:
        yield "cards and cost: not known without a speed: give --profile, or --latency"
        return
    if load.price is None:
        yield "cost: not known: give --price, of one card and hour"
    else:
        yield (
            f"cost: {load.price:g} per card and hour, for the load as stated, day and night; "
            "spare capacity is paid for"
        )
        yield _told_means(load, measured)


def _told_means(load: Load, measured: Speed | None) -> str:
    """By which lengths a million tokens are counted, and how that moves their cost."""
    if load.mean_in is not None and load.mean_out is not None:
        return (
            f"cost: by the mean lengths, {load.mean_in:g} + {load.mean_out:g} tokens (--mean-in, "
            "--mean-out, yours); memory is planned for the P95 ones"
        )
    lacking = {"--mean-in": load.mean_in, "--mean-out": load.mean_out}
    names = " and ".join(name for name, value in lacking.items() if value is None)
    moves = (
        "cards by --latency stay, so with means of half the length a million tokens cost twice as "
        "much"
        if measured is None
        else "with means of half the length a profile needs half the cards, up to whole servers, "
        "and a million tokens cost as much"
    )
    return f"cost: {names} not given, so the mean is taken as the P95 length: {moves}"
