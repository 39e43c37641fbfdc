"""What the console says of a profile beside "done"."""

from builders import profile
from test_report_loads import load
from test_report_sweep import configuration

from workbench.profile_remarks import profile_remarks


def test_prompts_the_server_counts_otherwise_are_told() -> None:
    same = load(8)
    assert list(profile_remarks(profile("fp8", "w", loads=(same,)))) == []
    other = same.model_copy(
        update={"tokens": same.tokens.model_copy(update={"prompts_differ": 2}), "completed": 5}
    )
    (said,) = profile_remarks(profile("fp8", "w", loads=(same, other, other)))
    assert "4 of 10 answers" in said and "(short)" in said


def test_a_sweep_that_failed_is_told() -> None:
    broken = configuration(status="failed", error="out of memory")
    (said,) = profile_remarks(profile("fp8", "w", sweep=(broken, broken)))
    assert said == "all of 2 configurations of the sweep failed, the first with: out of memory"
    assert list(profile_remarks(profile("fp8", "w", sweep=(configuration(),)))) == []
