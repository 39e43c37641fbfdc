"""Several claims at once: Holm's step-down adjustment. Pure.

Holm, S. (1979), A simple sequentially rejective multiple test procedure, Scandinavian Journal of
Statistics 6, 65-70. Whatever the dependence between the claims, the chance that even one claim with
an adjusted p of at most alpha is false stays at most alpha.

A GO needs none of it: it claims that *every* gated loss is within its margin, and is false as soon
as one of them is not; that one check alone lets it through in at most 5 % of cases, and asking the
others as well can only make that rarer (Berger 1982, the intersection-union test). A NO-GO needs a
single FAIL among many, so with twenty checks of variants at their margin one may well be a false
alarm. No verdict depends on the adjusted p: a FAIL with a large one is a NO-GO all the same, as
what is in doubt is not shipped. But whoever reads "this suite was damaged" finds beside it, in the
report and in `gate.json`, how sure that is among everything that was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.records import Check, VariantVerdict


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p of each claim, in the order given.

    Args:
        p: of every claim that was tested, not only of those that came out.

    Raises:
        ValueError: one is not between 0 and 1.
    """
    if not all(0 <= one <= 1 for one in p):
        raise ValueError("a p is between 0 and 1")
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = highest
    return adjusted


def adjusted(variants: Sequence[VariantVerdict]) -> tuple[VariantVerdict, ...]:
    """The verdicts, each FAIL of a quality check with its p adjusted over the run.

    The claims are every quality check of every variant that was judged on pairs, passed or not:
    adjusting over those that came out alone would forget how many could have. Speed and size have
    no p. `p_holm` and `claims` are added to the `details`, nothing else changes.

    Args:
        variants: the verdicts of a run, the p of each check in `details`.
    """
    claims = [c for v in variants for c in v.checks if "p_beyond_margin" in c.details]
    found = holm([c.details["p_beyond_margin"] for c in claims])
    by_check = {id(c): p for c, p in zip(claims, found, strict=True)}

    def beside(check: Check) -> Check:
        if check.status != "FAIL" or id(check) not in by_check:
            return check
        more = {"p_holm": by_check[id(check)], "claims": len(claims)}
        return check.model_copy(update={"details": {**check.details, **more}})

    return tuple(v.model_copy(update={"checks": tuple(map(beside, v.checks))}) for v in variants)
