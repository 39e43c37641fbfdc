"""The load client against real servers: the timing server, and sockets that do what none should."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import psutil
import pytest
import uvloop
from ports import deaf_port

from workbench import dialect, load_sender
from workbench import load as load_module
from workbench.errors import ServingFailure, UserError
from workbench.load import Limits, Load, Target, run_load, send_load
from workbench.load_connection import Connection
from workbench.load_request import payloads
from workbench.load_stream import AnswerReader
from workbench.timing_server import Settings, TimingServer
from workbench.traffic import Ask, Outcome

QUICK = Settings(ttft_ms=5, itl_ms=1)
#: Far above what anything here takes: a test that meets one of them has found a hang.
PATIENT = Limits(connect=20, first_byte=20, between=20, request=40, load=60)
#: One token, over a connection that may stay open.
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 77\r\n\r\n"
    b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
)


def asks(count: int, tokens: int = 8, **more: Any) -> list[Ask]:
    return [Ask(i, (i, 5, 6), tokens, **more) for i in range(count)]


def here(url: str, wanted: Sequence[Ask], concurrency: int | None = 4, **options: Any) -> Load:
    """A load in this process: the same code without the client's start."""
    options = {"limits": PATIENT} | options
    keep_alive = options.pop("keep_alive", True)
    target = Target(url, "secret-key", "timing", keep_alive=keep_alive)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(send_load(target, wanted, concurrency=concurrency, **options))


@contextmanager
def listening(handle: Callable[[socket.socket], None], backlog: int = 16) -> Iterator[str]:
    """A server of bare sockets, each connection in a thread."""
    server = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    server.settimeout(0.05)
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        connection.settimeout(30)
        with connection:
            handle(connection)

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        over.set()
        for thread in threads:
            thread.join(10)
        server.close()


def until_closed(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


# --------------------------------------------------------------------------- loops


def test_times_are_the_servers_and_every_request_has_its_own() -> None:
    with TimingServer(Settings(ttft_ms=150, itl_ms=1, role_first=True)) as server:
        called = time.perf_counter()
        load = run_load(Target(server.url, "k", "timing"), asks(12), concurrency=3, keep_text=True)
        took = time.perf_counter() - called
        truth = {record.number: record for record in server.truth()}
    assert load.statuses == {"completed": 12} and load.reasons == {}
    assert [o.number for o in load.outcomes] == list(range(12))
    for found in load.outcomes:
        record = truth[found.number]
        assert found.text.startswith(f"#{record.serial} token")
        assert len(found.token_times) == len(record.writes) == 8
        seen = [load.began + t for t in found.token_times]
        # Nothing is read before it is written, and all of it before the next request is answered.
        assert all(mine >= true for mine, true in zip(seen, record.writes, strict=True))
        assert found.sent is not None and found.last_byte is not None
        assert found.due <= found.sent <= found.token_times[0]
        assert found.token_times == sorted(found.token_times)
        assert found.first_byte is not None and found.first_byte <= found.token_times[0]
        assert found.last_byte >= found.token_times[-1]
        assert (found.prompt_tokens, found.output_tokens, found.uncounted) == (3, 8, 0)
    # The empty first chunk was read before the first token, and is none. (Where the client stands
    # still for long it reads both at once.)
    assert any((o.first_byte or 9e9) < o.token_times[0] - 0.05 for o in load.outcomes)
    assert load.seconds >= max(o.last_byte or 0 for o in load.outcomes)
    assert 0 < load.cpu_seconds < 10
    assert 0 <= (load.cpu_wait_seconds or 0) < took


def test_a_client_that_loses_the_processor_makes_no_latency_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        done = write(descriptor, data)
        time.sleep(0.2)  # the answer comes meanwhile, and waits to be read
        return done

    with TimingServer(Settings(ttft_ms=50, itl_ms=1)) as server:
        monkeypatch.setattr(os, "write", interrupted)
        found = here(server.url, asks(1), concurrency=1).outcomes[0]
    assert found.ttft is not None and found.ttft >= 0.2


def test_the_wait_for_a_processor_is_told() -> None:
    before = load_module._waited_for_cpu()
    assert before is not None
    mine = os.sched_getaffinity(0)
    one = {min(mine)}
    spin = f"import os; os.sched_setaffinity(0, {one}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            os.sched_setaffinity(0, one)
            ends = time.thread_time() + 0.1  # as much again is the other's
            while time.thread_time() < ends:
                pass
        finally:
            os.sched_setaffinity(0, mine)
            other.kill()
    assert (load_module._waited_for_cpu() or 0) - before > 0.02


def test_a_closed_loop_keeps_its_connections_and_its_concurrency() -> None:
    with TimingServer(QUICK) as server:
        load = here(server.url, asks(12), concurrency=3)
        assert (load.connections, load.most_open, load.waited) == (3, 3, 0)
        assert load.statuses == {"completed": 12}
        load = here(server.url, asks(6), concurrency=3, keep_alive=False)
        assert (load.connections, load.most_open) == (6, 3)
        assert load.statuses == {"completed": 6}


def test_a_worker_is_due_when_its_last_request_ended() -> None:
    with TimingServer(QUICK) as server:
        load = here(server.url, asks(5), concurrency=1)
    for before, after in itertools.pairwise(load.outcomes):
        assert before.last_byte is not None and after.queued is not None
        assert after.due >= before.last_byte
        assert after.queued >= 0


def test_an_open_loop_waits_for_nobody() -> None:
    with TimingServer(Settings(ttft_ms=1500, itl_ms=1)) as server:
        load = here(server.url, asks(20, 2, at=0.01), concurrency=None)
    assert load.statuses == {"completed": 20}
    # All were open before the first was answered.
    assert (load.most_open, load.connections, load.waited) == (20, 20, 0)


def test_an_open_loop_sends_when_it_is_due_and_never_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_sender, "IDLE_SECONDS", 60.0)
    times = [0.0, 0.0, 0.021, 0.0235, 0.026, 2.0]
    wanted = [Ask(i, (i,), 2, at=at) for i, at in enumerate(times)]
    with TimingServer(QUICK) as server:
        load = here(server.url, wanted, concurrency=None)
    assert [o.due for o in load.outcomes] == times
    assert all(o.queued is not None and o.queued >= 0 for o in load.outcomes)
    # The last one found a connection free.
    assert load.connections < 6


