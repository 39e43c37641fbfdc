import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_folders import CALLS, GENERATE, JSON, RANK, SAMPLE, SCHEMA, WEATHER, Bracket, write

from workbench.errors import SuiteError
from workbench.prompts import question_text, shows_tools
from workbench.scorers import grade
from workbench.suite_check import check_suite
from workbench.suite_spec import Sample, SuiteSpec
from workbench.suites import (
    chat_messages,
    fields_shown,
    fill,
    find_suite,
    load_suite,
    placeholders,
    render_prompt,
)

SHIPPED = Path(__file__).parent.parent / "eval_suites"

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def folder(spec: dict[str, Any] | str, *samples: dict[str, Any] | str | bytes) -> Path:
        return write(tmp_path / "mine", spec, *samples)

    return folder


def refused(folder: Path) -> SuiteError:
    with pytest.raises(SuiteError) as caught:
        load_suite(folder)
    return caught.value


# --------------------------------------------------------------------------- what ships


@pytest.mark.parametrize("name", ["sentiment", "short_question", "json_extract"])
def test_a_shipped_suite_is_whole(name: str) -> None:
    suite = load_suite(find_suite(name, SHIPPED))
    assert len(suite.samples) >= 80
    prompts = [render_prompt(suite.spec, s, Bracket()).casefold() for s in suite.samples]
    assert len(set(prompts)) == len(prompts), "two samples ask the same"
    assert suite.spec.chat_template and suite.spec.max_tokens <= 64
    prefix = {s.id.rsplit("-", 1)[0] for s in suite.samples}
    assert len(prefix) == 1 and all(re.fullmatch(r"[a-z]+-\d{3}", s.id) for s in suite.samples)
    assert (suite.path / "README.md").is_file()


def test_the_right_answers_of_the_shipped_suites_score_1() -> None:
    for folder in sorted(p.parent for p in SHIPPED.glob("*/suite.yaml")):
        wrong = [f.what for f in check_suite(load_suite(folder)) if f.level == "error"]
        assert not wrong, f"{folder.name}: {wrong}"


NUMBERS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
)
TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty"}


def test_what_json_extract_asks_for_stands_in_the_message() -> None:
    for sample in load_suite(SHIPPED / "json_extract").samples:
        message, quantity = sample.model_dump()["message"], sample.target["quantity"]
        word = TENS.get(quantity, NUMBERS[quantity] if quantity < len(NUMBERS) else "?")
        assert {str(quantity), word} & set(re.findall(r"\w+", message)), sample.id
        assert sample.target["product"] in message and sample.target["city"] in message, sample.id


@pytest.mark.parametrize("name", ["sentiment", "json_extract"])
def test_no_constant_answer_does_well(name: str) -> None:
    samples = load_suite(SHIPPED / name).samples
    targets = [s.target["urgent"] if name == "json_extract" else s.target for s in samples]
    most = max(targets.count(value) for value in set(targets))
    assert most / len(targets) <= 0.55


# --------------------------------------------------------------------------- finding and loading


def test_find_suite_suggests_the_nearest() -> None:
    with pytest.raises(SuiteError) as caught:
        find_suite("sentimant", SHIPPED)
    assert "did you mean 'sentiment'?" in caught.value.fix
    assert "json_extract" in caught.value.fix and str(SHIPPED) in caught.value.where


def test_a_folder_without_a_spec_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(SuiteError, match=r"suite 'mine' has no suite\.yaml"):
        find_suite("mine", tmp_path)


def test_load_keeps_order_and_fields(make: Make) -> None:
    suite = load_suite(make(GENERATE, SAMPLE | {"id": "b"}, SAMPLE | {"extra": [1]}))
    assert [s.id for s in suite.samples] == ["b", "a"]
    assert suite.samples[1].model_dump()["extra"] == [1]
    assert len(suite.digest) == 64


def test_formatting_of_the_files_does_not_change_the_digest(make: Make) -> None:
    first = load_suite(make(GENERATE, SAMPLE, SAMPLE | {"id": "é"})).digest
    folder = make(
        GENERATE, json.dumps(dict(reversed(SAMPLE.items())), indent=None), SAMPLE | {"id": "é"}
    )
    data = (folder / "samples.jsonl").read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n\r\n")
    (folder / "samples.jsonl").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\\u00e9", "é".encode()))
    spec = (folder / "suite.yaml").read_text("utf-8").replace("\n", "\r\n")
    (folder / "suite.yaml").write_bytes(b"\xef\xbb\xbf# a comment\r\n" + spec.encode())
    assert load_suite(folder).digest == first


