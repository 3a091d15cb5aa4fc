"""Offers of the cluster's own nodes, from its inventory's facts. Pure.

A job object names resources and node labels: how to request a GPU fraction, and the label of a GPU
model. Both come from the same reports as the placement. Example: a node reports a share
``nvidia.com/gpu.shared``, so a pod with a fraction there requests that resource.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import structs

from berthmaster.lib.accelerators.table import NVIDIA
from berthmaster.lib.engine.fleet.models import HOSTNAME, is_one_of, labels_of, resources_of
from berthmaster.lib.engine.fleet.shares import share_for
from berthmaster.lib.messages.fleet import (
    DeviceClaim,
    FleetFact,
    GpuDevice,
    NodeGone,
    NodeReport,
    Share,
)
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import PodSet

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
