"""The machine's description, from texts of machines this one is not, and from this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.hardware import cgroup_limits, detect, read_cpuinfo, read_memory, visible

XEON = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu sse2 avx avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8

processor\t: 1
model name\t: something else
"""
EPYC_AVX2 = "model name : AMD EPYC 7763\nflags : fpu avx avx2 fma\n"
GRAVITON = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm asimdhp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("text", "name", "isa"),
    [
        (
            XEON,
            "Intel(R) Xeon(R) Platinum 8480+",
            ("amx_bf16", "amx_int8", "amx_tile", "avx2", "avx512_bf16", "avx512_vnni", "avx512f"),
        ),
        (EPYC_AVX2, "AMD EPYC 7763", ("avx2",)),
        (GRAVITON, "Neoverse-V1", ("bf16", "dotprod", "fp16", "i8mm", "neon", "sve")),
        ("CPU implementer : 0x61\nCPU part : 0x022\n", "CPU 0x61/0x022", ()),
        ("", "unknown CPU", ()),
    ],
)
def test_cpuinfo(text: str, name: str, isa: tuple[str, ...]) -> None:
    assert read_cpuinfo(text) == (name, isa)


def test_meminfo() -> None:
    assert read_memory("MemTotal:       24683652 kB\nMemFree: 1 kB\n") == 24683652 * 1024
    with pytest.raises(ValueError, match="MemTotal"):
        read_memory("MemFree: 1 kB\n")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_no_control_group_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path, "") == (None, None)
    assert cgroup_limits(tmp_path / "none", "0::/a/b\n") == (None, None)


def test_version_2_takes_the_tightest_of_every_level(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "cgroup.controllers": "cpu memory",
            "pod/cpu.max": "150000 100000",
            "pod/memory.max": "4294967296",
            "pod/job/cpu.max": "max 100000",
            "pod/job/memory.max": "max",
            "other/memory.max": "1",
        },
    )
    assert cgroup_limits(root, "0::/pod/job\n") == (1.5, 4 << 30)


def test_version_1_and_a_group_that_is_not_visible_inside(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "cpu/cpu.cfs_quota_us": "200000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(8 << 30),
        },
    )
    groups = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"
    assert cgroup_limits(root, groups) == (2.0, 8 << 30)


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert cgroup_limits(root, "4:memory:/\n1:cpu:/\n") == (None, None)


def machine(tmp_path: Path, cpu_max: str, memory_max: str) -> tuple[Path, Path]:
    proc = write(
        tmp_path / "proc",
        {
            "cpuinfo": EPYC_AVX2,
            "meminfo": "MemTotal: 16777216 kB\n",
            "self/cgroup": "0::/\n",
        },
    )
    groups = write(
        tmp_path / "cgroup",
        {"cgroup.controllers": "", "cpu.max": cpu_max, "memory.max": memory_max},
    )
    return proc, groups


def test_a_container_is_the_machine(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "50000 100000", str(2 << 30))
    found = detect(proc, groups)
    assert (found.cpu, found.isa) == ("AMD EPYC 7763", ("avx2",))
    assert (found.cores, found.memory_bytes) == (1, 2 << 30)


def test_a_limit_above_the_machine_changes_nothing(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "max 100000", str(1 << 40))
    found = detect(proc, groups)
    assert found.memory_bytes == 16 << 30
    assert found.cores == len(os.sched_getaffinity(0))


def test_affinity_limits_the_cores(tmp_path: Path) -> None:
    code = (
        "import os; from workbench.hardware import detect;"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(detect().cores)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


def test_this_machine() -> None:
    found = detect()
    assert found.cores >= 1
    assert found.memory_bytes > 1 << 28
    assert found.isa == tuple(sorted(set(found.isa)))
    assert found.target == ("cuda" if found.gpus else "cpu")
    assert detect() == found


UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),
        ("GPU-cccc", [2]),
        ("GPU-aa", []),
        ("1, GPU-aaaa", [1, 0]),
        ("1,1", [1]),
    ],
)
def test_cuda_visible_devices(setting: str | None, shown: list[int]) -> None:
    assert visible(UUIDS, setting) == shown


@given(st.text(max_size=30))
def test_any_setting_gives_distinct_known_devices(setting: str) -> None:
    shown = visible(UUIDS, setting)
    assert len(set(shown)) == len(shown) and set(shown) <= {0, 1, 2}


@pytest.mark.gpu
@pytest.mark.skipif(not detect().gpus, reason="this machine has no CUDA device")
def test_a_cuda_device() -> None:
    (first, *_) = detect().gpus
    assert first.memory_bytes > 1 << 30 and float(first.compute_capability) >= 5
