"""Runs pip for one environment: progress from its log, and its failures in a person's words.

Plain pip of the environment itself: the user's own pip configuration (files, variables,
index, proxy, certificates, find-links) alone decides where packages come from. `uv` would be
faster but does not read pip's configuration, so it is not used.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.envs.locks import Lock, read_lock
from workbench.errors import DiskFull, EnvironmentFailure, MachineError
from workbench.guard import Guarded
from workbench.jobs import job_environment, last_lines
from workbench.progress import Progress

Target = Literal["cpu", "cuda"]

#: Creating takes minutes; hours mean a network that delivers nothing.
CREATE_SECONDS = 2 * 3600.0
_POLL_SECONDS = 0.3
#: A package from an index, or one that lies on a disk the user's configuration names.
_COLLECTING = re.compile(r"^(?:Collecting|Processing) (?:\S*/)?(\S+)")
#: The wheel's own build; "Preparing metadata" before it is a matter of seconds.
_BUILDING = re.compile(r"^\s*Building wheel for .*: (started|finished)")
_USELESS = re.compile(
    r"^(WARNING|DEPRECATION|Looking in|\[notice\]|Collecting|Processing|Downloading|Using)"
)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_NETWORK = re.compile(
    r"Max retries|ConnectionError|NewConnectionError|Temporary failure in name resolution|timed out"
    r"|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED|Network is unreachable"
)


def python_version() -> str:
    """``"3.11"``: what environments made from here run."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Build:
    """How the one package of an environment that has no prebuilt wheel is compiled.

    Attributes:
        what: what is compiled, e.g. ``"llama.cpp"``.
        minutes: about how long that takes on two cores.
        variables: read by its build; part of the lock's digest.
    """

    what: str
    minutes: int
    variables: Mapping[str, str]


@dataclass(frozen=True)
class EnvironmentSpec:
    """What one environment is.

    Attributes:
        name: e.g. ``"vllm"``.
        target: processor it is for.
        purpose: one line for a person.
        imports: modules that must import, the cheap ones first.
        requirements: the lock.
        approximate_bytes: size on disk once installed.
        build: how one of its packages is compiled; None where all are wheels.
    """

    name: str
    target: Target
    purpose: str
    imports: tuple[str, ...]
    requirements: Path
    approximate_bytes: int
    build: Build | None = None

    def lock(self) -> Lock:
        """The lock, read.

        Raises:
            EnvironmentFailure: it is not a complete lock.
        """
        return read_lock(
            self.requirements, python_version(), self.build.variables if self.build else None
        )

    def folder(self, root: Path) -> Path:
        """Where it is installed: a changed lock is another folder."""
        return root / f"{self.name}-{self.target}-{self.lock().digest[:12]}"


