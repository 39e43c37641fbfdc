"""Waivers: an exception by name and for a while, in the open, and never a PASS."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import artifact, edit, evidence, rows, table, variant

from workbench.artifact_records import ArtifactCheck
from workbench.display import verdict_table
from workbench.errors import RecipeError
from workbench.evidence import Evidence
from workbench.gate import decide
from workbench.recipe import Loaded, digest_of, dump_lock, load_lock, load_recipe, load_spec
from workbench.records import EXIT_CODES, Gate, VariantVerdict
from workbench.report import record_html
from workbench.report.html import render
from workbench.spec import Policy
from workbench.store import dump_record
from workbench.waivers import Waiver
from workbench.waiving import beforehand

TODAY = datetime.date(2026, 11, 30)


def waiver(**changes: Any) -> dict[str, Any]:
    values = {
        "check": "bad",
        "variant": "fp8",
        "owner": "release owner",
        "reason": "the suite's targets are being mended",
        "expires": TODAY,
    }
    return values | changes


def policy(*waivers: dict[str, Any], suites: tuple[str, ...] = ("bad", "good")) -> Policy:
    return Policy.model_validate(
        {
            "schema": "workbench.policy/1",
            "name": "test",
            "quality": [{"suite": s, "margin": 0.1} for s in suites],
            "waivers": list(waivers),
        }
    )


def found(**others: tuple[list[float], list[float]]) -> Evidence:
    """Variant fp8 lost half of suite `bad` and nothing of suite `good`."""
    tables = {"bad": table(30, 40, 0, 10), "good": table(62, 0, 0, 18), **others}
    return evidence(
        {suite: before for suite, (before, _) in tables.items()},
        variant("fp8", {suite: rows(after, suite=suite) for suite, (_, after) in tables.items()}),
    )


def gated(of: Policy, on: datetime.date | None = TODAY, of_what: Evidence | None = None) -> Gate:
    return decide(of, of_what or found(), policy_digest="p", id_="g", on=on)


def only(gate: Gate) -> VariantVerdict:
    (verdict,) = gate.variants
    return verdict


def status(verdict: VariantVerdict, name: str) -> tuple[str, bool]:
    (check,) = (c for c in verdict.checks if c.name == name)
    return check.status, check.waiver is not None


def test_a_waived_fail_stays_a_fail_and_the_verdict_says_waiver() -> None:
    gate = gated(policy(waiver()))
    verdict = only(gate)
    assert (gate.verdict, verdict.verdict) == ("GO WITH WAIVER", "GO WITH WAIVER")
    assert status(verdict, "bad") == ("FAIL", True)
    assert status(verdict, "good") == ("PASS", False)
    assert verdict.reason == (
        "1 of 3 gated checks fails and is waived: bad (lost 50.0 points, 10.0 accepted; waived by "
        "release owner until 2026-11-30: the suite's targets are being mended); the others pass."
    )
    assert gate.date == "2026-11-30" and gate.warnings == ()
    assert EXIT_CODES[gate.verdict] == 0


def test_without_the_waiver_it_is_no_go() -> None:
    gate = gated(policy())
    assert only(gate).verdict == "NO-GO" and gate.date == ""


def test_the_day_after_it_expires_it_does_not_count_and_that_is_said() -> None:
    gate = gated(policy(waiver()), TODAY + datetime.timedelta(1))
    assert only(gate).verdict == "NO-GO"
    assert status(only(gate), "bad") == ("FAIL", False)
    assert gate.warnings == (
        "the waiver of 'bad' for fp8 (release owner) expired on 2026-11-30 and does not count",
    )


def test_without_a_day_no_waiver_counts() -> None:
    gate = gated(policy(waiver()), None)
    assert only(gate).verdict == "NO-GO"
    assert "asked for without a day" in gate.warnings[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"check": "bda"}, "names no check: did you mean 'bad'? checks: artifact, bad, good"),
        ({"check": "all"}, "names no check"),
        ({"check": "*"}, "names no check"),
        ({"variant": "fp9"}, "names no variant of the run: did you mean 'fp8'? variants: fp8"),
    ],
)
def test_a_waiver_that_names_nothing_of_the_run_is_said(
    changes: dict[str, Any], words: str
) -> None:
    gate = gated(policy(waiver(**changes)))
    assert only(gate).verdict == "NO-GO"
    assert words in gate.warnings[-1]


def test_every_variant_is_waived_by_all_alone() -> None:
    bad, good = table(30, 40, 0, 10), table(62, 0, 0, 18)
    sides = {"bad": rows(bad[1], suite="bad"), "good": rows(good[1], suite="good")}
    of = {"bad": bad[0], "good": good[0]}
    two = evidence(of, variant("fp8", sides), variant("w4", sides))
    named = gated(policy(waiver()), of_what=two)
    assert [v.verdict for v in named.variants] == ["GO WITH WAIVER", "NO-GO"]
    assert named.verdict == "NO-GO"
    every = gated(policy(waiver(variant="all")), of_what=two)
    assert [v.verdict for v in every.variants] == ["GO WITH WAIVER"] * 2
    # A variant of that name: then it is the one that is meant.
    called = evidence(of, variant("fp8", sides), variant("all", sides))
    one = gated(policy(waiver(variant="all")), of_what=called)
    assert [v.verdict for v in one.variants] == ["NO-GO", "GO WITH WAIVER"]


def test_with_every_gated_check_waived_nothing_is_shown() -> None:
    gate = gated(policy(waiver(variant="all"), suites=("bad",)))
    assert only(gate).verdict == "NO-GO"
    assert "with all of them waived nothing is shown" in only(gate).reason


def test_where_the_one_quality_check_is_waived_the_verdict_says_that_none_passes() -> None:
    of = policy(waiver(), suites=("bad",))
    sized = Policy.model_validate(
        {**of.model_dump(by_alias=True), "size": [{"max_ratio": 0.9, "metric": "weight_bytes"}]}
    )
    verdict = only(gated(sized))
    assert verdict.verdict == "GO WITH WAIVER"
    assert verdict.reason.endswith("; the others pass, and no quality check does.")


def test_one_fail_that_is_not_waived_is_no_go() -> None:
    gate = gated(
        policy(waiver(), suites=("bad", "worse", "good")), of_what=found(worse=table(10, 60, 0, 10))
    )
    assert only(gate).verdict == "NO-GO"
    assert only(gate).reason.startswith("2 of 4 gated checks fail: bad (lost 50.0 points")


def test_what_is_not_settled_stays_so_beside_a_waived_fail() -> None:
    of = found(few=table(20, 0, 0, 5))
    gate = gated(policy(waiver(), suites=("bad", "few", "good")), of_what=of)
    assert only(gate).verdict == "INCONCLUSIVE"
    assert "1 fails and is waived: bad" in only(gate).reason


def _unanswered(of: Evidence) -> Evidence:
    return edit(of, rows={**of.variants[0].rows, "bad": ()})


def _other_conditions(of: Evidence) -> Evidence:
    asked = of.variants[0].evaluation
    assert asked
    serving = asked.serving.model_copy(update={"engine_version": "0.33.0"})
    return edit(of, evaluation=asked.model_copy(update={"serving": serving}))


@pytest.mark.parametrize(
    ("spoil", "what"), [(_unanswered, "MISSING"), (_other_conditions, "NOT COMPARABLE")]
)
def test_only_a_fail_can_be_waived(spoil: Any, what: str) -> None:
    gate = gated(policy(waiver()), of_what=spoil(found()))
    assert only(gate).verdict == "INCONCLUSIVE"
    assert status(only(gate), "bad") == (what, False)
    assert (
        f"does not count for fp8: it is {what}, and only a FAIL can be waived"
        in (gate.warnings[-1])
    )


def test_too_few_samples_cannot_be_waived() -> None:
    of = found(few=table(20, 0, 0, 5))
    gate = gated(policy(waiver(check="few"), suites=("few", "good")), of_what=of)
    assert only(gate).verdict == "INCONCLUSIVE"
    assert "it is INCONCLUSIVE, and only a FAIL can be waived" in gate.warnings[-1]


def test_broken_files_cannot_be_waived() -> None:
    of = found()
    made = of.variants[0].manifest
    assert made
    broken = artifact(ArtifactCheck(name="values", status="FAIL", sentence="A scale is NaN."))
    of = edit(of, manifest=made.model_copy(update={"artifact": broken}))
    gate = gated(policy(waiver(check="artifact"), suites=("good",)), of_what=of)
    assert only(gate).verdict == "NO-GO"
    assert status(only(gate), "artifact") == ("FAIL", False)
    assert "what the produced files are cannot be waived" in gate.warnings[-1]


def test_a_name_of_two_checks_waives_neither() -> None:
    # A suite that is called as the check of the weights is.
    of = found(weight_bytes=table(30, 40, 0, 10))
    two = policy(waiver(check="weight_bytes"), suites=("weight_bytes", "good"))
    two = Policy.model_validate(
        {**two.model_dump(by_alias=True), "size": [{"max_ratio": 0.5, "metric": "weight_bytes"}]}
    )
    gate = gated(two, of_what=of)
    assert only(gate).verdict == "NO-GO"
    assert "more than one check is called so" in gate.warnings[-1]


def test_an_unfinished_variant_is_not_released_by_a_waiver() -> None:
    gate = gated(policy(waiver()), of_what=replace(found(), unfinished=("profile:fp8",)))
    assert only(gate).verdict == "INCONCLUSIVE"
    assert "the run is not finished (profile:fp8 still to do)" in only(gate).reason


def test_the_same_day_gives_the_same_bytes_and_another_day_says_so() -> None:
    of = policy(waiver(expires=datetime.date(2027, 1, 1)))
    assert dump_record(gated(of)) == dump_record(gated(of))
    later = gated(of, TODAY + datetime.timedelta(1))
    assert later.date == "2026-12-01" and later.verdict == "GO WITH WAIVER"


def test_it_is_read_back_and_is_shown_wherever_the_verdict_is() -> None:
    gate = gated(policy(waiver(reason="<b>see</b> [red]the ticket")))
    assert Gate.model_validate_json(dump_record(gate)) == gate
    page = render(gate, found())
    assert "GO WITH WAIVER - Release verdict" in page
    assert "may ship, a failed check is waived: <b>fp8</b>" in page
    assert (
        "<b>Waived</b> by release owner until 2026-11-30: &lt;b&gt;see&lt;/b&gt; [red]the ticket"
        in page
    )
    assert "Waivers are those in force on 2026-11-30." in page
    card = record_html(gate)
    assert "GO WITH WAIVER" in card and "those in force on 2026-11-30" in card
    assert "It is waived by release owner until 2026-11-30" in card
    assert [c.header for c in verdict_table(gate).columns][3] == "verdict"
    assert "GO WITH WAIVER" in [str(cell) for cell in verdict_table(gate).columns[3].cells]


# --------------------------------------------------------------------------- what is written


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("expires: soon", "is no day"),
        ("expires: 2026-02-30", "2026-02-30 is no day: day is out of range for month"),
        ("expires: '2026-02-30'", "'2026-02-30' is no day"),
        ("expires: '2026-W53'", "'2026-W53' is no day"),
        ("expires: '20261231'", "'20261231' is no day"),
        ("expires: 2026-12-31T10:00:00", "without a time"),
        ("owner: ' '", "nothing is written there"),
        ('reason: "a\\nb"', "what no line can show"),
        ('reason: "\\u001b[2J"', "what no line can show"),
        ("until: 2026-12-31", "unknown key"),
    ],
)
def test_a_waiver_that_is_none_is_refused(tmp_path: Path, line: str, words: str) -> None:
    key = line.partition(":")[0]
    lines = {
        "check": "check: bad",
        "variant": "variant: fp8",
        "owner": "owner: o",
        "reason": "reason: r",
        "expires": "expires: 2026-12-31",
    }
    lines[key] = line
    body = "\n".join(f"    {text}" for text in lines.values()).replace("    ", "  - ", 1)
    path = tmp_path / "policy.yaml"
    path.write_text(f"schema: workbench.policy/1\nname: p\nwaivers:\n{body}\n")
    with pytest.raises(RecipeError, match=words) as caught:
        load_spec(path, Policy)
    assert caught.value.where == f"{path}:{4 + [*lines].index(key)}"
    if key == "expires":
        assert "2026-12-31" in caught.value.fix


@pytest.mark.parametrize("key", ["check", "variant", "owner", "reason", "expires"])
def test_nothing_of_a_waiver_may_be_left_out(key: str) -> None:
    values = waiver()
    del values[key]
    with pytest.raises(ValueError, match="Field required"):
        Waiver.model_validate(values)


def test_a_lock_keeps_waivers_and_no_digest_of_a_policy_without_them_changed(
    project: Path,
) -> None:
    loaded = load_recipe(project / "recipe.yaml")
    # As it was before policies could hold waivers or an objective.
    assert digest_of(loaded.policy) == (
        "a4dd26531443cbe850d649e82bd2b730bce59c78f6ee1c340665756345ead8a4"
    )
    with_one = Loaded(
        loaded.recipe,
        loaded.policy.model_copy(update={"waivers": policy(waiver()).waivers}),
        loaded.source,
        loaded.project,
        loaded.model_path,
    )
    assert with_one.digest != loaded.digest
    lock = project / "recipe.lock.yaml"
    lock.write_bytes(dump_lock(with_one))
    assert load_lock(lock) == with_one
    assert load_lock(lock).digest == with_one.digest


def test_what_is_known_beforehand_is_said_beforehand() -> None:
    of = policy(
        waiver(expires=datetime.date(2026, 1, 1)), waiver(variant="fp9"), waiver(variant="all")
    )
    assert beforehand(of, ["fp8"], TODAY) == [
        "policy: the waiver of 'bad' for fp8 expired on 2026-01-01 and does not count",
        "policy: the waiver of 'bad' for fp9 names no variant of the run: did you mean 'fp8'? "
        "variants: fp8",
    ]
