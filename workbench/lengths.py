"""How many tokens: a number, or a distribution that is drawn from with a seed. Pure.

    64
    {distribution: uniform, min: 16, max: 256}
    {distribution: lognormal, median: 300, p95: 1200, max: 4000}
    {distribution: empirical, values: [12, 80, 80, 410]}

The limits `min` and `max` cut a distribution off and do not pile up at its ends: what lies outside
is not drawn, and the rest keeps its proportions. Each draw takes one uniform number through the
quantile function, so that the longest and the P95 length are known before anything is drawn, and
draw number i is the same however many are drawn.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from workbench.base import Spec, Unfit

_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)
#: No context is longer; a larger number is a slip of the finger.
MOST_TOKENS = 10_000_000
_Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class FixedLength(Spec):
    """Always so many tokens. A bare integer means the same."""

    distribution: Literal["fixed"] = "fixed"
    tokens: _Tokens

    def quantile(self, share: float) -> int:
        """The length that `share` of all draws do not exceed."""
        return self.tokens


class UniformLength(Spec):
    """Every whole number from `min` to `max`, both included, equally often."""

    distribution: Literal["uniform"] = "uniform"
    min: _Tokens
    max: _Tokens

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self.min, self.max)
        return self

    def quantile(self, share: float) -> int:
        """The length that `share` of all draws do not exceed."""
        count = self.max - self.min + 1
        return self.min + _place(share, count)


class LognormalLength(Spec):
    """A long tail to the right, as lengths of real prompts and answers have.

    `median` and `p95` are those of the distribution before `min` and `max` cut it off. The sigma
    of the logarithm is ``ln(p95 / median) / 1.645``.
    """

    distribution: Literal["lognormal"] = "lognormal"
    median: float = Field(gt=0, le=MOST_TOKENS)
    p95: float = Field(gt=0, le=MOST_TOKENS)
    min: _Tokens = 1
    max: _Tokens = Field(description="required: a server has a context limit")

    @model_validator(mode="after")
    def _limits(self) -> Self:
        if self.p95 <= self.median:
            raise Unfit(
                f"p95 is {self.p95:g}, and the median {self.median:g} is not below it",
                "the median is the middle length, p95 the one that 5 % exceed",
            )
        _ordered(self.min, self.max)
        low, high = self._ends()
        if not high - low > 1e-6:
            raise Unfit(
                f"nothing of this distribution lies between min {self.min} and max {self.max}",
                "move min and max to where the median is",
            )
        return self

    def quantile(self, share: float) -> int:
        """The length that `share` of all draws do not exceed."""
        low, high = self._ends()
        at = low + share * (high - low)
        # The open ends of the normal distribution are infinite.
        z = _NORMAL.inv_cdf(min(max(at, 1e-300), 1 - 1e-16))
        tokens = round(math.exp(min(math.log(self.median) + self._sigma * z, 700.0)))
        return min(max(tokens, self.min), self.max)

    @property
    def _sigma(self) -> float:
        return math.log(self.p95 / self.median) / _Z95

    def _ends(self) -> tuple[float, float]:
        """Shares of the uncut distribution below what rounds to `min`, and up to `max`."""
        mu, sigma = math.log(self.median), self._sigma
        low, high = (math.log(edge) for edge in (self.min - 0.5, self.max + 0.5))
        return _NORMAL.cdf((low - mu) / sigma), _NORMAL.cdf((high - mu) / sigma)


class EmpiricalLength(Spec):
    """Lengths that were counted somewhere, each as often as it stands in the list."""

    distribution: Literal["empirical"] = "empirical"
    values: tuple[_Tokens, ...] = Field(min_length=1)
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        None, description="how often each value occurs; default: once"
    )
    min: _Tokens = 1
    max: _Tokens = MOST_TOKENS

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self.min, self.max)
        if self.weights is not None and len(self.weights) != len(self.values):
            raise Unfit(
                f"{len(self.values)} values have {len(self.weights)} weights",
                "give one weight for each value, or none at all",
            )
        if not sum(weight for _, weight in self._kept()) > 0:
            raise Unfit(
                f"no value that occurs lies between min {self.min} and max {self.max}",
                "move min and max, or correct the weights",
            )
        return self

    def quantile(self, share: float) -> int:
        """The length that `share` of all draws do not exceed."""
        kept = self._kept()
        sums = list(accumulate(weight for _, weight in kept))
        # Sums of decimal fractions are off by their last bits.
        wanted = share * sums[-1] * (1 - 1e-12)
        return next(value for (value, _), upto in zip(kept, sums, strict=True) if upto > wanted)

    def _kept(self) -> list[tuple[int, float]]:
        weights = self.weights or (1.0,) * len(self.values)
        pairs = zip(self.values, weights, strict=False)
        kept = sorted((v, w) for v, w in pairs if self.min <= v <= self.max and w > 0)
        # By a power of two, which changes no share: a sum of the largest numbers is none, and of
        # the smallest no share can be taken.
        largest = math.frexp(max((w for _, w in kept), default=1.0))[1]
        return [(value, math.ldexp(weight, -largest)) for value, weight in kept]


def _ordered(low: int, high: int) -> None:
    if low > high:
        raise Unfit(f"min {low} is above max {high}", "exchange them")


def _place(share: float, count: int) -> int:
    """Index below `count` that a share from 0 to 1 falls on."""
    return min(max(math.ceil(share * count - 1e-9) - 1, 0), count - 1)


def _whole_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if not 1 <= value <= MOST_TOKENS:
        raise Unfit(f"a length of {value} tokens", f"use 1 to {MOST_TOKENS}")
    return {"distribution": "fixed", "tokens": value}


#: A whole number, or a mapping with its `distribution`.
Length = Annotated[
    FixedLength | UniformLength | LognormalLength | EmpiricalLength,
    Field(discriminator="distribution"),
    BeforeValidator(_whole_number),
]
AnyLength = FixedLength | UniformLength | LognormalLength | EmpiricalLength
