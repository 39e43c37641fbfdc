"""The fake engine: `workbench.servers.fake_app` in the light kernel. Seconds, and no torch."""

from __future__ import annotations

import sys

from workbench import __version__
from workbench.records import Choice, Environment
from workbench.servers.engine import Command, Launch, LogFacts
from workbench.servers.vllm import option_words


class FakeEngine:
    """A server that looks its answers up; see `workbench.servers.fake_app`."""

    key_variable = "VLLM_API_KEY"

    def version(self, environment: Environment | None) -> str:
        """The workbench's own version."""
        return __version__

    def command(self, launch: Launch) -> Command:
        """Command of the fake server. Arguments of the recipe are passed on as they are."""
        return Command(
            words=(
                *(sys.executable, "-m", "workbench.servers.fake_app"),
                *("--port", str(launch.port)),
                *("--model", launch.model_name),
                *("--path", str(launch.checkpoint)),
                *launch.spec.args,
                *option_words(launch.options.given),
            ),
            env={},
            choices={"numbers": Choice(value="made up", reason="the fake engine computes nothing")},
        )

    def read_log(self, text: str) -> LogFacts:
        """The fake has no kernels."""
        return LogFacts(kernels=("fake",))
