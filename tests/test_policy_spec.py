"""What a policy may say, what it means, and that an older one means what it meant."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import ROOT

from workbench.errors import RecipeError
from workbench.policy_spec import Policy, QualityCheck
from workbench.proportion import proportion
from workbench.recipe import load_spec
from workbench.spec import Recipe
from workbench.stats import binary_interval, items_needed
from workbench.suites import find_suite, load_suite

POLICIES = ROOT / "notebooks" / "policies"
POLICY = "schema: workbench.policy/1\nname: p\n"


def policy(text: str) -> Policy:
    return Policy.model_validate(yaml.safe_load(POLICY + text))


def written(found: Policy) -> dict[str, Any]:
    return found.model_dump(mode="json", by_alias=True)


def test_defaults_hold_for_what_a_check_does_not_say() -> None:
    found = policy(
        "defaults: {margin: 0.02, confidence: 0.9, min_n: 500, tier: supporting, max_gain: 0.05}\n"
        "quality: [{suite: a}, {suite: b, margin: 0.01, min_n: 80, tier: critical, "
        "confidence: 0.99, max_gain: null}, {suite: c, margin_relative: 0.03}]\n"
    )
    a, b, c = found.quality
    assert (a.margin, a.confidence, a.min_n, a.tier, a.max_gain) == (
        *(0.02, 0.9, 500),
        *("supporting", 0.05),
    )
    assert (b.margin, b.confidence, b.min_n, b.tier, b.max_gain) == (
        *(0.01, 0.99, 80),
        *("critical", None),
    )
    # A margin of the other kind takes the place of the default one.
    assert (c.margin, c.margin_relative, c.most) == (None, 0.03, 0.03)


def test_without_defaults_a_check_means_what_it_always_meant() -> None:
    (check,) = policy("quality: [{suite: a, margin: 0.1}]\n").quality
    assert (check.confidence, check.min_n, check.tier) == (0.95, 30, "critical")
    assert check == QualityCheck(suite="a", margin=0.1)


def test_a_policy_is_what_it_asks_for_however_it_says_so() -> None:
    short = policy("defaults: {margin: 0.02, min_n: 500}\nquality: [{suite: a}, {suite: b}]\n")
    long = policy(
        "quality: [{suite: a, margin: 0.02, min_n: 500}, {suite: b, margin: 0.02, min_n: 500}]\n"
    )
    assert written(short) == written(long)
    # As it stands in a run's lock: what an override took away does not come back.
    taken = policy(
        "defaults: {margin: 0.1, max_gain: 0.05}\nquality: [{suite: a, max_gain: null}]\n"
    )
    assert Policy.model_validate(written(taken)) == taken


def test_an_older_policy_is_written_as_it_was() -> None:
    """Its digest is in every record of a run: a new key there would make old runs look changed."""
    found = policy(
        "quality: [{suite: a, margin: 0.1}]\nsize: [{max_ratio: 0.75}]\nperformance:\n"
        "- {metric: ttft_ms_p50, workload: w, concurrency: 1, max_ratio: 1.5}\n"
    )
    assert written(found) == {
        "schema": "workbench.policy/1",
        "name": "p",
        "quality": [
            {"suite": "a", "margin": 0.1, "confidence": 0.95, "min_n": 30, "tier": "critical"}
        ],
        "performance": [
            {
                "metric": "ttft_ms_p50",
                "workload": "w",
                "concurrency": 1,
                "max_ratio": 1.5,
                "min_ratio": None,
                "max_value": None,
                "min_value": None,
                "tier": "supporting",
            }
        ],
        "size": [{"metric": "weight_bytes", "max_ratio": 0.75, "tier": "supporting"}],
    }


FULL = """
required_lane: native
required_hardware: NVIDIA L4
defaults: {margin: 0.02, max_format_failures: 0.02, max_truncated: 0.02, output_length: {}}
quality: [{suite: a, metric: accuracy}]
latency: [{workload: w, concurrency: 8, metric: ttft_ms_p99, max_value: 2000}]
goodput: [{workload: w, arrivals: 'poisson 4/s', min_share: 0.99, targets: {ttft_ms: 500}}]
size: [{metric: kv_cache_tokens, min_ratio: 1.5}, {metric: weight_bytes, max_value: 2000000000}]
tripwires: [{metric: kld_mean, warn_above: 0.05}, {metric: same_top, warn_below: 0.9}]
"""


def test_everything_a_policy_can_say_is_read_back_from_what_is_written() -> None:
    found = policy(FULL)
    assert Policy.model_validate(written(found)) == found
    length = found.quality[0].output_length
    assert length is not None and (length.min, length.max) == (0.9, 1.1)
    assert (found.latency[0].name, found.goodput[0].name) == (
        "ttft_ms_p99 w x8",
        "goodput w poisson 4/s",
    )
    assert list(found.tiers) == ["critical"] * 4 + ["supporting"] * 4


@pytest.mark.parametrize(
    ("text", "line", "says", "fix"),
    [
        ("quality: [{suite: s}]", 3, "the check of suite 's' has no margin", "'margin: 0.02'"),
        ("quality:\n- {suite: s, margin: 0.1, margin_relative: 0.1}", 4, "are both given", "keep"),
        ("defaults: {margin: 0.1, margin_relative: 0.1}", 3, "are both given", "keep one"),
        ("defaults: {margin: -0.02}", 3, "greater than 0", "use more than 0"),
        ("defaults: {margn: 0.02}", 3, "unknown key 'defaults.margn'", "did you mean 'margin'?"),
        ("\ndefaults: {confidence: 95}", 4, "less than 1", "write 0.95, which is 95 percent"),
        ("quality: [{suite: s, margin: 5}]", 3, "less than 1", "write 0.05, which is 5 points"),
        (
            "base: &b {suite: s, margin: 0.1}\nquality: [{<<: *b, min_n: 9}]",
            *(4, "the merge key '<<' is not read", "write the keys out"),
        ),
        ("quality: [{suite: s, margin: .nan}]", 3, "finite number", ""),
        ("quality: [{suite: s, margin: 1.0e-100}]", 3, "1e-100 is less than any", "0.00001 or"),
        ("quality: [{suite: s, margin_relative: 1.0e-200}]", 3, "1e-200 is less than", "0.00001"),
        ("defaults: {max_truncated: 1.0e-300}", 3, "1e-300 is less than any", "use 0.00001"),
        ("defaults: {max_gain: 9.9e-6}", 3, "9.9e-06 is less than any", "use 0.00001"),
        ("defaults: {max_format_failures: 1.0e-17}", 3, "1e-17 is less than", "use 0.00001"),
        ("required_lane: natve", 3, "'natve' is not one of 'native'", "did you mean 'native'?"),
        ("tripwire: []", 3, "unknown key 'tripwire'", "did you mean 'tripwires'?"),
        ("tripwires: [{metric: kld, warn_above: 1}]", 3, "'kld' is not one of", ""),
        ("tripwires: [{metric: same_top, warn_above: 0.9}]", 3, "needs warn_below alone", ""),
        ("tripwires: [{metric: kld_mean, warn_above: 1, warn_below: 0.1}]", 3, "warn_above", ""),
        (
            "latency: [{workload: w, concurrency: 1, metric: ttft_ms_p98, max_value: 1}]",
            *(3, "'ttft_ms_p98' is not one of", "did you mean 'ttft_ms_p9"),
        ),
        (
            "latency: [{workload: w, metric: ttft_ms_p99, max_value: 1}]",
            *(3, "give exactly one of concurrency, arrivals", "is a closed loop"),
        ),
        (
            "goodput: [{workload: w, concurrency: 1, min_share: 99}]",
            *(3, "less than 1", "write 0.99, which is 99 percent"),
        ),
        ("size: [{metric: kv_cache_tokens, max_ratio: 1}]", 3, "needs min_ratio", "min_ratio: 1"),
        ("size: [{min_value: 1}]", 3, "weight_bytes needs max_ratio or max_value", "max_ratio"),
        ("size: [{max_ratio: 1, max_value: 1}]", 3, "and no other limit", ""),
        ("size: [{metric: weight_byte, max_ratio: 1}]", 3, "is not one of", "'weight_bytes'?"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_write(
    tmp_path: Path, text: str, line: int, says: str, fix: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY + text + "\n")
    with pytest.raises(RecipeError) as caught:
        load_spec(path, Policy)
    assert caught.value.where == f"{path}:{line}"
    assert says in caught.value.what and fix in caught.value.fix


@pytest.mark.parametrize("schema", ["workbench.policy/0", "workbench.policy/2", "other", "1"])
def test_a_schema_that_is_not_this_one_is_no_policy(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"schema: {schema}\nname: p\nquality: [{{suite: s, margin: 0.1}}]\n")
    with pytest.raises(RecipeError, match="'schema'") as caught:
        load_spec(path, Policy)
    assert caught.value.fix == "write workbench.policy/1" and caught.value.where == f"{path}:1"
    path.write_text("name: p\nquality: [{suite: s, margin: 0.1}]\n")
    with pytest.raises(RecipeError, match="'schema' is missing"):
        load_spec(path, Policy)


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_policy_is_read_gates_something_and_gives_its_reasons(path: Path) -> None:
    found = load_spec(path, Policy)
    assert found.name == path.stem
    assert any(tier != "advisory" for tier in found.tiers)
    text = path.read_text("utf-8").splitlines()
    comments = sum(line.lstrip().startswith("#") for line in text)
    assert text[0].startswith("# ") and comments >= 2


def test_the_full_recipe_measures_what_its_policy_asks_for_and_says_what_is_missing() -> None:
    file = POLICIES.parent / "recipes" / "full.yaml"
    text, strict = file.read_text("utf-8"), (POLICIES / "strict.yaml").read_text("utf-8")
    recipe = load_spec(file, Recipe)
    asked = load_spec(file.parent / recipe.policy, Policy)
    assert asked.name == "strict" and recipe.profile
    assert f"at least {recipe.profile.requests} requests" in " ".join(strict.split())
    suites = {s: load_suite(find_suite(s, ROOT / "eval_suites")) for s in recipe.evaluate.suites}
    for check in asked.quality:
        assert f"{check.min_n} samples" in text and check.suite in text.partition("  suites:")[0]
        assert len(suites[check.suite].samples) < check.min_n
    assert max(len(suite.samples) for suite in suites.values()) < 100


def test_the_numbers_in_the_policies_texts_are_what_comes_out() -> None:
    def text(name: str) -> str:
        return " ".join((POLICIES / f"{name}.yaml").read_text("utf-8").replace("\n#", " ").split())

    def within(lost: int, n: int) -> str:
        return f"{100 * binary_interval(lost, lost, n).high:.1f}"

    def share(count: int, n: int) -> float:
        return 100 * proportion(count, n)[1]

    standard, latency = text("standard"), text("latency-first")
    assert (
        f"With 300 samples the upper limit is {within(0, 300)} points when no answer changed, "
        f"{within(5, 300)} when 5 were lost and 5 gained, {within(12, 300)} with 12 and 12"
    ) in standard
    assert items_needed(0.0, 0.04, 0.03) == 317 and "about 315 samples" in standard
    assert items_needed(0.0, 0.04, 0.02) == 663 and "about 665 samples" in standard
    assert f"3 may be (upper limit {share(3, 300):.1f} %)" in standard
    assert f"4 are too many to be sure ({share(4, 300):.2f} %)" in standard
    assert f"6 may be unreadable (upper limit {share(6, 600):.2f} %), not 7" in standard
    assert share(6, 600) < 2 < share(7, 600)
    assert (
        f"With 150 samples the upper limit is {within(0, 150)} points when no answer changed, "
        f"{within(5, 150)} when 5 were lost and 5 gained, {within(8, 150)} with 8 and 8"
    ) in latency
    assert f"2 may be unreadable (upper limit {share(2, 150):.1f} %)" in latency
    assert share(2, 150) < 5 < share(3, 150)
    at_least = [100 * proportion(200 - late, 200)[0] for late in (4, 5)]
    assert f"4 may be, with 95 % confidence ({at_least[0]:.1f} %)" in latency
    assert f"5 are too many to be sure ({at_least[1]:.1f} %)" in latency


def test_the_readme_has_every_key_of_a_policy() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    keys = {field.alias or name for name, field in Policy.model_fields.items()} - {"schema", "name"}
    keys |= set(QualityCheck.model_fields) - {"suite"}
    assert {key for key in keys if f"`{key}" not in readme and f"{key}:" not in readme} <= {"tier"}
