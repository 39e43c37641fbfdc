"""What of a suite decides how a model is asked, and what only how its answer is judged. Pure.

Scoring again without asking again is honest only where nothing of the first kind changed. Prompts
and choices are compared sample by sample, by the digest in each row; the rest of `suite.yaml` has a
digest of its own in the conditions of every result.
"""

from __future__ import annotations

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


def asking_digest(spec: SuiteSpec) -> str:
    """Digest of how samples are asked: equal digests and prompts give equal requests."""
    left_out = set(_JUDGING)
    if not spec.guided:
        left_out.add("response_schema")  # the answer is only checked against it
    return content_id(spec.model_dump(mode="json", exclude=left_out))
