"""The guard: a small process that keeps one command's whole tree of processes on a leash.

Run as ``python -I -S guardian.py -- command``, standard library only, by `workbench.guard`. It
starts the command in a session of its own and ends everything below itself when

- its standard input reaches its end: the process that started it is gone, even by ``kill -9``;
- it reads ``stop SECONDS`` there, or gets SIGTERM, SIGINT or SIGHUP;
- the command ends and left others behind.

The guard is a *subreaper*: a grandchild that makes its own session and loses its parent becomes the
guard's child, so the tree can always be walked. Ending is SIGTERM, then SIGKILL after the grace.

It reports on standard output, a line each: ``started PID MARK`` or ``error TEXT``, and at the end
``ended CODE PEAK_RSS`` followed by the pids it could not end. The command's output goes to the
guard's standard error, which is the log. Linux only (`/proc`, `prctl`). It imports little, because
its start is part of every job's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

#: How long a tree whose owner died may take to end by itself. Nobody is waiting for its work.
ORPHAN_GRACE = 1.0
#: How long after SIGKILL a process may still be seen (uninterruptible sleep, page tables to free).
KILL_SECONDS = 15.0
#: Every process of a tree carries this in its environment, so that it is found without a parent.
MARK = "WORKBENCH_GUARD"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")


# --------------------------------------------------------------------------- process trees


def parents() -> dict[int, int]:
    """Map every process that is not a zombie to its parent."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a Path object a process costs ten times more
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                # The name may hold spaces and parentheses; what follows the last ')' is regular.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            found[int(entry)] = int(parent)
    return found


def descendants(pid: int) -> list[int]:
    """Every living process below ``pid``, itself not included, parents before children."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(child)
            waiting.append(child)
    return found


def marked(mark: str) -> list[int]:
    """Living processes that were started under a guard's mark, whoever their parent is now."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for pid in parents():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if entry in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def send(pids: Sequence[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        try:  # contextlib would cost the guard a third of its start
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def resident(pids: Sequence[int]) -> int:
    """Sum of the resident bytes of processes; one that is gone counts nothing."""
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
                pages += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return pages * _PAGE


# --------------------------------------------------------------------------- the guard itself


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def _report(*words: object) -> None:
    try:  # noqa: SIM105 - see send
        os.write(1, " ".join(map(str, words)).encode() + b"\n")
    except OSError:
        pass  # the owner is gone: nobody reads, and the work of ending the tree goes on


def _spawn(command: Sequence[str]) -> int:
    """Start the command in its own session; its input is empty, its output is our stderr.

    Raises:
        OSError: it could not be executed.
    """
    guard = os.getpid()
    failed, fails = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid:
        os.close(fails)
        with os.fdopen(failed, "rb") as pipe:
            code = pipe.read()
        if code:
            os.waitpid(pid, 0)
            raise OSError(int(code), os.strerror(int(code)), command[0])
        return pid
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(fails, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(127)


class _Tree:
    """The guard's children: who has been reaped, and how the command ended."""

    def __init__(self, main: int) -> None:
        self.main = main
        self.code: int | None = None
        self.max_rss = 0

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.code = os.waitstatus_to_exitcode(status)
                self.max_rss = usage.ru_maxrss * 1024

    def end(self, grace: float) -> list[int]:
        """End everything below the guard. Returns who is still there, normally nobody."""
        pid = os.getpid()
        begun = time.monotonic()
        asked: set[int] = set()
        while alive := descendants(pid):
            now = time.monotonic() - begun
            if now < grace or not asked:  # asked once, however late that is
                new = [p for p in alive if p not in asked]
                send(new, signal.SIGTERM)
                asked.update(new)
            elif now < grace + KILL_SECONDS:
                send(alive, signal.SIGKILL)
            else:
                break
            time.sleep(0.02)
            self.reap()
        self.reap()
        return alive


def _watch(tree: _Tree, woken: int) -> float:
    """Wait until the tree must end. Returns the grace it gets."""
    told = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            numbers = os.read(woken, 512)
            tree.reap()
            if tree.code is not None:
                return ORPHAN_GRACE
            if any(n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) for n in numbers):
                return ORPHAN_GRACE
        if 0 in ready:
            data = os.read(0, 512)
            if not data:
                return ORPHAN_GRACE
            told += data
            if told.startswith(b"stop ") and told.endswith(b"\n"):
                return float(told.split()[1])


def guard(command: Sequence[str]) -> int:
    """Be the guard of a command until nothing of it is left. Returns the guard's own exit code."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[MARK] = mark
    try:
        pid = _spawn(command)
    except OSError as error:
        _report("error", error.strerror or error)
        return 127
    _report("started", pid, mark)
    tree = _Tree(pid)
    left = tree.end(_watch(tree, woken))
    code = tree.code if tree.code is not None else -signal.SIGKILL
    _report("ended", code, tree.max_rss, *left)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if sys.argv[1:2] != ["--"] or len(sys.argv) < 3:
        sys.exit("usage: guardian.py -- command [arguments]")
    sys.exit(guard(sys.argv[2:]))