def test_a_limit_of_connections_shows_in_what_queued() -> None:
    limits = Limits(connections=2)
    with TimingServer(Settings(ttft_ms=600, itl_ms=1)) as server:
        load = here(server.url, asks(4, 2, at=0.0), concurrency=None, limits=limits)
    assert load.statuses == {"completed": 4}
    assert (load.connections, load.most_open, load.waited) == (2, 2, 2)
    # All are due at once. The third is sent when one of the first two was answered, the fourth when
    # the other one was: each as much later than they, whenever these were sent.
    queued = sorted(-1.0 if o.queued is None else o.queued for o in load.outcomes)
    assert queued[0] >= 0 and queued[2] - queued[0] >= 0.6 and queued[3] - queued[1] >= 0.6


def test_a_closed_loop_is_given_a_file_for_each_of_its_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with TimingServer(Settings(ttft_ms=3000, itl_ms=1)) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        try:
            load = run_load(
                Target(server.url, "k", "timing"),
                asks(400, 2),
                concurrency=400,
                limits=dataclasses.replace(PATIENT, connections=1),
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (load.statuses, load.most_open) == ({"completed": 400}, 400)


def test_a_limit_may_be_longer_than_any_system_waits() -> None:
    with TimingServer(QUICK) as server:
        target, limits = Target(server.url, "k", "timing"), Limits(load=1e10)
        assert run_load(target, asks(1), concurrency=1, limits=limits).statuses == {"completed": 1}


def test_what_was_not_sent_in_its_seconds_has_no_outcome_where_the_load_is_cut() -> None:
    with TimingServer(Settings(ttft_ms=60_000)) as server:
        load = here(server.url, asks(20), 2, limits=Limits(load=0.8), seconds=0.3)
        assert [o.number for o in load.outcomes] == [0, 1]
        assert load.reasons == {"the load was not over within 0.8 s (load)": 2}
        # What would still have been sent is unfinished.
        load = here(server.url, asks(20), 2, limits=Limits(load=0.3), seconds=5)
    assert load.statuses == {"unfinished": 20}


def test_after_its_seconds_nothing_is_sent() -> None:
    with TimingServer(Settings(ttft_ms=300, itl_ms=1)) as server:
        load = here(server.url, asks(2000, 2), concurrency=2, seconds=0.8)
    assert 2 <= len(load.outcomes) < 2000
    assert load.statuses == {"completed": len(load.outcomes)}
    # The last ones are still open when the next one of the open loop would be due: two seconds
    # after its own are over, as a loop that stands still takes all that is due by then at once.
    with TimingServer(Settings(ttft_ms=3800, itl_ms=1)) as server:
        wanted = [Ask(i, (i,), 2, at=at) for i, at in enumerate((0.0, 0.1, 0.2, 0.3, 3.4, 3.5))]
        load = here(server.url, wanted, concurrency=None, seconds=1.4)
    assert max(o.last_byte or 0 for o in load.outcomes) > 3.5
    assert [o.number for o in load.outcomes] == [0, 1, 2, 3]
    assert load.statuses == {"completed": 4}


def test_a_stall_sends_late_what_was_due_in_its_seconds_and_nothing_that_was_not() -> None:
    wanted = [Ask(i, (i,), 2, at=at) for i, at in enumerate((0.0, 0.5, 1.5))]
    with TimingServer(Settings(ttft_ms=3000, itl_ms=1)) as server:

        async def stalled() -> Load:
            asyncio.get_running_loop().call_later(0.2, time.sleep, 2.0)
            target = Target(server.url, "secret-key", "timing")
            return await send_load(target, wanted, concurrency=None, limits=PATIENT, seconds=1.0)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            load = runner.run(stalled())
    assert [o.number for o in load.outcomes] == [0, 1]
    assert (load.outcomes[1].sent or 0) > 2
    assert load.statuses == {"completed": 2}


def test_a_long_prompt_is_sent_when_its_last_byte_went() -> None:
    wanted = [Ask(0, (1234567,) * 1_500_000, 1)]

    def handle(connection: socket.socket) -> None:
        time.sleep(0.4)
        got = b""
        while not got.endswith(b"}}"):  # of the last member of the body
            got = (got + connection.recv(1 << 20))[-1000:]
        connection.sendall(ANSWER)
        until_closed(connection)

    with listening(handle) as url:
        load = here(url, wanted)
    (found,) = load.outcomes
    assert found.status == "completed"
    # No buffer holds 12 MB: the rest could go only when the server began to read.
    assert found.sent is not None and 0.4 <= found.sent < found.token_times[0]


def test_a_connection_the_server_closed_meanwhile_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_sender, "IDLE_SECONDS", 60.0)

    def handle(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(ANSWER)

    with listening(handle) as url:
        # The server's thread has two seconds to close it.
        load = here(url, [Ask(i, (i,), 1, at=2.0 * i) for i in range(3)], concurrency=None)
    assert load.statuses == {"completed": 3}
    assert load.connections == 3


def test_a_connection_idle_for_long_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    # A server that closes idle ones may do it while the request is on its way: uvicorn after 5 s.
    assert 1 < load_sender.IDLE_SECONDS < 4
    with TimingServer(QUICK) as server:
        load = here(server.url, asks(2), concurrency=1)
        assert (load.statuses, load.connections) == ({"completed": 2}, 1)
        monkeypatch.setattr(load_sender, "IDLE_SECONDS", 0.1)
        wanted = [Ask(i, (i,), 2, at=at) for i, at in enumerate((0.0, 1.5))]
        load = here(server.url, wanted, concurrency=None)
        assert (load.statuses, load.connections) == ({"completed": 2}, 2)


def test_no_request_is_no_load() -> None:
    assert here("http://127.0.0.1:9", []).outcomes == ()


# --------------------------------------------------------------------------- what is sent


def test_a_request_is_written_as_the_other_client_writes_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    ask = Ask(0, (5, 6, 7), 9, schema=json.dumps(schema))
    (data,) = payloads(Target("http://h:8000/base/", "k-1", "m"), [ask])
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /base/v1/completions HTTP/1.1"
    assert {"Host: h:8000", "Authorization: Bearer k-1"} <= set(lines)
    assert f"Content-Length: {len(body)}" in lines
    wanted = dialect.OpenAiDialect().body(
        "m",
        dialect.Ask((5, 6, 7), 9, ignore_eos=True, response_schema=schema, stream=True),
    )
    del wanted["return_token_ids"]
    assert json.loads(body) == wanted
    assert wanted["stream_options"] == {"include_usage": True} and wanted["ignore_eos"] is True


@pytest.mark.parametrize(
    ("target", "ask"),
    [
        (Target("127.0.0.1:80", "k", "m"), Ask(0, (1,), 1)),
        (Target("http://h:99999", "k", "m"), Ask(0, (1,), 1)),
        (Target("http://h", "k\r\nX: y", "m"), Ask(0, (1,), 1)),
        (Target("http://h", "k", "m"), Ask(0, (1,), 1, schema="{")),
    ],
)
def test_what_cannot_be_sent_is_refused(target: Target, ask: Ask) -> None:
    with pytest.raises(UserError):
        payloads(target, [ask])


@pytest.mark.parametrize(
    ("wanted", "concurrency", "match"),
    [
        (asks(2), 0, "sends nothing"),
        (asks(2, at=1.0), 2, "closed loop"),
        (asks(2), None, "has no time"),
        ([Ask(0, (1,), 1, at=2.0), Ask(1, (1,), 1, at=1.0)], None, "request 1 is due at 1 s"),
        ([Ask(0, (1,), 1, at=-1.0)], None, "due at -1 s"),
        ([Ask(0, (1,), 1, at=float("nan"))], None, "due at nan s"),
    ],
)
def test_asks_that_do_not_fit_the_loop_are_refused(
    wanted: list[Ask], concurrency: int | None, match: str
) -> None:
    with pytest.raises(UserError, match=match):
        run_load(Target("http://127.0.0.1:9", "k", "m"), wanted, concurrency=concurrency)


def test_a_name_nobody_knows_ends_the_load() -> None:
    with pytest.raises(ServingFailure, match=r"name 'no\.such\.host\.invalid' is not known"):
        run_load(Target("http://no.such.host.invalid:1", "k", "m"), asks(1), concurrency=1)


def test_limits_are_above_zero() -> None:
    with pytest.raises(ValueError, match="between"):
        Limits(between=0)


# --------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("429", "refused", "http 429"),
        ("503", "refused", "http 503"),
        ("500", "failed", "http 500"),
        ("close", "failed", "connection closed in the middle of the answer"),
        ("reset", "failed", "connection reset in the middle of the answer"),
        ("malformed", "failed", "malformed stream"),
        ("error", "failed", "error in the stream"),
        ("not http", "failed", "malformed HTTP"),
        ("not a stream", "failed", "not a stream"),
        ("no done", "failed", "the stream ended without [DONE]"),
        ("no finish", "failed", "the stream ended without a finish reason"),
        ("no tokens", "failed", "no tokens"),
        ("too many", "failed", "more tokens than asked for"),
        ("early", "short", "short answer"),
        ("silent", "timeout", "no first byte within 3 s (first_byte)"),
        ("stall", "timeout", "silent for 3 s within the answer (between)"),
    ],
)
def test_each_fault_has_its_reason_and_spoils_no_other_request(
    fault: Any, status: str, reason: str
) -> None:
    limits = Limits(first_byte=3, between=3) if status == "timeout" else PATIENT
    with TimingServer(Settings(ttft_ms=5, itl_ms=1, fault=fault, every=2)) as server:
        load = here(server.url, asks(6), concurrency=3, limits=limits)
    assert Counter(o.status for o in load.outcomes) == {"completed": 3, status: 3}
    assert load.reasons == {reason: 3}
    assert {o.number for o in load.completed}.isdisjoint(
        o.number for o in load.outcomes if o.reason
    )
    assert all(o.output_tokens == 8 and len(o.token_times) == 8 for o in load.completed)


