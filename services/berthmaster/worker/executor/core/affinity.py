"""Affinity of pods for kube-scheduler. Pure.

Example: two pods were placed on nodes a and b. Both prefer a and b with weight 100, and the
scheduler may choose other nodes. With ``gpu_models: [A100]`` an A100 node is required.

Rules of this file:

- Chosen nodes are preferred, never required: the scheduler has more information.
- Requirements of the request are required: GPU models and topology. Pods find each other by the
  labels of their attempt, so two jobs never interact.
- "At most k pods a node" is a topology spread in which an empty node always counts: then the skew
  is the number of pods of a node. The kubelet alone chooses the GPUs.

``Offers`` holds what the nodes of the executor's own cluster offer, as its inventory reports it on
the bus: how a part of a GPU is requested, what the label of a GPU model says. Both come from the
reports that placements are decided on, so a pod requests what was found to fit in the same words.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import structs

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.accelerators.table import NVIDIA
from berthmaster.lib.engine.fleet.gpus import HOSTNAME, is_one_of, labels_of, resources_of
from berthmaster.lib.engine.fleet.pieces import makes_slice
from berthmaster.lib.engine.fleet.shares import share_for
from berthmaster.lib.jobs.pods import Document, one_of, tpu_nodes
from berthmaster.lib.kube import labels
from berthmaster.lib.messages.fleet import (
    DeviceClaim,
    FleetFact,
    GpuDevice,
    NodeGone,
    NodeReport,
    Share,
)
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import ONE_NODE, PodSet

_COUNTED = DeviceClaim(driver="", device_class="")  # no claim


class Offers:
    """The last report of every node."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeReport] = {}

    def take(self, fact: FleetFact) -> None:
        """Apply a fact of the cluster. Facts about other things than nodes are ignored."""
        if isinstance(fact, NodeReport):
            self._nodes[fact.node] = fact
        elif isinstance(fact, NodeGone):
            self._nodes.pop(fact.node, None)

    def hostname(self, node: str) -> str:
        """Return the node's hostname label, usually its name."""
        report = self._nodes.get(node)
        return report.labels.get(HOSTNAME, node) if report is not None else node

    def gpu_index(self, node: str, uuid: str) -> int | None:
        """Return the index of a node's GPU by UUID; None if unknown."""
        report = self._nodes.get(node)
        gpus = report.gpus if report is not None else ()
        return next((gpu.index for gpu in gpus if gpu.uuid == uuid), None)

    def are_hamis(self, nodes: Iterable[str]) -> bool:
        """Return whether HAMi allocates the GPUs of any of these nodes. Then its scheduler must
        place all pods.
        """
        return any(map(_is_hamis, self._of(nodes)))

    def hosts_of_hami(self) -> list[str]:
        """Return the hostnames of HAMi's nodes."""
        reports = filter(_is_hamis, self._nodes.values())
        return sorted(self.hostname(report.node) for report in reports)

    def models(self, pods: PodSet) -> dict[str, list[str]]:
        """Return labels of nodes with usable GPUs, as the nodes name their models. A model without
        a node keeps its requested name.
        """
        reports = self._nodes.values()
        return labels_of(reports, pods.gpu_models, pods.gpu_memory_mib, pods.gpu_resource)

    def labels_of_model(self, model: str, memory_mib: int) -> list[tuple[str, list[str]]]:
        """Return the labels for one preferred model; empty without a node."""
        reports = self._nodes.values()
        if not any(is_one_of((model,), gpu.model) for each in reports for gpu in each.gpus):
            return []
        return list(labels_of(reports, (model,), memory_mib).items())

    def memories_mib(self, nodes: Iterable[str]) -> list[int]:
        """Return the memory of each GPU of these nodes; empty if one is unknown."""
        found = [gpu.memory_mib for report in self._of(nodes) for gpu in report.gpus]
        return found if all(found) else []

    def usual_memory_mib(self, nodes: Iterable[str], pods: PodSet) -> int:
        """Return the most frequent memory of these nodes' usable GPUs."""
        found = Counter(gpu.memory_mib for gpu in self._gpus(nodes, pods))
        return min(found, key=lambda mib: (-found[mib], mib), default=0)

    def whole(self, seats: Iterable[PodBinding], pods: PodSet) -> tuple[DeviceClaim | None, str]:
        """Return how whole GPUs are requested on these nodes, in the most frequent way: a claim, or
        an extended resource; "" if known nodes have no such GPU.

        The chosen GPUs decide, else the node's usable GPUs. For unreported nodes the request
        decides.
        """
        ways: Counter[tuple[str, str, bool, str]] = Counter()
        claims: dict[tuple[str, str, bool, str], DeviceClaim | None] = {}
        known = False
        for seat in seats:
            report = self._nodes.get(seat.node)
            if report is None:
                continue
            known = True
            usable = list(_usable(report, pods))
            chosen = [one for one in usable if one[0].index in seat.gpus]
            healthy = [one for one in usable if one[0].healthy]
            for gpu, resource in chosen or healthy or usable:
                one = gpu.claim or _COUNTED
                way = (one.driver, one.device_class, one.divisible, resource)
                ways[way] += 1
                claims.setdefault(way, gpu.claim)
        if not ways:
            return None, "" if known else pods.gpu_resource or NVIDIA
        best = min(ways, key=lambda way: (-ways[way], way))
        return claims[best], best[-1]

    def products(self, pods: PodSet, driver: str) -> list[str]:
        """Return the driver's product names of usable GPUs."""
        gpus = self._gpus(self._nodes, pods)
        named = {gpu.claim.product for gpu in gpus if gpu.claim and gpu.claim.driver == driver}
        return sorted(named - {""})

    def _gpus(self, nodes: Iterable[str], pods: PodSet) -> Iterator[GpuDevice]:
        found = (gpu for report in self._of(nodes) for gpu, _ in _usable(report, pods))
        return (gpu for gpu in found if gpu.healthy)

    def _of(self, nodes: Iterable[str]) -> Iterator[NodeReport]:
        return (self._nodes[node] for node in dict.fromkeys(nodes) if node in self._nodes)

    def share(self, nodes: Iterable[str], pods: PodSet) -> Share | None:
        """How a part of a GPU is asked for. All pods of a set ask in one way: the commonest."""
        found = Counter(
            structs.replace(share, gpus=())
            for node in nodes
            if (report := self._nodes.get(node)) is not None
            and (share := share_for(report.shares, pods)) is not None
        )
        if not found:
            return None
        return min(found, key=lambda share: (-found[share], share.resource))