@pytest.mark.parametrize(
    "change",
    [
        lambda spec, sample: spec.update(max_tokens=65),
        lambda spec, sample: spec.update(prompt="{question} "),
        lambda spec, sample: spec.update(chat_template=True),
        lambda spec, sample: sample.update(target="paris"),
        lambda spec, sample: sample.update(question="Capital of France? "),
        lambda spec, sample: sample.update(id="b"),
    ],
)
def test_what_is_measured_changes_the_digest(
    make: Make, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    first = load_suite(make(GENERATE, SAMPLE)).digest
    spec, sample = dict(GENERATE), dict(SAMPLE)
    change(spec, sample)
    assert load_suite(make(spec, sample)).digest != first


def test_line_separators_inside_a_text_do_not_split_a_line(make: Make) -> None:
    suite = load_suite(
        make(GENERATE, json.dumps(SAMPLE | {"question": "a\u2028b\x85c"}, ensure_ascii=False))
    )
    assert suite.samples[0].model_dump()["question"] == "a\u2028b\x85c"


# --------------------------------------------------------------------------- suite.yaml


@pytest.mark.parametrize(
    ("spec", "what", "line", "fix"),
    [
        (GENERATE | {"max_tokns": 3}, "unknown key 'max_tokns'", 8, "did you mean 'max_tokens'?"),
        ({k: v for k, v in GENERATE.items() if k != "chat_template"},
         "key 'chat_template' is missing", 1, "add 'chat_template: true' (or false where"),
        ({k: v for k, v in GENERATE.items() if k != "schema"},
         "key 'schema' is missing", 1, "add 'schema: workbench.suite/1'"),
        ({k: v for k, v in GENERATE.items() if k != "ask"},
         "key 'ask' is missing", 1, "add 'ask: generate' (or rank_choices, call_tools)"),
        (GENERATE | {"scorer": "contain"}, "'contain' is not one of", 7, "did you mean 'contains'"),
        (GENERATE | {"max_tokens": "9"}, "max_tokens", 8, ""),
        (GENERATE | {"name": "other"}, "called 'other' in a folder 'mine'", 2, "rename"),
        (GENERATE | {"scorer": "choice"}, "does not fit 'ask: generate'", 7, "rank_choices"),
        (GENERATE | {"ask": "rank_choices"}, "does not fit 'ask: rank_choices'", 7, ""),
        (GENERATE | {"system": "Be brief."}, "'system' needs 'chat_template: true'", 8, ""),
        (GENERATE | {"prompt": "Tell me."}, "uses no field of the sample", 5, "{field}"),
        (GENERATE | {"prompt": "{question}{target}"}, "'prompt' shows '{target}'", 5, ""),
        (GENERATE | {"prompt": "{question.__class__}"}, "is not a field", 5, ""),
        (GENERATE | {"prompt": "{question!r}"}, "is not a field", 5, ""),
        (GENERATE | {"prompt": "{question} {"}, "a single '{'", 5, ""),
        (GENERATE | {"scorer": "???"}, "'???' is not one of 'exact', ", 7, "choose one of them"),
        (GENERATE | {"scorer": {"all": True}}, "'scorer' has no 'name'", 7, "exact, normalized"),
        (GENERATE | {"scorer": {"name": "contains", "al": 1}}, "unknown key 'scorer.al'", 9,
         "did you mean 'all'? known: all, name"),
        (GENERATE | {"scorer": ["contains"]}, "should be a mapping, not ['contains']", 7,
         "write a mapping"),
        (GENERATE | {"guided": False}, "'guided: false' has no effect", 8, "add the schema"),
        (GENERATE | {"repeats": 3}, "asks the same for the same answer", 8, "temperature"),
        (RANK | {"sampling": {"temperature": 0.7}}, "no effect on ranked choices", 8, "remove"),
        (GENERATE | {"tool_choice": "required"}, "'tool_choice' has no effect", 8, ""),
        (GENERATE | {"tools": [WEATHER]}, "'tools' have no effect", 8, "'ask: call_tools'"),
        (JSON | {"response_schema": {"type": "intger"}}, "is not a JSON schema", 8, ""),
        (JSON | {"response_schema": {"$ref": "https://example.org/x"}}, "leads nowhere", 8, ""),
        (JSON | {"response_schema": {"properties": [1]}}, "is not a JSON schema", 8, ""),
    ],
)  # fmt: skip
def test_a_broken_spec_is_named_with_its_line(
    make: Make, spec: dict[str, Any], what: str, line: int, fix: str
) -> None:
    target = {"n": 1} if "response_schema" in spec else "Paris"
    choices = ["Paris", "Rome"] if spec.get("scorer") == "choice" else None
    folder = make(spec, SAMPLE | {"target": target, "choices": choices})
    error = refused(folder)
    assert what in error.what
    assert error.where == f"{folder / 'suite.yaml'}:{line}"
    assert fix in error.fix
    assert error.exit_code == 2


def test_a_schema_on_ranked_choices_is_refused(make: Make) -> None:
    error = refused(make(RANK | {"response_schema": SCHEMA}, SAMPLE | {"choices": ["Paris", "R"]}))
    assert "no effect on ranked choices" in error.what


MESSAGES = {k: v for k, v in GENERATE.items() if k != "prompt"} | {"chat_template": True}


@pytest.mark.parametrize(
    ("messages", "what", "line"),
    [
        (
            [("user", "{question}"), ("assistant", "Yes?")],
            "the last of 'messages' is the assistant's",
            10,
        ),
        ([("user", "{question}"), ("system", "x"), ("user", "y")], "stands first or nowhere", 10),
        ([("system", "a"), ("user", "b")], "'messages' use no field", 7),
        ([("system", "a"), ("user", "{target}")], "'messages.1.content' shows '{target}'", 11),
        ([("user", "{question} {")], "'messages.0.content': a single '{'", 9),
        ([("tool", "{question}")], "'messages.0.role': 'tool' is not one of", 8),
        ([("user", "{qestion}")], "uses the field 'qestion', which no sample has", 9),
    ],
)
def test_broken_messages_are_named(
    make: Make, messages: list[tuple[str, str]], what: str, line: int
) -> None:
    said = [{"role": role, "content": content} for role, content in messages]
    error = refused(make(MESSAGES | {"messages": said}, SAMPLE))
    assert what in error.what
    assert error.where.rpartition(":")[2] == str(line)


def test_no_suite_is_named_like_a_second_pass(make: Make) -> None:
    """Rows of the baseline's second pass over `x` lie in `x.repeat.jsonl`."""
    error = refused(make(MESSAGES | {"name": "x.repeat"}, SAMPLE))
    assert "must not end with '.repeat'" in error.what and "choose another" in error.fix


def test_messages_need_a_chat_template_and_no_prompt(make: Make) -> None:
    messages = [{"role": "user", "content": "{question}"}]
    error = refused(make(MESSAGES | {"chat_template": False, "messages": messages}, SAMPLE))
    assert "'messages' need 'chat_template: true'" in error.what
    error = refused(make(MESSAGES | {"prompt": "{question}", "messages": messages}, SAMPLE))
    assert "exactly one of 'prompt' and 'messages'" in error.what


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": WEATHER["function"] | function}


@pytest.mark.parametrize(
    ("change", "what", "line"),
    [
        ({"tools": []}, "'ask: call_tools' needs 'tools'", 4),
        ({"chat_template": False}, "'ask: call_tools' needs 'chat_template: true'", 6),
        ({"scorer": "contains"}, "scorer 'contains' does not fit 'ask: call_tools'", 7),
        ({"response_schema": SCHEMA}, "'response_schema' has no effect on tool calls", 18),
        ({"tools": [WEATHER["function"]]}, "'tools.0': a tool is {type: function", 9),
        ({"tools": [{"type": "function"}]}, "'tools.0': a tool is {type: function", 9),
        ({"tools": [WEATHER | {"nme": 1}]}, "'tools.0.nme': unknown key", 18),
        ({"tools": [tool(name="a b")]}, "'a b' is no name of a function", 11),
        ({"tools": [tool(name=None)]}, "None is no name of a function", 11),
        ({"tools": [tool(description=3)]}, "'tools.0.function.description': this is no text", 12),
        ({"tools": [tool(params={})]}, "'tools.0.function.params': unknown key", 18),
        ({"tools": [tool(parameters=[])]}, "parameters': not a JSON schema: it is no mapping", 13),
        ({"tools": [tool(parameters={"type": "objct"})]}, "not a JSON schema: 'objct'", 13),
        ({"tools": [tool(parameters={"type": "array"})]}, "the arguments of a call are one", 13),
        ({"tools": [WEATHER, tool(description="b")]}, "two tools are called 'weather'", 20),
    ],
)  # fmt: skip
def test_a_broken_tool_is_named_with_its_line(
    make: Make, change: dict[str, Any], what: str, line: int
) -> None:
    folder = make(CALLS | change, SAMPLE)
    said = str(refused(folder))
    assert what in said
    assert f"{folder / 'suite.yaml'}:{line}" in said


def test_tool_calls_go_with_their_scorer_alone(make: Make) -> None:
    assert (
        "'tool_call' with nothing else"
        in refused(make(GENERATE | {"scorer": "tool_call"}, SAMPLE)).fix
    )
    judged = {"name": "judge", "rubric": "the right tool"}
    assert "does not fit" not in str(attempt(make(CALLS | {"scorer": judged}, SAMPLE)))


def attempt(folder: Path) -> object:
    try:
        return load_suite(folder)
    except SuiteError as error:
        return error


def test_yaml_errors_name_the_line(make: Make) -> None:
    folder = make("schema: workbench.suite/1\nname: [mine\n", SAMPLE)
    error = refused(folder)
    assert "not valid YAML" in error.what and ":" in error.where.removeprefix(str(folder))


# --------------------------------------------------------------------------- samples.jsonl


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"id": "b", "target": "x", ', "not JSON: "),
        ('["b"]', "not a JSON object"),
        ('{"id": "b", "question": "q", "target": NaN}', "NaN is not JSON"),
        ('{"id": "b", "question": "q", "target": "x", "w": 1e999}', "Out of range float"),
        ('{"id": "b", "id": "c", "question": "q", "target": "x"}', "key 'id' is given twice"),
        ('{"id": "b", "question": "\\ud800", "target": "x"}', "lone surrogate"),
        ('{"question": "q", "target": "x"}', "'id' is missing"),
        ('{"id": "b", "question": "q"}', "'target' is missing"),
        ('{"id": "b", "question": "q", "taget": "x"}', "did you mean 'taget'?"),
        ('{"id": 7, "question": "q", "target": "x"}', "'id': Input should be a valid string"),
        ('{"id": "", "question": "q", "target": "x"}', "'id': String should have at least 1"),
        ('{"id": "b", "target": "x"}', "field 'question', which the prompt uses, is missing"),
        ('{"id": "b", "question": null, "target": "x"}', "field 'question', which"),
        ('{"id": "b", "question": "q", "target": 3}', "'target' must be a text or a list"),
        ("[" * 100_000, "nested too deep"),
        ('\ufeff{"id": "b", "question": "q", "target": "x"}', "not JSON"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named(make: Make, line: str, what: str) -> None:
    folder = make(GENERATE, SAMPLE, "", line, SAMPLE | {"id": "z"})
    error = refused(folder)
    assert what in str(error)
    assert error.where == f"{folder / 'samples.jsonl'}:3"


def test_a_missing_field_suggests_the_one_that_is_there(make: Make) -> None:
    error = refused(make(GENERATE, {"id": "a", "qestion": "q", "target": "x"}))
    assert error.fix == "did you mean 'qestion'? fields: qestion"
    assert error.where.endswith("suite.yaml:5")


def test_a_mistake_in_the_template_is_told_once_at_its_line(make: Make) -> None:
    samples = [SAMPLE | {"id": str(n), "answer_in": "words"} for n in range(20)]
    error = refused(make(GENERATE | {"prompt": "Kurz: {frage} {answer_inn} {frage}"}, *samples))
    first, *listed = error.what.splitlines()
    assert first == "suite 'mine' has 2 problems:" and len(listed) == 2
    assert "suite.yaml:5: 'prompt' uses the field 'frage', which no sample has" in listed[0]
    assert "(fields: question, answer_in)" in listed[0]
    assert "'answer_inn'" in listed[1] and "did you mean 'answer_in'?" in listed[1]
    # One that a sample has is missing in the others.
    some = [SAMPLE | {"id": "z", "frage": "Ja?"}, SAMPLE]
    error = refused(make(GENERATE | {"prompt": "{frage}"}, *some))
    assert error.where.endswith("samples.jsonl:2") and "'frage', which the prompt" in error.what


def test_a_duplicate_id_names_both_lines(make: Make) -> None:
    folder = make(GENERATE, SAMPLE, SAMPLE | {"id": "b"}, SAMPLE)
    error = refused(folder)
    assert f"id 'a' is used twice, first in {folder / 'samples.jsonl'}:1" in error.what
    assert error.where.endswith("samples.jsonl:3")


def test_bytes_that_are_not_utf8_are_named(make: Make) -> None:
    folder = make(GENERATE, SAMPLE, b'{"id": "b", "question": "caf\xe9"}')
    position = len(json.dumps(SAMPLE)) + 1 + len(b'{"id": "b", "question": "caf')
    error = refused(folder)
    assert f"byte {position} (0xe9)" in error.what and error.where.endswith("samples.jsonl:2")


def test_choices_are_checked(make: Make) -> None:
    error = refused(make(RANK, SAMPLE | {"choices": ["Rome", "Bonn"]}))
    assert "'target' 'Paris' is not one of 'choices'" in error.what
    assert "at least two" in refused(make(RANK, SAMPLE)).what


def test_a_target_must_fit_the_schema_it_is_compared_under(make: Make) -> None:
    assert load_suite(make(JSON, SAMPLE | {"target": {"n": 1}})).samples
    error = refused(make(JSON, SAMPLE | {"target": {"n": "1"}}))
    assert "does not fit 'response_schema': '1' is not of type 'integer' at $.n" in error.what


@pytest.mark.parametrize("samples", [(), ("",)])
def test_an_empty_suite_is_refused(make: Make, samples: tuple[str, ...]) -> None:
    assert "has no sample" in refused(make(GENERATE, *samples)).what


def test_missing_samples_are_refused(make: Make) -> None:
    folder = make(GENERATE)
    (folder / "samples.jsonl").unlink()
    assert "there is no samples.jsonl" in refused(folder).what


def test_problems_are_collected_up_to_ten(make: Make) -> None:
    folder = make(GENERATE | {"name": "other"}, "{", SAMPLE, SAMPLE)
    error = refused(folder)
    assert error.what.startswith("suite 'mine' has 3 problems:")
    for line in ("suite.yaml:2: ", "samples.jsonl:1: not JSON", "samples.jsonl:3: id 'a'"):
        assert line in error.what
    error = refused(make(GENERATE, *["{"] * 13))
    assert "has 13 problems" in error.what and error.what.endswith("and 3 more")
    assert error.what.count("not JSON") == 10


@pytest.mark.parametrize("bad", ["a\nb", "\x1b[2J", " a", "a\u200b"])
def test_an_id_is_one_line_of_text(make: Make, bad: str) -> None:
    assert "control codes" in refused(make(GENERATE, SAMPLE | {"id": bad})).what


def test_an_id_does_not_look_like_a_repeat(make: Make) -> None:
    sampled = GENERATE | {"repeats": 2, "sampling": {"temperature": 0.5}}
    assert "like the number of a repeat" in refused(make(sampled, SAMPLE | {"id": "a#1"})).what
    assert load_suite(make(GENERATE, SAMPLE | {"id": "a#1"})).samples


def test_a_cluster_is_a_field_of_every_sample(make: Make) -> None:
    spec = GENERATE | {"cluster": "document"}
    assert load_suite(make(spec, SAMPLE | {"document": "x"}, SAMPLE | {"id": "b", "document": 7}))
    folder = make(spec, SAMPLE | {"document": "x"}, SAMPLE | {"id": "b"})
    error = refused(folder)
    assert "field 'document', which 'cluster' names, is missing" in error.what
    assert error.where == f"{folder / 'samples.jsonl'}:2"
    error = refused(make(spec, SAMPLE | {"document": ["x"]}))
    assert "is no text or number" in error.what
    error = refused(make(spec, SAMPLE | {"documnt": 1}, SAMPLE | {"id": "b", "documnt": 1}))
    assert "'document', which no sample has" in error.what
    assert error.where.endswith("suite.yaml:8") and "did you mean 'documnt'" in error.fix
    error = refused(make(spec, SAMPLE | {"document": None}))
    assert "the field 'document', which is null in every sample" in error.what


def test_a_field_that_is_null_is_not_missing(make: Make) -> None:
    error = refused(make(GENERATE, SAMPLE, SAMPLE | {"id": "b", "question": None}))
    assert "field 'question', which the prompt uses, is null" in error.what
    assert error.fix == "give it a value"


# --------------------------------------------------------------------------- shared samples


def test_samples_of_another_suite(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "other", GENERATE | {"name": "other"}, SAMPLE, SAMPLE | {"id": "b"})
    folder = make(GENERATE | {"samples_of": "other", "max_tokens": 9})
    (folder / "samples.jsonl").unlink()
    suite = load_suite(folder)
    assert [s.id for s in suite.samples] == ["a", "b"]
    first = suite.digest
    write(tmp_path / "other", GENERATE | {"name": "other"}, SAMPLE, SAMPLE | {"id": "c"})
    assert load_suite(folder).digest != first


def test_errors_in_shared_samples_point_to_their_file(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "other", GENERATE | {"name": "other"}, SAMPLE, {"id": "b", "target": "x"})
    folder = make(GENERATE | {"samples_of": "other"})
    (folder / "samples.jsonl").unlink()
    error = refused(folder)
    assert error.where == f"{tmp_path / 'other' / 'samples.jsonl'}:2"
    assert "field 'question'" in error.what


def test_samples_of_nobody_twice_or_in_a_circle(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "other", GENERATE | {"name": "other", "samples_of": "mine"})
    folder = make(GENERATE | {"samples_of": "othr"})
    where = f"{folder / 'suite.yaml'}:8"
    error = refused(folder)
    assert "and a samples.jsonl of its own" in error.what and error.where == where
    (folder / "samples.jsonl").unlink()
    error = refused(folder)
    assert "'othr', which is not there" in error.what and error.where == where
    assert "did you mean 'other'?" in error.fix
    (tmp_path / "other" / "samples.jsonl").unlink()
    spec = (folder / "suite.yaml").read_text("utf-8")
    for name, circle in (("other", "mine -> other -> mine"), ("mine", "mine -> mine")):
        (folder / "suite.yaml").write_text(spec.replace("othr", name), "utf-8")
        error = refused(folder)
        assert f"'samples_of' leads in a circle: {circle}" in error.what


def test_a_chain_of_shared_samples(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "first", GENERATE | {"name": "first"}, SAMPLE)
    for name, of in (("second", "first"), ("mine", "second")):
        spec = GENERATE | {"name": name, "samples_of": of}
        (write(tmp_path / name, spec) / "samples.jsonl").unlink()
    assert load_suite(tmp_path / "mine").samples[0].id == "a"


# --------------------------------------------------------------------------- resources


SQL = GENERATE | {"scorer": {"name": "sql_result", "database": "data.sql"}}


def test_what_a_scorer_needs_is_read_and_hashed(make: Make) -> None:
    folder = make(SQL, SAMPLE | {"target": "SELECT 1 AS a"})
    (folder / "data.sql").write_text("CREATE TABLE t (a);")
    suite = load_suite(folder)
    assert suite.resources == {"data.sql": "CREATE TABLE t (a);"}
    (folder / "data.sql").write_text("CREATE TABLE t (b);")
    assert load_suite(folder).digest != suite.digest


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("SELECT b FROM t", "no such column"),
        ("SELEC a FROM t", "syntax error"),
        ("DELETE FROM t", "'target'"),
    ],
)
def test_sql_that_does_not_run_on_its_own_database(make: Make, query: str, what: str) -> None:
    folder = make(
        SQL, SAMPLE | {"target": "SELECT a FROM t"}, SAMPLE | {"id": "b", "target": query}
    )
    (folder / "data.sql").write_text("CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    error = refused(folder)
    assert what in error.what
    assert error.where == f"{folder / 'samples.jsonl'}:2"


def test_a_scorer_file_of_python_is_a_resource(make: Make) -> None:
    code = "def score(sample, output):\n    return 1.0\n"
    for named in ("score.py:score", "sub/score.py:score"):
        folder = make(GENERATE | {"scorer": {"name": "python", "function": named}}, SAMPLE)
        file = folder / named.partition(":")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
        assert load_suite(folder).resources == {named.partition(":")[0]: code}
    installed = {"name": "python", "function": "json.decoder:scanstring"}
    assert load_suite(make(GENERATE | {"scorer": installed}, SAMPLE)).resources == {}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("../outside.sql", "leads out of the suite's folder"),
        ("a/../../outside.sql", "leads out of the suite's folder"),
        ("/etc/passwd", "leads out of the suite's folder"),
        ("..\\outside.sql", "leads out of the suite's folder"),
        ("link.sql", "leads out of the suite's folder: put the file itself"),
        ("linked/outside.sql", "leads out of the suite's folder: put the file itself"),
        ("loop.sql", "loop.sql'"),
        ("datta.sql", "no file 'datta.sql' in the suite's folder. did you mean 'data.sql'"),
        (".", "there is no file '.'"),
        ("", "leads out"),
        ("latin.sql", "'latin.sql' is not UTF-8: byte 3"),
        ("a\tb\x7f.sql", "there is no file"),
    ],
)  # fmt: skip
def test_a_resource_stays_in_the_folder(make: Make, tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "outside.sql").write_text("SELECT 1")
    folder = make(SQL | {"scorer": {"name": "sql_result", "database": name}}, SAMPLE)
    (folder / "data.sql").write_text("SELECT 1")
    (folder / "latin.sql").write_bytes(b"-- \xe9")
    (folder / "link.sql").symlink_to(tmp_path / "outside.sql")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop.sql").symlink_to(folder / "loop.sql")
    error = refused(folder)
    assert what in error.what
    assert error.where == f"{folder / 'suite.yaml'}:9"
    assert "root:" not in str(error)