@pytest.mark.parametrize("concurrency", [1, 6, None])
def test_a_load_of_which_the_first_requests_get_nothing_is_ended(concurrency: int | None) -> None:
    limits = Limits(first_byte=0.3, request=0.3)
    wanted = [Ask(i, (i,), 2, at=None if concurrency else 0.25 * i) for i in range(40)]
    with TimingServer(Settings(fault="silent")) as server:
        load = here(server.url, wanted, concurrency, limits=limits)
    # Both limits are reached; no byte came, and that is what the reason says.
    late = load.reasons["no first byte within 0.3 s (first_byte)"]
    # It is ended at the look that finds enough, and one look may find all that are open at a time.
    enough = max(4, concurrency or 0)
    assert enough <= late < (enough + concurrency if concurrency else 40)
    assert load.silent == f"its first {late} requests got not a byte within 0.3 s (first_byte)"
    assert load.reasons[f"the load was ended: {load.silent}"] == 40 - late
    assert load.statuses == {"timeout": late, "unfinished": 40 - late}


def test_a_load_of_which_one_request_got_a_token_goes_on() -> None:
    limits = Limits(first_byte=2.5, between=2.5)
    with TimingServer(Settings(ttft_ms=5, itl_ms=1, fault="silent", every=2)) as server:
        load = here(server.url, asks(12), 4, limits=limits)
    assert (load.statuses, load.silent) == ({"completed": 6, "timeout": 6}, "")


