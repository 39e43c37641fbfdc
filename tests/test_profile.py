"""Loads against the shipped fake, whose token times are known: what is measured, kept and told."""

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_servers import CPU, start

from workbench import watch
from workbench.arrivals import (
    ClosedLoop,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
    load_name,
)
from workbench.errors import ServingFailure
from workbench.load import Load, run_load
from workbench.load_records import LoadSummary, Targets
from workbench.metrics_link import MetricsLink
from workbench.passes import Pass, pass_file, read_pass
from workbench.profile import LOADS, Inputs, Measured, SuiteLoad, run_profile
from workbench.profile_spec import ProfileSpec, RateSpec
from workbench.rate_search import search
from workbench.reach import RIGHT_OR_WRONG
from workbench.records import Choice
from workbench.saturation import LEAST
from workbench.servers import Endpoint
from workbench.suite_spec import Sample, SuiteSpec
from workbench.suites import Suite, load_suite
from workbench.traces import TraceRow
from workbench.workload_spec import Workload
from workbench.workloads import make_prompts, suite_asks


class Bytes:
    """A tokenizer with one token a byte."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(text.encode())


class Words:
    """A tokenizer with one token a word."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [sum(map(ord, word)) for word in text.split()]


def workload(prompt: Any = 24, output: Any = 8, name: str = "short", **more: Any) -> Workload:
    return Workload(name=name, prompt_tokens=prompt, output_tokens=output, **more)


def profile(folder: Path, faults: dict[str, Any], **spec: Any) -> Measured:
    settings: dict[str, Any] = {"workloads": (workload(),), "concurrency": (1, 4), "requests": 8}
    inputs, server = spec.pop("inputs", Inputs(Bytes())), spec.pop("server", {})
    with start(folder, faults, **server) as endpoint:
        return run_profile(endpoint, ProfileSpec(**(settings | spec)), inputs, folder=folder)


def at(load: LoadSummary) -> str:
    kind = load.arrivals["arrivals"]
    return f"{load.workload} {load.arrivals.get('concurrency', load.arrivals.get('rate', kind))}"


def value(figure: Any) -> float:
    assert figure.value is not None
    return float(figure.value)


def untimed(what: str) -> str:
    """What was told, without the seconds that are added to it every two of them."""
    return re.sub(r", \d+ s$", "", what)


# --------------------------------------------------------------------------- what is measured


def test_latencies_are_the_servers(tmp_path: Path) -> None:
    begun = time.perf_counter()
    # A second in which nothing runs delays the four requests that are open: no median of sixteen.
    found = profile(tmp_path, {"ttft_ms": 60, "itl_ms": 15}, requests=16)
    took = time.perf_counter() - begun
    assert [(p.workload, p.concurrency) for p in found.points] == [("short", 1), ("short", 4)]
    for point, load in zip(found.points, found.loads, strict=True):
        assert (point.completed, point.failed, point.errors) == (16, 0, {})
        assert point.ttft_ms_p50 is not None and 59 <= point.ttft_ms_p50 < 400
        assert point.tpot_ms_p50 is not None and 14 <= point.tpot_ms_p50 < 100
        # 16 requests of 8 tokens over the time they took together.
        assert point.output_tokens_per_s == pytest.approx(128 / point.seconds)
        assert point.ttft_ms_p50 == load.ttft_ms.p50.value
        # What was read all at once, where the client stood still for long, has no gaps.
        assert load.itl_ms.n == 7 * load.itl_ms.requests and load.itl_ms.requests > 8
        assert {*load.itl_ms.left_out} <= {"all tokens at once"}
        assert 14 <= value(load.itl_ms.p50) < 100
        assert load.by_status == {"completed": 16}
        assert load.client_cpu_seconds is not None and 0 < load.client_cpu_seconds < took
        assert load.client_wait_seconds is not None and 0 <= load.client_wait_seconds < took
        # So many were open at a time as the load says.
        kept = kept_pass(pass_file(tmp_path / LOADS, "short", ClosedLoop(**load.arrivals), 0))
        assert kept is not None
        spans = [(o.sent or 0.0, o.last_byte or 0.0) for o in kept.results()]
        at_once = [sum(begin <= now < end for begin, end in spans) for now, _ in spans]
        assert max(at_once) == point.concurrency
    assert found.peak_rss is not None and 10 << 20 < found.peak_rss < 1 << 30
    assert found.peak_gpu is None


