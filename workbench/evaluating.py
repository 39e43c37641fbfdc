"""The evaluate step: every suite of one variant, over a server that may die once.

A run holds one server for a variant and the step asks it through the lease; by hand the step starts
its own. Either may die in the middle. Then the step starts another one, once, and asks there what
was not answered; rows that are there stay. A second death ends the step as a serving failure, and
the next run goes on where it stood.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from workbench.context import Context
from workbench.divergence_step import traced
from workbench.divergence_trace import altered as trace_altered
from workbench.errors import MachineError, ServingFailure
from workbench.evaluate import run_suite
from workbench.evaluation_records import NOT_SCORED
from workbench.events import Events
from workbench.lmeval import run_lm_eval
from workbench.plan import StepSpec, left_out
from workbench.progress import Progress
from workbench.records import Evaluation, Manifest, SuiteResult
from workbench.reuse import bring
from workbench.rows import altered, read_rows
from workbench.servers import LOG, Endpoint
from workbench.serving import served
from workbench.store import RECORD, write_atomic

T = TypeVar("T")


class Servers:
    """The server of one step: the one it began with, or the one that took its place.

    Args:
        context: of the run.
        variant: what is served.
        events: of the step; a restart is told there.
    """

    def __init__(self, context: Context, variant: str, events: Events) -> None:
        self._context = context
        self._variant = variant
        self._events = events
        self._stack = contextlib.ExitStack()
        self._folder = context.run.variant(variant) / "server"
        self.endpoint: Endpoint
        self.restarts = 0

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._stack.__exit__(kind, value, trace)

    def over(self, use: Callable[[Endpoint], T]) -> T:
        """Ask something of the server, and again of a second one where it died.

        Args:
            use: asks what has no answer yet; called again after a restart.

        Raises:
            MachineError: it fails and the server lives.
            ServingFailure: it is the second that died.
        """
        while True:
            try:
                return use(self.endpoint)
            except MachineError as failure:  # lm-eval fails as a job where its server died
                if self.endpoint.alive():
                    raise
                self._replace(failure.what, failure)

    def ask(self, use: Callable[[Endpoint], SuiteResult]) -> SuiteResult:
        """Ask a suite; see `over`. The last answers of a dying server are errors, asked again."""
        while True:
            result = self.over(use)
            if not result.failed or self.endpoint.alive():
                return result
            self._replace(f"the server is gone after suite '{result.suite}'", None)

    def _replace(self, what: str, failure: MachineError | None) -> None:
        if self.restarts:
            raise ServingFailure(
                f"the server of variant '{self._variant}' died a second time: {what}",
                where=str(self._folder / LOG),
                fix="read its log, and the first one's beside it; what was answered is kept, the "
                "same command goes on there",
            ) from failure
        self.restarts += 1
        self._events.emit("restart", what=what)
        self._stack.close()
        log = self._folder / LOG
        if log.exists():
            log.replace(log.with_name(f"died.{LOG}"))
        self._open()

    def _open(self) -> None:
        again = served(self._context, self._variant, self._events)
        self.endpoint = self._stack.enter_context(again)


def evaluate_variant(
    context: Context, variant: str, step: StepSpec, made: Manifest, folder: Path
) -> Evaluation:
    """Ask every suite of a variant, of a reference twice where the recipe wants it.

    Args:
        context: of the run.
        variant: its name.
        step: the evaluate step of it.
        made: its manifest.
        folder: of the step's artifact; rows are written there.

    Raises:
        ServingFailure: the server died twice, or does not answer; what it answered is kept.
        RecipeError: a suite cannot be asked of this engine or checkpoint.
    """
    spec, events = context.loaded.recipe.evaluate, context.events.of(step.name)
    begun = time.monotonic()
    if context.facts.left_out:
        events.emit("left out", what=left_out(context.loaded, context.facts))
    spent: dict[str, float] = {}
    with Servers(context, variant, events) as servers:

        def ask(name: str, rows: Path, told: Progress) -> SuiteResult:
            def use(endpoint: Endpoint) -> SuiteResult:
                asked, limit = time.monotonic(), spec.total_seconds
                given = conditions(context, endpoint)
                bring(
                    context.run,
                    variant,
                    context.suites[name],
                    rows,
                    step=step,
                    made=made,
                    serving=endpoint.serving,
                    conditions=given,
                )
                try:
                    return run_suite(
                        endpoint,
                        context.suites[name],
                        context.tokenizer,
                        rows=rows,
                        conditions=given,
                        concurrency=spec.concurrency,
                        limit=spec.limit,
                        request_seconds=spec.request_seconds,
                        # A restart does not give a suite its time again.
                        total_seconds=limit and max(0.0, limit - spent.get(rows.name, 0.0)),
                        judge=spec.judge,
                        progress=told,
                    )
                finally:
                    seconds = time.monotonic() - asked
                    spent[rows.name] = spent.get(rows.name, 0.0) + seconds
                    events.tool(f"ask {name}", seconds)

            result = servers.ask(use)
            if result.failed:
                _tell_unscored(rows, name, events)
            return result

        of_these_weights(folder, made, servers.endpoint.serving.served_digest)
        first = events.progress

        def again(done: float, total: float, what: str) -> None:
            first(done, total, f"{what}, second pass")

        def lm_eval(repeat: bool) -> list[SuiteResult]:
            return servers.over(
                lambda endpoint: run_lm_eval(
                    context,
                    endpoint,
                    folder,
                    conditions(context, endpoint),
                    events,
                    repeat=repeat,
                )
            )

        suites = [ask(name, folder / f"{name}.jsonl", first) for name in context.suites]
        suites += lm_eval(repeat=False)
        repeat: list[SuiteResult] = []
        if step.spec["evaluate"]["noise_floor"]:
            repeat = [ask(name, folder / f"{name}.repeat.jsonl", again) for name in context.suites]
            repeat += lm_eval(repeat=True)
        asked = time.monotonic()
        divergence = servers.over(
            lambda endpoint: traced(context, endpoint, folder, events.progress)
        )
        if divergence:
            events.tool("ask divergence", time.monotonic() - asked)
        serving = servers.endpoint.serving
        return Evaluation(
            id=step.id,
            variant=variant,
            inputs={"weights": made.weights_digest, "served": serving.served_digest},
            serving=serving,
            suites=tuple(suites),
            repeat=tuple(repeat),
            restarts=servers.restarts,
            divergence=divergence,
            seconds=time.monotonic() - begun,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def of_these_weights(folder: Path, made: Manifest, served_digest: str) -> None:
    """Throw away what an unfinished evaluation holds of other weights; the step's id knows none."""
    mark, now = folder / "weights.json", {"weights": made.weights_digest, "served": served_digest}
    text = json.dumps(now)
    if mark.is_file() and mark.read_text("utf-8", "replace") == text:
        return
    for rows in folder.glob("*.jsonl"):
        rows.unlink()
    write_atomic(mark, text.encode())