# --------------------------------------------------------------------------- templates


def test_placeholders_in_order_and_once() -> None:
    assert placeholders("{b} {a} {{c}} {b}") == ("b", "a")


def test_fill_puts_fields_in() -> None:
    fields = {"q": "{a}?", "c": ["x", "y"], "n": 3, "d": {"k": [1, None]}}
    assert fill("{q} {c} {n} {d} {{q}}", fields) == '{a}? x, y 3 {"k":[1,null]} {q}'


@given(st.text())
def test_a_text_is_put_in_as_it_is(text: str) -> None:
    assert fill("<{q}>{{{q}}}", {"q": text}) == f"<{text}>{{{text}}}"


@given(st.text())
def test_a_doubled_template_is_shown_as_it_was(text: str) -> None:
    assert fill(text.replace("{", "{{").replace("}", "}}"), {}) == text


@pytest.mark.parametrize("template", ["{", "}", "{a", "{}", "{a.b}", "{a[0]}", "{a:>9}", "{ a }"])
def test_a_template_that_is_not_plain_is_refused(template: str) -> None:
    with pytest.raises(ValueError):
        placeholders(template)


def test_render_prompt(make: Make) -> None:
    plain = load_suite(make(GENERATE | {"prompt": "Q: {question}\nA:"}, SAMPLE))
    assert render_prompt(plain.spec, plain.samples[0], Bracket()) == "Q: Capital of France?\nA:"
    chat = load_suite(make(GENERATE | {"chat_template": True, "system": "{brief}"}, SAMPLE))
    assert (
        render_prompt(chat.spec, chat.samples[0], Bracket())
        == "[system]{brief}[user]Capital of France?[assistant]"
    )
    alone = load_suite(make(GENERATE | {"chat_template": True}, SAMPLE))
    assert render_prompt(alone.spec, alone.samples[0], Bracket()).startswith("[user]")


