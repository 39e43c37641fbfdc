"""The load against the shipped fake, whose token times are known, and its arithmetic."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_servers import start

from workbench.client import Completion
from workbench.errors import ServingFailure
from workbench.profile import Answers, run_profile, summarize
from workbench.records import LoadPoint
from workbench.spec import ProfileSpec, WorkloadSpec
from workbench.workloads import make_prompts


class Bytes:
    """A tokenizer with one token a byte."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(text.encode())


class Words:
    """A tokenizer with one token a word."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [sum(map(ord, word)) for word in text.split()]


def workload(prompt: int = 24, output: int = 8, name: str = "short") -> WorkloadSpec:
    return WorkloadSpec(name=name, prompt_tokens=prompt, output_tokens=output)


def profile(
    folder: Path, faults: dict[str, Any], **spec: Any
) -> tuple[tuple[LoadPoint, ...], int | None, int | None]:
    settings: dict[str, Any] = {"workloads": (workload(),), "concurrency": (1, 4), "requests": 8}
    with start(folder, faults) as endpoint:
        return run_profile(endpoint, ProfileSpec(**(settings | spec)), Bytes())


def test_latencies_are_the_servers(tmp_path: Path) -> None:
    points, peak, gpu = profile(tmp_path, {"ttft_ms": 60, "itl_ms": 15})
    assert [(p.workload, p.concurrency) for p in points] == [("short", 1), ("short", 4)]
    for point in points:
        assert (point.completed, point.failed, point.errors) == (8, 0, {})
        assert point.ttft_ms_p50 is not None and 59 <= point.ttft_ms_p50 < 110
        assert point.tpot_ms_p50 is not None and 14 <= point.tpot_ms_p50 < 35
        assert point.ttft_ms_p95 is not None and point.ttft_ms_p95 >= point.ttft_ms_p50
        # 8 requests of 8 tokens over the time they took together.
        assert point.output_tokens_per_s == pytest.approx(64 / point.seconds)
    one, four = points
    assert one.seconds > 2.5 * four.seconds
    assert peak is not None and 10 << 20 < peak < 1 << 30
    assert gpu is None


def test_every_workload_at_every_concurrency_and_progress(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    spec = ProfileSpec(
        workloads=(workload(name="a"), workload(50, 3, "b")), concurrency=(2, 1), requests=2
    )
    with start(tmp_path) as endpoint:
        points, _, _ = run_profile(
            endpoint, spec, Bytes(), progress=lambda *what: told.append(what)
        )
    assert [(p.workload, p.concurrency) for p in points] == [("a", 2), ("a", 1), ("b", 2), ("b", 1)]
    assert told[0] == (0, 4, "a at concurrency 2")
    assert told[-1][:2] == (4, 4)


def test_a_server_that_dies_in_the_middle_is_named(tmp_path: Path) -> None:
    # Two for the canary, then warm-up and measured requests.
    with pytest.raises(ServingFailure, match=r"no request of workload 'short'[\s\S]*died while"):
        profile(tmp_path, {"die_after": 5})


def test_failed_requests_are_counted_apart(tmp_path: Path) -> None:
    # Requests 1 and 2 are the canary's, 3 and 4 warm up; of 5 to 12 the 5th and the 10th fail.
    points, _, _ = profile(tmp_path, {"error_every": 5}, concurrency=(1,))
    assert (points[0].completed, points[0].failed) == (6, 2)
    assert points[0].errors == {"http 500": 2}
    assert points[0].output_tokens_per_s == pytest.approx(48 / points[0].seconds)


def test_a_refusal_is_a_failure_and_not_a_late_answer(tmp_path: Path) -> None:
    points, _, _ = profile(tmp_path, {"busy_every": 5}, concurrency=(1,))
    assert (points[0].completed, points[0].errors) == (6, {"http 503": 2})


def test_an_answer_that_is_too_short_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match="short answer"):
        profile(tmp_path, {"stops_early": True}, workloads=(workload(24, 40),), concurrency=(1,))


def test_a_cut_stream_is_never_an_answer(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match=r"stream cut|connection lost"):
        profile(tmp_path, {"drop_stream_after": 3}, concurrency=(1,))


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


# --------------------------------------------------------------------------- arithmetic


def answer(started: float, first: float, last: float, tokens: int) -> Completion:
    return Completion("x", "length", 5, tokens, (), started, first, last, (first, last))


def test_one_point_by_hand() -> None:
    answers = Answers(
        completed=[answer(0.0, 0.1, 0.5, 5), answer(0.0, 0.2, 1.0, 5), answer(0.5, 0.9, 2.0, 5)],
        errors=Counter({"timeout": 2, "http 500": 1}),
    )
    point = summarize(workload(), 3, answers)
    assert (point.completed, point.failed) == (3, 3)
    assert point.errors == {"http 500": 1, "timeout": 2}
    assert point.ttft_ms_p50 == pytest.approx(200)
    assert point.ttft_ms_p95 == pytest.approx(380)  # linear between 200 and 400
    assert point.tpot_ms_p50 == pytest.approx(200)  # (1.0 - 0.2) / 4
    assert point.seconds == 2.0
    assert point.output_tokens_per_s == pytest.approx(7.5)


def test_nothing_completed_is_nothing_and_not_zero() -> None:
    point = summarize(workload(), 1, Answers(errors=Counter({"timeout": 4})))
    assert (point.completed, point.failed) == (0, 4)
    assert point.ttft_ms_p50 is None and point.tpot_ms_p95 is None
    assert point.output_tokens_per_s is None


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(0.001, 5), st.floats(0.001, 5)),
        min_size=1,
        max_size=30,
    )
)
def test_percentiles_are_numpys(times: list[tuple[float, float, float]]) -> None:
    answers = Answers(completed=[answer(s, s + f, s + f + g, 9) for s, f, g in times])
    point = summarize(workload(), 1, answers)
    ttft = [1000 * ((s + f) - s) for s, f, _ in times]
    assert point.ttft_ms_p95 == pytest.approx(np.percentile(ttft, 95))
    assert point.ttft_ms_p50 == pytest.approx(np.median(ttft))
    json.dumps(point.model_dump())
