"""Everything that can be known to be wrong before anything heavy starts.

What cannot work is raised as an error; what will work but may surprise comes back as findings.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from workbench import envs
from workbench.base import BASELINE
from workbench.calibration import draw
from workbench.checkpoint import is_linear, read_config, read_tensors
from workbench.contamination import compare, described, refuse
from workbench.context import Context
from workbench.errors import DiskFull, MachineError, RecipeError, ServingFailure
from workbench.fit import NO_TEXT, writes_text
from workbench.judge import judge_key
from workbench.layer_patterns import refuse_endless
from workbench.lmeval import check as check_lm_eval
from workbench.load_findings import load_findings
from workbench.model_card import original
from workbench.plan import serving_dtype, variant_lane
from workbench.policy_findings import policy_findings
from workbench.prompts import shows_tools
from workbench.quantconfig import named
from workbench.quantizers import notes, quantizer
from workbench.questions import prepare_all
from workbench.recipe import load_lock, located
from workbench.servers import held_port
from workbench.servers.vllm import check_args
from workbench.sources import read_source
from workbench.suite_check import NO_TOOLS
from workbench.variants import AnyVariant

_GIB = 2**30


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Literal["ok", "warn"]
    what: str


def validate(context: Context) -> list[Finding]:
    """Check recipe, policy, suites, checkpoint, lanes, memory and disk against each other.

    Raises:
        RecipeError: something that cannot work, with the key and the fix.
        DiskFull: less space than the run will need.
    """
    with located(context.loaded.source):
        return [
            *_run(context),
            *_checkpoint(context),
            *_calibration(context),
            *_variants(context),
            *_lm_eval(context),
            *_divergence(context),
            *load_findings(context),
            *policy_findings(context),
            *_prompts(context),
            *_tools(context),
            *_judge(context),
            *_port(context),
            *_memory(context),
            *_disk(context),
        ]


def _run(context: Context) -> list[Finding]:
    """A run of the same name, of another model or another recipe, is about to be replaced."""
    lock = context.run.recipe_lock
    if not lock.is_file():
        return []
    try:
        before = load_lock(lock)
    except RecipeError:
        return []  # written by another version; it is about to be written again
    if before.model_path != context.loaded.model_path:
        what = f"was about {before.model_path or before.recipe.model.hub}"
    elif before.source != context.loaded.source and before.source.exists():  # or it was moved
        what = f"was made of the recipe {before.source}"
    else:
        return []
    text = f"run '{context.run.name}' {what}: its verdict will be replaced (--run NAME keeps both)"
    return [Finding("warn", text)]


def _calibration(context: Context) -> list[Finding]:
    """The set as it will be sealed, and what the suites share with it."""
    recipe = context.loaded.recipe
    spec, source = recipe.calibration, context.loaded.calibration_source
    if spec is None or not any(recipe.calibrates(v) for v in recipe.variants):
        return []
    if source is None:
        text = f"calibration: '{spec.label}' is fetched, checked and compared when it is sealed"
        return [Finding("warn", text)]
    rows = read_source(spec, source).rows
    if rows and len(rows) < spec.samples and spec.packing == "truncate":
        raise RecipeError(
            f"{spec.samples} calibration samples are asked for, '{spec.label}' has "
            f"{len(rows)} rows",
            where=f"{context.loaded.source}: calibration.samples",
            fix=f"ask for at most {len(rows)}, or name a larger source",
        )
    record, tokens = draw(spec, source, context.tokenizer)
    _vocabulary(context, tokens)
    dropped = ", ".join(f"{drop.count} {reason}" for reason, drop in record.dropped.items())
    text = f"calibration: {spec.samples} of {len(rows)} rows of '{spec.label}'"
    if spec.packing == "pack":
        text = f"calibration: {spec.samples} samples packed of '{spec.label}' ({len(rows)} rows)"
    findings = [Finding("ok", f"{text}; dropped: {dropped}" if dropped else text)]
    for value, stratum in (record.strata.values if record.strata else {}).items():
        level: Literal["ok", "warn"] = "ok" if stratum.samples else "warn"
        text = f"{stratum.samples} samples of {stratum.rows} rows, quota {stratum.quota:.0%}"
        findings.append(Finding(level, f"{spec.strata and spec.strata.by} {value}: {text}"))
    compared = compare(spec, rows, record.row_ids, context.suites)
    refuse(compared, f"{context.loaded.source}: calibration")
    for overlap in compared.suites:
        text = f"suite '{overlap.suite}' in the calibration set: {described(overlap)}"
        findings.append(Finding("warn" if overlap.matched else "ok", text))
    return findings


def _vocabulary(context: Context, texts: Iterable[Sequence[int]]) -> None:
    """Refuse a tokenizer that makes tokens the model has no embedding of: another model's."""
    config = read_config(context.model_path)
    size = {**config, **(config.get("text_config") or {})}.get("vocab_size")
    largest = max((max(ids, default=0) for ids in texts), default=0)
    if isinstance(size, int) and largest >= size:
        raise RecipeError(
            f"the tokenizer writes token {largest}, and the model has {size} embeddings",
            where=str(context.model_path / "tokenizer.json"),
            fix="the tokenizer is another model's: copy the files that belong to these weights",
        )


