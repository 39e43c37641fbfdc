import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import SuiteError
from workbench.scorers import grade
from workbench.suites import fill, find_suite, load_suite, placeholders, render_prompt

SHIPPED = Path(__file__).parent.parent / "eval_suites"

GENERATE: dict[str, Any] = {
    "schema": "workbench.suite/1",
    "name": "mine",
    "description": "a suite",
    "ask": "generate",
    "prompt": "{question}",
    "chat_template": False,
    "scorer": "contains",
}
RANK = GENERATE | {"ask": "rank_choices", "scorer": "choice"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
JSON = GENERATE | {"scorer": "json_fields", "response_schema": SCHEMA}
SAMPLE: dict[str, Any] = {"id": "a", "question": "Capital of France?", "target": "Paris"}

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(spec: dict[str, Any] | str, *samples: dict[str, Any] | str | bytes) -> Path:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        text = spec if isinstance(spec, str) else yaml.safe_dump(spec, sort_keys=False)
        (folder / "suite.yaml").write_text(text, "utf-8")
        lines = [
            s if isinstance(s, bytes) else (s if isinstance(s, str) else json.dumps(s)).encode()
            for s in samples
        ]
        (folder / "samples.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        return folder

    return write


def refused(folder: Path) -> SuiteError:
    with pytest.raises(SuiteError) as caught:
        load_suite(folder)
    return caught.value


class Bracket:
    """A chat template that shows what it was given."""

    opening = ""

    def render(
        self, messages: Any, add_generation_prompt: bool, tools: Sequence[Any] | None = None
    ) -> str:
        said = f"[{len(tools)} tools]" if tools else ""
        said += "".join(f"[{m['role']}]{m['content']}" for m in messages)
        return said + ("[assistant]" if add_generation_prompt else "")


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
        suite = load_suite(folder)
        for sample in suite.samples:
            target = sample.target
            best = target[0] if isinstance(target, list) else target
            answer = json.dumps(best) if isinstance(best, dict) else best
            assert grade(suite, sample, answer).score == 1.0, sample.id


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
         "key 'chat_template' is missing", 1, "chat_template"),
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
        (JSON | {"response_schema": {"type": "intger"}}, "is not a JSON schema", 8, ""),
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
    assert error.fix == "did you mean 'qestion'?"


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
