"""The arithmetic that lays a client's times beside the truth, and the command that shows it."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from workbench.bench_client import MEANING, BenchPoint, as_json, as_table, compare
from workbench.cli import app
from workbench.errors import ServingFailure
from workbench.load import Load
from workbench.timing_server import Settings, TimingServer, Truth
from workbench.traffic import Ask, Outcome

BEGAN = 1000.0


def outcome(number: int, times: list[float], status: str = "completed") -> Outcome:
    return Outcome(number, 0.0, 0.0, times[0], times, times[-1], status)  # type: ignore[arg-type]


def load(*outcomes: Outcome, waited: float | None = 0.0) -> Load:
    return Load(outcomes, BEGAN, 4.0, 0.5, waited, 2, 2, 0)


def compared(seen: Load, truth: list[Truth], *nominal: float, called: float = BEGAN) -> BenchPoint:
    ttft, itl, tokens, level = nominal
    return compare(seen, truth, ttft, itl, int(tokens), int(level), called, load_average=1.25)


def test_errors_by_hand() -> None:
    # Reported TTFT 110, 120 and 130 ms; true 100: errors of 10, 20 and 30 ms.
    seen = load(
        outcome(0, [0.110, 0.120, 0.131]),
        outcome(1, [0.120, 0.130, 0.140]),
        outcome(2, [0.130, 0.140, 0.150]),
        outcome(3, [9.0, 19.0], status="failed"),
    )
    # In another order than they were asked; the server's clock counts from elsewhere.
    truth = [
        Truth(0, 2, 7.0, (7.100, 7.110, 7.120)),
        Truth(1, 0, 7.0, (7.100, 7.110, 7.120)),
        Truth(2, 1, 7.0, (7.100, 7.110, 7.120)),
        Truth(3, 3, 7.0, (7.5,)),
    ]
    point = compared(seen, truth, 100.0, 10.0, 3, 2, called=BEGAN - 0.25)
    assert point.ttft_error_p50 == pytest.approx(20)
    assert point.ttft_error_p99 == pytest.approx(29.8)  # linear between 20 and 30
    # Gaps seen: five of 10 ms and one of 11; written: all of 10.
    assert point.itl_error_p99 == pytest.approx(0.95)
    assert point.itl_gap_error_p99 == pytest.approx(0.95)
    assert (point.requests, point.completed) == (4, 3)
    assert point.requests_per_s == pytest.approx(0.75)
    assert point.ideal_per_s == pytest.approx(2 / 0.120)
    assert point.cpu_per_1000 == pytest.approx(0.5 / 3 * 1000)
    assert (point.cpu_share, point.startup_s) == (0.125, 0.25)


def test_a_gap_seen_too_short_is_an_error_too() -> None:
    seen = load(outcome(0, [0.1, 0.105, 0.120]))
    point = compared(seen, [Truth(0, 0, 0.0, (0.1, 0.11, 0.12))], 1, 1, 3, 1)
    # Seen 5 and 15, written 10 and 10 ms: each gap is 5 ms wrong, the percentile by 4.9.
    assert point.itl_gap_error_p99 == pytest.approx(5)
    assert point.itl_error_p99 == pytest.approx(4.9)


def shown(*points: BenchPoint) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(as_table(points))
    return console.export_text()


def test_whose_error_it_is_stands_beside_it() -> None:
    """2 % of 4 s is the limit, as in a profile."""
    truth = [Truth(0, 0, 0.0, (0.1, 0.11, 0.12))]
    seen = outcome(0, [0.1, 0.11, 0.12])
    calm, torn, unknown = (
        compared(load(seen, waited=waited), truth, 100, 10, 3, 1) for waited in (0.08, 0.081, None)
    )
    assert (calm.client_wait, calm.doubt) == (0.02, "")
    assert torn.client_wait == pytest.approx(0.02025)
    assert "the client waited 2.0% of the time for a processor" in torn.doubt
    assert (unknown.client_wait, unknown.doubt) == (None, "")
    assert "BELIEVED" not in shown(calm, unknown)
    table = shown(calm, torn)
    assert "2.0%*" in table and "* NOT TO BE BELIEVED: the client waited over 2%" in table
    # As the machine was: its load average stands in every line.
    assert all(line.rstrip().endswith("1.2") for line in table.splitlines() if "100/10" in line)
    assert max(map(len, table.splitlines())) <= 80 and "…" not in table


def test_each_figure_is_said_to_be_what_it_is() -> None:
    point = compared(load(outcome(0, [0.1, 0.2])), [Truth(0, 0, 0.0, (0.1, 0.2))], 100, 100, 2, 1)
    told = as_json([point])
    assert list(told["points"][0]) == list(told["figures"])
    table = shown(point)
    for said in (
        "TTFT p50, p99: median and 99th percentile of the errors of each request",
        "ITL p99: difference of the two p99, of all gaps as read and as written",
        "in brackets the 99th percentile of the errors of each gap",
    ):
        assert said in table


def test_nothing_completed_is_not_a_number() -> None:
    point = compared(load(outcome(0, [1.0], "failed")), [], 1, 1, 3, 1)
    assert point.ttft_error_p50 != point.ttft_error_p50
    assert point.completed == 0
    assert as_table([point]).row_count == 1


def test_the_command_measures_both_settings() -> None:
    done = CliRunner().invoke(
        app, ["bench-client", "--json", "--concurrency", "2", "--requests", "4"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    points = told["points"]
    assert told["figures"] == MEANING
    assert [(p["ttft_ms"], p["itl_ms"], p["concurrency"]) for p in points] == [
        (1, 1, 2),
        (50, 10, 2),
    ]
    for point in points:
        assert point["completed"] == point["requests"] == 8
        assert 0 < point["requests_per_s"] <= point["ideal_per_s"]
        assert point["startup_s"] > 0 and point["cpu_per_1000"] > 0
        assert point["load_average"] >= 0 and point["cores"] >= 1
        # What it waited before the load's begin is in it, and the load is short.
        assert 0 <= point["client_wait"] < 10


def test_the_truth_is_given_once() -> None:
    from workbench.load import Target, run_load

    with TimingServer(Settings(ttft_ms=1, itl_ms=1)) as server:
        for count in (3, 2):
            asks = [Ask(i, (i + 7,), 4) for i in range(count)]
            run_load(Target(server.url, "k", "timing"), asks, concurrency=1)
            truth = server.truth()
            assert [record.number for record in truth] == list(range(7, 7 + count))
            assert all(len(record.writes) == 4 for record in truth)
            # No token is written before it is due.
            assert all(record.ttft >= 0.001 for record in truth)
        assert server.truth() == []


def test_the_truth_is_asked_without_a_proxy_and_its_lack_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with TimingServer() as server:
        assert server.truth() == []
    with pytest.raises(ServingFailure, match="does not say what it did"):
        server.truth()
