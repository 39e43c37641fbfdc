import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from projects import ROOT, edit_recipe

from workbench import steps
from workbench.calibration import allocate, altered, seal
from workbench.calibration_records import LENGTH_BINS, seal_of
from workbench.context import new_run
from workbench.digest import content_id
from workbench.errors import CalibrationError, StoreError
from workbench.packing import Rendered, pack
from workbench.records import Calibration
from workbench.sources import read_rows, resolve_source
from workbench.spec import CalibrationSpec
from workbench.store import read_record, write_record
from workbench.tokenizer import Tokenizer

SOURCE = ROOT / "calib_data" / "instructions" / "samples.jsonl"
SHIPPED = ("business_tickets", "instructions", "prose")
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
    assert sealed.seal == "130395ab6766e90d48ac05e0f372f1642311e77e26aadc375d45aa568539aea7"
    # Rows and tokens are those that calibration/1 sealed.
    before = {
        "rows": [row.model_dump(mode="json", exclude={"parts"}) for row in sealed.rows],
        "tokenizer": sealed.tokenizer_digest,
        "template": sealed.template_digest,
    }
    digest = "3570f54602ef2e9bd3e2097e5161089d158a862a188bf880a1c79c89967530fa"
    assert content_id(before) == digest
    assert [row.row for row in sealed.rows[:4]] == ["ins-195", "ins-147", "ins-121", "ins-066"]


