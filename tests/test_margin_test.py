"""The p of a FAIL is the mirror of the lower limit that makes it one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, t

from workbench import stats
from workbench.clusters import clustered
from workbench.margin_test import beyond_margin


def test_by_hand() -> None:
    # Nothing gained: no p is below the exact binomial one.
    before, after = [1.0] * 80, [0.0] * 20 + [1.0] * 60
    exact = binomtest(20, 80, 0.1, alternative="greater").pvalue
    assert beyond_margin(before, after, 0.1) >= exact
    assert beyond_margin(before, after, 0.1) < 0.01
    # Graded: Student's t on the differences, where it is the largest.
    after = [0.7, 0.5] * 40
    spread = 0.01 * 80 / 79
    student = t.sf((0.4 - 0.38) / (spread / 80) ** 0.5, 79)
    assert beyond_margin(before, after, 0.38) >= student
    assert beyond_margin(before, before, 0.1) == 1
    with pytest.raises(ValueError, match="no pairs"):
        beyond_margin([], [], 0.1)


rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 1.0, 1.0]),
        st.sampled_from([0.0, 0.0, 1.0, 0.5]),
        st.sampled_from(["a", "b", "c", "d", None]),
    ),
    min_size=1,
    max_size=120,
)


@given(
    rows,
    st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.4]),
    st.sampled_from([0.6, 0.9, 0.95, 0.999]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=300)
def test_a_p_below_alpha_is_a_lower_limit_beyond_the_margin(
    found: list[tuple[float, float, str | None]],
    margin: float,
    confidence: float,
    graded: bool,
    grouped: bool,
) -> None:
    before = [b for b, _, _ in found]
    after = [a if graded else float(a > 0.4) for _, a, _ in found]
    names = [name for _, _, name in found]
    loss = stats.paired_interval(before, after, confidence)
    if grouped and any(names):
        differences = [b - a for b, a in zip(before, after, strict=True)]
        loss, _ = clustered(loss, differences, names)
    p = beyond_margin(before, after, margin, names if grouped else None)
    assert 0 <= p <= 1
    assume(abs(p - (1 - confidence)) > 1e-9 and abs(loss.low - margin) > 1e-9)
    assert (p < 1 - confidence) == (loss.low > margin)
