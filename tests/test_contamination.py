import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from projects import ROOT, edit_recipe

from workbench import steps
from workbench.calibration_records import Contamination, Overlap
from workbench.calibration_spec import CalibrationSpec
from workbench.contamination import (
    compare,
    described,
    known,
    length,
    refuse,
    windows,
    words,
)
from workbench.context import new_run
from workbench.errors import ContaminationError
from workbench.sources import SourceRow, read_rows, resolve_source
from workbench.spec import Sample, SuiteSpec
from workbench.suites import Suite, load_suite

LONG = (
    "The kettle you sent me in March has stopped heating water after only six weeks of use and "
    "nobody answers"
)
CHINESE = "三月份买的电热水壶只用了六个星期就不再加热了打了好几次电话都没有人接听请尽快处理"


def suite(*texts: str, prompt: str = "Question: {text}", **fields: Any) -> Suite:
    spec = SuiteSpec.model_validate(
        {
            "schema": "workbench.suite/1",
            "name": "asked",
            "description": "d",
            "ask": "generate",
            "prompt": prompt,
            "chat_template": True,
            "scorer": "exact",
        }
    )
    samples = [
        Sample.model_validate({"id": f"s{n}", "target": "t", "text": text, **fields})
        for n, text in enumerate(texts)
    ]
    return Suite(spec, tuple(samples), "digest", Path())


def row(*contents: str, id_: str = "r") -> SourceRow:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    return SourceRow(id_, "here", tuple(messages))


def overlap(found: Contamination) -> Overlap:
    (only,) = found.suites
    return only


def kinds(text: str, *rows: SourceRow, of: Suite | None = None) -> dict[str, int]:
    wanted = CalibrationSpec(source="s")
    compared = compare(wanted, rows, frozenset(r.id for r in rows), {"asked": of or suite(text)})
    return dict(overlap(compared).matched)


@pytest.mark.parametrize(
    ("text", "in_row", "kind"),
    [
        (LONG, LONG, "exact"),
        (LONG, f"  {LONG}\n", "exact"),
        ("Paris", "Paris", "exact"),
        (LONG, LONG.upper() + "!!", "normalized"),
        (LONG, LONG.replace(" ", "\n\t "), "normalized"),
        ("Straße nach Ôlbernau", "STRASSE, nach Ôlbernau", "normalized"),
        (
            "ABC 123 is here",
            "\uff21\uff22\uff23 \uff11\uff12\uff13 is here",
            "normalized",
        ),  # full width
        (CHINESE, "\u3001".join(CHINESE[i : i + 9] for i in range(0, 60, 9)), "normalized"),
        (LONG, LONG.replace("e", "e\u00ad\u200b"), "normalized"),
        (LONG, f"Dear all, {LONG} - regards, M.", "contained"),
        (CHINESE, f"您好{CHINESE}谢谢", "contained"),
        (LONG, "the kettle you sent me in march has stopped heating water after only six", "ngram"),
        (LONG, "the kettle you sent me in march has stopped heating water after six", None),
        (CHINESE, CHINESE[5:25], "ngram"),
        (CHINESE, CHINESE[5:24], None),
        (
            "What is the capital of France?",
            "Tell me: what is the capital of France, please",
            "contained",
        ),
        ("What is the capital of France?", "What is the capital of Spain?", None),
        ("Is this a question?", "Quiz question: Is this a question? Answer with one word.", None),
        (
            "Is this a question then?",
            "Quiz question: Is this a question then? Answer with one word.",
            "contained",
        ),
        ("法国的首都是哪里", "请回答\uff1a法国的首都是哪里\uff1f谢谢", "contained"),
        ("法国首都是哪里", "请回答\uff1a法国首都是哪里\uff1f谢谢", None),
        ("Is this a question then?", "This a question then, is it?", None),
        ("Is this a question then?", "Is this a question thence?", None),
        ("Thank you", "Thank you for your patience", None),
        ("你好吗", "您好\uff0c你好吗\uff0c谢谢", None),
        ("...", "no words to speak of", None),
        (LONG, "something else entirely", None),
    ],
)
def test_kinds_of_overlap(text: str, in_row: str, kind: str | None) -> None:
    assert kinds(text, row("Please read this.", in_row)) == ({kind: 1} if kind else {})


def test_the_strictest_kind_of_any_row_counts() -> None:
    rows = [row(f"Re: {LONG} bye", id_="a"), row("x", LONG.upper(), id_="b"), row("y", id_="c")]
    found = overlap(
        compare(CalibrationSpec(source="s"), rows, frozenset("abc"), {"asked": suite(LONG, "no")})
    )
    assert found.matched == {"normalized": 1}
    assert [(p.row, p.sample, p.kind) for p in found.pairs] == [
        ("b", "s0", "normalized"),
        ("a", "s0", "contained"),
    ]
    assert all(len(pair.text) <= 80 for pair in found.pairs)
    assert (found.samples, found.short, found.share) == (2, 1, 0.5)


