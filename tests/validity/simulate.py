"""How often is the gate wrong? The whole gate on paired data whose truth is known.

    .venv/bin/python tests/validity/simulate.py [--trials 10000] [--seed 6] [--quick] [--to FILE]
    .venv/bin/python tests/validity/simulate.py --looks [--trials 10000] [--seed 6] [--to FILE]

In each cell of `validity.cells` a variant that loses exactly the margin, and one that loses
nothing, are drawn again and again and put before `workbench.gate.decide`: all of it but the pairing
of rows, in whose place the drawn pairs are handed over, and the bootstrap and permutation that are
shown beside a loss and decide nothing (`tests/test_validity.py` shows that rows give the same
checks). The rules other tools use see the same pairs. The table goes to stdout and,
without --quick, between the marks of `notebooks/policies/VALIDITY.md`. With --looks it is the table
of `validity.looks`: the same check decided again and again, or of several variants.
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from builders import evidence, variant  # noqa: E402
from validity import looks  # noqa: E402
from validity.cells import CELLS, QUICK, Cell  # noqa: E402
from validity.rules import RULES  # noqa: E402
from validity.worlds import Drawn  # noqa: E402

from workbench import checks, quality_figures  # noqa: E402
from workbench.gate import decide  # noqa: E402
from workbench.paired_bootstrap import Bootstrap  # noqa: E402
from workbench.permutation import SignFlip  # noqa: E402
from workbench.records import Check, VariantVerdict  # noqa: E402
from workbench.spec import Policy, QualityCheck  # noqa: E402

DOCS = ROOT / "notebooks" / "policies" / "VALIDITY.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
LOOKS = "<!-- looks: begin -->", "<!-- looks: end -->"
#: The promise: a damage equal to the margin is let through no more often, 0..1.
LEVEL = 0.05
#: Share of intervals, each side for itself, that must hold the true loss.
COVERAGE = 0.94
#: What stands beside a loss and is not simulated.
_SHOWN = Bootstrap(0.0, None, None, "not simulated")
_FLIPPED = SignFlip(1.0, 1.0, "not simulated")
#: Standard errors within which a share is not told from its target.
_SURE = 3.0


def policy(suites: Sequence[str], margin: float, confidence: float = 0.95) -> Policy:
    """A gate of quality alone. One pair is enough for it: the statistic is tested, not `min_n`."""
    return Policy(
        schema_="workbench.policy/1",
        name="validity",
        quality=tuple(
            QualityCheck(suite=s, margin=margin, min_n=1, confidence=confidence) for s in suites
        ),
    )


@contextmanager
def gatekeeper(suites: int, margin: float, confidence: float = 0.95) -> Iterator[Any]:
    """A function from the pairs of every suite to the verdict of the gate."""
    names = [f"suite{k}" for k in range(suites)]
    records = evidence({s: () for s in names}, variant("fp8", {s: () for s in names}))
    asked = policy(names, margin, confidence)
    pairs: dict[str, Drawn] = {}

    def judge(drawn: Sequence[Drawn]) -> VariantVerdict:
        pairs.update(zip(names, drawn, strict=True))
        return decide(asked, records, policy_digest="", id_="validity").variants[0]

    with (
        mock.patch.object(checks, "pair", lambda _records, _variant, suite: pairs[suite]),
        mock.patch.object(checks, "bootstrap", lambda *_: _SHOWN),
        mock.patch.object(quality_figures, "sign_flip", lambda *_: _FLIPPED),
    ):
        yield judge


def chance(target: float, trials: int) -> float:
    """How far from its target a share must be before it is called missed: less could be chance."""
    return _SURE * math.sqrt(target * (1 - target) / trials)


@dataclass
class Tally:
    """What became of the trials of one cell, with one damage."""

    trials: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    intervals: int = 0
    above: int = 0  # the true loss is within the upper limit
    below: int = 0  # ... and not under the lower one

    def share(self, verdict: str) -> float:
        return self.verdicts.get(verdict, 0) / self.trials

    def error(self, verdict: str) -> float:
        """Monte-Carlo standard error of a share."""
        share = self.share(verdict)
        return math.sqrt(max(share * (1 - share), 1 / self.trials) / self.trials)

    def let(self, rule: str) -> float:
        return self.others[rule] / self.trials

    @property
    def coverage(self) -> float:
        return min(self.above, self.below) / self.intervals


@dataclass(frozen=True)
class Outcome:
    """One cell: at damage equal to the margin, and undamaged."""

    cell: Cell
    at_margin: Tally
    undamaged: Tally

    @property
    def coverage(self) -> float:
        return min(self.at_margin.coverage, self.undamaged.coverage)

    @property
    def misses(self) -> list[str]:
        """The targets that were missed, beyond what chance explains."""
        found = []
        damaged = self.at_margin
        if damaged.share("GO") > LEVEL + chance(LEVEL, damaged.trials):
            found.append("false GO")
        intervals = min(self.at_margin.intervals, self.undamaged.intervals)
        if self.coverage < COVERAGE - chance(COVERAGE, intervals):
            found.append("coverage")
        return found


def simulate(cell: Cell, trials: int, seed: int) -> Outcome:
    """Draw and judge a cell's variants; the same seed gives the same counts."""
    # A cell's draws do not depend on which other cells there are.
    own = zlib.crc32(repr(cell).encode())
    damaged = cell.suites if cell.damaged is None else cell.damaged
    tallies = []
    with gatekeeper(cell.suites, cell.margin) as judge:
        for number, hurt in enumerate((damaged, 0)):
            rng = np.random.default_rng([seed, own, number])
            losses = [cell.margin if k < hurt else 0.0 for k in range(cell.suites)]
            tally = Tally(others=dict.fromkeys(RULES, 0))
            seen: dict[Any, VariantVerdict] = {}
            for _ in range(trials):
                pairs = [cell.world.draw(rng, cell.n, loss) for loss in losses]
                _count(tally, losses, pairs, _once(judge, pairs, seen))
            tallies.append(tally)
    return Outcome(cell, *tallies)


