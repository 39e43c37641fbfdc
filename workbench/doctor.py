"""Says what this machine has and what can run on it. Looks only: starts and prints nothing.

`workbench doctor` shows the findings. The pip configuration is reported as present or not, never
its content: it may hold hosts and passwords.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from workbench import envs
from workbench.hardware import detect
from workbench.records import Hardware

#: Python the locks were resolved for, see the heads of `workbench/envs/*.txt`.
LOCKED_PYTHON = (3, 11)
_GIB = 1 << 30
#: A quickstart needs its weights, twins and records: a few copies of a small model.
_RESULTS_BYTES = 5 * _GIB
#: The demo model, its server and its client side by side.
_MEMORY_BYTES = 8 * _GIB


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's answer.

    Attributes:
        name: what was looked at.
        ok: ``"missing"`` stops the quickstart, ``"warn"`` limits or slows it.
        detail: what was found.
        fix: what to do; empty where nothing needs doing.
    """

    name: str
    ok: Literal["ok", "warn", "missing"]
    detail: str
    fix: str = ""


def diagnose(results: Path, hardware: Hardware | None = None) -> list[Finding]:
    """Look at the machine.

    Args:
        results: folder where runs go; need not exist.
        hardware: the machine; detected where none is given.
    """
    machine = hardware or detect()
    return [
        _system(),
        _python(sys.version_info[:2]),
        _compiler(),
        _cpu(machine),
        _memory(machine),
        _gpu(machine),
        _disk("disk for results", results, _RESULTS_BYTES),
        _environments_disk(machine),
        *_environments(machine),
        _pip(),
        _distribution("papermill"),
    ]


def _system() -> Finding:
    detail = f"{platform.system()} {platform.machine()}"
    if sys.platform.startswith("linux"):
        return Finding("system", "ok", detail)
    return Finding(
        "system",
        "missing",
        f"{detail}: jobs and servers are kept in hand by means only Linux has",
        "use Linux, a container of it, or WSL 2",
    )


def _python(running: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, running))
    if running < (3, 11):
        return Finding("python", "missing", text, "use Python 3.11 or newer")
    if running != LOCKED_PYTHON:
        locked = ".".join(map(str, LOCKED_PYTHON))
        return Finding(
            "python",
            "warn",
            f"{text}; the environments' locks were resolved and run for {locked}",
            f"if a package has no build for {text}, use Python {locked}",
        )
    return Finding("python", "ok", platform.python_version())


def _compiler() -> Finding:
    for name in (os.environ.get("CC") or "cc", "gcc", "clang"):
        if path := shutil.which(name):
            return Finding("C compiler", "ok", path)
    return Finding(
        "C compiler",
        "warn",
        "none on PATH; torch.compile and a package without a wheel need one",
        "install gcc or clang (on Debian and Ubuntu: the package build-essential)",
    )


def _cpu(machine: Hardware) -> Finding:
    isa = ", ".join(machine.isa) or "none of the vector extensions kernels are chosen by"
    detail = f"{machine.cpu}, {machine.cores} cores ({isa})"
    if machine.gpus:
        return Finding("cpu", "ok", detail)
    if not {"avx2", "avx512f", "neon"} & set(machine.isa):
        return Finding(
            "cpu",
            "missing",
            f"{detail}: vLLM for CPU needs AVX2, AVX-512 or NEON",
            "use another machine; quantizing works here, serving does not",
        )
    if "avx512f" in machine.isa or "neon" in machine.isa:
        return Finding("cpu", "ok", detail)
    return Finding(
        "cpu",
        "warn",
        f"{detail}: without AVX-512 vLLM has no 4-bit weight kernel; such variants are measured "
        "on a dequantized twin (quality yes, speed and memory no)",
        "for speed of 4-bit variants use a GPU or a CPU with AVX-512",
    )


def _memory(machine: Hardware) -> Finding:
    detail = f"{machine.memory_bytes / _GIB:.1f} GiB (the container's limit where it is lower)"
    if machine.memory_bytes < _MEMORY_BYTES:
        return Finding(
            "memory",
            "warn",
            detail,
            f"the demo wants about {_MEMORY_BYTES // _GIB} GiB; raise the limit or set "
            "serve.kv_cache_gib lower",
        )
    return Finding("memory", "ok", detail)


def _gpu(machine: Hardware) -> Finding:
    if not machine.gpus:
        return Finding("gpu", "ok", "no CUDA device: everything runs on the processor")
    shown = ", ".join(
        f"{g.name} (sm {g.compute_capability}, {g.memory_bytes / _GIB:.0f} GiB, driver {g.driver})"
        for g in machine.gpus
    )
    return Finding("gpu", "ok", shown)


def _existing(folder: Path) -> Path:
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def _disk(name: str, folder: Path, need: int) -> Finding:
    existing = _existing(folder)
    free = shutil.disk_usage(existing).free
    detail = f"{free / _GIB:.1f} GiB free for {folder}"
    if not os.access(existing, os.W_OK):
        return Finding(name, "missing", f"{folder} cannot be written", "choose another folder")
    if free < need:
        return Finding(
            name, "missing", f"{detail}, about {need / _GIB:.1f} GiB are needed", "free some space"
        )
    return Finding(name, "ok", detail)


def _environments_disk(machine: Hardware) -> Finding:
    target = machine.target
    need = sum(
        envs.approximate_bytes(name, target)
        for name in envs.DEFAULT
        if not envs.is_ready(name, target)
    )
    found = _disk("disk for environments", envs.root(), need)
    if found.ok == "missing" and need:
        return Finding(
            found.name, "missing", found.detail, "free some space, or set WORKBENCH_ENVS elsewhere"
        )
    return found


def _environments(machine: Hardware) -> list[Finding]:
    found = []
    for row in envs.listing(machine.target):
        name = f"environment {row.name}"
        create = f"workbench env create {row.name} (a run does it by itself)"
        if row.state == "ready":
            found.append(Finding(name, "ok", f"ready, {row.size}, {row.path}"))
        elif row.state == "half-made":
            found.append(
                Finding(name, "warn", f"its creation was cut short ({row.size} there)", create)
            )
        else:
            found.append(Finding(name, "warn", f"not created yet ({row.size})", create))
    old = envs.leftovers(machine.target)
    if old:
        size = sum(map(envs.tree_bytes, old)) / 1e9
        found.append(
            Finding(
                "old environments",
                "warn",
                f"{len(old)} of other locks or another Python, {size:.1f} GB",
                "safe to delete where no older workbench uses them: " + " ".join(map(str, old)),
            )
        )
    return found


def _pip() -> Finding:
    names = ("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
    variables = sorted(n for n in os.environ if n in names)
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = [Path("/etc/pip.conf"), config / "pip/pip.conf", home / ".pip/pip.conf"]
    system = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    places += [Path(p) / "pip/pip.conf" for p in system.split(os.pathsep) if p]
    files = [str(p) for p in places if _is_file(p)]
    if not files and not variables:
        return Finding(
            "pip configuration",
            "warn",
            "none: packages come from PyPI, which has no CPU build of torch",
            "for CPU environments add PyTorch's CPU index (pytorch.org, 'Get Started'): "
            "pip config set global.extra-index-url URL",
        )
    return Finding("pip configuration", "ok", ", ".join([*files, *variables]))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _distribution(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "missing", "not installed", "install the workbench again: make setup")
