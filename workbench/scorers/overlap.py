"""Scorers of how much a text has in common with a reference: ROUGE and chrF. Pure.

Both take the best of several references. ROUGE's words are runs of letters and digits in lower
case, and each Chinese, Japanese, Korean or Thai character is a word of its own: these scripts put
no spaces between words. For English that is the tokenization of the `rouge-score` package without
its stemmer. chrF needs no words at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from workbench.scorers.base import Grade, kind
from workbench.scorers.text import texts
from workbench.suite_spec import RougeScorer, Sample

if TYPE_CHECKING:
    from workbench.suites import Suite

#: More of an output is not looked at, characters: a longer one is no answer to be compared.
_LONGEST = 100_000
#: Thai, kana, CJK (with compatibility and extensions), Hangul.
_ALONE = (
    "\u0e00-\u0e7f\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d"
    "\uac00-\ud7a3\U00020000-\U0003134f"
)
_WORD = re.compile(f"[{_ALONE}]|[^\\W_{_ALONE}]+")
_CHRF_ORDER = 6
_CHRF_BETA = 2


class Overlap(NamedTuple):
    """What two texts have in common.

    Attributes:
        f: the score, 0 to 1.
        precision: share of the output that is in the reference.
        recall: share of the reference that is in the output.
    """

    f: float
    precision: float
    recall: float


def rouge(suite: Suite, sample: Sample, output: str) -> Grade:
    """ROUGE-1, ROUGE-2 or ROUGE-L F1 against the best of the targets (Lin 2004)."""
    options = suite.spec.scorer
    assert isinstance(options, RougeScorer)
    said = words(output[:_LONGEST])
    overlap = {"rouge1": _unigrams, "rouge2": _bigrams, "rougeL": rouge_l}[options.variant]
    return _best([overlap(said, words(text)) for text in texts(sample)])


def similarity(suite: Suite, sample: Sample, output: str) -> Grade:
    """The chrF score against the best of the targets."""
    return _best([chrf(output[:_LONGEST], text) for text in texts(sample)])


def words(text: str) -> list[str]:
    """The words ROUGE counts."""
    return _WORD.findall(text.lower())


def rouge_n(said: Sequence[str], wanted: Sequence[str], n: int) -> Overlap:
    """Words in a row that both have, each as often as in the one that has it less (Lin 2004)."""
    found = Counter(zip(*(said[i:] for i in range(n)), strict=False))
    target = Counter(zip(*(wanted[i:] for i in range(n)), strict=False))
    return _overlap((found & target).total(), found.total(), target.total())


def rouge_l(said: Sequence[str], wanted: Sequence[str]) -> Overlap:
    """The longest common subsequence of words, of the whole texts (Lin 2004, sentence level)."""
    return _overlap(lcs_length(said, wanted), len(said), len(wanted))


def lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence; bit-parallel (Hyyro 2004)."""
    at: dict[str, int] = {}
    for i, word in enumerate(a):
        at[word] = at.get(word, 0) | 1 << i
    full = (1 << len(a)) - 1
    row = full
    for word in b:
        hit = row & at.get(word, 0)
        row = (row + hit | row & ~hit) & full
    return len(a) - row.bit_count()


def chrf(said: str, wanted: str) -> Overlap:
    """The chrF score of two texts: character 1- to 6-grams, beta 2 (Popovic 2015).

    White space is left out and case counts. Precision and recall are means over the lengths that
    both texts have, as sacreBLEU 2 does it.
    """
    found, target = "".join(said.split()), "".join(wanted.split())
    precisions, recalls = [], []
    for n in range(1, min(_CHRF_ORDER, len(found), len(target)) + 1):
        reference = Counter(target[i : i + n] for i in range(len(target) - n + 1))
        grams = (found[i : i + n] for i in range(len(found) - n + 1))
        # Only those of the reference are kept: an output may be long.
        common = Counter(gram for gram in grams if gram in reference)
        hits = (common & reference).total()
        precisions.append(hits / (len(found) - n + 1))
        recalls.append(hits / (len(target) - n + 1))
    if not precisions or not any(precisions):
        return Overlap(0.0, 0.0, 0.0)
    precision, recall = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    weight = _CHRF_BETA**2
    score = (1 + weight) * precision * recall / (weight * precision + recall)
    return Overlap(score, precision, recall)


def check_words(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target of `rouge` or `similarity`, or None."""
    target = sample.target
    found = target if isinstance(target, list) else [target]
    if not found or not all(isinstance(text, str) for text in found):
        return f"'target' must be a text or a list of texts, not {kind(target)}"
    options = suite.spec.scorer
    least = 2 if isinstance(options, RougeScorer) and options.variant == "rouge2" else 1
    for text in found:
        if not text.strip() or (isinstance(options, RougeScorer) and len(words(text)) < least):
            return f"'target' has nothing to compare with in {text!r}"
    return None


def _unigrams(said: Sequence[str], wanted: Sequence[str]) -> Overlap:
    return rouge_n(said, wanted, 1)


def _bigrams(said: Sequence[str], wanted: Sequence[str]) -> Overlap:
    return rouge_n(said, wanted, 2)


def _overlap(common: int, found: int, wanted: int) -> Overlap:
    if not common:
        return Overlap(0.0, 0.0, 0.0)
    return Overlap(2 * common / (found + wanted), common / found, common / wanted)


def _best(overlaps: Sequence[Overlap]) -> Grade:
    best = max(overlaps)
    return Grade(best.f, (), {"precision": best.precision, "recall": best.recall})
