"""Why clusters are out for a request, in the words that records and people are given.

What a request says of clusters (names, labels, tolerated taints) is the same for all requests of
its shape, and what closes a cluster (silence, a cordon, its hub) for all requests of a snapshot, so
both are worked out once. What a gate says (gate.py) is asked for each request anew.

A filter gets ``Asks`` of a request and nothing else: what it finds is kept under a key of all of
that.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleet.needs import Asks, Shape, Suitable, wants_fraction
from berthmaster.lib.engine.fleet.taints import tolerates
from berthmaster.lib.engine.fleetview.gate import Gate
from berthmaster.lib.engine.fleetview.snapshot import ClusterSnapshot, Filtered
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.lifecycle.job_kinds import takes_pod_sets
from berthmaster.lib.messages.placement import Via

BUSY: Final = "busy: no room now"
NOT_ASKED: Final = "not among the clusters asked for"
NO_LABELS: Final = "lacks the labels asked for"
TAINTED: Final = "is tainted"
NO_NODES: Final = "has no nodes"
LESS_LIKED: Final = "has room on GPU models only that it likes less"
SHAPES_KEPT: Final = 4096
BUSY_KEPT: Final = 8  # of a shape: which clusters have room changes seldom
NO_JOB_SETS: Final = "makes no JobSets, which several pod sets need"


def filtered_for(
    view: FleetView, snapshot: ClusterSnapshot, shape: Shape, *, by_hub: bool
) -> Filtered:
    """Which clusters are out whatever their room: the same for all requests of a shape."""
    known = snapshot.filtered.get((shape.key, by_hub))
    if known is not None:
        return known
    if len(snapshot.filtered) >= SHAPES_KEPT:
        snapshot.filtered.clear()
    shares = any(wants_fraction(pods) for pods in shape.asks.pod_sets)
    if not snapshot.table.tainted and _asks_nothing(shape.asks):
        usual = snapshot.filtered.get((b"", by_hub))
        if usual is None:  # the same for all such shapes
            usual = snapshot.filtered[b"", by_hub] = _filtered_by(snapshot, {}, shares=False)
        known = Filtered(usual.why, usual.open, {}, shares)
    else:
        asked = snapshot.table.note(
            ("asks", shape.key, by_hub),
            lambda: _unasked(view, snapshot, shape.asks, "hub" if by_hub else "direct"),
        )
        known = _filtered_by(snapshot, asked, shares=shares)
    snapshot.filtered[shape.key, by_hub] = known
    return known


def _filtered_by(snapshot: ClusterSnapshot, asked: dict[int, str], *, shares: bool) -> Filtered:
    """``asked``: numbers of clusters that the request itself rules out, and why."""
    why = dict.fromkeys(snapshot.table.without_nodes, NO_NODES)
    out = snapshot.closed | asked if asked else snapshot.closed
    for number in sorted(out):
        why[snapshot.clusters[number]] = out[number]
    is_open = np.ones(len(snapshot.clusters), np.bool_)
    is_open[list(out)] = False
    return Filtered(why, is_open, {}, shares)


def _asks_nothing(asks: Asks) -> bool:
    """Of clusters."""
    return not asks.clusters and not asks.cluster_labels and len(asks.pod_sets) == 1


def _unasked(view: FleetView, snapshot: ClusterSnapshot, asks: Asks, via: Via) -> dict[int, str]:
    """Numbers of the clusters that will not do for what the request says, and why."""
    found = {}
    for number, name in enumerate(snapshot.clusters):
        if why := why_unasked(view.clusters.peek(name), asks, via):
            found[number] = why
    return found


def why_unasked(cluster: Cluster, asks: Asks, via: Via) -> str:
    """Why a cluster will not do for what the request says of clusters, or "". ``via`` worker: its
    own Kueue starts it there, which knows no Jobs of Volcano's. ``via`` hub: it is there already,
    as an object of any kind, and the hub's Kueue copies that."""
    if asks.clusters and cluster.name not in asks.clusters:
        return NOT_ASKED
    if asks.cluster_labels and not asks.cluster_labels.items() <= cluster.labels.items():
        return NO_LABELS
    if not _makes_it(cluster, asks, via):
        return NO_JOB_SETS
    for taint in cluster.taints:
        if not all(tolerates(p.tolerations, taint) for p in asks.pod_sets):
            return f"{TAINTED} ({taint.key})"
    return ""


def _makes_it(cluster: Cluster, asks: Asks, via: Via) -> bool:
    """Whether what we make of it there can have as many pod sets. A plain Job has one."""
    if via == "hub":
        return True
    kinds = cluster.profile.job_kinds if cluster.profile is not None else None
    if kinds is None or len(asks.pod_sets) == 1:
        return True
    return any(takes_pod_sets(kind, asks.pod_sets, via) for kind in kinds)


def behind_gate(
    view: FleetView,
    snapshot: ClusterSnapshot,
    shape: Shape,
    gate: Gate,
    filtered: Filtered,
) -> Filtered:
    """Without the clusters whose own queueing would not let the request in."""
    why, is_open = dict(filtered.why), filtered.open.copy()
    for number in np.flatnonzero(is_open).tolist():
        name = snapshot.clusters[number]
        makes = _makes_it(view.clusters.peek(name), shape.asks, gate.via)
        if said := gate.why_not(name) if makes else NO_JOB_SETS:
            why[name] = said
            is_open[number] = False
    return Filtered(why, is_open, {}, filtered.shares)


def with_busy(
    snapshot: ClusterSnapshot, filtered: Filtered, able: bytes, suitables: list[Suitable]
) -> dict[str, str]:
    """Why clusters are out: closed, or without a node that suits and has room. ``able``: of each
    cluster, whether it has one."""
    known = filtered.busy.get(able)
    if known is None:
        known = dict(filtered.why)
        has_room: NDArray[np.bool_] = np.frombuffer(able, np.bool_)
        for number in np.flatnonzero(filtered.open & ~has_room).tolist():
            cluster = snapshot.clusters[number]
            whys = (s.why_not.get(cluster) for s in suitables)
            known[cluster] = next((why for why in whys if why), BUSY)
        if len(filtered.busy) >= BUSY_KEPT:
            filtered.busy.clear()
        filtered.busy[able] = known
    return known
