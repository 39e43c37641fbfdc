"""Runs a command so that nothing of it outlives us: the handle jobs and servers hold.

The command runs under `workbench.guardian`, a small process that ends the command's whole tree when
we ask, when we end, and when we are killed with ``kill -9`` (it then reads the end of the pipe we
held). If we *and* the guard are killed with SIGKILL, the command itself still dies with the
guard (PR_SET_PDEATHSIG); children of its own may then be left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from workbench import guardian
from workbench.errors import MachineError
from workbench.guardian import KILL_SECONDS, ORPHAN_GRACE


class _Ended(NamedTuple):
    code: int
    max_rss: int
    left: list[int]


class Guarded:
    """A command running under a guard. Make one with `Guarded.start`; it is a context manager.

    The guard ends the tree when this process ends, however it ends. An object that is merely
    forgotten ends it too, when Python collects it.
    """

    def __init__(self, process: subprocess.Popen[bytes], command: tuple[str, ...]) -> None:
        self._process = process
        self.command = command
        self.pid = 0
        self._mark = ""
        self._buffer = b""
        self._final: _Ended | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        keep_open: Sequence[int] = (),
    ) -> Guarded:
        """Start a command. Its output, both streams, goes to ``log``, which is emptied first.

        Args:
            command: program and arguments; the program is looked up on ``PATH``.
            env: the complete environment it gets.
            log: file; its folder is created.
            cwd: working directory; ours where none is given.
            keep_open: file descriptors the tree inherits. With a lock's descriptor here the lock is
                held until the tree is gone, even if we are killed first.

        Raises:
            MachineError: the program is not there or cannot be executed.
        """
        words = tuple(os.fspath(word) for word in command)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        with log.open("ab") as output:  # append mode: several processes write, none over another
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, "--", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(env),
                cwd=cwd,
                pass_fds=tuple(keep_open),
                start_new_session=True,  # Ctrl-C in the terminal reaches us, and we decide
            )
        self = cls(process, words)
        try:
            first = next(self._lines(30.0), ["error", "the guard process did not start"])
        except BaseException:
            self._close()
            raise
        if first[0] == "error":
            self._close()
            raise MachineError(
                f"cannot start {Path(words[0]).name}: {' '.join(first[1:])}",
                where=words[0],
                fix="check that the file exists and may be executed",
            )
        self.pid, self._mark = int(first[1]), first[2]
        return self

    def _lines(self, timeout: float) -> Iterator[list[str]]:
        """Reports of the guard, waiting at most so long for the first; ends at end of file."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                yield line.decode().split()
                continue
            if not select.select([descriptor], [], [], max(timeout, 0))[0]:
                return
            data = os.read(descriptor, 4096)
            if not data:
                return
            self._buffer += data

    def wait(self, timeout: float) -> int | None:
        """Wait at most ``timeout`` seconds. Same answer as `poll`."""
        if self._final is not None:
            return self.returncode
        # Looked at before its last words are read: it may say them and end in between.
        gone = self._process.poll() is not None
        for report in self._lines(timeout):
            if report[0] == "ended":
                code, max_rss, *left = map(int, report[1:])
                self._final = _Ended(code, max_rss, left)
                self._close()
                return self.returncode
        if gone:
            # The guard itself was killed. Its command died with it; the rest is ended here.
            self._final = _Ended(-signal.SIGKILL, 0, self._sweep())
            self._close()
        return self.returncode

    def poll(self) -> int | None:
        """None while anything of the tree runs, then the command's exit code (``-9``: SIGKILL)."""
        return self.wait(0)

    @property
    def returncode(self) -> int | None:
        """The command's exit code as last seen by `poll`."""
        return None if self._final is None else self._final.code

    def _sweep(self) -> list[int]:
        """Kill whatever still carries the mark. Returns who survived."""
        ends = time.monotonic() + KILL_SECONDS
        while (alive := guardian.marked(self._mark)) and time.monotonic() < ends:
            guardian.send(alive, signal.SIGKILL)
            time.sleep(0.02)
        return alive

    def stop(self, grace_seconds: float = 10.0) -> int:
        """End the whole tree and prove that it is gone. Fine to call again.

        Args:
            grace_seconds: time between SIGTERM and SIGKILL.

        Returns:
            The command's exit code.

        Raises:
            MachineError: a process of the tree survived SIGKILL.
        """
        if self.poll() is None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(f"stop {grace_seconds}\n".encode())
                self._process.stdin.flush()
            if self.wait(grace_seconds + 2 * KILL_SECONDS) is None:
                self._process.kill()
                self._process.wait()
                self.poll()
        left = self._sweep()
        if self._final is not None:
            alive = guardian.parents()
            left = sorted({*left, *(p for p in self._final.left if p in alive)})
        self._close()
        if left:
            raise MachineError(
                f"processes of {Path(self.command[0]).name} cannot be ended: {left}",
                where=" ".join(self.command)[:200],
                fix="they hang in the kernel (often a driver or a network disk); see `ps -p PID`, "
                "and restart the machine if they stay",
            )
        code = self.returncode
        return code if code is not None else -signal.SIGKILL

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        # Its input is closed, so the guard ends by itself; only a broken one needs force.
        try:
            self._process.wait(ORPHAN_GRACE + KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def rss(self) -> int:
        """Resident bytes of every process of the tree now, the guard apart.

        A page shared by two processes counts twice: this is an upper bound of what the tree needs,
        and for one process it is exact. (The exact figure, PSS, takes the kernel a walk of every
        mapping: too slow to sample.)
        """
        if self._final is not None:
            return 0
        return guardian.resident(guardian.descendants(self._process.pid))

    @property
    def max_rss(self) -> int:
        """Highest resident bytes of the command's own process, known when it has ended; else 0."""
        return 0 if self._final is None else self._final.max_rss

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
