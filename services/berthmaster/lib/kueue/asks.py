"""What a request asks of a ClusterQueue, in Kueue's words: resources by name. Pure."""

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

# The extended resources by which one pod may ask for its GPUs, and how many of each.
Devices = Callable[[PodSet], tuple[Mapping[str, int], ...]]


def whole_gpus(pods: PodSet) -> tuple[Mapping[str, int], ...]:
    """As jobs ask that are made before their cluster is known."""
    return ({asked_resource(pods): pods.gpus} if pods.gpus else {},)


def asked_resource(pods: PodSet) -> str:
    """The extended resource that its GPUs are in such a job: NVIDIA's, unless it says otherwise."""
    if pods.mig_profile:
        return f"{MIG}{mig.in_resource(pods.mig_profile)}"
    return pods.gpu_resource or NVIDIA


def gpu_milli_of(pods: PodSet) -> int:
    return pods.count * pods.gpus * pods.gpu_milli


def devices_asked(request: JobRequest) -> dict[str, float]:
    """GPUs, or parts of them, and pieces of other resources that all its pods take, by the resource
    that they are asked for as."""
    found: dict[str, float] = {}
    for pods in request.pod_sets:
        for name, number in of_all_pods(pods).items():
            found[name] = found.get(name, 0.0) + number
    return found


def of_all_pods(pods: PodSet) -> dict[str, float]:
    """The same of one pod set."""
    found = {name: float(pods.count * number) for name, number in pieces_of(pods)}
    if pods.gpus:
        found[asked_resource(pods)] = gpu_milli_of(pods) / 1000
    return found


def devices_of(nodes: Iterable[NodeReport]) -> Devices:
    """As jobs ask that are made for nodes of one cluster (see the executor's manifest): in the way
    of the node that is chosen, so in one of several. The commonest comes first."""
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
    """As a pod asks for these GPUs of such a node."""
    if pods.gpu_milli == 1000:
        return {kind.resources[positions[0]]: pods.gpus}
    share = share_for(kind.shares, pods)
    if share is None:
        return {kind.resources[positions[0]]: pods.gpus}
    if share.claim is not None:
        return {f"{CLASS}{share.claim.device_class}": 1}
    return asked_as(share, pods, (min(kind.gpus[at][1] for at in positions),))


def asks_of(request: JobRequest, devices: Devices = whole_gpus) -> tuple[Ask, ...]:
    """Pod set by pod set."""
    return tuple(_ask(pods, devices) for pods in request.pod_sets)


def _ask(pods: PodSet, devices: Devices) -> Ask:
    ways = []
    pieces = dict(pieces_of(pods))
    for of_pod in devices(pods):
        amounts = {"cpu": pods.cpu_milli, "memory": pods.memory_mib, **pieces, **of_pod}
        ways.append({name: amount * pods.count for name, amount in amounts.items() if amount})
    if pieces:  # our jobs say what they tolerate by the names of these
        pods = msgspec.structs.replace(pods, tolerations=tolerations_of(pods))
    return Ask(pods, tuple(ways))
