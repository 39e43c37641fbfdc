import json
import shutil
from pathlib import Path

import pytest
from hard_lines import hard_lines
from hypothesis import given
from hypothesis import strategies as st
from suite_folders import GENERATE, SAMPLE, WEATHER

from workbench.checkpoint import inspect
from workbench.errors import CheckpointError, RecipeError
from workbench.prompts import render_prompt
from workbench.suite_spec import Sample, SuiteSpec
from workbench.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def with_template(tiny: Path, folder: Path, template: str) -> Tokenizer:
    shutil.copytree(tiny, folder)
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.load(folder)


def test_every_text_comes_back(tokenizer: Tokenizer) -> None:
    for line in hard_lines(1000):
        assert tokenizer.decode(tokenizer.encode(line, add_special_tokens=False)) == line


@given(st.text())
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_special_tokens_in_the_text_are_one_id(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|><|im_end|>", add_special_tokens=False) == [1, 2]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


def test_render(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Yes"}]
    turns = "<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
    assert tokenizer.render(messages, add_generation_prompt=False) == turns
    assert tokenizer.render(messages, True) == turns + "<|im_start|>assistant\n"


def test_what_templates_of_the_field_use(tiny: Path, tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "    {% generation %}{{ m.content | tojson }}{% endgeneration %}\n"
        "{% endfor %}{{ strftime_now('%Y') | length }}{% if tools %}T{% endif %}"
    )
    tokenizer = with_template(tiny, tmp_path / "t", template)
    messages = [{"role": "skip", "content": "x"}, {"role": "user", "content": "é<>'"}]
    # trim_blocks and lstrip_blocks as in transformers; tojson neither escapes HTML nor Unicode.
    assert tokenizer.render(messages, False) == '<|im_start|>"é<>\'"4'


def test_a_fixed_day(tiny: Path, tmp_path: Path) -> None:
    tokenizer = with_template(tiny, tmp_path / "t", "{{ strftime_now('%d %b %Y') }}")
    assert tokenizer.render([], False) == "01 Jan 2026"


def test_template_that_raises(tiny: Path, tmp_path: Path) -> None:
    template = "{{ raise_exception('only user and assistant') }}"
    tokenizer = with_template(tiny, tmp_path / "t", template)
    with pytest.raises(RecipeError, match="only user and assistant") as error:
        tokenizer.render([{"role": "tool", "content": ""}], False)
    assert "tool" in error.value.where


@pytest.mark.parametrize("attack", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_the_sandbox_holds(tiny: Path, tmp_path: Path, attack: str) -> None:
    tokenizer = with_template(tiny, tmp_path / "t", attack)
    with pytest.raises(RecipeError):
        tokenizer.render([{"role": "user", "content": "x"}], False)


def test_no_template(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "t")
    (tmp_path / "t" / "chat_template.jinja").unlink()
    config = tmp_path / "t" / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    tokenizer = Tokenizer.load(tmp_path / "t")
    assert tokenizer.template_digest is None
    assert tokenizer.eos_id == 2
    with pytest.raises(RecipeError, match="no chat template"):
        tokenizer.render([], True)


def test_digests_are_the_checkpoints(tiny: Path, tokenizer: Tokenizer) -> None:
    found = inspect(tiny)
    assert tokenizer.digest == found.tokenizer_digest
    assert tokenizer.template_digest == found.template_digest


def test_saved_truncation_is_not_applied(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "t")
    file = tmp_path / "t" / "tokenizer.json"
    value = json.loads(file.read_text())
    value["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    file.write_text(json.dumps(value))
    assert len(Tokenizer.load(tmp_path / "t").encode("a" * 100, False)) > 4


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{}", "cannot be read"),
        ("chat_template.jinja", "{% for %}", "chat template is not valid"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("tokenizer.json", None, "no tokenizer"),
    ],
)
def test_broken_files(
    tiny: Path, tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    shutil.copytree(tiny, tmp_path / "t")
    (tmp_path / "t" / file).unlink()
    if content is not None:
        (tmp_path / "t" / file).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(tmp_path / "t")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        (r"{{ '\ud800' }}", "surrogates"),
        ("{{ range(10 ** 9) | length }}", "too big"),
    ],
)
def test_a_template_that_fails_as_programs_do(
    tiny: Path, tmp_path: Path, template: str, says: str
) -> None:
    tokenizer = with_template(tiny, tmp_path / "t", template)
    with pytest.raises(RecipeError, match=says):
        tokenizer.render([{"role": "user", "content": "x"}], False)


@pytest.mark.parametrize("content", ["[]", "5", "[" * 100_000])
def test_a_tokenizer_config_that_is_no_object(tiny: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(tiny, tmp_path / "t")
    (tmp_path / "t" / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not"):
        Tokenizer.load(tmp_path / "t")


def with_bos(tiny: Path, folder: Path, template: str = "") -> Tokenizer:
    """The tiny tokenizer with a BOS of its own that its post-processor adds, as Llama's does."""
    shutil.copytree(tiny, folder)
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    token = {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
    first = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}]
    own = [{"Sequence": {"id": "A", "type_id": 0}}]
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": first + own,
        "pair": first + own + [{"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": token},
    }
    file.write_text(json.dumps(data))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.load(folder)


def test_the_bos_a_tokenizer_adds_itself(tokenizer: Tokenizer, tiny: Path, tmp_path: Path) -> None:
    assert tokenizer.opening == "" and tokenizer.expected_bos(rendered=False) == 0
    # SmolLM2's template begins with what its configuration calls the BOS.
    assert tokenizer.expected_bos(rendered=True) == 1
    own = with_bos(tiny, tmp_path / "a", "{{ messages[0].content }}")
    assert own.opening == "<|im_start|>"
    assert (own.expected_bos(rendered=False), own.expected_bos(rendered=True)) == (1, 0)
    twice = with_bos(tiny, tmp_path / "b", "{{ bos_token }}{{ bos_token }}")
    assert twice.expected_bos(rendered=True) == 2


def test_bos_count(tokenizer: Tokenizer) -> None:
    assert [tokenizer.bos_count(ids) for ids in ([], [5], [1], [1, 1, 5, 1])] == [0, 0, 1, 2]


def test_a_plain_prompt_has_the_bos_once(tokenizer: Tokenizer, tiny: Path, tmp_path: Path) -> None:
    own = with_bos(tiny, tmp_path / "own")
    spec = SuiteSpec.model_validate(GENERATE)
    for question in ("Q", "<|im_start|>Q"):
        sample = Sample.model_validate(SAMPLE | {"question": question})
        text = render_prompt(spec, sample, own)
        assert own.bos_count(own.encode(text, add_special_tokens=False)) == 1
    asked = Sample.model_validate(SAMPLE)
    text = render_prompt(spec, asked, own)
    whole = own.encode(str(SAMPLE["question"]), add_special_tokens=True)
    assert own.encode(text, add_special_tokens=False) == whole
    assert render_prompt(spec, asked, tokenizer) == SAMPLE["question"]


def test_tools_reach_the_template(tiny: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    template = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ messages | length }}"
    shown = with_template(tiny, tmp_path / "tools", template)
    messages = [{"role": "user", "content": "x"}]
    assert shown.render(messages, True, tools=(WEATHER,)) == "weather 1"
    assert shown.render(messages, True, tools=()) == shown.render(messages, True) == "1"
    assert tokenizer.render(messages, True, tools=[WEATHER]) == tokenizer.render(messages, True)
