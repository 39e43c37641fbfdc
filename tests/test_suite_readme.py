"""The examples of `eval_suites/README.md` are suites that load, and mean what it says they mean."""

import re
from pathlib import Path

import pytest
import yaml
from projects import ROOT
from suite_folders import write

from workbench.scorers import grade
from workbench.scorers.custom import SIGNATURE
from workbench.suite_check import check_suite
from workbench.suites import Suite, load_suite

README = (ROOT / "eval_suites" / "README.md").read_text("utf-8")
PAIRS = re.findall(r"```yaml\n(.*?)```\n\n```json\n(.*?)```", README, re.S)


def made(tmp_path: Path, spec: str, samples: str) -> Suite:
    return load_suite(write(tmp_path / yaml.safe_load(spec)["name"], spec, *samples.splitlines()))


@pytest.mark.parametrize(("spec", "samples"), PAIRS)
def test_an_example_is_a_suite(tmp_path: Path, spec: str, samples: str) -> None:
    found = check_suite(made(tmp_path, spec, samples))
    assert [finding.what for finding in found if finding.level == "error"] == []
    assert len([finding for finding in found if finding.level == "warn"]) == 1  # few samples


def test_the_function_that_is_shown_is_a_scorer(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert source.startswith(SIGNATURE.partition(",")[0])
    (line,) = re.findall(r"`(scorer: \{name: python, .*?\})`", README)
    spec, samples = PAIRS[0]
    folder = write(tmp_path / "mood", spec.replace("scorer: normalized", line), samples.strip())
    (folder / "score.py").write_text(source)
    suite = load_suite(folder)
    sample = suite.samples[0].model_copy(update={"target": "very Positive"})
    assert [grade(suite, sample, said).score for said in ("positive", "VERY positive", "")] == [
        *(0.5, 1.0, 0.0)
    ]


def test_no_example_is_passed_over() -> None:
    assert len(PAIRS) == README.count("```yaml") == README.count("```json") == 3


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        *(("500 g", 1), ("0.5 kg", 1), ("498 g", 1), ("500", 1), ("500 lb", 1)),
        *(("494 g", 0), ("500 kg", 0)),
    ],
)
def test_units_as_they_are_explained(tmp_path: Path, answer: str, score: float) -> None:
    weight = made(tmp_path, *next(pair for pair in PAIRS if "numeric" in pair[0]))
    assert grade(weight, weight.samples[0], answer).score == score
    bare = weight.samples[0].model_copy(update={"target": 500})
    assert grade(weight, bare, "500 kg").score == 1 and grade(weight, bare, "500 g").score == 0
