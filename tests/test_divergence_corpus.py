"""The divergence corpus: which texts, in which order, and what is left out of it and why."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.divergence_corpus import CALIBRATION, Corpus, HeldOut, build, reference_answer
from workbench.questions import common_length
from workbench.sources import SourceRow
from workbench.spec import CalibrationSpec, DivergenceSpec, Sample, SuiteSpec
from workbench.suites import Suite
from workbench.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def row(id_: str, content: str) -> SourceRow:
    return SourceRow(id_, f"f:{id_}", ({"role": "user", "content": content},))


def held_out(*rows: SourceRow, drawn: tuple[str, ...] = (), **changes: Any) -> HeldOut:
    spec = CalibrationSpec(source="s", samples=1, max_tokens=64, min_tokens=1, **changes)
    return HeldOut(spec, rows, drawn)


def suite(name: str, samples: list[dict[str, Any]], **changes: Any) -> Suite:
    spec: dict[str, Any] = {
        "schema": "workbench.suite/1",
        "name": name,
        "description": "d",
        "ask": "generate",
        "chat_template": True,
        "prompt": "{q}",
        "scorer": "exact",
    }
    found = tuple(Sample.model_validate(sample) for sample in samples)
    return Suite(SuiteSpec.model_validate(spec | changes), found, name, Path(name))


ROWS = [
    row(f"r{i}", f"a text of its own about the number {i} and what follows it") for i in range(40)
]
QUESTIONS = [
    {"id": f"q{i}", "q": f"what comes after {i}?", "target": f"it is {i}"} for i in range(40)
]


def made(tokenizer: Tokenizer, context: int = 512, **changes: Any) -> Corpus:
    options: dict[str, Any] = {"tokens": 2000, "top_k": 4, "held_out": 10}
    suites = changes.pop("suites_", {"asked": suite("asked", QUESTIONS)})
    rows = changes.pop("rows", held_out(*ROWS))
    return build(DivergenceSpec(**(options | changes)), suites, rows, tokenizer, context)


def test_both_kinds_of_source_are_in_it(tokenizer: Tokenizer) -> None:
    corpus = made(tokenizer)
    by_source = Counter(d.source for d in corpus.documents)
    assert by_source[CALIBRATION] == 10, "as many rows as are held out"
    assert by_source["suite:asked"] > 10
    assert sum(len(d.ids) for d in corpus.documents) <= 2000
    assert corpus.sources.keys() == by_source.keys()
    assert sum(corpus.sources.values()) == sum(len(d.ids) - d.start for d in corpus.documents)


def test_rows_are_rendered_as_the_set_is_and_scored_from_their_second_token(
    tokenizer: Tokenizer,
) -> None:
    corpus = made(tokenizer, suites=False)
    for document in corpus.documents:
        content = next(r for r in ROWS if r.id == document.name).messages
        text = tokenizer.render(content, add_generation_prompt=False)
        assert list(document.ids) == tokenizer.encode(text, False)
        assert document.start == 1
    raw = made(tokenizer, suites=False, rows=held_out(*ROWS, chat_template=False))
    first = next(r for r in ROWS if r.id == raw.documents[0].name)
    assert list(raw.documents[0].ids) == tokenizer.encode(first.text, True)


def test_of_a_suite_the_answer_alone_is_scored(tokenizer: Tokenizer) -> None:
    corpus = made(tokenizer, rows=None)
    assert corpus.documents
    for document in corpus.documents:
        sample = next(q for q in QUESTIONS if q["id"] == document.name)
        message = [{"role": "user", "content": sample["q"]}]
        prompt = tokenizer.render(message, add_generation_prompt=True)
        whole = tokenizer.encode(prompt + sample["target"], False)
        assert list(document.ids) == whole
        assert document.start == common_length(tokenizer.encode(prompt, False), whole)
        said = tokenizer.decode(document.ids[document.start :])
        assert said.strip() == sample["target"]


def test_the_same_everywhere_and_whatever_the_order_of_the_files(tokenizer: Tokenizer) -> None:
    one = made(tokenizer)
    other = made(
        tokenizer,
        rows=held_out(*reversed(ROWS)),
        suites_={"asked": suite("asked", QUESTIONS[::-1])},
    )
    assert one == other and one.digest == other.digest
    assert made(tokenizer, tokens=500).digest != one.digest


def test_the_digest_speaks_of_tokens_and_of_what_is_scored(tokenizer: Tokenizer) -> None:
    corpus = made(tokenizer)
    first, *rest = corpus.documents
    digests = {
        Corpus((changed, *rest), {}).digest
        for changed in (
            first,
            replace(first, ids=(*first.ids, 1)),
            replace(first, start=first.start + 1),
            replace(first, source="other"),
        )
    }
    assert len(digests) == 4


def test_no_row_of_a_set_nor_its_like(tokenizer: Tokenizer) -> None:
    like = row("like", f"  {ROWS[0].text.upper()}!! ")
    twice = row("twice", ROWS[5].text.replace(" ", "  "))
    drawn = tuple(r.id for r in ROWS[:5])
    corpus = made(
        tokenizer, suites=False, held_out=100, rows=held_out(like, twice, *ROWS, drawn=drawn)
    )
    names = {d.name for d in corpus.documents}
    assert not names & {"like", *drawn}
    assert len(names & {"twice", "r5"}) == 1
    assert len(names) == 35
    assert corpus.left_out == {"the like of another row, or of one that was calibrated on": 2}


def test_what_is_left_out_is_counted_with_its_reason(tokenizer: Tokenizer) -> None:
    rows = [row("empty", "  "), row("short", "ab"), *ROWS[:2]]
    samples = [*QUESTIONS[:2], {"id": "n", "q": "x", "target": {"a": 1}}]
    corpus = made(
        tokenizer,
        rows=held_out(*rows, chat_template=False),
        suites_={"asked": suite("asked", samples)},
    )
    short = len(tokenizer.encode("ab", True)) < 2
    assert corpus.left_out["empty"] == 1 and corpus.left_out["the target is no text"] == 1
    assert len(corpus.documents) == 4 + (not short)


def test_a_document_is_cut_at_the_context_and_counted(tokenizer: Tokenizer) -> None:
    long = row("long", " ".join(f"word{i}" for i in range(400)))
    corpus = made(tokenizer, context=64, suites=False, tokens=1000, rows=held_out(long))
    (document,) = corpus.documents
    assert len(document.ids) == 63 and document.cut
    answer = {"id": "a", "q": "q", "target": " ".join(f"word{i}" for i in range(400))}
    prompt = {"id": "p", "q": " ".join(f"word{i}" for i in range(400)), "target": "yes"}
    found = made(tokenizer, context=64, rows=None, suites_={"s": suite("s", [answer, prompt])})
    (document,) = found.documents
    assert document.name == "a" and document.cut and len(document.ids) == 63
    assert found.left_out == {"the prompt fills the context": 1}


def test_a_suite_of_long_prompts_takes_no_more_than_the_others(tokenizer: Tokenizer) -> None:
    long = [
        {"id": f"l{i}", "q": " ".join(f"word{j}" for j in range(60)) + str(i), "target": "yes"}
        for i in range(40)
    ]
    suites = {"long": suite("long", long), "asked": suite("asked", QUESTIONS)}
    corpus = made(tokenizer, suites_=suites, tokens=1500, rows=held_out(*ROWS), held_out=40)
    fed = dict.fromkeys((CALIBRATION, "suite:long", "suite:asked"), 0)
    for document in corpus.documents:
        fed[document.source] += len(document.ids)
    most = max(len(d.ids) for d in corpus.documents)
    assert max(fed.values()) - min(fed.values()) <= most
    assert sum(fed.values()) <= 1500


def test_nothing_to_ask_is_an_empty_corpus(tokenizer: Tokenizer) -> None:
    assert made(tokenizer, rows=None, suites=False).documents == ()


@pytest.mark.parametrize(
    ("changes", "target", "answer"),
    [
        ({}, "yes", "yes"),
        ({}, ["one", "two"], "one"),
        ({"scorer": "numeric"}, 42, "42"),
        ({"scorer": "json_fields"}, {"a": "\u00e9"}, '{"a": "\u00e9"}'),
        ({"scorer": {"name": "regex", "pattern": "(x)"}}, "x", "x"),
        ({"scorer": {"name": "regex"}}, "x+", ""),
        ({"scorer": "refusal"}, "refuse", ""),
        ({"ask": "call_tools", "scorer": "tool_call"}, "x", ""),
        ({}, True, ""),
        ({}, None, ""),
        ({}, [], ""),
        ({}, " ", ""),
        ({}, {"a": 1}, ""),
    ],
)
def test_what_a_model_should_say(changes: dict[str, Any], target: Any, answer: str) -> None:
    asked = suite("s", [{"id": "a", "q": "q", "target": target}], **changes)
    said, reason = reference_answer(asked.spec, asked.samples[0])
    assert said == answer and bool(reason) == (not answer)


def test_shipped_suites_and_source_make_a_corpus(tokenizer: Tokenizer) -> None:
    from projects import ROOT

    from workbench.sources import read_rows
    from workbench.suites import load_suite

    suites = {
        path.parent.name: load_suite(path.parent)
        for path in sorted((ROOT / "eval_suites").glob("*/suite.yaml"))
    }
    rows = read_rows(ROOT / "calib_data" / "instructions" / "samples.jsonl").rows
    corpus = made(
        tokenizer, rows=held_out(*rows), suites_=suites, tokens=20_000, context=1024, held_out=64
    )
    assert {CALIBRATION, "suite:sentiment"} <= {d.source for d in corpus.documents}
    assert json.dumps(dict(corpus.left_out))
