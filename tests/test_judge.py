"""The judge: its prompts and verdicts, and a real HTTP server that plays it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import RecipeError
from workbench.judge import Judgement, judge_key, judge_rows
from workbench.scorers.judge import Judged, combine, prompts, quoted, read_verdict, target_text
from workbench.spec import JudgeSpec

KEY = "not-to-be-seen"
Play = Callable[[str], str | int | dict[str, Any]]


def judge(play: Play, *items: Judged, **options: Any) -> tuple[Judgement, list[dict[str, Any]]]:
    """Have a server judge; `play` gets the user's message, gives a word, a status or a body."""
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        body = await request.json()
        bodies.append(body)
        said = play(body["messages"][1]["content"])
        if isinstance(said, int):
            return web.Response(status=said, text=f"no, {KEY}")
        if isinstance(said, dict):
            return web.json_response(said)
        message = {"role": "assistant", "content": said}
        return web.json_response(
            {
                "model": "judge-2026",
                "system_fingerprint": "fp_1",
                "choices": [{"message": message, "finish_reason": "stop"}],
            }
        )

    async def main() -> Judgement:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            spec = JudgeSpec(url=url, model="judge", **{"request_seconds": 5, **options})
            return await judge_rows(spec, "Be right.", items, key=KEY, backoff=0.001)
        finally:
            await runner.cleanup()

    return asyncio.run(main()), bodies


def item(key: str = "a", answer: str = "good") -> Judged:
    return Judged(key, "What is it?", "the target", answer)


def better_is(word: str) -> Play:
    """A judge that finds the answer with that word better, wherever it stands."""

    def play(prompt: str) -> str:
        a, b = prompt.split("ANSWER A")[1].split("ANSWER B")
        return "A" if word in a else "B" if word in b else "TIE"

    return play


def test_a_judge_that_is_consistent() -> None:
    found, bodies = judge(better_is("good"), item("a"), item("b", "bad"))
    assert found.grades["a"].score == 1.0 and found.grades["b"].score == 0.5
    assert found.grades["a"].details["verdicts"] == ["B", "A"]
    assert found.grades["b"].details["consistent"] is True
    assert len(bodies) == 4
    assert judge(better_is("the target"), item())[0].grades["a"].score == 0.0


def test_a_judge_that_likes_the_first_place_says_nothing() -> None:
    found, _ = judge(lambda prompt: "A", item())
    assert found.grades["a"].score == 0.5
    assert found.grades["a"].details["consistent"] is False


def test_what_is_sent_and_what_is_recorded() -> None:
    found, bodies = judge(better_is("good"), item())
    assert {body["temperature"] for body in bodies} == {0.0}
    assert {body["model"] for body in bodies} == {"judge"}
    assert "Be right." in bodies[0]["messages"][0]["content"]
    assert found.versions == ("judge-2026 (fp_1)",)
    assert found.grades["a"].details["judge"] == ["judge-2026 (fp_1)"]


def test_an_empty_answer_loses_unasked() -> None:
    found, bodies = judge(better_is("good"), item("a", " \n"))
    assert found.grades["a"].score == 0.0 and not bodies and found.versions == ()


def test_busy_is_asked_again_and_only_busy() -> None:
    left = [429, 503, 429]

    def busy(prompt: str) -> str | int:
        return left.pop() if left else better_is("good")(prompt)

    found, bodies = judge(busy, item())
    assert found.grades["a"].score == 1.0 and len(bodies) == 5
    found, bodies = judge(lambda prompt: 500, item())
    assert not found.grades and "http 500" in found.failed["a"] and len(bodies) == 1
    found, bodies = judge(lambda prompt: 429, item())
    assert "http 429" in found.failed["a"] and len(bodies) == 6


def test_the_key_is_in_no_failure() -> None:
    found, _ = judge(lambda prompt: 401, item())
    assert "http 401" in found.failed["a"] and KEY not in found.failed["a"]


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": [{"message": None}]}, {"choices": 3}, {"error": "x"}]
)
def test_an_answer_that_is_none_fails_its_sample_alone(body: dict[str, Any]) -> None:
    found, _ = judge(lambda p: body if "bad" in p else "TIE", item("a", "bad"), item("b"))
    assert "malformed" in found.failed["a"] and found.grades["b"].score == 0.5


