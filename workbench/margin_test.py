"""How surely is a loss beyond the margin? The p of a FAIL. Pure.

The mirror of `workbench.stats`: a lower limit there is beyond the margin exactly where p here is
below 1 - confidence. Each limit is the widest of several, so each p is the largest of several.
McNemar's p is of another claim, "anything was lost"; adjusting that one for many claims would let
losses that are accepted pass for failures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench import stats
from workbench.clusters import Clusters, units


def beyond_margin(
    baseline: Sequence[float],
    variant: Sequence[float],
    margin: float,
    clusters: Clusters | None = None,
) -> float:
    """One-sided p of "the mean score fell by more than the margin".

    Args:
        baseline: scores 0 to 1, of one sample or more.
        variant: of the same samples.
        margin: accepted loss, above 0.
        clusters: of each sample; the p is then also that of whole clusters, whichever is larger.

    Raises:
        ValueError: not equally long, or empty.
    """
    import numpy as np

    before, after = np.array(baseline, dtype=float), np.array(variant, dtype=float)
    if not 0 < len(before) == len(after):
        raise ValueError(f"{len(before)} scores and {len(after)} are no pairs")
    differences, n = before - after, len(before)
    both = np.concatenate((before, after))
    if ((both == 0) | (both == 1)).all():
        p = _binary(int((differences > 0).sum()), int((differences < 0).sum()), n, margin)
    else:
        p = _graded(differences.tolist(), margin)
    if clusters is None or all(c is None for c in clusters):
        return p
    found = units(np.column_stack((differences, np.ones(n))), clusters)
    most = float(found[:, 1].max())
    if most == 1:
        return p
    scale = most * len(found) / n
    return max(p, _graded((found[:, 0] / most).tolist(), margin / scale))


def _binary(lost: int, gained: int, n: int, margin: float) -> float:
    from scipy.special import stdtr

    tango = (
        stats._tango_statistic(g, b, m, -margin)
        for b, g, m in ((lost, gained, n), (lost + 1, gained + 1, n + 2))
    )
    return max(_net(lost - gained, n, margin), *(float(stdtr(max(n - 1, 1), z)) for z in tango))


def _graded(differences: Sequence[float], margin: float) -> float:
    from scipy.special import stdtr

    n, total = len(differences), math.fsum(differences)
    mean, found = total / n, [_net(math.floor(total + 1e-9), n, margin)]
    if mean <= margin:
        found.append(0.5)
    if n > 1:
        spread = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
        error = math.sqrt(spread / n)
        if error > 0:
            found.append(float(stdtr(n - 1, (margin - mean) / error)))
    error = math.sqrt(stats.pair_variance(differences) / (n + 1))
    beyond = total / (n + 2) - margin
    # The limit is mean - t error - skewed (1 + 2 t^2): at which t it is the margin.
    skewed = max(0.0, -stats.pair_skew(differences)) / (6 * (n + 2))
    if beyond <= skewed:
        found.append(0.5)
    else:
        root = math.sqrt(error * error + 8 * skewed * (beyond - skewed))
        found.append(float(stdtr(n + 1, -2 * (beyond - skewed) / (error + root))))
    return max(found)


def _net(net: int, n: int, margin: float) -> float:
    """P(at least `net` of n) where each is lost with the margin's chance; 1 of no net loss."""
    from scipy.special import betainc

    if net <= 0 or margin >= 1:
        return 1.0
    return float(betainc(net, n - net + 1, margin)) if margin > 0 else 0.0
