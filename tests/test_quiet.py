"""Quietness: each rule at its limit, and that a marked run makes no PASS."""

from typing import Any

import pytest

from workbench.arrivals import AnyArrivals, ClosedLoop, PoissonArrivals, TraceArrivals
from workbench.load_records import Quiet
from workbench.load_stats import Repeat, summarize
from workbench.quiet import Limits, alike, believed, quietness, variation
from workbench.records import CheckStatus
from workbench.traffic import Ask, Outcome

STILL: dict[str, Any] = {
    "baseline": {"output tokens/s": [100.0, 101.0, 99.0]},
    "steal": 0.0,
    "throttled": {},
    "others": [],
    "queued_ms": 0.2,
    "client_wait": 0.001,
    "client_cpu": 0.1,
}


def test_variation_by_hand() -> None:
    # Mean 10, sample deviation sqrt((4 + 0 + 4) / 2) = 2.
    assert variation([8, 10, 12]) == pytest.approx(0.2)
    assert variation([5, 5]) == 0
    assert variation([5]) is None
    assert variation([]) is None
    assert variation([0, 0]) is None
    # A repeat in which nothing was completed agrees with nothing.
    assert variation([5, None, 5]) is None


def test_a_quiet_machine_has_no_reasons_and_nothing_unknown() -> None:
    assert quietness(**STILL) == Quiet()
    assert not quietness(**STILL).marked


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        # 5 % is the limit: deviation 5.1 of mean 100, and 4.9.
        ({"baseline": {"x": [94.9, 100.0, 105.1]}}, "repeats differ in x by 5.1%"),
        ({"baseline": {"x": [95.1, 100.0, 104.9]}}, ""),
        ({"steal": 0.021}, "2.1% of CPU time was stolen"),
        ({"steal": 0.02}, ""),
        ({"steal": float("nan")}, "stolen"),
        ({"throttled": {"hw_thermal_slowdown": 0.01}}, "1.0% of the samples: hw_thermal_slowdown"),
        ({"throttled": {"hw_power_brake_slowdown": 1.0}}, "hw_power_brake_slowdown"),
        ({"throttled": {"hw_thermal_slowdown": 0.0}}, ""),
        ({"throttled": {"sw_power_cap": 0.9, "gpu_idle": 0.1}}, ""),
        ({"others": ["python (pid 7, 900 MiB)"]}, "other processes on the GPU: python (pid 7"),
        ({"queued_ms": 10.1}, "p99 10.1 ms"),
        ({"queued_ms": 10.0}, ""),
        ({"client_wait": 0.021}, "the client waited 2.1% of the time for a processor"),
        ({"client_wait": 0.02}, ""),
        ({"client_wait": float("nan")}, "the client waited"),
        ({"client_cpu": 0.61}, "the client computed 61% of the time (60% is the limit)"),
        ({"client_cpu": 0.6}, ""),
        ({"client_cpu": float("nan")}, "the client computed"),
    ],
)
def test_each_rule_at_its_limit(seen: dict[str, Any], said: str) -> None:
    found = quietness(**(STILL | seen))
    assert found.unknown == ()
    assert found.marked == bool(said)
    assert len(found.reasons) == bool(said)
    assert said in "".join(found.reasons)


@pytest.mark.parametrize(
    ("arrivals", "compared"),
    [
        (ClosedLoop(concurrency=2), ["output_tokens_per_s", "tpot_ms_p50", "ttft_ms_p50"]),
        (PoissonArrivals(rate=2), ["tpot_ms_p50", "ttft_ms_p50"]),
        (TraceArrivals(), ["tpot_ms_p50", "ttft_ms_p50"]),
    ],
)
def test_what_was_offered_and_a_tail_of_a_few_are_not_compared(
    arrivals: AnyArrivals, compared: list[str]
) -> None:
    answer = Outcome(0, due=0, sent=0, token_times=[1, 2], last_byte=2, status="completed")
    repeat = Repeat([Ask(0, (1,), 2)], [answer])
    load = summarize([repeat, repeat], workload="w", arrivals=arrivals)
    assert sorted(alike(load)) == compared
    assert alike(load)["ttft_ms_p50"] == (1000, 1000)


def test_every_reason_is_listed() -> None:
    found = quietness(
        baseline={"x": [50.0, 100.0]},
        steal=0.5,
        throttled={"hw_slowdown": 0.5},
        others=["a"],
        queued_ms=99.0,
        client_wait=0.5,
    )
    assert len(found.reasons) == 6


def test_limits_are_arguments() -> None:
    loose = Limits(variation=0.5, steal=0.5, queued_ms=100)
    assert quietness(**(STILL | {"steal": 0.4, "queued_ms": 99.0}), limits=loose) == Quiet()


def test_what_was_not_looked_at_is_no_reason_and_not_hidden() -> None:
    found = quietness()
    assert not found.marked
    assert found.unknown == (
        "how its repeats differ",
        "CPU steal",
        "throttling of the GPU",
        "other processes on the GPU",
        "whether the client waited for a processor",
    )
    once = quietness(**(STILL | {"baseline": {"x": [3.0]}}))
    assert once.unknown == ("how its repeats differ in x: 1 of them",)


@pytest.mark.parametrize("status", ["PASS", "FAIL", "INCONCLUSIVE", "MISSING", "NOT COMPARABLE"])
def test_a_marked_run_makes_no_pass(status: CheckStatus) -> None:
    marked = Quiet(reasons=("throttled",))
    assert believed(status, Quiet(), Quiet(unknown=("x",))) == (status, "")
    for runs in ([marked], [Quiet(), marked], [marked, marked]):
        now, why = believed(status, *runs)
        assert now == ("INCONCLUSIVE" if status == "PASS" else status)
        assert why == "the machine was not quiet: throttled"
