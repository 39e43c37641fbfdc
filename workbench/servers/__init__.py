"""Starts a server for one checkpoint, proves that it answers, and ends all of it again.

    with serve(spec, checkpoint=..., ...) as endpoint:
        ...                     # ask endpoint.base_url with endpoint.key

`/health` answering 200 is not enough: a server whose kernel is missing says so only at its first
completion. So every server gets a canary before anybody measures: a completion that must come
with text and finite log-probabilities, twice the same.

A server listens on the loopback interface with a random key that exists only in environment
variables, in the lease (mode 0600) and in memory: not in commands, logs or records. It runs under
`workbench.guard`; leaving the block, an exception, or ``kill -9`` of this process ends its whole
tree. The *lease* in its folder lets another process of the same user (a notebook's kernel) use a
server it does not own.

What differs between engines is in one small module each, named in `servers.engine.ENGINES`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench.client import Client, Completion, RequestFailed, run_async
from workbench.dialect import dialect
from workbench.errors import MachineError, ServingFailure
from workbench.guard import Guarded
from workbench.progress import Progress, silent
from workbench.records import Choice, Environment, Hardware, Lane, Serving
from workbench.servers.endpoint import (
    LEASE,
    Canary,
    Endpoint,
    attach,
    get_text,
    judge,
    write_lease,
)
from workbench.servers.engine import Launch, engine
from workbench.servers.gpu import GpuWatch
from workbench.spec import ServeSpec
from workbench.store import write_atomic
from workbench.sweep_spec import ServingOptions

LOG = "server.log"
METRICS = "metrics.txt"
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.1
_LAST_LINES = 8
_LAST_ERRORS = 3
#: What Python and nanobind say of a process that is being ended.
_NOISE = re.compile(r"nanobind|- leaked |- \.\.\. skipped|resource_tracker|^\s*warnings\.warn")
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): ")


@contextlib.contextmanager
def serve(
    spec: ServeSpec,
    *,
    engine_name: str,
    checkpoint: Path,
    model_name: str,
    lane: Lane,
    dtype: Choice,
    served_digest: str,
    twin_of: str | None,
    drafts: Mapping[str, str] | None = None,
    environment: Environment | None,
    hardware: Hardware,
    folder: Path,
    kv_cache: str = "auto",
    concurrency: int = 1,
    tools: bool = False,
    top_logprobs: int = 0,
    options: ServingOptions | None = None,
    canary: Canary | None = None,
    extra_env: Mapping[str, str] | None = None,
    progress: Progress = silent,
    remark: Callable[[str], None] = lambda said: None,
) -> Iterator[Endpoint]:
    """A server for the block: started, asked a canary, leased, and ended.

    Args:
        spec: of the recipe.
        engine_name: the engine that serves this variant.
        checkpoint: folder to load: the variant's own, or its twin's.
        model_name: name to serve it under.
        lane: how the engine runs it; ends up in the record.
        dtype: compute dtype with its reason.
        served_digest: weights digest of `checkpoint`.
        twin_of: weights digest of the checkpoint a twin stands for.
        drafts: draft model -> digest of its files; for the record.
        environment: the engine's; None where it runs in the light kernel.
        hardware: of this machine.
        folder: for the log, the lease and `metrics.txt`; created.
        kv_cache: ``fp8`` where the variant asks for an FP8 KV cache.
        concurrency: most requests the recipe sends at a time; an engine makes room for them.
        tools: a suite offers functions to the model.
        top_logprobs: most log-probabilities of one position the recipe asks for.
        options: of a sweep; None: the recipe's own configuration.
        canary: what it must answer; None: the default one.
        extra_env: more environment variables for the process.
        progress: called with the seconds waited, 0, and what the server does.
        remark: called with what should be known and is no failure.

    Raises:
        ServingFailure: the port is taken, it ended, was not ready in time, failed its canary, or
            died while it was used. The last lines of its log are quoted.
        RecipeError: the engine cannot do what the spec asks.
    """
    kind = engine(engine_name)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(held_port(spec.port))
        launch = Launch(
            spec=spec,
            checkpoint=checkpoint,
            model_name=model_name,
            dtype=dtype.value,
            port=port,
            python=environment.python if environment else "",
            hardware=hardware,
            kv_cache=kv_cache,
            twin=twin_of is not None,
            concurrency=concurrency,
            tools=tools,
            top_logprobs=top_logprobs,
            options=options or ServingOptions(),
        )
        command = kind.command(launch)
        key = secrets.token_urlsafe(32)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / LOG
        (folder / LEASE).unlink(missing_ok=True)
        gpu = GpuWatch.open(len(hardware.gpus)) if hardware.gpus else None
        env = {**os.environ, **command.env, **(extra_env or {}), kind.key_variable: key}
        begun = time.monotonic()
        if gpu:
            stack.callback(gpu.close)
        process = Guarded.start(command.words, env=env, log=log)
        stack.callback(process.stop)
        running = _Running(process, log, f"http://{_HOST}:{port}", key, model_name, engine_name)
        running.wait_until_ready(spec.startup_seconds, begun, progress)
        running.ask(canary or Canary())
        facts = kind.read_log(log.read_text("utf-8", "replace"))
        endpoint = Endpoint(
            base_url=running.base_url,
            key=key,
            model=model_name,
            serving=Serving(
                engine=engine_name,
                engine_version=kind.version(environment),
                environment=environment.lock_digest if environment else "workbench",
                lane=lane,
                served_path=str(checkpoint),
                served_digest=served_digest,
                twin_of=twin_of,
                drafts=dict(drafts or {}),
                dtype=dtype,
                max_model_len=spec.max_model_len,
                command=command.words,
                hardware=hardware.key,
                kernels=facts.kernels,
                kv_cache_tokens=facts.kv_cache_tokens,
                max_concurrency=facts.max_concurrency,
                choices=dict(command.choices),
                startup_seconds=round(time.monotonic() - begun, 3),
                log=LOG,
            ),
            pid=process.pid,
            gpu=gpu,
        )
        write_lease(folder, endpoint)
        try:
            yield endpoint
        except MachineError as error:
            # Said once of a server that was replaced and died again.
            died = "died while it was used"
            if died not in error.what and process.wait(1.0) is not None:
                raise running.failure(died, error.fix, error.what) from error
            raise
        finally:
            (folder / LEASE).unlink(missing_ok=True)
            with contextlib.suppress(RequestFailed):  # a dead server has no metrics to keep
                write_atomic(folder / METRICS, running.get("/metrics", 3.0).encode())
            process.stop()
        if gpu:
            unknown = gpu.check_returned()
            if unknown:
                remark(unknown)


# --------------------------------------------------------------------------- inside


@dataclass(frozen=True)
class _Running:
    """A server that was started and is not trusted yet."""

    process: Guarded
    log: Path
    base_url: str
    key: str = field(repr=False)
    model: str
    engine: str

    def get(self, path: str, seconds: float = 10.0) -> str:
        return get_text(self.base_url, self.key, self.model, path, seconds)

    def failure(self, what: str, fix: str = "", before: str = "") -> ServingFailure:
        """An error that quotes the log. The key is not in there, but is looked for all the same."""
        text = self.log.read_text("utf-8", "replace").replace(self.key, "***")
        code = self.process.returncode
        sentence = f"the {self.engine} server for '{self.model}' {what}"
        if code is not None:
            sentence += f" (exit code {code})"
        said = "\n    ".join(last_words(text)) or "(nothing)"
        return ServingFailure(
            f"{before}{'; ' if before else ''}{sentence}; it last said:\n    {said}",
            where=str(self.log),
            fix=fix or "read its log; the command is in the record and can be run by hand",
        )

    def wait_until_ready(self, limit: float, begun: float, progress: Progress) -> None:
        while True:
            waited = time.monotonic() - begun
            if self.process.poll() is not None:
                raise self.failure("ended before it was ready")
            if waited > limit:
                raise self.failure(
                    f"was not ready within {limit:g} s",
                    "raise serve.startup_seconds, or free the machine",
                )
            progress(round(waited, 1), 0, f"starting {self.engine}, {waited:.0f} s")
            try:
                self.get("/health", 5.0)
            except RequestFailed:
                time.sleep(_POLL_SECONDS)
                continue
            return

    def ask(self, canary: Canary) -> None:
        """Ask the canary twice and judge the answers.

        Raises:
            ServingFailure: an error, no text, a log-probability that is not a number, another
                answer the second time, or not the expected one.
        """
        try:
            first, second = run_async(lambda: self._twice(canary))
        except RequestFailed as error:
            self.process.wait(1.0)
            raise self.failure(
                f"answers /health but not its first completion ({error.reason}: {error.what})",
                "the engine has no working kernel for this checkpoint here, or another program "
                "listens on the port",
            ) from error
        problem = judge(canary, first, second, echoed=dialect(self.engine).echoes)
        if problem:
            raise self.failure(f"failed its canary: {problem}")

    async def _twice(self, canary: Canary) -> tuple[Completion, Completion]:
        spoken = dialect(self.engine)
        async with Client(
            self.base_url, self.key, self.model, request_seconds=120, dialect=spoken
        ) as client:
            answers = [
                await client.complete(
                    canary.prompt,
                    max_tokens=canary.max_tokens,
                    echo=spoken.echoes,
                    logprobs=0,
                    ignore_eos=True,
                )
                for _ in range(2)
            ]
        return answers[0], answers[1]


def last_words(log: str) -> list[str]:
    """The last lines of a log, preceded by the last errors it names where those are further up.

    A server that fails says why, and then a page about shutting down.
    """
    lines = [
        line.rstrip()[:300] for line in log.splitlines() if line.strip() and not _NOISE.search(line)
    ]
    tail = lines[-_LAST_LINES:]
    named = [line for line in lines[:-_LAST_LINES] if _ERROR.search(line)]
    return [*named[-_LAST_ERRORS:], *tail]


@contextlib.contextmanager
def held_port(wanted: int | None) -> Iterator[int]:
    """A port nobody else is given during the block: the wanted one, or one the kernel picks.

    A socket stays bound to it and never listens. The kernel then hands the port to no program
    that asks for any port, nor to a connection, while a server that names it can listen: servers
    set SO_REUSEADDR or SO_REUSEPORT. A port only looked up and let go is another server's by the
    time an engine has loaded, for another run on this machine does the same.

    Raises:
        ServingFailure: the wanted one is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        # A port whose last server just ended is free: servers set this option too.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((_HOST, wanted or 0))
        except OSError as error:
            raise ServingFailure(
                f"port {wanted} is in use ({error.strerror})",
                where=f"{_HOST}:{wanted}",
                fix="stop the program that listens there, choose another serve.port, or leave it "
                "out: then a free one is taken",
            ) from error
        # Not before the bind: a listener with this option would then pass for a free port.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield holder.getsockname()[1]


__all__ = ["LOG", "Canary", "Endpoint", "attach", "serve"]
