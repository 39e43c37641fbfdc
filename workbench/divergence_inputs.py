"""What the held-out part of a divergence corpus depends on, for the id of an evaluation. Pure.

The suites, the tokenizer and the context are in the id already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.spec import Recipe

#: Fields of a calibration that decide how a row that is in no set is read and rendered.
_RENDERING = {"column", "columns", "chat_template", "min_tokens"}


def held_out_inputs(
    recipe: Recipe, source_digest: str | None, sets: Mapping[str, str]
) -> dict[str, Any]:
    """One entry, or none where the recipe holds nothing out.

    Args:
        recipe: the recipe.
        source_digest: of the calibration source.
        sets: calibrate step -> id of the set it seals; none of their rows is held out.
    """
    divergence = recipe.evaluate.divergence
    if divergence is None or not divergence.held_out or recipe.calibration is None:
        return {}
    return {
        "held_out": {
            "source": source_digest,
            "calibration": recipe.calibration.model_dump(mode="json", include=_RENDERING),
            "sets": sorted(sets.values()),
        }
    }
