"""Digests and content ids."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.digest import canonical_json, content_id, sha256_file, sha256_text, tree_digests

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(alphabet=st.characters(exclude_categories=["Cs"])), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_canonical_json_reads_back_and_is_stable(value: object) -> None:
    data = canonical_json(value)
    assert canonical_json(json.loads(data)) == data


@given(st.dictionaries(st.text(alphabet="abcdef", min_size=1), st.integers(), min_size=2))
def test_key_order_does_not_matter(value: dict[str, int]) -> None:
    assert content_id(value) == content_id(dict(reversed(value.items())))


def test_known_answer() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'.encode()
    assert content_id({}) == hashlib.sha256(b"{}").hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_has_no_canonical_form(value: float) -> None:
    with pytest.raises(ValueError):
        content_id({"a": value})


def test_lone_surrogate_has_a_digest() -> None:
    assert sha256_text("\ud800") != sha256_text("?")


def test_files_and_trees(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"1" * 3_000_000)
    (tmp_path / "a").write_bytes(b"")
    digests = tree_digests(tmp_path)
    assert list(digests) == ["a", "b/x"]
    assert digests["b/x"] == hashlib.sha256(b"1" * 3_000_000).hexdigest()
    assert digests["a"] == sha256_file(tmp_path / "a") == hashlib.sha256().hexdigest()