def test_render_messages(make: Make) -> None:
    messages = [
        {"role": "system", "content": "Speak {language}."},
        {"role": "user", "content": "Hi {{you}}"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "{question}"},
    ]
    suite = load_suite(make(MESSAGES | {"messages": messages}, SAMPLE | {"language": "French"}))
    asked = render_prompt(suite.spec, suite.samples[0], Bracket())
    said = "[system]Speak French.[user]Hi {you}[assistant]Hello.[user]Capital of France?"
    assert asked == said + "[assistant]"
    sent = chat_messages(suite.spec, suite.samples[0])
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user"]
    assert fields_shown(suite.spec) == ("language", "question")
    assert question_text(suite.spec, suite.samples[0]).splitlines()[0] == "system: Speak French."


def test_tools_are_rendered_where_they_are_sent() -> None:
    spec = SuiteSpec.model_validate(CALLS)
    sample = Sample.model_validate(SAMPLE)
    assert render_prompt(spec, sample, Bracket()).startswith("[1 tools][user]Capital")
    assert shows_tools(spec, sample, Bracket())

    class Blind(Bracket):
        def render(self, messages: Any, add_generation_prompt: bool, tools: Any = None) -> str:
            return super().render(messages, add_generation_prompt)

    assert not shows_tools(spec, sample, Blind())


