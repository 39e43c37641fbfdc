"""FP8 on a CPU with AMX: when vLLM gets the plugin, how it finds it, and what the plugin does."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_servers import CPU, launch

from workbench import envs
from workbench.hardware import detect
from workbench.servers.vllm import FP8_PLUGIN, VllmEngine

AMX = CPU.model_copy(update={"isa": ("amx_int8", "amx_tile", "avx512f")})


def test_vllm_gets_the_plugin_where_torch_leaves_fp8_to_onednn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "PYTHONPATH" not in VllmEngine().command(launch(tmp_path)).env
    assert VllmEngine().command(launch(tmp_path, AMX)).env["PYTHONPATH"] == str(FP8_PLUGIN)
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    assert VllmEngine().command(launch(tmp_path, AMX)).env["PYTHONPATH"] == f"{FP8_PLUGIN}:/a:/b"


def test_vllm_finds_the_plugin_as_it_finds_any() -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='vllm.general_plugins', name='workbench_vllm_fp8')\n"
        "print(found.load().__module__)"
    )
    given = os.environ | {"PYTHONPATH": str(FP8_PLUGIN)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout == "workbench_vllm_fp8\n"


class Tensor:
    dtype = None

    def to(self, dtype: str) -> "Tensor":
        return self

    def t(self) -> "Tensor":
        return self


class Torch(types.ModuleType):
    """As much of torch as the plugin asks: its products sleep, with oneDNN and without."""

    float8_e4m3fn, float32 = "float8", "float32"

    def __init__(self, with_onednn: float, without: float) -> None:
        super().__init__("torch")
        self.seconds = {True: with_onednn, False: without}
        self.onednn, self.asked = True, []  # type: bool, list[bool]
        self.backends = types.SimpleNamespace(mkldnn=types.SimpleNamespace(flags=self.flags))

    def ones(self, *shape: Any) -> Tensor:
        return Tensor()

    @contextlib.contextmanager
    def flags(self, enabled: bool) -> Iterator[None]:
        self.onednn, before = enabled, self.onednn
        yield
        self.onednn = before

    def _scaled_mm(self, left: Any, right: Any, **scales: Any) -> str:
        self.asked.append(self.onednn)
        time.sleep(self.seconds[self.onednn])
        return "product"


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Any:
    def plugin(torch: Torch) -> bool:
        monkeypatch.setitem(sys.modules, "torch", torch)
        spec = importlib.util.spec_from_file_location("p", FP8_PLUGIN / "workbench_vllm_fp8.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return bool(module.apply())

    return plugin


def test_a_slow_onednn_is_not_asked_again(apply: Any, capfd: pytest.CaptureFixture[str]) -> None:
    torch = Torch(0.2, 0.001)
    assert apply(torch)
    assert capfd.readouterr().err == ""  # asking is no use of it
    torch.asked.clear()
    assert [torch._scaled_mm(1, Tensor(), bias=3), torch._scaled_mm(1, 2)] == ["product"] * 2
    assert (torch.asked, torch.onednn) == ([False, False], True)
    log = capfd.readouterr().err
    assert VllmEngine().read_log(log).kernels == ("WidenedFp8ScaledMMKernel",)
    assert len(log.splitlines()) == 1
    # vLLM may call it more than once in a process.
    own = torch._scaled_mm
    assert apply(torch) and torch._scaled_mm is own


def test_an_onednn_that_is_not_slow_stays(apply: Any) -> None:
    torch = Torch(0.01, 0.01)
    assert not apply(torch)
    assert torch._scaled_mm(1, 2) == "product" and torch.asked[-1]


REAL = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import workbench_vllm_fp8 as plugin

every = torch.arange(256, dtype=torch.uint8)
numbers = every[(every & 127) != 127].view(torch.float8_e4m3fn)
assert torch.equal(plugin.widen(torch, numbers), numbers.float())
assert torch.equal(plugin.widen(torch, numbers), numbers.float())  # the second time, too
assert plugin.widen(torch, every.view(torch.float8_e4m3fn)) is None  # two of them are NaN
assert plugin.widen(torch, torch.ones(2).to(torch.float8_e5m2)) is None

with_torch = torch._scaled_mm
plugin._seconds = lambda torch, multiply: 10 if multiply is with_torch else 1
assert plugin.apply() and torch._scaled_mm is not with_torch
torch.manual_seed(1)

def product(multiply, left, right, **asked):
    scale = torch.ones(1)
    with torch.backends.mkldnn.flags(enabled=False):
        return multiply(left, right, scale_a=scale, scale_b=scale * 2, **asked)

def matrices(kind):
    right = torch.randn(48, 80).to(kind).t()
    return torch.randn(5, 80).to(torch.float8_e4m3fn), right

for kind, asked in (
    (torch.float8_e4m3fn, {"out_dtype": torch.float32}),
    (torch.float8_e4m3fn, {"out_dtype": torch.bfloat16}),
    (torch.float8_e4m3fn, {"out_dtype": torch.float32, "bias": torch.randn(48)}),
):
    sides = matrices(kind)
    ours, theirs = product(torch._scaled_mm, *sides, **asked), product(with_torch, *sides, **asked)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2**-7 if ours.itemsize == 2 else 1e-5, atol=1e-4)
left, right = matrices(torch.float8_e4m3fn)
right[3, 7] = float("nan")
assert product(torch._scaled_mm, left, right, out_dtype=torch.float32)[:, 7].isnan().all()
print("same")
"""


@pytest.mark.real
def test_its_products_are_those_of_torch() -> None:
    python = envs.ensure("vllm", detect().target).python
    done = subprocess.run([python, "-c", REAL, str(FP8_PLUGIN)], capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr
