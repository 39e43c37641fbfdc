"""Every figure of every load of a run as one pandas table: `workbench.loads`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.context import Context, opened
from workbench.load_figures import about_load, believed_how, figures, profiles_of
from workbench.records import Profile

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


def loads(run: str | Path | Context = "") -> pd.DataFrame:
    """Every figure of every load, one line per variant, load and figure.

    ===================  ===========================================================================
    column               what it holds
    ===================  ===========================================================================
    variant, method      what was measured, and how it was made; ``baseline beside fp8`` where
                         the recipe alternates: the reference in turn with it
    lane, engine         how it was served; figures of the emulated lane are the twin's
    workload             its name in the recipe
    load                 such as ``x8``, ``poisson 2/s``, ``burst 20 every 5 s``
    arrivals             ``closed``, ``poisson``, ``constant``, ``burst`` or ``trace``
    concurrency, rate    of a closed loop; requests/s of ``poisson`` and ``constant``
    figure               such as ``ttft_ms_p50`` (ms), ``output_tokens_per_s``, ``good_share``;
                         ``prefix_cache_hit_rate`` where the server tells it: tokens found / looked
                         up, mean of the repeats
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

    sides = collect(opened(run)).sides
    made = {side.variant: side.method for side in sides}
    measured = [(name, record) for side in sides for name, record in profiles_of(side)]
    lines = [
        line
        for name, record in measured
        for line in _lines(name, made.get(record.variant, ""), record)
    ]
    return pd.DataFrame(
        {
            name: pd.Series([line.get(name) for line in lines], dtype=kind)
            for name, kind in COLUMNS.items()
        }
    )


def _lines(variant: str, method: str, profile: Profile) -> Iterator[dict[str, Any]]:
    serving = profile.serving
    for load in profile.loads:
        about = {
            "variant": variant,
            "method": method,
            "lane": serving.lane.name,
            "engine": serving.engine,
            **about_load(load),
            **believed_how(load),
        }
        for name, figure in figures(load):
            yield {
                **about,
                "figure": name,
                "value": figure.value,
                "low": figure.low,
                "high": figure.high,
            }
