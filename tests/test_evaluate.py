import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders import serving
from scripted_server import ScriptedServer, completion, echoed

from workbench.asked import ASKING, asking_digest
from workbench.client import Client
from workbench.digest import canonical_json, content_id, sha256_text
from workbench.errors import RecipeError, ServingFailure
from workbench.evaluate import fake_answers, read_rows, run_suite
from workbench.records import Serving, SuiteResult
from workbench.spec import JudgeSpec, Sample, SuiteSpec
from workbench.suites import Suite, render_prompt


class Letters:
    """A tokenizer with one token a character."""

    digest = "tokenizer"
    template_digest = "template"
    opening = ""

    def bos_count(self, ids: Sequence[int]) -> int:
        return len(ids) - len("".join(map(chr, ids)).lstrip("^"))

    def expected_bos(self, rendered: bool) -> int:
        return 0

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(c) for c in text]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        offered = f"<tools>{json.dumps(tools)}" if tools else ""
        said = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return offered + said + "<assistant>"


@dataclass(frozen=True)
class Endpoint:
    base_url: str
    serving: Serving
    key: str = "secret"
    model: str = "m"

    def client(self, **settings: Any) -> Client:
        return Client(self.base_url, self.key, self.model, **settings)


def suite(n: int = 12, *, choices: list[str] | None = None, **changes: Any) -> Suite:
    """Samples whose prompt is 'q<i>' and whose right answer is 'r<i>', or the first choice."""
    values: dict[str, Any] = {
        "schema": "workbench.suite/1",
        "name": "mine",
        "description": "d",
        "ask": "rank_choices" if choices else "generate",
        "prompt": "{q}",
        "chat_template": False,
        "max_tokens": 8,
        "scorer": "choice" if choices else "exact",
    }
    samples = tuple(
        Sample.model_validate(
            {"id": f"s{i}", "q": f"q{i}", "target": choices[0] if choices else f"r{i}"}
            | ({"choices": choices} if choices else {})
        )
        for i in range(n)
    )
    return Suite(SuiteSpec.model_validate(values | changes), samples, "suite digest", Path("mine"))


def said(body: dict[str, Any], text: str, **usage: Any) -> dict[str, Any]:
    return completion(text, **({"prompt_tokens": len(body["prompt"])} | usage))


def right(body: dict[str, Any]) -> dict[str, Any]:
    return said(body, body["prompt"].replace("q", "r"))


Ask = Callable[..., SuiteResult]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    def run(server: ScriptedServer | str, of: Suite, **changes: Any) -> SuiteResult:
        url = server if isinstance(server, str) else server.url
        context = changes.pop("context", 2048)
        options: dict[str, Any] = {
            "rows": tmp_path / "mine.jsonl",
            "conditions": {"engine": "scripted"},
            "concurrency": 4,
            "limit": None,
            "request_seconds": 10.0,
            "progress": lambda done, total, what: None,
        }
        tokenizer = changes.pop("tokenizer", Letters())
        endpoint = Endpoint(url, serving("w", max_model_len=context))
        return run_suite(endpoint, of, tokenizer, **(options | changes))

    return run


# --------------------------------------------------------------------------- a healthy server


def test_every_sample_gets_a_row_in_sample_order(ask: Ask, tmp_path: Path) -> None:
    seen: list[tuple[float, float, str]] = []
    with ScriptedServer(lambda b: right(b) if b["prompt"] != "q3" else said(b, "no")) as server:
        result = ask(server, suite(), progress=lambda *told: seen.append(told))
    rows = read_rows(tmp_path / "mine.jsonl")
    assert [r.id for r in rows] == [f"s{i}" for i in range(12)]
    assert [r.score for r in rows] == [float(i != 3) for i in range(12)]
    assert all(r.error is None and r.output and r.seconds > 0 and r.started >= 0 for r in rows)
    assert rows[3].prompt_digest == sha256_text("q3")
    assert len({r.target_digest for r in rows}) == 12
    assert result.n == 12 and result.failed == 0 and result.score == 11 / 12
    assert result.finish_reasons == {"stop": 12}
    assert (result.prompt_tokens, result.output_tokens) == (10 * 2 + 2 * 3, 24)
    assert result.rows_file == "mine.jsonl"
    assert seen[0] == (0, 12, "mine") and seen[-1] == (12, 12, "mine") and len(seen) == 13
    assert not list(tmp_path.glob(".*partial"))


def test_what_is_sent(ask: Ask) -> None:
    schema = {"type": "object"}
    of = suite(1, response_schema=schema, chat_template=True, system="be brief", max_tokens=9)
    with ScriptedServer(right) as server:
        ask(server, of)
    (body,) = server.bodies
    assert body["prompt"] == "<system>be brief<user>q0<assistant>"
    assert body["max_tokens"] == 9 and body["temperature"] == 0.0 and body["seed"] == 0
    assert body["add_special_tokens"] is False and not body.get("echo")
    assert body["response_format"]["json_schema"]["schema"] == schema


