"""Regressed samples as a suite of their own, so that they are asked of every release after this.

A suite has one spec, so regressions of several suites become several: `NAME` where they come from
one, `NAME-<suite>` otherwise. Spec, samples with their ids, and the files the scorer needs are
copied whole; what is written has passed `load_suite`. A folder that exists is never touched.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml
from pydantic import TypeAdapter, ValidationError

from workbench.base import Name
from workbench.checks import points
from workbench.collect import collect
from workbench.context import Context
from workbench.differences import Difference, compare, find_variant, suites_of
from workbench.errors import RecipeError, StoreError, SuiteError, did_you_mean
from workbench.evidence import Evidence, VariantEvidence
from workbench.items import fewest
from workbench.records import SuiteResult
from workbench.spec import QualityCheck
from workbench.suites import SAMPLES_FILE, SPEC_FILE, Suite, load_suite

_CARD = "README.md"
#: Half of what the reference answered right may go before a check of such a suite fails: its
#: samples were chosen by one variant's failures, and another one fails on others.
_MARGIN = 0.5
#: Why such a suite is not gated like one that was made to judge by.
ADVICE = (
    "a suite of nothing but failures says nothing about a model as a whole; "
    "gate it only with a wide margin"
)


@dataclass(frozen=True)
class Written:
    """One suite that was made: its folder, the suite its samples come from, and their number."""

    folder: Path
    suite: str
    samples: int

    @property
    def policy_line(self) -> str:
        """The check to put under `quality:` of the policy."""
        return _policy_line(self.folder.name, self.samples)

    @property
    def too_small(self) -> str:
        """That the check cannot be settled whatever a model answers; empty where it can."""
        return _too_small(self.samples)


@dataclass(frozen=True)
class Export:
    """What was made, of which suites nothing was made and why, and suite -> samples unscored."""

    written: tuple[Written, ...]
    skipped: Mapping[str, str]
    unscored: Mapping[str, int]


def export(context: Context, variant: str, name: str, suite: str = "") -> Export:
    """Write the samples a variant answers worse than its reference as suites of the project.

    Args:
        context: an opened run.
        variant: one of its variants.
        name: of the new suite; the beginning of its name where there are several.
        suite: of one suite alone; empty is all.

    Raises:
        RecipeError: the run has no such variant or suite.
        StoreError: the name is none, or a folder of that name exists; records are damaged.
        SuiteError: a suite is no longer the one that was asked. Nothing is written then.
    """
    _check_name(name)
    evidence = collect(context)
    chosen = find_variant(evidence, variant)
    known = suites_of(evidence, chosen)
    if suite and suite not in known:
        raise RecipeError(
            f"variant '{chosen.variant}' was not asked a suite '{suite}'",
            where=f"run '{evidence.run}'",
            fix=did_you_mean(suite, known) + f"suites: {', '.join(known) or 'none yet'}",
        )
    found = compare(evidence, chosen, suite=suite, only="regressed")
    skipped = dict(found.refused)
    by_suite: dict[str, list[Difference]] = {}
    for item in found.items:
        by_suite.setdefault(item.suite, []).append(item)
    for one in [s for s in by_suite if _result(chosen, s).source != "suite"]:
        del by_suite[one]
        skipped[one] = "its samples are a public benchmark's and no suite of this project"
    root = context.loaded.project / "eval_suites"
    targets = {s: root / (name if len(by_suite) == 1 else f"{name}-{s}") for s in by_suite}
    for target in targets.values():
        _check_name(target.name)
        if target.exists():
            raise StoreError(
                f"there is a suite or folder '{target.name}' already",
                where=str(target),
                fix="choose another name; what is there is not touched",
            )
    written = []
    work = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".partial", dir=root))
    try:
        for one, items in by_suite.items():
            asked = context.suites[one]
            if asked.digest != _result(chosen, one).suite_digest:
                raise SuiteError(
                    f"suite '{one}' is no longer the one that was asked",
                    where=str(asked.path),
                    fix=f"workbench rescore {evidence.run}, or run it again, and then export",
                )
            card = _card(evidence, chosen, one, items, targets[one].name)
            about = f"that {chosen.variant} of run {evidence.run} got wrong."
            _write(work / targets[one].name, asked, items, card, about)
            load_suite(work / targets[one].name)
            written.append(Written(targets[one], one, len(items)))
        for made in written:  # only now, that all of them are good
            (work / made.folder.name).rename(made.folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    unscored = {count.suite: count.unscored for count in found.counts if count.unscored}
    return Export(tuple(written), skipped, unscored)


def _policy_line(name: str, samples: int) -> str:
    name = name if yaml.safe_load(name) == name else f"'{name}'"  # 1e3, or no
    return f"- {{suite: {name}, margin: {_MARGIN}, min_n: {samples}, tier: advisory}}"


def _too_small(samples: int) -> str:
    confidence = QualityCheck.model_fields["confidence"].default
    # Of a graded scorer it may be fewer, at other margins: at this one it is the same number.
    needed = fewest(_MARGIN, confidence)
    if samples >= needed:
        return ""
    return (
        f"{samples} sample{'s' * (samples != 1)} can never settle that check: at a margin of "
        f"{points(_MARGIN)} points it takes at least {needed}, so it stays INCONCLUSIVE"
    )


def _check_name(name: str) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise StoreError(
            f"'{name}' cannot be the name of a suite",
            where="NAME",
            fix="use letters, digits, '.', '_' and '-', at most 64 of them",
        ) from None


def _result(side: VariantEvidence, suite: str) -> SuiteResult:
    assert side.evaluation is not None
    return next(r for r in side.evaluation.suites if r.suite == suite)


def _write(folder: Path, suite: Suite, items: Sequence[Difference], card: str, about: str) -> None:
    folder.mkdir(parents=True)
    # As it was written, defaults left out; its samples are its own from now on.
    spec = suite.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec.pop("samples_of", None)
    text = yaml.safe_dump(
        {
            **spec,
            "name": folder.name,
            "description": f"{len(items)} sample{'s' * (len(items) != 1)} {about}",
            "tier": "advisory",
        },
        sort_keys=False,
        allow_unicode=True,
        width=100,
    )
    (folder / SPEC_FILE).write_text(text, "utf-8")
    ids = {item.id for item in items}
    lines = [
        json.dumps(sample.model_dump(mode="json", exclude_unset=True), ensure_ascii=False) + "\n"
        for sample in suite.samples
        if sample.id in ids
    ]
    (folder / SAMPLES_FILE).write_text("".join(lines), "utf-8")
    for name, content in suite.resources.items():
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts or name in (SPEC_FILE, SAMPLES_FILE, _CARD):
            raise SuiteError(
                f"suite '{suite.spec.name}' needs a file '{name}', which cannot be copied",
                where=str(suite.path),
                fix="keep the files a suite needs in its own folder, beside suite.yaml",
            )
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        (folder / inside).write_text(content, "utf-8")
    (folder / _CARD).write_text(card, "utf-8")


def _card(
    evidence: Evidence,
    variant: VariantEvidence,
    suite: str,
    items: Sequence[Difference],
    name: str,
) -> str:
    """Where the samples come from. Ids and figures alone: what a model wrote stays in its rows."""
    reference = evidence.reference(variant)
    assert variant.evaluation is not None and reference.evaluation is not None
    ours, theirs = _result(variant, suite), _result(reference, suite)
    weights = variant.manifest.weights_digest if variant.manifest else "unknown"
    lines = [
        f"# Regressions of {variant.variant} on {suite}",
        "",
        f"{len(items)} samples of `{suite}` that variant `{variant.variant}` "
        f"({variant.method}) of run `{evidence.run}` answered worse than `{reference.variant}`. "
        "Made by `workbench suite from-regressions`: a copy but for `description` and `tier`.",
        "",
        "A choice of what went wrong once: a variant is expected to look better on it than the one "
        f"it was chosen by. {ADVICE[0].upper()}{ADVICE[1:]}. In the policy, under `quality:`",
        "",
        "```yaml",
        _policy_line(name, len(items)),
        "```",
        "",
        *([f"{said[0].upper()}{said[1:]}.", ""] if (said := _too_small(len(items))) else []),
        "| what | digest |",
        "|---|---|",
        f"| suite as it was asked | `{ours.suite_digest}` |",
        f"| weights of `{variant.variant}` | `{weights}` |",
        f"| evaluation of `{variant.variant}` | `{variant.evaluation.id}` |",
        f"| its rows | `{ours.rows_digest}` |",
        f"| evaluation of `{reference.variant}` | `{reference.evaluation.id}` |",
        f"| its rows | `{theirs.rows_digest}` |",
        "",
        f"| sample | score of `{reference.variant}` | score of `{variant.variant}` |",
        "|---|---|---|",
        *(
            f"| `{_cell(i.id)}` | {i.baseline.score:.4g} | {i.variant.score:.4g} |"
            for i in sorted(items, key=lambda item: item.id)
        ),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A sample's id in a cell of a table: nothing in it may end the cell or the code."""
    return "".join(c if c.isprintable() and c not in "`|\\" else "?" for c in text)