def test_the_peaks_are_those_of_every_server_that_a_pass_was_measured_on(tmp_path: Path) -> None:
    """A profile that was killed goes on with a server that may not have been asked the most."""
    spec = ProfileSpec(workloads=(workload(),), concurrency=(1, 2), requests=4)

    class Device:
        def __init__(self, used: int) -> None:
            self.used = used

        def readings(self) -> tuple[()]:
            return ()

        def used_by(self, tree: Any, readings: Any, aside: int) -> int:
            return self.used

    def measured(megabytes: int, on_device: int) -> Measured:
        """Its memory is that of a process which holds so much."""
        held = f"held = b'x' * ({megabytes} << 20); print(flush=True); input()"
        with (
            start(tmp_path) as endpoint,
            subprocess.Popen(
                [sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as holder,
        ):
            assert holder.stdout is not None and holder.stdout.readline()
            seen = dataclasses.replace(endpoint, pid=holder.pid, gpu=Device(on_device))
            found = run_profile(seen, spec, Inputs(Bytes()), folder=tmp_path)
            holder.kill()
        return found

    first = measured(200, 9_000)
    assert first.peak_rss is not None and first.peak_rss > 200 << 20
    kept, missing = (tmp_path / LOADS / f"short.x{n}.0.json" for n in (1, 2))
    missing.unlink()
    second = measured(1, 7_000)
    assert second.resumed == 1
    # But for what that process itself took a moment later.
    assert second.peak_rss == pytest.approx(first.peak_rss, rel=0.02) and second.peak_gpu == 9_000
    # What an earlier version kept is of no known peak, and is no hindrance.
    old = json.loads(kept.read_text())
    del old["peak_rss"], old["peak_gpu"]
    kept.write_text(json.dumps(old))
    missing.unlink()
    third = measured(1, 7_000)
    assert third.peak_rss is not None and third.peak_rss < 200 << 20 and third.peak_gpu == 7_000


def test_the_server_gives_way_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = []
    monkeypatch.setattr(Endpoint, "give_way", lambda endpoint: lowered.append(endpoint.pid))
    profile(tmp_path, {})
    assert len(lowered) == 1


def test_server_and_machine_are_sampled_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ENGINE_SECONDS", 0.5)
    found = profile(tmp_path, {"ttft_ms": 100, "itl_ms": 100}, concurrency=(4,), requests=24)
    (used,) = found.loads[0].usage
    assert used.machine.samples > 2 and used.machine.gpus == ()
    assert used.engine is not None and used.engine.running is not None
    assert 2 < used.engine.running.max <= 4
    assert found.loads[0].quiet.unknown != ()


def test_every_workload_under_every_load_and_progress(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    spec = ProfileSpec(
        workloads=(workload(name="a"), workload(50, 3, "b", concurrency=(3,), requests=3)),
        concurrency=(2, 1),
        arrivals=(PoissonArrivals(rate=80),),
        requests=2,
    )
    with start(tmp_path) as endpoint:
        found = run_profile(
            endpoint,
            spec,
            Inputs(Bytes()),
            folder=tmp_path,
            progress=lambda *what: told.append(what),
        )
    assert [at(load) for load in found.loads] == ["a 2", "a 1", "a 80.0", "b 3", "b 80.0"]
    assert [load.requests for load in found.loads] == [2, 2, 2, 3, 3]
    assert [(p.workload, p.concurrency) for p in found.points] == [("a", 2), ("a", 1), ("b", 3)]
    assert told[0] == (0, 5, "a x2")
    assert told[-1][:2] == (5, 5)


def test_passes_of_an_attempt_cut_short_are_no_work_of_the_next(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    spec = ProfileSpec(workloads=(workload(),), concurrency=(1, 2, 4), requests=2)
    with start(tmp_path) as endpoint:
        some = spec.model_copy(update={"concurrency": (1, 2)})
        run_profile(endpoint, some, Inputs(Bytes()), folder=tmp_path)
        found = run_profile(
            endpoint,
            spec,
            Inputs(Bytes()),
            folder=tmp_path,
            progress=lambda *what: told.append(what),
        )
    assert found.resumed == 2
    # Not what is told again while a client is slow to start.
    told = [one for one in told if untimed(one[2]) == one[2]]
    assert told == [
        (0, 3, "short x1"),
        (0, 2, "short x2, 1 kept"),
        (0, 1, "short x4, 2 kept"),
        (1, 1, "profiled"),
    ]


def test_a_long_pass_is_told_while_it_runs(tmp_path: Path) -> None:
    told: list[str] = []
    spec = ProfileSpec(workloads=(workload(),), concurrency=(2,), requests=2)
    with start(tmp_path, {"ttft_ms": 2500}) as endpoint:
        run_profile(
            endpoint,
            spec,
            Inputs(Bytes()),
            folder=tmp_path,
            progress=lambda _, __, what: told.append(what),
        )
    assert any(re.fullmatch(r"short x2, [1-9]\d* s", what) for what in told)


def test_an_open_loop_sends_at_its_times_whatever_the_server_does(tmp_path: Path) -> None:
    found = profile(
        tmp_path, {"ttft_ms": 1000}, concurrency=(), arrivals=(ConstantArrivals(rate=8),)
    )
    (load,) = found.loads
    # Eight requests 125 ms apart, the last answer 1 s and 8 tokens after the last request.
    assert 1.8 < load.seconds < 7  # one after the other: 8
    # And half of them would be due three seconds before they are sent.
    assert value(load.queued_ms.p50) < 2000
    assert found.points == ()


def test_repeats_run_back_and_forth_and_give_intervals(tmp_path: Path) -> None:
    told: list[str] = []
    spec = ProfileSpec(workloads=(workload(),), concurrency=(1, 2), requests=2, repeats=3)
    with start(tmp_path) as endpoint:
        found = run_profile(
            endpoint,
            spec,
            Inputs(Bytes()),
            folder=tmp_path,
            progress=lambda _, __, what: told.append(what.split(",")[0]),
        )
    passes = [key for key, _ in itertools.groupby(told)]
    assert passes == ["short x1", "short x2", "short x1", "short x2", "profiled"]
    for load in found.loads:
        assert (load.repeats, load.requests, load.resampled) == (3, 6, "repeat")
        assert len(load.usage) == 3
        figure = load.output_tokens_per_s
        assert figure.low is not None and figure.high is not None
        assert figure.low <= value(figure) <= figure.high


DRAWN = {"distribution": "uniform", "min": 16, "max": 60}


def kept_pass(path: Path) -> Pass | None:
    return read_pass(path, json.loads(path.read_bytes())["served"])


def test_repeats_of_an_open_loop_differ_in_their_words_alone(tmp_path: Path) -> None:
    """With draws of their own they offer other loads, and the machine would be blamed for it."""
    found = profile(
        tmp_path,
        {},
        workloads=(workload(DRAWN, DRAWN),),
        concurrency=(1,),
        arrivals=({"arrivals": "poisson", "rate": 40},),
        repeats=3,
    )
    kept = {
        load: [kept_pass(pass_file(tmp_path / LOADS, "short", load, i)) for i in range(3)]
        for load in (PoissonArrivals(rate=40), ClosedLoop(concurrency=1))
    }
    work, gaps = set(), set()
    for load, passes in kept.items():
        for one in passes:
            assert one is not None and one.seen_before == 0
            outcomes = one.results()
            work.add(tuple((o.prompt_tokens, o.output_tokens) for o in outcomes))
            gaps.add((load, tuple(o.due for o in outcomes)) if load.arrivals == "poisson" else None)
    assert len(work) == 1
    assert len(gaps) == 2
    assert not any("output_tokens_per_s" in why for why in found.loads[1].quiet.reasons)


def test_a_client_that_hardly_keeps_up_marks_its_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*order: Any, **options: Any) -> Load:
        load = run_load(*order, **options)
        share = {1: 0.59, 2: 0.61}[options["concurrency"]]
        return dataclasses.replace(load, cpu_seconds=share * load.seconds)

    monkeypatch.setattr("workbench.profile.run_load", busy)
    found = profile(tmp_path, {}, requests=2, concurrency=(1, 2))
    said = [[why for why in load.quiet.reasons if "computed" in why] for load in found.loads]
    assert said[0] == []
    assert [why.partition(" of the time")[0] for why in said[1]] == ["the client computed 61%"]


def test_every_rate_of_a_search_is_the_same_work_with_scaled_gaps(tmp_path: Path) -> None:
    profile(
        tmp_path,
        {},
        workloads=(workload(DRAWN, DRAWN),),
        concurrency=(),
        highest_rate={"low": 20, "high": 40, "most": 3},
        targets={"ttft_ms": 15000},
    )
    passes = [
        kept_pass(pass_file(tmp_path / LOADS, "short", PoissonArrivals(rate=rate), repeat))
        for rate, repeat in ((20, 0), (40, 0), (40, 1))
    ]
    slow, fast, again = ([] if done is None else done.results() for done in passes)
    assert len(slow) == 8
    assert [o.due for o in slow] == pytest.approx([2 * o.due for o in fast], abs=1e-5)
    assert [o.due for o in again] == [o.due for o in fast]
    assert (
        [o.output_tokens for o in slow]
        == [o.output_tokens for o in fast]
        == [o.output_tokens for o in again]
    )


def test_a_replayed_trace_keeps_its_times_and_lengths(tmp_path: Path) -> None:
    rows = tuple(TraceRow(f"t:{i}", i * 0.2, 20 + i, 3 + i) for i in range(4))
    monday = Workload(name="monday", trace="monday.jsonl")
    found = profile(
        tmp_path, {}, workloads=(monday,), inputs=Inputs(Bytes(), traces={"monday": rows})
    )
    (load,) = found.loads
    assert load.arrivals["arrivals"] == "trace"
    assert (load.requests, load.completed, load.tokens.usage) == (4, 4, 3 + 4 + 5 + 6)
    assert 0.6 <= load.seconds < 6


def test_the_highest_rate_is_searched_and_every_rate_is_kept(tmp_path: Path) -> None:
    found = profile(
        tmp_path,
        {"ttft_ms": 20},
        concurrency=(),
        highest_rate={"low": 20, "high": 40, "most": 3},
        targets={"ttft_ms": 15000},
    )
    highest = found.highest["short"]
    assert (highest.outcome, highest.rate) == ("everything meets", 40)
    # Eight requests cannot show a queue that grows, and the answer does not hide it.
    assert "8 requests show no trend: 50 are the least" in highest.growth_unknown
    assert highest.sentence.endswith(highest.growth_unknown)
    assert "whether the queue grows is not known" in highest.probes[0].why
    assert [at(load) for load in found.loads] == ["short 20.0", "short 40.0"]


def test_a_rate_that_is_a_load_too_is_measured_once_and_counts_as_resumed_only_after_a_stop(
    tmp_path: Path,
) -> None:
    given: dict[str, Any] = {
        "concurrency": (),
        "arrivals": (PoissonArrivals(rate=20),),
        "highest_rate": {"low": 20, "high": 40, "most": 3},
        "targets": {"ttft_ms": 15000},
    }
    first = profile(tmp_path, {"ttft_ms": 20}, **given)
    assert len(first.highest["short"].probes) == 3
    # 20, and of the search 40 twice: the probe of 20 is the load's own pass.
    assert len([*(tmp_path / LOADS).glob("*.json")]) == 3
    assert first.resumed == 0
    kept = pass_file(tmp_path / LOADS, "short", PoissonArrivals(rate=40), 1)
    kept.unlink()
    assert profile(tmp_path, {"ttft_ms": 20}, **given).resumed == 2


def test_targets_nothing_can_meet_are_said(tmp_path: Path) -> None:
    found = profile(
        tmp_path,
        {"ttft_ms": 50},
        concurrency=(2,),
        highest_rate={"low": 20, "high": 40, "most": 3},
        targets={"ttft_ms": 1},
    )
    highest = found.highest["short"]
    assert (highest.outcome, highest.rate) == ("nothing meets", None)
    good = found.loads[0].good
    assert good is not None and good.count == 0 and good.missed == {"ttft_ms": 8}


def test_quality_goodput_counts_right_answers_in_time(tmp_path: Path) -> None:
    asked = Suite(
        SuiteSpec.model_validate(
            {
                "schema": "workbench.suite/1",
                "name": "orders",
                "description": "d",
                "ask": "generate",
                "prompt": "{question}",
                "max_tokens": 200,
                "scorer": {"name": "exact"},
                "chat_template": False,
            }
        ),
        tuple(Sample(id=f"s{i}", target="x", question="q") for i in range(4)),
        "digest",
        Path("orders"),
    )
    inputs = Inputs(
        Bytes(),
        suites={
            "orders": SuiteLoad(
                asked,
                lambda sample: list(f"{sample.id}: a question about it".encode()),
                lambda sample, answer: sample.id != asked.samples[0].id,
            )
        },
    )
    orders = Workload(name="orders", suite="orders")
    found = profile(
        tmp_path,
        {},
        workloads=(orders,),
        concurrency=(2,),
        targets={"ttft_ms": 5000},
        inputs=inputs,
        repeats=2,
    )
    (load,) = found.loads
    assert load.completed + load.by_status.get("truncated", 0) == 16
    assert load.correct is not None and load.good is not None
    assert load.good.count == load.completed
    assert load.correct.missed.get("wrong answer") == 4  # the one sample, asked twice
    assert load.correct.count == load.good.count - 4
    # Each repeat asks in another order, so that repeats are no equal work.
    assert "how its repeats differ" in load.quiet.unknown
    # The second round asks the same prompts: a prefix cache would help, and it is said.
    assert load.seen_before == 12


# --------------------------------------------------------------------------- what fails


def test_a_server_that_dies_in_the_middle_is_named(tmp_path: Path) -> None:
    # Two for the canary, then warm-up and measured requests.
    with pytest.raises(ServingFailure, match=r"died"):
        profile(tmp_path, {"die_after": 7})


def test_failed_requests_are_counted_apart(tmp_path: Path) -> None:
    # Requests 1 and 2 are the canary's, 3 and 4 warm up; of 5 to 12 the 5th and the 10th fail.
    found = profile(tmp_path, {"error_every": 5}, concurrency=(1,))
    (point,) = found.points
    assert (point.completed, point.failed) == (6, 2)
    assert point.errors == {"failed: http 500": 2}
    assert found.loads[0].by_status == {"completed": 6, "failed": 2}
    assert point.output_tokens_per_s == pytest.approx(48 / point.seconds)


def test_a_refusal_is_a_failure_and_not_a_late_answer(tmp_path: Path) -> None:
    (point,) = profile(tmp_path, {"busy_every": 5}, concurrency=(1,)).points
    assert (point.completed, point.errors) == (6, {"refused: http 503": 2})


def test_an_answer_that_is_too_short_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match=r"not one of 8 requests[\s\S]*short answer"):
        profile(tmp_path, {"stops_early": True}, workloads=(workload(24, 40),), concurrency=(1,))


def test_a_server_that_is_well_and_answers_nothing_ends_the_profile(tmp_path: Path) -> None:
    """One round of waiting for the warm-up and one for the load, not one for each request."""
    with pytest.raises(ServingFailure, match=r"answers none[\s\S]*first 4 requests") as failure:
        # The canary has the time for its two answers.
        profile(tmp_path, {"ttft_ms": 6_000}, concurrency=(2,), requests=400, request_seconds=1)
    assert "'short x2'" in failure.value.what and "within 1 s (request)" in failure.value.what
    assert not list((tmp_path / LOADS).glob("*"))


def test_one_load_without_a_token_is_a_point_and_a_second_ends_the_profile(tmp_path: Path) -> None:
    told: list[str] = []
    spec = ProfileSpec(
        workloads=(workload(),), concurrency=(1, 2, 4, 8), requests=8, request_seconds=1
    )
    with start(tmp_path) as endpoint:

        def stop(_: float, __: float, what: str) -> None:
            if what == "short x2":
                os.kill(endpoint.pid, signal.SIGSTOP)
            told.append(what.split(",")[0])

        # It is too busy to say so, and lives.
        seen = Living(**vars(endpoint))
        with pytest.raises(ServingFailure, match="of the load 'short x4' its first 4 requests"):
            run_profile(seen, spec, Inputs(Bytes()), folder=tmp_path, progress=stop)
        os.kill(endpoint.pid, signal.SIGCONT)
    kept = pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=2), 0)
    reasons = [outcome["reason"] for outcome in json.loads(kept.read_bytes())["outcomes"]]
    ended = "the load was ended: its first 4 requests got not a byte within 1 s (first_byte)"
    assert reasons == ["no first byte within 1 s (first_byte)"] * 4 + [ended] * 4
    assert "short x8" not in told


