"""The components of a cluster's score: how each is worked out, and when it counts.

A component is one row of ROWS here and one name with its description in scoring/profiles.py, where
weights and profiles stand (gateways and CLI read those without numpy). ``fit`` and ``room`` change
with every placement, so scoring/cluster_scores.py works them out, in C where that was built.

Rules of this file:

- A component is 0..100 for each cluster, more is better. It follows from arrays of one snapshot.
- UNKNOWN counts as the worst whatever the weight is, so silence never makes a cluster look better.
  A value that is not finite or below 0 counts as UNKNOWN.

Example: of clusters with 40, 10 and 0 GPUs for a job the ``headroom`` is 100, 25 and 0.

``Gate`` reports what the clusters' own queues say of one request. A request that is made directly
in a cluster has no gate. The resolver's gate asks each worker's own Kueue. A hub's gate is tiered:
a busy cluster stays a candidate, because Kueue makes the copy wait there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.models import is_model
from berthmaster.lib.engine.scoring.cluster_scores import (
    MOST,
    UNKNOWN,
    Floats,
    believed,
    within_bounds,
)
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.score_cache import Scorecard
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest

NO_LINE: Final = None


class Gate:
    """Of one request. As it stands here, everything is open and nothing is known."""

    via: Via = "direct"  # who makes its pods there, see cluster_filters.py
    is_tiered = False  # ``tier`` and ``headroom`` are known, and being busy keeps nobody out

    def why_not(self, cluster: str) -> str:
        """Why the cluster is out, whatever room its nodes have, or ""."""
        del cluster
        return ""

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        """Of the queue that governs there: jobs that wait, jobs that were let in, whether the
        request would have to borrow. None: not known."""
        del cluster
        return NO_LINE

    def tier(self, cluster: str) -> float:
        """One of components.py's."""
        del cluster
        return UNKNOWN

    def headroom(self, cluster: str) -> float:
        """GPUs that it could have there now: the lesser of what is free and what quota is left (CPU
        cores for what asks for no GPU)."""
        del cluster
        return UNKNOWN


Mask = NDArray[np.bool_]  # [C]

# Values of ``tier``, from the best
FITS: Final = 0.0
BUSY: Final = 1.0  # quota, and the nodes are busy
NO_NODES: Final = 2.0  # quota, and the nodes are yet to come (autoscaling)
NO_QUOTA: Final = 3.0

BORROWED: Final = 0.5  # of ``wait``, where quota is borrowed: Kueue may reclaim it
PRICE: Final = "berthmaster.io/price-per-gpu-hour"  # label or property; .<model> goes before it


class RequestKind(NamedTuple):
    """The properties of a request that decide which components can tell clusters apart."""

    shares: bool  # it asks for a fraction of a GPU
    governed: bool  # the clusters' own queues admit it
    tiered: bool  # and it may be sent where it has to wait
    has_data: bool  # it names the place of its data


class RankingInput(NamedTuple):
    """What components of one request are worked out of."""

    fleet: Fleet
    table: ClusterTable
    clusters: list[str]  # names, in the order of every array of [C]
    request: JobRequest
    gate: Gate
    cards: list[Scorecard]  # one a pod set


# Idle and interference: what the scorer reports while it is fresh.


def score_idle(idle_percent: Floats) -> Floats:
    """Return the measured idle share of each cluster's GPUs."""
    return within_bounds(believed(idle_percent))


def score_interference(calm_percent: Floats) -> Floats:
    """Return how many of the GPUs that a fraction would share are calm.

    Two jobs on one GPU hardly slow each other while both use it below 70 % (Lucid, ASPLOS'23: of
    such pairs 3.4 % run below 0.85 of their speed).
    """
    return within_bounds(believed(calm_percent))


def _is_calm_known(kind: RequestKind, table: ClusterTable) -> bool:
    return kind.shares and not np.isnan(table.calm).all()


# Wait: the unit is the length of a job. With as many jobs ahead as are admitted, the request waits
# about as long as one of those runs.


def score_wait(ahead: Floats, admitted: Floats, borrows: Floats) -> Floats:
    """Return how soon each cluster's own queue would start the job.

    ``ahead``: jobs pending in the ClusterQueue. ``borrows``: 1 where its own quota is too small.
    """
    ahead, admitted, borrows = believed(ahead), believed(admitted), believed(borrows)
    lengths = ahead / (admitted + 1.0)
    return MOST / (1.0 + lengths) * np.where(borrows > 0, BORROWED, 1.0 + 0.0 * borrows)


def _wait(given: RankingInput, able: Mask) -> Floats:
    ahead, admitted, borrows = np.full((3, len(able)), UNKNOWN)
    for number in np.flatnonzero(able).tolist():
        found = given.gate.in_line(given.clusters[number])
        if found is not None:
            ahead[number], admitted[number], borrows[number] = found
    return score_wait(ahead, admitted, borrows)


# Price


def price_of(labels: Mapping[str, str], model: str) -> float:
    """Return a cluster's price of a GPU hour by its labels and properties; UNKNOWN = none.

    ``model``: of the GPU; "" = none in particular. A price is a bare number in whatever money.
    """
    if model:
        for name in sorted(labels):
            if name.startswith(f"{PRICE}.") and is_model(name[len(PRICE) + 1 :], model):
                return _number(labels[name])
    return _number(labels.get(PRICE, ""))


def _number(text: str) -> float:
    try:
        price = float(text) if len(text) <= 32 else UNKNOWN
    except ValueError:
        return UNKNOWN
    return price if math.isfinite(price) and price >= 0 else UNKNOWN


