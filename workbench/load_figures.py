"""Every figure of a load by its name, as tables and files have it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter

from workbench.arrivals import AnyArrivals, Arrivals, load_name
from workbench.evidence import VariantEvidence
from workbench.load_records import Figure, LoadSummary
from workbench.records import Profile

_ARRIVALS: TypeAdapter[AnyArrivals] = TypeAdapter(Arrivals)
_SPREADS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queued_ms", "user_tokens_per_s")
_PARTS = ("mean", "p50", "p90", "p95", "p99", "max")
_RATES = (
    *("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s"),
    *("completion_rate", "error_rate"),
)


def said_arrivals(load: LoadSummary) -> str:
    """The load without its workload, in a few characters: ``x8``."""
    return load_name(_ARRIVALS.validate_python(load.arrivals))


def about_load(load: LoadSummary) -> dict[str, Any]:
    """Which load it is, and how many of its requests were completed: columns of every table."""
    return {
        "workload": load.workload,
        "load": said_arrivals(load),
        "arrivals": load.arrivals["arrivals"],
        "concurrency": load.arrivals.get("concurrency"),
        "rate": load.arrivals.get("rate"),
        "requests": load.requests,
        "completed": load.completed,
    }


def believed_how(load: LoadSummary) -> dict[str, Any]:
    """What tells how far the figures of a load can be believed: columns of two tables."""
    return {
        "repeats": load.repeats,
        "saturation": load.saturation.verdict,
        "not_quiet": "; ".join(load.quiet.reasons),
    }


def figures(load: LoadSummary) -> Iterator[tuple[str, Figure]]:
    """Every figure of a load by name: ``ttft_ms_p50``, ``output_tokens_per_s``, ``good_share``.

    ``prefix_cache_hit_rate`` is there where the server told it, and has no interval.
    """
    for name in _SPREADS:
        spread = getattr(load, name)
        for part in _PARTS:
            yield f"{name}_{part}", getattr(spread, part)
    for name in _RATES:
        yield name, getattr(load, name)
    for name, good in (("good", load.good), ("correct", load.correct)):
        if good is not None:
            yield f"{name}_share", good.share
            yield f"{name}_per_s", good.per_s
    if load.prefix_cache_hit_rate is not None:
        yield "prefix_cache_hit_rate", Figure(value=load.prefix_cache_hit_rate)


def profiles_of(side: VariantEvidence) -> Iterator[tuple[str, Profile]]:
    """What was measured of a side, by name: itself, and its reference in turn with it.

    ``fp8``, then ``baseline beside fp8`` where the recipe alternates.
    """
    if side.profile is None:
        return
    yield side.variant, side.profile
    if (beside := side.profile.beside) is not None:
        yield f"{beside.variant} beside {side.variant}", beside


def wide_rows(sides: Iterable[VariantEvidence]) -> list[list[Any]]:
    """One row for each variant and load, whatever its arrivals, with every figure and its interval.

    A profile of an older version, which has points alone, has their figures. Variants on the
    emulated lane are left out: their speed is a twin's.

    Returns:
        Rows, the first of them the head; empty where nothing was measured.
    """
    lines = [line for side in sides for one in profiles_of(side) for line in _lines(*one)]
    head = list(dict.fromkeys(name for line in lines for name in line))
    return [head, *([line.get(name) for name in head] for line in lines)] if lines else []


def _lines(name: str, profile: Profile) -> Iterator[dict[str, Any]]:
    if profile.serving.lane.name == "emulated":
        return
    for load in profile.loads:
        line = {"variant": name, **about_load(load), **believed_how(load)}
        for key, figure in figures(load):
            line |= {key: figure.value, f"{key}_low": figure.low, f"{key}_high": figure.high}
        yield line
    for point in () if profile.loads else profile.points:
        values = point.model_dump(exclude={"workload", "concurrency", "completed", "errors"})
        failed = values.pop("failed")
        yield {
            "variant": name,
            "workload": point.workload,
            "load": f"x{point.concurrency}",
            "arrivals": "closed",
            "concurrency": point.concurrency,
            "requests": point.completed + failed,
            "completed": point.completed,
            **values,
        }