def test_a_plain_prompt_begins_as_the_tokenizers_own_texts_do() -> None:
    class Opening(Bracket):
        opening = "<s>"

    spec = SuiteSpec.model_validate(GENERATE)
    for question, sent in (("Q", "<s>Q"), ("<s>Q", "<s>Q")):
        sample = Sample.model_validate(SAMPLE | {"question": question})
        assert render_prompt(spec, sample, Opening()) == sent
    chat = SuiteSpec.model_validate(GENERATE | {"chat_template": True})
    sample = Sample.model_validate(SAMPLE)
    assert render_prompt(chat, sample, Opening()).startswith("[user]"), "the template's business"


# --------------------------------------------------------------------------- hostile files

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        (BOMB, "more than 100,000 values, counted with every alias written out", "alias"),
        (f"a: &a {'x' * 10**6}\nb: [{'*a, ' * 50}]\n", "more than 100,000 values", "alias"),
        ("a0: &a0 {k: v, l: w}\n" + "".join(
            f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
         "more than 100,000 values", "alias"),
        ("a: &a [*a]\n", "alias 'a' stands inside itself", "write it out"),
        ("[" * 5000, "nested too deep, more than 100 levels", "nest less"),
        ("a: 0x" + "f" * 5000, "a number of 5,002 characters", "quotes"),
        ("# " + "x" * 5 * 2**20, "larger than 4 MiB", "files of their own"),
        ("- x\n" * 200_000, "more than 100,000 values", "write less"),
    ],
)  # fmt: skip
def test_a_file_that_grows_when_it_is_read_is_refused(
    make: Make, text: str, what: str, fix: str
) -> None:
    error = refused(make(text, SAMPLE))
    assert what in error.what and fix in error.fix and "suite.yaml" in error.where
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("sampling", "what", "fix"),
    [
        ({"sampling": {"stop": [""]}}, "'sampling.stop.0'", "between the quotes"),
        ({"sampling": {"stop": ["x"] * 17}}, "'sampling.stop'", "at most 16"),
        ({"sampling": {"seed": 2**31}}, "'sampling.seed'", "use 2147483647 or less"),
        ({"sampling": {"seed": 2**70}}, "'sampling.seed'", "use 2147483647 or less"),
        ({"max_tokens": 2**20 + 1}, "'max_tokens'", "use 1048576 or less"),
        ({"max_tokens": 10**300}, "'max_tokens'", "use 1048576 or less"),
    ],
)
def test_what_no_server_takes_is_refused(
    make: Make, sampling: dict[str, Any], what: str, fix: str
) -> None:
    error = refused(make(GENERATE | sampling, SAMPLE))
    assert what in error.what and fix in error.fix, error


