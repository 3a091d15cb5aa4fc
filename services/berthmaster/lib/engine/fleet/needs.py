"""Shapes of requests: requests of one shape fit, or fail to fit, together.

Example: ten thousand pending jobs usually have a few dozen shapes. Filters are computed once for
each shape and layout of the fleet. If a shape does not fit, later jobs of the shape are skipped.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.cluster_filters import READS, tolerates
from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet, NodeKind
from berthmaster.lib.engine.fleet.gpus import EXACTLY, domain_numbers, is_one_of, levels_of
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

NO_PLACE = -1  # a node without the label of the topology
_SHAPES_KEPT = 4096
_FILTERS_KEPT = 128  # each takes a byte or more a node
_SHAPE_ENCODER = msgspec.msgpack.Encoder(order="sorted")


class CappedPodSet(PodSet, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Pods that each take a GPU fraction, with price limits from their queue. The engine makes such
    sets only while narrowing a request during a search. Example: ``(("A100", 250), ("T4", 0))``
    allows fractions charged at most 250 milli of an A100, and no fraction of a T4. Other models are
    allowed.
    """

    charged_at_most: tuple[tuple[str, int], ...]  # GPU model, maximum charge in milli


class Shape:
    """The requirements of a request, and their cache key.

    The key contains every field, and filters (cluster_filters.py) get nothing else of a request. A
    result is therefore valid for every request with an equal key. Learned durations use the key
    too, so another set of fields restarts the learning.
    """

    __slots__ = ("fields", "key", "pod_sets")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """``fields``: the request's values of READS, in that order."""
        self.fields: Final = fields
        self.pod_sets: Final[tuple[PodSet, ...]] = fields["pod_sets"]
        self.key: Final = _SHAPE_ENCODER.encode(tuple(fields.values()))


def shape_of(request: JobRequest) -> Shape:
    return Shape({name: getattr(request, name) for name in READS})


def kind_of(pods: PodSet) -> bytes:
    """Return a key, equal for pods that every node serves equally well."""
    return _SHAPE_ENCODER.encode(_plain(pods))


def _plain(pods: PodSet) -> PodSet:
    """Return the pod set without fields irrelevant to nodes."""
    plain = msgspec.structs.replace(pods, name="", count=1, min_count=None, max_count=None)
    if pods.topology is not None or pods.prefer_gpu_models:
        topology = of_one_pod(pods.topology)
        plain = msgspec.structs.replace(plain, prefer_gpu_models=(), topology=topology)
    return plain


def of_one_pod(topology: Topology | None) -> Topology | None:
    """Return the part of a topology that concerns a single pod."""
    if topology is None:
        return None
    same = topology.same if topology.same != ONE_NODE else ""
    if not same and not topology.gpu_domain:
        return None
    return Topology(same=same, gpu_domain=topology.gpu_domain)


def gpu_milli(request: JobRequest) -> int:
    """Return GPU milli requested by all pods. Placed pods are charged at least as much."""
    return sum(p.count * p.gpus * p.gpu_milli for p in request.pod_sets)


class Counted(NamedTuple):
    """Units that pods take, limited on each node."""

    resource: str
    a_pod: int
    nodes: NDArray[np.bool_] | None  # [N], nodes that count units; None = all


