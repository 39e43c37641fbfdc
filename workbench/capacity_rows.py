"""One row of a capacity table: a format and a KV type, sized for a load on a GPU. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from workbench.capacity_floor import least_seconds, token_bytes
from workbench.capacity_formats import Form, asked, form
from workbench.capacity_speed import RUNS, Speed
from workbench.errors import RecipeError
from workbench.memory import Estimate, batch_defaults, estimate, workspace
from workbench.records import Hardware
from workbench.support import lane
from workbench.weights import Model

#: Cards one server may have: those of one machine.
SIZES = (1, 2, 4, 8)
#: Share of the concurrency to plan with: 70 to 80 % is usual, for lengths and arrivals vary.
HEADROOM = 0.75
#: The lane of a GGUF file on a GPU, which the support matrix knows for the pinned wheel alone.
OTHER_BUILD = "another build"


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
        mean_in: mean tokens of a prompt, for cost; None: as many as `p95_in`.
        mean_out: mean tokens of an answer, for throughput and cost; None: as many as `p95_out`.
        tp: tensor-parallel size; None: the one that needs the fewest cards for the load, or the
            smallest that holds one request.
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
    mean_in: float | None = None
    mean_out: float | None = None

    def check(self) -> None:
        """Refuse what no load is.

        Raises:
            RecipeError: a number is zero, negative, not a number or beyond any machine, or a name
                is unknown.
        """
        for option, value, most in (
            ("--p95-in", self.p95_in, 1 << 24),
            ("--p95-out", self.p95_out, 1 << 24),
            ("--mean-in", self.mean_in, 1 << 24),
            ("--mean-out", self.mean_out, 1 << 24),
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

    @property
    def usual_in(self) -> float:
        """Tokens of a prompt on the average."""
        return self.p95_in if self.mean_in is None else self.mean_in

    @property
    def usual_out(self) -> float:
        """Tokens of an answer on the average."""
        return self.p95_out if self.mean_out is None else self.mean_out


@dataclass(frozen=True)
class Row:
    """The answer for one format and one KV type.

    Attributes:
        format: as `--format` names it, with what it becomes there.
        engine: who runs it.
        lane: of the support matrix, with `reason`, or `OTHER_BUILD`.
        reason: why that lane, or why it does not fit.
        kv: ``auto`` or ``fp8``.
        fits: whether one request of the length fits.
        estimate: of one server; None where the engine cannot run it there.
        planned: requests at a time to plan with, no more than the workspace is for.
        cards: for the load; None: not asked or not known.
        cost_output: of a million output tokens at the load, in the price's currency.
        cost_total: of a million tokens, prompts and answers.
        least: seconds below which no request can be answered (`capacity_floor`).
        impossible: the latency or profile given is below that, so nothing follows from it.
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
    least: float = 0.0
    impossible: bool = False


def rows(model: Model, hardware: Hardware, load: Load, measured: Speed | None) -> Iterator[Row]:
    """Every format under every KV type, in the order they are asked for."""
    for name in asked(model, load.formats):
        found = form(model, name)
        if isinstance(found, str):
            yield Row(name, "vllm", "unsupported", found, load.kv[0], False)
            continue
        read = token_bytes(model, name)
        for kv in load.kv:
            if found.engine == "llamacpp" and kv == "fp8":
                if "auto" not in load.kv:
                    reason = "llama.cpp keeps no FP8 KV cache"
                    yield Row(found.label, "llamacpp", "unsupported", reason, kv, False)
                continue
            options = {**found.options, "kv_cache": "fp8"} if kv == "fp8" else found.options
            answer = lane(found.method, options, found.engine, hardware, compute_dtype(hardware))
            row = Row(found.label, found.engine, answer.name, answer.reason, kv, False)
            if answer.name not in RUNS:
                said = f"its quantization_config cannot be read: {found.doubt}"
                yield replace(row, reason=said) if found.doubt else row
                continue
            if found.engine == "llamacpp":
                reason = (
                    "the pinned llama.cpp computes on the processor; figures are for a GPU build"
                )
                row = replace(row, lane=OTHER_BUILD, reason=reason)
            elif name == "bf16" and compute_dtype(hardware) == "float16":
                row = replace(row, format="bf16 as fp16")
            yield _fitted(row, model, found, hardware, load, measured, read)


def compute_dtype(hardware: Hardware) -> str:
    """What a model is computed in there; Turing and older have no bfloat16."""
    return "bfloat16" if float(hardware.gpus[0].compute_capability) >= 8.0 else "float16"


def kv_dtype(row: Row, hardware: Hardware) -> str:
    """What keys and values are kept in."""
    if row.engine == "llamacpp":
        return "float16"
    return "fp8" if row.kv == "fp8" else compute_dtype(hardware)


def _fitted(
    row: Row,
    model: Model,
    found: Form,
    hardware: Hardware,
    load: Load,
    measured: Speed | None,
    read: int,
) -> Row:
    """The row with the size of a server that needs the fewest cards, and what follows from it."""
    gpu = hardware.gpus[0]
    if measured is not None and load.tp is None:
        sizes: tuple[int, ...] = (measured.cards,)
    else:
        sizes = SIZES if load.tp is None else (load.tp,)
    if row.engine == "llamacpp" and load.tp is None:
        sizes = (1,)
    best: Estimate | None = None
    able: list[Row] = []
    refused = ""
    for tp in sizes:
        refused = _indivisible(model, found, tp)
        if refused:
            continue
        tokens, requests = batch_defaults(gpu.name, gpu.memory_bytes)
        room = workspace(model.config, tp, tokens, requests)
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
            planned = max(1, min(requests, int(HEADROOM * best.max_concurrency)))
            least = least_seconds(gpu.name, read, load.p95_out, tp)
            sized = replace(row, fits=True, estimate=best, planned=planned, least=least)
            able.append(_costed(sized, load, measured))
            if able[-1].cards is None and not able[-1].impossible:
                break  # nothing tells one size from another but that it is the smallest
    if able:
        known = [one for one in able if one.cards is not None]
        return min(known, key=lambda one: one.cards or 0) if known else able[-1]
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
            each = point.concurrency / (point.output_tokens_per_s or math.nan)
            if not measured.speculative and load.p95_out * each < row.least:
                return replace(row, impossible=True)
            tokens_per_s = point.output_tokens_per_s or math.nan
            servers = math.ceil(load.qps * load.usual_out / tokens_per_s)
    elif measured is None and load.latency is not None:
        if load.latency < row.least:
            return replace(row, impossible=True)
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
        cost_output=1e6 * per_request / load.usual_out,
        cost_total=1e6 * per_request / (load.usual_in + load.usual_out),
    )
