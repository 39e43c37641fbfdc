"""What cannot pass even if nothing changes is said before the work starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import checkpoint, simple, table
from hypothesis import given
from hypothesis import strategies as st
from test_gate import TTFT, policy, quality
from test_load_stats import QUICK, figures, repeat
from test_report_loads import DONE

from workbench import stats
from workbench.arrivals import ClosedLoop
from workbench.clusters import Grouping, clustered
from workbench.gate import decide
from workbench.items import bound, fewest
from workbench.load_records import Targets
from workbench.load_stats import load_point
from workbench.plan import Facts
from workbench.policy_spec import FINEST, GoodputCheck, LatencyTarget, PerformanceCheck
from workbench.reach import out_of_reach
from workbench.recipe import Loaded
from workbench.records import Hardware
from workbench.spec import Policy, Recipe, SizeCheck

FACTS = Facts(
    checkpoint=checkpoint(),
    hardware=Hardware(cpu="c", isa=("avx2",), cores=2, memory_bytes=1),
    locks={},
    suites={"suite": "d"},
    suite_sizes={"suite": (88, 8)},
    source_digest=None,
)


def loaded(
    what: Policy, *, limit: int | None = None, requests: int = 8, repeats: int = 1, **variant: Any
) -> Loaded:
    recipe = Recipe.model_validate(
        {
            "schema": "workbench.recipe/1",
            "name": "r",
            "model": {"path": "m"},
            "variants": [{"name": "w", "method": "fp8", **variant}],
            "evaluate": {"suites": ["suite"], "limit": limit},
            "profile": {
                "workloads": [{"name": "short", "prompt_tokens": 8, "output_tokens": 8}],
                "requests": requests,
                "repeats": repeats,
                "targets": {"ttft_ms": 500},
            },
            "policy": "p",
        }
    )
    return Loaded(recipe, what, Path("r.yaml"), Path(), None)


@given(st.floats(0.005, 0.5), st.sampled_from([0.9, 0.95, 0.99]), st.booleans())
def test_the_fewest_samples_are_enough_and_one_less_is_not(
    margin: float, confidence: float, graded: bool
) -> None:
    n = fewest(margin, confidence, graded)
    assert bound(n, confidence, graded) <= margin
    assert n == 1 or bound(n - 1, confidence, graded) > margin


@given(st.integers(2, 200))
def test_the_bound_is_the_one_the_gate_computes(n: int) -> None:
    assert bound(n, 0.95) == stats.paired_interval([1.0] * n, [1.0] * n).high
    half = stats.paired_interval([0.5] * n, [0.5] * n).high
    assert bound(n, 0.95, graded=True) == min(half, bound(n, 0.95))


def test_the_finest_margin_a_policy_can_name_has_an_answer() -> None:
    assert 1 / FINEST < fewest(FINEST, 0.95) < 10 / FINEST


def test_a_limit_that_leaves_too_few_samples_is_named() -> None:
    check = policy(quality(margin=0.05, min_n=10))
    (text,) = out_of_reach(loaded(check, limit=20), FACTS)
    assert "20 of its 88 samples (evaluate.limit)" in text
    assert "bounded at 15.5 points" in text and f"at least {fewest(0.05, 0.95)}" in text
    assert text.endswith("INCONCLUSIVE at best")
    assert not out_of_reach(loaded(check), FACTS)
    (whole,) = out_of_reach(loaded(policy(quality(margin=0.01, min_n=10))), FACTS)
    assert "all its 88 samples" in whole and "limit" not in whole


def test_between_the_two_bounds_a_graded_suite_is_given_the_benefit() -> None:
    check = policy(quality(margin=0.15, min_n=10))
    assert out_of_reach(loaded(check, limit=20), FACTS)
    assert not out_of_reach(loaded(check, limit=20), FACTS, graded={"suite"})


def test_advice_is_not_gated() -> None:
    checks = policy(
        quality(margin=0.01, min_n=10, tier="advisory"),
        TTFT.model_copy(update={"tier": "advisory"}),
    )
    assert not out_of_reach(loaded(checks, requests=4, serve_as="twin"), FACTS)


@pytest.mark.parametrize("size", [(), (SizeCheck(metric="peak_memory_bytes", max_ratio=1),)])
def test_speed_needs_requests_and_a_lane(size: tuple[SizeCheck, ...]) -> None:
    checks = policy(quality(margin=0.1, min_n=10), TTFT, *size)
    assert not out_of_reach(loaded(checks), FACTS)
    (few,) = out_of_reach(loaded(checks, requests=4), FACTS)
    assert few == (
        "ttft_ms_p50 short x8 ratio can be INCONCLUSIVE at best: a check of speed takes 8 "
        "requests, and 4 are measured: it takes 'requests: 8'"
    )
    (twin,) = out_of_reach(loaded(checks, serve_as="twin"), FACTS)
    assert "emulated lane: w can be INCONCLUSIVE at best" in twin
    assert ("peak_memory_bytes" in twin) == bool(size)
    weights = policy(SizeCheck(max_ratio=1))
    assert not out_of_reach(loaded(weights, requests=4, serve_as="twin"), FACTS)


def test_a_suite_that_is_left_out_has_a_sentence_elsewhere() -> None:
    assert not out_of_reach(loaded(policy(quality(min_n=99))), replace(FACTS, suite_sizes={}))


def test_a_task_of_lm_eval_whose_limit_is_too_small_is_named() -> None:
    check = policy(quality(suite="mine", margin=0.05, min_n=10), quality(suite="theirs", min_n=99))
    (text,) = out_of_reach(loaded(check), FACTS, most={"mine": 20, "other": 1})
    assert "task 'mine' asks 20 documents at most (its limit): the loss can be bounded" in text
    assert text.endswith("INCONCLUSIVE at best")
    enough = fewest(0.05, 0.95, graded=True)
    assert not out_of_reach(loaded(check), FACTS, most={"mine": enough})
    (few,) = out_of_reach(loaded(check), FACTS, most={"theirs": 98})
    assert "and its check wants 99" in few and few.endswith("it can only be INCONCLUSIVE")


@pytest.mark.parametrize("sizes", [(4,) * 22, (8, 4, 2, *[1] * 30)])
def test_clusters_bound_the_loss_as_the_gate_does_where_nothing_changes(
    sizes: tuple[int, ...],
) -> None:
    names = [str(i) for i, size in enumerate(sizes) for _ in range(size)]
    n, grouping = len(names), Grouping(sizes)
    same = [1.0] * n
    judged, _ = clustered(stats.paired_interval(same, same), [0.0] * n, names)
    assert bound(n, 0.95, grouping=grouping) == judged.high > bound(n, 0.95)
    least = fewest(0.1, 0.95, grouping=grouping)
    assert bound(least, 0.95, grouping=grouping) <= 0.1 < bound(least - 1, 0.95, grouping=grouping)


def test_clusters_that_are_too_few_are_named_before_the_work_starts() -> None:
    check = policy(quality(margin=0.1, min_n=10))
    assert not out_of_reach(loaded(check), FACTS)
    grouped = replace(FACTS, suite_groupings={"suite": Grouping((4,) * 22)})
    (text,) = out_of_reach(loaded(check), grouped)
    assert "all its 88 samples, in 22 clusters: the loss can be bounded at 12.7 points" in text
    assert "samples, in clusters of such sizes: it can be INCONCLUSIVE at best" in text


def _target(metric: str) -> LatencyTarget:
    return LatencyTarget.model_validate(
        {"workload": "short", "concurrency": 8, "metric": metric, "max_value": 5000}
    )


P95 = PerformanceCheck(metric="ttft_ms_p95", workload="short", concurrency=8, max_value=5000)


@pytest.mark.parametrize(
    ("check", "repeats", "takes", "words"),
    [
        (_target("ttft_ms_p50"), 1, 8, "a check of speed takes 8 requests"),
        (_target("ttft_ms_p95"), 1, 72, "a p95 takes 72 requests"),
        (_target("ttft_ms_p95"), 3, 24, "a p95 takes 72 requests"),
        (_target("e2e_ms_p99"), 1, 368, "a p99 takes 368 requests"),
        (_target("itl_ms_p95"), 1, 8, "a check of speed takes 8 requests"),
        (P95, 1, 8, "a check of speed takes 8 requests"),
        (P95, 3, 24, "a p95 takes 72 requests"),
        (
            GoodputCheck(workload="short", concurrency=8, min_share=0.95),
            *(1, 59, "a share of 0.95, were all in time, takes 59 requests"),
        ),
    ],
)
def test_a_check_of_speed_is_said_to_take_what_the_gate_wants(
    check: LatencyTarget | PerformanceCheck | GoodputCheck, repeats: int, takes: int, words: str
) -> None:
    """And it is so: of answers that are all alike and in time, one request less does not pass."""
    checks = policy(check) if isinstance(check, PerformanceCheck) else policy(quality())
    if isinstance(check, LatencyTarget):
        checks = policy().model_copy(update={"latency": (check,)})
    if isinstance(check, GoodputCheck):
        checks = policy().model_copy(update={"goodput": (check,)})
    for requests, passes in ((takes - 1, False), (takes, True)):
        said = out_of_reach(loaded(checks, requests=requests, repeats=repeats), FACTS)
        assert bool(said) != passes
        if said:
            assert words in said[0] and f"it takes 'requests: {takes}'" in said[0]
        # Of gaps, the requests alone do not say it.
        if "itl" not in str(check):
            assert (_verdict(checks, requests, repeats) == "PASS") == passes


def _verdict(checks: Policy, requests: int, repeats: int) -> str:
    made = figures(
        *[repeat(*[DONE] * requests)] * repeats,
        arrivals=ClosedLoop(concurrency=8),
        targets=Targets(ttft_ms=500),
        draws=QUICK,
    ).model_copy(update={"workload": "short"})
    found = simple(*table(60, 1, 1, 18))
    (one,) = found.variants
    assert one.profile is not None
    more = {"loads": (made,), "points": (load_point(made),)}
    one = replace(one, profile=one.profile.model_copy(update=more))
    gate = decide(checks, replace(found, variants=(one,)), policy_digest="p", id_="g")
    (check,) = (c for c in gate.variants[0].checks if c.kind == "performance")
    return check.status


def test_a_workloads_own_requests_count_and_those_of_a_trace_are_not_known() -> None:
    checks = policy().model_copy(update={"latency": (_target("ttft_ms_p95"),)})
    made = loaded(checks)

    def said(**changes: Any) -> list[str]:
        profile = made.recipe.profile
        assert profile is not None
        workload = profile.workloads[0].model_copy(update=changes)
        more = {"profile": profile.model_copy(update={"workloads": (workload,)})}
        return out_of_reach(replace(made, recipe=made.recipe.model_copy(update=more)), FACTS)

    assert said() and said(requests=71)
    assert not said(requests=72) and not said(trace="t.jsonl")
