"""Environments, with real venv and real pip on packages of a few kilobytes made here."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import envs, guardian
from workbench.envs.build import complete, ensure, interpreter, state, verify
from workbench.envs.install import EnvironmentSpec, pip_failure
from workbench.envs.locks import differences, read_lock
from workbench.errors import DiskFull, EnvironmentFailure, RecipeError
from workbench.progress import Progress
from workbench.records import Environment
from workbench.store import read_record

ROOT = Path(__file__).resolve().parent.parent
#: pip reads these itself: nothing but the wheels made here, from nowhere else.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}


def wheel(folder: Path, name: str, version: str, source: str) -> None:
    """Write a pure Python wheel holding one module."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(path, text)


Make = Callable[..., EnvironmentSpec]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a small environment's spec: lock text, modules to import, and the wheels pip finds."""
    wheels = tmp_path / "wheels"
    wheel(wheels, "alpha", "1.0", "")
    wheel(wheels, "beta", "2.0+cpu", "import alpha")
    wheel(wheels, "broken", "1.0", "raise OSError('libcudart.so.13: cannot open shared object')")
    wheel(wheels, "crashing", "1.0", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    wheel(wheels, "torch", "9.0", "class version:\n    cuda = '13.0'\n")
    wheel(wheels, "slow", "1.0", "import os, time; time.sleep(float(os.environ.get('SLOW', 0)))")
    for key, value in (OFFLINE | {"PIP_FIND_LINKS": str(wheels)}).items():
        monkeypatch.setenv(key, value)
    for key in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(key, raising=False)

    def spec(lock: str, *imports: str, size: int = 1, name: str = "small") -> EnvironmentSpec:
        requirements = tmp_path / f"{name}-cpu.txt"
        requirements.write_text(lock)
        return EnvironmentSpec(name, "cpu", "a test", imports, requirements, size)

    return spec


BOTH = "# two\nalpha==1.0\nbeta==2.0\n"
#: Where `SLOW` says so its last step takes that many seconds.
SLOW = f"{BOTH}slow==1.0\n"


TARGETS: tuple[envs.install.Target, ...] = ("cpu", "cuda")
LOCKS = [(name, target) for target in TARGETS for name in envs.names(target)]


# --------------------------------------------------------------------------- locks


@pytest.mark.parametrize(("name", "target"), LOCKS)
def test_every_shipped_lock_is_complete_and_says_what_it_is(
    name: str, target: envs.install.Target
) -> None:
    spec = envs.spec(name, target)
    lock = read_lock(spec.requirements, "3.11")
    head = spec.requirements.read_text().partition("\n")[0]
    assert head.startswith(f"# {name}, {target.upper()}. A complete lock") or name == "llamacpp"
    assert lock.pins
    assert "torchvision" not in lock.pins or target == "cuda"
    if target == "cpu":
        assert not [p for p in lock.pins if p.startswith("nvidia-") and p != "nvidia-ml-py"]
    else:
        assert "not yet run on a" in spec.requirements.read_text()
    # A local label or a host would bind the lock to one index.
    assert "+" not in "".join(str(r.specifier) for r in lock.pins.values())
    assert "://" not in spec.requirements.read_text()


def test_the_two_tools_that_cannot_share_an_environment_do_not() -> None:
    pins = [envs.spec(n, "cpu").lock().pins["compressed-tensors"] for n in ("quantize", "vllm")]
    assert str(pins[0].specifier) != str(pins[1].specifier)


def test_a_lock_is_read_for_a_python_version(tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text('a==1 # why\n\nB_c==2.0 ; python_version > "3.11"\n')
    assert list(read_lock(path, "3.11").pins) == ["a"]
    assert list(read_lock(path, "3.12").pins) == ["a", "b-c"]
    assert read_lock(path, "3.11").digest != read_lock(path, "3.12").digest


def test_the_digest_is_of_the_pins_and_not_of_comments_or_order(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        path = tmp_path / "lock.txt"
        path.write_text(text)
        return read_lock(path, "3.11").digest

    assert digest("a==1\nb==2\n") == digest("# new words\nb==2\n\na==1 # note\n")
    assert digest("a==1\nb==2\n") != digest("a==1\nb==3\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a>=1", "not a pin"),
        ("a", "not a pin"),
        ("a==1.*", "not a pin"),
        ("a==1,!=2", "not a pin"),
        ("-r other.txt", "not a requirement"),
        ("A==2", "pinned twice"),
    ],
)
def test_what_is_no_lock_is_refused_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(f"# head\na==1\n{line}\n")
    with pytest.raises(EnvironmentFailure) as caught:
        read_lock(path, "3.11")
    assert says in caught.value.what
    assert caught.value.where == f"{path}:3"


def test_differences(tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text("a==1.0\nb==2.0\nc==3.0\nd==4.0\n")
    have = {"a": "1", "b": "2.0+cpu", "c": "3.0.1", "pip": "9", "extra": "0.1"}
    assert differences(read_lock(path, "3.11"), have) == [
        "c is 3.0.1, the lock says 3.0",
        "d 4.0 is missing",
        "extra 0.1 is not in the lock",
    ]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
def test_what_was_pinned_has_no_differences(numbers: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lock.txt")
        path.write_text("".join(f"p{n}=={n}.{n}\n" for n in numbers))
        lock = read_lock(path, "3.11")
    assert differences(lock, {f"p{n}": f"{n}.{n}" for n in numbers}) == []
    assert len(differences(lock, {})) == len(numbers)


# --------------------------------------------------------------------------- creation


def test_created_verified_recorded_and_then_taken_as_it_is(make: Make, tmp_path: Path) -> None:
    spec, root = make(BOTH, "alpha", "beta"), tmp_path / "envs"
    assert state(spec, root) == "absent"
    told: list[tuple[float, float, str]] = []
    record = ensure(spec, root, lambda *t: told.append(t))
    folder = spec.folder(root)
    assert state(spec, root) == "ready"
    assert folder.name == f"small-cpu-{record.lock_digest[:12]}"
    assert (record.packages["alpha"], record.packages["beta"]) == ("1.0", "2.0+cpu")
    assert set(record.packages) - {"alpha", "beta"} <= {"pip", "setuptools"}
    assert record.python == str(interpreter(folder))
    assert record.python_version.startswith("3.")
    assert read_record(folder / "complete.json", Environment) == record
    out = subprocess.run(
        [record.python, "-c", "import beta, sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == str(folder)
    assert any("fetching alpha-1.0-py3" in what for _, _, what in told)
    assert any("importing beta" in what for _, _, what in told)
    assert all(0 <= done <= total for done, total, _ in told)
    assert {total for _, total, _ in told} <= {4.0}

    again: list[str] = []
    assert ensure(spec, root, lambda *t: again.append(t[2])) == record
    assert again == []
    assert verify(spec, root) == record


def test_a_changed_lock_is_another_environment(make: Make, tmp_path: Path) -> None:
    root = tmp_path / "envs"
    first = make(BOTH, "alpha").folder(root)
    assert make("alpha==1.0\n", "alpha").folder(root) != first


def test_killed_in_the_middle_then_made_anew(make: Make, tmp_path: Path) -> None:
    spec, root = make(SLOW, "slow"), tmp_path / "envs"
    source = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from workbench.envs.build import ensure
from workbench.envs.install import EnvironmentSpec, pip_failure
ensure(EnvironmentSpec("small", "cpu", "a test", ("slow",), Path({str(spec.requirements)!r}), 1),
       Path({str(root)!r}))
"""
    folder = spec.folder(root)
    # It is not done while we look, however long we stand still.
    env = os.environ | {"SLOW": "30"}
    for moment in (lambda: folder.exists(), lambda: (folder / "pip.log").exists()):
        with subprocess.Popen([sys.executable, "-c", source], env=env) as creator:
            ends = time.monotonic() + 60
            tree: list[int] = []
            # Between two of its commands there is a moment with none.
            while not tree and time.monotonic() < ends:
                time.sleep(0.01)
                tree = guardian.descendants(creator.pid) if moment() else []
            assert tree
            creator.kill()
        with (root / f".{folder.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # free only when nothing writes any more
        ends = time.monotonic() + 20  # the lock is let go a moment before the process is gone
        while set(tree) & set(guardian.parents()) and time.monotonic() < ends:
            time.sleep(0.01)
        assert not set(tree) & set(guardian.parents())
        assert complete(spec, root) is None
    assert state(spec, root) == "half-made"
    (folder / "lib" / "torn").mkdir(parents=True, exist_ok=True)
    record = ensure(spec, root)
    assert not (folder / "lib" / "torn").exists()
    assert verify(spec, root) == record


def test_two_at_once_make_it_once(make: Make, tmp_path: Path) -> None:
    spec, root = make(SLOW, "slow"), tmp_path / "envs"
    source = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from workbench.envs.build import ensure
from workbench.envs.install import EnvironmentSpec, pip_failure
spec = EnvironmentSpec("small", "cpu", "a test", ("slow",), Path({str(spec.requirements)!r}), 1)
print(ensure(spec, Path({str(root)!r}), lambda d, t, what: print(what)).created_seconds)
"""
    command = [sys.executable, "-c", source]
    # The second one comes before the first has ended, however much later it starts.
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    env = os.environ | {"SLOW": "4"}
    both = [subprocess.Popen(command, env=env, **pipes) for _ in range(2)]
    outs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    seconds = [out.splitlines()[-1] for out in outs]
    assert seconds[0] == seconds[1]
    assert sum("creating a virtual environment" in out for out in outs) == 1
    pids = {str(process.pid) for process in both}
    assert sum(any(f"waiting for process {pid}," in out for pid in pids) for out in outs) == 1


def test_ctrl_c_leaves_no_pip_and_no_complete_environment(make: Make, tmp_path: Path) -> None:
    spec, root = make(BOTH, "beta"), tmp_path / "envs"

    def interrupt(done: float, total: float, what: str) -> None:
        if "fetching" in what:
            raise KeyboardInterrupt

    before = set(guardian.descendants(os.getpid()))  # whatever other tests left
    with pytest.raises(KeyboardInterrupt):
        ensure(spec, root, interrupt)
    assert state(spec, root) == "half-made"
    assert set(guardian.descendants(os.getpid())) <= before


# --------------------------------------------------------------------------- several


#: A module that imports only where the other of the two is being imported at the same time.
MEETING = """
import os, pathlib, time
here = pathlib.Path(os.environ["MEETING"])
(here / "{name}").touch()
for _ in range(1200):
    if (here / "{other}").exists():
        break
    time.sleep(0.05)
else:
    raise RuntimeError("nobody came")
"""


@pytest.fixture
def several(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of small environments: left and right wait for each other."""
    for name, other in (("left", "right"), ("right", "left")):
        wheel(tmp_path / "wheels", name, "1.0", MEETING.format(name=name, other=other))
    (tmp_path / "meeting").mkdir()
    monkeypatch.setenv("MEETING", str(tmp_path / "meeting"))
    monkeypatch.setenv("WORKBENCH_ENVS", str(tmp_path / "envs"))
    table = {
        "left": make("left==1.0\ntorch==9.0\n", "left", name="left"),
        "right": make("right==1.0\n", "right", name="right"),
        "broken": make("broken==1.0\ntorch==9.0\n", "broken", name="broken"),
        "after": make(f"{BOTH}torch==9.0\n", "beta", name="after"),
        "slow": make(SLOW, "slow", name="slow"),
        "plain": make(BOTH, "beta", name="plain"),
    }
    monkeypatch.setattr(envs, "spec", lambda name, target: table[name])
    return tmp_path / "envs"


def test_several_are_made_side_by_side_but_those_with_torch(several: Path) -> None:
    told: list[tuple[str, str]] = []
    made: list[str] = []

    def listener(name: str) -> Progress:
        return lambda done, total, what: told.append((name, what))

    envs.ensure_all(
        ["left", "after", "right", "plain", "left"],
        "cpu",
        listener,
        lambda name, record: made.append(name),
    )
    assert sorted(made) == ["after", "left", "plain", "right"]
    assert all(complete(envs.spec(name, "cpu"), several) for name in made)
    names = [name for name, _ in told]
    # Each with torch by itself: the second finds in pip's cache what the first has fetched.
    assert len(names) - names[::-1].index("left") <= names.index("after")
    for name, module in (("left", "left"), ("right", "right"), ("after", "beta")):
        assert (name, f"{name}: importing {module}") in told


def test_where_one_fails_what_is_begun_is_finished(several: Path) -> None:
    failed = threading.Event()
    made: list[str] = []

    def listener(name: str) -> Progress:
        def tell(done: float, total: float, what: str) -> None:
            if what == "broken failed; slow is finished first":
                failed.set()
            elif name == "slow" and "importing" in what:
                assert failed.wait(300)

        return tell

    with pytest.raises(EnvironmentFailure, match=r"'broken' cannot import broken") as caught:
        envs.ensure_all(
            ["slow", "broken", "plain", "after"],
            "cpu",
            listener,
            lambda name, record: made.append(name),
        )
    assert made == ["slow"]
    assert caught.value.what.endswith("\n  not begun: plain, after")
    assert state(envs.spec("plain", "cpu"), several) == "absent"
    assert state(envs.spec("after", "cpu"), several) == "absent"


def test_ctrl_c_ends_all_that_are_being_made(several: Path) -> None:
    before = set(guardian.descendants(os.getpid()))
    interrupted = threading.Event()

    def interrupt(name: str, record: Environment) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def listener(name: str) -> Progress:
        def hold(done: float, total: float, what: str) -> None:
            if name == "slow" and "fetching" in what:  # in the middle of its pip
                interrupted.wait(300)

        return hold

    with pytest.raises(KeyboardInterrupt):
        envs.ensure_all(["slow", "after"], "cpu", listener, interrupt)
    assert set(guardian.descendants(os.getpid())) <= before
    assert complete(envs.spec("after", "cpu"), several) is not None
    assert state(envs.spec("slow", "cpu"), several) == "half-made"


# --------------------------------------------------------------------------- failures


def failing(spec: EnvironmentSpec, root: Path) -> EnvironmentFailure:
    with pytest.raises(EnvironmentFailure) as caught:
        ensure(spec, root)
    assert caught.value.exit_code == 3 and caught.value.where and caught.value.fix
    assert state(spec, root) in ("half-made", "absent")
    return caught.value


def test_a_package_the_index_does_not_have(make: Make, tmp_path: Path) -> None:
    error = failing(make("alpha==1.0\ntorch==77.0\n", "alpha"), tmp_path / "envs")
    assert "No matching distribution found for torch==77.0" in error.what
    assert "WARNING" not in error.what
    assert "PyTorch's own CPU index" in error.fix
    assert error.where.endswith("pip.log") and Path(error.where).is_file()


def test_an_index_that_cannot_be_reached(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Nobody listens on the discard port.
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")  # pip names what is wrong only where it tries again
    error = failing(make("gamma==1.0\n", "gamma"), tmp_path / "envs")
    assert "gamma==1.0" in error.what
    assert "hunter2" not in str(error)
    assert error.fix.startswith("check the network")


@pytest.mark.parametrize(
    ("log", "kind", "says", "fix"),
    [
        (
            "Looking in indexes: https://me:pass@host/simple\nCollecting a==1\n"
            "WARNING: Location 'x' is ignored\n"
            "ERROR: a from https://me:pass@host/a.whl: bad hash\n",
            EnvironmentFailure,
            "ERROR: a from https://***@host/a.whl: bad hash",
            "run the same command again",
        ),
        (
            "WARNING: Retrying: Temporary failure in name resolution\n"
            "ERROR: Could not find a version\n",
            EnvironmentFailure,
            "Could not find a version",
            "check the network",
        ),
        (
            "WARNING: Retrying: Connection timed out\n"
            "ERROR: Could not find a version that satisfies a==1 (from versions: none)\n"
            "ERROR: No matching distribution found for a==1\n",
            EnvironmentFailure,
            "No matching distribution",
            "check the network",
        ),
        (  # it was reached at last, and does not have it
            "WARNING: Retrying: Connection timed out\n"
            "ERROR: Could not find a version that satisfies a==1 (from versions: 2, 3)\n"
            "ERROR: No matching distribution found for a==1\n",
            EnvironmentFailure,
            "No matching distribution",
            "does not have that version",
        ),
        (
            "ERROR: Could not install packages due to an OSError: "
            "[Errno 28] No space left on device\n",
            DiskFull,
            "no space was left",
            "TMPDIR",
        ),
        ("Killed by hand\n", EnvironmentFailure, "Killed by hand", "read the log"),
    ],
)
def test_what_pip_says_in_a_persons_words(
    make: Make, tmp_path: Path, log: str, kind: type, says: str, fix: str
) -> None:
    path = tmp_path / "pip.log"
    path.write_text(log)
    error = pip_failure(make(BOTH), path, 1)
    assert type(error) is kind and says in error.what and fix in error.fix
    assert "WARNING" not in str(error) and "me:pass" not in str(error)


def test_a_module_that_does_not_import(make: Make, tmp_path: Path) -> None:
    error = failing(make("broken==1.0\n", "broken"), tmp_path / "envs")
    assert "cannot import broken: OSError: libcudart.so.13" in error.what
    assert "workbench env create small" in error.fix


def test_a_module_that_crashes_the_interpreter_is_named(make: Make, tmp_path: Path) -> None:
    spec = make("alpha==1.0\ncrashing==1.0\n", "alpha", "crashing")
    error = failing(spec, tmp_path / "envs")
    assert "importing crashing" in error.what and "SIGILL" in error.what


def test_a_cuda_torch_in_a_cpu_environment_is_noted(make: Make, tmp_path: Path) -> None:
    told: list[str] = []
    ensure(make("torch==9.0\n", "torch"), tmp_path / "envs", lambda *t: told.append(t[2]))
    assert any("note: its torch is a CUDA 13.0 build" in what for what in told)


def test_no_room_is_said_before_anything_is_made(make: Make, tmp_path: Path) -> None:
    spec, root = make(BOTH, "beta", size=1 << 60), tmp_path / "envs"
    with pytest.raises(DiskFull) as caught:
        ensure(spec, root)
    assert "needs about" in caught.value.what and "WORKBENCH_ENVS" in caught.value.fix
    assert not spec.folder(root).exists()


@pytest.mark.parametrize("at", ["", "envs", "envs/FOLDER"])
def test_a_place_where_nothing_can_be_made(make: Make, tmp_path: Path, at: str) -> None:
    spec, root = make(BOTH), tmp_path / "envs" / "below"
    place = tmp_path / at.replace("FOLDER", f"below/{spec.folder(root).name}")
    if at:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("a file")
    else:
        root.parent.mkdir()
        root.symlink_to(root)
    with pytest.raises(EnvironmentFailure, match="environment 'small' cannot be made") as caught:
        ensure(spec, root)
    assert "WORKBENCH_ENVS" in caught.value.fix and caught.value.where


def test_a_deleted_file_is_found_by_verify(make: Make, tmp_path: Path) -> None:
    spec, root = make(BOTH, "alpha", "beta"), tmp_path / "envs"
    folder = spec.folder(root)
    record = ensure(spec, root)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "alpha.py").unlink()
    shutil.rmtree(site / "__pycache__")
    with pytest.raises(EnvironmentFailure) as caught:
        verify(spec, root)
    assert "cannot import alpha: ModuleNotFoundError" in caught.value.what
    assert f"rm -r {folder} && workbench env create small" in caught.value.fix

    # A package of another version, put there by hand.
    (site / "alpha.py").write_text("")
    assert verify(spec, root) == record
    (site / "alpha-1.0.dist-info/METADATA").write_text("Name: alpha\nVersion: 1.5\n")
    for use, says in ((ensure, "alpha 1.0 -> 1.5"), (verify, "alpha is 1.5, the lock says 1.0")):
        with pytest.raises(EnvironmentFailure, match="small") as caught:
            use(spec, root)
        assert says in caught.value.what
        assert "workbench env create small" in caught.value.fix
    # One that no lock names.
    (site / "alpha-1.0.dist-info/METADATA").write_text("Name: alpha\nVersion: 1.0\n")
    shutil.copytree(site / "alpha-1.0.dist-info", site / "gamma-1.0.dist-info")
    (site / "gamma-1.0.dist-info/METADATA").write_text("Name: gamma\nVersion: 1.0\n")
    with pytest.raises(EnvironmentFailure, match="gamma"):
        ensure(spec, root)


def test_a_damaged_record_or_a_lost_interpreter_is_no_environment(
    make: Make, tmp_path: Path
) -> None:
    spec, root = make("alpha==1.0\n", "alpha"), tmp_path / "envs"
    record = ensure(spec, root)
    path = spec.folder(root) / "complete.json"
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert complete(spec, root) is None and state(spec, root) == "half-made"
    path.write_text(json.dumps(json.loads(text) | {"lock_digest": "0" * 64}))
    assert complete(spec, root) is None
    path.write_text(text)
    assert complete(spec, root) == record
    Path(record.python).unlink()
    assert complete(spec, root) is None and state(spec, root) == "half-made"
    assert ensure(spec, root).packages == record.packages
    assert Path(record.python).exists()


def test_verifying_what_is_not_there_says_how_to_create_it(make: Make, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        verify(make("alpha==1.0\n"), tmp_path / "envs")
    assert "absent" in caught.value.what
    assert caught.value.fix == "create it: workbench env create small"


# --------------------------------------------------------------------------- the table


def test_unknown_name() -> None:
    with pytest.raises(RecipeError) as caught:
        envs.spec("vlm", "cpu")
    assert "did you mean 'vllm'" in caught.value.fix


def test_where_environments_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_ENVS", "~/elsewhere")
    assert envs.root() == Path.home() / "elsewhere"
    monkeypatch.delenv("WORKBENCH_ENVS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert envs.root() == Path("/cache/workbench/envs")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert envs.root() == Path.home() / ".cache" / "workbench" / "envs"


def test_listing_and_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_ENVS", str(tmp_path))
    assert envs.leftovers("cpu") == []
    old = tmp_path / "vllm-cpu-0123456789ab"
    old.mkdir()
    (tmp_path / "mine").mkdir()
    half = envs.spec("vllm", "cpu").folder(tmp_path)
    half.mkdir()
    (half / "part").write_bytes(b"x" * 100_000_000)
    assert envs.leftovers("cpu") == [old]
    rows = {row.name: row for row in envs.listing("cpu")}
    assert list(rows) == envs.names("cpu")
    assert [*rows, "autogptq"] == list(envs.ENVIRONMENTS) == envs.names("cuda")
    assert (rows["vllm"].state, rows["vllm"].size) == ("half-made", "0.1 GB")
    assert (rows["quantize"].state, rows["quantize"].size) == ("absent", "about 1.7 GB")
    assert rows["vllm"].lock_digest == envs.lock_digest("vllm", "cpu")
    assert not envs.is_ready("vllm", "cpu")


def test_default_names_are_in_the_table() -> None:
    assert set(envs.DEFAULT) <= set(envs.ENVIRONMENTS)
    assert all(envs.approximate_bytes(name, target) > 0 for name, target in LOCKS)


def test_an_environment_for_another_processor_is_refused() -> None:
    with pytest.raises(RecipeError, match="'autogptq' does not exist for CPU") as error:
        envs.spec("autogptq", "cpu")
    assert "a machine with CUDA" in error.value.fix
    assert "gptqmodel" in error.value.fix


@pytest.mark.real
@pytest.mark.parametrize("name", envs.names("cpu"))
def test_the_real_environments_verify(name: str) -> None:
    record = envs.verify(name, "cpu")
    assert record.lock_digest == envs.lock_digest(name, "cpu")