def test_conditions_say_what_must_be_equal(ask: Ask) -> None:
    with ScriptedServer(right) as server:
        plain = ask(server, suite(2)).conditions
        chat = ask(server, suite(2, chat_template=True)).conditions
    assert plain == {
        "engine": "scripted",
        "suite_digest": "suite digest",
        ASKING: asking_digest(suite(2).spec),
        "template_digest": None,
        "tokenizer_digest": "tokenizer",
        "asked": None,
        "sampling": {
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": 0,
            "stop": [],
            "max_tokens": 8,
            "response_schema": None,
            "tools": None,
            "tool_choice": None,
        },
        "bos": {"found": [0], "tokenizer": 0},
    }
    assert chat["template_digest"] == "template"


def test_the_rows_digest_is_of_answers_and_not_of_times(ask: Ask, tmp_path: Path) -> None:
    with ScriptedServer(right) as server:
        first = ask(server, suite(), rows=tmp_path / "1.jsonl")
    with ScriptedServer(right, seconds=0.02) as server:
        second = ask(server, suite(), rows=tmp_path / "2.jsonl")
    with ScriptedServer(lambda b: said(b, right(b)["choices"][0]["text"] + " ")) as server:
        third = ask(server, suite(), rows=tmp_path / "3.jsonl")
    assert first.rows_digest == second.rows_digest
    assert third.score == 1.0 and third.rows_digest != first.rows_digest


@pytest.mark.parametrize("concurrency", [1, 5])
def test_no_more_are_asked_at_a_time_than_allowed(ask: Ask, concurrency: int) -> None:
    # Each is open for so long that the others come meanwhile, in one of four rounds at least.
    with ScriptedServer(right, seconds=0.5) as server:
        ask(server, suite(4 * concurrency), concurrency=concurrency)
    assert server.at_once == concurrency


def test_limit_asks_the_first_samples_only(ask: Ask, tmp_path: Path) -> None:
    with ScriptedServer(right) as server:
        result = ask(server, suite(), limit=5)
        assert sorted(server.prompts) == [f"q{i}" for i in range(5)] and result.n == 5
        ask(server, suite(), limit=7)
    assert sorted(server.prompts[5:]) == ["q5", "q6"]


def test_it_runs_where_a_loop_runs_already(ask: Ask) -> None:
    async def cell(server: ScriptedServer) -> SuiteResult:
        return ask(server, suite(3 if server.dies_after is None else 6))

    with ScriptedServer(right) as server:
        assert asyncio.run(cell(server)).score == 1.0
    with ScriptedServer(right, dies_after=1) as server, pytest.raises(ServingFailure):
        asyncio.run(cell(server))


@pytest.mark.parametrize(
    "text", ["\x1b[2J\x00\r\n\u2028", "\ud800half", "</script><b>", "x" * 1_000_000, "", "é" * 999]
)
def test_hostile_answers_are_kept_as_text(ask: Ask, tmp_path: Path, text: str) -> None:
    with ScriptedServer(lambda b: said(b, text)) as server:
        result = ask(server, suite(2))
        ask(server, suite(2))
    assert len(server.bodies) == 2, "a kept row was asked again"
    rows = read_rows(tmp_path / "mine.jsonl")
    assert [r.output for r in rows] == [text.replace("\ud800", "\ufffd")] * 2
    assert result.failed == 0 and result.score == 0.0


# --------------------------------------------------------------------------- ranking choices


def rank(likely: dict[str, float], prompt_logprob: float | None = -1.0) -> Any:
    """Answers an echo so that each choice has that log-probability, all on its last letter."""

    def script(body: dict[str, Any]) -> dict[str, Any]:
        prompt: str = body["prompt"]
        head = prompt.partition(" ")[0]
        choice = prompt[len(head) :]
        values = [None] + [prompt_logprob] * (len(head) - 1) + [0.0] * (len(choice) - 1)
        return echoed(prompt, [*values, likely[choice]])

    return script


def test_choices_are_ranked_by_their_own_tokens(ask: Ask, tmp_path: Path) -> None:
    of = suite(3, choices=[" yes", " no"])
    with ScriptedServer(rank({" yes": -2.0, " no": -3.5})) as server:
        result = ask(server, of)
    assert len(server.bodies) == 6
    assert {b["prompt"] for b in server.bodies if b["prompt"].startswith("q1")} == {
        "q1 yes",
        "q1 no",
    }
    for body in server.bodies:
        assert body["echo"] is True and body["max_tokens"] == 0 and body["logprobs"] == 0
    rows = read_rows(tmp_path / "mine.jsonl")
    assert [r.output for r in rows] == [" yes"] * 3 and result.score == 1.0
    assert rows[0].choice_logprobs == {" yes": -2.0, " no": -3.5}
    assert rows[0].prompt_tokens == len("q0 yes") + len("q0 no") and rows[0].output_tokens == 0
    assert rows[0].finish_reason is None and result.finish_reasons == {}
    assert len({r.prompt_digest for r in rows}) == 3
    assert result.conditions["sampling"]["max_tokens"] == 0


