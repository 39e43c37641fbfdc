"""Columns of rows are what the rows say: read from a file, made of objects, paired and judged."""

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import demo, evidence, rows, suite_result, variant
from hypothesis import example, given
from hypothesis import strategies as st
from test_rows import FIELDS, JSON, ODD, row

import workbench.evidence
from workbench.columns import Columns, StoredRows, columns_of, read_columns
from workbench.errors import StoreError
from workbench.evaluation_records import COUNTS, Flag, SuiteResult
from workbench.evidence import Evidence, _unsound, pair
from workbench.gate import decide
from workbench.paired import Answers, Paired, Refusal, _unlike
from workbench.policy_spec import OutputLength
from workbench.records import SampleRow
from workbench.report.html import render
from workbench.row_files import _halves, read_files
from workbench.rows import read_rows, rows_digest, write_rows
from workbench.spec import Policy, QualityCheck


def said(columns: Columns) -> dict[str, Any]:
    """Everything of them, as values that can be compared."""
    found = {one.name: getattr(columns, one.name) for one in fields(Columns)}
    return {k: repr(v.tolist()) if isinstance(v, np.ndarray) else v for k, v in found.items()}


# --------------------------------------------------------------------------- of a file

TEXT = st.text(st.characters(codec="utf-8"))
NAME = st.none() | st.sampled_from(["a", "b"])
FLAGGED = st.lists(st.sampled_from(["empty", "truncated", "refused"]), max_size=3)
ROW = st.fixed_dictionaries(
    {
        "output": TEXT,
        "score": st.none() | st.floats(0, 1) | st.sampled_from(ODD),
        "flags": FLAGGED,
        "cluster": NAME | TEXT,
        "tokens_digest": NAME,
        "template_digest": NAME,
        "output_tokens": st.none() | st.integers(0, 2**70),
        "grade": st.dictionaries(
            TEXT | st.just(COUNTS),
            JSON.filter(lambda v: v == v) | st.lists(st.integers(-1, 9), max_size=3),
            max_size=1,
        ),
        "choice_logprobs": st.none() | st.dictionaries(TEXT, st.floats(-9, 0), max_size=1),
        "error": st.none() | TEXT,
    }
)


