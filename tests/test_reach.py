"""What cannot pass even if nothing changes is said before the work starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from test_gate import TTFT, policy, quality

from workbench import stats
from workbench.plan import Facts
from workbench.policy_spec import FINEST
from workbench.reach import bound, fewest, out_of_reach
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


def loaded(what: Policy, *, limit: int | None = None, requests: int = 8, **variant: Any) -> Loaded:
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
    assert "profile.requests is 4, and fewer than 8" in few and "ttft_ms_p50 short x8" in few
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
