"""Everything a step needs to know, gathered once: recipe, run, checkpoint, machine, environments.

`open_run` is what each notebook calls first. It reads files and asks the machine; the ids and the
plan that follow from it are computed in `workbench.plan`.
"""

from __future__ import annotations

import datetime
import shlex
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workbench import envs
from workbench.base import BASELINE
from workbench.calibration_spec import HubSource
from workbench.checkpoint import inspect
from workbench.clusters import Grouping
from workbench.digest import content_id, sha256_file
from workbench.drafts import draft_digests
from workbench.errors import CheckpointError, RecipeError, StoreError, SuiteError
from workbench.evaluate import check_judge
from workbench.events import Events
from workbench.hardware import detect
from workbench.lmeval_tasks import folder_digest, include_folder, most_documents
from workbench.plan import Facts, StepSpec, build, step_specs, variant_lane
from workbench.power import Power, power
from workbench.quantizers import quantizer
from workbench.questions import answer_tokens
from workbench.recipe import Loaded, find_project, load_lock, load_recipe, spot
from workbench.records import Environment, Gate, Plan
from workbench.store import Results, Run, read_record
from workbench.suite_spec import CADENCES, Cadence
from workbench.suites import Suite, cluster_of, find_suite, load_suite
from workbench.tokenizer import Tokenizer
from workbench.traces import TraceRow, last_time, read_trace
from workbench.variants import AnyVariant

