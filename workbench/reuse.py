"""Answers a run has already: a suite that did not change is not asked again when another one did.

The id of an evaluate step covers every suite of the recipe, so one more suite makes it a new step.
What the run's last evaluation of the variant holds is brought over where nothing differs that an
answer or its score depends on: weights, what was served, the server's conditions, the suite itself.
Each row is then looked at once more by `workbench.rows.keep_rows`. It asks nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.plan import StepSpec
from workbench.records import Evaluation, Manifest, Serving
from workbench.rows import meant, read_rows
from workbench.store import Run, read_marked
from workbench.suites import Suite


def bring(
    run: Run,
    variant: str,
    suite: Suite,
    rows: Path,
    *,
    step: StepSpec,
    made: Manifest,
    serving: Serving,
    conditions: Mapping[str, Any],
) -> bool:
    """Copy the run's own rows of a suite to where an evaluation is going to keep them.

    Args:
        run: whose published evaluation is looked at.
        variant: its name.
        suite: as it is now.
        rows: the file to be; one that is there is left alone.
        step: the evaluate step that is going to keep them.
        made: of the variant.
        serving: the server that would be asked.
        conditions: of that server, as `workbench.evaluating.conditions` gives them.

    Returns:
        True where rows were copied. Which of them are still good is for `keep_rows` to say.
    """
    published = run.published("evaluate", variant)
    if rows.exists() or not published.is_file():
        return False
    try:
        before = read_marked(published, Evaluation)
    except StoreError:
        return False  # of another version, damaged or edited: then all is asked
    # How a variant was made and is served: the bytes of its weights alone do not say it.
    asked = run.results.spec_of(published) or {}
    same = (
        all(asked.get(key) == step.spec[key] for key in ("served", "tokenizer", "template"))
        and before.inputs.get("weights") == made.weights_digest
        and before.inputs.get("served") == serving.served_digest
        and before.serving.lane.name == serving.lane.name
    )
    found = [r for r in (*before.suites, *before.repeat) if r.rows_file == rows.name]
    if not same or len(found) != 1 or found[0].suite_digest != suite.digest:
        return False
    if any(found[0].conditions.get(key) != value for key, value in conditions.items()):
        return False
    kept = published.parent / "eval" / rows.name
    try:
        if not meant(found[0], read_rows(kept)):
            return False  # edited by hand
    except (StoreError, OSError):
        return False
    rows.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(kept, rows)
    return True
