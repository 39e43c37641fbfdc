"""What an engine says of itself: from Prometheus' text format to numbers. Pure.

Only the names of `NAMES` are read: vLLM's, and llama.cpp's. The same name may come several times,
once for each engine behind one address: counters and requests are summed, of the cache's use the
highest counts. A line that is not in the format is left out. A value that is no finite number from
0 on makes a gauge unknown, and a counter unknown at that reading.

A counter's difference over several readings is the sum of what it grew from each to the next. One
that fell was started again with its server, and counts from 0 (as Prometheus' `increase`, without
its extrapolation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from workbench.load_records import EngineUse, Level

Name = Literal["running", "waiting", "kv cache", "preemptions", "looked up", "found", "in", "out"]
Labels = tuple[tuple[str, str], ...]
#: Name -> the value under each set of labels; NaN where it could not be read.
Metrics = Mapping[Name, Mapping[Labels, float]]

NAMES: dict[str, Name] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv cache",
    "vllm:num_preemptions_total": "preemptions",
    # In tokens, not requests.
    "vllm:prefix_cache_queries_total": "looked up",
    "vllm:prefix_cache_hits_total": "found",
    "vllm:prompt_tokens_total": "in",
    "vllm:generation_tokens_total": "out",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:prompt_tokens_total": "in",
    "llamacpp:tokens_predicted_total": "out",
}
_LABEL = r'([a-zA-Z_]\w*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]|\\.)*+)"'
# name{label="text",...} value timestamp # exemplar; the last two are seldom there. What was matched
# is not given back (`*+`): a line that does not fit would be tried in countless ways.
_LINE = re.compile(
    rf"^({'|'.join(map(re.escape, NAMES))})"
    rf"(?:[ \t]*+\{{[ \t]*+((?:{_LABEL}[ \t]*+,?[ \t]*+)*+)\}}[ \t]*+|[ \t]++)"
    r"([^\s{#]++)(?:[ \t]++-?[0-9.]++)?(?:[ \t]++#.*+)?[ \t\r]*+$",
    re.MULTILINE,
)
_LABELS = re.compile(_LABEL)


def read_metrics(text: str) -> Metrics | None:
    """The known values in an answer of `/metrics`; None where it holds none."""
    found: dict[Name, dict[Labels, float]] = {}
    for match in _LINE.finditer(text):
        name, labels, *_, value = match.groups()
        # Servers of one kind need not write labels in one order.
        series = tuple(sorted(_LABELS.findall(labels or "")))
        found.setdefault(NAMES[name], {})[series] = _number(value)
    return found or None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) and value >= 0 else math.nan


def engine_use(inside: Sequence[Metrics], readings: Sequence[Metrics]) -> EngineUse | None:
    """What happened over an interval.

    Args:
        inside: readings within it, for gauges.
        readings: the same in their order, with those just before and after it, for counters.

    Returns:
        None where nothing was read.
    """
    if not readings:
        return None
    looked_up, found = _grown(readings, "looked up"), _grown(readings, "found")
    return EngineUse(
        samples=len(inside),
        running=level([_gauge(m, "running") for m in inside]),
        waiting=level([_gauge(m, "waiting") for m in inside]),
        kv_cache_share=level([_gauge(m, "kv cache") for m in inside]),
        preemptions=_whole(_grown(readings, "preemptions")),
        prefix_cache_hit_rate=_share(found, looked_up),
        prompt_tokens=_whole(_grown(readings, "in")),
        output_tokens=_whole(_grown(readings, "out")),
    )


def _share(found: float | None, looked_up: float | None) -> float | None:
    """Found / looked up; None where nothing was, or where more was found than looked up."""
    if not looked_up or found is None or found > looked_up:
        return None
    return found / looked_up


def level(values: Sequence[float | None]) -> Level | None:
    """Mean and highest of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return Level(mean=math.fsum(known) / len(known), max=max(known)) if known else None


def _gauge(metrics: Metrics, name: Name) -> float | None:
    values = metrics.get(name, {}).values()
    if not values or any(math.isnan(value) for value in values):
        return None
    return max(values) if name == "kv cache" else math.fsum(values)


def _grown(readings: Sequence[Metrics], name: Name) -> float | None:
    """What a counter grew by; None where no series of it was read twice."""
    last: dict[Labels, float] = {}
    grown: list[float] = []
    for metrics in readings:
        for series, value in metrics.get(name, {}).items():
            if math.isnan(value):
                continue
            if series in last:
                grown.append(value - last[series] if value >= last[series] else value)
            last[series] = value
    return math.fsum(grown) if grown else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
