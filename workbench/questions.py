"""What is asked of a server for one sample, and what its answer to a ranked choice means.

A question carries the digests of everything an answer depends on (prompt, target, sampling
parameters, chat template, tokenizer): a row that holds the same ones was asked the same.

Choices are ranked by the sum of the log-probabilities of their tokens after the prompt, not divided
by their length. Of two choices with equal sums the one that stands first in the sample wins.

It renders and measures; it sends nothing and scores nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.client import Completion, RequestFailed
from workbench.digest import content_id, sha256_text
from workbench.errors import RecipeError
from workbench.prompts import chat_messages, render_prompt
from workbench.spec import Sample, SuiteSpec
from workbench.suites import Suite, cluster_of
from workbench.tool_calls import request_digest, tools_as_sent

if TYPE_CHECKING:
    from workbench.tokenizer import Tokenizer

#: Engines that have no tokenizer and split a text at spaces.
COUNTS_WORDS = ("fake",)
#: How the error of a sample begins that cannot be asked.
TOO_LONG = "longer than the context"


@dataclass(frozen=True)
class Question:
    """One sample, ready to be sent.

    Attributes:
        sample: where it comes from.
        prompt: the exact text; choices follow it where they are ranked.
        prompt_ids: its tokens.
        prompt_digest: of every text that is sent for it.
        target_digest: of the target.
        too_long: why it cannot be asked within the context, or None.
        repeat: which time it is asked; 0 is the first.
        seed: of this repeat.
        sampling_digest: of how the answer is drawn, the seed included.
        template_digest: of the chat template; None where none is applied.
        tokenizer_digest: of the tokenizer's files.
        cluster: samples with an equal one are not independent.
        messages: the conversation, where the server renders it (tool calls).
    """

    sample: Sample
    prompt: str
    prompt_ids: tuple[int, ...]
    prompt_digest: str
    target_digest: str
    too_long: str | None
    repeat: int = 0
    seed: int = 0
    sampling_digest: str = ""
    template_digest: str | None = None
    tokenizer_digest: str = ""
    cluster: str | None = None
    messages: tuple[Mapping[str, str], ...] = ()

    @property
    def key(self) -> str:
        """The key of its row, see `SampleRow.key`."""
        return f"{self.sample.id}#{self.repeat}" if self.repeat else self.sample.id

    @property
    def identity(self) -> dict[str, Any]:
        """What a row must hold to be an answer to it, by the row's own fields."""
        return {
            "prompt_digest": self.prompt_digest,
            "target_digest": self.target_digest,
            "sampling_digest": self.sampling_digest,
            "template_digest": self.template_digest,
            "tokenizer_digest": self.tokenizer_digest,
            "cluster": self.cluster,
        }


def prepare_all(
    suite: Suite, samples: Iterable[Sample], tokenizer: Tokenizer, longest: int, how: str
) -> list[Question]:
    """Every question of a suite: samples in their order, each with its repeats one after the other.

    Args:
        suite: what to ask.
        samples: those of it that are asked.
        tokenizer: of the checkpoint.
        longest: tokens of the context.
        how: the way the engine is asked, part of the sampling digest.

    Raises:
        RecipeError: there is no chat template where the suite wants one, it refuses the messages,
            it renders nothing, or a prompt begins with more than one begin-of-sequence token.
    """
    spec, found = suite.spec, []
    for sample in samples:
        first = prepare(suite, sample, tokenizer, longest)
        bos = tokenizer.bos_count(first.prompt_ids)
        if bos > 1:
            raise RecipeError(
                f"the prompt of sample '{sample.id}' begins with {bos} begin-of-sequence tokens",
                where=f"suite '{spec.name}'",
                fix="the chat template or the tokenizer writes one already: take it out of the "
                "suite's text; if it is not there, the template itself writes it twice",
            )
        if not first.prompt_ids:
            raise RecipeError(
                f"the prompt of sample '{sample.id}' is empty once the chat template is applied",
                where=f"suite '{spec.name}'",
                fix="the checkpoint's chat template renders nothing of these messages: correct it, "
                "or say 'chat_template: false'",
            )
        for repeat in range(spec.repeats):
            seed = spec.sampling.seed + repeat
            found.append(
                replace(
                    first,
                    repeat=repeat,
                    seed=seed,
                    sampling_digest=content_id({**sampling(spec), "seed": seed, "how": how}),
                )
            )
    return found