def test_the_prompt_digest_covers_the_choices(ask: Ask, tmp_path: Path) -> None:
    with ScriptedServer(rank({" yes": -2.0, " no": -3.5, " maybe": -9.0})) as server:
        ask(server, suite(1, choices=[" yes", " no"]))
        first = read_rows(tmp_path / "mine.jsonl")[0].prompt_digest
        ask(server, suite(1, choices=[" yes", " maybe"]))
        assert len(server.bodies) == 4, "other choices are another question"
    assert read_rows(tmp_path / "mine.jsonl")[0].prompt_digest != first


def test_the_less_likely_target_is_wrong(ask: Ask) -> None:
    with ScriptedServer(rank({" yes": -4.0, " no": -3.5})) as server:
        assert ask(server, suite(3, choices=[" yes", " no"])).score == 0.0


@pytest.mark.parametrize("order", [[" yes", " no"], [" no", " yes"]])
def test_of_equal_choices_the_first_wins(ask: Ask, tmp_path: Path, order: list[str]) -> None:
    with ScriptedServer(rank({" yes": -2.0, " no": -2.0})) as server:
        ask(server, suite(1, choices=order))
    assert read_rows(tmp_path / "mine.jsonl")[0].output == order[0]


def test_choices_are_compared_from_where_their_tokens_begin(ask: Ask, tmp_path: Path) -> None:
    class Merging(Letters):
        """Makes one token of the prompt's last letter and the choice's first."""

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            ids = [ord(c) for c in text]
            return [*ids[:1], 10_000 + ids[2], *ids[3:]] if len(text) > 2 else ids

    def merged(body: dict[str, Any]) -> dict[str, Any]:
        prompt: str = body["prompt"]
        found = echoed(prompt, [])
        found["choices"][0]["logprobs"] = {
            "tokens": [prompt[0], prompt[1:3], *prompt[3:]],
            "text_offset": [0, 1, *range(3, len(prompt))],
            "token_logprobs": [None, -5.0 if "yes" in prompt else -1.0, *[0.0] * len(prompt[3:])],
        }
        return found

    with ScriptedServer(merged) as server:
        ask(server, suite(1, choices=[" yes", " no"]), tokenizer=Merging())
    expected = {" yes": -5.0, " no": -1.0}
    assert read_rows(tmp_path / "mine.jsonl")[0].choice_logprobs == expected


def test_other_tokens_than_the_tokenizers_are_a_failed_row(ask: Ask, tmp_path: Path) -> None:
    def begun(body: dict[str, Any]) -> dict[str, Any]:
        found = rank({" yes": -2.0, " no": -3.0})(body)
        if body["prompt"].startswith("q1"):
            logprobs = found["choices"][0]["logprobs"]
            logprobs["tokens"].insert(0, "<s>")
            logprobs["text_offset"].insert(0, 0)
            logprobs["token_logprobs"].insert(0, None)
        return found  # type: ignore[no-any-return]

    with ScriptedServer(begun) as server:
        assert ask(server, suite(2, choices=[" yes", " no"])).failed == 1
    assert (read_rows(tmp_path / "mine.jsonl")[1].error or "").startswith("other tokens: the serv")


@pytest.mark.parametrize("bad", [math.nan, None, -math.inf])
def test_a_choice_without_a_usable_logprob_is_a_failed_row(
    ask: Ask, tmp_path: Path, bad: float | None
) -> None:
    good = rank({" yes": -2.0, " no": -3.0})
    broken = rank({" yes": -2.0, " no": bad})  # type: ignore[dict-item]

    def script(body: dict[str, Any]) -> dict[str, Any]:
        return (broken if body["prompt"].startswith("q1") else good)(body)

    with ScriptedServer(script) as server:
        result = ask(server, suite(3, choices=[" yes", " no"]))
    row = read_rows(tmp_path / "mine.jsonl")[1]
    assert row.score is None and row.error is not None and row.error.startswith("no logprobs")
    assert result.failed == 1 and result.score == 1.0 and result.n == 3


