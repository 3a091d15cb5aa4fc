"""`berth report interference`: jobs that share a GPU, and whole GPUs that two jobs could share."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import msgspec

from berthmaster.cli.report.sharing import running_jobs
from berthmaster.client import Client
from berthmaster.lib.engine.scoring.interference import (
    LEAST_SPEED,
    Packable,
    may_share,
    pair_speed,
    pairs_that_share,
)
from berthmaster.lib.lifecycle.pods import with_known_gpus
from berthmaster.lib.lifecycle.trials import progress_lines, steps_per_s
from berthmaster.lib.messages.api import GetReply
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.telemetry import GpuUse
from berthmaster.lib.messages.workload import (
    WHOLE_MILLI,
    Placed,
    Resized,
    Running,
)

Gpu = tuple[str, str, int]  # cluster, node, index


class SharedGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two running jobs on one GPU. Speeds are relative to each job alone; null = not known."""

    cluster: str
    node: str
    gpu: int
    jobs: tuple[str, str]
    utilizations: tuple[float | None, float | None]  # measured now, 0 to 1
    expected_speed: float | None = None  # mean of both, by the utilizations
    speeds: tuple[float | None, float | None] = (None, None)
    # speeds: by progress lines before and after the other job began
    hurts: bool = False  # whether the pair is slower than a pair should be


class CouldShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two running jobs on a whole GPU each, of which one GPU would do."""

    cluster: str
    jobs: tuple[str, str]
    utilizations: tuple[float, float]  # measured now, 0 to 1
    expected_speed: float  # mean of both on one GPU


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs on one GPU, and pairs that could be."""

    shared: tuple[SharedGpu, ...]
    could_share: tuple[CouldShare, ...]
    whole_gpu_jobs: int  # running jobs with one whole GPU and measurements


async def read(berth: Client, limit: int) -> Interference:
    """Read the tenant's running jobs with their histories and last samples."""
    return interference_of(await running_jobs(berth, limit, story=True))


def interference_of(replies: Sequence[GetReply]) -> Interference:
    by_id = {reply.workload.id: reply for reply in replies}
    on_gpu: dict[Gpu, list[str]] = {}
    for name, reply in by_id.items():
        for binding in bindings_of(reply):
            for gpu in binding.gpus:
                names = on_gpu.setdefault((reply.workload.cluster, binding.node, gpu), [])
                if name not in names:
                    names.append(name)
    shared = [
        _shared(gpu, by_id[a], by_id[b])
        for gpu, names in sorted(on_gpu.items())
        for a, b in combinations(sorted(names), 2)
    ]
    whole = {name: one for name, reply in by_id.items() if (one := packable(reply)) is not None}
    could = [
        CouldShare(
            cluster=by_id[a].workload.cluster,
            jobs=(a, b),
            utilizations=(whole[a].utilization, whole[b].utilization),
            expected_speed=pair_speed(whole[a].utilization, whole[b].utilization),
        )
        for a, b in pairs_that_share(whole)
    ]
    return Interference(shared=tuple(shared), could_share=tuple(could), whole_gpu_jobs=len(whole))


def bindings_of(reply: GetReply) -> tuple[PodBinding, ...]:
    """Return the pods of the last attempt, as placed or as observed, but for MIG slices."""
    found: tuple[PodBinding, ...] = ()
    for one in reply.story:
        if isinstance(one.event, Placed) and not one.void:
            found = one.event.pods
        elif isinstance(one.event, Running | Resized) and not one.void:
            found = with_known_gpus(one.event.pods, found)  # Kubernetes tells no GPUs
    return tuple(binding for binding in found if binding.isolation != "hardware")


def packable(reply: GetReply) -> Packable | None:
    """Return the measured use of a job with one whole GPU; None for others."""
    request, use = reply.request, _use(reply)
    if request is None or use is None or use.utilization_percent is None:
        return None
    gpus = [pods for pods in request.pod_sets if pods.gpus]
    if len(gpus) != 1 or gpus[0].count * gpus[0].gpus != 1 or gpus[0].gpu_milli != WHOLE_MILLI:
        return None
    if gpus[0].mig_profile or not use.memory_total_mib or use.memory_used_mib is None:
        return None
    place = reply.workload.cluster, use.memory_total_mib, gpus[0].gpu_models
    memory = use.memory_used_mib / use.memory_total_mib
    return Packable(place, use.utilization_percent / 100, memory)


def _use(reply: GetReply) -> GpuUse | None:
    work = reply.workload
    for one in reply.figures:
        if (one.cluster, one.attempt) == (work.cluster, work.attempt) and not one.disagreements:
            return one.use
    return None


def _shared(gpu: Gpu, first: GetReply, second: GetReply) -> SharedGpu:
    cluster, node, index = gpu
    a, b = _utilization(first), _utilization(second)
    speeds = _speed(first, _began_s(second)), _speed(second, _began_s(first))
    measured = [speed for speed in speeds if speed is not None]
    expected = None if a is None or b is None else pair_speed(a, b)
    if len(measured) == len(speeds):
        hurts = fmean(measured) < LEAST_SPEED
    else:
        hurts = a is not None and b is not None and not may_share(a, b)
    return SharedGpu(
        cluster=cluster,
        node=node,
        gpu=index,
        jobs=(first.workload.id, second.workload.id),
        utilizations=(a, b),
        expected_speed=expected,
        speeds=speeds,
        hurts=hurts,
    )


def _utilization(reply: GetReply) -> float | None:
    use = _use(reply)
    return None if use is None or use.utilization_percent is None else use.utilization_percent / 100


def _began_s(reply: GetReply) -> float | None:
    """Return the start of the last attempt; None before it."""
    began_s: float | None = None
    for one in reply.story:
        if isinstance(one.event, Placed):
            began_s = None
        elif isinstance(one.event, Running) and began_s is None:
            began_s = one.stored_at_s
    return began_s


def _speed(reply: GetReply, other_began_s: float | None) -> float | None:
    """Return the step rate since the other job began, relative to the rate before; None without
    two progress lines on each side.
    """
    if other_began_s is None:
        return None
    lines = progress_lines(reply.story)
    alone = steps_per_s([line for line in lines if line[0] < other_began_s])
    beside = steps_per_s([line for line in lines if line[0] >= other_began_s])
    return beside / alone if alone and beside is not None else None
