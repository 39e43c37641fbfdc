"""What no request can be faster than: its tokens read the weights, one after the other. Pure.

    seconds >= output tokens x bytes read for each / (memory bandwidth x cards)

That is the memory side of the roofline model (Williams, Waterman and Patterson, 2009) for a batch
of one. A bound, not an estimate: keys and values, the prompt's arithmetic and all waiting come on
top, and whatever may not be read for a token is left out.
"""

from __future__ import annotations

import re
from dataclasses import replace

from workbench.capacity_formats import form
from workbench.gpus import entry_of
from workbench.weights import Model

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
#: Towers and heads that a token of an answer does not pass, and tables of which it takes a row.
_UNREAD = re.compile(r"vision|visual|audio|mtp|per_layer")


def token_bytes(model: Model, name: str) -> int:
    """The fewest bytes of weights that one token of an answer reads, on all cards together.

    Args:
        model: the checkpoint.
        name: its format, as `capacity_formats.form` takes it.
    """
    read = {
        tensor: one
        for tensor, one in model.tensors.items()
        if not _UNREAD.search(tensor) and (model.tied or "embed" not in tensor)
    }
    stored = model.stored_bytes
    if model.gguf:
        # Whether its output layer is a second table the file's sizes do not say.
        vocabulary, hidden = model.config.get("vocab_size"), model.config.get("hidden_size")
        stored = max(0, stored - 2 * (vocabulary or 0) * (hidden or 0))
    else:
        stored = sum(one.bytes for one in read.values())
    found = form(replace(model, tensors=read, stored_bytes=stored), name)
    total = 0 if isinstance(found, str) else found.weight_bytes
    experts = next((n for key in _EXPERTS if isinstance(n := model.config.get(key), int)), 0)
    used = model.config.get("num_experts_per_tok")
    # Of all weights, not of the experts' alone: that is fewer, so still a bound.
    return total * (used if isinstance(used, int) else 1) // experts if experts > 0 else total


def least_seconds(gpu: str, read: int, tokens: int, cards: int) -> float:
    """Seconds that an answer takes at least; 0 on a GPU whose bandwidth is not known.

    Args:
        gpu: as its driver names it.
        read: bytes for each token, of `token_bytes`.
        tokens: of the answer.
        cards: of one server, each reading its part at the same time.
    """
    entry = entry_of(gpu)
    return tokens * read / (entry.bandwidth * 1e9 * cards) if entry else 0.0
