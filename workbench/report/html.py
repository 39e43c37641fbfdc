"""The decision document: one HTML file, no network, no script.

It is meant to be attached to a release and read by someone who was not there, in this order: the
verdict, one reason per variant, the picture of every loss against its margin, the checks, the
answers that got worse, speed and memory, size, how it was measured, and where it all came from.
What a model wrote is untrusted text: escaped, cut, and with hidden characters spelled out. Pure:
the same records give the same bytes.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from workbench import __version__, noise, plots
from workbench.base import BASELINE
from workbench.checks import samples_of
from workbench.differences import Difference, Questions, compare
from workbench.evidence import Evidence, Paired, VariantEvidence, pair
from workbench.load_figures import profiles_of, wide_rows
from workbench.measured_when import one_after_another
from workbench.pooled import MICRO_F1
from workbench.quality_figures import quality_figures
from workbench.records import Calibration, Check, Gate, SuiteResult
from workbench.report import calibration as calibration_tables
from workbench.report import compared, divergence, loads, sweep, text

#: Regressions shown for each variant and suite; the rest is counted.
REGRESSIONS = 20


@dataclass(frozen=True)
class _Regressions:
    variant: str
    suite: str
    reference: str
    n: int
    lost: int
    gained: int
    file: str
    rows: tuple[Difference, ...]
    asked: bool


def render(
    gate: Gate,
    evidence: Evidence,
    *,
    calibration: Calibration | None = None,
    questions: Questions | None = None,
    title: str = "",
) -> str:
    """Render the whole page.

    Args:
        gate: the verdict.
        evidence: the records it rests on.
        calibration: the sealed calibration set, if one was used.
        questions: what each sample asked and expected; without it only ids and outputs are shown.
        title: heading of the page; default names the run.
    """
    across = evidence.across
    # Of a run by itself: its variants against its own baseline.
    diverged, swept = (
        (None, None) if across else (divergence.section(evidence), sweep.section(evidence))
    )
    quality = [(v, c) for v in gate.variants for c in v.checks if c.kind == "quality"]
    profiles = [side.profile for side in evidence.sides if side.profile]
    return _template().render(
        title=title
        or (f"Upgrade verdict: {gate.run}" if across else f"Release verdict: {gate.run}"),
        base="the earlier run" if across else "the baseline",
        compared=compared.table(evidence) if across else [],
        version=__version__,
        css=Markup(_file("report.css")),
        gate=gate,
        about=_about(evidence),
        evidence=evidence,
        calibration=calibration,
        sealed=calibration_tables.tables(calibration) if calibration else [],
        lengths=calibration_tables.histogram(calibration) if calibration else None,
        # Across two runs nothing stands for the baseline.
        sides=[side for side in evidence.sides if side.variant],
        # The checkpoint itself may be judged across two runs, and nobody here produced its files.
        produced=[side for side in evidence.variants if side.variant != BASELINE],
        made=(*evidence.references, *evidence.variants),
        paired=[] if across else _paired(evidence),
        artifacts={v.variant: v.manifest.path for v in evidence.variants if v.manifest},
        asked=_suite_results(evidence),
        verdicts={v.variant: v for v in gate.variants},
        groups=_groups(gate),
        quality=quality,
        suites=_suites(gate, evidence),
        ungated=_ungated(gate, evidence),
        regressions=_regressions(evidence, questions or {}),
        regressions_shown=REGRESSIONS,
        forest=_figure(plots.forest(gate)),
        latency=_figure(plots.latency(evidence)),
        measured=one_after_another([p for p in profiles if p.serving.lane.name != "emulated"]),
        freed={side.variant: loads.freed_sentence(evidence, side) for side in evidence.sides},
        size=None if across else _figure(plots.size_and_loss(gate, evidence)),
        sweep=swept,
        sweep_figure=_figure(swept.figure) if swept else None,
        sweep_csv=_csv(swept.table) if swept else "",
        divergence=diverged,
        divergence_figure=_figure(diverged.figure) if diverged else None,
        divergence_csv=_csv(diverged.csv) if diverged else "",
        checks_csv=_csv(_check_rows(gate)),
        load_head=loads.HEAD,
        targets=loads.said_targets(profiles),
        latency_csv=_csv(wide_rows((evidence.baseline, *evidence.variants, *evidence.references))),
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for function in (
        text.badge,
        text.visible,
        text.calls_apart,
        text.targets_apart,
        text.flag_words,
        text.short,
        text.percent,
        text.signed_points,
        text.number,
        text.p_value,
        text.megabytes,
        text.seconds,
        asked_of,
        loads.lines,
        loads.remarks,
        profiles_of,
    ):
        environment.filters[function.__name__] = function
    return environment.from_string(_file("report.html.j2"))


def _file(name: str) -> str:
    return resources.files("workbench.report").joinpath(name).read_text("utf-8")


def _figure(svg: str | None) -> Markup | None:
    # Our own drawing: its texts are names the recipe's schema restricts, escaped by matplotlib.
    return Markup(svg) if svg is not None else None


def _about(evidence: Evidence) -> str:
    """Which model, where and when, in one line."""
    checkpoint = evidence.checkpoint
    name = PurePath(checkpoint.path).name
    millions = checkpoint.parameters / 1e6
    parts = [f"{name}: {checkpoint.architecture}, {millions:,.1f} M parameters, {checkpoint.dtype}"]
    evaluations = [v.evaluation for v in evidence.sides if v.evaluation]
    if evaluations:
        served = [e.serving for e in evaluations]
        engines = " and ".join(
            dict.fromkeys(text.plain(f"{s.engine} {s.engine_version}") for s in served)
        )
        machines = " and ".join(dict.fromkeys(text.plain(s.hardware) for s in served))
        parts.append(f"asked under {engines} on {machines}")
        times = sorted(e.finished for e in evaluations if e.finished)
        if times:
            parts.append(f"measured until {times[-1].replace('T', ' ').replace('+00:00', ' UTC')}")
    return "; ".join(parts) + "."


def _groups(gate: Gate) -> list[tuple[str, list[str]]]:
    """Variants by verdict, in the order a reader asks: may ship, may not, not known."""
    return [
        (words, names)
        for verdict, words in (
            ("GO", "may ship"),
            ("GO WITH WAIVER", "may ship, a failed check is waived"),
            ("NO-GO", "may not ship"),
            ("INCONCLUSIVE", "not enough evidence"),
        )
        if (names := [v.variant for v in gate.variants if v.verdict == verdict])
    ]


def _suites(gate: Gate, evidence: Evidence) -> list[dict[str, Any]]:
    """One row per suite and variant, gated or not: scores, loss, churn."""
    gated: dict[tuple[str, str], Check] = {
        (v.variant, c.details["suite"]): c
        for v in gate.variants
        for c in v.checks
        if c.kind == "quality"
    }
    rows: list[dict[str, Any]] = []
    for suite in _asked(evidence):
        for variant in evidence.variants:
            paired = pair(evidence, variant, suite)
            check = gated.get((variant.variant, suite))
            row: dict[str, Any] = {
                "suite": suite,
                "variant": variant.variant,
                "check": check,
                "pooled": "",
                "flags": _flags(evidence.reference(variant), variant, suite),
            }
            if isinstance(paired, Paired):
                figures = quality_figures(paired, check.details["confidence"] if check else 0.95)
                changed, loss = figures.changed, figures.loss
                floor = _noise(gate, variant).get(suite)
                baseline, score = figures.shown
                has = samples_of(variant, suite)
                row |= {
                    "n": changed.n,
                    "left_out": has if has and has > changed.n else None,
                    "clusters": paired.cluster_count,
                    "higher_is_better": paired.higher_is_better,
                    "pooled": MICRO_F1 if figures.counts else "",
                    "baseline": baseline,
                    "score": score,
                    "loss": loss,
                    "churn": changed,
                    "p": figures.test.different,
                    "recovery": figures.recovery,
                    "noise": floor,
                    "inside": noise.inside(floor, loss.estimate, changed.share),
                }
            else:
                row["refusal"] = paired.sentence
            rows.append(row)
    return rows


def asked_of(result: SuiteResult) -> str:
    """How many samples of a suite were asked; how many it has where a limit left some out."""
    n = result.n // result.repeats
    times = f", {result.repeats} times each" if result.repeats > 1 else ""
    if result.samples and result.samples > n:
        return f"only the first {n} of its {result.samples} samples (evaluate.limit){times}"
    return f"{n} samples{times}"


def _suite_results(evidence: Evidence) -> list[SuiteResult]:
    """One result of each suite: the first side's that was asked it."""
    found: dict[str, SuiteResult] = {}
    for side in evidence.sides:
        for result in side.evaluation.suites if side.evaluation else ():
            found.setdefault(result.suite, result)
    return list(found.values())


