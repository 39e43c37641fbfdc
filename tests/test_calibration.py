import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from projects import ROOT

from workbench.calibration import read_source, resolve_source, seal
from workbench.errors import CalibrationError
from workbench.records import Calibration
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer

SOURCE = ROOT / "calib_data" / "instructions" / "samples.jsonl"
LONG = "this text is long enough to be used for calibration"


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def spec(**changes: Any) -> CalibrationSpec:
    return CalibrationSpec(**({"source": "s", "samples": 3, "max_tokens": 64} | changes))


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n")
    return path


def tokens(folder: Path) -> list[list[int]]:
    return [json.loads(line) for line in (folder / "tokens.jsonl").read_text().splitlines()]


def test_golden(tokenizer: Tokenizer, tmp_path: Path) -> None:
    # The same on every machine and Python: a change here makes every sealed set another one.
    sealed = seal(spec(samples=16, seed=7), SOURCE, tokenizer, "id", tmp_path)
    assert sealed.seal == "3570f54602ef2e9bd3e2097e5161089d158a862a188bf880a1c79c89967530fa"
    assert [row.row for row in sealed.rows[:4]] == ["ins-195", "ins-147", "ins-121", "ins-066"]


def test_the_record_says_what_the_file_holds(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sealed = seal(spec(samples=20, max_tokens=200), SOURCE, tokenizer, "id", tmp_path)
    rows = {row.id: row for row in read_source(SOURCE)[0]}
    assert len({row.row for row in sealed.rows}) == 20
    assert {row.truncated for row in sealed.rows} == {True, False}
    for record, ids in zip(sealed.rows, tokens(tmp_path), strict=True):
        text = tokenizer.render(rows[record.row].messages, add_generation_prompt=False)
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert ids == whole[:200]
        assert record.tokens == len(ids)
        assert record.truncated == (len(whole) > 200)
    assert sealed.tokenizer_digest == tokenizer.digest
    assert sealed.template_digest == tokenizer.template_digest
    assert Calibration.model_validate_json(sealed.model_dump_json(by_alias=True)) == sealed


def test_twice_the_same_and_another_seed_another_sample(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    first, again, other = (
        seal(spec(samples=30, seed=seed), SOURCE, tokenizer, "id", tmp_path / str(n))
        for n, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert tokens(tmp_path / "0") == tokens(tmp_path / "1")
    assert {r.row for r in first.rows} != {r.row for r in other.rows}
    assert first.seal != other.seal


def test_a_larger_sample_begins_with_the_smaller(tokenizer: Tokenizer, tmp_path: Path) -> None:
    few = seal(spec(samples=5), SOURCE, tokenizer, "id", tmp_path)
    many = seal(spec(samples=50), SOURCE, tokenizer, "id", tmp_path)
    assert many.rows[:5] == few.rows


def test_three_kinds_of_rows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "b"}]
    source = write(
        tmp_path / "s.jsonl",
        {"id": "m", "messages": messages},
        {"id": "p", "prompt": LONG, "response": "r"},
        {"id": "t", "text": LONG},
    )
    rows = {row.id: row for row in read_source(source)[0]}
    roles = {name: [m["role"] for m in row.messages] for name, row in rows.items()}
    assert roles == {"m": ["system", "user"], "p": ["user", "assistant"], "t": ["user"]}
    assert rows["p"].text == f"{LONG}\n\nr"
    plain = seal(spec(chat_template=False), source, tokenizer, "id", tmp_path)
    texts = [tokenizer.decode(ids) for ids in tokens(tmp_path)]
    assert texts == [rows[row.row].text for row in plain.rows]
    assert plain.template_digest is None
    templated = seal(spec(), source, tokenizer, "id", tmp_path)
    assert tokenizer.decode(tokens(tmp_path)[0]).startswith("<|im_start|>")
    assert templated.seal != plain.seal


def test_ids_default_to_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "s.jsonl", {"text": "a"}, "", {"text": "b"})
    rows, blank = read_source(source)
    assert [(row.id, row.where) for row in rows] == [
        ("line-1", f"{source}:1"),
        ("line-3", f"{source}:3"),
    ]
    assert blank == 1


