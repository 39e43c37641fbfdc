import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite_folders import CALLS, GENERATE, JSON, RANK, SAMPLE, write

from workbench.errors import UserError
from workbench.suite_check import Model, check_suite, open_model, right_answers
from workbench.suite_spec import Sample, SuiteSpec
from workbench.suites import Suite, load_suite
from workbench.tokenizer import Tokenizer


def suite(tmp_path: Path, spec: dict[str, Any], *samples: dict[str, Any]) -> Suite:
    return load_suite(write(tmp_path / "mine", spec, *samples))


def said(of: Suite, level: str, model: Model | None = None) -> list[str]:
    return [finding.what for finding in check_suite(of, model) if finding.level == level]


def many(n: int, **fields: Any) -> list[dict[str, Any]]:
    return [SAMPLE | {"id": f"s{i}", "question": f"Q{i}?"} | fields for i in range(n)]


def test_what_a_suite_is(tmp_path: Path) -> None:
    spec = GENERATE | {"cluster": "of", "tags": ["x", "y"], "kind": "short_question"}
    spec |= {"repeats": 3, "sampling": {"temperature": 0.5}}
    rows = [row | {"of": i // 8, "language": "zh" if i % 2 else "en"} for i, row in
            enumerate(many(32))]  # fmt: skip
    of = suite(tmp_path, spec, *rows)
    found = said(of, "ok")
    assert found[0].startswith("short_question, generated, scorer contains, 32 samples; critical,")
    assert found[1:] == [
        "each asked 3 times at 0.5",
        "languages: en 16, zh 16",
        "tags: x, y",
        "clusters: 4 by 'of', the largest of 8",
        "self-test: each of 32 targets scores 1 by 'contains'",
    ]
    assert said(of, "warn") == [] and said(of, "error") == []


def test_few_samples_and_one_cluster_are_warned_of(tmp_path: Path) -> None:
    of = suite(tmp_path, GENERATE | {"cluster": "of"}, *many(2, of="x"))
    warned = said(of, "warn")
    assert any("clusters: 1 by 'of'" in text for text in warned)
    assert any(
        "2 samples: too few to settle anything: a policy's check wants 30" in text
        for text in warned
    )


def test_a_target_its_own_scorer_calls_wrong_is_an_error(tmp_path: Path) -> None:
    of = suite(tmp_path, GENERATE, *many(8))
    broken = Suite(
        of.spec,
        tuple(s.model_copy(update={"target": ["Paris", "?"]}) for s in of.samples),
        of.digest,
        of.path,
    )
    errors = said(broken, "error")
    assert errors[0] == "sample 's0': its own target '?' scores 0, not 1"
    assert len(errors) == 6 and errors[-1] == "and 3 more targets that do not score 1"
    assert not any("self-test" in text for text in said(broken, "ok"))


@pytest.mark.parametrize(
    ("spec", "target", "answers"),
    [
        (GENERATE, ["Paris", "Lutetia"], ("Paris", "Lutetia")),
        (GENERATE | {"scorer": {"name": "contains", "all": True}}, ["a", "b"], ("a\nb",)),
        (GENERATE | {"scorer": "numeric"}, 3.5, ("3.5",)),
        (GENERATE | {"scorer": "regex"}, "a+", ()),
        (GENERATE | {"scorer": "refusal"}, "refuse", ()),
        (RANK, "Paris", ("Paris",)),
        (JSON, {"n": 1}, ('{"n": 1}',)),
        (
            CALLS,
            [{"name": "weather", "arguments": {"city": "Oslo"}}],
            (
                json.dumps(
                    {
                        "tool_calls": [{"name": "weather", "arguments": '{"city": "Oslo"}'}],
                        "content": None,
                    }
                ),
            ),
        ),
        (CALLS, [], ('{"tool_calls": [], "content": null}',)),
    ],
)
def test_right_answers(
    tmp_path: Path, spec: dict[str, Any], target: Any, answers: tuple[str, ...]
) -> None:
    of = Suite(SuiteSpec.model_validate(spec), (), "", tmp_path)
    assert right_answers(of, Sample.model_validate(SAMPLE | {"target": target})) == answers


def test_samples_that_ask_the_same_are_named(tmp_path: Path) -> None:
    rows = [*many(30), SAMPLE | {"id": "again", "question": "Q3?"}]
    assert "1 samples ask what another one asks: 'again' = 's3'" in said(
        suite(tmp_path, GENERATE, *rows), "warn"
    )
    ranked = [row | {"choices": ["Paris", "Rome"]} for row in rows]
    ranked[-1]["choices"] = ["Rome", "Paris"]
    assert not any("ask what" in t for t in said(suite(tmp_path, RANK, *ranked), "warn"))


def weighed(**units: float) -> dict[str, Any]:
    return GENERATE | {"scorer": {"name": "numeric", "units": units}}


def test_targets_are_graded_in_every_unit(tmp_path: Path) -> None:
    rows = [*many(29, target="0.3 kg"), SAMPLE | {"id": "small", "target": "3e-9 g"}]
    of = suite(tmp_path, weighed(kg=1, g=0.001, t=1000), *rows)
    assert "self-test: each of 90 targets, in each unit, scores 1 by 'numeric'" in said(of, "ok")
    assert said(of, "warn") == said(of, "error") == []


def test_a_unit_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    of = suite(tmp_path, weighed(**{"kg": 1, "10^3 kg": 1000}), *many(30, target="5 kg"))
    text = "sample 's0': its target in another unit, '0.005 10^3 kg' scores 0, not 1"
    assert said(of, "error")[0] == text


def test_targets_without_a_unit_are_warned_of(tmp_path: Path) -> None:
    rows = [*many(30, target="500 g"), SAMPLE | {"id": "bare", "question": "x", "target": 2}]
    of = suite(tmp_path, weighed(g=0.001, kg=1), *rows)
    assert said(of, "warn") == [
        "1 of 31 targets say no unit and are read as 'kg': 'bare' (write it: \"3 kg\")"
    ]
    assert said(of, "error") == []
    (warned,) = said(suite(tmp_path, weighed(g=2), *many(30, target=3)), "warn")
    assert "30 of 30" in warned and "a unit of factor 1, which 'units' does not name" in warned
    assert said(suite(tmp_path, weighed(), *many(30, target=3)), "warn") == []


def test_samples_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    rows = [*many(30), SAMPLE | {"id": "again", "question": "Q3?", "target": "Rome"}]
    (warned,) = said(suite(tmp_path, GENERATE, *rows), "warn")
    assert "have another target" in warned and warned.endswith("always wrong: 'again' = 's3'")


def test_an_empty_field_of_the_prompt_is_named(tmp_path: Path) -> None:
    rows = [*many(30, note=""), SAMPLE | {"id": "none", "question": " \n"}]
    assert said(suite(tmp_path, GENERATE, *rows), "warn") == [
        "1 samples have nothing in 'question', which the prompt shows: 'none'"
    ]


def test_a_call_that_must_be_made_and_must_not(tmp_path: Path) -> None:
    rows = [row | {"target": []} for row in many(30)]
    assert said(suite(tmp_path / "auto", CALLS, *rows), "error") == []
    with pytest.raises(UserError, match="no answer could be right") as caught:
        suite(tmp_path / "must", CALLS | {"tool_choice": "required"}, rows[0])
    assert caught.value.fix.startswith("say 'tool_choice: auto'")


def test_prompts_are_measured_under_a_checkpoint(tmp_path: Path, tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    rows = [*many(30), SAMPLE | {"id": "long", "question": "word " * 300}]
    of = suite(tmp_path, GENERATE | {"max_tokens": 10}, *rows)
    length = len(tokenizer.encode("word " * 300, False))
    fits = Model(tokenizer, length + 10, "here")
    text = f"longest prompt: {length} tokens, sample 'long'; 10 more for an answer; "
    assert f"{text}{length + 10} fit (here)" in said(of, "ok", fits)
    assert said(of, "warn", fits) == []
    short = fits._replace(longest=length + 9)
    assert said(of, "warn", short) == ["1 of 31 samples do not fit and would fail: 'long'"]


def with_template(tiny: Path, folder: Path, template: str) -> Model:
    folder.mkdir(exist_ok=True)
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(template)
    return Model(Tokenizer.load(folder), 99, "")


@pytest.mark.parametrize(
    ("template", "level"),
    [
        ("{{ messages[0].content }}", "warn"),
        ("{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}", "ok"),
    ],
)
def test_a_template_without_tools_is_warned_of(
    tmp_path: Path, tiny: Path, template: str, level: str
) -> None:
    model = with_template(tiny, tmp_path / "model", template)
    of = suite(tmp_path, CALLS | {"scorer": {"name": "judge", "rubric": "r"}}, *many(30))
    found = [f.level for f in check_suite(of, model) if "template shows" in f.what]
    assert found == [level]


def test_a_template_that_refuses_is_an_error(tmp_path: Path, tiny: Path) -> None:
    model = with_template(tiny, tmp_path / "model", "{{ raise_exception('no users') }}")
    of = suite(tmp_path, GENERATE | {"chat_template": True}, *many(30))
    errors = said(of, "error", model)
    assert len(errors) == 1 and "no users" in errors[0] and "'s0'" in errors[0]


def test_the_model_of_a_recipe_or_a_checkpoint(project: Path, tiny: Path) -> None:
    assert open_model(None, None) is None
    of_recipe = open_model(project / "recipe.yaml", None)
    of_checkpoint = open_model(None, tiny)
    assert of_recipe and of_checkpoint
    assert of_recipe.tokenizer.digest == of_checkpoint.tokenizer.digest
    assert of_recipe.longest <= of_checkpoint.longest
    with pytest.raises(UserError, match="at once"):
        open_model(project / "recipe.yaml", tiny)


# --------------------------------------------------------------------------- the command


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with suites of its own."""
    root = tmp_path / "own"
    (root / "eval_suites").mkdir(parents=True)
    (root / "calib_data").mkdir()
    monkeypatch.chdir(root)
    return root


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", "suite", *arguments], capture_output=True, text=True
    )


def test_the_shipped_suites_pass(workbench: Callable[..., Any]) -> None:
    done = workbench("suite", "check", "--recipe", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stdout and "sentiment: self-test: each of 88" in done.stdout
    listed = workbench("suite", "list").stdout
    assert "sentiment" in listed and "rank_choices" in listed


def test_a_broken_suite_does_not_hide_the_others(own: Path) -> None:
    write(own / "eval_suites" / "fine", GENERATE | {"name": "fine"}, *many(2))
    write(own / "eval_suites" / "torn", GENERATE | {"name": "torn", "tags": ["\x1b[2J"]}, "{")
    done = call("check")
    assert done.returncode == 2
    assert "fine: self-test" in done.stdout
    assert "torn/samples.jsonl:1" in done.stderr and "Traceback" not in done.stderr
    assert call("check", "fine").returncode == 0
    done = call("check", "fin")
    assert done.returncode == 2 and "did you mean 'fine'?" in done.stderr
    assert call("check", "../eval_suites/fine").returncode == 2
    listed = call("list")
    assert listed.returncode == 0 and "broken" in listed.stdout


def test_nothing_in_a_suite_reaches_the_terminal_raw(own: Path) -> None:
    spec = GENERATE | {"name": "fine", "tags": ["\x1b[2J\n"], "description": "\x1b]0;x\x07"}
    write(own / "eval_suites" / "fine", spec, *many(2, language="\x1b[31m"))
    for done in (call("check"), call("list")):
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout


def test_control_codes_and_long_values_do_not_reach_the_terminal_in_errors(own: Path) -> None:
    codes = "\x1b[2J\x07\r\x9b"
    suites = own / "eval_suites"
    twice = [{"id": f"a{codes}", "question": "q", "target": "x"}] * 2
    write(suites / "ids", GENERATE | {"name": "ids"}, *twice)
    write(suites / "keys", GENERATE | {"name": "keys", f"k{codes}": 1}, *many(2))
    write(suites / "long", GENERATE | {"name": "long", "tier": f"{codes}x" * 10**5}, *many(2))
    done = call("check")
    assert done.returncode == 2 and not done.stdout
    assert r"id 'a\x1b[2J\x07\r\x9b' is used twice" in done.stderr.replace("\\\\", "\\")
    assert r"unknown key 'k\x1b[2J\x07\r\x9b'" in done.stderr
    assert "more characters" in done.stderr and len(done.stderr) < 10_000
    assert not set(codes[:1] + codes[4:]) & set(done.stderr + call("list").stdout)


def test_a_finding_is_one_line_with_an_end(own: Path) -> None:
    choices = {"choices": ["yes", "no\x1b[2J"], "target": "yes"}
    samples = [{"id": f"s{i}", "question": "q", "language": "x\n" * 5000} | choices for i in (1, 2)]
    write(own / "eval_suites" / "fine", RANK | {"name": "fine"}, *samples)
    done = call("check")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) < 2100
    assert len(done.stdout.splitlines()) < 10


def test_a_short_target_that_is_searched_anywhere_is_a_warning(tmp_path: Path) -> None:
    targets = ["A", [r"\bB\b", "12"], "yes", "^C$", r"\d", "\u597d"]
    samples = [row | {"target": t} for row, t in zip(many(6), targets, strict=True)]
    few, short = said(suite(tmp_path, GENERATE | {"scorer": "regex"}, *samples), "warn")
    assert few.startswith("6 samples") and short.startswith("2 targets are found inside any word")
    assert "'A' of 's0', '12' of 's1' (write \\bA\\b for A" in short
    of = {"scorer": {"name": "regex", "pattern": "[A-Z]"}}
    assert len(said(suite(tmp_path, GENERATE | of, *samples), "warn")) == 1