def test_a_span_across_messages_and_of_one_field() -> None:
    half = len(LONG) // 2
    assert kinds(LONG, row(LONG[:half], LONG[half:])) != {}
    # Two fields shown: either may stand in the set, a short one alone says nothing.
    both = suite(LONG, prompt="{city}: {text}", city="Leeds")
    assert kinds("", row(LONG), of=both) == {"exact": 1}
    assert kinds("", row("Leeds"), of=both) == {}
    asked = "Which of these two cities is larger?"
    named = suite("Rome", prompt="{question} {text}", question=asked)
    assert kinds("", row(f"Quiz. {asked} Answer."), of=named) == {"contained": 1}
    # The same in every sample is no sample but an instruction, unless it is a passage.
    told = suite("Rome", "Oslo", prompt="{question} {text}", question=asked)
    assert kinds("", row(f"Quiz. {asked} Answer."), of=told) == {}
    assert kinds("", row(asked), of=told) == {}
    assert kinds("", row(f"Quiz. {asked} Oslo. Answer."), of=told) == {"contained": 1}
    passage = suite("Rome", "Oslo", prompt="{note} {text}", note=LONG)
    assert kinds("", row(f"Read: {LONG}."), of=passage) == {"contained": 2}
    # What the prompt does not show was not asked.
    hidden = suite("no", note=LONG)
    assert kinds("", row(LONG), of=hidden) == {}


def test_scope_is_the_drawn_rows_or_the_source() -> None:
    rows = [row("one", id_="a"), row(LONG, id_="b")]
    for scope, matched, compared in (("sample", {}, 1), ("source", {"exact": 1}, 2)):
        wanted = CalibrationSpec.model_validate({"source": "s", "contamination_scope": scope})
        found = compare(wanted, rows, frozenset("a"), {"asked": suite(LONG)})
        assert (overlap(found).matched, found.rows) == (matched, compared)


def test_refused_above_the_limit_with_the_pairs() -> None:
    texts = [f"{LONG} number {n}" for n in range(20)]
    rows = [row(text, id_=f"r{n}") for n, text in enumerate(texts[:12])]

    def found(limit: float) -> Contamination:
        wanted = CalibrationSpec(source="s", contamination_limit=limit)
        drawn = frozenset(r.id for r in rows)
        return compare(wanted, rows, drawn, {"asked": suite(*texts)})

    refuse(found(0.6), "recipe")
    with pytest.raises(ContaminationError) as error:
        refuse(found(0.59), "recipe: calibration")
    assert error.value.exit_code == 2
    assert "12 of 20 samples (60.0%)" in error.value.what
    assert "row r0, sample s0 (equal to a text)" in error.value.what
    assert error.value.what.endswith("\n  and 2 more")
    assert "contamination_limit" in error.value.fix


def test_shared_ngrams_do_not_block() -> None:
    found = compare(
        CalibrationSpec(source="s"),
        [row(LONG[: len(LONG) - 20])],
        frozenset("r"),
        {"asked": suite(LONG)},
    )
    assert (overlap(found).share, overlap(found).ngram_share) == (0.0, 1.0)
    refuse(found, "")


def test_what_is_shared_is_said_in_words() -> None:
    rows = [row(f"Quiz: {LONG} {n}?", id_=f"r{n}\x1b[2J") for n in range(5)]
    found = compare(
        CalibrationSpec(source="s"),
        rows,
        frozenset(r.id for r in rows),
        {"asked": suite(LONG, "no", "Is this a question?")},
    )
    first, *pairs = described(overlap(found)).splitlines()
    assert first == "of 3 samples, 1 whole inside a row; 2 too short to check (under 5 words)"
    assert len(pairs) == 4 and pairs[3] == "  and more, see 'contamination' in calibration.json"
    assert pairs[0].startswith("  row r0\ufffd[2J, sample s0 (whole inside a row): the kettle you")
    none = compare(CalibrationSpec(source="s"), [row("x")], frozenset("r"), {"asked": suite(LONG)})
    assert described(overlap(none)) == "of 1 samples, none"


def test_known_only_for_the_same_suites_and_limit() -> None:
    wanted, suites = CalibrationSpec(source="s"), {"asked": suite(LONG)}
    found = compare(wanted, [], frozenset(), suites)
    assert known(found, wanted, suites)
    assert not known(None, wanted, suites)
    assert not known(found.model_copy(update={"shortest": 4}), wanted, suites)
    assert not known(found, CalibrationSpec(source="s", contamination_limit=0.5), suites)
    other = Suite(suites["asked"].spec, suites["asked"].samples, "changed", Path())
    assert not known(found, wanted, {"asked": other})
    assert not known(found, wanted, {**suites, "more": other})


@given(
    st.lists(st.sampled_from(["a", "bc", "ü", "水", "壶", "7"]), max_size=60), st.integers(1, 15)
)
def test_windows_are_the_shortest_that_are_long_enough(tokens: list[str], size: int) -> None:
    found = list(windows(tokens, size))
    assert [start for start, _ in found] == list(range(len(found)))
    for start, end in found:
        assert length(tokens[start:end]) >= size
        assert length(tokens[start : end - 1]) < size
    rest = tokens[len(found) :]
    assert length(rest) < size


