"""Load YAML into specs, and say precisely what is wrong where.

Every complaint names the file and the line, the key, and the nearest known key. Paths inside a
recipe are relative to the recipe file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from workbench.calibration_spec import HubSource
from workbench.complaints import line_of_key, problem
from workbench.digest import content_id
from workbench.errors import RecipeError, UserError, did_you_mean
from workbench.sources import hub_cached, resolve_source
from workbench.spec import Policy, Recipe
from workbench.yaml_file import read_yaml

T = TypeVar("T", bound=BaseModel)

#: Checkpoints the workbench can build itself, by folder name.
_DEMOS = {"SmolLM2-135M-Instruct": "workbench demo", "tiny": "workbench demo --tiny"}
LOCK_SCHEMA = "workbench.recipe-lock/1"
#: Problems of one file that are listed; the rest is counted.
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Loaded:
    """A recipe with everything it refers to found.

    Attributes:
        recipe: as written.
        policy: the policy it names.
        source: the recipe file.
        project: folder that holds `eval_suites/` and `calib_data/`.
        model_path: folder of the unquantized checkpoint; None while a hub model is not fetched.
        locked_digest: of recipe and policy as a run's lock has them; empty where read from files.
    """

    recipe: Recipe
    policy: Policy
    source: Path
    project: Path
    model_path: Path | None
    locked_digest: str = field(default="", compare=False)

    @property
    def digest(self) -> str:
        """Content id of the recipe and its policy.

        Of a run's lock it is that of its text: a field that came since, with its default, does not
        make an old run another one.
        """
        if self.locked_digest:
            return self.locked_digest
        return content_id({"recipe": _dump(self.recipe), "policy": _dump(self.policy)})

    @property
    def calibration_source(self) -> Path | None:
        """File of the calibration source: beside the recipe, or a folder of `calib_data/`.

        None without a calibration, and of a hub dataset that is not in the hub's cache yet.

        Raises:
            CalibrationError: there is no such source.
        """
        if self.recipe.calibration is None:
            return None
        name = self.recipe.calibration.source
        if isinstance(name, HubSource):
            return hub_cached(name)
        beside = self.source.parent / _home(name)
        return (
            beside if beside.is_file() else resolve_source(name, self.project, self.source.parent)
        )

    @property
    def policy_digest(self) -> str:
        """Content id of the policy alone."""
        return digest_of(self.policy)


def digest_of(policy: Policy) -> str:
    """Content id of a policy."""
    return content_id(_dump(policy))


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)


def load_spec(path: Path, cls: type[T], error: type[UserError] = RecipeError) -> T:
    """Read a YAML file into a spec.

    Raises:
        UserError: of the class given, listing every problem found with its line and key.
    """
    value, node = read_yaml(path, error)
    if not isinstance(value, dict):
        raise error(
            "the file holds no mapping of keys",
            where=str(path),
            fix=f"see the keys of {cls.__name__}",
        )
    try:
        return cls.model_validate(value)
    except ValidationError as bad:
        details = bad.errors()
        # A broken item also leaves its list too short; only the item is worth saying.
        broken = {d["loc"][:1] for d in details if d["type"] != "too_short"}
        details = [d for d in details if d["type"] != "too_short" or d["loc"][:1] not in broken]
        problems = [problem(detail, cls, node) for detail in details[:_MOST_PROBLEMS]]
        left = len(details) - len(problems)
        if len(problems) == 1:
            what, line, fix = problems[0]
            raise error(what, where=f"{path}:{line}", fix=fix) from None
        listing = "\n".join(
            f"  line {line}: {what}{f' ({fix.strip()})' if fix else ''}"
            for what, line, fix in problems
        )
        listing += f"\n  and {left} more" if left else ""
        raise error(
            f"{len(details)} problems:\n{listing}", where=str(path), fix="mend each line named"
        ) from None


def spot(path: Path, key: str) -> str:
    """Where a key stands, as ``file:line: key``; without the line where it is not in the file."""
    try:
        line = line_of_key(key, read_yaml(path)[1])
    except (UserError, OSError):
        line = None
    return f"{path}:{line}: {key}" if line else f"{path}: {key}"


@contextlib.contextmanager
def located(source: Path) -> Iterator[None]:
    """Let an error that names a key of a recipe name the recipe and the line, too.

    Args:
        source: the recipe file.
    """
    try:
        yield
    except UserError as error:
        found = _AT_KEY.fullmatch(error.where)
        # Whoever raised it may have found the line already.
        if found and not str(found["file"]).startswith(f"{source}:"):
            before = f"{found['file']}; " if found["file"] not in (None, str(source)) else ""
            error.where = before + spot(source, found["key"])
        raise


#: What errors point at that do not know the file: a key, after a file or alone.
_AT_KEY = re.compile(
    r"(?:(?P<file>.+?)[;:] )?(?P<key>(?:model|calibration|variants|serve|evaluate)\b(?!/).*)"
)


def find_project(start: Path) -> Path:
    """The nearest folder upwards that holds `eval_suites/` and `calib_data/`.

    Raises:
        RecipeError: there is none up to the root of the disk.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "eval_suites").is_dir() and (folder / "calib_data").is_dir():
            return folder
    raise RecipeError(
        "not inside a workbench project: no folder upwards holds eval_suites/ and calib_data/",
        where=str(start),
        fix="work inside the project, your clone of the workbench: recipes live in a folder of it, "
        "such as my/",
    )