def sampling(spec: SuiteSpec) -> dict[str, Any]:
    """How answers are drawn: everything but the prompt that a request says."""
    generated, calls = spec.ask != "rank_choices", spec.ask == "call_tools"
    return {
        **spec.sampling.model_dump(mode="json"),
        "max_tokens": spec.max_tokens if generated else 0,
        "response_schema": content_id(spec.response_schema) if guides(spec) else None,
        "tools": content_id(tools_as_sent(spec.tools)) if calls else None,
        "tool_choice": spec.tool_choice if calls else None,
    }


def answer_tokens(spec: SuiteSpec) -> int:
    """Most tokens one answer may have, for a plan; a ranked choice costs about one."""
    return spec.max_tokens if spec.ask != "rank_choices" else 1


def guides(spec: SuiteSpec) -> bool:
    """Whether answers are decoded under the suite's schema, and not only checked against it."""
    return spec.ask == "generate" and spec.guided and spec.response_schema is not None


def bos_found(tokenizer: Tokenizer, spec: SuiteSpec, questions: Sequence[Question]) -> Any:
    """BOS tokens at the beginning of the prompts, and how many the checkpoint's own files put."""
    try:
        own: int | None = tokenizer.expected_bos(spec.chat_template)
    except RecipeError:
        own = None  # the template takes the suite's conversations and not the shortest one
    return {
        "found": sorted({tokenizer.bos_count(q.prompt_ids) for q in questions}),
        "tokenizer": own,
    }


def prepare(suite: Suite, sample: Sample, tokenizer: Tokenizer, longest: int) -> Question:
    """Render one sample and measure it against the context of `longest` tokens."""
    spec = suite.spec
    messages: tuple[Mapping[str, str], ...] = ()
    if spec.ask == "call_tools":
        # The server renders these; here is what its tokens are held against.
        messages = tuple(chat_messages(spec, sample))
        prompt = tokenizer.render(messages, True, tools=tools_as_sent(spec.tools))
    else:
        prompt = render_prompt(spec, sample, tokenizer)
    texts = [prompt]
    # One token of room is what a server needs to take a request at all.
    room = 1
    if spec.ask == "rank_choices":
        texts = [prompt + choice for choice in sample.choices or ()]
    else:
        room = spec.max_tokens
    needed = max(len(tokenizer.encode(text, False)) for text in texts) + room
    return Question(
        sample=sample,
        prompt=prompt,
        prompt_ids=tuple(tokenizer.encode(prompt, False)),
        prompt_digest=content_id(texts) if len(texts) > 1 else sha256_text(prompt),
        target_digest=content_id(sample.target),
        template_digest=tokenizer.template_digest if spec.chat_template else None,
        tokenizer_digest=tokenizer.digest,
        cluster=cluster_of(spec, sample),
        messages=messages,
        too_long=None
        if needed <= longest
        else f"{TOO_LONG}: {needed} tokens with the answer, {longest} fit",
    )


def check_tokens(
    question: Question, counted: int, engine: str, server_ids: Sequence[int] | None = None
) -> None:
    """Refuse an answer to other tokens than the checkpoint's own tokenizer makes of the prompt.

    A begin-of-text added twice, or a tokenizer file of another model, changes every score a little
    and nothing visibly. Where the server told the ids it made of the text, they must be ours.

    Raises:
        RequestFailed: the counts, or the ids, differ.
    """
    if server_ids is not None and tuple(server_ids) != question.prompt_ids:
        raise other_tokens(server_ids, question.prompt_ids)
    if engine not in COUNTS_WORDS and counted != len(question.prompt_ids):
        raise _other_count(counted, len(question.prompt_ids))