def test_dropped_rows_are_counted_with_their_reason(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = write(
        tmp_path / "s.jsonl",
        {"text": ""},
        {"text": " \n\t"},
        {"prompt": LONG, "response": ""},
        {"text": LONG + " 1"},
        {"text": LONG + " 1"},
        "",
        {"text": "short"},
        {"text": LONG + " 2"},
    )
    sealed = seal(spec(samples=2, chat_template=False), source, tokenizer, "id", tmp_path)
    assert {row.row for row in sealed.rows} == {"line-4", "line-8"}
    counted = {k: v for k, v in sealed.dropped.items() if not k.startswith("shorter")}
    assert counted == {"blank line": 1, "empty": 2, "whitespace only": 1, "duplicate text": 1}
    with pytest.raises(CalibrationError) as error:
        seal(spec(chat_template=False), source, tokenizer, "id", tmp_path)
    assert "3 samples are asked for, the source has 2 usable rows of 7" in error.value.what
    assert "2 empty" in error.value.what
    assert "1 shorter than 8 tokens" in error.value.what
    assert "at most 2" in error.value.fix


def test_bom_and_crlf_are_taken_as_they_come(tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b\xe2\x80\xa8c"}\r\n')
    assert [row.text for row in read_source(source)[0]] == ["a", "b\u2028c"]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_says_the_byte(tmp_path: Path, bom: bytes) -> None:
    source = tmp_path / "s.jsonl"
    data = bom + b'{"text": "a"}\n{"text": "\xff"}\n'
    source.write_bytes(data)
    with pytest.raises(CalibrationError) as error:
        read_source(source)
    assert f"at byte {data.index(0xFF)} of the file" in error.value.what
    assert error.value.where.endswith("s.jsonl:2")


@pytest.mark.parametrize(
    ("row", "what", "fix"),
    [
        ('{"text": ', "not JSON", ""),
        ("[1]", "not a JSON object", ""),
        ({"txt": "a"}, "it has 'txt'", "did you mean 'text'"),
        ({}, "it has nothing", ""),
        ({"prompt": "a"}, "'response' is missing", ""),
        ({"response": "a"}, "'prompt' is missing", ""),
        ({"text": 3}, "'text' is not a text (int)", ""),
        ({"id": 3, "text": "a"}, "id of a row is not a text", ""),
        ({"id": "one", "text": "b"}, "two rows have the id 'one'", ""),
        ({"messages": []}, "'messages' is not a list", ""),
        ({"messages": ["a"]}, "a message is not a JSON object", ""),
        ({"messages": [{"role": "usr", "content": "a"}]}, "role 'usr'", "did you mean 'user'"),
        ({"messages": [{"role": "user"}]}, "'content' is missing", ""),
    ],
)
def test_broken_row_says_file_and_line(
    tmp_path: Path, row: dict[str, Any] | str, what: str, fix: str
) -> None:
    source = write(tmp_path / "s.jsonl", {"id": "one", "text": "a"}, row)
    with pytest.raises(CalibrationError) as error:
        read_source(source)
    assert what in error.value.what
    assert f"{source}:2" in error.value.where
    assert fix in error.value.fix


def load_with(tiny: Path, folder: Path, template: str | None) -> Tokenizer:
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.load(folder)


def test_template_that_refuses_a_row(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_with(tiny, tmp_path / "t", "{{ raise_exception('no user') }}")
    source = write(tmp_path / "s.jsonl", {"id": "r-9", "text": LONG})
    with pytest.raises(CalibrationError, match=r"row 'r-9': .*no user") as error:
        seal(spec(samples=1), source, tokenizer, "id", tmp_path)
    assert error.value.where == f"{source}:1"


def test_checkpoint_without_template(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_with(tiny, tmp_path / "t", None)
    source = write(tmp_path / "s.jsonl", {"text": LONG})
    with pytest.raises(CalibrationError, match="no chat template") as error:
        seal(spec(samples=1), source, tokenizer, "id", tmp_path)
    assert "chat_template: false" in error.value.fix
    seal(spec(samples=1, chat_template=False), source, tokenizer, "id", tmp_path)


@pytest.mark.parametrize("template", [True, False])
def test_double_bos(tiny: Path, tmp_path: Path, template: bool) -> None:
    text = "{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}"
    tokenizer = load_with(tiny, tmp_path / "t", text)
    content = "<|im_start|>" + LONG if template else "<|im_start|><|im_start|>" + LONG
    source = write(tmp_path / "s.jsonl", {"text": content})
    with pytest.raises(CalibrationError, match="beginning-of-sequence token twice"):
        seal(spec(samples=1, chat_template=template), source, tokenizer, "id", tmp_path)


def test_a_tokenizer_that_adds_bos(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    load_with(tiny, folder, "{{ bos_token }}{{ messages[0].content }}")
    file = folder / "tokenizer.json"
    value = json.loads(file.read_text())
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    value["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": n, "type_id": 0}} for n in "AB"],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    file.write_text(json.dumps(value))
    source = write(tmp_path / "s.jsonl", {"text": LONG})
    made = []
    for template in (True, False):
        wanted = spec(samples=1, chat_template=template)
        seal(wanted, source, Tokenizer.load(folder), "id", tmp_path)
        made.append(tokens(tmp_path)[0])
    # One BOS either way: the template's own, or the tokenizer's.
    assert made[0] == made[1]
    assert made[0].count(1) == 1


def test_resolve(tmp_path: Path) -> None:
    assert resolve_source("instructions", ROOT) == SOURCE.resolve()
    own = write(tmp_path / "own.jsonl", {"text": "a"})
    assert resolve_source(str(own), ROOT) == own
    assert resolve_source("own.jsonl", tmp_path) == own
    with pytest.raises(CalibrationError) as error:
        resolve_source("instruction", ROOT)
    assert "did you mean 'instructions'?" in error.value.fix


def test_shipped_source_is_usable_whole(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows, blank = read_source(SOURCE)
    sealed = seal(spec(samples=len(rows)), SOURCE, tokenizer, "id", tmp_path)
    assert (sealed.dropped, blank) == ({}, 0)
    card = (SOURCE.parent / "README.md").read_text()
    assert f"{len(rows)} rows" in card
    assert all(word in card for word in ("Origin", "Licence", "Apache-2.0", "Language", "Size"))


def test_shipped_source_shares_no_text_with_a_suite() -> None:
    texts = {m["content"].strip().lower() for row in read_source(SOURCE)[0] for m in row.messages}
    for path in (ROOT / "eval_suites").glob("*/samples.jsonl"):
        for line in path.read_text().splitlines():
            values = (v for v in json.loads(line).values() if isinstance(v, str) and len(v) > 20)
            assert not texts & {value.strip().lower() for value in values}


@settings(deadline=None)
@given(samples=st.integers(1, 12), limit=st.integers(8, 40), seed=st.integers(0, 2**40))
def test_never_longer_never_more(
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    samples: int,
    limit: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("seal")
    wanted = spec(samples=samples, max_tokens=limit, seed=seed)
    sealed = seal(wanted, SOURCE, tokenizer, "id", folder)
    made = tokens(folder)
    assert len(made) == len(sealed.rows) == samples
    assert all(8 <= len(ids) <= limit for ids in made)
