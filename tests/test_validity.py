"""The gate keeps its promise on data whose truth is known, and the proof would notice if not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import evidence, rows, variant
from validity import looks, rules
from validity.cells import CELLS, QUICK, Cell
from validity.simulate import (
    BEGIN,
    DOCS,
    END,
    HEAD,
    LEVEL,
    LOOKS,
    Outcome,
    gatekeeper,
    policy,
    simulate,
    summary,
    table,
    write,
)
from validity.worlds import Drawn, Halves, Moving, RightWrong, Skewed, World

from workbench import gate, quality_figures, stats
from workbench.gate import decide
from workbench.records import SampleRow, VariantVerdict
from workbench.stats import Interval

SEED, TRIALS = 6, 400
#: Standard errors no cell of an honest gate exceeds: one in 30,000 does, were the seed free.
FAR = 4.0
WORLDS: tuple[World, ...] = (
    RightWrong(),
    RightWrong(discordance=0.0),
    RightWrong(cluster=5, together=0.5),
    Moving(),
    Moving(cluster=5, shared=0.1),
    Halves(),
    Skewed(),
)


def outcomes(cells: Sequence[Cell] = QUICK) -> list[Outcome]:
    return [simulate(cell, TRIALS, SEED) for cell in cells]


def beyond(share: float, trials: int) -> float:
    """How many standard errors a share of false GOs is above its level."""
    return (share - LEVEL) / float(np.sqrt(LEVEL * (1 - LEVEL) / trials))


# ------------------------------------------------------------------------------ the promise


def test_the_gate_keeps_its_level_its_coverage_and_passes_what_is_undamaged() -> None:
    found = outcomes()
    for one in found:
        assert beyond(one.at_margin.share("GO"), TRIALS) < FAR, one.cell
        assert one.coverage > 0.95 - FAR * np.sqrt(0.95 * 0.05 / TRIALS), one.cell
    passed = {one.cell: one.undamaged.share("GO") for one in found}
    assert passed[Cell(RightWrong(discordance=0.0), 100)] == 1
    assert passed[Cell(RightWrong(), 200)] > 0.35
    assert passed[Cell(RightWrong(), 88, margin=0.10)] > 0.7
    # Too few pairs to tell are no verdict, neither way.
    assert found[2].undamaged.share("INCONCLUSIVE") == 1


def test_what_other_tools_do_lets_the_same_damage_through() -> None:
    found = simulate(Cell(RightWrong(), 200), TRIALS, SEED).at_margin
    assert found.let("recovery") > 0.4
    assert found.let("z-test") > 0.9
    small = simulate(Cell(RightWrong(), 50), TRIALS, SEED)
    assert small.at_margin.let("drop") > 0.15  # and stops undamaged ones beside:
    assert small.undamaged.let("drop") < 0.7


def test_a_gate_of_nothing_says_go_elsewhere_and_never_here() -> None:
    pairs = evidence({"suite": [1.0] * 50}, variant("fp8", {"suite": rows([1.0] * 50)}))
    judged = decide(policy([], 0.04), pairs, policy_digest="", id_="x").variants[0]
    assert judged.verdict == "INCONCLUSIVE"


# ------------------------------------------------------------------------- it would notice


def _point(before: list[float], after: list[float], confidence: float) -> Interval:
    loss = (sum(before) - sum(after)) / len(before)
    return Interval(loss, loss, loss, confidence, "none")


def _missed() -> set[str]:
    """Of two cells that every test of the honest gate above keeps."""
    return {what for one in outcomes((QUICK[1], QUICK[3])) for what in one.misses}


def test_point_estimates_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _missed()
    monkeypatch.setattr(stats, "paired_interval", _point)
    assert _missed() == {"false GO", "coverage"}


def test_a_confidence_that_is_not_the_one_asked_for_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = stats.paired_interval

    def lax(before: list[float], after: list[float], confidence: float) -> Interval:
        return honest(before, after, 0.85)

    monkeypatch.setattr(stats, "paired_interval", lax)
    assert _missed() == {"false GO", "coverage"}


def test_a_gate_that_forgives_what_is_not_settled_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = gate._verdict

    def forgiving(found: tuple[object, ...]) -> tuple[str, str]:
        verdict, reason = honest(found)  # type: ignore[arg-type]
        return ("GO" if verdict == "INCONCLUSIVE" else verdict), reason

    monkeypatch.setattr(gate, "_verdict", forgiving)
    assert _missed() == {"false GO"}


def test_one_damaged_suite_of_several_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(RightWrong(), 100, margin=0.10, suites=3, damaged=1)
    assert not simulate(cell, TRIALS, SEED).misses
    honest = gate._verdict
    monkeypatch.setattr(gate, "_verdict", lambda found: honest(found[2:]))
    assert simulate(cell, TRIALS, SEED).misses == ["false GO"]


def test_clusters_that_are_taken_for_samples_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(RightWrong(cluster=10, together=1.0), 500, margin=0.10)
    assert cell in QUICK

    def alone(loss: Interval, differences: list[float], _: object) -> tuple[Interval, float]:
        return loss, stats.pair_variance(differences)

    monkeypatch.setattr(quality_figures, "clustered", alone)
    assert set(simulate(cell, TRIALS, SEED).misses) == {"false GO", "coverage"}


# ------------------------------------------------------------------- the same as with rows


def real_rows(drawn: Drawn, scores: list[float], suite: str) -> tuple[SampleRow, ...]:
    made = zip(rows(scores, suite=suite), drawn.clusters, strict=True)
    return tuple(row.model_copy(update={"cluster": cluster}) for row, cluster in made)


def by_rows(pairs: list[Drawn], margin: float) -> VariantVerdict:
    """The gate on evidence that has every row, paired by it."""
    before = {f"suite{k}": real_rows(p, p.before, f"suite{k}") for k, p in enumerate(pairs)}
    after = {f"suite{k}": real_rows(p, p.after, f"suite{k}") for k, p in enumerate(pairs)}
    found = evidence({}, variant("fp8", after))
    found = replace(found, baseline=variant("baseline", before, method="none"))
    judged = decide(policy(list(before), margin), found, policy_digest="", id_="validity")
    return judged.variants[0]


def decisive(judged: VariantVerdict) -> dict[str, Any]:
    """A verdict without what stands beside a loss and is not simulated."""
    found = judged.model_dump()
    for check in found["checks"]:
        for aside in ("bootstrap", "test"):
            check["details"].pop(aside, None)
    return found


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.says)
@pytest.mark.parametrize(("n", "suites", "damage"), [(20, 1, 0.04), (200, 2, 0.0), (100, 3, 0.3)])
def test_pairs_that_are_handed_over_are_judged_as_rows_are(
    world: World, n: int, suites: int, damage: float
) -> None:
    if damage == 0.3 and not isinstance(world, RightWrong):
        damage = 0.1
    rng = np.random.default_rng(1)
    pairs = [world.draw(rng, n, damage) for _ in range(suites)]
    with gatekeeper(suites, 0.04) as judge:
        assert decisive(judge(pairs)) == decisive(by_rows(pairs, 0.04))


def test_a_world_loses_what_it_is_told_to() -> None:
    rng = np.random.default_rng(2)
    for world in WORLDS:
        for damage in (0.0, 0.02, 0.1):
            drawn = world.draw(rng, 200_000, damage)
            differences = np.subtract(drawn.before, drawn.after)
            # Ten of a cluster that fare alike are the widest: four standard errors, and theirs.
            error = float(differences.std()) / np.sqrt(len(differences) / 5)
            assert abs(float(differences.mean()) - damage) <= 4 * error + 1e-12, world


def test_the_correlation_of_a_cluster_is_the_one_that_is_said() -> None:
    drawn = RightWrong(cluster=2, together=0.5).draw(np.random.default_rng(3), 100_000, 0.04)
    pairs = np.subtract(drawn.before, drawn.after).reshape(-1, 2)
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0.5, abs=0.03)
    assert drawn.cluster_count == 50_000


# --------------------------------------------------------------------------- rules, table


def test_the_rules_are_those_of_others() -> None:
    most = [1.0] * 80 + [0.0] * 20
    assert rules.recovery(most, [1.0] * 76 + [0.0] * 24)  # 0.95
    assert rules.recovery([1.0] * 1000, [1.0] * 946 + [0.0] * 54)  # 0.946, rounded
    assert not rules.recovery(most, [1.0] * 75 + [0.0] * 25)
    assert not rules.recovery([0.0], [0.0])
    assert rules.drop(most, [1.0] * 79 + [0.0] * 21)
    assert not rules.drop(most, [1.0] * 78 + [0.0] * 22)
    assert rules.same(most, [1.0] * 69 + [0.0] * 31)  # z 1.80
    assert not rules.same(most, [1.0] * 67 + [0.0] * 33)  # z 2.09
    assert rules.same([1.0] * 9, [1.0] * 9) and not rules.same([1.0] * 9, [0.0] * 9)


def test_the_same_seed_gives_the_same_counts_whatever_else_is_simulated() -> None:
    one, other = (simulate(QUICK[0], 50, 1) for _ in range(2))
    assert one == other
    assert simulate(QUICK[0], 50, 2) != one


def test_a_miss_is_marked_in_the_table_and_counted_above_it() -> None:
    good = simulate(Cell(RightWrong(), 50), 100, SEED)
    bad = replace(good, at_margin=replace(good.at_margin, verdicts={"GO": 30, "NO-GO": 70}))
    assert "missed" not in table([good])
    line = table([bad]).splitlines()[-1]
    assert "**30.0** ± 4.6 **missed**" in line and line.count("|") == len(HEAD) + 1
    said = summary([bad], 100, 6)
    assert "standard errors in 1 of them, coverage below 94 % by more than 3 in 0." in said
    # What a cell is called missed from, with so few trials, and the case that is known.
    assert "above 11.5 % and, of one suite, below 86.9 %" in said and "7.7 % pass" in said


def test_a_cell_is_called_missed_from_where_the_summary_says() -> None:
    good = simulate(Cell(RightWrong(), 50), 100, SEED)
    for passed, missed in ((11, []), (12, ["false GO"])):
        tally = replace(good.at_margin, verdicts={"GO": passed, "NO-GO": 100 - passed})
        assert replace(good, at_margin=tally).misses == missed
    for held, missed in ((87, []), (86, ["coverage"])):
        tally = replace(good.undamaged, above=held)
        assert replace(good, undamaged=tally).misses == missed


def test_the_command_writes_between_the_marks_of_the_documentation(tmp_path: Path) -> None:
    file = tmp_path / "doc.md"
    file.write_text(f"# Why\n{BEGIN}\nold\n{END}\nrest\n")
    write(file, "new\n")
    assert file.read_text() == f"# Why\n{BEGIN}\n\nnew\n\n{END}\nrest\n"


def test_the_documentation_has_every_cell_of_the_command() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert "tests/validity/simulate.py" in text
    generated = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line.split(" | ")[:3] for line in generated.splitlines() if line.startswith("| ")]
    wanted = [["| " + c.says, f"{c.n:,}", f"{100 * c.margin:g}"] for c in CELLS]
    assert lines == [["| " + HEAD[0], *HEAD[1:3]], *wanted]
    assert "| " + " | ".join(HEAD) + " |" in generated and "nothing gated" not in generated
    assert "missed**" not in generated
    none = simulate(QUICK[0], 1, SEED)
    assert not none.misses
    assert summary([none] * len(CELLS), 1000, SEED) in generated


# ------------------------------------------------------------------- looks, and variants


def passed(**way: Any) -> float:
    """Share let through at the margin; few enough trials for a test."""
    found = next(w for w in looks.WAYS if w == looks.Way(w.says, **way))
    return looks.share(found, 600, SEED, partial(gatekeeper, 1, looks.MARGIN))


def test_looking_again_breaks_the_level_and_what_is_recommended_keeps_it() -> None:
    error = float(np.sqrt(LEVEL * (1 - LEVEL) / 600))
    once, twice, often = passed(), passed(looks=2), passed(looks=4)
    assert once < LEVEL + 2 * error
    assert twice > LEVEL + error and often > LEVEL + 3 * error
    for kept in (
        passed(looks=2, fresh=True),
        passed(looks=2, confidence=0.975),
        passed(looks=4, confidence=0.9875),
        passed(variants=5, confidence=0.99),
    ):
        assert 0 < kept < LEVEL + 2 * error
    assert 0.12 < passed(variants=5) < 0.25


def test_the_documentation_has_every_way_to_look_again_and_the_readme_its_figures() -> None:
    text = DOCS.read_text(encoding="utf-8")
    generated = text.partition(LOOKS[0])[2].partition(LOOKS[1])[0]
    shares = {
        line.split(" | ")[0][2:]: line.split("**")[1]
        for line in generated.splitlines()
        if line.startswith("| ") and "**" in line
    }
    assert list(shares) == [way.says for way in looks.WAYS]
    readme = " ".join((DOCS.parents[2] / "README.md").read_text("utf-8").split())
    ways = {(way.looks, way.confidence, way.variants, way.fresh): way.says for way in looks.WAYS}
    for way in ((2, 0.95, 1, False), (4, 0.95, 1, False), (1, 0.95, 5, False)):
        assert f"{shares[ways[way]]} %" in readme, way