def _usable(report: NodeReport, pods: PodSet) -> Iterator[tuple[GpuDevice, str]]:
    """Yield the usable GPUs with their extended resource, unhealthy ones included."""
    for gpu, resource in zip(report.gpus, resources_of(report), strict=True):
        if (
            pods.gpu_resource in ("", resource)
            and (not pods.gpu_models or is_one_of(pods.gpu_models, gpu.model))
            and gpu.memory_mib >= pods.gpu_memory_mib
        ):
            yield gpu, resource


def _is_hamis(report: NodeReport) -> bool:
    return any(share.kind == "hami" for share in report.shares)


MAX_PREFERRED: Final = 256  # nodes in an object, whose size is limited
CHOSEN_WEIGHT: Final = 100  # of 100, for a chosen node
MODEL_WEIGHT: Final = 40  # for a node with the most preferred model; less for the next ones
MODEL_STEP: Final = 5
FEWEST_WEIGHT: Final = 50  # for a node with pods of the same set
_MORE_THAN_ANY: Final = 2**31 - 1  # nodes


def placing(
    nodes: Sequence[str],
    pods: PodSet,
    pod_sets: Sequence[PodSet],
    known: Mapping[str, str],
    offers: Offers,
    avoided: Sequence[str] = (),
) -> Document:
    """Fields of the specification of a pod. ``nodes``: that were chosen for the set; ``known``: the
    labels of its pods; ``avoided``: names of hosts where it could not start."""
    affinity: Document = {"nodeAffinity": _nodes(nodes, pods, offers, avoided)}
    spec: Document = {"affinity": affinity}
    if makes_slice(pods):
        # The scheduler finds the pool: whole pools form one slice.
        term = _term(tpu.POOL_LABEL, _pods_of(known, [pods.name]))
        affinity["podAffinity"] = {_REQUIRED: [term]}
    topology = pods.topology
    if topology is None or sum(each.count for each in pod_sets) < 2:
        return spec
    mine = dict(known)
    if topology.same:
        theirs = [p.name for p in pod_sets if p.topology and p.topology.same == topology.same]
        key = HOSTNAME if topology.same == ONE_NODE else topology.same
        same = affinity.setdefault("podAffinity", {}).setdefault(_REQUIRED, [])
        same.append(_term(key, _pods_of(mine, theirs)))
    if topology.nodes:
        term = _term(HOSTNAME, _pods_of(mine, [pods.name]))
        preferred = {"weight": FEWEST_WEIGHT, "podAffinityTerm": term}
        affinity.setdefault("podAffinity", {})[_PREFERRED] = [preferred]
    if topology.max_pods_a_node == 1:
        term = _term(HOSTNAME, _pods_of(mine, [pods.name]))
        affinity["podAntiAffinity"] = {_REQUIRED: [term]}
    elif topology.max_pods_a_node:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": topology.max_pods_a_node,
                "minDomains": _MORE_THAN_ANY,  # so an empty node counts as the minimum
                "topologyKey": HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": _pods_of(mine, [pods.name]),
            }
        ]
    return spec


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def _term(key: str, selector: Document) -> Document:
    return {"topologyKey": key, "labelSelector": selector}


