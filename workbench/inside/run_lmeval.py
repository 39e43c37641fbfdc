"""Run tasks of lm-evaluation-harness against a served endpoint, in the `lmeval` environment.

Request ``{"list": true}``: the result's ``names`` are all tasks, groups and tags lm-eval knows.

Request to ask: ``base_url`` (of the completions route), ``model`` (served name), ``tokenizer``
(folder), ``tasks`` (each ``task``, ``fewshot``, ``limit``, ``chat_template``, ``add_bos``),
``include_path`` or null, ``seed``, ``concurrency``, ``max_length`` (context of the server, tokens),
``request_seconds``, ``likelihood`` (whether the server returns log-probabilities of a prompt),
``date`` (ISO, what a chat template is told), ``out`` (folder). The key comes in
``OPENAI_API_KEY``. For each task ``out/TASK.samples.jsonl`` and, written last, ``out/TASK.json``
are left; a task whose files are there for the same request is not asked again, and of one that was
cut short only the missing requests are. Result: ``versions``, and ``refused`` or ``unavailable``.

Prompts go out as token ids of the checkpoint's own tokenizer, chats rendered with its own template:
what was asked is then on record to the last token. A request that does not fit the context is not
sent; lm-eval would cut its beginning off and only log it.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from _job import Job, fail, main, versions

KEY = "OPENAI_API_KEY"
_OURS = ("doc_id", "target", "arguments", "resps", "filtered_resps", "filter", "metrics")
_HASHES = ("doc_hash", "prompt_hash", "target_hash")
#: lm-eval's own default for a generation without `max_gen_toks`.
_MAX_GEN_TOKS = 256


class Discreet:
    """A stream that never writes the key: an HTTP client's error quotes the request's headers."""

    def __init__(self, stream: TextIO, secret: str) -> None:
        self._stream, self._secret = stream, secret

    def write(self, text: str) -> int:
        """Write a text, the key starred out."""
        self._stream.write(text.replace(self._secret, "***") if self._secret else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def endpoint(request: dict[str, Any], asked: dict[str, Any], tell: Any) -> Any:
    """lm-eval's client of the completions route, with what is said above."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class Endpoint(LocalCompletionsAPI):
        def set_cache_hook(self, cache_hook: Any) -> None:
            tell.hook, self.cache_hook = cache_hook, tell

        def needs(self, kind: str, args: Any) -> int:
            """Tokens of context one request takes, its answer included."""
            if kind == "generate_until":
                room = args[1].get("max_tokens", args[1].get("max_gen_toks", _MAX_GEN_TOKS))
                return len(self.tok_encode(args[0])) + int(room)
            if kind == "loglikelihood":
                return len(self.tok_encode("".join(args))) + (not args[0])
            return 0

        def loglikelihood(self, requests: Any, **options: Any) -> list[Any]:
            send = super().loglikelihood
            return self._those_that_fit("loglikelihood", requests, send, (math.nan, False))

        def generate_until(self, requests: Any, **options: Any) -> list[Any]:
            return self._those_that_fit("generate_until", requests, super().generate_until, "")

        def _those_that_fit(self, kind: str, requests: Any, send: Any, instead: Any) -> list[Any]:
            fits = [self.needs(kind, one.args) <= self.max_length for one in requests]
            todo = [one for one, fit in zip(requests, fits, strict=True) if fit]
            tell.start(len(todo))
            answers = iter(send(todo) if todo else ())
            return [next(answers) if fit else instead for fit in fits]

    return Endpoint(
        model=request["model"],
        base_url=request["base_url"],
        tokenizer=request["tokenizer"],
        tokenizer_backend="huggingface",
        tokenized_requests=True,
        add_bos_token=asked["add_bos"],
        num_concurrent=request["concurrency"],
        batch_size=1,
        max_length=request["max_length"],
        max_gen_toks=_MAX_GEN_TOKS,
        seed=request["seed"],
        timeout=math.ceil(request["request_seconds"]),
        max_retries=4,
    )