def test_an_answer_without_logprobs_is_a_failed_row(ask: Ask, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        found = rank({" yes": -2.0, " no": -3.0})(body)
        if body["prompt"].startswith("q1"):
            del found["choices"][0]["logprobs"]
        return found  # type: ignore[no-any-return]

    with ScriptedServer(script) as server:
        ask(server, suite(3, choices=[" yes", " no"]))
    assert "no logprobs" in (read_rows(tmp_path / "mine.jsonl")[1].error or "")


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (500, "http 500: the server answered HTTP 500: scripted"),
        (400, "http 400"),
        ({"choices": []}, "malformed answer"),
        ({"choices": [{"text": "r1", "finish_reason": "stop"}]}, "no usage"),
        (completion("r1", prompt_tokens=2, completion_tokens=None), "no usage"),
        (completion("r1", prompt_tokens="2"), "malformed answer"),
        (completion("r1", prompt_tokens=2.0), "malformed answer"),
        ({"choices": [{"text": "r1", "finish_reason": {}}]}, "malformed answer"),
        ({"choices": [{"text": "r1"}], "usage": ["x"]}, "malformed answer"),
        ({"choices": [{"text": "r1", "prompt_token_ids": ["x"]}]}, "malformed answer"),
        ({"choices": 3}, "malformed answer"),
        ([], "malformed answer"),
        (
            completion("r1", prompt_tokens=3),
            "other tokens: the server counts 3 tokens in the prompt, the checkpoint's tokenizer 2",
        ),
    ],
)
def test_a_failure_is_a_row_and_is_asked_again_next_time(
    ask: Ask, tmp_path: Path, answer: Any, error: str
) -> None:
    with ScriptedServer(lambda b: answer if b["prompt"] in ("q1", "q4") else right(b)) as server:
        result = ask(server, suite())
    rows = read_rows(tmp_path / "mine.jsonl")
    assert [r.id for r in rows if r.error] == ["s1", "s4"]
    assert all((r.score is None) == (r.error is not None) for r in rows)
    assert (rows[1].error or "").startswith(error) and rows[1].output == ""
    assert result.n == 12 and result.failed == 2 and result.score == 1.0
    with ScriptedServer(right) as server:
        again = ask(server, suite())
    assert sorted(server.prompts) == ["q1", "q4"]
    assert again.failed == 0 and again.n == 12


