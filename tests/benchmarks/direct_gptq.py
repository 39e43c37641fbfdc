"""GPTQ with llm-compressor as its own examples do it: what the workbench is measured against.

Runs in the `quantize` environment: ``python direct_gptq.py SOURCE TOKENS OUT THREADS GROUP_SIZE``.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

source, tokens, out, threads, group_size = sys.argv[1:]
torch.set_num_threads(int(threads))
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True)
rows = [json.loads(line) for line in Path(tokens).read_text("utf-8").splitlines()]
weights = QuantizationArgs(
    num_bits=4, type="int", symmetric=True, strategy="group", group_size=int(group_size)
)
recipe = GPTQModifier(
    config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)},
    ignore=["lm_head"],
    actorder="static",
    dampening_frac=0.01,
)
oneshot(
    model=model,
    recipe=recipe,
    dataset=Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(r) for r in rows]}),
    num_calibration_samples=len(rows),
    max_seq_length=max(map(len, rows)),
    shuffle_calibration_samples=False,
)
model.save_pretrained(out, save_compressed=True)
AutoTokenizer.from_pretrained(source, local_files_only=True).save_pretrained(out)
