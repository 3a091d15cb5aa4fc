"""The components of a cluster's score: formula and condition of each.

A component is a row of ROWS here, with name and description in scoring/profiles.py. Weights and
profiles are there too, readable without numpy. ``fit`` and ``room`` change with every placement, so
scoring/cluster_scores.py computes both, in C if compiled.

Example: for clusters with 40, 10 and 0 GPUs for a job, ``headroom`` is 100, 25 and 0.

Rules of this file:

- A component is 0 to 100 for each cluster, where more is better. Its inputs are arrays of one
  snapshot.
- UNKNOWN is the worst value for either sign of the weight, so silence never improves a cluster. A
  value below 0, or not finite, is UNKNOWN.

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
from berthmaster.lib.engine.fleet.gpus import is_model
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
    """Gate of one request. This base class opens every cluster and knows no queue."""

    via: Via = "direct"  # creator of the pods, see cluster_filters.py
    is_tiered = False  # ``tier`` and ``headroom`` are known, and being busy keeps nobody out

    def why_not(self, cluster: str) -> str:
        """Return why the cluster is out, whatever its nodes' capacity, or ""."""
        del cluster
        return ""

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        """Return pending jobs, admitted jobs and whether the request must borrow, for the governing
        queue; None = unknown.
        """
        del cluster
        return NO_LINE

    def tier(self, cluster: str) -> float:
        """Return a value of the component ``tier``."""
        del cluster
        return UNKNOWN

    def headroom(self, cluster: str) -> float:
        """Return the GPUs available now: the minimum of free GPUs and remaining quota (CPU cores
        for requests without GPUs).
        """
        del cluster
        return UNKNOWN


Mask = NDArray[np.bool_]  # [C]

# Values of ``tier``, from the best
FITS: Final = 0.0
BUSY: Final = 1.0  # quota, and the nodes are busy
NO_NODES: Final = 2.0  # quota, and the nodes are yet to come (autoscaling)
NO_QUOTA: Final = 3.0

BORROWED: Final = 0.5  # of ``wait``, where quota is borrowed: Kueue may reclaim it
PRICE: Final = "berthmaster.io/price-per-gpu-hour"  # label or property; .<model> may follow


class RequestKind(NamedTuple):
    """Properties of a request that decide which components can distinguish clusters."""

    shares: bool  # requests a GPU fraction
    governed: bool  # admitted by the clusters' own queues
    tiered: bool  # also sent to clusters where it must wait
    has_data: bool  # names locations of its data


class RankingInput(NamedTuple):
    """Inputs of the components for one request."""

    fleet: Fleet
    table: ClusterTable
    clusters: list[str]  # names, in the order of every array of [C]
    request: JobRequest
    gate: Gate
    cards: list[Scorecard]  # one a pod set


# Idle and interference: from fresh scores of the scorer.


def score_idle(idle_percent: Floats) -> Floats:
    """Return the measured idle share of each cluster's GPUs."""
    return within_bounds(believed(idle_percent))


def score_interference(calm_percent: Floats) -> Floats:
    """Return the share of shareable GPUs that are calm.

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
    """Return a cluster's price of a GPU hour from labels and properties; UNKNOWN = no price.

    ``model``: GPU model; "" = any. A price is a number in any currency.
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
    if given.gate.is_tiered:  # relative to the cheapest cluster with the earliest start
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
    """Return whether a cluster matches a data location of the request."""
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
    """One component. Without either function below, cluster_scores.py computes the value."""

    # Whether the component can distinguish clusters
    counts: Callable[[RequestKind, ClusterTable], bool]
    of_clusters: Callable[[ClusterTable], Floats] | None = None  # once a snapshot
    of_request: Callable[[RankingInput, Mask], Floats] | None = None
    # For each request; ``mask``: clusters that may take the request.


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