def throw_away(folder: Path, record: Evaluation) -> None:
    """Throw away what of a finished evaluation was altered, and then its record.

    Nothing can be kept of a file that is not the recorded one: a score in it may be anybody's. What
    is missing is brought from the run's own copy where that is whole, and asked otherwise; so is an
    altered task of lm-eval, whose log no digest covers.
    """
    wrong = altered(folder, record)
    for result in (*record.suites, *record.repeat):
        if result.rows_file in wrong:
            which = "repeat" if result in record.repeat else "first"
            logs = folder.glob(f"lm-eval/{which}-*/samples/{result.suite}.*")
            for path in logs if result.source == "lm-eval" else ():
                path.unlink()
            (folder / result.rows_file).unlink(missing_ok=True)
    if record.divergence and trace_altered(folder, record.divergence):
        (folder / record.divergence.file).unlink(missing_ok=True)
    (folder / RECORD).unlink(missing_ok=True)


def _tell_unscored(rows: Path, suite: str, events: Events) -> None:
    """Say that answers are there which the user's own scorer failed at."""
    errors = [row.error for row in read_rows(rows) if (row.error or "").startswith(NOT_SCORED)]
    if errors:
        events.emit(
            "not scored",
            what=f"{len(errors)} answers of suite '{suite}' are kept without a score: {errors[0]}; "
            "mend the scorer, and workbench rescore needs no model",
        )


def conditions(context: Context, endpoint: Endpoint) -> dict[str, Any]:
    """What of the server must be equal for two results to pair.

    Not the lane: an emulated variant pairs with a baseline that runs natively.
    """
    recipe, serving = context.loaded.recipe, endpoint.serving
    return {
        "engine": serving.engine,
        "engine_version": serving.engine_version,
        "args": list(recipe.serve.args),
        "dtype": serving.dtype.value,
        "max_model_len": serving.max_model_len,
        "hardware": serving.hardware,
        "concurrency": recipe.evaluate.concurrency,
    }
