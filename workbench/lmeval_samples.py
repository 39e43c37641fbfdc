"""From what lm-evaluation-harness logs of a task to rows that pair like any suite's. Pure.

lm-eval's own standard errors treat two models as two random samples. Its log holds more: each
document with hashes of itself, of its prompt and of its target. Imported as rows, the same paired
statistics apply to a public benchmark as to a suite.

`prompt_hash` covers the first request of a document alone, so of two choices the second could
change unnoticed; the prompt digest made here covers every text that was sent. Which choice a metric
took is worked out again from the log-probabilities, as lm-eval does (`acc_norm` divides by
characters, `acc_bytes` by UTF-8 bytes). A log-probability that is not a number would be ranked
first by it without a word: such a document has no score here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.digest import sha256_text
from workbench.errors import JobFailure, RecipeError
from workbench.evaluation_records import Flag, SampleRow, SuiteResult
from workbench.questions import TOO_LONG
from workbench.rows import clean_text, rows_digest
from workbench.spec import LmEvalTask

#: What lm-eval's regex filter gives where it finds nothing.
_NOTHING_FOUND = "[invalid]"
_AGAIN = "run the evaluation again; the log of the task says what lm-eval did"


@dataclass(frozen=True)
class Logged:
    """What the job left of one task.

    Attributes:
        facts: of each task, by its own name: kind, version, fewshot, documents, config, direction.
        samples: one object a document and filter.
        version: of lm-eval.
        where: the file, for messages.
    """

    facts: Mapping[str, Mapping[str, Any]]
    samples: Sequence[Mapping[str, Any]]
    version: str
    where: str

    @classmethod
    def parse(cls, facts: str, samples: str, where: str) -> Logged:
        """Read both files' texts.

        Raises:
            JobFailure: they are not what the job writes.
        """
        try:
            told = json.loads(facts)
            lines = [_whole(json.loads(line)) for line in samples.split("\n") if line]
            tasks, version = dict(told["tasks"]), str(told["versions"]["lm-eval"])
            if not tasks or not lines or not all(isinstance(line, dict) for line in lines):
                raise ValueError("no document is in it")
        except (ValueError, KeyError, TypeError, RecursionError) as bad:
            raise JobFailure(
                f"what lm-eval logged of its samples cannot be read: {bad}", where=where, fix=_AGAIN
            ) from None
        return cls(tasks, lines, version, where)


def _whole(sample: Any) -> Any:
    """A logged document with the prompts that the job wrote once in each of its requests."""
    arguments, before = [], None
    for prompt, *rest in sample["arguments"]:
        before = before if prompt is None else prompt
        arguments.append([before, *rest])
    return sample | {"arguments": arguments}


def import_task(
    task: LmEvalTask,
    logged: Logged,
    *,
    conditions: Mapping[str, Any],
    seed: int,
    max_length: int,
    rows_file: str,
) -> tuple[tuple[SampleRow, ...], SuiteResult]:
    """Rows of one task of the recipe, in lm-eval's order, and their sum.

    Args:
        task: as the recipe writes it.
        logged: what lm-eval left.
        conditions: of the engine, and ``template_digest`` and ``tokenizer_digest``.
        seed: that everything was seeded with.
        max_length: context of the server, tokens.
        rows_file: name of the file the rows go to.

    Raises:
        RecipeError: the metric is not there, or gives no number from 0 to 1 for each document.
        JobFailure: documents are missing, or the log is damaged.
    """
    metric, filter_ = _metric(task, logged)
    grouped = list(logged.facts) != [task.task]
    shared = {
        "template_digest": conditions["template_digest"],
        "tokenizer_digest": conditions["tokenizer_digest"],
    }
    rows, documents = [], []
    try:
        for sample in logged.samples:
            if sample["filter"] != filter_:
                continue
            facts = logged.facts[sample["task"]]
            row = _row(sample, facts, metric, grouped, seed, max_length)
            rows.append(row.model_copy(update=shared))
            documents.append([row.id, sample["doc_hash"], row.prompt_digest, row.target_digest])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as bad:
        raise JobFailure(
            f"a document that lm-eval logged is not as it writes them: {bad!r}",
            where=logged.where,
            fix=_AGAIN,
        ) from None
    _check_scores(task, metric, filter_, rows, logged)
    _check_whole(rows, logged, grouped)
    named = {name: {k: facts.get(k) for k in _IDENTITY} for name, facts in logged.facts.items()}
    digest = _digest_of([task.task, named, documents])
    scores = [row.score for row in rows if row.score is not None]
    full_name = metric if filter_ == "none" else f"{metric},{filter_}"
    result = SuiteResult(
        suite=task.task,
        source="lm-eval",
        metric=full_name,
        higher_is_better=_direction(task, metric, logged),
        suite_digest=digest,
        conditions={
            **conditions,
            "chat_template": task.chat_template,
            "fewshot": _one_or_each({n: f.get("fewshot") for n, f in logged.facts.items()}),
            "limit": task.limit,
            "lm_eval": logged.version,
            "metric": full_name,
            "model_type": "local-completions",
            "seed": seed,
            "suite_digest": digest,
            "task_config": _digest_of({n: f.get("config") for n, f in logged.facts.items()}),
            "task_version": _one_or_each({n: f.get("version") for n, f in logged.facts.items()}),
        },
        rows_file=rows_file,
        rows_digest=rows_digest(rows),
        n=len(rows),
        failed=sum(row.error is not None for row in rows),
        score=math.fsum(scores) / len(scores) if scores else None,
        flagged=dict(sorted(Counter(flag for row in rows for flag in row.flags).items())),
        finish_reasons={},
        prompt_tokens=sum(row.prompt_tokens or 0 for row in rows),
        output_tokens=0,
    )
    return tuple(rows), result


_IDENTITY = ("kind", "version", "fewshot", "config")


def unavailable(task: LmEvalTask, reason: str, rows_file: str) -> SuiteResult:
    """The result of a task that an engine cannot be asked: no rows, and why."""
    return SuiteResult(
        suite=task.task,
        source="lm-eval",
        metric=task.metric or "",
        suite_digest="",
        conditions={},
        rows_file=rows_file,
        rows_digest=rows_digest(()),
        n=0,
        failed=0,
        score=None,
        finish_reasons={},
        prompt_tokens=0,
        output_tokens=0,
        unavailable=reason,
    )


# --------------------------------------------------------------------------- one document


def _row(
    sample: Mapping[str, Any],
    facts: Mapping[str, Any],
    metric: str,
    grouped: bool,
    seed: int,
    max_length: int,
) -> SampleRow:
    arguments, generated = sample["arguments"], facts["kind"] == "generate_until"
    sent = [[a[0]] if generated else list(a) for a in arguments]
    drawn = [a[1] for a in arguments] if generated else []
    name, value = str(sample["task"]), sample["scores"][metric]
    output, logprobs, error = "", None, None
    flags: tuple[Flag, ...] = ()
    details: dict[str, Any] = {"doc_hash": str(sample["doc_hash"]), "metric": metric}
    if sample.get("too_long"):
        error = f"{TOO_LONG}: {sample['too_long']} tokens with the answer, {max_length} fit"
    elif generated:
        said = _text(sample["resps"][0])
        output = clean_text(_text(sample["filtered_resps"][0]))
        if output != clean_text(said):
            details["generated"] = clean_text(said)
        if not said.strip():
            flags = ("empty",)
        elif output == _NOTHING_FOUND:
            flags = ("unreadable",)
    else:
        output, logprobs, error = _ranked(sample, facts, metric)
    if error is None and isinstance(value, float) and math.isnan(value):
        error = f"the metric {metric} is not a number"
    return SampleRow(
        id=f"{name}/{sample['doc_id']}" if grouped else str(sample["doc_id"]),
        prompt_digest=_digest_of([sample["prompt_hash"], sent]),
        target_digest=str(sample["target_hash"]),
        sampling_digest=_digest_of([drawn, seed]),
        output=output,
        score=None if error else _number(value),
        flags=flags,
        grade=details,
        cluster=name if grouped else None,
        finish_reason=None,
        prompt_tokens=sample.get("prompt_tokens"),
        output_tokens=None,
        choice_logprobs=logprobs,
        started=0.0,
        seconds=0.0,
        error=error,
    )


def _ranked(
    sample: Mapping[str, Any], facts: Mapping[str, Any], metric: str
) -> tuple[str, dict[str, float] | None, str | None]:
    """The choice a metric took, the choices' log-probabilities, and what is wrong with them."""
    answers = [(float(a[0]), _truth(a[1])) for a in sample["filtered_resps"]]
    found = [logprob for logprob, _ in answers]
    texts = [str(a[1]) for a in sample["arguments"]]
    bad = [text for text, value in zip(texts, found, strict=True) if not math.isfinite(value)]
    if bad:
        return "", None, f"{bad[0]!r} has no log-probability that is a number"
    if facts["kind"] != "multiple_choice":
        return "likeliest" if answers[0][1] else "not the likeliest", {texts[0]: found[0]}, None
    delimiter = facts.get("config", {}).get("target_delimiter", " ")
    choices = [text.removeprefix(delimiter) for text in texts]
    ranked = list(found)
    if metric == "acc_mutual_info":  # the second half: the choices alone, without the question
        half = len(found) // 2
        choices, ranked = choices[:half], [a - b for a, b in zip(found, found[half:], strict=False)]
    if metric == "acc_norm":
        ranked = [value / (len(c) or 1) for value, c in zip(found, choices, strict=True)]
    if metric == "acc_bytes":
        ranked = [value / (len(c.encode()) or 1) for value, c in zip(found, choices, strict=True)]
    # Of tasks that vary the question instead of the answer, all continuations are the same.
    if len(set(choices)) != len(choices):
        choices = [f"{i}: {choice}" for i, choice in enumerate(choices)]
    shown = {clean_text(c): value for c, value in zip(choices, found, strict=False)}
    return clean_text(choices[ranked.index(max(ranked))]), shown, None