def test_the_record_says_what_the_file_holds(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sealed = seal(spec(samples=20, max_tokens=200), SOURCE, tokenizer, "id", tmp_path)
    rows = {row.id: row for row in read_rows(SOURCE).rows}
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
    rows = {row.id: row for row in read_rows(source).rows}
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
    found = read_rows(source)
    assert [(row.id, row.where) for row in found.rows] == [
        ("line-1", f"{source}:1"),
        ("line-3", f"{source}:3"),
    ]
    assert found.skipped == {"blank line": ["line-2"]}


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
    counted = {
        k: (v.count, v.rows) for k, v in sealed.dropped.items() if not k.startswith("shorter")
    }
    assert counted == {
        "blank line": (1, ("line-6",)),
        "empty": (2, ("line-1", "line-3")),
        "whitespace only": (1, ("line-2",)),
        "duplicate text": (1, ("line-5",)),
    }
    with pytest.raises(CalibrationError) as error:
        seal(spec(chat_template=False), source, tokenizer, "id", tmp_path)
    assert (
        "3 samples are asked for, the source has 2 usable rows, with 7 rows in all"
        in error.value.what
    )
    assert "2 empty" in error.value.what
    assert "1 shorter than 8 tokens" in error.value.what
    assert "at most 2" in error.value.fix


def test_bom_and_crlf_are_taken_as_they_come(tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b\xe2\x80\xa8c"}\r\n')
    assert [row.text for row in read_rows(source).rows] == ["a", "b\u2028c"]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_says_the_byte(tmp_path: Path, bom: bytes) -> None:
    source = tmp_path / "s.jsonl"
    data = bom + b'{"text": "a"}\n{"text": "\xff"}\n'
    source.write_bytes(data)
    with pytest.raises(CalibrationError) as error:
        read_rows(source)
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
        read_rows(source)
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


def test_rows_the_template_refuses_are_told_together(tiny: Path, tmp_path: Path) -> None:
    refuse = "{% if 'bad' in messages[0].content %}{{ raise_exception('no') }}{% endif %}"
    tokenizer = load_with(tiny, tmp_path / "t", refuse + "{{ messages[0].content }}")
    rows = [{"id": f"r-{n}", "text": f"{'bad' if n % 2 else 'good'} {n} {LONG}"} for n in range(8)]
    source = write(tmp_path / "s.jsonl", *rows)
    with pytest.raises(CalibrationError, match="4 rows that cannot be used") as error:
        seal(spec(samples=5), source, tokenizer, "id", tmp_path)  # and not that there are too few
    assert all((f"row 'r-{n}'" in error.value.what) == bool(n % 2) for n in range(8))


def test_checkpoint_without_template(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_with(tiny, tmp_path / "t", None)
    source = write(tmp_path / "s.jsonl", {"text": LONG})
    with pytest.raises(CalibrationError, match="no chat template") as error:
        seal(spec(samples=1), source, tokenizer, "id", tmp_path)
    assert "chat_template: none' under 'calibration'" in error.value.fix
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


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_source_is_usable_whole(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    source = resolve_source(name, ROOT)
    rows = read_rows(source).rows
    whole = spec(samples=len(rows), max_tokens=4096)
    sealed = seal(whole, source, tokenizer, "id", tmp_path)
    assert (sealed.dropped, sealed.source_rows) == ({}, len(rows))
    card = (source.parent / "README.md").read_text()
    assert f"{len(rows)} rows" in card
    assert all(word in card for word in ("Origin", "Licence", "Apache-2.0", "Language", "Size"))
    by = Counter(json.loads(line)["language"] for line in source.read_text().splitlines())
    assert all(f"({by[code]} rows)" in card for code in by)


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


# --------------------------------------------------------------------------- packing


def test_packed_samples_are_full_and_say_what_they_hold(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    wanted = spec(samples=9, max_tokens=100, packing="pack", chat_template=False)
    sealed = seal(wanted, SOURCE, tokenizer, "id", tmp_path)
    made = tokens(tmp_path)
    assert [len(ids) for ids in made] == [100] * 9
    assert [row.row for row in sealed.rows] == [f"pack-{n}" for n in range(1, 10)]
    rows = {row.id: row for row in read_rows(SOURCE).rows}
    eos = tokenizer.eos_id
    rest = [id_ for ids in made for id_ in ids]
    for part in (part for row in sealed.rows for part in row.parts):
        whole = tokenizer.encode(rows[part.row].text, add_special_tokens=True)
        if part.start == 0 and rest[0] == eos:
            rest = rest[1:]
        assert rest[: part.tokens] == whole[part.start : part.start + part.tokens]
        rest = rest[part.tokens :]
    assert rest in ([], [eos])
    # Drawn in the same order as rows that are not packed.
    plain = seal(spec(samples=5, chat_template=False), SOURCE, tokenizer, "id", tmp_path / "p")
    drawn = list(dict.fromkeys(p.row for row in sealed.rows for p in row.parts))
    assert drawn[:5] == [row.row for row in plain.rows]
    assert sealed.row_ids == set(drawn)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=20), max_size=12),
    st.integers(1, 10),
    st.integers(2, 15),
)
def test_packing_loses_and_invents_nothing(rows: list[list[int]], wanted: int, length: int) -> None:
    rendered = [Rendered(str(n), f"digest {n}", ids) for n, ids in enumerate(rows)]
    samples = pack(iter(rendered), wanted, length, separator=0)
    stream = [i for ids in rows for i in (ids if ids[-1] == 0 else [*ids, 0])]
    assert len(samples) == min(wanted, len(stream) // length)
    assert [i for s in samples for i in s.ids] == stream[: len(samples) * length]
    for sample in samples:
        assert len(sample.ids) == length
        for part in sample.sealed.parts:
            assert 0 < part.tokens <= len(rows[int(part.row)]) - part.start
        separators = length - sum(part.tokens for part in sample.sealed.parts)
        assert 0 <= separators <= len(sample.sealed.parts) + 1
    covered = [(p.row, p.start, p.tokens) for s in samples for p in s.sealed.parts]
    for (row, start, count), (next_row, next_start, _) in pairwise(covered):
        assert next_start == (start + count if next_row == row else 0)


def test_packing_that_runs_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = write(tmp_path / "s.jsonl", *({"text": f"{LONG} {n}"} for n in range(5)))
    with pytest.raises(
        CalibrationError, match=r"fills \d of 64 tokens, with 5 rows in all"
    ) as error:
        seal(spec(samples=90, packing="pack"), source, tokenizer, "id", tmp_path)
    assert "ask for at most" in error.value.fix


def test_packing_needs_an_end_of_sequence_token(tiny: Path, tmp_path: Path) -> None:
    load_with(tiny, tmp_path / "t", "{{ messages[0].content }}")
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = tmp_path / "t" / name
        if path.is_file():
            config = json.loads(path.read_text())
            config.pop("eos_token", None)
            path.write_text(json.dumps(config))
    with pytest.raises(CalibrationError, match="the tokenizer has none") as error:
        seal(spec(packing="pack"), SOURCE, Tokenizer.load(tmp_path / "t"), "id", tmp_path)
    assert "packing: truncate" in error.value.fix


# --------------------------------------------------------------------------- strata


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3), st.floats(0.001, 1000), min_size=1, max_size=8
    ),
    st.integers(0, 5000),
)
def test_largest_remainder(shares: dict[str, float], samples: int) -> None:
    counts = allocate(shares, samples)
    assert list(counts) == list(shares)
    assert sum(counts.values()) == samples
    total = sum(shares.values())
    for name, share in shares.items():
        assert abs(counts[name] - samples * share / total) < 1 + 1e-6


