"""A watched server: planted samples, the shipped fake, and servers that misbehave."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from ports import deaf_port
from test_gpu import GIB, Nvml
from test_servers import start

from workbench import metrics_link, watch
from workbench.client import Client
from workbench.engine_metrics import Metrics
from workbench.load_records import Clock, Level
from workbench.metrics_link import MetricsLink
from workbench.servers import Endpoint
from workbench.servers.gpu import GpuReading, GpuWatch
from workbench.watch import Peak, Watch

IDLE = "vllm:num_requests_running 0\nvllm:generation_tokens_total 5\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of ours that stands still for a while is no server that does not answer."""
    monkeypatch.setattr(metrics_link, "ANSWER_SECONDS", 25.0)
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 25.0)


def endpoint(url: str = "http://127.0.0.1:9", pid: int | None = None, gpu: Any = None) -> Endpoint:
    serving = cast(Any, None)  # nobody here asks how it is served
    return Endpoint(url, "secret", "tiny", serving, pid or os.getpid(), gpu)


class Handler(BaseHTTPRequestHandler):
    """Answers what its server's script says, and counts."""

    protocol_version = "HTTP/1.1"
    server: Any

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        self.server.script(self)

    def say(self, text: str, status: int = 200, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text) if length is None else length))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(script: Callable[[Handler], None]) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.connections, server.asked, server.script = 0, [], script
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def running(found: Metrics | None) -> list[float]:
    return [] if found is None else list(found.get("running", {}).values())


# --------------------------------------------------------------------------- asking for /metrics


def test_one_connection_is_kept_and_carries_the_key() -> None:
    with serving(lambda h: h.say(IDLE)) as server:
        link = MetricsLink(f"{server.url}/", "secret")
        for _ in range(3):
            assert running(link.ask()) == [0]
        link.close()
    assert server.asked == [("/metrics", "Bearer secret")] * 3
    assert server.connections == 1


def test_a_connection_the_server_closed_is_made_again() -> None:
    def hang_up(handler: Handler) -> None:
        handler.say(IDLE)
        handler.close_connection = True  # without saying so

    with serving(hang_up) as server:
        link = MetricsLink(server.url, "")
        for _ in range(3):
            assert running(link.ask()) == [0]
            time.sleep(0.05)  # the server's side is closed when it is asked again
        link.close()
    assert server.connections == 3


@pytest.mark.parametrize(
    "script",
    [
        lambda h: h.say(IDLE, status=404),
        lambda h: h.say(IDLE, status=501),
        lambda h: h.say("nothing we know 1\n"),
        lambda h: h.say(""),
        lambda h: h.say("\xff\xfe" * 9),
    ],
)
def test_a_server_without_metrics_says_nothing(script: Callable[[Handler], None]) -> None:
    with serving(script) as server:
        link = MetricsLink(server.url, "")
        assert link.ask() is None
        assert link.ask() is None
        link.close()


def test_an_answer_that_was_cut_is_none() -> None:
    def cut(handler: Handler) -> None:
        handler.say(IDLE, length=len(IDLE) + 1)
        handler.close_connection = True

    with serving(cut) as server:
        link = MetricsLink(server.url, "")
        assert link.ask() is None
        link.close()


def test_an_answer_that_is_no_http_or_far_too_long_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_link, "_LARGEST_BYTES", 1000)
    for script in (
        lambda h: h.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n"),
        lambda h: h.say(IDLE + "x 1\n" * 1000),
    ):
        with serving(script) as server:
            link = MetricsLink(server.url, "")
            assert link.ask() is None
            link.close()


def test_what_is_not_http_is_not_asked() -> None:
    with serving(lambda h: h.say(IDLE)) as server:
        link = MetricsLink(server.url.replace("http:", "https:"), "secret")
        assert link.ask() is None
        link.close()
    # The key was not sent in the clear to where it should go encrypted.
    assert server.connections == 0


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
def test_an_answer_that_drips_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(metrics_link, "ANSWER_SECONDS", 0.3)
    over = threading.Event()

    def drip(handler: Handler) -> None:
        try:
            handler.wfile.write(part)
            while not over.wait(0.05):
                handler.wfile.write(b"x")
        except OSError:
            return

    with serving(drip) as server:
        link = MetricsLink(server.url, "")
        assert link.ask() is None
        over.set()
        link.close()


# --------------------------------------------------------------------------- against servers


