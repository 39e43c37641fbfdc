"""The guard with real processes: nothing of a tree may survive, whoever dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench import guardian
from workbench.errors import MachineError
from workbench.guard import Guarded

ROOT = Path(__file__).resolve().parent.parent


def alive(pid: int) -> bool:
    return pid in guardian.parents()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def pids_in(path: Path, count: int) -> list[int]:
    def ready() -> bool:
        return path.is_file() and len(path.read_text().split()) >= count

    assert until(ready, 30), f"{path} never held {count} pids"
    pids = [int(word) for word in path.read_text().split()]
    assert len(set(pids)) == count
    return pids


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a Python program and return the command that runs it."""

    def write(source: str) -> list[str]:
        path = tmp_path / f"program{len(list(tmp_path.iterdir()))}.py"
        path.write_text(textwrap.dedent(source))
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    """Start guarded commands that are ended whatever the test does."""
    started: list[Guarded] = []

    def start(command: list[str], **env: str) -> Guarded:
        log = tmp_path / "log.txt"
        started.append(Guarded.start(command, env=os.environ | env, log=log))
        return started[-1]

    yield start
    for process in started:
        process.stop(0)


#: A process, its child, and a grandchild that left for a session of its own and ignores SIGTERM:
#: the parent in between has ended, so by process group or parent nobody would find it.
FAMILY = """
    import os, signal, subprocess, sys, time
    pids = sys.argv[1]
    hidden = (
        "import os, signal, time\\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        f"open({pids!r}, 'a').write(f'{{os.getpid()}} ')\\n"
        "time.sleep(600)"
    )
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", hidden])
        os._exit(0)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(pids, "a").write(f"{os.getpid()} {child.pid} ")
    time.sleep(600)
"""