def test_largest_remainder_by_hand() -> None:
    assert allocate({"en": 0.75, "zh": 0.25}, 16) == {"en": 12, "zh": 4}
    assert allocate({"a": 0.29, "b": 0.71}, 100) == {"a": 29, "b": 71}
    # 3.5, 2.1, 1.4: the fractions .5 and .4 win the two that are left... only one is.
    assert allocate({"a": 0.5, "b": 0.3, "c": 0.2}, 7) == {"a": 4, "b": 2, "c": 1}
    assert allocate({"b": 1, "a": 1}, 3) == {"b": 1, "a": 2}


def strata(**quotas: float) -> dict[str, Any]:
    return {"by": "language"} | ({"quotas": quotas} if quotas else {})


def languages(name: str = "instructions") -> dict[str, str]:
    lines = resolve_source(name, ROOT).read_text().splitlines()
    return {row["id"]: row["language"] for row in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("quotas", "counts"),
    [({"en": 0.75, "zh": 0.25}, {"en": 12, "zh": 4}), ({"zh": 1.0}, {"zh": 16}), ({}, None)],
)
@pytest.mark.parametrize("packing", ["truncate", "pack"])
def test_quotas_are_kept(
    tokenizer: Tokenizer,
    tmp_path: Path,
    quotas: dict[str, float],
    counts: dict[str, int] | None,
    packing: str,
) -> None:
    wanted = spec(samples=16, strata=strata(**quotas), packing=packing)
    sealed = seal(wanted, SOURCE, tokenizer, "id", tmp_path)
    counts = counts or {"en": 13, "zh": 3}  # 161 and 40 rows of 201: 12.8 and 3.2
    found: Counter[str] = Counter()
    for row in sealed.rows:
        (language,) = {languages()[id_] for id_ in row.source_rows}
        found[language] += 1
    assert found == counts
    assert sealed.strata is not None and sealed.strata.by == "language"
    assert {k: v.samples for k, v in sealed.strata.values.items()} == counts
    if quotas == {"zh": 1.0}:
        assert sealed.dropped["language without a quota"].count == 161
        assert len(sealed.dropped["language without a quota"].rows) == 20
    else:
        order = [languages()[row.source_rows[0]] for row in sealed.rows]
        assert order != sorted(order)  # mixed


def test_a_stratum_is_drawn_in_the_order_of_the_plain_sample(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plain = seal(spec(samples=60), SOURCE, tokenizer, "id", tmp_path)
    few = seal(spec(samples=8, strata=strata(zh=0.5, en=0.5)), SOURCE, tokenizer, "id", tmp_path)
    of = languages()
    for language in ("en", "zh"):
        chosen = [row.row for row in few.rows if of[row.row] == language]
        assert chosen == [row.row for row in plain.rows if of[row.row] == language][:4]


def test_rows_without_the_field_are_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": f"{LONG} {n}", "language": "en"} for n in range(4)]
    source = write(
        tmp_path / "s.jsonl", *rows, {"text": LONG}, {"text": LONG + ".", "language": ""}
    )
    sealed = seal(spec(samples=4, strata=strata()), source, tokenizer, "id", tmp_path)
    dropped = sealed.dropped["no language"]
    assert (dropped.count, dropped.rows) == (2, ("line-5", "line-6"))


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"strata": strata(zh=1.0), "samples": 41}, "language 'zh', which has 40 usable", "quota"),
        ({"strata": strata(en=0.5, fr=0.5)}, "no usable row has language 'fr'", "values: en, zh"),
        ({"strata": {"by": "langauge"}}, "no row has the field 'langauge'", "mean 'language'?"),
        (
            {"samples": 202, "max_tokens": 4096},
            "202 samples are asked for, the source has 201",
            "at most 201",
        ),
    ],
)
def test_strata_that_cannot_be(
    tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(CalibrationError) as error:
        seal(spec(**changes), SOURCE, tokenizer, "id", tmp_path)
    assert what in error.value.what
    assert fix in error.value.fix
    assert not (tmp_path / "tokens.jsonl").exists()


# --------------------------------------------------------------------------- what a recipe may say


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"column": "a", "columns": {"text": "b"}}, "'column' or 'columns', not both"),
        ({"columns": {"prompt": "a"}}, "'prompt' and 'response' go together"),
        ({"columns": {"id": "a"}}, "name one of 'text'"),
        ({"columns": {"text": "a", "messages": "b"}}, "name one of 'text'"),
        ({"strata": strata(en=75, zh=25)}, "a share above 0 and at most 1"),
        ({"strata": strata(en=0.5, zh=0.25)}, "add up to 1, not 0.75"),
        ({"min_tokens": 65}, "min_tokens 65 is more than max_tokens 64"),
        ({"chat_template": "no"}, "valid boolean"),
        ({"packing": "concat"}, "'truncate' or 'pack'"),
    ],
)
def test_spec_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        spec(**changes)


