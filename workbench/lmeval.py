"""Public benchmarks: lm-evaluation-harness, in its own environment, against a served variant.

One job asks every task of the recipe through the completions route, for likelihood and for
generation, with token ids of the checkpoint's own tokenizer. `local-chat-completions` would leave
the chat template to the server: what was asked would not be on record, and one document too long
for the context would end the run. So `chat_template: true` renders here, with the checkpoint's own
template. What lm-eval logs becomes rows (`workbench.lmeval_samples`).

The endpoint's key reaches lm-eval in an environment variable only.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import envs
from workbench.dialect import dialect
from workbench.errors import RecipeError, did_you_mean
from workbench.events import Events
from workbench.jobs import run_job
from workbench.lmeval_samples import Logged, import_task, unavailable
from workbench.lmeval_tasks import include_folder, is_offline, leaves, local_tasks
from workbench.progress import silent
from workbench.records import SuiteResult
from workbench.rows import write_rows
from workbench.store import write_atomic
from workbench.tokenizer import TEMPLATE_DATE, Tokenizer

if TYPE_CHECKING:
    from workbench.context import Context
    from workbench.servers import Endpoint

ENVIRONMENT = "lmeval"
SCRIPT = Path(__file__).parent / "inside" / "run_lmeval.py"
#: Time limit of one task where the recipe sets none (`evaluate.total_seconds`).
_TASK_SECONDS = 24 * 3600.0
#: What starting lm-eval and reading its task files may take, beside the tasks.
_START_SECONDS = 600.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def run_lm_eval(
    context: Context,
    endpoint: Endpoint,
    folder: Path,
    conditions: Mapping[str, Any],
    events: Events,
    *,
    repeat: bool = False,
) -> list[SuiteResult]:
    """Ask the recipe's tasks of one server and keep one row a document.

    What was answered before a crash is not asked again.

    Args:
        context: recipe, checkpoint and environments.
        endpoint: the server.
        folder: of the evaluation; rows go here, lm-eval's own files below it.
        conditions: of the engine; what must be equal for two results to pair.
        events: told how far it is.
        repeat: the second pass, whose rows are `TASK.repeat.jsonl`.

    Raises:
        RecipeError: lm-eval knows no such task, or its metric cannot be paired.
        JobFailure: lm-eval failed; its last lines are quoted.
    """
    recipe = context.loaded.recipe
    spec = recipe.evaluate.lm_eval
    if spec is None:
        return []
    environment = context.environment(ENVIRONMENT, events)
    include = include_folder(context.loaded)
    local = local_tasks(include) if include else {}
    # Answers of an attempt that was cut short are those of the weights it was asked of.
    of = endpoint.serving.served_digest[:12]
    job = folder / "lm-eval" / f"{'repeat' if repeat else 'first'}-{of}"
    out = job / "samples"
    log = context.run.logs / f"lm-eval-{events.step.replace(':', '-')}.log"
    seconds = (recipe.evaluate.total_seconds or _TASK_SECONDS) * len(spec.tasks)
    longest = endpoint.serving.max_model_len
    begun = time.monotonic()
    done = run_job(
        environment.python,
        SCRIPT,
        {
            "base_url": f"{endpoint.base_url}/v1/completions",
            "model": endpoint.model,
            "tokenizer": str(context.model_path),
            "tasks": [
                {
                    "task": task.task,
                    "fewshot": task.fewshot,
                    "limit": task.limit,
                    "chat_template": task.chat_template,
                    # A template writes it itself.
                    "add_bos": not task.chat_template and begins_with_bos(context.tokenizer),
                }
                for task in spec.tasks
            ],
            "include_path": str(include) if include else None,
            "seed": spec.seed,
            "concurrency": recipe.evaluate.concurrency,
            "max_length": longest,
            "request_seconds": recipe.evaluate.request_seconds,
            "likelihood": dialect(endpoint.serving.engine).echoes,
            "date": TEMPLATE_DATE.isoformat(),
            "out": str(out),
        },
        folder=job,
        log=log,
        timeout=seconds + _START_SECONDS,
        progress=events.progress,
        name="lm-eval",
        env=_variables(endpoint, job, all(is_offline(t.task, local) for t in spec.tasks)),
    )
    events.tool("lm-eval", time.monotonic() - begun)
    shutil.rmtree(job / "datasets", ignore_errors=True)  # the documents are the user's files
    _not_refused(done.value, f"{context.loaded.source}: evaluate.lm_eval")
    results = []
    for task in spec.tasks:
        rows_file = f"{task.task}{'.repeat' if repeat else ''}.jsonl"
        if task.task in done.value.get("unavailable", ()):
            write_rows(folder / rows_file, ())
            results.append(unavailable(task, _no_likelihood(endpoint), rows_file))
            continue
        rows, result = import_task(
            task,
            _logged(out, task.task),
            conditions={
                **conditions,
                "template_digest": context.tokenizer.template_digest
                if task.chat_template
                else None,
                "tokenizer_digest": context.tokenizer.digest,
            },
            seed=spec.seed,
            max_length=longest,
            rows_file=rows_file,
        )
        write_rows(folder / rows_file, rows)
        results.append(result)
    return results


def begins_with_bos(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer itself puts a beginning-of-sequence token before a text."""
    ids = tokenizer.encode("a", True)
    return tokenizer.bos_id is not None and ids[:1] == [tokenizer.bos_id]


