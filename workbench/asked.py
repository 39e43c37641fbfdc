"""What of a suite decides how a model is asked, and what only how its answer is judged. Pure.

Scoring again without asking again is honest only where nothing of the first kind changed. Prompts
and choices are compared sample by sample, by the digest in each row; the rest of `suite.yaml` has a
digest of its own in the conditions of every result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.digest import content_id
from workbench.suite_spec import SuiteSpec

#: The key of the digest in `SuiteResult.conditions`.
ASKING = "asking_digest"

#: Keys of `suite.yaml` that no request depends on; a key that is not named here is one that does.
_JUDGING = {
    "schema_",
    "name",
    "kind",
    "description",
    "samples_of",
    "scorer",
    "metric",
    "higher_is_better",
    "tier",
    "cluster",
    "cadence",
    "tags",
}


#: What is said where `may_score_again` is true of all that changed.
HINT = "if only targets or scorers changed, workbench rescore {} needs no model"


def may_score_again(spec: SuiteSpec, conditions: Mapping[str, Any]) -> bool:
    """True where nothing in `suite.yaml` stands against scoring again without asking.

    Prompts of samples are not looked at: `workbench rescore` compares them one by one.

    Args:
        spec: of the suite as it is now.
        conditions: of the result that was asked.
    """
    return spec.scorer.name != "judge" and conditions.get(ASKING) == asking_digest(spec)


def asking_digest(spec: SuiteSpec) -> str:
    """Digest of how samples are asked: equal digests and prompts give equal requests."""
    left_out = set(_JUDGING)
    if not spec.guided:
        left_out.add("response_schema")  # the answer is only checked against it
    return content_id(spec.model_dump(mode="json", exclude=left_out))
