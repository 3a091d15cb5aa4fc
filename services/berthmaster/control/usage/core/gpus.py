"""Number of GPUs that an attempt requests and holds, by model. Pure.

Requested is the number in the request. Held is the number that no other job could use at that time.
A GPU fraction may hold more than requested: MIG slices have fixed sizes, the requested memory may
be a larger fraction of this GPU, or the node gives out whole GPUs.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.lib.accelerators.mig import one_spelling
from berthmaster.lib.engine.fleet.shares import (
    charged_milli,
    part_of,
    profile_memory_mib,
    profile_of,
)
from berthmaster.lib.lifecycle.pods import pod_gpu_milli
from berthmaster.lib.messages.fleet import ClusterProfile, FleetFact, NodeGone, NodeReport, Share
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet

UNKNOWN: Final = ""  # model that was not reported


class Held(NamedTuple):
    """GPUs of one model, in thousandths."""

    model: str
    asked_milli: int
    held_milli: int


class NodeGpus(NamedTuple):
    """Properties of a node that determine the held GPUs."""

    models: tuple[tuple[int, str, int], ...]  # index, model, memory in MiB
    fractions: bool
    shares: tuple[Share, ...]


class Slice(NamedTuple):
    """A MIG slice that some node offers."""

    model: str
    profile: str
    milli: int  # of the GPU's compute
    memory_mib: int
    gpu_memory_mib: int  # of the whole GPU, 0 = unknown


class Catalogue:
    """The nodes' GPUs. A removed node stays known, because old event histories name it."""

    def __init__(self, most: int = 500_000) -> None:
        self._most = most
        self._nodes: dict[tuple[str, str], NodeGpus] = {}
        self._kinds: dict[NodeGpus, NodeGpus] = {}  # many nodes are alike: one entry a kind
        self._only: dict[str, str] = {}  # cluster -> its only model

    def take(self, fact: FleetFact) -> None:
        match fact:
            case NodeReport():
                found = NodeGpus(
                    tuple((gpu.index, gpu.model, gpu.memory_mib) for gpu in fact.gpus),
                    fact.fractions,
                    fact.shares,
                )
                if len(self._nodes) < self._most or (fact.cluster, fact.node) in self._nodes:
                    kind = self._kinds.setdefault(found, found)
                    self._nodes[fact.cluster, fact.node] = kind
            case ClusterProfile():
                self._only[fact.cluster] = next(iter(fact.gpus)) if len(fact.gpus) == 1 else UNKNOWN
            case NodeGone():
                pass
            case _:
                pass

    def node(self, cluster: str, node: str) -> NodeGpus | None:
        """Return a node's GPUs, or None if never reported."""
        return self._nodes.get((cluster, node))

    def only_model(self, cluster: str) -> str:
        """Return the model of a cluster with only one. "" means several, or never reported."""
        return self._only.get(cluster, UNKNOWN)

    def slices(self) -> set[Slice]:
        """Return the MIG slices that nodes offer or offered."""
        found = set()
        for kind in self._kinds:
            for share in kind.shares:
                profile = one_spelling(profile_of(share))
                memory_mib = share.memory_mib or profile_memory_mib(profile)
                found |= {
                    Slice(model, profile, share.milli, memory_mib, gpu_memory_mib)
                    for index, model, gpu_memory_mib in kind.models
                    if profile and (not share.gpus or index in share.gpus)
                }
        return found


def asked_milli(request: JobRequest) -> int:
    """Return the requested GPUs of all pods together."""
    return sum(pods.count * pods.gpus * pods.gpu_milli for pods in request.pod_sets)


def held(
    request: JobRequest, cluster: str, pods: Sequence[PodBinding], catalogue: Catalogue
) -> tuple[Held, ...]:
    """Return the GPUs of an attempt by model. Pods without a known node count for the cluster's
    model.
    """
    asked: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    left = {pod_set.name: pod_set.count for pod_set in request.pod_sets}
    by_name = {pod_set.name: pod_set for pod_set in request.pod_sets}
    for binding in pods:
        name = binding.pod.rpartition("-")[0]
        pod_set = by_name.get(name)
        if pod_set is None or left[name] <= 0:
            continue
        left[name] -= 1
        if pod_set.gpus:
            model, milli = _pod(pod_set, cluster, binding, catalogue)
            asked[model] += pod_set.gpus * pod_set.gpu_milli
            kept[model] += milli
    for pod_set in request.pod_sets:
        if pod_set.gpus and left[pod_set.name]:
            model = _guess(pod_set, cluster, catalogue)
            milli = left[pod_set.name] * pod_set.gpus * pod_set.gpu_milli
            asked[model] += milli
            kept[model] += milli
    return tuple(Held(model, asked[model], kept[model]) for model in sorted(asked))


def _pod(
    pod_set: PodSet, cluster: str, binding: PodBinding, catalogue: Catalogue
) -> tuple[str, int]:
    """Return a pod's model, and the held GPUs."""
    node = catalogue.node(cluster, binding.node)
    if node is None or not node.models:
        return _guess(pod_set, cluster, catalogue), pod_gpu_milli(pod_set, binding)
    first = binding.gpus[0] if binding.gpus else node.models[0][0]
    _, model, memory_mib = next((gpu for gpu in node.models if gpu[0] == first), node.models[0])
    return model, pod_set.gpus * _milli(pod_set, node, memory_mib)


def _milli(pod_set: PodSet, node: NodeGpus, memory_mib: int) -> int:
    return charged_milli(part_of(pod_set), node.shares, memory_mib, fractions=node.fractions)


def _guess(pod_set: PodSet, cluster: str, catalogue: Catalogue) -> str:
    """Return the only requested model, or the cluster's only model."""
    if len(pod_set.gpu_models) == 1:
        return pod_set.gpu_models[0]
    return catalogue.only_model(cluster)
