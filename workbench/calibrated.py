"""A run's view of its sealed set: where the source is, and what the run's suites share with it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from workbench.calibration_records import Calibration
from workbench.calibration_spec import CalibrationSpec, HubSource
from workbench.contamination import compare, known
from workbench.context import Context
from workbench.errors import StoreError
from workbench.recipe import Loaded
from workbench.sources import Download, fetch, hub_download, read_source
from workbench.store import read_marked


def source_file(loaded: Loaded, spec: CalibrationSpec, download: Download = hub_download) -> Path:
    """The source's file, fetched where it is a hub dataset's and not here yet.

    Raises:
        CalibrationError: there is no such source, or it could not be fetched.
    """
    found = loaded.calibration_source
    if found is None:
        assert isinstance(spec.source, HubSource)
        found = fetch(spec.source, download)
    return found


def compared(
    context: Context, spec: CalibrationSpec, record: Calibration, published: Path
) -> Calibration:
    """A record with what the run's suites share with its set; compared again only where needed.

    The comparison is in the run's own copy of the record alone: another suite makes no other set.

    Args:
        context: the run.
        spec: what the set was sealed from.
        record: the sealed set.
        published: the run's copy, if there is one.
    """
    with contextlib.suppress(StoreError):
        before = read_marked(published, Calibration)
        if before.seal == record.seal and known(before.contamination, spec, context.suites):
            return record.model_copy(update={"contamination": before.contamination})
    rows = read_source(spec, source_file(context.loaded, spec)).rows
    found = compare(spec, rows, record.row_ids, context.suites)
    return record.model_copy(update={"contamination": found})