class Suitable(NamedTuple):
    """Which nodes and GPUs a pod set may use at all, room aside."""

    layout: int  # layout of the fleet at the computation
    nodes: NDArray[np.bool_]  # [N]
    gpus: NDArray[np.bool_] | None  # [N, G]; None = every GPU of a suitable node will do
    why_not: dict[str, str]  # cluster -> why none of its nodes suits
    offered: NDArray[np.int64] | None = None
    # [N], charge of one pod on a GPU, where nodes limit the sizes of fractions; None = as
    # requested.
    domains: NDArray[np.int8] | None = None  # [N, G], domain of GPUs; None = a pod may mix domains
    places: NDArray[np.int32] | None = None  # [N], value of the topology's label
    pieces: tuple[Counted, ...] = ()
    charges: Charges = ()  # charges of a fraction; () = no node takes the pods

    def milli(self, slot: int, pods: PodSet) -> int:
        """Return the charge of one pod on a GPU of a node."""
        return pods.gpu_milli if self.offered is None else int(self.offered[slot])

    def pods_by_pieces(self, fleet: Fleet, at: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of pods that free units allow on each node; MAX_PODS where
        none count.
        """
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
    if nodes.any():  # without such nodes the arrays may be missing
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
    """Return the charge of a fraction on the GPU at this position."""
    return charged_milli(
        part_of(pods), kind.shares, kind.gpus[at][1], kind.indices[at], fractions=kind.fractions
    )


def _places(
    fleet: Fleet, pods: PodSet, nodes: NDArray[np.bool_]
) -> tuple[NDArray[np.int32] | None, str]:
    """Return numbers for the values of the topology's label, and the error for nodes without the
    label.
    """
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
    """Return the charge of a fraction on each node, and the units that limit its number."""
    sized = pods.gpu_memory_mib > 0
    if not wants_fraction(pods) or not (sized or any(kind.shares for kind in fleet.kinds)):
        return None, ()
    taken = [share_for(kind.shares, pods) for kind in fleet.kinds]
    by_kind = []
    for (positions, why), kind in zip(verdicts, fleet.kinds, strict=True):
        # Where GPUs differ, the largest charge counts.
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
    """Return whether the request prefers some of its accepted GPU models."""
    return any(pods.prefer_gpu_models for pods in shape.pod_sets)


def narrowed(fleet: Fleet, shape: Shape) -> tuple[Shape, ...]:
    """Return narrowed shapes to try before the request itself, most preferred first.

    Each set takes only its preferred model of a rank. A set with fewer preferred models stays at
    its last. The fleet must be arranged.
    """
    models = sorted({model for kind in fleet.kinds for model, _ in kind.gpus})
    found = []
    for rank in range(max(len(pods.prefer_gpu_models) for pods in shape.pod_sets)):
        sets = [_only(pods, rank, models) for pods in shape.pod_sets]
        some = tuple(pods for pods in sets if pods is not None)
        if len(some) == len(sets):
            found.append(Shape({**shape.fields, "pod_sets": some}))
    return tuple(found)


def _only(pods: PodSet, rank: int, models: list[str]) -> PodSet | None:
    """Return the set limited to the model of a rank; None if no node has the model."""
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
    """Suitable nodes of each shape, computed once per layout of the fleet. Pods that differ only in
    CPU and memory share a result.
    """

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
        """Return the cached ``kind_of`` of the pods, and the reduced pod set behind the key."""
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
    """Keys of a pod set, each with its reduced pod set."""

    key: bytes
    pods: PodSet
    filters: bytes
    filtered_by: PodSet


def _filters_of(pods: PodSet) -> PodSet:
    """Return the pod set without quantities, equal for pods that the same nodes suit."""
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
            # Of several reasons, report the one closest to a fit.
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
    """Return the positions of the GPUs that a pod may use, and why it may use none.

    All GPUs of a pod have one extended resource: the first with enough GPUs.
    """
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
    """Return the positions of GPUs with the requested resource and model, and why there
    are none.
    """
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
    """Return why the node offers no such fraction; "" if it does, or none is requested."""
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
    """Return whether the node has such a fraction, but with too little isolation.

    Nodes without listed shares (emulated ones) promise no isolation.
    """
    if not kind.shares:
        return not is_hard_enough(NOT_HELD, pods.isolation)
    any_limit = part_of(pods)._replace(isolation="")
    return share_for(kind.shares, pods) is None and enough(kind.shares, any_limit) is not None


def isolation_at(fleet: Fleet, slot: int, pods: PodSet) -> Isolation:
    """Return the isolation of the pods' GPU fraction on a node; "" if the node lists no shares."""
    share = share_for(fleet.kinds[fleet.arrays.kind[slot]].shares, pods)
    return isolation_of(share) if share is not None else ""


def _linked(kind: NodeKind, positions: tuple[int, ...], count: int) -> bool:
    will_do = set(positions)
    return any(len(will_do & set(group)) >= count for group in levels_of(kind.links).domains)