class Living(Endpoint):
    """A server whose health is well, whatever else it does."""

    def alive(self) -> bool:
        return True


def test_a_cut_stream_is_never_an_answer(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match=r"not one of 8 requests"):
        profile(tmp_path, {"drop_stream_after": 3}, concurrency=(1,))


def test_a_load_the_server_fails_at_is_a_point_without_latencies(tmp_path: Path) -> None:
    """Answers of 6 s are late for a limit of 3 s; the loads before and behind are measured."""
    found = profile(
        tmp_path,
        {"itl_ms": 20},
        workloads=(workload(name="a"), workload(output=300, name="long"), workload(name="z")),
        concurrency=(4,),
        requests=4,
        request_seconds=3,
    )
    assert [(p.workload, p.completed) for p in found.points] == [("a", 4), ("long", 0), ("z", 4)]
    long = found.points[1]
    assert (long.failed, long.ttft_ms_p50, long.tpot_ms_p50) == (4, None, None)
    assert found.loads[1].by_status == {"timeout": 4}
    assert not long.output_tokens_per_s


# --------------------------------------------------------------------------- what is kept


def test_an_interrupted_profile_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match="died"):
        # Canary 2, warm-up 2, x1 8, warm-up 4: it dies in the load x4.
        profile(tmp_path, {"die_after": 18})
    kept = pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=1), 0)
    before = kept.read_bytes()
    found = profile(tmp_path, {})
    assert found.resumed == 1
    assert kept.read_bytes() == before
    assert [p.completed for p in found.points] == [8, 8]