def _truth(value: Any) -> bool:
    return value is True or value == "True"  # lm-eval's own files hold texts


def _text(value: Any) -> str:
    """An answer as lm-eval holds it: a text, or a list of one for each repeat."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> float | None:
    """A score, or None for what is not one number; `_check_scores` refuses those."""
    return float(value) if isinstance(value, bool | int | float) else None


# --------------------------------------------------------------------------- the whole task


def _metric(task: LmEvalTask, logged: Logged) -> tuple[str, str]:
    """Metric and filter: the recipe's, or the task's first."""
    there: list[tuple[str, str]] = []
    for sample in logged.samples:
        for metric in sample.get("scores", {}):
            if (pair := (metric, str(sample.get("filter")))) not in there:
                there.append(pair)
    wanted, _, filter_ = (task.metric or "").partition(",")
    for metric, of in there:
        if (not wanted or metric == wanted) and (not filter_ or of == filter_):
            return metric, of
    raise RecipeError(
        f"lm-eval's task '{task.task}' has no metric '{task.metric}'",
        where=_where(task),
        fix=f"it has {_listed(there)}",
    )


def _direction(task: LmEvalTask, metric: str, logged: Logged) -> bool:
    told = [(facts.get("higher_is_better") or {}).get(metric) for facts in logged.facts.values()]
    if told and all(one is told[0] for one in told) and isinstance(told[0], bool):
        return told[0]
    raise RecipeError(
        f"lm-eval does not say whether a higher '{metric}' of task '{task.task}' is better",
        where=_where(task),
        fix="say higher_is_better in the task's metric_list, the same in every task of a group",
    )


def _check_scores(
    task: LmEvalTask, metric: str, filter_: str, rows: Sequence[SampleRow], logged: Logged
) -> None:
    bad = [r for r in rows if r.error is None and (r.score is None or not 0 <= r.score <= 1)]
    if not bad:
        return
    usable = [
        (name, str(sample["filter"]))
        for sample in logged.samples[:1]
        for name, value in sample["scores"].items()
        if name != metric and (score := _number(value)) is not None and 0 <= score <= 1
    ]
    value = "one number" if bad[0].score is None else f"from 0 to 1 but {bad[0].score:g}"
    raise RecipeError(
        f"metric '{metric}' of lm-eval's task '{task.task}' is not {value} on document "
        f"{bad[0].id}: nothing that can be paired",
        where=_where(task),
        fix=f"name another metric: {_listed(usable)}"
        if usable
        else "choose another task; this one has no metric that can be paired",
    )


def _check_whole(rows: Sequence[SampleRow], logged: Logged, grouped: bool) -> None:
    """Every document of every task once."""
    twice = [id_ for id_, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise JobFailure(
            f"lm-eval logged document {twice[0]} more than once", where=logged.where, fix=_AGAIN
        )
    counted = Counter(row.cluster for row in rows)
    for name, facts in logged.facts.items():
        wanted = (facts.get("documents") or {}).get("effective")
        have = counted[name if grouped else None]
        if have != wanted:
            raise JobFailure(
                f"lm-eval asked {wanted} documents of '{name}' and logged {have}",
                where=logged.where,
                fix=_AGAIN,
            )


def _where(task: LmEvalTask) -> str:
    return f"evaluate.lm_eval.tasks: {task.task}: metric"


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    names = [metric if of == "none" else f"'{metric},{of}'" for metric, of in pairs]
    return ", ".join(names) or "none"


def _one_or_each(values: dict[str, Any]) -> Any:
    """One value where all tasks of a group share it."""
    first = next(iter(values.values()))
    return first if all(value == first for value in values.values()) else values


def _digest_of(value: Any) -> str:
    # Not `content_id`: a task's configuration may hold what has no canonical form.
    return sha256_text(json.dumps(value, sort_keys=True, ensure_ascii=False))