def test_a_late_answer_is_a_failed_row(ask: Ask, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        if body["prompt"] == "q2":
            time.sleep(0.6)
        return right(body)

    with ScriptedServer(script) as server:
        result = ask(server, suite(4), concurrency=1, request_seconds=0.3)
    assert result.failed >= 1 and result.n == 4
    assert (read_rows(tmp_path / "mine.jsonl")[2].error or "").startswith("timeout")


def test_a_sample_longer_than_the_context_is_counted_and_never_cut(
    ask: Ask, tmp_path: Path
) -> None:
    fits = len("q0") + 8
    with ScriptedServer(right) as server:
        assert ask(server, suite(2), context=fits).failed == 0
        (tmp_path / "mine.jsonl").unlink()
        result = ask(server, suite(12), context=fits)
    assert result.failed == 2 and result.n == 12
    assert "q10" not in server.prompts and "q1" in server.prompts
    error = read_rows(tmp_path / "mine.jsonl")[10].error
    assert error == "longer than the context: 11 tokens with the answer, 10 fit"


def test_ranked_choices_longer_than_the_context(ask: Ask) -> None:
    of = suite(1, choices=[" yes", " no"])
    with ScriptedServer(rank({" yes": -2.0, " no": -3.0})) as server:
        assert ask(server, of, context=len("q0 yes")).failed == 1
        assert not server.bodies
        assert ask(server, of, context=len("q0 yes") + 1).failed == 0


def test_all_too_long_is_a_result_and_not_a_serving_failure(ask: Ask) -> None:
    with ScriptedServer(right) as server:
        result = ask(server, suite(3), context=5)
    assert result.failed == 3 and result.score is None and not server.bodies


def test_a_server_that_dies_raises_and_only_the_rest_is_asked_again(
    ask: Ask, tmp_path: Path
) -> None:
    with (
        ScriptedServer(right, seconds=0.01, dies_after=7) as server,
        pytest.raises(ServingFailure) as caught,
    ):
        ask(server, suite(20))
    assert "the server is gone: 7 of 20 samples of suite 'mine' were answered" in caught.value.what
    assert caught.value.exit_code == 3 and "secret" not in str(caught.value)
    answered = [r.id for r in read_rows(tmp_path / "mine.jsonl") if r.error is None]
    assert len(answered) == 7
    with ScriptedServer(right) as server:
        result = ask(server, suite(20))
    assert sorted(server.prompts) == sorted(f"q{i}" for i in range(20) if f"s{i}" not in answered)
    assert result.n == 20 and result.failed == 0 and result.score == 1.0


def test_nobody_listens(ask: Ask) -> None:
    with pytest.raises(ServingFailure, match="the server is gone: 0 of 3"):
        ask("http://127.0.0.1:9", suite(3))


@pytest.mark.parametrize("n", [3, 60])
def test_a_server_that_only_fails_ends_the_step(ask: Ask, n: int) -> None:
    with ScriptedServer(lambda b: 500) as server, pytest.raises(ServingFailure) as caught:
        ask(server, suite(n))
    assert "the server fails at one sample after the other (http 500" in caught.value.what
    assert len(server.bodies) <= 24


def test_half_of_the_samples_failing_is_a_result(ask: Ask) -> None:
    with ScriptedServer(lambda b: 500 if int(b["prompt"][1:]) % 2 else right(b)) as server:
        result = ask(server, suite(60))
    assert result.failed == 30 and result.n == 60 and len(server.bodies) == 60


def test_a_busy_server_is_asked_again(ask: Ask) -> None:
    said: list[str] = []

    def script(body: dict[str, Any]) -> dict[str, Any] | int:
        said.append(body["prompt"])
        return 503 if said.count(body["prompt"]) == 1 else right(body)

    with ScriptedServer(script) as server:
        assert ask(server, suite(3)).failed == 0


# --------------------------------------------------------------------------- going on


def test_a_finished_suite_is_not_asked_again(ask: Ask, tmp_path: Path) -> None:
    with ScriptedServer(right) as server:
        first = ask(server, suite())
        written = (tmp_path / "mine.jsonl").read_bytes()
        second = ask(server, suite())
    assert len(server.bodies) == 12 and first == second
    assert (tmp_path / "mine.jsonl").read_bytes() == written


def test_a_torn_last_line_is_asked_again(ask: Ask, tmp_path: Path) -> None:
    with ScriptedServer(right) as server:
        first = ask(server, suite())
        path = tmp_path / "mine.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rindex(b'"output"')])
        server.bodies.clear()
        second = ask(server, suite())
        assert server.prompts == ["q11"]
    assert second.rows_digest == first.rows_digest


def test_a_second_crash_after_a_torn_line_loses_nothing(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    with ScriptedServer(right) as server:
        ask(server, suite())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    with ScriptedServer(right, dies_after=3) as server, pytest.raises(ServingFailure):
        ask(server, suite(), concurrency=1)
    with ScriptedServer(right) as server:
        ask(server, suite())
    assert sorted(server.prompts) == ["q10", "q11", "q8", "q9"]


def test_rows_of_another_wording_are_asked_again(ask: Ask) -> None:
    with ScriptedServer(lambda b: said(b, "r")) as server:
        ask(server, suite(4))
        ask(server, suite(4, prompt="{q}?"))
        assert len(server.bodies) == 8
        changed = suite(4, prompt="{q}?")
        samples = (changed.samples[0].model_copy(update={"target": "other"}), *changed.samples[1:])
        ask(server, Suite(changed.spec, samples, "suite digest", Path("mine")))
    assert server.prompts[8:] == ["q0?"]


CHILD = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_evaluate import Endpoint, Letters, serving, suite
from workbench.evaluate import run_suite
run_suite(Endpoint({url!r}, serving("w")), suite(200), Letters(), rows=Path({rows!r}),
          conditions={{}}, concurrency=4, limit=None, request_seconds=10,
          progress=lambda done, total, what: print(done, flush=True))
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_loses_no_answer(ask: Ask, tmp_path: Path, kill: signal.Signals) -> None:
    path = tmp_path / "mine.jsonl"

    def script(body: dict[str, Any]) -> dict[str, Any]:
        if len(server.bodies) >= 100:
            server.seconds = 60.0  # it is not done before it is killed
        return right(body)

    with ScriptedServer(script, seconds=0.01) as server:
        code = CHILD.format(paths=[str(Path(__file__).parent)], url=server.url, rows=str(path))
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            try:
                assert child.stdout is not None and child.stderr is not None
                for line in child.stdout:
                    if int(line) == 60:
                        break
                os.kill(child.pid, kill)
                assert child.wait(20) != 0, child.stderr.read()
            finally:
                child.kill()
        kept = [json.loads(line)["id"] for line in path.read_bytes().splitlines()]
    assert 60 <= len(kept) < 200
    with ScriptedServer(right) as server:
        result = ask(server, suite(200))
    assert len(server.bodies) == 200 - len(kept)
    assert result.n == 200 and result.score == 1.0


# --------------------------------------------------------------------------- the fake's knowledge


def test_fake_answers_are_right() -> None:
    of = suite(2)
    known = fake_answers(of, Letters())  # type: ignore[arg-type]
    assert known[sha256_text("q1")]["text"] == "r1"
    ranked = suite(1, choices=[" yes", " no"], chat_template=True)
    prompt = render_prompt(ranked.spec, ranked.samples[0], Letters())
    choices = fake_answers(ranked, Letters())[sha256_text(prompt)]["choices"]  # type: ignore[arg-type]
    assert choices[" yes"] > choices[" no"]


# --------------------------------------------------------------------------- what makes rows pair


def test_a_row_has_the_digests_of_all_an_answer_depends_on(ask: Ask, tmp_path: Path) -> None:
    def told(body: dict[str, Any]) -> dict[str, Any]:
        answer = right(body)
        assert body["return_token_ids"] is True
        answer["choices"][0]["prompt_token_ids"] = [ord(c) for c in body["prompt"]]
        return answer

    of = suite(2, chat_template=True, cluster="q")
    script = {True: told, False: right}
    rows = {}
    for tells, one in script.items():
        with ScriptedServer(one) as server:
            ask(server, of, rows=tmp_path / f"{tells}.jsonl")
        rows[tells] = read_rows(tmp_path / f"{tells}.jsonl")[1]
    row = rows[True]
    assert row.prompt_digest == sha256_text("<user>q1<assistant>")
    assert row.tokens_digest == content_id([ord(c) for c in "<user>q1<assistant>"])
    assert (row.template_digest, row.tokenizer_digest) == ("template", "tokenizer")
    assert row.cluster == "q1" and row.repeat == 0 and row.key == "s1"
    assert row.sampling_digest and rows[False].tokens_digest is None
    assert rows[False].sampling_digest == row.sampling_digest


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 9},
        {"sampling": {"temperature": 0.5}},
        {"sampling": {"top_p": 0.5}},
        {"sampling": {"seed": 1}},
        {"sampling": {"stop": ["x"]}},
        {"response_schema": {"type": "object"}},
    ],
)
def test_another_way_to_draw_answers_is_another_question(
    ask: Ask, tmp_path: Path, change: dict[str, Any]
) -> None:
    with ScriptedServer(right) as server:
        before = ask(server, suite(2))
        first = read_rows(tmp_path / "mine.jsonl")
        after = ask(server, suite(2, **change))
    assert len(server.bodies) == 4
    second = read_rows(tmp_path / "mine.jsonl")
    assert first[0].sampling_digest != second[0].sampling_digest
    assert before.conditions["sampling"] != after.conditions["sampling"]