def test_a_damaged_pass_is_measured_again(tmp_path: Path) -> None:
    profile(tmp_path, {}, concurrency=(1,))
    kept = pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=1), 0)
    whole = json.loads(kept.read_bytes())
    kept.write_bytes(kept.read_bytes()[:-40])
    assert read_pass(kept, whole["served"]) is None
    found = profile(tmp_path, {}, concurrency=(1,))
    assert found.resumed == 0 and read_pass(kept, whole["served"]) is not None
    # So is one of another load that lies in its place.
    other = pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=2), 0)
    other.write_bytes(kept.read_bytes())
    found = profile(tmp_path, {}, concurrency=(1, 2))
    assert found.resumed == 1 and at(found.loads[1]) == "short 2"


def test_a_pass_in_another_ones_place_is_measured_again(tmp_path: Path) -> None:
    profile(tmp_path, {}, concurrency=(1, 2))
    one, two = (pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=n), 0) for n in (1, 2))
    two.write_bytes(one.read_bytes())
    assert profile(tmp_path, {}, concurrency=(1, 2)).resumed == 1


@pytest.mark.parametrize(
    "other",
    [
        {"served_digest": "e" * 64},
        {"twin_of": "f" * 64},
        {"drafts": {"/draft": "a" * 64}},
        {"dtype": Choice(value="bfloat16", reason="another")},
        {"hardware": CPU.model_copy(update={"cores": 64})},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_profile_goes_on_with_passes_of_its_own_weights_and_server_alone(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    with pytest.raises(ServingFailure, match="died"):
        profile(tmp_path, {"die_after": 18})
    kept = pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=1), 0)
    before = json.loads(kept.read_bytes())
    assert before["served"]["weights"] == "d" * 64 and before["served"]["kernels"] == "fake"
    found = profile(tmp_path, {}, server=other)
    assert found.resumed == 0 and [p.completed for p in found.points] == [8, 8]
    now = json.loads(kept.read_bytes())
    assert now["outcomes"] != before["outcomes"] and now["served"] != before["served"]
    assert profile(tmp_path, {}, server=other).resumed == 2


def test_a_pass_of_before_it_knew_its_server_is_read_and_belongs_to_none(tmp_path: Path) -> None:
    profile(tmp_path, {}, concurrency=(1,))
    kept = pass_file(tmp_path / LOADS, "short", ClosedLoop(concurrency=1), 0)
    old = json.loads(kept.read_bytes())
    del old["served"]
    kept.write_bytes(json.dumps(old).encode())
    assert Pass.model_validate(old).served == {}
    assert profile(tmp_path, {}, concurrency=(1,)).resumed == 0


def test_passes_without_one_completed_request_are_asked_again(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match="not one of 8 requests"):
        profile(tmp_path, {"drop_stream_after": 3}, concurrency=(1,))
    found = profile(tmp_path, {}, concurrency=(1,))
    assert found.resumed == 0 and found.loads[0].completed == 8


def test_figures_are_the_same_from_the_kept_passes(tmp_path: Path) -> None:
    first = profile(tmp_path, {"ttft_ms": 20, "itl_ms": 2})
    again = profile(tmp_path, {})
    assert again.resumed == 2
    for one, other in zip(first.loads, again.loads, strict=True):
        assert other.model_dump() == one.model_dump()


def test_names_of_loads_are_distinct_files() -> None:
    loads = [
        ClosedLoop(concurrency=8),
        PoissonArrivals(rate=8),
        ConstantArrivals(rate=8),
        ConstantArrivals(rate=8.000001),
        TraceArrivals(),
        TraceArrivals(speed=2),
    ]
    names = [pass_file(Path(), "w", load, 0).name for load in loads]
    assert len(set(names)) == len(loads)
    assert not any(set(name) & set("/ \\") for name in names)
    assert load_name(loads[0]) == "x8"


# --------------------------------------------------------------------------- the recipe's words


def test_a_profile_without_a_load_or_a_target_is_refused() -> None:
    ok = {"workloads": [workload().model_dump()]}
    for wrong, said in (
        ({"concurrency": []}, "has no load"),
        ({"concurrency": [1, 1]}, "distinct"),
        ({"arrivals": [{"arrivals": "poisson", "rate": 2}] * 2}, "twice"),
        ({"highest_rate": {"low": 1, "high": 2}}, "there are none"),
        ({"highest_rate": {"low": 2, "high": 1}, "targets": {"ttft_ms": 5}}, "not below"),
        ({"workloads": [{"name": "o", "suite": "orders"}]}, "quality goodput"),
        ({"arrivals": [{"arrivals": "closed", "concurrency": 3}]}, "arrivals"),
        ({"arrivals": [{"arrivals": "trace", "speed": 2}]}, "no workload with a trace"),
        ({"workloads": [{"name": "t", "trace": "t.jsonl", "requests": 5}]}, "its own times"),
        ({"requests": 10**12}, "1000000"),
    ):
        with pytest.raises(ValidationError, match=said):
            ProfileSpec.model_validate(ok | wrong)
    ProfileSpec(workloads=(workload(),), concurrency=(), arrivals=(PoissonArrivals(rate=1),))
    ProfileSpec(workloads=(workload(),), targets=Targets(ttft_ms=5))


def test_a_search_has_enough_requests_to_see_a_queue_grow_unless_the_recipe_says() -> None:
    recipe = {
        "workloads": [workload().model_dump()],
        "targets": {"ttft_ms": 5},
        "highest_rate": {"low": 1, "high": 2},
    }
    spec = ProfileSpec.model_validate(recipe)
    assert spec.requests >= LEAST
    assert ProfileSpec.model_validate(json.loads(spec.model_dump_json())) == spec
    assert ProfileSpec.model_validate(recipe | {"requests": 16}).requests == 16
    assert ProfileSpec.model_validate(recipe | {"highest_rate": None}).requests == 16


def test_two_loads_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"two loads .* 'x2'"):
        ProfileSpec(workloads=(workload(concurrency=(2, 2)),))


