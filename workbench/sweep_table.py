"""Every serving configuration of a run as one pandas table: `workbench.sweep`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.context import Context, opened
from workbench.load_figures import about_load, figures
from workbench.load_records import LoadSummary
from workbench.sweep_rows import SweepRow, sweep_rows
from workbench.sweep_spec import OPTIONS

if TYPE_CHECKING:
    import pandas as pd

#: Columns of the options -> pandas type.
_OPTION_TYPES = {
    "max_num_seqs": "Int64",
    "max_num_batched_tokens": "Int64",
    "chunked_prefill": "boolean",
    "prefix_caching": "boolean",
    "kv_cache_dtype": "str",
    "gpu_memory_utilization": "float64",
    "speculative": "str",
    "tensor_parallel_size": "Int64",
    "enforce_eager": "boolean",
}
_FIGURES = (
    *("ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50", "tpot_ms_p95", "e2e_ms_p50", "e2e_ms_p95"),
    *("output_tokens_per_s", "requests_per_s", "good_share", "prefix_cache_hit_rate"),
)
#: Columns in their order -> pandas type.
COLUMNS = {
    "variant": "str",
    "method": "str",
    "lane": "str",
    "engine": "str",
    "configuration": "str",
    **_OPTION_TYPES,
    "status": "str",
    "error": "str",
    "startup_seconds": "float64",
    "kv_cache_tokens": "Int64",
    "max_concurrency": "float64",
    "workload": "str",
    "load": "str",
    "arrivals": "str",
    "concurrency": "Int64",
    "rate": "float64",
    "requests": "Int64",
    "completed": "Int64",
    **dict.fromkeys(_FIGURES, "float64"),
    "memory_bytes": "Int64",
    "quality": "float64",
    "on_front": "bool",
    "not_quiet": "str",
}


def sweep(run: str | Path | Context = "") -> pd.DataFrame:
    """Every load under every serving configuration, one line per variant, configuration and load.

    ========================  ======================================================================
    column                    what it holds
    ========================  ======================================================================
    variant, method           what was measured, and how it was made
    lane, engine              how it was served
    configuration             ``the recipe's own``, or the options that differ from it in words
    max_num_seqs and so on    each option of the sweep; missing: as the recipe has it. `speculative`
                              is JSON
    status, error             ``measured``, or ``failed`` and why; a server that failed has the
                              loads before, or one line without a load
    startup_seconds           until the server was ready
    kv_cache_tokens           said by the engine, as is max_concurrency
    workload, load            its name in the recipe, and such as ``x8`` or ``poisson 2/s``
    arrivals                  ``closed``, ``poisson``, ``constant``, ``burst`` or ``trace``
    concurrency, rate         of a closed loop; requests/s of ``poisson`` and ``constant``
    requests, completed       of all repeats; latencies are of completed ones only
    ttft_ms_p50 and so on     ms: also ttft_ms_p95, tpot_ms_p50, tpot_ms_p95, e2e_ms_p50, e2e_ms_p95
    output_tokens_per_s       of all completed requests, as is requests_per_s
    good_share                requests within the targets / all
    prefix_cache_hit_rate     prompt tokens found in the cache / looked up, as the server tells it,
                              mean of the repeats; missing where it looked nothing up
    memory_bytes              measured peak: of GPU memory where there is one, else resident
    quality                   mean paired recovery over the suites, measured under the recipe's own
                              serving options; missing where the options change the answers
    on_front                  on the Pareto front of quality, e2e_ms_p50 and memory_bytes, among all
                              lines of the same workload and load. It compares the values without
                              their spread: a difference within the spread decides nothing
    not_quiet                 why the figures prove nothing; empty: nothing speaks against it
    ========================  ======================================================================

    Nothing of it decides: checks read the recipe's own configuration. Intervals of each figure are
    in the records (`profile.json`, ``sweep``).

    Args:
        run: name or folder of a run, or an opened one; empty is the last run of the project.

    Raises:
        StoreError: there is no such run, or records are not those that were written.
    """
    import pandas as pd

    from workbench.collect import collect

    lines = [_line(row) for row in sweep_rows(collect(opened(run)))]
    return pd.DataFrame(
        {
            name: pd.Series([line.get(name) for line in lines], dtype=kind)
            for name, kind in COLUMNS.items()
        }
    )


def _line(row: SweepRow) -> dict[str, Any]:
    profile, serving = row.side.profile, row.serving
    served = serving or (profile.serving if profile else None)
    options = {name: row.options.get(name) for name in OPTIONS}
    if options["speculative"] is not None:
        options["speculative"] = json.dumps(options["speculative"], sort_keys=True)
    return {
        "variant": row.side.variant,
        "method": row.side.method,
        "lane": served.lane.name if served else None,
        "engine": served.engine if served else None,
        "configuration": row.label,
        **options,
        "status": "failed" if row.error else "measured",
        "error": row.error,
        "startup_seconds": serving.startup_seconds if serving else None,
        "kv_cache_tokens": serving.kv_cache_tokens if serving else None,
        "max_concurrency": serving.max_concurrency if serving else None,
        **(_figures(row.load) if row.load else {"not_quiet": ""}),
        "memory_bytes": row.memory_bytes,
        "quality": row.quality,
        "on_front": row.on_front,
    }


def _figures(load: LoadSummary) -> dict[str, Any]:
    values = {name: figure.value for name, figure in figures(load)}
    return {
        **about_load(load),
        **{name: values.get(name) for name in _FIGURES},
        "not_quiet": "; ".join(load.quiet.reasons),
    }