def test_the_shipped_fake_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(server: Endpoint, watched: Watch) -> tuple[float, float]:
        async with Client(server.base_url, server.key, server.model) as client:

            async def one(number: int, tokens: int = 40) -> None:
                prompt = [number, 2, 3, 4, 5]
                answer = await client.complete(
                    prompt, max_tokens=tokens, ignore_eos=True, stream=True
                )
                assert answer.output_tokens == tokens

            await one(9, 4)  # before the interval: counts nowhere
            await asyncio.to_thread(watched.look)
            begin = time.perf_counter()
            tasks = [asyncio.create_task(one(n)) for n in range(4)]
            while not all(task.done() for task in tasks):
                await asyncio.to_thread(watched.look)
                await asyncio.sleep(0.05)
            return begin, time.perf_counter()

    with (
        # Four seconds: looked at a few times even where we stand still for two of them.
        start(tmp_path, {"ttft_ms": 20, "itl_ms": 100}) as server,
        Watch(server) as watched,
    ):
        begin, end = asyncio.run(load(server, watched))
        usage = watched.between(begin, end)
        assert usage.seconds == end - begin
        engine, machine = usage.engine, usage.machine
        assert engine is not None
        assert engine.samples > 3
        assert engine.running is not None and engine.running.max == 4
        assert engine.waiting == Level(mean=0, max=0)
        assert engine.kv_cache_share == Level(mean=0, max=0)
        assert (engine.prompt_tokens, engine.output_tokens) == (20, 160)
        assert engine.preemptions == 0
        assert engine.prefix_cache_hit_rate is None
        assert machine.rss_bytes is not None and machine.rss_bytes.max > 10 << 20
        assert machine.cpu_cores is not None and 0 < machine.cpu_cores < 2
        assert (machine.gpus, machine.others) == ((), None)
        # The same interval later is answered from what is there. (Samples of every second come on.)
        with monkeypatch.context() as patched:
            for sampler in (watched._machine, watched._engine):
                patched.setattr(sampler, "look", lambda: pytest.fail("it was looked at again"))
            assert watched.between(begin, end).engine == engine
    assert watched.peak.rss is not None and watched.peak.rss >= machine.rss_bytes.max
    assert watched.peak.gpu is None
    # After the block it answers still, and takes nothing more.
    assert watched.between(begin, end).engine == engine


def test_the_fake_counts_a_request_that_was_not_streamed(tmp_path: Path) -> None:
    async def ask(server: Endpoint) -> None:
        async with Client(server.base_url, server.key, server.model) as client:
            await client.complete([1, 2, 3], max_tokens=7, ignore_eos=True)

    with start(tmp_path) as server, Watch(server) as watched:
        begin = time.perf_counter()
        asyncio.run(ask(server))
        engine = watched.between(begin, time.perf_counter()).engine
        assert engine is not None
        assert (engine.prompt_tokens, engine.output_tokens) == (3, 7)
        (last,) = watched._engine.samples[-1].value["running"].values()  # type: ignore[index]
        assert last == 0


@pytest.mark.timeout(60)
def test_a_server_that_is_gone_says_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with (
        deaf_port() as port,
        Watch(endpoint(f"http://127.0.0.1:{port}", ended.pid)) as watched,
    ):
        begin = time.perf_counter()
        usage = watched.between(begin, begin + 0.001)
    assert usage.engine is None
    assert (usage.machine.rss_bytes, usage.machine.cpu_cores) == (None, None)
    assert watched.peak.rss is None and watched.peak.samples > 0


