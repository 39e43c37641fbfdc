"""A project of one's own for each test that runs the spine: real folders, fake tools."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from projects import ROOT, edit_recipe

# No property is a timed test: on a busy machine an example takes what it takes.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

_SERVERS = {
    *("test_real_vllm", "test_real_llamacpp", "test_real_tools", "test_real_divergence"),
    *("test_real_lmeval", "test_real_faults", "test_real_run"),
}

# A shell that starts the tests in the background has SIGINT ignored, and every process started from
# here would inherit that; the tests of Ctrl-C need what a terminal gives.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no worker has a long file left at the end.

    Real servers, then real quantizers, then files of whole runs on the fakes, then the rest.
    """
    # They are the ones that need its checkpoint.
    runs = {item.path for item in items if "tiny" in getattr(item, "fixturenames", ())}

    def place(item: pytest.Item) -> int:
        if item.path.stem in _SERVERS:
            return 0
        if item.get_closest_marker("real"):
            return 1
        return 2 if item.path in runs else 3

    items.sort(key=place)  # stable: within a place the order stays


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What runs beside what (`-n 2`): a file's tests stay together.

    A real server takes every core, so those that start one are one group and never meet; the real
    quantizers, mostly on one core, run beside them. Said here, not by `xdist_group`: pytest-xdist
    3.8 writes its groups where pytest 9.2 no longer looks, and any test may meet any other.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            stem = Path(nodeid.partition("::")[0]).stem
            return "servers" if stem in _SERVERS else stem

    return Together(config, log)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint of the smoke recipe."""
    from workbench.demo import make_tiny_checkpoint

    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real demo checkpoint, made once; it needs the quantize environment."""
    from workbench.demo import DEMO_NAME, make_demo_checkpoint
    from workbench.envs import ensure
    from workbench.hardware import detect
    from workbench.progress import silent

    folder = tmp_path_factory.mktemp("demo")
    return make_demo_checkpoint(
        ROOT / "results" / "checkpoints" / DEMO_NAME,
        python=ensure("quantize", detect().target).python,
        folder=folder,
        log=folder / "demo.log",
        progress=silent,
    )


@pytest.fixture
def project(tmp_path: Path, tiny: Path) -> Path:
    """A project folder with the shipped suites, sources, notebooks and policies, and no results.

    `recipe.yaml` in it is the smoke recipe.
    """
    root = tmp_path / "project"
    root.mkdir()
    for name in ("eval_suites", "calib_data", "notebooks"):
        (root / name).symlink_to(ROOT / name)
    edit_recipe(root, lambda recipe: None, tiny)
    return root


@pytest.fixture
def workbench(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in the project, as a user would."""

    def call(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "workbench", *arguments],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "NO_COLOR": "1"},
        )

    return call


@pytest.fixture
def patient_with_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that died is given time to be seen dead, so that the failure quotes its log.

    The second it is given is not enough where its guard gets no processor for that long. One that
    lives would be waited for in vain: this is for tests whose server dies.
    """
    from workbench.guard import Guarded

    wait = Guarded.wait
    monkeypatch.setattr(
        Guarded, "wait", lambda of, timeout: wait(of, 20.0 if timeout == 1.0 else timeout)
    )
