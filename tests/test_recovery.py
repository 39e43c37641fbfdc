"""Fieller's interval: against its definition, by hand, and where there is no recovery."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_1samp

from workbench.recovery import fieller, recovery


def test_by_hand() -> None:
    # Means 3 and 2, variances 1 and 1, covariance 0.5, n = 3, quantile 1:
    # (4 - 1/3) r^2 - 2 (6 - 0.5/3) r + (9 - 1/3) = 0
    above, below = np.array([2.0, 3.0, 4.0]), np.array([2.0, 1.0, 3.0])
    a, b, c = 4 - 1 / 3, 6 - 0.5 / 3, 9 - 1 / 3
    root = math.sqrt(b * b - a * c)
    assert fieller(above, below, 1.0) == pytest.approx(((b - root) / a, (b + root) / a))


def test_at_each_limit_a_t_test_says_just_that_confidence() -> None:
    dice = np.random.default_rng(5)
    below = dice.uniform(0.3, 1, 25)
    above = below * dice.uniform(0.6, 1.1, 25)
    low, high = fieller(above, below, float(t.ppf(0.95, 24))) or (0, 0)
    assert ttest_1samp(above - low * below, 0, alternative="greater").pvalue == pytest.approx(0.05)
    assert ttest_1samp(above - high * below, 0, alternative="less").pvalue == pytest.approx(0.05)
    assert low < above.sum() / below.sum() < high


def test_it_covers_the_true_ratio() -> None:
    """2,000 suites of 80 right/wrong pairs, true recovery 0.9."""
    dice = np.random.default_rng(11)
    cells = dice.choice(4, (2000, 80), p=[0.68, 0.12, 0.04, 0.16])
    before, after = (cells <= 1).astype(float), ((cells == 0) | (cells == 2)).astype(float)
    found = [recovery(b, a) for b, a in zip(before, after, strict=True)]
    assert np.mean([r.low is not None and r.low <= 0.9 for r in found]) >= 0.945
    assert np.mean([r.high is not None and r.high >= 0.9 for r in found]) >= 0.945


@pytest.mark.parametrize(
    ("baseline", "variant", "why"),
    [
        ([0.0] * 40, [0.0] * 40, "scores 0"),
        ([0.0] * 40, [1.0] * 40, "scores 0"),
        ([1.0] + [0.0] * 39, [1.0] + [0.0] * 39, "cannot be told from 0"),
        ([1.0], [1.0], "alone"),
    ],
)
def test_without_a_baseline_there_is_no_recovery(
    baseline: list[float], variant: list[float], why: str
) -> None:
    found = recovery(baseline, variant)
    assert found.value is found.low is found.high is None
    assert why in found.undefined


def test_equal_scores_have_a_width_and_nothing_is_rounded() -> None:
    found = recovery([1.0] * 80, [1.0] * 80)
    assert found.value == 1 and found.low is not None and found.high is not None
    assert found.low < 0.98 and found.high > 1.02
    assert recovery([1.0] * 3000, [1.0] * 2851 + [0.0] * 149).value == 2851 / 3000
    lost = recovery([1.0] * 80, [0.0] * 80)
    assert (lost.value, lost.low) == (0, 0)


def test_a_cluster_is_one_unit() -> None:
    # Ten documents of eight questions: two of them lost whole.
    before, after = [1.0] * 80, [0.0] * 16 + [1.0] * 64
    alone = recovery(before, after)
    grouped = recovery(before, after, clusters=[str(i // 8) for i in range(80)])
    assert alone.value == grouped.value == 0.8
    assert alone.low is not None and grouped.low is not None and grouped.low < alone.low - 0.1
    assert recovery(before, after, clusters=["all"] * 80).undefined
    with pytest.raises(ValueError, match="no pairs"):
        recovery([1.0], [])


scores = st.lists(
    st.tuples(st.sampled_from([0, 0.25, 0.5, 1]), st.sampled_from([0, 0.1, 0.5, 1])),
    min_size=2,
    max_size=60,
)


@given(scores, st.integers(0, 1000))
def test_order_does_not_matter_and_sides_swapped_give_the_reciprocal(
    pairs: list[tuple[float, float]], seed: int
) -> None:
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    found = recovery(before, after)
    mixed = random.Random(seed).sample(pairs, len(pairs))
    assert recovery([b for b, _ in mixed], [a for _, a in mixed]) == found
    if found.undefined:
        return
    assert found.value == math.fsum(after) / math.fsum(before)
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value <= found.high < math.inf
    assert found.low < found.high
    mirrored = recovery(after, before)
    if not mirrored.undefined:
        assert mirrored.low == pytest.approx(1 / found.high, rel=1e-9)
        assert mirrored.high == pytest.approx(1 / found.low, rel=1e-9)