def interpreter(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / "bin" / "python"


def need_compilers(spec: EnvironmentSpec) -> None:
    """Refuse, before anything is fetched, to compile without a C and a C++ compiler.

    cmake and ninja need not be there: the build fetches both with pip where they are missing.

    Raises:
        EnvironmentFailure: a compiler is missing, with the packages that bring it.
    """
    if spec.build is None:
        return
    missing = [
        language
        for language, variable, names in (
            ("C", "CC", ("cc", "gcc", "clang")),
            ("C++", "CXX", ("c++", "g++", "clang++")),
        )
        # CC may hold flags behind the program's name.
        if not any(map(shutil.which, [*os.environ.get(variable, "").split()[:1], *names]))
    ]
    if missing:
        raise EnvironmentFailure(
            f"environment '{spec.name}' compiles {spec.build.what}, and there is no "
            f"{' and no '.join(missing)} compiler",
            where=f"PATH={os.environ.get('PATH', '')}",
            fix="install one (on Debian and Ubuntu: the package build-essential; on Fedora: gcc "
            "and gcc-c++), or name it in CC and CXX",
        )


def pip_install(spec: EnvironmentSpec, folder: Path, progress: Progress, held: int) -> None:
    """Install the lock into the virtual environment in ``folder``; pip's log stays as `pip.log`.

    Args:
        spec: what to install.
        folder: of the virtual environment.
        progress: told every package fetched and installed; each pin counts twice.
        held: descriptor of the creation's lock, inherited by pip.

    Raises:
        EnvironmentFailure: pip failed; its own error lines are quoted.
        DiskFull: no space was left.
    """
    log = folder / "pip.log"
    command = [
        str(interpreter(folder)),
        *("-m", "pip", "install", "--no-input", "--no-user", "--progress-bar", "off"),
        *("--disable-pip-version-check", "--no-deps", "-r", str(spec.requirements)),
    ]
    variables: Mapping[str, str] = {}
    if spec.build is not None:
        variables = spec.build.variables
        # pip's cache knows a built wheel by its source alone, not by what it was built with: in the
        # user's own cache this one would be taken for a complete build by another project.
        command += ["--cache-dir", str(folder.parent / f".{folder.name}.pip-cache")]
    env = job_environment(variables, python=interpreter(folder))
    watch = _PipProgress(spec, folder, log, progress)
    begun = time.monotonic()
    with Guarded.start(command, env=env, log=log, keep_open=[held]) as process:
        while (code := process.wait(_POLL_SECONDS)) is None:
            watch.look()
            if time.monotonic() - begun > CREATE_SECONDS:
                raise EnvironmentFailure(
                    f"pip took longer than {CREATE_SECONDS / 3600:g} hours",
                    where=str(log),
                    fix="check the network and the index pip is configured for, then run it again",
                )
    watch.look()  # what it said since the last look
    if code != 0:
        raise pip_failure(spec, log, code)


class _PipProgress:
    """Reads pip's log while it grows. Every pin counts twice: fetched, then installed."""

    def __init__(self, spec: EnvironmentSpec, folder: Path, log: Path, progress: Progress) -> None:
        self.name, self.folder, self.log, self.progress = spec.name, folder, log, progress
        self.pins = len(spec.lock().pins)
        self.position = 0
        self.rest = b""
        self.collected = 0
        self.installing = False
        self.build = spec.build
        self.building: float | None = None
        self.last: tuple[float, str] = (0.0, f"{spec.name}: starting pip")

    def look(self) -> None:
        with self.log.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        self.position += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            if match := _COLLECTING.match(text):
                self.collected = min(self.collected + 1, self.pins)
                what = f"{self.name}: fetching {match[1]}"
                self._tell(self.collected - 1, what)
            if match := _BUILDING.match(text):
                self.building = time.monotonic() if match[1] == "started" else None
            self.installing |= text.startswith("Installing collected packages")
        if self.build and self.building is not None:
            # pip is silent while a compiler works; the seconds show that something goes on.
            spent = time.monotonic() - self.building
            what = (
                f"{self.name}: compiling {self.build.what}, about {self.build.minutes} min on two "
                f"cores, {spent // 60:.0f}:{spent % 60:02.0f} so far"
            )
            self._tell(self.pins, what)
        if self.installing:
            done = min(
                len(list(self.folder.glob("lib/python*/site-packages/*.dist-info"))), self.pins
            )
            self._tell(self.pins + done, f"{self.name}: installing {done}/{self.pins}")
        self._tell(*self.last)  # also where nothing is new: a listener ends a creation by raising

    def _tell(self, done: float, what: str) -> None:
        self.last = (done, what)
        self.progress(done, 2 * self.pins, what)


def pip_failure(spec: EnvironmentSpec, log: Path, code: int) -> MachineError:
    """What went wrong, from pip's log: its own error lines, never its warnings or a password."""
    lines = [_LOGIN.sub("***@", line) for line in last_lines(log, 400).splitlines()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    quoted = (errors or [line for line in lines if not _USELESS.match(line)])[-8:]
    text = "\n".join(lines)
    if "No space left on device" in text:
        return DiskFull(
            f"no space was left while installing environment '{spec.name}'",
            where=str(log),
            fix="free some space (pip also needs room in its temporary folder, TMPDIR, and in its "
            "cache), or set WORKBENCH_ENVS to a folder on a larger disk; then run it again",
        )
    fix = "read the log, then run the same command again; what pip downloaded is in its cache"
    nothing_found = "(from versions: none)" in text
    # An index that cannot be reached is a warning to pip, and then an index that has nothing.
    unreached = _NETWORK.search(text) and (nothing_found or "(from versions:" not in text)
    if "No matching distribution" in text and not unreached:
        fix = (
            "the index your pip is configured for does not have that version for this Python and "
            "processor (the lock was resolved for Python 3.11): see `pip config list`"
            + cpu_torch_hint(spec)
        )
    elif unreached:
        fix = (
            "check the network, and the proxy, certificate and index of your pip configuration "
            "(`pip config list`), then run the same command again"
        )
    elif spec.build and "Failed building wheel" in text:
        fix = (
            f"{spec.build.what} did not compile: the log has the compiler's own words. It needs a "
            "C and a C++17 compiler (GCC 9 or Clang 10 and newer) and about 2 GB of memory a core"
        )
    message = "".join(f"\n    {line}" for line in quoted)
    return EnvironmentFailure(
        f"pip could not install environment '{spec.name}' (exit code {code}):{message}",
        where=str(log),
        fix=fix,
    )


def cpu_torch_hint(spec: EnvironmentSpec) -> str:
    """Where CPU builds of torch come from, as the end of a fix; empty where it does not matter."""
    if spec.target == "cuda" or "torch" not in spec.lock().pins:
        return ""
    return (
        "; torch's CPU builds are on PyTorch's own CPU index (pytorch.org, 'Get Started'), which "
        "pip finds with: pip config set global.extra-index-url URL"
    )