@given(st.dictionaries(st.tuples(TEXT, st.integers(0, 2)), ROW, max_size=8), st.data())
def test_a_file_gives_the_columns_and_the_digest_of_its_rows(
    tmp_path_factory: pytest.TempPathFactory,
    found: Mapping[tuple[str, int], Mapping[str, Any]],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("columns") / "rows.jsonl"
    keys = data.draw(st.permutations(list(found)))
    try:
        write_rows(path, [row(id_, repeat=k, **dict(found[id_, k])) for id_, k in keys])
        plain = read_rows(path)
    except (StoreError, ValueError):
        return  # half characters in a grade, or a key that is made of another id
    columns = read_columns(path)
    assert columns.digest == rows_digest(plain)
    assert said(columns) == said(replace(columns_of(plain), digest=columns.digest))


@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 400])
def test_files_longer_than_what_is_read_at_once(tmp_path: Path, n: int) -> None:
    path = tmp_path / "rows.jsonl"
    made = [row(f"s{k % 200:03d}", repeat=k // 200, cluster=str(k % 3)) for k in range(n)]
    random.Random(n).shuffle(made)
    write_rows(path, made)
    columns = read_columns(path)
    assert len(columns) == n and columns.digest == rows_digest(made)
    assert said(columns) == said(replace(columns_of(made), digest=columns.digest))
    assert columns.sound(2 if n == 400 else 1)
    ordered = sorted(made, key=lambda r: (r.id, r.repeat))
    assert columns.clusters == (tuple(r.cluster for r in ordered) or None)


@given(FIELDS, JSON, st.integers(0, 2), st.sampled_from(["replace", "remove", "again", "cut"]))
@example("output", None, 1, "turn")
@example("output", None, 1, "rename")
def test_an_odd_line_is_what_the_strict_parser_says(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any, place: int, how: str
) -> None:
    path = tmp_path_factory.mktemp("columns") / "rows.jsonl"
    values = [row(name).model_dump(mode="json") for name in "abc"]
    if how == "replace":
        values[place][field] = value
    elif how == "remove":
        values[place].pop(field, None)
    elif how == "again":
        values[place]["id"] = "b"
    elif how == "turn":
        values[place] = dict(reversed(values[place].items()))
    elif how == "rename":
        values[place] = {k if k != field else "other": v for k, v in values[place].items()}
    lines = [json.dumps(one, ensure_ascii=False) for one in values]
    if how == "cut":
        lines[place] = lines[place][: len(field) * 7]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))
    try:
        plain = read_rows(path)
        digest = rows_digest(plain)
    except (StoreError, ValueError) as bad:
        with pytest.raises(type(bad)) as caught:
            read_columns(path)
        assert str(caught.value) == str(bad)
    else:
        found = read_columns(path)
        assert found.digest == digest
        assert said(found) == said(replace(columns_of(plain), digest=digest))


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "x"}',
        '{"a": null}',
        '{"a": 1}',
        '{"a": 1e999}',
        "1e999",
        "-0.0",
        "-0",
        "1E2",
        '"1"',
        "true",
        "1" * 400,
        "[1]",
        '"x"',
        "null",
        "2",
        "1.0",
        "1.5",
        "NaN",
        "-Infinity",
        "18446744073709551616",
        r'"\ud800"',
        r'{"a\ud800": 1}',
        '"x", "{field}": 1',
        '1, "{field}": 0',
        '0, "{field}": "x"',
        '{"a": 1, "a": 0.5}',
        '{"counts": [1, 1.0, 2]}',
        '{"counts": [18446744073709551616]}',
        "[" * 5000 + "]" * 5000,
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
)
@pytest.mark.parametrize(
    "field",
    ["score", "repeat", "output_tokens", "seconds", "flags", "id", "choice_logprobs", "grade"],
)
def test_odd_values_are_those_of_the_strict_parser(tmp_path: Path, field: str, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    line = json.dumps(row("a").model_dump(mode="json") | {field: "@"}).replace('"@"', text)
    line = line.replace("{field}", field)
    path.write_text(f"{line}\n")
    try:
        plain = read_rows(path)
        digest = rows_digest(plain)
    except (StoreError, ValueError) as bad:
        with pytest.raises(type(bad)):
            read_columns(path)
    else:
        assert read_columns(path).digest == digest
        columns = said(read_columns(path))
        assert columns == said(replace(columns_of(plain), digest=digest))


@pytest.mark.parametrize(
    "line",
    [
        *(b"  %s ", b"%s\r", b"\t%s", b"\xef\xbb\xbf%s", b"%s,", b"%s{}", b"[%s]", b"\xff%s"),
        *(b"%s\x00", b"// a\r%s", b"", b" ", b"{}", b"null"),
    ],
)
def test_odd_lines_are_those_of_the_strict_parser(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    written = row("a").model_dump_json().encode()
    path.write_bytes(line.replace(b"%s", written) + b"\n" + written.replace(b'"a"', b'"b"') + b"\n")
    try:
        plain = read_rows(path)
    except StoreError as bad:
        with pytest.raises(StoreError) as caught:
            read_columns(path)
        assert str(caught.value) == str(bad)
    else:
        assert read_columns(path).digest == rows_digest(plain)


def test_missing_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        read_columns(tmp_path / "rows.jsonl")


def test_a_row_is_read_again_only_from_the_file_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    made = (row("b", output="x"), row("a"))
    write_rows(path, made)
    stored = StoredRows(path, read_columns(path))
    assert stored.chosen([1, 0]) == [made[1], made[0]]
    assert len(stored) == 2 and tuple(stored) == made and stored[0] == made[0]
    assert stored[::-1] == made[::-1]
    write_rows(path, (row("b", output="y"), row("a")))
    for look in (list, lambda rows: rows.chosen([0])):
        with pytest.raises(StoreError, match="changed while they were being read"):
            look(stored)


# --------------------------------------------------------------------------- two processes


def test_two_processes_read_what_one_does(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.jsonl" for k in range(3)]
    for k, path in enumerate(paths):
        write_rows(path, [row(f"s{i}", output=f"{k} {i}") for i in range(10 * k)])
    alone, both = (read_files([*paths, paths[0]], large) for large in (1 << 40, 0))
    assert list(map(said, alone)) == list(map(said, both))
    ours, theirs = _halves({path: path.stat().st_size for path in paths})
    assert ours == [paths[2]] and theirs == [paths[1], paths[0]]


def test_a_normal_run_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    paths = [tmp_path / f"{k}.jsonl" for k in range(3)]
    for path in paths:
        write_rows(path, [row("a")])
    assert [len(columns) for columns in read_files(paths)] == [1, 1, 1]
    with pytest.raises(TypeError):
        read_files(paths, 0)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_file_is_named_whichever_process_reads_it(tmp_path: Path, number: int) -> None:
    paths = [tmp_path / f"{k}.jsonl" for k in range(3)]
    for k, path in enumerate(paths):
        write_rows(path, [row(f"s{i}") for i in range(5 + k)])
    paths[number].write_bytes(paths[number].read_bytes()[:-9])
    with pytest.raises(StoreError, match="not a row") as caught:
        read_files(paths, 0)
    assert str(paths[number]) in caught.value.where


# --------------------------------------------------------------------------- pairing


def plainly(
    found: Evidence, of: Mapping[str, Sequence[SampleRow]], scored: bool
) -> Refusal | tuple[list[Answers], list[Answers]]:
    """Pairing by the rows themselves: what `pair` does where nothing is known of columns."""
    for name, some in of.items():
        (side,) = (s for s in found.sides if s.variant == name)
        assert side.evaluation
        if refusal := _unsound(name, side.evaluation.suites[0], some, scored):
            return refusal
    before, after = ({(r.id, r.repeat): r for r in some} for some in of.values())
    if refusal := _unlike(before, after):
        return refusal
    ids = sorted({id_ for id_, _ in before})
    sides = (
        [Answers(tuple(rows[key] for key in sorted(rows) if key[0] == id_)) for id_ in ids]
        for rows in (before, after)
    )
    one, other = sides
    return one, other


CHANGES: dict[str, list[Any]] = {
    "score": [None, 0.0, 1.0, 0.3, -0.0, 1.5, float("nan")],
    "repeat": [1, 5],
    "id": ["s0", "other"],
    "output": ["x", "\ud800"],
    "flags": [("truncated",), ("empty", "truncated")],
    "output_tokens": [None, 7],
    "error": ["not scored: no"],
    **{name: ["another"] for name in ("prompt_digest", "target_digest", "sampling_digest")},
    **{name: ["another", None] for name in ("template_digest", "tokens_digest", "cluster")},
    "tokenizer_digest": ["another"],
}
CHANGE = st.one_of(st.tuples(st.just(k), st.sampled_from(v)) for k, v in CHANGES.items())
EDITS = st.lists(
    st.tuples(st.sampled_from(["one", "both"]), st.integers(0, 11), CHANGE | st.just("drop")),
    max_size=3,
)


def run_of(before: Sequence[SampleRow], after: Sequence[SampleRow], n: int, times: int) -> Evidence:
    def result(of: Sequence[SampleRow]) -> SuiteResult:
        return suite_result("suite", ()).model_copy(update={"n": n, "repeats": times})

    sides = []
    for name, method, of in (("baseline", "none", before), ("fp8", "fp8", after)):
        made = variant(name, {}, method=method)
        assert made.evaluation is not None
        asked = made.evaluation.model_copy(update={"suites": (result(of),)})
        sides.append(replace(made, evaluation=asked, rows={"suite": of}))
    return replace(evidence({}, sides[1]), baseline=sides[0])


@given(st.integers(1, 4), st.integers(1, 3), EDITS, st.booleans(), st.integers(0, 9), st.booleans())
def test_pairing_is_what_it_is_row_by_row(
    tmp_path_factory: pytest.TempPathFactory,
    samples: int,
    times: int,
    edits: list[tuple[str, int, Any]],
    scored: bool,
    seed: int,
    known: bool,
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    as_by_rows(folder, samples, times, edits, scored, seed, known)


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("field", CHANGES)
def test_each_change_alone_is_told_as_row_by_row(tmp_path: Path, field: str, scored: bool) -> None:
    for value in CHANGES[field]:
        for times, which, seed in product((1, 2), ("one", "both"), (2, 3)):
            edits = [(which, 1 + times, (field, value))]  # of two, the second time
            as_by_rows(tmp_path, 3, times, edits, scored, seed, known=True)


def as_by_rows(
    folder: Path,
    samples: int,
    times: int,
    edits: Sequence[tuple[str, int, Any]],
    scored: bool,
    seed: int,
    known: bool,
) -> None:
    """Pair a run with these edits of its rows, in memory and in files, and row by row."""
    dice = random.Random(seed)
    sides: list[list[SampleRow]] = [[], []]
    for k, repeat in ((k, r) for k in range(samples) for r in range(times)):
        for side in sides:
            side.append(
                row(
                    f"s{k}",
                    repeat=repeat,
                    score=dice.choice([0.0, 1.0, 0.25, 1 / 3]),
                    output=dice.choice("xyz"),
                    cluster=dice.choice([None, "c"]) if len(side) == len(sides[1]) else None,
                    tokens_digest=f"t{k}" if known else None,
                )
            )
        sides[1][-1] = sides[1][-1].model_copy(update={"cluster": sides[0][-1].cluster})
    n = samples * times
    for which, place, change in edits:
        for side in sides if which == "both" else sides[1:]:
            at = place % len(side) if side else 0
            if change == "drop":
                del side[at : at + 1]
            elif side:
                side[at] = side[at].model_copy(update={change[0]: change[1]})
    if seed % 2:
        dice.shuffle(sides[seed % 4 // 2])
    whole = [tuple(side) for side in sides]
    found = run_of(whole[0], whole[1], min(n, len(whole[0])), times)
    if not whole[0] or len({n, *map(len, whole)}) > 1:
        return  # refused before anybody looks at rows
    wanted = plainly(found, dict(zip(("baseline", "fp8"), whole, strict=True)), scored)
    made = [pair(found, found.variants[0], "suite", scored=scored)]
    try:
        stored = []
        for number, side in enumerate(whole):
            path = folder / f"{number}.jsonl"
            write_rows(path, side)
            stored.append(StoredRows(path, read_columns(path)))
        again = run_of(stored[0], stored[1], n, times)
        made.append(pair(again, again.variants[0], "suite", scored=scored))
    except (StoreError, ValueError):
        pass  # a file cannot hold it
    for one in made:
        same(one, wanted)


def same(one: Paired | Refusal, wanted: Refusal | tuple[list[Answers], list[Answers]]) -> None:
    if isinstance(wanted, Refusal) or isinstance(one, Refusal):
        assert one == wanted
        return
    tokens = [[sum(r.output_tokens or 0 for r in a.rows) for a in side] for side in wanted]
    flags: tuple[Flag, ...] = ("truncated", "refused")
    for side, answers, sums in zip((one.baseline, one.variant), wanted, tokens, strict=True):
        assert list(side) == answers and len(side) == len(answers)
        assert side.answers(range(1, len(side), 2)) == answers[1::2]
        assert repr(side.scores) == repr([a.score for a in answers])
        assert list(side.unscored) == [bool(a.unscored) for a in answers]
        assert side.having(flags) == [any(f in a.flags for f in flags) for a in answers]
        none = sum(r.output_tokens is None for a in answers for r in a.rows)
        assert side.uncounted == none
        assert none or side.output_tokens == sums
    assert one.clusters == tuple(a.cluster for a in wanted[0])
    equal = [a == b for a, b in zip(*one.outputs, strict=True)]
    assert equal == [a.output == b.output for a, b in zip(*wanted, strict=True)]


# --------------------------------------------------------------------------- the gate

POLICY = Policy(
    schema_="workbench.policy/1",
    name="p",
    quality=tuple(
        QualityCheck(
            suite=suite,
            margin=0.05,
            max_format_failures=0.1,
            max_truncated=0.1,
            output_length=OutputLength(),
        )
        for suite in ("sentiment", "short_question")
    ),
)


def test_rows_in_files_give_the_verdict_and_the_report_of_rows(tmp_path: Path) -> None:
    found = demo()

    def stored(of: Mapping[str, Sequence[SampleRow]], name: str) -> dict[str, StoredRows]:
        made = {}
        for suite, some in of.items():
            path = tmp_path / name / f"{suite}.jsonl"
            path.parent.mkdir(exist_ok=True)
            write_rows(path, some)
            made[suite] = StoredRows(path, read_columns(path))
        return made

    other = replace(
        found,
        baseline=replace(found.baseline, rows=stored(found.baseline.rows, "baseline")),
        variants=tuple(replace(v, rows=stored(v.rows, v.variant)) for v in found.variants),
        repeat_rows=stored(found.repeat_rows, "repeat"),
    )
    one, same = (decide(POLICY, e, policy_digest="p", id_="g") for e in (found, other))
    assert one == same
    assert render(one, found) == render(same, other)


def test_a_pairing_is_made_once_however_many_checks_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    plain = workbench.evidence.pair_sides
    monkeypatch.setattr(workbench.evidence, "pair_sides", lambda *of: made.append(of) or plain(*of))
    found = demo()
    decide(POLICY, found, policy_digest="p", id_="g")
    assert len(made) == 2 * (3 + 1), "two suites, of three variants and of the second pass"
    other = replace(found, baseline=replace(found.baseline, rows={}))
    assert isinstance(pair(found, found.variants[0], "sentiment"), Paired)
    assert isinstance(pair(other, other.variants[0], "sentiment"), Refusal)


def test_rows_that_are_fine_are_not_read_again_to_judge_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.jsonl" for k in range(2)]
    stored = []
    for path, scores in zip(paths, ([1.0] * 40, [1.0] * 39 + [0.0]), strict=True):
        write_rows(path, rows(scores))
        stored.append(StoredRows(path, read_columns(path)))
        path.unlink()
    found = run_of(stored[0], stored[1], 40, 1)
    gate = decide(POLICY, found, policy_digest="p", id_="g")
    assert gate.variants[0].verdict == "INCONCLUSIVE"
    assert isinstance(pair(found, found.variants[0], "suite"), Paired)
