"""Rows of every kind of source, and what is said of those that cannot be read.

`data/rows-*.parquet` were written by pyarrow 26: columns id, text, language, score, conversation;
four rows in two row groups, the third text and the last answer null.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from projects import ROOT, edit_recipe

from workbench.calibration_spec import CalibrationSpec, ColumnsSpec, HubSource
from workbench.checkpoint import COMPANIONS, INDEX
from workbench.context import HUB_FILES
from workbench.digest import sha256_bytes
from workbench.errors import CalibrationError, RecipeError
from workbench.recipe import load_recipe
from workbench.sources import fetch, read_rows, read_source, resolve_source

DATA = Path(__file__).parent / "data"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXT = ColumnsSpec(text="text")


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refused(path: Path, **arguments: Any) -> CalibrationError:
    with pytest.raises(CalibrationError) as error:
        read_rows(path, **arguments)
    assert error.value.exit_code == 2
    assert str(path) in error.value.where
    assert error.value.fix
    return error.value


# --------------------------------------------------------------------------- JSONL


def test_bad_rows_are_told_together(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', "{", "", "[]", '{"txt": "b"}', '{"text": "\\u00e9"}', '{"text": 3}']
    error = refused(
        write(tmp_path / "s.jsonl", "\n".join([*lines, '{"id": "line-1", "text": "c"}']))
    )
    first, *told = error.what.split("\n  ")
    assert first == "5 rows that cannot be used:"
    assert [line.split(": ")[0] for line in told[:4]] == [f"s.jsonl:{n}" for n in (2, 4, 5, 7)]
    assert "did you mean 'text'" in told[2] and "the id 'line-1'" in told[4]
    error = refused(write(tmp_path / "t.csv", 'text,b\nx,1\nx\ny,2\nx,1,2\nz,"3\n'))
    assert [f"t.csv:{n}" in error.what for n in range(2, 7)] == [False, True, False, True, True]
    assert "(row 4)" in error.what and "'x'" not in error.what


def test_no_more_than_ten_bad_rows_are_told(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "s.jsonl", '{"text": "a"}\n' + '{"text": 3}\n' * 50))
    assert error.what.startswith("the first 10 rows") and error.what.count("s.jsonl:") == 10
    assert "s.jsonl:11: " in error.what and "s.jsonl:12" not in error.what
    assert error.fix == "correct the row, or remove it", "said once, as it is the same"


def test_fields_of_other_names(tmp_path: Path) -> None:
    row = {"uid": "a", "question": "q", "answer": "r", "text": "not this"}
    source = write(tmp_path / "s.jsonl", json.dumps(row))
    columns = ColumnsSpec(prompt="question", response="answer", id="uid")
    (found,) = read_rows(source, columns).rows
    assert (found.id, found.text) == ("a", "q\n\nr")
    error = refused(source, columns=ColumnsSpec(prompt="questoin", response="answer"))
    assert "'questoin' is missing" in error.what
    assert "did you mean 'question'?" in error.fix


def test_a_field_missing_in_row_1731(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"row {n}"}) for n in range(1, 2001)]
    lines[1730] = json.dumps({"txt": "row 1731"})
    error = refused(write(tmp_path / "s.jsonl", "\n".join(lines)))
    assert error.where.endswith("s.jsonl:1731")
    assert "did you mean 'text'?" in error.fix


def test_null_in_jsonl_is_an_error(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "s.jsonl", '{"text": null}'))
    assert error.what == "the field 'text' is null"


def test_nested_too_deep_is_no_crash(tmp_path: Path) -> None:
    assert "not JSON" in refused(write(tmp_path / "s.jsonl", "[" * 100_000)).what
    error = refused(write(tmp_path / "s.csv", "messages\n" + "[" * 100_000))
    assert "not the JSON text of a list" in error.what and error.where.endswith("s.csv:2")


@pytest.mark.parametrize(
    "row",
    [
        r'{"text": "\ud800 half"}',
        r'{"id": "\uDC00", "text": "a"}',
        r'{"text": "a", "lang": "\ud83d"}',
    ],
)
def test_half_a_character_is_no_text(tmp_path: Path, row: str) -> None:
    error = refused(write(tmp_path / "s.jsonl", f'{{"text": "\\ud83d\\ude00"}}\n{row}\n'), by=None)
    assert "lone surrogate" in error.what and error.where.endswith("s.jsonl:2")
    cell = '"[{""role"": ""user"", ""content"": ""\\ud800""}]"'
    error = refused(write(tmp_path / "s.csv", f"messages\n{cell}\n"))
    assert "lone surrogate" in error.what and error.where.endswith("s.csv:2")


# --------------------------------------------------------------------------- CSV


def test_csv_with_quoted_newlines_bom_and_crlf(tmp_path: Path) -> None:
    data = 'text,language\r\n"one, and\r\ntwo",en\r\n\r\n"said ""hello""",zh\r\n'
    source = write(tmp_path / "s.csv", b"\xef\xbb\xbf" + data.encode())
    found = read_rows(source, by="language")
    assert [(r.id, r.text, r.stratum, r.where) for r in found.rows] == [
        ("row-1", "one, and\r\ntwo", "en", f"{source}:2"),
        ("row-3", 'said "hello"', "zh", f"{source}:5"),
    ]
    assert found.skipped == {"blank line": ["row-2"]}


