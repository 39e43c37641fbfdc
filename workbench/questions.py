"""What is asked of a server for one sample, and what its answer to a ranked choice means.

Choices are ranked by the sum of the log-probabilities of their tokens after the prompt, not divided
by their length. Of two choices with equal sums the one that stands first in the sample wins.

It renders and measures; it sends nothing and scores nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.client import Completion, RequestFailed
from workbench.digest import content_id, sha256_text
from workbench.spec import Sample
from workbench.suites import Suite, render_prompt

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
    """

    sample: Sample
    prompt: str
    prompt_ids: tuple[int, ...]
    prompt_digest: str
    target_digest: str
    too_long: str | None


def prepare(suite: Suite, sample: Sample, tokenizer: Tokenizer, longest: int) -> Question:
    """Render one sample and measure it against the context of `longest` tokens."""
    spec = suite.spec
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


def fake_answers(suite: Suite, tokenizer: Tokenizer) -> dict[str, Any]:
    """What the fake server must know to answer a suite rightly.

    Returns:
        sha256 of a prompt -> ``text``, a right answer, and ``choices``, the log-probability of
        each choice where choices are ranked.
    """
    known: dict[str, Any] = {}
    for sample in suite.samples:
        target = sample.target
        right = target[0] if isinstance(target, list) else target
        known[sha256_text(render_prompt(suite.spec, sample, tokenizer))] = {
            "text": right if isinstance(right, str) else json.dumps(right, ensure_ascii=False),
            "choices": {c: -0.25 if c == target else -4.0 for c in sample.choices or ()},
        }
    return known


def other_tokens(server: Sequence[int], own: Sequence[int]) -> RequestFailed:
    """The failure of a server whose tokenizer makes other ids of a text than the checkpoint's."""
    at = common_length(server, own)
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
