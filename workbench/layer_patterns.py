r"""Patterns of a recipe's `ignore`, tried on the model's own names with an end.

They are Python's (`re`), as the quantizers read them: look-around is usual there, and RE2 has none.
Whether such a pattern backtracks for ever cannot be read off it: ``(\w+\.?)+!`` does and
``(.*\.)?mlp`` does not. The names it will meet are known, though, so it is tried on them, in a
process with a limit on its computing time, which no load on the machine uses up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence

from workbench.errors import RecipeError
from workbench.variants import AnyVariant
from workbench.words import shown

#: Seconds of computing for all patterns of a list; a hundred thousand names take a tenth of one.
SECONDS = 3

_TRY = """
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
patterns, names = json.load(sys.stdin)
for number, pattern in enumerate(patterns):
    print(number, flush=True)
    found = re.compile(pattern)
    for name in names:
        found.match(name)
print("end", flush=True)
"""


def refuse_endless(variant: AnyVariant, tensors: Iterable[str]) -> None:
    """Refuse, before anything matches by it, a pattern of `ignore` that comes to no end.

    Raises:
        RecipeError: with the pattern.
    """
    entry = endless(getattr(variant, "ignore", ()), tensors)
    if entry is not None:
        raise RecipeError(
            f"{shown(entry)} of 'ignore' is not done with the names of this model's layers after "
            f"{SECONDS} s of computing",
            where=f"variants: {variant.name}: ignore",
            fix="a repeat inside a repeat tries every way to divide a name: repeat once, as in "
            "'re:.*mlp[.].*_proj'",
        )


def endless(ignore: Iterable[str], tensors: Iterable[str], seconds: int = SECONDS) -> str | None:
    """The first ``re:`` entry that is not done with a model's names in time, or None.

    Args:
        ignore: names and ``re:`` patterns that compile.
        tensors: names of the model's tensors; modules are all that stands before a dot of one.
        seconds: of computing, whole.
    """
    patterns = [entry for entry in ignore if entry.startswith("re:")]
    if not patterns:
        return None
    asked = json.dumps([[p.removeprefix("re:") for p in patterns], modules(tensors)])
    command = [sys.executable, "-I", "-c", _TRY, str(seconds)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    said = done.stdout.split()
    if said[-1:] == ["end"]:
        return None
    return patterns[int(said[-1])] if said else patterns[0]


def modules(tensors: Iterable[str]) -> Sequence[str]:
    """Names of a model's modules, the output layer among them, in order."""
    found = {"lm_head"}
    for name in tensors:
        parts = name.split(".")
        found |= {".".join(parts[:end]) for end in range(1, len(parts))}
    return sorted(found)
