"""Every figure of a load by hand, and what may never be in one."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.arrivals import AnyArrivals, ClosedLoop, PoissonArrivals
from workbench.bootstrap import Draws
from workbench.load_records import LoadSummary, Spread, Targets
from workbench.load_stats import Repeat, load_point, meets, summarize
from workbench.traffic import Ask, Outcome, Status

QUICK = Draws(resamples=40)
#: By hand: two answers, sent at 0 and at 1.
#: a: tokens at 0.2, 0.3, 0.5; usage 3; ended at 0.6    TTFT 200, gaps 100 200, TPOT 150, e2e 500
#: b: tokens at 1.4, 1.5, 1.6, 1.7; no usage; ended 2.0  TTFT 400, gaps 100 x 3, TPOT 100, e2e 700
A = {"sent": 0.0, "token_times": [0.2, 0.3, 0.5], "last_byte": 0.6, "output_tokens": 3}
B = {"sent": 1.0, "token_times": [1.4, 1.5, 1.6, 1.7], "last_byte": 2.0}


def ask(number: int = 0, **given: Any) -> Ask:
    return Ask(**({"number": number, "prompt": (1,) * 10, "max_tokens": 3} | given))


def outcome(number: int = 0, **given: Any) -> Outcome:
    fields: dict[str, Any] = {"due": given.get("sent", 0.0) or 0.0, "status": "completed"}
    return Outcome(number=number, **(fields | given))


def repeat(*outcomes: dict[str, Any], asks: dict[str, Any] | None = None) -> Repeat:
    return Repeat(
        [ask(i, **(asks or {})) for i in range(len(outcomes))],
        [outcome(i, **fields) for i, fields in enumerate(outcomes)],
    )


def figures(
    *repeats: Repeat, arrivals: AnyArrivals | None = None, draws: Draws = QUICK, **given: Any
) -> LoadSummary:
    return summarize(
        repeats,
        workload="w",
        arrivals=arrivals or ClosedLoop(concurrency=1),
        draws=draws,
        **given,
    )


def values(spread: Spread) -> list[float | None]:
    return [getattr(spread, name).value for name in ("mean", "p50", "p90", "p95", "p99", "max")]


# --------------------------------------------------------------------------- by hand


def test_every_latency_by_hand() -> None:
    found = figures(repeat(A, B))
    assert values(found.ttft_ms) == pytest.approx([300, 300, 380, 390, 398, 400])
    assert values(found.tpot_ms) == pytest.approx([125, 125, 145, 147.5, 149.5, 150])
    # Gaps 100 100 100 100 200: places 2, 3.6, 3.8 and 3.96 of five.
    assert values(found.itl_ms) == pytest.approx([120, 100, 160, 180, 196, 200])
    assert values(found.e2e_ms) == pytest.approx([600, 600, 680, 690, 698, 700])
    assert values(found.queued_ms) == [0] * 6
    # 2 tokens in 0.3 s, 3 tokens in 0.3 s.
    assert values(found.user_tokens_per_s)[:2] == pytest.approx([25 / 3, 25 / 3])
    assert found.user_tokens_per_s.max.value == pytest.approx(10)
    assert (found.itl_ms.n, found.itl_ms.requests, found.ttft_ms.n) == (5, 2, 2)


def test_every_rate_by_hand() -> None:
    found = figures(repeat(A, {**B, "prompt_tokens": 11}))
    assert found.seconds == pytest.approx(2.0)  # sent at 0, ended at 2
    assert found.requests_per_s.value == pytest.approx(1.0)
    assert found.input_tokens_per_s.value == pytest.approx(21 / 2)
    assert found.output_tokens_per_s.value == pytest.approx(7 / 2)
    assert found.total_tokens_per_s.value == pytest.approx(28 / 2)
    assert (found.completion_rate.value, found.error_rate.value) == (1, 0)
    assert found.tokens.prompts_differ == 1


def test_rates_over_repeats_are_sums_over_sums() -> None:
    twice = {**A, "last_byte": 4.0}
    found = figures(repeat(A, B), repeat(A), repeat(twice))
    assert found.seconds == pytest.approx(2 + 0.6 + 4)
    assert found.requests_per_s.value == pytest.approx(4 / 6.6)
    assert found.output_tokens_per_s.value == pytest.approx(13 / 6.6)
    low, high = found.requests_per_s.low, found.requests_per_s.high
    assert low is not None and high is not None
    # Student's t of three that differ so much reaches far beyond the three.
    assert low < 1 / 4 and high > 1 / 0.6


def test_what_is_drawn_again_is_said() -> None:
    two = figures(repeat(A, B), repeat(A, B))
    assert (two.resampled, two.repeats, two.resamples, two.confidence) == ("request", 2, 40, 0.95)
    assert two.ttft_ms.mean.low == 200  # a draw of A alone is among forty
    # Of four requests no order statistics hold the median surely enough; of eight they do, and of
    # the p95 they do not.
    assert two.ttft_ms.p50.low is None
    four = figures(repeat(A, B, A, B), repeat(A, B, A, B))
    assert (four.ttft_ms.p50.low, four.ttft_ms.p50.high) == pytest.approx((200, 400))
    assert four.ttft_ms.p95.value is not None and four.ttft_ms.p95.high is None
    # A request gives several gaps, which are not independent: of four requests too few.
    assert two.itl_ms.p50.low is None
    assert figures(repeat(*[A, B] * 8)).itl_ms.p50.low == pytest.approx(100)
    # One value a repeat, and two of them say nothing about how repeats vary.
    assert two.requests_per_s.low is two.output_tokens_per_s.high is None
    # Four of four completed: Clopper and Pearson's limit, not a width of nothing.
    assert two.completion_rate.low == pytest.approx(0.025**0.25)
    three = figures(*[repeat(A, B)] * 3)
    assert (three.resampled, three.percentiles_by) == ("repeat", "order statistics")
    # Equal repeats differ in nothing, and the six requests are still only six.
    assert (three.ttft_ms.p50.low, three.ttft_ms.p50.high) == pytest.approx((200, 400))
    assert three.ttft_ms.p90.high is None
    assert three.requests_per_s.low == three.requests_per_s.high == pytest.approx(1)
    one = figures(repeat(A))
    assert one.ttft_ms.p50.value == pytest.approx(200)
    assert one.ttft_ms.p50.low is None


def test_a_share_is_never_surer_than_its_requests_together() -> None:
    """Of 12 of 12 in three repeats nobody knows that it is all of them."""
    late = {**A, "token_times": [9.0, 9.1, 9.2], "last_byte": 9.3}
    failed = {**A, "status": "failed", "reason": "x"}
    whole = figures(*[repeat(*[A] * 4)] * 3, targets=Targets(ttft_ms=250))
    assert whole.good is not None
    for figure in (whole.completion_rate, whole.good.share):
        assert (figure.value, figure.high) == (1, 1)
        assert figure.low == pytest.approx(0.025 ** (1 / 12))
    assert (whole.error_rate.value, whole.error_rate.low) == (0, 0)
    assert whole.error_rate.high == pytest.approx(1 - 0.025 ** (1 / 12))
    # Equal repeats of 2 of 4: as 6 of 12, whose limits are 0.2109 and 0.7891.
    half = figures(*[repeat(A, A, late, failed)] * 3, targets=Targets(ttft_ms=250))
    assert half.good is not None
    assert (half.good.share.low, half.good.share.high) == pytest.approx((0.2109, 0.7891), abs=1e-4)
    # Repeats of all and of none: a request is no unit, and the repeats' spread is the wider.
    apart = figures(repeat(*[failed] * 8), *[repeat(*[A] * 8)] * 2, draws=Draws(resamples=400))
    low, high = apart.completion_rate.low, apart.completion_rate.high
    assert low is not None and high is not None and low < 0.1 and high > 0.9


def test_usage_and_chunks_are_counted_apart() -> None:
    """Two tokens a chunk: half the chunks, and TPOT by what the server counted."""
    packed = {**B, "output_tokens": 8}
    found = figures(repeat(packed, A, {**B, "token_times": [1.4]}), draws=QUICK)
    assert found.tokens.usage == 11
    assert found.tokens.chunks == 7
    assert found.tokens.difference == 4
    assert found.tokens.without_usage == 1
    assert found.tpot_ms.max.value == pytest.approx(150)
    assert found.tpot_ms.mean.value == pytest.approx((300 / 7 + 150) / 2)
    assert found.tpot_ms.left_out == {"one token": 1}
    assert found.output_tokens_per_s.value == pytest.approx(12 / 2)


def test_a_request_whose_tokens_came_at_once_has_no_gap_to_tell() -> None:
    one_chunk = {**A, "token_times": [0.5]}
    together = {**A, "token_times": [0.5, 0.5, 0.5]}
    nothing = {**A, "token_times": [], "output_tokens": 0}
    found = figures(repeat(one_chunk, together, nothing, asks={"ignore_eos": False}))
    assert found.completed == 3
    for spread in (found.tpot_ms, found.itl_ms, found.user_tokens_per_s):
        assert spread.left_out == {"all tokens at once": 2, "no token": 1}
        assert spread.max.value is None
    assert (found.ttft_ms.n, found.ttft_ms.left_out) == (2, {"no token": 1})


def test_the_clients_own_delay_is_a_figure_of_its_own() -> None:
    found = figures(repeat({**A, "due": -0.05}, B))
    assert found.queued_ms.max.value == pytest.approx(50)
    assert found.ttft_ms.mean.value == pytest.approx(300)


def test_each_repeat_stands_for_itself() -> None:
    gone = {"sent": 0.0, "status": "failed", "reason": "x"}
    found = figures(repeat(A, B), repeat(B), repeat({**gone, "sent": None})).by_repeat
    assert found["ttft_ms_p50"] == (pytest.approx(300), pytest.approx(400), None)
    assert found["tpot_ms_p50"] == (pytest.approx(125), pytest.approx(100), None)
    assert found["ttft_ms_p95"] == (pytest.approx(390), pytest.approx(400), None)
    assert found["tpot_ms_p95"] == (pytest.approx(147.5), pytest.approx(100), None)
    assert found["output_tokens_per_s"] == (pytest.approx(7 / 2), pytest.approx(4), None)


def test_a_closed_loop_is_a_point_of_the_profile() -> None:
    failed = {**A, "status": "failed", "reason": "HTTP 500"}
    found = load_point(figures(repeat(A, B, failed), arrivals=ClosedLoop(concurrency=4)))
    assert (found.workload, found.concurrency, found.completed, found.failed) == ("w", 4, 2, 1)
    assert (found.ttft_ms_p50, found.ttft_ms_p95) == pytest.approx((300, 390))
    assert (found.tpot_ms_p50, found.tpot_ms_p95) == pytest.approx((125, 147.5))
    assert (found.output_tokens_per_s, found.seconds) == pytest.approx((3.5, 2))
    assert found.errors == {"failed: HTTP 500": 1}
    with pytest.raises(ValueError, match="not asked in a closed loop"):
        load_point(figures(repeat(A), arrivals=PoissonArrivals(rate=1)))


# --------------------------------------------------------------------------- what never counts

BAD: list[tuple[Status, str]] = [
    ("short", "short answer"),
    ("truncated", ""),
    ("failed", "HTTP 500"),
    ("refused", "HTTP 429"),
    ("timeout", "no answer within 9 s"),
    ("unfinished", ""),
]


@pytest.mark.parametrize(("status", "reason"), BAD)
def test_what_was_not_completed_is_in_no_figure_and_beside_each(
    status: Status, reason: str
) -> None:
    """Its times are absurd on purpose: in any mean they would show."""
    absurd = {
        "sent": 1.0,
        "token_times": [500.0, 900.0, 901.0],
        "last_byte": 950.0,
        "output_tokens": 7000,
        "prompt_tokens": 7000,
        "status": status,
        "reason": reason,
    }
    alone, beside = figures(repeat(A, B)), figures(repeat(A, B, absurd))
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queued_ms", "user_tokens_per_s"):
        spread = getattr(beside, name)
        assert values(spread) == values(getattr(alone, name))
        assert spread.left_out == {status: 1}
    # Of what is done in the time that all took: 950 s instead of 2.
    for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s"):
        assert getattr(beside, name).value == pytest.approx(getattr(alone, name).value * 2 / 950)
    assert beside.tokens == alone.tokens
    assert beside.by_status == {"completed": 2, status: 1}
    assert beside.by_reason == {f"{status}: {reason}" if reason else status: 1}
    assert beside.completion_rate.value == pytest.approx(2 / 3)
    error = 0 if status in ("truncated", "unfinished") else 1 / 3
    assert beside.error_rate.value == pytest.approx(error)


def test_an_answer_cut_off_is_truncated_unless_its_length_was_forced() -> None:
    cut = {**A, "finish_reason": "length"}
    assert figures(repeat(cut)).by_status == {"completed": 1}
    free = figures(repeat(cut, {**B, "finish_reason": "stop"}, asks={"ignore_eos": False}))
    assert free.by_status == {"completed": 1, "truncated": 1}
    assert free.ttft_ms.max.value == pytest.approx(400)
    assert free.ttft_ms.n == 1


def test_a_forced_answer_with_fewer_tokens_is_short_whatever_the_client_says() -> None:
    found = figures(repeat({**A, "output_tokens": 2}, B))
    assert found.by_status == {"completed": 1, "short": 1}


def test_a_load_of_which_nothing_came_back_has_no_latency_and_no_throughput() -> None:
    gone = {"sent": 0.0, "status": "failed", "reason": "connection refused"}
    found = figures(repeat(gone, {**gone, "sent": 2.0}), targets=Targets(ttft_ms=1))
    assert values(found.ttft_ms) == [None] * 6
    assert found.ttft_ms.left_out == {"failed": 2}
    assert found.requests_per_s.value == found.output_tokens_per_s.value == 0
    assert found.good is not None
    assert (found.good.count, found.good.per_s.value) == (0, 0)
    never = figures(repeat({"sent": None, "status": "unfinished"}))
    assert never.requests_per_s.value is None
    assert never.completion_rate.value == 0


def test_a_server_that_dies_does_not_look_faster() -> None:
    """One answer in the first second, then ten more seconds of failures."""
    failed = [{"sent": float(s), "status": "failed", "reason": "x"} for s in range(1, 11)]
    assert figures(repeat(A, *failed)).requests_per_s.value == pytest.approx(1 / 10)


def hung(sent: float, over: float, status: Status = "timeout") -> dict[str, Any]:
    return {"sent": sent, "status": status, "reason": "x", "over": over}


def test_the_time_of_a_request_that_hangs_is_time_of_the_load() -> None:
    """30 answers of 8 tokens within 0.135 s, two given up at 1.25 s: 24 a second, not 222."""
    step = 0.135 / 30
    quick = [
        {
            "sent": i * step,
            "token_times": [i * step + part * step for part in (0.5, 0.6, 0.9)],
            "last_byte": (i + 1) * step,
            "over": (i + 1) * step,
            "output_tokens": 8,
        }
        for i in range(30)
    ]
    limits = Targets(ttft_ms=500)
    for arrivals in (ClosedLoop(concurrency=4), PoissonArrivals(rate=222)):
        found = figures(
            repeat(*quick, hung(0.01, 1.25), hung(0.02, 1.2)), arrivals=arrivals, targets=limits
        )
        assert found.seconds == pytest.approx(1.25)
        assert found.requests_per_s.value == pytest.approx(24)
        assert found.output_tokens_per_s.value == pytest.approx(8 * 24)
        assert found.good is not None and found.good.per_s.value == pytest.approx(24)
        assert found.by_repeat["output_tokens_per_s"] == (pytest.approx(8 * 24),)
    # The server that drops two is no faster than the one that answers them as late.
    slow = {"token_times": [1.0, 1.1, 1.2], "last_byte": 1.25, "output_tokens": 8}
    whole = figures(repeat(*quick, {"sent": 0.01, **slow}, {"sent": 0.02, **slow}))
    assert whole.requests_per_s.value == pytest.approx(32 / 1.25)


@pytest.mark.parametrize(("status", "_"), BAD)
def test_whatever_became_of_the_last_request_its_time_counts(status: Status, _: str) -> None:
    assert figures(repeat(A, B, hung(0.5, 4.0, status))).requests_per_s.value == pytest.approx(0.5)


def test_a_load_that_a_limit_cut_off_ends_there() -> None:
    """Cut at 10 s: one was open, one never sent; its time in the plan is no time of the load."""
    never = {"sent": None, "due": 9.9, "status": "unfinished", "over": 10.0}
    cut = figures(repeat(A, B, hung(3.0, 10.0, "unfinished"), never))
    assert cut.seconds == pytest.approx(10)
    assert cut.requests_per_s.value == pytest.approx(0.2)


def test_trying_to_connect_is_time_of_the_load() -> None:
    """Two connections are refused for 3 s before the first request can be sent."""
    refused = {"sent": None, "due": 0.0, "status": "timeout", "over": 3.0}
    later = {**A, "due": 3.0, "sent": 3.0, "token_times": [3.1, 3.2, 3.4], "last_byte": 4.0}
    assert figures(repeat(refused, refused, later)).requests_per_s.value == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    "broken",
    [
        Repeat([], []),
        Repeat([ask(0)], []),
        Repeat([ask(0)], [outcome(1, **A)]),
        Repeat([ask(0), ask(1)], [outcome(0, **A), outcome(0, **A)]),
        Repeat([ask(0), ask(0)], [outcome(0, **A)]),
    ],
)
def test_a_request_without_an_outcome_is_no_load(broken: Repeat) -> None:
    with pytest.raises(ValueError, match="one for each number"):
        figures(repeat(A), broken)


# --------------------------------------------------------------------------- goodput


@pytest.mark.parametrize(
    ("targets", "missed"),
    [
        # Equal is in time; A has TTFT 200, TPOT 150, largest gap 200, end to end 500.
        ({"ttft_ms": 201.0}, {"ttft_ms": 1}),
        ({"ttft_ms": 401.0}, {}),
        ({"tpot_ms": 101.0}, {"tpot_ms": 1}),
        ({"itl_ms": 101.0}, {"itl_ms": 1}),
        ({"e2e_ms": 501.0}, {"e2e_ms": 1}),
        ({"ttft_ms": 201.0, "e2e_ms": 501.0}, {"ttft_ms": 1, "e2e_ms": 1}),
        ({"ttft_ms": 201.0, "tpot_ms": 101.0}, {"ttft_ms": 1, "tpot_ms": 1}),
    ],
)
def test_goodput_by_hand(targets: dict[str, float], missed: dict[str, int]) -> None:
    found = figures(repeat(A, B), targets=Targets(**targets))
    assert found.good is not None
    assert found.good.missed == missed
    both = set(missed) == {"ttft_ms", "tpot_ms"}  # each of the two answers misses one
    late = 2 if both else min(1, len(missed))
    assert found.good.count == 2 - late
    assert found.good.per_s.value == pytest.approx((2 - late) / 2)
    assert found.good.share.value == (2 - late) / 2
    assert found.targets == targets


def test_what_was_not_completed_is_never_good() -> None:
    failed = {**A, "status": "failed", "reason": "x"}
    found = figures(repeat(A, failed), targets=Targets(ttft_ms=1e6))
    assert found.good is not None
    assert (found.good.count, found.good.missed) == (1, {"failed": 1})
    assert found.good.share.value == 0.5


def test_gaps_nobody_saw_are_not_in_time_and_one_token_has_none() -> None:
    hidden = {**A, "token_times": [0.5]}
    single = {**A, "token_times": [0.5], "output_tokens": 1}
    found = figures(
        repeat(hidden, single, asks={"ignore_eos": False}), targets=Targets(tpot_ms=1e6)
    )
    assert found.good is not None
    assert found.good.missed == {"tpot_ms: all tokens at once": 1}


def sampled(*names: str | None, correct: dict[str, bool] | None = None) -> Repeat:
    """A's and B's in turn, each asking the sample named."""
    return Repeat(
        [ask(i, sample=name) for i, name in enumerate(names)],
        [outcome(i, **(A if i % 2 == 0 else B)) for i in range(len(names))],
        correct,
    )


def test_quality_goodput_wants_right_and_in_time() -> None:
    """B's are late: of a, c, a again in time, a is right, c is wrong, the second a is right."""
    grades = {"a": True, "b": True, "c": False, "d": False, "a#1": True}
    found = figures(sampled(*"abcda", correct=grades), targets=Targets(ttft_ms=250))
    assert found.good is not None and found.correct is not None
    assert (found.good.count, found.correct.count) == (3, 2)
    assert found.correct.missed == {"ttft_ms": 2, "wrong answer": 2}
    assert found.correct.per_s.value == pytest.approx(2 / 2)
    # Not graded at all is not the same as all wrong.
    assert figures(sampled(*"abcda"), targets=Targets(ttft_ms=250)).correct is None


