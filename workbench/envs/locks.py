"""Requirement files as complete locks: parse, digest, compare. Pure but for reading the file named.

A lock pins every package an environment holds with ``==``, so it is installed without dependency
resolution and two environments with one digest hold the same versions. Markers are allowed
(``six==1.17.0 ; python_version > "3.11"``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from workbench.digest import content_id
from workbench.errors import EnvironmentFailure

#: What `python -m venv` itself may put into an environment.
BOOTSTRAP = frozenset({"pip", "setuptools", "wheel"})


@dataclass(frozen=True)
class Lock:
    """One requirement file.

    Attributes:
        path: the file.
        pins: canonical distribution name -> requirement, only those whose marker holds here.
        digest: of every line, comments and order apart, of the Python version, and of the
            variables its packages are built with.
    """

    path: Path
    pins: Mapping[str, Requirement]
    digest: str


def read_lock(path: Path, python: str, build: Mapping[str, str] | None = None) -> Lock:
    """Read a requirement file for a Python version.

    Args:
        path: the file.
        python: ``"3.11"``: what the digest names and what markers are evaluated for.
        build: variables a package of it is compiled with; they are part of what is installed.

    Raises:
        EnvironmentFailure: a line is not a pin, or a distribution is pinned twice.
    """
    pins: dict[str, Requirement] = {}
    lines: list[str] = []
    for number, raw in enumerate(path.read_text("utf-8").splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        where = f"{path}:{number}"
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise EnvironmentFailure(
                f"not a requirement: {error}", where=where, fix="write name==version"
            ) from error
        specifiers = [(s.operator, s.version) for s in requirement.specifier]
        if len(specifiers) != 1 or specifiers[0][0] != "==" or "*" in specifiers[0][1]:
            raise EnvironmentFailure(
                f"'{line}' is not a pin: a lock names one version of every package",
                where=where,
                fix=f"write {requirement.name}==VERSION",
            )
        lines.append(str(requirement))
        if requirement.marker and not requirement.marker.evaluate(
            {"python_version": python, "python_full_version": f"{python}.0"}
        ):
            continue
        name = canonicalize_name(requirement.name)
        if name in pins:
            raise EnvironmentFailure(
                f"'{requirement.name}' is pinned twice", where=where, fix="keep one of the lines"
            )
        pins[name] = requirement
    identity: dict[str, object] = {"pins": sorted(lines), "python": python}
    if build:
        identity["build"] = dict(build)
    return Lock(path, pins, content_id(identity))


def differences(lock: Lock, installed: Mapping[str, str]) -> list[str]:
    """What is missing, of another version, or there without being pinned; empty where all is right.

    A local version label is free: the pin ``torch==2.13.0`` is met by ``2.13.0+cpu``.

    Args:
        lock: what should be there.
        installed: canonical name -> version of what is.
    """
    found = []
    for name, requirement in lock.pins.items():
        version = installed.get(name)
        wanted = str(requirement.specifier).removeprefix("==")
        if version is None:
            found.append(f"{name} {wanted} is missing")
        elif not _meets(requirement, version):
            found.append(f"{name} is {version}, the lock says {wanted}")
    for name in sorted(set(installed) - set(lock.pins) - BOOTSTRAP):
        found.append(f"{name} {installed[name]} is not in the lock")
    return found


def _meets(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False
