"""What a request needs, as its shape: requests of one shape fit, or do not, together.

A waiting list of ten thousand jobs usually holds a few dozen shapes. Filters are worked out once
for a shape and layout of the fleet, and a shape that does not fit is not tried again for the next
job of the same shape.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.cluster_filters import READS, tolerates
from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet, NodeKind
from berthmaster.lib.engine.fleet.links import domain_numbers, levels_of
from berthmaster.lib.engine.fleet.models import EXACTLY, is_one_of
from berthmaster.lib.engine.fleet.pieces import (
    NO_ACCELERATOR,
    NO_PIECES,
    NO_TOPOLOGY,
    NO_TPUS,
    NOT_ALL_TPUS,
    TOO_FEW_PIECES,
    pieces_of,
    place_label,
    tolerations_of,
    why_none,
)
from berthmaster.lib.engine.fleet.shares import (
    NOT_HELD,
    Charges,
    charged_milli,
    counted,
    enough,
    is_hard_enough,
    isolation_of,
    part_of,
    share_for,
    wants_fraction,
)
from berthmaster.lib.messages.workload import (
    MAX_PODS,
    ONE_NODE,
    Isolation,
    JobRequest,
    PodSet,
    Topology,
)

NO_PLACE = -1  # a node without the label that names places
_SHAPES_KEPT = 4096
_FILTERS_KEPT = 128  # each takes a byte or more a node
_SHAPE_ENCODER = msgspec.msgpack.Encoder(order="sorted")


class CappedPodSet(PodSet, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Pods that each take a part of a GPU, with what their queue lets a part cost.

    Only the engine makes such sets, from requests that it narrows while it looks for room.
    Example: ``(("A100", 250), ("T4", 0))`` admits parts that are charged at most 250 milli of an
    A100, and no part of a T4. A model that is not named is admitted.
    """

    charged_at_most: tuple[tuple[str, int], ...]  # model of a GPU, milli of it


class Shape:
    """What a request asks of places, and the key under which results are kept that follow from it.

    The key is made of every field, and filters (cluster_filters.py) get nothing else of a request.
    So the result for one request is right for each other request with an equal key. Durations that
    were learned are stored under it too, so another set of fields begins them again.
    """

    __slots__ = ("fields", "key", "pod_sets")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """``fields``: those of the request that READS names, in that order."""
        self.fields: Final = fields
        self.pod_sets: Final[tuple[PodSet, ...]] = fields["pod_sets"]
        self.key: Final = _SHAPE_ENCODER.encode(tuple(fields.values()))


def shape_of(request: JobRequest) -> Shape:
    return Shape({name: getattr(request, name) for name in READS})


def kind_of(pods: PodSet) -> bytes:
    """Equal for pods that any node serves equally well."""
    return _SHAPE_ENCODER.encode(_plain(pods))


def _plain(pods: PodSet) -> PodSet:
    """Without what no node cares about."""
    plain = msgspec.structs.replace(pods, name="", count=1, min_count=None, max_count=None)
    if pods.topology is not None or pods.prefer_gpu_models:
        topology = of_one_pod(pods.topology)
        plain = msgspec.structs.replace(plain, prefer_gpu_models=(), topology=topology)
    return plain


def of_one_pod(topology: Topology | None) -> Topology | None:
    """What of it decides whether a node will do for one pod, whatever the others."""
    if topology is None:
        return None
    same = topology.same if topology.same != ONE_NODE else ""
    if not same and not topology.gpu_domain:
        return None
    return Topology(same=same, gpu_domain=topology.gpu_domain)


def gpu_milli(request: JobRequest) -> int:
    """GPU milli that all its pods ask for. Placed pods are charged no less: see
    ``lifecycle.charges``."""
    return sum(p.count * p.gpus * p.gpu_milli for p in request.pod_sets)


class Counted(NamedTuple):
    """What pods take in whole pieces, of which a node has only so many."""

    resource: str
    a_pod: int
    nodes: NDArray[np.bool_] | None  # [N], where it is counted; None = everywhere


