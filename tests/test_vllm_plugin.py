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
    assert [torch._scaled_mm(1, 2, scale_a=3), torch._scaled_mm(1, 2)] == ["product"] * 2
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