def test_the_largest_seed_and_answer_are_taken(make: Make) -> None:
    most = {"sampling": {"seed": 2**31 - 1, "stop": ["\n"]}, "max_tokens": 2**20}
    assert load_suite(make(GENERATE | most, SAMPLE)).spec.max_tokens == 2**20


@pytest.mark.parametrize(
    "spec",
    [
        GENERATE | {"max_tokens": "x" * 10**5},
        GENERATE | {"x" * 10**5: 1},
        GENERATE | {"ask": "x" * 10**5},
        GENERATE | {"scorer": "x" * 10**5},
        GENERATE | {"tags": {"x" * 10**5: 1}},
        GENERATE | {f"k{i}": 1 for i in range(5000)},
        CALLS | {"tools": [WEATHER | {"function": {"name": "x" * 10**5}}]},
        CALLS | {"tools": [{"type": "function", "function": {"name": "é"}}] * 3000},
        JSON | {"response_schema": {"type": "x" * 10**5}},
        JSON | {"response_schema": {"$ref": "#/" + "x" * 10**5}},
    ],
)
def test_what_is_wrong_is_not_repeated_whole(make: Make, spec: dict[str, Any]) -> None:
    assert len(str(refused(make(spec, SAMPLE)))) < 15_000


def test_long_values_of_samples_are_not_repeated_whole(make: Make) -> None:
    long = "x" * 10**5
    for bad in ({"id": long}, {"target": [1, long]}, {"choices": long}):
        assert len(str(refused(make(GENERATE, SAMPLE | bad)))) < 2000
    twice = f'{{"id": "a", "{long}": 1, "{long}": 2}}'
    assert len(str(refused(make(GENERATE, twice)))) < 2000
    assert len(str(refused(make(JSON, SAMPLE | {"target": {long: 1}})))) < 2000