@pytest.mark.timeout(60)
def test_a_server_that_never_answers_delays_no_look_at_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.3)
    # All of this is over long before, also where we stand still for a while.
    monkeypatch.setattr(metrics_link, "ANSWER_SECONDS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Watch(endpoint(url), every=0.01) as watched:
            begin = time.perf_counter()
            while sum(s.begun >= begin for s in watched._machine.samples) <= 3:
                time.sleep(0.01)
            usage = watched.between(begin, time.perf_counter())
            assert watched._engine.samples == []
        assert usage.engine is None
        assert usage.machine.samples > 3
        for sampler in (watched._machine, watched._engine):
            sampler.join(20)
            assert not sampler.is_alive()


def test_metrics_are_asked_no_more_than_once_a_second() -> None:
    with serving(lambda h: h.say(IDLE)) as server:
        begun = time.perf_counter()
        with Watch(endpoint(server.url), every=0.01) as watched:
            while len(watched._machine.samples) <= 5:
                time.sleep(0.01)
        assert 1 <= len(server.asked) <= 1 + (time.perf_counter() - begun)


def test_a_look_is_begun_after_it_was_asked_for() -> None:
    with serving(lambda h: h.say(IDLE)) as server, Watch(endpoint(server.url), 60) as watched:
        for _ in range(20):
            asked = time.perf_counter()
            watched.look()
            assert watched._machine.samples[-1].begun >= asked
            assert watched._engine.samples[-1].begun >= asked


# --------------------------------------------------------------------------- planted samples


def look(**values: Any) -> Any:
    return watch._Look(
        **{"rss": 1, "cpu": 0.0, "stolen": 0.0, "total": 0.0, "gpus": (), "others": None} | values
    )


def planted(
    machine: list[tuple[float, Any]], engine: list[tuple[float, float, Any]] | None = None
) -> Watch:
    """A watch whose block is over, with samples of a millisecond or as they say."""
    watched = Watch(endpoint())
    watched._machine.samples = [watch._Sample(at, at + 0.001, value) for at, value in machine]
    watched._engine.samples = [watch._Sample(*sample) for sample in engine or []]
    watched._machine.stop()
    watched._engine.stop()
    return watched


def test_the_machine_over_an_interval_by_hand() -> None:
    # Two cores. Before: 100 s of CPU used; after 4 s 106 s: 1.5 cores. Stolen: 1 of 8 s.
    watched = planted(
        [
            (9.0, look(rss=900, cpu=50.0, stolen=0.0, total=0.0)),
            (9.5, look(rss=900, cpu=100.0, stolen=5.0, total=100.0)),
            (10.5, look(rss=100, cpu=101.0, stolen=5.0, total=102.0)),
            (12.5, look(rss=200, cpu=104.0, stolen=5.5, total=106.0)),
            (13.5, look(rss=900, cpu=106.0, stolen=6.0, total=108.0)),
            (14.5, look(rss=900, cpu=200.0, stolen=9.0, total=110.0)),
        ]
    )
    use = watched.between(10.0, 13.0).machine
    assert use.samples == 2
    assert use.rss_bytes == Level(mean=150, max=200)
    assert use.cpu_cores == pytest.approx(1.5)
    assert use.steal == pytest.approx(1 / 8)


def test_what_cannot_be_looked_at_is_none() -> None:
    blind = look(rss=None, cpu=None, stolen=None)
    use = planted([(9.5, blind), (10.5, blind), (13.5, blind)]).between(10.0, 13.0).machine
    assert (use.samples, use.rss_bytes, use.cpu_cores, use.steal) == (1, None, None, None)
    # A machine that tells of no time at all (a sandbox) tells nothing of steal either.
    still = planted([(9.5, look()), (13.5, look())]).between(10.0, 13.0).machine
    assert still.steal is None
    alone = planted([(10.5, look(cpu=7.0))]).between(10.0, 13.0).machine
    assert alone.cpu_cores is None
    assert planted([]).between(10.0, 13.0).machine.samples == 0


def test_a_reading_across_an_edge_is_no_sample_of_the_interval() -> None:
    def said(tokens: int, now: int) -> Any:
        return {"out": {(): float(tokens)}, "running": {(): float(now)}}

    readings = [
        (8.0, 8.1, said(100, 9)),
        (9.9, 10.1, said(150, 9)),  # begun before the interval
        (10.5, 10.6, said(200, 2)),
        (11.5, 11.6, None),  # in vain
        (12.5, 12.6, said(260, 4)),
        (12.9, 13.1, said(280, 9)),
        (14.0, 14.1, said(300, 9)),
        (15.0, 15.1, said(999, 9)),
    ]
    engine = planted([], readings).between(10.0, 13.0).engine
    assert engine is not None
    assert engine.samples == 2
    assert engine.running == Level(mean=3, max=4)
    assert engine.output_tokens == 200


def test_another_load_long_before_or_after_counts_nothing() -> None:
    def said(tokens: int) -> Any:
        return {"out": {(): float(tokens)}}

    readings = [(1.0, 1.1, said(0)), (20.2, 20.3, said(50)), (20.5, 20.6, said(80))]
    engine = planted([], [*readings, (90.0, 90.1, said(999))]).between(20.0, 21.0).engine
    assert engine is not None and engine.output_tokens == 30
    assert planted([], readings).between(50.0, 51.0).engine is None


def reading(**values: Any) -> GpuReading:
    known: dict[str, Any] = {
        "memory_bytes": 5,
        "utilization": 0.5,
        "power_w": 100.0,
        "clock_mhz": 1000.0,
        "reasons": (),
        "processes": (),
    }
    return GpuReading(**(known | values))


def test_the_gpus_over_an_interval_by_hand() -> None:
    blind = GpuReading(None, None, None, None, None, None)
    looks = [
        look(
            gpus=(reading(memory_bytes=7, utilization=1.0, power_w=300.0, clock_mhz=1500.0), blind),
            others=frozenset({"pid 2 b"}),
        ),
        look(
            gpus=(reading(clock_mhz=900.0, reasons=("gpu_idle", "hw_slowdown")), blind),
            others=frozenset({"pid 10 a", "pid 2 b"}),
        ),
        look(gpus=(reading(reasons=("hw_slowdown",)), blind)),
        look(gpus=(reading(clock_mhz=None, reasons=None), blind)),
    ]
    use = planted([(10.0 + i, found) for i, found in enumerate(looks)]).between(9.0, 19.0).machine
    first, second = use.gpus
    assert first.memory_bytes == 7
    assert first.utilization == Level(mean=2.5 / 4, max=1.0)
    assert first.power_w == Level(mean=150, max=300)
    assert first.clock_mhz == Clock(min=900, mean=3400 / 3, max=1500)
    assert first.throttled == pytest.approx({"gpu_idle": 1 / 3, "hw_slowdown": 2 / 3})
    assert set(second.model_dump().values()) == {None}
    assert use.others == ("pid 10 a", "pid 2 b")


# --------------------------------------------------------------------------- one look


def test_one_look_at_this_process() -> None:
    def system() -> tuple[float, float]:
        """Seconds of all processors, and what was stolen of them."""
        now = psutil.cpu_times()
        every = now.user + now.nice + now.system + now.idle + now.iowait
        return every + now.irq + now.softirq + now.steal, now.steal

    before = system()
    found = watch._Machine(endpoint()).look()
    after = system()
    own = psutil.Process().memory_info().rss
    assert found.rss is not None and found.rss >= own / 2
    times = os.times()
    assert found.cpu == pytest.approx(sum(times[:4]), abs=2.0) and found.cpu > 0
    assert found.others is None and found.gpus == ()
    # Between the two it may have been long, and every processor counts; a counter of the system
    # may go back by a tick.
    assert found.stolen is not None
    for low, seen, high in zip(before, (found.total, found.stolen), after, strict=True):
        assert low - 1 <= seen <= high + 1


def test_the_time_of_a_child_that_ended_stays_counted() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass"
    before = watch._cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", code], check=True)
    after = watch._cpu_seconds(os.getpid())
    assert before is not None and after is not None and after - before >= 0.25


def test_a_guests_time_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(psutil.cpu_times().__class__):  # type: ignore[misc]
        pass

    names = Times._fields
    values = {name: 1.0 for name in names} | {"guest": 100.0, "guest_nice": 100.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(**values))
    assert watch._Machine(endpoint()).look().total == len(names) - 2


def test_the_tree_is_listed_every_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []
    assert watch._TREE_SECONDS == 2
    monkeypatch.setattr(watch, "_TREE_SECONDS", 600.0)  # the looks may be seconds apart
    monkeypatch.setattr(watch, "descendants", lambda pid: listed.append(pid) or [])
    machine = watch._Machine(endpoint())
    for _ in range(5):
        machine.look()
    assert listed == [os.getpid()]
    machine._listed -= watch._TREE_SECONDS
    machine.look()
    assert len(listed) == 2


def gpu(processes: list[tuple[int, int | None]], **settings: Any) -> Any:
    nvml = Nvml(processes={0: processes}, **settings)
    return GpuWatch(nvml, [0])


def test_who_else_is_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = os.getpid(), os.getppid()
    name = psutil.Process(other).name()
    nobody = 1 << 30  # larger than any process number

    def others(*pids: int, refuses: tuple[str, ...] = ()) -> frozenset[str] | None:
        watched = gpu([(pid, None) for pid in pids], refuses=set(refuses))
        return watch._Machine(endpoint(gpu=watched)).look().others

    assert others() == frozenset()
    assert others(own) == frozenset()
    assert others(own, other) == {f"pid {other} {name}"}
    assert others(other) == {f"pid {other} {name}"}
    # Gone again, or hidden.
    assert others(own, nobody) == {f"pid {nobody}"}
    # In a container NVML may count as the host does: it may be the server itself.
    assert others(nobody) is None
    assert others(refuses=("nvmlDeviceGetComputeRunningProcesses",)) is None


def test_a_process_the_server_just_started_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []
    tree: list[int] = []
    monkeypatch.setattr(watch, "_TREE_SECONDS", 600.0)  # the looks may be seconds apart
    monkeypatch.setattr(watch, "descendants", lambda pid: listed.append(pid) or list(tree))
    found = gpu([(os.getpid(), None)])
    machine = watch._Machine(endpoint(gpu=found))
    assert machine.look().others == frozenset()
    tree.append(os.getppid())
    found._nvml.processes[0].append((os.getppid(), None))
    assert machine.look().others == frozenset()
    assert len(listed) == 2
    # A stranger is looked for in the tree once, and not at each look.
    found._nvml.processes[0].append((1, None))
    for _ in range(3):
        assert machine.look().others == {f"pid 1 {psutil.Process(1).name()}"}
    assert len(listed) == 3


def test_the_peak_of_memory_is_of_every_look() -> None:
    peak = Peak()
    for rss, device in ((None, None), (5, 2), (9, None), (7, 3), (None, 1)):
        peak.saw(rss, device)
    assert peak == Peak(rss=9, gpu=3, samples=5)
    found = gpu([(os.getpid(), 3 * GIB)])
    machine = watch._Machine(endpoint(gpu=found))
    machine.look()
    assert machine.peak.gpu == 3 * GIB
