"""NVML as it is read, against one that is scripted: every value, and every refusal."""

import os
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from workbench.quiet import HARMLESS
from workbench.servers.gpu import _REASONS, GpuProcess, GpuReading, GpuWatch

GIB = 1 << 30


class Refused(Exception):
    """NVML's error."""


@dataclass
class Nvml:
    """Two devices; `refuses` names the calls that are not supported."""

    refuses: set[str] = field(default_factory=set)
    used: list[int] = field(default_factory=lambda: [10 * GIB, 20 * GIB])
    reasons: int = 0x4 | 0x20
    processes: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)

    NVMLError = Refused
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM

    def _answer(self, name: str, value: Any) -> Any:
        assert hasattr(pynvml, name)
        if name in self.refuses:
            raise Refused(name)
        return value

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answers = {
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=self.used[h]),
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=75 + h, memory=1),
            "nvmlDeviceGetPowerUsage": lambda h: 350_500,
            "nvmlDeviceGetClockInfo": lambda h, kind: {pynvml.NVML_CLOCK_SM: 1980 - h}[kind],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: self.reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: self.reasons,
            "nvmlDeviceGetComputeRunningProcesses": lambda h: [
                SimpleNamespace(pid=pid, usedGpuMemory=used)
                for pid, used in self.processes.get(h, [])
            ],
        }
        return lambda *arguments: self._answer(name, answers[name](*arguments))


def test_a_device_is_read_in_the_units_it_says() -> None:
    nvml = Nvml(processes={0: [(7, 5 * GIB), (8, None)]})
    assert GpuWatch(nvml, [0, 1]).readings() == (
        GpuReading(
            memory_bytes=10 * GIB,
            utilization=0.75,
            power_w=350.5,
            clock_mhz=1980.0,
            reasons=("sw_power_cap", "sw_thermal_slowdown"),
            processes=(GpuProcess(7, 5 * GIB), GpuProcess(8, None)),
        ),
        GpuReading(20 * GIB, 0.76, 350.5, 1979.0, ("sw_power_cap", "sw_thermal_slowdown"), ()),
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("MemoryInfo", "memory_bytes"),
        ("UtilizationRates", "utilization"),
        ("PowerUsage", "power_w"),
        ("ClockInfo", "clock_mhz"),
        ("ComputeRunningProcesses", "processes"),
    ],
)
def test_what_nvml_does_not_support_is_unknown_and_the_rest_is_read(call: str, name: str) -> None:
    nvml = Nvml()
    watch = GpuWatch(nvml, [0])
    nvml.refuses.add(f"nvmlDeviceGet{call}")
    (reading,) = watch.readings()
    values = {key: getattr(reading, key) for key in GpuReading.__annotations__}
    assert [key for key, value in values.items() if value is None] == [name]


def test_reasons_are_asked_by_the_older_name_where_the_newer_is_unknown() -> None:
    nvml = Nvml(refuses={"nvmlDeviceGetCurrentClocksEventReasons"})
    watch = GpuWatch(nvml, [0])
    assert watch.readings()[0].reasons == ("sw_power_cap", "sw_thermal_slowdown")
    nvml.refuses.add("nvmlDeviceGetCurrentClocksThrottleReasons")
    assert watch.readings()[0].reasons is None


def test_no_reason_and_an_unknown_one() -> None:
    nvml = Nvml(reasons=0)
    watch = GpuWatch(nvml, [0])
    assert watch.readings()[0].reasons == ()
    nvml.reasons = 0x1 | 1 << 40
    assert watch.readings()[0].reasons == ("gpu_idle", "0x10000000000")


def test_reasons_are_named_as_nvml_names_them() -> None:
    named = {}
    for name in dir(pynvml):
        found = re.fullmatch(r"nvmlClocks(?:Event|Throttle)Reason([A-Z]\w+)", name)
        if found and found[1] not in ("None", "All", "UserDefinedClocks"):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
            named[getattr(pynvml, name)] = words
    assert named == _REASONS
    assert set(HARMLESS) <= set(_REASONS.values())


def test_nvml_lost_in_the_middle_is_said_and_is_no_error() -> None:
    nvml = Nvml()
    watch = GpuWatch(nvml, [0, 1])
    assert watch.check_returned() == ""
    nvml.refuses.add("nvmlDeviceGetMemoryInfo")
    assert "NVML no longer answers" in watch.check_returned()


def test_the_servers_share_is_its_trees_or_what_came_since() -> None:
    nvml = Nvml(processes={0: [(os.getpid(), 3 * GIB), (1, 2 * GIB)], 1: [(os.getpid(), GIB)]})
    watch = GpuWatch(nvml, [0, 1])
    tree = {os.getpid()}
    assert watch.used(os.getpid()) == watch.used_by(tree, watch.readings()) == 4 * GIB
    # Processes hidden, as in a container: what is used beyond what was used before.
    nvml.refuses.add("nvmlDeviceGetComputeRunningProcesses")
    nvml.used = [11 * GIB, 20 * GIB]
    assert watch.used(os.getpid()) == watch.used_by(tree, watch.readings()) == GIB
    nvml.refuses.add("nvmlDeviceGetMemoryInfo")
    assert watch.used_by(tree, watch.readings()) is None
