"""A quantizer that only copies, so that the whole workbench runs in seconds and without torch.

It runs as a real job in this interpreter and can fail as real ones do: by signal, out of memory,
without a result, or with a reported error. What it writes says clearly that it is a fake, and only
the fake server serves it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from workbench.checkpoint import copy_companions
from workbench.jobs import run_job
from workbench.quantizers import QuantizeOutcome, Task
from workbench.records import Checkpoint, Choice, Hardware
from workbench.spec import CalibrationSpec
from workbench.store import disk_errors, write_record
from workbench.variants import FakeSpec

_SCRIPT = Path(__file__).parents[1] / "inside" / "fake_quantize.py"
#: Beside the weights: what the fake server is to do with them.
FAKE_FILE = "workbench_fake.json"


class FakeQuantizer:
    """Copies the weights and notes the damage the fake server shall do."""

    def environments(self, variant: FakeSpec) -> tuple[str, ...]:
        """None: it runs in this interpreter."""
        return ()

    def check(self, variant: FakeSpec, checkpoint: Checkpoint, hardware: Hardware) -> None:
        """Accept everything: there is nothing that could not be copied."""

    def estimate(
        self,
        variant: FakeSpec,
        checkpoint: Checkpoint,
        calibration: CalibrationSpec | None,
        hardware: Hardware,
    ) -> tuple[float, int]:
        """The seconds it was told to take, and an interpreter's memory."""
        return variant.seconds + 0.5, 64 << 20

    def quantize(self, task: Task) -> QuantizeOutcome:
        """Copy the checkpoint in a job of its own.

        Raises:
            JobFailure: the variant asks for a failure.
        """
        variant, out = task.variant, task.out
        source = Path(task.checkpoint.path)
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        job = run_job(
            sys.executable,
            _SCRIPT,
            {
                "source": str(source.resolve()),
                "out": str(out.resolve()),
                "seconds": variant.seconds,
                "fail": variant.fail,
            },
            folder=task.folder,
            log=task.log,
            timeout=variant.seconds + 600,
            progress=task.progress,
            name=f"quantize {variant.name} (fake)",
        )
        note = {"damage": variant.damage, "variant": variant.name}
        with disk_errors(out):
            copy_companions(source, out)
            (out / FAKE_FILE).write_text(json.dumps(note) + "\n", "utf-8")
        if task.calibration is not None:
            write_record(out / "calibration.json", task.calibration)
        return QuantizeOutcome(
            choices={"fake": Choice(value="copied", reason="method 'fake' changes no weight")},
            packages=job.value["packages"],
            seconds=job.seconds,
            peak_memory_bytes=job.peak_memory_bytes,
        )