def _once(judge: Any, pairs: list[Drawn], seen: dict[Any, VariantVerdict]) -> VariantVerdict:
    """The verdict, not computed again for scores that were drawn before."""
    if len(pairs) > 1 or any(pairs[0].labels):
        return judge(pairs)  # type: ignore[no-any-return]
    key = (tuple(pairs[0].before), tuple(pairs[0].after))
    if len(pairs[0].before) > 300:  # hardly ever drawn twice
        return judge(pairs)  # type: ignore[no-any-return]
    if key not in seen:
        seen[key] = judge(pairs)
    return seen[key]


def _count(
    tally: Tally, losses: Sequence[float], pairs: Sequence[Drawn], judged: VariantVerdict
) -> None:
    tally.trials += 1
    tally.verdicts[judged.verdict] = tally.verdicts.get(judged.verdict, 0) + 1
    for name, rule in RULES.items():
        tally.others[name] += all(rule(p.before, p.after) for p in pairs)
    quality: list[Check] = [c for c in judged.checks if c.kind == "quality"]
    for loss, check in zip(losses, quality, strict=True):
        assert check.low is not None and check.high is not None
        tally.intervals += 1
        tally.above += loss <= check.high + 1e-12
        tally.below += loss >= check.low - 1e-12


# --------------------------------------------------------------------------- the table

HEAD = (
    *("pairs", "n", "margin"),
    *("**false GO: this gate**", "recovery", "drop", "z-test"),
    *("coverage", "**undamaged GO: this gate**", "INCONCLUSIVE", "recovery", "drop", "z-test"),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown, all figures in percent; what misses its target is marked."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" + "|---:" * (len(HEAD) - 1) + "|"]
    lines += ["| " + " | ".join(_line(outcome)) + " |" for outcome in outcomes]
    return "\n".join(lines) + "\n"


def _line(outcome: Outcome) -> tuple[str, ...]:
    cell, bad, good = outcome.cell, outcome.at_margin, outcome.undamaged
    missed = {what: " **missed**" for what in outcome.misses}
    return (
        cell.says,
        f"{cell.n:,}",
        f"{100 * cell.margin:g}",
        f"**{100 * bad.share('GO'):.1f}** ± {100 * bad.error('GO'):.1f}"
        + missed.get("false GO", ""),
        *(_percent(bad.let(rule)) for rule in RULES),
        f"{100 * outcome.coverage:.1f}{missed.get('coverage', '')}",
        f"**{_percent(good.share('GO'))}**",
        _percent(good.share("INCONCLUSIVE")),
        *(_percent(good.let(rule)) for rule in RULES),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def summary(outcomes: Sequence[Outcome], trials: int, seed: int) -> str:
    """What was run, and which targets were missed."""
    missed: Mapping[str, int] = {
        what: sum(what in o.misses for o in outcomes) for what in ("false GO", "coverage")
    }
    flagged = 100 * (LEVEL + chance(LEVEL, trials)), 100 * (COVERAGE - chance(COVERAGE, trials))
    return (
        f"{len(outcomes)} cells, {trials:,} variants at the margin and as many undamaged ones in "
        f"each, seed {seed}. False GO above {100 * LEVEL:g} % by more than {_SURE:g} standard "
        f"errors in {missed['false GO']} of them, coverage below {100 * COVERAGE:g} % by more than "
        f"{_SURE:g} in {missed['coverage']}. With so many trials that means: above "
        f"{flagged[0]:.1f} % and, of one suite, below {flagged[1]:.1f} %; a cell between that and "
        "its target is not told from it. Known and in none of these cells: graded scores made to "
        "mislead, where 7.7 % pass (above).\n"
    )


def write(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the text between the marks of a file."""
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def looked(trials: int, seed: int) -> str:
    """The table of `validity.looks`."""
    return "\n".join(looks.lines(trials, seed, partial(gatekeeper, 1, looks.MARGIN))) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000, help="variants a cell and damage")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="few cells, the documentation stays")
    parser.add_argument("--looks", action="store_true", help="the table of several looks instead")
    parser.add_argument("--to", type=Path, help=f"default is {DOCS.relative_to(ROOT)}")
    args = parser.parse_args()
    if args.to and not args.to.is_file():
        parser.error(f"--to {args.to}: no such file; the table is put into one that has its marks")
    if args.looks:
        text = looked(args.trials, args.seed)
        print(text)
        return write(args.to or DOCS, text, *LOOKS)
    outcomes = []
    for cell in QUICK if args.quick else CELLS:
        outcomes.append(simulate(cell, args.trials, args.seed))
        print(_line(outcomes[-1]), file=sys.stderr, flush=True)
    text = f"{summary(outcomes, args.trials, args.seed)}\n{table(outcomes)}"
    print(text)
    if to := args.to or (None if args.quick else DOCS):
        write(to, text)


if __name__ == "__main__":
    main()