def test_an_answer_nobody_graded_is_not_right() -> None:
    grades = {"a": True}
    found = figures(sampled("a", None, "a", correct=grades), targets=Targets(ttft_ms=1e6))
    assert found.correct is not None
    assert (found.correct.count, found.correct.missed) == (1, {"not graded": 2})


def test_the_same_sample_may_be_right_in_one_repeat_and_wrong_in_the_next() -> None:
    found = figures(
        sampled("a", correct={"a": True}),
        sampled("a", correct={"a": False}),
        sampled("a"),
        targets=Targets(ttft_ms=1e6),
    )
    assert found.correct is not None
    assert (found.correct.count, found.correct.missed) == (1, {"not graded": 1, "wrong answer": 1})


def test_quality_goodput_needs_targets_and_samples() -> None:
    with pytest.raises(ValueError, match="needs targets"):
        figures(sampled("a", correct={"a": True}))
    with pytest.raises(ValueError, match="no request asks one"):
        figures(sampled(None, correct={"a": True}), targets=Targets(ttft_ms=1))


def test_targets_are_one_at_least() -> None:
    with pytest.raises(ValueError, match="no target"):
        Targets()
    with pytest.raises(ValueError, match="greater than 0"):
        Targets(ttft_ms=0)


def test_a_load_is_carried_when_enough_of_all_requests_are_in_time() -> None:
    late = {**A, "token_times": [9.0, 9.1, 9.2], "last_byte": 9.3}
    failed = {**A, "status": "refused", "reason": "HTTP 429"}
    targets = Targets(ttft_ms=250)
    assert meets(figures(repeat(*[A] * 10), targets=targets)) == (
        True,
        "10 of 10 requests (100.0%) within the targets",
    )
    carried, why = meets(figures(repeat(*[A] * 9, late), targets=targets))
    assert not carried
    assert "99.0% wanted; most missed: ttft_ms" in why
    assert meets(figures(repeat(*[A] * 9, failed), targets=targets))[1].endswith("refused")
    assert meets(figures(repeat(*[A] * 9, failed), targets=targets), share=0.9)[0]
    with pytest.raises(ValueError, match="without targets"):
        meets(figures(repeat(A)))


