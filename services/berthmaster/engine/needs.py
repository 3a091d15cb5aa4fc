"""What a request needs, as its shape: requests of one shape fit, or do not, together.

A waiting list of ten thousand jobs usually holds a few dozen shapes. Filters are worked out once
for a shape and layout of the fleet, and a shape that does not fit is not tried again for the next
job of the same shape.
"""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.fleet import WHOLE, Fleet, NodeKind
from berthmaster.engine.models import is_one_of
from berthmaster.engine.shares import Part, counted, share_for, takes_milli
from berthmaster.messages.fleet import Taint
from berthmaster.messages.workload import JobRequest, PodSet, Toleration

_SHAPES_KEPT = 4096
_FILTERS_KEPT = 128  # each takes a byte or more a node
_SHAPE_ENCODER = msgspec.msgpack.Encoder(order="sorted")


def shape_of(request: JobRequest) -> bytes:
    """Equal for requests that fit the same places."""
    return _SHAPE_ENCODER.encode((request.pod_sets, request.clusters, request.cluster_labels))


def kind_of(pods: PodSet) -> bytes:
    """Equal for pods that any node serves equally well."""
    return _SHAPE_ENCODER.encode(msgspec.structs.replace(pods, name="", count=1))


def gpu_milli(request: JobRequest) -> int:
    """GPU milli that all its pods take."""
    return sum(p.count * p.gpus * p.gpu_milli for p in request.pod_sets)


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Kubernetes' rule; PreferNoSchedule keeps nobody away."""
    if taint.effect == "PreferNoSchedule":
        return True
    return any(
        (not t.effect or t.effect == taint.effect)
        and (t.key == taint.key or (not t.key and t.operator == "Exists"))
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


class Offered(NamedTuple):
    """How nodes hand out the part of a GPU that a pod set asks for: not all do in any size."""

    milli: NDArray[np.int64]  # [N], what one pod takes of a GPU
    pieces: tuple[tuple[str, NDArray[np.bool_]], ...]  # resource, [N] nodes where it is counted


class Suitable(NamedTuple):
    """Which nodes and GPUs a pod set may use at all, room aside."""

    layout: int  # of the fleet, for which this was worked out
    nodes: NDArray[np.bool_]  # [N]
    gpus: NDArray[np.bool_] | None  # [N, G]; None = every GPU of a suitable node will do
    why_not: dict[str, str]  # cluster -> why none of its nodes will do
    offered: Offered | None = None  # None = a part takes what it asks for

    def milli(self, slot: int, pods: PodSet) -> int:
        """What one pod takes of a GPU on a node."""
        return pods.gpu_milli if self.offered is None else int(self.offered.milli[slot])


def suitable_nodes(fleet: Fleet, pods: PodSet) -> Suitable:
    """Filter by GPU count, model, memory, taints and labels. The fleet must be arranged."""
    width = fleet.gpu.shape[1]
    verdicts = [_judge(kind, pods) for kind in fleet.kinds]
    kind_ok = np.array([not why for _, why in verdicts], np.bool_)
    nodes = kind_ok[fleet.kind] if len(fleet.kinds) else np.zeros(0, np.bool_)
    if pods.node_labels and len(nodes):
        wanted = pods.node_labels.items()
        for slot in np.flatnonzero(nodes):
            nodes[slot] = wanted <= fleet.report_at(int(slot)).labels.items()
    gpus: NDArray[np.bool_] | None = None
    if pods.gpus and any(
        len(ok) != len(kind.gpus)
        for (ok, why), kind in zip(verdicts, fleet.kinds, strict=True)
        if not why
    ):
        by_kind = np.zeros((len(fleet.kinds), width), np.bool_)
        for index, (positions, _) in enumerate(verdicts):
            by_kind[index, list(positions)] = True
        gpus = by_kind[fleet.kind]
    why_not = _why_not(fleet, nodes, [why for _, why in verdicts])
    return Suitable(fleet.layout, nodes, gpus, why_not, _offered(fleet, pods))


def _offered(fleet: Fleet, pods: PodSet) -> Offered | None:
    if not wants_fraction(pods) or not any(kind.shares for kind in fleet.kinds):
        return None
    part = Part(pods.gpu_milli, pods.gpu_memory_mib)
    taken = [share_for(kind.shares, pods) for kind in fleet.kinds]
    by_kind = [part.milli if s is None else takes_milli(s, part) for s in taken]
    by_resource: dict[str, NDArray[np.bool_]] = {}
    for number, share in enumerate(taken):
        if share is not None and counted(share):
            mask = by_resource.setdefault(share.resource, np.zeros(len(fleet.kind), np.bool_))
            mask |= fleet.kind == number
    return Offered(np.array(by_kind, np.int64)[fleet.kind], tuple(sorted(by_resource.items())))


class Suitables:
    """What suits each shape, worked out once for each layout of the fleet. Pods that differ only in
    how much they take of CPU and memory share it."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}
        self._known: dict[bytes, Suitable] = {}

    def of(self, fleet: Fleet, shape: bytes, index: int, pods: PodSet) -> Suitable:
        """For one pod set of a request of this shape. The fleet must be arranged."""
        filters = self._kind(shape, index, pods)[1]
        known = self._known.get(filters)
        if known is not None and known.layout == fleet.layout:
            return known
        if len(self._known) >= _FILTERS_KEPT:
            self._known.clear()
        made = self._known[filters] = suitable_nodes(fleet, pods)
        return made

    @property
    def array_bytes(self) -> int:
        """What the masks take."""
        known = self._known.values()
        return sum(s.nodes.nbytes + (s.gpus.nbytes if s.gpus is not None else 0) for s in known)

    def kind(self, shape: bytes, index: int, pods: PodSet) -> bytes:
        """``kind_of`` the pods, without working it out each time."""
        return self._kind(shape, index, pods)[0]

    def _kind(self, shape: bytes, index: int, pods: PodSet) -> tuple[bytes, bytes]:
        known = self._kinds.get((shape, index))
        if known is None:
            if len(self._kinds) >= _SHAPES_KEPT:
                self._kinds.clear()
            known = self._kinds[shape, index] = kind_of(pods), _filters_of(pods)
        return known


def _filters_of(pods: PodSet) -> bytes:
    """Equal for pods that the same nodes suit, room aside."""
    changes: dict[str, int] = {"cpu_milli": 0, "memory_mib": 0}
    if pods.gpu_milli == WHOLE or pods.gpus != 1:
        changes["gpu_milli"] = WHOLE
    return kind_of(msgspec.structs.replace(pods, **changes))


def _why_not(fleet: Fleet, nodes: NDArray[np.bool_], whys: list[str]) -> dict[str, str]:
    if not len(nodes):
        return {}
    any_ok = np.logical_or.reduceat(nodes, fleet.starts)
    ends = [*fleet.starts[1:].tolist(), len(nodes)]
    out: dict[str, str] = {}
    for index, cluster in enumerate(fleet.clusters):
        if any_ok[index]:
            continue
        kinds = set(fleet.kind[fleet.starts[index] : ends[index]].tolist())
        reasons = {whys[kind] or "no node has the labels" for kind in kinds}
        # Of several, the one that came closest to fitting says most.
        out[cluster] = min(reasons, key=lambda why: (_CLOSENESS.index(why.split(" (")[0]), why))
    return out


_CLOSENESS = (
    "no node has the labels",
    "nodes are tainted",
    "too little GPU memory",
    "no such part of a GPU",
    "GPUs are handed out whole only",
    "too few GPUs a node",
    "no such GPU model",
    "no GPUs",
)


def _judge(kind: NodeKind, pods: PodSet) -> tuple[tuple[int, ...], str]:
    """(positions of acceptable GPUs, why the node will not do or "")."""
    positions: tuple[int, ...] = ()
    if pods.gpus:
        if not kind.gpus:
            return (), "no GPUs"
        positions = tuple(range(len(kind.gpus)))
        if pods.gpu_models:
            positions = tuple(p for p in positions if is_one_of(pods.gpu_models, kind.gpus[p][0]))
            if not positions:
                return (), "no such GPU model"
        if pods.gpu_memory_mib:
            positions = tuple(p for p in positions if kind.gpus[p][1] >= pods.gpu_memory_mib)
            if not positions:
                return (), "too little GPU memory"
        if len(positions) < pods.gpus:
            return (), "too few GPUs a node"
        if wants_fraction(pods) and not kind.fractions:
            return (), "GPUs are handed out whole only"
        if wants_fraction(pods) and kind.shares and share_for(kind.shares, pods) is None:
            return (), "no such part of a GPU"
    for taint in kind.taints:
        if not tolerates(pods.tolerations, taint):
            return (), f"nodes are tainted ({taint.key})"
    return positions, ""


def wants_fraction(pods: PodSet) -> bool:
    """Whether each pod shares one GPU."""
    return pods.gpus == 1 and pods.gpu_milli < WHOLE
