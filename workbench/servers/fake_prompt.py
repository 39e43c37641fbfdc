"""Prompt log-probabilities of the fake server: `prompt_logprobs`, as vLLM answers it. Pure.

Each position gets a distribution that is a function of the token before it: a geometric fall over
as many tokens as were asked for, with a twentieth of the probability left to the rest. A damaged
checkpoint bends it, the more the larger its damage; equal damage and salt give equal numbers.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

#: Probability left to the tokens that are not listed.
_REST = 0.05
#: Candidates are drawn from so many ids, and at least from twice as many as are listed.
_IDS = 4096


def prompt_logprobs(
    ids: Sequence[int], top_k: int, damage: float, salt: str, *, broken: bool = False
) -> list[dict[str, dict[str, Any]] | None]:
    """One entry a token of the prompt: id -> log-probability and rank; None for the first.

    Args:
        ids: the prompt.
        top_k: likeliest tokens listed; the true one comes on top where it is not among them.
        damage: 0 is the undamaged model.
        salt: makes other checkpoints bend in other places.
        broken: numbers that are none, as a corrupt kernel gives.
    """
    answer: list[dict[str, dict[str, Any]] | None] = [None] * min(1, len(ids))
    for before, token in itertools.pairwise(ids):
        dice = random.Random(f"{before}")
        found = dice.sample(range(max(_IDS, 2 * top_k)), top_k)
        if token not in found and dice.random() < 0.9:
            found[min(top_k - 1, int(dice.expovariate(0.5)))] = token
        bend = random.Random(f"{salt} {before}")
        weights = [-0.3 * rank + damage * bend.gauss(0, 1) for rank in range(top_k)]
        total = math.log(sum(map(math.exp, weights))) - math.log(1 - _REST)
        listed = sorted(
            ((weight - total, id_) for weight, id_ in zip(weights, found, strict=True)),
            key=lambda pair: (-pair[0], pair[1]),
        )
        entries = {
            str(id_): {"logprob": math.nan if broken else value, "rank": rank, "decoded_token": ""}
            for rank, (value, id_) in enumerate(listed, 1)
        }
        if str(token) not in entries:
            last = min(listed[-1][0], math.log(_REST)) - 1.0
            entries[str(token)] = {
                "logprob": math.nan if broken else last,
                "rank": top_k + 1,
                "decoded_token": "",
            }
        answer.append(entries)
    return answer