def test_a_growing_backlog_is_not_carried_however_good_its_requests() -> None:
    """Every request is answered within 0.1 s of being sent, but the client cannot send in time."""
    asks = [ask(i) for i in range(200)]
    outcomes = [
        outcome(
            i,
            due=i / 10,
            sent=i / 5,
            token_times=[i / 5 + t for t in (0.02, 0.05, 0.1)],
            last_byte=i / 5 + 0.1,
        )
        for i in range(200)
    ]
    found = figures(
        Repeat(asks, outcomes), arrivals=PoissonArrivals(rate=10), targets=Targets(ttft_ms=100)
    )
    assert found.good is not None and found.good.count == 200
    assert found.saturation.verdict == "growing"
    carried, why = meets(found)
    assert not carried and why.startswith("saturated")
    closed = figures(Repeat(asks, outcomes), targets=Targets(ttft_ms=100))
    assert closed.saturation.verdict == "closed loop"
    assert meets(closed)[0]


# --------------------------------------------------------------------------- properties


TARGETS = Targets(ttft_ms=1500, tpot_ms=2000)
GRADES = {"x": True, "y": False, "x#1": True, "z": True}


@st.composite
def loads(draw: st.DrawFn) -> list[Repeat]:
    """One to four repeats of one to six requests of every status."""
    number = st.floats(0.001, 5)
    repeats = []
    for _ in range(draw(st.integers(1, 4))):
        asks, outcomes = [], []
        for i in range(draw(st.integers(1, 6))):
            sent = draw(st.floats(0, 20))
            times = [sent]
            for gap in draw(st.lists(number, max_size=4)):
                times.append(times[-1] + gap)
            status = draw(st.sampled_from(["completed", "completed", *(s for s, _ in BAD)]))
            usage = draw(st.sampled_from([None, len(times) - 1, 7]))
            asks.append(ask(i, sample=draw(st.sampled_from("xyz")), max_tokens=1))
            outcomes.append(
                outcome(
                    i,
                    due=max(0.0, sent - draw(number)),
                    sent=draw(st.sampled_from([sent, sent, None])),
                    token_times=times[1:],
                    last_byte=draw(st.sampled_from([None, times[-1] + 0.1])),
                    output_tokens=usage,
                    status=status,
                    reason=draw(st.sampled_from(["", "a"])),
                )
            )
        repeats.append(Repeat(asks, outcomes, GRADES))
    return repeats