def test_an_object_of_many_keys_with_one_twice_is_read_in_linear_time(make: Make) -> None:
    keys = ", ".join(f'"k{i}": 1' for i in range(200_000))
    assert "'k9' is given twice" in refused(make(GENERATE, f'{{{keys}, "k9": 2}}')).what


@pytest.mark.parametrize("deep", [101, 300, 900])
def test_a_sample_that_is_nested_too_deep_is_named(make: Make, deep: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        nested = opened * deep + "1" + closed * deep
        error = refused(make(GENERATE, SAMPLE, f'{{"id": "b", "target": "x", "w": {nested}}}'))
        assert "nested too deep, more than 100 levels" in error.what
        assert error.where.endswith("samples.jsonl:2")


def test_a_number_without_end_is_named(make: Make) -> None:
    error = refused(make(GENERATE, f'{{"id": "b", "target": {"9" * 5000}}}'))
    assert "a number of more than 4,300 digits" in error.what


def test_a_prompt_that_shows_much_too_often_is_refused(make: Make) -> None:
    spec = GENERATE | {"prompt": "{question}" * 2000}
    error = refused(make(spec, SAMPLE | {"question": "word " * 2000}))
    assert "the prompt would be 20," in error.what and "16,777,216 are most" in error.what


def test_a_pattern_that_backtracks_does_not_hang_a_check(make: Make) -> None:
    schema = SCHEMA | {"properties": {"n": {"type": "string", "pattern": "^(a+)+$"}}}
    spec = JSON | {"response_schema": schema}
    error = refused(make(spec, SAMPLE | {"target": {"n": "a" * 60 + "!"}}))
    assert "does not match" in error.what
    suite = load_suite(make(spec, SAMPLE | {"target": {"n": "a" * 60}}))
    found = grade(suite, suite.samples[0], json.dumps({"n": "a" * 60 + "!"}))
    assert found.flags == ("schema_violation",)
    look = {"n": {"type": "string", "pattern": "(?=a)a"}}
    error = refused(make(JSON | {"response_schema": SCHEMA | {"properties": look}}, SAMPLE))
    assert "RE2 does not take look-around" in error.what
