"""A sweep on fake servers: what is measured, what is recorded of one that fails, what is kept."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_profile import Bytes, value, workload
from test_servers import start

from workbench import watch
from workbench.arrivals import PoissonArrivals
from workbench.errors import ServingFailure
from workbench.load_records import LoadSummary
from workbench.profile import LOADS, Inputs, run_profile
from workbench.profile_spec import ProfileSpec
from workbench.records import Configuration, Profile
from workbench.servers import Endpoint
from workbench.sweep_spec import ServingOptions
from workbench.sweeping import KEPT, run_sweep

SPEC = ProfileSpec(workloads=(workload(),), concurrency=(1, 4), requests=8)
#: Requests are answered slowly enough for three to be there at a time, whoever is delayed.
DIES = {"out_of_memory_at": 3, "ttft_ms": 200}
ONE, FOUR = ServingOptions(max_num_seqs=1), ServingOptions(max_num_seqs=4)
BROKEN = ServingOptions(max_num_seqs=4, max_num_batched_tokens=2)


class Servers:
    """Starts fake servers and remembers which."""

    def __init__(self, root: Path, faults: dict[str, Any], **server: Any) -> None:
        self.root, self.faults, self.server = root, faults, server
        self.started: list[str] = []

    @contextlib.contextmanager
    def __call__(self, options: ServingOptions, folder: Path) -> Iterator[Endpoint]:
        self.started.append(options.label)
        given = self.server | {"options": options, "folder": folder}
        with start(self.root, self.faults, **given) as endpoint:
            yield endpoint


def swept(
    root: Path, *configurations: ServingOptions, faults: dict[str, Any] | None = None, **more: Any
) -> tuple[list[str], tuple[Configuration, ...]]:
    servers = Servers(root, faults or {}, **more.pop("server", {}))
    given: dict[str, Any] = {"folder": root, "weights": "w"} | more
    spec = given.pop("spec", SPEC)
    found = run_sweep(servers, configurations, spec, Inputs(Bytes()), **given)
    return servers.started, found


def test_an_option_does_to_the_load_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server is asked five times or so while requests wait. A second in which nothing runs
    # delays the four requests that are open: no median of twelve.
    monkeypatch.setattr(watch, "_ENGINE_SECONDS", 0.5)
    told: list[str] = []
    started, (one, four) = swept(
        tmp_path,
        *(ONE, FOUR),
        faults={"ttft_ms": 100, "itl_ms": 10},
        spec=SPEC.model_copy(update={"requests": 12}),
        progress=lambda done, total, what: told.append(what),
    )
    assert started == ["max_num_seqs 1", "max_num_seqs 4"]
    assert [c.status for c in (one, four)] == ["measured", "measured"]
    assert one.options == {"max_num_seqs": 1} and one.error == ""
    assert one.serving is not None
    assert one.serving.command[-2:] == ("--max-num-seqs", "1")
    assert [load.arrivals["concurrency"] for load in one.loads] == [1, 4]
    assert all(load.completed == load.requests == 12 for c in (one, four) for load in c.loads)
    # Four at a time answered one by one: each waits for the three before it.
    assert value(one.loads[1].ttft_ms.p50) > 2 * value(four.loads[1].ttft_ms.p50)
    # And not between its tokens. (The three had 21 gaps: however slow, ten are less.)
    assert 10 * value(one.loads[1].tpot_ms.p50) < value(one.loads[1].ttft_ms.p50)
    used = one.loads[1].usage[0].engine
    assert used is not None and used.waiting is not None and used.waiting.max >= 1
    assert one.peak_memory_bytes is not None and one.seconds > 0
    assert told[0] == "max_num_seqs 1 (1 of 2): its server starts"
    assert any("max_num_seqs 4 (2 of 2): short x4" in what for what in told)
    # Its passes and its log lie apart from those of the recipe's own configuration.
    own = tmp_path / LOADS / FOUR.digest
    assert {p.name for p in own.iterdir() if p.suffix == ".json" and p.name[0] != "."} == {
        *("short.x1.0.json", "short.x4.0.json", KEPT)
    }
    assert "listens on port" in (own / "server" / "server.log").read_text()


def test_a_server_that_does_not_come_up_is_a_point_with_its_reason(tmp_path: Path) -> None:
    started, (broken, fine) = swept(tmp_path, BROKEN, ONE)
    assert len(started) == 2 and fine.status == "measured"
    assert broken.status == "failed" and broken.serving is None and broken.loads == ()
    assert "max_num_batched_tokens (2) < max_num_seqs (4)" in broken.error
    assert "ended before it was ready" in broken.error


@pytest.mark.usefixtures("patient_with_the_dead")
def test_a_server_that_dies_keeps_the_loads_before(tmp_path: Path) -> None:
    spec = SPEC.model_copy(update={"requests": 4})
    _, (four, one) = swept(tmp_path, FOUR, ONE, faults=DIES, spec=spec)
    assert (four.status, one.status) == ("failed", "measured")
    assert "died under the load 'short x4" in four.error
    assert "OutOfMemoryError" in four.error
    assert four.serving is not None and four.serving.command[-1] == "4"
    (before,) = four.loads
    assert before.arrivals["concurrency"] == 1 and before.completed == 4
    assert four.peak_memory_bytes is None


def test_a_load_with_repeats_counts_when_all_of_them_were_measured(tmp_path: Path) -> None:
    spec = SPEC.model_copy(
        update={
            **{"repeats": 2, "arrivals": (PoissonArrivals(rate=400),), "concurrency": (1, 4)},
            "requests": 4,
        }
    )
    # Of the order x1, x4, poisson, poisson, x4, x1 nothing comes twice before the death.
    _, (four,) = swept(tmp_path, FOUR, faults=DIES, spec=spec)
    assert four.status == "failed" and four.loads == ()


def test_what_is_done_is_not_started_again(tmp_path: Path) -> None:
    first = swept(tmp_path, ONE, BROKEN)
    again = swept(tmp_path, ONE, BROKEN, FOUR)
    assert again[0] == ["max_num_seqs 4"]
    assert again[1][:2] == first[1]
    # Of a damaged record the passes are there, and the server is asked nothing.
    kept = tmp_path / LOADS / ONE.digest / KEPT
    before = {p: p.read_bytes() for p in kept.parent.glob("short.*.json")}
    kept.write_text(kept.read_text().replace("measured", "mesaured"))
    started, (one,) = swept(tmp_path, ONE)
    assert started == ["max_num_seqs 1"]
    assert [load.ttft_ms for load in one.loads] == [load.ttft_ms for load in first[1][0].loads]
    assert {p: p.read_bytes() for p in before} == before
    # Other weights are measured anew, passes and all.
    _, (other,) = swept(tmp_path, ONE, weights="other")
    assert other.weights == "other"
    assert all(path.read_bytes() != was for path, was in before.items())


def test_a_sweep_that_is_stopped_goes_on_with_the_pass_that_is_missing(tmp_path: Path) -> None:
    def stop(done: float, total: float, what: str) -> None:
        if what.startswith("max_num_seqs 4 (2 of 2): short x4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, ONE, FOUR, progress=stop)
    own = tmp_path / LOADS / FOUR.digest
    assert (tmp_path / LOADS / ONE.digest / KEPT).is_file() and not (own / KEPT).exists()
    before = (own / "short.x1.0.json").read_bytes()
    started, (one, four) = swept(tmp_path, ONE, FOUR)
    assert started == ["max_num_seqs 4"] and one.status == four.status == "measured"
    assert (own / "short.x1.0.json").read_bytes() == before
    assert [load.completed for load in four.loads] == [8, 8]
    # Without its record, and on other weights, nothing of it is taken for theirs.
    (own / KEPT).unlink()
    other = {"served_digest": "e" * 64}
    _, (four,) = swept(tmp_path, FOUR, weights="other", server=other)
    assert (own / "short.x1.0.json").read_bytes() != before
    (own / KEPT).unlink()
    _, (died,) = swept(tmp_path, FOUR, faults=DIES, server={"served_digest": "a" * 64})
    assert [load.arrivals["concurrency"] for load in died.loads] == [1]
    (own / KEPT).unlink()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "workbench_fake.json").write_text("[]")
    _, (never,) = swept(tmp_path, FOUR, server={"checkpoint": tmp_path / "broken"})
    assert (never.status, never.loads) == ("failed", ())


def test_a_server_that_does_not_end_as_it_should_ends_the_sweep(tmp_path: Path) -> None:
    """Its memory is not back: the next one would be blamed for that."""

    @contextlib.contextmanager
    def never_back(options: ServingOptions, folder: Path) -> Iterator[Endpoint]:
        with start(tmp_path, options=options, folder=folder) as endpoint:
            yield endpoint
        raise ServingFailure("3.0 GiB of device memory are still used")

    with pytest.raises(ServingFailure, match="still used"):
        run_sweep(never_back, [ONE, FOUR], SPEC, Inputs(Bytes()), folder=tmp_path, weights="w")
    assert not (tmp_path / LOADS / FOUR.digest).exists()
    assert swept(tmp_path, ONE)[1][0].status == "measured"


def test_passes_of_a_sweep_lie_apart_and_ask_as_much_as_the_recipes_own(tmp_path: Path) -> None:
    with start(tmp_path) as endpoint:
        own = run_profile(endpoint, SPEC, Inputs(Bytes()), folder=tmp_path)
    _, (one,) = swept(tmp_path, ONE)

    def sent(load: LoadSummary) -> tuple[int, int]:
        return load.requests, load.tokens.usage

    assert [sent(load) for load in one.loads] == [sent(load) for load in own.loads]
    shutil.rmtree(tmp_path / LOADS / ONE.digest)
    assert {p.name for p in (tmp_path / LOADS).iterdir()} == {"short.x1.0.json", "short.x4.0.json"}


def test_a_profile_of_before_there_were_sweeps_is_read() -> None:
    fields = {
        name: field.default
        for name, field in Profile.model_fields.items()
        if name in ("sweep", "not_swept")
    }
    assert fields == {"sweep": (), "not_swept": ""}
    record = Configuration(options={}, status="failed", weights="w", seconds=1.0)
    assert json.loads(record.model_dump_json(by_alias=True))["schema"] == record.schema_
