"""Suggestions for a pending request, each tried on the fleet.

Each suggestion changes one thing, by the smallest amount that helps: a larger request would wait
again. The functions that decide run the trials, and the number of trials is bounded.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.division import on_fewest, rooms
from berthmaster.control.resolver.core.deciding.turns import queue_refusal
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fitting.topology import TOO_FEW_NODES
from berthmaster.lib.engine.fleet.needs import gpu_milli
from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.fleetview.shortlist import BUSY, Shortlist
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import (
    MAX_TOLERATIONS,
    Divide,
    JobRequest,
    PodSet,
    Toleration,
)
from berthmaster.lib.requests.pod_sets import divide_fault

MOST_QUEUES: Final = 16  # tried
MOST_TAINTS: Final = 4
MOST_HINTS: Final = 8  # told
_TAINT: Final = re.compile(r"tainted \((?P<key>.*)\)\Z")


class Trial:
    """The fleet as of one time, to try requests on."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle

    def place(self, request: JobRequest) -> tuple[str, str] | None:
        """Return cluster and first node that the request would get now, or None.
        Changes nothing.
        """
        if queue_refusal(self._cycle.know, request):
            return None
        found = self._cycle.bind(request, self._cycle.shortlist(request))
        if found is None:
            return None
        candidate, bound = found
        return candidate.cluster, bound.bindings[0].node

    def gpu(self, place: tuple[str, str]) -> tuple[str, int]:
        """Model and MiB of a node's first GPU."""
        report = self._cycle.know.fleet.node(*place)
        if report is None or not report.gpus:
            return "", 0
        return report.gpus[0].model, report.gpus[0].memory_mib

    def most(self, top: int, made: Callable[[int], JobRequest]) -> tuple[int, tuple[str, str]]:
        """Return the largest number below ``top`` that fits, by bisection; 0 if none fits."""
        place = self.place(made(1)) if top > 1 else None
        if place is None:
            return 0, ("", "")
        fits, too_many = 1, top
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            found = self.place(made(middle))
            if found is not None:
                fits, place = middle, found
            else:
                too_many = middle
        return fits, place


def hints(cycle: Cycle, tenant: str, request: JobRequest, shortlist: Shortlist) -> tuple[str, ...]:
    """Return changes with which the job would start now, the most useful first."""
    trial = Trial(cycle)
    found = [
        *_other_gpus(trial, request),
        *_divided(cycle, request, shortlist),
        *_fewer(trial, request),
        *_less(trial, request),
        *_anywhere(trial, request),
        *_tolerations(trial, request, shortlist),
        *_queues(cycle.know, trial, tenant, request),
    ]
    return tuple(found[:MOST_HINTS])


def _other_gpus(trial: Trial, request: JobRequest) -> Iterator[str]:
    asked = sorted({m for p in request.pod_sets for m in p.gpu_models})
    if asked:
        place = trial.place(_each(request, gpu_models=()))
        if place is not None:
            yield f"another GPU model: {trial.gpu(place)[0]} would fit now, on {place[0]}"
    if any(p.gpu_memory_mib for p in request.pod_sets):
        place = trial.place(_each(request, gpu_memory_mib=0))
        if place is not None:
            model, memory_mib = trial.gpu(place)
            gib = _gib(memory_mib)
            yield f"less memory a GPU: a {model} with {gib} would fit now, {_on(place)}"


