"""Draft models of speculative decoding: which a recipe names, and the digests of their files.

How fast a server is depends on its draft as it does on its own weights. So a draft's files are
digested as a checkpoint's are: the digest is in the id of what is measured with it and in the
record of how it was served, and another draft under the same name is measured again.

A draft is a folder, named by its absolute path, or a model in the hub's cache on this disk: servers
fetch nothing. A method that guesses from the text alone (`ngram`), or by layers of the model itself
(`mtp` without a `model`), has none. Keys and flags are those of vLLM 0.32's `SpeculativeConfig`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench.checkpoint import digests
from workbench.digest import content_id
from workbench.errors import RecipeError, StoreError
from workbench.recipe import Loaded, spot
from workbench.spec import Recipe
from workbench.sweep_grid import KNOWN
from workbench.sweep_spec import ServingOptions

#: Methods that look at no `model`, and what stands for the first of them in its place.
_WITHOUT = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")
_HUB = re.compile(r"\w[\w.-]*/[\w.-]+")
_ARGS, _SWEEP = "serve.args", "profile.sweep.speculative"


class Draft(NamedTuple):
    """A draft model as a recipe names it.

    Attributes:
        model: a folder's absolute path, or a hub id.
        revision: of a hub model; None: the one its cache calls the current one.
        key: of the recipe that names it.
    """

    model: str
    revision: str | None
    key: str

    @property
    def label(self) -> str:
        """What records call it."""
        return f"{self.model}@{self.revision}" if self.revision else self.model


def named(recipe: Recipe, engine: str, options: ServingOptions | None = None) -> tuple[Draft, ...]:
    """The drafts of a server under the recipe's own configuration, or with options of a sweep."""
    if "speculative" not in KNOWN[engine]:
        return ()  # it is given neither
    configs = [(_ARGS, _of_args(recipe.serve.args))]
    if options is not None and options.speculative is not None:
        configs.append((_SWEEP, options.speculative))
    return tuple(draft for key, config in configs if (draft := _draft(config, key)))


def swept(recipe: Recipe, engine: str) -> tuple[Draft, ...]:
    """The drafts the recipe's sweep names."""
    sweep = recipe.profile.sweep if recipe.profile else None
    configs = sweep.speculative if sweep and "speculative" in KNOWN[engine] else ()
    return tuple(d for config in configs if config and (d := _draft(config, _SWEEP)))


def in_id(drafts: Sequence[Draft], known: Mapping[str, str]) -> dict[str, Any]:
    """What drafts add to a step's id: nothing where there are none.

    Args:
        drafts: of the step.
        known: digests by label.
    """
    return {"drafts": {d.label: known.get(d.label) for d in drafts}} if drafts else {}


def draft_digests(loaded: Loaded, cache: Path) -> dict[str, str]:
    """Digest of every draft the recipe names, by label.

    Args:
        loaded: the recipe.
        cache: JSON file of digests, as `workbench.checkpoint.digests` keeps it.

    Raises:
        RecipeError: one is not there, or its name would mean different folders.
    """
    engine = loaded.recipe.serve.engine
    drafts = (*named(loaded.recipe, engine), *swept(loaded.recipe, engine))
    return {draft.label: _digest(draft, loaded.source, cache) for draft in drafts}


def served_drafts(
    loaded: Loaded,
    engine: str,
    options: ServingOptions | None,
    *,
    known: Mapping[str, str],
    cache: Path,
) -> dict[str, str]:
    """Digests of the drafts a server is about to load, by label.

    Args:
        loaded: the recipe.
        engine: that serves.
        options: of a sweep; None: the recipe's own configuration.
        known: digests by label, as the ids of this run have them.
        cache: see `draft_digests`.

    Raises:
        RecipeError: one is not there any more.
        StoreError: one is not the one the ids speak of.
    """
    found = {}
    for draft in named(loaded.recipe, engine, options):
        found[draft.label] = _digest(draft, loaded.source, cache)
        if found[draft.label] != known.get(draft.label):
            raise StoreError(
                f"the files of the draft model '{draft.label}' changed since the run was opened",
                where=spot(loaded.source, draft.key),
                fix="run the same command again: what was measured with the others stays theirs",
            )
    return found


def _draft(config: Mapping[str, Any], key: str) -> Draft | None:
    # vLLM takes a dash for an underscore here.
    given = {str(name).replace("-", "_"): value for name, value in config.items()}
    model, revision = given.get("model"), given.get("revision")
    if not isinstance(model, str) or not model or given.get("method", model) in _WITHOUT:
        return None
    return Draft(model, revision if isinstance(revision, str) else None, key)


def _of_args(args: Sequence[str]) -> dict[str, Any]:
    """The speculative config that arguments make: as JSON, by its parts, or by flags of its own."""
    config: dict[str, Any] = {}
    for place, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        flag, _, part = name.partition(".")
        if not equals:
            value = args[place + 1] if place + 1 < len(args) else ""
        for key in _parts(flag.replace("_", "-"), part):
            config |= _read(value) if key == "" else {key: value}
    return config


def _parts(flag: str, part: str) -> Iterator[str]:
    """Which key of the config a flag sets; an empty one: all of it."""
    flags = {"--speculative-config": part, "--spec-model": "model", "--spec-method": "method"}
    if flag == "-sc":
        yield part
    for name, key in flags.items():  # argparse takes the beginning of a flag for the whole
        if flag == name or (len(flag) > len("--spec") and name.startswith(flag)):
            yield key


def _read(value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        return {}  # the server will say so, and not start
    return found if isinstance(found, dict) else {}


def _digest(draft: Draft, recipe: Path, cache: Path) -> str:
    files = digests(_folder(draft, recipe), cache)
    if not files:
        raise _refused(draft, recipe, "holds no file", "fetch its files")
    return content_id(files)


def _folder(draft: Draft, recipe: Path) -> Path:
    path = Path(draft.model)
    if path.is_absolute():
        if not path.is_dir():
            what = "is a file" if path.exists() else "is not there"
            raise _refused(draft, recipe, what, "name the folder of its config.json and weights")
        return path
    near = next((p for p in (recipe.parent / path, path) if p.exists()), None)
    if near is not None or not _HUB.fullmatch(draft.model):
        raise _refused(
            draft,
            recipe,
            "is named by a relative path: a server looks for it wherever it was started",
            f"write its absolute path{f', {near.resolve()}' if near else ''}",
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(draft.model, revision=draft.revision, local_files_only=True))
    except Exception as error:  # the hub's client raises dozens of unrelated classes
        raise _refused(
            draft,
            recipe,
            "is not in the hub's cache on this disk, and a server fetches nothing",
            f"fetch it (hf download {draft.model}), or name its folder by its absolute path",
        ) from error


def _refused(draft: Draft, recipe: Path, what: str, fix: str) -> RecipeError:
    return RecipeError(
        f"the draft model '{draft.label}' {what}", where=spot(recipe, draft.key), fix=fix
    )
