import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from suite_folders import GENERATE, SAMPLE, SCHEMA

from workbench.errors import SuiteError
from workbench.suite_check import check_suite
from workbench.suite_new import Wanted, new_suite
from workbench.suite_rows import read_rows
from workbench.suite_write import write_suite
from workbench.suites import load_suite

CSV = """Customer text,mood,topic
"Great, really",positive,a
"Bad
day",negative,b
ok fine,positive,c
"""
MOOD = Wanted(target="mood", choices=("positive", "negative"), prompt="{customer_text}")


def rows(tmp_path: Path, text: str | bytes = CSV, name: str = "rows.csv") -> Path:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def refused(tmp_path: Path, source: Path, wanted: Wanted, name: str = "mine") -> SuiteError:
    with pytest.raises(SuiteError) as caught:
        new_suite(tmp_path / "suites", name, source, wanted)
    assert not list((tmp_path / "suites").glob("**/*")), "something was left behind"
    return caught.value


# --------------------------------------------------------------------------- what is made


def test_a_suite_from_csv(tmp_path: Path) -> None:
    made = new_suite(tmp_path / "suites", "mood", rows(tmp_path), MOOD)
    assert made.path == tmp_path / "suites" / "mood"
    assert sorted(p.name for p in made.path.iterdir()) == [
        "README.md",
        "samples.jsonl",
        "suite.yaml",
    ]
    assert load_suite(made.path) == made
    assert made.spec.ask == "rank_choices" and made.spec.kind == "classification"
    second = made.samples[1].model_dump()
    assert second["customer_text"] == "Bad\nday" and second["topic"] == "b"
    assert second["choices"] == ["positive", "negative"] and second["target"] == "negative"
    assert not [f for f in check_suite(made) if f.level == "error"]
    readme = (made.path / "README.md").read_text()
    assert "3 rows of `rows.csv`" in readme and "Origin and licence" in readme


def test_ids_follow_content_and_not_order(tmp_path: Path) -> None:
    first = new_suite(tmp_path, "a", rows(tmp_path), MOOD)
    head, *body = read_rows(rows(tmp_path))
    text = "topic,mood,Customer text\n" + "".join(
        f'{r.fields["topic"]},{r.fields["mood"]},"{r.fields["Customer text"]}"\n'
        for r in (*reversed(body), head)
    )
    (tmp_path / "two").mkdir()
    second = new_suite(tmp_path / "two", "a", rows(tmp_path, text), MOOD)
    assert [s.id for s in second.samples] != [s.id for s in first.samples]
    ids = [{s.model_dump()["topic"]: s.id for s in made.samples} for made in (first, second)]
    assert ids[0] == ids[1]


def test_formatting_of_a_csv_does_not_matter(tmp_path: Path) -> None:
    plain = read_rows(rows(tmp_path))
    body = CSV.replace("\nday", "\x00day").replace("\n", "\r\n").replace("\x00", "\n")
    assert read_rows(rows(tmp_path, b"\xef\xbb\xbf" + body.encode())) == plain
    semicolons = CSV.replace(",", ";").replace("Great; really", "Great, really")
    assert [r.fields for r in read_rows(rows(tmp_path, semicolons))] == [r.fields for r in plain]
    tabs = CSV.replace("Great, really", "x").replace(",", "\t")
    assert len(read_rows(rows(tmp_path, tabs, "rows.tsv"))) == 3