#: What of a hub repository is fetched: no pickle and no code; its card, for licence and base model.
HUB_FILES = (
    *("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "README.md"),
    *("LICEN[CS]E*", "NOTICE*", "COPYING*", "USE_POLICY*", "ACCEPTABLE_USE*"),
)


@dataclass(frozen=True)
class Context:
    """One run and what it stands on. What is expensive to know is found out when first asked."""

    loaded: Loaded
    run: Run

    def __repr__(self) -> str:
        """Which run this is: the line below the cell of a notebook that opened it."""
        return f"run '{self.run.name}' of {self.loaded.source}, kept in {self.run.path}"

    @cached_property
    def today(self) -> datetime.date:
        """The day this run was opened, UTC, so that one at midnight has one and not two."""
        return datetime.datetime.now(datetime.UTC).date()

    @cached_property
    def model_path(self) -> Path:
        """Folder of the unquantized checkpoint."""
        return self.loaded.model_path or _fetch(self.loaded)

    @cached_property
    def suites(self) -> dict[str, Suite]:
        """The recipe's suites by name, those left out that are worth their time less often.

        Raises:
            SuiteError: one is missing or broken.
            RecipeError: all of them are left out, or one needs a judge and there is none.
        """
        wanted = self.loaded.recipe.evaluate.cadence
        kept = {n: s for n, s in self._suites.items() if not _rarer(s.spec.cadence, wanted)}
        if not kept:
            raise RecipeError(
                f"every suite is worth its time less often than at each {wanted}",
                where=f"{self.loaded.source}: evaluate.cadence",
                fix="raise evaluate.cadence, or name a suite with the cadence 'commit'",
            )
        for suite in kept.values():
            check_judge(suite, self.loaded.recipe.evaluate.judge)
        return kept

    @cached_property
    def _suites(self) -> dict[str, Suite]:
        folder = self.loaded.project / "eval_suites"
        found = {}
        for name in self.loaded.recipe.evaluate.suites:
            try:
                path = find_suite(name, folder)
            except SuiteError as error:
                where = spot(self.loaded.source, f"evaluate.suites: {name}")
                raise SuiteError(error.what, where=where, fix=error.fix) from None
            found[name] = load_suite(path)
        return found

    @cached_property
    def traces(self) -> dict[str, tuple[TraceRow, ...]]:
        """The traces that workloads of the recipe replay, by workload.

        Raises:
            UserError: one is missing or broken.
        """
        return {name: read_trace(path) for name, path in self._trace_files.items()}

    @property
    def _trace_files(self) -> dict[str, Path]:
        profile, folder = self.loaded.recipe.profile, self.loaded.source.parent
        found = {}
        for workload in profile.workloads if profile else ():
            if workload.trace is not None:
                path = (folder / Path(workload.trace)).resolve()
                if not path.is_file():
                    what = "is no file" if path.exists() else "is not there"
                    raise RecipeError(
                        f"the trace '{workload.trace}' of workload '{workload.name}' {what}",
                        where=spot(self.loaded.source, "profile.workloads"),
                        fix=f"looked for {path}: paths are relative to the recipe file",
                    )
                found[workload.name] = path
        return found

    @cached_property
    def load_suites(self) -> dict[str, Suite]:
        """The suites that workloads of the recipe ask, by workload.

        Raises:
            UserError: one is missing or broken.
        """
        profile, folder = self.loaded.recipe.profile, self.loaded.project / "eval_suites"
        return {
            workload.name: self._suites.get(workload.suite)
            or load_suite(find_suite(workload.suite, folder))
            for workload in (profile.workloads if profile else ())
            if workload.suite is not None
        }

    @cached_property
    def facts(self) -> Facts:
        """What the world says: checkpoint, machine, locks, suites.

        Raises:
            UserError: a checkpoint, a suite or a calibration source is missing or broken.
        """
        loaded = self.loaded
        cache = self.run.results.root / ".cache" / "digests.json"
        try:
            checkpoint = inspect(self.model_path, cache=cache)
        except (
            *(TypeError, KeyError, AttributeError, ValueError, RecursionError, OSError),
        ) as error:
            raise CheckpointError(
                f"a file of the checkpoint holds what it should not: {error!r}",
                where=str(self.model_path),
                fix="save it again with save_pretrained, safe_serialization=True",
            ) from error
        machine = detect()
        source = None
        calibration = loaded.recipe.calibration
        divergence = loaded.recipe.evaluate.divergence
        if calibration and (
            any(loaded.recipe.calibrates(v) for v in loaded.recipe.variants)
            or (divergence and divergence.held_out)
        ):
            if isinstance(calibration.source, HubSource):
                source = content_id(calibration.source.model_dump())  # a commit does not move
            else:
                found = loaded.calibration_source
                source = sha256_file(found) if found else None
        tasks = include_folder(loaded)
        return Facts(
            checkpoint=checkpoint,
            hardware=machine,
            locks={
                name: envs.lock_digest(name, machine.target) for name in envs.names(machine.target)
            },
            suites={name: suite.digest for name, suite in self.suites.items()},
            suite_sizes={
                name: (len(s.samples), s.spec.repeats * answer_tokens(s.spec))
                for name, s in self.suites.items()
            },
            suite_specs={name: suite.spec for name, suite in self.suites.items()},
            suite_groupings={
                name: grouping
                for name, suite in self.suites.items()
                if (grouping := _grouping(suite, loaded.recipe.evaluate.limit))
            },
            source_digest=source,
            left_out={n: s.spec.cadence for n, s in self._suites.items() if n not in self.suites},
            tasks_digest=folder_digest(tasks) if tasks else None,
            load_inputs={
                **{name: sha256_file(path) for name, path in self._trace_files.items()},
                **{name: suite.digest for name, suite in self.load_suites.items()},
            },
            trace_seconds={name: last_time(path) for name, path in self._trace_files.items()},
            drafts=draft_digests(loaded, cache),
        )

    @property
    def command(self) -> str:
        """What to type to go on with this very run, for messages: its name is said if it must be.

        A recipe without `--run` is the run of the recipe's own name.
        """
        run, name = self.run.name, self.loaded.recipe.name
        words = ["workbench", "run", str(self.loaded.source), *(["--run", run] * (run != name))]
        if self.run.results.root != (self.loaded.project / "results").resolve():
            words += ["--results", str(self.run.results.root)]
        return shlex.join(words)

    @property
    def events(self) -> Events:
        """The run's event file."""
        return Events(self.run.events)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The unquantized checkpoint's tokenizer and chat template; every variant uses them."""
        return Tokenizer.load(self.model_path)

    @cached_property
    def specs(self) -> dict[str, StepSpec]:
        """Steps by name, the gate left out."""
        return {s.name: s for s in step_specs(self.loaded, self.facts)}

    def spec(self, name: str) -> StepSpec:
        """The step of that name with its id.

        Raises:
            RecipeError: the recipe has no such step.
        """
        if name not in self.specs:
            raise RecipeError(
                f"the recipe has no step '{name}'",
                where=str(self.loaded.source),
                fix=f"steps: {', '.join([*self.specs, 'gate'])}",
            )
        return self.specs[name]

    def variant(self, name: str) -> AnyVariant:
        """A variant by name; empty means the first one that is not the baseline.

        Raises:
            RecipeError: there is none of that name.
        """
        try:
            return self.loaded.recipe.variant(name or self.loaded.recipe.variants[0].name)
        except KeyError:
            names = ", ".join(v.name for v in self.loaded.recipe.all_variants)
            raise RecipeError(
                f"the recipe has no variant '{name}'",
                where=str(self.loaded.source),
                fix=f"variants: {names}",
            ) from None

    def plan(self) -> Plan:
        """Steps, what is cached and why."""
        return build(self.loaded, self.facts, self.run, self.today)

    def power(self) -> list[Power]:
        """What each gated suite can show, by the spread of the run's last verdict if it has one."""
        try:
            earlier = read_record(self.run.gate, Gate)
        except StoreError:
            earlier = None
        return power(self.loaded, self.facts, earlier, most_documents(self.loaded))

    def environments(self) -> list[str]:
        """Names of the isolated environments the recipe needs on this machine."""
        recipe = self.loaded.recipe
        made = [v for v in recipe.all_variants if v.name != BASELINE]
        names = {name for v in made for name in quantizer(v.method).environments(v)}
        names |= {recipe.engine(v) for v in recipe.all_variants} - {"fake"}
        if any(
            variant_lane(self.loaded, v, self.facts).name == "emulated" for v in recipe.variants
        ):
            names.add("quantize")
        if recipe.evaluate.lm_eval:
            names.add("lmeval")
        return sorted(names)

    def environment(self, name: str, events: Events) -> Environment:
        """An environment, created now if it is needed for the first time.

        Raises:
            EnvironmentFailure: it could not be made or verified.
        """
        begun = time.monotonic()
        made = not envs.is_ready(name, self.facts.hardware.target)
        environment = envs.ensure(name, self.facts.hardware.target, events.progress)
        if made:
            events.tool(f"create environment {name}", time.monotonic() - begun)
        return environment


def _grouping(suite: Suite, limit: int | None) -> Grouping | None:
    return Grouping.of([cluster_of(suite.spec, sample) for sample in suite.samples[:limit]])


def _rarer(cadence: Cadence, wanted: Cadence) -> bool:
    return CADENCES.index(cadence) > CADENCES.index(wanted)


def _fetch(loaded: Loaded) -> Path:
    """Download a hub checkpoint at its revision, safetensors and text files only.

    Not yet run against a hub: no machine this was built on reaches one.
    """
    from huggingface_hub import snapshot_download

    model = loaded.recipe.model
    assert model.hub is not None
    try:
        folder = snapshot_download(
            model.hub,
            revision=model.revision,
            allow_patterns=list(HUB_FILES),
        )
    except Exception as error:
        raise RecipeError(
            f"the checkpoint {model.hub}@{model.revision} could not be fetched: {error}",
            where=f"{loaded.source}: model.hub",
            fix="check name, revision and your hub token, or give a local folder as model.path",
        ) from error
    return Path(folder)


def new_run(recipe: Path, run: str = "", results: Path | None = None) -> Context:
    """Load a recipe, and name the run it belongs to. Writes nothing.

    Args:
        recipe: the recipe file.
        run: name of the run; empty means the recipe's own name.
        results: results folder; default is `results/` of the project.

    Raises:
        UserError: anything wrong in what the user wrote or named.
    """
    loaded = load_recipe(recipe)
    store = Results(results or loaded.project / "results")
    return Context(loaded, store.run(run or loaded.recipe.name))


def open_run(run: str = "", results: Path | None = None) -> Context:
    """Open a run that exists.

    Args:
        run: its name or its folder; empty means the last run.
        results: results folder; default is `results/` of the project the working folder is in.

    Raises:
        StoreError: there is no such run.
    """
    found = find_run(run, results)
    return Context(load_lock(found.recipe_lock), found)


def find_run(run: str = "", results: Path | None = None) -> Run:
    """The folder of a run that exists; arguments and errors as of `open_run`."""
    if "/" in run:
        folder = Path(run).resolve()
        store, name = Results(folder.parent), folder.name
    else:
        store, name = Results(results or find_project(Path.cwd()) / "results"), run
    return store.existing_run(name)


def opened(run: str | Path | Context = "") -> Context:
    """A run however it is named: opened already, by name or folder, or the last one.

    Raises:
        RecipeError: it is nothing that names a run.
        StoreError: there is no such run.
    """
    if isinstance(run, Context):
        return run
    if not isinstance(run, str | Path):
        raise RecipeError(
            f"{run!r} names no run",
            where="run",
            fix="give its name, its folder, an opened run, or nothing for the last one",
        )
    return open_run(str(run.resolve()) if isinstance(run, Path) else run)
