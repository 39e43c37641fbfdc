"""How far a variant's next-token distributions are from its reference's, on the same tokens. Pure.

The statistics are those of llama.cpp's `llama-perplexity --kl-divergence` (`kl_divergence` in its
`tools/perplexity/perplexity.cpp`), with natural logarithms and probabilities as fractions: a mean
has the error ``sqrt((E[x^2] - E[x]^2) / (n - 1))``, a percentile is interpolated linearly, the
error of a perplexity or of a difference of two follows by propagation with their covariance. Like
llama.cpp's, the errors take the tokens for independent; neighbours in a text are not, so the true
ones are somewhat larger.

llama.cpp keeps the whole distribution. A server tells the likeliest k tokens and the one that
really follows, so here the divergence is that of two coarser distributions: a token both sides
told is a cell of its own, all the others are one cell. Merging cells never raises a divergence (the
data-processing inequality; Cover and Thomas 2006, section 2.8), so the figure is a lower bound: it
may be too small, never too large, and `covered` says how much of the probability was told apart.

A probability below the smallest normal float32 counts as that one, so that a zero, which a server
writes as -9999 or -inf, leaves every figure finite; it makes them smaller, never larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workbench.evaluation_records import DivergenceStats

Floats = NDArray[np.float64]

#: What a record says of the tokens beyond the top k.
TAIL = (
    "A token that both sides told (it is among the likeliest of both, or the one that follows) is "
    "a cell of its own; all others are one cell. The KLD of these cells is a lower bound of the "
    "true one, up to 1e-4 of rounding."
)
#: Natural logarithm of the smallest normal float32.
FLOOR = math.log(float(np.finfo(np.float32).tiny))
#: Lower ends of the ranges of positions; the last one is open.
POSITIONS = (0, 64, 256, 1024)
#: Label -> percentile, in the order of a record.
PERCENTILES = {
    "max": 100.0, "99.9": 99.9, "99": 99.0, "95": 95.0, "90": 90.0, "median": 50.0,
    "10": 10.0, "5": 5.0, "1": 1.0, "min": 0.0,
}  # fmt: skip
#: The rest of a distribution is 1 minus float32 values: below this it is their rounding.
_ROUNDING = 1e-6
#: Above this a logarithm is no probability's, or a sum of probabilities is none.
_ABOVE = 1e-3


@dataclass(frozen=True)
class TracedDocument:
    """What one model said of n successive tokens of a document.

    Attributes:
        index: of the document in the corpus.
        source: ``calibration`` or ``suite:<name>``.
        start: position in the document of the first of the n tokens.
        true_ids: (n,) int32, the tokens that really follow.
        true_logprobs: (n,) float32, their natural log-probabilities.
        ranks: (n,) int32, 1 where the true token was the likeliest.
        ids: (n, k) int32, the k likeliest tokens.
        logprobs: (n, k) float32, theirs.
    """

    index: int
    source: str
    start: int
    true_ids: NDArray[np.int32]
    true_logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True)
class Comparison:
    """The statistics of two traces.

    Attributes:
        overall: over every token.
        by_source: ``calibration``, ``suite:<name>`` -> over its tokens.
        by_position: range such as ``0-63`` -> over the tokens at these positions of a document.
    """

    overall: DivergenceStats
    by_source: dict[str, DivergenceStats]
    by_position: dict[str, DivergenceStats]


def complaint(document: TracedDocument) -> str:
    """What makes a document's numbers unusable, its position named; empty where nothing does."""
    for values in (document.true_logprobs[:, None], document.logprobs):
        bad = np.isnan(values) | (values > _ABOVE)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            value = float(values[row, column])
            what = "not a number" if math.isnan(value) else f"{value:g}, which is none"
            return f"{_place(document, row)}: a log-probability is {what}"
    if (document.ids < 0).any() or (document.true_ids < 0).any():
        return f"document {document.index}: a token id is negative"
    ordered = np.sort(document.ids, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        return f"{_place(document, int(twice.argmax()))}: a token is listed twice"
    totals = np.exp(document.logprobs.astype(np.float64)).sum(axis=1)
    if (totals > 1 + _ABOVE).any():
        row = int(totals.argmax())
        return f"{_place(document, row)}: the probabilities add up to {totals[row]:.4g}"
    return ""


def compare(reference: Iterable[TracedDocument], variant: Iterable[TracedDocument]) -> Comparison:
    """Compare two traces of one corpus, document by document; both are read once, in order.

    Args:
        reference: of the unquantized model.
        variant: of the model in question.

    Raises:
        ValueError: the documents are not the same, one has a number that is none, or there is
            no token to compare.
    """
    tokens = _Tokens()
    pairs = iter(variant)
    for before in reference:
        after = next(pairs, None)
        if after is None:
            raise ValueError(f"the variant's trace ends before document {before.index}")
        tokens.add(before, after)
    if next(pairs, None) is not None:
        raise ValueError("the variant's trace has more documents than the reference's")
    columns, sources, positions = tokens.columns()
    if not positions.size:
        raise ValueError("there is no token to compare")
    ends = [*(str(end - 1) for end in POSITIONS[1:]), ""]
    bins = np.digitize(positions, POSITIONS) - 1
    return Comparison(
        overall=_statistics(columns),
        by_source={
            name: _statistics(columns[:, sources == number])
            for number, name in enumerate(tokens.names)
        },
        by_position={
            f"{low}-{end}" if end else f"{low}+": _statistics(columns[:, bins == number])
            for number, (low, end) in enumerate(zip(POSITIONS, ends, strict=True))
            if (bins == number).any()
        },
    )


def cells(before: TracedDocument, after: TracedDocument) -> tuple[Floats, Floats]:
    """Divergence of the cells both sides told apart, at each of n positions.

    Returns:
        (n,) Kullback-Leibler divergence of variant from reference, natural logarithm, at least 0;
        and (n,) probability, by the reference, of the cells that hold one token.
    """
    n = len(before.true_ids)
    mine, theirs = _told(before), _told(after)
    common, here, there = np.intersect1d(
        mine[0], theirs[0], assume_unique=True, return_indices=True
    )
    rows = (common >> 32).astype(np.intp)
    log_p, log_q = mine[1][here], theirs[1][there]
    p, q = np.exp(log_p), np.exp(log_q)
    covered = np.bincount(rows, p, n)
    rest_p = np.maximum(1 - covered, _ROUNDING)
    rest_q = np.maximum(1 - np.bincount(rows, q, n), _ROUNDING)
    # Where the variant's rest is the smaller one, its rounding could raise the figure: give it way.
    rest_q = np.maximum(rest_q, np.minimum(rest_q + _ROUNDING, rest_p))
    # Both made to add up to 1 exactly, or rounding could make a divergence negative.
    total_p, total_q = covered + rest_p, np.bincount(rows, q, n) + rest_q
    total = np.bincount(rows, p * (log_p - log_q), n) + rest_p * np.log(rest_p / rest_q)
    divergence = total / total_p - np.log(total_p) + np.log(total_q)
    return np.maximum(divergence, 0.0), np.minimum(covered, 1.0)


@dataclass
class _Tokens:
    """Six figures of every token: of 20,000 tokens that is a megabyte."""

    names: dict[str, int] = field(default_factory=dict)
    figures: list[Floats] = field(default_factory=list)
    sources: list[NDArray[np.intp]] = field(default_factory=list)
    positions: list[NDArray[np.intp]] = field(default_factory=list)

    def add(self, before: TracedDocument, after: TracedDocument) -> None:
        for side, document in (("reference", before), ("variant", after)):
            if said := complaint(document):
                raise ValueError(f"in the {side}'s trace, {said}")
        same = (before.index, before.source, before.start) == (
            after.index, after.source, after.start,
        )  # fmt: skip
        if not same or not np.array_equal(before.true_ids, after.true_ids):
            raise ValueError(f"document {before.index} has other tokens in the variant's trace")
        divergence, covered = cells(before, after)
        nll = [-_floored(d.true_logprobs) for d in (before, after)]
        change = np.exp(-nll[1]) - np.exp(-nll[0])
        top = _top(before) == _top(after)
        self.figures.append(np.stack([*nll, divergence, change, top, covered]))
        n = len(before.true_ids)
        number = self.names.setdefault(before.source, len(self.names))
        self.sources.append(np.full(n, number))
        self.positions.append(np.arange(before.start, before.start + n))

    def columns(self) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
        if not self.figures:
            nothing = np.empty(0, np.intp)
            return np.empty((6, 0)), nothing, nothing
        return (
            np.concatenate(self.figures, axis=1),
            np.concatenate(self.sources),
            np.concatenate(self.positions),
        )


def _statistics(columns: Floats) -> DivergenceStats:
    nll_reference, nll_variant, divergence, change, top, covered = columns
    n = len(divergence)
    ppl_reference = math.exp(nll_reference.mean())
    ppl_variant = math.exp(nll_variant.mean())
    shared = float(top.mean())
    return DivergenceStats(
        tokens=n,
        ppl_reference=ppl_reference,
        ppl_reference_error=_times(ppl_reference, _error(nll_reference)),
        ppl_variant=ppl_variant,
        ppl_variant_error=_times(ppl_variant, _error(nll_variant)),
        ln_ratio_mean=float((nll_variant - nll_reference).mean()),
        # The variance of a difference is that of both minus twice the covariance.
        ln_ratio_error=_error(nll_variant - nll_reference),
        ln_ppl_correlation=_correlation(nll_variant, nll_reference),
        ppl_difference=ppl_variant - ppl_reference,
        ppl_difference_error=_error(ppl_variant * nll_variant - ppl_reference * nll_reference),
        kld_mean=float(divergence.mean()),
        kld_error=_error(divergence),
        kld=_percentiles(divergence),
        delta_p_mean=float(change.mean()),
        delta_p_error=_error(change),
        delta_p_rms=math.sqrt(float(np.square(change).mean())),
        delta_p=_percentiles(change),
        same_top=shared,
        same_top_error=math.sqrt(shared * (1 - shared) / (n - 1)) if n > 1 else None,
        covered=float(covered.mean()),
    )


def _told(document: TracedDocument) -> tuple[NDArray[np.int64], Floats]:
    """Every token a side told, as position * 2^32 + id, with its floored log-probability."""
    n, k = document.ids.shape
    inside = (document.ids == document.true_ids[:, None]).any(axis=1)
    apart = np.flatnonzero(~inside)
    rows = np.concatenate([np.repeat(np.arange(n), k), apart]).astype(np.int64)
    ids = np.concatenate([document.ids.ravel(), document.true_ids[apart]])
    values = np.concatenate([document.logprobs.ravel(), document.true_logprobs[apart]])
    return (rows << 32) | ids, _floored(values)


def _floored(values: NDArray[np.float32]) -> Floats:
    return np.clip(values.astype(np.float64), FLOOR, 0.0)


def _top(document: TracedDocument) -> NDArray[np.int32]:
    """The likeliest token at each position; of equally likely ones the lowest id."""
    best = document.logprobs.max(axis=1, keepdims=True)
    none = np.int32(np.iinfo(np.int32).max)
    lowest: NDArray[np.int32] = np.where(document.logprobs == best, document.ids, none).min(axis=1)
    return lowest


def _error(values: Floats) -> float | None:
    """Standard error of a mean; None of a single value."""
    n = len(values)
    return None if n < 2 else float(values.std()) / math.sqrt(n - 1)


def _times(factor: float, error: float | None) -> float | None:
    return None if error is None else factor * error


def _correlation(one: Floats, other: Floats) -> float | None:
    a, b = one - one.mean(), other - other.mean()
    spread = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return None if spread == 0 else max(-1.0, min(1.0, float((a * b).sum()) / spread))


def _percentiles(values: Floats) -> dict[str, float]:
    found = np.percentile(values, list(PERCENTILES.values()))
    return dict(zip(PERCENTILES, map(float, found), strict=True))


def _place(document: TracedDocument, row: int) -> str:
    return f"document {document.index} ({document.source}), position {document.start + row}"