def of_load(repeats: list[Repeat]) -> LoadSummary:
    return figures(
        *repeats,
        arrivals=PoissonArrivals(rate=1),
        targets=TARGETS,
        draws=Draws(resamples=10),
    )


@given(repeats=loads())
def test_what_holds_of_every_load(repeats: list[Repeat]) -> None:
    found = of_load(repeats)
    total = sum(len(r.asks) for r in repeats)
    assert found.requests == total == sum(found.by_status.values())
    assert found.completed == found.by_status.get("completed", 0)
    assert sum(found.by_reason.values()) == total - found.completed
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queued_ms", "user_tokens_per_s"):
        spread = getattr(found, name)
        assert spread.requests <= found.completed
        assert spread.requests + sum(spread.left_out.values()) == total
        _, p50, p90, p95, p99, most = values(spread)
        if most is not None:
            assert p50 <= p90 <= p95 <= p99 <= most  # type: ignore[operator]
    assert found.good is not None and found.correct is not None
    assert found.correct.count <= found.good.count <= found.completed
    if found.requests_per_s.value is not None:
        correct, good = found.correct.per_s.value, found.good.per_s.value
        assert correct is not None and good is not None
        assert 0 <= correct <= good <= found.requests_per_s.value
    assert (found.completion_rate.value or 0) + (found.error_rate.value or 0) <= 1 + 1e-12
    assert LoadSummary.model_validate(json.loads(found.model_dump_json(by_alias=True))) == found