def _pods_of(known: Mapping[str, str], pod_sets: Sequence[str]) -> Document:
    """Return a selector of the pods of these sets in this attempt."""
    whose = {key: known[key] for key in (labels.TENANT, labels.WORKLOAD, labels.ATTEMPT)}
    if len(pod_sets) == 1:
        return {"matchLabels": whose | {labels.POD_SET: pod_sets[0]}}
    among = {"key": labels.POD_SET, "operator": "In", "values": list(pod_sets)}
    return {"matchLabels": whose, "matchExpressions": [among]}


def _nodes(nodes: Sequence[str], pods: PodSet, offers: Offers, avoided: Sequence[str]) -> Document:
    hosts = list(dict.fromkeys(offers.hostname(node) for node in nodes))[:MAX_PREFERRED]
    preferred = [(CHOSEN_WEIGHT, HOSTNAME, hosts)] if hosts else []
    if pods.gpus:
        for rank, model in enumerate(pods.prefer_gpu_models):
            named = offers.labels_of_model(model, pods.gpu_memory_mib)
            preferred += [(MODEL_WEIGHT - MODEL_STEP * rank, key, each) for key, each in named]
    affinity: Document = {}
    if preferred:
        affinity[_PREFERRED] = [
            {"weight": weight, "preference": {"matchExpressions": [one_of(key, values)]}}
            for weight, key, values in preferred
        ]
    if slice_of := tpu_nodes(pods):
        affinity[_REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": slice_of}]}
    if pods.gpus and (pods.gpu_models or pods.gpu_memory_mib):
        terms = [
            {"matchExpressions": [one_of(key, values)]}
            for key, values in offers.models(pods).items()
        ]
        if terms:
            affinity[_REQUIRED] = {"nodeSelectorTerms": terms}
    if avoided:
        elsewhere = {"key": HOSTNAME, "operator": "NotIn", "values": list(avoided)}
        required = affinity.setdefault(_REQUIRED, {"nodeSelectorTerms": [{"matchExpressions": []}]})
        for term in required["nodeSelectorTerms"]:  # alternatives
            term["matchExpressions"].append(elsewhere)
    return affinity
