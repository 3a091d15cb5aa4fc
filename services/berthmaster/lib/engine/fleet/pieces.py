"""Units of a node beside GPUs: TPUs, other extended resources, and TPU slices.

Example: a node offers 8 ``rdma/hca`` and a pod requests 2, so four such pods fit.

Rules of this file:

- A request for a resource tolerates the NoSchedule taint with the name of the resource, like
  Kubernetes' ExtendedResourceToleration: such nodes are reserved for such pods.
- The node's labels describe its TPUs. If several pods form a slice, each takes all TPUs of its
  node, and all nodes belong to one node pool.
"""

from collections.abc import Mapping
from typing import NamedTuple

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.accelerators.table import TPU
from berthmaster.lib.messages.fleet import NodeReport, PodUse
from berthmaster.lib.messages.workload import ONE_NODE, PodSet, Toleration

Pieces = tuple[tuple[str, int], ...]  # resource, how many; by name


class Tpus(NamedTuple):
    """TPUs of a node, from its labels; "" = not labelled."""

    accelerator: str
    topology: str


def pieces_of(pods: PodSet) -> Pieces:
    return _together(pods.tpus, pods.resources)


def tolerations_of(pods: PodSet) -> tuple[Toleration, ...]:
    """Return the tolerations of a set's pods, including those for taints named like its
    resources.
    """
    pieces = pieces_of(pods)
    if not pieces:
        return pods.tolerations
    by_name = (Toleration(key=key, operator="Exists", effect="NoSchedule") for key, _ in pieces)
    return (*pods.tolerations, *by_name)


def pieces_on(node: NodeReport) -> Pieces:
    return _together(node.allocatable.tpus, node.allocatable.pieces)


def pieces_held(pod: PodUse) -> Pieces:
    """Return the units of a managed pod, as its node reports."""
    return _together(pod.tpus, pod.pieces)


def _together(tpus: int, others: Mapping[str, int]) -> Pieces:
    if not tpus and not others:
        return ()
    every = {**others, TPU: tpus}
    return tuple(sorted((name, number) for name, number in every.items() if number))


def foreign_pieces(node: NodeReport, name: str) -> int:
    """Return the units held by unmanaged pods."""
    return node.foreign.tpus if name == TPU else node.foreign.pieces.get(name, 0)


def tpus_on(node: NodeReport) -> Tpus | None:
    """Return the TPUs of a node; None without TPUs."""
    if not node.allocatable.tpus:
        return None
    labels = node.labels
    return Tpus(labels.get(tpu.ACCELERATOR_LABEL, ""), labels.get(tpu.TOPOLOGY_LABEL, ""))


def makes_slice(pods: PodSet) -> bool:
    """Whether the pods of a set make up one TPU slice together."""
    return bool(pods.tpus) and tpu.spans_nodes(pods.tpu_topology, pods.tpus)


def place_label(pods: PodSet) -> str:
    """Return the node label with one common value for all pods of the set; "" = none."""
    if makes_slice(pods):
        return tpu.POOL_LABEL
    topology = pods.topology
    return topology.same if topology is not None and topology.same != ONE_NODE else ""


NO_TPUS = "no TPUs"
NO_PIECES = "no such resource"
TOO_FEW_PIECES = "too few pieces a node"
NO_ACCELERATOR = "no such kind of TPU"
NO_TOPOLOGY = "no such TPU topology"
NOT_ALL_TPUS = "TPU nodes of another size"


def why_none(there: Pieces, tpus: Tpus | None, pods: PodSet) -> str:
    """Return why a node with these units cannot take a pod even when empty; "" if it can."""
    if pods.tpus and tpus is not None:
        wanted = pods.tpu_accelerators
        if wanted and tpus.accelerator not in wanted:
            return NO_ACCELERATOR
        if pods.tpu_topology and tpus.topology != pods.tpu_topology:
            return f"{NO_TOPOLOGY} ({pods.tpu_topology})"
    has = dict(there)
    for name, count in pieces_of(pods):
        number = has.get(name, 0)
        if not number:
            return NO_TPUS if name == TPU else f"{NO_PIECES} ({name})"
        if number < count:
            return f"{TOO_FEW_PIECES} ({name})"
    if makes_slice(pods) and has[TPU] != pods.tpus:
        return f"{NOT_ALL_TPUS} ({has[TPU]})"
    return ""
