"""Whole pieces of a node beside its GPUs: TPUs and other extended resources, and TPU slices.

Rules of this file:

- A node has so many pieces of each, free or taken; a pod takes as many as it asks for.
- Who asks for a resource tolerates the taint NoSchedule by its very name, as Kubernetes'
  ExtendedResourceToleration has it: such nodes are kept for just these pods.
- What TPUs are is told by the node's labels. Where several pods make up a slice, each takes all
  TPUs of its node, and all of them are of one node pool.
"""

from collections.abc import Mapping
from typing import NamedTuple

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.accelerators.table import TPU
from berthmaster.lib.messages.fleet import NodeReport, PodUse
from berthmaster.lib.messages.workload import ONE_NODE, PodSet, Toleration

Pieces = tuple[tuple[str, int], ...]  # resource, how many; by name


class Tpus(NamedTuple):
    """What a node says of its TPUs; "" = nothing."""

    accelerator: str
    topology: str


def pieces_of(pods: PodSet) -> Pieces:
    """What each pod of a set takes."""
    return _together(pods.tpus, pods.resources)


def tolerations_of(pods: PodSet) -> tuple[Toleration, ...]:
    """What each pod of a set tolerates: what it says, and taints by the names of its pieces."""
    pieces = pieces_of(pods)
    if not pieces:
        return pods.tolerations
    by_name = (Toleration(key=key, operator="Exists", effect="NoSchedule") for key, _ in pieces)
    return (*pods.tolerations, *by_name)


def pieces_on(node: NodeReport) -> Pieces:
    """What a node has, taken or not."""
    return _together(node.allocatable.tpus, node.allocatable.pieces)


def pieces_held(pod: PodUse) -> Pieces:
    """What one of our pods has, as its node sees it."""
    return _together(pod.tpus, pod.pieces)


def _together(tpus: int, others: Mapping[str, int]) -> Pieces:
    if not tpus and not others:
        return ()
    every = {**others, TPU: tpus}
    return tuple(sorted((name, number) for name, number in every.items() if number))


def foreign_pieces(node: NodeReport, name: str) -> int:
    """How many of them pods have that are not ours."""
    return node.foreign.tpus if name == TPU else node.foreign.pieces.get(name, 0)


def tpus_on(node: NodeReport) -> Tpus | None:
    """None: it has none."""
    if not node.allocatable.tpus:
        return None
    labels = node.labels
    return Tpus(labels.get(tpu.ACCELERATOR_LABEL, ""), labels.get(tpu.TOPOLOGY_LABEL, ""))


def makes_slice(pods: PodSet) -> bool:
    """Whether the pods of a set make up one TPU slice together."""
    return bool(pods.tpus) and tpu.spans_nodes(pods.tpu_topology, pods.tpus)


def place_label(pods: PodSet) -> str:
    """The label of nodes of which all pods of the set share one value; "" = they need not."""
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
    """Why a node with so many pieces will not do for a pod, were it empty; "" if it will."""
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
