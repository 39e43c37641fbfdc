"""Edit a test project's recipe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def edit_recipe(
    root: Path, edit: Callable[[dict[str, Any]], object], tiny: Path | None = None
) -> Path:
    """Rewrite the project's recipe; the first time from the shipped smoke recipe."""
    path = root / "recipe.yaml"
    source = path if path.exists() else ROOT / "notebooks" / "recipes" / "smoke.yaml"
    recipe = yaml.safe_load(source.read_text())
    if tiny is not None:
        recipe["model"]["path"] = str(tiny)
        recipe["policy"] = "notebooks/policies/smoke.yaml"
    edit(recipe)
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path