def test_exit_code_and_both_streams_of_the_log(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command = script("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    process = run(command)
    assert process.wait(20) == 7
    assert process.poll() == 7
    assert process.stop() == 7
    assert sorted((tmp_path / "log.txt").read_text().split()) == ["err", "out"]


def test_a_signal_is_reported_like_popen_does(
    run: Callable[..., Guarded], script: Callable[[str], list[str]]
) -> None:
    process = run(script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert process.wait(20) == -signal.SIGSEGV


def test_the_pid_is_the_command_and_its_session_is_its_own(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    process = run([*script(FAMILY), str(pids)])
    assert process.pid in pids_in(pids, 3)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_stop_ends_everybody_even_in_another_session_and_deaf_to_sigterm(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    process = run([*script(FAMILY), str(pids)])
    family = pids_in(pids, 3)
    assert all(map(alive, family))
    begun = time.monotonic()
    # SIGTERM comes first, also where the guard gets no processor for a while.
    assert process.stop(grace_seconds=3) == -signal.SIGTERM
    assert time.monotonic() - begun < 15  # SIGKILL after the grace; not the 15 s of a stuck one
    assert not any(map(alive, family))


def test_a_command_may_use_its_grace(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    done = tmp_path / "done"
    process = run(
        script(f"""
        import pathlib, signal, sys, time
        def end(*_):
            time.sleep(0.5)
            pathlib.Path({str(done)!r}).write_text("tidied")
            sys.exit(3)
        signal.signal(signal.SIGTERM, end)
        print("ready", flush=True)
        time.sleep(600)
        """)
    )
    assert until(lambda: "ready" in (tmp_path / "log.txt").read_text())
    assert process.stop(grace_seconds=20) == 3
    assert done.read_text() == "tidied"


def test_what_a_command_leaves_behind_is_ended_with_it(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    process = run(
        script("""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                 start_new_session=True)
        print(child.pid, flush=True)
        """)
    )
    assert process.wait(20) == 0
    assert not alive(int((tmp_path / "log.txt").read_text()))


def test_last_words_between_two_looks_are_heard(
    run: Callable[..., Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, read = run(["sleep", "3"]), Guarded._lines

    def nothing_yet(of: Guarded, timeout: float) -> Iterator[list[str]]:
        monkeypatch.setattr(Guarded, "_lines", read)
        of._process.wait()  # it ends after it was asked, and before it is looked at
        return iter(())

    monkeypatch.setattr(Guarded, "_lines", nothing_yet)
    assert process.wait(0) is None
    assert process.wait(0) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_owner_dies_all_is_gone_within_two_seconds(
    number: int, script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    log = tmp_path / "log.txt"
    family_command = [*script(FAMILY), str(pids)]
    owner = subprocess.Popen(
        script(f"""
        import os, pathlib, time
        from workbench.guard import Guarded
        kept = Guarded.start({family_command!r}, env=os.environ, log=pathlib.Path({str(log)!r}))
        time.sleep(600)
        """),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        family = pids_in(pids, 3)
        guards = [p for p in guardian.descendants(owner.pid) if p not in family]
        assert guards and all(map(alive, family))
        owner.send_signal(number)
        owner.wait(10)
        assert until(lambda: not any(map(alive, family + guards)), 20)
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_guard_ends_the_tree(
    number: int, script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, "--", *script(FAMILY), str(pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with guard:
        family = pids_in(pids, 3)
        guard.send_signal(number)
        assert guard.wait(20) == 128 + signal.SIGTERM
        assert not any(map(alive, family))


def test_a_killed_guard_takes_the_command_with_it_and_the_rest_is_swept(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    process = run([*script(FAMILY), str(pids)])
    family = pids_in(pids, 3)
    guard = guardian.parents()[process.pid]
    os.kill(guard, signal.SIGKILL)
    assert until(lambda: not alive(process.pid))  # nobody asked yet: the kernel did it
    assert until(lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGKILL
    assert not any(map(alive, family))
    process.stop()


def test_memory_is_the_sum_over_the_tree(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    hold = "import time; x = bytearray(60_000_000); print('full', flush=True); time.sleep(600)"
    process = run(
        script(f"""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", {hold!r}])
        exec({hold!r})
        """)
    )
    assert until(lambda: (tmp_path / "log.txt").read_text().count("full") == 2)
    assert 120_000_000 < process.rss() < 220_000_000
    process.stop(1)
    assert process.rss() == 0
    assert 60_000_000 < process.max_rss < 110_000_000


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as caught:
        Guarded.start([str(tmp_path / "nothing")], env=os.environ, log=tmp_path / "log.txt")
    assert "No such file" in caught.value.what
    assert str(tmp_path / "nothing") == caught.value.where


def test_the_command_reads_nothing_and_holds_none_of_our_pipes(
    run: Callable[..., Guarded], script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    process = run(
        script("""
        import os, sys
        print(repr(sys.stdin.read()), flush=True)
        os.system("ls -l /proc/self/fd")
        """)
    )
    assert process.wait(20) == 0
    text = (tmp_path / "log.txt").read_text()
    assert text.startswith("''\n")
    assert "/dev/null" in text
    assert "pipe:" not in text


def test_a_lock_handed_down_is_held_until_the_tree_is_gone(
    script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    import fcntl

    lock, pids = tmp_path / "lock", tmp_path / "pids"
    command = [*script(FAMILY), str(pids)]
    owner = subprocess.Popen(
        script(f"""
        import fcntl, os, pathlib, time
        from workbench.guard import Guarded
        file = open({str(lock)!r}, "a")
        fcntl.flock(file, fcntl.LOCK_EX)
        log = pathlib.Path({str(tmp_path)!r}, "l")
        kept = Guarded.start({command!r}, env=os.environ, log=log, keep_open=[file.fileno()])
        time.sleep(600)
        """),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    family = pids_in(pids, 3)
    assert all(map(alive, family))
    owner.kill()
    owner.wait()
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for whoever holds it
        assert not any(map(alive, family))


def test_the_guard_itself_starts_fast_and_imports_little() -> None:
    command = [sys.executable, "-I", "-S", "-X", "importtime", guardian.__file__]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.stderr.rstrip().endswith("usage: guardian.py -- command [arguments]")
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in out.stderr.splitlines()}
    assert "ctypes" in loaded
    assert not loaded & {"workbench", "subprocess", "pathlib", "typing", "json", "re", "asyncio"}

    def seconds(*words: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", *words], stderr=subprocess.DEVNULL, check=False)
        return time.perf_counter() - begun

    # Against a bare interpreter, in turn, so that a slow or a busy machine does not fail it.
    both = [(seconds("-c", "pass"), seconds(guardian.__file__)) for _ in range(20)]
    assert min(ours for _, ours in both) < 4 * min(bare for bare, _ in both) + 0.02
