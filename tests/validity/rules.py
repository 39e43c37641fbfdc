"""Rules other tools decide by, on the same pairs: each says whether a variant may ship."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

Scores = Sequence[float]
Rule = Callable[[Scores, Scores], bool]
_TWO_SIDED = NormalDist().inv_cdf(0.975)


def recovery(before: Scores, after: Scores) -> bool:
    """Recovery of at least 0.95, rounded to two decimals before it is compared."""
    return bool(sum(before)) and round(sum(after) / sum(before), 2) >= 0.95


def drop(before: Scores, after: Scores) -> bool:
    """The mean score fell by at most 0.01, whatever the number of samples."""
    # Not by the last bit of a sum of decimal fractions.
    return (sum(before) - sum(after)) / len(before) <= 0.01 + 1e-12


def same(before: Scores, after: Scores) -> bool:
    """A z-test of two independent groups does not reject "the same" at 0.05."""
    one, other = np.asarray(before), np.asarray(after)
    variance = float(one.var() + other.var()) / len(one)
    apart = abs(float(one.mean() - other.mean()))
    # Two-sided p > 0.05, without a division by the variance of scores that are all alike.
    return apart <= _TWO_SIDED * math.sqrt(variance)


RULES: dict[str, Rule] = {"recovery": recovery, "drop": drop, "z-test": same}
