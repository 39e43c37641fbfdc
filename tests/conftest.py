"""A project of one's own for each test that runs the spine: real folders, fake tools."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from projects import ROOT, edit_recipe

# No property is a timed test: on a busy machine an example takes what it takes.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# A shell that starts the tests in the background has SIGINT ignored, and every process started from
# here would inherit that; the tests of Ctrl-C need what a terminal gives.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