def _fewer(trial: Trial, request: JobRequest) -> Iterator[str]:
    """Pods, then GPUs of each pod."""
    most = max(p.count for p in request.pod_sets)

    def pods(number: int) -> JobRequest:
        sets = (replace(p, count=max(1, p.count * number // most)) for p in request.pod_sets)
        return replace(request, pod_sets=tuple(sets))

    number, place = trial.most(most, pods)
    if number:
        fewer = pods(number)
        counts = " + ".join(str(p.count) for p in fewer.pod_sets)
        asked = " + ".join(str(p.count) for p in request.pod_sets)
        gpus = gpu_milli(fewer)
        beside = f", {gpus / 1000:g} GPUs" if gpus else ""
        yield f"fewer pods: {counts} of {asked} would fit now{beside}, {_on(place)}"
    most_gpus = max(p.gpus for p in request.pod_sets)

    def gpus_each(number: int) -> JobRequest:
        return _changed(request, lambda p: replace(p, gpus=min(p.gpus, number)))

    number, place = trial.most(most_gpus, gpus_each)
    if number:
        yield f"fewer GPUs: {number} a pod would fit now, {_on(place)}"
    part = max((p.gpu_milli for p in request.pod_sets if wants_fraction(p)), default=1)

    def parts(number: int) -> JobRequest:
        def smaller(pods: PodSet) -> PodSet:
            return replace(pods, gpu_milli=min(pods.gpu_milli, number) if pods.gpus else 1000)

        return _changed(request, lambda p: smaller(p) if wants_fraction(p) else p)

    number, place = trial.most(part, parts)
    if number:
        yield f"a smaller part of a GPU: {number / 1000:g} would fit now, {_on(place)}"


def _divided(cycle: Cycle, request: JobRequest, shortlist: Shortlist) -> Iterator[str]:
    """Suggest dividing the job over clusters, or report how much of a divided job fits."""
    pods, how = request.pod_sets[0], request.divide
    free_to_divide = divide_fault(replace(request, divide=how or Divide())) is None
    if pods.count < 2 or not free_to_divide or queue_refusal(cycle.know, request):
        return
    small = (BUSY, TOO_FEW_NODES)  # too small for all pods
    busy = {cluster for cluster, why in shortlist.filtered.items() if why in small}
    room, _ = rooms(cycle, request, how.min_part if how is not None else 1)
    parts = on_fewest(pods.count, {name: free for name, free in room.items() if name in busy})
    if len(parts) < 2:
        return
    each = f" x {pods.gpus * pods.gpu_milli / 1000:g}" if pods.gpus else ""
    fit = sum(parts.values())
    how_many = "all" if fit == pods.count else str(fit)
    named = ", ".join(f"{cluster} {count}" for cluster, count in parts.items())
    found = f"{pods.count}{each}: {how_many} fit on {len(parts)} clusters ({named})"
    if how is not None:
        yield f"{found}; it is divided when all fit, with {how.min_part} or more in each cluster"
    else:
        yield f"{found}; dividing is off: all pods of a job run in one cluster"


def _less(trial: Trial, request: JobRequest) -> Iterator[str]:
    """Memory and CPU of each pod, in whole GiB and CPUs."""
    memory_gib = -(-max(p.memory_mib for p in request.pod_sets) // 1024)
    number, place = trial.most(
        memory_gib,
        lambda n: _changed(request, lambda p: replace(p, memory_mib=min(p.memory_mib, n * 1024))),
    )
    if number:
        yield f"less memory: {number} GiB a pod would fit now, {_on(place)}"
    cpus = -(-max(p.cpu_milli for p in request.pod_sets) // 1000)
    number, place = trial.most(
        cpus,
        lambda n: _changed(request, lambda p: replace(p, cpu_milli=min(p.cpu_milli, n * 1000))),
    )
    if number:
        yield f"fewer CPUs: {number} a pod would fit now, {_on(place)}"


def _anywhere(trial: Trial, request: JobRequest) -> Iterator[str]:
    """Suggest dropping requirements on clusters and nodes."""
    for words, asked, freed in (
        ("another cluster", request.clusters, replace(request, clusters=())),
        ("no cluster labels", request.cluster_labels, replace(request, cluster_labels={})),
        (
            "no node labels",
            any(p.node_labels for p in request.pod_sets),
            _each(request, node_labels={}),
        ),
        (
            "pods anywhere in the cluster",
            any(p.topology is not None for p in request.pod_sets),
            _each(request, topology=None),
        ),
        (
            "any kind and topology of TPUs",
            any(p.tpu_topology or p.tpu_accelerators for p in request.pod_sets),
            _each(request, tpu_topology="", tpu_accelerators=()),
        ),
        (
            "none of the other resources",
            any(p.resources for p in request.pod_sets),
            _each(request, resources={}),
        ),
        (
            "a weaker isolation of the GPU fraction",
            any(p.isolation for p in request.pod_sets),
            _each(request, isolation=""),
        ),
        (
            "any part of a GPU as large",
            any(p.mig_profile for p in request.pod_sets),
            _each(request, mig_profile=""),
        ),
    ):
        if asked and (place := trial.place(freed)) is not None:
            yield f"{words}: it would fit now, {_on(place)}"


def _tolerations(trial: Trial, request: JobRequest, shortlist: Shortlist) -> Iterator[str]:
    taints = sorted(
        {f["key"] for why in shortlist.filtered.values() if (f := _TAINT.search(why)) is not None}
    )
    if any(len(p.tolerations) >= MAX_TOLERATIONS for p in request.pod_sets):
        return
    for key in taints[:MOST_TAINTS]:
        if (place := trial.place(_tolerating(request, key))) is not None:
            yield f"a toleration of {key}: it would fit now, {_on(place)}"


def _tolerating(request: JobRequest, key: str) -> JobRequest:
    extra = Toleration(key=key, operator="Exists")
    return _changed(request, lambda p: replace(p, tolerations=(*p.tolerations, extra)))


def _queues(know: Knowledge, trial: Trial, tenant: str, request: JobRequest) -> Iterator[str]:
    open_to = (s for _, s in sorted(know.queues.items()) if _may_use(s, tenant))
    others = [s.queue for s in open_to if s.queue != request.queue]
    for queue in others[:MOST_QUEUES]:
        if (place := trial.place(replace(request, queue=queue))) is not None:
            yield f"queue {queue}: it would fit now, {_on(place)}"


def _may_use(setting: QueueSetting, tenant: str) -> bool:
    allowed = not setting.tenants or tenant in setting.tenants
    return allowed and not setting.held and not setting.deleted


def _each(request: JobRequest, **changes: object) -> JobRequest:
    return _changed(request, lambda pods: replace(pods, **changes))


def _changed(request: JobRequest, change: Callable[[PodSet], PodSet]) -> JobRequest:
    return replace(request, pod_sets=tuple(change(pods) for pods in request.pod_sets))


def _on(place: tuple[str, str]) -> str:
    return f"on {place[0]}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:g} GiB"
