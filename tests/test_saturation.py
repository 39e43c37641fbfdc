"""Saturation: the test's arithmetic by hand, and simulated queues below and above capacity."""

import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.load_records import Saturation
from workbench.saturation import backlog, mann_kendall, over_repeats, saturation, slope
from workbench.traffic import Outcome, Status


def queue(
    utilization: float, count: int, seed: int, *, servers: int = 1, steady: bool = False
) -> list[Outcome]:
    """An M/M/c queue, or with `steady` a D/M/c one: service takes 1 s on average."""
    dice = random.Random(seed)
    free = [0.0] * servers
    at, found = 0.0, []
    for i in range(count):
        rate = utilization * servers
        at += 1 / rate if steady else dice.expovariate(rate)
        done = max(at, heapq.heappop(free)) + dice.expovariate(1)
        heapq.heappush(free, done)
        found.append(Outcome(i, due=at, sent=at, last_byte=done, status="completed"))
    return found


def growing(runs: int, utilization: float, count: int, **how: int) -> float:
    """Share of simulated queues that are found to grow."""
    found = [saturation(queue(utilization, count, seed, **how)).verdict for seed in range(runs)]
    assert set(found) <= {"growing", "stable", "unknown"}
    return found.count("growing") / runs


# --------------------------------------------------------------------------- by hand


def test_mann_kendall_by_hand() -> None:
    # All 45 pairs of ten rise: z = 44 / sqrt(10 x 9 x 25 / 18) = 44 / 11.18 = 3.935.
    assert mann_kendall(range(10)) == pytest.approx(4.15e-5, rel=0.01)
    assert mann_kendall(range(10, 0, -1)) == 1
    assert mann_kendall([3.0] * 10) == 0.5
    # 1 3 2 4: five pairs rise, one falls: z = 3 / sqrt(4 x 3 x 13 / 18) = 1.019.
    assert mann_kendall([1, 3, 2, 4]) == pytest.approx(0.154, abs=0.001)


def test_slope_is_the_median_and_one_wild_block_does_not_move_it() -> None:
    assert slope([0, 2, 4, 6]) == 2
    assert slope([0, 2, 4, 6, 8, 1000, 12, 14, 16, 18]) == 2


def test_backlog_by_hand() -> None:
    # Over [0, 4] in two blocks: one from 1 to 3, one from 3 that never ends.
    assert backlog([(1, 3), (3, None)], 0, 4, 2) == pytest.approx([0.5, 1.0])
    assert backlog([(-5, 1)], 0, 4, 2) == pytest.approx([0.5, 0])


@given(
    spans=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=20),
    blocks=st.integers(1, 10),
)
def test_the_mean_backlog_is_littles_law(spans: list[tuple[float, float]], blocks: int) -> None:
    """Mean number in the system x time = time spent in it, whatever the blocks."""
    gone = [(due, due + took) for due, took in spans]
    means = backlog(gone, 0, 100, blocks)
    assert math.fsum(means) * 100 / blocks == pytest.approx(math.fsum(t for _, t in spans))


# --------------------------------------------------------------------------- simulated queues


