"""A profile's loads as rows: what was asked, what came of it, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.evidence import Evidence, VariantEvidence
from workbench.load_figures import said_arrivals
from workbench.load_records import Figure, LoadSummary
from workbench.measured_when import span
from workbench.memory import MemoryStatement, freed
from workbench.records import LoadPoint, Profile
from workbench.report import text

_TARGETS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "end to end"}


def said_load(load: LoadSummary) -> str:
    """Workload and load in a few characters: ``short x8``."""
    return f"{load.workload} {said_arrivals(load)}"


def rows(loads: Sequence[LoadSummary], of: str = "load") -> list[list[Any]]:
    """One row for each load. Latencies in ms and of completed requests only."""
    head = [of, "requests", "not completed", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95"]
    head += ["tokens/s", "in time"]
    return [
        head,
        *(
            [
                said_load(load),
                load.requests,
                ", ".join(
                    f"{count} {status}"
                    for status, count in load.by_status.items()
                    if status != "completed"
                )
                or "none",
                _ms(load.ttft_ms.p50),
                _ms(load.ttft_ms.p95),
                _ms(load.tpot_ms.p50),
                _ms(load.tpot_ms.p95),
                _between(load.output_tokens_per_s, ""),
                _in_time(load),
            ]
            for load in loads
        ),
    ]


@dataclass(frozen=True)
class Line:
    """One load in the report's table.

    Attributes:
        load: workload and load.
        cells: columns after the load, each in lines; `HEAD` names them.
        failures: what became of requests that were not completed -> how many.
    """

    load: str
    cells: tuple[tuple[str, ...], ...]
    failures: Mapping[str, int]


#: Columns of `Line.cells`; times in ms, their p50 above their p95.
HEAD = ("completed", "in time", "TTFT", "TPOT", "ITL", "end to end", "tokens/s")


def lines(record: Profile) -> list[Line]:
    """One line for each load: closed loops, open ones, traces and the rates that were searched.

    A profile of an older version, which has points alone, has their figures, without intervals.
    """
    if not record.loads:
        return [_of_point(point) for point in record.points]
    return [
        Line(
            said_load(load),
            (
                (f"{load.completed} of {load.requests}",),
                _good(load),
                *(
                    (_between(spread.p50, ""), _between(spread.p95, ""))
                    for spread in (load.ttft_ms, load.tpot_ms, load.itl_ms, load.e2e_ms)
                ),
                # Its interval below it: the columns of a page's width are all taken.
                tuple(_between(load.output_tokens_per_s, "").split(" ", 1)),
            ),
            load.by_reason,
        )
        for load in record.loads
    ]


def said_targets(records: Iterable[Profile]) -> str:
    """The targets that "in time" is about: ``TTFT 500 ms, TPOT 50 ms``; empty where none are."""
    found = (load.targets for record in records for load in record.loads if load.targets)
    given: Mapping[str, float] = next(found, {})
    return ", ".join(f"{_TARGETS[name]} {text.number(ms)} ms" for name, ms in given.items())


def _of_point(point: LoadPoint) -> Line:
    return Line(
        f"{point.workload} x{point.concurrency}",
        (
            (f"{point.completed} of {point.completed + point.failed}",),
            (text.number(None),),
            (text.number(point.ttft_ms_p50), text.number(point.ttft_ms_p95)),
            (text.number(point.tpot_ms_p50), text.number(point.tpot_ms_p95)),
            (text.number(None),),
            (text.number(None),),
            (text.number(point.output_tokens_per_s),),
        ),
        point.errors,
    )


def _good(load: LoadSummary) -> tuple[str, ...]:
    """Requests in time, the limits of their share, and how many of them are right as well."""
    if load.good is None:
        return (text.number(None),)
    said = [f"{load.good.count} of {load.requests}"]
    share = load.good.share
    if share.low is not None and share.high is not None:
        said.append(f"[{100 * share.low:.1f}, {100 * share.high:.1f}] %")
    if load.correct is not None:
        said.append(f"{load.correct.count} also right")
    return tuple(said)


def remarks(record: Profile) -> Iterator[tuple[str, str]]:
    """What stands beside the figures: when, queues that grew, a noisy machine, memory."""
    if when := span(record):
        taken = f"; {record.resumed} passes of an attempt that was cut short are in it"
        yield "measured", when + (taken if record.resumed else "")
    for load in record.loads:
        name = said_load(load)
        if load.saturation.verdict in ("growing", "refusing"):
            yield name, load.saturation.sentence
        if load.quiet.marked:
            first, *others = load.quiet.reasons
            more = f" (and {len(others)} more: see profile.json)" if others else ""
            yield name, f"not quiet: {first}{more}"
        if load.tokens.difference or load.tokens.without_usage:
            yield (
                name,
                f"tokens: {load.tokens.usage} by the server's usage, {load.tokens.chunks} chunks; "
                f"{load.tokens.without_usage} answers without usage",
            )
    for workload, found in record.highest_rates.items():
        yield f"highest rate of {workload}", found.sentence
    if record.memory is not None:
        yield "KV cache", _memory(record.memory)
    elif record.memory_unknown:
        yield "KV cache", f"not estimated: {record.memory_unknown}"


def freed_sentence(evidence: Evidence, side: VariantEvidence) -> str:
    """What a variant frees in KV tokens; empty for a reference, or where nobody stated it."""
    reference = evidence.reference(side)
    ours = side.profile.memory if side.profile else None
    theirs = reference.profile.memory if reference.profile else None
    if side is reference or ours is None or theirs is None:
        return ""
    if ours.estimate.length != theirs.estimate.length:
        return ""
    return freed(theirs, ours).sentence


def _memory(said: MemoryStatement) -> str:
    estimated = f"{said.estimate.kv_tokens:,} tokens estimated"
    if said.kv_tokens is None:
        return f"{estimated}, the engine does not say"
    length = said.estimate.length
    return (
        f"{said.kv_tokens:,} tokens by the engine's log, {estimated}: "
        f"{said.kv_tokens // max(1, length):,} requests of {length:,} tokens at a time"
    )


def _ms(figure: Figure) -> str:
    return _between(figure, " ms")


def _between(figure: Figure, unit: str) -> str:
    if figure.value is None:
        return text.number(None)
    if figure.low is None or figure.high is None:
        return f"{text.number(figure.value)}{unit}"
    low, high = text.number(figure.low), text.number(figure.high)
    return f"{text.number(figure.value)} [{low}, {high}]{unit}"


def _in_time(load: LoadSummary) -> str:
    if load.good is None:
        return "no targets"
    said = f"{load.good.count} of {load.requests}"
    if load.correct is not None:
        said += f"; {load.correct.count} also right"
    return said
