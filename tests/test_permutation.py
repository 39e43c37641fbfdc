"""The sign-flip test against hand counts, the exact binomial, and what may not matter to it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import permutation
from workbench.permutation import sign_flip
from workbench.stats import mcnemar

#: Charles Darwin's 15 pairs of Zea mays, cross- minus self-fertilised, eighths of an inch.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_fishers_own_example() -> None:
    """The Design of Experiments, section 21: 863 of 32,768 sums are as high as the observed 314."""
    found = sign_flip(DARWIN)
    assert found.worse == pytest.approx(863 / 2**15, abs=1e-12)
    assert found.different == pytest.approx(1726 / 2**15, abs=1e-12)
    assert found.method.endswith("exact")


def test_hand_counted() -> None:
    # 3, 2, 1 -> sums 6 4 2 0 0 -2 -4 -6; observed 4.
    assert sign_flip([3, 2, -1]).worse == pytest.approx(2 / 8)
    assert sign_flip([3, 2, -1]).different == pytest.approx(4 / 8)
    assert sign_flip([0.0, 0.0]).worse == 1


@pytest.mark.parametrize(("lost", "gained"), [(12, 5), (5, 12), (0, 1), (40, 40), (600, 520)])
def test_right_and_wrong_is_the_exact_mcnemar_test(lost: int, gained: int) -> None:
    found = sign_flip([1.0] * lost + [-1.0] * gained + [0.0] * 9)
    assert (found.worse, found.different) == pytest.approx(mcnemar(lost, gained), rel=1e-8)


def test_drawn_signs_agree_with_all_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = sign_flip(DARWIN)
    monkeypatch.setattr(permutation, "_EXACT", 64)
    drawn = sign_flip(DARWIN, draws=40_000)
    assert "40000 draws, seed 0" in drawn.method
    assert drawn.worse == pytest.approx(exact.worse, abs=0.003)
    assert sign_flip(DARWIN, draws=40_000) == drawn
    # Nothing drawn reaches 60 differences of one sign: still no p of 0.
    assert sign_flip(range(1, 61), draws=999).worse == 1 / 1000


def test_very_many_sizes_are_a_normal_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(3)
    values = dice.normal(0.02, 1, 3000)
    drawn = sign_flip(values)
    monkeypatch.setattr(permutation, "_DRAWN", 1)
    normal = sign_flip(values)
    assert "normal limit" in normal.method and "draws" in drawn.method
    assert normal.worse == pytest.approx(drawn.worse, abs=0.015)
    assert normal.different == pytest.approx(drawn.different, abs=0.02)


def test_a_cluster_is_flipped_as_one() -> None:
    # Twelve equal losses in three documents are three flips, not twelve.
    found = sign_flip([0.5] * 12, ["a"] * 4 + ["b"] * 4 + ["c"] * 4)
    assert found.worse == pytest.approx(1 / 8)
    assert "of clusters" in found.method
    assert sign_flip([0.5] * 12).worse == pytest.approx(1 / 2**12)
    assert sign_flip([0.5] * 12, [None] * 12).worse == pytest.approx(1 / 2**12)
    with pytest.raises(ValueError, match="clusters"):
        sign_flip([0.5] * 12, ["a"])
    with pytest.raises(ValueError, match="not a number"):
        sign_flip([float("nan")])


values = st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1)


@given(values, st.integers(0, 1000), st.booleans())
def test_order_does_not_matter_and_sides_swapped_mirror(
    found: list[float], seed: int, grouped: bool
) -> None:
    names = [str(i % 5) if i % 7 else None for i in range(len(found))]
    pairs = list(zip(found, names, strict=True))
    mixed = random.Random(seed).sample(pairs, len(pairs))

    def test(rows: list[tuple[float, str | None]], sign: int = 1) -> permutation.SignFlip:
        return sign_flip([sign * d for d, _ in rows], [n for _, n in rows] if grouped else None)

    one = test(pairs)
    assert test(mixed) == one
    assert test(pairs, -1).different == pytest.approx(one.different, rel=1e-9)
    # Of all sums, those at or above the observed and those at or below overlap in the ties alone.
    assert test(pairs, -1).worse + one.worse >= 1 - 1e-9
    # Samples that agree are no evidence.
    agreeing = [*pairs, (0.0, "more"), (0.0, None)]
    assert test(agreeing).worse == pytest.approx(one.worse, rel=1e-9)
