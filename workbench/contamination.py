"""What evaluation suites share with a calibration set. Pure.

A score on a text the method was tuned on says little.

Compared are a row's messages and the fields a suite's prompt shows of a sample, together and one by
one. Of what they share, the strictest kind counts:

- ``exact``: a message (or the whole row) is the sample, spaces around it apart;
- ``normalized``: the same after NFKC, case folding, and with punctuation and white space as one;
- ``contained``: the whole of it stands inside the row, word for word, and it has 5 words or more;
- ``ngram``: 13 words in a row are shared.

13 words are the window GPT-3 was cleaned with (Brown et al. 2020, appendix C). A whole question is
no such window: most have fewer words, and all of one in a row is no chance from 5 words on ("Thank
you very much" has 4). Shorter samples are counted as too short, and only equality is looked for. So
that an instruction is not taken for the sample it belongs to, one field of several that has under
13 words counts only where no other sample of the suite has the same.

Chinese and Japanese have no spaces: there a token is one character and counts as 0.65 of a word, so
that 13 words are 20 characters and 5 are 8. The first three kinds count against the recipe's limit;
n-grams are shown. Texts are looked up by hash, so the time grows with their length and not with the
pairs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from workbench.calibration_records import (
    SAID,
    Contamination,
    Overlap,
    OverlapKind,
    OverlapPair,
)
from workbench.calibration_spec import CalibrationSpec
from workbench.errors import ContaminationError
from workbench.sources import SourceRow
from workbench.suites import Suite, fields_shown

NGRAM = 13
#: Words of the shortest sample that is looked for inside a row.
SHORTEST = 5
KINDS: tuple[OverlapKind, ...] = ("exact", "normalized", "contained", "ngram")
#: Kinds that count against the limit.
BLOCKING = KINDS[:3]
MOST_PAIRS = 50
_SHOWN, _FEW = 10, 3
_TEXT = 80

# Weights are whole numbers, so that a window does not depend on how fractions are added.
_WORD, _CHARACTER = 20, 13
_NO_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[{_NO_SPACES}]|(?:(?![{_NO_SPACES}])[^\W_])+")
#: Soft hyphens, zero-width and direction marks: a word is the same with them inside.
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_SINGLE = re.compile(rf"[{_NO_SPACES}]")


def words(text: str) -> list[str]:
    """A text as the words that count: NFKC, case folded, without punctuation or white space."""
    shown = _INVISIBLE.sub("", text)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", shown).casefold())
    return _TOKEN.findall(folded)


def length(tokens: Sequence[str]) -> float:
    """Words of a text, a Chinese or Japanese character counted as 0.65 of one."""
    return sum(map(_weight, tokens)) / _WORD


def windows(tokens: Sequence[str], size: int) -> Iterator[tuple[int, int]]:
    """The shortest stretches of at least `size` words: (start, end) of each, one for each start."""
    weights = [_weight(token) for token in tokens]
    end, held = 0, 0
    for start, weight in enumerate(weights):
        while held < size * _WORD and end < len(tokens):
            held += weights[end]
            end += 1
        if held < size * _WORD:
            return
        yield start, end
        held -= weight


def compare(
    spec: CalibrationSpec,
    rows: Iterable[SourceRow],
    drawn: frozenset[str],
    suites: Mapping[str, Suite],
) -> Contamination:
    """Compare every suite with the rows of a calibration set.

    Args:
        spec: limit, and whether the drawn rows or the whole source count.
        rows: of the source.
        drawn: ids of those in the set.
        suites: by name.
    """
    index = _Index(suites)
    best: dict[_Target, OverlapKind] = {}
    pairs: dict[str, dict[OverlapKind, list[OverlapPair]]] = defaultdict(lambda: defaultdict(list))
    compared = 0
    for row in rows:
        if spec.contamination_scope == "sample" and row.id not in drawn:
            continue
        compared += 1
        for target, (kind, text) in index.look_up(row).items():
            if target not in best or KINDS.index(kind) < KINDS.index(best[target]):
                best[target] = kind
            listed = pairs[target.suite][kind]
            if len(listed) < MOST_PAIRS:
                pair = OverlapPair(row=row.id, sample=target.sample, kind=kind, text=_short(text))
                listed.append(pair)
    overlaps = []
    for name, suite in suites.items():
        kinds = [kind for target, kind in best.items() if target.suite == name]
        matched = {kind: n for kind in KINDS if (n := kinds.count(kind))}
        total = len(suite.samples)
        listed = [pair for kind in KINDS for pair in pairs[name][kind]]
        overlaps.append(
            Overlap(
                suite=name,
                suite_digest=suite.digest,
                samples=total,
                matched=matched,
                short=index.short[name],
                share=sum(matched.get(kind, 0) for kind in BLOCKING) / total,
                ngram_share=matched.get("ngram", 0) / total,
                pairs=tuple(listed[:MOST_PAIRS]),
            )
        )
    return Contamination(
        scope=spec.contamination_scope,
        rows=compared,
        limit=spec.contamination_limit,
        ngram=NGRAM,
        shortest=SHORTEST,
        suites=tuple(overlaps),
    )


def known(
    found: Contamination | None, spec: CalibrationSpec, suites: Mapping[str, Suite]
) -> TypeGuard[Contamination]:
    """Whether a comparison is of these suites and under this limit."""
    return (
        found is not None
        and (found.ngram, found.shortest) == (NGRAM, SHORTEST)
        and found.scope == spec.contamination_scope
        and found.limit == spec.contamination_limit
        and {o.suite: o.suite_digest for o in found.suites}
        == {name: suite.digest for name, suite in suites.items()}
    )


def refuse(found: Contamination, where: str) -> None:
    """Stop where a suite shares more than is accepted.

    Args:
        found: the comparison.
        where: what the error points at.

    Raises:
        ContaminationError: lists the pairs, ten of them for each suite.
    """
    lines = []
    for overlap in found.suites:
        if overlap.share <= found.limit:
            continue
        hits = sum(overlap.matched.get(kind, 0) for kind in BLOCKING)
        lines.append(
            f"suite '{overlap.suite}': {hits} of {overlap.samples} samples "
            f"({overlap.share:.1%}) stand in the calibration set, {found.limit:.1%} are accepted"
        )
        blocking = [pair for pair in overlap.pairs if pair.kind in BLOCKING]
        lines += map(_told, blocking[:_SHOWN])
        if len(blocking) > _SHOWN:
            lines.append(f"  and {len(blocking) - _SHOWN} more")
    if lines:
        raise ContaminationError(
            "\n".join(lines),
            where=where,
            fix="take the rows out of the source, or accept the share with 'contamination_limit'",
        )


def described(overlap: Overlap) -> str:
    """What a suite shares with the set, in a sentence, and below it the first pairs."""
    shared = [f"{count} {SAID[kind]}" for kind, count in overlap.matched.items()]
    text = f"of {overlap.samples} samples, {', '.join(shared) or 'none'}"
    if overlap.short:
        text += f"; {overlap.short} too short to check (under {SHORTEST} words)"
    more = len(overlap.pairs) - _FEW
    pairs = [*map(_told, overlap.pairs[:_FEW])]
    if more > 0:
        pairs.append("  and more, see 'contamination' in calibration.json")
    return "\n".join([text, *pairs])


def _told(pair: OverlapPair) -> str:
    text = f"  row {pair.row}, sample {pair.sample} ({SAID[pair.kind]}): {pair.text}"
    # What a file says moves no cursor.
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


class _Target(NamedTuple):
    suite: str
    sample: str


class _Index:
    """Every sample of every suite, to be found by what a row holds."""

    def __init__(self, suites: Mapping[str, Suite]) -> None:
        self._exact: dict[str, list[_Target]] = defaultdict(list)
        self._normalized: dict[str, list[_Target]] = defaultdict(list)
        #: First words of a sample -> the whole of it.
        self._whole: dict[str, list[tuple[_Target, list[str]]]] = defaultdict(list)
        self._grams: dict[str, dict[_Target, None]] = defaultdict(dict)
        self.short = dict.fromkeys(suites, 0)
        for name, suite in suites.items():
            fields = [list(_texts(suite, sample.model_dump())) for sample in suite.samples]
            often = Counter(_key(words(text)) for texts in fields for text in {*texts})
            for sample, texts in zip(suite.samples, fields, strict=True):
                self._add(_Target(name, sample.id), texts, often)
                self.short[name] += length(words("\n".join(texts))) < SHORTEST

    def _add(self, target: _Target, texts: Sequence[str], often: Mapping[str, int]) -> None:
        whole = "\n".join(texts)
        for text in dict.fromkeys([whole, *texts]):
            tokens = words(text)
            # One short field of several, such as a city or an instruction, is not the sample.
            alone = often.get(_key(tokens), 0) < 2
            if text != whole and length(tokens) < (SHORTEST if alone else NGRAM):
                continue
            self._exact[text.strip()].append(target)
            if tokens:
                self._normalized[_key(tokens)].append(target)
            for start, end in windows(tokens, SHORTEST):
                self._whole[_key(tokens[start:end])].append((target, tokens))
                break
            for start, end in windows(tokens, NGRAM):
                self._grams[_key(tokens[start:end])][target] = None

    def look_up(self, row: SourceRow) -> dict[_Target, tuple[OverlapKind, str]]:
        """Samples a row shares something with: the strictest kind, and what is shared."""
        found: dict[_Target, tuple[OverlapKind, str]] = {}

        def add(target: _Target, kind: OverlapKind, text: str) -> None:
            if target not in found or KINDS.index(kind) < KINDS.index(found[target][0]):
                found[target] = (kind, text)

        texts = [row.text, *(message["content"] for message in row.messages)]
        for text in dict.fromkeys(texts):
            for target in self._exact.get(text.strip(), ()):
                add(target, "exact", text.strip())
            for target in self._normalized.get(_key(words(text)), ()):
                add(target, "normalized", text.strip())
        tokens = words(row.text)
        for start, end in windows(tokens, SHORTEST):
            for target, whole in self._whole.get(_key(tokens[start:end]), ()):
                if tokens[start : start + len(whole)] == whole:
                    add(target, "contained", _joined(whole))
        for start, end in windows(tokens, NGRAM):
            for target in self._grams.get(_key(tokens[start:end]), ()):
                add(target, "ngram", _joined(tokens[start:end]))
        return found


def _texts(suite: Suite, fields: Mapping[str, object]) -> Iterator[str]:
    """What a suite's prompt shows of a sample, field by field."""
    for name in fields_shown(suite.spec):
        value = fields.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield "\n".join(item for item in value if isinstance(item, str))


def _weight(token: str) -> int:
    return _CHARACTER if _SINGLE.match(token) else _WORD


def _key(tokens: Sequence[str]) -> str:
    return "\n".join(tokens)


def _joined(tokens: Sequence[str]) -> str:
    text = ""
    for token in tokens:
        text += token if _SINGLE.match(token) else f" {token} "
    return " ".join(text.split())


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TEXT else f"{flat[: _TEXT - 1]}…"