def _noise(gate: Gate, variant: VariantEvidence) -> Mapping[str, noise.Floor]:
    return gate.reference_noise.get(variant.reference, gate.noise_floor)


def _flags(reference: VariantEvidence, variant: VariantEvidence, suite: str) -> list[str]:
    """What is the matter with the answers beside being wrong: each flag, reference to variant."""

    def result(side: VariantEvidence) -> SuiteResult | None:
        results = side.evaluation.suites if side.evaluation else ()
        return next((r for r in results if r.suite == suite), None)

    before, after = (result(side) for side in (reference, variant))
    if before is None or after is None:
        return []
    counts = [("failed", before.failed, after.failed)] if before.failed or after.failed else []
    counts += [
        (text.flag_word(flag), before.flagged.get(flag, 0), after.flagged.get(flag, 0))
        for flag in sorted({*before.flagged, *after.flagged})
    ]
    return [f"{name} {old} \N{RIGHTWARDS ARROW} {new}" for name, old, new in counts]


def _paired(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """Each reference but the baseline, with the variants paired with it."""
    return [
        (r.variant, [v.variant for v in evidence.variants if v.reference == r.variant])
        for r in evidence.references
    ]


def _asked(evidence: Evidence) -> list[str]:
    """Suites that something unquantized was asked; across two runs, the earlier one."""
    sides = [side.evaluation for side in evidence.unquantized if side.evaluation]
    return list(dict.fromkeys(result.suite for one in sides for result in one.suites))


def _ungated(gate: Gate, evidence: Evidence) -> list[str]:
    gated = {c.details["suite"] for v in gate.variants for c in v.checks if c.kind == "quality"}
    return [s for s in _asked(evidence) if s not in gated]


def _regressions(evidence: Evidence, questions: Questions) -> list[_Regressions]:
    found: list[_Regressions] = []
    for variant in evidence.variants:
        for suite in _asked(evidence):
            compared = compare(
                evidence, variant, suite=suite, only="regressed", questions=questions
            )
            for count in (c for c in compared.counts if not c.unscored):  # else it is refused
                shown = compared.items[:REGRESSIONS]
                found.append(
                    _Regressions(
                        variant=variant.variant,
                        suite=suite,
                        reference=variant.reference,
                        n=count.n,
                        lost=count.regressed,
                        gained=count.improved,
                        file=f"variants/{variant.variant}/eval/{suite}.jsonl",
                        rows=shown,
                        asked=any(item.question is not None for item in shown),
                    )
                )
    return found


def _check_rows(gate: Gate) -> list[list[Any]]:
    head = ["variant", "check", "kind", "tier", "status", "value", "low", "high", "limit", "n"]
    return [
        head,
        *(
            [v.variant, c.name, c.kind, c.tier, c.status, c.value, c.low, c.high, c.limit, c.n]
            for v in gate.variants
            for c in v.checks
        ),
    ]


def _csv(rows: list[list[Any]]) -> str:
    """A table as a data URI, so that the numbers behind a figure travel with it; empty of none."""
    if not rows:
        return ""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    data = base64.b64encode(buffer.getvalue().encode("utf-8", "backslashreplace"))
    return f"data:text/csv;base64,{data.decode()}"
