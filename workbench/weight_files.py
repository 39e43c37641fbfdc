"""Do the weight files of a checkpoint mean the same to every tool that loads them?

transformers reads ``model.safetensors`` where it is there, else the shards of the index, and no
other file; vLLM and llama.cpp's converter go through the folder. Where these are not one set, what
was inspected and digested is not what is quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import CheckpointError

SINGLE = "model.safetensors"
ADAPTER = "adapter_config.json"


def check_weight_files(path: Path, index: Path, listed: Mapping[str, Any] | None) -> None:
    """Refuse a folder whose weights depend on who reads it.

    Args:
        path: the checkpoint's folder.
        index: of its shards, for the message.
        listed: ``weight_map`` of the index; None where there is no index.

    Raises:
        CheckpointError: an adapter, two sets of weights, shards without an index, or an index that
            names a file outside the folder.
    """
    if (path / ADAPTER).is_file():
        raise CheckpointError(
            f"an adapter lies beside the weights ({ADAPTER}), and some tools would apply it",
            where=str(path),
            fix="merge it into the weights (merge_and_unload of PEFT, then save_pretrained), or "
            "move its files away",
        )
    if listed is None:
        names = sorted(file.name for file in path.glob("*.safetensors"))
        if names and names != [SINGLE]:
            others = ", ".join(name for name in names if name != SINGLE)
            raise CheckpointError(
                f"{others} beside {SINGLE}, and no index"
                if SINGLE in names
                else f"the weights are in {others}, and there is no {index.name}",
                where=str(path),
                fix=f"fetch the index from the same revision; without one, only {SINGLE} is read",
            )
        return
    outside = sorted(
        {str(n) for n in listed.values() if not isinstance(n, str) or Path(n).name != n}
    )
    if outside:
        raise CheckpointError(
            f"the index names '{outside[0]}', and shards lie in the checkpoint's own folder",
            where=str(index),
            fix="move the shards there, and name them without a folder",
        )
    if (path / SINGLE).is_file() and SINGLE not in listed.values():
        raise CheckpointError(
            f"{SINGLE} lies beside an index of other files: tools differ in what they read",
            where=str(index),
            fix="remove the file or files that belong to another save of the model",
        )