def test_a_plan_knows_how_long_open_loops_wait() -> None:
    opened = ({"arrivals": "constant", "rate": 0.5}, {"arrivals": "burst", "size": 4, "gap": 3})
    spec = ProfileSpec(workloads=(workload(),), arrivals=opened, requests=9, repeats=2)
    assert spec.open_seconds({}) == 2 * (8 / 0.5 + 2 * 3)
    assert ProfileSpec(workloads=(workload(),)).open_seconds({}) == 0
    monday = Workload(name="monday", trace="t")
    twice = TraceArrivals(speed=2)
    spec = ProfileSpec(workloads=(monday,), arrivals=(twice, TraceArrivals()), repeats=3)
    assert spec.open_seconds({"monday": 60.0, "other": 9.0}) == 3 * (30 + 60)


@pytest.mark.parametrize("most", [3, 5, 16])
def test_a_plan_knows_how_long_the_search_for_a_rate_waits_at_most(most: int) -> None:
    rates = RateSpec(low=0.5, high=20, most=most)
    monday = Workload(name="monday", trace="t")
    spec = ProfileSpec(
        workloads=(workload(), workload(name="b", requests=5), monday),
        requests=9,
        targets=Targets(ttft_ms=5),
        highest_rate=rates,
    )

    def waits(limit: float) -> float:
        """With a server that carries so much: eight gaps, and four, at each rate it tries."""
        found = search(
            lambda r: (r <= limit, ""), rates.low, rates.high, most=most, within=rates.within
        )
        return sum((8 + 4) / probe.rate for probe in found.probes)

    slowest = max(waits(limit / 100) for limit in range(30, 2100, 5))
    assert spec.search_seconds == pytest.approx(slowest)
    assert spec.swept.search_seconds == 0
    assert spec.open_seconds({}) == 0


