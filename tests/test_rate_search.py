"""The search for the highest rate: known limits, few probes, and what it says when it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.load_records import Probe, Saturation
from workbench.rate_search import conclude, next_rate, search, with_saturation


class Server:
    """Meets the targets up to its limit, and counts how often it is asked."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.asked: list[float] = []

    def __call__(self, rate: float) -> tuple[bool, str]:
        self.asked.append(rate)
        return rate <= self.limit, "p99 TTFT too late" if rate > self.limit else ""


def test_the_limit_is_found_within_what_was_asked() -> None:
    server = Server(12.0)
    found = search(server, 1, 64, most=20, within=0.05)
    assert found.outcome == "found"
    assert found.rate is not None and 12 / 1.05 <= found.rate <= 12
    assert server.asked[:3] == [1, 64, 8]  # both ends, then the middle of their logarithms
    assert server.asked[-1] == found.rate == max(rate for rate in server.asked[:-1] if rate <= 12)
    assert "p99 TTFT too late" in found.sentence
    assert f"{len(server.asked)} probes" in found.sentence


@given(limit=st.floats(0.5, 200), most=st.integers(3, 16), within=st.sampled_from([0.01, 0.1, 1.0]))
def test_the_answer_always_held_and_probes_are_bounded(
    limit: float, most: int, within: float
) -> None:
    server = Server(limit)
    found = search(server, 1, 100, most=most, within=within)
    assert len(server.asked) == len(found.probes) <= most
    if limit < 1:
        assert (found.outcome, found.rate) == ("nothing meets", None)
    elif limit >= 100:
        assert (found.outcome, found.rate) == ("everything meets", 100)
        assert len(server.asked) == 3
    else:
        assert found.outcome == "found"
        assert found.rate is not None and 1 <= found.rate <= limit
        # What held is tried twice, even where the probes run out.
        assert server.asked.count(found.rate) == 2


def test_a_search_that_ran_out_of_probes_says_what_it_did_not_reach() -> None:
    found = search(Server(1.0), 0.001, 1e6, most=5, within=0.1)
    failed = min(probe.rate for probe in found.probes if not probe.meets)
    assert found.rate is not None and failed / found.rate > 1.1
    assert "5 probes did not bring them within 0.1 of each other" in found.sentence
    assert "did not bring" not in search(Server(1.0), 0.5, 2, most=10, within=0.1).sentence


def test_targets_nothing_can_meet_are_said_to_be() -> None:
    found = search(Server(0), 2, 50)
    assert (found.outcome, found.rate) == ("nothing meets", None)
    assert [probe.rate for probe in found.probes] == [2, 50]
    assert "no rate meets the targets: already 2 requests/s does not (p99 TTFT too late)" in (
        found.sentence
    )


def test_a_limit_above_the_highest_rate_is_not_claimed_to_be_it() -> None:
    found = search(Server(1000), 1, 8)
    assert (found.outcome, found.rate) == ("everything meets", 8)
    assert "the limit lies above it" in found.sentence


def test_a_higher_rate_that_holds_where_a_lower_one_failed_is_said() -> None:
    found = search(lambda rate: (rate >= 10, "slow"), 1, 100)
    assert (found.outcome, found.rate) == ("not monotone", None)
    assert len(found.probes) == 2
    assert "1 requests/s did not meet the targets (slow), and 100 did" in found.sentence
    assert "no rate held" in found.sentence


def test_an_answer_that_does_not_hold_again_is_lowered() -> None:
    """8 holds once and fails once: what is left is the highest below it that held."""
    answers = {1.0: [True], 4.0: [True], 16.0: [False], 8.0: [True, False]}
    found = search(lambda rate: (answers[rate].pop(0), "late"), 1, 16, within=1.0)
    assert [probe.rate for probe in found.probes] == [1, 16, 4, 8, 8]
    assert (found.outcome, found.rate) == ("not monotone", 4)
    assert "4 requests/s held" in found.sentence


def test_points_of_a_sweep_are_its_first_probes() -> None:
    server = Server(12.0)
    known = [Probe(rate=rate, meets=rate <= 12, why="") for rate in (1, 10, 20, 64)]
    found = search(server, 1, 64, known=known, most=20, within=0.05)
    assert server.asked[0] == pytest.approx(200**0.5)
    assert all(10 <= rate <= 20 for rate in server.asked)
    assert found.probes[:4] == tuple(known)
    # A sweep that is not monotone ends the search before it began.
    broken = [*known, Probe(rate=5, meets=False, why="burst")]
    stopped = search(server, 1, 64, known=broken, most=20)
    assert (stopped.outcome, stopped.rate) == ("not monotone", 1)


def test_a_stopped_search_goes_on_where_it_stood() -> None:
    whole = search(Server(12.0), 1, 64, most=12)
    for stop in range(len(whole.probes) + 1):
        assert search(Server(12.0), 1, 64, most=12, known=whole.probes[:stop]) == whole


@pytest.mark.parametrize(
    ("low", "high", "most", "within"),
    [
        (0, 1, 9, 0.1),
        (2, 2, 9, 0.1),
        (1, float("inf"), 9, 0.1),
        (float("nan"), 9, 9, 0.1),
        (1, 9, 2, 0.1),
        (1, 9, 9, 0),
    ],
)
def test_limits_that_are_none_are_refused(
    low: float, high: float, most: int, within: float
) -> None:
    with pytest.raises(ValueError, match="a search from"):
        next_rate([], low, high, most=most, within=within)


def test_nothing_tried_is_no_answer() -> None:
    with pytest.raises(ValueError, match="nothing was tried"):
        conclude([])


def test_a_rate_at_which_nobody_knows_whether_the_queue_grows_says_so() -> None:
    unknown = Saturation(verdict="unknown", sentence="16 requests show no trend: 50 are the least")
    stable = Saturation(verdict="stable", sentence="no growth seen")
    found = search(Server(12.0), 1, 64)
    assert with_saturation(found, stable) == found and found.growth_unknown == ""
    doubted = with_saturation(found, unknown)
    assert doubted.rate == found.rate and doubted.growth_unknown == unknown.sentence
    assert doubted.sentence == (
        f"{found.sentence}; whether the queue grows is not known at {found.rate:g} requests/s: "
        "16 requests show no trend: 50 are the least"
    )
    nothing = search(Server(0), 2, 50)
    assert with_saturation(nothing, unknown) == nothing
