"""A scripted model behind llama.cpp's own routes, with its rules: what it leaves out is left out.

One token a character; characters beyond ASCII are two tokens, the first of which is only a part.
The log-probability of a token depends on the token alone.
"""

import math
import re
from typing import Any

from aiohttp import web

#: A part of a character; its other half is the character's own code point.
PART = 1_000_000


def ids_of(text: str) -> list[int]:
    found: list[int] = []
    for character in text:
        found += [ord(character)] if ord(character) < 128 else [PART, ord(character)]
    return found


def logprob(token: int) -> float:
    return -1.0 - (token % 97) / 100


def entry(token: int, kind: str, value: float) -> dict[str, Any]:
    return {"id": token, "token": "\ufffd" if token == PART else chr(token), kind: value}


class LlamaModel:
    """The routes.

    Attributes:
        bodies: what was asked, by route.
        broken: what is wrong with it on purpose.
    """

    def __init__(self, broken: str = "") -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.broken = broken

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/completion", self.completion)
        return app

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(("/tokenize", body))
        ids = ids_of(body["content"])
        if self.broken == "double bos":
            ids = [1, *ids]
        tokens = [{"id": i, "piece": [195] if i == PART else chr(i)} for i in ids]
        return web.json_response({"tokens": tokens})

    async def completion(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(("/completion", body))
        forced = [int(i) for i in re.findall(r"<\[(\d+)\]>", body.get("grammar", ""))]
        bias = {int(token): value for token, value in body.get("logit_bias", [])}
        probs: list[dict[str, Any]] = []
        if body.get("post_sampling_probs"):
            weights = {t: math.exp(logprob(t) + v - max(bias.values())) for t, v in bias.items()}
            drawn = max(weights, key=lambda t: weights[t])
            total = sum(weights.values())
            top = [entry(t, "prob", w / total) for t, w in weights.items()]
            probs = [entry(drawn, "prob", weights[drawn] / total) | {"top_probs": top}]
            forced = [drawn]
        else:
            forced = forced or [max(bias, key=lambda t: bias[t])]
            if self.broken == "other token":
                forced = [token + 1 for token in forced]
            probs = [entry(t, "logprob", logprob(t)) for t in forced if t != PART]
            if self.broken == "zero":
                probs = [p | {"logprob": -3.4e38} for p in probs]
        answer = {
            "content": "".join(chr(t) for t in forced if t != PART),
            "tokens": forced,
            "stop_type": "limit",
            "tokens_predicted": len(forced),
            "tokens_evaluated": len(body["prompt"]),
            "completion_probabilities": probs,
        }
        return web.json_response(answer)