def fix_date(day: str) -> None:
    """Give chat templates this date for today's: else each day would ask something else.

    transformers takes no date; the pinned version reads the clock by this name.
    """
    from transformers.utils import chat_template_utils

    fixed = datetime.fromisoformat(day)

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return fixed

    chat_template_utils.datetime = Fixed


class Tell:
    """Counts answers as lm-eval puts them into its cache, and tells how many are there."""

    def __init__(self, job: Job, task: str) -> None:
        self._job, self._task = job, task
        self.hook: Any = None
        self._done, self._total = 0, 0

    def start(self, total: int) -> None:
        """So many requests are about to be sent."""
        self._done, self._total = 0, total
        self._job.progress(0, total, self._task)

    def add_partial(self, kind: str, request: Any, answer: Any) -> None:
        """One answer: keep it, count it."""
        self.hook.add_partial(kind, request, answer)
        self._done += 1
        self._job.progress(self._done, self._total, self._task)


def plain(value: Any) -> Any:
    """What JSON has no word for: numpy's numbers, functions, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    # The plain text of an object has its address in it, which is another one each time.
    return type(value).__name__ if type(value).__repr__ is object.__repr__ else str(value)


def dumped(value: Any) -> str:
    """JSON of what lm-eval returns."""
    return json.dumps(value, ensure_ascii=False, default=plain)


def once(arguments: list[Any]) -> list[Any]:
    """A document's requests, a prompt that is the one before as null: MMLU's are 3 kB each."""
    found: list[Any] = []
    before = None
    for prompt, *rest in arguments:
        found.append([None if found and prompt == before else prompt, *rest])
        before = prompt
    return found


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, "utf-8", errors="surrogatepass")
    partial.replace(path)


def refused(what: str, fix: str) -> dict[str, Any]:
    """The result for what the person who wrote the recipe can mend."""
    return {"refused": {"what": what, "fix": fix}}


def load(manager: Any, name: str) -> dict[str, Any]:
    """The tasks a name stands for, by their own names.

    Reports a task whose documents or packages cannot be had.
    """
    loaded: dict[str, Any] = {}
    try:
        loaded.update(manager.load([name])["tasks"])
    except ImportError as error:
        fail(
            f"task '{name}' needs a package that the environment does not have: {error}",
            f"evaluate.lm_eval.tasks: {name}",
            "choose another task; the environment is the complete lock workbench/envs/lmeval-*.txt",
        )
    except Exception as error:  # a task is YAML and Python of somebody's, its data a download
        hub = type(error).__module__.partition(".")[0] in ("requests", "httpx", "httpx2", "urllib3")
        hub = hub or "Hub" in type(error).__name__ or "offline" in str(error).casefold()
        hub = hub or isinstance(error, ConnectionError)
        fail(
            f"task '{name}' cannot be loaded: {type(error).__name__}: {str(error)[:600]}",
            f"evaluate.lm_eval.tasks: {name}",
            "its documents come from the hub, which was not reached: this needs network, or a "
            "cache of the hub (HF_HOME) that holds them"
            if hub
            else "mend the task; paths in `data_files` are relative to include_path",
        )
    return loaded


def ask(job: Job, manager: Any, asked: dict[str, Any], out: Path) -> dict[str, Any]:
    """One task of the recipe. Returns nothing, or why it cannot be asked here."""
    from lm_eval.evaluator import simple_evaluate

    request, name = job.request, asked["task"]
    tasks = load(manager, name)
    kinds = {leaf: str(task.OUTPUT_TYPE) for leaf, task in tasks.items()}
    if not request["likelihood"] and set(kinds.values()) != {"generate_until"}:
        return {"unavailable": True}
    unsafe = [leaf for leaf, task in tasks.items() if getattr(task, "UNSAFE_CODE", False)]
    if unsafe:
        return refused(
            f"task '{unsafe[0]}' runs code that the model writes", "leave it out of the recipe"
        )
    client = endpoint(request, asked, Tell(job, name))
    answers = out / f"{name}.answers"
    results = simple_evaluate(
        model=client,
        use_cache=str(answers),
        tasks=[name],
        task_manager=manager,
        num_fewshot=asked["fewshot"],
        limit=asked["limit"],
        apply_chat_template=asked["chat_template"],
        fewshot_as_multiturn=asked["chat_template"],
        bootstrap_iters=0,
        log_samples=True,
        random_seed=request["seed"],
        numpy_random_seed=request["seed"],
        torch_random_seed=request["seed"],
        fewshot_random_seed=request["seed"],
    )
    tokens = functools.lru_cache(maxsize=4096)(lambda text: len(client.tok_encode(text)))
    lines = []
    for leaf, samples in results["samples"].items():
        kind = {"multiple_choice": "loglikelihood"}.get(kinds[leaf], kinds[leaf])
        for sample in samples:
            needed = max(client.needs(kind, args) for args in sample["arguments"])
            said = {key: sample[key] for key in (*_OURS, *_HASHES)}
            said["arguments"] = once(sample["arguments"])
            said["scores"] = {key: sample.get(key) for key in sample["metrics"]}
            texts = ("".join(a) if kind == "loglikelihood" else a[0] for a in sample["arguments"])
            said["prompt_tokens"] = sum(map(tokens, texts))
            said["too_long"] = needed + 1 if needed > client.max_length else None
            lines.append(dumped({"task": leaf, **said}) + "\n")
    facts = {
        leaf: {
            "kind": kinds[leaf],
            "version": results["versions"].get(leaf),
            "fewshot": results["n-shot"].get(leaf),
            "documents": results["n-samples"].get(leaf),
            "higher_is_better": results["higher_is_better"].get(leaf),
            # `metadata` repeats the version, and more than belongs to the task where lm-eval is
            # given arguments by name.
            "config": {k: v for k, v in results["configs"][leaf].items() if k != "metadata"},
        }
        for leaf in results["samples"]
    }
    write(out / f"{name}.samples.jsonl", "".join(lines))
    write(out / f"{name}.json", dumped({"asked": asked, "tasks": facts, "versions": packages()}))
    for cache in out.glob(f"{answers.name}_rank*"):
        cache.unlink()
    return {}


def packages() -> dict[str, str]:
    """Versions of what makes and reads the requests."""
    return versions("lm-eval", "transformers", "tokenizers", "datasets")


def done(path: Path, asked: dict[str, Any]) -> bool:
    """Whether a task was finished with the same request before."""
    try:
        return bool(json.loads(path.read_text("utf-8"))["asked"] == asked)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def work(job: Job) -> dict[str, Any]:
    """Ask every task of the request."""
    secret = os.environ.get(KEY, "")
    sys.stdout, sys.stderr = Discreet(sys.stdout, secret), Discreet(sys.stderr, secret)
    request = job.request
    include = request.get("include_path")
    if include:
        os.chdir(include)  # `data_files` of its tasks are relative to it
    job.progress(0, 0, "starting lm-eval")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=include)
    if request.get("list"):
        return {"names": manager.all_tasks, "versions": packages()}
    for asked in request["tasks"]:
        name = asked["task"]
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=3, cutoff=0.6)
            fix = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            return refused(
                f"lm-eval {packages()['lm-eval']} has no task '{name}'",
                f"{fix}tasks of your own are found in evaluate.lm_eval.include_path",
            )
    fix_date(request["date"])
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    unavailable = []
    for asked in request["tasks"]:
        if done(out / f"{asked['task']}.json", asked):
            continue
        problem = ask(job, manager, asked, out)
        if "refused" in problem:
            return problem
        if problem:
            unavailable.append(asked["task"])
    return {"unavailable": unavailable, "versions": packages()}


if __name__ == "__main__":
    main(work)
