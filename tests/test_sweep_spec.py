"""A sweep as a recipe writes it, the servers it comes to, and how they are started."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from test_servers import CPU, GPU, flag, launch

from workbench.profile_spec import ProfileSpec
from workbench.servers.fake import FakeEngine
from workbench.servers.vllm import VllmEngine
from workbench.spec import ServeSpec
from workbench.sweep_grid import KNOWN, configurations, not_swept, own_options, refused
from workbench.sweep_spec import MOST, OPTIONS, ServingOptions, SweepSpec

WORKLOAD = {"name": "short", "prompt_tokens": 16, "output_tokens": 8}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}


def sweep(**values: Any) -> SweepSpec:
    return SweepSpec.model_validate(values)


def labels(found: tuple[ServingOptions, ...]) -> list[str]:
    return [options.label for options in found]


# --------------------------------------------------------------------------- the grid


def test_every_combination_is_one_configuration() -> None:
    found = sweep(max_num_seqs=[8, 32], speculative=[None, NGRAM]).grid()
    said = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
    assert labels(found) == [
        "max_num_seqs 8",
        f"max_num_seqs 8, speculative {said}",
        "max_num_seqs 32",
        f"max_num_seqs 32, speculative {said}",
    ]
    assert len({options.digest for options in found}) == 4


def test_the_recipes_own_configuration_and_a_second_one_alike_start_no_server() -> None:
    spec = ServeSpec(gpu_memory_utilization=0.8)
    grid = sweep(prefix_caching=[False, True, None], gpu_memory_utilization=[0.8, 0.5])
    found = configurations(grid, "vllm", spec, "auto", GPU)
    assert labels(found) == [
        "gpu_memory_utilization 0.5",
        "prefix_caching on",
        "prefix_caching on, gpu_memory_utilization 0.5",
    ]
    # Graphs are off on a CPU and on on a GPU; a variant's own cache is what its recipe says.
    eager = sweep(enforce_eager=[True, False])
    assert labels(configurations(eager, "vllm", spec, "auto", CPU)) == ["enforce_eager off"]
    assert labels(configurations(eager, "vllm", spec, "auto", GPU)) == ["enforce_eager on"]
    cache = sweep(kv_cache_dtype=["auto", "fp8"])
    assert labels(configurations(cache, "vllm", spec, "fp8", GPU)) == ["kv_cache_dtype auto"]
    assert labels(configurations(cache, "vllm", spec, "auto", GPU)) == ["kv_cache_dtype fp8"]


def test_an_option_with_the_recipes_own_value_alone_is_not_swept() -> None:
    found = sweep(kv_cache_dtype=[None], speculative=[None], max_num_seqs=[4, None])
    assert found.swept == ("max_num_seqs",)
    assert labels(found.grid()) == ["max_num_seqs 4", "the recipe's own"]
    nothing = sweep(kv_cache_dtype=[None])
    assert nothing.swept == () and labels(nothing.grid()) == ["the recipe's own"]
    assert configurations(nothing, "vllm", ServeSpec(), "auto", CPU) == ()


@pytest.mark.parametrize("argument", ["--enable-prefix-caching", "--enable_prefix_caching"])
def test_what_the_recipes_arguments_set_is_not_taken_for_the_usual(argument: str) -> None:
    spec = ServeSpec(args=(argument,))
    assert "prefix_caching" not in own_options("vllm", spec, "auto", CPU)
    assert own_options("vllm", spec, "auto", CPU)["enforce_eager"] is True
    short = ServeSpec(args=("--enforce-e", "-tp=2"))
    assert {*own_options("vllm", short, "auto", GPU)} == {
        *("prefix_caching", "kv_cache_dtype", "gpu_memory_utilization")
    }
    found = configurations(sweep(prefix_caching=[True, False]), "vllm", spec, "auto", CPU)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_num_seq": [8]}, "max_num_seq"),
        ({"max_num_seqs": [0]}, "greater than or equal to 1"),
        ({"max_num_seqs": [True]}, "valid integer"),
        ({"max_num_seqs": 8}, "tuple"),
        ({"max_num_seqs": [8, 8]}, "a value twice"),
        ({"speculative": [NGRAM, {**dict(reversed(NGRAM.items()))}]}, "a value twice"),
        ({"chunked_prefill": ["on"]}, "valid boolean"),
        ({"kv_cache_dtype": ["fp9"]}, "'fp8'"),
        ({"gpu_memory_utilization": [1.5]}, "less than or equal to 1"),
        ({}, "names no serving option"),
        ({"workloads": ["short"]}, "names no serving option"),
        ({"max_num_seqs": [*range(1, MOST + 2)]}, f"makes {MOST + 1} configurations"),
        ({"speculative": [{}]}, "names its 'method'"),
        ({"speculative": [{"model": "pkg.Proposer"}]}, "names its 'method'"),
        ({"speculative": [{"method": "custom_class", "model": "p.C"}]}, "runs code"),
        ({"speculative": [{**NGRAM, "draft-load-config": {}}]}, "may not be set"),
        ({"speculative": [{**NGRAM, "rejection_sample_method": "synthetic"}]}, "made up"),
        ({"speculative": [{**NGRAM, "x": float("nan")}]}, "not JSON"),
    ],
)
def test_a_sweep_that_means_nothing_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        sweep(**values)


def test_what_is_measured_under_a_sweep() -> None:
    spec = ProfileSpec.model_validate(
        {
            "workloads": [WORKLOAD, {**WORKLOAD, "name": "other", "concurrency": [2, 4]}],
            "arrivals": [{"arrivals": "poisson", "rate": 4}],
            "targets": {"ttft_ms": 100},
            "highest_rate": {"low": 1, "high": 4},
            "sweep": {"max_num_seqs": [8], "workloads": ["other"]},
        }
    )
    assert [w.name for w in spec.swept.workloads] == ["other"]
    assert spec.swept.load_count == 3 and spec.load_count == 6
    assert spec.swept.highest_rate is None and spec.swept.sweep is None
    assert ProfileSpec.model_validate(json.loads(spec.model_dump_json())) == spec


def test_workloads_of_a_sweep_are_the_profiles_and_have_loads() -> None:
    given: dict[str, Any] = {"workloads": [WORKLOAD], "sweep": {"max_num_seqs": [8]}}
    with pytest.raises(ValidationError, match="no workload of the profile"):
        ProfileSpec.model_validate(given | {"sweep": {"max_num_seqs": [8], "workloads": ["shrot"]}})
    searched = {"targets": {"ttft_ms": 9}, "highest_rate": {"low": 1, "high": 2}}
    with pytest.raises(ValidationError, match="no load to be swept"):
        ProfileSpec.model_validate(given | searched | {"concurrency": []})


def test_a_recipe_without_a_sweep_says_nothing_of_one() -> None:
    """So that its step ids are those of before there were sweeps."""
    spec = ProfileSpec.model_validate({"workloads": [WORKLOAD]})
    assert "sweep" not in spec.model_dump(mode="json")
    swept = ProfileSpec.model_validate({"workloads": [WORKLOAD], "sweep": {"max_num_seqs": [8]}})
    assert swept.model_dump(mode="json")["sweep"]["max_num_seqs"] == [8]


# --------------------------------------------------------------------------- who takes what


def test_what_an_engine_or_a_machine_has_not_is_refused_with_its_key() -> None:
    def said(engine: Any, machine: Any, args: tuple[str, ...] = (), **values: Any) -> str:
        found = refused(sweep(**values), ServeSpec(engine=engine, args=args), machine)
        return " ".join(found) if found else ""

    assert "the fake engine has no 'kv_cache_dtype'" in said("fake", CPU, kv_cache_dtype=["fp8"])
    assert said("fake", CPU, max_num_seqs=[1]) == ""
    assert "this machine has none" in said("vllm", CPU, gpu_memory_utilization=[0.5])
    assert said("vllm", GPU, gpu_memory_utilization=[0.5]) == ""
    assert "needs as many GPUs, this machine has 1" in said(
        "vllm", GPU, tensor_parallel_size=[1, 2]
    )
    assert "this machine has 0" in said("vllm", CPU, tensor_parallel_size=[2])
    assert said("vllm", CPU, tensor_parallel_size=[1], max_num_seqs=[4]) == ""
    for argument in ("--spec-method=ngram", "--speculative-config.method", "--speculative_c"):
        assert "vLLM merges" in said("vllm", GPU, (argument,), speculative=[NGRAM])
    # What has the recipe's own value alone is not swept, whatever this machine or engine has.
    own: dict[str, Any] = {"kv_cache_dtype": [None], "gpu_memory_utilization": [None]}
    assert said("fake", CPU, **own) == said("vllm", CPU, **own) == ""
    assert said("vllm", GPU, ("--spec-method=ngram",), speculative=[None], max_num_seqs=[4]) == ""
    assert said("vllm", GPU, ("--max-num-seqs=4",), speculative=[NGRAM], max_num_seqs=[1]) == ""


def test_a_variant_that_is_not_swept_says_why() -> None:
    assert "llamacpp takes none" in not_swept("llamacpp", "native", 3)
    assert "a dequantized twin's" in not_swept("vllm", "emulated", 3)
    assert "is the recipe's own" in not_swept("vllm", "native", 0)
    assert not_swept("vllm", "weight-only fallback", 1) == ""


# --------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_seqs": 8}, ["--max-num-seqs", "8"]),
        ({"max_num_batched_tokens": 4096}, ["--max-num-batched-tokens", "4096"]),
        ({"chunked_prefill": True}, ["--enable-chunked-prefill"]),
        ({"chunked_prefill": False}, ["--no-enable-chunked-prefill"]),
        ({"prefix_caching": True}, ["--enable-prefix-caching"]),
        ({"prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"kv_cache_dtype": "fp8"}, ["--kv-cache-dtype", "fp8"]),
        ({"gpu_memory_utilization": 0.5}, ["--gpu-memory-utilization", "0.5"]),
        ({"speculative": NGRAM}, ["--speculative-config", json.dumps(NGRAM)]),
        ({"tensor_parallel_size": 2}, ["--tensor-parallel-size", "2"]),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enforce_eager": False}, ["--no-enforce-eager"]),
    ],
)
@pytest.mark.parametrize("machine", [CPU, GPU])
def test_each_option_is_vllms_own_flag_and_is_given_once(
    tmp_path: Path, options: dict[str, Any], words: list[str], machine: Any
) -> None:
    """Flags of vLLM 0.32's `arg_utils.py`; not yet run on a GPU."""
    own = replace(launch(tmp_path, machine, args=("--block-size", "32")), kv_cache="fp8")
    asked = replace(own, options=ServingOptions(**options))
    command = VllmEngine().command(asked)
    assert list(command.words[-len(words) :]) == words
    assert command.words[-len(words) - 2 : -len(words)] == ("--block-size", "32")
    about = words[0].removeprefix("--no-").removeprefix("--")
    said = [w for w in command.words if w.removeprefix("--no-").removeprefix("--") == about]
    assert said == words[:1]
    (name,) = options
    assert command.choices[name].reason == "profile.sweep of the recipe"
    assert set(OPTIONS) == set(KNOWN["vllm"])


def test_without_a_sweep_the_command_is_the_recipes_own(tmp_path: Path) -> None:
    plain = VllmEngine().command(launch(tmp_path))
    assert "profile.sweep of the recipe" not in {c.reason for c in plain.choices.values()}
    assert plain.words[-1] == "--no-enable-prefix-caching" or "--enforce-eager" in plain.words
    swept = replace(launch(tmp_path), options=ServingOptions(max_num_seqs=3))
    assert flag(FakeEngine().command(swept).words, "--max-num-seqs") == "3"
    assert "--max-num-seqs" not in FakeEngine().command(launch(tmp_path)).words
