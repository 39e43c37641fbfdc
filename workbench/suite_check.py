"""`workbench suite check`: what a suite is, and what can be known about it before a model is asked.

Loading found what is broken. This looks for what is whole and still worth a look: a right answer
its own scorer would call wrong (that one is an error), samples that ask the same twice, prompts
that do not fit the context of a checkpoint, and tools a chat template never shows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from workbench.digest import canonical_json
from workbench.errors import RecipeError, UserError
from workbench.prompts import chat_messages, fields_shown, shows_tools
from workbench.scorers import grade
from workbench.scorers.number import converted, unit_of
from workbench.suite_spec import ContainsScorer, NumericScorer, RegexScorer, Sample
from workbench.suites import Suite

if TYPE_CHECKING:
    from workbench.tokenizer import Tokenizer

#: Scorers whose target is no answer: a pattern, a word for what the model should do, a rubric's
#: reference, or whatever a function of the user's makes of it.
UNTESTED = ("regex", "refusal", "judge", "python")
#: A check of a policy wants so many unless it says otherwise.
_FEW = 30
_NAMED = 5


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Literal["ok", "warn", "error"]
    what: str


class Model(NamedTuple):
    """What prompts are measured with.

    Attributes:
        tokenizer: of the checkpoint.
        longest: tokens of prompt and answer that fit.
        limit: where that number comes from.
    """

    tokenizer: Tokenizer
    longest: int
    limit: str


def check_suite(suite: Suite, model: Model | None = None) -> list[Finding]:
    """Look at a suite that was loaded.

    Args:
        suite: with its samples.
        model: measures the prompts; without one they are not measured.
    """
    found = [
        *_what_it_is(suite),
        *_self_test(suite),
        *_units(suite),
        *_anywhere(suite),
        *_empty(suite),
        *_twice(suite),
    ]
    return [*found, *_under(suite, model)] if model else found


def open_model(recipe: Path | None, checkpoint: Path | None) -> Model | None:
    """The tokenizer and context of a recipe or of a checkpoint; None where neither is given.

    Raises:
        UserError: one of them cannot be read, or both are given.
    """
    from workbench.tokenizer import Tokenizer

    if recipe is not None and checkpoint is not None:
        raise UserError("--recipe and --checkpoint at once", where="arguments", fix="give one")
    if recipe is not None:
        from workbench.recipe import load_model

        loaded, folder = load_model(recipe)
        if folder is None:
            raise RecipeError(
                "the recipe's checkpoint is on a hub",
                where=f"{recipe}: model.hub",
                fix="name the folder it was fetched to: --checkpoint PATH",
            )
        longest = loaded.serve.max_model_len
        return Model(Tokenizer.load(folder), longest, "serve.max_model_len")
    if checkpoint is not None:
        from workbench.checkpoint import inspect

        longest = inspect(checkpoint).max_position_embeddings
        return Model(Tokenizer.load(checkpoint), longest, "the checkpoint's context")
    return None


def right_answers(suite: Suite, sample: Sample) -> tuple[str, ...]:
    """Outputs a sample's own target calls right; empty where a target is no answer.

    A list of accepted texts gives one each, or all of them at once where `contains` wants all.
    """
    scorer, target = suite.spec.scorer, sample.target
    if scorer.name in UNTESTED:
        return ()
    if scorer.name == "tool_call":
        calls = target if isinstance(target, list) else [target]
        sent = [{**call, "arguments": _json(call["arguments"])} for call in calls]
        return (_json({"tool_calls": sent, "content": None}),)
    if isinstance(scorer, ContainsScorer) and scorer.all and isinstance(target, list):
        return ("\n".join(target),)
    texts = target if isinstance(target, list) else [target]
    return tuple(text if isinstance(text, str) else _json(text) for text in texts)


def _what_it_is(suite: Suite) -> Iterator[Finding]:
    spec = suite.spec
    asked = {"generate": "generated", "rank_choices": "ranked choices", "call_tools": "tool calls"}
    source = f" of '{spec.samples_of}'" if spec.samples_of else ""
    yield Finding(
        "ok",
        f"{spec.kind}, {asked[spec.ask]}, scorer {spec.scorer.name}, {len(suite.samples)} samples"
        f"{source}; {spec.tier}, {spec.cadence}, digest {suite.digest[:12]}",
    )
    if spec.repeats > 1:
        yield Finding("ok", f"each asked {spec.repeats} times at {spec.sampling.temperature:g}")
    fields = [sample.model_dump() for sample in suite.samples]
    languages = Counter(str(f["language"]) for f in fields if f.get("language") is not None)
    if languages:
        rest = len(fields) - languages.total()
        counts = ", ".join(f"{name} {n}" for name, n in languages.most_common())
        yield Finding("ok", f"languages: {counts}" + (f", not said {rest}" if rest else ""))
    if spec.tags:
        yield Finding("ok", f"tags: {', '.join(spec.tags)}")
    if spec.cluster:
        sizes = Counter(str(f[spec.cluster]) for f in fields)
        text = f"clusters: {len(sizes)} by '{spec.cluster}', the largest of {max(sizes.values())}"
        yield Finding("ok" if len(sizes) > 1 else "warn", text)
    if len(fields) < _FEW:
        text = (
            f"{len(fields)} samples: too few to settle anything: a policy's check wants {_FEW} "
            "unless it says otherwise"
        )
        yield Finding("warn", text)


def _self_test(suite: Suite) -> Iterator[Finding]:
    """A right answer that does not score 1 makes every figure of the suite too low."""
    name = suite.spec.scorer.name
    if name in UNTESTED:
        yield Finding("ok", f"a target of '{name}' is no answer: none was graded against itself")
        return
    wrong, tested = 0, 0
    for sample in suite.samples:
        own = right_answers(suite, sample)
        others = converted(suite, sample) if name == "numeric" else ()
        for answer in (*own, *others):
            tested += 1
            score = grade(suite, sample, answer).score
            if score >= 1 - 1e-9:
                continue
            wrong += 1
            if wrong <= _NAMED:
                said = repr(answer if len(answer) <= 80 else f"{answer[:79]}…")
                which = "own target" if answer in own else "target in another unit,"
                text = f"sample '{sample.id}': its {which} {said} scores {score:.3g}, not 1"
                yield Finding("error", text)
    if wrong > _NAMED:
        yield Finding("error", f"and {wrong - _NAMED} more targets that do not score 1")
    if not wrong:
        also = ", in each unit," if getattr(suite.spec.scorer, "units", None) else ""
        yield Finding("ok", f"self-test: each of {tested} targets{also} scores 1 by '{name}'")


def _units(suite: Suite) -> Iterator[Finding]:
    """Targets that say no unit where the suite has a table of them."""
    scorer = suite.spec.scorer
    if not isinstance(scorer, NumericScorer) or not scorer.units:
        return
    bare = [f"'{s.id}'" for s in suite.samples if unit_of(suite, s) is None]
    if bare:
        base = next((unit for unit, factor in scorer.units.items() if factor == 1), None)
        read = f"'{base}'" if base else "a unit of factor 1, which 'units' does not name"
        text = f"{len(bare)} of {len(suite.samples)} targets say no unit and are read as {read}"
        yield Finding("warn", f'{text}: {_some(bare)} (write it: "3 {base or "UNIT"}")')


def _anywhere(suite: Suite) -> Iterator[Finding]:
    """Targets that are patterns and so short that most answers hold them inside some word."""
    scorer = suite.spec.scorer
    if not isinstance(scorer, RegexScorer) or scorer.pattern is not None:
        return
    found = [
        f"'{text}' of '{sample.id}'"
        for sample in suite.samples
        for text in (sample.target if isinstance(sample.target, list) else [sample.target])
        if isinstance(text, str) and re.fullmatch("[A-Za-z0-9]{1,2}", text)
    ]
    if found:
        text = (
            f"{len(found)} targets are found inside any word, as they are patterns: {_some(found)}"
        )
        yield Finding("warn", rf"{text} (write \bA\b for A, or say 'pattern', or use 'contains')")


def _empty(suite: Suite) -> Iterator[Finding]:
    """A field the prompt shows that holds nothing: the question is not whole."""
    for name in fields_shown(suite.spec):
        empty = [
            f"'{sample.id}'"
            for sample in suite.samples
            if isinstance(value := sample.model_dump().get(name), str) and not value.strip()
        ]
        if empty:
            text = f"{len(empty)} samples have nothing in '{name}', which the prompt shows"
            yield Finding("warn", f"{text}: {_some(empty)}")


def _twice(suite: Suite) -> Iterator[Finding]:
    first: dict[bytes, Sample] = {}
    same: list[str] = []
    unlike: list[str] = []
    for sample in suite.samples:
        asked = canonical_json([chat_messages(suite.spec, sample), sample.choices])
        before = first.setdefault(asked, sample)
        if before is sample:
            continue
        alike = canonical_json(sample.target) == canonical_json(before.target)
        (same if alike else unlike).append(f"'{sample.id}' = '{before.id}'")
    if same:
        text = f"{len(same)} samples ask what another one asks: {_some(same)}"
        yield Finding("warn", text)
    if unlike:
        text = f"{len(unlike)} samples ask what another one asks and have another target, so that "
        yield Finding("warn", f"{text}one of the two is always wrong: {_some(unlike)}")


def _under(suite: Suite, model: Model) -> Iterator[Finding]:
    """What the checkpoint's tokenizer and template make of the prompts."""
    from workbench.questions import prepare

    spec, tokenizer = suite.spec, model.tokenizer
    room = spec.max_tokens if spec.ask != "rank_choices" else 0
    longest, of, long = -1, "", []
    for sample in suite.samples:
        try:
            question = prepare(suite, sample, tokenizer, model.longest)
        except UserError as bad:
            yield Finding("error", f"sample '{sample.id}': {bad.what} (fix: {bad.fix})")
            return
        if len(question.prompt_ids) > longest:
            longest, of = len(question.prompt_ids), sample.id
        if question.too_long:
            long.append(f"'{sample.id}'")
    text = f"longest prompt: {longest} tokens, sample '{of}'; {room} more for an answer"
    yield Finding("ok", f"{text}; {model.longest} fit ({model.limit})")
    if long:
        text = f"{len(long)} of {len(suite.samples)} samples do not fit and would fail"
        yield Finding("warn", f"{text}: {_some(long)}")
    if spec.ask == "call_tools":
        shown = shows_tools(spec, suite.samples[0], tokenizer)
        text = "the chat template shows the tools to the model"
        yield Finding("ok", text) if shown else Finding("warn", NO_TOOLS)


#: What is said where a chat template makes the same prompt with and without tools.
NO_TOOLS = (
    "the model's chat template shows no tools: the same prompt comes out without them, so what "
    "the model calls is guessed"
)


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
