"""Every figure of every load of a run as one pandas table: `workbench.loads`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.context import Context, opened
from workbench.evidence import VariantEvidence
from workbench.load_records import Figure, LoadSummary
from workbench.report.loads import said_arrivals

if TYPE_CHECKING:
    import pandas as pd

#: Columns in their order -> pandas type.
COLUMNS = {
    "variant": "str",
    "method": "str",
    "lane": "str",
    "engine": "str",
    "workload": "str",
    "load": "str",
    "arrivals": "str",
    "concurrency": "Int64",
    "rate": "float64",
    "figure": "str",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "requests": "int64",
    "completed": "int64",
    "repeats": "int64",
    "saturation": "str",
    "not_quiet": "str",
}
_SPREADS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queued_ms", "user_tokens_per_s")
_PARTS = ("mean", "p50", "p90", "p95", "p99", "max")
_RATES = (
    *("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s"),
    *("completion_rate", "error_rate"),
)


def loads(run: str | Path | Context = "") -> pd.DataFrame:
    """Every figure of every load, one line per variant, load and figure.

    ===================  ===========================================================================
    column               what it holds
    ===================  ===========================================================================
    variant, method      what was measured, and how it was made
    lane, engine         how it was served; figures of the emulated lane are the twin's
    workload             its name in the recipe
    load                 such as ``x8``, ``poisson 2/s``, ``burst 20 every 5 s``
    arrivals             ``closed``, ``poisson``, ``constant``, ``burst`` or ``trace``
    concurrency, rate    of a closed loop; requests/s of ``poisson`` and ``constant``
    figure               such as ``ttft_ms_p50`` (ms), ``output_tokens_per_s``, ``good_share``
    value, low, high     the figure with its 95 % interval; missing where there is none
    requests, completed  of all repeats; latencies are of completed ones only
    repeats              how often the load was measured
    saturation           ``stable``, ``growing``, ``refusing``, ``unknown`` or ``closed loop``
    not_quiet            why the figures prove nothing; empty is a machine nothing speaks against
    ===================  ===========================================================================

    A latency-throughput curve::

        wide = table.pivot_table("value", ["variant", "workload", "concurrency"], "figure")
        wide.reset_index().plot.scatter("output_tokens_per_s", "ttft_ms_p50")

    Args:
        run: name or folder of a run, or an opened one; empty is the last run of the project.

    Raises:
        StoreError: there is no such run, or records are not those that were written.
    """
    import pandas as pd

    from workbench.collect import collect

    lines = [line for side in collect(opened(run)).sides for line in _lines(side)]
    return pd.DataFrame(
        {
            name: pd.Series([line.get(name) for line in lines], dtype=kind)
            for name, kind in COLUMNS.items()
        }
    )


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


def _lines(side: VariantEvidence) -> Iterator[dict[str, Any]]:
    if side.profile is None:
        return
    serving = side.profile.serving
    for load in side.profile.loads:
        about = {
            "variant": side.variant,
            "method": side.method,
            "lane": serving.lane.name,
            "engine": serving.engine,
            **about_load(load),
            "repeats": load.repeats,
            "saturation": load.saturation.verdict,
            "not_quiet": "; ".join(load.quiet.reasons),
        }
        for name, figure in figures(load):
            yield {
                **about,
                "figure": name,
                "value": figure.value,
                "low": figure.low,
                "high": figure.high,
            }


def figures(load: LoadSummary) -> Iterator[tuple[str, Figure]]:
    """Every figure of a load by name: ``ttft_ms_p50``, ``output_tokens_per_s``, ``good_share``."""
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
