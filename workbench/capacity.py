"""Does it fit, how many requests at a time, how many cards, at what cost: without a GPU. Pure.

For every format and KV type: does the checkpoint fit a named GPU, on how many of them together, how
long may a request be, how many of the P95 length run at a time. Speed is never made up: cards and
cost need a measured profile, or the latency the load is served with (Little's law).

    requests in flight = requests/s x latency            (Little, 1961)
    cost per million tokens = price per hour x cards / tokens per hour x 10^6
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from workbench.capacity_formats import Form, asked, form
from workbench.capacity_speed import RUNS, Speed
from workbench.errors import RecipeError
from workbench.gpus import GPUS
from workbench.memory import GPU_BLOCK, Estimate, batch_defaults, estimate, workspace
from workbench.records import Hardware
from workbench.support import lane
from workbench.weights import Model

_GIB = 1 << 30
#: Cards one server may have: those of one machine.
SIZES = (1, 2, 4, 8)
#: Share of the concurrency to plan with: 70 to 80 % is usual, for lengths and arrivals vary.
HEADROOM = 0.75


@dataclass(frozen=True)
class Load:
    """What is asked.

    Attributes:
        p95_in: tokens of a prompt.
        p95_out: tokens of an answer.
        qps: requests/s; None: cards are not asked for.
        latency: seconds a request takes at that load; None: not known.
        price: of one card and hour; None: cost is not asked for.
        utilization: share of a GPU's memory the engine takes.
        kv: types of the KV cache, of ``auto`` and ``fp8``.
        formats: as `capacity_formats.asked` knows them; empty: the usual ones.
        tp: tensor-parallel size; None: the smallest that holds one request.
    """

    p95_in: int
    p95_out: int
    qps: float | None = None
    latency: float | None = None
    price: float | None = None
    utilization: float = 0.9
    kv: tuple[str, ...] = ("auto", "fp8")
    formats: tuple[str, ...] = ()
    tp: int | None = None

    def check(self) -> None:
        """Refuse what no load is.

        Raises:
            RecipeError: a number is zero, negative, not a number or beyond any machine, or a name
                is unknown.
        """
        for option, value, most in (
            ("--p95-in", self.p95_in, 1 << 24),
            ("--p95-out", self.p95_out, 1 << 24),
            ("--qps", self.qps, 1e6),
            ("--latency", self.latency, 86_400.0),
            ("--price", self.price, 1e6),
            ("--utilization", self.utilization, 1.0),
            ("--tp", self.tp, 64),
        ):
            # Written so that NaN, which compares false with everything, is refused too.
            if value is not None and not 0 < value <= most:
                raise RecipeError(
                    f"{option} is {str(value)[:40]}",
                    where=option,
                    fix=f"a number above 0 and at most {most:,}",
                )
        for name in self.kv:
            if name not in ("auto", "fp8"):
                raise RecipeError(
                    f"there is no KV type '{name}'",
                    where="--kv",
                    fix="--kv auto or --kv fp8; without it, both",
                )

    @property
    def length(self) -> int:
        """Tokens of one request."""
        return self.p95_in + self.p95_out


@dataclass(frozen=True)
class Row:
    """The answer for one format and one KV type.

    Attributes:
        format: as `--format` names it.
        engine: who runs it.
        lane: of the support matrix, with `reason`.
        reason: why that lane, or why it does not fit.
        kv: ``auto`` or ``fp8``.
        fits: whether one request of the length fits.
        estimate: of one server; None where the engine cannot run it there.
        planned: requests at a time to plan with.
        cards: for the load; None: not asked or not known.
        cost_output: of a million output tokens at the load, in the price's currency.
        cost_total: of a million tokens, prompts and answers.
    """

    format: str
    engine: str
    lane: str
    reason: str
    kv: str
    fits: bool
    estimate: Estimate | None = None
    planned: int = 0
    cards: int | None = None
    cost_output: float | None = None
    cost_total: float | None = None

    @property
    def runs(self) -> bool:
        """Whether the engine runs the format there, so that memory and speed are its own."""
        return self.lane in RUNS


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
    rows = tuple(_rows(model, hardware, load, measured))
    return Answer(rows, tuple(_assumptions(model, hardware, load, measured, rows)))


def _rows(model: Model, hardware: Hardware, load: Load, measured: Speed | None) -> Iterator[Row]:
    for name in asked(model, load.formats):
        found = form(model, name)
        if isinstance(found, str):
            yield Row(name, "vllm", "unsupported", found, load.kv[0], False)
            continue
        for kv in load.kv:
            if found.engine == "llamacpp" and kv == "fp8":
                if "auto" not in load.kv:
                    reason = "llama.cpp keeps no FP8 KV cache"
                    yield Row(found.label, "llamacpp", "unsupported", reason, kv, False)
                continue
            options = {**found.options, "kv_cache": "fp8"} if kv == "fp8" else found.options
            answer = lane(found.method, options, found.engine, hardware, _dtype(hardware))
            row = Row(found.label, found.engine, answer.name, answer.reason, kv, False)
            yield _fitted(row, model, found, hardware, load, measured) if row.runs else row


def _dtype(hardware: Hardware) -> str:
    return "bfloat16" if float(hardware.gpus[0].compute_capability) >= 8.0 else "float16"


def kv_dtype(row: Row, hardware: Hardware) -> str:
    """What keys and values are kept in."""
    if row.engine == "llamacpp":
        return "float16"
    return "fp8" if row.kv == "fp8" else _dtype(hardware)


def _fitted(
    row: Row, model: Model, found: Form, hardware: Hardware, load: Load, measured: Speed | None
) -> Row:
    """The row with the fewest cards that hold one request, and what follows from them."""
    gpu = hardware.gpus[0]
    if measured is not None and load.tp is None:
        sizes: tuple[int, ...] = (measured.cards,)
    else:
        sizes = SIZES if load.tp is None else (load.tp,)
    if row.engine == "llamacpp" and load.tp is None:
        sizes = (1,)
    best: Estimate | None = None
    refused = ""
    for tp in sizes:
        refused = _indivisible(model, found, tp)
        if refused:
            continue
        room = workspace(model.config, tp, *batch_defaults(gpu.name, gpu.memory_bytes))
        best = estimate(
            model.layout,
            weight_bytes=found.weight_bytes,
            memory_bytes=gpu.memory_bytes,
            length=load.length,
            utilization=load.utilization,
            workspace_bytes=room.bytes,
            kv_dtype=kv_dtype(row, hardware),
            tp=tp,
        )
        if best.max_concurrency >= 1:
            planned = max(1, int(HEADROOM * best.max_concurrency))
            row = replace(row, fits=True, estimate=best, planned=planned)
            return _costed(row, load, measured)
    if best is None:
        return replace(row, reason=f"tensor parallelism of {sizes[-1]}: {refused}")
    short = best.weight_bytes + best.workspace_bytes - int(best.memory_bytes * best.utilization)
    what = "weights and workspace alone are" if short > 0 else "one request of that length is"
    cards = f"{best.tp} cards" if best.tp > 1 else "one card"
    more = f"; on {sizes[-1]} cards: {refused}" if refused else ""
    hold = "hold" if best.tp > 1 else "holds"
    return replace(row, estimate=best, reason=f"{what} more than {cards} {hold}{more}")


def _indivisible(model: Model, found: Form, tp: int) -> str:
    """Why a format of this model cannot be split over so many cards; empty where it can."""
    if tp > 1 and found.engine == "llamacpp":
        return "llama.cpp splits by layers, which is not answered here"
    if reason := model.layout.indivisible(tp):
        return reason
    for key in ("intermediate_size", "moe_intermediate_size"):
        inner = model.config.get(key)
        if isinstance(inner, int) and inner % (tp * found.group):
            group = f" in groups of {found.group}" if found.group > 1 else ""
            return f"{key} {inner} does not divide by {tp}{group}"
    return ""


def _costed(row: Row, load: Load, measured: Speed | None) -> Row:
    """The row with cards and cost, as far as speed is known and they are asked for."""
    if load.qps is None or row.estimate is None:
        return row
    servers: int | None = None
    if measured is not None and measured.kv == row.kv and row.engine == "vllm":
        if point := measured.best(row.planned):
            servers = math.ceil(load.qps * load.p95_out / (point.output_tokens_per_s or math.nan))
    elif measured is None and load.latency is not None:
        servers = math.ceil(load.qps * load.latency / row.planned)
    if servers is None:
        return row
    cards = servers * row.estimate.tp
    row = replace(row, cards=cards)
    if load.price is None:
        return row
    per_request = load.price * cards / (3600 * load.qps)
    return replace(
        row,
        cost_output=1e6 * per_request / load.p95_out,
        cost_total=1e6 * per_request / load.length,
    )


def _assumptions(
    model: Model, hardware: Hardware, load: Load, measured: Speed | None, rows: tuple[Row, ...]
) -> Iterator[str]:
    """Everything the figures rest on, one sentence each."""
    gpu, layout, dtype = hardware.gpus[0], model.layout, _dtype(hardware)
    source = next((f" ({n.source})" for n in GPUS.values() if n.name == gpu.name), "")
    yield (
        f"memory: {gpu.memory_bytes / _GIB:.1f} GiB of {gpu.name}{source}, of which the engine "
        f"takes {load.utilization:.0%} (--utilization)"
    )
    yield (
        f"weights: by the checkpoint's tensors ({model.stored_bytes / _GIB:.2f} GiB as stored, "
        f"{model.dtype}); another format by its bits with scales, and embeddings, norms and "
        "output layer in 16 bits; divided evenly over the cards"
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
    sizes = sorted({row.estimate.tp for row in rows if row.estimate})
    if any(size > layout.kv_heads for size in sizes) or (layout.kind == "MLA" and sizes[-1:] > [1]):
        yield "KV cache: more cards than KV heads (or MLA) keep copies, which frees nothing"
    tokens, requests = batch_defaults(gpu.name, gpu.memory_bytes)
    for size in sizes:
        on = f"on {size} cards, " if len(sizes) > 1 else ""
        yield f"workspace: {on}{workspace(model.config, size, tokens, requests).rule}"
    yield (
        f"load: every request has the P95 length, {load.p95_in:,} + {load.p95_out:,} tokens; "
        f"planned for {HEADROOM:.0%} of the concurrency, since lengths and arrivals vary; beyond "
        f"{requests} at a time vLLM needs --max-num-seqs"
    )
    yield from _told_speed(load, measured, rows)
    if any(row.engine == "llamacpp" for row in rows):
        yield (
            "GGUF: nominal bits, within 15 %; for a llama.cpp built with CUDA, which the pinned "
            "wheel is not (it computes on the processor), and one card"
        )


def _told_speed(load: Load, measured: Speed | None, rows: tuple[Row, ...]) -> Iterator[str]:
    if load.qps is None:
        yield "cards and cost: not asked for (--qps)"
        return
    if measured is not None:
        yield (
            f"cards: the profile is of {measured.of}, with a KV cache in '{measured.kv}'; that "
            "this is the checkpoint and the format asked about is yours to know"
        )
        for row in rows:
            point = measured.best(row.planned)
            if row.kv != measured.kv or row.engine != "vllm" or not row.fits:
                continue
            if point is None:
                yield (
                    f"cards: not known: no point of the profile without failures is within "
                    f"{row.planned} requests at a time"
                )
                continue
            length = (point.output_tokens_per_s or 0) * point.seconds / point.completed
            yield (
                f"cards: {load.qps:g} requests/s of {load.p95_out} output tokens, against "
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