def test_a_schema_that_does_not_guide_is_not_sent(ask: Ask) -> None:
    schema = {"type": "object"}
    with ScriptedServer(right) as server:
        loose = ask(server, suite(1, response_schema=schema, guided=False))
        guided = ask(server, suite(1, response_schema=schema))
    assert "response_format" not in server.bodies[0]
    assert server.bodies[1]["response_format"]["json_schema"]["schema"] == schema
    assert loose.conditions["sampling"]["response_schema"] is None
    assert guided.conditions["sampling"]["response_schema"] == content_id(schema)


def test_repeats_are_drawn_with_seeds_that_count_on(ask: Ask, tmp_path: Path) -> None:
    of = suite(3, repeats=3, sampling={"temperature": 0.7, "top_p": 0.9, "seed": 5, "stop": ["\n"]})

    def drawn(body: dict[str, Any]) -> dict[str, Any]:
        return said(body, f"{right(body)['choices'][0]['text']}" if body["seed"] != 6 else "other")

    with ScriptedServer(drawn) as server:
        result = ask(server, of)
        assert sorted({b["seed"] for b in server.bodies}) == [5, 6, 7]
        assert all((b["temperature"], b["top_p"]) == (0.7, 0.9) for b in server.bodies)
        assert all(b["stop"] == ["\n"] for b in server.bodies)
        assert len(server.bodies) == 9
        rows = read_rows(tmp_path / "mine.jsonl")
        assert [r.key for r in rows] == [f"s{i}{k}" for i in range(3) for k in ("", "#1", "#2")]
        assert [r.score for r in rows] == [1.0, 0.0, 1.0] * 3
        assert len({r.sampling_digest for r in rows}) == 3
        assert result.n == 9 and result.repeats == 3 and result.score == pytest.approx(2 / 3)
        lines = (tmp_path / "mine.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "mine.jsonl").write_text("".join(lines[:4] + lines[5:]))
        again = ask(server, of)
    assert [(b["prompt"], b["seed"]) for b in server.bodies[9:]] == [("q1", 6)]
    assert again.rows_digest == result.rows_digest


def test_flags_are_counted_apart_from_wrong_answers(ask: Ask, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        if body["prompt"] == "q1":
            return said(body, "")
        answer = right(body)
        answer["choices"][0]["finish_reason"] = "length" if body["prompt"] == "q2" else "stop"
        return answer

    with ScriptedServer(script) as server:
        result = ask(server, suite(4))
    rows = read_rows(tmp_path / "mine.jsonl")
    assert "empty" in rows[1].flags and "truncated" in rows[2].flags and rows[3].flags == ()
    assert rows[2].score == 1.0, "a flag is no verdict"
    assert result.flagged["empty"] == 1 and result.flagged["truncated"] == 1
    assert result.failed == 0


def test_the_result_says_what_the_suite_is(ask: Ask) -> None:
    of = suite(1, kind="refusal", metric="refusals", tier="advisory", cadence="nightly")
    with ScriptedServer(right) as server:
        result = ask(server, of)
    assert (result.kind, result.metric, result.higher_is_better) == ("refusal", "refusals", True)
    assert (result.tier, result.cadence, result.lane) == ("advisory", "nightly", "native")
    assert "lane" not in result.conditions


def test_a_double_bos_is_refused_before_anything_is_asked(ask: Ask) -> None:
    with ScriptedServer(right) as server:
        with pytest.raises(RecipeError, match="sample 's0' begins with 2 begin-of-seq"):
            ask(server, suite(2, prompt="^^{q}"))
        assert not server.bodies
        once = ask(server, suite(1, prompt="^{q}"))
    assert once.conditions["bos"] == {"found": [1], "tokenizer": 0}


def test_a_bos_the_server_adds_is_named(ask: Ask, tmp_path: Path) -> None:
    def added(body: dict[str, Any]) -> dict[str, Any]:
        answer = said(body, "r", prompt_tokens=len(body["prompt"]) + 1)
        ids = [ord(c) for c in body["prompt"]]
        answer["choices"][0]["prompt_token_ids"] = [94, *ids] if body["prompt"] == "q1" else ids
        return answer if body["prompt"] == "q1" else right(body)

    with ScriptedServer(added) as server:
        assert ask(server, suite(2)).failed == 1
    error = read_rows(tmp_path / "mine.jsonl")[1].error or ""
    assert error.startswith("other tokens: the server puts tokens [94] before the prompt")


def test_other_token_ids_of_the_same_count_are_a_failed_row(ask: Ask, tmp_path: Path) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        found = rank({" yes": -2.0, " no": -3.0})(body)
        ids = [ord(c) for c in body["prompt"]]
        if body["prompt"] == "q1 no":
            ids[-1] += 1
        found["choices"][0]["prompt_token_ids"] = ids
        return found  # type: ignore[no-any-return]

    with ScriptedServer(script) as server:
        assert ask(server, suite(2, choices=[" yes", " no"])).failed == 1
    rows = read_rows(tmp_path / "mine.jsonl")
    assert (rows[1].error or "").startswith("other tokens")
    ids = [[ord(c) for c in text] for text in ("q0 yes", "q0 no")]
    assert rows[0].tokens_digest == content_id(ids)


def test_a_judge_suite_needs_a_judge(ask: Ask) -> None:
    of = suite(1, scorer={"name": "judge", "rubric": "good"})
    with ScriptedServer(right) as server:
        with pytest.raises(RecipeError, match="scored by a judge, and the recipe names none"):
            ask(server, of)
        assert not server.bodies


def test_a_judge_grades_what_was_answered_and_is_asked_again_alone(
    ask: Ask, tmp_path: Path
) -> None:
    """Answers of odd samples are preferred; the judge is away the first time it sees 'r2'."""
    of = suite(4, scorer={"name": "judge", "rubric": "RUBRIC"})
    away = [True]

    def judge(body: dict[str, Any]) -> dict[str, Any] | int:
        said = body["messages"][-1]["content"]
        number = next(i for i in range(4) if f"q{i}" in said)
        if number == 2 and away:
            return 500
        return {
            "model": "judge-1",
            "choices": [{"message": {"content": word(said, number)}}],
        }

    with ScriptedServer(lambda b: said(b, f"A{b['prompt']}")) as server, ScriptedServer(judge) as j:
        spec = JudgeSpec(url=j.url, model="judge")
        first = ask(server, of, judge=spec)
        rows = read_rows(tmp_path / "mine.jsonl")
        assert (rows[2].error or "").startswith("not judged: ") and rows[2].output == "Aq2"
        assert rows[2].score is None and first.failed == 1
        assert [r.score for r in rows] == [0.0, 1.0, None, 1.0]
        assert all(r.grade["judge"] == ["judge-1"] for r in rows if not r.error)
        away.clear()
        asked = len(j.bodies)
        second = ask(server, of, judge=spec)
        assert len(server.bodies) == 4, "the model answered already"
        assert len(j.bodies) == asked + 2, "only what was not judged, in both positions"
    assert second.failed == 0 and read_rows(tmp_path / "mine.jsonl")[2].error is None
    assert second.conditions["judge"] == {"model": "judge", "versions": ["judge-1"]}


def word(said: str, number: int) -> str:
    """A judge's word: the answer of odd samples, the target of even ones."""
    wanted = f"Aq{number}" if number % 2 else f"r{number}"
    other = f"r{number}" if number % 2 else f"Aq{number}"
    return "A" if said.index(wanted) < said.index(other) else "B"


# --------------------------------------------------------------------------- the suite's time


def test_the_time_limit_of_a_suite_makes_failed_rows_and_drops_none(
    ask: Ask, tmp_path: Path
) -> None:
    with ScriptedServer(right, seconds=0.3) as server:
        result = ask(server, suite(40), concurrency=2, total_seconds=3)
    rows = read_rows(tmp_path / "mine.jsonl")
    late = [r for r in rows if r.error]
    # In ten rounds at most; a few are left of them where we stand still for a while.
    assert result.n == 40 == len(rows) and 4 <= 40 - len(late) <= 20
    assert all((r.error or "").startswith("time limit of the suite") for r in late)
    assert result.failed == len(late) and result.score == 1.0
    with ScriptedServer(right) as server:
        again = ask(server, suite(40), total_seconds=30)
    assert sorted(server.prompts) == sorted(f"q{r.id[1:]}" for r in late)
    assert again.failed == 0


# --------------------------------------------------------------------------- tools

TOOL = {
    "type": "function",
    "function": {
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "name": "weather",
        "description": "of a city",
    },
}
CALL = {"id": "c0", "type": "function", "function": {"name": "weather", "arguments": '"Paris"'}}


def called(body: dict[str, Any], calls: Any = (CALL,), **message: Any) -> dict[str, Any]:
    said = Letters().render(body["messages"], True, tools=body["tools"])
    return {
        "choices": [
            {
                "message": {"role": "assistant", "content": None, "tool_calls": calls, **message},
                "finish_reason": "tool_calls",
            }
        ],
        "prompt_token_ids": [ord(c) for c in said],
        "usage": {"prompt_tokens": len(said), "completion_tokens": 4},
    }


def tool_suite(n: int = 1, **changes: Any) -> Suite:
    values = {"ask": "call_tools", "tools": [TOOL], "chat_template": True, "system": "be useful"}
    return suite(n, **(values | changes))


def test_tools_are_offered_and_the_calls_are_the_output(ask: Ask, tmp_path: Path) -> None:
    with ScriptedServer(called) as server:
        result = ask(server, tool_suite(tool_choice="required", max_tokens=99))
    (body,) = server.bodies
    assert body["messages"] == [
        {"role": "system", "content": "be useful"},
        {"role": "user", "content": "q0"},
    ]
    function = body["tools"][0]["function"]
    assert function == TOOL["function"]
    assert list(function) == ["name", "description", "parameters"], "as vLLM writes it out"
    assert body["tool_choice"] == "required" and body["max_tokens"] == 99
    assert body["temperature"] == 0.0 and body["seed"] == 0 and not body["add_special_tokens"]
    (row,) = read_rows(tmp_path / "mine.jsonl")
    calls = [{"arguments": '"Paris"', "name": "weather"}]
    assert json.loads(row.output) == {"content": None, "tool_calls": calls}
    assert row.output == canonical_json(json.loads(row.output)).decode()
    rendered = Letters().render(body["messages"], True, tools=body["tools"])
    assert row.prompt_digest == sha256_text(rendered) and row.finish_reason == "tool_calls"
    assert row.tokens_digest == content_id([ord(c) for c in rendered])
    assert result.conditions["asked"] == "tools, read by the server"
    assert result.conditions["sampling"]["tools"] and result.failed == 0


def test_another_rendering_of_the_tools_is_a_failed_row(ask: Ask, tmp_path: Path) -> None:
    def other(body: dict[str, Any]) -> dict[str, Any]:
        answer = called(body)
        if body["messages"][-1]["content"] == "q1":
            answer["prompt_token_ids"] = answer["prompt_token_ids"][1:]
        return answer

    with ScriptedServer(other) as server:
        assert ask(server, tool_suite(2)).failed == 1
    assert (read_rows(tmp_path / "mine.jsonl")[1].error or "").startswith("other tokens")


@pytest.mark.parametrize(
    ("message", "output"),
    [
        ({"tool_calls": []}, {"content": None, "tool_calls": []}),
        (
            {"tool_calls": None, "content": "<b>\x1b[2J\ud800"},
            {"content": "<b>\x1b[2J\ufffd", "tool_calls": []},
        ),
        (
            {"tool_calls": [{"function": {"name": "x", "arguments": {"b": 1, "a": 2}}}]},
            {"content": None, "tool_calls": [{"name": "x", "arguments": '{"a":2,"b":1}'}]},
        ),
    ],
)
def test_what_a_model_says_beside_calls_is_kept(
    ask: Ask, tmp_path: Path, message: dict[str, Any], output: dict[str, Any]
) -> None:
    with ScriptedServer(lambda b: called(b, **message)) as server:
        assert ask(server, tool_suite()).failed == 0
    assert json.loads(read_rows(tmp_path / "mine.jsonl")[0].output) == output


@pytest.mark.parametrize(
    "message",
    [
        {"content": 3},
        {"tool_calls": [{"function": {"name": 3, "arguments": "{}"}}]},
        {"tool_calls": [{"function": {"name": "x"}}]},
        {"tool_calls": "x"},
        {"tool_calls": 7},
    ],
)
def test_a_malformed_call_is_a_failed_row(
    ask: Ask, tmp_path: Path, message: dict[str, Any]
) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        bad = body["messages"][-1]["content"] == "q1"
        return called(body, **(message if bad else {}))

    with ScriptedServer(script) as server:
        assert ask(server, tool_suite(2)).failed == 1
    assert (read_rows(tmp_path / "mine.jsonl")[1].error or "").startswith("malformed answer")
