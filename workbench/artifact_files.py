"""The files of a produced checkpoint: those one expects, and none that could run code."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.artifact_records import ArtifactCheck, ArtifactStatus
from workbench.calibration_records import seal_of
from workbench.checkpoint import COMPANIONS, INDEX, read_config
from workbench.records import Calibration, Checkpoint
from workbench.store import read_record

#: Licence texts and use policies come in many names.
_LICENCES = ("LICEN[CS]E*", "NOTICE*", "COPYING*", "USE_POLICY*", "ACCEPTABLE_USE*")
#: Formats that run code when they are read, or hold code.
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib", "*.npy", "*.npz")
_CODE = ("*.py", "*.pyc", "*.so", "*.sh", "*.dll", "*.exe", "*.js")
#: What the tools write beside the weights and nobody reads when serving.
_KNOWN = (
    *("config.json", INDEX, "*.safetensors", "*.gguf", "calibration.json"),
    # llm-compressor; GPTQModel and AutoGPTQ; AutoAWQ
    *("recipe.yaml", "quantize_config.json", "quant_log.csv", "quant_config.json"),
    *("README.md", "workbench_fake.json"),
)
#: First bytes of a pickle (protocols 2 to 5) and of a zip archive, which `torch.save` writes.
_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
#: Keys of config.json a tool may change: they say who wrote it and in what dtype, not what it is.
_FREE_KEYS = {
    *("quantization_config", "transformers_version", "torch_dtype", "dtype", "_name_or_path"),
    *("_attn_implementation_autoset", "use_cache", "compression_config"),
}


def check(name: str, problems: list[str], good: str, bad: ArtifactStatus = "FAIL") -> ArtifactCheck:
    """One check: good, or its first problems in a sentence and all of them in the details."""
    if not problems:
        return ArtifactCheck(name=name, status="PASS", sentence=f"{good}.")
    return ArtifactCheck(
        name=name,
        status=bad,
        sentence=f"{listed(problems)}.",
        details={"problems": problems[:100], "count": len(problems)},
    )


def listed(items: list[str], shown: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return "; ".join(items[:shown]) + more


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, p) for p in patterns)


def companions(source: Mapping[str, str], made: Mapping[str, str]) -> ArtifactCheck:
    """Tokenizer, template, generation config, processor and licence are the source's own."""

    def must_match(name: str) -> bool:
        return name in COMPANIONS or _any(name, _LICENCES) or name.endswith("processor_config.json")

    names = sorted(n for n in {*source, *made} if must_match(n))
    problems = []
    for name in names:
        if name not in made:
            problems.append(f"{name} of the source is missing")
        elif name not in source:
            problems.append(f"{name} is not in the source")
        elif source[name] != made[name]:
            problems.append(f"{name} differs from the source's")
    return check("companions", problems, f"{len(names)} companion files equal the source's")


def harmless(folder: Path, source: Mapping[str, str], made: Mapping[str, str]) -> ArtifactCheck:
    """No pickle, no code the source does not have, no links; other strangers are only named."""
    problems, strangers = [], []
    for name, digest in made.items():
        base = Path(name).name
        path = folder / name
        if path.is_symlink():
            problems.append(f"{name} is a link")
        elif _any(base, _PICKLES):
            problems.append(f"{name} is of a kind that can run code when it is loaded")
        elif _any(base, _CODE) and source.get(name) != digest:
            problems.append(f"{name} is code the source does not have")
        elif _starts_like_a_pickle(path):
            problems.append(f"{name} begins like a pickle or an archive")
        elif not _any(name, _KNOWN) and name not in source and name not in COMPANIONS:
            strangers.append(f"{name} is not expected")
    if problems:
        return check("harmless", problems, "")
    return check("harmless", strangers, "no pickle, no code, nothing unexpected", "WARN")


def _starts_like_a_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(4)
    return any(begin.startswith(magic) for magic in _MAGIC)


def model_config(folder: Path, source: Checkpoint) -> ArtifactCheck:
    """config.json says the same about the model as the source's, quantization aside."""
    before, after = read_config(Path(source.path)), read_config(folder)
    changed, gone = [], []
    for key, value in before.items():
        if key in _FREE_KEYS:
            continue
        if key not in after:
            if not _moved(key, value, after):
                gone.append(f"{key} of the source is missing in config.json")
        elif after[key] != value:
            changed.append(f"{key} is {after[key]!r} in config.json, {value!r} in the source's")
    if after.get("auto_map") != before.get("auto_map"):
        changed.append("config.json names other code to load than the source's (auto_map)")
    if changed:
        return check("model config", changed + gone, "")
    return check("model config", gone, "config.json says the same as the source's", "WARN")


def _moved(key: str, value: Any, after: Mapping[str, Any]) -> bool:
    """Whether transformers 5 keeps it elsewhere: in `rope_parameters`, or nowhere for None."""
    rope = after.get("rope_parameters") or {}
    return value is None or rope.get(key) == value or (key == "rope_scaling" and bool(rope))


def calibration(folder: Path, sealed: Calibration | None) -> ArtifactCheck:
    """The seal beside the weights is that of the set the tool was given."""
    path = folder / "calibration.json"
    if sealed is None:
        stray = ["calibration.json is there, and nothing was calibrated"] * path.is_file()
        return check("calibration", stray, "nothing was calibrated, and nothing says so", "WARN")
    if not path.is_file():
        return check("calibration", ["calibration.json is missing beside the weights"], "")
    found = read_record(path, Calibration)
    wrong = [
        f"{what} is {theirs[:16]} in calibration.json, {ours[:16]} in the sealed set"
        for what, theirs, ours in (
            ("the seal", found.seal, sealed.seal),
            ("the source", found.source_digest, sealed.source_digest),
        )
        if theirs != ours
    ]
    if found.seal != seal_of(found):
        wrong.append("what calibration.json says is not what its seal was made of")
    return check("calibration", wrong, f"calibration.json holds the seal {sealed.seal[:16]}")
