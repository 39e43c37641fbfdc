"""The shipped suites: each business case is there, of the size and the languages it says."""

import json
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.digest import sha256_text
from workbench.spec import Policy, Recipe
from workbench.stats import binary_interval, graded_interval
from workbench.suite_spec import SuiteSpec

ROOT = Path(__file__).parents[1]
SUITES = ROOT / "eval_suites"
NAMES = sorted(p.parent.name for p in SUITES.glob("*/suite.yaml"))
BUSINESS = {
    "short_question": "short_question",
    "long_context": "long_context",
    "summarization": "summarization",
    "json_extract": "structured_output",
    "json_extract_free": "structured_output",
    "tool_call": "tool_call",
    "nl2sql": "nl2sql",
    "refusal": "refusal",
    "sentiment": "classification",
}
#: A third of their samples is in Chinese.
BILINGUAL = {"long_context", "summarization", "tool_call", "nl2sql", "refusal"}


def spec(name: str) -> SuiteSpec:
    return SuiteSpec.model_validate(yaml.safe_load((SUITES / name / "suite.yaml").read_text()))


def samples(name: str) -> list[dict[str, Any]]:
    text = (SUITES / (spec(name).samples_of or name) / "samples.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def recipe(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "notebooks" / "recipes" / f"{name}.yaml").read_text())
    Recipe.model_validate(found)
    return dict(found)


def test_there_is_a_suite_for_each_business_case() -> None:
    assert {name: spec(name).kind for name in NAMES} == BUSINESS
    assert set(recipe("business")["evaluate"]["suites"]) == set(BUSINESS)
    assert set(recipe("full")["evaluate"]["suites"]) == set(BUSINESS)


@pytest.mark.parametrize("name", NAMES)
def test_a_suite_is_large_enough_and_says_what_it_is(name: str) -> None:
    found = samples(name)
    assert len(found) >= 80
    assert len({s["id"] for s in found}) == len(found)
    card = (SUITES / name / "README.md").read_text("utf-8")
    assert card.startswith(f"# {name}\n")
    assert "**Difficulty**: SmolLM2-135M-Instruct scores 0." in card
    if not spec(name).samples_of:
        assert str(len(found)) in card


@pytest.mark.parametrize("name", NAMES)
def test_about_a_third_of_the_bilingual_suites_is_chinese(name: str) -> None:
    languages = Counter(s.get("language") for s in samples(name))
    if name in BILINGUAL:
        assert languages.keys() == {"en", "zh"}
        assert 0.3 <= languages["zh"] / languages.total() <= 0.4
        texts = [json.dumps(s, ensure_ascii=False) for s in samples(name) if s["language"] == "zh"]
        assert all(any("\u4e00" <= c <= "\u9fff" for c in text) for text in texts)
    else:
        assert languages.keys() == {None}


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("json_extract", "4b83a43bf204540b"),
        ("long_context", "56b4acb2d1a0a666"),
        ("nl2sql", "608bbb4aaba838f7"),
        ("refusal", "4e8e0a957a8d47dd"),
        ("sentiment", "1a667041d6d46e43"),
        ("short_question", "3e0b60a028055f0f"),
        ("summarization", "3a590b7d4ba98d70"),
        ("tool_call", "5110b4a0a7edf8f2"),
    ],
)
def test_samples_keep_their_ids_and_targets(name: str, digest: str) -> None:
    # Another digest breaks the pairing with every run before: add samples, do not change them.
    pairs = [[s["id"], s["target"]] for s in samples(name)]
    assert sha256_text(json.dumps(pairs, ensure_ascii=False))[:16] == digest


def test_free_and_guided_extraction_differ_by_the_decoding_alone() -> None:
    guided, free = spec("json_extract"), spec("json_extract_free")
    assert (guided.guided, free.guided) == (True, False)
    same = ("system", "templates", "max_tokens", "sampling", "response_schema", "scorer")
    assert all(getattr(guided, key) == getattr(free, key) for key in same)


def test_needles_stand_where_they_say() -> None:
    needles = [s for s in samples("long_context") if s["task"] == "needle"]
    assert {s["depth"] for s in needles} == {0, 25, 50, 75, 100}
    for sample in needles:
        accepted = [sample["target"]] if isinstance(sample["target"], str) else sample["target"]
        text = sample["document"].replace(",", "")
        at = [
            100 * m.start() / len(text) for a in accepted for m in re.finditer(re.escape(a), text)
        ]
        # The fact is a sentence of its own, which in a short text is a large part of it.
        room = 10 + 100 * 110 / len(text)
        assert any(abs(depth - sample["depth"]) < room for depth in at), sample["id"]


def test_each_question_in_sql_has_rows_for_an_answer() -> None:
    script = (SUITES / "nl2sql" / "database.sql").read_text("utf-8")
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    for sample in samples("nl2sql"):
        rows = connection.execute(sample["target"]).fetchall()
        assert rows and None not in rows[0], sample["id"]
    connection.close()


def test_half_of_the_requests_is_to_be_refused_in_each_language() -> None:
    counts = Counter((s["language"], s["target"]) for s in samples("refusal"))
    assert counts["en", "refuse"] == counts["en", "answer"]
    assert counts["zh", "refuse"] == counts["zh", "answer"]


def test_tool_calls_hold_two_calls_and_none() -> None:
    counts = Counter(len(s["target"]) for s in samples("tool_call"))
    assert counts.keys() == {0, 1, 2} and min(counts.values()) >= 9


# --------------------------------------------------------------------------- recipe and policy


def test_the_business_recipe_shares_the_quickstarts_artifacts() -> None:
    ours, quickstart = recipe("business"), recipe("quickstart")
    for key in ("model", "calibration", "variants", "serve"):
        assert ours[key] == quickstart[key], key


def test_the_business_policy_gates_every_suite_and_its_numbers_are_right() -> None:
    text = (ROOT / "notebooks" / "policies" / "business.yaml").read_text("utf-8")
    policy = Policy.model_validate(yaml.safe_load(text))
    assert {c.suite for c in policy.quality} == set(BUSINESS)
    assert all(c.min_n == 80 and c.tier != "advisory" for c in policy.quality)
    assert all(len(samples(c.suite)) >= c.min_n for c in policy.quality)
    assert "points when no answer changed" in text
    for lost, gained in [(0, 0), (3, 3), (6, 6), (5, 3), (7, 5)]:
        words = f"when {lost} were lost and {gained} gained" if lost else "points when no answer"
        assert f"{100 * binary_interval(lost, gained, 88).high:.1f} {words}" in text
    assert f"{100 * binary_interval(22, 4, 88).low:.1f} points" in text
    for units, words in [(1, "up to 1.2"), (2, "up to 2.4")]:
        high = graded_interval([units / 84] * 84).high
        assert f"{100 * high:.1f}" in text and words in text
        assert f"{100 * units / 84:.1f}" in words
