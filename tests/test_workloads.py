"""Workloads: exact lengths, prompts that share what they should and nothing else, and what fits."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from test_profile import Bytes, Words

from workbench.arrivals import (
    AnyArrivals,
    Arrivals,
    ClosedLoop,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from workbench.errors import RecipeError
from workbench.json_schema import complaint
from workbench.lengths import AnyLength, FixedLength, Length
from workbench.profile_spec import ProfileSpec
from workbench.recipe import load_spec
from workbench.servers.vllm import option_words
from workbench.suite_spec import Sample, SuiteSpec
from workbench.sweep_spec import OPTIONS
from workbench.traces import TraceRow, parse_trace
from workbench.traffic import Ask
from workbench.workloads import (
    PRESETS,
    Workload,
    begin_alike,
    make_asks,
    make_prompts,
    sample_keys,
    suite_asks,
    trace_asks,
)

RECIPES = Path(__file__).parents[1] / "notebooks" / "recipes"
CLOSED = ClosedLoop(concurrency=2)


def workload(**given: Any) -> Workload:
    return Workload.model_validate({"name": "w", "prompt_tokens": 40, "output_tokens": 8, **given})


def asks(spec: Workload, count: int = 30, seed: str = "0", tokenizer: Any = None) -> list[Ask]:
    return make_asks(spec, tokenizer or Words(), CLOSED, count=count, seed=seed)


# --------------------------------------------------------------------------- what is asked


@given(
    low=st.integers(1, 200),
    span=st.integers(0, 200),
    shared=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    seed=st.text(max_size=4),
    tokenizer=st.sampled_from([Bytes(), Words()]),
)
def test_every_prompt_has_exactly_its_drawn_length(
    low: int, span: int, shared: float, seed: str, tokenizer: Any
) -> None:
    length = {"distribution": "uniform", "min": low, "max": low + span}
    spec = workload(prompt_tokens=length, shared_prefix=shared)
    found = asks(spec, 20, seed, tokenizer)
    assert all(low <= len(ask.prompt) <= low + span for ask in found)
    # The lengths are those of the workload without a prefix: sharing changes no length.
    plain = asks(workload(prompt_tokens=length), 20, seed, tokenizer)
    assert [len(ask.prompt) for ask in found] == [len(ask.prompt) for ask in plain]
    assert found == asks(spec, 25, seed, tokenizer)[:20]


def test_prompts_differ_from_their_first_block_on_across_loads() -> None:
    every = [ask for seed in ("a", "b", "c") for ask in asks(workload(), 100, seed, Bytes())]
    assert begin_alike(every) == 0
    assert begin_alike([*every, *asks(workload(), 7, "a", Bytes())]) == 7


def test_a_shared_prefix_is_shared_to_its_last_token_and_no_further() -> None:
    found = asks(workload(prompt_tokens=100, shared_prefix=0.75))
    assert {ask.prompt[:75] for ask in found} == {found[0].prompt[:75]}
    for one, other in itertools.combinations(found, 2):
        assert one.prompt[75:91] != other.prompt[75:91]
    assert begin_alike(found) == len(found) - 1


def test_a_longer_prompt_shares_the_same_share() -> None:
    length = {"distribution": "empirical", "values": [40, 200]}
    found = asks(workload(prompt_tokens=length, shared_prefix=0.5))
    short, long = (next(a.prompt for a in found if len(a.prompt) == n) for n in (40, 200))
    assert short[:20] == long[:20]
    assert {a.prompt[:100] for a in found if len(a.prompt) == 200} == {long[:100]}


def test_groups_have_prefixes_of_their_own() -> None:
    found = asks(workload(prompt_tokens=64, shared_prefix=0.5, prefixes=3), 60)
    assert len({ask.prompt[:32] for ask in found}) == 3


def test_the_first_block_counts_as_one_only_when_it_is_full() -> None:
    same = [Ask(i, (1,) * 15, 2) for i in range(3)]
    assert begin_alike(same) == 0
    assert begin_alike(same, block=15) == 2


def test_arrivals_and_numbers_are_in_the_asks() -> None:
    found = make_asks(workload(), Words(), ConstantArrivals(rate=2), count=3, seed="0")
    assert [(ask.number, ask.at) for ask in found] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert all(ask.at is None for ask in asks(workload()))
    # Another load asks the same prompts: only the times differ.
    faster = make_asks(workload(), Words(), PoissonArrivals(rate=9), count=3, seed="0")
    assert [ask.prompt for ask in faster] == [ask.prompt for ask in found]


def test_output_is_forced_unless_something_else_decides() -> None:
    assert all(ask.ignore_eos and ask.max_tokens == 8 for ask in asks(workload()))
    assert not any(ask.ignore_eos for ask in asks(workload(ignore_eos=False)))
    guided = asks(workload(response_schema={"type": "object"}))
    assert all(ask.schema == '{"type": "object"}' and not ask.ignore_eos for ask in guided)


# --------------------------------------------------------------------------- recipes and presets


@pytest.mark.parametrize("name", sorted(p.name for p in RECIPES.glob("*.yaml")))
def test_workloads_of_shipped_recipes_mean_what_they_meant(name: str) -> None:
    recipe = yaml.safe_load((RECIPES / name).read_text())
    for written in (recipe.get("profile") or {}).get("workloads", ()):
        now = Workload.model_validate(written)
        assert now.forced
        assert now.tokens_at(1) == written["prompt_tokens"] + written["output_tokens"]
        found = asks(now, 12, "7/short/8/0", Bytes())
        before = make_prompts(
            Bytes(), count=12, tokens=written["prompt_tokens"], seed="7/short/8/0"
        )
        assert [list(ask.prompt) for ask in found] == before
        assert {ask.max_tokens for ask in found} == {written["output_tokens"]}


def test_prompts_are_those_of_earlier_versions() -> None:
    """A changed prompt would make profiles of two versions incomparable without a word."""
    first, _, third = make_prompts(Words(), count=3, tokens=5, seed="0/short/1/0")
    assert first == [48, 324, 444, 436, 221]
    assert third == [50, 442, 433, 199, 436]


@pytest.mark.parametrize("name", PRESETS)
def test_each_class_is_a_workload_by_its_name_alone(name: str) -> None:
    spec = Workload.model_validate({"preset": name})
    assert spec.name == name
    found = asks(spec, 10)
    assert all(0 < len(ask.prompt) + ask.max_tokens <= (spec.tokens_at(1) or 0) for ask in found)
    assert (begin_alike(found) > 0) == (name == "shared-prefix")
    assert all((ask.schema is not None) == (name == "structured-output") for ask in found)
    written: Any = json.loads(spec.model_dump_json(exclude_none=True))
    assert Workload.model_validate(written) == spec


def test_classes_are_what_they_are_called() -> None:
    found = {name: Workload.model_validate({"preset": name}) for name in PRESETS}
    usual = {name: (spec.tokens_at(0.5) or 0) for name, spec in found.items()}
    assert usual["long-context"] > 5 * max(n for name, n in usual.items() if name != "long-context")
    assert found["long-output"].output_tokens == FixedLength(tokens=1024)
    assert min(found["many-short"].concurrency or ()) >= 32
    assert found["shared-prefix"].shared_prefix > 0.5
    schema = found["structured-output"].response_schema
    assert schema is not None
    assert complaint(schema) is None


def test_what_is_written_goes_before_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("preset: shared-prefix\nname: mine\nprompt_tokens: 4096\n")
    spec = load_spec(path, Workload)
    assert (spec.name, spec.shared_prefix) == ("mine", 0.75)
    assert spec.prompt_tokens == FixedLength(tokens=4096)
    assert spec.output_tokens == FixedLength(tokens=64)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("name: w", "'w' has none"),
        ("{name: w, prompt_tokens: 4}", "one length without the other"),
        ("{name: w, prompt_tokens: 4, output_tokens: 2, trace: a}", "more than one source"),
        ("{name: w, trace: a, suite: b}", "more than one source"),
        ("{name: w, trace: a, shared_prefix: 0.5}", "made from lengths"),
        ("{name: w, suite: a, response_schema: {}}", "made from lengths"),
        ("{name: w, suite: a, ignore_eos: true}", "'ignore_eos' cannot be kept"),
        ("{preset: structured-output, ignore_eos: true}", "'ignore_eos' cannot be kept"),
        ("{name: w, prompt_tokens: 4, output_tokens: 2, prefixes: 2}", "without 'shared_prefix'"),
        ("{preset: shared-prefix, shared_prefix: 1}", "less than 1"),
        ("{preset: many-short, concurrency: [0]}", "at least 1"),
        ("{preset: many-short, concurrency: []}", "at least 1"),
        ("{preset: many-shorts}", "did you mean 'many-short'?"),
        ("{preset: many-short, tokens: 4}", "unknown key 'tokens'"),
    ],
)
def test_a_workload_that_is_none_is_refused(tmp_path: Path, written: str, said: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(written)
    with pytest.raises(RecipeError) as error:
        load_spec(path, Workload)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{type: objekt}", "'objekt' is not valid under any of the given schemas at $.type"),
        ("{properties: [a]}", "at $.properties"),
        ("{type: string, pattern: '(a'}", "(a"),
        ("{$ref: https://example.org/schema}", "https://example.org/schema"),
    ],
)
def test_a_schema_that_is_none_is_refused_where_it_stands(
    tmp_path: Path, schema: str, said: str
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"name: w\nprompt_tokens: 4\noutput_tokens: 2\nresponse_schema: {schema}\n")
    with pytest.raises(RecipeError) as error:
        load_spec(path, Workload)
    assert "'response_schema': it is no JSON schema" in error.value.what
    assert said in error.value.what
    assert error.value.where == f"{path}:4" and "such as {type: object" in error.value.fix
    path.write_text(path.read_text().replace(schema, "{type: object}"))
    assert load_spec(path, Workload).response_schema == {"type": "object"}


# --------------------------------------------------------------------------- traces and suites


def test_a_trace_is_asked_at_its_times_with_its_lengths() -> None:
    rows = parse_trace(
        enumerate(
            [
                '{"at": 0, "input_tokens": 30, "output_tokens": 5}',
                '{"at": 2, "output_tokens": 6, "prompt": "a b c"}',
                '{"at": 2, "input_tokens": 30, "output_tokens": 7}',
            ],
            1,
        ),
        "t",
    )
    spec = Workload(name="w", trace="t")
    found = trace_asks(spec, rows, Words(), TraceArrivals(speed=4), seed="0")
    assert [(ask.at, len(ask.prompt), ask.max_tokens) for ask in found] == [
        (0, 30, 5),
        (0.5, 3, 6),
        (0.5, 30, 7),
    ]
    assert found[1].prompt == (97, 98, 99)
    assert all(ask.ignore_eos for ask in found)
    assert begin_alike(found) == 0
    again = trace_asks(spec, rows, Words(), ClosedLoop(concurrency=1), seed="0")
    assert [ask.at for ask in again] == [None] * 3
    assert [ask.prompt for ask in again] == [ask.prompt for ask in found]


def suite(**given: Any) -> SuiteSpec:
    fields: dict[str, Any] = {
        "schema": "workbench.suite/1",
        "name": "s",
        "description": "d",
        "ask": "generate",
        "prompt": "{question}",
        "chat_template": False,
        "max_tokens": 12,
        "scorer": "exact",
    }
    return SuiteSpec.model_validate(fields | given)


SAMPLES = [Sample.model_validate({"id": name, "target": "t"}) for name in "abc"]


def ask_suite(spec: SuiteSpec, count: int = 7, seed: str = "0", samples: Any = None) -> list[Ask]:
    return suite_asks(
        spec,
        SAMPLES if samples is None else samples,
        lambda sample: [ord(sample.id), 1],
        CLOSED,
        count=count,
        seed=seed,
    )


def test_a_suites_samples_are_asked_by_id_and_again_after_the_last() -> None:
    found = ask_suite(suite())
    ids = [ask.sample for ask in found]
    assert sorted(ids[:3], key=str) == ["a", "b", "c"]
    assert ids[3:] == [*ids[:3], ids[0]]
    assert all(ask.prompt == (ord(ask.sample or ""), 1) for ask in found)
    assert all(ask.max_tokens == 12 and not ask.ignore_eos for ask in found)
    assert any([a.sample for a in ask_suite(suite(), seed=s)] != ids for s in "1234")


def test_a_repeat_is_equal_work_at_equal_times_in_other_words() -> None:
    lengths = {"distribution": "lognormal", "median": 60, "p95": 200, "max": 400, "min": 32}
    spec = workload(prompt_tokens=lengths, output_tokens=lengths, shared_prefix=0.5, prefixes=2)
    load = PoissonArrivals(rate=3)
    one, other = (make_asks(spec, Words(), load, count=40, seed="0", texts=texts) for texts in "ab")
    for mine, its in zip(one, other, strict=True):
        assert (mine.at, mine.max_tokens) == (its.at, its.max_tokens)
        assert len(mine.prompt) == len(its.prompt)
        assert mine.prompt[:16] != its.prompt[:16]
    assert len({ask.max_tokens for ask in one}) > 10
    again = make_asks(spec, Words(), load, count=40, seed="1", texts="a")
    assert [a.at for a in again] != [a.at for a in one]
    assert [a.max_tokens for a in again] != [a.max_tokens for a in one]


def test_repeats_of_a_trace_or_a_suite_keep_the_gaps_alone() -> None:
    load = PoissonArrivals(rate=3)
    rows = [TraceRow(f"t:{i}", float(i), 20, 3) for i in range(9)]
    monday = Workload.model_validate({"name": "w", "trace": "t.jsonl"})
    one, other = (trace_asks(monday, rows, Words(), load, seed="0", texts=t) for t in "ab")
    assert [a.at for a in one] == [a.at for a in other]
    assert all(a.prompt != b.prompt for a, b in zip(one, other, strict=True))
    asked = [
        suite_asks(suite(), SAMPLES, lambda sample: [1], load, count=3, seed="0", texts=texts)
        for texts in "abcdef"
    ]
    assert len({tuple(a.at for a in repeat) for repeat in asked}) == 1
    assert len({tuple(a.sample for a in repeat) for repeat in asked}) > 1


def test_keys_of_answers_tell_repeats_of_a_sample_apart() -> None:
    found = [Ask(i, (1,), 2, sample=s) for i, s in enumerate(["a", "b", "a", None, "a"])]
    keys = {0: "a", 1: "b", 2: "a#1", 4: "a#2"}
    assert sample_keys(found) == keys
    assert sample_keys(found[::-1]) == keys


def test_a_schema_guides_only_where_the_suite_says_so() -> None:
    schema = {"type": "object"}
    (ask,) = ask_suite(suite(response_schema=schema), 1)
    assert ask.schema == '{"type": "object"}'
    (ask,) = ask_suite(suite(response_schema=schema, guided=False), 1)
    assert ask.schema is None


@pytest.mark.parametrize(
    ("given", "samples", "said"),
    [
        ({"ask": "rank_choices"}, SAMPLES, "'rank_choices'"),
        ({"ask": "call_tools"}, SAMPLES, "'call_tools'"),
        ({"sampling": {"temperature": 0.5}}, SAMPLES, "samples answers"),
        ({"sampling": {"stop": ["x"]}}, SAMPLES, "stops at words"),
        ({}, [], "has no sample"),
    ],
)
def test_a_suite_the_load_cannot_ask_as_it_should_is_refused(
    given: dict[str, Any], samples: list[Sample], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        ask_suite(suite(**given), samples=samples)


# --------------------------------------------------------------------------- the reference


def test_every_example_of_the_reference_is_read_and_every_class_is_in_it() -> None:
    text = (RECIPES / "WORKLOADS.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    whole, workloads, lengths, arrivals = blocks
    assert ProfileSpec.model_validate(whole["profile"]).targets is not None
    assert len([Workload.model_validate(one) for one in workloads]) == 5
    length: TypeAdapter[AnyLength] = TypeAdapter(Length)
    assert {length.validate_python(one).distribution for one in lengths} == {
        "fixed",
        "uniform",
        "lognormal",
        "empirical",
    }
    process: TypeAdapter[AnyArrivals] = TypeAdapter(Arrivals)
    found = {process.validate_python(one).arrivals for one in arrivals}
    assert found == {"poisson", "constant", "burst", "trace"}
    # The README's own example, too.
    readme = (RECIPES.parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```yaml\nprofile:\n.*?```", readme, re.DOTALL)
    profile = yaml.safe_load(example.removeprefix("```yaml\n").removesuffix("```"))["profile"]
    assert ProfileSpec.model_validate(profile).repeats == 3
    (trace,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert len(parse_trace(enumerate(trace.strip().split("\n"), 1), "t")) == 2
    named = re.findall(r"^\| `([\w-]+)`", text, re.MULTILINE)
    assert [name for name in named if name in {*PRESETS, *OPTIONS}] == [*PRESETS, *OPTIONS]
    for option in OPTIONS:  # each with the flag that vLLM is given
        (row,) = re.findall(rf"^\| `{option}` .*$", text, re.MULTILINE)
        value = {"method": "ngram"} if option == "speculative" else True
        assert f"`{option_words({option: value})[0]}`" in row