def test_a_load_of_bytes_without_a_token_is_ended_and_says_so() -> None:
    with TimingServer(Settings(ttft_ms=60_000)) as server:
        load = here(server.url, asks(40), 4, limits=Limits(request=2))
    late = load.statuses["timeout"]
    assert 4 <= late < 8
    assert load.silent == f"its first {late} requests got not a token within 2 s (request)"
    assert load.statuses == {"timeout": late, "unfinished": 40 - late}


def test_tokens_without_usage_are_counted_by_chunks() -> None:
    with TimingServer(Settings(ttft_ms=5, itl_ms=1, fault="no usage")) as server:
        load = here(server.url, asks(3))
    assert (load.statuses, load.without_usage, load.uncounted) == ({"completed": 3}, 3, 0)
    assert [(o.output_tokens, len(o.token_times)) for o in load.outcomes] == [(None, 8)] * 3


def test_several_tokens_in_a_chunk_show_as_a_difference() -> None:
    with TimingServer(Settings(ttft_ms=5, itl_ms=1, per_chunk=3)) as server:
        load = here(server.url, asks(3))
    assert load.statuses == {"completed": 3}
    assert [len(o.token_times) for o in load.outcomes] == [3] * 3
    assert (load.uncounted, load.without_usage) == (3 * (8 - 3), 0)


