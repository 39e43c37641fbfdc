import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.digest import content_id
from workbench.errors import DiskFull, StoreError
from workbench.records import SampleRow
from workbench.rows import (
    IDENTITY,
    RowFile,
    clean_text,
    keep_rows,
    read_rows,
    rows_digest,
    write_rows,
)


def row(id_: str, **changes: Any) -> SampleRow:
    values: dict[str, Any] = {
        "id": id_,
        "prompt_digest": "p",
        "target_digest": "t",
        "output": "x",
        "score": 1.0,
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "output_tokens": 1,
        "started": 0.0,
        "seconds": 0.5,
    }
    return SampleRow.model_validate(values | changes)


ASKED = dict.fromkeys(IDENTITY, "") | {
    **{"prompt_digest": "p", "target_digest": "t"},
    **{"template_digest": None, "cluster": None},
}
DIGESTS = {"a": ASKED, "b": ASKED, "c": ASKED}


def append(path: Path, *rows: SampleRow) -> None:
    file = RowFile(path)
    for one in rows:
        file.append(one)
    file.close()


@given(st.text(st.characters(codec="utf-8")), st.floats(0, 1))
def test_what_is_appended_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, score: float
) -> None:
    path = tmp_path_factory.mktemp("rows") / "deep" / "rows.jsonl"
    written = (row("a", output=text, score=score), row("b", error=text, score=None))
    append(path, written[0])
    append(path, written[1])
    assert read_rows(path) == written


def test_control_codes_and_line_separators_stay_in_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written = (row("a", output="\x1b[2J\x00\r\n\u2028\u2029\x85</script>"), row("b"))
    write_rows(path, written)
    assert path.read_bytes().count(b"\n") == 2
    assert read_rows(path) == written


def test_a_row_is_readable_before_the_file_is_closed(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    file.append(row("a"))
    assert read_rows(tmp_path / "rows.jsonl") == (row("a"),)
    file.close()


@given(st.data())
def test_a_file_cut_anywhere_keeps_the_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_rows(path, [row("a", output="ä\n"), row("b"), row("c")])
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    ends = [i for i in range(len(whole)) if whole[i : i + 1] == b"\n"]
    # The last byte of a line is its line end; without it the JSON may still be whole.
    assert set(keep_rows(path, DIGESTS)) == {
        name for name, end in zip("abc", ends, strict=True) if cut >= end
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"error": "timeout: no answer", "score": None},
        {"prompt_digest": "q"},
        {"target_digest": "u"},
        {"id_": "z"},
    ],
)
def test_rows_that_must_be_asked_again_are_not_kept(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row(**({"id_": "a"} | changes)), row("b")])
    assert set(keep_rows(path, DIGESTS)) == {"b"}


def test_damage_in_the_middle_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row("a"), row("b"), row("c")])
    lines = path.read_bytes().split(b"\n")
    lines[1] = b"\x00" * len(lines[1])
    path.write_bytes(b"\n".join(lines))
    assert set(keep_rows(path, DIGESTS)) == {"a", "c"}


def test_no_file_keeps_nothing(tmp_path: Path) -> None:
    assert keep_rows(tmp_path / "rows.jsonl", DIGESTS) == {}


def test_the_later_of_two_good_rows_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, row("a", output="1"), row("a", output="2"))
    assert keep_rows(path, DIGESTS)["a"].output == "2"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"id": "b"', "a line is not a row: Expecting ',' delimiter"),
        (b"[1]", "a line is not a row"),
        (b'{"id": "b"}', "a line is not a row: Field required at prompt_digest"),
        (b"", "a line is not a row"),
        (b"\xff", "a line is not a row"),
        (b"[" * 100_000, "nested too deep"),
        (None, "sample 'a' has two rows, the first in line 1"),
    ],
)
def test_reading_is_strict_and_names_the_line(
    tmp_path: Path, line: bytes | None, what: str
) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row("a")])
    first = path.read_bytes()
    path.write_bytes(first + (first[:-1] if line is None else line) + b"\n")
    with pytest.raises(StoreError) as caught:
        read_rows(path)
    assert what in caught.value.what and caught.value.where == f"{path}:2"


def test_a_score_that_is_no_number_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    append(path, row("a"))
    path.write_bytes(path.read_bytes().replace(b'"score":1.0', b'"score":NaN'))
    assert b"NaN" in path.read_bytes()
    with pytest.raises(StoreError, match="NaN"):
        read_rows(path)


def test_missing_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        read_rows(tmp_path / "rows.jsonl")


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert read_rows(tmp_path / "rows.jsonl") == ()


def test_a_full_disk_is_named() -> None:
    file = RowFile(Path("/dev/full"))
    with pytest.raises(DiskFull, match="no space left"):
        file.append(row("a"))
    file.close()


def test_the_file_is_closed_after_syncing(tmp_path: Path) -> None:
    async def use() -> RowFile:
        file = RowFile(tmp_path / "rows.jsonl")
        async with file.syncing():
            file.append(row("a"))
        return file

    file = asyncio.run(use())
    with pytest.raises(ValueError):
        file.append(row("b"))
    assert len(read_rows(tmp_path / "rows.jsonl")) == 1


