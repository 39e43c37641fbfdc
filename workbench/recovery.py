"""Recovery: the variant's mean score over the baseline's, with Fieller's interval. Pure.

Other tools call it recovery and gate on it, mostly rounded and without an interval. Here it stands
beside the paired loss, never rounded, and decides nothing.

Fieller, E. C. (1954), Some problems in interval estimation, Journal of the Royal Statistical
Society B 16, 175-185: the ratios r whose `variant - r baseline` a t test does not tell from 0.
Where the baseline's own mean cannot be told from 0 they have no end, and there is no recovery: not
an infinite one and not 100 %. Equal scores would give no width, so the interval is the wider of the
plain one and the same after two pseudo-pairs, one lost and one gained, are added, as in
`workbench.stats`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from workbench.clusters import Clusters, units

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recovery:
    """A ratio of means; without it, why there is none.

    Attributes:
        value: variant / baseline, unrounded; None: it is undefined.
        low: one-sided lower limit.
        high: one-sided upper limit.
        undefined: why there is none; empty where there is one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    undefined: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def fieller(above: Floats, below: Floats, quantile: float) -> tuple[float, float] | None:
    """Fieller's limits of mean(above) / mean(below) of paired values.

    Args:
        above: the numerator's values, two or more.
        below: the denominator's, of the same units.
        quantile: of Student's t with n - 1 degrees of freedom, at the confidence of one side.

    Returns:
        Lower and upper limit; None where the mean below cannot be told from 0.
    """
    import numpy as np

    (aa, ab), (_, bb) = np.cov(above, below) / len(above) * quantile**2
    a, b = math.fsum(above) / len(above), math.fsum(below) / len(below)
    # The ratios r with (a - r b)^2 <= t^2 var(a - r b), a quadratic in r.
    first, middle, last = b * b - bb, a * b - ab, a * a - aa
    if not first > 0:
        return None
    root = math.sqrt(max(0.0, middle * middle - first * last))
    return float((middle - root) / first), float((middle + root) / first)


def recovery(
    baseline: Sequence[float] | Floats,
    variant: Sequence[float] | Floats,
    confidence: float = 0.95,
    clusters: Clusters | None = None,
) -> Recovery:
    """Variant's mean score over the baseline's, on the same samples.

    Args:
        baseline: scores 0 to 1, more is better; of a metric where less is better, 1 - score.
        variant: of the same samples.
        confidence: of each one-sided limit.
        clusters: of each sample; the cluster is then the unit.

    Raises:
        ValueError: not equally long, or empty.
    """
    import numpy as np
    from scipy.special import stdtrit

    before, after = np.array(baseline, dtype=float), np.array(variant, dtype=float)
    if not 0 < len(before) == len(after):
        raise ValueError(f"{len(before)} scores and {len(after)} are no pairs")
    below, above = math.fsum(before), math.fsum(after)
    if not below > 0:
        return Recovery(None, undefined="the baseline scores 0")
    found = units(np.column_stack((after, before, np.ones(len(before)))), clusters)
    if len(found) < 2:
        return Recovery(None, undefined="one unit alone does not vary")
    most = float(found[:, 2].max())
    padded = np.vstack((found[:, :2], [[0.0, most], [most, 0.0]]))
    limits = [
        fieller(rows[:, 0], rows[:, 1], float(stdtrit(len(rows) - 1, confidence)))
        for rows in (found[:, :2], padded)
    ]
    ends = [end for pair in limits if pair for end in pair]
    if len(ends) < 4:
        return Recovery(None, undefined="the baseline's score cannot be told from 0")
    value = above / below
    # The limits hold the value but for rounding; no ratio of scores is below 0.
    return Recovery(value, max(0.0, min(value, *ends)), max(value, *ends))
