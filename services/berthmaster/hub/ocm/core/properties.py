"""A cluster's score as properties of its ClusterProfile. Pure.

The properties have quantities, for users and for selectors that compute, and the points of the
AddOnPlacementScore. Only names under Berthmaster's prefix change. The API's schema treats the list
as one value, so the whole list is written, with other clients' entries unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from berthmaster.hub.ocm.core.scores import FIXED_NAMES, GPU_SCALE, WEIGHTS, values
from berthmaster.lib.kube.multicluster import Property
from berthmaster.lib.ocm.core.pace import LARGE, SMALL
from berthmaster.lib.ocm.core.view import NOT_TOLD, View, short_name

PREFIX: Final = "berthmaster.io/"
SCORE: Final = f"{PREFIX}score."
FRESHNESS: Final = f"{PREFIX}freshness"
GPU_FREE: Final = f"{PREFIX}gpu-free"
LARGEST_GANG: Final = f"{PREFIX}gpu-largest-gang"
IDLE: Final = f"{PREFIX}gpu-idle-percent"
FRAGMENTATION: Final = f"{PREFIX}gpu-fragmentation-percent"
NODES: Final = f"{PREFIX}nodes"
UNKNOWN: Final = "unknown"
TINY: Final = 0.01  # negligible difference in points
MAX_MODELS: Final = 32
# limit of all properties together; the API server's store takes 1.5 MiB
MAX_BYTES: Final = 256 * 1024


def number(amount: float) -> str:
    """Return a number as text with at most two decimal places."""
    return f"{amount:.2f}".rstrip("0").rstrip(".") if abs(amount) < 1e15 else UNKNOWN


def wanted(view: View) -> dict[str, str]:
    """Return Berthmaster's properties of one cluster. Unknown values are 0 or "unknown"."""
    points = values(view, ())
    told = {f"{SCORE}{name}": str(points[name]) for name in FIXED_NAMES}
    told[FRESHNESS] = "fresh" if view.fresh else view.reason.lower()
    told[GPU_FREE] = told[LARGEST_GANG] = "0"
    told[IDLE] = told[FRAGMENTATION] = told[NODES] = UNKNOWN
    score = view.score
    if score is None:
        return told
    told[GPU_FREE] = number(score.free_gpus)
    told[LARGEST_GANG] = str(max(score.largest_gang.values(), default=0))
    told[NODES] = str(score.nodes)
    if score.idle_gpu_percent is not None:
        told[IDLE] = number(score.idle_gpu_percent)
    if score.fragmentation_percent is not None:
        told[FRAGMENTATION] = number(score.fragmentation_percent)
    for model in sorted(score.largest_gang)[:MAX_MODELS]:
        told[f"{LARGEST_GANG}.{short_name(model)}"] = str(score.largest_gang[model])
    return told


def kept(view: View, standing: Mapping[str, str]) -> dict[str, str]:
    """Return Berthmaster's properties while no score arrives.

    The present properties stay, with that freshness. Without them, the last reported score counts.
    """
    if standing.get(FRESHNESS) in ("fresh", NOT_TOLD.lower()):
        return {**standing, FRESHNESS: NOT_TOLD.lower()}
    if view.last is not None:
        return {**wanted(View("", "", view.last)), FRESHNESS: NOT_TOLD.lower()}
    return wanted(View(view.reason, view.message))


def gap(written: Mapping[str, str], wanted: Mapping[str, str], view: View) -> float:
    """Return the difference from the written properties, in points of a score."""
    if written.get(FRESHNESS) != wanted[FRESHNESS]:
        return LARGE
    largest = SMALL if written.keys() != wanted.keys() else 0.0
    for name in wanted.keys() & written.keys():
        before, after = written[name], wanted[name]
        if before != after:
            moved = _moved(before, after)
            points = SMALL if moved is None else moved * _points_per_unit(name, view)
            largest = max(largest, TINY, points)
    return largest


def _moved(before: str, after: str) -> float | None:
    try:
        return abs(float(after) - float(before))
    except ValueError:
        return None  # a new or vanished value is worth a write, but not urgent


def _points_per_unit(name: str, view: View) -> float:
    if name.startswith(SCORE):
        return WEIGHTS.get(name.removeprefix(SCORE), 1.0)
    if name in (IDLE, FRAGMENTATION):
        return 2 * WEIGHTS["gpuIdle"]
    if name == NODES:
        return SMALL
    if view.score is None:
        return 0.0
    scale = view.score.resources.get(GPU_SCALE)
    return 200.0 / scale.full_scale if scale is not None and scale.full_scale > 0 else 0.0


def ours(properties: Sequence[Property]) -> dict[str, str]:
    """Return the properties that Berthmaster has written."""
    return {one.name: one.value for one in properties if one.name.startswith(PREFIX)}


def observed_at(properties: Sequence[Property]) -> str | None:
    """Return the earliest time of Berthmaster's properties."""
    times = [one.last_observed_time or "" for one in properties if one.name.startswith(PREFIX)]
    return min(times, default=None) or None


def merged(
    properties: Sequence[Property], wanted: Mapping[str, str], at: str, *, observed: bool = True
) -> tuple[list[dict[str, str]], str]:
    """Return (the whole list with Berthmaster's properties, the error).

    Other clients' entries keep content and order. If those entries exceed the size limit, nothing
    is written. ``observed`` False: unchanged values keep their time, because nothing observed them
    again.
    """
    kept = [_plain(one) for one in properties if not one.name.startswith(PREFIX)]
    seen = {(one.name, one.value): one.last_observed_time for one in properties if not observed}
    told = [
        {"name": name, "value": value, "lastObservedTime": seen.get((name, value)) or at}
        for name, value in wanted.items()
    ]
    size = sum(len(text) for one in (*kept, *told) for text in one.values())
    if size > MAX_BYTES:
        return [], f"{len(kept)} properties of others, {size} characters with ours: too many"
    return [*kept, *told], ""


def _plain(one: Property) -> dict[str, str]:
    seen = {"lastObservedTime": one.last_observed_time} if one.last_observed_time else {}
    return {"name": one.name, "value": one.value} | seen