def load_recipe(path: Path) -> Loaded:
    """Load a recipe and its policy, and find the project and the checkpoint they speak of.

    Raises:
        RecipeError: anything wrong in either file, or a file that is missing.
    """
    folder = path.resolve().parent
    # First: mending a file that stands in the wrong place would be in vain.
    project = find_project(folder) if path.is_file() else None
    recipe = load_spec(path, Recipe)
    policy_path = folder / recipe.policy
    if not policy_path.exists():
        near = (
            [p.name for p in policy_path.parent.glob("*.y*ml")]
            if policy_path.parent.is_dir()
            else []
        )
        raise RecipeError(
            f"the policy file '{recipe.policy}' is not there",
            where=spot(path, "policy"),
            fix=did_you_mean(policy_path.name, near)
            + "paths in a recipe are relative to the recipe file",
        )
    policy = load_spec(policy_path, Policy)
    project = project or find_project(folder)
    return Loaded(recipe, policy, path.resolve(), project, _model_path(recipe, path, project))


def load_model(path: Path) -> tuple[Recipe, Path | None]:
    """A recipe and the folder of its checkpoint, None while it is on a hub; the policy is not read.

    Raises:
        RecipeError: anything wrong in the recipe, or there is no such folder.
    """
    project = find_project(path.resolve().parent) if path.is_file() else None
    recipe = load_spec(path, Recipe)
    return recipe, _model_path(recipe, path, project or find_project(path.resolve().parent))


def _home(name: str) -> Path:
    """A path with its leading '~' resolved, where there is such a user."""
    with contextlib.suppress(RuntimeError):
        return Path(name).expanduser()
    return Path(name)


def _model_path(recipe: Recipe, path: Path, project: Path) -> Path | None:
    if recipe.model.path is None:
        return None
    folder = path.resolve().parent
    found = (folder / _home(recipe.model.path)).resolve()
    if found.is_file():
        raise RecipeError(
            f"'{recipe.model.path}' is a file, and a checkpoint is a folder",
            where=spot(path, "model.path"),
            fix=f"name the folder that holds config.json and the weights: {found.parent}",
        )
    if not found.is_dir():
        build, built = _DEMOS.get(found.name), project / "results" / "checkpoints" / found.name
        fix = "paths are relative to the recipe file"
        if build and built.is_dir():
            fix += f": write 'path: {os.path.relpath(built, folder)}'"
        elif build and found == built.resolve():
            fix = f"build it with: {build}"
        raise RecipeError(
            f"the checkpoint folder '{recipe.model.path}' is not there: looked for {found}",
            where=spot(path, "model.path"),
            fix=fix,
        )
    return found


def dump_lock(loaded: Loaded) -> bytes:
    """`recipe.lock.yaml`: recipe, policy and resolved paths; a run goes on from it alone."""
    data = {
        "schema": LOCK_SCHEMA,
        "source": str(loaded.source),
        "project": str(loaded.project),
        "model_path": str(loaded.model_path) if loaded.model_path else None,
        "recipe": _dump(loaded.recipe),
        "policy": _dump(loaded.policy),
    }
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100).encode()


def load_lock(path: Path) -> Loaded:
    """Read `recipe.lock.yaml` back.

    Raises:
        RecipeError: it is missing, damaged, or from another version.
    """
    value, _ = read_yaml(path)
    if not isinstance(value, dict) or value.get("schema") != LOCK_SCHEMA:
        raise RecipeError(
            "this is not a recipe lock this version can read",
            where=str(path),
            fix="start the run again from its recipe",
        )
    try:
        return Loaded(
            Recipe.model_validate(value["recipe"]),
            Policy.model_validate(value["policy"]),
            Path(value["source"]),
            Path(value["project"]),
            Path(value["model_path"]) if value["model_path"] else None,
            content_id({"recipe": value["recipe"], "policy": value["policy"]}),
        )
    except ValidationError as bad:
        what, _, _ = problem(bad.errors()[0], Policy if bad.title == "Policy" else Recipe, None)
        said = f"its {bad.title.lower()}: {what}"
    except KeyError as bad:
        said = f"{bad} is missing"
    except (TypeError, ValueError):
        said = "a value is not of its kind"
    raise RecipeError(
        f"the recipe lock is damaged, or of another version: {said}",
        where=str(path),
        fix="start the run again from its recipe, or read it with the version that wrote it",
    )


def changed_since(loaded: Loaded) -> str:
    """What is to be said of the files that a lock came from: empty where they say the same.

    A recipe that is gone is none to speak of: runs are looked at far from where they were made.
    """
    if not loaded.source.exists():
        return ""
    try:
        recipe = load_spec(loaded.source, Recipe)
    except (RecipeError, OSError):
        return f"recipe {loaded.source} cannot be read any more"
    path = loaded.source.parent / recipe.policy
    try:
        policy = load_spec(path, Policy)
    except (RecipeError, OSError):
        return f"policy {path} cannot be read any more"
    same = (recipe, policy) == (loaded.recipe, loaded.policy)
    return "" if same else "recipe or policy changed since"
