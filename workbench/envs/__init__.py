"""The isolated environments of quantizers and servers: the table, and its use by name.

One environment cannot hold everything (vLLM and llm-compressor pin different versions of the same
package), so each tool has its own, created on first need from a complete lock beside this file,
one lock per tool and processor. How they are made: `workbench.envs.build`.

They lie in ``$WORKBENCH_ENVS``, by default ``~/.cache/workbench/envs``, shared by all projects.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from workbench.envs import build
from workbench.envs.build import State
from workbench.envs.install import Build, EnvironmentSpec, Target, need_compilers
from workbench.errors import RecipeError, WorkbenchError, did_you_mean
from workbench.progress import Progress, silent
from workbench.records import Environment

__all__ = [
    "DEFAULT",
    "ENVIRONMENTS",
    "EnvironmentSpec",
    "Listed",
    "approximate_bytes",
    "check_buildable",
    "ensure",
    "ensure_all",
    "is_ready",
    "leftovers",
    "listing",
    "lock_digest",
    "names",
    "root",
    "spec",
    "verify",
]


@dataclass(frozen=True)
class _Row:
    purpose: str
    imports: tuple[str, ...]
    cpu_bytes: int
    cuda_bytes: int
    build: Build | None = None
    targets: tuple[Target, ...] = ("cpu", "cuda")


#: llama-cpp-python's own build takes ten minutes on two cores, nearly all of it for what quantizing
#: does not use. So llama.cpp's project is built by itself, its one library `llama`, into the place
#: where the Python package looks for it: no backend (quantizing computes on none), no common,
#: multimodal, server or tool code. 90 s of processor time. The quantizing code (C, in ggml-base)
#: keeps its own -O3 and gets no -march, so that two processors write the same bytes; the C++ around
#: it computes nothing.
_LLAMA_CPP = Build(
    what="llama.cpp",
    minutes=1,
    variables={
        "SKBUILD_CMAKE_SOURCE_DIR": "vendor/llama.cpp",
        "SKBUILD_BUILD_TARGETS": "llama",
        "SKBUILD_NINJA_MAKE_FALLBACK": "false",
        "CMAKE_ARGS": " ".join(
            f"-D{option}"
            for option in (
                "BUILD_SHARED_LIBS=ON",
                "LLAMA_BUILD_COMMON=OFF",
                "LLAMA_BUILD_TESTS=OFF",
                "LLAMA_BUILD_TOOLS=OFF",
                "LLAMA_BUILD_EXAMPLES=OFF",
                "LLAMA_BUILD_SERVER=OFF",
                "LLAMA_BUILD_APP=OFF",
                "LLAMA_OPENSSL=OFF",
                "GGML_CPU=OFF",
                "GGML_NATIVE=OFF",
                "GGML_OPENMP=OFF",
                "GGML_CCACHE=OFF",
                "CMAKE_CXX_FLAGS_RELEASE=-O1",
                "CMAKE_INSTALL_LIBDIR=llama_cpp/lib",
                "CMAKE_INSTALL_INCLUDEDIR=llama_cpp/include",
                "CMAKE_INSTALL_BINDIR=llama_cpp/bin",
                "CMAKE_INSTALL_RPATH=$ORIGIN",
            )
        ),
    },
)

#: Name -> what it is for, what must import, and its size. The CUDA sizes are estimates.
ENVIRONMENTS: dict[str, _Row] = {
    "quantize": _Row(
        "llm-compressor and bitsandbytes: quantize checkpoints, write twins, build the demo one",
        (
            *("safetensors", "gguf", "torch", "transformers", "compressed_tensors"),
            *("bitsandbytes", "llmcompressor"),
        ),
        1_700_000_000,
        7_000_000_000,
    ),
    "vllm": _Row(
        "vLLM: serves everything but GGUF files",
        ("torch", "transformers", "vllm", "vllm.entrypoints.openai.api_server"),
        3_600_000_000,
        12_000_000_000,
    ),
    "gguf": _Row(
        "llama.cpp's quantizer (llama-cpp-python): makes GGUF files",
        ("safetensors", "llama_cpp"),
        120_000_000,
        120_000_000,
        _LLAMA_CPP,
    ),
    "llamacpp": _Row(
        "llama.cpp's own server (xllamacpp): serves GGUF files",
        ("xllamacpp",),
        150_000_000,
        150_000_000,
    ),
    "lmeval": _Row(
        "lm-evaluation-harness: asks public benchmarks of a served variant",
        ("lm_eval", "lm_eval.models.openai_completions", "transformers", "datasets"),
        900_000_000,
        900_000_000,
    ),
    "gptqmodel": _Row(
        "GPTQModel: writes the GPTQ format",
        ("torch", "transformers", "gptqmodel"),
        1_700_000_000,
        7_000_000_000,
    ),
    "autoawq": _Row(
        "AutoAWQ (deprecated): writes the AWQ format",
        ("torch", "transformers", "awq"),
        1_500_000_000,
        6_000_000_000,
    ),
    "autogptq": _Row(
        "AutoGPTQ (ended in 2024): writes the GPTQ format; needs CUDA",
        ("torch", "transformers", "auto_gptq"),
        0,
        6_000_000_000,
        targets=("cuda",),
    ),
}
#: What most runs need; a recipe with GGUF variants also has `gguf` and `llamacpp` made.
DEFAULT = ("quantize", "vllm")


@dataclass(frozen=True)
class Listed:
    """One line of ``workbench env list``.

    Attributes:
        size: on disk, or about how much it will be, e.g. ``"3.4 GB"``.
    """

    name: str
    state: State
    size: str
    lock_digest: str
    purpose: str
    path: Path


def root() -> Path:
    """Folder of all environments: ``$WORKBENCH_ENVS``, else one in the user's cache."""
    if named := os.environ.get("WORKBENCH_ENVS"):
        return Path(named).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "workbench" / "envs"


