"""What a measured profile says about a GPU's speed, and when it says nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import RecipeError, did_you_mean
from workbench.memory import option_of
from workbench.records import Hardware, LoadPoint, Profile

#: Lanes whose speed is the format's own.
RUNS = ("native", "weight-only fallback")


@dataclass(frozen=True)
class Speed:
    """What a profile says about one server's speed.

    Attributes:
        points: without a failed request, of one workload.
        cards: of the server that was measured.
        kv: type of its KV cache.
        of: which variant and checkpoint, in words.
        speculative: whether one pass over the weights may have made several tokens.
    """

    points: tuple[LoadPoint, ...]
    cards: int
    kv: str
    of: str
    speculative: bool = False

    def best(self, planned: int) -> LoadPoint | None:
        """The fastest point whose concurrency memory allows at the length asked about."""
        fit = [p for p in self.points if p.concurrency <= planned and p.output_tokens_per_s]
        return max(fit, key=lambda p: p.output_tokens_per_s or 0.0, default=None)


def speed(profile: Profile, hardware: Hardware, workload: str = "") -> Speed:
    """Read a profile's speed, where it says anything about this GPU.

    Raises:
        RecipeError: it was measured elsewhere, on a twin or a fake engine, has several workloads
            and none is named, or nothing but failures.
    """
    serving = profile.serving

    def refuse(what: str, fix: str) -> RecipeError:
        return RecipeError(what, where="--profile", fix=fix)

    if serving.hardware.split(" + ")[0] != hardware.key:
        raise refuse(
            f"it was measured on {serving.hardware}, which says nothing about the speed of "
            f"{hardware.key}",
            "give a profile of that GPU, or leave it out",
        )
    if serving.engine != "vllm" or serving.lane.name not in RUNS:
        # llama.cpp computes on the processor there, whatever GPU the machine has.
        told = f"the engine {serving.engine}"
        told = told if serving.engine != "vllm" else f"the lane {serving.lane.name}"
        raise refuse(f"it was measured on {told}", "give a profile of what will run on the GPU")
    names = sorted({point.workload for point in profile.points})
    if workload and workload not in names:
        raise RecipeError(
            f"the profile has no workload '{workload}'",
            where="--workload",
            fix=f"{did_you_mean(workload, names)}it has {', '.join(names)}",
        )
    if not workload and len(names) > 1:
        raise refuse(f"it has several workloads: {', '.join(names)}", "name one with --workload")
    points = tuple(
        p for p in profile.points if p.workload == (workload or names[0]) and not p.failed
    )
    if not points:
        raise refuse("every load point has failed requests", "measure again at a lower load")
    kv = serving.choices.get("kv_cache_dtype")
    cards = int(option_of(serving.command, "--tensor-parallel-size", "-tp") or 1)
    of = f"variant '{profile.variant}', served from {serving.served_path}"
    told = option_of(serving.command, "--speculative-config", "-sc")
    kept = "fp8" if kv and kv.value == "fp8" else "auto"
    return Speed(points, cards, kept, of, speculative=bool(told))
