"""What came of one pass of a load, kept as a file: every request with every time.

A pass is one workload under one load, once. Its file is written when the pass has ended and is
whole or not there, so a profile that was interrupted goes on with the passes that are missing, and
every figure can be made again from the files. It holds what the server was: weights that were made
again, or an engine that chose another kernel, are not measured by passes of before. Prompts are not
in them: the recipe's seed makes them again. Answers are, where they were graded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from workbench.arrivals import AnyArrivals, Arrivals, load_name
from workbench.base import Record
from workbench.load_records import Usage
from workbench.records import Serving
from workbench.store import write_atomic
from workbench.traffic import Outcome

#: Folder of the passes, in the step's own.
LOADS = "loads"
_ARRIVALS: TypeAdapter[AnyArrivals] = TypeAdapter(Arrivals)
_MICRO = 6  # digits of a second; a clock tells no more, and the file stays small
_TIMES = ("due", "sent", "first_byte", "last_byte", "over")


class Pass(Record):
    """One workload under one load, once. Times are seconds since it began."""

    schema_: Literal["workbench.pass/1"] = Field("workbench.pass/1", alias="schema")
    workload: str
    arrivals: dict[str, Any]
    repeat: int
    began: str = Field("", description="when, UTC, ISO 8601")
    seconds: float
    client_cpu_seconds: float = Field(description="near `seconds` the client could not keep up")
    client_wait_seconds: float | None = Field(None, description="it waited for a processor")
    seen_before: int = Field(description="requests that begin with a block asked earlier")
    usage: Usage
    peak_rss: int | None = Field(
        None, description="most resident bytes of its server from the first warm-up to its end"
    )
    peak_gpu: int | None = Field(None, description="most device bytes, the same")
    outcomes: tuple[dict[str, Any], ...]
    served: dict[str, str] = Field(
        {}, description="weights and other conditions of the server; empty in older passes"
    )

    def results(self) -> list[Outcome]:
        """The outcomes as the sums take them."""
        return [Outcome(**outcome) for outcome in self.outcomes]


def plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values, times to the microsecond."""
    found = dataclasses.asdict(outcome)
    for name in _TIMES:
        if found[name] is not None:
            found[name] = round(found[name], _MICRO)
    found["token_times"] = [round(at, _MICRO) for at in outcome.token_times]
    return found


def pass_file(folder: Path, workload: str, arrivals: AnyArrivals, repeat: int) -> Path:
    """Where a pass is kept."""
    load = load_name(arrivals).replace("/s", " per s").replace(" ", "-")
    return folder / f"{workload}.{load}.{repeat}.json"


def conditions(serving: Serving) -> dict[str, str]:
    """What of a server decides how fast it is, and is the same at each of its starts.

    Tokens of its KV cache are not in it: on a GPU they differ a little from start to start.
    """
    return {
        "weights": serving.served_digest,
        "twin of": serving.twin_of or "",
        "engine": f"{serving.engine} {serving.engine_version}",
        "environment": serving.environment,
        "lane": serving.lane.name,
        "dtype": serving.dtype.value,
        "context": str(serving.max_model_len),
        "hardware": serving.hardware,
        "kernels": ", ".join(serving.kernels),
        **{f"draft {name}": digest for name, digest in serving.drafts.items()},
        **{f"choice {name}": choice.value for name, choice in serving.choices.items()},
    }


def read_pass(path: Path, served: Mapping[str, str]) -> Pass | None:
    """A pass that was kept of this server, or None, and it is made again.

    None where there is none, where its file is damaged, of another pass or of another server, and
    where nothing of it was completed: a server that has been mended would otherwise never be asked
    again.

    Args:
        path: where it is kept.
        served: `conditions` of the server that would be asked.
    """
    try:
        found = Pass.model_validate(orjson.loads(path.read_bytes()))
        outcomes = found.results()
        load = _ARRIVALS.validate_python(found.arrivals)
    except (OSError, ValueError, TypeError, ValidationError):
        return None
    own = path == pass_file(path.parent, found.workload, load, found.repeat)
    numbered = sorted(o.number for o in outcomes) == [*range(len(outcomes))]
    done = any(o.status == "completed" for o in outcomes)
    return found if own and numbered and done and found.served == served else None


def write_pass(path: Path, made: Pass) -> None:
    """Keep a pass.

    Raises:
        DiskFull: no space is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, orjson.dumps(made.model_dump(mode="json", by_alias=True)))