def _checkpoint(context: Context) -> list[Finding]:
    checkpoint = context.facts.checkpoint
    recipe = context.loaded.recipe
    made = [v for v in recipe.variants if v.method != "fake"]
    if checkpoint.quantization is not None and made:
        base = original(context.model_path)
        hint = f"its model card names {base}" if base else "its model card may name 'base_model'"
        raise RecipeError(
            f"the source checkpoint is already quantized ({checkpoint.quantization})",
            where=checkpoint.path,
            fix=f"use the original as 'model': {hint}; quantizing twice adds both errors, and the "
            "baseline must be the unquantized model",
        )
    if made and not writes_text(checkpoint.architecture):
        raise RecipeError(
            f"{checkpoint.architecture} {NO_TEXT}",
            where=f"{checkpoint.path}/config.json: architectures",
            fix="name a checkpoint of a generative language model (...ForCausalLM)",
        )
    longest = checkpoint.max_position_embeddings
    if recipe.serve.max_model_len > longest:
        raise RecipeError(
            f"max_model_len {recipe.serve.max_model_len} is beyond the checkpoint's {longest}",
            where=f"{context.loaded.source}: serve.max_model_len",
            fix=f"use {longest} or less",
        )
    if recipe.calibration and recipe.calibration.max_tokens > longest:
        raise RecipeError(
            f"calibration samples of {recipe.calibration.max_tokens} tokens are beyond the "
            f"checkpoint's {longest}: it was never trained on such positions",
            where=f"{context.loaded.source}: calibration.max_tokens",
            fix=f"use {longest} or less",
        )
    assert context.tokenizer.digest  # loads it: a broken tokenizer or template is known now
    millions = checkpoint.parameters / 1e6
    text = f"checkpoint: {checkpoint.architecture}, {millions:.0f} M parameters, {checkpoint.dtype}"
    return [Finding("ok", text)]


def _variants(context: Context) -> list[Finding]:
    recipe, facts = context.loaded.recipe, context.facts
    findings: list[Finding] = []
    for variant in recipe.all_variants:
        if variant.name != BASELINE:
            refuse_endless(variant, read_tensors(context.model_path))
            quantizer(variant.method).check(variant, facts.checkpoint, facts.hardware)
            findings += [Finding("warn", note) for note in notes(variant, facts.checkpoint)]
            findings += _ignored(context, variant)
        lane = variant_lane(context.loaded, variant, facts)
        if lane.name == "unsupported":
            other = f"leave it out, or run on other hardware (source: {lane.source})"
            raise RecipeError(
                f"variant '{variant.name}' ({variant.method}) cannot be served by "
                f"{recipe.engine(variant)} on this machine: {lane.reason}",
                where=f"variants: {variant.name}",
                fix="set 'serve.engine: fake'" if variant.method == "fake" else other,
            )
        level: Literal["ok", "warn"] = "ok" if lane.name == "native" else "warn"
        findings.append(Finding(level, f"{variant.name}: {lane.name} lane - {lane.reason}"))
    for engine in dict.fromkeys(recipe.engine(v) for v in recipe.all_variants):
        if engine == "vllm":
            check_args(recipe.serve.args)
        dtype = serving_dtype(context.loaded, facts, engine)
        findings.append(Finding("ok", f"{engine} computes in {dtype.value} - {dtype.reason}"))
    return findings


def _ignored(context: Context, variant: AnyVariant) -> list[Finding]:
    """Entries of `ignore` that mean nothing, and lists that leave nothing to quantize."""
    ignore: tuple[str, ...] = getattr(variant, "ignore", ())
    layers = [
        name.removesuffix(".weight")
        for name, tensor in read_tensors(context.model_path).items()
        if is_linear(name, tensor.shape)
    ]
    if layers and all(named(layer, ignore) for layer in layers):
        raise RecipeError(
            f"variant '{variant.name}' ignores every one of the {len(layers)} linear layers: "
            "nothing is left to quantize",
            where=f"{context.loaded.source}: variants: {variant.name}: ignore",
            fix="name fewer layers; the start of a name is enough for a 're:' pattern to match",
        )
    idle = [e for e in ignore if e != "lm_head" and not any(named(n, (e,)) for n in layers)]
    return [
        Finding("warn", f"{variant.name}: '{entry}' of 'ignore' is no linear layer of this model")
        for entry in idle
    ]


