"""A running server as others see it, what it must answer first, and the lease that shares it.

The lease (`server.json`, mode 0600) lets another process of the same user ask a server it did not
start. It is believed only while the process it names lives and answers with the lease's key.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from workbench.client import Client, Completion, RequestFailed, run_async
from workbench.dialect import dialect
from workbench.guardian import descendants, resident
from workbench.records import Serving
from workbench.servers.gpu import GpuWatch

LEASE = "server.json"
_BEHIND = 10


@dataclass(frozen=True)
class Canary:
    """What a fresh server must answer before it is used.

    Attributes:
        prompt: rendered text.
        max_tokens: length of the answer.
        expect: text the answer must contain; None: any text.
    """

    prompt: str = "The capital of France is"
    max_tokens: int = 8
    expect: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A server that answers.

    Attributes:
        base_url: such as ``http://127.0.0.1:8000``.
        key: bearer key; hidden from `repr`.
        model: the served name.
        serving: the record of how it is served.
        pid: of the server's own process.
        gpu: device memory, read while it runs; None where there is no GPU.
    """

    base_url: str
    key: str = field(repr=False)
    model: str
    serving: Serving
    pid: int
    gpu: GpuWatch | None = None

    def client(self, **settings: Any) -> Client:
        """A client that speaks its engine's dialect; `settings` are those of `Client`."""
        spoken = dialect(self.serving.engine)
        return Client(self.base_url, self.key, self.model, dialect=spoken, **settings)

    def alive(self) -> bool:
        """Whether it still says that it is well: its process may be gone, or its engine.

        A server too busy to say so in time is one that lives.
        """
        try:
            get_text(self.base_url, self.key, self.model, "/health", 10.0)
        except RequestFailed as failure:
            return failure.reason == "timeout"
        return True

    def rss(self) -> int | None:
        """Resident bytes of the server's process tree now; None when it is gone."""
        return resident([self.pid, *descendants(self.pid)]) or None

    def give_way(self) -> None:
        """Put its processes behind everything else on a contended processor, for good.

        On a CPU a server takes every core, and a client that measures then waits for one: up to
        0.2 s, in 13 of 20 loads of a second on two cores; with the server behind at most 15 ms.

        Linux shares a processor between sessions first (autogroup), then by nice value; which of
        the two counts depends on kernel and cgroups, so both are set. What cannot be set is left:
        the load client says how long it waited.
        """
        nice = min(os.getpriority(os.PRIO_PROCESS, 0) + _BEHIND, 19)
        for pid in (self.pid, *descendants(self.pid)):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(str(_BEHIND))
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)

    def gpu_bytes(self) -> int | None:
        """Device memory the server uses now; None where there is no GPU."""
        return self.gpu.used(self.pid) if self.gpu else None


def judge(canary: Canary, first: Completion, second: Completion, *, echoed: bool = True) -> str:
    """What is wrong with a canary's two answers; empty where nothing is.

    Args:
        canary: what was asked.
        first: its answer, with log-probabilities.
        second: the same again.
        echoed: the prompt's tokens are in it too.
    """
    answer = first.text.removeprefix(canary.prompt) if echoed else first.text
    if not answer:
        return "the answer has no text"
    # Nothing precedes the first token of a prompt.
    values = first.token_logprobs[1:] if echoed else first.token_logprobs
    if not values or any(v is None or not math.isfinite(v) for v in values):
        return "a log-probability is missing or is not a number"
    if second.text != first.text:
        again = second.text[len(first.text) - len(answer) :]
        return f"asked twice it answered {answer!r} and {again!r}"
    if canary.expect is not None and canary.expect not in answer:
        return f"the answer {answer!r} does not contain {canary.expect!r}"
    return ""


def attach(folder: Path) -> Endpoint | None:
    """The server another process holds in that folder, or None where none answers.

    A lease is believed only while the process it names lives (its start time tells it from another
    one that got the same number) and answers with the lease's key.
    """
    try:
        lease = json.loads((folder / LEASE).read_text("utf-8"))
        serving = Serving.model_validate(lease["serving"])
        created = psutil.Process(lease["pid"]).create_time()
        if abs(created - lease["created"]) > 0.01:
            return None
        endpoint = Endpoint(lease["base_url"], lease["key"], lease["model"], serving, lease["pid"])
        get_text(endpoint.base_url, endpoint.key, endpoint.model, "/v1/models", 5.0)
    except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess, RequestFailed):
        return None
    gpu = GpuWatch.open(None) if lease.get("gpu") else None
    return Endpoint(
        endpoint.base_url, endpoint.key, endpoint.model, endpoint.serving, endpoint.pid, gpu
    )


def write_lease(folder: Path, endpoint: Endpoint) -> None:
    """Write the lease for this user's eyes only, whole or not at all."""
    lease: dict[str, Any] = {
        "base_url": endpoint.base_url,
        "key": endpoint.key,
        "model": endpoint.model,
        "serving": endpoint.serving.model_dump(mode="json"),
        "pid": endpoint.pid,
        "created": psutil.Process(endpoint.pid).create_time(),
        "gpu": endpoint.gpu is not None,
    }
    partial = folder / f".{LEASE}.partial"
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(lease, file)
    partial.replace(folder / LEASE)


def get_text(base_url: str, key: str, model: str, path: str, seconds: float) -> str:
    """The body of one GET.

    Raises:
        RequestFailed: anything but HTTP 200 within the time.
    """

    async def ask() -> str:
        async with Client(base_url, key, model, request_seconds=seconds) as client:
            return await client.get_text(path)

    return run_async(ask)
