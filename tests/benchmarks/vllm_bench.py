"""`vllm bench serve` of the vLLM environment, for the benchmarks that run beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.servers import Endpoint

#: Its command asks for a distribution named vllm, which the CPU build is not, and it reads prompts
#: with pandas, which an environment that serves lacks. It sends a prompt of token ids as it is, but
#: would count its tokens with the tokenizer. All before its clock.
_BENCH = """
import json
from pathlib import Path
from types import SimpleNamespace
from vllm.benchmarks.datasets import CustomDataset
def load_data(self):
    lines = Path(self.dataset_path).read_text("utf-8").splitlines()
    self.data = [json.loads(line) for line in lines]
CustomDataset.load_data = load_data
inner = CustomDataset.sample
def sample(self, tokenizer, **settings):
    def counted(prompt):
        return SimpleNamespace(input_ids=prompt) if isinstance(prompt, list) else tokenizer(prompt)
    return inner(self, tokenizer=counted, **settings)
CustomDataset.sample = sample
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def bench(
    python: str,
    endpoint: Endpoint,
    tokenizer: Path,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    tokens: Sequence[int],
    **settings: Any,
) -> Mapping[str, Any]:
    """What vLLM's client reports of these prompts, each answered with as many tokens as asked.

    Args:
        python: of the vLLM environment.
        endpoint: who is asked, over the completions route.
        tokenizer: folder of the checkpoint.
        prompts: texts, or token ids; sent in this order.
        tokens: of the answer to each; no end of text is taken.
        settings: more options, ``max_concurrency=8`` for ``--max-concurrency 8``.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "prompts.jsonl"
        rows = [{"prompt": p, "output_tokens": n} for p, n in zip(prompts, tokens, strict=True)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {
            "backend": "openai",
            "base_url": endpoint.base_url,
            "endpoint": "/v1/completions",
            "model": endpoint.model,
            "tokenizer": tokenizer,
            "dataset_name": "custom",
            "dataset_path": file,
            "custom_output_len": -1,
            "num_prompts": len(prompts),
            "temperature": 0,
            "extra_body": json.dumps({"add_special_tokens": False, "seed": 0}),
            "result_dir": folder,
            "result_filename": "found.json",
        } | settings
        command = [python, "-c", _BENCH]
        for option, value in settings.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        command += ["--skip-chat-template", "--disable-shuffle", "--ignore-eos"]
        command += ["--save-result", "--save-detailed", "--disable-tqdm"]
        env = {**os.environ, "OPENAI_API_KEY": endpoint.key, "HF_HUB_OFFLINE": "1"}
        env.pop("PYTHONPATH", None)  # of this environment, not of that one
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"vLLM's client ended with {done.returncode}:\n{done.stderr[-3000:]}")
        found: Mapping[str, Any] = json.loads((folder / "found.json").read_text())
    if found["completed"] != len(prompts) or found["output_lens"] != list(tokens):
        sys.exit(f"vLLM's client completed {found['completed']}, {found['total_output_tokens']}")
    return found