@given(st.text(st.characters()))
def test_clean_text_keeps_what_utf8_can_hold(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode("utf-8")
    halves = any(0xD800 <= ord(c) <= 0xDFFF for c in text)
    assert halves or cleaned == text


def test_clean_text_replaces_halves() -> None:
    assert clean_text("a\ud800b") == "a\ufffdb"
    assert clean_text(json.loads('"\\ud83d\\ude00"')) == "😀"


# ------------------------------------------------- fast ways that must be the plain ones


def plain_digest(rows: list[SampleRow]) -> str:
    """As it is defined, with the whole list in memory."""
    return content_id(
        [
            [
                *(r.id, r.repeat, *(getattr(r, name) for name in IDENTITY), r.tokens_digest),
                *(r.output, r.score, r.error is None, list(r.flags)),
            ]
            for r in rows
        ]
    )


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # half characters included
TINY = st.floats(0, 1e-3)
ODD = [-0.0, 1e-4, 1e-5, 3.2e-7, 9e-9, 5e-324, 1.5, 1e16]


@given(
    st.lists(
        st.builds(
            row,
            st.text(),
            repeat=st.integers(0, 2**70),
            output=ANY_TEXT,
            score=st.none() | st.floats(0, 1) | TINY | st.sampled_from(ODD),
            tokens_digest=st.none() | st.text(),
            cluster=st.none() | ANY_TEXT,
            error=st.none() | st.text(),
            flags=st.lists(st.sampled_from(["empty", "refused"])),
        ),
        max_size=4,
    )
)
def test_the_digest_of_rows_is_the_content_id_of_a_list_of_them(rows: list[SampleRow]) -> None:
    assert rows_digest(rows) == plain_digest(rows)
    assert rows_digest(iter(rows)) == plain_digest(rows)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_what_has_no_canonical_form_has_no_digest(score: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        rows_digest([row("a"), row("b", score=score)])


def plainly(line: str) -> SampleRow | None:
    """A line as Python's own parser and the model read it; None where they do not."""

    def no_constant(word: str) -> None:
        raise ValueError(word)

    try:
        found = SampleRow.model_validate(json.loads(line, parse_constant=no_constant))
    except (ValueError, RecursionError):
        return None
    return found if math.isfinite((found.score or 0) + found.started + found.seconds) else None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(2**62, 2**200) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*SampleRow.model_fields, "other"])


@given(FIELDS, JSON, st.booleans())
def test_a_line_is_read_as_the_plain_way_reads_it(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any, raw: bool
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    line = json.dumps(row("a").model_dump(mode="json") | {field: value}, ensure_ascii=not raw)
    path.write_bytes(line.encode("utf-8", "surrogatepass") + b"\n")
    try:
        (found,) = read_rows(path)
    except StoreError:
        found = None
    wanted = plainly(line)
    assert found == wanted
    # 1 and 1.0 are equal, and no digest would be.
    assert found is None or wanted is None or repr(found) == repr(wanted)


@pytest.mark.parametrize(
    "text",
    ["1e999", "-0.0", "-0", "1E2", '"1"', "0.1e-400", "1" * 400, "[" * 500 + "]" * 500, "01", "1."],
)
def test_odd_numbers_are_read_as_the_plain_way_reads_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    for field in ("score", "prompt_tokens", "grade"):
        value = f'{{"x": {text}}}' if field == "grade" else text
        line = json.dumps(row("a").model_dump(mode="json") | {field: "@"}).replace('"@"', value)
        path.write_text(f"{line}\n")
        try:
            (found,) = read_rows(path)
        except StoreError:
            found = None
        wanted = plainly(line)
        assert repr(found) == repr(wanted), field


@pytest.mark.parametrize("field", ["score", "started", "seconds"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_row_with_an_infinite_number_is_damaged(tmp_path: Path, field: str, number: str) -> None:
    path = tmp_path / "rows.jsonl"
    line = json.dumps(row("b").model_dump(mode="json") | {field: "@"}).replace('"@"', number)
    write_rows(path, [row("a")])
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(StoreError, match="a line is not a row") as caught:
        read_rows(path)
    assert caught.value.where == f"{path}:2"
    assert set(keep_rows(path, DIGESTS)) == {"a"}, "it is asked again"


def test_rows_that_share_the_names_of_their_fields_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    less = {k: v for k, v in row("c").model_dump(mode="json").items() if k != "cluster"}
    write_rows(path, [row("a"), row("b")])
    path.write_bytes(path.read_bytes() + json.dumps(less).encode() + b"\n")
    one, other, third = read_rows(path)
    assert one.model_fields_set is other.model_fields_set
    assert third.model_fields_set == less.keys() < other.model_fields_set
    copied = third.model_copy(update={"cluster": "x"})
    assert "cluster" in copied.model_fields_set and "cluster" not in third.model_fields_set
    assert (one.id, other.id, third.cluster) == ("a", "b", None)