def names(target: Target) -> list[str]:
    """Names of the environments that exist for a processor."""
    return [name for name, row in ENVIRONMENTS.items() if target in row.targets]


def spec(name: str, target: Target) -> EnvironmentSpec:
    """The environment of that name for a processor.

    Raises:
        RecipeError: there is none of that name, or it does not exist for that processor.
    """
    row = ENVIRONMENTS.get(name)
    if row is None:
        raise RecipeError(
            f"there is no environment '{name}'",
            fix=did_you_mean(name, ENVIRONMENTS) + f"environments: {', '.join(ENVIRONMENTS)}",
        )
    if target not in row.targets:
        raise RecipeError(
            f"environment '{name}' does not exist for {target.upper()}: {row.purpose}",
            fix=f"create it on a machine with {' or '.join(row.targets).upper()}; environments "
            f"here: {', '.join(names(target))}",
        )
    return EnvironmentSpec(
        name=name,
        target=target,
        purpose=row.purpose,
        imports=row.imports,
        requirements=Path(__file__).with_name(f"{name}-{target}.txt"),
        approximate_bytes=row.cpu_bytes if target == "cpu" else row.cuda_bytes,
        build=row.build,
    )


def lock_digest(name: str, target: Target) -> str:
    """Digest of the environment's lock and the Python version: known before it is created."""
    return spec(name, target).lock().digest


def approximate_bytes(name: str, target: Target) -> int:
    """About how many bytes the environment takes on disk."""
    return spec(name, target).approximate_bytes


def check_buildable(name: str, target: Target) -> None:
    """Refuse, before anything starts, an environment that must be compiled and cannot be here.

    Raises:
        EnvironmentFailure: it needs a compiler that is not there.
    """
    need_compilers(spec(name, target))


def is_ready(name: str, target: Target) -> bool:
    """Whether it was created and verified, and its interpreter is still there."""
    return build.complete(spec(name, target), root()) is not None


def ensure(name: str, target: Target, progress: Progress = silent) -> Environment:
    """The environment, created on first need. See `workbench.envs.build.ensure`."""
    return build.ensure(spec(name, target), root(), progress)


