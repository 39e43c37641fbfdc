"""The texts both models are led through, word by word: chosen once, the same on every machine.

Two kinds of source: rows of the calibration source that no calibration set of the recipe holds
(nor their like, case and punctuation apart), rendered as the set's are; and each suite's prompt
with its reference answer, of which only the answer is scored. The source with the fewest tokens so
far gives the next document, so a suite of long contexts takes no more of the budget than the
others. Within a source the order is that of ``sha256(salt, id)``. What is cut or left out is
counted, with its reason. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workbench.calibration import tokenize_row
from workbench.calibration_spec import CalibrationSpec
from workbench.contamination import words
from workbench.digest import content_id
from workbench.errors import CalibrationError
from workbench.questions import common_length
from workbench.sources import SourceRow
from workbench.spec import DivergenceSpec
from workbench.suite_spec import Sample, SuiteSpec
from workbench.suites import Suite, render_prompt
from workbench.tokenizer import Tokenizer

CALIBRATION = "calibration"
_SALT = "divergence"


@dataclass(frozen=True)
class Document:
    """One text as token ids.

    Attributes:
        source: ``calibration`` or ``suite:<name>``.
        name: id of the row or the sample.
        ids: its tokens, at least two.
        start: position of the first token that is scored, at least 1: nothing precedes the first.
        cut: whether it was longer.
    """

    source: str
    name: str
    ids: tuple[int, ...]
    start: int
    cut: bool = False


@dataclass(frozen=True)
class Corpus:
    """What is asked of each model.

    Attributes:
        documents: in the order they are asked.
        left_out: reason -> rows and samples that are not among them.
    """

    documents: tuple[Document, ...]
    left_out: Mapping[str, int]

    @property
    def digest(self) -> str:
        """Content id of the token ids and of what is scored of them."""
        return content_id([[d.source, d.start, *d.ids] for d in self.documents])

    @property
    def sources(self) -> dict[str, int]:
        """Source -> tokens that are scored."""
        found: Counter[str] = Counter()
        for document in self.documents:
            found[document.source] += len(document.ids) - document.start
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class HeldOut:
    """The calibration source, and what of it is taken already.

    Attributes:
        spec: how its rows are rendered.
        rows: all of them.
        drawn: ids of those a calibration set holds.
    """

    spec: CalibrationSpec
    rows: Iterable[SourceRow]
    drawn: Collection[str]


def build(
    spec: DivergenceSpec,
    suites: Mapping[str, Suite],
    held_out: HeldOut | None,
    tokenizer: Tokenizer,
    context: int,
) -> Corpus:
    """Choose the documents.

    Args:
        spec: how many tokens, and of which sources.
        suites: by name.
        held_out: None where the recipe calibrates nothing.
        tokenizer: of the checkpoint.
        context: most tokens a server takes, the one it has to generate included.
    """
    longest = context - 1
    left_out: Counter[str] = Counter()
    sources: dict[str, Iterator[Document]] = {}
    if held_out and spec.held_out:
        sources[CALIBRATION] = _rows(held_out, spec.held_out, tokenizer, longest, left_out)
    for name, suite in suites.items() if spec.suites else ():
        sources[f"suite:{name}"] = _answers(name, suite, tokenizer, longest, left_out)
    taken = dict.fromkeys(sources, 0)
    room = spec.tokens
    documents: list[Document] = []
    while sources and room > 1:
        name = min(sources, key=lambda source: taken[source])
        document = next(sources[name], None)
        if document is None:
            del sources[name]
            continue
        if len(document.ids) > room:
            if document.start >= room:
                left_out["beyond the budget"] += 1
                continue
            document = replace(document, ids=document.ids[:room], cut=True)
        documents.append(document)
        taken[name] += len(document.ids)
        room -= len(document.ids)
    return Corpus(tuple(documents), dict(sorted(left_out.items())))


def reference_answer(spec: SuiteSpec, sample: Sample) -> tuple[str, str]:
    """What a model should say, and an empty text; or an empty text, and why there is none."""
    target: Any = sample.target
    if spec.ask == "call_tools":
        return "", "tool calls are written by the server's template"
    if spec.scorer.name == "refusal":
        return "", "the target says what to do, not in which words"
    if spec.scorer.name == "regex" and getattr(spec.scorer, "pattern", None) is None:
        return "", "the target is a pattern"
    if isinstance(target, list) and target and isinstance(target[0], str):
        target = target[0]
    if spec.scorer.name == "json_fields" and isinstance(target, dict):
        target = json.dumps(target, ensure_ascii=False)
    if isinstance(target, int | float) and not isinstance(target, bool):
        target = str(target)
    if not isinstance(target, str) or not target.strip():
        return "", "the target is no text"
    return target, ""


def _answers(
    name: str, suite: Suite, tokenizer: Tokenizer, longest: int, left_out: Counter[str]
) -> Iterator[Document]:
    for sample in sorted(suite.samples, key=lambda sample: _order(sample.id)):
        answer, reason = reference_answer(suite.spec, sample)
        if reason:
            left_out[reason] += 1
            continue
        prompt = render_prompt(suite.spec, sample, tokenizer)
        raw = suite.spec.ask == "generate" and not suite.spec.chat_template
        if raw and prompt[-1:].isascii() and not prompt[-1:].isspace():
            answer = f" {answer}"  # as the model would go on after "Answer:"
        ids = tokenizer.encode(prompt + answer, False)
        # Where the border was merged into one token, that token belongs to the answer.
        start = max(1, common_length(tokenizer.encode(prompt, False), ids))
        if start >= min(len(ids), longest):
            fits = len(ids) <= longest
            left_out["no token of its own" if fits else "the prompt fills the context"] += 1
            continue
        kept = tuple(ids[:longest])
        yield Document(f"suite:{name}", sample.id, kept, start, len(kept) < len(ids))


def _rows(
    held_out: HeldOut, wanted: int, tokenizer: Tokenizer, longest: int, left_out: Counter[str]
) -> Iterator[Document]:
    spec = held_out.spec
    rows = list(held_out.rows)
    seen = {_key(row) for row in rows if row.id in held_out.drawn}
    shortest = max(2, spec.min_tokens)
    for row in sorted(rows, key=lambda row: _order(row.id)):
        if row.id in held_out.drawn:
            continue
        if not wanted:
            return
        key = _key(row)
        if not all(message["content"].strip() for message in row.messages):
            left_out["empty"] += 1
            continue
        if key in seen:
            left_out["the like of another row, or of one that was calibrated on"] += 1
            continue
        try:
            ids = tokenize_row(row, spec, tokenizer)[1]
        except CalibrationError:
            left_out["the chat template refuses it"] += 1
            continue
        if len(ids) < shortest:
            left_out[f"shorter than {shortest} tokens"] += 1
            continue
        seen.add(key)
        wanted -= 1
        kept = tuple(ids[:longest])
        yield Document(CALIBRATION, row.id, kept, 1, len(kept) < len(ids))


def _key(row: SourceRow) -> str:
    """Equal for rows that differ in case, punctuation and white space alone."""
    return "\n".join(words(row.text)) or row.text.strip()


def _order(name: str) -> str:
    return hashlib.sha256(f"{_SALT}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()