def test_csv_with_messages_and_ids(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with (tmp_path / "s.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "messages"], ["x", json.dumps(messages)]])
    (found,) = read_rows(tmp_path / "s.csv").rows
    assert (found.id, list(found.messages)) == ("x", messages)
    error = refused(write(tmp_path / "t.csv", "messages\nhello\n"))
    assert "not the JSON text of a list" in error.what and error.where.endswith("t.csv:2")


@pytest.mark.parametrize(
    ("data", "what", "where", "fix"),
    [
        (b"text,n\na,1\nb,2,3\n", "a row has 3 cells, the header has 2", ":3 (row 2)", "quote"),
        (b'text,n\n"a\nb",1\nc\n', "a row has 1 cells, the header has 2", ":4 (row 2)", "quote"),
        (b'text\nfine\n"never closed\n', "a row cannot be read", ":3", "close every quote"),
        (b'text\n"a"b\n', "a row cannot be read", ":2", "double a quote"),
        (b"text\nfine\nb\xffd\n", "invalid UTF-8 at byte 11 of the file", ":3", "save"),
        (b"\xef\xbb\xbftext\nb\xffd\n", "invalid UTF-8 at byte 9 of the file", ":2", "save"),
        (b"txt,n\na,1\n", "no column is called 'text'", "s.csv", "columns: txt, n"),
        (b"text;n\na;1\n", "separated by semicolons", ":1", "commas"),
        (b"text\tn\na\t1\n", "separated by tabs", ":1", "commas"),
        (b"text,text\na,b\n", "two columns are called 'text'", ":1", "name"),
        (b"text,\na,b\n", "a column has no name", ":1", "name"),
        (b"", "the file is empty", "s.csv", "header"),
        (b"prompt\na\n", "no column is called 'text'", "s.csv", "columns: prompt"),
    ],
)
def test_broken_csv(tmp_path: Path, data: bytes, what: str, where: str, fix: str) -> None:
    error = refused(write(tmp_path / "s.csv", data))
    assert what in error.what
    assert error.where.endswith(where)
    assert fix in error.fix


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "s.csv", "body,n\na,1\n"), columns=ColumnsSpec(text="bdy"))
    assert error.what == "there is no column 'bdy'"
    assert "did you mean 'body'? columns: body, n" in error.fix


def test_a_long_cell_and_the_limit_of_others_is_kept(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    long = "word " * 60_000
    (found,) = read_rows(write(tmp_path / "s.csv", f"text\n{long}\n")).rows
    assert found.text == long
    assert csv.field_size_limit() == before


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1)
)
def test_what_csv_writes_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "s.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["text"])
        writer.writerows([text] for text in texts)
    assert [row.text for row in read_rows(path).rows] == texts


