"""Import rules of the house: what is pure, what is light, and where torch may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "workbench"
PURE = (
    "digest",
    "errors",
    "spec",
    "records",
    "stats",
    "clusters",
    "permutation",
    "recovery",
    "paired_bootstrap",
    "margin_test",
    "holm",
    "quality_figures",
    "pooled",
    "evidence",
    "paired",
    "noise",
    "differences",
    "asked",
    "report/compared",
    "report/differences",
    "checks",
    "measured_checks",
    "measured_when",
    "policy_spec",
    "profile_spec",
    "sweep_spec",
    "sweep_grid",
    "sweep_rows",
    "pareto",
    "estimates",
    "report/sweep",
    "memory_records",
    "passes",
    "pass_figures",
    "profile_remarks",
    "reach",
    "power",
    "items",
    "gate",
    "waivers",
    "waiving",
    "objective",
    "best",
    "what_if",
    "across",
    "scorers",
    "support",
    "plots",
    "lmeval_samples",
    "kv_cache",
    "memory",
    "capacity",
    "capacity_formats",
    "capacity_rows",
    "capacity_speed",
    "traffic",
    "lengths",
    "arrivals",
    "traces",
    "workload_spec",
    "workloads",
    "bootstrap",
    "exact_intervals",
    "repeat_interval",
    "load_intervals",
    "load_records",
    "load_requests",
    "load_stats",
    "saturation",
    "rate_search",
    "quiet",
    "load_request",
    "load_stream",
    "engine_metrics",
)
IMPURE = {"subprocess", "socket", "aiohttp", "httpx", "requests", "torch", "time", "psutil"}
HEAVY = (
    "torch",
    "transformers",
    "vllm",
    "llmcompressor",
    "pandas",
    "scipy",
    "matplotlib",
    "papermill",
)


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_touch_nothing(name: str) -> None:
    found = [*PACKAGE.glob(f"{name}.py"), *PACKAGE.glob(f"{name}/*.py")]
    assert found
    for path in found:
        assert not _imports(path) & IMPURE, path.name


def test_torch_only_inside_an_environment() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "inside" not in path.parts:
            bad = _imports(path) & {"torch", "transformers", "vllm", "llmcompressor", "datasets"}
            assert not bad, f"{path.name} imports {bad}"


@pytest.mark.parametrize("module", ["workbench", "workbench.cli"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_public_names_are_the_exported_ones() -> None:
    import workbench

    names = ["__version__", "loads", "open_run", "samples", "show", "sweep"]
    assert sorted(workbench.__all__) == names
    for name in workbench.__all__:
        assert getattr(workbench, name)
    with pytest.raises(AttributeError):
        _ = workbench.nothing


def test_modules_stay_readable() -> None:
    """The house keeps modules under 400 lines."""
    long = {
        p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long


def test_every_module_can_be_the_first_one() -> None:
    """A circle of imports shows only from one of its ends."""
    code = """
import importlib, pkgutil, sys, workbench
for name in [m.name for m in pkgutil.walk_packages(workbench.__path__, "workbench.")]:
    if name == "workbench.__main__":
        continue
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "workbench"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