class _Stopped(Exception):
    """Raised into a creation through its progress: it ends what it started and unwinds."""


def ensure_all(
    wanted: Sequence[str],
    target: Target,
    progress_of: Callable[[str], Progress],
    ready: Callable[[str, Environment], None],
) -> None:
    """Several environments, two created at a time: pip computes on one core, and waits in between.

    Those with torch follow one another, so that the gigabytes they share are fetched once: a second
    pip finds them in its cache. The others are made beside them. Where one fails, the one beside it
    is finished, for that work is kept, and no other is begun.

    Args:
        wanted: names, in the order in which they are begun.
        target: processor they are for.
        progress_of: the listener of the one with that name; called from a thread of its own.
        ready: told each one as it is there, from this thread.

    Raises:
        RecipeError: there is none of one of the names; nothing is created then.
        EnvironmentFailure: as `ensure`; of several the first that failed.
        DiskFull: there is no room for one of them.
    """
    specs = [spec(name, target) for name in dict.fromkeys(wanted)]
    begin_none, stop = threading.Event(), threading.Event()
    begun: set[str] = set()

    def make(one: EnvironmentSpec) -> Environment | None:
        if begin_none.is_set():
            return None
        begun.add(one.name)
        tell = progress_of(one.name)

        def unless_stopped(done: float, total: float, what: str) -> None:
            if stop.is_set():
                raise _Stopped
            tell(done, total, what)

        try:
            return build.ensure(one, root(), unless_stopped)
        except BaseException:
            begin_none.set()
            raise

    with ThreadPoolExecutor(1) as large, ThreadPoolExecutor(1) as small:
        futures = {
            (large if "torch" in one.lock().pins else small).submit(make, one): one.name
            for one in specs
        }
        failures: list[tuple[str, BaseException]] = []
        try:
            for future in as_completed(futures):
                if error := future.exception():
                    failures.append((futures[future], error))
                    for other, name in futures.items():
                        if name in begun and other.running():
                            what = f"{futures[future]} failed; {name} is finished first"
                            progress_of(name)(0, 0, what)
                elif made := future.result():
                    ready(futures[future], made)
        except BaseException:  # Ctrl-C above all
            begin_none.set()
            stop.set()
            raise
    if failures:
        (_, first), *others = failures
        if isinstance(first, WorkbenchError):
            also = [f"'{name}' failed too: {str(error).splitlines()[0]}" for name, error in others]
            if rest := [one.name for one in specs if one.name not in begun]:
                also.append(f"not begun: {', '.join(rest)}")
            first.what += "".join(f"\n  {line}" for line in also)
        raise first


def verify(name: str, target: Target, progress: Progress = silent) -> Environment:
    """Import and compare versions. See `workbench.envs.build.verify`."""
    return build.verify(spec(name, target), root(), progress)


def listing(target: Target) -> list[Listed]:
    """Every environment of the table for a processor, there or not."""
    rows = []
    for name in names(target):
        one = spec(name, target)
        folder = one.folder(root())
        now = build.state(one, root())
        size = f"{tree_bytes(folder) / 1e9:.1f} GB"
        if now == "absent":
            size = f"about {one.approximate_bytes / 1e9:.1f} GB"
        rows.append(Listed(name, now, size, one.lock().digest, one.purpose, folder))
    return rows


def leftovers(target: Target) -> list[Path]:
    """Environments of older locks or other Pythons in the folder: nothing here uses them."""
    current = {spec(name, target).folder(root()).name for name in names(target)}
    every = "|".join(map(re.escape, ENVIRONMENTS))
    ours = re.compile(rf"\.?(({every})-{target}-[0-9a-f]{{12}})(\.pip-cache)?")
    if not root().is_dir():
        return []
    found = ((path, ours.fullmatch(path.name)) for path in root().iterdir() if path.is_dir())
    return sorted(path for path, name in found if name and name[1] not in current)


def tree_bytes(folder: Path) -> int:
    """Bytes of all files under a folder; 0 where it is not there."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
