"""Every answer of a run as one pandas table: `workbench.samples`.

One line for each time a sample was asked, beside what the reference answered. It shows what is in
the rows and judges nothing; a pair is made only where the gate would make it, so that nobody
averages a difference that means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.context import Context, opened
from workbench.differences import Questions, change_of
from workbench.evidence import Evidence, VariantEvidence, pair, pair_repeat
from workbench.paired import Answers, Paired
from workbench.records import SampleRow, SuiteResult

if TYPE_CHECKING:
    import pandas as pd

#: Columns in their order -> pandas type. Texts that are not known are missing, not empty.
COLUMNS = {
    "variant": "str",
    "method": "str",
    "suite": "str",
    "kind": "str",
    "sample_id": "str",
    "repeat": "int64",
    "pass": "str",
    "score": "float64",
    "baseline_score": "float64",
    "delta": "float64",
    "change": "str",
    "output": "str",
    "baseline_output": "str",
    "target": "str",
    "question": "str",
    "flags": "str",
    "baseline_flags": "str",
    "finish_reason": "str",
    "error": "str",
    "prompt_tokens": "Int64",
    "output_tokens": "Int64",
    "started": "float64",
    "seconds": "float64",
    "cluster": "str",
    "metric": "str",
    "higher_is_better": "bool",
    "source": "str",
    "reference": "str",
    "unpaired": "str",
    "engine": "str",
    "engine_version": "str",
    "dtype": "str",
    "lane": "str",
}


def samples(run: str | Path | Context = "") -> pd.DataFrame:
    """Every answer of a run, one line per variant, suite, pass, sample and repeat.

    ====================  ==========================================================================
    column                what it holds
    ====================  ==========================================================================
    variant, method       who answered: the references, the variants, then the replicas of `repeat`
    suite, kind           the suite and the business case it stands for
    sample_id, repeat     the sample, and which time it was asked; 0 is the first
    pass                  ``first``, or ``second`` where a reference was asked again (A/A)
    score                 0 to 1 as the scorer gave it; missing where request or scorer failed
    baseline_score        the reference's score of the same sample and repeat; of the second pass,
                          the first one's; missing on a reference's first pass and where `unpaired`
    delta                 score minus baseline_score, -1 to 1
    change                ``regressed``, ``improved``, ``changed`` (another answer, the same score)
                          or ``same``; knows whether higher is better
    output                what was answered: text of a model, nothing to be trusted
    baseline_output       what the reference answered
    target, question      expected and asked; missing where the suite was changed since the run
    flags                 what is the matter beside being wrong, comma-separated; empty is nothing
    baseline_flags        the same of the reference's answer
    finish_reason, error  as the server said; why there is no score
    prompt_tokens         tokens the server counted; of lm-eval, the checkpoint's tokenizer
    output_tokens         the same, of the answer
    started, seconds      seconds since the step began, and how long the answer took
    cluster               samples of one cluster are not independent
    metric                what the score is; `higher_is_better` says in which direction it is good
    source                ``suite``, or ``lm-eval``
    reference             the unquantized variant it is compared with
    unpaired              why it was not compared; empty where it was
    engine, dtype, lane   how it was served; `engine_version` too
    ====================  ==========================================================================

    Of tasks of lm-eval, finish_reason, output_tokens, started and seconds are missing: its log has
    none of them.

    Flags by variant, without the second pass, which has the reference's answers once more::

        some = table[table["pass"] == "first"].assign(flag=lambda t: t["flags"].str.split(","))
        some.explode("flag").query("flag != ''").groupby("variant")["flag"].value_counts()

    Args:
        run: name or folder of a run, or an opened one; empty is the last run of the project.

    Raises:
        StoreError: there is no such run, or rows or records are not those that were written.
    """
    import pandas as pd

    from workbench.collect import collect, questions

    context = opened(run)
    evidence = collect(context)
    lines = list(_lines(evidence, questions(context, evidence)))
    return pd.DataFrame(
        {
            name: pd.Series([line.get(name) for line in lines], dtype=kind)
            for name, kind in COLUMNS.items()
        }
    )


def _lines(evidence: Evidence, questions: Questions) -> Iterator[dict[str, Any]]:
    replicas = [one for group in evidence.replicas.values() for one in group]
    for side in (*evidence.sides, *replicas):
        if side.evaluation is None:
            continue
        reference = any(side is one for one in evidence.unquantized)
        for result in side.evaluation.suites:
            paired = None if reference else pair(evidence, side, result.suite)
            unpaired = "it is the reference" if paired is None else ""
            if paired is not None and not isinstance(paired, Paired):
                unpaired, paired = paired.sentence, None
            rows = side.rows.get(result.suite, ())
            yield from _suite(side, result, rows, "first", paired, unpaired, questions)
        for result in side.evaluation.repeat:
            again = pair_repeat(evidence, result.suite, side) if reference else None
            unpaired = "" if isinstance(again, Paired) else again.sentence if again else ""
            rows = evidence.second_pass(side).get(result.suite, ())
            paired = again if isinstance(again, Paired) else None
            yield from _suite(side, result, rows, "second", paired, unpaired, questions)


def _suite(
    side: VariantEvidence,
    result: SuiteResult,
    rows: Sequence[SampleRow],
    which: str,
    paired: Paired | None,
    unpaired: str,
    questions: Questions,
) -> Iterator[dict[str, Any]]:
    assert side.evaluation is not None
    serving = side.evaluation.serving
    asked = questions.get(result.suite, {})
    timed = result.source == "suite"
    before = _by_key(paired.baseline) if paired else {}
    for row in rows:
        question, target = asked.get(row.id, (None, None))
        yield {
            "variant": side.variant,
            "method": side.method,
            "suite": result.suite,
            "kind": result.kind,
            "sample_id": row.id,
            "repeat": row.repeat,
            "pass": which,
            "score": row.score,
            "output": row.output,
            "target": target,
            "question": question,
            "flags": ",".join(row.flags),
            "finish_reason": row.finish_reason,
            "error": row.error,
            "prompt_tokens": row.prompt_tokens,
            "output_tokens": row.output_tokens,
            "started": row.started if timed else None,
            "seconds": row.seconds if timed else None,
            "cluster": row.cluster,
            "metric": result.metric,
            "higher_is_better": result.higher_is_better,
            "source": result.source,
            "reference": side.reference,
            "unpaired": unpaired,
            "engine": serving.engine,
            "engine_version": serving.engine_version,
            "dtype": serving.dtype.value,
            "lane": serving.lane.name,
            **_beside(row, before.get((row.id, row.repeat)), result.higher_is_better),
        }


def _by_key(answers: Iterable[Answers]) -> Mapping[tuple[str, int], SampleRow]:
    return {(row.id, row.repeat): row for one in answers for row in one.rows}


def _beside(row: SampleRow, before: SampleRow | None, higher_is_better: bool) -> dict[str, Any]:
    if before is None or before.score is None or row.score is None:
        return {}
    delta = row.score - before.score
    loss = -delta if higher_is_better else delta
    return {
        "baseline_score": before.score,
        "delta": delta,
        "change": change_of(loss, row.output == before.output),
        "baseline_output": before.output,
        "baseline_flags": ",".join(before.flags),
    }
