"""The user's own lm-eval tasks: which there are, which need no network, and what is wrong early.

Everything a task of `include_path` reads must lie in that folder: the folder's digest is part of
the evaluation's identity, so nothing beside it may change a result. Whether lm-eval itself can load
a task is known only in its own environment; here is what its YAML tells without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from workbench.digest import content_id, sha256_file
from workbench.errors import RecipeError
from workbench.yaml_file import BoundedLoader

if TYPE_CHECKING:
    from workbench.recipe import Loaded

#: Loaders of `datasets` that read files.
FILE_LOADERS = frozenset({"json", "csv", "parquet", "text", "arrow"})
#: Files that one task may include, and how deep.
MOST_INCLUDED = 100
MOST_DEEP = 8


@dataclass(frozen=True)
class LocalTask:
    """A task or group of the user's folder, as its YAML says.

    Attributes:
        name: as a recipe writes it.
        file: its YAML.
        config: its keys, `include` merged in.
        members: of a group or tag; empty for a task.
    """

    name: str
    file: Path
    config: dict[str, Any] = field(default_factory=dict)
    members: tuple[str, ...] = ()

    @property
    def likelihood(self) -> bool:
        """Whether it is ranked by log-probabilities of the prompt."""
        return not self.members and self.config.get("output_type") != "generate_until"

    @property
    def files(self) -> tuple[str, ...]:
        """What `data_files` names."""
        options = self.config.get("dataset_kwargs")
        return tuple(_texts(options.get("data_files") if isinstance(options, dict) else None))

    @property
    def offline(self) -> bool:
        """Whether its documents are files on this disk."""
        return self.config.get("dataset_path") in FILE_LOADERS and not any(
            "://" in name for name in self.files
        )


def include_folder(loaded: Loaded) -> Path | None:
    """The folder of the user's tasks, or None where the recipe names none.

    Raises:
        RecipeError: it is not there.
    """
    spec = loaded.recipe.evaluate.lm_eval
    if spec is None or spec.include_path is None:
        return None
    folder = (loaded.source.parent / Path(spec.include_path).expanduser()).resolve()
    if not folder.is_dir():
        raise RecipeError(
            f"the folder of lm-eval tasks '{spec.include_path}' is not there",
            where=f"{loaded.source}: evaluate.lm_eval.include_path",
            fix=f"looked for {folder}; paths are relative to the recipe file",
        )
    return folder


def folder_digest(folder: Path) -> str:
    """Digest of every file in the folder; what Python compiles of it is left out."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return content_id({p.relative_to(folder).as_posix(): sha256_file(p) for p in files})


def local_tasks(folder: Path) -> dict[str, LocalTask]:
    """Tasks, groups and tags of a folder, by name.

    Raises:
        RecipeError: a file is not YAML, includes too much, or names a data file outside the folder
            or one that is not there.
    """
    found: dict[str, LocalTask] = {}
    tags: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        config = _read(path)
        name = config.get("task")
        members: tuple[str, ...] = ()
        if isinstance(config.get("group"), str):
            name, members = config["group"], tuple(_texts(config.get("task")))
        if not isinstance(name, str):
            continue  # a part that others include
        found[name] = LocalTask(name, path, config, members)
        for tag in _texts(config.get("tag")):
            tags.setdefault(tag, []).append(name)
        _check_files(found[name], folder)
    for tag, names in tags.items():
        found.setdefault(tag, LocalTask(tag, folder, {}, tuple(names)))
    return found


def leaves(name: str, tasks: dict[str, LocalTask]) -> Iterator[LocalTask | None]:
    """The tasks a name stands for; None for one that is not in the folder."""
    waiting, seen = [name], set()
    while waiting:
        one = tasks.get(word := waiting.pop())
        if word in seen:
            continue
        seen.add(word)
        if one is None or not one.members:
            yield one
        else:
            waiting += one.members


def is_offline(name: str, tasks: dict[str, LocalTask]) -> bool:
    """Whether asking this task needs no network."""
    return all(one is not None and one.offline for one in leaves(name, tasks))


def most_documents(loaded: Loaded) -> dict[str, int]:
    """Task of the recipe -> the most documents its limit lets it ask; only of tasks of the folder.

    Raises:
        RecipeError: the folder or a file of it cannot be read.
    """
    spec, include = loaded.recipe.evaluate.lm_eval, include_folder(loaded)
    if spec is None or include is None:
        return {}
    found, local = {}, local_tasks(include)
    for task in spec.tasks:
        members = list(leaves(task.task, local))
        if task.limit is not None and all(members):
            found[task.task] = task.limit * len(members)
    return found


def _check_files(task: LocalTask, folder: Path) -> None:
    for name in task.files if task.config.get("dataset_path") in FILE_LOADERS else ():
        path = (folder / name).resolve()
        where = f"{task.file}: dataset_kwargs.data_files"
        if "://" in name or any(c in name for c in "*?["):
            continue
        if not path.is_relative_to(folder):
            raise RecipeError(
                f"task '{task.name}' reads '{name}', which lies outside its folder",
                where=where,
                fix="put it into include_path: what lies there is part of the run's identity",
            )
        if not path.is_file():
            raise RecipeError(
                f"task '{task.name}' reads '{name}', which is not there",
                where=where,
                fix=f"paths of data_files are relative to include_path: {folder}",
            )


def _texts(value: Any) -> list[str]:
    """Every text in a value of YAML, however nested; of a mapping with `task`, that one."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        inner = [value["task"]] if "task" in value else list(value.values())
        return [text for one in inner for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return []


class _Loader(BoundedLoader):
    """The bounded loader, taking lm-eval's own tags (`!function`) for texts."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix} {node.value}")


def _read(path: Path, depth: int = 0, met: list[Path] | None = None) -> dict[str, Any]:
    """One file's keys over those of the files it includes.

    Args:
        path: of the file.
        depth: of inclusion; below `MOST_DEEP` it is read no further.
        met: files read so far for one task, each as often as it was included.

    Raises:
        RecipeError: it is not YAML, or the task includes more than `MOST_INCLUDED` files.
    """
    met = [] if met is None else met
    met.append(path)
    if len(met) > MOST_INCLUDED + 1:
        raise RecipeError(
            f"the task includes more than {MOST_INCLUDED} files, each counted as often as another "
            "includes it",
            where=f"{met[0]}: include",
            fix=f"include each file once: files that include one another, as {path.name} is, "
            "multiply",
        )
    try:
        value = yaml.load(path.read_text("utf-8-sig"), Loader=_Loader)
    except yaml.MarkedYAMLError as bad:
        line = bad.problem_mark.line + 1 if bad.problem_mark else 1
        raise RecipeError(
            f"not valid YAML: {bad.problem}", where=f"{path}:{line}", fix="mend that line"
        ) from None
    except (OSError, yaml.YAMLError, ValueError, TypeError, RecursionError) as bad:
        raise RecipeError(
            f"a task of lm-eval cannot be read: {bad}", where=str(path), fix="mend the file"
        ) from None
    config = {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
    merged: dict[str, Any] = {}
    for name in _texts(config.get("include")) if depth < MOST_DEEP else ():
        included = path.parent / name
        if included.is_file():
            merged |= _read(included, depth + 1, met)
    return merged | config
