"""The doctor on this machine and on machines it is told about."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench import doctor, envs
from workbench.doctor import Finding, diagnose
from workbench.records import Gpu, Hardware

OLD = Hardware(cpu="Old", isa=(), cores=2, memory_bytes=32 << 30)
AVX2 = Hardware(cpu="EPYC", isa=("avx2",), cores=2, memory_bytes=4 << 30)
AVX512 = Hardware(cpu="Xeon", isa=("avx2", "avx512f"), cores=8, memory_bytes=64 << 30)
H200 = Gpu(name="H200", compute_capability="9.0", memory_bytes=139 << 30, driver="570.1")
GPU = Hardware(cpu="Old", isa=(), cores=2, memory_bytes=32 << 30, gpus=(H200,))


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environments, and no pip configuration but a test's own."""
    monkeypatch.setenv("WORKBENCH_ENVS", str(tmp_path / "envs"))


def by_name(results: Path, hardware: Hardware | None = None) -> dict[str, Finding]:
    findings = diagnose(results, hardware)
    named = {finding.name: finding for finding in findings}
    assert len(named) == len(findings)
    return named


def test_this_machine_every_finding_is_one_a_person_can_use(tmp_path: Path) -> None:
    found = by_name(tmp_path / "results")
    assert {"python", "cpu", "memory", "gpu", "disk for results", "papermill"} <= set(found)
    assert found["python"].ok != "missing"
    for finding in found.values():
        assert finding.detail
        assert finding.fix or finding.ok == "ok"
    assert not (tmp_path / "results").exists() and not (tmp_path / "envs").exists()


@pytest.mark.parametrize(
    ("hardware", "ok", "says"),
    [
        (OLD, "missing", "needs AVX2"),
        (AVX2, "warn", "dequantized twin"),
        (AVX512, "ok", "avx512f"),
        (GPU, "ok", "Old"),
    ],
)
def test_cpu(tmp_path: Path, hardware: Hardware, ok: str, says: str) -> None:
    finding = by_name(tmp_path, hardware)["cpu"]
    assert finding.ok == ok and says in finding.detail


def test_memory_and_gpu(tmp_path: Path) -> None:
    assert by_name(tmp_path, AVX2)["memory"].ok == "warn"
    assert by_name(tmp_path, AVX512)["memory"].ok == "ok"
    assert "no CUDA device" in by_name(tmp_path, AVX2)["gpu"].detail
    assert "H200 (sm 9.0, 139 GiB, driver 570.1)" in by_name(tmp_path, GPU)["gpu"].detail


def test_environments_of_each_state(tmp_path: Path) -> None:
    root = envs.root()
    envs.spec("vllm", "cpu").folder(root).mkdir(parents=True)
    (root / "quantize-cpu-0123456789ab").mkdir()
    found = by_name(tmp_path, AVX2)
    assert "cut short" in found["environment vllm"].detail
    assert "not created yet (about 1.7 GB)" in found["environment quantize"].detail
    assert "workbench env create quantize" in found["environment quantize"].fix
    assert "quantize-cpu-0123456789ab" in found["old environments"].fix
    assert "not created yet (about 12.0 GB)" in by_name(tmp_path, GPU)["environment vllm"].detail


def test_disk() -> None:
    full = doctor._disk("disk", Path("/proc"), 1)
    assert full.ok == "missing" and full.fix
    assert doctor._disk("disk", Path.cwd(), 1 << 60).ok == "missing"
    assert doctor._disk("disk", Path.cwd() / "not" / "yet", 1).ok == "ok"


def test_pip_configuration_is_named_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip" / "pip.conf"
    config.parent.mkdir()
    config.write_text("[global]\nindex-url = https://user:hunter2@example.invalid/simple\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:hunter2@example.invalid/simple")
    finding = by_name(tmp_path, AVX2)["pip configuration"]
    assert finding.ok == "ok"
    assert str(config) in finding.detail and "PIP_INDEX_URL" in finding.detail
    assert "hunter2" not in str(finding) and "example.invalid" not in str(finding)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = by_name(tmp_path, AVX2)["C compiler"]
    assert finding.ok == "warn" and "build-essential" in finding.fix


@pytest.mark.parametrize(
    ("version", "ok"), [((3, 10), "missing"), ((3, 11), "ok"), ((3, 13), "warn")]
)
def test_python(version: tuple[int, int], ok: str) -> None:
    assert doctor._python(version).ok == ok


def test_a_distribution_that_is_not_there() -> None:
    assert doctor._distribution("papermill").ok == "ok"
    assert doctor._distribution("no-such-distribution-here").ok == "missing"