def likelihood(
    question: Question, choice: str, answer: Completion, tokenizer: Tokenizer, engine: str
) -> float:
    """Sum of the log-probabilities of a choice's tokens.

    Positions are counted in tokens. Offsets into the text would not be as safe: servers count the
    parts of a multi-byte character in different ways.

    Raises:
        RequestFailed: the server made other tokens of the text, or one of them has no
            log-probability that is a number.
    """
    if engine in COUNTS_WORDS:
        total = answer.logprob_after(len(question.prompt))
    else:
        ids = tokenizer.encode(question.prompt + choice, False)
        if answer.prompt_ids is not None and list(answer.prompt_ids) != ids:
            raise other_tokens(answer.prompt_ids, ids)
        if answer.tokens and len(answer.tokens) != len(ids):
            raise _other_count(len(answer.tokens), len(ids))
        # Where the border was merged into one token, that token belongs to the choice.
        values = [t.logprob for t in answer.tokens[common_length(question.prompt_ids, ids) :]]
        known = [value for value in values if value is not None]
        total = math.fsum(known) if known and len(known) == len(values) else math.nan
    if not math.isfinite(total):
        raise RequestFailed(
            "no logprobs", f"choice {choice!r} has no log-probability that is a number"
        )
    return total


def fake_answers(suite: Suite, tokenizer: Tokenizer, as_ids: bool = False) -> dict[str, Any]:
    """What the fake server must know to answer a suite rightly.

    Args:
        suite: whose samples it will be asked.
        tokenizer: of the checkpoint.
        as_ids: prompts come as token ids, which the server reads as their numbers.

    Returns:
        sha256 of a prompt -> ``text``, a right answer, and ``choices``, the log-probability of
        each choice where choices are ranked; digest of a request with tools -> ``tool_calls``.
    """
    known: dict[str, Any] = {}
    for sample in suite.samples:
        target = sample.target
        if suite.spec.ask == "call_tools":
            # The fake server renders no template, so the request itself is what it knows.
            digest = request_digest(chat_messages(suite.spec, sample), suite.spec.tools)
            known[digest] = {"tool_calls": target}
            continue
        right = target[0] if isinstance(target, list) else target
        prompt = render_prompt(suite.spec, sample, tokenizer)
        if as_ids:
            prompt = " ".join(map(str, tokenizer.encode(prompt, False)))
        known[sha256_text(prompt)] = {
            "text": right if isinstance(right, str) else json.dumps(right, ensure_ascii=False),
            "choices": {c: -0.25 if c == target else -4.0 for c in sample.choices or ()},
        }
    return known


def other_tokens(server: Sequence[int], own: Sequence[int]) -> RequestFailed:
    """The failure of a server whose tokenizer makes other ids of a text than the checkpoint's."""
    at = common_length(server, own)
    if len(server) > len(own) > 0 and list(server[-len(own) :]) == list(own):
        more = list(server[: len(server) - len(own)])
        return RequestFailed(
            "other tokens",
            f"the server puts tokens {more} before the prompt, which has its own begin-of-sequence "
            "token where it needs one",
            fix="serve the checkpoint so that no special tokens are added",
        )
    return RequestFailed(
        "other tokens",
        f"the server's tokenizer makes {len(server)} tokens of the text, the checkpoint's "
        f"{len(own)}, and they differ from token {at} on: {list(server[at : at + 3])} where "
        f"{list(own[at : at + 3])} are right",
        fix="the tokenizer inside the served file is not the checkpoint's: convert it again",
    )


def _other_count(counted: int, own: int) -> RequestFailed:
    return RequestFailed(
        "other tokens",
        f"the server counts {counted} tokens in the prompt, the checkpoint's tokenizer {own}",
        fix="serve the checkpoint with its own tokenizer files and without added special tokens",
    )


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n