def score_price(price: Floats, among: Mask) -> Floats:
    """Return 100 for the cheapest of the clusters ``among`` the choice, 50 for twice its price."""
    price = believed(price)
    known = price[among & ~np.isnan(price)]
    if not known.size:
        return np.full(len(price), UNKNOWN)
    cheapest = known.min()
    with np.errstate(all="ignore"):  # free GPUs are as cheap as can be
        share = np.where(price <= cheapest, 1.0, cheapest / price)
    return np.where(np.isnan(price), UNKNOWN, MOST * share)


def _price(given: RankingInput, able: Mask) -> Floats:
    """By the model of the GPU that the job would get of each cluster."""
    fleet, table = given.fleet, given.table
    known: dict[tuple[int, str], float] = table.note("prices", dict)
    at = next((at for at, pods in enumerate(given.request.pod_sets) if pods.gpus), None)
    models = [""] * len(able)
    if at is not None:
        kinds = [kind.gpus[0][0] if kind.gpus else "" for kind in fleet.kinds]
        best = fleet.arrays.kind[given.cards[at].best_slot].tolist()
        models[: len(best)] = [kinds[kind] for kind in best]
    price = np.full(len(able), UNKNOWN)
    for number in np.flatnonzero(able).tolist():
        key = (number, models[number])
        if key not in known:
            known[key] = price_of(table.told[number], models[number])
        price[number] = known[key]
    if given.gate.is_tiered:  # beside the cheapest of the clusters where it could begin first
        tiers = _of_each(given, able, given.gate.tier)
        able = able & (tiers == np.min(tiers, initial=np.inf, where=able))
    return score_price(price, able)


def _is_priced(_kind: RequestKind, table: ClusterTable) -> bool:
    def has_price() -> bool:
        return any(name.startswith(PRICE) for labels in table.told for name in labels)

    return table.note(PRICE, has_price)


# Locality: names of clusters, or labels and properties as key=value, such as
# ``topology.kubernetes.io/region=eu-north``. Of several, the share that holds.


def holds(place: str, cluster: str, labels: Mapping[str, str]) -> bool:
    """Return whether a cluster is the place that the request names."""
    key, equals, value = place.partition("=")
    return labels.get(key) == value if equals else place == cluster


def matches(data: Sequence[str], cluster: str, labels: Mapping[str, str]) -> int:
    """Return how many of the request's places hold for a cluster."""
    return sum(holds(place, cluster, labels) for place in data)


def score_locality(matching: Floats, places: int) -> Floats:
    """Return the share of ``places`` that match; always known, as a missing label holds nowhere."""
    return MOST * np.minimum(believed(matching) / max(1, places), 1.0)


def _locality(given: RankingInput, _able: Mask) -> Floats:
    table, data = given.table, given.request.data

    def matching() -> Floats:
        pairs = zip(table.names, table.told, strict=True)
        return np.array([matches(data, *each) for each in pairs], np.float64)

    return score_locality(table.note(("data", data), matching), len(data))


# Tier and headroom count where a hub's Kueue hands Workloads to clusters, headroom in place of
# room: MultiKueue's users expect the cluster with the most free GPUs, not the largest free share.


def score_tier(tier: Floats) -> Floats:
    """Return 100 where the job fits now, a third less for each tier behind."""
    return MOST * (1.0 - np.minimum(believed(tier), NO_QUOTA) / NO_QUOTA)


def score_headroom(gpus: Floats, among: Mask) -> Floats:
    """Return 100 for the most GPUs of the clusters ``among`` the choice; 0 for all if none has any.

    ``gpus``: the lesser of free GPUs and quota left.
    """
    gpus = believed(gpus)
    known = gpus[among & ~np.isnan(gpus)]
    most = known.max() if known.size else 0.0
    with np.errstate(all="ignore"):
        return np.minimum(MOST * (gpus / most), MOST) if most > 0 else 0.0 * gpus


def _tier(given: RankingInput, able: Mask) -> Floats:
    return score_tier(_of_each(given, able, given.gate.tier))


def _headroom(given: RankingInput, able: Mask) -> Floats:
    return score_headroom(_of_each(given, able, given.gate.headroom), able)


def _of_each(given: RankingInput, able: Mask, value_of: Callable[[str], float]) -> Floats:
    values = np.full(len(able), UNKNOWN)
    for number in np.flatnonzero(able).tolist():
        values[number] = value_of(given.clusters[number])
    return values


class Component(NamedTuple):
    """One component. With neither function below, cluster_scores.py works it out."""

    counts: Callable[[RequestKind, ClusterTable], bool]  # whether it can tell clusters apart
    of_clusters: Callable[[ClusterTable], Floats] | None = None  # once a snapshot
    of_request: Callable[[RankingInput, Mask], Floats] | None = None
    # For each request; the mask: clusters that could take it.


def _always(_kind: RequestKind, _table: ClusterTable) -> bool:
    return True


# In the order of records
ROWS: Final[Mapping[str, Component]] = {
    "fit": Component(_always),
    "room": Component(_always),
    "idle": Component(_always, of_clusters=lambda table: score_idle(table.idle)),
    "interference": Component(
        _is_calm_known, of_clusters=lambda table: score_interference(table.calm)
    ),
    "wait": Component(lambda kind, _: kind.governed, of_request=_wait),
    "price": Component(_is_priced, of_request=_price),
    "locality": Component(lambda kind, _: kind.has_data, of_request=_locality),
    "tier": Component(lambda kind, _: kind.tiered, of_request=_tier),
    "headroom": Component(lambda kind, _: kind.tiered, of_request=_headroom),
}
