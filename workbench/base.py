"""The bases of what a user writes and of what is recorded: frozen, and strict about keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
#: The unquantized checkpoint, implied in every recipe.
BASELINE = "baseline"
#: The unquantized checkpoint as a GGUF file, implied where a variant is one: what llama.cpp serves
#: is paired with what llama.cpp serves.
BASELINE_GGUF = "baseline-gguf"


class Unfit(ValueError):
    """What does not fit in an input, and what to do about it: `workbench.complaints` shows both.

    Attributes:
        fix: what to write instead.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


class Spec(BaseModel):
    """Base of every input: immutable, strict about types and about keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _yaml_lists_are_tuples(cls, data: Any) -> Any:
        # YAML has no tuples and strict mode takes no list for one.
        if isinstance(data, dict):
            return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return data


class Record(BaseModel):
    """Base of every output."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def distinct(what: str, names: Iterable[str]) -> None:
    """Refuse a name that is there twice, or that differs from another by case alone.

    Names become files and folders, and on some disks two such names are one.

    Raises:
        Unfit: one is; `what` says what is called so.
    """
    folded: dict[str, str] = {}
    for name in names:
        other = folded.get(name.casefold())
        if other == name:
            raise Unfit(f"two {what} '{name}'", "rename or remove one: they must differ")
        if other is not None:
            raise Unfit(
                f"two {what} '{other}' and '{name}', which differ by case alone",
                "rename one: each is a file or folder, and on some disks these two are one",
            )
        folded[name.casefold()] = name
