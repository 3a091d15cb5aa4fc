"""A cluster's score as the values of an AddOnPlacementScore. Pure.

Open Cluster Management counts a value that is missing or expired as 0, which beats a healthy
cluster with few free GPUs. So every cluster has every name, of every GPU model of the fleet too,
and whatever is not known is the worst there is. Higher is better in each of them, -100 to 100.
What is not known because nobody tells it, though the cluster may, stays as it stands: our own
silence must move nobody.

The eight of Open Cluster Management's own addon keep their names and their formula (the scorer's
score.py, with its vectors). Ours::

    gpuIdle          measured idle share of the healthy GPUs
    gpuCalm          share of the shared GPUs that are not busy
    gpuUnfragmented  share of the free GPU capacity that the usual jobs can use
    gpuLargestGang   pods of one GPU each that fit now, of the model that has most
    gpuGang-MODEL    the same of each model of the fleet
    freshness        100 while all of this is live, else -100 like everything else
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Final

from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.ocm.core.pace import LARGE, SMALL
from berthmaster.lib.ocm.core.view import GANG, MAX_MESSAGE_CHARS, NOT_TOLD, View, short_name

WORST: Final = -100
BEST: Final = 100
OCM_NAMES: Final = tuple(
    f"{resource}{scope}Available"
    for scope in ("Node", "Cluster")
    for resource in ("cpu", "mem", "gpu", "tpu")
)
IDLE: Final = "gpuIdle"
CALM: Final = "gpuCalm"
UNFRAGMENTED: Final = "gpuUnfragmented"
LARGEST_GANG: Final = "gpuLargestGang"
FRESHNESS: Final = "freshness"
MEASURED: Final = (IDLE, CALM, UNFRAGMENTED)  # by telemetry, or worked out in pieces
FIXED_NAMES: Final = (*OCM_NAMES, IDLE, CALM, UNFRAGMENTED, LARGEST_GANG, FRESHNESS)
GPU_SCALE: Final = "gpuClusterAvailable"  # whose full scale gangs are measured by
MAX_MODELS: Final = 32
# Telemetry alone moves these, every second: five times as much of it makes a difference.
WEIGHTS: Final[Mapping[str, float]] = {IDLE: 0.2, CALM: 0.2, UNFRAGMENTED: 0.2}


def wanted(
    view: View, fleet_models: Iterable[str], standing: Mapping[str, int]
) -> tuple[View, dict[str, int]]:
    """(what is to be said, what the scores shall be), beside the scores as they are. While nobody
    tells, what stands stays. Where nothing stands that was ever measured, it is what was told last,
    or else the worst with the view's own reason."""
    models = tuple(fleet_models)
    if not view.silence:
        return view, values(view, models, standing)
    silent = View(NOT_TOLD, view.silence[:MAX_MESSAGE_CHARS])
    if any(points != WORST for points in standing.values()):
        return silent, values(silent, models) | dict(standing)
    if view.last is not None:
        return silent, values(View("", "", view.last), models)
    return View(view.reason, view.message), values(silent, models)


def model_name(model: str) -> str:
    return GANG + short_name(model)


def models(scores: Iterable[ClusterScore]) -> tuple[str, ...]:
    """The names of the models of a fleet, in order; of absurdly many, the first."""
    found = {model_name(model) for score in scores for model in score.largest_gang}
    return tuple(sorted(found))[:MAX_MODELS]


def values(
    view: View, fleet_models: Iterable[str], standing: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """What the scores shall be. ``standing``: as they are, for what is being measured anew."""
    wanted = dict.fromkeys((*FIXED_NAMES, *fleet_models), WORST)
    score = view.score
    if score is None:
        return wanted
    if view.settling:
        wanted |= {name: standing[name] for name in MEASURED if name in standing}
    for name in OCM_NAMES:
        if (found := score.resources.get(name)) is not None:
            wanted[name] = clamped(found.score)
    if score.idle_gpu_percent is not None:
        wanted[IDLE] = of_percent(score.idle_gpu_percent)
    if score.calm_gpu_percent is not None:
        wanted[CALM] = of_percent(score.calm_gpu_percent)
    if score.fragmentation_percent is not None:
        wanted[UNFRAGMENTED] = of_percent(100.0 - score.fragmentation_percent)
    scale = score.resources.get(GPU_SCALE)
    if scale is not None and scale.full_scale > 0:
        for model, pods in score.largest_gang.items():
            points = of_percent(100.0 * pods / scale.full_scale)
            wanted[LARGEST_GANG] = max(wanted[LARGEST_GANG], points)
            if (name := model_name(model)) in wanted:
                wanted[name] = max(wanted[name], points)
    wanted[FRESHNESS] = BEST
    return wanted


def of_percent(percent: float) -> int:
    """0 to 100 percent as -100 to 100, truncated toward zero as Open Cluster Management does."""
    return int(max(WORST, min(BEST, 2 * percent - 100))) if isfinite(percent) else WORST


def clamped(points: int) -> int:
    """Within the bounds of a score."""
    return max(WORST, min(BEST, points))


def gap(written: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    """How much what is written differs, in points. A name that is missing counts as 0 to who reads
    it, so it is a difference of kind; one too many misleads nobody."""
    if wanted.keys() - written.keys():
        return LARGE
    largest = SMALL if written.keys() - wanted.keys() else 0.0
    for name, points in wanted.items():
        largest = max(largest, abs(points - written[name]) * WEIGHTS.get(name, 1.0))
    return largest