def _variables(endpoint: Endpoint, job: Path, offline: bool) -> dict[str, str]:
    # lm-eval asks through a proxy of the environment where it asks one request at a time.
    direct = [os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "", "127.0.0.1"]
    around = ",".join(filter(None, direct))
    found = {"OPENAI_API_KEY": endpoint.key, "NO_PROXY": around, "no_proxy": around}
    if offline:
        found |= _OFFLINE | {"HF_DATASETS_CACHE": str(job / "datasets")}
    return found


def _no_likelihood(endpoint: Endpoint) -> str:
    return (
        f"{endpoint.serving.engine}'s server returns no log-probabilities of a prompt, by which "
        "lm-eval ranks choices"
    )


def _logged(out: Path, task: str) -> Logged:
    path = out / f"{task}.samples.jsonl"
    texts = []
    for file in (out / f"{task}.json", path):
        try:
            texts.append(file.read_text("utf-8", "surrogatepass"))
        except FileNotFoundError:
            texts.append("")  # `parse` says what that means
    return Logged.parse(texts[0], texts[1], str(path))


def _not_refused(value: Mapping[str, Any], where: str) -> None:
    refused = value.get("refused")
    if isinstance(refused, dict):
        raise RecipeError(
            str(refused.get("what")), where=f"{where}.tasks", fix=str(refused.get("fix") or "")
        )


# --------------------------------------------------------------------------- before anything runs


def check(context: Context) -> list[tuple[bool, str]]:
    """What can be known of the recipe's tasks before a model is asked.

    Returns:
        Findings: whether all is well, and a sentence.

    Raises:
        RecipeError: something that cannot work, with the key and the fix.
    """
    recipe = context.loaded.recipe
    spec = recipe.evaluate.lm_eval
    if spec is None:
        return []
    where = f"{context.loaded.source}: evaluate.lm_eval"
    if recipe.serve.engine == "fake":
        raise RecipeError(
            "lm-eval cannot be asked of the fake engine: it has no tokens to rank",
            where=where,
            fix="take evaluate.lm_eval out, or serve with vllm",
        )
    include = include_folder(context.loaded)
    local = local_tasks(include) if include else {}
    known = _known(context)
    findings = []
    for task in spec.tasks:
        if task.chat_template and context.tokenizer.template is None:
            raise RecipeError(
                f"task '{task.task}' wants a chat template, and the checkpoint has none",
                where=f"{where}.tasks: {task.task}: chat_template",
                fix="say 'chat_template: false'",
            )
        if known and task.task not in known and task.task not in local:
            raise RecipeError(
                f"lm-eval has no task '{task.task}'",
                where=f"{where}.tasks",
                fix=did_you_mean(task.task, [*known, *local])
                + "tasks of your own are found in evaluate.lm_eval.include_path",
            )
        found = list(leaves(task.task, local))
        if task.task not in local and not known:
            text = f"lm-eval task '{task.task}': its name is looked up when lm-eval is there"
            findings.append((False, text))
        elif not is_offline(task.task, local):
            text = f"lm-eval task '{task.task}' reads its documents from the hub: it needs network"
            findings.append((False, text))
        else:
            findings.append((True, f"lm-eval task '{task.task}': read from files, no network"))
        other = sorted({recipe.engine(v) for v in recipe.all_variants})
        for engine in other:
            if not dialect(engine).echoes and any(one and one.likelihood for one in found):
                text = f"lm-eval task '{task.task}' cannot be asked of {engine}, which returns no "
                findings.append((False, text + "log-probabilities of a prompt: MISSING there"))
    return findings


def _known(context: Context) -> list[str]:
    """Names of lm-eval's own tasks; none where its environment is not made yet."""
    target = context.facts.hardware.target
    if not envs.is_ready(ENVIRONMENT, target):
        return []
    cache = context.run.results.root / ".cache"
    path = cache / f"lm-eval-tasks-{envs.lock_digest(ENVIRONMENT, target)[:12]}.json"
    try:
        return [str(name) for name in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError):
        pass
    folder = cache / f"lm-eval-tasks.{os.getpid()}"
    done = run_job(
        envs.ensure(ENVIRONMENT, target).python,
        SCRIPT,
        {"list": True},
        folder=folder,
        log=folder / "job.log",
        timeout=_START_SECONDS,
        progress=silent,
        name="list the tasks of lm-eval",
        env=_OFFLINE,
    )
    shutil.rmtree(folder, ignore_errors=True)
    names = [str(name) for name in done.value.get("names", ())]
    write_atomic(path, json.dumps(names).encode())
    return names