@given(st.text(), st.text(alphabet=" \n\t.,!?-\u3000\u3002\uff0c", min_size=1))
def test_words_do_not_depend_on_case_width_or_punctuation(text: str, gap: str) -> None:
    found = words(text)
    assert words(gap + text + gap) == found
    assert words(gap.join(found)) == found
    assert words(" ".join(found).upper().casefold()) == words(" ".join(found))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(13, 40))
def test_any_shared_run_of_13_words_is_found(before: int, after: int, shared: int) -> None:
    span = [f"shared{n}" for n in range(shared)]
    sample = [f"left{n}" for n in range(before + 1)] + span
    calibration = span + [f"right{n}" for n in range(after + 1)]
    assert kinds(" ".join(sample), row(" ".join(calibration))) == {"ngram": 1}
    cut = " ".join(calibration[shared - 12 :])
    assert kinds(" ".join(sample), row(cut)) == {}


def test_time_grows_with_the_text_and_not_with_the_pairs() -> None:
    pick = random.Random(0)
    vocabulary = [f"w{n}" for n in range(5000)]

    def texts(n: int) -> list[str]:
        return [" ".join(pick.choices(vocabulary, k=200)) for _ in range(n)]

    asked, rows = suite(*texts(1000)), [row(t, id_=str(n)) for n, t in enumerate(texts(1000))]
    begun = time.process_time()
    compare(CalibrationSpec(source="s"), rows, frozenset(r.id for r in rows), {"asked": asked})
    # A million pairs; a comparison of each would take minutes.
    assert time.process_time() - begun < 15


# --------------------------------------------------------------------------- what is shipped


@pytest.mark.parametrize("name", ["business_tickets", "instructions", "prose"])
def test_a_shipped_source_shares_nothing_with_a_suite(name: str) -> None:
    rows = read_rows(resolve_source(name, ROOT)).rows
    suites = {
        p.parent.name: load_suite(p.parent) for p in (ROOT / "eval_suites").glob("*/suite.yaml")
    }
    found = compare(CalibrationSpec(source="s"), rows, frozenset(r.id for r in rows), suites)
    assert len(found.suites) >= 3
    assert {o.suite: o.matched for o in found.suites if o.matched} == {}


@pytest.mark.parametrize("name", ["business_tickets", "prose"])
def test_no_two_rows_of_a_shipped_source_are_nearly_the_same(name: str) -> None:
    rows = read_rows(resolve_source(name, ROOT)).rows
    seen: dict[tuple[str, ...], str] = {}
    for each in rows:
        tokens = words(each.text)
        for start, end in windows(tokens, 8):
            assert seen.setdefault(tuple(tokens[start:end]), each.id) == each.id


# --------------------------------------------------------------------------- in a run


def contaminate(project: Path) -> str:
    """A source whose first row is a sample of a suite; the sample's id."""
    lines = (project / "eval_suites" / "sentiment" / "samples.jsonl").read_text().splitlines()
    sample = json.loads(lines[4])
    rows = [{"text": f"This is a text about subject {n} and nothing else."} for n in range(7)]
    rows.append({"id": "leak", "text": sample["message"].upper()})
    (project / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    edit_recipe(project, lambda r: r["calibration"].update(source="own.jsonl"))
    return str(sample["id"])


def test_a_run_stops_at_a_contaminated_set(
    project: Path, workbench: Callable[..., CompletedProcess[str]]
) -> None:
    sample = contaminate(project)
    validated = workbench("validate", "recipe.yaml")
    assert validated.returncode == 2
    said = " ".join((validated.stdout + validated.stderr).split())
    assert f"row leak, sample {sample} (equal but for case and punctuation)" in said
    assert "Traceback" not in said
    ran = workbench("run", "recipe.yaml", "--only", "calibrate")
    assert ran.returncode == 2
    assert not (project / "results" / "smoke").exists()
    # The step alone, as the notebook calls it: the set is sealed and says what it holds.
    for _ in range(2):
        with pytest.raises(ContaminationError, match=f"row leak, sample {sample}"):
            steps.calibrate(new_run(project / "recipe.yaml"))
    record = json.loads((project / "results" / "smoke" / "calibration.json").read_text())
    shares = {o["suite"]: o["share"] for o in record["contamination"]["suites"]}
    assert shares == {"sentiment": 1 / 88, "short_question": 0, "json_extract": 0}
    edit_recipe(project, lambda r: r["calibration"].update(contamination_limit=0.02))
    accepted = workbench("run", "recipe.yaml", "--only", "calibrate")
    assert accepted.returncode == 0, accepted.stderr
    again = json.loads((project / "results" / "smoke" / "calibration.json").read_text())
    # Another limit makes no other set.
    assert (again["id"], again["seal"]) == (record["id"], record["seal"])
    assert again["contamination"]["limit"] == 0.02
