"""How long the gate takes on records: rows read from disk and held against their digests, paired,
judged, and the verdict written.

    .venv/bin/python tests/benchmarks/gate_speed.py [--pairs 1000000] [--suites 20]

First a normal run (three suites of 88 samples, five variants), then one variant with so many pairs,
spread over the suites. Each is decided in a process of its own, that does nothing else: seconds
after import, CPU seconds and the most memory it had; of the million pairs a second process reads
half. Importing numpy and scipy, which the gate does where it first needs them, is told apart. The
files are made before, in a temporary folder (1.5 GB for a million pairs).
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from builders import evidence, rows, suite_result, variant  # noqa: E402

from workbench.columns import StoredRows  # noqa: E402
from workbench.digest import sha256_text  # noqa: E402
from workbench.evidence import VariantEvidence  # noqa: E402
from workbench.gate import decide  # noqa: E402
from workbench.records import SuiteResult  # noqa: E402
from workbench.row_files import stored_rows  # noqa: E402
from workbench.rows import read_rows, rows_digest  # noqa: E402
from workbench.spec import Policy, QualityCheck  # noqa: E402
from workbench.store import dump_record  # noqa: E402

MIB = 1 << 20


def make(folder: Path, suites: int, n: int, variants: int) -> None:
    """Rows of the baseline and the variants, and what the records say of them."""
    dice, made = random.Random(6), {}
    for number in range(suites):
        suite = f"suite{number:02d}"
        (like,) = rows([1.0], suite=suite)
        right = [dice.random() < 0.8 for _ in range(n)]
        for side in range(variants + 1):
            file = folder / f"{side}-{suite}.jsonl"
            with file.open("w") as out:
                for k, fact in enumerate(right):
                    # One in twenty answers of a variant differs.
                    score = float(fact != (side > 0 and dice.random() < 0.05))
                    row = like.model_copy(
                        update={
                            "id": f"{suite}-{k:06d}",
                            "prompt_digest": sha256_text(f"{suite} prompt {k}"),
                            "target_digest": sha256_text(f"{suite} target {k}"),
                            "sampling_digest": sha256_text("sampling"),
                            "template_digest": sha256_text("template"),
                            "tokenizer_digest": sha256_text("tokenizer"),
                            "output": f"an answer of some words, number {k}: {score}",
                            "score": score,
                        }
                    )
                    out.write(row.model_dump_json() + "\n")
            digest = rows_digest(read_rows(file))
            result = suite_result(suite, ()).model_copy(
                update={
                    "rows_file": file.name,
                    "rows_digest": digest,
                    "n": n,
                    "output_tokens": 5 * n,
                }
            )
            made[file.stem] = result.model_dump(mode="json")
    (folder / "results.json").write_text(json.dumps(made))


def side(
    name: str, method: str, results: list[SuiteResult], rows: Iterator[StoredRows]
) -> VariantEvidence:
    """One side's records, with the next of the rows."""
    found = {result.suite: next(rows) for result in results}
    made = variant(name, {}, method=method)
    assert made.evaluation is not None
    asked = made.evaluation.model_copy(update={"suites": tuple(results)})
    return replace(made, evaluation=asked, rows=found)


def gate(folder: Path) -> None:
    """Decide, and print what it took."""
    begun = time.perf_counter()
    # The gate imports them where it first needs them.
    import numpy  # noqa: F401
    import scipy.special  # noqa: F401

    start, used = time.perf_counter(), time.process_time()
    sides: dict[str, list[SuiteResult]] = {}
    for stem, data in json.loads((folder / "results.json").read_text()).items():
        sides.setdefault(stem.partition("-")[0], []).append(SuiteResult.model_validate(data))
    # As `workbench gate` reads them.
    asked = [r for results in sides.values() for r in results]
    files = [(folder / r.rows_file, r) for r in asked]
    rows = iter(stored_rows(files, "make them again"))
    baseline, *read = [
        side(f"v{k}" if k != "0" else "baseline", "fp8" if k != "0" else "none", results, rows)
        for k, results in sides.items()
    ]
    seconds = time.perf_counter() - start
    policy = Policy(
        schema_="workbench.policy/1",
        name="speed",
        quality=tuple(QualityCheck(suite=s, margin=0.04) for s in baseline.rows),
    )
    found = replace(evidence({}, *read), baseline=baseline)
    record = decide(policy, found, policy_digest="", id_="speed")
    (folder / "gate.json").write_bytes(dump_record(record))
    total = time.perf_counter() - start
    child = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    verdicts = ", ".join(v.verdict for v in record.variants)
    cpu = time.process_time() - used + child.ru_utime + child.ru_stime
    memory = f"{peak:.0f} MiB"
    if child.ru_maxrss:
        memory += f" and {child.ru_maxrss * 1024 / MIB:.0f} in the second process"
    after = f"after {start - begun:.2f} s of importing numpy and scipy"
    print(f"{total:.2f} s (reading {seconds:.2f}; CPU {cpu:.2f}) {after}; {memory}: {verdicts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--suites", type=int, default=20)
    parser.add_argument("--gate", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gate:
        gate(args.gate)
        return
    for says, suites, n, variants in (
        ("a normal run: 3 suites of 88 pairs, 5 variants", 3, 88, 5),
        (f"{args.pairs:,} pairs over {args.suites} suites", args.suites, args.pairs, 1),
    ):
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), suites, n if variants > 1 else n // suites, variants)
            print(says, end=": ", flush=True)
            subprocess.run([sys.executable, __file__, "--gate", name], check=True)


if __name__ == "__main__":
    main()