class Suitable(NamedTuple):
    """Which nodes and GPUs a pod set may use at all, room aside."""

    layout: int  # of the fleet, for which this was worked out
    nodes: NDArray[np.bool_]  # [N]
    gpus: NDArray[np.bool_] | None  # [N, G]; None = every GPU of a suitable node will do
    why_not: dict[str, str]  # cluster -> why none of its nodes will do
    offered: NDArray[np.int64] | None = None
    # [N], what one pod takes of a GPU, as not all nodes hand out parts in any size; None = what it
    # asks for.
    domains: NDArray[np.int8] | None = None  # [N, G] of GPUs; None = each pod may mix them
    places: NDArray[np.int32] | None = None  # [N], values of the label that pods are to share
    pieces: tuple[Counted, ...] = ()
    charges: Charges = ()  # of pods that take a part of a GPU; () = no node takes them

    def milli(self, slot: int, pods: PodSet) -> int:
        """What one pod takes of a GPU on a node."""
        return pods.gpu_milli if self.offered is None else int(self.offered[slot])

    def pods_by_pieces(self, fleet: Fleet, at: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        """Of some nodes, how many pods the pieces do for that are left; MAX_PODS where none
        count."""
        room = np.full(len(self.nodes[at]), MAX_PODS, np.int64)
        for resource, a_pod, nodes in self.pieces:
            left = np.maximum(fleet.arrays.pieces[resource][at], 0) // a_pod
            np.minimum(room, left, out=room, where=True if nodes is None else nodes[at])
        return room


def suitable_nodes(fleet: Fleet, pods: PodSet) -> Suitable:
    """Filter by GPU count, model, memory, taints and labels. The fleet must be arranged."""
    width = fleet.arrays.gpu.shape[1]
    verdicts = [_judge(kind, pods) for kind in fleet.kinds]
    kind_ok = np.array([not why for _, why in verdicts], np.bool_)
    nodes = kind_ok[fleet.arrays.kind] if len(fleet.kinds) else np.zeros(0, np.bool_)
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
        gpus = by_kind[fleet.arrays.kind]
    places, lacks = _places(fleet, pods, nodes)
    why_not = _why_not(fleet, nodes, [why for _, why in verdicts], lacks)
    offered, parts = _offered(fleet, pods, verdicts)
    domains = _domains(fleet, pods)
    pieces = parts
    if nodes.any():  # else nobody may have arrays for them
        pieces += tuple(Counted(name, count, None) for name, count in pieces_of(pods))
    charges: Charges = ()
    if wants_fraction(pods):
        kinds = np.unique(fleet.arrays.kind[nodes]).tolist() if nodes.any() else []
        found = {
            (fleet.kinds[number].gpus[at][0], _charged(fleet.kinds[number], at, pods))
            for number in kinds
            for at in verdicts[number][0]
        }
        charges = tuple(sorted(found))
    return Suitable(fleet.layout, nodes, gpus, why_not, offered, domains, places, pieces, charges)


def _charged(kind: NodeKind, at: int, pods: PodSet) -> int:
    """What a part of the GPU at this position is charged with."""
    return charged_milli(
        part_of(pods), kind.shares, kind.gpus[at][1], kind.indices[at], fractions=kind.fractions
    )


def _places(
    fleet: Fleet, pods: PodSet, nodes: NDArray[np.bool_]
) -> tuple[NDArray[np.int32] | None, str]:
    """Numbers of the values of the label that pods are to have in common, and what nodes without it
    lack; those will not do."""
    label = place_label(pods)
    if not label:
        return None, _NO_LABELS
    places = np.full(len(nodes), NO_PLACE, np.int32)
    known: dict[str, int] = {}
    for slot in np.flatnonzero(nodes).tolist():
        value = fleet.report_at(slot).labels.get(label)
        if value is None:
            nodes[slot] = False
        else:
            places[slot] = known.setdefault(value, len(known))
    return places, f"no node has the label ({label})"


def _domains(fleet: Fleet, pods: PodSet) -> NDArray[np.int8] | None:
    if not _one_domain(pods):
        return None
    width = fleet.arrays.gpu.shape[1]
    numbers = [domain_numbers(kind.links, width) for kind in fleet.kinds]
    return np.array(numbers, np.int8).reshape(len(numbers), width)[fleet.arrays.kind]


def _one_domain(pods: PodSet) -> bool:
    """Whether the GPUs of each pod must belong together."""
    topology = pods.topology
    return pods.gpus > 1 and topology is not None and topology.gpu_domain == "required"


def _offered(
    fleet: Fleet, pods: PodSet, verdicts: list[tuple[tuple[int, ...], str]]
) -> tuple[NDArray[np.int64] | None, tuple[Counted, ...]]:
    """What a part comes to on each node, and the offers of which there are only so many."""
    sized = pods.gpu_memory_mib > 0
    if not wants_fraction(pods) or not (sized or any(kind.shares for kind in fleet.kinds)):
        return None, ()
    taken = [share_for(kind.shares, pods) for kind in fleet.kinds]
    by_kind = []
    for (positions, why), kind in zip(verdicts, fleet.kinds, strict=True):
        # Of GPUs that differ, by the one of which a part is most.
        by_kind.append(
            max((_charged(kind, p, pods) for p in positions), default=WHOLE) if not why else WHOLE
        )
    by_resource: dict[str, NDArray[np.bool_]] = {}
    for number, share in enumerate(taken):
        if share is not None and counted(share):
            mask = by_resource.setdefault(
                share.resource, np.zeros(len(fleet.arrays.kind), np.bool_)
            )
            mask |= fleet.arrays.kind == number
    pieces = tuple(Counted(name, 1, nodes) for name, nodes in sorted(by_resource.items()))
    return np.array(by_kind, np.int64)[fleet.arrays.kind], pieces


def prefers(shape: Shape) -> bool:
    """Whether it would rather have some of the GPU models that it takes."""
    return any(pods.prefer_gpu_models for pods in shape.pod_sets)


def narrowed(fleet: Fleet, shape: Shape) -> tuple[Shape, ...]:
    """What to try before the request as it stands, most preferred first: pod sets that take one of
    the models only that they prefer. A set that prefers fewer models than another keeps to the last
    of them. The fleet must be arranged."""
    models = sorted({model for kind in fleet.kinds for model, _ in kind.gpus})
    found = []
    for rank in range(max(len(pods.prefer_gpu_models) for pods in shape.pod_sets)):
        sets = [_only(pods, rank, models) for pods in shape.pod_sets]
        some = tuple(pods for pods in sets if pods is not None)
        if len(some) == len(sets):
            found.append(Shape({**shape.fields, "pod_sets": some}))
    return tuple(found)


def _only(pods: PodSet, rank: int, models: list[str]) -> PodSet | None:
    """The set with the models of a rank; None if no node has one."""
    prefer = pods.prefer_gpu_models
    if not prefer or not pods.gpus:
        return pods
    wanted = prefer[min(rank, len(prefer) - 1) :][:1]
    only = tuple(
        f"{EXACTLY}{model}"
        for model in models
        if is_one_of(wanted, model) and (not pods.gpu_models or is_one_of(pods.gpu_models, model))
    )
    if not only:
        return None
    return msgspec.structs.replace(pods, gpu_models=only, prefer_gpu_models=())


class Suitables:
    """What suits each shape, worked out once for each layout of the fleet. Pods that differ only in
    how much they take of CPU and memory share it."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[bytes, int], _Kind] = {}
        self._known: dict[bytes, Suitable] = {}
        self._narrowed: dict[bytes, tuple[int, tuple[Shape, ...]]] = {}

    def of(self, fleet: Fleet, shape: Shape, index: int) -> Suitable:
        """For one pod set of a shape. The fleet must be arranged."""
        _, _, filters, pods = self._kind(shape, index)
        known = self._known.get(filters)
        if known is not None and known.layout == fleet.layout:
            return known
        if len(self._known) >= _FILTERS_KEPT:
            self._known.clear()
        made = self._known[filters] = suitable_nodes(fleet, pods)
        return made

    def narrowed(self, fleet: Fleet, shape: Shape) -> tuple[Shape, ...]:
        """``narrowed``, worked out once for a shape and layout."""
        known = self._narrowed.get(shape.key)
        if known is None or known[0] != fleet.layout:
            if len(self._narrowed) >= _FILTERS_KEPT:
                self._narrowed.clear()
            known = self._narrowed[shape.key] = fleet.layout, narrowed(fleet, shape)
        return known[1]

    @property
    def array_bytes(self) -> int:
        masks = [m for s in self._known.values() for m in (s.nodes, s.gpus, s.domains, s.places)]
        return sum(mask.nbytes for mask in masks if mask is not None)

    def kind(self, shape: Shape, index: int) -> tuple[bytes, PodSet]:
        """``kind_of`` the pods, without working it out each time, and all of them that it tells."""
        key, pods, _, _ = self._kind(shape, index)
        return key, pods

    def _kind(self, shape: Shape, index: int) -> "_Kind":
        known = self._kinds.get((shape.key, index))
        if known is None:
            if len(self._kinds) >= _SHAPES_KEPT:
                self._kinds.clear()
            plain = _plain(shape.pod_sets[index])
            filters = _filters_of(plain)
            encode = _SHAPE_ENCODER.encode
            known = _Kind(encode(plain), plain, encode(filters), filters)
            self._kinds[shape.key, index] = known
        return known


class _Kind(NamedTuple):
    """Keys of a pod set, each with the pod set that is all of what it is the key of."""

    key: bytes
    pods: PodSet
    filters: bytes
    filtered_by: PodSet


def _filters_of(pods: PodSet) -> PodSet:
    """Equal for pods that the same nodes suit, room aside."""
    changes: dict[str, int] = {"cpu_milli": 0, "memory_mib": 0}
    if pods.gpu_milli == WHOLE or pods.gpus != 1:
        changes["gpu_milli"] = WHOLE
    return msgspec.structs.replace(pods, **changes)


def _why_not(fleet: Fleet, nodes: NDArray[np.bool_], whys: list[str], lacks: str) -> dict[str, str]:
    if not len(nodes):
        return {}
    any_ok = np.logical_or.reduceat(nodes, fleet.arrays.starts).tolist()
    out: dict[str, str] = {}
    of_kinds: dict[frozenset[int], str] = {}
    for cluster, ok, kinds in zip(fleet.clusters, any_ok, fleet.kinds_in, strict=True):
        if ok:
            continue
        why = of_kinds.get(kinds)
        if why is None:
            # Of several reasons, the one that came closest to fitting says most.
            reasons = {whys[kind] or lacks for kind in kinds}
            closeness = ((_CLOSENESS.index(each.split(" (")[0]), each) for each in reasons)
            why = of_kinds[kinds] = min(closeness)[1]
        out[cluster] = why
    return out


NO_GPUS = "no GPUs"
NO_RESOURCE = "no GPUs of that resource"
NO_MODEL = "no such GPU model"
NO_PROFILE = "no such MIG profile"
TOO_SOFT = "no part of a GPU with so hard a limit"
NO_PART = "no such part of a GPU"
NOT_LINKED = "too few GPUs in one NVLink or NUMA domain"
TOO_DEAR = "charges more for a part of a GPU than its queue has left"
TOO_FEW_WHOLE = "too few whole GPUs a node even if nothing ran there, as others are shared or cut"
_NO_LABELS = "no node has the labels"
_CLOSENESS = (
    _NO_LABELS,
    "no node has the label",
    "nodes are tainted",
    NOT_ALL_TPUS,
    TOO_FEW_PIECES,
    NO_TOPOLOGY,
    NO_ACCELERATOR,
    NO_PIECES,
    NO_TPUS,
    NOT_LINKED,
    "too little GPU memory",
    NO_PROFILE,
    TOO_SOFT,
    NO_PART,
    TOO_DEAR,
    "GPUs are handed out whole only",
    TOO_FEW_WHOLE,
    "too few GPUs a node",
    NO_MODEL,
    NO_RESOURCE,
    NO_GPUS,
)


def _judge(kind: NodeKind, pods: PodSet) -> tuple[tuple[int, ...], str]:
    """(positions of acceptable GPUs, why the node will not do or "")."""
    positions, why = gpus_for(kind, pods) if pods.gpus else ((), "")
    if why or (why := why_none(kind.pieces, kind.tpus, pods)):
        return (), why
    tolerated = tolerations_of(pods) if kind.taints else ()
    for taint in kind.taints:
        if not tolerates(tolerated, taint):
            return (), f"nodes are tainted ({taint.key})"
    return positions, ""


def gpus_for(kind: NodeKind, pods: PodSet) -> tuple[tuple[int, ...], str]:
    """Return the positions of the GPUs of a node that a pod may have, and why it may have none.
    They are all asked for by one resource: where GPUs of several will do, by the first of which
    there are enough."""
    if not kind.gpus:
        return (), NO_GPUS
    positions, why = named_gpus(kind, pods)
    if why:
        return (), why
    if pods.gpu_memory_mib:
        positions = tuple(p for p in positions if kind.gpus[p][1] >= pods.gpu_memory_mib)
        if not positions:
            return (), "too little GPU memory"
    if len(positions) < pods.gpus:
        return (), "too few GPUs a node"
    if kind.parts_only and not wants_fraction(pods):
        positions = tuple(p for p in positions if p not in kind.parts_only)
        if len(positions) < pods.gpus:
            return (), f"{TOO_FEW_WHOLE} ({len(positions)} of {len(kind.gpus)})"
    if why := _no_part(kind, pods):
        return (), why
    share = share_for(kind.shares, pods) if wants_fraction(pods) else None
    if share is not None and share.gpus:
        positions = tuple(p for p in positions if kind.indices[p] in share.gpus)
        if not positions:
            return (), NO_PART
    if isinstance(pods, CappedPodSet):
        most = dict(pods.charged_at_most)
        positions = tuple(
            p for p in positions if _charged(kind, p, pods) <= most.get(kind.gpus[p][0], WHOLE)
        )
        if not positions:
            return (), TOO_DEAR
    if len(set(kind.resources)) > 1:
        by_resource = [
            tuple(p for p in positions if kind.resources[p] == r) for r in kind.resources
        ]
        positions = next((some for some in by_resource if len(some) >= pods.gpus), ())
        if not positions:
            return (), "too few GPUs a node"
    if _one_domain(pods) and not _linked(kind, positions, pods.gpus):
        return (), NOT_LINKED
    return positions, ""


def named_gpus(kind: NodeKind, pods: PodSet) -> tuple[tuple[int, ...], str]:
    """Return the positions of the GPUs that a pod set names, by resource and model, and why there
    are none."""
    positions = tuple(range(len(kind.gpus)))
    if pods.gpu_resource:
        positions = tuple(p for p in positions if kind.resources[p] == pods.gpu_resource)
        if not positions:
            return (), f"{NO_RESOURCE} ({pods.gpu_resource})"
    if pods.gpu_models:
        positions = tuple(p for p in positions if is_one_of(pods.gpu_models, kind.gpus[p][0]))
        if not positions:
            return (), NO_MODEL
    return positions, ""


def _no_part(kind: NodeKind, pods: PodSet) -> str:
    """Why the node has no such part of a GPU; "" where it has one, or none is asked for."""
    if pods.mig_profile and share_for(kind.shares, pods) is None:
        return NO_PROFILE
    if not wants_fraction(pods):
        return ""
    if not kind.fractions:
        return "GPUs are handed out whole only"
    if _too_soft(kind, pods):
        return f"{TOO_SOFT} ({pods.isolation})"
    if kind.shares and share_for(kind.shares, pods) is None:
        return NO_PART
    return ""


def _too_soft(kind: NodeKind, pods: PodSet) -> bool:
    """Whether the node has such a part, and nothing that would hold the others to theirs. Of parts
    in any size, as emulated nodes have them, nobody says that anything does."""
    if not kind.shares:
        return not is_hard_enough(NOT_HELD, pods.isolation)
    any_limit = part_of(pods)._replace(isolation="")
    return share_for(kind.shares, pods) is None and enough(kind.shares, any_limit) is not None


def isolation_at(fleet: Fleet, slot: int, pods: PodSet) -> Isolation:
    """How hard the limit is of the part of a GPU that pods get on a node; "" where it says nothing
    of parts, as emulated ones do."""
    share = share_for(fleet.kinds[fleet.arrays.kind[slot]].shares, pods)
    return isolation_of(share) if share is not None else ""


def _linked(kind: NodeKind, positions: tuple[int, ...], count: int) -> bool:
    will_do = set(positions)
    return any(len(will_do & set(group)) >= count for group in levels_of(kind.links).domains)