def test_chat_template_none_is_false() -> None:
    assert spec(chat_template="none") == spec(chat_template=False)


def test_min_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    wanted = spec(samples=20, min_tokens=150, max_tokens=400)
    sealed = seal(wanted, SOURCE, tokenizer, "id", tmp_path)
    assert min(row.tokens for row in sealed.rows) >= 150
    assert list(sealed.dropped) == ["shorter than 150 tokens"]
    assert not sealed.row_ids & {*sealed.dropped["shorter than 150 tokens"].rows}


# --------------------------------------------------------------------------- the seal


def test_histogram_counts_every_sample_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sealed = seal(spec(samples=50), SOURCE, tokenizer, "id", tmp_path)
    edges = [*LENGTH_BINS, 10**9]
    for counts, lengths in (
        (sealed.lengths.sealed, [len(ids) for ids in tokens(tmp_path)]),
        (sealed.lengths.rendered, None),
    ):
        assert sum(counts) == 50
        if lengths:
            bins = pairwise(edges)
            assert list(counts) == [sum(a <= n < b for n in lengths) for a, b in bins]
    assert sealed.lengths.edges == LENGTH_BINS


def test_the_seal_covers_what_the_set_is_and_no_more(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sealed = seal(spec(samples=4), SOURCE, tokenizer, "id", tmp_path)
    assert sealed.seal == seal_of(sealed)
    for changes in ({"id": "other"}, {"source": "/another/path.jsonl"}):
        assert seal_of(sealed.model_copy(update=changes)) == sealed.seal
    for changes in (
        {"seed": 9},
        {"source_digest": "x"},
        {"source_revision": "x"},
        {"tokenizer_digest": "x"},
        {"template_digest": None},
        {"packing": "pack"},
        {"dropped": {}, "rows": sealed.rows[:3]},
    ):
        assert seal_of(sealed.model_copy(update=changes)) != sealed.seal


def test_tokens_that_changed_are_noticed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sealed = seal(spec(samples=4), SOURCE, tokenizer, "id", tmp_path)
    assert altered(tmp_path, sealed) == ""
    assert "seal" in altered(tmp_path, sealed.model_copy(update={"seed": 5}))
    file = tmp_path / "tokens.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    assert "not those that were sealed" in altered(tmp_path, sealed)
    file.write_text("[" * 100_000)
    assert "lost or damaged" in altered(tmp_path, sealed)
    file.write_text("[1, 2")
    assert "lost or damaged" in altered(tmp_path, sealed)
    file.unlink()
    assert "lost or damaged" in altered(tmp_path, sealed)


def test_a_record_of_the_first_schema_is_stale(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sealed = seal(spec(samples=4), SOURCE, tokenizer, "id", tmp_path)
    path = tmp_path / "calibration.json"
    write_record(path, sealed)
    assert read_record(path, Calibration) == sealed
    old = json.loads(path.read_text()) | {"schema": "workbench.calibration/1"}
    for name in ("strata", "lengths", "packing", "min_tokens", "source_rows"):
        old.pop(name)
    path.write_text(json.dumps(old))
    with pytest.raises(
        StoreError, match=r"calibration/1'.*reads 'workbench.calibration/2'"
    ) as error:
        read_record(path, Calibration)
    assert "run the step again" in error.value.fix


_SCRIPT = """
import sys
from pathlib import Path
from workbench.calibration import seal
from workbench.spec import CalibrationSpec
from workbench.tokenizer import Tokenizer
spec = CalibrationSpec.model_validate_json(sys.argv[1])
sealed = seal(spec, Path(sys.argv[2]), Tokenizer.load(Path(sys.argv[3])), "id", Path(sys.argv[4]))
print(sealed.seal, sealed.model_dump_json())
"""


@pytest.mark.parametrize(
    "changes",
    [{}, {"packing": "pack"}, {"strata": strata(en=0.6, zh=0.4)}, {"chat_template": False}],
    ids=["plain", "packed", "strata", "no template"],
)
def test_two_machines_seal_the_same(tiny: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    wanted = spec(**({"samples": 20, "seed": 3} | changes))
    printed = set()
    written = set()
    for n, (hashes, locale, zone) in enumerate(
        [("0", "C", "UTC"), ("1", "C.UTF-8", "Asia/Shanghai"), ("77", "POSIX", "America/St_Johns")]
    ):
        here = tmp_path / str(n)
        here.mkdir()
        source, model = here / "copy.jsonl", here / "model"
        shutil.copyfile(SOURCE, source)
        shutil.copytree(tiny, model)
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, wanted.model_dump_json(), source, model, here],
            cwd=here,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONHASHSEED": hashes,
                "LC_ALL": locale,
                "LANG": locale,
                "TZ": zone,
                "HOME": str(here),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout)
        written.add((here / "tokens.jsonl").read_bytes())
    assert len(printed) == len(written) == 1


def test_a_template_makes_no_short_row_long(tokenizer: Tokenizer, tmp_path: Path) -> None:
    words = "a sentence of quite enough words for anyone, number"
    rows = [{"id": f"r{n}", "text": f"{words} {n}"} for n in range(3)]
    source = write(tmp_path / "s.jsonl", *rows, {"id": "hi", "text": "hi"})
    rendered = tokenizer.render([{"role": "user", "content": "hi"}], False)
    assert len(tokenizer.encode(rendered, add_special_tokens=False)) >= 8
    assert tokenizer.template is not None
    with pytest.raises(CalibrationError, match="1 shorter than 8 tokens") as caught:
        seal(spec(samples=4), source, tokenizer, "id", tmp_path)
    assert caught.value.fix.endswith("add rows of 8 tokens or more, lower calibration.min_tokens")
    assert seal(spec(samples=3), source, tokenizer, "id", tmp_path).row_ids == {"r0", "r1", "r2"}
    with pytest.raises(CalibrationError, match="1 shorter than 8 tokens") as caught:
        seal(spec(samples=1), write(source, {"id": "hi", "text": "hi"}), tokenizer, "id", tmp_path)
    assert caught.value.fix.endswith("or see whether the chat template shows the messages")


def test_rows_that_all_lack_the_stratum_are_no_empty_set(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    rows = [{"text": f"{LONG} {number}", "language": None} for number in range(5)]
    source = write(tmp_path / "s.jsonl", *rows)
    with pytest.raises(CalibrationError, match="no usable row has a value of 'language'"):
        seal(spec(strata={"by": "language"}), source, tokenizer, "id", tmp_path)


def test_rows_that_are_alike_once_cut_are_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Behind a long system prompt nothing of the rows themselves may be left."""
    system = {"role": "system", "content": LONG * 3}
    rows = [
        {"id": str(n), "messages": [system, {"role": "user", "content": f"{n} {LONG}"}]}
        for n in range(6)
    ]
    source = write(tmp_path / "s.jsonl", *rows, {"id": "own", "text": LONG})
    sealed = seal(spec(samples=2), source, tokenizer, "id", tmp_path)
    assert len({row.token_digest for row in sealed.rows}) == 2
    with pytest.raises(CalibrationError, match="5 with another row's first 64 tokens"):
        seal(spec(samples=3), source, tokenizer, "id", tmp_path)
    assert len(seal(spec(samples=6, max_tokens=512), source, tokenizer, "id", tmp_path).rows) == 6


def test_a_template_that_leaves_the_rows_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    silent = Tokenizer(tokenizer._backend, tokenizer.special, "the same words for all", "d")
    source = write(tmp_path / "s.jsonl", *({"text": f"{LONG} {n}"} for n in range(4)))
    for packing in ("truncate", "pack"):
        with pytest.raises(CalibrationError, match="3 with another row's"):
            seal(spec(packing=packing), source, silent, "id", tmp_path)


def test_a_source_that_changes_while_a_run_is_open_is_no_set(project: Path) -> None:
    """The id of the step, under which the set would be found again, is that of the older file."""
    source = project / "own.jsonl"
    shutil.copyfile(SOURCE, source)
    edit_recipe(project, lambda r: r["calibration"].update(source="own.jsonl"))
    context = new_run(project / "recipe.yaml")
    assert context.facts.source_digest
    source.write_bytes(source.read_bytes() + b'{"text": "one more row, long enough to be used"}\n')
    with pytest.raises(CalibrationError, match="changed since the run was opened"):
        steps.calibrate(context)
    sealed = steps.calibrate(new_run(project / "recipe.yaml"))
    assert sealed.source_rows == 202


def test_a_source_that_changes_while_it_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = write(tmp_path / "s.jsonl", *({"text": f"{LONG} {n}"} for n in range(5)))

    class Writing(Tokenizer):
        def render(self, *args: Any, **more: Any) -> str:
            source.write_text("")
            return tokenizer.render(*args, **more)

    writing = Writing(tokenizer._backend, tokenizer.special, tokenizer.template, "d")
    with pytest.raises(CalibrationError, match="changed while it was read"):
        seal(spec(), source, writing, "id", tmp_path)