@pytest.mark.parametrize("utilization", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("servers", [1, 16])
def test_below_capacity_no_queue_is_called_growing(utilization: float, servers: int) -> None:
    assert growing(60, utilization, 1000, servers=servers) <= 0.05


@pytest.mark.parametrize(("utilization", "count", "least"), [(1.2, 1000, 0.9), (1.5, 500, 0.9)])
@pytest.mark.parametrize("servers", [1, 16])
def test_above_capacity_the_queue_is_found_to_grow(
    utilization: float, count: int, least: float, servers: int
) -> None:
    assert growing(60, utilization, count, servers=servers) >= least


def test_growth_is_what_arrives_and_is_not_served() -> None:
    """1.5 requests/s arrive and one is served: half a request a second stays."""
    found = [saturation(queue(1.5, 2000, seed)).growth_per_s for seed in range(10)]
    assert sum(found, 0.0) / 10 == pytest.approx(0.5, abs=0.05)  # type: ignore[arg-type]


def test_a_constant_rate_just_below_capacity_is_stable() -> None:
    found = [saturation(queue(0.95, 1000, seed, steady=True)).verdict for seed in range(20)]
    assert found.count("growing") <= 1


def test_filling_up_is_not_growing() -> None:
    """64 at a time take 5 s each, of 100 s: the first seconds only fill the server."""
    found = saturation(
        [Outcome(i, due=i / 10, last_byte=i / 10 + 5, status="completed") for i in range(1000)]
    )
    assert found.verdict == "stable"
    assert found.backlog == pytest.approx([50] * 10)
    assert "from 50 to 50" in found.sentence


# --------------------------------------------------------------------------- what is not known


def instant(count: int, status: Status = "completed", took: float | None = 0.01) -> list[Outcome]:
    return [
        Outcome(i, due=float(i), last_byte=None if took is None else i + took, status=status)
        for i in range(count)
    ]


def test_a_load_that_shows_nothing_is_unknown() -> None:
    assert saturation(instant(49)).verdict == "unknown"
    assert saturation(instant(50)).verdict == "stable"
    once = [Outcome(i, due=1.0, last_byte=2.0, status="completed") for i in range(60)]
    assert saturation(once).sentence == "all requests came at once"
    # 100 requests of 11 s each within 99 s: still filling up.
    slow = saturation(instant(100, took=11.0))
    assert slow.verdict == "unknown"
    assert "took 11 s" in slow.sentence and "10 times as long" in slow.sentence
    assert saturation(instant(100, took=9.0)).verdict == "stable"
    assert "did not end" in saturation(instant(100, "timeout", None)).sentence


def test_requests_that_never_end_are_a_backlog() -> None:
    good, hung = instant(200), instant(200, "timeout", None)
    mixed = [hung[i] if i % 4 == 3 else good[i] for i in range(200)]
    found = saturation(mixed)
    assert found.verdict == "growing"
    assert found.growth_per_s == pytest.approx(0.25, abs=0.02)


def test_a_small_growth_takes_a_long_load_to_show() -> None:
    """One in ten never ends: 15 of 150 arrivals may be chance, 60 of 600 are not."""
    short, long = (
        [*instant(n, "timeout", None)[::10], *(o for o in instant(n) if o.number % 10)]
        for n in (200, 800)
    )
    found = saturation(short)
    # The trend is there, so it is not called stable; by 15, and 2 sqrt(150) is 24.5.
    assert found.verdict == "unknown" and found.p is not None and found.p < 0.001
    assert "show no less than 24.5: a longer load tells" in found.sentence
    assert saturation(long).verdict == "growing"


def test_a_significant_trend_is_never_called_stable() -> None:
    verdicts = set()
    for seed in range(60):
        found = saturation(queue(1.1, 120, seed))
        assert found.p is not None
        verdicts.add((found.verdict, found.p < 0.01))
    assert verdicts == {("stable", False), ("unknown", True), ("growing", True)}


def test_a_queue_well_below_capacity_is_called_stable() -> None:
    found = [saturation(queue(0.5, 1000, seed)).verdict for seed in range(60)]
    assert found.count("stable") >= 55


def test_a_backlog_that_jumps_once_and_falls_has_no_trend() -> None:
    """Theil and Sen's slope alone is far above the limits: 25 of 45 pairs rise, 20 fall."""
    levels = (150, 120, 90, 60, 30, 450, 420, 390, 360, 330)
    found = [Outcome(0, due=t, last_byte=t + 0.01, status="completed") for t in range(0, 1334, 10)]
    for block, level in enumerate(levels):
        begin = 1330 * (0.25 + 0.075 * block)
        found += [Outcome(0, due=begin, last_byte=begin + 99, status="completed")] * level
    jumped = saturation(found)
    assert jumped.backlog == pytest.approx(levels, rel=0.02)
    assert jumped.p == pytest.approx(0.36, abs=0.01)
    assert jumped.growth_per_s is not None and jumped.growth_per_s * 1000 > 200
    assert jumped.verdict == "stable"


def test_failed_requests_leave_the_queue() -> None:
    failed = [Outcome(i, due=float(i), sent=i + 0.5, status="failed") for i in range(200)]
    assert saturation(failed).verdict == "stable"


def test_a_server_that_refuses_is_said_to() -> None:
    good, refused = instant(200), instant(200, "refused")
    assert saturation(refused[:10] + good[10:]).verdict == "stable"
    found = saturation(refused[:11] + good[11:])
    assert (found.verdict, found.growth_per_s) == ("refusing", None)
    assert "refused 11 of 200" in found.sentence


def test_repeats_vote_and_the_worse_stands_where_they_are_split() -> None:
    grows, stays = saturation(queue(1.5, 500, 1)), saturation(queue(0.5, 500, 1))
    assert (grows.verdict, stays.verdict) == ("growing", "stable")
    assert over_repeats([grows]) == grows
    assert over_repeats([stays, grows, stays]).verdict == "stable"
    both = over_repeats([stays, grows])
    assert both == over_repeats([grows, stays])
    assert both.verdict == "growing"
    assert both.sentence.startswith("1 of 2 repeats: saturated")
    unknown = Saturation(verdict="unknown", sentence="too short")
    assert over_repeats([unknown, stays]).verdict == "unknown"
    with pytest.raises(ValueError, match="no repeat"):
        over_repeats([])