def test_a_server_that_dies_under_load_ends_every_request() -> None:
    with TimingServer(Settings(ttft_ms=5, itl_ms=1, fault="die", every=10)) as server:
        load = here(server.url, asks(40), concurrency=4)
    assert len(load.outcomes) == 40
    assert load.statuses["completed"] >= 1
    assert load.statuses["failed"] == 40 - load.statuses["completed"]
    assert load.reasons["connection refused"] >= 20
    known = r"connection (refused|(reset|closed) (before|in the middle of) the answer)"
    assert all(re.fullmatch(known, reason) for reason in load.reasons)


def test_a_server_that_ends_what_it_accepts_ends_every_request() -> None:
    def handle(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    # All of them wait to be accepted: one that is turned away comes again seconds later.
    with listening(handle, backlog=128) as url:
        load = here(url, asks(60), concurrency=6)
        assert here(url, asks(60, at=0.0), concurrency=None).statuses == {"failed": 60}
    assert load.statuses == {"failed": 60}
    assert all(reason.startswith("connection reset") for reason in load.reasons)


def test_a_connection_that_ended_before_its_request_ends_the_request() -> None:
    class Owner:
        keeps_alive = True
        ended_ones: ClassVar[list[Connection]] = []

        def now(self) -> float:
            return 1.0

        def ended(self, connection: Connection) -> None:
            self.ended_ones.append(connection)

        def lost(self, connection: Connection) -> None:
            raise AssertionError("there was a request on it")

        def soon(self, call: Callable[..., None], *arguments: Any) -> None:
            call(*arguments)

    outcome = Outcome(0, due=0.0)
    connection = Connection(Owner())
    connection.ended_by = ConnectionResetError()
    connection.send(AnswerReader(Ask(0, (1,), 1), outcome), b"x")
    assert (outcome.status, outcome.sent) == ("failed", None)
    assert outcome.reason == "connection reset before the answer"
    assert Owner.ended_ones == [connection] and connection.transport is None


def test_a_server_that_is_stopped_is_a_silence_and_not_a_hang() -> None:
    with TimingServer(QUICK) as server:
        os.kill(server.pid, signal.SIGSTOP)
        load = here(server.url, asks(4), limits=Limits(first_byte=0.3), concurrency=2)
    assert load.reasons == {"no first byte within 0.3 s (first_byte)": 4}
    # The client was busy with them until it gave them up: two and two, one after the other.
    assert [
        o.over is not None and o.over >= least
        for o, least in zip(load.outcomes, (0.3, 0.3, 0.6, 0.6), strict=True)
    ] == [True] * 4


def test_nobody_listens() -> None:
    with deaf_port() as port:
        for concurrency, at in ((3, None), (None, 0.0)):
            load = here(f"http://127.0.0.1:{port}", asks(5, at=at), concurrency=concurrency)
            assert load.reasons == {"connection refused": 5}
            assert load.statuses == {"failed": 5}
            assert all(o.sent is None for o in load.outcomes)


def test_a_connection_that_is_never_taken_has_a_limit() -> None:
    # A listener whose queue is full answers no further one (Linux).
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        load = here(url, asks(2), limits=Limits(connect=0.3), concurrency=2)
        for one in full:
            one.close()
    assert load.reasons == {"no connection within 0.3 s (connect)": 2}
    assert all(o.over is not None and o.over > 0.2 for o in load.outcomes)
    assert load.statuses == {"timeout": 2}


def test_a_server_that_accepts_and_reads_nothing_has_a_limit() -> None:
    over = threading.Event()
    with listening(lambda connection: bool(over.wait(20)) and None) as url:
        wanted = [Ask(0, (1234567,) * 1_500_000, 2)]
        load = here(url, wanted, limits=Limits(first_byte=0.5))
        over.set()
    (found,) = load.outcomes
    assert found.reason == "no first byte within 0.5 s (first_byte)"
    # Its last byte never left.
    assert found.sent is None and found.ttft is None


def test_a_request_that_goes_on_for_ever_has_a_limit() -> None:
    with TimingServer(Settings(ttft_ms=5, itl_ms=20)) as server:
        load = here(server.url, asks(2, 5000), limits=Limits(request=2.5), concurrency=2)
    assert load.reasons == {"not over within 2.5 s (request)": 2}
    assert all(o.status == "timeout" and len(o.token_times) > 3 for o in load.outcomes)


def test_what_a_load_leaves_is_unfinished_and_says_so() -> None:
    with TimingServer(Settings(ttft_ms=5, itl_ms=20)) as server:
        wanted = [Ask(0, (0,), 2), *(Ask(i, (i,), 5000) for i in range(1, 5))]
        load = here(server.url, wanted, limits=Limits(load=3), concurrency=2)
    assert [o.status for o in load.outcomes] == ["completed"] + ["unfinished"] * 4
    assert load.reasons == {"the load was not over within 3 s (load)": 4}
    first, *others = load.outcomes
    assert first.over is not None and first.last_byte is not None
    assert first.last_byte <= first.over < 3
    assert all(o.over is not None and 2.9 < o.over <= load.seconds for o in others)
    assert [o.sent is not None for o in load.outcomes] == [True, True, True, False, False]


def test_a_server_that_closes_after_each_answer_loses_none_when_it_is_said() -> None:
    answer = ANSWER.replace(b"Content-Length: 77\r\n", b"")

    def handle(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    with listening(handle) as url:
        load = here(url, asks(6, 1), concurrency=2, keep_alive=False)
    assert load.statuses == {"completed": 6}
    assert load.connections == 6


def test_the_key_is_in_no_answer() -> None:
    said = b"no such key: secret-key"

    def handle(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 401 X\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
        until_closed(connection)

    with listening(handle) as url:
        load = here(url, asks(1))
    assert load.outcomes[0].detail == "no such key: ***"
    assert "secret-key" not in repr(load)


# --------------------------------------------------------------------------- the client's process


def the_client_of(pid: int) -> psutil.Process:
    """Its process, once it has sent something."""
    for _ in range(2000):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "workbench.load" in " ".join(child.cmdline()) and child.net_connections():
                    return child
        time.sleep(0.01)
    raise AssertionError("no client")


def test_a_client_that_dies_is_named() -> None:
    with TimingServer(Settings(fault="silent")) as server, ThreadPoolExecutor() as pool:
        target = Target(server.url, "k", "timing")
        load = pool.submit(run_load, target, asks(2), concurrency=2, limits=PATIENT)
        the_client_of(os.getpid()).kill()
        with pytest.raises(ServingFailure, match="process ended with -9 and no result"):
            load.result(20)


def test_a_client_ends_with_the_process_that_started_it() -> None:
    code = (
        "import sys; from workbench.load import *; from workbench.traffic import Ask; "
        "run_load(Target(sys.argv[1], 'k', 'timing'), [Ask(0, (1,), 2)], concurrency=1)"
    )
    with TimingServer(Settings(fault="silent")) as server:
        with subprocess.Popen([sys.executable, "-c", code, server.url]) as owner:
            client = the_client_of(owner.pid)
            owner.kill()
        client.wait(20)