# --------------------------------------------------------------------------- parquet


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_parquet_of_another_tool(compression: str) -> None:
    path = DATA / f"rows-{compression}.parquet"
    found = read_rows(path, by="language")
    assert [(row.id, row.stratum) for row in found.rows] == [
        ("11", "en"),
        ("12", "zh"),
        ("14", "en"),
    ]
    assert found.rows[1].text.startswith("第二行是中文")
    assert found.rows[2].where == f"{path}: row 4"
    assert found.skipped == {"null": ["13"]}


def test_parquet_with_a_column_of_messages() -> None:
    path = DATA / "rows-snappy.parquet"
    found = read_rows(path, ColumnsSpec(messages="conversation"))
    assert found.rows[0].messages == (
        {"role": "user", "content": "Is the shop open on Sunday?"},
        {"role": "assistant", "content": "Yes, from ten until four."},
    )
    assert [len(row.messages) for row in found.rows] == [2, 2, 1]
    assert found.skipped == {"null": ["14"]}


@pytest.mark.parametrize(
    ("columns", "by", "what", "fix"),
    [
        (ColumnsSpec(text="txt"), None, "there is no column 'txt'", "did you mean 'text'?"),
        (ColumnsSpec(text="score"), None, "'score' is not a text (float)", "correct the row"),
        (ColumnsSpec(messages="text"), None, "not the JSON text of a list", "correct the row"),
        (TEXT, "langauge", "no row has the field 'langauge'", "did you mean 'language'?"),
        (TEXT, "score", "'score' to stratify by is a float", "correct the row"),
    ],
)
def test_parquet_asked_for_what_it_has_not(
    columns: ColumnsSpec, by: str | None, what: str, fix: str
) -> None:
    error = refused(DATA / "rows-snappy.parquet", columns=columns, by=by)
    assert what in error.what
    assert fix in error.fix


def test_damaged_parquet(tmp_path: Path) -> None:
    whole = (DATA / "rows-zstd.parquet").read_bytes()
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"this is a text file, not a table of anything",
        "body": whole[:4] + b"\xff" * 300 + whole[304:],
    }.items():
        path = write(tmp_path / f"{name}.parquet", data)
        error = refused(path)
        assert error.what.startswith("the parquet file cannot be read"), name
        assert "fetch or write the file again" in error.fix
        assert "/tmp/tmp" not in error.what  # the link duckdb was given


def test_parquet_in_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "language=fr" / "[a]*"
    folder.mkdir(parents=True)
    path = write(folder / "s.parquet", (DATA / "rows-snappy.parquet").read_bytes())
    assert [row.stratum for row in read_rows(path, by="language").rows] == ["en", "zh", "en"]


def test_parquet_without_duckdb_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from pathlib import Path\n"
        "from workbench.sources import read_rows\n"
        f"read_rows(Path({str(DATA / 'rows-snappy.parquet')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "CalibrationError: reading parquet needs duckdb" in done.stderr
    assert "pip install 'quantization-workbench[parquet]'" in done.stderr


# --------------------------------------------------------------------------- strata


def test_values_of_a_stratum(tmp_path: Path) -> None:
    values = ["en", " en ", 7, True, None, "", "  "]
    rows = [json.dumps({"text": str(n), "group": v}) for n, v in enumerate(values)]
    source = write(tmp_path / "s.jsonl", "\n".join([*rows, '{"text": "none"}']))
    found = [row.stratum for row in read_rows(source, by="group").rows]
    assert found == ["en", "en", "7", "true", None, None, None, None]
    error = refused(source, by="grup")
    assert "did you mean 'group'?" in error.fix and "strata.by" in error.where


# --------------------------------------------------------------------------- the hub