def _lm_eval(context: Context) -> list[Finding]:
    """Tasks of lm-eval: known, read from files or from the hub, possible on each engine."""
    return [Finding("ok" if well else "warn", text) for well, text in check_lm_eval(context)]


def _divergence(context: Context) -> list[Finding]:
    """The fake engine has no distributions to compare."""
    recipe = context.loaded.recipe
    if recipe.evaluate.divergence is None or recipe.serve.engine != "fake":
        return []
    text = "divergence: the fake engine invents its log-probabilities: the figures mean nothing"
    return [Finding("warn", text)]


def _prompts(context: Context) -> list[Finding]:
    """Every prompt as it will be sent: what a template refuses shows now, not after hours."""
    recipe, findings = context.loaded.recipe, []
    for name, suite in context.suites.items():
        samples = suite.samples[: recipe.evaluate.limit]
        questions = prepare_all(suite, samples, context.tokenizer, recipe.serve.max_model_len, "")
        _vocabulary(context, (q.prompt_ids for q in questions))
        long = [q.sample.id for q in questions if q.too_long and not q.repeat]
        if long:
            findings.append(
                Finding(
                    "warn",
                    f"suite '{name}': {len(long)} of {len(samples)} samples, '{long[0]}' first, "
                    f"are longer than the context of {recipe.serve.max_model_len} tokens with "
                    "their answer: they cannot be asked, so the suite can only be MISSING",
                )
            )
    return findings


def _tools(context: Context) -> list[Finding]:
    """Suites that call tools the model's chat template does not show."""
    return [
        Finding("warn", f"suite '{name}': {NO_TOOLS}")
        for name, suite in context.suites.items()
        if suite.spec.ask == "call_tools"
        and not shows_tools(suite.spec, suite.samples[0], context.tokenizer)
    ]


def _judge(context: Context) -> list[Finding]:
    """The judge's key is there before anything is asked that it is to judge."""
    judge = context.loaded.recipe.evaluate.judge
    judged = any(suite.spec.scorer.name == "judge" for suite in context.suites.values())
    ahead = judged and any(s.kind == "evaluate" and not s.cached for s in context.plan().steps)
    if judge and ahead:
        judge_key(judge)
    return []


def _port(context: Context) -> list[Finding]:
    """The port the recipe names is taken; it may be free by the time a server starts."""
    port = context.loaded.recipe.serve.port
    if port is None:
        return []
    try:
        with held_port(port):
            return []
    except ServingFailure as error:
        return [Finding("warn", f"{error.what}, and the recipe's servers want it: {error.fix}")]


def _memory(context: Context) -> list[Finding]:
    need = max((s.estimate_memory_bytes or 0 for s in context.plan().steps), default=0)
    have = context.facts.hardware.memory_bytes
    if context.facts.hardware.gpus:
        have = max(have, *(g.memory_bytes for g in context.facts.hardware.gpus))
    text = f"memory: about {need / _GIB:.1f} GiB needed, {have / _GIB:.1f} GiB here"
    if need > have:
        profile = context.loaded.recipe.profile
        alone = ", or one server at a time (leave 'profile.alternate' out)"
        raise RecipeError(
            text,
            where="this machine",
            fix="use a smaller model, or a machine with more memory"
            + (alone if profile and profile.alternate else ""),
        )
    return [Finding("ok", text)]


def _disk(context: Context) -> list[Finding]:
    """Weights this run will write, and environments it will create, against what is free."""
    facts, loaded = context.facts, context.loaded
    todo = {s.variant for s in context.plan().steps if s.kind == "quantize" and not s.cached}
    need = 0
    for variant in loaded.recipe.all_variants:
        if variant.name in todo:
            need += facts.checkpoint.weight_bytes
            if variant_lane(loaded, variant, facts).name == "emulated":
                need += facts.checkpoint.parameters * 4
    root = context.run.results.root
    findings = [_room(root, need, "weights of this run")]
    missing = [
        name for name in context.environments() if not envs.is_ready(name, facts.hardware.target)
    ]
    for name in missing:
        envs.check_buildable(name, facts.hardware.target)
    if missing:
        size = sum(envs.approximate_bytes(name, facts.hardware.target) for name in missing)
        findings.append(_room(envs.root(), size, f"environments {', '.join(missing)}"))
    return findings


def _room(folder: Path, need: int, what: str) -> Finding:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    total, _, free = shutil.disk_usage(existing)
    if not total or not os.access(existing, os.W_OK | os.X_OK):
        raise MachineError(
            "nothing can be written here",
            where=str(folder),
            fix="name another place: --results for results, WORKBENCH_ENVS for environments",
        )
    text = f"disk: {what} need about {need / _GIB:.1f} GiB, {free / _GIB:.1f} GiB free"
    if need > free:
        fix = "free some space, or put results or WORKBENCH_ENVS elsewhere"
        raise DiskFull(text, where=str(folder), fix=fix)
    return Finding("ok", text)