def test_a_suite_from_jsonl_keeps_what_json_holds(tmp_path: Path) -> None:
    lines = [
        {"id": 7, "question": "Capital?", "target": ["Paris", "Lutetia"], "n": {"deep": [1]}},
        {"id": "b", "question": "Sum?", "target": "2", "n": None},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    source = rows(tmp_path, text, "rows.jsonl")
    made = new_suite(tmp_path, "mine", source, Wanted(scorer="contains", prompt="{question}"))
    assert [s.id for s in made.samples] == ["7", "b"]
    assert made.samples[0].target == ["Paris", "Lutetia"]
    assert made.samples[0].model_dump()["n"] == {"deep": [1]}


def test_the_scorer_choice_ranks_the_values_of_the_target(tmp_path: Path) -> None:
    wanted = Wanted(target="mood", prompt="{customer_text}", scorer="choice")
    made = new_suite(tmp_path / "suites", "mine", rows(tmp_path), wanted)
    assert made.spec.ask == "rank_choices" and made.spec.scorer.name == "choice"
    assert [sample.choices for sample in made.samples] == [["negative", "positive"]] * 3
    asked = Wanted(target="mood", prompt="{customer_text}", ask="rank_choices")
    again = new_suite(tmp_path / "suites", "again", rows(tmp_path), asked)
    assert again.samples[0].choices == made.samples[0].choices


@pytest.mark.parametrize("n", [1, 2, 20, 21])
def test_only_a_few_values_are_choices(tmp_path: Path, n: int) -> None:
    text = "q,target\n" + "".join(f"q{i},t{i % n}\n" for i in range(30))
    wanted = Wanted(prompt="{q}", scorer="choice")
    if 2 <= n <= 20:
        made = new_suite(tmp_path / "suites", "mine", rows(tmp_path, text), wanted)
        assert len(made.samples[0].choices or ()) == n
    else:
        error = refused(tmp_path, rows(tmp_path, text), wanted)
        assert "the choices are not known" in error.what and error.where == "--choices"
        assert f"has {n} different texts" in error.what


def test_targets_that_are_no_texts_are_no_choices(tmp_path: Path) -> None:
    text = '{"q": "a", "target": ["x"]}\n{"q": "b", "target": {"y": 1}}\n{"q": "c"}\n'
    error = refused(tmp_path, rows(tmp_path, text, "r.jsonl"), Wanted(scorer="choice"))
    assert "has 0 different texts" in error.what


def test_options_reach_the_suite(tmp_path: Path) -> None:
    text = 'nr,Frage,answer,doc\n1,Q,"{""n"": 1}",x\n'
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    wanted = Wanted(
        id="nr",
        target="answer",
        scorer="{name: json_fields, strict: true}",
        system="Be {brief}.\nVery.",
        description="Orders.",
        kind="structured_output",
        max_tokens=9,
        chat_template=True,
        cluster="doc",
        schema=schema,
    )
    made = new_suite(tmp_path, "mine", rows(tmp_path, text), wanted)
    spec = made.spec
    assert (spec.prompt, spec.system, spec.cluster) == ("{Frage}", "Be {brief}.\nVery.", "doc")
    assert spec.max_tokens == 9 and spec.response_schema == SCHEMA
    assert spec.scorer.name == "json_fields" and spec.scorer.strict
    assert made.samples[0].target == {"n": 1} and made.samples[0].id == "1"
    assert "system: |-\n  Be {brief}." in (made.path / "suite.yaml").read_text()


def test_a_file_of_the_scorer_is_copied(tmp_path: Path) -> None:
    code = tmp_path / "judge.py"
    code.write_text("def score(sample, output):\n    return 1.0\n")
    wanted = Wanted(
        target="mood", prompt="{topic}", scorer="{name: python, function: judge.py:score}"
    )
    error = refused(tmp_path, rows(tmp_path), wanted)
    assert "needs the file 'judge.py'" in error.what and error.where == "--file"
    wanted = Wanted(**(vars(wanted) | {"files": (code,)}))
    whole = code.read_text()
    code.write_text("def score(output):\n    return 1.0\n")
    error = refused(tmp_path, rows(tmp_path), wanted)
    assert error.where == f"{code}:1" and "def score(sample: dict, output: str)" in error.fix
    code.write_text(whole)
    made = new_suite(tmp_path / "suites", "mine", rows(tmp_path), wanted)
    assert made.resources == {"judge.py": code.read_text()}


# --------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("wanted", "what", "where", "fix"),
    [
        (Wanted(), "the scorer is not known", "--scorer", "contains"),
        (Wanted(scorer="contains"), "no column is called 'target'", "--target", "mood"),
        (Wanted(scorer="contains", target="moood"), "no column 'moood'", "--target", "'mood'?"),
        (Wanted(scorer="contains", target="mood"), "the prompt is not known", "--prompt",
         "'{customer_text} {topic}'"),
        (Wanted(scorer="contains", target="mood", id="nr"), "no column 'nr'", "--id", "topic"),
        (Wanted(scorer="contains", target="mood", prompt="{text}"), "no column", "--prompt", ""),
        (Wanted(scorer="contains", target="mood", prompt="{text"), "a single '{'", "--prompt", ""),
        (Wanted(scorer="contains", target="mood", prompt="{topic}", cluster="doc"), "'doc'",
         "--cluster", "columns"),
        (Wanted(ask="rank_choices"), "no column is called 'target'", "--target", "mood"),
        (Wanted(ask="call_tools"), "cannot be made from rows", "--ask", "copy a suite"),
        (Wanted(scorer="tool_call"), "need 'tools'", "--scorer", "copy a suite"),
        (Wanted(scorer="[a"), "not valid YAML: expected ',' or ']'", "--scorer", "'{name: numeric"),
        (Wanted(scorer='{name: regex, pattern: "\\d+"}'), "not valid YAML: found unknown escape",
         "--scorer", "pattern: '"),
        (Wanted(scorer="{all: true}"), "names no scorer", "--scorer", "YAML"),
        (Wanted(scorer="sql_result"), "needs the file 'database.sql'", "--file", "database.sql"),
        (Wanted(scorer="python"), "function is not known", "--scorer",
         "of an installed module; it is called as def score(sample: dict, output: str)"),
        (Wanted(scorer="contan", target="mood", prompt="{topic}"), "'contan' is not one of",
         "the options", "'contains'?"),
        (Wanted(scorer="contains", target="mood", prompt="Hi"), "uses no field", "the options", ""),
        (Wanted(scorer="contains", target="mood", prompt="{mood}"), "field 'mood', which no",
         "the options", "fields: customer_text, topic"),
        (Wanted(scorer="contains", target="mood", prompt="{topic}", kind="shrt_question"),
         "'kind'", "the options", "short_question"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_asked_for(
    tmp_path: Path, wanted: Wanted, what: str, where: str, fix: str
) -> None:
    error = refused(tmp_path, rows(tmp_path), wanted)
    assert what in error.what and where in error.where + error.what and fix in error.fix


@pytest.mark.parametrize(
    ("text", "name", "what", "line"),
    [
        ("q,target\na,b\nc\n", "r.csv", "1 values for 2 columns", 3),
        ('q,target\n"a\nb",x\nc,d,e\n', "r.csv", "3 values for 2 columns", 4),
        ('q,target\n"a"b,x\n', "r.csv", "not CSV", 2),
        ('q,target\n"a,x\n', "r.csv", "not CSV", 2),
        ("q,q\na,b\n", "r.csv", "two columns 'q'", 1),
        ("q,,target\na,b,c\n", "r.csv", "column 2 has no name", 1),
        ("A b,a_b,target\nx,y,z\n", "r.csv", "would both be 'a_b'", 2),
        ("q,target\na,x\nb,\n", "r.csv", "'target' is empty", 3),
        ("q,target\na,x\nb,?\n", "r.csv", "nothing to compare with", 3),
        ("q,target\na,x\nb,y\na,x\n", "r.csv", "the row is there twice, first in line 2", 4),
        ("q,id,target\na,1,x\nb,1,y\n", "r.csv", "id '1' is used twice, first in line 2", 3),
        ("q,id,target\na,,x\n", "r.csv", "'id' is empty", 2),
        ("q,choices,target\na,x,x\n", "r.csv", "'choices' is one text", 2),
        (b"q,target\ncaf\xe9,x\n", "r.csv", "not UTF-8: byte 12", 2),
        ('{"q": "a", "target": "x"}\n{"q": ', "r.jsonl", "not JSON", 2),
        ('{"q": "a", "target": "x"}\n\n{"q": "b"}\n', "r.jsonl", "'target' is empty", 3),
        ('{"q": "a", "target": "x"}\n\n{"target": "x"}\n', "r.jsonl", "field 'q'", 3),
        ('{"q": "a", "target": "x", "id": true}\n', "r.jsonl", "'id'", 1),
        ('{"q": "a", "target": 3}\n', "r.jsonl", "must be a text", 1),
    ],
)  # fmt: skip
def test_a_broken_row_is_named_with_its_line(
    tmp_path: Path, text: str | bytes, name: str, what: str, line: int
) -> None:
    source = rows(tmp_path, text, name)
    scorer = "" if "choices" in str(text) else "contains"
    error = refused(tmp_path, source, Wanted(scorer=scorer, prompt="{q}"))
    assert what in error.what
    assert error.where == f"{source}:{line}"


def test_files_that_are_no_rows(tmp_path: Path) -> None:
    for name, text, what in (
        ("r.xlsx", "x", "neither CSV nor JSONL"),
        ("r.csv", "", "the file has no row"),
        ("r.csv", "a,b\n", "the file has no row"),
        ("r.jsonl", "\n", "the file has no row"),
    ):
        assert what in refused(tmp_path, rows(tmp_path, text, name), MOOD).what
    error = refused(tmp_path, tmp_path / "r.csvv.csv", MOOD)
    assert "there is no file" in error.what and "r.csv" in error.fix


def test_columns_in_the_way(tmp_path: Path) -> None:
    text = "q,answer,target\na,b,c\n"
    error = refused(tmp_path, rows(tmp_path, text), Wanted(scorer="contains", target="answer"))
    assert "column 'target' is in the way" in error.what


# --------------------------------------------------------------------------- nothing is replaced


def test_a_suite_is_never_replaced(tmp_path: Path) -> None:
    made = new_suite(tmp_path, "mood", rows(tmp_path), MOOD)
    before = {p: p.read_bytes() for p in made.path.iterdir()}
    with pytest.raises(SuiteError, match="is there already"):
        new_suite(tmp_path, "mood", rows(tmp_path), MOOD)
    assert {p: p.read_bytes() for p in made.path.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "a b", "x" * 65, ""])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(SuiteError):
        new_suite(tmp_path / "suites", name, rows(tmp_path), MOOD)
    assert not (tmp_path / "up").exists() and not (tmp_path / "suites").exists()


# --------------------------------------------------------------------------- write_suite


def test_write_suite_takes_a_spec_as_it_was_dumped(tmp_path: Path) -> None:
    spec = GENERATE | {"name": "other", "samples_of": "mine", "system": None}
    made = write_suite(tmp_path / "other", spec, [SAMPLE], readme="# x\n")
    again = made.spec.model_dump(mode="json", by_alias=True) | {"name": "third"}
    copy = write_suite(tmp_path / "third", again, [s.model_dump() for s in made.samples])
    assert copy.samples == made.samples
    assert copy.spec == made.spec.model_copy(update={"name": "third"})


def test_write_suite_leaves_nothing_where_the_suite_is_not_sound(tmp_path: Path) -> None:
    for samples in ([SAMPLE, SAMPLE], [SAMPLE | {"target": 3}], []):
        with pytest.raises(SuiteError) as caught:
            write_suite(tmp_path / "mine", GENERATE, samples)
        assert str(tmp_path / "mine") in str(caught.value)
        assert ".new-suite" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


# What no YAML file of ours may hold: half a character, and NUL.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=30)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), texts)
def test_any_text_survives_the_files(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], system: str
) -> None:
    folder = tmp_path_factory.mktemp("suites") / "mine"
    spec: dict[str, Any] = GENERATE | {"scorer": "exact", "chat_template": True, "system": system}
    samples = [{"id": f"s{i}", "question": q, "target": f"t{t}"} for i, (q, t) in enumerate(pairs)]
    made = write_suite(folder, spec, samples)
    assert made.spec.system == system
    assert [s.model_dump(exclude_none=True) for s in made.samples] == samples


# --------------------------------------------------------------------------- the command


def test_new_then_check(tmp_path: Path) -> None:
    (tmp_path / "eval_suites").mkdir()
    (tmp_path / "calib_data").mkdir()
    rows(tmp_path)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "workbench", "suite", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    options = ["--target", "mood", "--prompt", "{customer_text}", "--no-chat-template"]
    choices = ["--choices", "positive, negative"]
    done = call("new", "mood", "--from", "rows.csv", *options, *choices)
    assert done.returncode == 0, done.stderr
    assert "3 samples" in done.stdout
    spec = yaml.safe_load((tmp_path / "eval_suites" / "mood" / "suite.yaml").read_text())
    assert spec["chat_template"] is False and spec["scorer"] == "choice"
    assert call("check", "mood").returncode == 0
    assert "warn  mood: 3 samples: too few to settle anything" in done.stdout
    assert "choices" not in done.stdout
    done = call("new", "more", "--from", "rows.csv", *options, "--scorer", "choice")
    assert done.returncode == 0, done.stderr
    assert "choices, of every sample: negative, positive" in done.stdout
    again = call("new", "mood", "--from", "rows.csv")
    assert again.returncode == 2 and "where:" in again.stderr and "fix:" in again.stderr


# --------------------------------------------------------------------------- hostile files


def test_a_file_of_very_many_columns_is_read_in_linear_time(tmp_path: Path) -> None:
    n = 300_000
    header, cells = ",".join(f"c{i}" for i in range(n)), ",".join(["x"] * n)
    ((line, fields),) = read_rows(rows(tmp_path, f"{header}\n{cells}\n"))
    assert line == 2 and len(fields) == n
    error = refused(tmp_path, rows(tmp_path, f"{header}\n{cells}\n"), Wanted(scorer="contains"))
    assert "'target'" in error.what and len(str(error)) < 1000
    with pytest.raises(SuiteError, match="two columns 'c7'"):
        read_rows(rows(tmp_path, f"{header},c7\n{cells},x\n"))


def test_a_long_text_stands_in_a_cell(tmp_path: Path) -> None:
    source = rows(tmp_path, f"q,target\n{'x ' * 100_000},x\n")
    made = new_suite(tmp_path / "suites", "mine", source, Wanted(scorer="contains"))
    assert len(made.samples[0].model_dump()["q"]) == 200_000


def test_a_cell_without_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.tables.MOST_CHARACTERS", 100)
    error = refused(tmp_path, rows(tmp_path, f"q,target\na,x\n{'x' * 200},x\n"), MOOD)
    assert "a value is longer than" in error.what and error.where.endswith("rows.csv:3")


@pytest.mark.parametrize(
    ("option", "what"),
    [
        (".nan", "Out of range float"),
        ("-.inf", "Out of range float"),
        ("2026-01-01", "date is not JSON"),
        ("&a [*a]", "not valid YAML: alias 'a' stands inside itself"),
    ],
)
def test_an_option_that_json_has_no_word_for(tmp_path: Path, option: str, what: str) -> None:
    wanted = Wanted(scorer=f"{{name: numeric, absolute: {option}}}", prompt="{topic}")
    error = refused(tmp_path, rows(tmp_path), wanted)
    assert what in error.what and error.where == "--scorer"


def test_a_scorer_that_is_a_bomb_of_aliases_is_none(tmp_path: Path) -> None:
    bomb = "{a0: &a0 x, " + ", ".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]" for i in range(1, 12))
    error = refused(tmp_path, rows(tmp_path), Wanted(scorer=bomb + "}", prompt="{topic}"))
    assert "more than 100,000 values" in error.what and len(str(error)) < 1000


@pytest.mark.parametrize("deep", [150, 900])
def test_a_row_that_is_nested_too_deep_is_named(tmp_path: Path, deep: int) -> None:
    line = f'{{"q": "a", "target": "x", "w": {"[" * deep}{"]" * deep}}}\n'
    error = refused(tmp_path, rows(tmp_path, line, "r.jsonl"), Wanted(scorer="contains"))
    assert "nested too deep" in error.what and error.where.endswith("r.jsonl:1")
