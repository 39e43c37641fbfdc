"""Divergence statistics: known answers, properties, and what must be refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_imports import IMPURE, PACKAGE, _imports

from workbench.divergence import FLOOR, PERCENTILES, TracedDocument, cells, compare, complaint
from workbench.evaluation_records import DivergenceStats


@pytest.mark.parametrize("name", ["divergence", "divergence_corpus", "divergence_inputs"])
def test_pure_modules_touch_nothing(name: str) -> None:
    assert not _imports(PACKAGE / f"{name}.py") & IMPURE


def traced(
    logprobs: Any, true_ids: Any, top_k: int, *, index: int = 0, source: str = "s", start: int = 1
) -> TracedDocument:
    """What a server tells of whole distributions: (n, vocabulary) natural log-probabilities."""
    whole = np.asarray(logprobs, np.float64)
    true = np.asarray(true_ids, np.int32)
    order = np.argsort(-whole, axis=1, kind="stable")[:, :top_k]
    own = np.take_along_axis(whole, true[:, None], axis=1)
    return TracedDocument(
        index=index,
        source=source,
        start=start,
        true_ids=true,
        true_logprobs=own[:, 0].astype(np.float32),
        ranks=(1 + (whole > own).sum(axis=1)).astype(np.int32),
        ids=order.astype(np.int32),
        logprobs=np.take_along_axis(whole, order, axis=1).astype(np.float32),
    )


def distributions(seed: int, n: int, vocabulary: int, sharpness: float) -> Any:
    logits = np.random.default_rng(seed).normal(0, sharpness, (n, vocabulary))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def kld(p: Any, q: Any) -> Any:
    return (np.exp(p) * (p - q)).sum(axis=1)


def pair(
    seed: int, n: int, vocabulary: int, top_k: int, sharpness: float = 2.0, shift: float = 0.5
) -> tuple[TracedDocument, TracedDocument, Any, Any]:
    dice = np.random.default_rng(seed + 1)
    p = distributions(seed, n, vocabulary, sharpness)
    logits = p + dice.normal(0, shift, p.shape)
    q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    true = dice.integers(0, vocabulary, n)
    return traced(p, true, top_k), traced(q, true, top_k), p, q


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(3, 60),
    share=st.floats(0.05, 1.0),
    sharpness=st.floats(0.1, 6.0),
    shift=st.floats(0.0, 4.0),
)
@example(seed=3, vocabulary=3, share=0.75, sharpness=0.75, shift=2.96875)
def test_the_divergence_is_a_lower_bound_and_never_negative(
    seed: int, vocabulary: int, share: float, sharpness: float, shift: float
) -> None:
    top_k = max(1, int(vocabulary * share))
    before, after, p, q = pair(seed, 20, vocabulary, top_k, sharpness, shift)
    found, covered = cells(before, after)
    exact = kld(p, q)
    assert (found >= 0).all()
    assert (found <= exact + 1e-4).all()
    assert ((covered > 0) & (covered <= 1)).all()


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), vocabulary=st.integers(2, 60), shift=st.floats(0.0, 3.0))
def test_it_is_exact_where_everything_is_told(seed: int, vocabulary: int, shift: float) -> None:
    before, after, p, q = pair(seed, 20, vocabulary, vocabulary, 2.0, shift)
    found, covered = cells(before, after)
    assert found == pytest.approx(kld(p, q), abs=5e-6, rel=1e-4)
    assert covered == pytest.approx(1.0, abs=1e-6)


def test_more_tokens_told_never_make_the_bound_worse_on_the_whole() -> None:
    means = []
    for top_k in (1, 4, 16, 64, 200):
        before, after, _, _ = pair(5, 400, 200, top_k)
        means.append(float(cells(before, after)[0].mean()))
    assert means == sorted(means) and means[0] < means[-1]


def test_one_position_by_hand() -> None:
    # Reference a .5 b .3 c .1 d .1; variant a .4 c .4 b .1 d .1; top 2 of each, and d follows.
    # Both told a and d; b and c are the rest: .4 against .5.
    before = traced(np.log([[0.5, 0.3, 0.1, 0.1]]), [3], 2)
    after = traced(np.log([[0.4, 0.1, 0.4, 0.1]]), [3], 2)
    found, covered = cells(before, after)
    assert found[0] == pytest.approx(0.5 * math.log(5 / 4) + 0.4 * math.log(4 / 5), abs=1e-6)
    assert covered[0] == pytest.approx(0.6)


def test_statistics_by_hand() -> None:
    # Two tokens of a vocabulary of two, everything told.
    p = np.log([[0.5, 0.5], [0.8, 0.2]])
    q = np.log([[0.25, 0.75], [0.8, 0.2]])
    got = compare([traced(p, [0, 0], 2)], [traced(q, [0, 0], 2)]).overall
    first = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    nll = [[math.log(2), -math.log(0.8)], [math.log(4), -math.log(0.8)]]
    assert got.tokens == 2
    assert got.ppl_reference == pytest.approx(1 / math.sqrt(0.5 * 0.8))
    assert got.ppl_variant == pytest.approx(1 / math.sqrt(0.25 * 0.8))
    assert got.ln_ratio_mean == pytest.approx(math.log(2) / 2)
    # n = 2: the error of a mean is half the distance of the two values.
    half = [abs(a - b) / 2 for a, b in nll]
    assert got.ppl_reference_error == pytest.approx(got.ppl_reference * half[0])
    assert got.ppl_variant_error == pytest.approx(got.ppl_variant * half[1])
    assert got.ln_ratio_error == pytest.approx(math.log(2) / 2)
    assert got.ln_ppl_correlation == pytest.approx(1.0)
    assert got.ppl_difference == pytest.approx(got.ppl_variant - got.ppl_reference)
    # Fully correlated: the errors subtract.
    assert got.ppl_difference_error == pytest.approx(
        got.ppl_variant * half[1] - got.ppl_reference * half[0]
    )
    assert got.kld_mean == pytest.approx(first / 2, abs=1e-6)
    assert got.kld_error == pytest.approx(first / 2, abs=1e-6)
    assert got.kld["max"] == pytest.approx(first, abs=1e-6)
    assert got.kld["90"] == pytest.approx(0.9 * first, abs=1e-6), "linear interpolation"
    assert got.kld["median"] == pytest.approx(first / 2, abs=1e-6)
    assert got.kld["min"] == 0.0
    assert got.delta_p_mean == pytest.approx(-0.125)
    assert got.delta_p_error == pytest.approx(0.125)
    assert got.delta_p_rms == pytest.approx(0.25 / math.sqrt(2))
    assert got.delta_p["min"] == pytest.approx(-0.25)
    assert (got.same_top, got.same_top_error) == (0.5, 0.5)
    assert got.covered == pytest.approx(1.0, abs=1e-6)
    assert list(got.kld) == list(got.delta_p) == list(PERCENTILES)


def test_errors_are_llama_cpps() -> None:
    """Its formulas, from sums as it keeps them."""
    before, after, _, _ = pair(9, 500, 50, 50)
    got = compare([before], [after]).overall
    b = -before.true_logprobs.astype(np.float64)
    q = -after.true_logprobs.astype(np.float64)
    n = len(b)

    def uncertainty(sums: float, squares: float) -> float:
        return math.sqrt((squares / n - (sums / n) ** 2) / (n - 1))

    ub, uq = (uncertainty(x.sum(), (x * x).sum()) for x in (b, q))
    cov = ((b * q).sum() / n - b.mean() * q.mean()) / (n - 1)
    ppl_b, ppl_q = math.exp(b.mean()), math.exp(q.mean())
    assert got.ppl_variant_error == pytest.approx(ppl_q * uq)
    assert got.ln_ratio_error == pytest.approx(math.sqrt(uq**2 + ub**2 - 2 * cov))
    assert got.ln_ppl_correlation == pytest.approx(cov / (uq * ub))
    assert got.ppl_difference_error == pytest.approx(
        math.sqrt((ppl_q * uq) ** 2 + (ppl_b * ub) ** 2 - 2 * ppl_q * ppl_b * cov)
    )
    share = got.same_top
    assert got.same_top_error == pytest.approx(math.sqrt(share * (1 - share) / (n - 1)))


def test_a_model_against_itself_differs_in_nothing() -> None:
    before, *_ = pair(3, 200, 300, 10)
    got = compare([before], [before]).overall
    assert got.kld_mean == got.kld["max"] == got.ln_ratio_mean == got.ppl_difference == 0.0
    assert got.ln_ratio_error == got.delta_p_rms == 0.0
    assert got.same_top == 1.0 and got.same_top_error == 0.0
    assert got.ppl_reference == got.ppl_variant


def test_the_order_of_documents_changes_nothing() -> None:
    pairs = [pair(seed, 30 + seed, 40, 8)[:2] for seed in range(6)]
    one = compare([b for b, _ in pairs], [a for _, a in pairs])
    other = compare([b for b, _ in reversed(pairs)], [a for _, a in reversed(pairs)])
    for name in DivergenceStats.model_fields:
        assert getattr(other.overall, name) == pytest.approx(
            getattr(one.overall, name), rel=1e-9, abs=1e-12
        ), name


def test_parts_add_up_to_the_whole() -> None:
    documents = [
        [replace(side, index=i, source="ab"[i % 2], start=start) for side in pair(i, 90, 40, 8)[:2]]
        for i, start in enumerate((1, 40, 200, 1000))
    ]
    got = compare([b for b, _ in documents], [a for _, a in documents])
    assert list(got.by_source) == ["a", "b"]
    assert {k: v.tokens for k, v in got.by_position.items()} == {
        "0-63": 63 + 24,
        "64-255": 27 + 66 + 56,
        "256-1023": 34 + 24,
        "1024+": 66,
    }
    for parts in (got.by_source, got.by_position):
        assert sum(part.tokens for part in parts.values()) == got.overall.tokens
        total = math.fsum(part.kld_mean * part.tokens for part in parts.values())
        assert total / got.overall.tokens == pytest.approx(got.overall.kld_mean)


def test_a_single_token_has_no_error() -> None:
    got = compare([traced(np.log([[0.5, 0.5]]), [0], 1)], [traced(np.log([[0.4, 0.6]]), [0], 1)])
    assert got.overall.kld_error is None and got.overall.same_top_error is None
    assert got.overall.ln_ppl_correlation is None
    assert "NaN" not in got.overall.model_dump_json()


@pytest.mark.parametrize("zero", [-math.inf, -9999.0])
def test_a_probability_of_zero_leaves_every_figure_finite(zero: float) -> None:
    before = traced([[math.log(0.5), math.log(0.5)]] * 2, [0, 1], 2)
    after = traced([[0.0, zero]] * 2, [0, 1], 2)
    got = compare([before], [after]).overall
    assert got.kld_mean == pytest.approx(0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - FLOOR))
    assert all(math.isfinite(v) for v in got.model_dump().values() if isinstance(v, float))
    # The other way round nothing of the reference stands there.
    assert compare([after], [before]).overall.kld_mean == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.logprobs.__setitem__((3, 1), np.nan), "position 4: a log-probability is not"),
        (lambda d: d.true_logprobs.__setitem__(2, np.nan), "position 3: a log-probability is not"),
        (lambda d: d.true_logprobs.__setitem__(0, np.inf), "position 1: a log-probability is inf"),
        (lambda d: d.logprobs.__setitem__((0, 0), 0.5), "position 1: a log-probability is 0.5"),
        (lambda d: d.logprobs.__setitem__((1, slice(None)), -0.1), "position 2: the probabilities"),
        (lambda d: d.ids.__setitem__((5, 0), d.ids[5, 1]), "position 6: a token is listed twice"),
        (lambda d: d.ids.__setitem__((5, 0), -1), "a token id is negative"),
    ],
)
def test_numbers_that_are_none_are_refused_with_their_position(change: Any, says: str) -> None:
    before, after, _, _ = pair(1, 10, 20, 4)
    assert complaint(after) == ""
    change(after)
    assert says in complaint(after)
    with pytest.raises(ValueError, match="in the variant's trace, document 0"):
        compare([before], [after])


def test_other_documents_are_refused() -> None:
    before, after, _, _ = pair(1, 10, 20, 4)
    other = replace(after, true_ids=after.true_ids[::-1].copy())
    for reference, variant, says in (
        ([before], [other], "other tokens"),
        ([before], [replace(after, start=2)], "other tokens"),
        ([before], [], "ends before document 0"),
        ([], [after], "more documents"),
        ([], [], "no token"),
    ):
        with pytest.raises(ValueError, match=says):
            compare(reference, variant)
