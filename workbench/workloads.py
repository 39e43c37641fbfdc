"""From a workload to what is sent: lengths, a trace or a suite's samples as `Ask`s. Pure.

Prompts are made of random common words, encoded once each with the space before them: ordinary text
to a server, and the length is exact whatever the tokenizer merges. Each begins with its own number,
so that no two share their first block and no cached prefix helps, unless `shared_prefix` asks for
it. Answers are forced to their length (`ignore_eos`), so that every variant does equal work; where
a schema or a sample decides what the answer is, it ends by itself.

It reads no file and sends nothing: the caller loads trace and suite.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from workbench.arrivals import AnyArrivals, due_times
from workbench.digest import sha256_text
from workbench.errors import RecipeError
from workbench.lengths import AnyLength
from workbench.suite_spec import Sample, SuiteSpec
from workbench.traces import TraceRow, prompt_ids
from workbench.traffic import Ask
from workbench.workload_spec import PRESETS as PRESETS
from workbench.workload_spec import Workload as Workload

#: A token id in this range of the vocabulary is an ordinary one in every tokenizer met so far.
_TEXT = "the of and to in is that for it as was with on by at from his her they be this have not"


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""


def make_prompts(tokenizer: Encoder, *, count: int, tokens: int, seed: str) -> list[list[int]]:
    """Seeded prompts of exactly `tokens` ids each, no two beginning alike where they can differ."""
    words = _Words(tokenizer)
    return [words.prompt(index, tokens, seed) for index in range(count)]


def make_asks(
    workload: Workload,
    tokenizer: Encoder,
    arrivals: AnyArrivals,
    *,
    count: int,
    seed: str,
    texts: str = "",
) -> list[Ask]:
    """Requests of a workload with lengths.

    Args:
        workload: what to ask.
        tokenizer: of the checkpoint.
        arrivals: when; a trace's times go with `trace_asks`.
        count: how many.
        seed: of lengths, prefix groups and gaps: the same one gives equal work at equal times.
        texts: seed of the words. Another repeat or load needs another, or its prompts are in the
            server's cache already. Empty: as `seed`.

    Raises:
        ValueError: the workload takes its prompts from a trace or a suite.
    """
    if workload.prompt_tokens is None or workload.output_tokens is None:
        raise ValueError(f"workload '{workload.name}' has no lengths")
    words, schema, texts = _Words(tokenizer), workload.response_schema, texts or seed
    asks = []
    for i, at in enumerate(due_times(arrivals, count, seed)):
        tokens = _drawn(workload.prompt_tokens, f"{seed}/prompt/{i}")
        group = random.Random(sha256_text(f"{seed}/group/{i}")).randrange(workload.prefixes)
        shared = words.text(f"{texts}/prefix/{group}", round(workload.shared_prefix * tokens))
        asks.append(
            Ask(
                number=i,
                prompt=tuple(words.prompt(i, tokens, texts, shared)),
                max_tokens=_drawn(workload.output_tokens, f"{seed}/output/{i}"),
                ignore_eos=workload.forced,
                at=at,
                schema=None if schema is None else json.dumps(schema, sort_keys=True),
            )
        )
    return asks


def trace_asks(
    workload: Workload,
    rows: Sequence[TraceRow],
    tokenizer: Encoder,
    arrivals: AnyArrivals,
    *,
    seed: str,
    texts: str = "",
) -> list[Ask]:
    """One request for each row of a trace, at its time or as another arrival process says.

    `seed` and `texts` as in `make_asks`.

    Raises:
        RecipeError: a prompt of the trace does not have the tokens its line says.
    """
    words = _Words(tokenizer)
    times = due_times(arrivals, len(rows), seed, [row.at for row in rows])
    asks = []
    for i, (row, at) in enumerate(zip(rows, times, strict=True)):
        if row.prompt is not None:
            ids = prompt_ids(row, lambda text: tokenizer.encode(text, False))
        else:
            ids = tuple(words.prompt(i, row.input_tokens or 1, texts or seed))
        asks.append(Ask(i, ids, row.output_tokens, ignore_eos=workload.forced, at=at))
    return asks


def suite_asks(
    spec: SuiteSpec,
    samples: Sequence[Sample],
    prompt_of: Callable[[Sample], Sequence[int]],
    arrivals: AnyArrivals,
    *,
    count: int,
    seed: str,
    texts: str = "",
) -> list[Ask]:
    """The samples of a suite as requests, in a seeded order; after the last the first comes again.

    Args:
        spec: of the suite.
        samples: those that may be asked.
        prompt_of: token ids of a sample's prompt, rendered and encoded.
        arrivals: when.
        count: how many requests.
        seed: of the gaps.
        texts: seed of the order, so of which samples are asked: another repeat asks others, as the
            same ones would be in the server's cache and say nothing more about right and wrong.
            Empty: as `seed`.

    Raises:
        RecipeError: the suite is not asked by generating, or not greedily, or has no sample.
    """
    draws = spec.sampling.temperature > 0 or spec.sampling.stop
    if spec.ask != "generate" or draws or not samples:
        what = "has no sample" if not samples else "stops at words of its own or samples answers"
        if spec.ask != "generate":
            what = f"is asked by '{spec.ask}'"
        raise RecipeError(
            f"suite '{spec.name}' {what}: it cannot be asked under load",
            where=f"suite '{spec.name}'",
            fix="choose a suite with 'ask: generate', temperature 0 and no 'stop'",
        )
    guided = spec.guided and spec.response_schema is not None
    schema = json.dumps(spec.response_schema, sort_keys=True) if guided else None
    order = list(samples)
    random.Random(sha256_text(f"{texts or seed}/order")).shuffle(order)
    prompts = [tuple(prompt_of(sample)) for sample in order[:count]]
    asks = []
    for i, at in enumerate(due_times(arrivals, count, seed)):
        which = i % len(order)
        asks.append(
            Ask(
                number=i,
                prompt=prompts[which],
                max_tokens=spec.max_tokens,
                ignore_eos=False,
                at=at,
                sample=order[which].id,
                schema=schema,
            )
        )
    return asks


def sample_keys(asks: Sequence[Ask]) -> dict[int, str]:
    """Number of a request that asks a sample -> the key of its answer.

    As `SampleRow.key` has it: the first time a sample is asked its id, then ``id#1``, ``id#2``.
    """
    seen: Counter[str] = Counter()
    keys = {}
    for ask in sorted(asks, key=lambda ask: ask.number):
        if ask.sample is not None:
            times = seen[ask.sample]
            keys[ask.number] = f"{ask.sample}#{times}" if times else ask.sample
            seen[ask.sample] += 1
    return keys


def begin_alike(asks: Sequence[Ask], block: int = 16) -> int:
    """How many requests begin with the whole first block of one before: a prefix cache helps them.

    Args:
        asks: the requests of every load since the server's cache was last empty.
        block: tokens of a block; vLLM caches whole blocks of 16.
    """
    first = [ask.prompt[:block] for ask in asks if len(ask.prompt) >= block]
    return len(first) - len(set(first))


def _drawn(length: AnyLength, seed: str) -> int:
    return length.quantile(random.Random(sha256_text(seed)).random())


class _Words:
    """Makes text of exact length of one tokenizer's tokens."""

    def __init__(self, tokenizer: Encoder) -> None:
        self._pieces = [tokenizer.encode(f" {word}", False) for word in _TEXT.split()]
        self._digits = [tokenizer.encode(f" {digit}", False) for digit in range(10)]
        self._shared: dict[str, tuple[list[int], Iterator[list[int]]]] = {}

    def prompt(self, index: int, tokens: int, seed: str, before: Sequence[int] = ()) -> list[int]:
        """The prompt of a number, behind what it shares with others."""
        dice = random.Random(sha256_text(f"{seed}/{index}"))
        # The number first: prompts differ from their first block on.
        ids = [*before, *(i for digit in str(index) for i in self._digits[int(digit)])]
        while len(ids) < tokens:
            ids += dice.choice(self._pieces)
        return ids[:tokens]

    def text(self, seed: str, tokens: int) -> list[int]:
        """The first so many tokens of one endless text."""
        if seed not in self._shared:
            dice = random.Random(sha256_text(seed))
            self._shared[seed] = ([], iter(lambda: dice.choice(self._pieces), None))
        ids, more = self._shared[seed]
        while len(ids) < tokens:
            ids += next(more)
        return ids[:tokens]