def test_an_answer_the_judge_says_nothing_readable_of_is_not_judged() -> None:
    null = {"choices": [{"message": {"content": None}}], "model": None}
    found, _ = judge(lambda prompt: null, item())
    assert not found.grades and "no verdict" in found.failed["a"]
    assert found.versions == ("unnamed",)


def test_a_judge_that_goes_by_the_position_has_judged_nothing() -> None:
    found, _ = judge(lambda prompt: "A", *(item(str(i)) for i in range(12)))
    assert not found.grades and len(found.failed) == 12
    assert "12 of 12 verdicts went with the position" in found.failed["0"]


def test_no_more_at_a_time_than_allowed() -> None:
    found, bodies = judge(lambda p: "TIE", *(item(str(i)) for i in range(20)), concurrency=2)
    assert len(found.grades) == 20 and len(bodies) == 40


def test_a_server_that_is_not_there_fails_every_sample() -> None:
    spec = JudgeSpec(url="http://127.0.0.1:9", model="m", request_seconds=2)
    found = asyncio.run(judge_rows(spec, "r", [item()], backoff=0.001))
    assert "connection refused" in found.failed["a"]


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JudgeSpec(url="http://x", model="m", key_env="A_KEY_OF_MINE")
    monkeypatch.delenv("A_KEY_OF_MINE", raising=False)
    with pytest.raises(RecipeError, match="A_KEY_OF_MINE is not set"):
        judge_key(spec)
    monkeypatch.setenv("A_KEY_OF_MINE", KEY)
    assert judge_key(spec) == KEY
    assert judge_key(JudgeSpec(url="http://x", model="m")) == ""


# --------------------------------------------------------------------------- pure


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("A", "A"),
        (" b.\n", "B"),
        ("TIE", "TIE"),
        ("**Verdict: B**", "B"),
        ("[[A]]", "A"),
        ("Answer A is better than B in tone.\nFinal answer: B", "B"),
        ("B\n\nBecause A is wrong about the date.", "B"),
        ("The better answer is A.", "A"),
        ("Answer B is better.", "B"),
        ("A is better than B", None),
        ("A better question would be this.", None),
        ("both are fine", None),
        ("", None),
        ("C", None),
    ],
)
def test_verdicts(said: str, verdict: str | None) -> None:
    assert read_verdict(said) == verdict


@given(st.text())
def test_any_word_is_read(said: str) -> None:
    assert read_verdict(said) in ("A", "B", "TIE", None)


@pytest.mark.parametrize(
    ("target_first", "answer_first", "score", "consistent"),
    [
        ("B", "A", 1.0, True),
        ("A", "B", 0.0, True),
        ("TIE", "TIE", 0.5, True),
        ("A", "A", 0.5, False),
        ("B", "B", 0.5, False),
        ("B", "TIE", 0.5, False),
    ],
)
def test_two_verdicts(target_first: Any, answer_first: Any, score: float, consistent: bool) -> None:
    found = combine(target_first, answer_first)
    assert (found.score, found.details["consistent"]) == (score, consistent)


@given(st.text(), st.text())
def test_an_answer_cannot_leave_its_quotation(answer: str, target: str) -> None:
    rubric = "{rubric} {0} %s"
    for chat in prompts(rubric, Judged("k", "q", target, answer)):
        assert rubric in chat[0]["content"]
        user = chat[1]["content"]
        user.encode()
        # Whatever `splitlines` takes for an end of line, no line of the model's is without its bar.
        plain = [line for line in user.splitlines() if not line.startswith("| ")]
        heads = ["QUESTION", "ANSWER A", "ANSWER B"]
        last = "Which answer is better by the rubric? Reply with A, B or TIE."
        assert [line for line in plain if line] == [*heads, last]


def test_the_two_prompts_swap_the_answers() -> None:
    first, second = (chat[1]["content"] for chat in prompts("r", item()))
    assert first.index("the target") < first.index("good")
    assert second.index("the target") > second.index("good")
    assert target_text(["one", "two"]) == target_text("one") == "one"


def test_a_long_answer_is_shortened_in_its_middle() -> None:
    shown = quoted("a" * 50_000 + "z" * 50_000)
    assert len(shown) < 21_000 and shown.endswith("z") and "80000 characters" in shown
