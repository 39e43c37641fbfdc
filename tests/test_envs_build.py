"""An environment with a package that is compiled: real pip, on a source package made here."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from workbench import envs
from workbench.envs.build import ensure
from workbench.envs.install import Build, EnvironmentSpec, need_compilers, pip_failure
from workbench.envs.locks import read_lock
from workbench.errors import EnvironmentFailure

#: A build backend without requirements of its own: slow, and it reads one variable.
BACKEND = """
import os, time, zipfile
METADATA = "Metadata-Version: 2.1\\nName: gamma\\nVersion: 1.0\\n"
def prepare_metadata_for_build_wheel(directory, settings=None):
    folder = os.path.join(directory, "gamma-1.0.dist-info")
    os.mkdir(folder)
    with open(os.path.join(folder, "METADATA"), "w") as file:
        file.write(METADATA)
    return "gamma-1.0.dist-info"
def build_wheel(directory, settings=None, metadata=None):
    time.sleep(float(os.environ.get("BUILD_SECONDS", "0.2")))
    if os.environ["FLAVOUR"] == "broken":
        raise RuntimeError("the compiler says no")
    info = "gamma-1.0.dist-info"
    files = {
        "gamma.py": f"FLAVOUR = {os.environ['FLAVOUR']!r}\\n",
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{path},,\\n" for path in files) + f"{info}/RECORD,,\\n"
    name = "gamma-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "gamma"
version = "1.0"
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "sources"
    folder.mkdir()
    info = "Metadata-Version: 2.1\nName: gamma\nVersion: 1.0\n"
    files = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND, "PKG-INFO": info}
    with tarfile.open(folder / "gamma-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"gamma-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))
    users = tmp_path / "users-cache"
    for key, value in {
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(folder),
        "PIP_CACHE_DIR": str(users),
    }.items():
        monkeypatch.setenv(key, value)
    yield users


def spec(tmp_path: Path, flavour: str) -> EnvironmentSpec:
    lock = tmp_path / "made-cpu.txt"
    lock.write_text("gamma==1.0\n")
    build = Build("gamma's engine", 2, {"FLAVOUR": flavour})
    return EnvironmentSpec("made", "cpu", "a test", ("gamma",), lock, 1, build)


def flavour(python: str) -> str:
    command = [python, "-c", "import gamma; print(gamma.FLAVOUR)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_compiled_with_its_variables_and_says_so(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long that it is looked at twice, also where we stand still for a while.
    monkeypatch.setenv("BUILD_SECONDS", "5")
    root, told = tmp_path / "envs", []
    record = ensure(spec(tmp_path, "mint"), root, lambda *state: told.append(state))
    assert flavour(record.python) == "mint"
    compiling = [(d, t, what) for d, t, what in told if "compiling" in what]
    assert compiling[0][2].startswith(
        "made: compiling gamma's engine, about 2 min on two cores, 0:"
    )
    # It goes on telling while pip is silent, and the bar stands still.
    assert len({what for _, _, what in compiling}) > 1
    assert {(d, t) for d, t, _ in compiling} == {(1, 2)}
    # A wheel made with our variables is no business of the user's other projects.
    assert not list(sources.rglob("*.whl"))


def test_the_second_time_it_comes_from_its_own_cache(sources: Path, tmp_path: Path) -> None:
    root, told = tmp_path / "envs", []
    one = spec(tmp_path, "mint")
    ensure(one, root)
    (one.folder(root) / "complete.json").unlink()
    record = ensure(one, root, lambda *state: told.append(state))
    assert flavour(record.python) == "mint"
    assert not [what for _, _, what in told if "compiling" in what]


def test_other_variables_are_another_environment(sources: Path, tmp_path: Path) -> None:
    root = tmp_path / "envs"
    mint, plain = (ensure(spec(tmp_path, name), root) for name in ("mint", "plain"))
    assert mint.lock_digest != plain.lock_digest
    assert [flavour(mint.python), flavour(plain.python)] == ["mint", "plain"]


def test_a_compiler_that_says_no(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="could not install environment 'made'") as caught:
        ensure(spec(tmp_path, "broken"), tmp_path / "envs")
    assert "gamma's engine did not compile" in caught.value.fix


def test_variables_are_in_the_digest_only_where_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text("a==1\n")
    plain = read_lock(path, "3.11").digest
    assert read_lock(path, "3.11", {}).digest == plain
    assert read_lock(path, "3.11", {"CMAKE_ARGS": "-DX=1"}).digest != plain


def test_no_compiler_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    root = tmp_path / "envs"
    with pytest.raises(EnvironmentFailure, match="no C and no C\\+\\+ compiler") as caught:
        ensure(spec(tmp_path, "mint"), root)
    assert "build-essential" in caught.value.fix
    assert not spec(tmp_path, "mint").folder(root).exists()
    with pytest.raises(EnvironmentFailure, match="compiles llama"):
        envs.check_buildable("gguf", "cpu")
    envs.check_buildable("vllm", "cpu")
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", "mycc -m64")
    with pytest.raises(EnvironmentFailure, match=r"there is no C\+\+ compiler"):
        need_compilers(spec(tmp_path, "mint"))
    monkeypatch.setenv("CXX", str(compiler))
    need_compilers(spec(tmp_path, "mint"))


def test_caches_of_older_locks_are_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_ENVS", str(tmp_path))
    now = envs.spec("gguf", "cpu").folder(tmp_path).name
    for name in (
        now,
        f".{now}.pip-cache",
        "gguf-cpu-0123456789ab",
        ".gguf-cpu-0123456789ab.pip-cache",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / ".gguf-cpu-0123456789ab.lock").touch()
    found = [path.name for path in envs.leftovers("cpu")]
    assert found == [".gguf-cpu-0123456789ab.pip-cache", "gguf-cpu-0123456789ab"]


def test_failure_without_a_build_gives_no_advice_about_compilers(tmp_path: Path) -> None:
    lock, log = tmp_path / "small-cpu.txt", tmp_path / "log"
    lock.write_text("a==1\n")
    log.write_text("ERROR: Failed building wheel for a\n")
    plain = EnvironmentSpec("small", "cpu", "a test", (), lock, 1)
    assert "compile" not in pip_failure(plain, log, 1).fix