@pytest.mark.parametrize("page", ["README.md", "notebooks/recipes/WORKLOADS.md"])
def test_the_suite_that_the_pages_ask_under_load_can_be_asked(page: str) -> None:
    root = Path(__file__).parents[1]
    names = re.findall(r"- \{name: \w+, suite: (\w+)\}", (root / page).read_text())
    assert names
    for name in names:
        suite = load_suite(root / "eval_suites" / name)
        assert suite.spec.scorer.name in RIGHT_OR_WRONG
        load = ClosedLoop(concurrency=1)
        assert suite_asks(suite.spec, suite.samples, lambda _: (), load, count=1, seed="")


def test_a_recipe_says_the_same_after_it_was_written_and_read() -> None:
    spec = ProfileSpec.model_validate(
        {
            "workloads": [
                {"preset": "many-short"},
                {"preset": "structured-output", "concurrency": [2]},
                {"name": "x", "prompt_tokens": 4, "output_tokens": 2},
            ],
            "arrivals": [{"arrivals": "burst", "size": 3, "gap": 2}],
        }
    )
    assert ProfileSpec.model_validate(json.loads(spec.model_dump_json())) == spec
    assert spec.most_at_a_time == 128


# --------------------------------------------------------------------------- prompts


@given(
    tokens=st.integers(1, 300),
    count=st.integers(1, 40),
    seed=st.text(max_size=5),
    tokenizer=st.sampled_from([Bytes(), Words()]),
)
def test_prompts_have_exactly_their_length(
    tokens: int, count: int, seed: str, tokenizer: Any
) -> None:
    prompts = make_prompts(tokenizer, count=count, tokens=tokens, seed=seed)
    assert [len(p) for p in prompts] == [tokens] * count
    assert prompts == make_prompts(tokenizer, count=count, tokens=tokens, seed=seed)


