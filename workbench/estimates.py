"""How long a step may take, and how much memory: rules of thumb to plan by. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.profile_spec import ProfileSpec
from workbench.quantizers import quantizer
from workbench.recipe import Loaded

if TYPE_CHECKING:
    from workbench.plan import Facts, StepSpec

_DAY = 86400.0
#: Unit, from how many seconds on it is used, and its own seconds.
_UNITS = (
    ("years", 730 * _DAY, 365.25 * _DAY),
    ("days", 2 * _DAY, _DAY),
    ("hours", 3600.0, 3600.0),
    ("minutes", 120.0, 60.0),
)


def estimate(
    step: StepSpec, loaded: Loaded, facts: Facts, starts: int = 0
) -> tuple[float | None, int | None]:
    """Rough seconds and peak bytes of a step, from runs on two CPU cores.

    Args:
        step: which one.
        loaded: the recipe.
        facts: what the world says.
        starts: servers that a sweep adds to a profile.
    """
    recipe, checkpoint = loaded.recipe, facts.checkpoint
    if step.kind == "calibrate":
        return 2.0, None
    if step.kind == "quantize" and step.variant:
        variant = recipe.variant(step.variant)
        calibration = recipe.calibration if recipe.calibrates(variant) else None
        return quantizer(variant.method).estimate(variant, checkpoint, calibration, facts.hardware)
    servers = 2 if "beside" in step.spec else 1  # measured in turn
    waited = servers * _waited(recipe.profile, facts) if step.kind == "profile" else 0.0
    swept = _waited(recipe.profile.swept, facts) if recipe.profile and starts else 0.0
    if recipe.serve.engine == "fake":
        return 3.0 * servers + waited + starts * (1.5 + swept), servers * 200_000_000
    engine = recipe.engine(recipe.variant(step.variant)) if step.variant else recipe.serve.engine
    on_gpu = bool(facts.hardware.gpus) and engine != "llamacpp"
    # 40 tokens/s for 135 M parameters at concurrency 16 in float32 on two cores, in proportion.
    rate = 2000.0 if on_gpu else 40.0 * 135e6 / checkpoint.parameters * facts.hardware.cores / 2
    startup = 120.0 if on_gpu else 45.0
    memory = checkpoint.parameters * (2 if on_gpu else 4) + 2_500_000_000
    if engine == "llamacpp":
        # Its wheel uses no AVX-512, and prompts cost it more than answers: three quarters of vLLM's
        # rate, prompts included. Ready within seconds; weights in their own type.
        rate, startup = rate * 30 / 40, 3.0
        memory = checkpoint.weight_bytes + 1_000_000_000
    if step.kind == "evaluate":
        limit = recipe.evaluate.limit or 10**9
        tokens = sum(min(n, limit) * most for n, most in facts.suite_sizes.values())
        references = [v.name for v in recipe.references]
        passes = 2 if step.variant in references and recipe.evaluate.noise_floor else 1
        divergence = recipe.evaluate.divergence if engine != "llamacpp" else None
        # A prompt costs a sixth of an answer (measured: 260 tokens/s of a corpus).
        led = divergence.tokens / (6 * rate) if divergence else 0.0
        return startup + passes * 0.6 * tokens / rate + led, memory
    assert recipe.profile is not None
    seconds = servers * 2.0 * recipe.profile.answer_tokens / rate + waited
    seconds += (servers - 1) * startup
    if starts:  # no server of the evaluation is left for the recipe's own configuration
        each = 2.0 * recipe.profile.swept.answer_tokens / rate + swept
        seconds += startup + starts * (startup + each)
    return seconds, servers * memory


def searching(step: StepSpec, loaded: Loaded) -> str:
    """That the time of a step has a bound in it, the search for a rate; empty where it has not."""
    profile = loaded.recipe.profile
    if step.kind != "profile" or profile is None or profile.highest_rate is None:
        return ""
    return f"; of its time at most {said_span(profile.search_seconds)} are the search for a rate"


def said_span(seconds: float) -> str:
    """A time as one would say it: ``64 seconds``, ``12.5 minutes``, ``4.2 years``."""
    for unit, least, length in _UNITS:
        if seconds >= least:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _waited(profile: ProfileSpec | None, facts: Facts) -> float:
    """Seconds that open loops take at least, and the search for a rate at most."""
    if profile is None:
        return 0.0
    return profile.open_seconds(facts.trace_seconds) + profile.search_seconds
