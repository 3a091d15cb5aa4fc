"""Which clusters are out for a request, and why, in the words that records and people are given.

The filters of clusters (fleet/cluster_filters.py) find the same for all requests of a shape. What
closes a cluster (silence, a cordon, its hub) is the same for all requests of a snapshot. So both
are worked out once. A gate (queue_gate.py) answers for each request again.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.cluster_filters import FILTERS, why_not_made
from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleet.needs import Shape, Suitable, wants_fraction
from berthmaster.lib.engine.fleetview.queue_gate import Gate
from berthmaster.lib.engine.fleetview.snapshot import ClusterSnapshot, Filtered
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.messages.placement import Via

BUSY: Final = "busy: no room now"
NO_NODES: Final = "has no nodes"
LESS_LIKED: Final = "has room on GPU models only that it likes less"
SHAPES_KEPT: Final = 4096
BUSY_KEPT: Final = 8  # of a shape: which clusters have room changes seldom


def filtered_for(
    view: FleetView, snapshot: ClusterSnapshot, shape: Shape, *, by_hub: bool
) -> Filtered:
    """Which clusters are out whatever their room: the same for all requests of a shape."""
    known = snapshot.filtered.get((shape.key, by_hub))
    if known is not None:
        return known
    if len(snapshot.filtered) >= SHAPES_KEPT:
        snapshot.filtered.clear()
    shares = any(wants_fraction(pods) for pods in shape.pod_sets)
    if not snapshot.table.tainted and _passes_all(shape):
        usual = snapshot.filtered.get((b"", by_hub))
        if usual is None:  # the same for all such shapes
            usual = snapshot.filtered[b"", by_hub] = _filtered_by(snapshot, {}, shares=False)
        known = Filtered(usual.why, usual.open, {}, shares)
    else:
        unsuitable = snapshot.table.note(
            ("unsuitable", shape.key, by_hub),
            lambda: _unsuitable(view, snapshot, shape, "hub" if by_hub else "direct"),
        )
        known = _filtered_by(snapshot, unsuitable, shares=shares)
    snapshot.filtered[shape.key, by_hub] = known
    return known


def _filtered_by(
    snapshot: ClusterSnapshot, unsuitable: dict[int, str], *, shares: bool
) -> Filtered:
    """``unsuitable``: numbers of clusters that the request itself rules out, and why."""
    why = dict.fromkeys(snapshot.table.without_nodes, NO_NODES)
    out = snapshot.closed | unsuitable if unsuitable else snapshot.closed
    for number in sorted(out):
        why[snapshot.clusters[number]] = out[number]
    is_open = np.ones(len(snapshot.clusters), np.bool_)
    is_open[list(out)] = False
    return Filtered(why, is_open, {}, shares)


def _passes_all(shape: Shape) -> bool:
    """Whether no filter can rule out a cluster without taints."""
    return all(each.passes_all(*map(shape.fields.__getitem__, each.reads)) for each in FILTERS)


def _unsuitable(
    view: FleetView, snapshot: ClusterSnapshot, shape: Shape, via: Via
) -> dict[int, str]:
    """Numbers of the clusters that will not do for what the request says, and why."""
    found = {}
    for number, name in enumerate(snapshot.clusters):
        if why := why_unsuitable(view.clusters.peek(name), shape, via):
            found[number] = why
    return found


def why_unsuitable(cluster: Cluster, shape: Shape, via: Via) -> str:
    """Return why a cluster will not do for what the request says of clusters, or ""."""
    for each in FILTERS:
        if why := each.why_not(cluster, via, *map(shape.fields.__getitem__, each.reads)):
            return why
    return ""


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
        not_made = why_not_made(view.clusters.peek(name), gate.via, shape.pod_sets)
        if found := not_made or gate.why_not(name):
            why[name] = found
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
