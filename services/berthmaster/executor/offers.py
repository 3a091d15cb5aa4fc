"""What the nodes of one's own cluster offer, as its inventory tells it on the bus. Pure.

A job object names resources and labels of nodes: how a part of a GPU is asked for, what the label
of a GPU model says. Both are read off the very reports that placements are decided on, so that what
was found to fit is asked for in the same words.
"""

from collections import Counter
from collections.abc import Iterable

from berthmaster.engine.fleet.models import HOSTNAME, is_one_of, labels_of, whole_gpu
from berthmaster.engine.fleet.shares import part_of, share_for, sized_milli
from berthmaster.messages.fleet import FleetFact, NodeGone, NodeReport, Share
from berthmaster.messages.workload import PodSet


class Offers:
    """The last report of every node."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeReport] = {}

    def take(self, fact: FleetFact) -> None:
        """A fact of our cluster; those that are not about nodes are passed over."""
        if isinstance(fact, NodeReport):
            self._nodes[fact.node] = fact
        elif isinstance(fact, NodeGone):
            self._nodes.pop(fact.node, None)

    def hostname(self, node: str) -> str:
        """The node's own name for itself, which most often is the same."""
        report = self._nodes.get(node)
        return report.labels.get(HOSTNAME, node) if report is not None else node

    def models(self, pods: PodSet) -> dict[str, list[str]]:
        """Labels of the nodes with GPUs that the pods may use, as their models are named there:
        a node with one of them will do. What no node has is asked for by its own name."""
        return labels_of(self._nodes.values(), pods.gpu_models, pods.gpu_memory_mib)

    def labels_of_model(self, model: str, memory_mib: int) -> list[tuple[str, list[str]]]:
        """The same for one model that is preferred; nothing where no node has it."""
        reports = self._nodes.values()
        if not any(is_one_of((model,), gpu.model) for each in reports for gpu in each.gpus):
            return []
        return list(labels_of(reports, (model,), memory_mib).items())

    def part_milli(self, nodes: Iterable[str], pods: PodSet) -> int:
        """What part of a GPU of these nodes brings as much compute and memory as is asked for."""
        reports = [self._nodes[node] for node in nodes if node in self._nodes]
        least_mib = min((gpu.memory_mib for each in reports for gpu in each.gpus), default=0)
        return min(sized_milli(part_of(pods), least_mib), 1000)

    def whole_gpu(self, nodes: Iterable[str], usual: str) -> str:
        """The resource that whole GPUs of these nodes are."""
        reports = (self._nodes.get(node) for node in nodes)
        found = (whole_gpu(report, usual) for report in reports if report is not None)
        return next((name for name in found if name != usual), usual)

    def share(self, nodes: Iterable[str], pods: PodSet) -> Share | None:
        """How a part of a GPU is asked for. All pods of a set ask in one way: the commonest."""
        found = Counter(
            share
            for node in nodes
            if (report := self._nodes.get(node)) is not None
            and (share := share_for(report.shares, pods)) is not None
        )
        if not found:
            return None
        return min(found, key=lambda share: (-found[share], share.resource))
