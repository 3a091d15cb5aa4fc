"""A cluster's score as the values of an AddOnPlacementScore. Pure.

Open Cluster Management counts a missing or expired value as 0, which beats a healthy cluster with
few free GPUs. So every cluster has every name, including every GPU model of the fleet, and an
unknown value is the worst. All values range from -100 to 100, and higher is better. If the
reporting service is silent, although the cluster may not be, the values stay: Berthmaster's own
silence must move no job.

The eight values of Open Cluster Management's own addon keep their names and their formula (the
scorer's score.py, with its vectors). Berthmaster's values::

    gpuIdle          measured idle share of the healthy GPUs
    gpuCalm          share of the shared GPUs that are not busy
    gpuUnfragmented  share of the free GPU capacity that the usual jobs can use
    gpuLargestGang   pods of one GPU each that fit now, of the model that has most
    gpuGang-MODEL    the same of each model of the fleet
    freshness        100 while all values are fresh, else -100 like all values
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
MEASURED: Final = (IDLE, CALM, UNFRAGMENTED)  # from telemetry, or computed in chunks
FIXED_NAMES: Final = (*OCM_NAMES, IDLE, CALM, UNFRAGMENTED, LARGEST_GANG, FRESHNESS)
GPU_SCALE: Final = "gpuClusterAvailable"  # full scale of the gang scores
MAX_MODELS: Final = 32
# Telemetry alone moves these, every second, so a write needs a change five times as large.
WEIGHTS: Final[Mapping[str, float]] = {IDLE: 0.2, CALM: 0.2, UNFRAGMENTED: 0.2}


def wanted(
    view: View, fleet_models: Iterable[str], standing: Mapping[str, int]
) -> tuple[View, dict[str, int]]:
    """Return (view to report, wanted scores), given the present scores.

    While no score arrives, the present scores stay. If the present scores were never measured, the
    last reported score counts. Without one, the scores are the worst, with the view's reason.
    """
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
    """Return the sorted names of a fleet's models, up to the limit."""
    found = {model_name(model) for score in scores for model in score.largest_gang}
    return tuple(sorted(found))[:MAX_MODELS]


def values(
    view: View, fleet_models: Iterable[str], standing: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Return the wanted scores. ``standing`` are the present ones, for values still in
    measurement."""
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
    """Return 0 to 100 percent as -100 to 100, truncated toward zero as Open Cluster Management
    does."""
    return int(max(WORST, min(BEST, 2 * percent - 100))) if isfinite(percent) else WORST


def clamped(points: int) -> int:
    """Return the points within the bounds of a score."""
    return max(WORST, min(BEST, points))


def gap(written: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    """Return the difference from the written scores, in points.

    A missing name reads as 0, so the difference is large. A surplus name misleads no reader.
    """
    if wanted.keys() - written.keys():
        return LARGE
    largest = SMALL if written.keys() - wanted.keys() else 0.0
    for name, points in wanted.items():
        largest = max(largest, abs(points - written[name]) * WEIGHTS.get(name, 1.0))
    return largest