def hub(**changes: Any) -> CalibrationSpec:
    source = {"hub": "org/set", "revision": COMMIT, "file": "data/train.parquet"} | changes
    return CalibrationSpec.model_validate({"source": source})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"revision": None}, "needs a commit of 40 hex"),
        ({"revision": "main"}, "'main' is no commit"),
        ({"revision": COMMIT[:12]}, "is no commit"),
        ({"hub": "../../etc"}, "'name' or 'org/name'"),
        ({"hub": "a/b/c"}, "'name' or 'org/name'"),
        ({"hub": "a/" + "b" * 5000}, "'name' or 'org/name'"),
        ({"file": "../../a.csv"}, "inside the dataset's repository"),
        ({"file": "a\\..\\b.csv"}, "inside the dataset's repository"),
        ({"file": "/etc/a.csv"}, "inside the dataset's repository"),
        ({"file": "train.arrow"}, "ends in .parquet, .jsonl or .csv"),
        ({"branch": "main"}, "Extra inputs"),
    ],
)
def test_a_hub_source_stands_at_a_commit(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        hub(**changes)


def test_a_hub_source_is_fetched_at_its_commit() -> None:
    asked: list[tuple[str, str, str]] = []

    def download(dataset: str, revision: str, file: str) -> Path:
        asked.append((dataset, revision, file))
        return DATA / "rows-zstd.parquet"

    spec = hub()
    assert isinstance(spec.source, HubSource)
    rows = read_source(spec, fetch(spec.source, download)).rows
    assert asked == [("org/set", COMMIT, "data/train.parquet")]
    assert [row.id for row in rows] == ["11", "12", "14"]
    assert spec.label == "org/set:data/train.parquet"


def test_a_hub_that_does_not_answer() -> None:
    def download(dataset: str, revision: str, file: str) -> Path:
        raise OSError("no route to host")

    source = hub().source
    assert isinstance(source, HubSource)
    with pytest.raises(CalibrationError, match="could not be fetched: no route to host") as error:
        fetch(source, download)
    assert "org/set" in error.value.what and COMMIT[:12] in error.value.what
    assert error.value.fix


def test_the_hub_client_takes_what_it_is_given(tmp_path: Path) -> None:
    # The real client, offline and with an empty cache: it must refuse for that reason alone.
    code = (
        "from workbench.calibration_spec import HubSource\n"
        "from workbench.sources import fetch, hub_cached\n"
        f"s = HubSource(hub='org/set', revision='{COMMIT}', file='a.parquet')\n"
        "assert hub_cached(s) is None\n"
        "fetch(s)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "CalibrationError: a.parquet of the dataset org/set" in done.stderr
    assert "unexpected keyword" not in done.stderr and "offline" in done.stderr.lower()


def test_what_the_hub_cache_holds_is_not_fetched(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "datasets--org--set" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    file = write(snapshot / "a.jsonl", '{"text": "a"}')
    code = (
        "from workbench.calibration_spec import HubSource\n"
        "from workbench.sources import fetch, hub_cached\n"
        f"s = HubSource(hub='org/set', revision='{COMMIT}', file='a.jsonl')\n"
        "print(hub_cached(s)); print(fetch(s))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == [str(file), str(file)]


def test_a_hub_source_in_a_run(
    project: Path,
    workbench: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = {"hub": "org/set", "revision": COMMIT, "file": "train.parquet"}
    edit_recipe(project, lambda r: r["calibration"].update(source=source, samples=2, min_tokens=4))
    monkeypatch.setenv("HF_HOME", str(project / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Nothing is fetched to validate or to plan; the step fetches, and here it cannot.
    validated = workbench("validate", "recipe.yaml")
    assert validated.returncode == 0 and "is fetched, checked" in validated.stdout
    ran = workbench("run", "recipe.yaml", "--only", "calibrate")
    assert ran.returncode == 2 and "could not be fetched" in ran.stdout + ran.stderr
    # A file in the hub's own cache is what a download leaves.
    snapshot = project / "hf" / "hub" / "datasets--org--set" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    data = (DATA / "rows-snappy.parquet").read_bytes()
    write(snapshot / "train.parquet", data)
    validated = workbench("validate", "recipe.yaml")
    assert "2 of 3 rows of 'org/set:train.parquet'; dropped: 1 null" in validated.stdout
    ran = workbench("run", "recipe.yaml", "--only", "calibrate")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = json.loads((project / "results" / "smoke" / "calibration.json").read_text())
    assert record["source"] == "org/set:train.parquet"
    assert record["source_revision"] == COMMIT
    assert record["source_digest"] == sha256_bytes(data)
    assert record["dropped"] == {"null": {"count": 1, "rows": ["13"]}}


@pytest.mark.parametrize(
    ("source", "what", "fix"),
    [
        ({"hub": "o/s", "revision": "main", "file": "a.csv"}, "source.revision': 'main' is no", ""),
        ({"hub": "o/s", "file": "a.csv"}, "source.revision': a hub dataset needs a commit", ""),
        ({"hub": "o/s", "revison": "x"}, "unknown key 'calibration.source.revison'", "'revision'"),
        (3, "'calibration.source': Input should be a valid string", ""),
    ],
)
def test_a_source_that_cannot_be_names_its_key(
    project: Path, source: object, what: str, fix: str
) -> None:
    recipe = edit_recipe(project, lambda r: r["calibration"].update(source=source))
    with pytest.raises(RecipeError) as error:
        load_recipe(recipe)
    assert what in error.value.what
    assert fix in error.value.fix or fix in error.value.what


# --------------------------------------------------------------------------- finding, shipped


def test_resolve(tmp_path: Path) -> None:
    shipped = ROOT / "calib_data" / "instructions" / "samples.jsonl"
    assert resolve_source("instructions", ROOT) == shipped.resolve()
    own = write(tmp_path / "own.csv", "text\na\n")
    assert resolve_source(str(own), ROOT) == own
    assert resolve_source("own.csv", tmp_path) == own
    with pytest.raises(CalibrationError) as error:
        resolve_source("instruction", ROOT)
    assert "did you mean 'instructions'?" in error.value.fix


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        (("id", "question", "answer"), "{prompt: question, response: answer}"),
        (("Instruction", "Output", "topic"), "{prompt: Instruction, response: Output}"),
        (("prompt", "answer"), "{prompt: prompt, response: answer}"),
        (("question", "topic"), "{text: question}"),
        (("topic", "content"), "{text: content}"),
        (("conversations",), "{messages: conversations}"),
        (("id", "ticket"), "{text: ticket}"),
    ],
)
def test_rows_of_other_names_are_told_which_columns_to_name(
    tmp_path: Path, fields: tuple[str, ...], columns: str
) -> None:
    file, table = tmp_path / "s.jsonl", tmp_path / "s.csv"
    file.write_text(json.dumps({name: "some words" for name in fields}) + "\n")
    table.write_text(",".join(fields) + "\n" + ",".join("x" for _ in fields) + "\n")
    for path in (file, table):
        with pytest.raises(CalibrationError) as caught:
            read_rows(path)
        assert f"'columns: {columns}'" in caught.value.fix, path
        # What is advised is accepted.
        wanted = ColumnsSpec.model_validate(yaml.safe_load(columns))
        if "messages" not in columns:
            assert read_rows(path, wanted).rows


def test_conversations_that_call_tools_are_counted_and_not_rendered_without(tmp_path: Path) -> None:
    call = [{"type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    rows = [
        {"id": "said", "messages": [{"role": "assistant", "content": "so", "tool_calls": call}]},
        {"id": "null", "messages": [{"role": "assistant", "content": None, "tool_calls": call}]},
        {"id": "none", "messages": [{"role": "user", "content": "hello", "tool_calls": None}]},
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_rows(path)
    assert [row.id for row in found.rows] == ["none"]
    assert found.skipped == {"with tool calls": ["said", "null"]}


def test_a_key_given_twice_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two", "text": "three"}\n')
    with pytest.raises(CalibrationError, match="the key 'text' is given twice") as error:
        read_rows(path)
    assert error.value.where.endswith(":2")


def test_what_a_hub_model_is_fetched_with() -> None:
    """What the artifact must share with its source, and the card that names licence and base."""

    def fetched(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in HUB_FILES)

    assert all(map(fetched, (*COMPANIONS, "README.md", "config.json", INDEX)))
    assert not any(map(fetched, ("pytorch_model.bin", "modeling_x.py", "model.gguf")))
