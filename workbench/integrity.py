"""Is what a record speaks of still what it was? Checked before a record is reused.

A record is only as good as the files it rests on: a checkpoint whose weights changed on disk, or
rows that were lost or edited, make it worth nothing, and the step is done again.
"""

from __future__ import annotations

from workbench import calibration
from workbench.checkpoint import digests
from workbench.divergence_trace import altered as trace_altered
from workbench.records import Calibration, Evaluation, Manifest, Record
from workbench.rows import altered
from workbench.store import Results


def flaw(results: Results, kind: str, id_: str, record: Record) -> str:
    """Why a complete record must not be reused; an empty text where it may.

    Files are hashed again only where their size or time changed.
    """
    if isinstance(record, Manifest):
        folder = results.root / record.path
        try:
            found = digests(folder, results.root / ".cache" / "digests.json")
        except OSError:
            found = {}
        for name, digest in record.files.items():
            if found.get(name) != digest:
                return f"its file {name} was {'altered' if name in found else 'lost'}"
        if record.artifact is not None:
            # What was examined is what is served: a pickle or code laid beside it was not.
            for name in found:
                if name not in record.files:
                    return f"the file {name} was laid beside its files"
    if isinstance(record, Calibration):
        return calibration.altered(results.artifact(kind, id_), record)
    if isinstance(record, Evaluation):
        folder = results.artifact(kind, id_)
        said = next(iter(altered(folder, record).values()), "")
        if not said and record.divergence:
            said = trace_altered(folder, record.divergence)
        return said
    return ""