def test_prompts_differ_from_their_beginning_and_by_seed() -> None:
    prompts = make_prompts(Bytes(), count=100, tokens=120, seed="0")
    for one, other in itertools.combinations(prompts, 2):
        assert one[:16] != other[:16]
    assert prompts != make_prompts(Bytes(), count=100, tokens=120, seed="1")
    short = make_prompts(Words(), count=100, tokens=2, seed="0")
    assert len({tuple(ids) for ids in short}) == 100


def test_a_server_that_hangs_ends_at_the_requests_limit(tmp_path: Path) -> None:
    spec = ProfileSpec(workloads=(workload(),), concurrency=(2,), requests=40, request_seconds=2)
    with start(tmp_path, {"ttft_ms": 100, "itl_ms": 20}) as endpoint:

        def stop_once() -> None:
            """For five seconds, when it has answered the canary, the warm-up and some requests."""
            link = MetricsLink(endpoint.base_url, endpoint.key)
            while sum(((link.ask() or {}).get("out") or {}).values()) < 2 * 8 + 2 * 4 + 6 * 8:
                if over.wait(0.02):
                    return
            link.close()
            os.kill(endpoint.pid, signal.SIGSTOP)
            over.wait(5)
            os.kill(endpoint.pid, signal.SIGCONT)

        over = threading.Event()
        stopper = threading.Thread(target=stop_once)
        stopper.start()
        try:
            found = run_profile(endpoint, spec, Inputs(Bytes()), folder=tmp_path)
        finally:
            over.set()
            stopper.join()
    (load,) = found.loads
    assert load.by_status["timeout"] >= 2 and load.completed > 20
    assert any("2 s" in why for why in load.by_reason)