@given(repeats=loads(), seed=st.integers(0, 100))
def test_no_order_matters(repeats: list[Repeat], seed: int) -> None:
    dice = random.Random(seed)
    moved = []
    for r in dice.sample(repeats, len(repeats)):
        asks, outcomes = list(r.asks), list(r.outcomes)
        dice.shuffle(asks)
        dice.shuffle(outcomes)
        moved.append(Repeat(asks, outcomes, r.correct))
    one, other = of_load(moved), of_load(repeats)
    for name, found in one.by_repeat.items():
        assert sorted(found, key=str) == sorted(other.by_repeat[name], key=str)
    assert one.model_copy(update={"by_repeat": other.by_repeat}) == other


@given(repeats=loads())
def test_outcomes_that_were_not_completed_change_no_latency(repeats: list[Repeat]) -> None:
    found = of_load(repeats)
    kept = []
    for r in repeats:
        numbers = {o.number for o in r.outcomes if o.status == "completed"}
        if numbers:
            asks = [a for a in r.asks if a.number in numbers]
            kept.append(Repeat(asks, [o for o in r.outcomes if o.number in numbers]))
    if not kept:
        assert found.ttft_ms.n == 0
        return
    alone = figures(*kept)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "user_tokens_per_s"):
        assert values(getattr(found, name)) == values(getattr(alone, name))
