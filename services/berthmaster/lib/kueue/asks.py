"""The resources that a request needs from a ClusterQueue, by Kueue's names. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from berthmaster.lib.accelerators import mig
from berthmaster.lib.accelerators.table import CLASS, MIG, NVIDIA
from berthmaster.lib.engine.fleet.fleet import NodeKind, kind_of
from berthmaster.lib.engine.fleet.needs import gpus_for
from berthmaster.lib.engine.fleet.pieces import pieces_of, tolerations_of
from berthmaster.lib.engine.fleet.shares import asked_as, share_for
from berthmaster.lib.kueue.quota import Ask
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import JobRequest, PodSet

# Returns the alternatives by which one pod may request its GPUs: extended resource -> number.
Devices = Callable[[PodSet], tuple[Mapping[str, int], ...]]


def whole_gpus(pods: PodSet) -> tuple[Mapping[str, int], ...]:
    """Return the GPU request of a job created before the choice of a cluster."""
    return ({asked_resource(pods): pods.gpus} if pods.gpus else {},)


def asked_resource(pods: PodSet) -> str:
    """Return the extended resource of a job's GPUs: NVIDIA's, unless the request names another."""
    if pods.mig_profile:
        return f"{MIG}{mig.in_resource(pods.mig_profile)}"
    return pods.gpu_resource or NVIDIA


def gpu_milli_of(pods: PodSet) -> int:
    return pods.count * pods.gpus * pods.gpu_milli


def devices_asked(request: JobRequest) -> dict[str, float]:
    """Return the devices of all pods by resource name: GPUs or fractions, and units of others."""
    found: dict[str, float] = {}
    for pods in request.pod_sets:
        for name, number in of_all_pods(pods).items():
            found[name] = found.get(name, 0.0) + number
    return found


def of_all_pods(pods: PodSet) -> dict[str, float]:
    """Return the devices of all pods of one pod set by resource name."""
    found = {name: float(pods.count * number) for name, number in pieces_of(pods)}
    if pods.gpus:
        found[asked_resource(pods)] = gpu_milli_of(pods) / 1000
    return found


def devices_of(nodes: Iterable[NodeReport]) -> Devices:
    """Return how a job for one of these nodes may request its GPUs, most common kind first.

    The executor's manifest uses the form of the chosen node.
    """
    found = Counter(kind_of(node)._replace(taints=(), links=(), pieces=()) for node in nodes)
    kinds = [kind for kind, _ in found.most_common() if kind.gpus]

    def devices(pods: PodSet) -> tuple[Mapping[str, int], ...]:
        if not pods.gpus or not kinds:
            return whole_gpus(pods)
        ways: list[Mapping[str, int]] = []
        for kind in kinds:
            positions, _ = gpus_for(kind, pods)
            if positions and (way := _way(kind, positions, pods)) not in ways:
                ways.append(way)
        return tuple(ways) or whole_gpus(pods)

    return devices


def _way(kind: NodeKind, positions: Sequence[int], pods: PodSet) -> Mapping[str, int]:
    """Return a pod's request for these GPUs of a node of this kind."""
    if pods.gpu_milli == 1000:
        return {kind.resources[positions[0]]: pods.gpus}
    share = share_for(kind.shares, pods)
    if share is None:
        return {kind.resources[positions[0]]: pods.gpus}
    if share.claim is not None:
        return {f"{CLASS}{share.claim.device_class}": 1}
    return asked_as(share, pods, (min(kind.gpus[at][1] for at in positions),))


def asks_of(request: JobRequest, devices: Devices = whole_gpus) -> tuple[Ask, ...]:
    """Return one ``Ask`` for each pod set."""
    return tuple(_ask(pods, devices) for pods in request.pod_sets)


def _ask(pods: PodSet, devices: Devices) -> Ask:
    ways = []
    pieces = dict(pieces_of(pods))
    for of_pod in devices(pods):
        amounts = {"cpu": pods.cpu_milli, "memory": pods.memory_mib, **pieces, **of_pod}
        ways.append({name: amount * pods.count for name, amount in amounts.items() if amount})
    if pieces:  # tolerations of Berthmaster's jobs depend on the names of these resources
        pods = msgspec.structs.replace(pods, tolerations=tolerations_of(pods))
    return Ask(pods, tuple(ways))
